"""Which bytes a plugin consists of: BLAKE3 of its manifest, its entrypoint and everything else in its folder.

Bounded in files and bytes, with a finding where the bound cuts. Comparing fingerprints is the seal's work.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import field, frozen
from blake3 import blake3

from ductile.core.files import (
    FileBytes,
    FileFinding,
    FileRefused,
    Level,
    entries_of,
    is_folder,
    open_regular,
    permission_findings,
    shown_path,
    target_of,
)

MAX_FILES = 1_000
MAX_DEPTH = 16
MAX_BYTES = 64 << 20
SKIPPED_FOLDERS = ("__pycache__", "node_modules")
VIRTUALENV_MARK = "pyvenv.cfg"


@frozen
class FileIdentity:
    """Which file this is and whether it was written to, as cheaply as the system can tell."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileIdentity":
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def is_of(self, status: os.stat_result) -> bool:
        """Whether that is the same file, as it was."""
        return (
            self.inode == status.st_ino
            and self.modified_ns == status.st_mtime_ns
            and self.size == status.st_size
            and self.device == status.st_dev
        )


@frozen(kw_only=True)
class PluginFingerprint:
    """The bytes of one plugin. `files` maps the other files, relative to the plugin's folder, to their hashes."""

    name: str
    manifest_path: Path
    manifest_resolved_path: Path
    manifest_hash: str
    entrypoint_path: Path
    entrypoint_resolved_path: Path
    entrypoint_hash: str
    files: Mapping[str, str] = field(factory=dict, repr=False)


@frozen
class FingerprintResult:
    """A fingerprint, the file its entrypoint was, and what was noticed on the way."""

    fingerprint: PluginFingerprint
    entrypoint: FileIdentity
    findings: tuple[FileFinding, ...]


def take_fingerprint(name: str, manifest: FileBytes, entrypoint: Path, *, follow_symlinks: bool) -> FingerprintResult:
    """The fingerprint of the plugin whose manifest was read as `manifest`. Raises FileRefused for the entrypoint."""
    folder = manifest.path.parent
    with open_regular(entrypoint, follow_symlinks=follow_symlinks) as opened:
        digest = blake3()
        for chunk in opened.chunks():
            digest.update(chunk)
    files, findings = _other_files(folder, apart_from=(manifest.path, entrypoint))
    fingerprint = PluginFingerprint(
        name=name,
        manifest_path=manifest.path,
        manifest_resolved_path=manifest.resolved,
        manifest_hash=blake3(manifest.content).hexdigest(),
        entrypoint_path=entrypoint,
        entrypoint_resolved_path=opened.resolved,
        entrypoint_hash=digest.hexdigest(),
        files=files,
    )
    return FingerprintResult(fingerprint, FileIdentity.of(opened.status), tuple(findings))


def is_skipped(name: str) -> bool:
    """Folders and files that are caches or tools, never a plugin's own code."""
    return name.startswith(".") or name in SKIPPED_FOLDERS


def _other_files(folder: Path, *, apart_from: tuple[Path, ...]) -> tuple[dict[str, str], list[FileFinding]]:
    hashes: dict[str, str] = {}
    findings: list[FileFinding] = []
    room = MAX_BYTES
    for path in _walk(folder, findings):
        if path in apart_from:
            continue
        if len(hashes) == MAX_FILES:
            message = f"holds more than {MAX_FILES} other files; the rest has no fingerprint"
            findings.append(FileFinding(Level.WARNING, folder, message))
            break
        try:
            digest, size = _hash_of(path, room, findings)
        except FileRefused as refusal:
            findings.append(FileFinding(Level.WARNING, path, f"has no fingerprint: {refusal.reason}"))
        else:
            hashes[shown_path(path.relative_to(folder))] = digest
            room -= size
    return hashes, findings


def _walk(folder: Path, findings: list[FileFinding], depth: int = 0) -> Iterator[Path]:
    """Files and links below `folder` in a fixed order, without caches, hidden files and virtualenvs."""
    try:
        entries = entries_of(folder)
        if depth:
            findings.extend(permission_findings(folder))
    except FileRefused as refusal:
        findings.append(FileFinding(Level.WARNING, folder, f"has no fingerprint: {refusal.reason}"))
        return
    if any(entry.name == VIRTUALENV_MARK for entry in entries):
        return
    for entry in entries:
        path = folder / entry.name
        if is_skipped(entry.name) or entry.name.endswith((".pyc", ".pyo")):
            continue
        if not is_folder(entry):
            yield path
        elif depth < MAX_DEPTH:
            yield from _walk(path, findings, depth + 1)
        else:
            findings.append(
                FileFinding(Level.WARNING, path, f"lies more than {MAX_DEPTH} folders deep: no fingerprint")
            )


def _hash_of(path: Path, room: int, findings: list[FileFinding]) -> tuple[str, int]:
    """The hash and the size of a file; a link is hashed as the text of its target."""
    if os.path.islink(path):
        target = target_of(path)
        findings.append(FileFinding(Level.WARNING, path, f"is a symlink to {shown_path(target)}"))
        return blake3(b"symlink\0" + os.fsencode(target)).hexdigest(), len(target)
    with open_regular(path) as opened:
        if opened.status.st_size > room:
            raise FileRefused(path, f"more than {MAX_BYTES >> 20} MiB together with the other files")
        findings.extend(permission_findings(path))
        digest, size = blake3(), 0
        for chunk in opened.chunks():
            digest.update(chunk)
            size += len(chunk)
    return digest.hexdigest(), size
