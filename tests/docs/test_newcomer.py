"""Somebody who knows only the README: a fresh clone, its commands, its curl lines, its output."""

import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.transcript import Shell, blocks_of, steps_of

ROOT = Path(__file__).parent.parent.parent
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("DUCTILE_", "VIRTUAL_ENV"))}
START = re.compile(r"<!-- start -->\n```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.timeout(300)


def free_ports() -> int:
    """The first of two ports in a row that nobody uses."""
    for port in range(20_100, 30_000, 2):
        with socket.socket() as api, socket.socket() as webhooks:
            try:
                api.bind(("127.0.0.1", port))
                webhooks.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    raise AssertionError("no two free ports")


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
    text = (clone / "README.md").read_text().replace(":8080", f":{port}").replace(":8081", f":{port + 1}")
    shell = Shell.open(clone, CLEAN)
    try:
        (tour,) = START.findall(text)
        (start,) = steps_of(tour)
        shell.compare(start.expected, said, told="\n".join(said))
        blocks = list(blocks_of(text))
        assert len(blocks) >= 6
        for block in blocks:
            shell.perform(block)
    finally:
        shell.close()
