"""A recall evaluation as tables: gates, then one table for what arms keep and one for what they cost."""

from __future__ import annotations

from pathlib import Path

from ridgefit.evaluate.recall.result import ArmResult, Interval, RecallResult, load_recall_result
from ridgefit.evaluate.tables import Grid, markdown
from ridgefit.files import write_text


def recall_grids(result: RecallResult) -> list[Grid]:
    """All tables in order."""
    return [_gates(result), _quality(result), _costs(result)]


def recall_report(folder: Path) -> Path:
    """Write `report.md` of a finished recall evaluation.

    Raises:
        BadInput: it is not finished or not readable.
    """
    result = load_recall_result(folder)
    path = folder / "report.md"
    title = f"# Recall evaluation of {result.identity['model']['name']}"
    write_text(path, "\n\n".join([title, *recall_markdown(result)]) + "\n")
    return path


def recall_markdown(result: RecallResult) -> list[str]:
    """What was measured, as paragraphs and tables; every number is one of the result, rounded."""
    versions = result.identity["versions"]
    said = ", ".join(f"{name} {versions[name]}" for name in ("ridgefit", "torch", "transformers"))
    found = [f"Measured on {result.identity['device']}, {said}. Intervals are 95 %: Wilson and bootstrap."]
    for grid in recall_grids(result):
        found += [f"### {grid.title}", markdown(grid)]
    return found


def _gates(result: RecallResult) -> Grid:
    rows = tuple((gate.name, "holds" if gate.passed else "FAILS", gate.detail) for gate in result.gates)
    return Grid("gates", ("gate", "", "detail"), rows)


def _quality(result: RecallResult) -> Grid:
    heads = ("arm", "intact", "95 %", "retrieved", "loss rise", "95 %", "attention kept", "dims/row")
    rows = tuple(
        (
            arm.arm,
            _share(arm.intact),
            _ends(arm.intact, 100, 0),
            _share(arm.retrieved),
            "" if arm.loss is None else f"{arm.loss.mean:+.3f}",
            _ends(arm.loss, 1, 3),
            _share(arm.mass, 1),
            _dims(arm),
        )
        for arm in result.arms
    )
    dense = "" if result.dense_loss is None else f"; dense loss {result.dense_loss:.3f} nats per token"
    counts = [arm.intact.n for arm in result.arms if arm.intact]
    return Grid(f"{counts[0] if counts else 0} needle prompts{dense}", heads, rows)


def _costs(result: RecallResult) -> Grid:
    heads = ("arm", "layer", "kept", "archived", "fetched", "p50/p90/p99", "fires", "reads all", "z", "gate")
    rows = tuple(
        (
            arm.arm,
            str(index),
            str(layer.kept),
            str(layer.archived),
            f"{layer.fetched:.1f}",
            f"{layer.p50}/{layer.p90}/{layer.p99}",
            f"{100 * layer.fire_rate:.0f} %",
            f"{100 * layer.overflow_rate:.0f} %",
            "" if layer.z is None else f"{layer.z:.2f}",
            "open" if layer.gate is None else f"{layer.gate:.2f}",
        )
        for arm in result.arms
        if arm.role in ("recall", "policy")
        for index, layer in arm.layers.items()
    )
    return Grid("rows per step, recall on", heads, rows)


def _share(found: Interval | None, digits: int = 0) -> str:
    return "" if found is None else f"{100 * found.mean:.{digits}f} %"


def _ends(found: Interval | None, factor: float, digits: int) -> str:
    if found is None or found.low is None or found.high is None:
        return ""
    return f"{factor * found.low:.{digits}f} to {factor * found.high:.{digits}f}"


def _dims(arm: ArmResult) -> str:
    if not arm.layers:
        return ""
    return f"{sum(layer.dims_per_row for layer in arm.layers.values()) / len(arm.layers):.1f}"
