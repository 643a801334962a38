"""`ridgefit inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgefit.cli.options import command
from ridgefit.cli.output import Output

if TYPE_CHECKING:
    from rich.console import Console

    from ridgefit.maps.recall import PolicyManifest
    from ridgefit.maps.refresh import RefreshController


def inspect(
    maps: Annotated[
        str,
        typer.Argument(
            metavar="MAPS",
            show_default=False,
            help="folder of maps, of a policy or controller, or of an evaluation; source file, format-1 "
            "folder, or Hub name 'org/name[@revision]'",
        ),
    ],
    output: Output,
) -> None:
    """What maps, policies, controllers and evaluations hold; on the Hub only headers are fetched."""
    from ridgefit.cli.inspect_results import inspected
    from ridgefit.hub import is_controller, is_policy, look, names_repository
    from ridgefit.maps import inspect
    from ridgefit.maps.recall import RecallPolicy
    from ridgefit.maps.refresh import load_controller

    if names_repository(maps):
        result = look(maps)
        output.result(result, lambda console: _show(console, result))
        return
    folder = Path(maps)
    if is_policy(folder):
        manifest = RecallPolicy.load(folder).manifest
        output.result(manifest, lambda console: _show_policy(console, manifest, []))
    elif is_controller(folder):
        controller = load_controller(folder)
        output.result(controller, lambda console: _show_controller(console, controller, []))
    elif not inspected(folder, output):
        local = inspect(maps)
        output.result(local, lambda console: _show(console, local))


def _show_policy(console: Console, manifest: PolicyManifest, more: list[tuple[str, str]]) -> None:
    """What a recall policy holds."""
    from ridgefit.cli.render import pairs

    rows = [("layout", "recall policy"), ("base model", _name(manifest.fingerprint.model_dump())), *more]
    rows += [(name, str(value)) for name, value in manifest.settings.model_dump().items()]
    for index, layer in manifest.layers.items():
        recall = "unknown" if layer.recall is None else f"{100 * layer.recall:.1f} %"
        rows.append((f"layer {index}", f"z {layer.z:.2f}, held-out recall {recall}"))
    console.print(pairs(rows))


def _show_controller(console: Console, found: RefreshController, more: list[tuple[str, str]]) -> None:
    """What a refresh controller decides by, what it was made for, and its one test."""
    from ridgefit.cli.render import grid, pairs, plain
    from ridgefit.maps.refresh_rows import settings_rows, test_heads, test_rows, verdict

    rows = [("layout", "refresh controller"), ("target", _name(found.target)), ("draft", _name(found.draft))]
    rows += [*more, *settings_rows(found), ("frozen sha256", found.frozen_sha256)]
    console.print(pairs(rows))
    console.print(grid(test_heads(found), test_rows(found)))
    plain(console, verdict(found))


def _show(console: Console, result: dict[str, Any]) -> None:
    from ridgefit.cli.render import pairs, size
    from ridgefit.maps import reads_text
    from ridgefit.maps.recall import PolicyManifest
    from ridgefit.maps.refresh import RefreshController

    more = _repository(result["repository"]) if "repository" in result else []
    if "controller" in result:
        _show_controller(console, RefreshController.model_validate(result["controller"]), more)
        return
    if "policy" in result:
        _show_policy(console, PolicyManifest.model_validate(result["policy"]), more)
        return
    origin = result["fingerprint"] or {}
    rows = [("layout", str(result["layout"])), ("base model", _name(origin)), *more]
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
