"""Several files and the seal change together, or none of them does.

What is decided is first written down whole beside the configuration (`.pending`); that one rename is the moment of the
change. Then the files are replaced, the seal last, and the note goes. Whoever finds the note finishes the work, so a
crash leaves the old configuration or the new one, never a mixture. Knows bytes and modes, not YAML.
"""

import base64
import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from blake3 import blake3

from ductile import files, strict_json
from ductile.errors import Complaint, DuctileError, IntegrityBroken, Mark, Unreadable
from ductile.values import field, frozen

PENDING_FILE = ".pending"
MAX_PENDING_BYTES = 128 << 20
PATIENCE_SECONDS, PAUSE_SECONDS = 10.0, 0.02


class EditBusy(DuctileError):
    """Somebody else is changing this configuration."""

    code, exit_code, status = "busy", 75, 503
    hint = "try again in a moment"


@frozen
class Replacement:
    """One file and what it is about to hold; `before` is None for a new one."""

    path: Path
    content: bytes = field(repr=False)
    before: bytes | None = field(default=None, repr=False)
    mode: int = 0o600

    @classmethod
    def of(cls, path: Path, content: bytes) -> "Replacement":
        """The file as it is now, which keeps its mode."""
        try:
            now = files.read_regular(path, max_bytes=MAX_PENDING_BYTES, follow_symlinks=True)
        except files.FileMissing:
            return cls(path, content)
        return cls(path, content, now.content, stat.S_IMODE(now.mode))


@contextlib.contextmanager
def only_editor(directory: Path) -> Iterator[None]:
    """For the length of the block nobody else edits the configuration in `directory`."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise files.FileRefused(directory, os.strerror(error.errno or 0).lower()) from error
    try:
        _take(descriptor, directory)
        yield
    finally:
        os.close(descriptor)


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
    note = directory / PENDING_FILE
    files.write_private(note, _written(wanted))
    try:
        for one in wanted:
            write(one)
    except BaseException:
        put_back(wanted)
        note.unlink(missing_ok=True)
        raise
    note.unlink(missing_ok=True)


def put_back(replacements: Iterable[Replacement]) -> None:
    """Every file holds what it held before; new ones are gone."""
    for one in replacements:
        if one.before is None:
            one.path.unlink(missing_ok=True)
        else:
            files.write_private(one.path, one.before, mode=one.mode, follow_symlinks=True)


def finish_interrupted(directory: Path) -> None:
    """If an edit was decided and not finished, it is finished now."""
    if not os.path.lexists(directory / PENDING_FILE):
        return
    try:
        with only_editor(directory):
            finish(directory)
    except (files.FileRefused, Unreadable) as error:
        message = f"an edit was interrupted and cannot be finished: {error}"
        raise IntegrityBroken(
            [Complaint(message, mark=Mark(str(directory / PENDING_FILE), 1), category="integrity")],
            hint="run `ductile config lock` as the owner of the configuration, or remove the file",
        ) from error


def finish(directory: Path) -> None:
    """The same for the only editor. Files that somebody has changed since keep what they have, and stay unsealed."""
    note = directory / PENDING_FILE
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
    note.unlink(missing_ok=True)


def write(one: Replacement) -> None:
    """The file holds its new content; the folder for a new one is made."""
    try:
        one.path.parent.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise files.FileRefused(one.path.parent, os.strerror(error.errno or 0).lower()) from error
    files.write_private(one.path, one.content, mode=one.mode, follow_symlinks=True)


def _state(path: Path, content: bytes, before: str | None) -> str:
    """Which content a file has now: the one `before`, the one `after`, or a `foreign` one."""
    try:
        now = files.read_regular(path, max_bytes=MAX_PENDING_BYTES, follow_symlinks=True).content
    except files.FileMissing:
        return "before" if before is None else "foreign"
    if now == content:
        return "after"
    return "before" if before == blake3(now).hexdigest() else "foreign"


def _written(wanted: Iterable[Replacement]) -> bytes:
    entries = [
        {
            "path": str(one.path),
            "mode": one.mode,
            "before": blake3(one.before).hexdigest() if one.before is not None else None,
            "content": base64.b64encode(one.content).decode(),
        }
        for one in wanted
    ]
    return strict_json.dumps({"version": 1, "files": entries}).encode()


def _read(content: bytes, source: str) -> list[tuple[Path, bytes, str | None, int]]:
    data: Any = strict_json.loads(content, source=source)
    try:
        return [
            (
                Path(entry["path"]),
                base64.b64decode(entry["content"], validate=True),
                entry["before"],
                int(entry["mode"]),
            )
            for entry in data["files"]
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Unreadable("is not a note about an edit", Mark(source, 1)) from error
