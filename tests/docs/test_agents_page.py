"""An agent that knows only docs/agents.md: its commands do what the page shows."""

import os
import sys
from pathlib import Path

import pytest

from tests.docs.transcript import Shell, blocks_of

PAGE = Path(__file__).parents[2] / "docs" / "agents.md"
ANY_PORTS = "sed -i 's/127.0.0.1:8080/127.0.0.1:0/; s/127.0.0.1:8081/localhost:0/' agents/*.yaml && ductile config lock"
"""The ports of the demo may be in use here."""

pytestmark = pytest.mark.timeout(300)


def test_the_loop_of_an_agent_is_true(tmp_path: Path) -> None:
    """Describe, trigger, wait, why, act, replay: a failure is found and repaired."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ductile").write_text(f'#!/bin/sh\nexec {sys.executable} -m ductile "$@"\n')
    (tmp_path / "bin" / "ductile").chmod(0o700)
    environ = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    shell = Shell.open(tmp_path, environ)
    first, *blocks = blocks_of(PAGE.read_text())
    assert len(blocks) >= 8
    try:
        shell.perform(first)
        assert shell.run(ANY_PORTS)[0] == 0
        for block in blocks:
            shell.perform(block)
    finally:
        shell.run("kill %1 2> /dev/null; wait")
        shell.close()
