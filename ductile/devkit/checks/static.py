"""The static checks of `plugin check`: manifest, README and list of fixtures. Runs nothing."""

from collections.abc import Iterator

from ductile.core.files import FileRefused, read_regular
from ductile.core.formats import strict_yaml
from ductile.devkit.checks.rules import Findings
from ductile.devkit.fixtures.fixture_file import Fixture
from ductile.plugin.manifest import FILE_NAME
from ductile.plugin.registry import Plugin

README = "README.md"
CORE_COMMANDS = ("health", "init")
"""Commands that need not declare what they emit."""


def run_static_checks(plugin: Plugin, fixtures: list[Fixture], findings: Findings) -> None:
    """Add the results of all static rules to the findings."""
    manifest = plugin.manifest
    warnings = [str(warning) for warning in manifest.warnings if warning.path != "version"]
    findings.add("manifest.known_keys", "; ".join(warnings) or None)
    findings.add("manifest.version", None if manifest.version.strip() else "the version is missing")
    commands = manifest.commands.values()
    _add_names(findings, "manifest.types", "without a type: ", _untyped(plugin))
    undescribed = ["the plugin"] if not manifest.description else []
    undescribed += [command.name for command in commands if not command.description]
    _add_names(findings, "exemplary.described", "without a description: ", undescribed)
    _add_names(findings, "exemplary.readme", f"{README} does not mention: ", _undocumented(plugin))
    findings.add("exemplary.health", None if "health" in manifest.commands else "there is no `health` command")
    undeclared = [
        command.name
        for command in commands
        if not (command.values.emit or command.output_schema or command.name in CORE_COMMANDS)
    ]
    _add_names(findings, "exemplary.contract", "without declared events or output: ", undeclared)
    covered = {fixture.command for fixture in fixtures}
    _add_names(
        findings,
        "exemplary.fixtures",
        "without a fixture: ",
        [name for name in manifest.commands if name not in covered],
    )


def _add_names(findings: Findings, rule: str, prefix: str, names: list[str]) -> None:
    findings.add(rule, f"{prefix}{', '.join(names)}" if names else None)


def _untyped(plugin: Plugin) -> list[str]:
    """Return the commands without an explicit type. The parsed manifest has only defaults for them."""
    content = read_regular(plugin.folder / FILE_NAME, max_bytes=strict_yaml.MAX_BYTES, follow_symlinks=True).content
    commands = strict_yaml.load(content, source=FILE_NAME).data()["commands"]
    items = commands.items() if isinstance(commands, dict) else ((command["name"], command) for command in commands)
    return [name for name, command in items if not (command or {}).get("type")]


def _undocumented(plugin: Plugin) -> list[str]:
    try:
        text = read_regular(plugin.folder / README, max_bytes=strict_yaml.MAX_BYTES).content.decode("utf-8", "replace")
    except FileRefused:
        return ["any command (the file is missing)"]
    return [name for name in _names_to_document(plugin) if name not in text]


def _names_to_document(plugin: Plugin) -> Iterator[str]:
    yield from plugin.manifest.commands
    yield from plugin.manifest.config_keys.required
    yield from plugin.manifest.config_keys.optional
