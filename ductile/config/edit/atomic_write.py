"""Several files and the seal change together, or none of them does.

What is decided is first written down whole beside the configuration (`.pending`); that one rename is the moment of the
change. Then the files are replaced, the seal last, and the note goes. Whoever finds the note finishes the work, so a
crash leaves the old configuration or the new one, never a mixture. Where the seal can only be made of files in their
place, the note is of the way back, and the seal is the moment of the change. Knows bytes and modes, not YAML.
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
PATIENCE_SECONDS, PAUSE_SECONDS = 10.0, 0.02


class EditBusy(DuctileError):
    """Somebody else is changing this configuration."""

    code, exit_code, status = "busy", 75, 503
    hint = "try again in a moment"


@frozen
class Replacement:
    """One file and what it is about to hold; `before` is None for a new one, `content` for one that goes."""

    path: Path
    content: bytes | None = field(repr=False)
    before: bytes | None = field(default=None, repr=False)
    mode: int = 0o600
    mode_before: int = 0o600

    @classmethod
    def of(cls, path: Path, content: bytes) -> "Replacement":
        """The file as it is now, which keeps its mode."""
        try:
            now = files.read_regular(path, max_bytes=MAX_PENDING_BYTES, follow_symlinks=True)
        except files.FileMissing:
            return cls(path, content)
        return cls(path, content, now.content, stat.S_IMODE(now.mode), stat.S_IMODE(now.mode))

    @property
    def back(self) -> "Replacement":
        """What makes it undone."""
        return Replacement(self.path, self.before, self.content, self.mode_before, self.mode)


@contextlib.contextmanager
def only_editor(directory: Path) -> Iterator[None]:
    """For the length of the block nobody else edits the configuration in `directory`."""
    with contextlib.ExitStack() as held:
        try:
            while True:
                descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                held.callback(os.close, descriptor)
                _take(descriptor, directory)
                if os.path.samestat(os.fstat(descriptor), os.stat(directory)):
                    break
                held.close()  # a restore has put another directory in its place meanwhile
        except OSError as error:
            raise files.FileRefused(directory, os.strerror(error.errno or 0).lower()) from error
        yield


def _take(descriptor: int, directory: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        with contextlib.suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if time.monotonic() > deadline:
            raise EditBusy(f"{directory}: somebody else is changing this configuration", hint="try again")
        time.sleep(PAUSE_SECONDS)


def replace_together(directory: Path, replacements: Iterable[Replacement]) -> None:
    """Every file holds its new content; if one cannot be written, all hold the old. The last one is the seal.

    The caller is the only editor.
    """
    wanted = tuple(replacements)
    with _noted(directory, _written(wanted), wanted):
        for one in wanted:
            write(one)


def replace_and_seal(
    directory: Path, replacements: Iterable[Replacement], seal: Path, make_seal: Callable[[], None]
) -> None:
    """The same where `make_seal` can make the `seal` only of the files in their place; it may fail like a file.

    A crash before that is put back by whoever finds the note: nothing is approved that nobody has seen.
    """
    wanted = (*replacements, Replacement.of(seal, b""))
    with _noted(directory, _written((one.back for one in wanted), unknown=seal), wanted):
        for one in wanted[:-1]:
            write(one)
        make_seal()


@contextlib.contextmanager
def _noted(directory: Path, content: bytes, wanted: Iterable[Replacement]) -> Iterator[None]:
    """Inside, `content` says what to do after a crash; if the block fails, all of `wanted` is put back."""
    note = directory / PENDING_FILE
    files.write_private(note, content)
    try:
        yield
    except BaseException:
        put_back(wanted)
        note.unlink(missing_ok=True)
        raise
    note.unlink(missing_ok=True)


def put_back(replacements: Iterable[Replacement]) -> None:
    """Every file holds what it held before; new ones are gone."""
    for one in replacements:
        if _content(one.path) != one.before:  # else it was never changed, maybe because it cannot be
            write(one.back)


def finish_interrupted(directory: Path) -> None:
    """If an edit was decided and not finished, it is finished now."""
    if not os.path.lexists(directory / PENDING_FILE):
        return
    with _telling(directory), only_editor(directory):
        finish(directory)


def finish(directory: Path) -> None:
    """The same for the only editor. Files that somebody has changed since keep what they have, and stay unsealed."""
    with _telling(directory):
        _finish(directory / PENDING_FILE)


@contextlib.contextmanager
def _telling(directory: Path) -> Iterator[None]:
    try:
        yield
    except (files.FileRefused, Unreadable) as error:
        message = f"an edit was interrupted and cannot be finished: {error}"
        raise IntegrityBroken(
            [Complaint(message, mark=Mark(str(directory / PENDING_FILE), 1), category="integrity")],
            hint="run `ductile config lock` as the owner of the configuration, or remove the file",
        ) from error


def _finish(note: Path) -> None:
    try:
        noted = files.read_regular(note, max_bytes=MAX_PENDING_BYTES)
    except files.FileMissing:
        return  # finished by another one meanwhile
    for finding in files.permission_findings(note):
        if finding.is_refusal:
            raise files.FileRefused(note, finding.message)
    wanted = _read(noted.content, str(note))
    states = [_state(path, content, before) for path, content, before, _ in wanted]
    if "foreign" not in states:
        for (path, content, _, mode), state in zip(wanted, states, strict=True):
            if state == "before":
                write(Replacement(path, content, mode=mode))
    write(Replacement(note, None))


def write(one: Replacement) -> None:
    """The file holds its new content, or is gone; the folder for a new one is made."""
    try:
        if one.content is None:
            one.path.unlink(missing_ok=True)
            return
        one.path.parent.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise files.FileRefused(one.path.parent, os.strerror(error.errno or 0).lower()) from error
    files.write_private(one.path, one.content, mode=one.mode, follow_symlinks=True)


def _state(path: Path, content: bytes | None, before: str | None) -> str:
    """Which content a file has now: the one `before`, the one `after`, or a `foreign` one."""
    now = _content(path)
    if now == content:
        return "after"
    if now is None:
        return "before" if before is None else "foreign"
    return "before" if before == blake3(now).hexdigest() else "foreign"


def _content(path: Path) -> bytes | None:
    """What a file holds; None if there is none."""
    try:
        return files.read_regular(path, max_bytes=MAX_PENDING_BYTES, follow_symlinks=True).content
    except files.FileMissing:
        return None


def _written(wanted: Iterable[Replacement], *, unknown: Path | None = None) -> bytes:
    """The note. What the file `unknown` will hold before it is as wanted nobody can say: then it is foreign."""
    entries = [
        {
            "path": str(one.path),
            "mode": one.mode,
            "before": "" if one.path == unknown else None if one.before is None else blake3(one.before).hexdigest(),
            "content": None if one.content is None else base64.b64encode(one.content).decode(),
        }
        for one in wanted
    ]
    return strict_json.dumps({"version": 1, "files": entries}).encode()


def _read(content: bytes, source: str) -> list[tuple[Path, bytes | None, str | None, int]]:
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
        raise Unreadable("is not a note about an edit", Mark(source, 1)) from error
