"""Tables of `recipes/smollm2-window.sh`: arms down, splits across, from whatever is scored so far.

Reads `s*/PART/results.jsonl` below a folder and prints Markdown. Needles: found % (digits right %), then the
paired difference of needles found to the plain maps in points. Losses: difference to exact in nats per token.
Intervals are 95 %, BCa bootstrap over samples or documents.

    python recipes/window_table.py work/smollm2-window
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from ridgefit.evaluate.intervals import bca

PARTS = ("needles", "nll", "long", "ablations", "rows", "cheap")
PLAIN = "plain"
RESAMPLES = 5000
Scores = Mapping[str, Mapping[str, float | None]]
"""Sample -> measure -> score, of one arm."""


class Cells:
    """Scores of one part, by task, split, arm and sample.

    Args:
        folder: holds `s*/PART/results.jsonl`.
        part: name.
    """

    def __init__(self, folder: Path, part: str) -> None:
        self.scores: dict[str, dict[int, dict[str, dict[str, dict[str, float | None]]]]] = {}
        self.groups: dict[tuple[str, str], str] = {}
        self.macs: dict[tuple[str, int, str], float] = {}
        for path in sorted(folder.glob(f"s*/{part}/results.jsonl")):
            split = int(path.parts[-3][1:])
            for line in path.read_text().splitlines():
                record: dict[str, Any] = json.loads(line)
                if record["kind"] == "header":
                    for task, found in record["context"].get("macs", {}).items():
                        self.macs |= {(task, split, arm): share for arm, share in found.items()}
                elif record["kind"] == "sample":
                    arms = self.scores.setdefault(record["task"], {}).setdefault(split, {})
                    arms.setdefault(record["arm"], {})[record["sample"]] = record["scores"]
                    self.groups[record["task"], record["sample"]] = record["group"]

    def splits(self, task: str) -> list[int]:
        """Splits that have scores, ascending."""
        return sorted(self.scores[task])

    def arms(self, task: str) -> list[str]:
        """Arms in the order in which they were scored."""
        return list(dict.fromkeys(arm for arms in self.scores[task].values() for arm in arms))

    def difference(self, task: str, split: int, arm: str, other: str, measure: str, unit: float) -> str:
        """Paired difference with its interval."""
        mine, others = self.scores[task][split][arm], self.scores[task][split].get(other, {})
        pairs = {
            sample: (mine[sample][measure], others[sample][measure]) for sample in mine if sample in others
        }
        differences = {
            sample: unit * (a - b) for sample, (a, b) in pairs.items() if a is not None and b is not None
        }
        if not differences:
            return ""
        groups = [self.groups[task, sample] for sample in differences]
        found = bca(list(differences.values()), groups, resamples=RESAMPLES, seed=0)
        digits = 1 if unit == 100 else 3
        ends = "" if found.low is None else f" [{found.low:+.{digits}f}, {found.high:+.{digits}f}]"
        return f"{found.mean:+.{digits}f}{ends}"

    def mean(self, task: str, split: int, arm: str, measure: str) -> float | None:
        """Mean over samples that have the measure."""
        found = [scores[measure] for scores in self.scores[task][split][arm].values()]
        known = [score for score in found if score is not None]
        return fmean(known) if known else None


def needle_cell(cells: Cells, task: str, split: int, arm: str) -> str:
    """Found, digits, and the difference to the plain maps."""
    strict, digits = (cells.mean(task, split, arm, name) for name in ("strict", "digits"))
    cell = f"{100 * (strict or 0):.0f} ({100 * (digits or 0):.0f})"
    if arm in ("exact", PLAIN) or PLAIN not in cells.scores[task][split]:
        return cell
    return f"{cell} {cells.difference(task, split, arm, PLAIN, 'strict', 100)}"


def loss_cell(cells: Cells, task: str, split: int, arm: str) -> str:
    """Novel and key tokens, each as the difference to exact."""
    if arm == "exact":
        novel, key = (cells.mean(task, split, arm, name) for name in ("novel_nll", "key_nll"))
        return f"{novel or 0:.3f}; key {key or 0:.3f}"
    novel_difference = cells.difference(task, split, arm, "exact", "novel_nll", 1)
    return f"{novel_difference}; key {cells.difference(task, split, arm, 'exact', 'key_nll', 1)}"


def table(cells: Cells, task: str, cell: Callable[[Cells, str, int, str], str]) -> list[str]:
    """One task as Markdown lines; MACs are the prefill's share of the exact one, first split to last."""
    splits = cells.splits(task)
    counts = {len(samples) for arms in cells.scores[task].values() for samples in arms.values()}
    number = str(min(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    lines = [f"### {task}: {number} samples", ""]
    lines.append("| arm | MACs % | " + " | ".join(f"split {split}" for split in splits) + " |")
    lines.append("| --- | --- |" + " --- |" * len(splits))
    for arm in cells.arms(task):
        macs = [cells.macs.get((task, split, arm)) for split in splits]
        shares = " / ".join("–" if share is None else f"{100 * share:.1f}" for share in macs)
        found = [
            cell(cells, task, split, arm) if arm in cells.scores[task][split] else "–" for split in splits
        ]
        lines.append(f"| {arm} | {shares} | " + " | ".join(found) + " |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    for part in PARTS:
        cells = Cells(folder, part)
        if cells.scores:
            print(f"## {part}\n")
        for task in cells.scores:
            for line in table(cells, task, loss_cell if task.startswith("nll") else needle_cell):
                print(line)


if __name__ == "__main__":
    main()
