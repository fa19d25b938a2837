"""A process between the core and a plugin: it runs the plugin as it is, and spoils what comes back.

Started by path with the standard library alone, in the plugin's environment: `disturb.py FAULT ENTRYPOINT`. It knows
nothing of the protocol, only bytes and exits.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

SLOW_SECONDS = 1.0
PIECES = 20


def hold_back(answer: bytes) -> None:
    """The answer never comes; SIGTERM ends the wait."""
    while True:
        signal.pause()


def crash(answer: bytes) -> None:
    """Everything was done, nothing was said."""
    os.kill(os.getpid(), signal.SIGKILL)


def talk_nonsense(answer: bytes) -> None:
    """Something that is not JSON, not even UTF-8."""
    sys.stdout.buffer.write(b"\x00\xff\xfe this is not an answer \xf0\x28\x8c\n")


def be_slow(answer: bytes) -> None:
    """The whole answer, in pieces, over a second."""
    size = max(1, -(-len(answer) // PIECES))
    for start in range(0, len(answer), size):
        time.sleep(SLOW_SECONDS / PIECES)
        sys.stdout.buffer.write(answer[start : start + size])
        sys.stdout.buffer.flush()


def break_off(answer: bytes) -> None:
    """The first half of the answer."""
    sys.stdout.buffer.write(answer[: len(answer) // 2])


FAULTS: dict[str, Callable[[bytes], None]] = {
    "timeout": hold_back,
    "crash": crash,
    "garbage": talk_nonsense,
    "slow": be_slow,
    "partial": break_off,
}


def main(fault: str, *argv: str) -> int:
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=False)
    FAULTS[fault](done.stdout)
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
