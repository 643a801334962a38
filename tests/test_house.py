"""The house rules that a machine can hold: which room may import which."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "ridgefit"

GROUND = {"models", "maps", "moments", "corpus", "cost", "recipe"}
FOUNDATION = {"errors", "files", "tokens", "versions", ""}
MIDDLE = {"runtime", "capture", "ridge", "hub"}
UPPER = {"calibrate", "evaluate"}
ALLOWED: dict[str, set[str]] = {
    **{room: set() for room in GROUND},
    "features": GROUND,
    "runtime": {"models", "features", "maps"},
    "capture": {"features"} | GROUND,
    "ridge": {"features"} | GROUND,
    "hub": {"features"} | GROUND,
    "calibrate": MIDDLE | {"features"} | GROUND,
    "evaluate": MIDDLE | {"features"} | GROUND,
    "pipeline": UPPER | MIDDLE | {"features"} | GROUND,
    "__main__": {"cli"},
    "cli": {"pipeline"} | UPPER | MIDDLE | {"features"} | GROUND,
}
MODULES = sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return "" if parts[0] == "__init__" else parts[0]


def imported_rooms(path: Path) -> set[str]:
    """Rooms that a module imports at any depth, type-checking blocks left out."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            if node.module == "ridgefit":
                names |= {f"ridgefit.{alias.name}" for alias in node.names}
    return {(name + ".").split(".")[1] for name in names if name.split(".")[0] == "ridgefit"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_run_one_way(path: Path) -> None:
    room = room_of(path)
    foreign = imported_rooms(path) - {room} - FOUNDATION
    if room in FOUNDATION:
        assert not foreign, f"the foundation imports {sorted(foreign)}"
    else:
        assert room in ALLOWED, f"room {room!r} is not in the house; add it to the design and to this test"
        assert foreign <= ALLOWED[room], f"{room} must not import {sorted(foreign - ALLOWED[room])}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_modules_keep_one_idea(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 400


def test_the_arrows_can_fail(tmp_path: Path) -> None:
    """The import scan sees what it must: nested imports, `from ridgefit import`, plain `import`."""
    module = tmp_path / "module.py"
    module.write_text(
        "import ridgefit.cli.app\nfrom ridgefit import capture\n"
        "def f():\n    from ridgefit.evaluate.nll import x\n    return x\n"
    )
    assert imported_rooms(module) >= {"cli", "capture", "evaluate"}


def test_no_test_imports_a_conftest() -> None:
    """Rooms have a conftest each, and the name means the one that was collected last."""
    for path in Path(__file__).parent.rglob("*.py"):
        found = {
            node.module if isinstance(node, ast.ImportFrom) else alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert "conftest" not in found, f"{path} imports a conftest"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_what_must_be_overridden_is_abstract(path: Path) -> None:
    """A method that only raises is found missing when it is called, an abstract one when it is made."""
    names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
    assert "NotImplementedError" not in names
