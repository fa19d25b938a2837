"""`plugin check`: does a plugin do what a well-behaved plugin does? One report, rule by rule, level by level."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from attrs import frozen

from ductile.core.errors import DuctileError, PluginRejected
from ductile.devkit.checks.dynamic import try_out
from ductile.devkit.checks.rules import LEVELS, RULES, Judgement, Notebook, level_reached
from ductile.devkit.checks.static import look_at
from ductile.devkit.fixtures.fixtures import Fixture, fixture_files, read_fixture
from ductile.devkit.local.harness import bench_of_folder
from ductile.plugin.registry import Plugin

__all__ = ["LEVELS", "Conformance", "conformance_of"]


@frozen(kw_only=True)
class Conformance:
    """The report. `level` is the highest that holds; None if not even the first does."""

    plugin: str
    folder: Path
    judgements: tuple[Judgement, ...]

    @property
    def level(self) -> str | None:
        return level_reached(self.judgements)

    def holds(self, demanded: str) -> bool:
        """True if no rule of this level, or of one below it, is broken."""
        return self.level is not None and LEVELS.index(self.level) >= LEVELS.index(demanded)


def conformance_of(
    folder: Path,
    config: Mapping[str, Any],
    *,
    runs: bool = True,
    run_writes: bool = False,
    deadline: timedelta | None = None,
) -> Conformance:
    """The plugin in `folder` was read and tried out. This process must be hardened; only safe requests were sent.

    `config` is for requests that no fixture makes. Without `runs` the plugin is only read.
    """
    book = Notebook()
    try:
        plugin = bench_of_folder(folder, {}, folder).plugin
    except PluginRejected as rejected:
        book.note("manifest.accepted", str(rejected))
        return Conformance(plugin=folder.name, folder=folder, judgements=tuple(book.judgements()))
    book.note("manifest.accepted", None)
    fixtures = _fixtures(plugin, book)
    look_at(plugin, fixtures, book)
    if runs:
        try_out(plugin, fixtures, config, book, run_writes=run_writes, deadline=deadline)
    return Conformance(plugin=plugin.name, folder=plugin.folder, judgements=tuple(book.judgements()))


def _fixtures(plugin: Plugin, book: Notebook) -> list[Fixture]:
    fixtures = []
    for path in fixture_files(plugin):
        try:
            fixtures.append(read_fixture(path))
        except DuctileError as error:
            book.note("robust.fixtures", str(error))
    return fixtures


def told(report: Conformance, demanded: str) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "plugin": report.plugin,
        "path": str(report.folder),
        "level": report.level,
        "demanded": demanded,
        "holds": report.holds(demanded),
        "rules": [
            {
                "rule": one.rule,
                "level": one.level,
                "result": one.result,
                "reason": one.reason,
                "todo": RULES[one.rule].todo if one.result == "fail" else None,
            }
            for one in report.judgements
        ],
    }
