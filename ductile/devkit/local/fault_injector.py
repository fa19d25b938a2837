"""A wrapper process that runs a plugin and injects a fault into its output.

Started by path in the plugin's environment, with only the standard library: `fault_injector.py FAULT ENTRYPOINT`. Does
not depend on the protocol.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

SLOW_SECONDS = 1.0
PIECES = 20


def hang(response: bytes) -> None:
    """Never respond. SIGTERM ends the process."""
    while True:
        signal.pause()


def crash(response: bytes) -> None:
    """Crash after the plugin has finished, without output."""
    os.kill(os.getpid(), signal.SIGKILL)


def write_garbage(response: bytes) -> None:
    """Write bytes that are neither JSON nor UTF-8."""
    sys.stdout.buffer.write(b"\x00\xff\xfe this is not a response \xf0\x28\x8c\n")


def write_slowly(response: bytes) -> None:
    """Write the whole response in pieces, over one second."""
    size = max(1, -(-len(response) // PIECES))
    for start in range(0, len(response), size):
        time.sleep(SLOW_SECONDS / PIECES)
        sys.stdout.buffer.write(response[start : start + size])
        sys.stdout.buffer.flush()


def write_partially(response: bytes) -> None:
    """Write the first half of the response."""
    sys.stdout.buffer.write(response[: len(response) // 2])


FAULTS: dict[str, Callable[[bytes], None]] = {
    "timeout": hang,
    "crash": crash,
    "garbage": write_garbage,
    "slow": write_slowly,
    "partial": write_partially,
}


def main(fault: str, *argv: str) -> int:
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=False)
    FAULTS[fault](done.stdout)
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
