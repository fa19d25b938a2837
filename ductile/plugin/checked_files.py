"""Check before each start whether a plugin's files are those that were loaded.

Costs one lstat call per file while nothing changed; the files are hashed again only after a change. The engine decides
whether a plugin whose files differ is blocked or only reported.
"""

from collections.abc import Mapping

from attrs import define, field, frozen

from ductile.core.files import FileRefused, read_regular
from ductile.core.formats.strict_yaml import MAX_BYTES
from ductile.plugin.fingerprint import FingerprintResult, PluginFingerprint, compute_fingerprint, relative_name
from ductile.plugin.registry import Plugin

CHANGED, NOT_SEALED = "plugin_changed", "plugin_not_sealed"
MAX_NAMES = 50


@frozen
class CheckedFiles:
    """The files of a plugin at one check, compared with those that were loaded."""

    fingerprint: str | None
    """One hash over all files; None if the manifest or the entrypoint cannot be read."""
    changed: Mapping[str, str | None] = field(factory=dict)
    """The hash of each file that differs; None if it is missing."""
    uncovered: tuple[str, ...] = ()
    """New entries of the plugin's folder that no seal covers, such as `__pycache__`."""

    @property
    def has_drifted(self) -> bool:
        return bool(self.changed or self.uncovered)

    @property
    def code(self) -> str:
        """The reason code of the drift."""
        return CHANGED if self.changed else NOT_SEALED

    @property
    def names(self) -> list[str]:
        """The names of the files that differ, at most MAX_NAMES of them."""
        return sorted({*self.changed, *self.uncovered})[:MAX_NAMES]

    @property
    def stored_changes(self) -> dict[str, str | None]:
        """The changed files that an attempt stores, at most MAX_NAMES of them."""
        return dict(list(self.changed.items())[:MAX_NAMES])

    @property
    def message(self) -> str:
        what = "files differ from the loaded ones" if self.changed else "the seal does not cover new files"
        return f"{what}: {', '.join(self.names)}"


@define(eq=False)
class FileChecker:
    """Checks the files of plugins. Caches the last result of each plugin."""

    _last: dict[str, "_Check"] = field(factory=dict)

    def check(self, plugin: Plugin) -> CheckedFiles:
        """Compare the files on disk with the loaded ones."""
        last = self._last.get(plugin.name)
        if last is None or last.plugin is not plugin:
            last = _compare(plugin, plugin.loaded)
        if not (last.result.state.is_settled and last.result.state.is_current()):
            try:
                last = _compare(plugin, plugin.hash_files())
            except FileRefused as refusal:
                return CheckedFiles(None, {relative_name(plugin.folder, refusal.path): None})
        self._last[plugin.name] = last
        return last.files


@frozen
class _Check:
    """The last hashes of a plugin and what they mean."""

    plugin: Plugin
    result: FingerprintResult
    files: CheckedFiles


def _compare(plugin: Plugin, result: FingerprintResult) -> _Check:
    changed = compare_files(plugin.fingerprint, result.fingerprint)
    new = tuple(name for name in result.uncovered if name not in plugin.loaded.uncovered)
    return _Check(plugin, result, CheckedFiles(result.fingerprint.digest, changed, new))


def compare_files(loaded: PluginFingerprint, found: PluginFingerprint) -> dict[str, str | None]:
    """Return the found hash of each file that differs; None if it is missing."""
    before, now = loaded.hashes, found.hashes
    differing = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    return {name: now.get(name) for name in differing}


def changes_on_disk(loaded: PluginFingerprint) -> dict[str, str | None]:
    """Hash the files where the plugin was loaded, and compare."""
    try:
        manifest = read_regular(loaded.manifest_path, max_bytes=MAX_BYTES, follow_symlinks=True)
        found = compute_fingerprint(loaded.name, manifest, loaded.entrypoint_path, follow_symlinks=True)
    except FileRefused as refusal:
        return {relative_name(loaded.manifest_path.parent, refusal.path): None}
    return compare_files(loaded, found.fingerprint)
