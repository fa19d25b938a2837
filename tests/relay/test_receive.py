"""Events from peers are verified and stored once; events for other instances go into the outbox."""

import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from attrs import define, evolve

from ductile.config.checks.examine import examine
from ductile.config.load.load import load
from ductile.config.sections.settings import ServiceLimits
from ductile.config.snapshot import Snapshot, build_snapshot
from ductile.core.clock import Clock, to_text
from ductile.core.errors import LedgerFull
from ductile.core.hub import Hub
from ductile.core.model import Breaker, BreakerChange, BreakerState
from ductile.core.secret import Secret
from ductile.engine import breaker
from ductile.engine.control.pause import PausedPlugins
from ductile.exchange.service import MessageExchange
from ductile.ledger.admin.retention import RetentionPolicy, prune
from ductile.ledger.storage.async_ledger import Ledger, open_ledger
from ductile.ledger.tables import breakers, journal
from ductile.relay.protocol import signature
from ductile.relay.receive import RECEIPT_RETENTION, REFUSED, REPEATED
from ductile.relay.routes import relay_routes
from ductile.web.api import schedules
from ductile.web.auth.auth import local_principal
from ductile.web.context import AppContext
from ductile.web.messages import HTTPError, Request
from ductile.web.routing import Route, RouteTable
from ductile.web.server.site import Site
from ductile.web.webhooks.rejections import RejectionCounter
from tests.e2e.service import Home
from tests.ledger.reading import read_now

NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)
SECRETS = {"line": "line-secret-0123456789abcdef", "other": "other-secret-0123456789abcde"}
CONFIG = """\
include: [tokens.yaml]
pipelines:
  - {name: first, on: backup.ready, steps: [{id: one, uses: taker}]}
  - {name: second, on: backup.ready, if: {path: payload.n, op: neq, value: 0}, steps: [{id: one, uses: taker}]}
  - {name: from-a-plugin, on: backup.ready, from_plugin: taker, steps: [{uses: taker}]}
  - {name: traced, on: traced, if: {path: context.trace, op: exists}, steps: [{id: one, uses: taker}]}
routes:
  - {from: taker, event_type: unhandled, to: taker}
instances:
  - {name: lab, base_url: "http://127.0.0.1:9", ingress_path: /ingest/peer/home, secret_ref: line, allow: [a.b, c.d]}
  - {name: off, enabled: false, base_url: "http://127.0.0.1:9", ingress_path: /i, secret_ref: line}
remote_ingress:
  peers:
    - {name: home, secret_ref: line, accept: [backup.ready, traced, unhandled], baggage: {allow: [trace]}}
    - {name: keyed, secret_ref: other, key_id: k1}
    - {name: gone, enabled: false, secret_ref: line}
"""
PLUGIN = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok"}\'\n'


class FixedClock(Clock):
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.moment = NOW

    def now(self) -> datetime:
        return self.moment


def event(kind: str = "backup.ready", *, event_id: str = "e-1", **more: Any) -> dict[str, Any]:
    """Return an envelope of `home`."""
    origin = {"instance": "home", "plugin": "backup", "job_id": "j", "event_id": event_id}
    return {"event": {"type": kind, "payload": {"n": 1}}, "origin": origin, **more}


@define(eq=False)
class Receiver:
    """A receiver with a real ledger, and a client that knows the secrets."""

    ledger: Ledger
    snapshot: Snapshot
    clock: FixedClock
    rejections: RejectionCounter
    site: Site

    async def ask(self, method: str, path: str, body: bytes = b"", **more: Any) -> tuple[int, Any]:
        at, _, query = path.partition("?")
        arguments = {name: (value,) for name, _, value in (part.partition("=") for part in query.split("&") if part)}
        request = Request(method=method, path=at, body=body, query=arguments, principal=local_principal(0), **more)
        try:
            route, request = self.site.admit(request)
        except HTTPError as refusal:
            answer = refusal.response
        else:
            assert isinstance(route, Route)
            answer = await self.site.handle(route, request)
        assert isinstance(answer.body, bytes)
        return answer.status, json.loads(answer.body)

    async def send(
        self, envelope: Any = None, *, peer: str = "home", path: str | None = None, secret: str = "line", **changes: Any
    ) -> tuple[int, Any]:
        """Send a request signed by a peer. `changes` replace its headers afterwards; None removes one."""
        body = envelope if isinstance(envelope, bytes) else json.dumps(envelope or event()).encode()
        at, moment = f"/ingest/peer/{path or peer}", changes.get("timestamp") or to_text(self.clock.now())
        signed = signature(Secret(SECRETS[secret]), "POST", at, moment, body)
        headers = {"peer": peer, "timestamp": moment, "signature": signed} | changes
        sent = {f"x-ductile-{name.replace('_', '-')}": (text,) for name, text in headers.items() if text is not None}
        return await self.ask("POST", at, body, headers=sent)

    def rows(self, statement: str, *values: Any) -> list[Any]:
        return read_now(self.ledger, lambda db: db.execute(statement, values).fetchall())

    def runs(self) -> list[tuple[str, str]]:
        return self.rows("SELECT pipeline, submitted_by FROM job_queue ORDER BY seq")

    def notes(self, kind: str) -> list[dict[str, Any]]:
        return [entry.data for entry in read_now(self.ledger, journal.read_since, 0) if entry.kind == kind]

    def counted(self, kind: str) -> dict[str, dict[str, int]]:
        return {path: dict(labels) for (what, path), labels in self.rejections._counts.items() if what == kind}


MakeSnapshot = Callable[[Callable[[str], str]], Snapshot]


@pytest.fixture(scope="module")
def make_snapshot(tmp_path_factory: pytest.TempPathFactory) -> MakeSnapshot:
    """Return a function that builds a snapshot of CONFIG after a change of its text."""

    def make(change: Callable[[str], str]) -> Snapshot:
        home = Home.make(tmp_path_factory.mktemp("relay") / "home")
        home.plugin("taker", PLUGIN)
        tokens = "".join(f"  - {{name: {name}, key: {key}}}\n" for name, key in SECRETS.items())
        home.write("tokens.yaml", f"tokens:\n{tokens}")
        home.add(change(CONFIG))
        home.seal()
        return build_snapshot(examine(load(home.path / "config.yaml")), {"PATH": "/usr/bin:/bin"})

    return make


@pytest.fixture(scope="module")
def default_snapshot(make_snapshot: MakeSnapshot) -> Snapshot:
    return make_snapshot(str)


@pytest.fixture
async def receiver(default_snapshot: Snapshot, tmp_path: Path) -> AsyncIterator[Receiver]:
    clock = FixedClock()
    async with open_ledger(tmp_path / "state.db", synchronous="normal") as ledger:
        rejections = RejectionCounter(ledger, clock)
        receiver = Receiver(ledger, default_snapshot, clock, rejections, None)  # type: ignore[arg-type]
        ctx = AppContext(
            ledger=ledger,
            hub=Hub(),
            clock=clock,
            snapshot=lambda: receiver.snapshot,
            live_stderr=lambda _: None,
            stuck_seconds=lambda: 0.0,
            reload=lambda **_: pytest.fail("unexpected reload"),
            cancel=lambda *_: pytest.fail("unexpected cancel"),
            purge=lambda *_: pytest.fail("unexpected purge"),
            pause_control=PausedPlugins(ledger, Hub(), clock, {}),
            exchange=MessageExchange(
                ledger=ledger,
                hub=Hub(),
                clock=clock,
                settings=lambda: receiver.snapshot.config.settings.exchange,
                is_stopping=lambda: False,
            ),
        )
        routes = (*relay_routes(ctx, rejections), *schedules.routes(ctx, breaker.reset))
        receiver.site = Site(
            table=RouteTable(routes),
            authorize=lambda _, request: request,
            on_fault=lambda error, where: pytest.fail(f"{where}: {error!r}"),
        )
        yield receiver


# ── accepted ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_signed_event_starts_a_run_of_every_matching_pipeline(receiver: Receiver) -> None:
    """Each run is its own tree. A pipeline with `from_plugin` does not match an event of a peer."""
    status, answer = await receiver.send()

    jobs = [job_id for (job_id,) in receiver.rows("SELECT id FROM job_queue ORDER BY seq")]
    ((event_id,),) = receiver.rows("SELECT DISTINCT source_event_id FROM job_queue")
    assert (status, answer) == (
        202,
        {
            "status": "accepted",
            "accepted": True,
            "peer": "home",
            "event_type": "backup.ready",
            "receiver_event_id": event_id,
            "job_id": jobs[0],
            "job_ids": jobs,
        },
    )
    assert event_id != "e-1", "an event gets an id of its own here"
    assert receiver.runs() == [("first", "relay:home"), ("second", "relay:home")]
    payload = json.loads(receiver.rows("SELECT payload FROM job_queue")[0][0])
    assert (payload["source"], payload["payload"], payload["event_id"]) == ("relay:home", {"n": 1}, event_id)


async def test_allowed_baggage_starts_the_context(receiver: Receiver) -> None:
    """Other baggage is dropped with a journal entry. The trigger's `if` reads the allowed baggage."""
    baggage = {"trace": {"id": 7}, "secret": 1, "ductile": {"route_depth": 99}}
    status, answer = await receiver.send(event("traced", baggage=baggage))

    assert (status, answer["accepted"]) == (202, True)
    contexts = [json.loads(text) for (text,) in receiver.rows("SELECT accumulated_json FROM event_context")]
    assert [context["trace"] for context in contexts] == [{"id": 7}, {"id": 7}]
    assert all("secret" not in context and context["ductile"]["route_depth"] < 99 for context in contexts)
    (note,) = receiver.notes("event.baggage_dropped")
    assert (note["peer"], note["names"], note["count"]) == ("home", ["secret", "ductile"], 2)


async def test_an_event_without_a_route_is_stored_as_not_accepted(receiver: Receiver) -> None:
    """`accepted: false, reason: no_route`, also in the journal. Routes of plugins do not match."""
    status, answer = await receiver.send(event("unhandled"))

    assert (status, answer["status"], answer["accepted"], answer["reason"]) == (202, "accepted", False, "no_route")
    assert "job_id" not in answer
    assert receiver.runs() == []
    (note,) = receiver.notes("event.unmatched")
    assert (note["source"], note["type"], note["event_id"]) == ("relay:home", "unhandled", answer["receiver_event_id"])


@pytest.mark.parametrize("moment", ["2026-02-08T09:25:00Z", "2026-02-08T10:34:59.999999999+01:00", "1770543000"])
async def test_a_timestamp_within_the_skew_is_accepted_in_each_form(receiver: Receiver, moment: str) -> None:
    """RFC 3339, up to nanoseconds, or Unix seconds."""
    assert (await receiver.send(timestamp=moment))[0] == 202


async def test_a_matching_key_id_is_accepted(receiver: Receiver) -> None:
    envelope = event() | {"origin": {}}
    assert (await receiver.send(envelope, peer="keyed", secret="other", key_id="k1"))[0] == 202


# ── refused ─────────────────────────────────────────────────────────────────────────────────────────────────────────

REFUSALS: list[tuple[dict[str, Any], int, str]] = [
    ({"path": "unknown"}, 403, "unknown relay peer"),
    ({"path": "gone", "peer": "gone"}, 403, "unknown relay peer"),
    ({"peer": "keyed", "path": "home"}, 403, "peer identity mismatch"),
    ({"path": "home", "peer": None}, 403, "peer identity mismatch"),
    ({"timestamp": None}, 403, "missing relay timestamp"),
    ({"timestamp": "noon"}, 403, "invalid relay timestamp"),
    ({"timestamp": "2026-02-08T09:24:59Z"}, 403, "relay timestamp outside allowed clock skew"),
    ({"timestamp": "2026-02-08T09:35:01Z"}, 403, "relay timestamp outside allowed clock skew"),
    ({"peer": "keyed", "secret": "other"}, 403, "missing relay key id"),
    ({"peer": "keyed", "secret": "other", "key_id": "k2"}, 403, "relay key id mismatch"),
    ({"signature": None}, 403, "missing relay signature"),
    ({"signature": "0" * 64}, 403, "forbidden"),
    ({"signature": "nonsense"}, 403, "forbidden"),
    ({"secret": "other"}, 403, "forbidden"),
    ({"envelope": b"{}"}, 400, "event is missing"),
    ({"envelope": event() | {"origin": {"instance": "lab"}}}, 403, "origin instance mismatch"),
    ({"envelope": event("not.accepted")}, 422, "event type not allowed for peer"),
    # The first thing that is wrong is the answer.
    ({"path": "unknown", "timestamp": None, "signature": None}, 403, "unknown relay peer"),
    ({"timestamp": "noon", "signature": None}, 403, "invalid relay timestamp"),
    ({"signature": "0" * 64, "envelope": b"{}"}, 403, "forbidden"),
]


@pytest.mark.parametrize(("changes", "status", "error"), REFUSALS)
async def test_a_request_is_refused_with_the_first_failed_check(
    receiver: Receiver, changes: dict[str, Any], status: int, error: str
) -> None:
    """Nothing starts. The refusal is counted under a path that the client cannot choose."""
    if "peer" in changes and changes["peer"] is None:
        body = json.dumps(event()).encode()
        answer = await receiver.ask("POST", "/ingest/peer/home", body, headers={})
    else:
        answer = await receiver.send(changes.pop("envelope", None), **changes)

    assert (answer[0], answer[1]["error"]) == (status, error)
    assert receiver.runs() == []
    path = (
        "/ingest/peer"
        if error == "unknown relay peer"
        else f"/ingest/peer/{changes.get('path') or changes.get('peer') or 'home'}"
    )
    assert receiver.counted(REFUSED) == {path: {error: 1}}


async def test_a_repeated_header_is_refused(receiver: Receiver) -> None:
    body = json.dumps(event()).encode()
    moment = to_text(NOW)
    signed = signature(Secret(SECRETS["line"]), "POST", "/ingest/peer/home", moment, body)
    headers = {"x-ductile-peer": ("home",), "x-ductile-timestamp": (moment,), "x-ductile-signature": (signed,)}
    for name, values in headers.items():
        status, _ = await receiver.ask("POST", "/ingest/peer/home", body, headers=headers | {name: (*values, *values)})
        assert (name, status) == (name, 403)


async def test_require_key_id_applies_to_all_peers(receiver: Receiver, make_snapshot: MakeSnapshot) -> None:
    """A new configuration applies from the next request on."""
    receiver.snapshot = make_snapshot(
        lambda text: (
            text.replace("  peers:", "  require_key_id: true\n  peers:")
            .replace("{name: home, secret_ref: line,", "{name: home, key_id: k9, secret_ref: line,")
            .replace("enabled: false, secret_ref: line}", "enabled: false, key_id: k, secret_ref: line}")
        )
    )
    assert (await receiver.send())[1]["error"] == "missing relay key id"
    assert (await receiver.send(key_id="k9"))[0] == 202


async def test_a_full_ledger_responds_503(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is acknowledged."""

    async def full(*_: Any, **__: Any) -> None:
        raise LedgerFull("full")

    monkeypatch.setattr(Ledger, "transact", full)
    status, answer = await receiver.send()
    assert (status, answer["error"], answer["code"]) == (503, "failed to enqueue relay event", "relay_unavailable")


async def test_a_peer_with_too_many_queued_jobs_is_refused(receiver: Receiver) -> None:
    """Refusals are counted. A repeated event still gets the first response."""
    config = receiver.snapshot.config
    service = evolve(config.settings.service, limits=ServiceLimits(queued_jobs=1))
    limited = evolve(config, settings=evolve(config.settings, service=service))
    receiver.snapshot = evolve(receiver.snapshot, config=limited)
    first = await receiver.send()

    status, answer = await receiver.send(event(event_id="e-2"))

    assert (status, answer["code"], answer["context"]["limit_key"]) == (
        429,
        "queue_limit",
        "service.limits.queued_jobs",
    )
    assert await receiver.send() == first
    assert list(receiver.counted(REFUSED)) == ["/ingest/peer/home"]


# ── once ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_repeated_event_gets_the_first_response(receiver: Receiver) -> None:
    """Even with another timestamp and signature."""
    first = await receiver.send()
    receiver.clock.moment = NOW + timedelta(hours=20)
    assert await receiver.send() == first
    assert len(receiver.runs()) == 2
    assert receiver.counted(REPEATED) == {"/ingest/peer/home": {"event:e-1": 1}}


async def test_a_repeated_event_is_recognised_for_a_week(receiver: Receiver) -> None:
    """Then retention deletes its receipt, and the same id is a new event."""
    first = await receiver.send()
    receiver.clock.moment = NOW + RECEIPT_RETENTION - timedelta(seconds=1)
    assert await receiver.send() == first
    receiver.clock.moment = NOW + RECEIPT_RETENTION + timedelta(seconds=1)
    await receiver.ledger.write(prune, RetentionPolicy(), now=receiver.clock.moment)
    assert (await receiver.send())[1]["receiver_event_id"] != first[1]["receiver_event_id"]


async def test_a_known_id_with_other_content_is_refused(receiver: Receiver) -> None:
    await receiver.send()
    status, answer = await receiver.send(event() | {"event": {"type": "backup.ready", "payload": {"n": 2}}})
    assert (status, answer["code"]) == (422, "event_id_reused")
    assert len(receiver.runs()) == 2


async def test_without_an_id_only_a_replay_is_a_repeated_event(receiver: Receiver) -> None:
    """The signature covers the timestamp."""
    envelope = {"event": {"type": "backup.ready"}}
    first = await receiver.send(envelope)
    assert await receiver.send(envelope) == first
    receiver.clock.moment += timedelta(seconds=1)
    assert (await receiver.send(envelope))[1]["receiver_event_id"] != first[1]["receiver_event_id"]
    assert len(receiver.runs()) == 4


async def test_the_ids_of_two_peers_are_independent(receiver: Receiver) -> None:
    envelope = {"event": {"type": "backup.ready"}, "origin": {"event_id": "e-1"}}
    first = await receiver.send(envelope)
    second = await receiver.send(envelope, peer="keyed", secret="other", key_id="k1")
    assert first[1]["receiver_event_id"] != second[1]["receiver_event_id"]


@pytest.mark.parametrize(
    ("envelope", "key"),
    [
        ({"event": {"type": "backup.ready", "dedupe_key": "k"}, "origin": {"event_id": "e"}}, "k"),
        ({"event": {"type": "backup.ready"}, "origin": {"instance": "home", "event_id": "e"}}, "relay:home:home:e"),
        ({"event": {"type": "backup.ready"}, "origin": {"event_id": "e"}}, "relay:home::e"),
        ({"event": {"type": "backup.ready"}}, None),
    ],
)
async def test_the_dedupe_key_is_that_of_the_sender_or_derived_from_the_origin(
    receiver: Receiver, envelope: Any, key: str | None
) -> None:
    """Every pipeline that handles the event gets it."""
    assert (await receiver.send(envelope))[1]["accepted"]
    keys = [found for (found,) in receiver.rows("SELECT dedupe_key FROM job_queue ORDER BY seq")]
    assert keys == ([None, None] if key is None else [key, key])


# ── outbox ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def put(receiver: Receiver, body: Any, instance: str = "lab", query: str = "") -> tuple[int, Any]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await receiver.ask("POST", f"/relay/{instance}{query}", raw)


async def test_an_event_for_an_instance_is_a_relay_job(receiver: Receiver) -> None:
    """With many attempts, because an instance may be down for hours."""
    status, answer = await put(receiver, {"event": {"type": "a.b", "payload": {"n": 1}}, "baggage": {"t": 1}})
    ((job_id, plugin, command, payload, attempts, by),) = receiver.rows(
        "SELECT id, plugin, command, payload, max_attempts, submitted_by FROM job_queue"
    )
    assert (status, answer) == (
        202,
        {"job_id": job_id, "status": "queued", "instance": "lab", "event_type": "a.b"},
    )
    assert (plugin, command, attempts, by) == ("core.relay", "send", 30, "cli")
    assert json.loads(payload)["to"] == "lab"


async def test_an_idempotency_key_enqueues_an_event_once(receiver: Receiver) -> None:
    raw, headers = json.dumps({"event": {"type": "a.b"}}).encode(), {"idempotency-key": ("k-1",)}
    first = await receiver.ask("POST", "/relay/lab", raw, headers=headers)
    assert await receiver.ask("POST", "/relay/lab", raw, headers=headers) == first
    assert receiver.rows("SELECT COUNT(*) FROM job_queue") == [(1,)]


async def test_a_dry_run_stores_nothing(receiver: Receiver) -> None:
    status, answer = await put(receiver, {"event": {"type": "a.b"}}, query="?dry_run=true")
    assert (status, answer) == (
        200,
        {"status": "planned", "dry_run": True, "instance": "lab", "event_type": "a.b"},
    )
    assert receiver.rows("SELECT 1 FROM job_queue") == []


@pytest.mark.parametrize("query", ["", "?dry_run=true"])
@pytest.mark.parametrize(
    ("instance", "body", "status", "error"),
    [
        ("lap", {"event": {"type": "a.b"}}, 404, "instance 'lap' does not exist (did you mean 'lab'?)"),
        ("off", {"event": {"type": "a.b"}}, 409, "instance off is disabled"),
        ("lab", {"event": {"type": "x.y"}}, 422, "instance lab does not allow 'x.y'"),
        ("lab", {"event": {"typ": "x.y"}}, 400, "event: unknown key 'typ' (did you mean 'type'?)"),
        ("lab", {"event": {"type": "x.y"}, "bagage": {}}, 400, "body: unknown key 'bagage' (did you mean 'baggage'?)"),
        ("lab", {"event": {"type": "X"}}, 400, "event.type must be lower-case words"),
        ("lab", b"{", 400, "the body is not JSON"),
        ("lab", [], 400, "the body must be a JSON object"),
        ("lab", b"", 400, "the body is not JSON"),
    ],
)
async def test_an_event_that_cannot_be_sent_is_refused_immediately(
    receiver: Receiver, instance: str, body: Any, status: int, error: str, query: str
) -> None:
    found, answer = await put(receiver, body, instance, query)
    assert (found, answer["error"][: len(error)]) == (status, error)
    assert receiver.rows("SELECT 1 FROM job_queue") == []


async def test_the_overview_has_breakers_and_undelivered_events(receiver: Receiver) -> None:
    await put(receiver, {"event": {"type": "a.b"}})
    await receiver.send()
    failing = Breaker(plugin="core.relay", command="lab", state=BreakerState.OPEN, failure_count=3, opened_at=NOW)
    await receiver.ledger.write(breakers.put, BreakerChange(failing, "failure_threshold"), now=NOW)

    status, view = await receiver.ask("GET", "/relay")

    assert status == 200
    assert (view["waiting"], view["waiting_since"]) == (1, to_text(NOW))
    lab, off = view["instances"]
    assert (lab["address"], lab["allow"]) == ("http://127.0.0.1:9/ingest/peer/home", ["a.b", "c.d"])
    assert (lab["state"], lab["failure_count"]) == ("open", 3)
    assert lab["probe_from"] == to_text(NOW + timedelta(minutes=1))
    assert (off["enabled"], off["state"]) == (False, "closed")
    home, keyed, _ = view["peers"]
    assert (view["listen_path"], home["received"], home["last_received_at"]) == ("/ingest/peer", 1, to_text(NOW))
    assert (keyed["received"], "last_received_at" in keyed) == (0, False)


async def test_the_breaker_of_an_instance_can_be_read_and_reset(receiver: Receiver) -> None:
    """A reset also makes postponed jobs due."""
    await put(receiver, {"event": {"type": "a.b"}})
    await receiver.ledger.write(
        lambda db: db.execute("UPDATE job_queue SET lane = NULL, next_retry_at = ?, failed_at = ?", ("9", to_text(NOW)))
    )
    failing = Breaker(plugin="core.relay", command="lab", failure_count=2)
    await receiver.ledger.write(breakers.put, BreakerChange(failing, "failure_threshold"), now=NOW)

    status, view = await receiver.ask("GET", "/breaker/core.relay?command=lab")
    assert (status, view["breakers"][0]["failure_count"], view["breakers"][0]["threshold"]) == (200, 2, 3)
    status, answer = await receiver.ask("POST", "/breaker/core.relay/reset")
    assert (status, [one["command"] for one in answer["reset"]]) == (200, ["lab"])
    assert receiver.rows("SELECT lane, next_retry_at FROM job_queue") == [("core.relay", None)]
    assert (await receiver.ask("GET", "/breaker/core.relay?command=lap"))[0] == 404
