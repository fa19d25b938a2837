"""The shape of the package: which module may import which, how large a folder may be, and unique class names."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
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
    "exchange": 5,
    "web": 6,
    "relay": 7,
    "devkit": 7,
    "ops": 8,
    "runtime": 9,
    "cli": 10,
    "__main__": 11,
}
"""Packages and modules directly below `ductile`. Imports lead to lower layers only."""
FORBIDDEN = {
    ("engine", "web"): "both use the ledger and the hub; the runtime connects them",
    ("web", "engine"): "both use the ledger and the hub; the runtime connects them",
    ("ledger", "config"): "the ledger knows values, not the configuration",
    ("ledger", "plugin"): "the ledger knows values, not plugins",
    ("config", "ledger"): "a configuration is read before any ledger is open",
    ("pipeline", "plugin"): "the workflow language is pure",
    ("plugin", "pipeline"): "plugins do not depend on workflows",
}
MAX_ENTRIES = 14
"""Entries of one folder, without `__init__.py`. The top level also has `runtime.py`, `__main__.py` and `py.typed`."""
MAX_DOCSTRING_LINES = 6
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))


@cache
def parse_modules() -> dict[str, ast.Module]:
    """Parse every module, once per test run and only if a test of this file runs."""
    return {module: ast.parse((PACKAGE / module).read_text()) for module in MODULES}


def layer_name(module: str) -> str:
    """Return the layer of a dotted module name: `ductile.ledger.queue.claim` → `ledger`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def imports_of(module: str) -> Iterator[str]:
    """Yield every `ductile.…` name that a module imports, anywhere in it."""
    for node in ast.walk(parse_modules()[module]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "ductile")
        elif isinstance(node, ast.ImportFrom) and node.level:
            pytest.fail(f"{module}: relative import; write the full name")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ductile":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_imports_lead_to_lower_layers() -> None:
    wrong = []
    for module in MODULES:
        own = module.removesuffix(".py").split("/")[0]
        for imported in imports_of(module):
            other = layer_name(imported)
            if other == own or other not in LAYERS:
                continue
            if (own, other) in FORBIDDEN:
                wrong.append(f"{module} imports {imported}: {FORBIDDEN[own, other]}")
            elif LAYERS.get(own, 0) <= LAYERS[other]:
                wrong.append(f"{module} (layer {LAYERS.get(own, 0)}) imports {imported} (layer {LAYERS[other]})")
    assert wrong == []


def second_level(dotted: str) -> str:
    """Return the package and the folder or module directly below it: `ductile.ledger.queue.claim` → `ledger.queue`."""
    path = f"{dotted.replace('.', '/').removeprefix('ductile/')}"
    known = {f"{path}.py", f"{path}/__init__.py"} & parse_modules().keys()
    parts = dotted.removesuffix(".__init__").split(".")[1:]
    return ".".join((parts if known else parts[:-1])[:2])  # the last part can be a name in a module


def imports_within(package: str) -> dict[str, dict[str, set[str]]]:
    """Return the imports between the folders and modules directly below a package: importer → imported → modules."""
    edges: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for module in (module for module in MODULES if module.startswith(f"{package}/")):
        own = second_level(f"ductile.{module.removesuffix('.py').replace('/', '.')}")
        for imported in imports_of(module):
            other = second_level(imported)
            if other != own and layer_name(imported) == package:
                edges[own][other].add(module)
    return edges


def reachable(edges: dict[str, dict[str, set[str]]], start: str) -> set[str]:
    """Return every node that imports lead to from `start`."""
    found, remaining = {start}, [start]
    while remaining:
        new = edges.get(remaining.pop(), {}).keys() - found
        found |= new
        remaining.extend(new)
    return found


def test_folders_of_a_package_do_not_import_each_other_in_a_cycle() -> None:
    """The folders of a package have an order too, and the lower ones can be read without the higher ones."""
    wrong = []
    for package in sorted(LAYERS):
        edges = imports_within(package)
        for own, others in edges.items():
            for other in others:
                if own in reachable(edges, other):
                    wrong.append(f"{own} → {other}: {', '.join(sorted(others[other]))}")
    assert not wrong, "\n".join(["imports in a cycle:", *wrong])


def test_every_top_level_entry_has_a_layer() -> None:
    entries = {path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"}
    assert sorted(entries - LAYERS.keys() - {"__init__", "__pycache__", "bundled"}) == []


def test_no_folder_has_too_many_entries() -> None:
    """A folder is a table of contents: a reader takes it in at once."""
    sizes = {}
    for folder in {PACKAGE / module for module in MODULES if module.endswith("__init__.py")}:
        names = {path.name for path in folder.parent.iterdir()} - {"__init__.py", "__pycache__"}
        if folder.parent == PACKAGE:
            names -= {"runtime.py", "__main__.py", "py.typed", "bundled"}
        sizes[folder.parent.relative_to(PACKAGE).as_posix()] = len(names)
    assert {folder: size for folder, size in sizes.items() if size > MAX_ENTRIES} == {}


def test_no_two_classes_have_the_same_name() -> None:
    places = defaultdict(list)
    for module, tree in parse_modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module)
    assert {name: modules for name, modules in places.items() if len(modules) > 1} == {}


def test_only_the_ledger_uses_sqlite() -> None:
    """Plain SQL is in `ledger/` only."""
    users = [module for module in MODULES if "import sqlite3" in (PACKAGE / module).read_text()]
    assert [module for module in users if not module.startswith("ledger/")] == []


def test_every_module_has_a_short_docstring() -> None:
    """It says what the module owns and what it does not know."""
    wrong = []
    for module, tree in parse_modules().items():
        lines = (ast.get_docstring(tree) or "").splitlines()
        if tree.body and not 1 <= len(lines) <= MAX_DOCSTRING_LINES:
            wrong.append(f"{module}: {len(lines)} lines")
    assert wrong == []
