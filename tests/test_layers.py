"""The map of the house: who may import whom. Stairs only lead down."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ductile

PACKAGE = Path(ductile.__file__).parent
LAYERS = {
    "core": 0,
    "pipeline": 1,
    "plugin": 1,
    "calendar": 1,
    "config": 2,
    "ledger": 2,
    "explain": 3,
    "engine": 4,
    "web": 4,
    "relay": 5,
    "runtime": 6,
    "devkit": 6,
    "ops": 7,
    "cli": 8,
    "__main__": 9,
}
"""Packages and modules directly below `ductile`."""

NEVER = {
    ("engine", "web"): "both talk to the ledger and the hub; the runtime introduces them",
    ("web", "engine"): "both talk to the ledger and the hub; the runtime introduces them",
    ("ledger", "config"): "the ledger knows values, not what the operator wrote",
    ("ledger", "plugin"): "the ledger knows values, not plugins",
    ("config", "ledger"): "a configuration is read before any ledger is open",
    ("pipeline", "plugin"): "the workflow language is pure",
    ("plugin", "pipeline"): "plugins know nothing of workflows",
}
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


def room_of(module: str) -> str:
    """`ductile.ledger.queue.enqueue` → `ledger`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports_of(path: Path) -> Iterator[str]:
    """Every `ductile.…` module that `path` imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "ductile")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ductile":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            pytest.fail(f"{path}: relative import; write the full name")


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_its_own_room_and_lower_layers(module: str) -> None:
    """Imports point down the house, never up and never across where two rooms must not meet."""
    parts = module.removesuffix(".py").split("/")
    room = parts[0]
    for imported in imports_of(PACKAGE / module):
        target = room_of(imported)
        if target == room or target not in LAYERS:
            continue
        assert (room, target) not in NEVER, f"{module} imports {imported}: {NEVER[room, target]}"
        assert LAYERS.get(room, 0) > LAYERS[target], f"{module} (layer {LAYERS.get(room, 0)}) imports {imported}"


def test_only_the_ledger_speaks_sql() -> None:
    """Plain SQL lives in `ledger/` only."""
    speakers = [
        module
        for module in MODULES
        if not module.startswith("ledger/") and "import sqlite3" in (PACKAGE / module).read_text()
    ]
    assert speakers == []


def test_every_module_says_what_its_room_owns() -> None:
    """A module begins with a docstring of at most six lines of text."""
    for module in MODULES:
        if not (PACKAGE / module).read_text().strip():
            continue
        docstring = ast.get_docstring(ast.parse((PACKAGE / module).read_text()))
        assert docstring, f"{module} has no docstring"
        assert len(docstring.splitlines()) <= 6, f"{module} tells more than its room's purpose"
