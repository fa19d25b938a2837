"""Webhooks through a whole service: curl sends, openssl signs, plugins run."""

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.service import Home, Service

Start = Callable[..., Service]

SECRET, NEXT = "the-first-secret-0123456789", "the-second-secret-0123456789"
TAKES = """#!/bin/sh
cat > "request-$DUCTILE_JOB_ID.json"
echo "$DUCTILE_JOB_ID" >> effects
echo '{"status": "ok", "result": "taken"}'
"""
WEBHOOKS = """\
webhooks:
  listen: localhost:0
  endpoints:
    - path: /hook/github
      event: github.{header.X-GitHub-Event}
      scheme: github
      secret_ref: SECRETS
      forward_headers: [X-GitHub-Event, X-GitHub-Delivery]
    - path: /hook/plugin
      plugin: takes
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
      - {id: first, uses: takes}
      - {id: second, uses: takes, with: {pusher: "{payload.pusher.name}"}}
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
    """tokens.yaml and webhooks.yaml, sealed."""
    home.write("tokens.yaml", f"tokens:\n  - {{name: first, key: {first}}}\n  - {{name: next, key: {NEXT}}}\n")
    home.write("webhooks.yaml", WEBHOOKS.replace("SECRETS", secrets))
    home.seal()


@pytest.fixture
def hooked(home: Home) -> Home:
    home.plugin("takes", TAKES)
    home.add(PIPELINES)
    configure(home)
    return home


def address(service: Service) -> str:
    """Where deliveries go: the second address of the ready line."""
    (line,) = [line for line in service.stderr if " is ready: " in line]
    _, found = re.findall(r"http://[^,\s]+", line)
    return str(found)


def openssl(body: bytes, secret: str = SECRET) -> str:
    done = subprocess.run(
        ["openssl", "dgst", "-sha256", "-hmac", secret, "-r"], input=body, capture_output=True, check=True
    )
    return done.stdout.split()[0].decode()


def curl(url: str, *options: str, body: bytes | None = None) -> tuple[int, Any]:
    """Status and JSON of the answer; (0, None) if there was none."""
    said, _, status = sent(url, *options, body=body).rstrip("\n").rpartition("\n")
    return int(status), json.loads(said) if int(status) else None


def sent(url: str, *options: str, body: bytes | None = None) -> str:
    """Everything that curl prints: bodies, and a status in a line of its own after each."""
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
    """To the plugin's endpoint, as a script would do it."""
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


def test_a_push_runs_the_pipeline_that_waits_for_it(hooked: Home, start: Start) -> None:
    """From the sender's bytes to the plugin's standard input, with the headers that were asked for."""
    service = start()
    status, body = push(service)

    assert status == 202
    wait_for_tree(service, body["job_id"])
    first, second = effects(hooked)
    assert first == body["job_id"]
    event = request_of(hooked, first)["event"]
    assert event["payload"] == json.loads(PUSH)
    assert (event["type"], event["source"]) == ("github.push", "webhook:/hook/github")
    assert event["headers"] == {"x-github-event": "push", "x-github-delivery": "72d3162e-cc78"}
    assert request_of(hooked, second)["event"]["payload"]["pusher"] == "octo – cat"
    assert service.stop() == 0
    rows = hooked.rows("SELECT submitted_by, status FROM job_queue ORDER BY seq")
    assert [row["status"] for row in rows] == ["succeeded", "succeeded"]
    assert rows[0]["submitted_by"] == "webhook:/hook/github"


def test_a_ping_and_a_push_to_another_branch_start_nothing_and_say_so(hooked: Home, start: Start) -> None:
    """The ping is only answered; the push is taken without a job, and the journal has the reason."""
    service = start()
    assert push(service, kind="ping", body=b'{"zen": "Half measures."}', delivery="p") == (200, {"status": "pong"})
    assert push(service, body=PUSH.replace(b"main", b"next"), delivery="q") == (202, {"job_id": None})

    kinds = [
        row["kind"] for row in hooked.rows("SELECT kind FROM journal WHERE kind LIKE '%.unmatched' OR kind LIKE 'p%'")
    ]
    assert kinds == ["pipeline.skipped", "event.unmatched"]
    assert hooked.rows("SELECT id FROM job_queue") == []


def test_what_is_not_signed_well_is_forbidden_and_counted(hooked: Home, start: Start) -> None:
    """One answer for every reason; what they were is in the journal when the service has stopped."""
    service = start()
    wrong = push(service, secret=NEXT)
    assert wrong == push(service, secret="") == curl(f"{address(service)}/hook/github", body=PUSH)
    assert (wrong[0], wrong[1]["error"]) == (403, "forbidden")
    assert deliver(service, b"{}", "-H", signature(b"{}"))[0] == 403

    assert service.stop() == 0
    rows = hooked.rows("SELECT data FROM journal WHERE kind = 'webhook.refused' ORDER BY seq")
    refused = [json.loads(row["data"]) for row in rows]
    counts = {
        path: sum(row["count"] for row in refused if row["path"] == path) for path in ("/hook/github", "/hook/plugin")
    }
    assert counts == {"/hook/github": 3, "/hook/plugin": 1}
    assert hooked.rows("SELECT id FROM job_queue") == []


CHUNKED = ("-H", "Transfer-Encoding: chunked")
SIZES = [(1024, (), 202), (1025, (), 413), (1024, CHUNKED, 202), (1025, CHUNKED, 413), (4_000_000, CHUNKED, 413)]


def test_a_body_has_the_size_that_its_endpoint_allows(hooked: Home, start: Start) -> None:
    """Declared or not, the cap included; a chunked body is read. Whatever is over it was never stored."""
    service = start()
    for size, options, status in SIZES:
        body = json.dumps({"x": "x" * (size - 9)}).encode()
        assert len(body) == size
        assert deliver(service, body, *options)[0] == status, (size, options)
    assert deliver(service, b"{}", "-X", "PUT")[0] == 405
    assert hooked.rows("SELECT COUNT(*) AS jobs FROM job_queue") == [{"jobs": 2}]


def test_a_delivery_is_one_job_across_replays_and_a_restart(hooked: Home, start: Start) -> None:
    """A thousand times, fifty at once, and once more after kill -9: always the first answer."""
    service = start()
    body = b'{"n": 1}'
    options = ["-H", signature(body), "-H", "X-Delivery: one", "--parallel", "--parallel-max", "50"]
    said = sent(f"{address(service)}/hook/plugin?[1-1000]", *options, body=body)

    ids = re.findall(r'"job_id":"([^"]+)"', said)
    assert (len(ids), len(set(ids)), re.findall(r"(?m)^[0-9]{3}$", said)) == (1000, 1, ["202"] * 1000)
    assert service.job(ids[0], wait="30s")["status"] == "succeeded"
    service.kill()
    again = start()
    assert deliver(again, body, "-H", "X-Delivery: one") == (202, {"job_id": ids[0]})
    assert deliver(again, b'{"n": 2}', "-H", "X-Delivery: one")[0] == 409
    assert hooked.rows("SELECT COUNT(*) AS jobs FROM job_queue") == [{"jobs": 1}]
    assert effects(hooked) == [ids[0]]


def test_what_was_acknowledged_survives_kill_9(hooked: Home, start: Start) -> None:
    """Killed with the answer still warm, the job is there and runs after the next start."""
    hooked.plugin("holds", "#!/bin/sh\nexec sleep 600\n")
    hooked.write("webhooks.yaml", (hooked.path / "webhooks.yaml").read_text().replace("plugin: takes", "plugin: holds"))
    hooked.seal()
    service = start()
    status, body = deliver(service, b"{}", "-H", "X-Delivery: a")
    service.kill()

    assert status == 202
    (row,) = hooked.rows("SELECT id, plugin, status FROM job_queue")
    assert (row["id"], row["plugin"]) == (body["job_id"], "holds")
    assert row["status"] in ("queued", "running")
    again = start()
    assert deliver(again, b"{}", "-H", "X-Delivery: a") == (202, body)


@pytest.mark.parametrize(
    ("place", "stored"), [("enqueue.before_begin", 0), ("enqueue.after_insert", 0), ("enqueue.after_commit", 1)]
)
def test_a_delivery_that_was_never_answered_is_sent_again_and_is_one_job(
    hooked: Home, start: Start, place: str, stored: int
) -> None:
    """Wherever the service dies, the delivery and its receipt are both there or both not."""
    service = start(environ={"DUCTILE_FAILPOINT": place})
    assert deliver(service, b"{}", "-H", "X-Delivery: a") == (0, None)
    assert service.wait() == -signal.SIGKILL
    assert hooked.rows("SELECT COUNT(*) AS n FROM receipts") == [{"n": stored}]
    assert hooked.rows("SELECT COUNT(*) AS n FROM job_queue") == [{"n": stored}]

    again = start()
    status, body = deliver(again, b"{}", "-H", "X-Delivery: a")
    assert status == 202
    assert again.job(body["job_id"], wait="30s")["status"] == "succeeded"
    assert set(effects(hooked)) == {body["job_id"]}  # more than once if it had started when the service died


def test_a_secret_is_replaced_without_a_delivery_lost(hooked: Home, start: Start) -> None:
    """Both are good while both are named; after the last reload only the new one. The listener stays."""
    service = start()
    where = address(service)
    assert [push(service, secret=secret, delivery=secret)[0] for secret in (SECRET, NEXT)] == [202, 403]
    reload(service, lambda: configure(hooked, secrets="[first, next]"))
    assert [push(service, secret=secret, delivery=f"2{secret}")[0] for secret in (SECRET, NEXT)] == [202, 202]
    reload(service, lambda: configure(hooked, secrets="[next]"))
    assert [push(service, secret=secret, delivery=f"3{secret}")[0] for secret in (SECRET, NEXT)] == [403, 202]
    assert address(service) == where


def test_a_new_value_for_a_secret_counts_from_the_reload_on(hooked: Home, start: Start) -> None:
    """The name in webhooks.yaml stays, the token behind it changes."""
    service = start()
    fresh = "the-third-secret-0123456789"
    reload(service, lambda: configure(hooked, first=fresh))
    assert [push(service, secret=secret)[0] for secret in (SECRET, fresh)] == [403, 202]


def reload(service: Service, change: Callable[[], None]) -> None:
    change()
    status, body = service.ask("POST", "/system/reload")
    assert status == 200, body


def test_endpoints_come_and_go_with_a_reload_but_the_address_does_not(hooked: Home, start: Start) -> None:
    """Paths are those of the moment; where the service listens needs a restart, and says so."""
    service = start()
    text = (hooked.path / "webhooks.yaml").read_text()
    hooked.write("webhooks.yaml", text.replace("/hook/plugin", "/hook/moved"))
    reload(service, hooked.seal)
    assert deliver(service, b"{}")[0] == 404
    assert deliver(service, b"{}", path="/hook/moved")[0] == 202

    for changed in (text.replace("localhost:0", "localhost:1"), "webhooks: {endpoints: []}\n"):
        hooked.write("webhooks.yaml", changed)
        hooked.seal()
        status, body = service.ask("POST", "/system/reload")
        assert (status, "webhooks.listen" in body["error"]) == (422, True)
    assert deliver(service, b"{}", path="/hook/moved")[0] == 202


def test_without_endpoints_nothing_listens(home: Home, start: Start) -> None:
    """One address is the API's, the other the local socket."""
    home.add("webhooks: {listen: 'localhost:0', endpoints: []}\n")
    (line,) = [line for line in start().stderr if " is ready: " in line]
    assert line.count("http://") == 1


def test_a_busy_address_is_a_plain_error_before_anything_runs(hooked: Home, start: Start, tmp_path: Path) -> None:
    """Exit code 75, and the address in the message."""
    port = address(start()).rpartition(":")[2]
    other = Home.make(tmp_path / "other")
    other.plugin("takes", TAKES)
    other.add(PIPELINES)
    configure(other)
    other.write("webhooks.yaml", (other.path / "webhooks.yaml").read_text().replace("localhost:0", f"localhost:{port}"))
    other.seal()
    second = other.launch()
    assert second.wait() == 75
    assert any(f":{port}" in line for line in second.stderr)


@pytest.mark.parametrize("senders", [1, 8], ids=["one address", "many addresses"])
def test_half_sent_bodies_do_not_shut_a_sender_out(hooked: Home, start: Start, senders: int) -> None:
    """Regression: 256 of them, or 64 from one address, and every other delivery was answered with 503."""
    service = start()
    url = urlsplit(address(service))
    half = b"POST /hook/plugin HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n{"
    with ExitStack() as held:
        for number in range(256):
            source = (f"127.0.0.{number % senders + 1}", 0)
            place = (str(url.hostname), url.port or 0)
            held.enter_context(socket.create_connection(place, source_address=source)).sendall(half)

        assert deliver(service, b"{}")[0] == 202


def test_health_is_on_the_webhook_port_for_this_host(hooked: Home, start: Start) -> None:
    """The five fields of the API's; somebody behind a proxy is not this host."""
    service = start()
    status, body = curl(f"{address(service)}/healthz")
    assert (status, body["status"]) == (200, "ok")
    assert {"uptime_seconds", "queue_depth", "plugins_loaded", "plugins_circuit_open"} <= body.keys()
    assert curl(f"{address(service)}/healthz", "-H", "X-Forwarded-For: 192.0.2.7")[0] == 403


def test_secrets_are_nowhere_to_be_found(hooked: Home, start: Start) -> None:
    """Neither in the log, nor in the ledger, nor in what the plugin gets."""
    service = start()
    push(service)
    push(service, secret=NEXT)
    deliver(service, b"{}", "-H", "Authorization: Bearer sesame-sesame")
    assert service.stop() == 0
    said = json.dumps(service.lines) + "".join(service.stderr)
    stored = b"".join(file.read_bytes() for file in hooked.path.glob("data/*") if file.is_file())
    given = b"".join(file.read_bytes() for file in hooked.path.glob("request-*"))
    for secret in (SECRET, NEXT, "sesame-sesame"):
        assert secret not in said
        assert os.fsencode(secret) not in stored + given
