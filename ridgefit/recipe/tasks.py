"""What a fill is judged by."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from ridgefit.recipe.base import Settings
from ridgefit.recipe.drafting import AcceptanceSettings
from ridgefit.recipe.idle import Idle

NEEDLE_PROMPT = 64
"""Tokens that a prompt must have at least for numbers to be hidden in it."""


class NllSettings(Settings):
    """Loss after the prompt on novel and key tokens (paper section 3.1)."""

    task: Literal["nll"] = Field("nll", description="loss after the prompt")
    data: tuple[str, ...] = Field(min_length=1, description="text files, as for calibration")
    prompt: int = Field(3584, ge=2, description="prompt tokens")
    tail: int = Field(1024, ge=1, description="last prompt rows that run every layer")
    scored: int = Field(256, ge=1, description="tokens scored after the prompt")
    stretches: int = Field(
        1, ge=1, description="consecutive stretches of prompt + scored tokens taken from each document"
    )
    documents: int | None = Field(None, ge=1, description="first N documents")
    text_field: str = Field("text", description="column that holds a document's text")

    @model_serializer(mode="wrap")
    def _one_stretch_goes_unsaid(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Results from before there were stretches keep their hash, so that they can be gone on with."""
        saved: dict[str, Any] = plain(self)
        return {name: value for name, value in saved.items() if name != "stretches" or self.stretches > 1}


class NeedleSettings(Settings):
    """Retrieval of numbers hidden in the filled region."""

    task: Literal["needle"] = Field("needle", description="retrieval from the filled region")
    prompt: int = Field(2048, ge=NEEDLE_PROMPT, description="prompt tokens")
    tail: int = Field(512, ge=1, description="last prompt rows that run every layer")
    samples: int = Field(12, ge=1, description="prompts")
    needles: int = Field(1, ge=1, le=16, description="numbers hidden; one is asked for")
    haystack: str = Field("noise", description="'noise', or a text or JSONL file")
    new_tokens: int = Field(
        128, ge=1, description="answer budget (RULER's is 128); an answer also ends once it is right"
    )
    chat: bool | None = Field(None, description="use the chat template; default: if the tokenizer has one")


class NeedleTwoTurnSettings(Settings):
    """A second question to a cache that was filled once, for the first (paper appendix D)."""

    task: Literal["needle-two-turn"] = Field("needle-two-turn", description="a second question of one cache")
    prompt: int = Field(2048, ge=NEEDLE_PROMPT, description="prompt tokens, the first question among them")
    tail: int = Field(512, ge=1, description="last prompt rows that run every layer")
    samples: int = Field(12, ge=1, description="prompts")
    needles: int = Field(2, ge=2, le=16, description="numbers hidden; two are asked for, one after the other")
    haystack: str = Field("noise", description="'noise', or a text or JSONL file")
    new_tokens: int = Field(128, ge=1, description="answer budget")
    chat: bool | None = Field(None, description="use the chat template; default: if the tokenizer has one")

    @property
    def scored(self) -> int:
        """Room to leave behind the prompt: the first answer, the second question and its answer."""
        return 128 + self.new_tokens


class AgreementSettings(Settings):
    """Greedy agreement and KL along the exact arm's continuation."""

    task: Literal["agreement"] = Field("agreement", description="agreement with the exact arm")
    data: tuple[str, ...] = Field(min_length=1, description="text files, as for calibration")
    prompt: int = Field(3584, ge=2, description="prompt tokens")
    tail: int = Field(1024, ge=1, description="last prompt rows that run every layer")
    new_tokens: int = Field(64, ge=1, description="length of the exact arm's continuation")
    documents: int | None = Field(None, ge=1, description="first N documents")
    text_field: str = Field("text", description="column that holds a document's text")


class CopyingSettings(Settings):
    """Copying of random strings that lie in the filled region, token by token."""

    task: Literal["copying"] = Field("copying", description="copying of random strings")
    prompt: int = Field(1024, ge=64, description="prompt tokens")
    tail: int = Field(256, ge=1, description="last prompt rows that run every layer")
    samples: int = Field(16, ge=1, description="prompts")
    strings: Literal["mixed", "words", "numbers", "tokens"] = Field(
        "mixed",
        description="random letters and digits, numbers in sentences, tokens of the vocabulary; mixed takes "
        "words and numbers in turn",
    )
    length: int = Field(32, ge=4, description="tokens of a string of words or tokens")
    asked: int = Field(4, ge=1, le=16, description="strings that come again after the prompt")
    cue: int = Field(8, ge=1, description="first tokens of a repeated string, which are not scored")

    idle: ClassVar[tuple[Idle, ...]] = (
        Idle(("length", "cue"), lambda s: s.strings == "numbers", "for numbers, which have their own"),
    )

    @model_validator(mode="after")
    def _something_is_scored(self) -> CopyingSettings:
        if self.cue >= self.length:
            raise ValueError("a string must be longer than its cue")
        return self

    @property
    def scored(self) -> int:
        """Room to leave behind the prompt; a number with its question takes less than 64 tokens."""
        return self.asked * max(self.length, 64)


FillTask = NllSettings | NeedleSettings | NeedleTwoTurnSettings | AgreementSettings | CopyingSettings
Task = Annotated[FillTask | AcceptanceSettings, Field(discriminator="task")]
