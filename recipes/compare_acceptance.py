"""Drafts against each other at the same budget: paired over documents, from folders of `ridgefit eval`.

    python recipes/compare_acceptance.py work/refresh

Reads `DRAFT-BUDGET/acceptance.jsonl` of `make refresh-training` and prints one JSON object a line.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ridgefit.evaluate.acceptance_summary import unit_lengths
from ridgefit.evaluate.intervals import bca

NAMES = {"before": "bundled-draft", "masks": "draft-masks", "no masks": "draft-no-masks"}
PAIRS = (("masks", "before"), ("no masks", "before"), ("masks", "no masks"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    budgets = sorted({int(path.name.rsplit("-", 1)[1]) for path in folder.glob("bundled-draft-*")})
    for budget in budgets:
        lengths = {name: read(folder / f"{stem}-{budget}") for name, stem in NAMES.items()}
        for policy in lengths["before"]:
            means = {
                name: round(sum(of[policy].values()) / len(of[policy]), 3) for name, of in lengths.items()
            }
            print(json.dumps({"budget": budget, "policy": policy, "al": means}), flush=True)
            for left, right in PAIRS:
                one, other = lengths[left][policy], lengths[right][policy]
                shared = sorted(one.keys() & other.keys())
                found = bca([one[unit] - other[unit] for unit in shared])
                row = {"difference": found.mean, "low": found.low, "high": found.high, "documents": found.n}
                print(json.dumps({"budget": budget, "policy": policy, "of": f"{left} - {right}"} | row))


def read(folder: Path) -> dict[str, dict[str, float]]:
    """Policy -> document -> acceptance length."""
    drafted = json.loads((folder / "identity.json").read_text())["settings"]["drafted"]
    records = [json.loads(line) for line in (folder / "acceptance.jsonl").read_text().splitlines()]
    policies = dict.fromkeys(record["policy"] for record in records)
    return {
        policy: unit_lengths([record for record in records if record["policy"] == policy], drafted)
        for policy in policies
    }


if __name__ == "__main__":
    main()
