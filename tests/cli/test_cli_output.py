"""One JSON object on stdout; notes, warnings and progress on stderr."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from pydantic import BaseModel

from ridgefit.cli.options import command
from ridgefit.cli.output import Output, jsonable
from ridgefit.cli.progress import Progress
from ridgefit.cli.render import amount, duration, grid, pairs, plain, size


class Result(BaseModel):
    value: float
    where: Path
    table: dict[int, tuple[int, ...]]


RESULT = Result(value=float("nan"), where=Path("a/b"), table={3: (1, 2)})


def chatty(*arguments: str) -> int:
    """A command around a library that prints, warns and logs."""

    def work(output: Output) -> None:
        sys.stdout.write("Loading weights: 100%\n")
        warnings.warn("deprecated", stacklevel=1)
        logging.getLogger("ridgefit.room").info("doing")
        logging.getLogger("ridgefit.room").warning("careful")
        output.warn("look here")
        output.say("beside the result")
        output.result(RESULT, lambda console: console.print("the result"))

    work.__annotations__ = {"output": Output}
    app = typer.Typer(add_completion=False)
    app.command()(command(work))
    status: int = typer.main.get_command(app).main(list(arguments), standalone_mode=False)
    return status


def test_json_is_exactly_one_object_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert chatty("--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == {"value": None, "where": "a/b", "table": {"3": [1, 2]}}
    assert said.out.count("\n") == 1
    assert "Loading weights" in said.err
    assert "warning: look here\n" in said.err
    assert "warning: deprecated\n" in said.err
    assert "beside the result" not in said.err


def test_text_goes_to_stdout_and_notes_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert chatty() == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-1] == "the result"
    assert "careful" in said.err
    assert "doing" not in said.err
    assert "beside the result" in said.err


def test_text_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """A console would draw a llama for its name, and take what is in brackets for a style."""
    name = "bundled:llama: [bold]/a[b]/" + "long" * 40
    Output().result(None, lambda console: plain(console, name))
    assert capsys.readouterr().out == f"{name}\n"
    Output().result(None, lambda console: console.print(pairs([(":llama:", "[b] :dog:")])))
    assert capsys.readouterr().out.split() == [":llama:", "[b]", ":dog:"]
    Output().result(None, lambda console: console.print(grid(["[b]"], [[":llama:"]])))
    assert capsys.readouterr().out.split() == ["[b]", ":llama:"]


def test_the_hub_client_keeps_its_retries_to_itself() -> None:
    """In a process of its own, because the client sets its logger's level once, when it is imported."""
    source = (
        "import logging\nfrom ridgefit.cli.output import Output\nwith Output().speaking():\n"
        "    import huggingface_hub\n    huggingface_hub.HfApi\n"
        "    logging.getLogger('huggingface_hub.utils._http').warning('Retrying in 1s')\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_VERBOSITY"}
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stderr == ""


def test_quiet_and_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    assert chatty("--quiet") == 0
    assert capsys.readouterr().err == ""
    chatty("--verbose")
    assert "doing" in capsys.readouterr().err
    chatty()
    assert "doing" not in capsys.readouterr().err, "a run leaves its logging behind"


@dataclasses.dataclass
class Point:
    x: np.float64
    y: float


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Point(np.float64(1.5), float("inf")), {"x": 1.5, "y": None}),
        ({1: {2, 1}}, {"1": [1, 2]}),
        (range(3), [0, 1, 2]),
        (np.int64(3), 3),
        ((True, None, "a"), [True, None, "a"]),
    ],
)
def test_jsonable(value: Any, plain: Any) -> None:
    assert jsonable(value) == plain
    json.dumps(jsonable(value), allow_nan=False)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def progressed(steps: list[tuple[float, int, int | None, str]], **settings: Any) -> str:
    stream, clock = io.StringIO(), Clock()
    bar = Progress(stream, clock=clock, **settings)
    for now, done, total, text in steps:
        clock.now = now
        bar(done, total, text)
    bar.close()
    return stream.getvalue()


def test_short_work_shows_no_progress() -> None:
    assert progressed([(0, 0, 4, "a"), (1, 2, 4, "a"), (1.9, 4, 4, "a")]) == ""


def test_a_log_gets_a_line_every_ten_seconds() -> None:
    steps = [(float(t), t, 100, "capture") for t in range(41)]
    lines = progressed(steps).splitlines()
    assert lines[0] == "capture: 2 of 100, 1/s, 1:38 left"
    assert len(lines) == 4
    assert progressed(steps, shown=False) == ""


def test_progress_ends_with_its_last_step_and_starts_anew() -> None:
    one = [(0.0, 0, 2, "a"), (3.0, 1, 2, "a"), (4.0, 2, 2, "a")]
    two = [(5.0, 0, 3, "b"), (6.0, 1, 3, "b"), (9.0, 3, 3, "b")]
    lines = progressed(one + two).splitlines()
    assert lines == ["a: 1 of 2, 0.333/s, 0:03 left", "a: 2 of 2, 0.5/s", "b: 3 of 3, 0.75/s"]


def test_large_numbers_can_be_read() -> None:
    steps = [(0.0, 0, 400_000, "capture"), (4.0, 10_000, 400_000, "capture")]
    assert progressed(steps) == "capture: 10,000 of 400,000, 2,500/s, 2:36 left\n"


def test_unknown_totals_show_no_end() -> None:
    assert progressed([(0.0, 0, None, "doctor"), (4.0, 2, None, "doctor")]) == "doctor (2 done)\n"


def test_a_terminal_gets_a_bar_with_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    stream, clock = Terminal(), Clock()
    bar = Progress(stream, clock=clock)
    for step in range(6):
        clock.now = float(step)
        bar(step, 10, "solve [b] :llama:")
    assert bar._bar is not None
    headers = [type(column).__name__ for column in bar._bar.columns]
    assert "TimeRemainingColumn" in headers
    assert "Rate" in headers
    bar.close()
    assert "solve [b] :llama:" in stream.getvalue()
    assert "5/10" in stream.getvalue()


def test_progress_of_a_command_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with Output().progress() as bar:
        bar._clock = Clock()
        bar(0, 2, "x")
        bar._clock.now = 5.0
        bar(2, 2, "x")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "x: 2 of 2, 0.4/s\n")
    assert sys.stderr is not None


def test_units() -> None:
    assert [size(n) for n in (10, 2048, 32 * 2**20, 3 * 2**30)] == ["10 B", "2 KiB", "32 MiB", "3 GiB"]
    assert [amount(n) for n in (999, 1.5e6, 1.534e14)] == ["999", "1.5 M", "153.4 T"]
    assert [duration(s) for s in (0.63, 600, 9000)] == ["0.63 s", "10 min", "2.5 h"]
