"""Two whole services and a line between them that can be cut: events arrive, once, whatever happens on the way."""

import http.client
import json
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from attrs import define, field

from ductile.core.clock import to_text
from tests.e2e.service import PATIENCE, TOKEN, Home, Service

SECRET = "the-secret-of-the-line-0123456789"
TAKES = """#!/bin/sh
cat > "request-$DUCTILE_JOB_ID.json"
echo "$DUCTILE_JOB_ID" >> effects
echo '{"status": "ok", "result": "taken"}'
"""
EMITS = """#!/bin/sh
cat >/dev/null
PAYLOAD='{"archive": "monday.tar", "host": "box"}'
echo '{"status": "ok", "result": "made", "events": [{"type": "backup.done", "payload": '"$PAYLOAD}]}"
"""
SENDER = """\
include: [tokens.yaml]
instances:
  - {{name: lab, base_url: "http://127.0.0.1:{port}", ingress_path: /ingest/peer/home, secret_ref: line, timeout: 20s}}
pipelines:
  - name: tell-the-lab
    on: backup.done
    steps:
      - id: tell
        relay:
          to: lab
          event: backup.ready
          with: {{archive: payload.archive, note: "from {{payload.host}}"}}
          baggage: {{trace: payload.archive, private: payload.host}}
      - {{id: after, uses: takes}}
"""
RECEIVER = """\
include: [tokens.yaml]
remote_ingress:
  peers: [{name: home, secret_ref: line, accept: [backup.ready, unknown.event], baggage: {allow: [trace]}}]
pipelines:
  - {name: on-backup, on: backup.ready, steps: [{id: one, uses: takes}]}
  - {name: also-on-backup, on: backup.ready, steps: [{id: one, uses: takes}]}
"""


@define
class Line:
    """A line to another service: every connection carries one request and its answer, or as much of it as the test
    allows."""

    target: int | None = None
    """The port behind it; None: nobody is there."""
    loses_answers: bool = False
    captured: list[bytes] = field(factory=list)
    answers: list[bytes] = field(factory=list)
    is_lost: threading.Event = field(factory=threading.Event)
    """Set when an answer was lost."""
    hangs_up: threading.Event = field(factory=threading.Event)
    """Until it is set, whoever waits for a lost answer goes on waiting."""
    _socket: socket.socket = field(factory=lambda: socket.create_server(("127.0.0.1", 0)))

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                self._carry(connection)

    def _carry(self, connection: socket.socket) -> None:
        request = read_message(connection)
        if self.target is None or not request:
            return
        answer = exchange(self.target, request)
        self.captured.append(request)
        self.answers.append(answer)
        if self.loses_answers:
            self.is_lost.set()
            self.hangs_up.wait(PATIENCE)
        else:
            connection.sendall(answer)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def read_message(connection: socket.socket) -> bytes:
    """One HTTP message with a Content-Length."""
    data = b""
    while True:
        head, found, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if found and len(body) >= int(length[1] if length else 0):
            return data
        piece = connection.recv(65536)
        if not piece:
            return data
        data += piece


def exchange(port: int, request: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as behind:
        behind.sendall(request)
        return read_message(behind)


@define
class Pair:
    """A sender called home, a receiver called lab, and the line between them."""

    home: Home
    lab: Home
    line: Line
    started: list[Service] = field(factory=list)

    def start(self, which: Home) -> Service:
        service = which.launch()
        self.started.append(service)
        service.wait_until_ready()
        if which is self.lab:
            self.line.target = int(service.url.rpartition(":")[2])
        return service

    def relay_job(self, sender: Service) -> str:
        """The id of the one relay job, once the sender has made it."""
        emitted = sender.run("emits", "poll")
        assert emitted["status"] == "succeeded", emitted
        (row,) = self.home.rows("SELECT id FROM job_queue WHERE plugin = 'core.relay'")
        return str(row["id"])

    def received(self) -> list[dict[str, Any]]:
        """The runs that were started at the receiver."""
        return self.lab.rows("SELECT * FROM job_queue WHERE submitted_by = 'relay:home' ORDER BY seq")

    def sent(self, sender: Service, job_id: str) -> dict[str, Any]:
        """The relay job when it is over."""
        job = sender.job(job_id, wait="30s")
        assert job["status"] == "succeeded", job
        return job


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    line = Line()
    home, lab = Home.make(tmp_path / "home"), Home.make(tmp_path / "lab")
    for each, name, more in ((home, "home", SENDER.format(port=line.port)), (lab, "lab", RECEIVER)):
        each.plugin("takes", TAKES)
        each.write("tokens.yaml", f"tokens: [{{name: line, key: {SECRET}}}]\n")
        text = (each.path / "config.yaml").read_text().replace("service:\n", f"service:\n  name: {name}\n")
        each.write("config.yaml", text + more)
        each.seal()
    home.plugin("emits", EMITS)
    made = Pair(home, lab, line)
    thread = threading.Thread(target=line.serve, daemon=True)
    thread.start()
    yield made
    for service in made.started:
        if service.process.poll() is None:
            service.kill()
    line.close()
    thread.join(PATIENCE)


def put_back(service: Service, job_id: str) -> None:
    """Returns when the ledger has it that the job waits again, after an attempt or without one."""
    parts = urlsplit(service.url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE)) as connection:
        connection.request("GET", f"/events?job={job_id}&since=0", headers={"authorization": f"Bearer {TOKEN}"})
        for line in connection.getresponse():
            if line.strip() in (b"event: job.retry_scheduled", b"event: job.held"):
                return
    raise AssertionError("the stream ended before the job was put back")


def retry_now(sender: Service) -> None:
    """What an operator does who knows that the line is good again."""
    status, body = sender.ask("POST", "/breaker/core.relay/reset")
    assert status == 200, body


def test_a_relay_step_starts_the_pipelines_of_the_other_side(pair: Pair) -> None:
    """Payload and allowed baggage arrive, every pipeline runs, and the sender's run goes on with the answer."""
    lab, sender = pair.start(pair.lab), pair.start(pair.home)
    job = pair.sent(sender, pair.relay_job(sender))

    first, second = pair.received()
    assert {first["pipeline"], second["pipeline"]} == {"on-backup", "also-on-backup"}
    assert job["result"] == {
        "status": "relayed",
        "to": "lab",
        "event": "backup.ready",
        "accepted": True,
        "receiver_event_id": first["source_event_id"],
        "peer": "home",
        "job_id": first["id"],
    }
    assert lab.job(first["id"], wait="30s")["status"] == "succeeded"
    request = json.loads((pair.lab.path / f"request-{first['id']}.json").read_text())
    assert request["event"]["payload"] == {
        "archive": "monday.tar",
        "note": "from box",
        "trace": "monday.tar",
    }
    assert (request["event"]["type"], request["event"]["source"]) == ("backup.ready", "relay:home")
    assert request["context"]["trace"] == "monday.tar"
    assert "private" not in request["context"]
    (dropped,) = pair.lab.rows("SELECT data FROM journal WHERE kind = 'event.baggage_dropped'")
    assert json.loads(dropped["data"])["names"] == ["private"]
    (behind,) = pair.home.rows("SELECT id FROM job_queue WHERE step_id = 'after'")
    assert sender.job(behind["id"], wait="30s")["status"] == "succeeded"
    told = json.loads((pair.home.path / f"request-{behind['id']}.json").read_text())["event"]["payload"]
    assert (told["relay_to"], told["relay_receiver_job_id"], told["relay_accepted"]) == ("lab", first["id"], True)


def test_an_event_waits_for_a_receiver_that_is_down(pair: Pair) -> None:
    """Store and forward: the job stays in the outbox, also while the sender is restarted, and is delivered once."""
    sender = pair.start(pair.home)
    job_id = pair.relay_job(sender)
    sender.wait_for_log("attempt failed: instance lab: the connection was closed without a response", job_id=job_id)
    put_back(sender, job_id)
    waiting = sender.job(job_id)
    assert (waiting["status"], waiting["max_attempts"]) == ("queued", 30)
    assert waiting["next_retry_at"] is not None
    assert sender.stop() == 0
    lab, sender = pair.start(pair.lab), pair.start(pair.home)
    retry_now(sender)

    result = pair.sent(sender, job_id)["result"]

    assert len(pair.received()) == 2
    assert lab.job(result["job_id"], wait="30s")["status"] == "succeeded"


def test_many_events_wait_together_and_go_together(pair: Pair) -> None:
    """Three failed attempts are enough to know; the others wait without one, and all arrive when somebody is there."""
    sender = pair.start(pair.home)
    event = {"event": {"type": "backup.ready", "payload": {}}}
    jobs = [sender.ask("POST", "/relay/lab", event)[1]["job_id"] for _ in range(10)]
    sender.wait_for_log("event postponed: its instance does not respond", job_id=jobs[-1])
    for job_id in jobs:
        put_back(sender, job_id)
    status, view = sender.ask("GET", "/relay")
    assert (status, view["waiting"], view["instances"][0]["state"]) == (200, 10, "open")
    attempts = [sender.job(job_id)["attempt"] for job_id in jobs]
    assert 1 in attempts, "three failed attempts open the breaker, and the last one has none"
    pair.start(pair.lab)
    retry_now(sender)

    assert [pair.sent(sender, job_id)["result"]["accepted"] for job_id in jobs] == [True] * 10
    assert len(pair.received()) == 20, "two pipelines, one run each"


def test_an_answer_that_is_lost_does_not_make_the_event_arrive_twice(pair: Pair) -> None:
    """The receiver has committed; the retry gets the first answer and starts nothing."""
    pair.start(pair.lab)
    sender = pair.start(pair.home)
    pair.line.loses_answers = True
    pair.line.hangs_up.set()
    job_id = pair.relay_job(sender)
    put_back(sender, job_id)
    pair.line.loses_answers = False
    retry_now(sender)

    job = pair.sent(sender, job_id)

    assert job["attempt"] == 2
    assert len(pair.line.captured) == 2
    assert len(pair.received()) == 2, "two pipelines, one run each"
    assert job["result"]["job_id"] == pair.received()[0]["id"]


def test_a_sender_that_dies_after_sending_does_not_make_the_event_arrive_twice(pair: Pair) -> None:
    """kill -9 between the receiver's commit and the sender's record: sent again, taken once."""
    pair.start(pair.lab)
    sender = pair.start(pair.home)
    pair.line.loses_answers = True
    job_id = pair.relay_job(sender)
    assert pair.line.is_lost.wait(PATIENCE)
    assert sender.job(job_id)["status"] == "running"
    sender.kill()
    pair.line.hangs_up.set()
    pair.line.loses_answers = False
    sender = pair.start(pair.home)

    job = pair.sent(sender, job_id)

    assert job["attempt"] == 2
    assert len(pair.received()) == 2, "two pipelines, one run each"


def test_a_captured_request_that_is_sent_again_and_again_starts_nothing(pair: Pair) -> None:
    """A hundred replays get the first answer, byte for byte."""
    pair.start(pair.lab)
    sender = pair.start(pair.home)
    pair.sent(sender, pair.relay_job(sender))
    (request,), (first,) = pair.line.captured, pair.line.answers
    assert pair.line.target is not None

    bodies = {exchange(pair.line.target, request).partition(b"\r\n\r\n")[2] for _ in range(100)}

    assert bodies == {first.partition(b"\r\n\r\n")[2]}
    assert len(pair.received()) == 2


def test_a_request_that_openssl_has_signed_is_taken(pair: Pair) -> None:
    """The canonical string is method, path, timestamp and body, a line each; nothing of ours is needed to make it."""
    lab = pair.start(pair.lab)
    body = b'{"event": {"type": "backup.ready", "payload": {"by": "hand"}}}'
    moment = to_text(datetime.now(UTC) - timedelta(seconds=1))
    signed = b"POST\n/ingest/peer/home\n" + moment.encode() + b"\n" + body
    command = ["openssl", "dgst", "-sha256", "-hmac", SECRET, "-r"]
    signature = subprocess.run(command, input=signed, capture_output=True, check=True).stdout.split()[0].decode()
    headers = {"X-Ductile-Peer": "home", "X-Ductile-Timestamp": moment, "X-Ductile-Signature": f"sha256={signature}"}

    status, answer = lab.ask("POST", "/ingest/peer/home", body, token=None, headers=headers)

    assert (status, answer["accepted"]) == (202, True)
    assert lab.job(answer["job_id"], wait="30s")["status"] == "succeeded"
    wrong = headers | {"X-Ductile-Signature": "0" * 64}
    status, answer = lab.ask("POST", "/ingest/peer/home", body, token=None, headers=wrong)
    assert (status, answer["error"]) == (403, "forbidden")


def test_the_command_sends_and_says_when_nobody_takes_the_event(pair: Pair, ductile: Callable[..., Any]) -> None:
    """An event without a pipeline has arrived: no failure, but said, logged and journalled on both sides."""
    pair.start(pair.lab)
    sender = pair.start(pair.home)

    done = ductile(pair.home, "relay", "send", "lab", "--event", "unknown.event", "--payload", '{"n": 1}', "--wait")

    assert (done.returncode, done.stderr) == (0, "")
    assert "but the receiver has no route for it (no_route)" in done.stdout
    sender.wait_for_log("event relayed, but the receiver has no route for it")
    (here,) = pair.home.rows("SELECT data FROM journal WHERE kind = 'event.no_route'")
    (there,) = pair.lab.rows("SELECT data FROM journal WHERE kind = 'event.unmatched'")
    assert json.loads(here["data"])["receiver_event_id"] == json.loads(there["data"])["event_id"]
    assert json.loads(there["data"])["source"] == "relay:home"
    listed = ductile(pair.lab, "relay", "list", "--json")
    assert json.loads(listed.stdout)["peers"][0]["received"] == 1


@pytest.fixture
def ductile() -> Callable[..., Any]:
    import sys

    def run(home: Home, *args: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "ductile", *args, "--config", str(home.path)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)

    return run


def test_peers_get_in_without_callers(home: Home, start: Callable[..., Service]) -> None:
    """An instance that only receives needs no API for callers: its address is open for peers, and for nobody else."""
    home.plugin("takes", TAKES)
    text = (home.path / "config.yaml").read_text().replace("enabled: true", "enabled: false")
    home.write("config.yaml", text + RECEIVER)
    home.write("tokens.yaml", f"tokens: [{{name: line, key: {SECRET}}}]\n")
    home.seal()
    service = start()
    assert service.ask("POST", "/ingest/peer/stranger", {}, token=None)[1]["error"] == "unknown relay peer"
    assert service.ask("GET", "/jobs", token=None)[0] == 401


WAITS = f"""#!/bin/sh
while [ ! -e go ]; do sleep 0.02; done
{EMITS.partition(chr(10))[2]}"""


def test_a_relay_that_a_replaced_configuration_still_asks_for_ends_with_the_reason(pair: Pair) -> None:
    """The job that emits began when there were instances; what it leads to does not wait for ever without a word."""
    pair.home.plugin("waits", WAITS)
    sender = pair.start(pair.home)
    emits = sender.post("waits")
    text, begins = (pair.home.path / "config.yaml").read_text(), "instances:\n"
    pair.home.write("config.yaml", text.partition(begins)[0])
    pair.home.seal()
    status, body = sender.ask("POST", "/system/reload")
    assert status == 200, body
    assert sender.run("takes")["status"] == "succeeded"  # there was a turn without instances

    (pair.home.path / "go").touch()

    assert sender.job(emits, wait="30s")["status"] == "succeeded"
    (relay,) = pair.home.rows("SELECT id FROM job_queue WHERE plugin = 'core.relay'")
    job = sender.job(relay["id"], wait="20s")
    assert job["status"] == "dead", job
    assert "tell-the-lab" in job["last_error"]
