"""The seal (`.checksums`): hashes of the approved files and plugins, and the differences from the current ones.

Contains BLAKE3 hashes of every loaded file and every configured plugin, by absolute path. Decides which differences
prevent a start. `files.sources` reads the files.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from ductile import __version__
from ductile.config.files.sources import SourceFile, Tier
from ductile.core import files
from ductile.core.clock import to_text
from ductile.core.errors import Complaint, Mark, Unreadable
from ductile.core.formats import strict_yaml
from ductile.plugin.registry import PluginFingerprint

SEAL_FILE = ".checksums"
SEAL_VERSION = 2
INTEGRITY = "integrity"
UNCOVERED_HINT = "remove them, or move them out of the plugin's folder"
LOCK_HINT = "if this is intended, run `ductile config lock`"


@frozen
class SealedPlugin:
    """A configured plugin as sealed."""

    fingerprint: PluginFingerprint
    enabled: bool
    uses: str | None = None


@frozen
class Seal:
    """The approved files and plugins. Seals of the original implementation list fewer and have `is_complete=False`."""

    hashes: Mapping[str, str] = field(factory=dict)
    plugins: Mapping[str, SealedPlugin] = field(factory=dict)
    generated_at: str = ""
    sealed_by: str | None = None
    """The actor; None in a seal of the original or of an older version."""
    is_complete: bool = True


class DriftSeverity(StrEnum):
    """Effect of a difference on a start.

    `high` always prevents it, `changed` and `unsealed` depending on `service.admission`, `noted` never.
    """

    HIGH = "high"
    CHANGED = "changed"
    UNSEALED = "unsealed"
    NOTED = "noted"


@frozen
class Drift:
    """A difference between the seal and the files on disk."""

    complaint: Complaint
    severity: DriftSeverity


def read_seal(path: Path) -> Seal | None:
    """Read the seal at `path`; None if there is none. Raises Unreadable if it is damaged."""
    try:
        content = files.read_regular(path, max_bytes=strict_yaml.MAX_BYTES).content
    except files.FileMissing:
        return None
    root = strict_yaml.load(content, source=str(path))
    data = root.data()
    if not isinstance(data, dict) or data.get("version") != SEAL_VERSION or not isinstance(data.get("hashes"), dict):
        raise Unreadable(
            f"is not a version {SEAL_VERSION} seal; create a new one with `ductile config lock`", root.mark
        )
    try:
        plugins = {entry["name"]: _sealed_plugin(entry) for entry in data.get("plugin_fingerprints") or ()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unreadable(
            "has a damaged plugin_fingerprints list; create a new seal with `ductile config lock`", root.mark
        ) from error
    return Seal(
        data["hashes"],
        plugins,
        str(data.get("generated_at", "")),
        sealed_by=str(data["sealed_by"]) if data.get("sealed_by") else None,
        is_complete="generated_by" in data,
    )


def render_seal(seal: Seal) -> bytes:
    """Render the seal as YAML."""
    content = {
        "version": SEAL_VERSION,
        "generated_at": seal.generated_at,
        "generated_by": f"ductile {__version__}",
        **({"sealed_by": seal.sealed_by} if seal.sealed_by else {}),
        "hashes": dict(sorted(seal.hashes.items())),
        "plugin_fingerprints": [_entry(plugin) for _, plugin in sorted(seal.plugins.items())],
    }
    return strict_yaml.dump(content).encode()


def build_seal(
    sources: Iterable[SourceFile], plugins: Mapping[str, SealedPlugin], now: datetime, *, actor: str | None = None
) -> Seal:
    """Build the seal of these files and plugins."""
    hashes = {str(source.path): source.digest for source in sources}
    return Seal(hashes, plugins, to_text(now), sealed_by=actor)


def find_file_drift(sources: Iterable[SourceFile], seal: Seal | None) -> list[Drift]:
    """Return every loaded file that is missing from the seal or has another hash."""
    drifts = []
    for source in sources:
        sealed = seal.hashes.get(str(source.path)) if seal else None
        if sealed == source.digest:
            continue
        problem = "has changed since it was sealed" if sealed else "is not in the seal"
        complaint = Complaint(f"{problem}; {LOCK_HINT}", mark=Mark(str(source.path), 1), category=INTEGRITY)
        severity = DriftSeverity.CHANGED if sealed else DriftSeverity.UNSEALED
        drifts.append(Drift(complaint, DriftSeverity.HIGH if source.tier is Tier.HIGH else severity))
    return drifts


def find_removed_files(sources: Iterable[SourceFile], seal: Seal | None) -> list[Drift]:
    """Return every sealed file that is no longer loaded."""
    if seal is None:
        return []
    # The original implementation also seals files that are not included.
    severity = DriftSeverity.CHANGED if seal.is_complete else DriftSeverity.NOTED
    gone = sorted(seal.hashes.keys() - {str(source.path) for source in sources})
    problem = f"is sealed but no longer loaded; {LOCK_HINT}"
    return [Drift(Complaint(problem, mark=Mark(path, 1), category=INTEGRITY), severity) for path in gone]


def find_plugin_drift(plugins: Mapping[str, SealedPlugin], seal: Seal) -> list[Drift]:
    """Return every configured plugin that differs from the seal, and every sealed plugin that is gone."""
    drifts = []
    for name, now in plugins.items():
        sealed = seal.plugins.get(name)
        if sealed is None:
            drifts.append(_plugin_drift(name, "is not in the seal", DriftSeverity.UNSEALED, now))
            continue
        found = _changes(sealed, now, has_files=seal.is_complete)
        for change in found:
            drifts.append(_plugin_drift(name, change, DriftSeverity.CHANGED, now))
        if not found and sealed.fingerprint.manifest_resolved_path != now.fingerprint.manifest_resolved_path:
            moved = f"has moved from {sealed.fingerprint.manifest_resolved_path}, with the same content"
            drifts.append(_plugin_drift(name, moved, DriftSeverity.NOTED, now))
    for name in sorted(seal.plugins.keys() - plugins.keys()):
        drifts.append(_plugin_drift(name, "is sealed but no longer configured or found", DriftSeverity.NOTED, None))
    return drifts


def find_uncovered(plugins: Mapping[str, SealedPlugin], uncovered: Mapping[str, Sequence[str]]) -> list[Drift]:
    """Return every configured plugin whose folder has entries that no hash covers, such as caches and hidden files."""
    drifts = []
    for name, now in plugins.items():
        if entries := uncovered.get(name):
            listed = f"{', '.join(entries[:5])}{' …' if len(entries) > 5 else ''}"
            message = f"plugin {name} has entries that the seal does not cover: {listed}; {UNCOVERED_HINT}"
            mark = Mark(str(now.fingerprint.manifest_path), 1)
            severity = DriftSeverity.UNSEALED if now.enabled else DriftSeverity.NOTED
            drifts.append(Drift(Complaint(message, f"plugins.{name}", mark, INTEGRITY), severity))
    return drifts


def blocking_complaints(
    drifts: Iterable[Drift], *, changed: bool, unsealed: bool, seal: Seal | None
) -> list[Complaint]:
    """Return the complaints that prevent a start if `changed` or `unsealed` differences are not accepted."""
    refusing = {DriftSeverity.HIGH}
    if changed:
        refusing.add(DriftSeverity.CHANGED)
    if unsealed and (seal is None or seal.is_complete):
        refusing.add(DriftSeverity.UNSEALED)
    return [drift.complaint for drift in drifts if drift.severity in refusing]


def relocate_seal(seal: Seal, old: Path, new: Path) -> Seal:
    """Return the seal for files that were moved from `old` to `new`."""

    def relocate(path: Path) -> Path:
        return new / path.relative_to(old) if path.is_relative_to(old) else path

    def plugin(sealed: SealedPlugin) -> SealedPlugin:
        known = sealed.fingerprint
        fingerprint = evolve(
            known,
            manifest_path=relocate(known.manifest_path),
            manifest_resolved_path=relocate(known.manifest_resolved_path),
            entrypoint_path=relocate(known.entrypoint_path),
            entrypoint_resolved_path=relocate(known.entrypoint_resolved_path),
        )
        return evolve(sealed, fingerprint=fingerprint)

    hashes = {str(relocate(Path(path))): digest for path, digest in seal.hashes.items()}
    return evolve(seal, hashes=hashes, plugins={name: plugin(sealed) for name, sealed in seal.plugins.items()})


def has_same_approvals(before: Seal, after: Seal) -> bool:
    """True if both seals approve the same files and plugins."""
    return (before.hashes, before.plugins) == (after.hashes, after.plugins)


def changes(before: Seal | None, after: Seal) -> list[str]:
    """Return what sealing would approve, one line each: `+` added, `-` removed, `~` changed.

    Enabling or disabling a plugin does not change its files; the configuration file is listed instead.
    """
    old = before or Seal()
    lines = [
        _change(path, old.hashes.get(path), after.hashes.get(path)) for path in old.hashes.keys() | after.hashes.keys()
    ]
    for name in old.plugins.keys() | after.plugins.keys():
        lines.append(
            _change(f"plugin {name}", _fingerprint(old.plugins.get(name)), _fingerprint(after.plugins.get(name)))
        )
    return sorted((line for line in lines if line), key=lambda line: line[2:])


def _change(what: str, before: object, after: object) -> str:
    if before == after:
        return ""
    sign = "+" if before is None else "-" if after is None else "~"
    return f"{sign} {what}"


def _changes(sealed: SealedPlugin, now: SealedPlugin, *, has_files: bool) -> list[str]:
    """Describe the differences of a plugin. With `has_files`, the seal lists all other files of the plugin."""
    old, new, changed = sealed.fingerprint, now.fingerprint, []
    if old.manifest_hash != new.manifest_hash:
        changed.append("has a different manifest than sealed")
    if old.entrypoint_hash != new.entrypoint_hash:
        changed.append("has a different entrypoint than sealed")
    # The original implementation does not seal the other files of a plugin.
    if (has_files or old.files) and old.files != new.files:
        differing = sorted(
            name for name in old.files.keys() | new.files.keys() if old.files.get(name) != new.files.get(name)
        )
        changed.append(
            f"has different files than sealed: {', '.join(differing[:5])}{' …' if len(differing) > 5 else ''}"
        )
    return changed


def _plugin_drift(name: str, problem: str, severity: DriftSeverity, now: SealedPlugin | None) -> Drift:
    mark = Mark(str(now.fingerprint.manifest_path), 1) if now else None
    complaint = Complaint(f"plugin {name} {problem}; {LOCK_HINT}", f"plugins.{name}", mark, INTEGRITY)
    return Drift(complaint, severity if now is None or now.enabled else DriftSeverity.NOTED)


def _entry(plugin: SealedPlugin) -> dict[str, Any]:
    fingerprint = plugin.fingerprint
    return {
        "name": fingerprint.name,
        "enabled": plugin.enabled,
        **({"uses": plugin.uses} if plugin.uses else {}),
        "manifest_path": str(fingerprint.manifest_path),
        "manifest_resolved_path": str(fingerprint.manifest_resolved_path),
        "manifest_hash": fingerprint.manifest_hash,
        "entrypoint_path": str(fingerprint.entrypoint_path),
        "entrypoint_resolved_path": str(fingerprint.entrypoint_resolved_path),
        "entrypoint_hash": fingerprint.entrypoint_hash,
        "files": dict(sorted(fingerprint.files.items())),
    }


def _fingerprint(plugin: SealedPlugin | None) -> PluginFingerprint | None:
    return plugin.fingerprint if plugin else None


def _sealed_plugin(entry: Mapping[str, Any]) -> SealedPlugin:
    fingerprint = PluginFingerprint(
        name=str(entry["name"]),
        manifest_path=Path(entry["manifest_path"]),
        manifest_resolved_path=Path(entry.get("manifest_resolved_path") or entry["manifest_path"]),
        manifest_hash=str(entry["manifest_hash"]),
        entrypoint_path=Path(entry["entrypoint_path"]),
        entrypoint_resolved_path=Path(entry.get("entrypoint_resolved_path") or entry["entrypoint_path"]),
        entrypoint_hash=str(entry["entrypoint_hash"]),
        files=dict(entry.get("files") or {}),
    )
    return SealedPlugin(fingerprint, bool(entry.get("enabled", True)), entry.get("uses"))
