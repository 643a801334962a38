"""`ridgefit inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgefit.cli.options import command
from ridgefit.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console


def inspect(
    maps: Annotated[
        str,
        typer.Argument(
            metavar="MAPS",
            show_default=False,
            help="maps folder, source file, format-1 folder, or Hub name 'org/name[@revision]'",
        ),
    ],
    output: Output,
) -> None:
    """What maps hold, in a folder or on the Hub; of the latter only headers are fetched."""
    from ridgefit.hub import is_policy, look, names_repository
    from ridgefit.maps import inspect

    if not names_repository(maps) and is_policy(Path(maps)):
        _policy(Path(maps), output)
        return
    result = look(maps) if names_repository(maps) else inspect(maps)
    output.result(result, lambda console: _show(console, result))


def _policy(folder: Path, output: Output) -> None:
    """What a recall policy holds."""
    from ridgefit.maps.recall import RecallPolicy

    manifest = RecallPolicy.load(folder).manifest

    def show(console: Console) -> None:
        from ridgefit.cli.render import pairs

        rows = [("layout", "recall policy"), ("base model", _name(manifest.fingerprint.model_dump()))]
        rows += [(name, str(value)) for name, value in manifest.settings.model_dump().items()]
        for index, layer in manifest.layers.items():
            recall = "unknown" if layer.recall is None else f"{100 * layer.recall:.1f} %"
            rows.append((f"layer {index}", f"z {layer.z:.2f}, held-out recall {recall}"))
        console.print(pairs(rows))

    output.result(manifest, show)


def _show(console: Console, result: dict[str, Any]) -> None:
    from ridgefit.cli.render import pairs, size
    from ridgefit.maps import reads_text

    origin = result["fingerprint"] or {}
    rows = [("layout", str(result["layout"])), ("base model", _name(origin))]
    if "repository" in result:
        rows += _repository(result["repository"])
    for split, record in result["splits"].items():
        first, stop = record["layers"]
        rank, narrow = (record.get("bottleneck") or (0, None))[1], len(record.get("state_only", ()))
        held = (
            f"layers {first} to {stop - 1}, maps {record['shape'][0]} x {record['shape'][1]} of "
            f"{reads_text(record['features'], rank, narrow)}, {record['layout']}, {size(record['bytes'])}"
        )
        rows.append((f"split {split}", held))
        if record.get("rows"):
            fit = f"{record['rows']:,} rows, penalty {record['penalty']}, alpha {_alphas(record)}"
            rows.append(("  fit", fit))
        if record.get("scores"):
            rows.append(("  held out", _score(record["scores"])))
        if (record.get("scores") or {}).get("frontier"):
            rows.append(("  chosen", _choice(record["scores"]["frontier"])))
    console.print(pairs(rows))


def _repository(found: dict[str, Any]) -> list[tuple[str, str]]:
    from ridgefit.cli.render import size

    name = ("repository", f"{found['name']}@{found['sha']}")
    files = ("files", f"{found['files']}, {size(found['bytes'])}")
    if "base_model" not in found:
        return [name, files]
    stated = "" if found["base_model_stated_by"] == "fit" else ", as the publisher states"
    return [
        name,
        ("base on the Hub", f"{found['base_model']}@{found['base_model_revision']}{stated}"),
        files,
        ("evaluation", "published with it" if found["evaluated"] else "none published"),
    ]


def _alphas(record: dict[str, Any]) -> str:
    distinct = sorted(set(record["alphas"]))
    return ", ".join(f"{alpha:g}" for alpha in distinct)


def _score(scores: dict[str, Any]) -> str:
    """The split's score and the identity's beside it; the JSON form has every layer's."""
    choice, identity = scores.get("choice") or {}, scores.get("identity")
    if "score" not in choice or identity is None:
        return "see --json"
    return f"cosine of what late layers write {choice['score']:.4f}, identity {identity:.4f}"


def _choice(frontier: dict[str, Any]) -> str:
    """Which of how many candidates the maps are, and why."""
    if not all(name in frontier for name in ("chosen", "candidates", "reason")):
        return "see --json"
    return f"{frontier['chosen']} of {len(frontier['candidates'])} candidates: {frontier['reason']}"


def _name(origin: dict[str, Any]) -> str:
    if not origin:
        return "not stated"
    revision = f"@{origin['revision']}" if origin.get("revision") else ""
    return f"{origin['name']}{revision} ({origin['family']})"


entry = command(inspect)
