"""Log lines that never block the core: one JSON object a line, written by a thread of its own.

A reader that stalls costs log lines, not jobs; lost lines are counted and told. Known secrets are masked here.
"""

import json
import os
import queue
import select
import stat
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson

from ductile.core.clock import to_text
from ductile.core.secret import Mask

LEVELS = {"debug": 10, "info": 20, "warn": 30, "error": 40}
MOST_WAITING, MANY_WAITING = 10_000, 2_500
FLUSH_SECONDS = 2.0
LONGEST_VALUE = 64 << 10
PAUSE_SECONDS = 0.1
"""Between two writes of the thread, so that it wakes once for a burst and not for each of its lines; unless there are
many of them by then."""
END = b""


class Log:
    """Where everything in the service writes its lines."""

    def __init__(
        self, *, level: str = "info", style: str = "json", descriptor: int = 1, mask: Mask | None = None
    ) -> None:
        self.mask = mask or Mask()
        self._least = LEVELS[level]
        self._render = _as_json if style == "json" else _as_text
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._handed_over = self._written = self._lost = 0
        self._pipe = _poll_if_pipe(descriptor)
        self._descriptor = descriptor
        self._has_room = [(descriptor, select.POLLOUT)]
        self._hurries = threading.Event()
        self._writer = threading.Thread(target=self._write, name="log-writer", daemon=True)
        self._writer.start()

    def set_level(self, level: str) -> None:
        self._least = LEVELS[level]

    def enabled(self, level: str) -> bool:
        return LEVELS[level] >= self._least

    def debug(self, component: str, message: str, **fields: Any) -> None:
        self.write("debug", component, message, fields)

    def info(self, component: str, message: str, **fields: Any) -> None:
        self.write("info", component, message, fields)

    def warn(self, component: str, message: str, **fields: Any) -> None:
        self.write("warn", component, message, fields)

    def error(self, component: str, message: str, **fields: Any) -> None:
        self.write("error", component, message, fields)

    def write(self, level: str, component: str, message: str, fields: Mapping[str, Any]) -> None:
        """The line is on its way, unless its level is not wanted or too many lines wait already."""
        if LEVELS[level] < self._least:
            return
        line: dict[str, Any] = {"timestamp": to_text(datetime.now(UTC)), "level": level, "component": component}
        for name in ("plugin", "job_id"):
            if fields.get(name) is not None:
                line[name] = fields[name]
        line["message"] = self._shown(message)
        for name, value in fields.items():
            if name not in line and value is not None:
                line[name] = self._shown(value) if isinstance(value, str) else value
        rendered = self._render(line)
        if self._fits_now(rendered):
            self._put(rendered)
        elif (waiting := self._lines.qsize()) < MOST_WAITING:
            self._handed_over += 1
            self._lines.put(rendered)
            if waiting >= MANY_WAITING:
                self._hurries.set()
        else:
            self._lost += 1

    def _shown(self, text: str) -> str:
        # Masked before it is cut: half a secret would no longer be recognised.
        masked = self.mask(text)
        return masked if len(masked) <= LONGEST_VALUE else _cut(masked)

    def _fits_now(self, line: bytes) -> bool:
        """True if nothing waits and the pipe has room: then the line goes out here, without waking the other thread."""
        return (
            self._pipe is not None
            and self._handed_over == self._written
            and not self._lost
            and len(line) <= select.PIPE_BUF
            and self._pipe.poll(0) == self._has_room
        )

    def close(self) -> None:
        """What waits is written, as long as the reader takes it within two seconds."""
        self._lines.put(END)
        self._hurries.set()
        self._writer.join(FLUSH_SECONDS)

    def _write(self) -> None:
        lines: list[bytes] = []
        while END not in lines:
            lines = list(self._waiting())
            self._put(self._told_losses() + b"".join(lines))
            self._written += len(lines)
            if END not in lines:
                self._hurries.wait(PAUSE_SECONDS)
                self._hurries.clear()

    def _waiting(self) -> Iterator[bytes]:
        """What waits by now, at least one line."""
        yield self._lines.get()
        while not self._lines.empty():
            yield self._lines.get()

    def _told_losses(self) -> bytes:
        if not self._lost:
            return b""
        lost, self._lost = self._lost, 0
        message = f"{lost} log lines lost: the reader of the log was too slow"
        line = {"timestamp": to_text(datetime.now(UTC)), "level": "warn", "component": "log", "message": message}
        return self._render(line)

    def _put(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # somebody else made the shared descriptor non-blocking
                select.select((), (self._descriptor,), ())
            except OSError:
                return  # nobody reads the log any more; the service goes on


def _poll_if_pipe(descriptor: int) -> "select.poll | None":
    """How to ask a pipe whether it has room for a whole line; other files cannot promise that a write returns."""
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return None
    except OSError:
        return None
    asked = select.poll()
    asked.register(descriptor, select.POLLOUT)
    return asked


def _cut(text: str) -> str:
    return f"{text[:LONGEST_VALUE]}… [{len(text) - LONGEST_VALUE} more characters]"


def _as_json(line: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(line, default=str, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a lone surrogate (an odd file name) or a huge integer, which only the slow encoder takes
        return json.dumps(line, default=str).encode() + b"\n"


def _as_text(line: dict[str, Any]) -> bytes:
    head = f"{line.pop('timestamp')} {line.pop('level').upper():5} {line.pop('component')}: {line.pop('message')}"
    rest = " ".join(f"{name}={json.dumps(value, default=str, ensure_ascii=False)}" for name, value in line.items())
    return f"{head} {rest}".rstrip().translate(_ESCAPED).encode("utf-8", "backslashreplace") + b"\n"


# What would end a line early, or act on the terminal of whoever reads it.
_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {ord("\n"): "\\n"}
