"""Sending events to another instance: what is sent, what the answers mean, and how the outbox waits."""

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
    Retried,
    Succeeded,
)
from ductile.core.secret import Secret
from ductile.engine.job_context import JobContext
from ductile.engine.judge import DRAIN
from ductile.engine.running_jobs import Attempt
from ductile.ledger.completion.record import record
from ductile.ledger.queue.claim import claim, next_due
from ductile.ledger.queue.enqueue import enqueue
from ductile.ledger.queue.rows import get_job
from ductile.ledger.storage.writer import Ledger, open_ledger
from ductile.ledger.tables import breakers
from ductile.ledger.tables.outbox import reason_of
from ductile.pipeline.compile.plan import RELAY
from ductile.pipeline.run.events import derived_id
from ductile.relay import client as posting
from ductile.relay.breakers import held_back, note_attempt
from ductile.relay.client import MOST_ANSWER, HttpAnswer, Unanswered, post
from ductile.relay.message import RelayMessage, build_message
from ductile.relay.protocol import decode, is_signed
from ductile.relay.response import Judged, Sent, judge_reply
from ductile.relay.send import send_job
from tests.e2e.service import Home
from tests.engine.builders import NOW, a_job, job_context, snapshot_of
from tests.engine.dispatching import FaultyLedger
from tests.ledger.reading import look

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
OK = HttpAnswer(202, {}, json.dumps(TAKEN).encode())
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


def a_relay(step: str = "whole", payload: Any = None, **more: Any) -> Job:
    """A job of a relay step that was entered with this payload, with `host: box` in its context."""
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


# ── what is sent ────────────────────────────────────────────────────────────────────────────────────────────────────


def packed(snapshot: Snapshot, job: Job) -> RelayMessage:
    parcel = build_message(snapshot, job)
    assert isinstance(parcel, RelayMessage), parcel
    return parcel


def test_without_with_the_payload_goes_as_it_came(snapshot: Snapshot) -> None:
    """Neither the context nor what the core adds to payloads leaves this instance."""
    came = {"n": 1, "ductile_upstream_plugin": "echo", "ductile_upstream_step_id": "s", "ductile_ish": 2}
    sent = packed(snapshot, a_relay(payload=came)).envelope
    assert (sent.type, sent.payload, sent.baggage) == ("seen", {"n": 1, "ductile_ish": 2}, {})
    assert (sent.dedupe_key, sent.origin.plugin, sent.origin.instance) == (None, "echo", "home")


def test_with_dedupe_key_and_baggage_are_rendered(snapshot: Snapshot) -> None:
    """`with` is all that is sent; a key that is no text becomes one."""
    sent = packed(snapshot, a_relay("part", {"n": 5, "rest": True})).envelope
    assert sent.payload == {"a": 5, "b": "box!", "c": 7}
    assert (sent.dedupe_key, sent.baggage) == ("5", {"trace": {"id": "box"}})


def test_every_attempt_of_a_job_is_the_same_event(snapshot: Snapshot) -> None:
    """Same bytes, same id; another job of the same step is another event."""
    first, again = packed(snapshot, a_relay()), packed(snapshot, a_relay(attempt=7))
    other = packed(snapshot, a_relay(id="0b8f6a9e-2f1c-4c55-8a53-6b1f2f0d3c7e"))
    assert first.body == again.body
    assert first.envelope.origin.event_id == derived_id(first.envelope.origin.job_id, "relay")
    assert other.envelope.origin.event_id != first.envelope.origin.event_id


def test_an_event_that_was_asked_for_by_hand_keeps_the_origin_it_was_given(snapshot: Snapshot) -> None:
    """But it always comes from this instance."""
    content = {
        "to": "lab",
        "event": {"type": "a.b", "payload": {"n": 1}},
        "origin": {"instance": "someone", "plugin": "p", "event_id": "e"},
    }
    job = a_job(plugin=RELAY, command="send", payload=strict_json.dumps(content))
    origin = packed(snapshot, job).envelope.origin
    assert (origin.instance, origin.plugin, origin.job_id, origin.event_id) == ("home", "p", job.id, "e")


@pytest.mark.parametrize(
    ("job", "kind", "reason"),
    [
        (a_relay("part", {"m": 1}), Failed, "payload.n"),
        (a_relay("part", context=None), Failed, "context.host"),
        (a_relay("closed"), Dead, "instance off is disabled"),
        (a_relay("gone"), Dead, "has no step gone any more"),
        (a_relay("last"), Dead, "does not relay any more"),
        (a_job(plugin=RELAY, command="send", payload='{"to":"lap","event":{"type":"a"}}'), Dead, "did you mean 'lab'"),
        (a_job(plugin=RELAY, command="send", payload="{}"), Dead, "event is missing"),
    ],
)
def test_what_can_never_be_sent_ends_with_its_reason(snapshot: Snapshot, job: Job, kind: type, reason: str) -> None:
    """Trying again would not help."""
    outcome = build_message(snapshot, job)
    assert isinstance(outcome, kind)
    assert reason in getattr(outcome, "error", "")


# ── what an answer means ────────────────────────────────────────────────────────────────────────────────────────────


def judged(snapshot: Snapshot, sent: Sent, job: Job | None = None) -> Judged:
    job = job or a_relay()
    return judge_reply(job, packed(snapshot, job), sent, EVIDENCE, snapshot, now=NOW, chance=0.0)


def refused(status: int, error: str = "no", **headers: str) -> HttpAnswer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpAnswer(status, named, json.dumps({"error": error}).encode())


@pytest.mark.parametrize("status", [300, 301, 307, 400, 405, 409, 410, 413, 422])
def test_a_refusal_that_lasts_is_final(snapshot: Snapshot, status: int) -> None:
    """The next attempt would be refused too; the run's `on_error` follows."""
    outcome = judged(snapshot, Sent(answer=refused(status))).outcome
    assert isinstance(outcome, Failed)
    assert f"instance lab: answered {status}" in outcome.error


@pytest.mark.parametrize(
    "answer",
    [
        *(refused(status) for status in (401, 403, 404, 408, 425, 429, 500, 502, 503, 504, 599)),
        Unanswered("Connection refused"),
        HttpAnswer(200, {}, b"<html>welcome to this network</html>"),
        HttpAnswer(204),
    ],
)
def test_what_may_pass_is_tried_again(snapshot: Snapshot, answer: HttpAnswer | Unanswered) -> None:
    """After the same delays as every job: 30 s, doubled, up to an hour."""
    delays = []
    for attempt in range(1, 11):
        outcome = judged(snapshot, Sent(answer=answer), a_relay(attempt=attempt)).outcome
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
    outcome = judged(snapshot, Sent(answer=refused(503, retry_after=text))).outcome
    assert isinstance(outcome, Retried)
    assert outcome.delay == timedelta(seconds=seconds)


def test_an_event_is_given_up_when_its_attempts_are_used_up(snapshot: Snapshot) -> None:
    """Interrupted attempts do not count."""
    assert isinstance(judged(snapshot, Sent(answer=refused(503)), a_relay(attempt=30)).outcome, Dead)
    more = a_relay(attempt=30, interruptions=1)
    assert isinstance(judged(snapshot, Sent(answer=refused(503)), more).outcome, Retried)


def test_a_delivery_succeeds_and_the_run_goes_on_with_the_answer(snapshot: Snapshot) -> None:
    """The next step is entered with what the relay was entered with, and what the receiver said."""
    done = judged(snapshot, Sent(answer=OK))
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
    (child,) = done.following.children
    payload = json.loads(child.payload or "")["payload"]
    assert (child.step_id, payload["n"], payload["relay_to"]) == ("part", 1, "lab")
    assert (payload["relay_receiver_event_id"], payload["relay_receiver_job_id"]) == ("r-1", "j-1")
    assert (payload["relay_accepted"], payload["result"]) == (True, "relayed seen to lab")
    assert done.following.notes == ()


def test_an_event_that_nobody_there_takes_is_no_failure(snapshot: Snapshot) -> None:
    """It has arrived; the result and the journal say the rest."""
    lost = TAKEN | {"accepted": False, "reason": "no_route", "job_id": None}
    done = judged(snapshot, Sent(answer=HttpAnswer(202, {}, json.dumps(lost).encode())))
    assert isinstance(done.outcome, Succeeded)
    assert done.is_unrouted
    result = json.loads(done.outcome.evidence.result or "")
    assert (result["accepted"], result["reason"], "job_id" in result) == (False, "no_route", False)
    (note,) = done.following.notes
    assert (note.kind, note.data["reason"], note.data["to"]) == ("event.no_route", "no_route", "lab")


def test_a_receiver_of_the_original_accepts_without_saying_so(snapshot: Snapshot) -> None:
    """Its answer has no `accepted`."""
    said = {"status": "accepted", "peer": "home", "event_type": "seen", "receiver_event_id": "r"}
    done = judged(snapshot, Sent(answer=HttpAnswer(202, {}, json.dumps(said).encode())))
    assert isinstance(done.outcome, Succeeded)
    assert not done.is_unrouted


def test_a_send_that_is_stopped_is_put_back_or_cancelled(snapshot: Snapshot) -> None:
    """The drain does not use up an attempt; an operator ends the job."""
    assert isinstance(judged(snapshot, Sent(stopped=DRAIN)).outcome, Interrupted)
    cancelled = judged(snapshot, Sent(stopped="by me")).outcome
    assert cancelled == Dead("cancelled: by me", EVIDENCE)


def test_a_secret_in_a_refusal_is_masked(snapshot: Snapshot) -> None:
    outcome = judged(snapshot, Sent(answer=refused(422, f"you said {SECRET}"))).outcome
    assert isinstance(outcome, Failed)
    assert SECRET not in outcome.error


# ── one request ─────────────────────────────────────────────────────────────────────────────────────────────────────

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
async def served(script: Script, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A port on this host where every connection is answered as `script` does it."""

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
        ([b"HTTP/1.0 200 OK\r\n\r\n", *[b"x" * 1024] * 100], (200, b"x" * MOST_ANSWER)),
    ],
)
async def test_an_answer_is_read_in_every_form(pieces: list[bytes], answer: tuple[int, bytes]) -> None:
    """Up to the cap, and no redirect is followed."""
    async with served(saying(*pieces)) as port:
        got = await post(f"http://127.0.0.1:{port}/in", {}, b"{}")
    assert (got.status, got.body) == answer


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([], "closed without an answer"),
        ([b"HTTP/1.1 200 OK\r\nContent-"], "closed without an answer"),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort"], "without sending complete message body"),
        ([b"220 mail.example ESMTP\r\n\r\n"], "illegal status line"),
        ([b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * (64 << 10)], "Receive buffer too long"),
    ],
)
async def test_what_is_no_answer_is_told_as_such(pieces: list[bytes], reason: str) -> None:
    async with served(saying(*pieces)) as port:
        with pytest.raises(Unanswered, match=reason):
            await post(f"http://127.0.0.1:{port}/in", {}, b"{}")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://127.0.0.1:1/in", "(?i)refused"),
        ("http://nowhere.invalid/in", "."),
        ("http://127.0.0.1:99999/in", "."),
        ("http://[::1/in", "."),
    ],
)
async def test_an_address_where_nobody_is_gives_a_reason(url: str, reason: str) -> None:
    with pytest.raises(Unanswered, match=reason):
        await post(url, {}, b"{}")


async def test_tls_is_spoken_and_a_stranger_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate must be signed by somebody this host trusts, and be that of the host."""
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    command = f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -keyout {key} -out {certificate}"
    alternative = ["-addext", "subjectAltName=IP:127.0.0.1"]
    await trio.run_process([*command.split(), *alternative], capture_stdout=True, capture_stderr=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    script = saying(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    try:
        async with served(script, context) as port:
            posting._trust.cache_clear()
            with pytest.raises(Unanswered, match=r"(?i)certificate verify failed"):
                await post(f"https://127.0.0.1:{port}/in", {}, b"{}")
            posting._trust.cache_clear()
            monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            assert (await post(f"https://127.0.0.1:{port}/in", {}, b"{}")).body == b"{}"
            with pytest.raises(Unanswered):
                await post(f"https://localhost:{port}/in", {}, b"{}")
    finally:
        posting._trust.cache_clear()


# ── the outbox ──────────────────────────────────────────────────────────────────────────────────────────────────────


class SetClock(Clock):
    """Stands still where the test puts it."""

    def __init__(self) -> None:
        self.moment = NOW

    def now(self) -> datetime:
        return self.moment


@define(eq=False)
class Post:
    """The outbox of a sender with a real ledger, a clock that the test moves, and a receiver that it can switch off."""

    snapshot: Snapshot
    ledger: Ledger
    ctx: JobContext
    clock: SetClock
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
        made = []
        for n in range(count):
            payload = strict_json.dumps({"to": "lab", "event": {"type": "a.b", "payload": {"n": n}}})
            new = NewJob(plugin=RELAY, command="send", payload=payload, submitted_by="test", max_attempts=30)
            made.append((await self.ledger.write(enqueue, new, now=self.clock.now())).job_id)
        return made

    async def turn(self) -> int:
        """What may be sent now is sent, one after the other; how many jobs were claimed."""
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

    async def pass_to(self, moment: datetime) -> None:
        """Time goes by as it does for a service that is up."""
        while True:
            await self.turn()
            due = await self.ledger.read(next_due)
            if due is None or due > moment:
                self.clock.moment = moment
                return
            self.clock.moment = due

    def states(self) -> Counter[str]:
        rows = look(self.ledger, lambda db: db.execute("SELECT status FROM job_queue").fetchall())
        return Counter(status for (status,) in rows)

    def breaker(self) -> Any:
        return look(self.ledger, breakers.get, RELAY, "lab")

    def rows(self, statement: str) -> list[Any]:
        return look(self.ledger, lambda db: db.execute(statement).fetchall())


@pytest.fixture
async def outbox(tmp_path: Path) -> AsyncIterator[Post]:
    clock = SetClock()
    descriptor = os.open(tmp_path / "log", os.O_CREAT | os.O_WRONLY, 0o600)
    log = Log(level="debug", descriptor=descriptor)
    made: list[Post] = []

    async def receive(stream: trio.abc.Stream, request: bytes) -> None:
        await made[0].receive(stream, request)

    try:
        async with served(receive) as port, open_ledger(tmp_path / "state.db", synchronous="off") as ledger:
            snapshot = configured(tmp_path, port)
            made.append(Post(snapshot, ledger, job_context(ledger, log, snapshot, clock=clock), clock))
            yield made[0]
    finally:
        log.close()
        os.close(descriptor)


async def test_a_request_is_signed_for_the_path_it_is_sent_to(outbox: Post) -> None:
    """Peer, key id, moment and signature are in the headers; the base address may end in a slash."""
    await outbox.put()
    await outbox.turn()
    (request,) = outbox.requests
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    assert first == "POST /in/home HTTP/1.1"
    assert (headers["x-ductile-peer"], headers["x-ductile-key-id"]) == ("home", "k1")
    moment = headers["x-ductile-timestamp"]
    assert is_signed(headers["x-ductile-signature"], Secret(SECRET), "POST", "/in/home", moment, body)
    assert outbox.states() == {"succeeded": 1}


async def test_events_wait_out_an_outage_of_hours_and_arrive_once_each(outbox: Post) -> None:
    """While nobody answers, few attempts are made and nothing is given up; the first answer lets everything go."""
    await outbox.put(20)
    outbox.is_up = False
    await outbox.pass_to(NOW + timedelta(hours=10))
    assert outbox.states() == {"queued": 20}
    assert len(outbox.requests) < 500, "one probe a minute at most, not twenty"
    assert outbox.breaker().state is BreakerState.OPEN
    outbox.is_up = True
    await outbox.pass_to(NOW + timedelta(hours=11, minutes=2))

    assert outbox.states() == {"succeeded": 20}
    assert set(outbox.delivered.values()) == {1}
    assert (outbox.breaker().state, outbox.breaker().failure_count) == (BreakerState.CLOSED, 0)


async def test_a_lone_event_is_tried_for_about_a_day(outbox: Post) -> None:
    """Then it is dead and says why."""
    await outbox.put()
    outbox.is_up = False
    await outbox.pass_to(NOW + timedelta(hours=20))
    assert outbox.states() == {"queued": 1}
    await outbox.pass_to(NOW + timedelta(hours=30))
    assert outbox.states() == {"dead": 1}
    ((error,),) = outbox.rows("SELECT last_error FROM job_queue")
    assert error == "attempts used up (30 of 30): instance lab: the connection was closed without an answer"


async def test_an_open_breaker_holds_events_without_using_up_their_attempts(outbox: Post) -> None:
    """Three failed attempts open it; what comes then waits, says why, and has its first attempt still to come."""
    outbox.is_up = False
    await outbox.put(5)
    await outbox.turn()

    assert len(outbox.requests) == 3
    assert (
        outbox.rows("SELECT attempt, status FROM job_queue ORDER BY seq") == [(2, "queued")] * 3 + [(1, "queued")] * 2
    )
    reasons = {reason for (reason,) in outbox.rows("SELECT blocked_reason FROM job_queue WHERE attempt = 1")}
    assert reasons == {"instance lab does not answer"}
    ((first,), _) = outbox.rows("SELECT data FROM journal WHERE kind = 'job.held' ORDER BY seq")
    assert (json.loads(first)["from"], json.loads(first)["to"]) == ("running", "queued")
    assert [row[0] for row in outbox.rows("SELECT COUNT(*) FROM job_log")] == [3]


async def test_one_probe_at_a_time_finds_out(outbox: Post) -> None:
    """A probe that died with the service is the probe again; one that is over without a word makes room."""
    outbox.is_up = False
    await outbox.put(5)
    await outbox.turn()
    outbox.clock.moment += timedelta(hours=1)
    now = outbox.clock.now()
    probe, second, third = (await outbox.ledger.write(claim, now=now, run_id="r", free={RELAY: 3}, limit=3)).jobs

    async def is_held(job: Job) -> bool:
        return await outbox.ledger.write(held_back, "lab", job, run_id="r", now=now, chance=0.5)

    assert not await is_held(probe)
    assert (outbox.breaker().state, outbox.breaker().probe_job_id) == (BreakerState.HALF_OPEN, probe.id)
    assert await is_held(second)
    assert not await is_held(probe)
    lost = Completion(job_id=probe.id, attempt=probe.attempt, outcome=Dead("cancelled"))
    await outbox.ledger.write(record, lost, now=now)
    assert not await is_held(third)
    assert outbox.breaker().probe_job_id == third.id


async def test_an_answer_wakes_what_waits_for_its_instance_and_nothing_else(outbox: Post) -> None:
    """What was tried and failed keeps its delay; what waits for another instance waits on."""
    tried, waits, other = await outbox.put(3)
    until = NOW + timedelta(hours=1)

    def delay(db: Any) -> None:
        db.execute("UPDATE job_queue SET lane = NULL, failed_at = ?, next_retry_at = ?", (to_text(NOW), to_text(until)))
        for job_id, instance in ((waits, "lab"), (other, "attic")):
            db.execute("UPDATE job_queue SET blocked_reason = ? WHERE id = ?", (reason_of(instance), job_id))

    await outbox.ledger.write(delay)
    (job,) = [await outbox.ledger.write(lambda db: get_job(db, tried))]
    assert job is not None
    for _ in range(3):
        await outbox.ledger.write(note_attempt, "lab", job, is_answered=False, now=NOW)
    await outbox.ledger.write(note_attempt, "lab", job, is_answered=True, now=NOW)
    assert outbox.rows("SELECT id FROM job_queue WHERE lane IS NOT NULL") == [(waits,)]


async def test_one_event_finds_out_for_all_that_wait(outbox: Post) -> None:
    """An outbox for somebody who is away does not fill the journal with its own unrest."""
    outbox.is_up = False
    await outbox.put(40)
    await outbox.pass_to(NOW + timedelta(hours=6))
    held = outbox.rows("SELECT COUNT(*) FROM journal WHERE kind = 'job.held'")[0][0]
    assert held < 40 * 6 * 3
    outbox.is_up = True
    await outbox.pass_to(NOW + timedelta(hours=8))
    assert outbox.states() == {"succeeded": 40}


async def test_an_answer_that_refuses_shows_that_somebody_is_there(outbox: Post) -> None:
    """A 422 fails its job and closes the breaker; silence opens it, and refusals that need not last."""
    (job_id,) = await outbox.put()
    (job,) = (await outbox.ledger.write(claim, now=NOW, run_id="run", free={RELAY: 1}, limit=1)).jobs
    for _ in range(3):
        await outbox.ledger.write(note_attempt, "lab", job, is_answered=False, now=NOW)
    assert outbox.breaker().state is BreakerState.OPEN
    assert Sent(answer=HttpAnswer(422)).is_answered
    assert not any(Sent(answer=HttpAnswer(status)).is_answered for status in (403, 408, 429, 500, 503))
    assert not Sent(answer=Unanswered("x")).is_answered
    await outbox.ledger.write(note_attempt, "lab", job, is_answered=True, now=NOW)
    assert outbox.breaker().state is BreakerState.CLOSED
    assert job.id == job_id


async def test_a_send_is_given_up_when_the_attempt_is_to_stop(outbox: Post) -> None:
    """The drain and `job cancel` do not wait for a slow receiver; neither counts for the breaker."""
    hanging = trio.Event()

    async def hang(stream: trio.abc.Stream, _: bytes) -> None:
        hanging.set()
        await trio.sleep_forever()

    async with served(hang) as port:
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


async def test_a_full_disk_does_not_use_up_an_attempt_of_a_relay(outbox: Post) -> None:
    """The breaker cannot be asked, so the event is sent; its end is recorded when there is space."""
    await outbox.put()
    (job,) = (await outbox.ledger.write(claim, now=NOW, run_id="run", free={RELAY: 1}, limit=1)).jobs
    faulty = FaultyLedger(outbox.ledger, LedgerFull("the disk is full"))
    ending = await send_job(evolve(outbox.ctx, ledger=cast(Ledger, faulty)), Attempt(job, outbox.snapshot))
    assert ending is not None
    assert isinstance(ending.outcome, Succeeded)
