"""Help answers at once: no torch, no transformers, and a bound on its time."""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys

import pytest

from ridgefit.cli.app import COMMANDS

HEAVY = ("torch", "transformers", "datasets", "huggingface_hub", "scipy", "numpy", "pyarrow", "matplotlib")
SEEN = f"""
import json, sys
from ridgefit.cli.app import main
status = main(sys.argv[1:])
print("\\n" + json.dumps([status, sorted(set(sys.modules) & set({HEAVY!r}))]))
"""


def loaded_by(*arguments: str) -> tuple[int, list[str], str]:
    """Exit status, heavy libraries in memory afterwards, and what was printed."""
    done = subprocess.run(
        [sys.executable, "-c", SEEN, *arguments], capture_output=True, text=True, check=True, timeout=120
    )
    *printed, last = done.stdout.rstrip("\n").split("\n")
    status, heavy = json.loads(last)
    return status, heavy, "\n".join(printed)


def test_help_lists_every_command() -> None:
    status, heavy, printed = loaded_by("--help")
    assert (status, heavy) == (0, [])
    assert all(f" {name} " in printed for name in COMMANDS)


@pytest.mark.parametrize("name", [*COMMANDS, "bench prefill", "calibrate recall"])
def test_help_of_a_command_imports_nothing_heavy(name: str) -> None:
    status, heavy, printed = loaded_by(*name.split(), "--help")
    assert (status, heavy) == (0, [])
    assert "Usage: ridgefit" in printed


def test_bad_command_lines_import_nothing_heavy() -> None:
    status, heavy, _ = loaded_by("capture", "model", "--split", "three", "--data", "x", "--out", "y")
    assert (status, heavy) == (2, [])


def test_plan_imports_nothing_heavy() -> None:
    """A plan needs a config and nothing else."""
    status, heavy, printed = loaded_by("plan", "qwen3-8b", "--json")
    assert (status, heavy) == (0, [])
    assert json.loads(printed)["speedup_limit"] > 1


def test_help_answers_quickly() -> None:
    """In seconds of processor time, which is the time to wait unless the machine is busy with other work."""

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "ridgefit.cli.app", "--help"], capture_output=True, check=True, timeout=60
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    once()  # the first writes byte code
    times = [once() for _ in range(5)]
    assert statistics.median(times) < 0.4, times


def test_the_console_script_is_there() -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="ridgefit")
    assert script.value == "ridgefit.cli.app:main"


def test_no_arguments_show_the_help() -> None:
    status, heavy, printed = loaded_by()
    assert (status, heavy) == (0, [])
    assert "capture" in printed


def test_version() -> None:
    from ridgefit import __version__

    status, heavy, printed = loaded_by("--version")
    assert (status, heavy, printed.strip()) == (0, [], f"ridgefit {__version__}")
