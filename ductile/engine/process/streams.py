"""Buffers for the output of one process: the head of stdout and the tail of stderr, each with a cap."""

from attrs import define, field, frozen


@frozen
class Caps:
    """The bytes stored of each stream. More on stdout ends the run, more on stderr drops the oldest."""

    stdout: int = 10 << 20
    stderr: int = 64 << 10


@define(eq=False)
class HeadBuffer:
    """The first `cap` bytes of a stream, and the number of bytes seen."""

    cap: int
    total: int = 0
    is_complete: bool = False
    """The stream has reached its end."""
    _data: bytearray = field(factory=bytearray)

    @property
    def is_over_cap(self) -> bool:
        return self.total > self.cap

    def write(self, chunk: bytes | bytearray) -> None:
        self._data += chunk[: max(0, self.cap - self.total)]
        self.total += len(chunk)

    def read(self) -> bytes:
        """Return the first `cap` bytes."""
        return bytes(self._data)


@define(eq=False)
class TailBuffer:
    """The last `cap` bytes of a stream, readable while the stream is still being written."""

    cap: int = Caps().stderr
    total: int = 0
    is_complete: bool = False
    """The stream has reached its end."""
    _data: bytearray = field(factory=bytearray)

    def write(self, chunk: bytes | bytearray) -> None:
        self._data += chunk
        self.total += len(chunk)
        if len(self._data) > 2 * self.cap:
            del self._data[: -self.cap]

    def read(self) -> bytes:
        """Return the last `cap` bytes, from the first whole UTF-8 character on."""
        tail = bytes(self._data[-self.cap :])
        return tail[_continuation_bytes(tail) :] if self.total > len(tail) else tail


def _continuation_bytes(tail: bytes) -> int:
    """Count the leading bytes of a character whose beginning is cut off."""
    return next((at for at, byte in enumerate(tail[:4]) if byte & 0xC0 != 0x80), 0)
