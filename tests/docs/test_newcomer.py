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


@pytest.fixture
def started(clone: Path) -> Iterator[tuple[int, list[str]]]:
    """`scripts/start` runs in the clone: its port, and what it said until it was ready."""
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
            yield port, said
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0, "Ctrl-C stops it"
        finally:
            process.kill()
            process.wait()
            rest.join()


def test_the_readme_is_true(clone: Path, started: tuple[int, list[str]]) -> None:
    """Every command of the tour does what the page shows: webhook, pipeline, result, why, replay, a broken file."""
    port, said = started
    start, *blocks = blocks_of(moved((clone / "README.md").read_text(), port))
    assert (start.kind, len(blocks) >= 6) == ("start", True)
    shell = Shell.open(clone, CLEAN)
    try:
        (shown,) = steps_of(start.body)
        shell.compare(shown.expected, said, told="\n".join(said))
        for block in blocks:
            shell.perform(block)
    finally:
        shell.close()


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
