"""Options that contradict each other or would do nothing: one sentence that says what to write instead."""

from __future__ import annotations

import inspect

import pytest

import ridgefit.recipe
from ridgefit.cli.app import main
from ridgefit.recipe.base import Settings

SETTINGS = sorted(
    {
        found
        for room in (ridgefit.recipe, ridgefit.recipe.solving, ridgefit.recipe.costing)
        for _, found in inspect.getmembers(room, inspect.isclass)
        if issubclass(found, Settings)
    },
    key=lambda found: found.__name__,
)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("plan bundled:llama --features state,mlp,mlp", "names 'mlp' twice; name each feature once"),
        ("bench prefill --features state,mlp,mlp", "names 'mlp' twice; name each feature once"),
        ("solve none --out x --features state,mlp,state", "names 'state' twice; name each feature once"),
        ("capture bundled:llama --split 6 --data bundled:calibration --out x --features state,mlp,mlp",
         "name 'mlp' twice: name each feature once"),
        ("solve none --out x --features auto,state", "auto chooses the features itself"),
        ("solve none --out x --features auto --rank 4", "write --candidates previous-1/rank=32"),
        ("solve none --out x --layers banana", "must look like all or first:5 or 16-20"),
        ("plan bundled:llama --layers 9-x", "must look like all or first:5 or 16-20"),
        ("generate bundled:llama --draft self --prompt x --prefill-chunk 4 --tail 8",
         "--tail, --prefill-chunk would do nothing with --draft, which fills no rows: leave them out"),
        ("generate bundled:llama --draft self --prompt x --rows special", "--rows would do nothing"),
    ],
)  # fmt: skip
def test_a_choice_that_cannot_be(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main([*arguments.split(), "--quiet"])
    said = capsys.readouterr()
    assert (status, said.out) == (2, ""), said.err
    assert words in said.err
    assert len(said.err.strip().splitlines()) == 1


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_field_of_a_certain_form_shows_what_it_looks_like(settings: type[Settings]) -> None:
    for name, field in settings.model_fields.items():
        if any(getattr(rule, "pattern", None) for rule in field.metadata):
            assert field.examples, f"{settings.__name__}.{name}: nobody can write 'its pattern'"
