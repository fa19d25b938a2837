"""Rules for the log: one JSON object a line, nothing secret in it, and nobody who can hold up the core."""

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
from ductile.core.logs import LONGEST_VALUE, MANY_WAITING, MOST_WAITING, Log
from ductile.core.secret import Mask

SECRET = "hunter2hunter2"


class Pipe:
    """A log on one end of a pipe and its reader on the other, who reads when the test says so."""

    def __init__(self, **options: Any) -> None:
        self.reading, self.writing = os.pipe()
        self.log = Log(descriptor=self.writing, **options)

    def text(self) -> str:
        """Everything that was logged until now, after the log is closed."""
        heard: list[bytes] = []
        reader = threading.Thread(target=lambda: heard.extend(iter(lambda: os.read(self.reading, 1 << 16), b"")))
        reader.start()
        self.log.close()
        os.close(self.writing)
        self.writing = -1
        reader.join()
        return b"".join(heard).decode()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().splitlines()]

    def close(self) -> None:
        for descriptor in (self.reading, self.writing):
            with suppress(OSError):
                os.close(descriptor)


MakePipe = Callable[..., Pipe]


@pytest.fixture
def make_pipe() -> Iterator[MakePipe]:
    made: list[Pipe] = []

    def make(**options: Any) -> Pipe:
        made.append(Pipe(**options))
        return made[-1]

    yield make
    for pipe in made:
        pipe.close()


def test_a_line_has_the_fields_of_the_specification_in_their_order(make_pipe: MakePipe) -> None:
    """timestamp, level, component, plugin, job_id, message, then the rest; what is None is left out."""
    pipe = make_pipe()
    pipe.log.warn("spawn", "hello", attempt=2, job_id="j", plugin="p", nothing=None)
    pipe.log.info("runtime", "bare")
    first, second = pipe.lines()
    assert list(first) == ["timestamp", "level", "component", "plugin", "job_id", "message", "attempt"]
    assert (first["level"], first["component"], first["message"], first["attempt"]) == ("warn", "spawn", "hello", 2)
    assert list(second) == ["timestamp", "level", "component", "message"]


def test_the_fields_of_the_core_cannot_be_overwritten(make_pipe: MakePipe) -> None:
    """Whatever a caller passes along."""
    pipe = make_pipe()
    pipe.log.write("info", "runtime", "true", {"level": "forged", "message": "forged", "timestamp": "forged"})
    (line,) = pipe.lines()
    assert (line["level"], line["message"]) == ("info", "true")
    assert "forged" not in json.dumps(line)


def test_lines_below_the_level_are_not_written_and_the_level_can_change(make_pipe: MakePipe) -> None:
    """A reload may ask for more or for less."""
    pipe = make_pipe(level="warn")
    pipe.log.info("x", "no")
    pipe.log.error("x", "yes")
    pipe.log.set_level("debug")
    pipe.log.debug("x", "now")
    assert pipe.log.enabled("debug")
    assert [line["message"] for line in pipe.lines()] == ["yes", "now"]


HOSTILE = '\x1b[31mred\x1b[0m\r\n{"level":"error","message":"forged"}\n\x00\x7f\x9b31m'


@pytest.mark.parametrize("style", ["json", "text"])
def test_whatever_a_message_contains_is_one_line_without_control_characters(make_pipe: MakePipe, style: str) -> None:
    """Nobody can forge a line or speak to the terminal of whoever reads the log."""
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
    """For people at a terminal: time, level, who, what, then the rest."""
    pipe = make_pipe(style="text")
    pipe.log.warn("spawn", "héllo", job_id="j", n=1)
    assert pipe.text().partition(" ")[2] == 'WARN  spawn: héllo job_id="j" n=1\n'


@pytest.mark.parametrize("style", ["json", "text"])
@pytest.mark.parametrize("odd", ["half \ud800", 2**70, float("nan"), b"bytes", object, {"a": {1, 2}}], ids=repr)
def test_no_value_is_too_odd_to_be_logged(make_pipe: MakePipe, style: str, odd: object) -> None:
    """A log call never raises: it is made in places that must not fail."""
    pipe = make_pipe(style=style)
    pipe.log.info("x", f"{odd}", value=odd)
    assert pipe.text().count("\n") == 1


def test_known_secrets_are_masked_in_messages_and_fields(make_pipe: MakePipe) -> None:
    """Also where a long value is cut in the middle of one: half a secret is not shown either."""
    pipe = make_pipe(mask=Mask([SECRET]))
    pipe.log.info("x", f"login {SECRET}", url=f"https://me:{SECRET}@host/")
    pipe.log.info("x", "y" * (LONGEST_VALUE - 5) + SECRET, long="y" * (LONGEST_VALUE - 5) + SECRET)
    text = pipe.text()
    assert SECRET[:5] not in text
    assert text.count("***") >= 3


def test_long_values_are_cut_with_a_mark(make_pipe: MakePipe) -> None:
    """One line cannot fill the disk."""
    pipe = make_pipe()
    pipe.log.info("x", "y" * (LONGEST_VALUE + 7), exact="z" * LONGEST_VALUE, over="z" * (1 << 20))
    (line,) = pipe.lines()
    assert line["message"] == "y" * LONGEST_VALUE + "… [7 more characters]"
    assert line["exact"] == "z" * LONGEST_VALUE
    assert line["over"].endswith("z… [983040 more characters]")


def test_a_reader_that_stalls_costs_lines_and_never_time(make_pipe: MakePipe) -> None:
    """Nobody reads while far too much is logged; the calls return, and later the reader is told what is missing."""
    pipe = make_pipe()
    asked = MOST_WAITING + 5_000
    for number in range(asked):
        pipe.log.info("x", f"line {number} {'.' * 200}")
    lines = pipe.lines()
    own = [line for line in lines if line["component"] == "x"]
    told = [int(line["message"].split()[0]) for line in lines if line["component"] == "log"]
    assert len(own) >= MOST_WAITING
    assert len(own) + sum(told) == asked
    assert own[0]["message"].startswith("line 0 ")


def test_a_reader_that_has_left_is_no_error(make_pipe: MakePipe) -> None:
    """The service outlives its terminal."""
    pipe = make_pipe()
    os.close(pipe.reading)
    for _ in range(100):
        pipe.log.info("x", "anybody?")
    pipe.log.close()
    assert not pipe.log._writer.is_alive()


def test_a_reader_that_never_comes_back_cannot_hold_up_the_end(
    make_pipe: MakePipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing waits for a moment, then the process may end."""
    monkeypatch.setattr(logs, "FLUSH_SECONDS", 0.05)
    pipe = make_pipe()
    for _ in range(MOST_WAITING + 1_000):
        pipe.log.info("x", "." * 200)
    pipe.log.close()
    assert pipe.log._writer.is_alive()
    monkeypatch.undo()
    pipe.text()  # lets the writer go on, and end
    assert not pipe.log._writer.is_alive()


def test_a_descriptor_that_somebody_made_non_blocking_loses_nothing(make_pipe: MakePipe) -> None:
    """A terminal is shared: another program may have changed how it behaves."""
    pipe = make_pipe()
    fcntl.fcntl(pipe.writing, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(pipe.writing, False)
    for number in range(500):
        pipe.log.info("x", f"line {number} {'.' * 200}")
    assert [int(line["message"].split()[1]) for line in pipe.lines()] == list(range(500))


def test_the_end_does_not_wait_for_the_pause_between_two_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What comes during the pause is written when the log is closed."""
    monkeypatch.setattr(logs, "PAUSE_SECONDS", 3600.0)
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


def test_a_burst_that_the_reader_takes_loses_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the pause between two writes is: it is over when many lines wait."""
    monkeypatch.setattr(logs, "PAUSE_SECONDS", 600.0)
    with (tmp_path / "log").open("wb") as file:
        log = Log(descriptor=file.fileno())
        for number in range(3 * MOST_WAITING):
            log.info("test", "a line", number=number)
            while log._lines.qsize() > MANY_WAITING + 1:
                os.sched_yield()
        log.close()
    lines = (tmp_path / "log").read_text().splitlines()
    assert [json.loads(line).get("number") for line in lines] == list(range(3 * MOST_WAITING))
