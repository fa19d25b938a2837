"""Rules for events from peers and for the outbox: what is refused, what becomes of the rest, and that it is once."""

import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from attrs import define

from ductile.config.checks.doctor import examine
from ductile.config.load.load import load
from ductile.config.snapshot import Snapshot, take_snapshot
from ductile.core.clock import Clock, to_text
from ductile.core.errors import LedgerFull
from ductile.core.hub import Hub
from ductile.core.model import Breaker, BreakerChange, BreakerState
from ductile.core.secret import Secret
from ductile.engine import breaker
from ductile.engine.control.pause import PausedPlugins
from ductile.ledger.storage.writer import Ledger, open_ledger
from ductile.ledger.tables import breakers, journal
from ductile.relay import outbox_routes, receive
from ductile.relay.inbound import KEPT
from ductile.relay.protocol import signature
from ductile.relay.receive import REFUSED, REPEATED
from ductile.web.api import schedules
from ductile.web.auth.auth import OPERATOR
from ductile.web.context import AppContext
from ductile.web.messages import HTTPError, Request
from ductile.web.routes import Route, Table
from ductile.web.site import Site
from ductile.web.webhooks.rejections import RejectionCounter
from tests.e2e.service import Home
from tests.ledger.reading import look

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


class SetClock(Clock):
    """Stands still where the test puts it."""

    def __init__(self) -> None:
        self.moment = NOW

    def now(self) -> datetime:
        return self.moment


def event(kind: str = "backup.ready", *, event_id: str = "e-1", **more: Any) -> dict[str, Any]:
    """An envelope of `home`."""
    origin = {"instance": "home", "plugin": "backup", "job_id": "j", "event_id": event_id}
    return {"event": {"type": kind, "payload": {"n": 1}}, "origin": origin, **more}


@define(eq=False)
class Door:
    """A receiver on a real ledger, and a sender who knows the secrets."""

    ledger: Ledger
    snapshot: Snapshot
    clock: SetClock
    tally: RejectionCounter
    site: Site

    async def ask(self, method: str, path: str, body: bytes = b"", **more: Any) -> tuple[int, Any]:
        at, _, query = path.partition("?")
        arguments = {name: (value,) for name, _, value in (part.partition("=") for part in query.split("&") if part)}
        request = Request(method=method, path=at, body=body, query=arguments, principal=OPERATOR, **more)
        try:
            route, request = self.site.admit(request)
        except HTTPError as refusal:
            answer = refusal.response
        else:
            assert isinstance(route, Route)
            answer = await self.site.answer(route, request)
        assert isinstance(answer.body, bytes)
        return answer.status, json.loads(answer.body)

    async def send(
        self, envelope: Any = None, *, peer: str = "home", path: str | None = None, secret: str = "line", **changes: Any
    ) -> tuple[int, Any]:
        """A request as a peer signs it; `changes` are made to its headers afterwards, None takes one away."""
        body = envelope if isinstance(envelope, bytes) else json.dumps(envelope or event()).encode()
        at, moment = f"/ingest/peer/{path or peer}", changes.get("timestamp") or to_text(self.clock.now())
        signed = signature(Secret(SECRETS[secret]), "POST", at, moment, body)
        headers = {"peer": peer, "timestamp": moment, "signature": signed} | changes
        sent = {f"x-ductile-{name.replace('_', '-')}": (text,) for name, text in headers.items() if text is not None}
        return await self.ask("POST", at, body, headers=sent)

    def rows(self, statement: str, *values: Any) -> list[Any]:
        return look(self.ledger, lambda db: db.execute(statement, values).fetchall())

    def runs(self) -> list[tuple[str, str]]:
        return self.rows("SELECT pipeline, submitted_by FROM job_queue ORDER BY seq")

    def notes(self, kind: str) -> list[dict[str, Any]]:
        return [entry.data for entry in look(self.ledger, journal.read_since, 0) if entry.kind == kind]

    def counted(self, kind: str) -> dict[str, dict[str, int]]:
        return {path: dict(labels) for (what, path), labels in self.tally._counts.items() if what == kind}


Make = Callable[[Callable[[str], str]], Snapshot]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """The configuration above, with a change of its text."""

    def made(change: Callable[[str], str]) -> Snapshot:
        home = Home.make(tmp_path_factory.mktemp("relay") / "home")
        home.plugin("taker", PLUGIN)
        tokens = "".join(f"  - {{name: {name}, key: {key}}}\n" for name, key in SECRETS.items())
        home.write("tokens.yaml", f"tokens:\n{tokens}")
        home.add(change(CONFIG))
        home.seal()
        return take_snapshot(examine(load(home.path / "config.yaml")), {"PATH": "/usr/bin:/bin"})

    return made


@pytest.fixture(scope="module")
def usual(make: Make) -> Snapshot:
    return make(str)


@pytest.fixture
async def door(usual: Snapshot, tmp_path: Path) -> AsyncIterator[Door]:
    clock = SetClock()
    async with open_ledger(tmp_path / "state.db", synchronous="normal") as ledger:
        tally = RejectionCounter(ledger, clock)
        made = Door(ledger, usual, clock, tally, None)  # type: ignore[arg-type]
        desk = AppContext(
            ledger=ledger,
            hub=Hub(),
            clock=clock,
            snapshot=lambda: made.snapshot,
            live_stderr=lambda _: None,
            stuck_seconds=lambda: 0.0,
            reload=lambda **_: pytest.fail("nobody reloads"),
            cancel=lambda *_: pytest.fail("nobody cancels"),
            purge=lambda *_: pytest.fail("nobody purges"),
            pausing=PausedPlugins(ledger, Hub(), clock, {}),
        )
        routes = (*receive.routes(desk, tally), *outbox_routes.routes(desk), *schedules.routes(desk, breaker.reset))
        made.site = Site(
            table=Table(routes),
            authorize=lambda _, request: request,
            on_fault=lambda error, where: pytest.fail(f"{where}: {error!r}"),
        )
        yield made


# ── taken ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_signed_event_starts_a_run_of_every_pipeline_that_waits_for_it(door: Door) -> None:
    """Each is a tree of its own; the answer names them. A pipeline with `from_plugin` never waits for a peer."""
    status, answer = await door.send()

    jobs = [job_id for (job_id,) in door.rows("SELECT id FROM job_queue ORDER BY seq")]
    ((event_id,),) = door.rows("SELECT DISTINCT source_event_id FROM job_queue")
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
    assert door.runs() == [("first", "relay:home"), ("second", "relay:home")]
    payload = json.loads(door.rows("SELECT payload FROM job_queue")[0][0])
    assert (payload["source"], payload["payload"], payload["event_id"]) == ("relay:home", {"n": 1}, event_id)


async def test_baggage_that_the_peer_may_bring_begins_the_context(door: Door) -> None:
    """The rest is dropped and the journal says so; the trigger's `if` reads what was taken."""
    baggage = {"trace": {"id": 7}, "secret": 1, "ductile": {"route_depth": 99}}
    status, answer = await door.send(event("traced", baggage=baggage))

    assert (status, answer["accepted"]) == (202, True)
    contexts = [json.loads(text) for (text,) in door.rows("SELECT accumulated_json FROM event_context")]
    assert [context["trace"] for context in contexts] == [{"id": 7}, {"id": 7}]
    assert all("secret" not in context and context["ductile"]["route_depth"] < 99 for context in contexts)
    (note,) = door.notes("event.baggage_dropped")
    assert (note["peer"], note["names"], note["count"]) == ("home", ["secret", "ductile"], 2)


async def test_an_event_nobody_handles_is_accepted_as_such(door: Door) -> None:
    """`accepted: false, reason: no_route`, in the journal too; a route does not match."""
    status, answer = await door.send(event("unhandled"))

    assert (status, answer["status"], answer["accepted"], answer["reason"]) == (202, "accepted", False, "no_route")
    assert "job_id" not in answer
    assert door.runs() == []
    (note,) = door.notes("event.unmatched")
    assert (note["source"], note["type"], note["event_id"]) == ("relay:home", "unhandled", answer["receiver_event_id"])


@pytest.mark.parametrize("moment", ["2026-02-08T09:25:00Z", "2026-02-08T10:34:59.999999999+01:00", "1770543000"])
async def test_a_moment_within_the_skew_is_taken_in_each_form(door: Door, moment: str) -> None:
    """RFC 3339, up to nanoseconds, or seconds since 1970."""
    assert (await door.send(timestamp=moment))[0] == 202


async def test_a_key_id_that_fits_is_taken(door: Door) -> None:
    envelope = event() | {"origin": {}}
    assert (await door.send(envelope, peer="keyed", secret="other", key_id="k1"))[0] == 202


# ── refused ─────────────────────────────────────────────────────────────────────────────────────────────────────────

REFUSALS: list[tuple[dict[str, Any], int, str]] = [
    ({"path": "stranger"}, 403, "unknown relay peer"),
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
    ({"path": "stranger", "timestamp": None, "signature": None}, 403, "unknown relay peer"),
    ({"timestamp": "noon", "signature": None}, 403, "invalid relay timestamp"),
    ({"signature": "0" * 64, "envelope": b"{}"}, 403, "forbidden"),
]


@pytest.mark.parametrize(("changes", "status", "error"), REFUSALS)
async def test_a_request_is_refused_with_the_first_thing_that_is_wrong(
    door: Door, changes: dict[str, Any], status: int, error: str
) -> None:
    """Nothing is started, and the refusal is counted at a place that a stranger cannot choose."""
    if "peer" in changes and changes["peer"] is None:
        body = json.dumps(event()).encode()
        answer = await door.ask("POST", "/ingest/peer/home", body, headers={})
    else:
        answer = await door.send(changes.pop("envelope", None), **changes)

    assert (answer[0], answer[1]["error"]) == (status, error)
    assert door.runs() == []
    path = (
        "/ingest/peer"
        if error == "unknown relay peer"
        else f"/ingest/peer/{changes.get('path') or changes.get('peer') or 'home'}"
    )
    assert door.counted(REFUSED) == {path: {error: 1}}


async def test_a_header_that_is_given_twice_is_refused(door: Door) -> None:
    """Nobody can add a second signature, moment or name beside the good one."""
    body = json.dumps(event()).encode()
    moment = to_text(NOW)
    signed = signature(Secret(SECRETS["line"]), "POST", "/ingest/peer/home", moment, body)
    headers = {"x-ductile-peer": ("home",), "x-ductile-timestamp": (moment,), "x-ductile-signature": (signed,)}
    for name, values in headers.items():
        status, _ = await door.ask("POST", "/ingest/peer/home", body, headers=headers | {name: (*values, *values)})
        assert (name, status) == (name, 403)


async def test_every_peer_names_its_key_where_the_configuration_says_so(door: Door, make: Make) -> None:
    """`require_key_id` asks all of them; another configuration counts from the next request on."""
    door.snapshot = make(
        lambda text: (
            text.replace("  peers:", "  require_key_id: true\n  peers:")
            .replace("{name: home, secret_ref: line,", "{name: home, key_id: k9, secret_ref: line,")
            .replace("enabled: false, secret_ref: line}", "enabled: false, key_id: k, secret_ref: line}")
        )
    )
    assert (await door.send())[1]["error"] == "missing relay key id"
    assert (await door.send(key_id="k9"))[0] == 202


async def test_a_ledger_that_takes_nothing_has_the_sender_come_back(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 with Retry-After: nothing was acknowledged."""

    async def full(*_: Any, **__: Any) -> None:
        raise LedgerFull("full")

    monkeypatch.setattr(Ledger, "transact", full)
    status, answer = await door.send()
    assert (status, answer["error"], answer["code"]) == (503, "failed to enqueue relay event", "relay_unavailable")


# ── once ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_event_that_comes_again_gets_the_first_answer(door: Door) -> None:
    """Sent again later, with another moment and signature, it is still the same event."""
    first = await door.send()
    door.clock.moment = NOW + timedelta(hours=20)
    assert await door.send() == first
    assert len(door.runs()) == 2
    assert door.counted(REPEATED) == {"/ingest/peer/home": {"event:e-1": 1}}


async def test_an_event_is_known_for_a_week_whatever_becomes_of_its_runs(door: Door) -> None:
    """Then the same id is a new event, as far as the dedupe window of its jobs is concerned too."""
    first = await door.send()
    door.clock.moment = NOW + KEPT - timedelta(seconds=1)
    assert await door.send() == first
    door.clock.moment = NOW + KEPT + timedelta(seconds=1)
    assert (await door.send())[1]["receiver_event_id"] != first[1]["receiver_event_id"]


async def test_another_content_under_a_known_id_is_refused(door: Door) -> None:
    """An id that is no id must not swallow events in silence."""
    await door.send()
    status, answer = await door.send(event() | {"event": {"type": "backup.ready", "payload": {"n": 2}}})
    assert (status, answer["code"]) == (422, "event_id_reused")
    assert len(door.runs()) == 2


async def test_without_an_id_only_a_replay_is_the_same_event(door: Door) -> None:
    """The signature covers the moment: the same bytes a second later are a new event."""
    envelope = {"event": {"type": "backup.ready"}}
    first = await door.send(envelope)
    assert await door.send(envelope) == first
    door.clock.moment += timedelta(seconds=1)
    assert (await door.send(envelope))[1]["receiver_event_id"] != first[1]["receiver_event_id"]
    assert len(door.runs()) == 4


async def test_ids_of_two_peers_have_nothing_to_do_with_each_other(door: Door) -> None:
    envelope = {"event": {"type": "backup.ready"}, "origin": {"event_id": "e-1"}}
    first = await door.send(envelope)
    second = await door.send(envelope, peer="keyed", secret="other", key_id="k1")
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
async def test_the_dedupe_key_is_the_senders_or_made_of_the_origin(door: Door, envelope: Any, key: str | None) -> None:
    """It counts for each pipeline alone: all of them run."""
    assert (await door.send(envelope))[1]["accepted"]
    keys = [found for (found,) in door.rows("SELECT dedupe_key FROM job_queue ORDER BY seq")]
    assert keys == ([None, None] if key is None else [f"first/one//:{key}", f"second/one//:{key}"])


# ── the outbox ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def put(door: Door, body: Any, instance: str = "lab", query: str = "") -> tuple[int, Any]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await door.ask("POST", f"/relay/{instance}{query}", raw)


async def test_an_event_for_an_instance_is_a_job_of_the_outbox(door: Door) -> None:
    """202 once it is durable; it has many attempts, because an instance may be down for long."""
    status, answer = await put(door, {"event": {"type": "a.b", "payload": {"n": 1}}, "baggage": {"t": 1}})
    ((job_id, plugin, command, payload, attempts, by),) = door.rows(
        "SELECT id, plugin, command, payload, max_attempts, submitted_by FROM job_queue"
    )
    assert (status, answer) == (
        202,
        {"job_id": job_id, "status": "queued", "instance": "lab", "event_type": "a.b"},
    )
    assert (plugin, command, attempts, by) == ("core.relay", "send", 30, "cli")
    assert json.loads(payload)["to"] == "lab"


async def test_an_idempotency_key_puts_an_event_into_the_outbox_once(door: Door) -> None:
    """The same request again gets the first answer."""
    raw, headers = json.dumps({"event": {"type": "a.b"}}).encode(), {"idempotency-key": ("k-1",)}
    first = await door.ask("POST", "/relay/lab", raw, headers=headers)
    assert await door.ask("POST", "/relay/lab", raw, headers=headers) == first
    assert door.rows("SELECT COUNT(*) FROM job_queue") == [(1,)]


async def test_a_dry_run_checks_and_stores_nothing(door: Door) -> None:
    status, answer = await put(door, {"event": {"type": "a.b"}}, query="?dry_run=true")
    assert (status, answer) == (
        200,
        {"status": "planned", "dry_run": True, "instance": "lab", "event_type": "a.b"},
    )
    assert door.rows("SELECT 1 FROM job_queue") == []


@pytest.mark.parametrize("query", ["", "?dry_run=true"])
@pytest.mark.parametrize(
    ("instance", "body", "status", "error"),
    [
        ("lap", {"event": {"type": "a.b"}}, 404, "there is no instance 'lap' (did you mean 'lab'?)"),
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
async def test_what_cannot_be_sent_is_refused_at_once(
    door: Door, instance: str, body: Any, status: int, error: str, query: str
) -> None:
    """Whoever asks learns it, not the log."""
    found, answer = await put(door, body, instance, query)
    assert (found, answer["error"][: len(error)]) == (status, error)
    assert door.rows("SELECT 1 FROM job_queue") == []


async def test_the_overview_shows_who_answers_and_what_waits(door: Door) -> None:
    """Instances with their breakers, peers with what came from them."""
    await put(door, {"event": {"type": "a.b"}})
    await door.send()
    failing = Breaker(plugin="core.relay", command="lab", state=BreakerState.OPEN, failure_count=3, opened_at=NOW)
    await door.ledger.write(breakers.put, BreakerChange(failing, "failure_threshold"), now=NOW)

    status, view = await door.ask("GET", "/relay")

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


async def test_the_breaker_of_an_instance_is_seen_and_reset_like_others(door: Door) -> None:
    """`core.relay` has a breaker per instance; a reset also wakes what waits."""
    await put(door, {"event": {"type": "a.b"}})
    await door.ledger.write(
        lambda db: db.execute("UPDATE job_queue SET lane = NULL, next_retry_at = ?, failed_at = ?", ("9", to_text(NOW)))
    )
    failing = Breaker(plugin="core.relay", command="lab", failure_count=2)
    await door.ledger.write(breakers.put, BreakerChange(failing, "failure_threshold"), now=NOW)

    status, view = await door.ask("GET", "/breaker/core.relay?command=lab")
    assert (status, view["breakers"][0]["failure_count"], view["breakers"][0]["threshold"]) == (200, 2, 3)
    status, answer = await door.ask("POST", "/breaker/core.relay/reset")
    assert (status, [one["command"] for one in answer["reset"]]) == (200, ["lab"])
    assert door.rows("SELECT lane, next_retry_at FROM job_queue") == [("core.relay", None)]
    assert (await door.ask("GET", "/breaker/core.relay?command=lap"))[0] == 404
