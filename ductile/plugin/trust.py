"""Trust checks of a plugin: its location, who can change its files, and whether the system can start it.

Read-only checks of the file system, made when a plugin is discovered and before each start. The callers decide what a
finding means: the registry rejects the plugin, the engine refuses the attempt.
"""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from attrs import frozen

from ductile.core.files import (
    FileFinding,
    FileRefused,
    Level,
    check_parent_folder,
    check_permissions,
    check_symlinks,
    display_path,
    open_regular,
)
from ductile.plugin.manifest import FILE_NAME

_HEAD_BYTES = 256


@frozen
class TrustPolicy:
    """The configured plugin roots, with symlinks resolved, and whether symlinks are allowed below them."""

    roots: tuple[Path, ...]
    allow_symlinks: bool = False

    def approves(self, resolved: Path) -> bool:
        return any(resolved.is_relative_to(root) for root in self.roots)


@frozen
class PathSnapshot:
    """The inode, mode and owner of a plugin's files and of all their parent folders when they were checked."""

    entries: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, *files: Path) -> "PathSnapshot | None":
        """Record the paths of `files`; None if a component is missing or a symlink."""
        paths = dict.fromkeys(str(path) for file in files for path in (file, *file.parents))
        try:
            entries = tuple((path, _identity(path)) for path in paths)
        except OSError:
            return None
        has_symlink = any(stat.S_ISLNK(mode) for _, (mode, *_) in entries)
        return None if has_symlink else cls(entries)

    def is_unchanged(self) -> bool:
        """True if no component was replaced or changed its mode or owner, so that the trust check still applies."""
        try:
            return all(_identity(path) == identity for path, identity in self.entries)
        except OSError:
            return False


def check_trust(policy: TrustPolicy, *, root: Path, folder: Path, entrypoint: Path) -> list[FileFinding]:
    """Return all reasons against running `entrypoint` of the plugin in `folder`, without duplicates."""
    manifest = folder / FILE_NAME
    findings: dict[FileFinding, None] = {}
    for path in (manifest, entrypoint):
        findings |= dict.fromkeys(_check_links(policy, path))
    for path in (root, folder, manifest, *_entrypoint_and_folders(folder, entrypoint)):
        findings |= dict.fromkeys(_run_check(check_permissions, path))
    for path in _folders_above(folder, exclude=root):
        findings |= dict.fromkeys(_run_check(check_parent_folder, path))
    findings |= dict.fromkeys(_check_executable(entrypoint))
    return list(findings)


def check_startable(entrypoint: Path, *, follow_symlinks: bool) -> list[FileFinding]:
    """Return warnings about why the system may be unable to start `entrypoint`. Only an attempt can tell for sure."""
    try:
        with open_regular(entrypoint, follow_symlinks=follow_symlinks) as opened:
            head = next(opened.chunks(), b"")[:_HEAD_BYTES]
    except FileRefused as refusal:
        return [_to_finding(refusal)]
    problem = _start_problem(head)
    return [FileFinding(Level.WARNING, entrypoint, problem)] if problem else []


def check_location(policy: TrustPolicy, path: Path, resolved: Path) -> list[FileFinding]:
    """Refuse the file that `path` resolved to unless it is below a plugin root."""
    if policy.approves(resolved):
        return []
    roots = ", ".join(map(display_path, policy.roots))
    reason = f"resolves to {display_path(resolved)}, outside the plugin roots ({roots})"
    return [FileFinding(Level.REFUSED, path, reason)]


def _check_links(policy: TrustPolicy, path: Path) -> Iterator[FileFinding]:
    """Check the symlinks in `path`, and that it resolves to a file below a plugin root."""
    try:
        yield from check_symlinks(path, allow=policy.allow_symlinks)
    except FileRefused as refusal:
        yield _to_finding(refusal)
    yield from check_location(policy, path, Path(os.path.realpath(path)))


def _check_executable(entrypoint: Path) -> list[FileFinding]:
    if not os.path.exists(entrypoint):
        return []
    if not os.path.isfile(entrypoint):
        return [FileFinding(Level.REFUSED, entrypoint, "entrypoint is not a regular file")]
    if not os.access(entrypoint, os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        reason = f"entrypoint is not executable; run chmod +x {display_path(entrypoint)}"
        return [FileFinding(Level.REFUSED, entrypoint, reason)]
    return []


def _start_problem(head: bytes) -> str | None:
    if head.startswith(b"\x7fELF"):
        return None
    if not head.startswith(b"#!"):
        return "entrypoint has no `#!` line, so the system cannot determine its interpreter"
    line = head.split(b"\n", 1)[0][2:]
    if line.endswith(b"\r"):
        return "the `#!` line of the entrypoint ends in a carriage return; save the file with Unix line ends"
    interpreter = os.fsdecode(line.strip().split(b" ", 1)[0].split(b"\t", 1)[0])
    if not interpreter.startswith("/") or not os.access(interpreter, os.X_OK):
        return f"the interpreter {display_path(interpreter)!r} in the `#!` line of the entrypoint does not exist"
    return None


def _entrypoint_and_folders(folder: Path, entrypoint: Path) -> Iterator[Path]:
    """Yield the entrypoint and the folders between it and the plugin's folder."""
    yield entrypoint
    for parent in entrypoint.parents:
        if parent == folder:
            return
        yield parent


def _folders_above(folder: Path, *, exclude: Path) -> Iterator[Path]:
    """Yield the parents of the plugin's folder, both as given and resolved."""
    resolved = Path(os.path.realpath(folder))
    for parent in dict.fromkeys([*folder.parents, *resolved.parents]):
        if parent != exclude:
            yield parent


def _run_check(check: Callable[[Path], list[FileFinding]], path: Path) -> list[FileFinding]:
    try:
        return check(path)
    except FileRefused as refusal:
        return [_to_finding(refusal)]


def _to_finding(refusal: FileRefused) -> FileFinding:
    return FileFinding(Level.REFUSED, refusal.path, refusal.reason)


def _identity(path: str) -> tuple[int, ...]:
    status = os.lstat(path)
    return status.st_mode, status.st_uid, status.st_gid, status.st_dev, status.st_ino
