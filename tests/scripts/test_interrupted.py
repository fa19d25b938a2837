"""Ctrl-C or SIGTERM in the middle of a torture: it ends at once, says so, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.scripts.scripts import ROOT
from tests.scripts.scripts import run_script as say

INTERRUPTED = 130
LONGEST_SECONDS = 60.0


def commands() -> Iterator[tuple[int, str]]:
    """Every process of the host with its command line."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            yield int(name), Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def press_ctrl_c(pid: int) -> None:
    """A terminal tells the whole group of processes."""
    os.killpg(pid, signal.SIGINT)


def terminate(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)


@pytest.mark.parametrize(
    ("arguments", "interrupt"),
    [
        (("kill", "--cycles", "1000"), press_ctrl_c),
        (("all", "--only", "kill", "--full"), press_ctrl_c),
        (("all", "--only", "kill", "--full"), terminate),
    ],
)
def test_an_interrupted_torture_says_so_and_leaves_nothing(
    tmp_path: Path, arguments: tuple[str, ...], interrupt: Callable[[int], None]
) -> None:
    """Neither folders nor processes of it outlive the script."""
    process = subprocess.Popen(
        [sys.executable, "-m", "scripts.tortures", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # Tests that run in the background have it ignored, and a script keeps to that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + LONGEST_SECONDS
    while not list(tmp_path.glob("ductile-torture-*/**/state.db")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no service was started"
        time.sleep(0.05)
    interrupt(process.pid)
    told, progress = process.communicate(timeout=LONGEST_SECONDS)

    assert (process.returncode, told) == (INTERRUPTED, "")
    assert progress.endswith("interrupted: nothing is proved\n")
    assert "Traceback" not in progress
    assert list(tmp_path.iterdir()) == []
    assert not [pid for pid, command in commands() if str(tmp_path) in command]


def test_a_torture_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    """Doing nothing would look like success, and keep an empty table."""
    page = tmp_path / "page.md"
    page.write_text("<!-- torture all: begin -->\nold\n<!-- torture all: end -->\n")
    done = say("torture", "all", "--only", "kill,nothing", "--report", str(page))

    assert done.returncode == 2
    assert "nothing: there are only kill, " in done.stderr
    assert "old" in page.read_text()
