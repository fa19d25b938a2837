"""Buffers for the output of one process: the head of stdout and the tail of stderr, each with a cap."""

from attrs import define, field, frozen


@frozen
class Caps:
    """How many bytes of each stream are kept: more on stdout ends the run, more on stderr drops the oldest."""

    stdout: int = 10 << 20
    stderr: int = 64 << 10


@define(eq=False)
class HeadBuffer:
    """The first `cap` bytes of a stream, and the number of bytes seen."""

    cap: int
    total: int = 0
    is_complete: bool = False
    """The stream has reached its end."""
    _kept: bytearray = field(factory=bytearray)

    @property
    def is_over_cap(self) -> bool:
        return self.total > self.cap

    def write(self, chunk: bytes | bytearray) -> None:
        self._kept += chunk[: max(0, self.cap - self.total)]
        self.total += len(chunk)

    def read(self) -> bytes:
        """Return what is kept."""
        return bytes(self._kept)


@define(eq=False)
class TailBuffer:
    """The last `cap` bytes of a stream, readable while the stream is still being written."""

    cap: int = Caps().stderr
    total: int = 0
    is_complete: bool = False
    """The stream has reached its end."""
    _kept: bytearray = field(factory=bytearray)

    def write(self, chunk: bytes | bytearray) -> None:
        self._kept += chunk
        self.total += len(chunk)
        if len(self._kept) > 2 * self.cap:
            del self._kept[: -self.cap]

    def read(self) -> bytes:
        """Return everything, or the last `cap` bytes from the first whole UTF-8 character on."""
        kept = bytes(self._kept[-self.cap :])
        return kept[_continuation_bytes(kept) :] if self.total > len(kept) else kept


def _continuation_bytes(cut: bytes) -> int:
    """Count the leading bytes that belong to a character which began before the cut."""
    return next((at for at, byte in enumerate(cut[:4]) if byte & 0xC0 != 0x80), 0)
