"""The seal (`.checksums`): which bytes the operator approved, and what differs from them now.

BLAKE3 hashes of every file that is loaded and of every configured plugin, under absolute paths. Says what drifted and
whether that refuses a start; reading the files is `sources`' work.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from ductile import __version__
from ductile.config.load.sources import SourceFile, Tier
from ductile.core import files
from ductile.core.clock import to_text
from ductile.core.errors import Complaint, Mark, Unreadable
from ductile.core.formats import strict_yaml
from ductile.plugin.registry import PluginFingerprint

SEAL_FILE = ".checksums"
VERSION = 2
CATEGORY = "integrity"
LOCK_HINT = "if it is intended, seal it with `ductile config lock`"


@frozen
class SealedPlugin:
    """A configured plugin as it was sealed."""

    fingerprint: PluginFingerprint
    enabled: bool
    uses: str | None = None


@frozen
class Seal:
    """What was approved. One that the original wrote names fewer things: what it lacks was never asked for."""

    hashes: Mapping[str, str] = field(factory=dict)
    plugins: Mapping[str, SealedPlugin] = field(factory=dict)
    generated_at: str = ""
    is_complete: bool = True


class Weight(StrEnum):
    """What a difference does to a start: high-tier files refuse it always, the rest as `service.admission` asks."""

    HIGH = "high"
    CHANGED = "changed"
    UNSEALED = "unsealed"
    NOTED = "noted"


@frozen
class Drift:
    """A difference between the seal and the disk."""

    complaint: Complaint
    weight: Weight


def read_seal(path: Path) -> Seal | None:
    """The seal at `path`, or None if there is none. A seal that cannot be read is an error: it may be forged."""
    try:
        content = files.read_regular(path, max_bytes=strict_yaml.MAX_BYTES).content
    except files.FileMissing:
        return None
    root = strict_yaml.load(content, source=str(path))
    data = root.data()
    if not isinstance(data, dict) or data.get("version") != VERSION or not isinstance(data.get("hashes"), dict):
        raise Unreadable(f"is not a version {VERSION} seal; make a new one with `ductile config lock`", root.mark)
    try:
        plugins = {entry["name"]: _sealed_plugin(entry) for entry in data.get("plugin_fingerprints") or ()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unreadable(
            "has a damaged plugin_fingerprints list; make it anew with `ductile config lock`", root.mark
        ) from error
    return Seal(data["hashes"], plugins, str(data.get("generated_at", "")), is_complete="generated_by" in data)


def render(seal: Seal) -> bytes:
    """The seal as it is written."""
    content = {
        "version": VERSION,
        "generated_at": seal.generated_at,
        "generated_by": f"ductile {__version__}",
        "hashes": dict(sorted(seal.hashes.items())),
        "plugin_fingerprints": [_entry(plugin) for _, plugin in sorted(seal.plugins.items())],
    }
    return strict_yaml.dump(content).encode()


def make_seal(sources: Iterable[SourceFile], plugins: Mapping[str, SealedPlugin], now: datetime) -> Seal:
    hashes = {str(source.path): source.digest for source in sources}
    return Seal(hashes, plugins, to_text(now))


def drift_of_files(sources: Iterable[SourceFile], seal: Seal | None) -> list[Drift]:
    """Every loaded file that the seal does not have, or has with another hash."""
    drifts = []
    for source in sources:
        sealed = seal.hashes.get(str(source.path)) if seal else None
        if sealed == source.digest:
            continue
        problem = "has changed since it was sealed" if sealed else "is not in the seal"
        complaint = Complaint(f"{problem}; {LOCK_HINT}", mark=Mark(str(source.path), 1), category=CATEGORY)
        told = Weight.CHANGED if sealed else Weight.UNSEALED
        drifts.append(Drift(complaint, Weight.HIGH if source.tier is Tier.HIGH else told))
    return drifts


def drift_of_gone_files(sources: Iterable[SourceFile], seal: Seal | None) -> list[Drift]:
    """Every sealed file that is no longer part of the configuration: taking one away changes it too."""
    if seal is None:
        return []
    # The original also sealed files that nothing includes.
    weight = Weight.CHANGED if seal.is_complete else Weight.NOTED
    gone = sorted(seal.hashes.keys() - {str(source.path) for source in sources})
    problem = f"is sealed but no longer loaded; {LOCK_HINT}"
    return [Drift(Complaint(problem, mark=Mark(path, 1), category=CATEGORY), weight) for path in gone]


def drift_of_plugins(plugins: Mapping[str, SealedPlugin], seal: Seal) -> list[Drift]:
    """Every configured plugin whose bytes are not the sealed ones, and sealed ones that are gone."""
    drifts = []
    for name, now in plugins.items():
        sealed = seal.plugins.get(name)
        if sealed is None:
            drifts.append(_plugin_drift(name, "is not in the seal", Weight.UNSEALED, now))
            continue
        found = _changes(sealed, now, has_files=seal.is_complete)
        for change in found:
            drifts.append(_plugin_drift(name, change, Weight.CHANGED, now))
        if not found and sealed.fingerprint.manifest_resolved_path != now.fingerprint.manifest_resolved_path:
            moved = f"has moved from {sealed.fingerprint.manifest_resolved_path}, with the same content"
            drifts.append(_plugin_drift(name, moved, Weight.NOTED, now))
    for name in sorted(seal.plugins.keys() - plugins.keys()):
        drifts.append(_plugin_drift(name, "is sealed but no longer configured or found", Weight.NOTED, None))
    return drifts


def refusals(drifts: Iterable[Drift], *, changed: bool, unsealed: bool, seal: Seal | None) -> list[Complaint]:
    """The complaints that refuse a start when `changed` or `unsealed` things are not accepted."""
    refusing = {Weight.HIGH}
    if changed:
        refusing.add(Weight.CHANGED)
    if unsealed and (seal is None or seal.is_complete):
        refusing.add(Weight.UNSEALED)
    return [drift.complaint for drift in drifts if drift.weight in refusing]


def moved(seal: Seal, old: Path, new: Path) -> Seal:
    """The same approvals for files that lie below `new` now and lay below `old`."""

    def place(path: Path) -> Path:
        return new / path.relative_to(old) if path.is_relative_to(old) else path

    def plugin(sealed: SealedPlugin) -> SealedPlugin:
        known = sealed.fingerprint
        fingerprint = evolve(
            known,
            manifest_path=place(known.manifest_path),
            manifest_resolved_path=place(known.manifest_resolved_path),
            entrypoint_path=place(known.entrypoint_path),
            entrypoint_resolved_path=place(known.entrypoint_resolved_path),
        )
        return evolve(sealed, fingerprint=fingerprint)

    hashes = {str(place(Path(path))): digest for path, digest in seal.hashes.items()}
    return evolve(seal, hashes=hashes, plugins={name: plugin(one) for name, one in seal.plugins.items()})


def approves_the_same(before: Seal, after: Seal) -> bool:
    """Whether writing the second in place of the first would be no news."""
    return (before.hashes, before.plugins) == (after.hashes, after.plugins)


def changes(before: Seal | None, after: Seal) -> list[str]:
    """What sealing would approve, one line each: `+` added, `-` gone, `~` other content.

    A plugin that is switched on or off has the same files; its configuration file has its own line.
    """
    old = before or Seal()
    lines = [
        _change(path, old.hashes.get(path), after.hashes.get(path)) for path in old.hashes.keys() | after.hashes.keys()
    ]
    for name in old.plugins.keys() | after.plugins.keys():
        lines.append(_change(f"plugin {name}", _files_of(old.plugins.get(name)), _files_of(after.plugins.get(name))))
    return sorted((line for line in lines if line), key=lambda line: line[2:])


def _change(what: str, before: object, after: object) -> str:
    if before == after:
        return ""
    sign = "+" if before is None else "-" if after is None else "~"
    return f"{sign} {what}"


def _changes(sealed: SealedPlugin, now: SealedPlugin, *, has_files: bool) -> list[str]:
    """`has_files`: the seal names the other files of a plugin, so that one without any has none."""
    old, new, changed = sealed.fingerprint, now.fingerprint, []
    if old.manifest_hash != new.manifest_hash:
        changed.append("has another manifest than the sealed one")
    if old.entrypoint_hash != new.entrypoint_hash:
        changed.append("has another entrypoint than the sealed one")
    # The original sealed no other files of a plugin.
    if (has_files or old.files) and old.files != new.files:
        differing = sorted(
            name for name in old.files.keys() | new.files.keys() if old.files.get(name) != new.files.get(name)
        )
        changed.append(
            f"has other files than the sealed ones: {', '.join(differing[:5])}{' …' if len(differing) > 5 else ''}"
        )
    return changed


def _plugin_drift(name: str, problem: str, weight: Weight, now: SealedPlugin | None) -> Drift:
    mark = Mark(str(now.fingerprint.manifest_path), 1) if now else None
    complaint = Complaint(f"plugin {name} {problem}; {LOCK_HINT}", f"plugins.{name}", mark, CATEGORY)
    return Drift(complaint, weight if now is None or now.enabled else Weight.NOTED)


def _entry(plugin: SealedPlugin) -> dict[str, Any]:
    print_ = plugin.fingerprint
    return {
        "name": print_.name,
        "enabled": plugin.enabled,
        **({"uses": plugin.uses} if plugin.uses else {}),
        "manifest_path": str(print_.manifest_path),
        "manifest_resolved_path": str(print_.manifest_resolved_path),
        "manifest_hash": print_.manifest_hash,
        "entrypoint_path": str(print_.entrypoint_path),
        "entrypoint_resolved_path": str(print_.entrypoint_resolved_path),
        "entrypoint_hash": print_.entrypoint_hash,
        "files": dict(sorted(print_.files.items())),
    }


def _files_of(plugin: SealedPlugin | None) -> PluginFingerprint | None:
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
