"""What commands that generate text share: the prompt, the clock, the sampling."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from ridgefit.corpus import Document
from ridgefit.corpus.encoding import Encoder
from ridgefit.errors import BadInput
from ridgefit.models import LoadedModel
from ridgefit.models.decoder import LoadedDecoder
from ridgefit.models.load import LoadedLatent
from ridgefit.recipe import GenerateSettings

OF_A_FILL = ("arm", "split", "tail", "sink_rows", "rows", "prefill_chunk")
"""Settings of `generate` that drafts and recall policies do not use: they read a prompt in one dense pass."""


def numbers(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """`scores` as they are: a model that has overflowed would go on to say something all the same."""
    if scores.isnan().any():
        raise BadInput(
            f"the model's scores after {ids.shape[1]} tokens are not numbers",
            "run `ridgefit doctor` on it, or load it with --dtype bfloat16 or float32",
        )
    return scores


@dataclass
class Clock:
    """A streamer that only notes when the first new token arrives; the prompt itself comes first."""

    times: list[float] = field(default_factory=list)

    def put(self, value: Any) -> None:
        """Called with the prompt, then with every token."""
        del value
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Called after the last token."""

    @property
    def first(self) -> float:
        """When the first new token arrived."""
        return self.times[1]


def prompt_text(settings: GenerateSettings) -> str:
    """The prompt, given or from its file.

    Raises:
        BadInput: it is empty or cannot be read.
    """
    text = settings.prompt
    if settings.prompt_file is not None:
        try:
            text = settings.prompt_file.read_text(encoding="utf-8")
        except FileNotFoundError as error:
            raise BadInput(f"prompt file {settings.prompt_file} does not exist") from error
        except (UnicodeDecodeError, IsADirectoryError) as error:
            raise BadInput(f"prompt file {settings.prompt_file} is not UTF-8 text ({error})") from error
    if not text or not text.strip():
        raise BadInput("the prompt is empty", "pass --prompt or --prompt-file with text")
    return text


def prompt_ids(
    loaded: LoadedModel | LoadedLatent | LoadedDecoder, text: str, settings: GenerateSettings
) -> torch.Tensor:
    """Ids of a prompt, `[1, tokens]` on the model's device.

    Raises:
        BadInput: a chat without a template, or more tokens than the model has positions.
    """
    config = loaded.model.config.get_text_config(decoder=True)
    longest = int(getattr(config, "max_position_embeddings", 0)) or 1 << 30
    tokens = (
        _chat_ids(loaded.tokenizer, text) if settings.chat else _plain_ids(loaded.tokenizer, text, longest)
    )
    if len(tokens) + settings.new_tokens > longest:
        raise BadInput(
            f"{len(tokens)} prompt tokens and {settings.new_tokens} new ones pass the {longest} positions "
            "this model was made for",
            "shorten the prompt or lower --new-tokens",
        )
    return torch.tensor([tokens], dtype=torch.long, device=loaded.model.device)


def _plain_ids(tokenizer: Any, text: str, longest: int) -> list[int]:
    document = Document(text=text, source="the prompt")
    return [int(token) for token in Encoder(tokenizer, longest + 1).encode([document])[0].ids]


def _chat_ids(tokenizer: Any, text: str) -> list[int]:
    if not getattr(tokenizer, "chat_template", None):
        raise BadInput("the tokenizer has no chat template", "leave --chat out")
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
    )
    # The template writes its own BOS; the tokenizer's would be a second one.
    return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])


def decoding(
    ids: torch.Tensor, settings: GenerateSettings, tokenizer: Any, streamer: Clock
) -> dict[str, Any]:
    """Arguments of transformers' `generate` for a prompt `[1, tokens]`; the seed of sampling is set here."""
    torch.manual_seed(settings.seed)  # every model samples from the global generator
    return {
        "inputs": ids,
        "attention_mask": torch.ones_like(ids),
        "max_new_tokens": settings.new_tokens,
        "streamer": streamer,
        "logits_processor": [numbers],
        "pad_token_id": pad_id(tokenizer),
        **sampling(settings.temperature),
    }


def sampling(temperature: float) -> dict[str, Any]:
    """Arguments of transformers' `generate`; 0 is greedy."""
    if temperature == 0:
        return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    return {"do_sample": True, "temperature": temperature}


def pad_id(tokenizer: Any) -> int | None:
    """The padding token, or the end token where there is none."""
    pad: int | None = tokenizer.pad_token_id
    eos: int | None = tokenizer.eos_token_id
    return eos if pad is None else pad
