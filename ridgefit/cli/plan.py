"""`ridgefit plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ridgefit.cli.options import command
from ridgefit.cli.output import Output
from ridgefit.recipe import PlanSettings

if TYPE_CHECKING:
    from rich.console import Console

    from ridgefit.pipeline.plan import Plan


def plan(settings: PlanSettings, output: Output) -> None:
    """Costs and savings of an arm, from a model's config alone."""
    from ridgefit.pipeline.plan import plan

    result = plan(settings)
    output.result(result, lambda console: _show(console, result))


def _show(console: Console, result: Plan) -> None:
    from ridgefit.cli.render import amount, duration, pairs, size

    shape, suggestion = result.shape, result.suggestion
    rows = {
        "model": f"{result.model}: {shape['layers']} layers, hidden {shape['hidden']}, "
        f"{shape['heads']}/{shape['kv_heads']} heads of {shape['head_dim']}, {size(result.model_bytes)}",
        "arm": _arm(result),
        "prompt": f"{result.tokens:,} tokens, cache {size(result.cache_bytes)}",
        "exact": f"{amount(result.macs['exact'])} multiply-accumulates",
        "with the arm": f"{amount(result.macs['arm'])}, {1 / result.speedup_limit:.1%} of exact",
        "speedup limit": f"{result.speedup_limit:.3f}",
        "POP native": f"{amount(result.macs['pop'])}, {_beside_pop(result)}",
    }
    if result.map_bytes:
        rows["maps"] = (
            f"{size(result.map_bytes)} in bf16, {size(result.map_bytes_int8)} in int8, reading {result.reads}"
        )
    capture = result.capture
    rows["capture"] = (
        f"{capture['tokens']:,} tokens, {size(capture['memory_bytes'])} of sums in memory, "
        f"{size(capture['disk_bytes'])} of disk, {amount(capture['macs'])} multiply-accumulates"
    )
    if result.seconds is not None:
        rows["time at this rate"] = ", ".join(f"{name} {duration(s)}" for name, s in result.seconds.items())
    rows["suggested"] = f"split {suggestion.split}, tail {suggestion.tail} ({suggestion.why})"
    console.print(pairs(rows.items()))


def _arm(result: Plan) -> str:
    if result.split is None:
        return result.arm
    sinks = f", {result.sink_rows} sink rows" if result.sink_rows else ""
    return f"{result.arm}, split {result.split}, tail {result.tail}{sinks}"


def _beside_pop(result: Plan) -> str:
    share = f"the arm costs {result.macs['arm'] / result.macs['pop']:.3f} of it"
    above = result.cheaper_than_pop_above
    return share if above is None else f"{share}, and less above {above:,} tokens"


entry = command(plan, arguments=("model",))
