"""Relay between two services over a connection that can be cut: every event arrives once."""

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
from tests.e2e.commands import ductile
from tests.e2e.sample_plugins import REQUEST_TO_FILE
from tests.e2e.service import TOKEN, WAIT_SECONDS, Home, Service

SECRET = "the-secret-of-the-relay-0123456789"
EMITTER = """#!/bin/sh
cat >/dev/null
PAYLOAD='{"archive": "monday.tar", "host": "box"}'
echo '{"status": "ok", "result": "done", "events": [{"type": "backup.done", "payload": '"$PAYLOAD}]}"
"""
SENDER = """\
include: [tokens.yaml]
instances:
  - {{name: lab, base_url: "http://127.0.0.1:{port}", ingress_path: /ingest/peer/home, secret_ref: line, timeout: 20s}}
pipelines:
  - name: relay-to-lab
    on: backup.done
    steps:
      - id: tell
        relay:
          to: lab
          event: backup.ready
          with: {{archive: payload.archive, note: "from {{payload.host}}"}}
          baggage: {{trace: payload.archive, private: payload.host}}
      - {{id: after, uses: receiver}}
"""
RECEIVER = """\
include: [tokens.yaml]
remote_ingress:
  peers: [{name: home, secret_ref: line, accept: [backup.ready, unknown.event], baggage: {allow: [trace]}}]
pipelines:
  - {name: on-backup, on: backup.ready, steps: [{id: one, uses: receiver}]}
  - {name: also-on-backup, on: backup.ready, steps: [{id: one, uses: receiver}]}
"""


@define
class LossyProxy:
    """A TCP proxy that forwards one request per connection and can lose its response."""

    target: int | None = None
    """The port of the receiver, or None if the receiver is down."""
    loses_responses: bool = False
    requests: list[bytes] = field(factory=list)
    responses: list[bytes] = field(factory=list)
    has_lost_response: threading.Event = field(factory=threading.Event)
    """Set when a response was lost."""
    closes_lost_connections: threading.Event = field(factory=threading.Event)
    """Set when connections with a lost response are to be closed."""
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
                self._forward(connection)

    def _forward(self, connection: socket.socket) -> None:
        request = read_message(connection)
        if self.target is None or not request:
            return
        answer = exchange(self.target, request)
        self.requests.append(request)
        self.responses.append(answer)
        if self.loses_responses:
            self.has_lost_response.set()
            self.closes_lost_connections.wait(WAIT_SECONDS)
        else:
            connection.sendall(answer)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def read_message(connection: socket.socket) -> bytes:
    """Read one HTTP message with a Content-Length."""
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
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS) as receiver:
        receiver.sendall(request)
        return read_message(receiver)


@define
class RelayPair:
    """A sender named home, a receiver named lab, and the proxy between them."""

    home: Home
    lab: Home
    proxy: LossyProxy
    started: list[Service] = field(factory=list)

    def start(self, which: Home) -> Service:
        service = which.launch()
        self.started.append(service)
        service.wait_until_ready()
        if which is self.lab:
            self.proxy.target = int(service.url.rpartition(":")[2])
        return service

    def emit_relay_job(self, sender: Service) -> str:
        """Run the plugin that emits the event and return the id of the relay job."""
        emitted = sender.run("emitter", "poll")
        assert emitted["status"] == "succeeded", emitted
        (row,) = self.home.rows("SELECT id FROM job_queue WHERE plugin = 'core.relay'")
        return str(row["id"])

    def received(self) -> list[dict[str, Any]]:
        """Return the runs that were started at the receiver."""
        return self.lab.rows("SELECT * FROM job_queue WHERE submitted_by = 'relay:home' ORDER BY seq")

    def wait_until_sent(self, sender: Service, job_id: str) -> dict[str, Any]:
        """Wait for the end of the relay job, check that it succeeded, and return it."""
        job = sender.job(job_id, wait="30s")
        assert job["status"] == "succeeded", job
        return job


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[RelayPair]:
    proxy = LossyProxy()
    home, lab = Home.make(tmp_path / "home"), Home.make(tmp_path / "lab")
    for each, name, more in ((home, "home", SENDER.format(port=proxy.port)), (lab, "lab", RECEIVER)):
        each.plugin("receiver", REQUEST_TO_FILE)
        each.write("tokens.yaml", f"tokens: [{{name: line, key: {SECRET}}}]\n")
        text = (each.path / "config.yaml").read_text().replace("service:\n", f"service:\n  name: {name}\n")
        each.write("config.yaml", text + more)
        each.seal()
    home.plugin("emitter", EMITTER)
    pair = RelayPair(home, lab, proxy)
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    yield pair
    for service in pair.started:
        if service.process.poll() is None:
            service.kill()
    proxy.close()
    thread.join(WAIT_SECONDS)


def wait_until_postponed(service: Service, job_id: str) -> None:
    """Wait for the event of the relay job that it was postponed, after an attempt or without one."""
    parts = urlsplit(service.url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_SECONDS)) as connection:
        connection.request("GET", f"/events?job={job_id}&since=0", headers={"authorization": f"Bearer {TOKEN}"})
        for line in connection.getresponse():
            if line.strip() in (b"event: job.retry_scheduled", b"event: job.held"):
                return
    raise AssertionError("the stream ended before the job was put back")


def reset_breaker(sender: Service) -> None:
    """Reset the breaker of the relay so that postponed jobs are wait_until_sent at once."""
    status, body = sender.ask("POST", "/breaker/core.relay/reset")
    assert status == 200, body


def test_a_relayed_event_starts_the_pipelines_of_the_receiver(pair: RelayPair) -> None:
    """Payload and allowed baggage arrive, every matching pipeline runs, and the sender's run gets the response."""
    lab, sender = pair.start(pair.lab), pair.start(pair.home)
    job = pair.wait_until_sent(sender, pair.emit_relay_job(sender))

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
    (follow_up,) = pair.home.rows("SELECT id FROM job_queue WHERE step_id = 'after'")
    assert sender.job(follow_up["id"], wait="30s")["status"] == "succeeded"
    payload = json.loads((pair.home.path / f"request-{follow_up['id']}.json").read_text())["event"]["payload"]
    assert (payload["relay_to"], payload["relay_receiver_job_id"], payload["relay_accepted"]) == (
        "lab",
        first["id"],
        True,
    )


def test_an_event_for_a_receiver_that_is_down_is_delivered_later(pair: RelayPair) -> None:
    """The job stays queued, also across a restart of the sender, and is delivered once."""
    sender = pair.start(pair.home)
    job_id = pair.emit_relay_job(sender)
    sender.wait_for_log("attempt failed: instance lab: the connection was closed without a response", job_id=job_id)
    wait_until_postponed(sender, job_id)
    waiting = sender.job(job_id)
    assert (waiting["status"], waiting["max_attempts"]) == ("queued", 30)
    assert waiting["next_retry_at"] is not None
    assert sender.stop() == 0
    lab, sender = pair.start(pair.lab), pair.start(pair.home)
    reset_breaker(sender)

    result = pair.wait_until_sent(sender, job_id)["result"]

    assert len(pair.received()) == 2
    assert lab.job(result["job_id"], wait="30s")["status"] == "succeeded"


def test_an_open_relay_breaker_postpones_all_events(pair: RelayPair) -> None:
    """Three failed attempts open the breaker. Other events are postponed without an attempt, and later all arrive."""
    sender = pair.start(pair.home)
    event = {"event": {"type": "backup.ready", "payload": {}}}
    jobs = [sender.ask("POST", "/relay/lab", event)[1]["job_id"] for _ in range(10)]
    sender.wait_for_log("event postponed: its instance does not respond", job_id=jobs[-1])
    for job_id in jobs:
        wait_until_postponed(sender, job_id)
    status, view = sender.ask("GET", "/relay")
    assert (status, view["waiting"], view["instances"][0]["state"]) == (200, 10, "open")
    attempts = [sender.job(job_id)["attempt"] for job_id in jobs]
    assert 1 in attempts, "the last job has an attempt, although three failures open the breaker"
    pair.start(pair.lab)
    reset_breaker(sender)

    assert [pair.wait_until_sent(sender, job_id)["result"]["accepted"] for job_id in jobs] == [True] * 10
    assert len(pair.received()) == 20, "two pipelines, one run each"


def test_a_lost_response_does_not_deliver_an_event_twice(pair: RelayPair) -> None:
    """The retry gets the first response and starts nothing."""
    pair.start(pair.lab)
    sender = pair.start(pair.home)
    pair.proxy.loses_responses = True
    pair.proxy.closes_lost_connections.set()
    job_id = pair.emit_relay_job(sender)
    wait_until_postponed(sender, job_id)
    pair.proxy.loses_responses = False
    reset_breaker(sender)

    job = pair.wait_until_sent(sender, job_id)

    assert job["attempt"] == 2
    assert len(pair.proxy.requests) == 2
    assert len(pair.received()) == 2, "two pipelines, one run each"
    assert job["result"]["job_id"] == pair.received()[0]["id"]


def test_a_sender_that_is_killed_after_sending_does_not_deliver_an_event_twice(pair: RelayPair) -> None:
    """The kill happens after the commit of the receiver and before the record of the sender."""
    pair.start(pair.lab)
    sender = pair.start(pair.home)
    pair.proxy.loses_responses = True
    job_id = pair.emit_relay_job(sender)
    assert pair.proxy.has_lost_response.wait(WAIT_SECONDS)
    assert sender.job(job_id)["status"] == "running"
    sender.kill()
    pair.proxy.closes_lost_connections.set()
    pair.proxy.loses_responses = False
    sender = pair.start(pair.home)

    job = pair.wait_until_sent(sender, job_id)

    assert job["attempt"] == 2
    assert len(pair.received()) == 2, "two pipelines, one run each"


def test_a_replayed_request_starts_nothing(pair: RelayPair) -> None:
    """A hundred replays get the first response, byte for byte."""
    pair.start(pair.lab)
    sender = pair.start(pair.home)
    pair.wait_until_sent(sender, pair.emit_relay_job(sender))
    (request,), (first,) = pair.proxy.requests, pair.proxy.responses
    assert pair.proxy.target is not None

    bodies = {exchange(pair.proxy.target, request).partition(b"\r\n\r\n")[2] for _ in range(100)}

    assert bodies == {first.partition(b"\r\n\r\n")[2]}
    assert len(pair.received()) == 2


def test_a_request_signed_with_openssl_is_accepted(pair: RelayPair) -> None:
    """The signed string is method, path, timestamp and body, one per line."""
    lab = pair.start(pair.lab)
    body = b'{"event": {"type": "backup.ready", "payload": {"by": "openssl"}}}'
    timestamp = to_text(datetime.now(UTC) - timedelta(seconds=1))
    signed = b"POST\n/ingest/peer/home\n" + timestamp.encode() + b"\n" + body
    command = ["openssl", "dgst", "-sha256", "-hmac", SECRET, "-r"]
    signature = subprocess.run(command, input=signed, capture_output=True, check=True).stdout.split()[0].decode()
    headers = {"X-Ductile-Peer": "home", "X-Ductile-Timestamp": timestamp, "X-Ductile-Signature": f"sha256={signature}"}

    status, answer = lab.ask("POST", "/ingest/peer/home", body, token=None, headers=headers)

    assert (status, answer["accepted"]) == (202, True)
    assert lab.job(answer["job_id"], wait="30s")["status"] == "succeeded"
    wrong = headers | {"X-Ductile-Signature": "0" * 64}
    status, answer = lab.ask("POST", "/ingest/peer/home", body, token=None, headers=wrong)
    assert (status, answer["error"]) == (403, "forbidden")


def test_relay_send_reports_that_the_receiver_has_no_route(pair: RelayPair) -> None:
    """The command succeeds. Both services log the event and record it in their journals."""
    pair.start(pair.lab)
    sender = pair.start(pair.home)

    done = ductile(pair.home, "relay", "send", "lab", "--event", "unknown.event", "--payload", '{"n": 1}', "--wait")

    assert (done.exit_code, done.stderr) == (0, "")
    assert "but the receiver has no route for it (no_route)" in done.stdout
    sender.wait_for_log("event relayed, but the receiver has no route for it")
    (here,) = pair.home.rows("SELECT data FROM journal WHERE kind = 'event.no_route'")
    (there,) = pair.lab.rows("SELECT data FROM journal WHERE kind = 'event.unmatched'")
    assert json.loads(here["data"])["receiver_event_id"] == json.loads(there["data"])["event_id"]
    assert json.loads(there["data"])["source"] == "relay:home"
    listed = ductile(pair.lab, "relay", "list", "--json")
    assert json.loads(listed.stdout)["peers"][0]["received"] == 1


def test_relay_works_with_the_api_disabled(home: Home, start: Callable[..., Service]) -> None:
    """The address accepts peers and refuses API requests."""
    home.plugin("receiver", REQUEST_TO_FILE)
    text = (home.path / "config.yaml").read_text().replace("enabled: true", "enabled: false")
    home.write("config.yaml", text + RECEIVER)
    home.write("tokens.yaml", f"tokens: [{{name: line, key: {SECRET}}}]\n")
    home.seal()
    service = start()
    assert service.ask("POST", "/ingest/peer/unknown", {}, token=None)[1]["error"] == "unknown relay peer"
    assert service.ask("GET", "/jobs", token=None)[0] == 401


WAITING = f"""#!/bin/sh
while [ ! -e go ]; do sleep 0.02; done
{EMITTER.partition(chr(10))[2]}"""


def test_a_relay_job_without_configured_instances_is_dead_with_the_reason(pair: RelayPair) -> None:
    """The step was started before the reload that removed the instances."""
    pair.home.plugin("waiting", WAITING)
    sender = pair.start(pair.home)
    emitting_job = sender.post("waiting")
    text, separator = (pair.home.path / "config.yaml").read_text(), "instances:\n"
    pair.home.write("config.yaml", text.partition(separator)[0])
    pair.home.seal()
    status, body = sender.ask("POST", "/system/reload")
    assert status == 200, body
    assert sender.run("receiver")["status"] == "succeeded"  # the dispatcher has claimed without instances

    (pair.home.path / "go").touch()

    assert sender.job(emitting_job, wait="30s")["status"] == "succeeded"
    (relay,) = pair.home.rows("SELECT id FROM job_queue WHERE plugin = 'core.relay'")
    job = sender.job(relay["id"], wait="20s")
    assert job["status"] == "dead", job
    assert "relay-to-lab" in job["last_error"]
