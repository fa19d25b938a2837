"""What the C library does with memory that was freed: gives it back to the system, or keeps it for the next who asks.

Knows glibc; other C libraries give memory back by themselves. Nobody is told what it is used for.
"""

from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_HEAPS = 2
_MAPPED_FROM, _KEPT = 1 << 20, 16 << 20
_MAPPED_FROM_AT_MOST, _MUCH_KEPT = 32 << 20, 64 << 20
"""The first is as far as glibc goes; larger blocks are mapped one by one whatever it is told."""


def keep_little() -> None:
    """Large blocks are mapped one by one and few threads share the heap, so that freed memory leaves the process."""
    _tell({_M_ARENA_MAX: _HEAPS, _M_MMAP_THRESHOLD: _MAPPED_FROM, _M_TRIM_THRESHOLD: _KEPT})


def keep_much() -> None:
    """Large blocks that are freed are used again."""
    _tell({_M_MMAP_THRESHOLD: _MAPPED_FROM_AT_MOST, _M_TRIM_THRESHOLD: _MUCH_KEPT})


def give_back() -> None:
    """What is free has left the process, and from now on little is kept."""
    keep_little()
    if trim := _c_function("malloc_trim"):
        trim(0)


def _tell(options: dict[int, int]) -> None:
    if mallopt := _c_function("mallopt"):
        for option, value in options.items():
            mallopt(option, value)


def _c_function(name: str) -> Callable[..., int] | None:
    import ctypes  # only the service needs it

    return getattr(ctypes.CDLL(None), name, None)
