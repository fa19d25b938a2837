"""Somebody who knows only the README: a fresh clone, its commands, its curl lines, its output."""

import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from attrs import frozen

from tests.docs.instance import CLEAN, free_ports, moved
from tests.docs.transcript import Shell, blocks_of, steps_of

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a clone of the repository has, and nothing else."""
    target = tmp_path_factory.mktemp("newcomer") / "ductile"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    return target


@frozen
class Started:
    """`scripts/start` in the clone: its port, its process, and what it printed until it was ready."""

    port: int
    process: "subprocess.Popen[str]"
    printed: list[str]


@pytest.fixture
def started(clone: Path) -> Iterator[Started]:
    port = free_ports()
    command = ["scripts/start", "--port", str(port)]
    process = subprocess.Popen(
        command, cwd=clone, env=CLEAN, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    said: list[str] = []
    assert process.stderr is not None
    rest = threading.Thread(target=process.stderr.read)
    with process.stderr:
        try:
            for line in process.stderr:
                said.append(line.rstrip("\n"))
                if "is ready" in line:
                    break
            rest.start()
            yield Started(port, process, said)
        finally:
            process.kill()
            process.wait()
            rest.join()


def test_the_readme_is_true(clone: Path, started: Started) -> None:
    """Every command of the tour does what the page shows, from the first delivery to the second start after a kill."""
    start, *blocks = blocks_of(moved((clone / "README.md").read_text(), started.port))
    assert (start.kind, len(blocks) >= 6) == ("start", True)
    assert [block.kind for block in blocks].count("start") == 1, "it is started again after it was killed"
    shell = Shell.open(clone, CLEAN)
    try:
        (shown,) = steps_of(start.body)
        shell.compare(shown.expected, started.printed, told="\n".join(started.printed))
        for block in blocks:
            shell.perform(block)
    finally:
        shell.close()
    assert started.process.wait(30) == -signal.SIGKILL


def test_ctrl_c_stops_what_scripts_start_runs(started: Started) -> None:
    """The script becomes the service: the signal of the terminal reaches it, and it exits with 0."""
    started.process.send_signal(signal.SIGINT)
    assert started.process.wait(30) == 0


def test_a_second_start_can_still_choose_the_port(clone: Path) -> None:
    """Whoever finds the port taken has a configuration by then; the new ports may be among the old ones."""
    say = partial(subprocess.run, cwd=clone, env=CLEAN, capture_output=True, text=True, check=False)
    configure = "sed '/^exec /d' scripts/start > scripts/configure && sh scripts/configure --port"
    shutil.rmtree(clone / ".ductile", ignore_errors=True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = say(["scripts/start", "--port", str(taken.getsockname()[1])])
    port = free_ports()
    moves = [say(["sh", "-c", f"{configure} {moved}"]) for moved in (port, port + 1, port)]
    other = say(["scripts/start", "--demo"])
    told = [
        say([".venv/bin/ductile", "config", "get", key, "--config", ".ductile"]).stdout.strip()
        for key in ("api.listen", "webhooks.listen")
    ]
    shutil.rmtree(clone / ".ductile")

    assert (first.returncode, "cannot listen" in first.stderr) == (os.EX_TEMPFAIL, True), first.stderr
    assert [move.returncode for move in moves] == [0, 0, 0], [move.stderr for move in moves]
    assert told == [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"]
    assert (other.returncode, "only --port N" in other.stderr) == (os.EX_USAGE, True)
