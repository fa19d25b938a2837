"""`ductile relay` and `ductile webhook`: usage errors, requests to the service, and output without a service."""

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from tests.cli.conftest import Run
from tests.cli.history import past_of
from tests.e2e.service import Home

SECRET = "line-secret-0123456789abcdef"
RELAY = """\
include: [tokens.yaml]
instances:
  - {name: lab, base_url: "https://lab.example", ingress_path: /ingest/peer/home, secret_ref: line, allow: [a.b]}
  - {name: "off", enabled: false, base_url: "https://off.example", ingress_path: /i, secret_ref: line}
remote_ingress: {peers: [{name: lab, secret_ref: line, accept: [c.d], baggage: {allow: [trace]}}]}
"""


@define
class FakeService:
    """A service that records requests and returns prepared responses."""

    answers: dict[str, Any] = field(factory=dict)
    asked: list[tuple[str, str, Any]] = field(factory=list)
    url: str = ""


@pytest.fixture
def service() -> Iterator[FakeService]:
    known = FakeService()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            known.asked.append((self.command, self.path, json.loads(body) if body else None))
            text = json.dumps(known.answers[self.path.partition("?")[0]]).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = answer  # noqa: N815 (the names that the standard library calls)

        def log_message(self, *_: object) -> None:
            pass

    with socketserver.TCPServer(("127.0.0.1", 0), Handler) as server:
        known.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield known
        server.shutdown()
        thread.join()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home.make(tmp_path / "ductile")
    made.plugin("echo", "#!/bin/sh\n")
    made.write("tokens.yaml", f"tokens: [{{name: line, key: {SECRET}}}]\n")
    made.add(RELAY)
    made.seal()
    return made


ENQUEUED = {"job_id": "j-1", "status": "queued", "instance": "lab", "event_type": "a.b"}


def test_relay_send_builds_the_envelope_from_its_options(run: Run, service: FakeService, tmp_path: Path) -> None:
    service.answers["/relay/lab"] = ENQUEUED
    (tmp_path / "baggage.json").write_text('{"trace": 1}')
    options = ["--payload", '{"n": 1}', "--baggage-file", tmp_path / "baggage.json", "--dedupe-key", "k"]
    origin = ["--origin-plugin", "p", "--origin-job-id", "j", "--origin-event-id", "e"]

    done = run("relay", "send", "lab", "--event", "a.b", *options, *origin, "--api-url", service.url)

    assert (done.exit_code, done.stdout) == (0, "j-1: a.b to lab is queued for sending\n")
    envelope = {
        "event": {"type": "a.b", "payload": {"n": 1}, "dedupe_key": "k"},
        "origin": {"plugin": "p", "job_id": "j", "event_id": "e"},
        "baggage": {"trace": 1},
    }
    assert service.asked == [("POST", "/relay/lab", envelope)]


def test_relay_send_omits_missing_options(run: Run, service: FakeService) -> None:
    service.answers["/relay/lab"] = ENQUEUED
    assert run("relay", "send", "lab", "--event", "a.b", "--api-url", service.url, "--json").json == ENQUEUED
    assert service.asked == [("POST", "/relay/lab", {"event": {"type": "a.b"}})]


def test_a_dry_run_of_relay_send_is_validated_by_the_service(run: Run, service: FakeService) -> None:
    service.answers["/relay/lab"] = {"status": "planned", "dry_run": True, "instance": "lab", "event_type": "a.b"}
    done = run("relay", "send", "lab", "--event", "a.b", "--dry-run", "--wait", "--api-url", service.url)
    assert (done.exit_code, done.stdout) == (0, "would send a.b to lab; nothing was sent\n")
    assert service.asked[0][1] == "/relay/lab?dry_run=true"


@pytest.mark.parametrize(
    ("job", "exit_code", "line"),
    [
        ({"status": "succeeded", "result": {"accepted": True}}, 0, "was delivered as r-1"),
        (
            {"status": "succeeded", "result": {"accepted": False, "reason": "no_route"}},
            0,
            "has no route for it (no_route)",
        ),
        (
            {"status": "failed", "last_error": "instance lab: responded with 403: forbidden"},
            1,
            "responded with 403: forbidden",
        ),
        ({"status": "queued", "last_error": None}, 1, "queued, attempt 2: no response yet"),
    ],
)
def test_relay_send_wait_reports_the_outcome(
    run: Run, service: FakeService, job: dict[str, Any], exit_code: int, line: str
) -> None:
    """Exit 1 unless the event was delivered."""
    if "result" in job:
        job = {**job, "result": {"event": "a.b", "receiver_event_id": "r-1", **job["result"]}}
    service.answers |= {"/relay/lab": ENQUEUED, "/job/j-1": {"job_id": "j-1", "attempt": 2, **job}}
    done = run("relay", "send", "lab", "--event", "a.b", "--wait", "--timeout", "0s", "--api-url", service.url)
    assert done.exit_code == exit_code
    assert line in done.stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["lab"], "Missing option '--event'"),
        (["lab", "--event", "a.b", "--payload", "{"], "--payload:1:2"),
        (["lab", "--event", "a.b", "--payload", "[]"], "the payload must be a JSON object"),
        (["lab", "--event", "a.b", "--baggage", "[]"], "the baggage must be a JSON object"),
        (["lab", "--event", "a.b", "--payload", "{}", "--payload-file", "x"], "--payload and --payload-file"),
        (["lab", "--event", "a.b", "--baggage", "{}", "--baggage-file", "x"], "--baggage and --baggage-file"),
    ],
)
def test_invalid_options_of_relay_send_are_refused_without_a_request(
    run: Run, arguments: list[str], error: str
) -> None:
    done = run("relay", "send", *arguments, "--api-url", "http://127.0.0.1:1")
    assert done.exit_code == 2
    assert error in done.stderr


def test_relay_list_needs_no_service_and_no_ledger(run: Run, home: Home) -> None:
    done = run("relay", "list", "--config", home.path)
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "instance ductile: no events waiting to be sent"
    assert any(
        "lab" in line and "reachable" in line and "https://lab.example/ingest/peer/home" in line for line in lines
    )
    assert any("off" in line and "disabled" in line for line in lines)
    assert any("lab" in line and "c.d" in line and "trace" in line for line in lines)
    assert SECRET not in done.stdout
    view = run("relay", "list", "--config", home.path, "--json").json
    assert [one["name"] for one in view["instances"]] == ["lab", "off"]
    assert view["peers"][0]["received"] == 0


def test_an_empty_relay_list_names_the_configuration_keys(run: Run, tmp_path: Path) -> None:
    empty = Home.make(tmp_path / "empty")
    empty.plugin("echo", "#!/bin/sh\n")
    assert "no instances and no peers" in run("relay", "list", "--config", empty.path).stdout


def test_relay_list_queries_a_remote_service(run: Run, service: FakeService) -> None:
    view = {
        "name": "far",
        "waiting": 3,
        "waiting_since": "2026-02-08T09:30:00.000000Z",
        "instances": [
            {
                "name": "lab",
                "enabled": True,
                "address": "https://lab.example/i",
                "allow": [],
                "state": "open",
                "failure_count": 4,
            }
        ],
        "listen_path": None,
        "peers": [],
    }
    service.answers["/relay"] = view
    done = run("relay", "list", "--api-url", service.url)
    assert done.stdout.startswith("instance far: 3 events waiting to be sent, oldest from ")
    assert done.stdout.splitlines()[0].endswith(" ago (2026-02-08 09:30:00Z)")
    assert "unreachable (breaker open), 4 attempts failed" in done.stdout


# ── webhook ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_empty_list_of_deliveries_says_so(run: Run, demo: Path) -> None:
    """With and without a ledger."""
    for command in ("receipts", "deliveries"):
        assert run("webhook", command, "github", "--config", demo).stdout == "no deliveries\n"
    with past_of(demo):
        pass
    for command in ("receipts", "deliveries"):
        assert run("webhook", command, "github", "--config", demo).stdout == "no deliveries\n"
