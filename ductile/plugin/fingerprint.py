"""The fingerprint of a plugin: BLAKE3 hashes of its manifest, its entrypoint and the other files in its folder.

Limited in files, bytes and depth; a finding reports what a limit excludes. `config.seal` compares fingerprints.
"""

import os
import time
from collections.abc import Mapping
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
TIMESTAMP_RESOLUTION_NS = 2_000_000_000
"""The coarsest time stamps of a file system in use. A file that changed later may change again unnoticed."""


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

    @property
    def hashes(self) -> dict[str, str]:
        """The hash of every file, by its name relative to the plugin's folder."""
        return {**self.files, self.manifest_name: self.manifest_hash, self.entrypoint_name: self.entrypoint_hash}

    @property
    def manifest_name(self) -> str:
        return display_path(self.manifest_path.name)

    @property
    def entrypoint_name(self) -> str:
        return relative_name(self.manifest_path.parent, self.entrypoint_path)

    @property
    def digest(self) -> str:
        """One hash over all files."""
        lines = (f"{name}\0{digest}\n" for name, digest in sorted(self.hashes.items()))
        return f"blake3:{blake3(''.join(lines).encode()).hexdigest()}"


@frozen
class FolderState:
    """The identity of every file and folder of a plugin at one moment, from lstat calls.

    A folder's identity changes when an entry is added, removed or renamed.
    """

    entries: tuple[tuple[str, tuple[int, ...]], ...]
    is_settled: bool
    """False if a file was so new that another change could have left the same times."""

    def is_current(self) -> bool:
        """True if nothing has changed since then."""
        try:
            return all(_identity(os.lstat(path)) == identity for path, identity in self.entries)
        except OSError:
            return False


@frozen
class FingerprintResult:
    """A fingerprint, the state of the files before they were hashed, what it does not cover, and the findings."""

    fingerprint: PluginFingerprint
    state: FolderState
    uncovered: tuple[str, ...]
    """Entries of the folder that no hash covers, relative to it."""
    findings: tuple[FileFinding, ...]


def compute_fingerprint(
    name: str, manifest: FileBytes, entrypoint: Path, *, follow_symlinks: bool
) -> FingerprintResult:
    """Hash the plugin whose manifest was read as `manifest`. Raises FileRefused if the entrypoint cannot be read."""
    search = _FolderSearch(manifest.path.parent)
    search.add_all(manifest.path, manifest.resolved, entrypoint, Path(os.path.realpath(entrypoint)))
    search.run()
    with open_regular(entrypoint, follow_symlinks=follow_symlinks) as opened:
        digest = blake3()
        for chunk in opened.chunks():
            digest.update(chunk)
    fingerprint = PluginFingerprint(
        name=name,
        manifest_path=manifest.path,
        manifest_resolved_path=manifest.resolved,
        manifest_hash=blake3(manifest.content).hexdigest(),
        entrypoint_path=entrypoint,
        entrypoint_resolved_path=opened.resolved,
        entrypoint_hash=digest.hexdigest(),
        files=search.hash_files(exclude=(manifest.path, entrypoint)),
    )
    return FingerprintResult(fingerprint, search.state(), tuple(search.uncovered), tuple(search.findings))


def is_skipped(name: str) -> bool:
    """True for hidden files and caches, which are never a plugin's own code."""
    return name.startswith(".") or name in SKIPPED_FOLDERS


def relative_name(folder: Path, path: Path) -> str:
    """Return the printable name of a file relative to its plugin's folder."""
    return display_path(os.path.relpath(path, folder))


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (
        status.st_mode,
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


class _FolderSearch:
    """One search of a plugin's folder and its results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: list[Path] = []
        self.uncovered: list[str] = []
        self.findings: list[FileFinding] = []
        self._identities: dict[str, tuple[int, ...]] = {}
        self._started_ns = time.time_ns()

    def run(self) -> None:
        """Find the files, in a fixed order, without caches, hidden files and virtualenvs."""
        self._search(self.folder, 0)

    def state(self) -> FolderState:
        newest = max(changed_ns for *_, changed_ns in self._identities.values())
        # A time in the future is from before the clock was set back. The next change has another one.
        is_settled = abs(self._started_ns - newest) > TIMESTAMP_RESOLUTION_NS
        return FolderState(tuple(self._identities.items()), is_settled=is_settled)

    def add_all(self, *paths: Path) -> None:
        """Record the identity of each path, before it is listed or hashed, so that no change is missed."""
        for path in paths:
            try:
                self._identities[str(path)] = _identity(os.lstat(path))
            except OSError as error:
                raise FileRefused(path, (error.strerror or str(error)).lower()) from error

    def hash_files(self, *, exclude: tuple[Path, ...]) -> dict[str, str]:
        """Return the hashes of the files that were found, by their relative names."""
        hashes: dict[str, str] = {}
        remaining = MAX_BYTES
        for path in self.files:
            if path in exclude:
                continue
            if len(hashes) == MAX_FILES:
                self._leave_out(self.folder, f"contains more than {MAX_FILES} other files; the rest has no fingerprint")
                break
            try:
                digest, size = self._hash_file(path, remaining)
            except FileRefused as refusal:
                self._leave_out(path, f"has no fingerprint: {refusal.reason}")
            else:
                hashes[relative_name(self.folder, path)] = digest
                remaining -= size
        return hashes

    def _search(self, folder: Path, depth: int) -> None:
        try:
            self.add_all(folder)
            entries = list_entries(folder)
            if depth:
                self.findings.extend(check_permissions(folder))
        except FileRefused as refusal:
            self._leave_out(folder, f"has no fingerprint: {refusal.reason}")
            return
        if any(entry.name == VIRTUALENV_FILE for entry in entries):
            self._leave_out(folder)
            return
        for entry in entries:
            path = folder / entry.name
            if is_skipped(entry.name) or entry.name.endswith((".pyc", ".pyo")):
                self._leave_out(path)
            elif not is_folder(entry):
                self.files.append(path)
            elif depth < MAX_DEPTH:
                self._search(path, depth + 1)
            else:
                self._leave_out(path, f"is more than {MAX_DEPTH} folders deep: no fingerprint")

    def _leave_out(self, path: Path, warning: str | None = None) -> None:
        self.uncovered.append(relative_name(self.folder, path))
        if warning is not None:
            self.findings.append(FileFinding(Level.WARNING, path, warning))

    def _hash_file(self, path: Path, remaining: int) -> tuple[str, int]:
        """Return the hash and the size of a file. A symlink is hashed as the text of its target."""
        self.add_all(path)
        if os.path.islink(path):
            target = read_link(path)
            self.findings.append(FileFinding(Level.WARNING, path, f"is a symlink to {display_path(target)}"))
            if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.folder)):
                self._leave_out(path)
            return blake3(b"symlink\0" + os.fsencode(target)).hexdigest(), len(target)
        with open_regular(path) as opened:
            if opened.status.st_size > remaining:
                raise FileRefused(path, f"more than {MAX_BYTES >> 20} MiB together with the other files")
            self.findings.extend(check_permissions(path))
            digest, size = blake3(), 0
            for chunk in opened.chunks():
                digest.update(chunk)
                size += len(chunk)
        return digest.hexdigest(), size
