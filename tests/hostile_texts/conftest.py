"""A separate process that loads hostile texts, so that a crash can be attributed to one text."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from attrs import frozen

import ductile


@frozen
class LoadResult:
    """The type of the loaded value, or the reason of the refusal. `died` is the exit code of a crashed reader."""

    cpu_seconds: float = 0.0
    shape: str | None = None
    reason: str | None = None
    line: int = 0
    column: int = 0
    died: int | None = None


class Reader:
    """A client of the reader process. Starts a new process after a crash."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def load(self, format_name: str, text: bytes) -> LoadResult:
        process = self._process or self._start()
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(b"%s %d\n%s" % (format_name.encode(), len(text), text))
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            return LoadResult(died=self.stop())
        return LoadResult(**json.loads(line))

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(Path(__file__).with_name("reader.py"))]
        environment = {**os.environ, "PYTHONPATH": str(Path(ductile.__file__).parents[1])}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        return self._process

    def stop(self) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.communicate()
        return process.returncode


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.stop()
