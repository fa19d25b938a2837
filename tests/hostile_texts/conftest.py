"""A process to load hostile texts in, so that a crash is seen and belongs to one text."""

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
class Verdict:
    """What became of a text: a shape, or a reason with its place. `died` is the exit code of a reader that crashed."""

    cpu_seconds: float = 0.0
    shape: str | None = None
    reason: str | None = None
    line: int = 0
    column: int = 0
    died: int | None = None


class Reader:
    """Loads texts in another process, and starts a new one when it has crashed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def load(self, kind: str, text: bytes) -> Verdict:
        process = self._process or self._start()
        assert process.stdin
        assert process.stdout
        try:
            process.stdin.write(b"%s %d\n%s" % (kind.encode(), len(text), text))
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            return Verdict(died=self.stop())
        return Verdict(**json.loads(answer))

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(Path(__file__).with_name("reader.py"))]
        found_here = {**os.environ, "PYTHONPATH": str(Path(ductile.__file__).parents[1])}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=found_here)
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
