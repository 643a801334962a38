"""Time and peak memory of a long prefill with exact rows, against the plain fill and exact.

    python recipes/bench_rows.py --tokens 16384

A random model (8 layers, hidden 64, 4 query and 2 KV heads, split 4, tail 1,024), since neither depends on
the weights. Every arm runs in a process of its own, which has seen a prompt of 64 tokens first; `grown` is
what the long prompt adds to its peak. Prints one JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from contextlib import nullcontext
from typing import Any

ARMS = ("exact", "plain", "random", "attention", "probe", "attention eager")
SPLIT, TAIL = 4, 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=16_384)
    parser.add_argument("--share", type=float, default=0.1, help="exact rows, as a share of the prompt")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=ARMS[:-1])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--one", choices=ARMS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        sys.stdout.write(json.dumps(measured(arguments)) + "\n")
        return
    for arm in arguments.arms:
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--one", arm], check=True)


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """One arm in this process."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    from ridgefit.maps import LayerMap, MapSet
    from ridgefit.runtime import SELECTORS, RidgeFill
    from ridgefit.versions import peak_memory

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=arguments.tokens,
    )
    name, *rest = arguments.one.split()
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation=rest[0] if rest else "sdpa")
    model = model.eval().to(arguments.device, getattr(torch, arguments.dtype))
    unit = LayerMap(torch.eye(64), torch.zeros(64))
    fill = RidgeFill.of(MapSet.of(dict.fromkeys(range(SPLIT, 8), unit)))
    rows = None
    if name in SELECTORS:
        more: dict[str, Any] = {"layers": (3,)} if name == "attention" else {}
        rows = [SELECTORS[name](share=arguments.share, **more)]
    ids = torch.randint(3, 300, (1, arguments.tokens), device=arguments.device)
    applied = nullcontext() if name == "exact" else fill.applied(model, tail=TAIL, rows=rows)
    with torch.no_grad(), applied as report:
        model(ids[:, :64], logits_to_keep=1)
        before, times = peak_memory(arguments.device), []
        for _ in range(arguments.repeats):
            started = time.perf_counter()
            model(ids, logits_to_keep=1)
            if arguments.device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        peak = peak_memory(arguments.device)
    return {
        "arm": arguments.one,
        "tokens": arguments.tokens,
        "dtype": arguments.dtype,
        "rows_chosen": report.rows_chosen // arguments.repeats if report else 0,
        "seconds": round(sorted(times)[len(times) // 2], 3),
        "peak_mib": round(peak / 2**20, 1),
        "grown_mib": round((peak - before) / 2**20, 1),
        "held_between_sweeps_mib": round(report.held_bytes / 2**20, 1) if report else 0.0,
        "a_mask_of_all_pairs_mib": round(arguments.tokens**2 / 2**20, 1),
    }


if __name__ == "__main__":
    main()
