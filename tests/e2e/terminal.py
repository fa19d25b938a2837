"""A command in a pseudo terminal: screen, keys, signals and size."""

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

from tests.e2e.service import WAIT_SECONDS


@define(eq=False)
class Terminal:
    """A process and its pseudo terminal."""

    process: "subprocess.Popen[bytes]"
    fd: int
    screen: pyte.Screen
    before: list[Any]
    """The terminal settings before the start of the process."""
    written: bytearray = field(factory=bytearray)
    _changed: threading.Condition = field(factory=threading.Condition)
    _is_closed: bool = False

    @classmethod
    def run(
        cls, *args: str | Path, width: int = 100, height: int = 30, environ: Mapping[str, str] | None = None
    ) -> "Terminal":
        """Start `ductile ARGS` in a terminal of this size."""
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
        threading.Thread(target=terminal._read_output, daemon=True).start()
        return terminal

    def _read_output(self) -> None:
        stream = pyte.ByteStream(self.screen)
        while True:
            try:
                chunk = os.read(self.fd, 65536)
            except OSError:
                chunk = b""
            with self._changed:
                self.written += chunk
                stream.feed(chunk)
                self._is_closed = not chunk
                self._changed.notify_all()
            if not chunk:
                return

    @property
    def text(self) -> str:
        with self._changed:
            return "\n".join(line.rstrip() for line in self.screen.display)

    def wait_for(self, fact: Callable[[str], Any], what: str) -> str:
        """Wait until `fact` is true of the screen and return the screen."""
        with self._changed:
            done = self._changed.wait_for(lambda: fact("\n".join(self.screen.display)) or self._is_closed, WAIT_SECONDS)
        text = self.text
        assert done, f"{what}: not within {WAIT_SECONDS} s:\n{text}"
        assert fact(text), f"{what}: the process ended first, with:\n{text}"
        return text

    def wait_for_text(self, *words: str) -> str:
        """Wait until all words are on the screen and return the screen."""
        return self.wait_for(lambda text: all(word in text for word in words), f"{words} on the screen")

    def press(self, keys: str) -> None:
        os.write(self.fd, keys.encode())

    def resize(self, width: int, height: int) -> None:
        with self._changed:
            self.screen.resize(height, width)
            self.screen.reset()
        _resize(self.fd, width, height)
        self.process.send_signal(signal.SIGWINCH)

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self.fd)

    def wait(self) -> int:
        return self.process.wait(WAIT_SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.fd)


def _resize(fd: int, width: int, height: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
