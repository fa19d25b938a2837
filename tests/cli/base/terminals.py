"""Run one command in a pseudo-terminal and capture the screen."""

import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Mapping
from typing import NamedTuple

import pyte

ROWS = 200
_SCRIPT = "import sys; from ductile.cli import main; main()"


class Screen(NamedTuple):
    """The lines on the screen and the bytes that were sent."""

    lines: list[str]
    sent: bytes
    exit_code: int
    screen: pyte.Screen

    def colour_of(self, word: str) -> str:
        """Return the colour of the first occurrence of the word."""
        row, line = next((row, line) for row, line in enumerate(self.screen.display) if word in line)
        return str(self.screen.buffer[row][line.index(word)].fg)


def run_in_terminal(*args: object, columns: int = 80, environ: Mapping[str, str] | None = None) -> Screen:
    """Run `ductile ARGS…` in a pseudo-terminal until it exits."""
    theirs, ours = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    child = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", _SCRIPT, *map(str, args)],
        {**plain, "TERM": "xterm-256color", **(environ or {})},
        file_actions=[(os.POSIX_SPAWN_DUP2, ours, number) for number in range(3)],
    )
    os.close(ours)
    sent = b"".join(iter(lambda: _read(theirs), b""))
    os.close(theirs)
    screen = pyte.Screen(columns, ROWS)
    pyte.ByteStream(screen).feed(sent)
    exit_code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Screen([line.rstrip() for line in screen.display], sent, exit_code, screen)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other end is closed
        return b""
