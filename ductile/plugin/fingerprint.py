"""The fingerprint of a plugin: BLAKE3 hashes of its manifest, its entrypoint and the other files in its folder.

Limited in files, bytes and depth; a finding reports what a limit excludes. `config.seal` compares fingerprints.
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
    check_permissions,
    display_path,
    is_folder,
    list_entries,
    open_regular,
    read_link,
)

MAX_FILES = 1_000
MAX_DEPTH = 16
MAX_BYTES = 64 << 20
SKIPPED_FOLDERS = ("__pycache__", "node_modules")
VIRTUALENV_FILE = "pyvenv.cfg"


@frozen
class FileIdentity:
    """The identity of a file and its last change, from one stat call."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "FileIdentity":
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def matches(self, status: os.stat_result) -> bool:
        """True if `status` is of the same, unchanged file."""
        return (
            self.inode == status.st_ino
            and self.modified_ns == status.st_mtime_ns
            and self.size == status.st_size
            and self.device == status.st_dev
        )


@frozen(kw_only=True)
class PluginFingerprint:
    """The hashes of one plugin. `files` maps the other files, relative to the plugin's folder, to their hashes."""

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
    """A fingerprint, the identity of the hashed entrypoint, and the findings."""

    fingerprint: PluginFingerprint
    entrypoint: FileIdentity
    findings: tuple[FileFinding, ...]


def compute_fingerprint(
    name: str, manifest: FileBytes, entrypoint: Path, *, follow_symlinks: bool
) -> FingerprintResult:
    """Hash the plugin whose manifest was read as `manifest`. Raises FileRefused if the entrypoint cannot be read."""
    folder = manifest.path.parent
    with open_regular(entrypoint, follow_symlinks=follow_symlinks) as opened:
        digest = blake3()
        for chunk in opened.chunks():
            digest.update(chunk)
    files, findings = _other_files(folder, exclude=(manifest.path, entrypoint))
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
    """True for hidden files and caches, which are never a plugin's own code."""
    return name.startswith(".") or name in SKIPPED_FOLDERS


def _other_files(folder: Path, *, exclude: tuple[Path, ...]) -> tuple[dict[str, str], list[FileFinding]]:
    hashes: dict[str, str] = {}
    findings: list[FileFinding] = []
    remaining = MAX_BYTES
    for path in _walk(folder, findings):
        if path in exclude:
            continue
        if len(hashes) == MAX_FILES:
            message = f"contains more than {MAX_FILES} other files; the rest has no fingerprint"
            findings.append(FileFinding(Level.WARNING, folder, message))
            break
        try:
            digest, size = _hash_file(path, remaining, findings)
        except FileRefused as refusal:
            findings.append(FileFinding(Level.WARNING, path, f"has no fingerprint: {refusal.reason}"))
        else:
            hashes[display_path(path.relative_to(folder))] = digest
            remaining -= size
    return hashes, findings


def _walk(folder: Path, findings: list[FileFinding], depth: int = 0) -> Iterator[Path]:
    """Yield files and symlinks below `folder` in a fixed order, without caches, hidden files and virtualenvs."""
    try:
        entries = list_entries(folder)
        if depth:
            findings.extend(check_permissions(folder))
    except FileRefused as refusal:
        findings.append(FileFinding(Level.WARNING, folder, f"has no fingerprint: {refusal.reason}"))
        return
    if any(entry.name == VIRTUALENV_FILE for entry in entries):
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
            findings.append(FileFinding(Level.WARNING, path, f"is more than {MAX_DEPTH} folders deep: no fingerprint"))


def _hash_file(path: Path, remaining: int, findings: list[FileFinding]) -> tuple[str, int]:
    """Return the hash and the size of a file. A symlink is hashed as the text of its target."""
    if os.path.islink(path):
        target = read_link(path)
        findings.append(FileFinding(Level.WARNING, path, f"is a symlink to {display_path(target)}"))
        return blake3(b"symlink\0" + os.fsencode(target)).hexdigest(), len(target)
    with open_regular(path) as opened:
        if opened.status.st_size > remaining:
            raise FileRefused(path, f"more than {MAX_BYTES >> 20} MiB together with the other files")
        findings.extend(check_permissions(path))
        digest, size = blake3(), 0
        for chunk in opened.chunks():
            digest.update(chunk)
            size += len(chunk)
    return digest.hexdigest(), size
