"""May this code be run? Where a plugin lies, who could change it, and whether the system can start it.

Pure questions to the file system, asked when a plugin is found and again before each start. What follows from the
answers is decided by the callers: the registry leaves a plugin out, the engine refuses an attempt.
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
    open_regular,
    parent_findings,
    permission_findings,
    shown_path,
    symlink_findings,
)
from ductile.plugin.manifest import FILE_NAME

_HEAD_BYTES = 256


@frozen
class TrustPolicy:
    """The operator's word on where plugins may come from; `roots` are free of links."""

    roots: tuple[Path, ...]
    allow_symlinks: bool = False

    def approves(self, resolved: Path) -> bool:
        return any(resolved.is_relative_to(root) for root in self.roots)


@frozen
class Witness:
    """How every step on the way to a plugin's files was when they were judged: its inode, mode and owner."""

    steps: tuple[tuple[str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, *files: Path) -> "Witness | None":
        """None when the way is not plain: something is missing, or a link lies on it."""
        paths = dict.fromkeys(str(step) for file in files for step in (file, *file.parents))
        try:
            steps = tuple((path, _nature(path)) for path in paths)
        except OSError:
            return None
        is_plain = not any(stat.S_ISLNK(mode) for _, (mode, *_) in steps)
        return cls(steps) if is_plain else None

    def still_holds(self) -> bool:
        """True when no step was replaced, opened up or given away, so that the judgement stands."""
        try:
            return all(_nature(path) == nature for path, nature in self.steps)
        except OSError:
            return False


def trust_findings(policy: TrustPolicy, *, root: Path, folder: Path, entrypoint: Path) -> list[FileFinding]:
    """Everything that speaks against running `entrypoint` of the plugin in `folder`, each thing once."""
    manifest = folder / FILE_NAME
    findings: dict[FileFinding, None] = {}
    for path in (manifest, entrypoint):
        findings |= dict.fromkeys(_way_findings(policy, path))
    for path in (root, folder, manifest, *_steps(folder, entrypoint)):
        findings |= dict.fromkeys(_guarded(permission_findings, path))
    for path in _folders_above(folder, apart_from=root):
        findings |= dict.fromkeys(_guarded(parent_findings, path))
    findings |= dict.fromkeys(_executable_findings(entrypoint))
    return list(findings)


def start_findings(entrypoint: Path, *, follow_symlinks: bool) -> list[FileFinding]:
    """Why the system may be unable to start `entrypoint`: warnings, since only the attempt can tell for sure."""
    try:
        with open_regular(entrypoint, follow_symlinks=follow_symlinks) as opened:
            head = next(opened.chunks(), b"")[:_HEAD_BYTES]
    except FileRefused as refusal:
        return [_refused(refusal)]
    problem = _start_problem(head)
    return [FileFinding(Level.WARNING, entrypoint, problem)] if problem else []


def place_findings(policy: TrustPolicy, path: Path, resolved: Path) -> list[FileFinding]:
    """Whether the file that `path` led to lies under an approved root."""
    if policy.approves(resolved):
        return []
    roots = ", ".join(map(shown_path, policy.roots))
    reason = f"leads to {shown_path(resolved)}, outside the plugin roots ({roots})"
    return [FileFinding(Level.REFUSED, path, reason)]


def _way_findings(policy: TrustPolicy, path: Path) -> Iterator[FileFinding]:
    """Links on the way, and whether their end is still under an approved root."""
    try:
        yield from symlink_findings(path, allow=policy.allow_symlinks)
    except FileRefused as refusal:
        yield _refused(refusal)
    yield from place_findings(policy, path, Path(os.path.realpath(path)))


def _executable_findings(entrypoint: Path) -> list[FileFinding]:
    if not os.path.exists(entrypoint):
        return []
    if not os.path.isfile(entrypoint):
        return [FileFinding(Level.REFUSED, entrypoint, "entrypoint is not a regular file")]
    if not os.access(entrypoint, os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        reason = f"entrypoint is not executable; run chmod +x {shown_path(entrypoint)}"
        return [FileFinding(Level.REFUSED, entrypoint, reason)]
    return []


def _start_problem(head: bytes) -> str | None:
    if head.startswith(b"\x7fELF"):
        return None
    if not head.startswith(b"#!"):
        return "entrypoint has no `#!` line, so the system cannot tell what should run it"
    line = head.split(b"\n", 1)[0][2:]
    if line.endswith(b"\r"):
        return "the `#!` line of the entrypoint ends in a carriage return; save the file with Unix line ends"
    interpreter = os.fsdecode(line.strip().split(b" ", 1)[0].split(b"\t", 1)[0])
    if not interpreter.startswith("/") or not os.access(interpreter, os.X_OK):
        return f"the interpreter {shown_path(interpreter)!r} in the `#!` line of the entrypoint does not exist"
    return None


def _steps(folder: Path, entrypoint: Path) -> Iterator[Path]:
    """The entrypoint and the folders between it and the plugin's own."""
    yield entrypoint
    for step in entrypoint.parents:
        if step == folder:
            return
        yield step


def _folders_above(folder: Path, *, apart_from: Path) -> Iterator[Path]:
    """The folders that lead to the plugin, as its path is written and as it is resolved."""
    resolved = Path(os.path.realpath(folder))
    for step in dict.fromkeys([*folder.parents, *resolved.parents]):
        if step != apart_from:
            yield step


def _guarded(ask: Callable[[Path], list[FileFinding]], path: Path) -> list[FileFinding]:
    try:
        return ask(path)
    except FileRefused as refusal:
        return [_refused(refusal)]


def _refused(refusal: FileRefused) -> FileFinding:
    return FileFinding(Level.REFUSED, refusal.path, refusal.reason)


def _nature(path: str) -> tuple[int, ...]:
    status = os.lstat(path)
    return status.st_mode, status.st_uid, status.st_gid, status.st_dev, status.st_ino
