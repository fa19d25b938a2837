"""Who asks for a job, waits for it and hears no more: the job was taken, and they are told which it is."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

JOB = "01a1ebcb-9ac9-7106-870c-2d6266eedbdd"
TAKEN = json.dumps({"job_id": JOB, "status": "queued", "plugin": "echo", "command": "poll"}).encode()
HEAD = b"HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
WAYS = {
    ("plugin", "run", "echo"): "",
    ("schedule", "run", "echo", "hourly"): "",
    ("pipeline", "run", "greet"): " --tree",
    ("relay", "send", "lab", "--event", "backup.ready"): "",
}


@pytest.fixture
def door() -> Iterator[socket.socket]:
    """Where a service listens that takes one job and is never heard of again."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener


def ask(door: socket.socket, way: tuple[str, ...]) -> "subprocess.Popen[str]":
    url = f"http://127.0.0.1:{door.getsockname()[1]}"
    return subprocess.Popen(
        [sys.executable, "-m", "ductile", *way, "--wait", "--json", "--api-url", url, "--api-key", "key"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background have it ignored, and a command keeps to that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def take_the_job(door: socket.socket) -> None:
    peer, _ = door.accept()
    with peer:
        assert peer.recv(1 << 16).startswith(b"POST ")
        peer.sendall(HEAD % len(TAKEN) + TAKEN)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way[0])
def test_a_service_that_dies_leaves_the_id_behind(door: socket.socket, way: tuple[str, ...]) -> None:
    """Without it, a program would ask once more and make two of it."""
    waiting = ask(door, way)
    take_the_job(door)
    peer, _ = door.accept()
    with peer:
        assert peer.recv(1 << 16).startswith(b"GET /job/")
    told = json.loads(waiting.communicate(timeout=60)[0])

    assert (waiting.returncode, told["code"], told["context"]) == (69, "unreachable", {"job_id": JOB})
    assert told["hint"].endswith(f"then `ductile job wait {JOB}{WAYS[way]}`")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way[0])
def test_ctrl_c_ends_the_waiting_and_not_the_job(door: socket.socket, way: tuple[str, ...]) -> None:
    """Both are said, on stderr: there is no result."""
    waiting = ask(door, way)
    take_the_job(door)
    peer, _ = door.accept()
    with peer:
        assert peer.recv(1 << 16).startswith(b"GET /job/")
        waiting.send_signal(signal.SIGINT)
        stdout, stderr = waiting.communicate(timeout=60)

    assert (waiting.returncode, stdout) == (130, "")
    assert stderr == f"\njob {JOB} goes on\n  next: ductile job wait {JOB}{WAYS[way]}\n"


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way[0])
@pytest.mark.parametrize(("answer", "exit_code"), [(b"403 Forbidden", 77), (b"503 Service Unavailable", 75)])
def test_a_wait_that_is_refused_leaves_the_id_behind(
    door: socket.socket, way: tuple[str, ...], answer: bytes, exit_code: int
) -> None:
    """A token that may run a plugin need not be one that may see its jobs; and "try again" would make two of it."""
    waiting = ask(door, way)
    take_the_job(door)
    peer, _ = door.accept()
    with peer:
        assert peer.recv(1 << 16).startswith(b"GET /job/")
        refusal = json.dumps(
            {"error": "no", "code": "refused", "status": int(answer[:3]), "hint": "try again"}
        ).encode()
        peer.sendall(HEAD.replace(b"202 Accepted", answer) % len(refusal) + refusal)
    told = json.loads(waiting.communicate(timeout=60)[0])

    assert waiting.returncode == exit_code
    assert told["context"]["job_id"] == JOB
    assert told["hint"].endswith(f"`ductile job wait {JOB}{WAYS[way]}`")
