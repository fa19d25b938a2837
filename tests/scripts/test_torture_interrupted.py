"""Ctrl-C or SIGTERM during a torture test: it ends at once, reports it, and leaves nothing behind."""

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
TIMEOUT = 60.0


def processes() -> Iterator[tuple[int, str]]:
    """Yield every process of the host with its command line."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            yield int(name), Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def press_ctrl_c(pid: int) -> None:
    """Send SIGINT to the process group, as a terminal does."""
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
def test_an_interrupted_torture_test_reports_it_and_leaves_nothing_behind(
    tmp_path: Path, arguments: tuple[str, ...], interrupt: Callable[[int], None]
) -> None:
    """No folder and no process remains."""
    process = subprocess.Popen(
        [sys.executable, "-m", "scripts.tortures", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # A background process inherits an ignored SIGINT, which the script respects.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + TIMEOUT
    while not list(tmp_path.glob("ductile-torture-*/**/state.db")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "no service was started"
        time.sleep(0.05)
    interrupt(process.pid)
    summary, progress = process.communicate(timeout=TIMEOUT)

    assert (process.returncode, summary) == (INTERRUPTED, "")
    assert progress.endswith("interrupted: no result\n")
    assert "Traceback" not in progress
    assert list(tmp_path.iterdir()) == []
    assert not [pid for pid, command in processes() if str(tmp_path) in command]


def test_an_unknown_torture_test_is_a_usage_error(tmp_path: Path) -> None:
    """Running nothing would look like success and store an empty table."""
    page = tmp_path / "page.md"
    page.write_text("<!-- torture all: begin -->\nold\n<!-- torture all: end -->\n")
    done = say("torture", "all", "--only", "kill,nothing", "--report", str(page))

    assert done.returncode == 2
    assert "nothing: unknown; choose from kill, " in done.stderr
    assert "old" in page.read_text()
