"""Checking and testing a plugin at the command line: which one is meant, and the report as plain data."""

import tempfile
from pathlib import Path
from typing import Any

from ductile.cli.plugin.local import config_given, read_span
from ductile.core.errors import DuctileError, NotFound
from ductile.devkit.checks.conformance import LEVELS, conformance_of, told
from ductile.devkit.fixtures.fixtures import fixture_files, read_fixture
from ductile.devkit.fixtures.runner import play
from ductile.devkit.local.harness import bench_for, names_a_folder
from ductile.engine.process.procfs import harden_self
from ductile.plugin.registry import Plugin


def checked(
    target: str,
    explicit: Path | None,
    level: str,
    *,
    run_writes: bool,
    plugin_config: str | None,
    deadline: str | None,
) -> dict[str, Any]:
    """What `plugin check` found."""
    given, span = config_given(plugin_config), read_span(deadline, "--deadline")
    if names_a_folder(target):
        if not Path(target).is_dir():
            raise NotFound(f"there is no folder {target}")
        folder, config = Path(target).resolve(), given
    else:
        with tempfile.TemporaryDirectory() as nowhere:
            bench = bench_for(target, explicit, given, Path(nowhere))
        folder, config = bench.plugin.folder, dict(bench.config)
    harden_self()
    runs = level != LEVELS[0]
    return told(conformance_of(folder, config, runs=runs, run_writes=run_writes, deadline=span), level)


def tested(target: str, explicit: Path | None, *, plugin_config: str | None) -> dict[str, Any]:
    """What became of every fixture."""
    given = config_given(plugin_config)
    with tempfile.TemporaryDirectory() as nowhere:
        plugin = bench_for(target, explicit, None, Path(nowhere)).plugin
    harden_self()
    fixtures = [_played(plugin, path, given) for path in fixture_files(plugin)]
    return {"plugin": plugin.name, "holds": all(one["holds"] for one in fixtures), "fixtures": fixtures}


def _played(plugin: Plugin, path: Path, given: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {"file": path.name, "name": path.stem, "stderr": "", "differences": []}
    try:
        fixture = read_fixture(path)
        played = play(plugin, fixture, plugin_config=given)
    except DuctileError as error:
        return {**content, "holds": False, "differences": [str(error)]}
    return {
        **content,
        "name": fixture.name,
        "holds": not played.differences,
        "differences": list(played.differences),
        "verdict": played.shown["verdict"],
        "error": played.shown["error"],
        "response": played.shown["response"],
        "stderr": played.shown["stderr"],
    }
