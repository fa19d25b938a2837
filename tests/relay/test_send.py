"""Events are sent to another instance: the message, the meaning of responses, and retries."""

import json
import os
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from attrs import define, evolve, field

from ductile.config.snapshot import Snapshot
from ductile.core.clock import Clock, to_text
from ductile.core.errors import LedgerFull
from ductile.core.formats import strict_json
from ductile.core.logs import Log
from ductile.core.model import (
    BreakerState,
    Completion,
    Dead,
    Evidence,
    Failed,
    Interrupted,
    Job,
    NewJob,
    OutcomeCode,
    Retried,
    Succeeded,
)
from ductile.core.secret import Secret
from ductile.engine.job_context import JobContext
from ductile.engine.judge import DRAIN
from ductile.engine.running_jobs import Attempt
from ductile.ledger.completion.record import record
from ductile.ledger.jobs.enqueue import enqueue
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.queue.claim import claim, next_due
from ductile.ledger.queue.outbox import block_reason
from ductile.ledger.storage.async_ledger import Ledger, open_ledger
from ductile.ledger.tables import breakers
from ductile.pipeline.compile.plan import RELAY
from ductile.pipeline.run.events import derived_id
from ductile.relay import client
from ductile.relay.breakers import count_attempt, hold_if_unreachable
from ductile.relay.client import MAX_RESPONSE_BYTES, HttpResponse, NoResponse, send_request
from ductile.relay.message import RelayMessage, build_message
from ductile.relay.protocol import decode, is_signed
from ductile.relay.response import RelayCompletion, SendResult, judge_response
from ductile.relay.send import send_job
from tests.e2e.service import Home
from tests.engine.builders import NOW, a_job, job_context, snapshot_of
from tests.engine.dispatcher_service import FaultyLedger
from tests.ledger.reading import read_now

SECRET = "line-secret-0123456789abcdef"
CONFIG = """\
include: [tokens.yaml]
instances:
  - {{name: lab, base_url: "http://127.0.0.1:{port}/", ingress_path: /in/home, secret_ref: line, key_id: k1}}
  - {{name: off, enabled: false, base_url: "http://127.0.0.1:9", ingress_path: /in, secret_ref: line}}
pipelines:
  - name: p
    on: x
    steps:
      - {{id: whole, relay: {{to: lab, event: seen}}}}
      - id: part
        relay:
          to: lab
          event: seen
          dedupe_key: payload.n
          with: {{a: payload.n, b: "{{context.host}}!", c: 7}}
          baggage: {{trace.id: context.host}}
      - {{id: closed, relay: {{to: "off", event: seen}}}}
      - {{id: last, uses: echo}}
"""
TAKEN = {"status": "accepted", "accepted": True, "peer": "home", "receiver_event_id": "r-1", "job_id": "j-1"}
OK = HttpResponse(202, {}, json.dumps(TAKEN).encode())
EVIDENCE = Evidence(started_at=NOW, duration=timedelta(seconds=1))


def configured(path: Path, port: int = 9) -> Snapshot:
    home = Home.make(path / "home")
    home.plugin("echo", "#!/bin/sh\n")
    home.write("tokens.yaml", f"tokens: [{{name: line, key: {SECRET}}}]\n")
    text = (home.path / "config.yaml").read_text().replace("service:\n", "service:\n  name: home\n")
    home.write("config.yaml", text + CONFIG.format(port=port))
    home.seal()
    return snapshot_of(home)


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return configured(tmp_path)


def relay_job(step: str = "whole", payload: Any = None, **more: Any) -> Job:
    """Return a job of a relay step with this payload, and `host: box` in its context."""
    event = {"type": "x", "payload": payload if payload is not None else {"n": 1}, "source": "echo"}
    context = {"host": "box", "ductile": {"pipeline_instance_id": "i", "route_depth": 1, "route_max_depth": 4}}
    values = {
        "plugin": RELAY,
        "command": "handle",
        "pipeline": "p",
        "step_id": step,
        "payload": strict_json.dumps(event),
        "context": strict_json.dumps(context),
        "max_attempts": 30,
    }
    return a_job(**values | more)


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def built(snapshot: Snapshot, job: Job) -> RelayMessage:
    message = build_message(snapshot, job)
    assert isinstance(message, RelayMessage), message
    return message


def test_without_with_the_payload_is_sent_unchanged(snapshot: Snapshot) -> None:
    """Neither the context nor the core's additions to the payload are sent."""
    came = {"n": 1, "ductile_upstream_plugin": "echo", "ductile_upstream_step_id": "s", "ductile_ish": 2}
    sent = built(snapshot, relay_job(payload=came)).envelope
    assert (sent.type, sent.payload, sent.baggage) == ("seen", {"n": 1, "ductile_ish": 2}, {})
    assert (sent.dedupe_key, sent.origin.plugin, sent.origin.instance) == (None, "echo", "home")


def test_with_dedupe_key_and_baggage_are_rendered(snapshot: Snapshot) -> None:
    """A key that is not text is converted."""
    sent = built(snapshot, relay_job("part", {"n": 5, "rest": True})).envelope
    assert sent.payload == {"a": 5, "b": "box!", "c": 7}
    assert (sent.dedupe_key, sent.baggage) == ("5", {"trace": {"id": "box"}})


def test_every_attempt_of_a_job_sends_the_same_event(snapshot: Snapshot) -> None:
    """The same bytes and id. Another job sends another event."""
    first, again = built(snapshot, relay_job()), built(snapshot, relay_job(attempt=7))
    other = built(snapshot, relay_job(id="0b8f6a9e-2f1c-4c55-8a53-6b1f2f0d3c7e"))
    assert first.body == again.body
    assert first.envelope.origin.event_id == derived_id(first.envelope.origin.job_id, "relay")
    assert other.envelope.origin.event_id != first.envelope.origin.event_id


def test_an_event_of_the_api_keeps_its_origin(snapshot: Snapshot) -> None:
    """Except for the instance."""
    content = {
        "to": "lab",
        "event": {"type": "a.b", "payload": {"n": 1}},
        "origin": {"instance": "other", "plugin": "p", "event_id": "e"},
    }
    job = a_job(plugin=RELAY, command="send", payload=strict_json.dumps(content))
    origin = built(snapshot, job).envelope.origin
    assert (origin.instance, origin.plugin, origin.job_id, origin.event_id) == ("home", "p", job.id, "e")


@pytest.mark.parametrize(
    ("job", "kind", "reason"),
    [
        (relay_job("part", {"m": 1}), Failed, "payload.n"),
        (relay_job("part", context=None), Failed, "context.host"),
        (relay_job("closed"), Dead, "instance off is disabled"),
        (relay_job("gone"), Dead, "no longer has step gone"),
        (relay_job("last"), Dead, "is no longer a relay step"),
        (a_job(plugin=RELAY, command="send", payload='{"to":"lap","event":{"type":"a"}}'), Dead, "did you mean 'lab'"),
        (a_job(plugin=RELAY, command="send", payload="{}"), Dead, "event is missing"),
    ],
)
def test_an_event_that_can_never_be_sent_fails_with_its_reason(
    snapshot: Snapshot, job: Job, kind: type, reason: str
) -> None:
    outcome = build_message(snapshot, job)
    assert isinstance(outcome, kind)
    assert reason in getattr(outcome, "error", "")


# ── responses ───────────────────────────────────────────────────────────────────────────────────────────────────────


def judge(snapshot: Snapshot, sent: SendResult, job: Job | None = None) -> RelayCompletion:
    job = job or relay_job()
    return judge_response(job, built(snapshot, job), sent, EVIDENCE, snapshot, now=NOW, chance=0.0)


def refused(status: int, error: str = "no", **headers: str) -> HttpResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpResponse(status, named, json.dumps({"error": error}).encode())


@pytest.mark.parametrize("status", [300, 301, 307, 400, 405, 409, 410, 413, 422])
def test_a_permanent_error_is_final(snapshot: Snapshot, status: int) -> None:
    outcome = judge(snapshot, SendResult(response=refused(status))).outcome
    assert isinstance(outcome, Failed)
    assert f"instance lab: responded with {status}" in outcome.error


@pytest.mark.parametrize(
    "answer",
    [
        *(refused(status) for status in (401, 403, 404, 408, 425, 429, 500, 502, 503, 504, 599)),
        NoResponse("Connection refused"),
        HttpResponse(200, {}, b"<html>welcome to this network</html>"),
        HttpResponse(204),
    ],
)
def test_a_temporary_error_is_retried(snapshot: Snapshot, answer: HttpResponse | NoResponse) -> None:
    """With the backoff of all jobs: 30 s, doubled, up to an hour."""
    delays = []
    for attempt in range(1, 11):
        outcome = judge(snapshot, SendResult(response=answer), relay_job(attempt=attempt)).outcome
        assert isinstance(outcome, Retried)
        delays.append(outcome.delay.total_seconds())
    assert delays == [30, 60, 120, 240, 480, 960, 1920, 3600, 3600, 3600]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5", 30),
        ("120", 120),
        ("86400", 3600),
        ("9" * 30, 3600),
        ("Sun, 08 Feb 2026 09:40:00 GMT", 600),
        ("Sun, 08 Feb 2026 09:00:00 GMT", 30),
        ("Sun, 08 Feb 2026 09:40:00", 30),
        ("soon", 30),
        ("-5", 30),
        ("", 30),
    ],
)
def test_retry_after_can_only_lengthen_the_delay(snapshot: Snapshot, text: str, seconds: int) -> None:
    """Up to an hour. A short one would use up the attempts within minutes."""
    outcome = judge(snapshot, SendResult(response=refused(503, retry_after=text))).outcome
    assert isinstance(outcome, Retried)
    assert outcome.delay == timedelta(seconds=seconds)


def test_an_event_is_dead_after_its_last_attempt(snapshot: Snapshot) -> None:
    """Interrupted attempts do not count."""
    assert isinstance(judge(snapshot, SendResult(response=refused(503)), relay_job(attempt=30)).outcome, Dead)
    more = relay_job(attempt=30, interruptions=1)
    assert isinstance(judge(snapshot, SendResult(response=refused(503)), more).outcome, Retried)


def test_the_run_continues_with_the_reply_after_a_delivery(snapshot: Snapshot) -> None:
    """The next step gets the input of the relay and the fields of the reply."""
    done = judge(snapshot, SendResult(response=OK))
    assert isinstance(done.outcome, Succeeded)
    assert json.loads(done.outcome.evidence.result or "") == {
        "status": "relayed",
        "to": "lab",
        "event": "seen",
        "accepted": True,
        "receiver_event_id": "r-1",
        "peer": "home",
        "job_id": "j-1",
    }
    (child,) = done.follow_ups.children
    payload = json.loads(child.payload or "")["payload"]
    assert (child.step_id, payload["n"], payload["relay_to"]) == ("part", 1, "lab")
    assert (payload["relay_receiver_event_id"], payload["relay_receiver_job_id"]) == ("r-1", "j-1")
    assert (payload["relay_accepted"], payload["result"]) == (True, "relayed seen to lab")
    assert done.follow_ups.notes == ()


def test_an_event_without_a_route_at_the_receiver_is_not_a_failure(snapshot: Snapshot) -> None:
    """The result and the journal report it."""
    lost = TAKEN | {"accepted": False, "reason": "no_route", "job_id": None}
    done = judge(snapshot, SendResult(response=HttpResponse(202, {}, json.dumps(lost).encode())))
    assert isinstance(done.outcome, Succeeded)
    assert done.is_unrouted
    result = json.loads(done.outcome.evidence.result or "")
    assert (result["accepted"], result["reason"], "job_id" in result) == (False, "no_route", False)
    (note,) = done.follow_ups.notes
    assert (note.kind, note.data["reason"], note.data["to"]) == ("event.no_route", "no_route", "lab")


def test_a_reply_without_accepted_counts_as_accepted(snapshot: Snapshot) -> None:
    """As sent by the original."""
    reply = {"status": "accepted", "peer": "home", "event_type": "seen", "receiver_event_id": "r"}
    done = judge(snapshot, SendResult(response=HttpResponse(202, {}, json.dumps(reply).encode())))
    assert isinstance(done.outcome, Succeeded)
    assert not done.is_unrouted


def test_a_stopped_send_is_interrupted_or_cancelled(snapshot: Snapshot) -> None:
    """The drain does not use up an attempt."""
    assert isinstance(judge(snapshot, SendResult(stopped=DRAIN)).outcome, Interrupted)
    cancelled = judge(snapshot, SendResult(stopped="by me")).outcome
    assert cancelled == Dead("cancelled: by me", EVIDENCE, OutcomeCode.CANCELLED, {"reason": "by me"})


def test_a_secret_in_an_error_is_masked(snapshot: Snapshot) -> None:
    outcome = judge(snapshot, SendResult(response=refused(422, f"invalid {SECRET}"))).outcome
    assert isinstance(outcome, Failed)
    assert SECRET not in outcome.error


# ── client ──────────────────────────────────────────────────────────────────────────────────────────────────────────

Script = Callable[[trio.abc.Stream, bytes], Any]


async def read_request(stream: trio.abc.Stream) -> bytes:
    data = b""
    while True:
        head, found, body = data.partition(b"\r\n\r\n")
        if found and len(body) >= int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            return data
        piece = await stream.receive_some(65536)
        if not piece:
            return data
        data += piece


@asynccontextmanager
async def serve(script: Script, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """Serve connections on a local port with `script`."""

    async def serve(stream: trio.abc.Stream) -> None:
        try:
            if context is not None:
                stream = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
            async with stream:
                await script(stream, await read_request(stream))
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def saying(*pieces: bytes) -> Script:
    async def script(stream: trio.abc.Stream, _: bytes) -> None:
        for piece in pieces:
            await stream.send_all(piece)

    return script


@pytest.mark.parametrize(
    ("pieces", "answer"),
    [
        ([b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\nX-A: b\r\n\r\n", b"{}"], (202, b"{}")),
        ([b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"], (200, b"")),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"], (200, b"abc")),
        ([b"HTTP/1.0 503 Busy\r\nRetry-After: 5\r\n\r\nuntil the end"], (503, b"until the end")),
        ([b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n"], (302, b"")),
        ([b"HTTP/1.0 200 OK\r\n\r\n", *[b"x" * 1024] * 100], (200, b"x" * MAX_RESPONSE_BYTES)),
    ],
)
async def test_a_response_is_read_in_every_form(pieces: list[bytes], answer: tuple[int, bytes]) -> None:
    """Up to the size limit. No redirect is followed."""
    async with serve(saying(*pieces)) as port:
        got = await send_request("POST", f"http://127.0.0.1:{port}/in", {}, b"{}")
    assert (got.status, got.body) == answer


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([], "closed without a response"),
        ([b"HTTP/1.1 200 OK\r\nContent-"], "closed without a response"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort"], "without sending complete message body"),
        ([b"220 mail.example ESMTP\r\n\r\n"], "illegal status line"),
        ([b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * (64 << 10)], "Receive buffer too long"),
    ],
)
async def test_an_invalid_response_is_reported(pieces: list[bytes], reason: str) -> None:
    async with serve(saying(*pieces)) as port:
        with pytest.raises(NoResponse, match=reason):
            await send_request("POST", f"http://127.0.0.1:{port}/in", {}, b"{}")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:1/in", "(?i)refused"),
        ("http://nowhere.invalid/in", "."),
        ("http://127.0.0.1:99999/in", "."),
        ("http://[::1/in", "."),
    ],
)
async def test_an_unreachable_address_is_reported(url: str, reason: str) -> None:
    with pytest.raises(NoResponse, match=reason):
        await send_request("POST", url, {}, b"{}")


@pytest.mark.process
async def test_the_tls_certificate_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the trusted authorities and the host name."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -keyout {key} -out {certificate}"
    alternative = ["-addext", "subjectAltName=IP:127.0.0.1"]
    await trio.run_process([*command.split(), *alternative], capture_stdout=True, capture_stderr=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    script = saying(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    try:
        async with serve(script, context) as port:
            client._trust.cache_clear()
            with pytest.raises(NoResponse, match=r"(?i)certificate verify failed"):
                await send_request("POST", f"https://127.0.0.1:{port}/in", {}, b"{}")
            client._trust.cache_clear()
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            assert (await send_request("POST", f"https://127.0.0.1:{port}/in", {}, b"{}")).body == b"{}"
            with pytest.raises(NoResponse):
                await send_request("POST", f"https://localhost:{port}/in", {}, b"{}")
    finally:
        client._trust.cache_clear()


# ── outbox ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class FixedClock(Clock):
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.moment = NOW

    def now(self) -> datetime:
        return self.moment


@define(eq=False)
class Outbox:
    """A sender with a real ledger, a clock that the test sets, and a receiver that can be switched off."""

    snapshot: Snapshot
    ledger: Ledger
    ctx: JobContext
    clock: FixedClock
    is_up: bool = True
    requests: list[bytes] = field(factory=list)
    delivered: Counter[str] = field(factory=Counter)

    async def receive(self, stream: trio.abc.Stream, request: bytes) -> None:
        self.requests.append(request)
        if self.is_up:
            body = request.partition(b"\r\n\r\n")[2]
            self.delivered[decode(body).origin.event_id] += 1
            answer = json.dumps(TAKEN).encode()
            await stream.send_all(b"HTTP/1.1 202 Accepted\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)

    async def put(self, count: int = 1) -> list[str]:
        job_ids = []
        for n in range(count):
            payload = strict_json.dumps({"to": "lab", "event": {"type": "a.b", "payload": {"n": n}}})
            new = NewJob(plugin=RELAY, command="send", payload=payload, submitted_by="test", max_attempts=30)
            job_ids.append((await self.ledger.write(enqueue, new, now=self.clock.now())).job_id)
        return job_ids

    async def send_due(self) -> int:
        """Send all due events one after the other; return the number of claimed jobs."""
        total = 0
        while True:
            free = {RELAY: 1}
            claimed = await self.ledger.write(claim, now=self.clock.now(), run_id="run", free=free, limit=1)
            if not claimed.jobs:
                return total
            total += 1
            ending = await send_job(self.ctx, Attempt(claimed.jobs[0], self.snapshot))
            if ending is not None:
                await self.ledger.write(record, ending, now=self.clock.now())

    async def advance_to(self, moment: datetime) -> None:
        """Advance the clock and send events as they become due."""
        while True:
            await self.send_due()
            due = await self.ledger.read(next_due)
            if due is None or due > moment:
                self.clock.moment = moment
                return
            self.clock.moment = due

    def states(self) -> Counter[str]:
        rows = read_now(self.ledger, lambda db: db.execute("SELECT status FROM job_queue").fetchall())
        return Counter(status for (status,) in rows)

    def breaker(self) -> Any:
        return read_now(self.ledger, breakers.get, RELAY, "lab")

    def rows(self, statement: str) -> list[Any]:
        return read_now(self.ledger, lambda db: db.execute(statement).fetchall())


@pytest.fixture
async def outbox(tmp_path: Path) -> AsyncIterator[Outbox]:
    clock = FixedClock()
    descriptor = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY, 0o600)
    log = Log(level="debug", descriptor=descriptor)
    outboxes: list[Outbox] = []

    async def receive(stream: trio.abc.Stream, request: bytes) -> None:
        await outboxes[0].receive(stream, request)

    try:
        async with serve(receive) as port, open_ledger(tmp_path / "state.db", synchronous="off") as ledger:
            snapshot = configured(tmp_path, port)
            outboxes.append(Outbox(snapshot, ledger, job_context(ledger, log, snapshot, clock=clock), clock))
            yield outboxes[0]
    finally:
        log.close()
        os.close(descriptor)


async def test_a_request_is_signed_for_its_path(outbox: Outbox) -> None:
    """The base URL may end in a slash."""
    await outbox.put()
    await outbox.send_due()
    (request,) = outbox.requests
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert first == "POST /in/home HTTP/1.1"
    assert (headers["x-ductile-peer"], headers["x-ductile-key-id"]) == ("home", "k1")
    moment = headers["x-ductile-timestamp"]
    assert is_signed(headers["x-ductile-signature"], Secret(SECRET), "POST", "/in/home", moment, body)
    assert outbox.states() == {"succeeded": 1}


async def test_events_survive_a_long_outage_and_arrive_once_each(outbox: Outbox) -> None:
    """Few attempts are made during the outage. The first response releases all events."""
    await outbox.put(20)
    outbox.is_up = False
    await outbox.advance_to(NOW + timedelta(hours=10))
    assert outbox.states() == {"queued": 20}
    assert len(outbox.requests) < 500, "one probe a minute at most, not twenty"
    assert outbox.breaker().state is BreakerState.OPEN
    outbox.is_up = True
    await outbox.advance_to(NOW + timedelta(hours=11, minutes=2))

    assert outbox.states() == {"succeeded": 20}
    assert set(outbox.delivered.values()) == {1}
    assert (outbox.breaker().state, outbox.breaker().failure_count) == (BreakerState.CLOSED, 0)


async def test_a_single_event_is_retried_for_about_a_day(outbox: Outbox) -> None:
    """Then it is dead, with the reason."""
    await outbox.put()
    outbox.is_up = False
    await outbox.advance_to(NOW + timedelta(hours=20))
    assert outbox.states() == {"queued": 1}
    await outbox.advance_to(NOW + timedelta(hours=30))
    assert outbox.states() == {"dead": 1}
    ((error,),) = outbox.rows("SELECT last_error FROM job_queue")
    assert error == "attempts used up (30 of 30): instance lab: the connection was closed without a response"


async def test_an_open_breaker_postpones_events_without_using_up_attempts(outbox: Outbox) -> None:
    """Three failed attempts open it."""
    outbox.is_up = False
    await outbox.put(5)
    await outbox.send_due()

    assert len(outbox.requests) == 3
    assert (
        outbox.rows("SELECT attempt, status FROM job_queue ORDER BY seq") == [(2, "queued")] * 3 + [(1, "queued")] * 2
    )
    reasons = {reason for (reason,) in outbox.rows("SELECT blocked_reason FROM job_queue WHERE attempt = 1")}
    assert reasons == {"instance lab does not answer"}
    ((first,), _) = outbox.rows("SELECT data FROM journal WHERE kind = 'job.held' ORDER BY seq")
    assert (json.loads(first)["from"], json.loads(first)["to"]) == ("running", "queued")
    assert [row[0] for row in outbox.rows("SELECT COUNT(*) FROM job_log")] == [3]


async def test_only_one_job_at_a_time_probes_an_instance(outbox: Outbox) -> None:
    """A probe that was recovered stays the probe; one that ended without a result is replaced."""
    outbox.is_up = False
    await outbox.put(5)
    await outbox.send_due()
    outbox.clock.moment += timedelta(hours=1)
    now = outbox.clock.now()
    probe, second, third = (await outbox.ledger.write(claim, now=now, run_id="r", free={RELAY: 3}, limit=3)).jobs

    async def is_held(job: Job) -> bool:
        return await outbox.ledger.write(hold_if_unreachable, "lab", job, run_id="r", now=now, chance=0.5)

    assert not await is_held(probe)
    assert (outbox.breaker().state, outbox.breaker().probe_job_id) == (BreakerState.HALF_OPEN, probe.id)
    assert await is_held(second)
    assert not await is_held(probe)
    lost = Completion(job_id=probe.id, attempt=probe.attempt, outcome=Dead("cancelled"))
    await outbox.ledger.write(record, lost, now=now)
    assert not await is_held(third)
    assert outbox.breaker().probe_job_id == third.id


async def test_a_response_releases_only_the_postponed_jobs_of_its_instance(outbox: Outbox) -> None:
    """A failed job keeps its delay."""
    tried, waits, other = await outbox.put(3)
    until = NOW + timedelta(hours=1)

    def delay(db: Any) -> None:
        db.execute("UPDATE job_queue SET lane = NULL, failed_at = ?, next_retry_at = ?", (to_text(NOW), to_text(until)))
        for job_id, instance in ((waits, "lab"), (other, "attic")):
            db.execute("UPDATE job_queue SET blocked_reason = ? WHERE id = ?", (block_reason(instance), job_id))

    await outbox.ledger.write(delay)
    (job,) = [await outbox.ledger.write(lambda db: get_job(db, tried))]
    assert job is not None
    for _ in range(3):
        await outbox.ledger.write(count_attempt, "lab", job, is_reachable=False, now=NOW)
    await outbox.ledger.write(count_attempt, "lab", job, is_reachable=True, now=NOW)
    assert outbox.rows("SELECT id FROM job_queue WHERE lane IS NOT NULL") == [(waits,)]


async def test_postponed_events_do_not_fill_the_journal(outbox: Outbox) -> None:
    outbox.is_up = False
    await outbox.put(40)
    await outbox.advance_to(NOW + timedelta(hours=6))
    held = outbox.rows("SELECT COUNT(*) FROM journal WHERE kind = 'job.held'")[0][0]
    assert held < 40 * 6 * 3
    outbox.is_up = True
    await outbox.advance_to(NOW + timedelta(hours=8))
    assert outbox.states() == {"succeeded": 40}


async def test_a_permanent_error_shows_that_the_instance_is_reachable(outbox: Outbox) -> None:
    """A 422 closes the breaker; no response or a temporary error opens it."""
    (job_id,) = await outbox.put()
    (job,) = (await outbox.ledger.write(claim, now=NOW, run_id="run", free={RELAY: 1}, limit=1)).jobs
    for _ in range(3):
        await outbox.ledger.write(count_attempt, "lab", job, is_reachable=False, now=NOW)
    assert outbox.breaker().state is BreakerState.OPEN
    assert SendResult(response=HttpResponse(422)).is_reachable
    assert not any(SendResult(response=HttpResponse(status)).is_reachable for status in (403, 408, 429, 500, 503))
    assert not SendResult(response=NoResponse("x")).is_reachable
    await outbox.ledger.write(count_attempt, "lab", job, is_reachable=True, now=NOW)
    assert outbox.breaker().state is BreakerState.CLOSED
    assert job.id == job_id


async def test_a_stopped_attempt_does_not_wait_for_a_slow_receiver(outbox: Outbox) -> None:
    """Neither the drain nor `job cancel` counts for the breaker."""
    hanging = trio.Event()

    async def hang(stream: trio.abc.Stream, _: bytes) -> None:
        hanging.set()
        await trio.sleep_forever()

    async with serve(hang) as port:
        lab = outbox.snapshot.config.settings.instances[0]
        settings = evolve(
            outbox.snapshot.config.settings, instances=(evolve(lab, base_url=f"http://127.0.0.1:{port}"),)
        )
        outbox.snapshot.config = evolve(outbox.snapshot.config, settings=settings)
        await outbox.put()
        (job,) = (await outbox.ledger.write(claim, now=NOW, run_id="run", free={RELAY: 1}, limit=1)).jobs
        attempt = Attempt(job, outbox.snapshot)
        endings = []

        async def send() -> None:
            endings.append(await send_job(outbox.ctx, attempt))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            await hanging.wait()
            attempt.control.stop.request(DRAIN)
    (ending,) = endings
    assert ending is not None
    assert isinstance(ending.outcome, Interrupted)
    assert outbox.breaker().failure_count == 0


async def test_a_full_disk_does_not_use_up_an_attempt(outbox: Outbox) -> None:
    """The breaker cannot be checked, so the event is sent."""
    await outbox.put()
    (job,) = (await outbox.ledger.write(claim, now=NOW, run_id="run", free={RELAY: 1}, limit=1)).jobs
    faulty = FaultyLedger(outbox.ledger, LedgerFull("the disk is full"))
    ending = await send_job(evolve(outbox.ctx, ledger=cast(Ledger, faulty)), Attempt(job, outbox.snapshot))
    assert ending is not None
    assert isinstance(ending.outcome, Succeeded)
