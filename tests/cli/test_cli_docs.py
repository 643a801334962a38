"""What README and docs say exists: commands, their options, and files of the repository."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ridgefit.cli.app import COMMANDS, main

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
LINES = re.findall(r"^ridgefit (.*?)(?:  +#.*)?$", (ROOT / "README.md").read_text(), flags=re.MULTILINE)


def test_readme_shows_every_command() -> None:
    assert {line.split()[0] for line in LINES} == set(COMMANDS)


@pytest.mark.parametrize("line", LINES)
def test_commands_of_the_readme_have_these_options(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = line.split()
    names = words[:2] if words[0] in ("bench", "calibrate", "train") else words[:1]
    assert main([*names, "--help"]) == 0
    said = capsys.readouterr().out
    for option in (word for word in words if word.startswith("--")):
        assert f"{option} " in said


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    named = re.findall(r"`((?:ridgefit|tests|recipes|docs)/[\w./-]+)`", text)
    linked = re.findall(r"\]\(([\w./-]+)\)", text)
    missing = [
        *(name for name in named if not (ROOT / name).exists()),
        *(name for name in linked if not (page.parent / name).exists()),
    ]
    assert not missing
