"""Webhooks of a running service: curl sends, openssl signs, plugins run."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ductile.core.instance.actors import process_actor
from tests.e2e.sample_plugins import REQUEST_TO_FILE
from tests.e2e.service import Home, Service, Start

SECRET, NEXT = "the-first-secret-0123456789", "the-second-secret-0123456789"
WEBHOOKS = """\
webhooks:
  listen: localhost:0
  endpoints:
    - path: /hook/github
      event: github.{header.X-GitHub-Event}
      scheme: github
      secret_ref: SECRETS
    - path: /hook/plugin
      plugin: receiver
      secret_ref: SECRETS
      signature_header: X-Signature-256
      delivery_id_header: X-Delivery
      max_body_size: 1KB
"""
PIPELINES = """\
include: [tokens.yaml, webhooks.yaml]
pipelines:
  - name: on-push
    on: github.push
    if: {path: payload.ref, op: eq, value: refs/heads/main}
    steps:
      - {id: first, uses: receiver}
      - {id: second, uses: receiver, with: {pusher: "{payload.pusher.name}"}}
"""
PUSH = b"""\
{
  "ref" : "refs/heads/main",
  "repository": { "full_name": "octo/hello", "stars": 1.0e1 },
  "pusher": { "name": "octo \xe2\x80\x93 cat" },
  "type": "not.an.envelope", "payload": { "neither": true }
}
"""


def configure(home: Home, *, secrets: str = "[first]", first: str = SECRET) -> None:
    """Write and seal tokens.yaml and webhooks.yaml."""
    home.write("tokens.yaml", f"tokens:\n  - {{name: first, key: {first}}}\n  - {{name: next, key: {NEXT}}}\n")
    home.write("webhooks.yaml", WEBHOOKS.replace("SECRETS", secrets))
    home.seal()


@pytest.fixture
def webhook_home(home: Home) -> Home:
    home.plugin("receiver", REQUEST_TO_FILE)
    home.add(PIPELINES)
    configure(home)
    return home


def address(service: Service) -> str:
    """Return the webhook address: the second address of the ready line."""
    (line,) = [line for line in service.stderr if " is ready: " in line]
    _, found = re.findall(r"http://[^,\s]+", line)
    return str(found)


def openssl(body: bytes, secret: str = SECRET) -> str:
    done = subprocess.run(
        ["openssl", "dgst", "-sha256", "-hmac", secret, "-r"], input=body, capture_output=True, check=True
    )
    return done.stdout.split()[0].decode()


def curl(url: str, *options: str, body: bytes | None = None) -> tuple[int, Any]:
    """Send a request and return status and JSON, or (0, None) without a response."""
    output, _, status = run_curl(url, *options, body=body).rstrip("\n").rpartition("\n")
    return int(status), json.loads(output) if int(status) else None


def run_curl(url: str, *options: str, body: bytes | None = None) -> str:
    """Run curl and return its output: bodies, each followed by its status on a line of its own."""
    data = ["--data-binary", "@-"] if body is not None else []
    command = ["curl", "-sS", "--max-time", "60", "-w", "\n%{http_code}\n", *data, *options, url]
    return subprocess.run(command, input=body or b"", capture_output=True, check=False).stdout.decode()


def push(
    service: Service, *, body: bytes = PUSH, secret: str = SECRET, delivery: str = "72d3162e-cc78", kind: str = "push"
) -> tuple[int, Any]:
    headers = {
        "X-GitHub-Event": kind,
        "X-GitHub-Delivery": delivery,
        "X-Hub-Signature-256": f"sha256={openssl(body, secret)}",
        "Content-Type": "application/json",
    }
    options = [part for name, value in headers.items() for part in ("-H", f"{name}: {value}")]
    return curl(f"{address(service)}/hook/github", *options, body=body)


def deliver(
    service: Service, body: bytes, *options: str, path: str = "/hook/plugin", secret: str = SECRET
) -> tuple[int, Any]:
    """Send a signed delivery to the endpoint of the plugin."""
    return curl(f"{address(service)}{path}", "-H", signature(body, secret), *options, body=body)


def signature(body: bytes, secret: str = SECRET) -> str:
    return f"X-Signature-256: {openssl(body, secret)}"


def effects(home: Home) -> list[str]:
    file = home.path / "effects"
    return file.read_text().splitlines() if file.exists() else []


def request_of(home: Home, job_id: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((home.path / f"request-{job_id}.json").read_text())
    return content


def wait_for_tree(service: Service, job_id: str) -> None:
    status, body = service.ask("GET", f"/job/{job_id}/tree?wait=30s")
    assert status == 200, body


def test_a_push_runs_its_pipeline(webhook_home: Home, start: Start) -> None:
    """The plugin gets the body unchanged, with the configured headers."""
    service = start()
    status, body = push(service)

    assert status == 202
    wait_for_tree(service, body["job_id"])
    first, second = effects(webhook_home)
    assert first == body["job_id"]
    event = request_of(webhook_home, first)["event"]
    assert event["payload"] == json.loads(PUSH)
    assert (event["type"], event["source"]) == ("github.push", "webhook:/hook/github")
    assert event["headers"] == {"x-github-event": "push", "x-github-delivery": "72d3162e-cc78"}
    assert request_of(webhook_home, second)["event"]["payload"]["pusher"] == "octo – cat"
    assert service.stop() == 0
    rows = webhook_home.rows("SELECT submitted_by, status FROM job_queue ORDER BY seq")
    assert [row["status"] for row in rows] == ["succeeded", "succeeded"]
    assert rows[0]["submitted_by"] == "webhook:/hook/github"


def test_a_ping_and_a_push_to_another_branch_create_no_job(webhook_home: Home, start: Start) -> None:
    """The ping is answered. The push is accepted, and the journal has the reason."""
    service = start()
    assert push(service, kind="ping", body=b'{"zen": "Half measures."}', delivery="p") == (200, {"status": "pong"})
    assert push(service, body=PUSH.replace(b"main", b"next"), delivery="q") == (202, {"job_id": None})

    kinds = [
        row["kind"]
        for row in webhook_home.rows("SELECT kind FROM journal WHERE kind LIKE '%.unmatched' OR kind LIKE 'p%'")
    ]
    assert kinds == ["pipeline.skipped", "event.unmatched"]
    assert webhook_home.rows("SELECT id FROM job_queue") == []


def test_an_invalid_signature_is_forbidden_and_counted(webhook_home: Home, start: Start) -> None:
    """The response never has the reason. The journal has the counts after the service has stopped."""
    service = start()
    wrong = push(service, secret=NEXT)
    assert wrong == push(service, secret="") == curl(f"{address(service)}/hook/github", body=PUSH)
    assert (wrong[0], wrong[1]["error"]) == (403, "forbidden")
    assert deliver(service, b"{}", "-H", signature(b"{}"))[0] == 403

    assert service.stop() == 0
    rows = webhook_home.rows("SELECT data FROM journal WHERE kind = 'webhook.refused' ORDER BY seq")
    refused = [json.loads(row["data"]) for row in rows]
    counts = {
        path: sum(row["count"] for row in refused if row["path"] == path) for path in ("/hook/github", "/hook/plugin")
    }
    assert counts == {"/hook/github": 3, "/hook/plugin": 1}
    assert webhook_home.rows("SELECT id FROM job_queue") == []


def ductile(home: Home, *args: str) -> Any:
    """Run a command and return its JSON."""
    command = [sys.executable, "-m", "ductile", *args, "--config", str(home.path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout or done.stderr)


def test_deliveries_are_on_record_when_their_response_arrives(webhook_home: Home, start: Start) -> None:
    """With the same content over HTTP and from the command."""
    service = start()
    for number in range(3):
        assert push(service, secret=NEXT, delivery=f"wrong-{number}")[0] == 403
        refused = ductile(webhook_home, "webhook", "receipts", "github", "--refused")["refused"]
        assert (len(refused), refused[0]["code"]) == (number + 1, "signature_mismatch")
    job = deliver(service, b"{}")[1]["job_id"]

    page = ductile(webhook_home, "webhook", "deliveries", "--limit", "2")
    assert [(one["verdict"], one["delivery_id"], one["job_ids"]) for one in page["deliveries"]] == [
        ("accepted", None, [job]),
        ("refused", "wrong-2", []),
    ]
    assert service.ask("GET", "/webhooks/deliveries?limit=2") == (200, page)
    rest = f"/webhooks/deliveries?endpoint=github&verdict=refused&cursor={page['next_cursor']}"
    assert [one["delivery_id"] for one in service.ask("GET", rest)[1]["deliveries"]] == ["wrong-1", "wrong-0"]
    one = page["deliveries"][0]
    assert service.ask("GET", f"/webhooks/deliveries/{one['id']}") == (200, one)
    assert ductile(webhook_home, "webhook", "inspect", str(one["id"])) == one


def test_a_delivery_is_delivered_again_under_the_current_configuration(webhook_home: Home, start: Start) -> None:
    """From the stored body. A dry run creates nothing."""
    service = start()
    assert push(service, body=PUSH.replace(b"main", b"next")) == (202, {"job_id": None})
    webhook_home.replace("refs/heads/main", "refs/heads/next")
    webhook_home.seal()
    assert service.ask("POST", "/system/reload")[0] == 200

    planned = ductile(webhook_home, "webhook", "redeliver", "1", "--dry-run")
    assert (planned["verdict"], planned["runs"], planned["dry_run"]) == ("accepted", 1, True)
    assert webhook_home.rows("SELECT id FROM job_queue") == []
    done = ductile(webhook_home, "webhook", "redeliver", "1")
    assert (done["redelivery_of"], done["event_type"], len(done["job_ids"])) == (1, "github.push", 1)
    wait_for_tree(service, done["job_ids"][0])
    event = request_of(webhook_home, done["job_ids"][0])["event"]
    assert event["payload"]["ref"] == "refs/heads/next"
    assert event["headers"] == {"x-github-event": "push", "x-github-delivery": "72d3162e-cc78"}
    again = ductile(webhook_home, "webhook", "inspect", str(done["id"]))
    assert (again["redelivery_of"], again["verdict"], again["job_ids"]) == (1, "accepted", done["job_ids"])
    assert webhook_home.rows("SELECT DISTINCT actor FROM job_queue") == [{"actor": process_actor()}]


def test_only_a_delivery_with_a_stored_body_is_delivered_again(webhook_home: Home, start: Start) -> None:
    """The error says why, and what to do."""
    service = start()
    push(service, secret=NEXT)
    for _ in range(2):
        deliver(service, b"{}", "-H", "X-Delivery: a")
    codes = {"1": "wrong_state", "3": "wrong_state", "99": "not_found", "x": "not_found"}
    found = {one: service.ask("POST", f"/webhooks/deliveries/{one}/redeliver")[1] for one in codes}
    assert {one: body["code"] for one, body in found.items()} == codes
    assert "it was refused, so its body is not stored" in found["1"]["error"]
    assert "redeliver the first one" in found["3"]["error"]


CHUNKED = ("-H", "Transfer-Encoding: chunked")
SIZES = [(1024, (), 202), (1025, (), 413), (1024, CHUNKED, 202), (1025, CHUNKED, 413), (4_000_000, CHUNKED, 413)]


def test_a_body_larger_than_the_endpoint_limit_is_refused(webhook_home: Home, start: Start) -> None:
    """The limit is inclusive and applies to chunked bodies too."""
    service = start()
    for size, options, status in SIZES:
        body = json.dumps({"x": "x" * (size - 9)}).encode()
        assert len(body) == size
        assert deliver(service, body, *options)[0] == status, (size, options)
    assert deliver(service, b"{}", "-X", "PUT")[0] == 405
    assert webhook_home.rows("SELECT COUNT(*) AS jobs FROM job_queue") == [{"jobs": 2}]


def test_a_repeated_delivery_returns_the_first_job(webhook_home: Home, start: Start) -> None:
    """A thousand repetitions, fifty at once, and one more after kill -9."""
    service = start()
    body = b'{"n": 1}'
    options = ["-H", signature(body), "-H", "X-Delivery: one", "--parallel", "--parallel-max", "50"]
    output = run_curl(f"{address(service)}/hook/plugin?[1-1000]", *options, body=body)

    ids = re.findall(r'"job_id":"([^"]+)"', output)
    assert (len(ids), len(set(ids)), re.findall(r"(?m)^[0-9]{3}$", output)) == (1000, 1, ["202"] * 1000)
    assert service.job(ids[0], wait="30s")["status"] == "succeeded"
    service.kill()
    again = start()
    assert deliver(again, body, "-H", "X-Delivery: one") == (202, {"job_id": ids[0]})
    assert deliver(again, b'{"n": 2}', "-H", "X-Delivery: one")[0] == 409
    assert webhook_home.rows("SELECT COUNT(*) AS jobs FROM job_queue") == [{"jobs": 1}]
    assert effects(webhook_home) == [ids[0]]


def test_an_acknowledged_delivery_survives_kill_9(webhook_home: Home, start: Start) -> None:
    """The job is in the ledger and runs after the next start."""
    webhook_home.plugin("blocking", "#!/bin/sh\nexec sleep 600\n")
    webhook_home.write(
        "webhooks.yaml",
        (webhook_home.path / "webhooks.yaml").read_text().replace("plugin: receiver", "plugin: blocking"),
    )
    webhook_home.seal()
    service = start()
    status, body = deliver(service, b"{}", "-H", "X-Delivery: a")
    service.kill()

    assert status == 202
    (row,) = webhook_home.rows("SELECT id, plugin, status FROM job_queue")
    assert (row["id"], row["plugin"]) == (body["job_id"], "blocking")
    assert row["status"] in ("queued", "running")
    again = start()
    assert deliver(again, b"{}", "-H", "X-Delivery: a") == (202, body)


@pytest.mark.parametrize(
    ("failpoint", "stored"), [("enqueue.before_begin", 0), ("enqueue.after_insert", 0), ("enqueue.after_commit", 1)]
)
def test_a_delivery_that_is_repeated_after_a_crash_creates_one_job(
    webhook_home: Home, start: Start, failpoint: str, stored: int
) -> None:
    """At every failpoint, job and receipt are both stored or both missing."""
    service = start(environ={"DUCTILE_FAILPOINT": failpoint})
    assert deliver(service, b"{}", "-H", "X-Delivery: a") == (0, None)
    assert service.wait() == -signal.SIGKILL
    assert webhook_home.rows("SELECT COUNT(*) AS n FROM receipts") == [{"n": stored}]
    assert webhook_home.rows("SELECT COUNT(*) AS n FROM job_queue") == [{"n": stored}]

    again = start()
    status, body = deliver(again, b"{}", "-H", "X-Delivery: a")
    assert status == 202
    assert again.job(body["job_id"], wait="30s")["status"] == "succeeded"
    assert set(effects(webhook_home)) == {body["job_id"]}  # twice if it was running when the service was killed


def test_a_secret_is_replaced_without_a_refused_delivery(webhook_home: Home, start: Start) -> None:
    """While both secrets are configured, both are valid. The listener stays."""
    service = start()
    listener = address(service)
    assert [push(service, secret=secret, delivery=secret)[0] for secret in (SECRET, NEXT)] == [202, 403]
    reload(service, lambda: configure(webhook_home, secrets="[first, next]"))
    assert [push(service, secret=secret, delivery=f"2{secret}")[0] for secret in (SECRET, NEXT)] == [202, 202]
    reload(service, lambda: configure(webhook_home, secrets="[next]"))
    assert [push(service, secret=secret, delivery=f"3{secret}")[0] for secret in (SECRET, NEXT)] == [403, 202]
    assert address(service) == listener


def test_a_new_secret_value_applies_from_the_reload(webhook_home: Home, start: Start) -> None:
    """The name in webhooks.yaml stays the same."""
    service = start()
    fresh = "the-third-secret-0123456789"
    reload(service, lambda: configure(webhook_home, first=fresh))
    assert [push(service, secret=secret)[0] for secret in (SECRET, fresh)] == [403, 202]


def reload(service: Service, change: Callable[[], None]) -> None:
    change()
    status, body = service.ask("POST", "/system/reload")
    assert status == 200, body


def test_a_reload_changes_endpoints_but_not_the_listen_address(webhook_home: Home, start: Start) -> None:
    """A changed address needs a restart."""
    service = start()
    text = (webhook_home.path / "webhooks.yaml").read_text()
    webhook_home.write("webhooks.yaml", text.replace("/hook/plugin", "/hook/moved"))
    reload(service, webhook_home.seal)
    assert deliver(service, b"{}")[0] == 404
    assert deliver(service, b"{}", path="/hook/moved")[0] == 202

    for changed in (text.replace("localhost:0", "localhost:1"), "webhooks: {endpoints: []}\n"):
        webhook_home.write("webhooks.yaml", changed)
        webhook_home.seal()
        status, body = service.ask("POST", "/system/reload")
        assert (status, "webhooks.listen" in body["error"]) == (422, True)
    assert deliver(service, b"{}", path="/hook/moved")[0] == 202


def test_without_endpoints_there_is_no_webhook_listener(home: Home, start: Start) -> None:
    """The ready line has the address of the API only."""
    home.add("webhooks: {listen: 'localhost:0', endpoints: []}\n")
    (line,) = [line for line in start().stderr if " is ready: " in line]
    assert line.count("http://") == 1


def test_an_occupied_webhook_address_is_a_start_error(webhook_home: Home, start: Start, tmp_path: Path) -> None:
    """The exit code is 75, and the message has the address."""
    port = address(start()).rpartition(":")[2]
    other = Home.make(tmp_path / "other")
    other.plugin("receiver", REQUEST_TO_FILE)
    other.add(PIPELINES)
    configure(other)
    other.write("webhooks.yaml", (other.path / "webhooks.yaml").read_text().replace("localhost:0", f"localhost:{port}"))
    other.seal()
    second = other.launch()
    assert second.wait() == 75
    assert any(f":{port}" in line for line in second.stderr)


@pytest.mark.parametrize("senders", [1, 8], ids=["one address", "many addresses"])
def test_incomplete_requests_do_not_block_other_deliveries(webhook_home: Home, start: Start, senders: int) -> None:
    """256 connections with half_request a body are open, from one address or from eight."""
    service = start()
    url = urlsplit(address(service))
    half_request = b"POST /hook/plugin HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n{"
    with ExitStack() as connections:
        for number in range(256):
            source = (f"127.0.0.{number % senders + 1}", 0)
            target = (str(url.hostname), url.port or 0)
            connections.enter_context(socket.create_connection(target, source_address=source)).sendall(half_request)

        assert deliver(service, b"{}")[0] == 202


def test_health_is_on_the_webhook_port_for_local_requests(webhook_home: Home, start: Start) -> None:
    """It has the fields of the API. A forwarded request is refused."""
    service = start()
    status, body = curl(f"{address(service)}/healthz")
    assert (status, body["status"]) == (200, "ok")
    assert {"uptime_seconds", "queue_depth", "plugins_loaded", "plugins_circuit_open"} <= body.keys()
    assert curl(f"{address(service)}/healthz", "-H", "X-Forwarded-For: 192.0.2.7")[0] == 403


def test_secrets_are_never_stored_or_logged(webhook_home: Home, start: Start) -> None:
    """They are not in the log, in the ledger or in the request of the plugin."""
    service = start()
    push(service)
    push(service, secret=NEXT)
    deliver(service, b"{}", "-H", "Authorization: Bearer sesame-sesame")
    assert service.stop() == 0
    output = json.dumps(service.lines) + "".join(service.stderr)
    stored = b"".join(file.read_bytes() for file in webhook_home.path.glob("data/*") if file.is_file())
    requests = b"".join(file.read_bytes() for file in webhook_home.path.glob("request-*"))
    for secret in (SECRET, NEXT, "sesame-sesame"):
        assert secret not in output
        assert os.fsencode(secret) not in stored + requests
