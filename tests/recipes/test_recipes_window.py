"""The window recipes fit together, and their table says what the results say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ridgefit.pipeline.recipe_file import load_sections
from ridgefit.recipe import CandidateSettings, CaptureSettings, EvalSettings, SolveSettings

RECIPES = Path(__file__).parents[2] / "recipes"


def test_every_arm_names_a_candidate_that_is_solved_from_what_is_captured() -> None:
    whole = load_sections(RECIPES / "smollm2-window.yaml")
    candidates = [CandidateSettings(**given) for given in whole[SolveSettings]["candidates"]]
    labels = {candidate.label for candidate in candidates}
    captured = set(whole[CaptureSettings]["features"])
    assert {name for candidate in candidates for name in candidate.features} <= captured
    parts = sorted(RECIPES.glob("smollm2-window-*.yaml"))
    assert [path.stem.removeprefix("smollm2-window-") for path in parts] == [
        "ablations",
        "cheap",
        "long",
        "needles",
        "nll",
        "rows",
    ]
    named: set[str] = set()
    for path in parts:
        settings = EvalSettings(**load_sections(path)[EvalSettings])
        own = {arm.maps for arm in settings.arms if arm.maps}
        assert own <= labels, path.name
        named |= own
    assert named == labels  # nothing is solved for no one


def record(sample: str, arm: str, strict: float, group: str = "noise") -> dict[str, object]:
    scores = {"strict": strict, "digits": (1 + strict) / 2, "value_nll": 1.0}
    named = {"task": "needle 64/16", "sample": sample, "arm": arm, "group": group}
    return {"kind": "sample", **named, "scores": scores}


def test_the_table_says_what_the_results_say(tmp_path: Path) -> None:
    """Four samples: plain finds one, the other arm that one and two more; a second split is half done."""
    found = {"exact": [1, 1, 1, 1], "plain": [1, 0, 0, 0], "window": [1, 1, 1, 0]}
    macs = {"needle 64/16": {"exact": 1.0, "plain": 0.5, "window": 0.5123}}
    lines = [{"kind": "header", "context": {"macs": macs}}]
    lines += [record(f"n{i}", arm, s) for arm, row in found.items() for i, s in enumerate(row)]
    for split, kept in (("s15", lines), ("s8", lines[:7])):
        folder = tmp_path / split / "needles"
        folder.mkdir(parents=True)
        (folder / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in kept))
    command = [sys.executable, str(RECIPES / "window_table.py"), str(tmp_path)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = {line.split(" | ")[0].strip("| "): line for line in text.splitlines() if line.startswith("|")}
    assert "### needle 64/16: 2 to 4 samples" in text
    assert "| split 8 | split 15 |" in rows["arm"]
    assert rows["exact"].endswith("| 100 (100) | 100 (100) |")
    assert "50.0 / 50.0 | 50 (75) | 25 (62) |" in rows["plain"]
    assert "51.2 / 51.2 | – | 75 (88) +50.0 [+0.0, " in rows["window"]


@pytest.mark.parametrize("script", sorted(RECIPES.glob("*.sh")), ids=lambda path: path.name)
def test_shell_scripts_parse(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
