"""The log writes one JSON object per line, masks secrets and never blocks its callers."""

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from ductile.core import logs
from ductile.core.logs import MAX_QUEUED_LINES, MAX_VALUE_LENGTH, WAKE_AT_LINES, Log
from ductile.core.secret import Mask

SECRET = "hunter2hunter2"


class Pipe:
    """A log that writes into a pipe. The pipe is read when the test calls `lines`."""

    def __init__(self, **options: Any) -> None:
        self.reading, self.writing = os.pipe()
        self.log = Log(descriptor=self.writing, **options)

    def text(self) -> str:
        """Close the log and return everything that was logged."""
        chunks: list[bytes] = []
        reader = threading.Thread(target=lambda: chunks.extend(iter(lambda: os.read(self.reading, 1 << 16), b"")))
        reader.start()
        self.log.close()
        os.close(self.writing)
        self.writing = -1
        reader.join()
        return b"".join(chunks).decode()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().splitlines()]

    def close(self) -> None:
        for descriptor in (self.reading, self.writing):
            with suppress(OSError):
                os.close(descriptor)


MakePipe = Callable[..., Pipe]


@pytest.fixture
def make_pipe() -> Iterator[MakePipe]:
    pipes: list[Pipe] = []

    def make(**options: Any) -> Pipe:
        pipes.append(Pipe(**options))
        return pipes[-1]

    yield make
    for pipe in pipes:
        pipe.close()


def test_a_line_has_the_specified_fields_in_order(make_pipe: MakePipe) -> None:
    """timestamp, level, component, plugin, job_id, message, then the rest. None is omitted."""
    pipe = make_pipe()
    pipe.log.warn("spawn", "hello", attempt=2, job_id="j", plugin="p", nothing=None)
    pipe.log.info("runtime", "bare")
    first, second = pipe.lines()
    assert list(first) == ["timestamp", "level", "component", "plugin", "job_id", "message", "attempt"]
    assert (first["level"], first["component"], first["message"], first["attempt"]) == ("warn", "spawn", "hello", 2)
    assert list(second) == ["timestamp", "level", "component", "message"]


def test_standard_fields_cannot_be_overwritten(make_pipe: MakePipe) -> None:
    pipe = make_pipe()
    pipe.log.write("info", "runtime", "true", {"level": "forged", "message": "forged", "timestamp": "forged"})
    (line,) = pipe.lines()
    assert (line["level"], line["message"]) == ("info", "true")
    assert "forged" not in json.dumps(line)


def test_lines_below_the_level_are_not_written_and_the_level_can_change(make_pipe: MakePipe) -> None:
    """A reload may change the level."""
    pipe = make_pipe(level="warn")
    pipe.log.info("x", "no")
    pipe.log.error("x", "yes")
    pipe.log.set_level("debug")
    pipe.log.debug("x", "now")
    assert pipe.log.enabled("debug")
    assert [line["message"] for line in pipe.lines()] == ["yes", "now"]


HOSTILE = '\x1b[31mred\x1b[0m\r\n{"level":"error","message":"forged"}\n\x00\x7f\x9b31m'


@pytest.mark.parametrize("style", ["json", "text"])
def test_any_message_becomes_one_line_without_control_characters(make_pipe: MakePipe, style: str) -> None:
    """A message can neither forge a line nor control the reader's terminal."""
    pipe = make_pipe(style=style)
    pipe.log.info("plugin", HOSTILE, plugin=HOSTILE)
    text = pipe.text()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    if style == "json":
        assert json.loads(text)["message"] == HOSTILE
    else:
        assert not [char for char in text[:-1] if ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0]


def test_the_text_style_has_the_same_content(make_pipe: MakePipe) -> None:
    """Time, level, component, message, then the other fields."""
    pipe = make_pipe(style="text")
    pipe.log.warn("spawn", "héllo", job_id="j", n=1)
    assert pipe.text().partition(" ")[2] == 'WARN  spawn: héllo job_id="j" n=1\n'


@pytest.mark.parametrize("style", ["json", "text"])
@pytest.mark.parametrize("value", ["half \ud800", 2**70, float("nan"), b"bytes", object, {"a": {1, 2}}], ids=repr)
def test_any_value_can_be_logged(make_pipe: MakePipe, style: str, value: object) -> None:
    """A log call never raises."""
    pipe = make_pipe(style=style)
    pipe.log.info("x", f"{value}", value=value)
    assert pipe.text().count("\n") == 1


def test_known_secrets_are_masked_in_messages_and_fields(make_pipe: MakePipe) -> None:
    """Also if a long value is truncated in the middle of a secret."""
    pipe = make_pipe(mask=Mask([SECRET]))
    pipe.log.info("x", f"login {SECRET}", url=f"https://me:{SECRET}@host/")
    pipe.log.info("x", "y" * (MAX_VALUE_LENGTH - 5) + SECRET, long="y" * (MAX_VALUE_LENGTH - 5) + SECRET)
    text = pipe.text()
    assert SECRET[:5] not in text
    assert text.count("***") >= 3


def test_long_values_are_truncated_with_a_note(make_pipe: MakePipe) -> None:
    pipe = make_pipe()
    pipe.log.info("x", "y" * (MAX_VALUE_LENGTH + 7), exact="z" * MAX_VALUE_LENGTH, over="z" * (1 << 20))
    (line,) = pipe.lines()
    assert line["message"] == "y" * MAX_VALUE_LENGTH + "… [7 more characters]"
    assert line["exact"] == "z" * MAX_VALUE_LENGTH
    assert line["over"].endswith("z… [983040 more characters]")


def test_a_stalled_reader_loses_lines_but_never_blocks_the_callers(make_pipe: MakePipe) -> None:
    """A later line has the number of dropped lines."""
    pipe = make_pipe()
    total = MAX_QUEUED_LINES + 5_000
    for number in range(total):
        pipe.log.info("x", f"line {number} {'.' * 200}")
    lines = pipe.lines()
    own = [line for line in lines if line["component"] == "x"]
    dropped = [int(line["message"].split()[0]) for line in lines if line["component"] == "log"]
    assert len(own) >= MAX_QUEUED_LINES
    assert len(own) + sum(dropped) == total
    assert own[0]["message"].startswith("line 0 ")


def test_a_closed_reader_is_not_an_error(make_pipe: MakePipe) -> None:
    """The service continues without its terminal."""
    pipe = make_pipe()
    os.close(pipe.reading)
    for _ in range(100):
        pipe.log.info("x", "a line")
    pipe.log.close()
    assert not pipe.log._writer.is_alive()


def test_a_stalled_reader_delays_close_only_until_the_timeout(
    make_pipe: MakePipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "FLUSH_TIMEOUT", 0.05)
    pipe = make_pipe()
    for _ in range(MAX_QUEUED_LINES + 1_000):
        pipe.log.info("x", "." * 200)
    pipe.log.close()
    assert pipe.log._writer.is_alive()
    monkeypatch.undo()
    pipe.text()  # lets the writer thread finish
    assert not pipe.log._writer.is_alive()


def test_a_non_blocking_descriptor_loses_no_lines(make_pipe: MakePipe) -> None:
    """Another program that shares the terminal may have changed it."""
    pipe = make_pipe()
    fcntl.fcntl(pipe.writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(pipe.writing, False)
    for number in range(500):
        pipe.log.info("x", f"line {number} {'.' * 200}")
    assert [int(line["message"].split()[1]) for line in pipe.lines()] == list(range(500))


def test_close_does_not_wait_for_the_write_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that are queued during the interval are written."""
    monkeypatch.setattr(logs, "WRITE_INTERVAL", 3600.0)
    with (tmp_path / "log").open("wb+", buffering=0) as file:
        log = Log(descriptor=file.fileno())
        log.info("x", "first")
        while log._written == 0:
            time.sleep(0)
        log.info("x", "second")
        log.close()
        assert not log._writer.is_alive()
        file.seek(0)
        assert [json.loads(line)["message"] for line in file] == ["first", "second"]


def test_a_burst_that_the_reader_can_follow_loses_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many queued lines end the write interval early."""
    monkeypatch.setattr(logs, "WRITE_INTERVAL", 600.0)
    with (tmp_path / "log").open("wb") as file:
        log = Log(descriptor=file.fileno())
        for number in range(3 * MAX_QUEUED_LINES):
            log.info("test", "a line", number=number)
            while log._lines.qsize() > WAKE_AT_LINES + 1:
                os.sched_yield()
        log.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert [json.loads(line).get("number") for line in lines] == list(range(3 * MAX_QUEUED_LINES))
