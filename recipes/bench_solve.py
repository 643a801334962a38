"""From rows to maps: ridgefit against scikit-learn's `Ridge` fitted once per penalty, in one process.

Both sides get the same rows in memory and the same threads, and give the maps and biases of every layer for
every penalty. scikit-learn gets its best case: all layers stacked into one fit, so that it forms and factors
the products of the inputs once per penalty for all of them. It is timed on a few penalties (its time does not
depend on which) and their mean counts for each of the others. The two sides take turns; medians count, and
processor time stands beside the clock, since other work on the machine disturbs it less.

    python recipes/bench_solve.py             # d = 576, 19 layers, 8 penalties, 50k rows
    python recipes/bench_solve.py --json out.json --peer-penalties 8
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import Ridge
from threadpoolctl import threadpool_limits

from ridgefit.moments import Product, RowSums
from ridgefit.recipe import SolveSettings
from ridgefit.ridge import RidgeFit
from ridgefit.versions import library_versions, machine

CHUNK = 2048


def make_rows(rows: int, width: int, layers: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs `[rows, width]` and stacked outputs `[rows, layers * width]` like a residual stream's."""
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(width, width, generator=generator, dtype=dtype) / width**0.5
    x = torch.randn(rows, width, generator=generator, dtype=dtype) @ mix
    x *= torch.logspace(-1, 1, width, dtype=dtype)
    y = torch.empty(rows, layers * width, dtype=dtype)
    for layer in range(layers):
        block = y[:, layer * width : (layer + 1) * width]
        block.normal_(generator=generator)
        block += x
    return x, y


def ours(x: torch.Tensor, y: torch.Tensor, layers: int, product: Product) -> dict[float, Any]:
    """Every map in float64, held as numpy like scikit-learn's."""
    width = x.shape[1]
    sums = RowSums({0: width}, layers, width, product=product)
    for start in range(0, len(x), CHUNK):
        chunk = slice(start, min(start + CHUNK, len(x)))
        sums.open(chunk.stop - chunk.start)
        sums.put_x(0, x[chunk])
        for layer in range(layers):
            sums.put_y(layer, y[chunk, layer * width : (layer + 1) * width])
        sums.close()
    fit = RidgeFit(sums.moments(0).symmetrise_())
    maps: dict[float, Any] = {
        alpha: (np.empty((layers * width, width)), np.empty(layers * width)) for alpha in ALPHAS
    }
    for layer in range(layers):
        block = slice(layer * width, (layer + 1) * width)
        for alpha, (weights, biases) in maps.items():
            weight, bias = fit.map(layer, alpha)
            weights[block], biases[block] = weight.numpy(), bias.numpy()
    return maps


def peer(x: np.ndarray, y: np.ndarray, alpha: float) -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's maps for one penalty; it chooses its own solver (Cholesky here)."""
    penalty = alpha * float(((x - x.mean(0)) ** 2).sum(dtype=np.float64)) / x.shape[1]
    fit = Ridge(alpha=penalty).fit(x, y)
    return fit.coef_, fit.intercept_


class Clock:
    """Wall and processor seconds of repeated work."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.processor: list[float] = []

    def time(self, work: Callable[[], Any]) -> Any:
        wall, processor = time.perf_counter(), time.process_time()
        result = work()
        self.wall.append(time.perf_counter() - wall)
        self.processor.append(time.process_time() - processor)
        return result

    @property
    def median(self) -> tuple[float, float]:
        return statistics.median(self.wall), statistics.median(self.processor)


def peak() -> float:
    """Largest resident memory of this process so far, GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def compare(args: argparse.Namespace, layers: int, product: Product) -> dict[str, Any]:
    """One precision: rows in that precision, both sides in turn."""
    dtype = torch.float64 if product == "fp64" else torch.float32
    x, y = make_rows(args.rows, args.width, layers, dtype)
    alphas = ALPHAS[:: max(1, len(ALPHAS) // args.peer_penalties)][: args.peer_penalties]
    clock, peers = Clock(), {alpha: Clock() for alpha in alphas}
    differences: dict[float, float] = {}
    memory = {"rows": peak()}
    for _ in range(args.repeats):
        maps = clock.time(lambda: ours(x, y, layers, product))
        memory.setdefault("ours", peak())
        for alpha in alphas:
            weight, bias = peers[alpha].time(lambda at=alpha: peer(x.numpy(), y.numpy(), at))
            if alpha not in differences:
                differences[alpha] = float(np.abs(maps[alpha][0] - weight).max() / np.abs(weight).max())
            del weight, bias
        del maps
    memory["both"] = peak()
    wall, processor = clock.median
    one_wall = statistics.mean(item.median[0] for item in peers.values())
    one_processor = statistics.mean(item.median[1] for item in peers.values())
    return {
        "rows_dtype": str(dtype).removeprefix("torch."),
        "sums": product,
        "layers": layers,
        "ours": vars(clock),
        "sklearn": {alpha: vars(item) for alpha, item in peers.items()},
        "ours_seconds": wall,
        "sklearn_seconds_per_penalty": one_wall,
        "sklearn_seconds": one_wall * len(ALPHAS),
        "speedup": one_wall * len(ALPHAS) / wall,
        "speedup_processor_time": one_processor * len(ALPHAS) / processor,
        "largest_relative_difference": max(differences.values()),
        "peak_gb": memory,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--width", type=int, default=576)
    parser.add_argument("--layers", type=int, default=19)
    parser.add_argument(
        "--fp64-layers", type=int, default=6, help="layers of the float64 comparison, 0 for none"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--peer-penalties", type=int, default=2, help="penalties that scikit-learn is timed on"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--gate", type=float, default=5.0, help="smallest accepted ratio")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results = []
    with threadpool_limits(args.threads):
        results.append(compare(args, args.layers, "fast"))
        show(args, results[-1])
        if args.fp64_layers:
            results.append(compare(args, args.fp64_layers, "fp64"))
            show(args, results[-1])
    settings = {"rows": args.rows, "width": args.width, "alphas": ALPHAS, "threads": args.threads}
    settings["wait_policy"] = os.environ.get("OMP_WAIT_POLICY", "")
    record = {"settings": settings, "results": results, "versions": library_versions(), "machine": machine()}
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    ok = all(result["speedup"] >= args.gate for result in results) and peak() < 10
    print(f"gate: at least {args.gate:g}x and under 10 GB: {'holds' if ok else 'FAILS'}")
    return 0 if ok else 1


def show(args: argparse.Namespace, result: dict[str, Any]) -> None:
    peaks = result["peak_gb"]
    lines = (
        f"{args.rows} rows of {result['rows_dtype']}, width {args.width}, {result['layers']} layers, "
        f"{len(ALPHAS)} penalties, threads {args.threads}",
        f"  ridgefit ({result['sums']} sums): {result['ours_seconds']:.2f} s, all penalties",
        f"  scikit-learn: {result['sklearn_seconds_per_penalty']:.2f} s a penalty "
        f"(median of {args.repeats}, {len(result['sklearn'])} of {len(ALPHAS)} timed), "
        f"{result['sklearn_seconds']:.2f} s for all",
        f"  ratio {result['speedup']:.1f} by the clock, {result['speedup_processor_time']:.1f} in "
        f"processor time; maps differ by {result['largest_relative_difference']:.0e}",
        f"  peak memory: rows {peaks['rows']:.1f} GB, ours {peaks['ours']:.1f}, both {peaks['both']:.1f}",
    )
    print("\n".join(lines), flush=True)


ALPHAS: tuple[float, ...] = SolveSettings().alphas

if __name__ == "__main__":
    if "OMP_WAIT_POLICY" not in os.environ:
        # Threads that spin at a barrier measure whatever else runs on the machine: five times slower beside
        # a busy neighbour, no faster alone. OpenMP reads this once, when it is loaded.
        quiet = os.environ | {"OMP_WAIT_POLICY": "passive"}
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=quiet, check=False).returncode)
    sys.exit(main())
