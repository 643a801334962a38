"""Capture speed and memory against the plain forward pass, on the same windows of text, in one process.

The plain pass is transformers' own decoder without head and cache. Capture runs the same decoder with three
splits watched, in both precisions. The three take turns on every window; medians count, and processor time
stands beside the clock, since other work on the machine disturbs it less. A checkpoint is timed apart and
charged at its default interval. Memory is this process's largest resident size above what the loaded model
took, held against what `ridgefit plan` and the pre-flight check predict.

    python recipes/bench_capture.py --model work/models/smollm2-135m-instruct
    python recipes/bench_capture.py --model bundled:llama --splits 4 6 8 --window 1024
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch

import ridgefit
from ridgefit.capture import estimate
from ridgefit.capture.leaves import WINDOWS_BETWEEN
from ridgefit.capture.reader import Reader
from ridgefit.corpus import TokenStore, build_store, read_documents
from ridgefit.cost import shape_from_config
from ridgefit.features import FeatureList
from ridgefit.models import LoadedModel, load_model
from ridgefit.moments import Product, product_for, write_bundle
from ridgefit.recipe import CaptureSettings
from ridgefit.versions import library_versions, machine

PRODUCTS: tuple[Product, ...] = ("fast", "fp64")


class Clock:
    """Tokens, wall and processor seconds of repeated work."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.processor: list[float] = []

    def time(self, tokens: int, work: Callable[[], Any]) -> None:
        wall, processor = time.perf_counter(), time.process_time()
        work()
        self.wall.append((time.perf_counter() - wall) / tokens)
        self.processor.append((time.process_time() - processor) / tokens)

    @property
    def rate(self) -> float:
        """Median tokens per second of wall time."""
        return 1 / statistics.median(self.wall)

    @property
    def processor_rate(self) -> float:
        """Median tokens per second of processor time, all threads together."""
        return 1 / statistics.median(self.processor)


@contextmanager
def watched_memory() -> Iterator[list[int]]:
    """A list whose last entry becomes the largest resident size seen inside, in bytes."""
    process, seen, done = psutil.Process(), [0], threading.Event()

    def look() -> None:
        while not done.wait(0.002):
            seen[0] = max(seen[0], process.memory_info().rss)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def text(loaded: LoadedModel, window: int) -> tuple[TokenStore, list[int]]:
    """The bundled calibration text in windows, and the numbers of those of full length."""
    source = Path(ridgefit.__file__).parent / "bundled" / "calibration.jsonl"
    documents = read_documents([str(source)])
    store = build_store(documents, loaded.tokenizer, window=window, min_tokens=16)
    manifest = store.manifest
    return store, [number for number in manifest.fit_windows if manifest.window_tokens(number) == window]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--splits", type=int, nargs="+", default=[11, 15, 19])
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--windows", type=int, default=7, help="timed windows")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--gate", type=float, default=0.75, help="smallest accepted share of the plain rate")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    loaded = load_model(args.model, dtype=args.dtype, device="cpu")
    store, windows = text(loaded, args.window)
    settings = CaptureSettings(split=tuple(args.splits))
    shape = shape_from_config(loaded.port.config.to_dict())

    def reader(product: Product) -> Reader:
        return Reader(
            loaded.port,
            store,
            splits=sorted(settings.split),
            features=FeatureList(settings.features),
            product=product,
            lead=settings.lead,
        )

    def plain(window: int) -> None:
        with torch.no_grad():
            loaded.port.decoder(input_ids=store.window(window)[None], use_cache=False)

    with torch.no_grad():  # a loaded model's weights are read from disk by the first pass
        loaded.port.decoder(input_ids=store.window(windows[0])[None, :64], use_cache=False)
    before = psutil.Process().memory_info().rss
    memory: dict[str, dict[str, int]] = {}
    checkpoint: list[float] = []
    for product in PRODUCTS:
        predicted = estimate(
            shape,
            settings,
            longest=args.window,
            tokens=store.manifest.tokens,
            product=product,
            bytes_per_value=loaded.port.dtype.itemsize,
        )
        with watched_memory() as peak, tempfile.TemporaryDirectory() as folder:
            work = reader(product)
            for window in windows[:2]:
                work.add([window])
            started = time.perf_counter()
            write_bundle(Path(folder) / "checkpoint.safetensors", work.moments(), {})
            checkpoint.append(time.perf_counter() - started)
        memory[product] = {"growth": peak[0] - before, "estimate": predicted.memory, "sums": predicted.sums}
        del work

    clocks = {name: Clock() for name in ("plain", *PRODUCTS)}
    readers = {product: reader(product) for product in PRODUCTS}
    plain(windows[0])
    for product in PRODUCTS:
        readers[product].add([windows[0]])
    for at in range(args.windows):
        window = windows[at % len(windows)]
        clocks["plain"].time(args.window, lambda window=window: plain(window))
        for product in PRODUCTS:
            clocks[product].time(args.window, lambda r=readers[product], w=window: r.add([w]))

    saving = min(checkpoint) / ((settings.checkpoint_every or WINDOWS_BETWEEN) * args.window)
    results = {
        product: {
            "tokens_per_second": clocks[product].rate,
            "ratio": paired(clocks["plain"].wall, clocks[product].wall),
            "ratio_processor_time": paired(clocks["plain"].processor, clocks[product].processor),
            "ratio_with_checkpoints": paired(
                clocks["plain"].wall, [s + saving for s in clocks[product].wall]
            ),
            **{f"memory_{key}": value for key, value in memory[product].items()},
        }
        for product in PRODUCTS
    }
    record = {
        "model": Path(args.model).name,
        "dtype": str(loaded.port.dtype).removeprefix("torch."),
        "splits": args.splits,
        "window": args.window,
        "windows": args.windows,
        "threads": args.threads,
        "default": product_for("auto", "cpu"),
        "plain_tokens_per_second": clocks["plain"].rate,
        "checkpoint_seconds": min(checkpoint),
        "results": results,
        "versions": library_versions(),
        "machine": machine(),
    }
    show(record)
    if args.json:
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    ok = results["fast"]["ratio"] >= args.gate and all(
        result["memory_growth"] < 2 * result["memory_estimate"] for result in results.values()
    )
    print(
        f"gate: fast at least {args.gate:g} of plain, memory under twice its estimate: "
        f"{'holds' if ok else 'FAILS'}"
    )
    print(json.dumps(record))
    return 0 if ok else 1


def paired(plain: list[float], capture: list[float]) -> float:
    """Median over windows of how much of the plain pass's rate is left."""
    return statistics.median(a / b for a, b in zip(plain, capture, strict=True))


def show(record: dict[str, Any]) -> None:
    print(
        f"{record['model']}, {record['dtype']}, splits {record['splits']}, {record['windows']} windows of "
        f"{record['window']} tokens, {record['threads']} threads; default precision here: {record['default']}"
    )
    print(f"  plain forward            {record['plain_tokens_per_second']:7.0f} tokens/s")
    for product, result in record["results"].items():
        print(
            f"  capture, {product:<5}          {result['tokens_per_second']:7.0f} tokens/s, "
            f"{result['ratio']:.3f} of plain (processor time {result['ratio_processor_time']:.3f}, "
            f"with checkpoints {result['ratio_with_checkpoints']:.3f})"
        )
        print(
            f"    memory above the model {result['memory_growth'] / 2**20:7.0f} MiB, "
            f"estimate {result['memory_estimate'] / 2**20:.0f} MiB"
        )
    print(f"  a checkpoint takes {record['checkpoint_seconds']:.2f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
