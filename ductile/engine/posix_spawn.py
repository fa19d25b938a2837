"""`posix_spawn` twice: Python's own, and as the C library has it.

Python's costs half as much, but keeps the interpreter lock until the child has exec'd. Where that takes long, the other
one lets the rest of the service go on. Knows nothing of pipes or plugins; `launch` is the only caller.
"""

import ctypes
import os
import signal
from collections.abc import Mapping
from functools import lru_cache

# An ignored signal would be inherited: Python ignores SIGPIPE and SIGXFSZ, a shell's `nohup` or `&` others. All of them
# are named, because the C library asks the kernel about each one that is not.
_RESET_SIGNALS = tuple(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
# <spawn.h> of Linux. The structures are opaque; these sizes are above those of every C library there.
_SETSIGDEF, _SETSIGMASK, _SETSID = 0x04, 0x08, 0x80
_ATTRIBUTES_BYTES, _FILE_ACTIONS_BYTES, _SIGNAL_SET_BYTES = 512, 128, 128

_libc = ctypes.CDLL(None)
_spawn = _libc.posix_spawn
_spawn.argtypes = [ctypes.c_void_p, ctypes.c_char_p, *[ctypes.c_void_p] * 4]
_begin_actions = _libc.posix_spawn_file_actions_init
_add_dup2 = _libc.posix_spawn_file_actions_adddup2
_end_actions = _libc.posix_spawn_file_actions_destroy
_begin_actions.argtypes = _end_actions.argtypes = [ctypes.c_void_p]
_add_dup2.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int]


def _attributes() -> ctypes.Array[ctypes.c_char]:
    """A session of its own, no signal blocked, none ignored; made once and only read afterwards."""
    attributes = ctypes.create_string_buffer(_ATTRIBUTES_BYTES)
    nothing, reset = (ctypes.create_string_buffer(_SIGNAL_SET_BYTES) for _ in range(2))
    _libc.posix_spawnattr_init(attributes)
    for signals in (nothing, reset):
        _libc.sigemptyset(signals)
    for number in _RESET_SIGNALS:
        _libc.sigaddset(reset, int(number))
    _libc.posix_spawnattr_setsigmask(attributes, nothing)
    _libc.posix_spawnattr_setsigdefault(attributes, reset)
    _libc.posix_spawnattr_setflags(attributes, ctypes.c_short(_SETSIGDEF | _SETSIGMASK | _SETSID))
    return attributes


_ATTRIBUTES = _attributes()


def spawn(argv: list[str], env: Mapping[str, str], streams: tuple[int, int, int]) -> int:
    """The pid of a process in its own session that has exec'd `argv[0]` with exactly these streams and environment.

    Raises OSError if it could not, and ValueError for what no process can be given.
    """
    return os.posix_spawn(
        argv[0],
        argv,
        env,
        file_actions=[(os.POSIX_SPAWN_DUP2, ours, theirs) for theirs, ours in enumerate(streams)],
        setsid=True,
        setsigmask=(),
        setsigdef=_RESET_SIGNALS,
    )


def spawn_unlocked(argv: list[str], env: Mapping[str, str], streams: tuple[int, int, int]) -> int:
    """The same, with the interpreter lock released while it blocks."""
    path = _text(argv[0])
    arguments = _array([_text(each) for each in argv])
    environment = _array([_entry(name, value) for name, value in env.items()])
    pid = ctypes.c_int()
    actions = ctypes.create_string_buffer(_FILE_ACTIONS_BYTES)
    _begin_actions(actions)
    try:
        for theirs, ours in enumerate(streams):
            if code := _add_dup2(actions, ours, theirs):
                raise OSError(code, os.strerror(code))
        code = _spawn(ctypes.byref(pid), path, actions, _ATTRIBUTES, arguments, environment)
    finally:
        _end_actions(actions)
    if code:
        raise OSError(code, os.strerror(code))
    return pid.value


def _text(value: str) -> bytes:
    encoded = os.fsencode(value)
    if b"\0" in encoded:
        raise ValueError("embedded null byte")
    return encoded


@lru_cache(maxsize=1024)  # most of an environment is the same for every process
def _entry(name: str, value: str) -> bytes:
    if "=" in name:
        raise ValueError("illegal environment variable name")
    return _text(name) + b"=" + _text(value)


def _array(texts: list[bytes]) -> ctypes.Array[ctypes.c_char_p]:
    return (ctypes.c_char_p * (len(texts) + 1))(*texts, None)
