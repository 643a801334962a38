"""The results file: whole lines, resuming after a torn one, refusing what does not belong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ridgefit.errors import BadInput
from ridgefit.evaluate.journal import RESULTS, Journal, Key, first_difference

IDENTITY = {"settings": {"seed": 0, "arms": [{"kind": "exact"}, {"kind": "ridge"}]}, "dtype": "float32"}


def key(number: int, arm: str = "exact") -> Key:
    return Key("task", f"document {number}", "prompt", arm)


def filled(folder: Path, count: int = 3) -> Path:
    with Journal(folder, IDENTITY, {"threads": 1}) as journal:
        for number in range(count):
            journal.append(key(number), {"scores": {"nll": number / 7}})
    return folder / RESULTS


def test_lines_are_on_disk_while_it_runs(tmp_path: Path) -> None:
    with Journal(tmp_path, IDENTITY, {}) as journal:
        journal.append(key(0), {"scores": {"nll": 1.0}})
        lines = (tmp_path / RESULTS).read_text().splitlines()
        assert [json.loads(line)["kind"] for line in lines] == ["header", "sample"]
        assert json.loads(lines[0])["identity"] == IDENTITY


def test_reopening_finds_every_record(tmp_path: Path) -> None:
    filled(tmp_path)
    with Journal(tmp_path, IDENTITY, {"threads": 2}) as journal:
        assert set(journal.records) == {key(0), key(1), key(2)}
        assert journal.records[key(2)]["scores"]["nll"] == 2 / 7
        journal.append(key(3), {"scores": {}})
        assert journal.records[key(3)]["session"] == 1
    with Journal(tmp_path, IDENTITY, {}) as journal:
        assert journal.session == 2
        assert [journal.records[key(n)]["session"] for n in range(4)] == [0, 0, 0, 1]


def test_any_cut_of_the_last_line_loses_only_that_line(tmp_path: Path) -> None:
    path = filled(tmp_path)
    whole = path.read_bytes()
    start = whole.rfind(b"\n", 0, -1) + 1
    for size in [*range(start, start + 4), len(whole) - 1]:
        path.write_bytes(whole[:size])
        with Journal(tmp_path, IDENTITY, {}) as journal:
            assert set(journal.records) == {key(0), key(1)}
            journal.append(key(2), {"scores": {"nll": 9.0}})
        for line in path.read_bytes().splitlines():
            json.loads(line)
        with Journal(tmp_path, IDENTITY, {}) as journal:
            assert journal.records[key(2)]["scores"] == {"nll": 9.0}


def test_a_torn_header_starts_over(tmp_path: Path) -> None:
    path = filled(tmp_path)
    path.write_bytes(path.read_bytes()[:20])
    with Journal(tmp_path, IDENTITY, {}) as journal:
        assert journal.records == {}
        assert journal.session == 0
    assert json.loads(path.read_text())["kind"] == "header"


def test_zeros_after_a_power_cut_are_dropped(tmp_path: Path) -> None:
    path = filled(tmp_path)
    path.write_bytes(path.read_bytes() + b"\0" * 40 + b"\n")
    with Journal(tmp_path, IDENTITY, {}) as journal:
        assert len(journal.records) == 3


def test_a_later_line_replaces_an_earlier_one(tmp_path: Path) -> None:
    filled(tmp_path)
    with Journal(tmp_path, IDENTITY, {}) as journal:
        journal.append(key(0), {"scores": {"nll": 5.0}})
    with Journal(tmp_path, IDENTITY, {}) as journal:
        assert journal.records[key(0)]["scores"] == {"nll": 5.0}


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({**IDENTITY, "dtype": "bfloat16"}, 'dtype ("float32" there, "bfloat16" now)'),
        (
            {**IDENTITY, "settings": {"seed": 0, "arms": [{"kind": "exact"}, {"kind": "none"}]}},
            'settings.arms[1].kind ("ridge" there, "none" now)',
        ),
        ({**IDENTITY, "maps": {"a": "1"}}, 'maps (nothing there, {"a": "1"} now)'),
    ],
)
def test_another_identity_is_refused_by_field(tmp_path: Path, changed: dict, field: str) -> None:
    path = filled(tmp_path)
    before = path.read_bytes()
    with pytest.raises(BadInput) as error:
        Journal(tmp_path, changed, {})
    assert field in str(error.value)
    assert path.read_bytes() == before


def test_a_damaged_middle_line_is_refused(tmp_path: Path) -> None:
    path = filled(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:1], b"{oops\n", *lines[2:]]))
    with pytest.raises(BadInput, match=r"line 2 of .* is damaged"):
        Journal(tmp_path, IDENTITY, {})


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("dear")
    with pytest.raises(BadInput, match="not empty"):
        Journal(tmp_path, IDENTITY, {})
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_foreign_results_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / RESULTS).write_text('{"score": 1}\n')
    with pytest.raises(BadInput, match="not a results file"):
        Journal(tmp_path, IDENTITY, {})


def test_not_finite_numbers_never_reach_the_file(tmp_path: Path) -> None:
    with Journal(tmp_path, IDENTITY, {}) as journal, pytest.raises(ValueError, match="JSON compliant"):
        journal.append(key(0), {"scores": {"nll": float("nan")}})
    assert len((tmp_path / RESULTS).read_text().splitlines()) == 1


def test_first_difference_names_types_and_lengths() -> None:
    assert first_difference({"a": 1}, {"a": 1}) is None
    assert first_difference({"a": 1}, {"a": True}) == ("a", 1, True)
    assert first_difference({"a": [1]}, {"a": [1, 2]}) == ("a", [1], [1, 2])


def test_settings_that_the_first_sample_refuses_leave_no_results_behind(tmp_path: Path) -> None:
    first, second = (Key("task", sample, "prompt", "exact") for sample in ("0", "1"))
    with pytest.raises(BadInput, match="row 5000"), Journal(tmp_path, {"rows": 5000}, {}) as journal:
        journal.append(first, {})
        raise BadInput("row 5000 is outside", "name another")
    with (
        pytest.raises(BadInput, match="later"),
        Journal(tmp_path, {"rows": 50}, {}) as journal,
    ):
        journal.append(first, {})
        journal.append(second, {})
        raise BadInput("later", "")
    with Journal(tmp_path, {"rows": 50}, {}) as journal:
        assert set(journal.records) == {first, second}  # what was scored before is kept
