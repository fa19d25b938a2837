"""A command in a real pseudo terminal: what it writes is read as a screen, keys and signals go in, the size changes."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyte
from attrs import define, field

from tests.e2e.service import PATIENCE


@define(eq=False)
class Terminal:
    """One process and the terminal it runs in."""

    process: "subprocess.Popen[bytes]"
    fd: int
    screen: pyte.Screen
    before: list[Any]
    """The settings of the line before the process had it."""
    written: bytearray = field(factory=bytearray)
    _heard: threading.Condition = field(factory=threading.Condition)
    _is_closed: bool = False

    @classmethod
    def run(
        cls, *args: str | Path, width: int = 100, height: int = 30, environ: Mapping[str, str] | None = None
    ) -> "Terminal":
        """`ductile ARGS` in a terminal of that size."""
        fd, inner = pty.openpty()
        _resize(fd, width, height)
        before = termios.tcgetattr(inner)
        usual = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        process = subprocess.Popen(
            [sys.executable, "-m", "ductile", *map(str, args)],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env={**usual, "TERM": "xterm-256color", **(environ or {})},
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(inner)
        terminal = cls(process, fd, pyte.Screen(width, height), before)
        threading.Thread(target=terminal._listen, daemon=True).start()
        return terminal

    def _listen(self) -> None:
        stream = pyte.ByteStream(self.screen)
        while True:
            try:
                piece = os.read(self.fd, 65536)
            except OSError:
                piece = b""
            with self._heard:
                self.written += piece
                stream.feed(piece)
                self._is_closed = not piece
                self._heard.notify_all()
            if not piece:
                return

    @property
    def text(self) -> str:
        with self._heard:
            return "\n".join(line.rstrip() for line in self.screen.display)

    def wait_for(self, fact: Callable[[str], Any], what: str) -> str:
        """The screen once `fact` is true of it."""
        with self._heard:
            done = self._heard.wait_for(lambda: fact("\n".join(self.screen.display)) or self._is_closed, PATIENCE)
        text = self.text
        assert done, f"{what}: not within {PATIENCE} s, but:\n{text}"
        assert fact(text), f"{what}: it ended before, with:\n{text}"
        return text

    def sees(self, *words: str) -> str:
        """The screen once all the words are on it."""
        return self.wait_for(lambda text: all(word in text for word in words), f"{words} on the screen")

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def resize(self, width: int, height: int) -> None:
        with self._heard:
            self.screen.resize(height, width)
            self.screen.reset()
        _resize(self.fd, width, height)
        self.process.send_signal(signal.SIGWINCH)

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self.fd)

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.fd)


def _resize(fd: int, width: int, height: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
