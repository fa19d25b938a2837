"""Fixtures for tests with real plugin processes. Every test checks that no process or descriptor is left behind."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import trio
from attrs import frozen

from ductile.engine.process.procfs import (
    INSTANCE_MARKER,
    JOB_MARKER,
    adopted_children,
    become_subreaper,
    find_marked,
)

PLUGIN_HEAD = """\
#!{python} -IS
import os, signal, sys, time

def checkpoint():
    with open({fifo!r}, "wb") as fifo:
        fifo.write(b"!")

"""


@frozen
class Plugin:
    """A plugin of one test. `checkpoint()` in its body wakes the test."""

    argv: list[str]
    _fifo: int

    async def reached_checkpoint(self) -> None:
        """Wait for the next call of `checkpoint()`."""
        await trio.lowlevel.wait_readable(self._fifo)
        os.read(self._fifo, 1)


MakePlugin = Callable[[str], Plugin]


@pytest.fixture
def make_plugin(tmp_path: Path) -> Iterator[MakePlugin]:
    """Return a function that writes a Python plugin with this body."""
    fifos = []

    def make(body: str) -> Plugin:
        folder = tmp_path / uuid4().hex
        folder.mkdir()
        os.mkfifo(folder / "fifo")
        # Open for reading and writing, so that the pipe does not end between two checkpoints.
        fifos.append(os.open(folder / "fifo", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        head = PLUGIN_HEAD.format(python=sys.executable, fifo=str(folder / "fifo"))
        (folder / "run").write_text(head + textwrap.dedent(body))
        (folder / "run").chmod(0o755)
        return Plugin([str(folder / "run")], fifos[-1])

    yield make
    for fifo in fifos:
        os.close(fifo)


@pytest.fixture
def make_script(tmp_path: Path) -> Callable[[str], list[str]]:
    """Return a function that writes a shell plugin with this body and returns its command."""

    def make(body: str) -> list[str]:
        script = tmp_path / f"{uuid4().hex}.sh"
        script.write_text("#!/bin/sh\n" + textwrap.dedent(body))
        script.chmod(0o755)
        return [str(script)]

    return make


@pytest.fixture
def instance() -> str:
    return str(uuid4())


@pytest.fixture
def env(instance: str) -> dict[str, str]:
    """The environment of a plugin: PATH, LANG and the two markers."""
    path = "/usr/local/bin:/usr/bin:/bin"
    if shutil.which("python3", path=path) is None:
        path = f"{os.path.dirname(sys.executable)}:{path}"
    return {"PATH": path, "LANG": "C.UTF-8", JOB_MARKER: str(uuid4()), INSTANCE_MARKER: instance}


def request_for(config: dict[str, Any], padding: int = 0) -> bytes:
    """Return a request as the service writes it."""
    fields = {"protocol": 2, "job_id": str(uuid4()), "command": "poll", "config": config, "state": {}}
    return json.dumps(fields | {"payload": {"padding": "x" * padding}}).encode() + b"\n"


@pytest.fixture(autouse=True)
def nothing_is_left_behind(instance: str) -> Iterator[None]:
    """Check after every test that no zombie, orphan, marked process or descriptor is left."""
    become_subreaper()
    before = open_descriptors()
    yield
    become_subreaper(False)
    assert adopted_children(known=()) == []
    assert find_marked(instance) == []
    assert open_descriptors() == before


def open_descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor of the listing
            continue
    return found
