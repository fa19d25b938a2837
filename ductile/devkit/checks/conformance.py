"""`plugin check`: check a plugin against the conformance rules, and report the results by rule and level."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from attrs import frozen

from ductile.core.errors import DuctileError, PluginRejected
from ductile.devkit.checks.dynamic import run_dynamic_checks
from ductile.devkit.checks.rules import LEVELS, RULES, Findings, RuleResult, level_reached
from ductile.devkit.checks.static import run_static_checks
from ductile.devkit.fixtures.fixture_file import Fixture, fixture_files, read_fixture
from ductile.devkit.local.harness import harness_for_folder
from ductile.plugin.registry import Plugin

__all__ = ["LEVELS", "Conformance", "check_conformance"]


@frozen(kw_only=True)
class Conformance:
    """The report of `plugin check`."""

    plugin: str
    folder: Path
    rule_results: tuple[RuleResult, ...]

    @property
    def level(self) -> str | None:
        """The highest level that passes; None if the first one fails."""
        return level_reached(self.rule_results)

    def holds(self, demanded: str) -> bool:
        """Return whether the plugin passes this level and all levels below it."""
        return self.level is not None and LEVELS.index(self.level) >= LEVELS.index(demanded)


def check_conformance(
    folder: Path,
    config: Mapping[str, Any],
    *,
    runs: bool = True,
    run_writes: bool = False,
    deadline: timedelta | None = None,
) -> Conformance:
    """Check the plugin in `folder`. Sends only safe requests. This process must be hardened.

    `config` is for requests without a fixture. Without `runs`, only the static checks are done.
    """
    findings = Findings()
    try:
        plugin = harness_for_folder(folder, {}, folder).plugin
    except PluginRejected as rejected:
        findings.add("manifest.accepted", str(rejected))
        return Conformance(plugin=folder.name, folder=folder, rule_results=tuple(findings.results()))
    findings.add("manifest.accepted", None)
    fixtures = _fixtures(plugin, findings)
    run_static_checks(plugin, fixtures, findings)
    if runs:
        run_dynamic_checks(plugin, fixtures, config, findings, run_writes=run_writes, deadline=deadline)
    return Conformance(plugin=plugin.name, folder=plugin.folder, rule_results=tuple(findings.results()))


def _fixtures(plugin: Plugin, findings: Findings) -> list[Fixture]:
    fixtures = []
    for path in fixture_files(plugin):
        try:
            fixtures.append(read_fixture(path))
        except DuctileError as error:
            findings.add("robust.fixtures", str(error))
    return fixtures


def conformance_data(report: Conformance, demanded: str) -> dict[str, Any]:
    """Return the report as plain data."""
    return {
        "plugin": report.plugin,
        "path": str(report.folder),
        "level": report.level,
        "demanded": demanded,
        "holds": report.holds(demanded),
        "rules": [
            {
                "rule": rule.rule,
                "level": rule.level,
                "result": rule.result,
                "reason": rule.reason,
                "todo": RULES[rule.rule].todo if rule.result == "fail" else None,
            }
            for rule in report.rule_results
        ],
    }
