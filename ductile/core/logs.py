"""The structured log: one JSON object per line, written by a separate thread so that logging never blocks.

If the reader of the log stalls, lines are dropped and counted. Known secrets are masked here.
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
MAX_QUEUED_LINES, WAKE_AT_LINES = 10_000, 2_500
FLUSH_TIMEOUT = 2.0
MAX_VALUE_LENGTH = 64 << 10
WRITE_INTERVAL = 0.1
"""Pause of the writer thread between two writes, so that it wakes once per burst; cut short at `WAKE_AT_LINES`."""
END = b""


class Log:
    """The log of the service. Its methods can be called from any thread."""

    def __init__(
        self, *, level: str = "info", style: str = "json", descriptor: int = 1, mask: Mask | None = None
    ) -> None:
        self.mask = mask or Mask()
        self._min_level = LEVELS[level]
        self._render = _as_json if style == "json" else _as_text
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._accepted = self._written = self._lost = 0
        self._pipe = _poll_if_pipe(descriptor)
        self._descriptor = descriptor
        self._writable = [(descriptor, select.POLLOUT)]
        self._wake = threading.Event()
        self._writer = threading.Thread(target=self._write, name="log-writer", daemon=True)
        self._writer.start()

    def set_level(self, level: str) -> None:
        self._min_level = LEVELS[level]

    def enabled(self, level: str) -> bool:
        return LEVELS[level] >= self._min_level

    def debug(self, component: str, message: str, **fields: Any) -> None:
        self.write("debug", component, message, fields)

    def info(self, component: str, message: str, **fields: Any) -> None:
        self.write("info", component, message, fields)

    def warn(self, component: str, message: str, **fields: Any) -> None:
        self.write("warn", component, message, fields)

    def error(self, component: str, message: str, **fields: Any) -> None:
        self.write("error", component, message, fields)

    def write(self, level: str, component: str, message: str, fields: Mapping[str, Any]) -> None:
        """Queue the line, unless its level is disabled or the queue is full."""
        if LEVELS[level] < self._min_level:
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
        elif (queued := self._lines.qsize()) < MAX_QUEUED_LINES:
            self._accepted += 1
            self._lines.put(rendered)
            if queued >= WAKE_AT_LINES:
                self._wake.set()
        else:
            self._lost += 1

    def _shown(self, text: str) -> str:
        # Masked before truncation: the mask does not match half a secret.
        masked = self.mask(text)
        return masked if len(masked) <= MAX_VALUE_LENGTH else _truncate(masked)

    def _fits_now(self, line: bytes) -> bool:
        """True if nothing is queued and the pipe has capacity: the caller can write without waking the thread."""
        return (
            self._pipe is not None
            and self._accepted == self._written
            and not self._lost
            and len(line) <= select.PIPE_BUF
            and self._pipe.poll(0) == self._writable
        )

    def close(self) -> None:
        """Write the queued lines and stop the writer thread. Waits at most `FLUSH_TIMEOUT` seconds."""
        self._lines.put(END)
        self._wake.set()
        self._writer.join(FLUSH_TIMEOUT)

    def _write(self) -> None:
        lines: list[bytes] = []
        while END not in lines:
            lines = list(self._pop_queued())
            self._put(self._loss_line() + b"".join(lines))
            self._written += len(lines)
            if END not in lines:
                self._wake.wait(WRITE_INTERVAL)
                self._wake.clear()

    def _pop_queued(self) -> Iterator[bytes]:
        """Pop all queued lines; waits for the first one."""
        yield self._lines.get()
        while not self._lines.empty():
            yield self._lines.get()

    def _loss_line(self) -> bytes:
        if not self._lost:
            return b""
        lost, self._lost = self._lost, 0
        message = f"{lost} log lines dropped: the reader of the log was too slow"
        line = {"timestamp": to_text(datetime.now(UTC)), "level": "warn", "component": "log", "message": message}
        return self._render(line)

    def _put(self, line: bytes) -> None:
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # another process made the shared descriptor non-blocking
                select.select((), (self._descriptor,), ())
            except OSError:
                return  # the reader is gone; the service continues without a log


def _poll_if_pipe(descriptor: int) -> "select.poll | None":
    """Return a poll object for a pipe; None for other files, whose writes can block even when poll reports ready."""
    try:
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return None
    except OSError:
        return None
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return poll


def _truncate(text: str) -> str:
    return f"{text[:MAX_VALUE_LENGTH]}… [{len(text) - MAX_VALUE_LENGTH} more characters]"


def _as_json(line: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(line, default=str, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a lone surrogate (from a file name) or a huge integer, which orjson rejects
        return json.dumps(line, default=str).encode() + b"\n"


def _as_text(line: dict[str, Any]) -> bytes:
    head = f"{line.pop('timestamp')} {line.pop('level').upper():5} {line.pop('component')}: {line.pop('message')}"
    rest = " ".join(f"{name}={json.dumps(value, default=str, ensure_ascii=False)}" for name, value in line.items())
    return f"{head} {rest}".rstrip().translate(_ESCAPED).encode("utf-8", "backslashreplace") + b"\n"


# Characters that would end a line early or control the reader's terminal.
_ESCAPED = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {ord("\n"): "\\n"}
