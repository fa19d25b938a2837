"""Atomic replacement of several files together with the seal.

The complete change is first written to a note (`.pending`) next to the configuration; that rename commits the change.
Then the files are replaced, the seal last, and the note is removed. The next process that finds a note finishes the
change, so a crash leaves either the old or the new configuration. If the seal can only be computed from the replaced
files, the note describes the rollback, and writing the seal commits the change. Knows bytes and modes, not YAML.
"""

import base64
import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from attrs import field, frozen
from blake3 import blake3

from ductile.core import files
from ductile.core.errors import Complaint, DuctileError, IntegrityBroken, Mark, Unreadable
from ductile.core.formats import strict_json

PENDING_FILE = ".pending"
MAX_PENDING_BYTES = 128 << 20
LOCK_TIMEOUT_SECONDS, LOCK_POLL_INTERVAL = 10.0, 0.02


class EditBusy(DuctileError):
    """Another process is changing this configuration."""

    code, exit_code, status = "busy", 75, 503
    hint = "Try again in a moment."


@frozen
class Replacement:
    """The new content of a file. `before` is None for a new file, `content` is None for a removed file."""

    path: Path
    content: bytes | None = field(repr=False)
    before: bytes | None = field(default=None, repr=False)
    mode: int = 0o600
    mode_before: int = 0o600

    @classmethod
    def of(cls, path: Path, content: bytes) -> "Replacement":
        """Return a replacement for the current file. It preserves the mode."""
        try:
            now = files.read_regular(path, max_bytes=MAX_PENDING_BYTES, follow_symlinks=True)
        except files.FileMissing:
            return cls(path, content)
        return cls(path, content, now.content, stat.S_IMODE(now.mode), stat.S_IMODE(now.mode))

    @property
    def inverse(self) -> "Replacement":
        """The replacement that reverts this one."""
        return Replacement(self.path, self.before, self.content, self.mode_before, self.mode)


@contextlib.contextmanager
def lock_config(directory: Path) -> Iterator[None]:
    """Hold the exclusive edit lock of the configuration in `directory`. Raises EditBusy after a timeout."""
    with contextlib.ExitStack() as stack:
        try:
            while True:
                descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                stack.callback(os.close, descriptor)
                _acquire_lock(descriptor, directory)
                if os.path.samestat(os.fstat(descriptor), os.stat(directory)):
                    break
                stack.close()  # a restore has replaced the directory while this process waited
        except OSError as error:
            raise files.FileRefused(directory, os.strerror(error.errno or 0).lower()) from error
        yield


def _acquire_lock(descriptor: int, directory: Path) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_SECONDS
    while True:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.monotonic() > deadline:
            raise EditBusy(f"{directory}: another process is changing this configuration", hint="Try again.")
        time.sleep(LOCK_POLL_INTERVAL)


def replace_files(directory: Path, replacements: Iterable[Replacement]) -> None:
    """Replace all files; if one cannot be written, restore all. The last file is the seal.

    The caller must hold the edit lock.
    """
    ordered = tuple(replacements)
    with _pending(directory, _render_note(ordered), ordered):
        for replacement in ordered:
            write(replacement)


def replace_and_seal(
    directory: Path, replacements: Iterable[Replacement], seal: Path, make_seal: Callable[[], None]
) -> None:
    """Replace all files, then call `make_seal` to create `seal` from the files on disk. If a step fails, restore all.

    After a crash before the seal is written, the next process rolls the change back.
    """
    ordered = (*replacements, Replacement.of(seal, b""))
    with _pending(directory, _render_note((replacement.inverse for replacement in ordered), unknown=seal), ordered):
        for replacement in ordered[:-1]:
            write(replacement)
        make_seal()


@contextlib.contextmanager
def _pending(directory: Path, content: bytes, replacements: Iterable[Replacement]) -> Iterator[None]:
    """Keep a note with `content` for recovery after a crash. If the block fails, restore all files."""
    note = directory / PENDING_FILE
    files.write_private(note, content)
    try:
        yield
    except BaseException:
        roll_back(replacements)
        note.unlink(missing_ok=True)
        raise
    note.unlink(missing_ok=True)


def roll_back(replacements: Iterable[Replacement]) -> None:
    """Restore the previous content of all files, and remove new files."""
    for replacement in replacements:
        if _current_content(replacement.path) != replacement.before:  # an unchanged file may not be writable
            write(replacement.inverse)


def finish_interrupted(directory: Path) -> None:
    """Finish a committed change that was interrupted."""
    if not os.path.lexists(directory / PENDING_FILE):
        return
    with _as_integrity_error(directory), lock_config(directory):
        finish_pending(directory)


def finish_pending(directory: Path) -> None:
    """Finish an interrupted change; the caller holds the edit lock.

    If a file was modified after the crash, no file is replaced.
    """
    with _as_integrity_error(directory):
        _finish(directory / PENDING_FILE)


@contextlib.contextmanager
def _as_integrity_error(directory: Path) -> Iterator[None]:
    """Raise file errors in the block as IntegrityBroken."""
    try:
        yield
    except (files.FileRefused, Unreadable) as error:
        message = f"an interrupted edit cannot be finished: {error}"
        raise IntegrityBroken(
            [Complaint(message, mark=Mark(str(directory / PENDING_FILE), 1), category="integrity")],
            hint="Run `ductile config lock` as the owner of the configuration, or remove the file.",
        ) from error


def _finish(note: Path) -> None:
    try:
        stored = files.read_regular(note, max_bytes=MAX_PENDING_BYTES)
    except files.FileMissing:
        return  # another process has finished it
    for finding in files.check_permissions(note):
        if finding.is_refusal:
            raise files.FileRefused(note, finding.message)
    entries = _parse_note(stored.content, str(note))
    states = [_state(path, content, before) for path, content, before, _ in entries]
    if "foreign" not in states:
        for (path, content, _, mode), state in zip(entries, states, strict=True):
            if state == "before":
                write(Replacement(path, content, mode=mode))
    write(Replacement(note, None))


def write(replacement: Replacement) -> None:
    """Write or remove one file. Creates the parent directory of a new file."""
    try:
        if replacement.content is None:
            replacement.path.unlink(missing_ok=True)
            return
        replacement.path.parent.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise files.FileRefused(replacement.path.parent, os.strerror(error.errno or 0).lower()) from error
    files.write_private(replacement.path, replacement.content, mode=replacement.mode, follow_symlinks=True)


def _state(path: Path, content: bytes | None, before: str | None) -> str:
    """Return `before`, `after` or `foreign`, depending on the current content of the file."""
    now = _current_content(path)
    if now == content:
        return "after"
    if now is None:
        return "before" if before is None else "foreign"
    return "before" if before == blake3(now).hexdigest() else "foreign"


def _current_content(path: Path) -> bytes | None:
    """Return the content of a file; None if it does not exist."""
    try:
        return files.read_regular(path, max_bytes=MAX_PENDING_BYTES, follow_symlinks=True).content
    except files.FileMissing:
        return None


def _render_note(replacements: Iterable[Replacement], *, unknown: Path | None = None) -> bytes:
    """Render the note. The content of `unknown` before the rollback cannot be predicted."""
    entries = [
        {
            "path": str(replacement.path),
            "mode": replacement.mode,
            "before": "" if replacement.path == unknown else _digest(replacement.before),
            "content": None if replacement.content is None else base64.b64encode(replacement.content).decode(),
        }
        for replacement in replacements
    ]
    return strict_json.dumps({"version": 1, "files": entries}).encode()


def _digest(content: bytes | None) -> str | None:
    return None if content is None else blake3(content).hexdigest()


def _parse_note(content: bytes, source: str) -> list[tuple[Path, bytes | None, str | None, int]]:
    data: Any = strict_json.loads(content, source=source)
    try:
        return [
            (
                Path(entry["path"]),
                None if entry["content"] is None else base64.b64decode(entry["content"], validate=True),
                entry["before"],
                int(entry["mode"]),
            )
            for entry in data["files"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unreadable("is not a valid edit note", Mark(source, 1)) from error
