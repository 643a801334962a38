"""The page, plots and `inspect` of an acceptance evaluation, against counts from hand-made records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ridgefit.cli.app import main
from ridgefit.errors import BadInput
from ridgefit.evaluate.acceptance_page import acceptance_report, cautions
from ridgefit.evaluate.acceptance_summary import AcceptanceResult, load_acceptance, summarise
from ridgefit.recipe import AcceptanceSettings

DOCUMENTS = 9
MODEL = {
    "name": "org/model", "revision": None, "family": "llama", "layers": 2, "dtype": "float32",
    "weights_sample_sha256": "ab" * 32,
}  # fmt: skip


def accepted(policy: str, document: int, at: int) -> int:
    """Drafted tokens accepted in a round: `swa` goes stale, `streaming` is full minus one in one document."""
    if policy == "swa":
        return 2 - min(at, 2)
    return 3 - (policy == "streaming" and document == 0)


def record(policy: str, document: int, equal: bool | None = True) -> dict[str, Any]:
    rounds = [
        [8 * at, 3, accepted(policy, document, at), 4, False, None if policy == "full" else 0.75 - 0.25 * at]
        for at in range(3)
    ]
    return {
        "policy": policy, "unit": f"d{document}", "rounds": rounds, "tokens": 24,
        "refreshes": 3 * (policy == "streaming"), "selections": 4 * (policy == "streaming"),
        "changed": [0.5] if policy == "streaming" else [], "score_seconds": 0.02 * (policy == "streaming"),
        "seconds": 0.12, "budget": None if policy == "full" else 8, "widest": 0 if policy == "full" else 8,
        "equal": equal, "prompt_tokens": 40 + document,
    }  # fmt: skip


def made(changes: dict[str, Any] | None = None, documents: int = DOCUMENTS, **more: Any) -> AcceptanceResult:
    settings = AcceptanceSettings(
        **{
            "data": ("x.jsonl",), "drafted": 3, "bin": 8, "policies": ("swa", "streaming"),
            "reference": "swa", "budget": 8, **(changes or {}),
        }
    )  # fmt: skip
    policies = ("full", *settings.policies)
    records = [record(policy, document) for document in range(documents) for policy in policies]
    identity = {
        "settings": settings.model_dump(mode="json"), "target": MODEL, "draft": {**MODEL, "name": "small"},
        "controller": None, "prompts_sha256": "cd" * 32, "device": "cpu", "sampling_seed": None,
        "versions": {"ridgefit": "9.9", "torch": "2"}, **more,
    }  # fmt: skip
    context = {
        "machine": {"cpu": "a CPU", "cores": 2, "gpu": None},
        "fraction": 1.0,
        "resamples": 300,
        "seed": 5,
    }
    return summarise(records, policies, settings, identity, context, resamples=300, seed=5)


def save(result: AcceptanceResult, folder: Path) -> Path:
    folder.mkdir()
    (folder / "acceptance.json").write_text(result.model_dump_json())
    return folder


def cells(page: str, first: str, head: str) -> list[str]:
    """The row of a policy in the table whose first head is `head`."""
    rows = page.split(f"| {head} |", 1)[1].splitlines()
    row = next(row for row in rows if row.startswith(f"| {first} |"))
    return [cell.strip() for cell in row.strip("|").split("|")]


def test_every_number_of_the_page_is_counted_from_the_records(tmp_path: Path) -> None:
    folder = save(made(), tmp_path / "out")
    page = acceptance_report(folder).read_text()
    full, swa, streaming = (cells(page, name, "policy") for name in ("full", "swa", "streaming"))
    assert full[1:4] == ["4.000", "4.000", "100.0 %"]
    assert swa[1:4] == ["2.000", "2.000", "50.0 %"]  # 1 + (2 + 1 + 0) / 3
    least = 4 - 1 / DOCUMENTS  # one token less in every round of one document
    assert streaming[1:4] == [f"{least:.3f}", f"{least:.3f}", f"{25 * least:.1f} %"]
    assert swa[4] == "-2.000 [-2.000, -2.000]"
    assert streaming[5].startswith(f"{least - 2:+.3f} [")
    assert "- swa: AL 2.000, 50.0 % of full; below full: -2.000 [-2.000, -2.000]." in page
    assert "not told apart from full" in page  # streaming: one document of nine differs
    assert cells(page, "swa", "AL from output token")[1:] == ["3.00", "2.00", "1.00"]
    assert cells(page, "swa", "mass from output token")[1:] == ["75.0 %", "50.0 %", "25.0 %"]
    assert cells(page, "swa", "at least")[1:] == ["66.7 %", "33.3 %", "0.0 %"]
    took = cells(page.split("## What it took")[1], "streaming", "policy")
    assert took[1:] == ["125.0", "", "50.0 %", "50.0 %", "5.00", "5.00", "14.3 %", "8", "100 %"]
    for setting, value in (("budget", "8"), ("drafted", "3"), ("reference", "swa"), ("data", "x.jsonl")):
        assert cells(page, setting, "setting")[1] == value
    for said in ("40 to 48 tokens from 9 documents", "a CPU", "300 resamples", "ridgefit 9.9"):
        assert said in page
    assert "Read this first" not in page


def test_refreshes_stand_against_the_references(tmp_path: Path) -> None:
    """Counts by hand: the reference refreshes 4 times a document, the other twice, in one of them once."""
    own = AcceptanceSettings(
        data=("x",), drafted=3, policies=("swa", "streaming"), reference="streaming", budget=8
    )
    policies = ("full", "swa", "streaming")
    records = [
        {**record(p, d), "refreshes": {"full": 0, "swa": 2 - (d == 0), "streaming": 4}[p]}
        for d in range(DOCUMENTS)
        for p in policies
    ]
    context = made().context
    result = summarise(records, policies, own, made().identity, context, resamples=300, seed=0)
    fewer = result.policy("swa").fewer
    assert fewer is not None
    assert fewer.ratio == pytest.approx(4 * DOCUMENTS / (2 * DOCUMENTS - 1))
    assert 2.0 <= (fewer.low or 0) <= fewer.ratio <= (fewer.high or 0) <= 4.0
    assert result.policy("full").fewer is result.policy("streaming").fewer is None
    took = acceptance_report(save(result, tmp_path / "out")).read_text().split("## What it took")[1]
    assert cells(took, "swa", "policy")[2].startswith("2.12 [2.")


def test_plots_are_files_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = save(made(), tmp_path / "out")
    page = acceptance_report(folder).read_text()
    for name in ("plot-policies.png", "plot-staleness.png"):
        assert f"({name})" in page
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    first = (folder / "plot-staleness.png").read_bytes()
    acceptance_report(folder)
    assert (folder / "plot-staleness.png").read_bytes() == first


CONTROLLER = {
    "sha256": "ef" * 32, "rule": "gate", "temperature": 0.0, "drafted": 3,
    "cache": {
        "budget": 8, "keep_ratio": None, "recent_share": 0.5, "window": None, "observe": 64, "kernel": 5,
        "every": 128, "candidates": "full",
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (made(), None),
        (made(documents=1), "no difference between policies can be claimed"),
        (made(documents=3), "Intervals over 3 documents are narrower"),
        (made({"budget": 44}), "Not every prompt is longer than the budget of 44"),
        (made({"budget": 48}), "No prompt is longer than the budget of 48"),
        (made({"forced": True}), "which flatters `swa`"),
        (made({"temperature": 1.0, "loop": "real"}), "committed a text of its own"),
        (made(controller=CONTROLLER), None),
        (made({"temperature": 1.0}, controller=CONTROLLER), "temperature 0.0, here 1.0."),
        (made({"observe": 32}, controller=CONTROLLER), "observe 64, here 32."),
        (made({"budget": None}, controller=CONTROLLER), "budget 8, here unset; keep_ratio unset, here 0.125"),
        (made(controller={**CONTROLLER, "rule": "none"}), "found no rule: `rift-ada` refreshed every 128"),
    ],
)
def test_what_a_reader_must_know_comes_first(result: AcceptanceResult, said: str | None) -> None:
    found = list(cautions(result))
    assert len(found) == (said is not None), found
    if said is not None:
        assert said in found[0]


def test_outputs_that_differ_are_said() -> None:
    own = AcceptanceSettings(data=("x",), drafted=3, policies=("swa",), reference="swa", budget=8)
    records = [record(p, d, equal=p == "full" or d > 2) for d in range(DOCUMENTS) for p in ("full", "swa")]
    result = summarise(records, ("full", "swa"), own, made().identity, {}, resamples=100, seed=0)
    (found,) = cautions(result)
    assert found.startswith("In swa not every output")
    assert "least: 67 %" in found


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save(made(), tmp_path / "out")
    assert main(["report", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(folder / "report.md")}
    assert main(["report", str(folder / "acceptance.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(folder / "report.md")}
    assert main(["report", str(folder), "--maps", str(tmp_path)]) == 2
    assert "has no maps" in capsys.readouterr().err
    assert main(["inspect", str(folder)]) == 0
    shown = capsys.readouterr().out
    for said in ("org/model", "-2.000 [-2.000, -2.000]", "AL from output token", "x.jsonl"):
        assert said in shown
    assert main(["inspect", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policies"][1]["al_macro"] == 2.0


def test_unfinished_and_other_results_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "acceptance.jsonl").write_text("")
    for name in ("inspect", "report"):
        assert main([name, str(folder)]) == 2
        assert "holds no finished evaluation" in capsys.readouterr().err
    with pytest.raises(BadInput, match="holds no finished evaluation"):
        load_acceptance(folder)
    (folder / "acceptance.json").write_text('{"identity": {}}')
    with pytest.raises(BadInput, match="is damaged or of another version"):
        load_acceptance(folder)
