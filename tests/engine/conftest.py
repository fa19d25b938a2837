"""Builders for tests with real plugin processes, and the rule that none of them leaves anything behind."""

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
    with open({meeting!r}, "wb") as meeting:
        meeting.write(b"!")

"""


@frozen
class Plugin:
    """A plugin written for one test; `checkpoint()` in its body tells the test how far it has come."""

    argv: list[str]
    _meeting: int

    async def reached_checkpoint(self) -> None:
        """Returns once for each time the plugin calls `checkpoint()`."""
        await trio.lowlevel.wait_readable(self._meeting)
        os.read(self._meeting, 1)


MakePlugin = Callable[[str], Plugin]


@pytest.fixture
def make_plugin(tmp_path: Path) -> Iterator[MakePlugin]:
    """Write a Python plugin from its body."""
    meetings = []

    def make(body: str) -> Plugin:
        folder = tmp_path / uuid4().hex
        folder.mkdir()
        os.mkfifo(folder / "meeting")
        # Open for both, so that the pipe never reaches its end between two checkpoints.
        meetings.append(os.open(folder / "meeting", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC))
        head = PLUGIN_HEAD.format(python=sys.executable, meeting=str(folder / "meeting"))
        (folder / "run").write_text(head + textwrap.dedent(body))
        (folder / "run").chmod(0o755)
        return Plugin([str(folder / "run")], meetings[-1])

    yield make
    for meeting in meetings:
        os.close(meeting)


@pytest.fixture
def make_script(tmp_path: Path) -> Callable[[str], list[str]]:
    """Write a shell plugin from its body; returns its command."""

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
    """The environment of a plugin: almost nothing, and the two markers."""
    path = "/usr/local/bin:/usr/bin:/bin"
    if shutil.which("python3", path=path) is None:
        path = f"{os.path.dirname(sys.executable)}:{path}"
    return {"PATH": path, "LANG": "C.UTF-8", JOB_MARKER: str(uuid4()), INSTANCE_MARKER: instance}


def request_for(config: dict[str, Any], padding: int = 0) -> bytes:
    """A request as the core writes it."""
    fields = {"protocol": 2, "job_id": str(uuid4()), "command": "poll", "config": config, "state": {}}
    return json.dumps(fields | {"payload": {"padding": "x" * padding}}).encode() + b"\n"


@pytest.fixture
def make_request() -> Callable[..., bytes]:
    return request_for


@pytest.fixture(autouse=True)
def nothing_is_left_behind(instance: str) -> Iterator[None]:
    """After every run: no zombie, no stray, no marked process, no descriptor more than before."""
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
        except FileNotFoundError:  # the listing's own descriptor
            continue
    return found
