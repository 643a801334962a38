"""Text with an arm applied, and the time to its first token."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from ridgefit import cost
from ridgefit.corpus import Document
from ridgefit.corpus.encoding import Encoder
from ridgefit.errors import BadInput
from ridgefit.evaluate.arms import Arm, resolve_arm
from ridgefit.hub import local_maps
from ridgefit.models import LoadedModel, load_model
from ridgefit.pipeline.plan import find_config
from ridgefit.recipe import ArmSettings, GenerateSettings, ModelSettings
from ridgefit.runtime import FillReport
from ridgefit.versions import peak_memory


class Generated(BaseModel):
    """What a prompt became.

    Attributes:
        text: the new text, special tokens left out.
        arm: label of the arm.
        split: split layer, None for exact.
        tail: exact rows at the prompt's end, None for exact.
        prompt_tokens: tokens of the prompt.
        new_tokens: tokens generated.
        first_token_seconds: from the call to the first new token.
        seconds: the whole call.
        rows_filled: prompt rows whose late layers were skipped.
        rows_chosen: prefix rows that selectors chose to run exactly.
        peak_bytes: most memory so far: of the device on CUDA, else of the process.
        warnings: one line each.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    text: str
    arm: str
    split: int | None
    tail: int | None
    sink_rows: int
    prompt_tokens: int
    new_tokens: int
    first_token_seconds: float
    seconds: float
    rows_filled: int
    rows_chosen: int
    peak_bytes: int
    warnings: tuple[str, ...]


def generate(model: ModelSettings, settings: GenerateSettings) -> Generated:
    """Generate from one prompt under an arm.

    The prompt and the maps are read first, so that what is wrong with them is said before a model is loaded.

    Raises:
        BadInput: no prompt, a prompt longer than the model reads, an arm that does not fit, or a model whose
            scores are not numbers.
    """
    if settings.maps is not None:
        settings = settings.model_copy(update={"maps": local_maps(settings.maps, settings.split)})
    text = _prompt_text(settings)
    arm, tail = _arm(cost.shape_from_config(find_config(model.model, weights=True)).layers, settings)
    loaded = load_model(**model.load_options())
    ids = _prompt_ids(loaded, text, settings)
    warnings = list(arm.fill.check(loaded.port, loaded.tokenizer)) if arm.fill else []
    if arm.fill and ids.shape[1] <= tail + arm.sink_rows:
        warnings.append(
            f"the prompt's {ids.shape[1]} tokens are no more than the tail of {tail} and "
            f"{arm.sink_rows} sink rows, so every row is exact"
        )
    clock = _Clock()
    parts = ids.shape[1] if settings.prefill_chunk else None
    torch.manual_seed(settings.seed)  # transformers samples from the global generator
    started = time.perf_counter()
    with torch.no_grad(), _applied(arm, loaded, tail, parts) as report:
        sequence = loaded.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=settings.new_tokens,
            streamer=clock,
            **_in_parts(settings.prefill_chunk),
            logits_processor=[_numbers],
            pad_token_id=_pad(loaded.tokenizer),
            **_sampling(settings.temperature),
        )
    seconds = time.perf_counter() - started
    new = sequence[0, ids.shape[1] :]
    return Generated(
        text=loaded.tokenizer.decode(new, skip_special_tokens=True),
        arm=arm.label,
        split=arm.split,
        tail=tail if arm.fill else None,
        sink_rows=arm.sink_rows,
        prompt_tokens=ids.shape[1],
        new_tokens=len(new),
        first_token_seconds=clock.first - started,
        seconds=seconds,
        rows_filled=report.rows_filled if report else 0,
        rows_chosen=report.rows_chosen if report else 0,
        peak_bytes=peak_memory(loaded.port.device.type),
        warnings=tuple(warnings),
    )


def _numbers(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """`scores` as they are: a model that has overflowed would go on to say something all the same."""
    if scores.isnan().any():
        raise BadInput(
            f"the model's scores after {ids.shape[1]} tokens are not numbers",
            "run `ridgefit doctor` on it, or load it with --dtype bfloat16 or float32",
        )
    return scores


@dataclass
class _Clock:
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
        return self.times[1]


def _applied(
    arm: Arm, loaded: LoadedModel, tail: int, prompt_tokens: int | None
) -> AbstractContextManager[FillReport | None]:
    if arm.fill is None:
        return nullcontext()
    return arm.applied(loaded.model, tail, loaded.tokenizer, prompt_tokens=prompt_tokens)


def _in_parts(chunk: int | None) -> dict[str, Any]:
    """Options of transformers' own chunked prefill, which must not be compiled where a fill acts."""
    return {} if chunk is None else {"prefill_chunk_size": chunk, "disable_compile": True}


def _arm(n_layers: int, settings: GenerateSettings) -> tuple[Arm, int]:
    """The arm, with tail and sink rows from the maps where the user names none."""
    wanted = ArmSettings(
        kind=settings.arm,
        split=settings.split,
        tail=settings.tail,
        sink_rows=settings.sink_rows or 0,
        rows=settings.rows,
    )
    arm = resolve_arm(wanted, settings.maps, n_layers)
    if arm.fill is None:
        return arm, 0
    defaults = arm.fill.maps.defaults if arm.fill.maps else None
    if settings.sink_rows is None and defaults and defaults.sink_rows:
        arm = resolve_arm(
            wanted.model_copy(update={"sink_rows": defaults.sink_rows}), settings.maps, n_layers
        )
    tail = arm.tail if arm.tail is not None else (defaults.tail if defaults else None)
    if tail is None:
        raise BadInput(f"arm '{arm.label}' has no tail and the maps suggest none", "pass --tail")
    return arm, tail


def _prompt_text(settings: GenerateSettings) -> str:
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


def _prompt_ids(loaded: LoadedModel, text: str, settings: GenerateSettings) -> torch.Tensor:
    """`[1, tokens]` on the model's device."""
    longest = int(getattr(loaded.port.config, "max_position_embeddings", 0)) or 1 << 30
    tokens = _chat_ids(loaded, text) if settings.chat else _plain_ids(loaded, text, longest)
    if len(tokens) + settings.new_tokens > longest:
        raise BadInput(
            f"{len(tokens)} prompt tokens and {settings.new_tokens} new ones pass the {longest} positions "
            "this model was made for",
            "shorten the prompt or lower --new-tokens",
        )
    return torch.tensor([tokens], dtype=torch.long, device=loaded.port.device)


def _plain_ids(loaded: LoadedModel, text: str, longest: int) -> list[int]:
    document = Document(text=text, source="the prompt")
    return [int(token) for token in Encoder(loaded.tokenizer, longest + 1).encode([document])[0].ids]


def _chat_ids(loaded: LoadedModel, text: str) -> list[int]:
    if not getattr(loaded.tokenizer, "chat_template", None):
        raise BadInput("the tokenizer has no chat template", "leave --chat out")
    rendered = loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False
    )
    # The template writes its own BOS; the tokenizer's would be a second one.
    return list(loaded.tokenizer(rendered, add_special_tokens=False)["input_ids"])


def _sampling(temperature: float) -> dict[str, Any]:
    if temperature == 0:
        return {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    return {"do_sample": True, "temperature": temperature}


def _pad(tokenizer: Any) -> int | None:
    pad: int | None = tokenizer.pad_token_id
    eos: int | None = tokenizer.eos_token_id
    return eos if pad is None else pad
