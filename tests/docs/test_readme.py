"""The commands of the README work in a fresh clone."""

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

from tests.docs.instance import CLEAN, free_ports, with_ports
from tests.docs.transcript import Shell, blocks_of, steps_of

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tracked files of the repository."""
    target = tmp_path_factory.mktemp("clone") / "ductile"
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
    """A running `scripts/start`: its port, its process, and its output until it was ready."""

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
    printed: list[str] = []
    assert process.stderr is not None
    rest = threading.Thread(target=process.stderr.read)
    with process.stderr:
        try:
            for line in process.stderr:
                printed.append(line.rstrip("\n"))
                if "is ready" in line:
                    break
            rest.start()
            yield Started(port, process, printed)
        finally:
            process.kill()
            process.wait()
            rest.join()


def test_every_command_of_the_readme_works(clone: Path, started: Started) -> None:
    """From the first delivery to the restart after a kill."""
    start, *blocks = blocks_of(with_ports((clone / "README.md").read_text(), started.port))
    assert (start.kind, len(blocks) >= 6) == ("start", True)
    assert [block.kind for block in blocks].count("start") == 1, "the tour restarts the killed service"
    shell = Shell.open(clone, CLEAN)
    try:
        (step,) = steps_of(start.body)
        shell.compare(step.expected, started.printed, transcript="\n".join(started.printed))
        for block in blocks:
            shell.run_block(block)
    finally:
        shell.close()
    assert started.process.wait(30) == -signal.SIGKILL


def test_ctrl_c_stops_scripts_start(started: Started) -> None:
    """The script execs the service, so the signal reaches it and it exits with 0."""
    started.process.send_signal(signal.SIGINT)
    assert started.process.wait(30) == 0


def test_the_port_can_be_changed_after_the_first_start(clone: Path) -> None:
    """A start on a used port leaves a configuration behind. The new ports may overlap the old ones."""
    run = partial(subprocess.run, cwd=clone, env=CLEAN, capture_output=True, text=True, check=False)
    configure = "sed '/^exec /d' scripts/start > scripts/configure && sh scripts/configure --port"
    shutil.rmtree(clone / ".ductile", ignore_errors=True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = run(["scripts/start", "--port", str(taken.getsockname()[1])])
    port = free_ports()
    moves = [run(["sh", "-c", f"{configure} {new_port}"]) for new_port in (port, port + 1, port)]
    other = run(["scripts/start", "--demo"])
    addresses = [
        run([".venv/bin/ductile", "config", "get", key, "--config", ".ductile"]).stdout.strip()
        for key in ("api.listen", "webhooks.listen")
    ]
    shutil.rmtree(clone / ".ductile")

    assert (first.returncode, "cannot listen" in first.stderr) == (os.EX_TEMPFAIL, True), first.stderr
    assert [move.returncode for move in moves] == [0, 0, 0], [move.stderr for move in moves]
    assert addresses == [f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}"]
    assert (other.returncode, "only --port N" in other.stderr) == (os.EX_USAGE, True)
