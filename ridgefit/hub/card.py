"""The card of a map repository: metadata that the Hub checks, three lines of use, and what was measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from ridgefit.errors import BadInput
from ridgefit.hub.layout import RepoConfig
from ridgefit.hub.licence import Licence
from ridgefit.hub.reference import RepoRef

_DATASET = re.compile(r"[\w.-]+(/[\w.-]+)?")
_TAGS = ("ridgefit", "ridgefill", "kv-cache", "prefill", "safetensors")
_SPLIT_HEADS = (
    "split",
    "late layers",
    "map",
    "dtype",
    "reads",
    "penalty",
    "rows of the fit",
    "tail",
    "sink rows",
)
_CITATION = """\
```bibtex
@software{ridgefit,
  title = {ridgefit: ridge maps that fill the late layers of a language model's cache},
  note = {Maps of MODEL, REPO}
}
```"""


@dataclass(frozen=True)
class About:
    """What the artefact does not say about itself.

    Attributes:
        repo: `org/name` of the repository.
        licence: inherited from the base model.
        datasets: Hub names of the calibration text.
        results: Markdown made from evaluation.json, "" where there is none.
        speed: Markdown made from bench.json, "" where there is none.
        plots: caption -> path within the repository.
    """

    repo: str
    licence: Licence
    datasets: tuple[str, ...] = ()
    results: str = ""
    speed: str = ""
    plots: Mapping[str, str] | None = None


def card(config: RepoConfig, about: About, fits: Mapping[int, Mapping[str, Any]]) -> str:
    """The whole README.md; the same inputs give the same bytes.

    Args:
        config: of the repository.
        about: licence, data and results.
        fits: per split, `alphas`, `penalty` and `rows` of the maps' manifest.

    Raises:
        BadInput: the metadata does not pass the Hub client's own check.
    """
    return document(config, about, _body(config, about, fits), _TAGS)


def document(config: RepoConfig, about: About, body: Iterable[str], tags: Sequence[str]) -> str:
    """Metadata and body as one README.md.

    Raises:
        BadInput: the metadata does not pass the Hub client's own check.
    """
    text = f"---\n{_yaml(metadata(config, about, tags))}---\n" + "\n".join(body) + "\n"
    _require_valid(text, about)
    return text


def metadata(config: RepoConfig, about: About, tags: Sequence[str] = _TAGS) -> dict[str, Any]:
    """The card's metadata."""
    found: dict[str, Any] = {
        "base_model": config.base_model,
        "base_model_relation": "adapter",
        "library_name": "ridgefit",
        **about.licence.metadata,
        "pipeline_tag": "text-generation",
    }
    if about.datasets:
        found["datasets"] = list(about.datasets)
    return found | {"tags": list(tags)}


def _body(config: RepoConfig, about: About, fits: Mapping[int, Mapping[str, Any]]) -> Iterator[str]:
    base = config.base_link
    yield f"\n# {about.repo.partition('/')[2]}\n"
    yield (
        f"Ridge maps for {base}. In a long prompt, all rows but the last ones run only the layers below the "
        "split; these maps predict what the late layers would have written to the cache for them. The prompt "
        "is read faster, and what is read of its filled part is an approximation: see the results and limits."
    )
    if about.licence.sentence:
        yield f"\n{about.licence.sentence}"
    yield "\n## Use\n"
    yield _usage(config, about.repo)
    yield (
        "\nThe maps refuse a model of other dimensions, layer kinds or tokenizer. They were fitted on "
        f"commit `{config.base_model_revision}`"
        + (
            " (stated by the publisher, not recorded by the fit)."
            if config.base_model_stated_by != "fit"
            else "."
        )
    )
    yield "\n## Maps\n"
    yield table(_SPLIT_HEADS, [_split_row(config, split, fits.get(split, {})) for split in config.splits])
    yield "\n## Results\n"
    yield (
        about.results
        or "No evaluation was published with these maps: nothing is claimed about their quality."
    )
    for caption, path in (about.plots or {}).items():
        yield f"\n![{caption}]({path})"
    if about.speed:
        yield "\n## Speed\n"
        yield about.speed
    yield "\n## Limits\n"
    yield "\n".join(f"- {line}" for line in _limits(config, about))
    yield "\n## Files\n"
    yield (
        "One safetensors file per layer. `sha256sum --check SHA256SUMS` checks them, as `ridgefit pull` does "
        "before use; `provenance.json` names the calibration documents by hash, the penalty grid, its "
        "held-out scores and the library versions."
    )
    yield "\n## Citation\n"
    yield _CITATION.replace("MODEL", config.base_model).replace(
        "REPO", f"https://huggingface.co/{about.repo}"
    )


def _usage(config: RepoConfig, repo: str) -> str:
    split, first = next(iter(config.splits.items()))
    tail = first.tail or 1024
    sink = f", sink_rows={first.sink_rows}" if first.sink_rows else ""
    return (
        "```python\nfrom ridgefit import RidgeFill\n"
        f'fill = RidgeFill.load("{repo}", split={split})\n'
        f"with fill.applied(model, tail={tail}{sink}): model.generate(**inputs)\n```"
    )


def _split_row(config: RepoConfig, split: int, fit: Mapping[str, Any]) -> tuple[str, ...]:
    record = config.splits[split]
    alphas = sorted(set(fit.get("alphas", ())))
    return (
        str(split),
        f"{record.layers[0]} to {record.layers[1] - 1}",
        f"{record.out_width} × {record.in_width}",
        record.dtype,
        record.reads,
        ", ".join(f"{alpha:g}" for alpha in alphas) + f" ({fit['penalty']})" if alphas else "–",
        f"{fit['rows']:,}" if fit.get("rows") else "–",
        str(record.tail) if record.tail else "–",
        str(record.sink_rows),
    )


def _limits(config: RepoConfig, about: About) -> Iterator[str]:
    yield "Rows before the tail are approximate in the late layers, and what they hold may be lost later on."
    yield "Prompts not longer than the tail run exactly as without maps; decoding is never approximated."
    yield f"Fitted on {config.base_model} alone: a fine-tune has other late layers and needs its own maps."
    if not about.results:
        yield "Neither retrieval from the filled part nor loss after it is stated: measure both before use."
    here = "" if about.speed else ", and is not stated here"
    yield (
        f"Speed depends on model, prompt, tail and machine{here}: "
        "`ridgefit bench prefill` measures it on yours."
    )


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---", *("---:" for _ in heads[1:])], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _yaml(values: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True, width=10_000)


def _require_valid(text: str, about: About) -> None:
    """What the Hub client checks without the Hub; the Hub itself is asked again before a push."""
    from huggingface_hub import ModelCard

    RepoRef.parse(about.repo)
    dataset = next((name for name in about.datasets if not _DATASET.fullmatch(name)), None)
    if dataset is not None:
        raise BadInput(f"{dataset[:80]!r} is not the name of a Hub data set", "write org/name")
    try:
        ModelCard(text)
    except ValueError as error:
        first = str(error).splitlines()[0][:150]
        raise BadInput(f"the card of {about.repo} is not valid ({first})") from error
