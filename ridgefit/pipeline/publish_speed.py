"""Prefill times for a card: only of the maps that are published, with the machine that they were taken on."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from ridgefit.errors import BadInput
from ridgefit.evaluate.run import maps_identity
from ridgefit.evaluate.tables import Grid, markdown
from ridgefit.files import read_json
from ridgefit.maps import MapsManifest
from ridgefit.pipeline.bench import PrefillBench, Timing

_MEND = "time these maps: ridgefit bench prefill --model MODEL --maps MAPS --json"


def load_bench(path: Path, manifest: MapsManifest, maps: Path) -> PrefillBench:
    """What `bench prefill --json` wrote, if it is of these maps on their own model.

    Raises:
        BadInput: not such a file, or of random weights, other maps or another model; names what differs.
    """
    try:
        found = PrefillBench.model_validate(read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path} is not a result of bench prefill ({where}: {first['msg']})", _MEND) from error
    if found.base is None or found.maps is None:
        raise BadInput(f"{path} times random weights or maps, which says nothing of these", _MEND)
    here = set((maps_identity(maps) or {}).values())
    other = next((name for name, sha256 in found.maps.items() if sha256 not in here), None)
    if other is not None:
        raise BadInput(f"{path} is of other maps: {other} had sha256 {found.maps[other][:12]}…", _MEND)
    for field in ("tokenizer_sha256", "config_sha256"):
        wanted = getattr(manifest.fingerprint, field, None)
        if wanted and found.base.get(field) != wanted:
            raise BadInput(
                f"{path} is of another model: its {field} is {str(found.base.get(field))[:12]}…, the maps "
                f"were fitted on {wanted[:12]}…",
                _MEND,
            )
    if not _plain(found):
        raise BadInput(f"{path} times no ridge arm without further rows", _MEND)
    return found


def speed(found: PrefillBench) -> str:
    """Markdown of the plain ridge arms' times; every number is one of bench.json, rounded."""
    device = found.machine["gpu"] if found.device.startswith("cuda") else found.machine["cpu"]
    threads = "" if found.device.startswith("cuda") else f", {found.threads} threads"
    versions = ", ".join(f"{name} {found.versions[name]}" for name in ("torch", "transformers"))
    said = (
        f"Time to first token on {device} in {found.dtype}{threads}, batch 1, attention {found.attention}, "
        f"{versions}; medians of {found.repeats} interleaved rounds. Exact is transformers' own forward; the "
        "limit is what the count of multiply-accumulates allows."
    )
    exact = {timing.tokens: timing for timing in found.timings if timing.arm == "exact"}
    rows = tuple(_row(timing, exact[timing.tokens]) for timing in _plain(found))
    heads = ("split", "tail", "sink rows", "tokens", "exact s", "with maps s", "speedup", "limit")
    return f"{said}\n\n{markdown(Grid('speed', heads, rows))}"


def _plain(found: PrefillBench) -> list[Timing]:
    """Times of the maps alone."""
    return [timing for timing in found.timings if timing.arm == "ridge" and timing.rows is None]


def _row(timing: Timing, exact: Timing) -> tuple[str, ...]:
    return (
        str(timing.split),
        str(timing.tail),
        str(timing.sink_rows),
        f"{timing.tokens:,}",
        f"{exact.seconds:.3f}",
        f"{timing.seconds:.3f}",
        f"{timing.speedup:.2f}",
        f"{timing.limit:.2f}",
    )
