"""What a disk may hold after a power cut, made from the record of everything that was written to it.

Kept for certain is what a sync has covered that was over before the cut. Of everything after that, any sectors may be
there and others not; of the names in the directory, the first so many changes. Knows nothing of SQLite.
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


class Kind(IntEnum):
    """As shim.c counts them."""

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

    begun: int
    ended: int
    file: int
    at: int
    kind: Kind
    name: str
    data: bytes = field(repr=False)


def read_changes(log: Path) -> list[Change]:
    """In the order in which they were made."""
    content, at, found = log.read_bytes() if log.exists() else b"", 0, []
    while at < len(content):
        begun, ended, file, where, kind, name_length, length, _ = HEADER.unpack_from(content, at)
        at += HEADER.size
        name = content[at : at + name_length].decode()
        at += name_length
        has_bytes = kind in (Kind.WRITE, Kind.RENAME)
        data = content[at : at + length] if has_bytes else b""
        at += len(data)
        found.append(Change(begun, ended, file, where, Kind(kind), name, data))
    return found


@define(eq=False)
class File:
    """What is on the disk for certain, and what was done since."""

    durable: bytearray = field(factory=bytearray)
    pending: list[Change] = field(factory=list)

    def sync(self) -> None:
        for change in self.pending:
            apply(change, self.durable)
        self.pending.clear()


def apply(change: Change, content: bytearray) -> None:
    if change.kind is Kind.TRUNCATE:
        del content[change.at :]
        content.extend(bytes(change.at - len(content)))
    else:
        write(content, change.at, change.data)


def write(content: bytearray, at: int, data: bytes) -> None:
    content.extend(bytes(max(0, at + len(data) - len(content))))
    content[at : at + len(data)] = data


@frozen
class Naming:
    """A name that got a file or, with None, lost it."""

    name: str
    file: File | None


@define
class Disk:
    """The directory as it is at one moment of the recording."""

    names: dict[str, File] = field(factory=dict)
    durable_names: dict[str, File] = field(factory=dict)
    pending_names: list[Naming] = field(factory=list)
    _by_inode: dict[int, File] = field(factory=dict)

    def follow(self, change: Change) -> None:
        """The change is over."""
        match change.kind:
            case Kind.WRITE | Kind.TRUNCATE:
                self._by_inode[change.file].pending.append(change)
            case Kind.SYNC if change.name == DIRECTORY:
                self.durable_names = dict(self.names)
                self.pending_names.clear()
            case Kind.SYNC if change.file in self._by_inode:
                self._by_inode[change.file].sync()
            case Kind.OPEN if change.name not in self.names:
                self._by_inode[change.file] = File()
                self._name(change.name, self._by_inode[change.file])
            case Kind.UNLINK:
                self._name(change.name, None)
            case Kind.RENAME:
                file = self.names[change.name]
                self._name(change.name, None)
                self._name(change.data.decode(), file)

    def _name(self, name: str, file: File | None) -> None:
        self.pending_names.append(Naming(name, file))
        _name(self.names, self.pending_names[-1])

    def image(self, dice: random.Random) -> dict[str, bytes]:
        """One of the contents that the directory may have if the power fails now."""
        names, keep = dict(self.durable_names), Keeping.drawn(dice)
        for naming in self.pending_names[: keep.names(len(self.pending_names))]:
            _name(names, naming)
        return {name: bytes(keep.content(file)) for name, file in names.items()}

    def whole(self) -> dict[str, bytes]:
        """The contents as every process sees them that runs on."""
        return {name: bytes(KeepsAll().content(file)) for name, file in self.names.items()}


def _name(names: dict[str, File], naming: Naming) -> None:
    if naming.file is None:
        names.pop(naming.name, None)
    else:
        names[naming.name] = naming.file


@define
class Keeping:
    """How much of what was never synced is there all the same."""

    dice: random.Random
    share: float
    """Of the sectors, each by chance."""
    in_order: bool = False
    """The first changes are there and the rest is not, as if nothing were ever reordered."""
    by_file: bool = False
    """Of each file all or nothing."""

    @classmethod
    def drawn(cls, dice: random.Random) -> "Keeping":
        share = dice.choice((0.0, 0.1, 0.5, 0.9, 0.98, 1.0))
        return cls(dice, share, in_order=dice.random() < 0.2, by_file=dice.random() < 0.2)

    def names(self, count: int) -> int:
        return self.dice.randint(0, count)

    def content(self, file: File) -> bytearray:
        content = bytearray(file.durable)
        share = float(self.dice.random() < self.share) if self.by_file else self.share
        changes = file.pending[: self.dice.randint(0, len(file.pending))] if self.in_order else file.pending
        for number, change in enumerate(changes, start=1):
            self._apply(change, content, 1.0 if self.in_order and number < len(changes) else share)
        return content

    def _apply(self, change: Change, content: bytearray, share: float) -> None:
        if change.kind is Kind.TRUNCATE or share in (0.0, 1.0):
            if self.dice.random() < share:
                apply(change, content)
            return
        for at, sector in sectors(change):
            if self.dice.random() < share:
                write(content, at, sector)


class KeepsAll:
    """Nothing is lost while the power is on."""

    def content(self, file: File) -> bytearray:
        content = bytearray(file.durable)
        for change in file.pending:
            apply(change, content)
        return content


def sectors(change: Change) -> Iterator[tuple[int, bytes]]:
    """The parts of a write that the disk takes whole or not at all."""
    at, end = change.at, change.at + len(change.data)
    while at < end:
        until = min(end, (at // SECTOR + 1) * SECTOR)
        yield at, change.data[at - change.at : until - change.at]
        at = until
