"""The contents that a disk may have after a power cut, computed from a recording of all writes.

What a completed sync covered is durable. Of later writes any sectors may be present; of later changes to the directory,
a prefix. Independent of SQLite.
"""

import random
import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

from attrs import define, field, frozen

SECTOR = 512
HEADER = struct.Struct("=qqQqIIII")
DIRECTORY = ""


class ChangeKind(IntEnum):
    """The numbers that fault_library.c writes."""

    WRITE = 0
    TRUNCATE = 1
    SYNC = 2
    OPEN = 3
    UNLINK = 4
    RENAME = 5
    FAILED = 6


@frozen
class Change:
    """One call that changed a file or the directory, or made it durable."""

    started: int
    ended: int
    file: int
    at: int
    kind: ChangeKind
    name: str
    data: bytes = field(repr=False)


def read_changes(log: Path) -> list[Change]:
    """Read a recording, in the order of the calls."""
    content, at, found = log.read_bytes() if log.exists() else b"", 0, []
    while at < len(content):
        started, ended, file, offset, kind, name_length, length, _ = HEADER.unpack_from(content, at)
        at += HEADER.size
        name = content[at : at + name_length].decode()
        at += name_length
        has_bytes = kind in (ChangeKind.WRITE, ChangeKind.RENAME)
        data = content[at : at + length] if has_bytes else b""
        at += len(data)
        found.append(Change(started, ended, file, offset, ChangeKind(kind), name, data))
    return found


@define(eq=False)
class RecordedFile:
    """The durable content of a file, and the changes since its last sync."""

    durable: bytearray = field(factory=bytearray)
    pending: list[Change] = field(factory=list)

    def sync(self) -> None:
        for change in self.pending:
            apply_change(change, self.durable)
        self.pending.clear()

    def current(self) -> bytearray:
        """Return the content that running processes see."""
        content = bytearray(self.durable)
        for change in self.pending:
            apply_change(change, content)
        return content


def apply_change(change: Change, content: bytearray) -> None:
    if change.kind is ChangeKind.TRUNCATE:
        del content[change.at :]
        content.extend(bytes(change.at - len(content)))
    else:
        write(content, change.at, change.data)


def write(content: bytearray, at: int, data: bytes) -> None:
    content.extend(bytes(max(0, at + len(data) - len(content))))
    content[at : at + len(data)] = data


@frozen
class NameChange:
    """A name that got a file or, with None, was removed."""

    name: str
    file: RecordedFile | None

    def apply(self, names: dict[str, RecordedFile]) -> None:
        if self.file is None:
            names.pop(self.name, None)
        else:
            names[self.name] = self.file


@define
class RecordedDisk:
    """The directory at one moment of the recording."""

    names: dict[str, RecordedFile] = field(factory=dict)
    durable_names: dict[str, RecordedFile] = field(factory=dict)
    pending_names: list[NameChange] = field(factory=list)
    _by_inode: dict[int, RecordedFile] = field(factory=dict)

    def apply(self, change: Change) -> None:
        """Advance by one change."""
        match change.kind:
            case ChangeKind.WRITE | ChangeKind.TRUNCATE:
                self._by_inode[change.file].pending.append(change)
            case ChangeKind.SYNC if change.name == DIRECTORY:
                self.durable_names = dict(self.names)
                self.pending_names.clear()
            case ChangeKind.SYNC if change.file in self._by_inode:
                self._by_inode[change.file].sync()
            case ChangeKind.OPEN if change.name not in self.names:
                self._by_inode[change.file] = RecordedFile()
                self._change_name(change.name, self._by_inode[change.file])
            case ChangeKind.UNLINK:
                self._change_name(change.name, None)
            case ChangeKind.RENAME:
                file = self.names[change.name]
                self._change_name(change.name, None)
                self._change_name(change.data.decode(), file)

    def _change_name(self, name: str, file: RecordedFile | None) -> None:
        self.pending_names.append(NameChange(name, file))
        self.pending_names[-1].apply(self.names)

    def image_after_cut(self, rng: random.Random) -> dict[str, bytes]:
        """Return one of the contents that the directory may have if the power fails at this moment."""
        names, kept = dict(self.durable_names), KeptWrites.drawn(rng)
        for change in self.pending_names[: rng.randint(0, len(self.pending_names))]:
            change.apply(names)
        return {name: bytes(kept.content(file)) for name, file in names.items()}

    def current(self) -> dict[str, bytes]:
        """Return the contents that running processes see."""
        return {name: bytes(file.current()) for name, file in self.names.items()}


@define
class KeptWrites:
    """Which of the unsynced writes are on the disk after a cut."""

    rng: random.Random
    share: float
    """The share of sectors that are kept."""
    in_order: bool = False
    """Keep a prefix of the changes, as if the disk never reordered writes."""
    by_file: bool = False
    """Keep all or none of the changes of a file."""

    @classmethod
    def drawn(cls, rng: random.Random) -> "KeptWrites":
        share = rng.choice((0.0, 0.1, 0.5, 0.9, 0.98, 1.0))
        return cls(rng, share, in_order=rng.random() < 0.2, by_file=rng.random() < 0.2)

    def content(self, file: RecordedFile) -> bytearray:
        content = bytearray(file.durable)
        share = float(self.rng.random() < self.share) if self.by_file else self.share
        changes = file.pending[: self.rng.randint(0, len(file.pending))] if self.in_order else file.pending
        for number, change in enumerate(changes, start=1):
            self._apply(change, content, 1.0 if self.in_order and number < len(changes) else share)
        return content

    def _apply(self, change: Change, content: bytearray, share: float) -> None:
        if change.kind is ChangeKind.TRUNCATE or share in (0.0, 1.0):
            if self.rng.random() < share:
                apply_change(change, content)
            return
        for at, sector in sectors(change):
            if self.rng.random() < share:
                write(content, at, sector)


def sectors(change: Change) -> Iterator[tuple[int, bytes]]:
    """Split a write into the parts that a disk writes atomically."""
    at, end = change.at, change.at + len(change.data)
    while at < end:
        until = min(end, (at // SECTOR + 1) * SECTOR)
        yield at, change.data[at - change.at : until - change.at]
        at = until
