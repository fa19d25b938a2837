"""What `plugin check` sees without running anything: the manifest, the README, which fixtures there are."""

from collections.abc import Iterator

from ductile.core.files import FileRefused, read_regular
from ductile.core.formats import strict_yaml
from ductile.devkit.checks.rules import Notebook
from ductile.devkit.fixtures.fixtures import Fixture
from ductile.plugin.manifest import FILE_NAME
from ductile.plugin.registry import Plugin

README = "README.md"
OF_THE_CORE = ("health", "init")
"""Commands that have nothing to tell but whether they went well."""


def look_at(plugin: Plugin, fixtures: list[Fixture], book: Notebook) -> None:
    """The notebook has everything that can be read off the plugin's files."""
    manifest = plugin.manifest
    warnings = [str(warning) for warning in manifest.warnings if warning.path != "version"]
    book.note("manifest.known_keys", "; ".join(warnings) or None)
    book.note("manifest.version", None if manifest.version.strip() else "there is no version")
    commands = manifest.commands.values()
    _say(book, "manifest.types", "without a type: ", _untyped(plugin))
    undescribed = ["the plugin"] if not manifest.description else []
    undescribed += [command.name for command in commands if not command.description]
    _say(book, "exemplary.described", "without a description: ", undescribed)
    _say(book, "exemplary.readme", f"{README} does not name: ", _unnamed(plugin))
    book.note("exemplary.health", None if "health" in manifest.commands else "there is no command health")
    silent = [one.name for one in commands if not (one.values.emit or one.output_schema or one.name in OF_THE_CORE)]
    _say(book, "exemplary.contract", "say nothing of what they emit: ", silent)
    tried = {fixture.command for fixture in fixtures}
    _say(book, "exemplary.fixtures", "without a fixture: ", [name for name in manifest.commands if name not in tried])


def _say(book: Notebook, rule: str, before: str, names: list[str]) -> None:
    book.note(rule, f"{before}{', '.join(names)}" if names else None)


def _untyped(plugin: Plugin) -> list[str]:
    """Commands whose type is a default: read as it is written, since the manifest no longer tells."""
    content = read_regular(plugin.folder / FILE_NAME, max_bytes=strict_yaml.MAX_BYTES, follow_symlinks=True).content
    commands = strict_yaml.load(content, source=FILE_NAME).data()["commands"]
    written = commands.items() if isinstance(commands, dict) else ((one["name"], one) for one in commands)
    return [name for name, command in written if not (command or {}).get("type")]


def _unnamed(plugin: Plugin) -> list[str]:
    try:
        text = read_regular(plugin.folder / README, max_bytes=strict_yaml.MAX_BYTES).content.decode("utf-8", "replace")
    except FileRefused:
        return ["anything: there is none"]
    return [word for word in _words(plugin) if word not in text]


def _words(plugin: Plugin) -> Iterator[str]:
    yield from plugin.manifest.commands
    yield from plugin.manifest.config_keys.required
    yield from plugin.manifest.config_keys.optional
