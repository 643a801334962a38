"""A second question on a cache filled once, against forwards over the whole conversation."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

import ridgefit
from ridgefit.errors import BadInput
from ridgefit.evaluate.needle import Prompts
from ridgefit.evaluate.needle_two_turn import NeedleTwoTurnTask
from ridgefit.evaluate.run import evaluate
from ridgefit.evaluate.samples import Reach, Sample
from ridgefit.models import LoadedModel, load_model
from ridgefit.recipe import ArmSettings, EvalSettings, NeedleTwoTurnSettings
from ridgefit.runtime import RidgeFill

BUNDLED = Path(ridgefit.__file__).parent / "bundled"
TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>\n{{ m['content'] }}</>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
FORGETFUL = "{{ messages[-1]['content'] }}{% if add_generation_prompt %}<assistant>\n{% endif %}"
FILLS: dict[str, Callable[[LoadedModel], AbstractContextManager[Any]]] = {
    "exact": lambda loaded: nullcontext(),
    "identity": lambda loaded: RidgeFill.identity(3).applied(loaded.model, tail=150),
    "none": lambda loaded: RidgeFill.no_fill(3).applied(loaded.model, tail=150, sink_rows=4),
}


def task(**more: Any) -> NeedleTwoTurnTask:
    return NeedleTwoTurnTask(
        NeedleTwoTurnSettings(**{"prompt": 640, "tail": 150, "samples": 4, "new_tokens": 6, **more})
    )


def reference(loaded: LoadedModel, sample: Sample, fill: str) -> tuple[str, str, float]:
    """Answers and loss, each token from a prompt read anew and one call over all that follows it."""
    turn = sample.facts["turn"]
    with FILLS[fill](loaded), torch.no_grad():

        def read(ids: list[int]) -> tuple[Any, torch.Tensor]:
            out = loaded.model(input_ids=sample.prompt[None], use_cache=True)
            if ids:
                out = loaded.model(input_ids=torch.tensor([ids]), past_key_values=out.past_key_values)
            return out.logits[0, -1].double().log_softmax(0)

        told, second = sample.target[:turn].tolist(), sample.target[turn:].tolist()
        answers = []
        for start in ([], told):
            chosen: list[int] = []
            while len(chosen) < 6:
                chosen.append(int(read([*start, *chosen]).argmax()))
            answers.append(loaded.tokenizer.decode(chosen))
        losses = [-float(read(told + second[:at])[token]) for at, token in enumerate(second)]
    return answers[0], answers[1], float(np.mean(losses))


@pytest.mark.filterwarnings("ignore:.*past_key_values.*")
@pytest.mark.parametrize("fill", list(FILLS))
def test_both_turns_equal_separate_calls(tiny: LoadedModel, fill: str) -> None:
    two = task()
    samples = two.samples(tiny, Reach(150, 4), 0).samples
    assert len({sample.facts["turn"] for sample in samples}) > 1
    assert len({sample.prompt.numel() for sample in samples}) > 1
    found = two.score(tiny, samples, lambda: FILLS[fill](tiny), None)
    for sample, scored in zip(samples[:2], found, strict=False):
        first, second, loss = reference(tiny, sample, fill)
        assert (scored.detail["first_answer"], scored.detail["answer"]) == (first, second)
        assert scored.scores["value_nll"] == pytest.approx(loss, abs=2e-4)


@pytest.mark.parametrize("chat", [False, True])
def test_the_conversation_reads_as_the_template_writes_it(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch, chat: bool
) -> None:
    monkeypatch.setattr(tiny.tokenizer, "chat_template", TEMPLATE if chat else None)
    sample = task(samples=1, needles=3).samples(tiny, Reach(150, 4), 0).samples[0]
    text = tiny.tokenizer.decode(torch.cat([sample.prompt, sample.target]))
    first, second = sample.facts["first"], sample.facts["second"]
    after = text.rpartition(f" is {first}.")[2]
    key = text[: text.index(f" is: {second}")].rpartition("magic numbers for ")[2]
    question = f"What is the special magic number for {key} mentioned in the provided text?"
    prefix = f"The special magic number for {key} mentioned in the provided text is {second}"
    if chat:
        assert after == f"</>\n<user>\n{question}</>\n<assistant>\n{prefix}"
    else:
        assert after == f"\n{question} {prefix}"
    hidden = [at for at in range(len(text)) if text.startswith(" is: ", at)]
    assert len(hidden) == 3 and all(a < b for a, b in pairwise(hidden))
    assert hidden[-1] + 5 + 7 <= sample.prompt.numel() - 150  # bytes are tokens here
    assert first != second


def test_a_template_that_forgets_answers_is_refused(
    tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny.tokenizer, "chat_template", FORGETFUL)
    with pytest.raises(BadInput, match="leaves earlier answers out"):
        Prompts(tiny.tokenizer, None).next_turn("What?", " This")


def test_one_needle_cannot_be_asked_for_twice() -> None:
    with pytest.raises(ValidationError, match="needles"):
        NeedleTwoTurnSettings(needles=1)


@pytest.mark.skipif(not (BUNDLED / "llama" / "model.safetensors").is_file(), reason="no bundled model")
def test_a_trained_model_answers_twice_and_without_a_fill_not_at_all(tmp_path: Path) -> None:
    loaded = load_model("bundled:llama", dtype="float32", device="cpu")
    wanted = EvalSettings(
        arms=(ArmSettings(kind="none", split=6),),
        tasks=(NeedleTwoTurnSettings(prompt=512, tail=150, samples=4, new_tokens=12),),
        batch=4,
        resamples=100,
    )
    (result,) = evaluate(loaded, wanted, None, tmp_path).tasks
    assert result.name == "needle-two-turn 512/150 2 keys"
    for measure in ("strict", "first"):
        scores = result.measure(measure)
        assert scores is not None
        assert scores.arms[0].mean >= 0.75
        assert scores.arms[1].mean == 0
