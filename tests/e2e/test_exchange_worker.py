"""`ductile exchange run` against a service: hostile commands, drain, lost claims, and a service that goes away."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.exchange_commands import command_line, exchange, exchange_json, publish, started
from tests.e2e.service import Home, Service, Start, poll_until

WORKER = ("run", "--topic", "review.request")
WORKER_TOKEN = "worker-token-0123456789abcdef"


class Gate:
    """A command that says when it runs and ends when the test opens the gate."""

    def __init__(self, folder: Path) -> None:
        self.ready, self.gate, self.seen = folder / "ready", folder / "gate", folder / "seen"
        os.mkfifo(self.ready)
        os.mkfifo(self.gate)

    @property
    def script(self) -> str:
        return f"echo $DUCTILE_DELIVERY >> {self.seen}; echo $$ > {self.ready}; cat {self.gate}"

    def wait(self) -> int:
        """Wait until the command runs and return its process id."""
        return int(self.ready.read_text())

    def open(self, text: str = "done") -> None:
        self.gate.write_text(text)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def states(home: Home, topic: str = "review.request") -> list[str]:
    return [one["state"] for one in exchange_json(home, "read", "--topic", topic)["messages"]]


def bodies(home: Home, topic: str) -> list[str]:
    return [one["body"] for one in exchange_json(home, "read", "--topic", topic)["messages"]]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# ── commands ──────────────────────────────────────────────────────────────────────────────────────────────────────────


HOSTILE = {
    "writes first": ("head -c 200000 /dev/zero | tr '\\0' x; cat >&2", "30s", "review.done", 200_000),
    "never reads": ("echo done", "30s", "review.done", 5),
    "never ends": ("exec sleep 1000", "300ms", "review.request.timed_out", None),
    "floods": ("exec cat /dev/zero", "30s", "review.failed", None),
    "a child holds stdout": ("(setsid sleep 1000 &); echo done", "30s", "review.done", 5),
    "ignores SIGTERM": ("trap '' TERM; while :; do :; done", "300ms", "review.request.timed_out", None),
}
"""Command → its script, its time limit, and the topic and size of its answer."""


@pytest.mark.parametrize("name", HOSTILE)
def test_every_command_is_answered_in_time(home: Home, start: Start, name: str) -> None:
    """The body does not fit into a pipe."""
    script, timeout, topic, size = HOSTILE[name]
    start()
    publish(home, "review.request", "x" * 100_000)
    assert exchange(home, *WORKER, "--once", "--timeout", timeout, "--", "sh", "-c", script).exit_code == 0
    (body,) = bodies(home, topic)
    assert size is None or len(body) == size


def test_five_commands_that_cannot_be_started_end_the_worker_with_78(home: Home, start: Start) -> None:
    start()
    for number in range(6):
        publish(home, "review.request", str(number))
    assert exchange(home, *WORKER, "--", "no-such-program").exit_code == 78
    assert states(home) == ["failed"] * 5 + ["ready"]


def test_exit_code_75_returns_the_message_with_a_delay(home: Home, start: Start) -> None:
    start()
    publish(home, "review.request", "please")
    assert exchange(home, *WORKER, "--once", "--", "sh", "-c", "exit 75").exit_code == 0
    assert exchange(home, *WORKER, "--once", "--", "cat").exit_code == 0
    assert bodies(home, "review.done") == ["please"]
    ends = home.rows("SELECT delivery, status, reason FROM claims ORDER BY seq")
    assert [tuple(row.values()) for row in ends] == [(1, "released", "exit code 75"), (2, "completed", None)]


def test_a_worker_that_nothing_comes_for_exits(home: Home, start: Start) -> None:
    start()
    assert exchange(home, *WORKER, "--once", "--wait", "100ms", "--", "cat").exit_code == 75
    assert exchange(home, *WORKER, "--idle-exit", "100ms", "--", "cat").exit_code == 0
    publish(home, "review.request", "1")
    publish(home, "review.request", "2")
    done = exchange_json(home, *WORKER, "--max", "2", "--concurrency", "2", "--", "cat")
    assert done == {"topic": "review.request", "handled": 2, "exit_code": 0}


# ── stops ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_signal_lets_the_running_command_finish_and_claims_nothing_more(home: Home, start: Start, gate: Gate) -> None:
    start()
    publish(home, "review.request", "1")
    publish(home, "review.request", "2")
    with started(home, *WORKER, "--", "sh", "-c", gate.script) as worker:
        gate.wait()
        worker.send_signal(signal.SIGTERM)
        assert worker.stderr is not None
        assert "draining" in worker.stderr.readline()
        gate.open()
        assert worker.wait(timeout=30) == 0
    assert states(home) == ["completed", "ready"]


def test_after_the_drain_the_message_is_returned_uncounted(home: Home, start: Start, gate: Gate) -> None:
    start()
    publish(home, "review.request", "1")
    with started(home, *WORKER, "--drain", "100ms", "--", "sh", "-c", gate.script) as worker:
        pid = gate.wait()
        worker.send_signal(signal.SIGINT)
        assert worker.wait(timeout=30) == 0
    assert not is_alive(pid)
    assert states(home) == ["ready"]
    with started(home, *WORKER, "--once", "--", "sh", "-c", gate.script) as worker:
        gate.wait()
        gate.open()
        assert worker.wait(timeout=30) == 0
    assert gate.seen.read_text().split() == ["1", "1"]


def test_a_second_signal_ends_the_worker_and_its_command_at_once(home: Home, start: Start, gate: Gate) -> None:
    start()
    publish(home, "review.request", "1")
    with started(home, *WORKER, "--drain", "1h", "--", "sh", "-c", gate.script) as worker:
        pid = gate.wait()
        worker.send_signal(signal.SIGTERM)
        assert worker.stderr is not None
        assert "draining" in worker.stderr.readline()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=30) == 128 + signal.SIGTERM
    poll_until(lambda: not is_alive(pid))


def test_a_stopped_waiting_worker_holds_no_claim(home: Home, start: Start) -> None:
    start()
    with started(home, *WORKER, "--", "cat") as worker:
        poll_until(lambda: waiting_workers(home) == 1)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=30) == 0
    publish(home, "review.request", "1")
    assert states(home) == ["delayed", "ready"]


def waiting_workers(home: Home) -> int:
    """Return how many workers wait for messages of the topic, which has one that is delayed."""
    if not exchange_json(home, "topics")["topics"]:
        publish(home, "review.request", "later", "--delay", "1h")
    (topic,) = exchange_json(home, "topics")["topics"]
    return int(topic["waiting_workers"])


# ── leases and the service ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_long_command_keeps_its_claim(home: Home, start: Start, gate: Gate) -> None:
    start()
    publish(home, "review.request", "1")
    with started(home, *WORKER, "--once", "--lease", "3s", "--", "sh", "-c", gate.script) as worker:
        gate.wait()
        poll_until(lambda: home.rows("SELECT extensions FROM claims")[0]["extensions"] >= 4)
        gate.open()
        assert worker.wait(timeout=30) == 0
    assert (states(home), bodies(home, "review.done")) == (["completed"], ["done"])


def test_a_worker_that_slept_past_its_lease_publishes_nothing(home: Home, start: Start, gate: Gate) -> None:
    start()
    publish(home, "review.request", "1")
    with started(home, *WORKER, "--once", "--lease", "1s", "--", "sh", "-c", gate.script) as worker:
        pid = gate.wait()
        worker.send_signal(signal.SIGSTOP)
        poll_until(lambda: home.rows("SELECT status FROM claims") == [{"status": "expired"}])
        worker.send_signal(signal.SIGCONT)
        _, stderr = worker.communicate(timeout=30)
    assert "the claim is lost; the result is discarded" in stderr
    assert not is_alive(pid)
    assert (states(home), bodies(home, "review.done")) == (["ready"], [])


def test_a_result_is_delivered_after_a_restart_of_the_service(home: Home, start: Start, gate: Gate) -> None:
    service: Service = start()
    publish(home, "review.request", "1")
    with started(home, *WORKER, "--once", "--", "sh", "-c", gate.script) as worker:
        gate.wait()
        service.kill()
        gate.open()
        start()
        assert worker.wait(timeout=30) == 0
    assert (states(home), bodies(home, "review.done")) == (["completed"], ["done"])


def test_a_waiting_worker_survives_a_restart_of_the_service(home: Home, start: Start) -> None:
    service: Service = start()
    with started(home, *WORKER, "--max", "2", "--", "cat") as worker:
        publish(home, "review.request", "1")
        poll_until(lambda: bodies(home, "review.done") == ["1"])
        service.kill()
        assert worker.stderr is not None
        assert "waiting for the service" in worker.stderr.readline()
        start()
        publish(home, "review.request", "2")
        assert worker.wait(timeout=30) == 0
    assert bodies(home, "review.done") == ["1", "2"]


def test_serve_needs_no_configuration(tmp_path: Path) -> None:
    """Commands in its directory find it."""
    environ = {name: value for name, value in os.environ.items() if name != "DUCTILE_CONFIG_DIR"}
    line = [*command_line(Home(tmp_path), "serve")[:4], "serve"]
    with subprocess.Popen(
        line, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as service:
        try:
            assert service.stderr is not None
            assert re.search(r"is ready: unix:\S+\n", service.stderr.readline())
            published = subprocess.run(
                [*line[:4], "publish", "a.b", "hello"], cwd=tmp_path, env=environ, capture_output=True, check=True
            )
            status = subprocess.run(
                [*line[:3], "system", "selfcheck", "--config", tmp_path / ".ductile"], capture_output=True, check=False
            )
            found = subprocess.run(
                [*line[:4], "claim", "a.b", "--json"], cwd=tmp_path, env=environ, capture_output=True, check=True
            )
        finally:
            service.terminate()
    assert status.returncode == 0, status.stdout
    assert json.loads(found.stdout)["claims"][0]["message_id"] == published.stdout.decode().strip()
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [".ductile"]


def test_a_worker_elsewhere_needs_the_scopes_of_its_topics(home: Home, start: Start) -> None:
    """It uses the address of the service and a token instead of the socket and the configuration."""
    scopes = '["exchange:review.request:claim", "exchange:review.*:publish"]'
    home.add(f"      - {{name: worker, token: {WORKER_TOKEN}, scopes: {scopes}}}\n")
    service = start()
    message_id = publish(home, "review.request", "please")
    remote = ("--api-url", service.urls[0], "--api-key", WORKER_TOKEN)
    assert exchange(home, *WORKER, "--once", *remote, "--", "cat").exit_code == 0
    assert bodies(home, "review.done") == ["please"]
    assert home.rows("SELECT claimed_by, message_id FROM claims") == [
        {"claimed_by": "token:worker", "message_id": message_id}
    ]
    refused = exchange_json(home, "run", "--topic", "other.request", "--once", *remote, "--", "cat", exit_code=77)
    assert refused["code"] == "insufficient_scope"


def test_an_unpublishable_result_is_answered_with_a_failure(home: Home, start: Start) -> None:
    """The token may publish on the failure topic only."""
    scopes = '["exchange:review.request:claim", "exchange:review.failed:publish"]'
    home.add(f"      - {{name: worker, token: {WORKER_TOKEN}, scopes: {scopes}}}\n")
    service = start()
    publish(home, "review.request", "please")
    remote = ("--api-url", service.urls[0], "--api-key", WORKER_TOKEN)
    done = exchange(home, *WORKER, "--once", *remote, "--", "cat")
    assert "the result was refused" in done.stderr
    (body,) = bodies(home, "review.failed")
    assert body.startswith("the result was refused: ")
