"""Commands that enqueue a job and then fail to wait for it: the error has the job id."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

JOB = "01a1ebcb-9ac9-7106-870c-2d6266eedbdd"
ACCEPTED = json.dumps({"job_id": JOB, "status": "queued", "plugin": "echo", "command": "poll"}).encode()
HEAD = b"HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
COMMANDS = {
    ("plugin", "run", "echo"): "",
    ("schedule", "run", "echo", "hourly"): "",
    ("pipeline", "run", "greet"): " --tree",
    ("relay", "send", "lab", "--event", "backup.ready"): "",
}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A socket of a service that accepts one job and then fails."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener


def start_command(listener: socket.socket, command: tuple[str, ...]) -> "subprocess.Popen[str]":
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    return subprocess.Popen(
        [sys.executable, "-m", "ductile", *command, "--wait", "--json", "--api-url", url, "--api-key", "key"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background have it ignored, and a command keeps to that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def accept_job(listener: socket.socket) -> None:
    peer, _ = listener.accept()
    with peer:
        assert peer.recv(1 << 16).startswith(b"POST ")
        peer.sendall(HEAD % len(ACCEPTED) + ACCEPTED)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_the_error_has_the_job_id_if_the_service_dies(listener: socket.socket, command: tuple[str, ...]) -> None:
    """Without it, a program would enqueue the job twice."""
    waiting = start_command(listener, command)
    accept_job(listener)
    peer, _ = listener.accept()
    with peer:
        assert peer.recv(1 << 16).startswith(b"GET /job/")
    error = json.loads(waiting.communicate(timeout=60)[0])

    assert (waiting.returncode, error["code"], error["context"]) == (69, "unreachable", {"job_id": JOB})
    assert error["hint"].endswith(f"then `ductile job wait {JOB}{COMMANDS[command]}`.")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_ctrl_c_ends_the_wait_but_not_the_job(listener: socket.socket, command: tuple[str, ...]) -> None:
    waiting = start_command(listener, command)
    accept_job(listener)
    peer, _ = listener.accept()
    with peer:
        assert peer.recv(1 << 16).startswith(b"GET /job/")
        waiting.send_signal(signal.SIGINT)
        stdout, stderr = waiting.communicate(timeout=60)

    assert (waiting.returncode, stdout) == (130, "")
    assert stderr == f"\njob {JOB} continues\n  next: ductile job wait {JOB}{COMMANDS[command]}\n"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
@pytest.mark.parametrize(("answer", "exit_code"), [(b"403 Forbidden", 77), (b"503 Service Unavailable", 75)])
def test_the_error_has_the_job_id_if_the_wait_is_refused(
    listener: socket.socket, command: tuple[str, ...], answer: bytes, exit_code: int
) -> None:
    """A token may allow running a plugin but not reading jobs."""
    waiting = start_command(listener, command)
    accept_job(listener)
    peer, _ = listener.accept()
    with peer:
        assert peer.recv(1 << 16).startswith(b"GET /job/")
        refusal = json.dumps(
            {"error": "no", "code": "refused", "status": int(answer[:3]), "hint": "try again"}
        ).encode()
        peer.sendall(HEAD.replace(b"202 Accepted", answer) % len(refusal) + refusal)
    error = json.loads(waiting.communicate(timeout=60)[0])

    assert waiting.returncode == exit_code
    assert error["context"]["job_id"] == JOB
    assert error["hint"].endswith(f"`ductile job wait {JOB}{COMMANDS[command]}`.")
