"""Rules for deliveries: what is refused, what becomes of the rest, and that a delivery becomes it once."""

import base64
import hashlib
import hmac
import json
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import trio
from attrs import define, evolve, field, fields
from trio.testing import MockClock, wait_all_tasks_blocked

import ductile
from ductile.config.checks.doctor import examine
from ductile.config.load.load import load
from ductile.config.sections.settings import WebhookEndpoint
from ductile.config.snapshot import Snapshot, take_snapshot
from ductile.core.clock import Clock
from ductile.core.errors import LedgerFull
from ductile.core.formats import strict_json
from ductile.core.hub import Hub
from ductile.engine.control.pause import PausedPlugins
from ductile.ledger.storage.writer import Ledger, open_ledger
from ductile.ledger.tables import journal, receipts, rejected_deliveries
from ductile.web.context import AppContext
from ductile.web.messages import HTTPError, Request, Response
from ductile.web.routes import Route
from ductile.web.site import Served, Site
from ductile.web.webhooks import rejections as tallies
from ductile.web.webhooks.deliveries import DeliveryRefused
from ductile.web.webhooks.receiver import KEPT, site
from ductile.web.webhooks.rejections import MOST_LABELS, OTHERS, REFUSED, REPEATED, RejectionCounter
from ductile.web.webhooks.signatures import SCHEMES
from tests.e2e.service import Home
from tests.ledger.reading import look

NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)
FORBIDDEN = (
    b'{"error":"forbidden","code":"forbidden","status":403,"hint":"sign the raw body with the endpoint\'s secret; '
    b'whoever runs this Ductile sees the reason with `ductile webhook receipts`","context":{}}'
)
SECRETS = {
    "first": "first-secret-0123456789abcdef",
    "second": "second-secret-0123456789abcde",
    "standard": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
}
TOKENS = "tokens:\n" + "".join(f"  - {{name: {name}, key: {key}}}\n" for name, key in SECRETS.items())
CONFIG = """\
plugins:
  taker: {retry: {max_attempts: 7}, notify_on_complete: true}
  other: {}
pipelines:
  - {name: named, on: nothing, if: {path: payload.never, op: exists}, steps: [{id: one, uses: taker}]}
  - {name: claims, on: nothing, steps: [{id: one, uses: taker, baggage: {who: payload.sender.login}}]}
  - {name: pushed, on: github.push, steps: [{id: one, uses: taker}, {id: two, uses: other}]}
  - {name: also-pushed, on: github.push, steps: [{id: split, split: [{uses: taker}, {uses: other}]}]}
  - {name: from-a-plugin, on: github.push, from_plugin: taker, steps: [{uses: taker}]}
  - {name: only-main, on: github.push, if: {path: payload.ref, op: eq, value: refs/heads/main}, steps: [{uses: other}]}
webhooks:
  listen: 127.0.0.1:8099
  endpoints:
    - {path: /hook/plain, plugin: taker, secret_ref: first, signature_header: X-Sig}
    - {path: /hook/rotating, plugin: taker, secret_ref: [first, second], signature_header: X-Sig}
    - {path: /hook/ids, name: ided, plugin: taker, secret_ref: first, signature_header: X-Sig,
       delivery_id_header: X-Delivery, forward_headers: [X-Kind, X-Sig, X-Absent]}
    - {path: /hook/form, plugin: taker, secret_ref: first, signature_header: X-Sig, body: form}
    - {path: /hook/small, plugin: taker, secret_ref: first, signature_header: X-Sig, max_body_size: 64}
    - {path: /hook/named, pipeline: named, secret_ref: first, signature_header: X-Sig}
    - {path: /hook/claims, pipeline: claims, secret_ref: first, signature_header: X-Sig}
    - {path: /github, event: "github.{header.X-GitHub-Event}", scheme: github, secret_ref: first}
    - {path: /stripe, event: paid, scheme: stripe, secret_ref: first}
    - {path: /slack, event: slack.said, scheme: slack, secret_ref: first}
    - {path: /slack/command, plugin: taker, scheme: slack, body: form, secret_ref: first}
    - {path: /standard, plugin: taker, scheme: standard-webhooks, secret_ref: standard}
    - {path: "/odd/{name}/", plugin: taker, secret_ref: first, signature_header: X-Sig}
"""
PLUGIN = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok"}\'\n'

PUSH = {
    "ref": "refs/heads/main",
    "before": "6113728f27ae82c7b1a177c8d03f9e96e0adf246",
    "after": "0000000000000000000000000000000000000000",
    "repository": {"id": 186853002, "full_name": "octo/hello", "private": False},
    "pusher": {"name": "octo", "email": "octo@example.com"},
    "commits": [{"id": "0d1a26e67d8f5eaf1f6ba5c57fc3c7d91ac0fd1c", "message": "Update – README", "added": []}],
    "head_commit": None,
}
PULL_REQUEST = {
    "action": "opened",
    "number": 2,
    "pull_request": {"id": 2**40, "title": 'Fix "quotes"', "merged": False, "additions": 1, "labels": []},
    "repository": {"full_name": "octo/hello"},
    "sender": {"login": "octo", "type": "User"},
}
ISSUES = {
    "action": "labeled",
    "issue": {"number": 1, "title": "Spelling error", "body": None, "user": {"login": "octo"}},
    "label": {"id": 1362934389, "name": "bug", "color": "d73a4a"},
    "repository": {"full_name": "octo/hello"},
}
PING = {"zen": "Keep it logically awesome.", "hook_id": 109948940, "hook": {"type": "Repository", "events": ["*"]}}
GITHUB = {"push": PUSH, "pull_request": PULL_REQUEST, "issues": ISSUES, "ping": PING}


class SetClock(Clock):
    """Stands still where the test puts it."""

    def __init__(self) -> None:
        self.moment = NOW

    def now(self) -> datetime:
        return self.moment


@define(eq=False)
class Hooks:
    """A receiver on a real ledger, and senders who know the secrets."""

    prepared: Home
    folder: Path
    ledger: Ledger
    snapshot: Snapshot
    tally: RejectionCounter
    clock: SetClock
    faults: list[BaseException] = field(factory=list)
    site: Site = field(init=False)

    def __attrs_post_init__(self) -> None:
        desk = AppContext(
            ledger=self.ledger,
            hub=Hub(),
            clock=self.clock,
            snapshot=lambda: self.snapshot,
            live_stderr=lambda _: None,
            stuck_seconds=lambda: 0.0,
            reload=lambda **_: pytest.fail("nobody reloads"),
            cancel=lambda *_: pytest.fail("nobody cancels"),
            purge=lambda *_: pytest.fail("nobody purges"),
            pausing=PausedPlugins(self.ledger, Hub(), self.clock, {}),
        )
        self.site = site(desk, self.tally, on_fault=lambda error, _: self.faults.append(error))

    @property
    def home(self) -> Home:
        """A configuration of the test's own."""
        if not self.folder.exists():
            shutil.copytree(self.prepared.path, self.folder)
            Home(self.folder).seal()
        return Home(self.folder)

    def reload(self, change: Callable[[str], str] = str) -> None:
        """What a reload does for the web: another snapshot."""
        self.home.write("config.yaml", change((self.home.path / "config.yaml").read_text()))
        self.snapshot = snapshot_of(self.home)

    async def ask(self, method: str, path: str, body: bytes = b"", peer: str = "10.0.0.1", **headers: Any) -> Response:
        sent = {name.replace("_", "-").lower(): _values(value) for name, value in headers.items()}
        request = Request(method=method, path=path, headers=sent, body=body, peer=peer)
        try:
            route, request = self.site.admit(request)
        except HTTPError as refusal:
            return refusal.response
        assert isinstance(route, Route)
        assert not route.waits
        return await self.site.answer(route, request)

    async def post(self, path: str, body: Any = None, *, secret: str = "first", **headers: Any) -> tuple[int, Any]:
        """A delivery that is signed like a plain one, unless the test signs it itself."""
        raw = body if isinstance(body, bytes) else json.dumps(body if body is not None else {}).encode()
        answer = await self.ask("POST", path, raw, **{"x_sig": signed(raw, secret), **headers})
        assert isinstance(answer.body, bytes)
        return answer.status, json.loads(answer.body) if answer.body else None

    async def github(self, kind: str, body: Any = None, *, delivery: str = "d-1", secret: str = "first") -> Any:
        raw = json.dumps(body if body is not None else GITHUB[kind]).encode()
        headers = {"x_hub_signature_256": f"sha256={signed(raw, secret)}", "x_github_delivery": delivery}
        return await self.post("/github", raw, x_github_event=kind, **headers)

    def rows(self, statement: str, *values: Any) -> list[Any]:
        return look(self.ledger, lambda db: db.execute(statement, values).fetchall())

    def jobs(self) -> int:
        count: int = self.rows("SELECT COUNT(*) FROM job_queue")[0][0]
        return count

    def event(self) -> dict[str, Any]:
        """The event of the only job."""
        ((payload,),) = self.rows("SELECT payload FROM job_queue")
        return dict(json.loads(payload))

    def notes(self, kind: str) -> list[dict[str, Any]]:
        return [entry.data for entry in look(self.ledger, journal.read_since, 0) if entry.kind == kind]


def _values(value: Any) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else (value,)


def signed(body: bytes, secret: str = "first") -> str:
    return hmac.new(SECRETS[secret].encode(), body, hashlib.sha256).hexdigest()


def snapshot_of(home: Home) -> Snapshot:
    return take_snapshot(examine(load(home.path / "config.yaml")), {"PATH": "/usr/bin:/bin"})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Snapshot]:
    """The configuration above, made once; whoever changes it works on a copy."""
    home = Home.make(tmp_path_factory.mktemp("webhooks") / "home")
    for name in ("taker", "other"):
        home.plugin(name, PLUGIN)
    home.write("tokens.yaml", TOKENS)
    home.add("include: [tokens.yaml]\n" + CONFIG)
    home.seal()
    return home, snapshot_of(home)


@pytest.fixture
async def hooks(prepared: tuple[Home, Snapshot], tmp_path: Path) -> AsyncIterator[Hooks]:
    home, snapshot = prepared
    clock = SetClock()
    async with open_ledger(tmp_path / "state.db", synchronous="normal") as ledger:
        yield Hooks(home, tmp_path / "home", ledger, snapshot, RejectionCounter(ledger, clock), clock)


# ── taken ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_signed_delivery_is_a_job_of_its_plugin(hooks: Hooks) -> None:
    """202 with the id of a job that is in the ledger, with the plugin's own attempts and hooks."""
    status, body = await hooks.post("/hook/plain", {"n": 1})

    assert (status, list(body)) == (202, ["job_id"])
    statement = """
        SELECT id, plugin, command, status, submitted_by, max_attempts, notify, root_job_id, enqueued_config_snapshot_id
          FROM job_queue
    """
    source = "webhook:/hook/plain"
    job_id, snapshot_id = body["job_id"], hooks.snapshot.id
    assert hooks.rows(statement) == [(job_id, "taker", "handle", "queued", source, 7, 1, job_id, snapshot_id)]
    event = hooks.event()
    assert (event["type"], event["source"], event["payload"]) == ("webhook.plain", source, {"n": 1})
    assert (event["timestamp"], "headers" in event) == ("2026-02-08T09:30:00.000000Z", False)
    assert hooks.rows("SELECT source_event_id FROM job_queue") == [(event["event_id"],)]


async def test_the_sender_is_told_only_after_the_commit(hooks: Hooks) -> None:
    """What another connection cannot see yet was not acknowledged."""
    for n in range(20):
        _, body = await hooks.post("/hook/plain", {"n": n})
        assert hooks.rows("SELECT 1 FROM job_queue WHERE id = ?", body["job_id"]) == [(1,)]


@pytest.mark.parametrize(
    "body",
    [
        {"type": "ductile.step.succeeded", "payload": {"a": 1}, "source": "taker", "event_id": "1", "dedupe_key": "k"},
        {"payload": {"type": "x"}},
        {"type": "x"},
        {"event": {"type": "x"}, "headers": {"x-kind": "fake"}},
    ],
)
async def test_a_body_can_never_pose_as_an_event(hooks: Hooks, body: dict[str, Any]) -> None:
    """Whatever it looks like, it is the payload; type, source and id are ours."""
    await hooks.post("/hook/plain", body)

    event = hooks.event()
    assert event["payload"] == body
    assert event.keys() == {"type", "payload", "source", "timestamp", "event_id"}
    assert (event["type"], event["source"]) == ("webhook.plain", "webhook:/hook/plain")
    assert hooks.rows("SELECT dedupe_key FROM job_queue") == [(None,)]


@pytest.mark.parametrize(
    ("raw", "payload"),
    [
        (b"[1, 2]", {"body": [1, 2]}),
        (b'"text"', {"body": "text"}),
        (b"null", {"body": None}),
        (b" {} ", {}),
        (b'{"n": 123456789012345678901234567890, "f": 1.5}', {"n": 123456789012345678901234567890, "f": 1.5}),
        ('{"é": "\\ud800"}'.encode(), {"é": "\ufffd"}),
    ],
)
async def test_what_is_no_object_is_wrapped_into_one(hooks: Hooks, raw: bytes, payload: Any) -> None:
    """An object is the payload as it is, with its numbers exact."""
    assert (await hooks.post("/hook/plain", raw))[0] == 202
    assert hooks.event()["payload"] == payload


@pytest.mark.parametrize("declared", ["application/json", "application/x-www-form-urlencoded", "text/plain", "a/b;c"])
async def test_the_declared_type_does_not_choose_how_a_body_is_read(hooks: Hooks, declared: str) -> None:
    """JSON is JSON, also from curl, which declares a form."""
    assert (await hooks.post("/hook/plain", {"n": 1}, content_type=declared))[0] == 202


async def test_headers_reach_the_plugin_only_from_the_list(hooks: Hooks) -> None:
    """With lower-case names; credentials and the signature never, not even if listed."""
    sent = {"x_kind": "a", "x_other": "b", "authorization": "Bearer x", "cookie": "c=1"}
    await hooks.post("/hook/ids", {}, x_delivery="1", **sent)

    assert hooks.event()["headers"] == {"x-kind": "a"}
    assert hooks.event()["type"] == "webhook.ided"


@pytest.mark.parametrize(
    ("raw", "payload"),
    [
        (b"a=1&b=two+words&c=%C3%A9", {"a": "1", "b": "two words", "c": "é"}),
        ("ä=ü&b=%C3%A9".encode(), {"ä": "ü", "b": "é"}),
        (b"a=1&a=2&a=3&b=", {"a": ["1", "2", "3"], "b": ""}),
        (b"", {}),
        (urlencode({"payload": json.dumps(PING)}).encode(), PING),
        (b"payload=%5B1%5D", {"payload": "[1]"}),
        (b"payload=not+json", {"payload": "not json"}),
        (b"payload=%7B%7D&more=1", {"payload": "{}", "more": "1"}),
        (b"payload=%7B%7D&payload=%7B%7D", {"payload": ["{}", "{}"]}),
    ],
)
async def test_a_form_is_its_fields(hooks: Hooks, raw: bytes, payload: Any) -> None:
    """Repeated names are lists; a lone `payload` with a JSON object is that object, as GitHub and Slack send it."""
    assert (await hooks.post("/hook/form", raw))[0] == 202
    assert hooks.event()["payload"] == payload


async def test_a_pipeline_endpoint_starts_its_run_whatever_its_conditions(hooks: Hooks) -> None:
    """It is asked for by name, so neither `on` nor `if` has a say."""
    status, body = await hooks.post("/hook/named", {"n": 1})

    assert status == 202
    statement = "SELECT id, plugin, pipeline, step_id, submitted_by FROM job_queue"
    assert hooks.rows(statement) == [(body["job_id"], "taker", "named", "one", "webhook:/hook/named")]
    assert hooks.event()["type"] == "webhook.named"


async def test_a_run_that_its_data_fails_is_in_the_ledger_with_the_reason(hooks: Hooks) -> None:
    """The delivery was good; that the pipeline cannot work with its data is for the operator to see."""
    status, body = await hooks.post("/hook/claims", {"sender": None})

    assert status == 202
    ((job_id, job_status, error),) = hooks.rows("SELECT id, status, last_error FROM job_queue")
    assert (job_id, job_status) == (body["job_id"], "failed")
    assert "payload.sender.login" in error


async def test_an_event_starts_every_pipeline_that_waits_for_it(hooks: Hooks) -> None:
    """Each is a tree of its own; `from_plugin` never matches, a false `if` is noted; all or nothing."""
    status, body = await hooks.github("push", {**PUSH, "ref": "refs/heads/topic"})

    assert status == 202
    roots = hooks.rows("SELECT id, pipeline, plugin FROM job_queue WHERE root_job_id = id ORDER BY seq")
    assert [root[1:] for root in roots] == [("pushed", "taker"), ("also-pushed", "core.start")]
    assert (body["job_id"], body["job_ids"]) == (roots[0][0], [root[0] for root in roots])
    skipped = {note["pipeline"]: note["reason"] for note in hooks.notes("pipeline.skipped")}
    assert skipped == {"from-a-plugin": "from_plugin is taker", "only-main": "if is false"}
    assert hooks.notes("event.unmatched") == []
    children = hooks.rows("SELECT plugin FROM job_queue WHERE root_job_id = ? AND id <> root_job_id", roots[1][0])
    assert sorted(children) == [("other",), ("taker",)]


async def test_a_ping_is_answered_and_no_event(hooks: Hooks) -> None:
    """If it is signed; it is counted, and where the operator wants it, it is an event like any other."""
    assert await hooks.github("ping") == (200, {"status": "pong"})
    assert hooks.jobs() == 0
    assert hooks.notes("event.unmatched") == []
    assert (await hooks.github("ping", secret="second"))[0] == 403
    hooks.reload(lambda text: text.replace("scheme: github,", "scheme: github, ping: deliver,"))
    assert await hooks.github("ping") == (202, {"job_id": None})
    assert [note["type"] for note in hooks.notes("event.unmatched")] == ["github.ping"]


@pytest.mark.parametrize("kind", ["issues", "pull_request"])
async def test_an_event_that_nobody_waits_for_is_accepted_and_noted(hooks: Hooks, kind: str) -> None:
    """The journal says that nothing came of it."""
    assert await hooks.github(kind) == (202, {"job_id": None})

    assert hooks.jobs() == 0
    (note,) = hooks.notes("event.unmatched")
    assert (note["type"], note["source"]) == (f"github.{kind}", "webhook:/github")
    assert await hooks.github(kind) == (202, {"job_id": None})
    assert len(hooks.notes("event.unmatched")) == 1


@pytest.mark.parametrize("value", [(), ("push", "ping"), "", "a b", "pu\tsh", "é", "{x}", "-x", "x" * 129])
async def test_a_header_that_the_type_is_made_from_must_be_there_and_be_a_name(hooks: Hooks, value: Any) -> None:
    """An event without a sensible type is refused and not stored."""
    raw = b"{}"
    status, body = await hooks.post(
        "/github",
        raw,
        x_hub_signature_256=f"sha256={signed(raw)}",
        **({"x_github_event": value} if value != () else {}),
    )
    assert (status, body["code"]) == (400, "delivery_refused")
    assert "x-github-event" in body["error"]
    assert hooks.jobs() == 0


# ── refused ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "signature", [(), "", "sha256=", "0" * 64, "é" * 64, ("a", "b"), signed(b"[]"), signed(b"{}", "second")]
)
async def test_whatever_is_wrong_with_a_signature_has_one_answer(hooks: Hooks, signature: Any) -> None:
    """403, the same bytes for every reason, and nothing in the ledger."""
    headers = {"x_sig": signature} if signature != () else {}
    answer = await hooks.ask("POST", "/hook/plain", b"{}", **headers)

    assert answer.status == 403
    assert answer.body == FORBIDDEN
    assert answer == await hooks.ask("POST", "/hook/plain", b"not json either", x_sig="nonsense")
    assert hooks.jobs() == 0
    assert hooks.rows("SELECT COUNT(*) FROM receipts") == [(0,)]


async def test_the_signature_is_checked_before_anything_else_is_said(hooks: Hooks) -> None:
    """Who cannot sign learns nothing about bodies, ids or whether the plugin runs."""
    hooks.reload(lambda text: text.replace("taker: {", "taker: {enabled: false, "))
    for body, headers in ((b"{", {}), (b"{}", {"x_delivery": ("1", "2")}), (b"{}", {"content_encoding": "gzip"})):
        assert (await hooks.ask("POST", "/hook/ids", body, x_sig="0" * 64, **headers)).status == 403


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "code", "words"),
    [
        ("/hook/plain", b"", {}, 400, "delivery_refused", "not JSON"),
        ("/hook/plain", b"{", {}, 400, "delivery_refused", "not JSON"),
        ("/hook/plain", b'{"a": NaN}', {}, 400, "delivery_refused", "NaN"),
        ("/hook/plain", b'{"a": 1, "a": 2}', {}, 400, "delivery_refused", "duplicate key"),
        ("/hook/plain", b"\xff\xfe{}", {}, 400, "delivery_refused", "UTF-8"),
        ("/hook/plain", b"\x1f\x8b\x08\x00", {}, 400, "delivery_refused", "not JSON"),
        ("/hook/plain", b"[" * 61 + b"]" * 61, {}, 400, "delivery_refused", "60"),
        ("/hook/plain", b"{}", {"content_encoding": "gzip"}, 415, "wrong_media_type", "compressed (gzip)"),
        (
            "/hook/plain",
            b"a=1",
            {"content_type": "application/x-www-form-urlencoded; charset=utf-8"},
            415,
            "wrong_media_type",
            "takes JSON",
        ),
        ("/hook/form", b"{}", {"content_type": "application/json"}, 415, "wrong_media_type", "takes forms"),
        ("/hook/form", b"a=%FF", {}, 400, "delivery_refused", "UTF-8"),
        ("/hook/form", "a=é".encode("latin-1"), {}, 400, "delivery_refused", "UTF-8"),
        ("/hook/form", b"a&" * 1001, {}, 400, "delivery_refused", "1000 fields"),
        ("/hook/ids", b"{}", {"x_delivery": ("1", "2")}, 400, "delivery_refused", "x-delivery"),
        ("/hook/ids", b"{}", {"x_delivery": "1" * 257}, 400, "delivery_refused", "256"),
    ],
)
async def test_a_delivery_that_cannot_be_understood_is_never_a_job(
    hooks: Hooks, path: str, body: bytes, headers: dict[str, Any], status: int, code: str, words: str
) -> None:
    """The sender is told what is wrong; a job that could only fail is not made."""
    got, answer = await hooks.post(path, body, **headers)
    assert (got, answer["code"]) == (status, code)
    assert words in answer["error"]
    assert hooks.jobs() == 0


@pytest.mark.parametrize("depth", [59, 60])
async def test_as_deep_as_accepted_a_body_can_be_read_again(hooks: Hooks, depth: int) -> None:
    """What the core wraps around it does not make it too deep."""
    assert (await hooks.post("/hook/plain", b"[" * depth + b"]" * depth))[0] == 202
    ((payload,),) = hooks.rows("SELECT payload FROM job_queue")
    assert strict_json.loads(payload)["payload"].keys() == {"body"}


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_only_post_is_answered(hooks: Hooks, method: str) -> None:
    """405, and it says what would be."""
    answer = await hooks.ask(method, "/hook/plain")
    assert (answer.status, dict(answer.headers)["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/", "/hook", "/hook/plain/", "/hook/Plain", "/hook/plain2", "/job/1", "/odd/x/"])
async def test_other_paths_are_not_there(hooks: Hooks, path: str) -> None:
    """Exactly the path as written; nothing of the API."""
    assert (await hooks.post(path))[0] == 404


async def test_a_path_is_taken_literally(hooks: Hooks) -> None:
    """Braces and a slash at the end mean themselves."""
    assert (await hooks.post("/odd/{name}/"))[0] == 202
    assert hooks.event()["type"] == "webhook.{name}"


async def test_the_size_of_a_body_is_capped_by_its_own_endpoint(hooks: Hooks) -> None:
    """The cap is the route's, so that the lane can stop reading."""
    sizes = {path: hooks.site.table.match("POST", path).route for path in ("/hook/small", "/hook/plain")}
    assert {path: route.max_body for path, route in sizes.items() if isinstance(route, Route)} == {
        "/hook/small": 64,
        "/hook/plain": 1 << 20,
    }


@pytest.mark.parametrize("path", ["/hook/plain", "/hook/named"])
async def test_while_its_plugin_is_disabled_a_sender_is_asked_to_come_again(hooks: Hooks, path: str) -> None:
    """503 with Retry-After: the delivery is still the sender's, and nothing of the configuration is told."""
    hooks.reload(lambda text: text.replace("taker: {", "taker: {enabled: false, "))

    answer = await hooks.ask("POST", path, b"{}", x_sig=signed(b"{}"))

    assert (answer.status, "retry-after" in dict(answer.headers)) == (503, True)
    assert b"endpoint_unavailable" in bytes(answer.body)  # type: ignore[arg-type]
    assert b"taker" not in bytes(answer.body)  # type: ignore[arg-type]
    assert hooks.jobs() == 0
    hooks.reload(lambda text: text.replace("enabled: false, ", ""))
    assert (await hooks.post(path))[0] == 202


async def test_while_its_plugin_fails_to_load_deliveries_wait_in_the_queue(hooks: Hooks) -> None:
    """What may be put right here is not the sender's trouble."""
    (hooks.home.path / "plugins" / "taker" / "run").chmod(0o600)
    hooks.reload()
    assert (await hooks.post("/hook/plain"))[0] == 202
    assert hooks.rows("SELECT plugin, status FROM job_queue") == [("taker", "queued")]


async def test_a_plugin_without_handle_takes_nothing(hooks: Hooks) -> None:
    """A job that could only die is not made."""
    manifest = hooks.home.path / "plugins" / "taker" / "manifest.yaml"
    manifest.write_text(manifest.read_text().replace(", handle: {}", ""))
    hooks.reload()
    assert (await hooks.post("/hook/plain"))[0] == 503


async def test_a_run_with_more_jobs_than_allowed_is_refused(hooks: Hooks) -> None:
    """422 from an endpoint that names the pipeline; for an event the others go on."""
    many = "  - {name: named, on: github.push, steps: [{uses: taker, foreach: payload.list}]}\n"
    hooks.reload(lambda text: re.sub(r"  - \{name: named.*\n", many, text).replace("max_workers", LIMIT, 1))
    body = {"list": [1, 2, 3, 4], "ref": "x"}

    status, answer = await hooks.post("/hook/named", body)
    assert (status, answer["code"]) == (422, "run_refused")
    assert hooks.jobs() == 0

    assert (await hooks.github("push", body))[0] == 202
    reasons = {note["pipeline"]: note["reason"] for note in hooks.notes("pipeline.skipped")}
    assert "more than 3 jobs" in reasons["named"]
    assert hooks.rows("SELECT pipeline FROM job_queue WHERE id = root_job_id") == [("pushed",), ("also-pushed",)]


LIMIT = "limits: {tree_jobs: 3}\n  max_workers"


class FullLedger:
    """A ledger on a full disk: it can be read and not written."""

    def __init__(self, ledger: Ledger) -> None:
        self.read = ledger.read

    async def write(self, *_: Any, **__: Any) -> None:
        raise LedgerFull("/srv/ductile/state.db: no space left on device")

    transact = write


async def test_what_cannot_be_stored_is_not_acknowledged(hooks: Hooks) -> None:
    """503 with Retry-After, and no path of ours in it."""
    full = FullLedger(hooks.ledger)
    crowded = evolve(hooks, ledger=full)  # type: ignore[arg-type]
    answer = await crowded.ask("POST", "/hook/plain", b"{}", x_sig=signed(b"{}"))
    assert (answer.status, "retry-after" in dict(answer.headers)) == (503, True)
    assert b"/srv" not in bytes(answer.body)  # type: ignore[arg-type]


# ── once ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_delivery_that_comes_again_gets_the_first_answer(hooks: Hooks) -> None:
    """One job, whatever has become of it and of its plugin meanwhile."""
    first = await hooks.post("/hook/ids", {"n": 1}, x_delivery="a")
    second = await hooks.post("/hook/ids", {"n": 1}, x_delivery="b")

    assert await hooks.post("/hook/ids", {"n": 1}, x_delivery="a") == first
    assert first != second
    hooks.reload(lambda text: text.replace("taker: {", "taker: {enabled: false, "))
    assert await hooks.post("/hook/ids", {"n": 1}, x_delivery="a") == first
    assert hooks.jobs() == 2


async def test_two_hundred_at_once_are_one_job(hooks: Hooks) -> None:
    """The check and the job are one transaction, so it does not matter how close they come."""
    answers: list[Any] = []

    async def deliver() -> None:
        answers.append(await hooks.github("push"))

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(deliver)

    assert answers == [answers[0]] * 200
    assert hooks.rows("SELECT COUNT(*) FROM job_queue WHERE pipeline = 'pushed'") == [(1,)]


async def test_the_same_id_at_another_endpoint_is_another_delivery(hooks: Hooks) -> None:
    """A sender's ids are unique for that sender."""
    hooks.reload(lambda text: text.replace("/hook/plain, plugin: taker,", "/hook/plain, plugin: taker, " + ID))
    assert (await hooks.post("/hook/ids", {}, x_delivery="a"))[1] != (
        await hooks.post("/hook/plain", {}, x_delivery="a")
    )[1]
    assert hooks.jobs() == 2


ID = "delivery_id_header: X-Delivery,"


async def test_another_body_under_the_same_id_is_a_conflict(hooks: Hooks) -> None:
    """A header that was taken for an id and is none must not swallow deliveries in silence."""
    await hooks.post("/hook/ids", {"n": 1}, x_delivery="a")
    status, body = await hooks.post("/hook/ids", {"n": 2}, x_delivery="a")
    assert (status, body["code"]) == (409, "delivery_id_reused")
    assert hooks.jobs() == 1


@pytest.mark.parametrize("headers", [{}, {"x_delivery": ""}])
async def test_without_an_id_every_delivery_is_a_new_one(hooks: Hooks, headers: dict[str, str]) -> None:
    """Nothing is guessed from a body: two equal ones may well be meant."""
    for _ in range(2):
        assert (await hooks.post("/hook/ids", {}, **headers))[0] == 202
    assert hooks.jobs() == 2
    assert hooks.rows("SELECT COUNT(*) FROM receipts") == [(0,)]


async def test_a_delivery_is_known_for_seven_days(hooks: Hooks) -> None:
    """Afterwards its id is free again."""
    first = await hooks.post("/hook/ids", {}, x_delivery="a")
    hooks.clock.moment = NOW + KEPT - timedelta(seconds=1)
    assert await hooks.post("/hook/ids", {}, x_delivery="a") == first
    hooks.clock.moment = NOW + KEPT
    assert await hooks.post("/hook/ids", {}, x_delivery="a") != first
    receipt = look(hooks.ledger, receipts.get, "webhook:/hook/ids", "a", now=hooks.clock.moment)
    assert receipt is not None
    assert receipt.expires_at == NOW + 2 * KEPT


async def test_a_refused_delivery_leaves_no_receipt(hooks: Hooks) -> None:
    """What was not taken can be sent again."""
    hooks.reload(lambda text: text.replace("taker: {", "taker: {enabled: false, "))
    assert (await hooks.post("/hook/ids", {}, x_delivery="a"))[0] == 503
    hooks.reload(lambda text: text.replace("enabled: false, ", ""))
    assert (await hooks.post("/hook/ids", {}, x_delivery="a"))[0] == 202


def stripe_headers(raw: bytes, moment: datetime) -> dict[str, str]:
    at = int(moment.timestamp())
    return {"stripe_signature": f"t={at},v1={signed(f'{at}.'.encode() + raw)}"}


async def test_stripe_names_the_event_in_the_body(hooks: Hooks) -> None:
    """A retry is signed anew and may count what is still to be delivered; it is the same event."""
    bodies = [json.dumps({"id": "evt_1", "type": "paid", "pending_webhooks": n}).encode() for n in (2, 1)]
    for minutes, raw in enumerate(bodies):
        hooks.clock.moment = NOW + timedelta(minutes=minutes)
        answer = await hooks.post("/stripe", raw, **stripe_headers(raw, hooks.clock.moment))
        assert answer == (202, {"job_id": None})
    assert len(hooks.notes("event.unmatched")) == 1
    assert hooks.rows("SELECT key FROM receipts") == [("evt_1",)]


async def test_a_signed_moment_without_an_id_is_good_for_one_delivery(hooks: Hooks) -> None:
    """Whoever records a delivery cannot play it again within the five minutes."""
    raw = b'{"type": "paid"}'
    headers = stripe_headers(raw, NOW)
    for _ in range(3):
        assert (await hooks.post("/stripe", raw, **headers))[0] == 202
    assert len(hooks.notes("event.unmatched")) == 1
    hooks.clock.moment = NOW + timedelta(seconds=1)
    await hooks.post("/stripe", raw, **stripe_headers(raw, hooks.clock.moment))
    assert len(hooks.notes("event.unmatched")) == 2


async def test_a_standard_webhook_is_known_by_its_signed_id(hooks: Hooks) -> None:
    """Signed again later, under the same id, it is the same delivery."""
    key = base64.b64decode(SECRETS["standard"].removeprefix("whsec_"))
    answers = []
    for minutes in (0, 60):
        hooks.clock.moment = NOW + timedelta(minutes=minutes)
        at = str(int(hooks.clock.moment.timestamp()))
        digest = hmac.digest(key, f"msg_1.{at}.{{}}".encode(), "sha256")
        headers = {"webhook_id": "msg_1", "webhook_timestamp": at}
        signature = f"v1,{base64.b64encode(digest).decode()}"
        answers.append(await hooks.post("/standard", b"{}", webhook_signature=signature, **headers))
    assert answers[0][0] == 202
    assert answers[0] == answers[1]
    assert hooks.jobs() == 1


# ── Slack ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def slack(hooks: Hooks, raw: bytes, *, path: str = "/slack", secret: str = "first") -> tuple[int, Any]:
    at = int(NOW.timestamp())
    signature = f"v0={signed(f'v0:{at}:'.encode() + raw, secret)}"
    return await hooks.post(path, raw, x_slack_signature=signature, x_slack_request_timestamp=str(at))


async def test_slacks_challenge_is_answered_when_it_is_signed(hooks: Hooks) -> None:
    """So that the address can be entered there; it is no event. Unsigned it is refused like everything else."""
    raw = json.dumps({"token": "t", "challenge": "3eZbrw1aB", "type": "url_verification"}).encode()
    assert await slack(hooks, raw) == (200, {"challenge": "3eZbrw1aB"})
    assert (await slack(hooks, raw, secret="second"))[0] == 403
    assert hooks.rows("SELECT COUNT(*) FROM journal") == [(0,)]


@pytest.mark.parametrize("path", ["/hook/plain", "/slack"])
async def test_only_slack_is_asked_for_challenges(hooks: Hooks, path: str) -> None:
    """Elsewhere such a body is a body; without text there is nothing to give back."""
    raw = json.dumps({"type": "url_verification", "challenge": "x" if path != "/slack" else 1}).encode()
    assert (await (slack(hooks, raw) if path == "/slack" else hooks.post(path, raw)))[0] == 202


async def test_a_slack_event_is_known_by_its_event_id(hooks: Hooks) -> None:
    """Slack retries under the same id."""
    for retry in (0, 1):
        raw = json.dumps({"type": "event_callback", "event_id": "Ev1", "retry": retry}).encode()
        assert (await slack(hooks, raw))[0] == 202
    assert len(hooks.notes("event.unmatched")) == 1


async def test_a_slack_command_is_answered_with_an_empty_200(hooks: Hooks) -> None:
    """Slack shows the answer to whoever typed the command, and reports everything but 200 as a failure."""
    for _ in range(2):
        assert await slack(hooks, b"command=%2Fdeploy&text=now", path="/slack/command") == (200, None)
    assert hooks.event()["payload"] == {"command": "/deploy", "text": "now"}


# ── reload ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_while_a_secret_is_replaced_both_are_good(hooks: Hooks) -> None:
    """Two names in `secret_ref`; afterwards only the new one."""
    for secret in ("first", "second"):
        assert (await hooks.post("/hook/rotating", secret=secret))[0] == 202
    hooks.reload(lambda text: text.replace("secret_ref: [first, second]", "secret_ref: second"))
    assert (await hooks.post("/hook/rotating", secret="first"))[0] == 403
    assert (await hooks.post("/hook/rotating", secret="second"))[0] == 202


async def test_secrets_and_paths_are_those_of_the_moment(hooks: Hooks) -> None:
    """A reload changes what the next delivery meets."""
    hooks.reload(lambda text: text.replace("/hook/plain, plugin: taker, secret_ref: first", MOVED))
    assert (await hooks.post("/hook/plain"))[0] == 404
    assert (await hooks.post("/hook/moved"))[0] == 403
    assert (await hooks.post("/hook/moved", secret="second"))[0] == 202


MOVED = "/hook/moved, plugin: taker, secret_ref: second"


async def test_an_endpoint_that_goes_while_its_body_comes_is_not_there(hooks: Hooks) -> None:
    """It was routed before the reload and is read after it."""
    headers = {"x-sig": (signed(b"{}"),)}
    route, request = hooks.site.admit(Request(method="POST", path="/hook/plain", headers=headers))
    assert isinstance(route, Route)
    hooks.reload(lambda text: text.replace("/hook/plain", "/hook/moved"))
    assert (await hooks.site.answer(route, evolve(request, body=b"{}"))).status == 404


# ── health ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("peer", "headers", "status"),
    [
        ("127.0.0.1", {}, 200),
        ("127.8.8.8", {}, 200),
        ("::1", {}, 200),
        ("10.0.0.1", {}, 403),
        ("192.0.2.7", {}, 403),
        ("fe80::1%eth0", {}, 403),
        ("unknown", {}, 403),
        ("127.0.0.1", {"x_forwarded_for": "192.0.2.7"}, 403),
        ("127.0.0.1", {"forwarded": "for=192.0.2.7"}, 403),
        ("127.0.0.1", {"x_real_ip": "192.0.2.7"}, 403),
    ],
)
async def test_health_is_told_to_this_host_only(hooks: Hooks, peer: str, headers: dict[str, str], status: int) -> None:
    """A proxy on this host that asks for others does not count."""
    answer = await hooks.ask("GET", "/healthz", b"", peer, **headers)
    assert answer.status == status
    assert (b"queue_depth" in bytes(answer.body)) == (status == 200)  # type: ignore[arg-type]


async def test_health_can_be_opened_to_everybody(hooks: Hooks) -> None:
    """`webhooks.public_health`; it has the fields of the API's, and no path of ours."""
    hooks.reload(lambda text: text.replace("webhooks:\n", "webhooks:\n  public_health: true\n"))
    answer = await hooks.ask("GET", "/healthz", peer="192.0.2.7", x_forwarded_for="192.0.2.8")
    assert answer.status == 200
    said = json.loads(bytes(answer.body))  # type: ignore[arg-type]
    assert {"status", "uptime_seconds", "queue_depth", "plugins_loaded", "plugins_circuit_open"} <= said.keys()


# ── the tally ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def kept(hooks: Hooks) -> None:
    """The tally as it is when the service stops: what was counted is written."""
    with trio.CancelScope() as scope:
        scope.cancel()
        await hooks.tally.keep()


async def test_refusals_are_counted_in_the_journal_with_their_reasons(hooks: Hooks) -> None:
    """One row for an endpoint, whatever came; the operator reads there what the sender is not told."""
    for signature in ("0" * 64, "0" * 64, "short"):
        await hooks.ask("POST", "/hook/plain", b"{}", x_sig=signature)
    await hooks.post("/hook/plain", b"{")
    await hooks.ask("POST", "/github", b"{}")
    await hooks.ask("POST", "/nowhere", b"{}")
    hooks.clock.moment = NOW + timedelta(seconds=5)
    await kept(hooks)

    plain, github = hooks.notes("webhook.refused")
    assert (plain["path"], plain["count"], plain["since"]) == ("/hook/plain", 4, "2026-02-08T09:30:00.000000Z")
    assert plain["why"]["the signature fits no secret of the endpoint"] == 2
    assert plain["why"]["the header x-sig is not in its format"] == 1
    assert github == {**github, "path": "/github", "why": {"it has no header x-hub-signature-256": 1}}
    assert SECRETS["first"] not in json.dumps([plain, github])


async def test_repetitions_are_counted_by_delivery(hooks: Hooks) -> None:
    """What was decided not to happen is on record, too."""
    for delivery in ("a", "a", "b", "a"):
        await hooks.post("/hook/ids", {}, x_delivery=delivery)
    await kept(hooks)
    (note,) = hooks.notes("webhook.repeated")
    assert (note["path"], note["why"]) == ("/hook/ids", {"a": 2})


@pytest.mark.parametrize(("status", "why"), [(413, "the body is too large"), (408, "too slow")])
async def test_what_the_lane_refuses_is_counted_too(hooks: Hooks, status: int, why: str) -> None:
    """A body that was never read to its end has not reached the receiver."""
    route = hooks.site.table.match("POST", "/hook/small").route
    about: dict[str, Any] = {"peer": "x", "method": "POST", "status": status, "duration_seconds": 0.0}
    hooks.site.on_request(Served(path="/hook/small", route=route, received_bytes=0, sent_bytes=0, **about))
    hooks.site.on_request(Served(path="/random", route=None, received_bytes=0, sent_bytes=0, **about))
    await kept(hooks)
    (note,) = hooks.notes("webhook.refused")
    assert (note["path"], note["why"]) == ("/hook/small", {why: 1})
    (one,) = look(hooks.ledger, rejected_deliveries.newest, "/hook/small", limit=9)
    assert (one.reason, one.status, one.peer, one.body_bytes, one.headers) == (why, status, "x", 0, {})


async def test_the_tally_of_an_endpoint_does_not_grow(hooks: Hooks) -> None:
    """However many different reasons or deliveries there are, a row keeps a few of them and counts the others."""
    for n in range(1000):
        hooks.tally.count("webhook.repeated", "/hook/ids", f"delivery-{n}")
    await kept(hooks)
    (note,) = hooks.notes("webhook.repeated")
    assert (note["count"], len(note["why"])) == (1000, MOST_LABELS + 1)
    assert note["why"][OTHERS] == 1000 - MOST_LABELS


async def test_there_is_one_row_a_minute_however_much_is_refused(
    hooks: Hooks, mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    """The first at once, the rest together: nobody fills the disk by sending nonsense."""
    said: list[str] = []
    written = trio.Event()

    def hear(line: str) -> None:
        said.append(line)
        written.set()

    hooks.tally.warn = hear
    nursery.start_soon(hooks.tally.keep)
    await hooks.ask("POST", "/hook/plain", b"{}")
    await written.wait()
    for _ in range(500):
        await hooks.ask("POST", "/hook/plain", b"{}")
    await wait_all_tasks_blocked()
    await hooks.post("/hook/plain")  # whatever was asked to be written before is written before it
    assert len(hooks.notes("webhook.refused")) == 1

    written = trio.Event()
    mock_clock.jump(tallies.EVERY_SECONDS)
    await written.wait()

    assert [note["count"] for note in hooks.notes("webhook.refused")] == [1, 500]
    assert said[1] == "refused at /hook/plain: 500 × it has no header x-sig"
    nursery.cancel_scope.cancel()


async def test_what_cannot_be_written_down_is_counted_on(hooks: Hooks) -> None:
    """A full disk loses no count."""
    tally = RejectionCounter(FullLedger(hooks.ledger), hooks.clock)  # type: ignore[arg-type]
    tally.count("webhook.refused", "/hook/plain", "x")
    tally.count("webhook.refused", "/hook/plain", "x")
    hooks.tally = tally
    await kept(hooks)
    tally.ledger = hooks.ledger
    hooks.clock.moment = NOW + timedelta(hours=1)
    await kept(hooks)
    (note,) = hooks.notes("webhook.refused")
    assert (note["count"], note["since"]) == (2, "2026-02-08T09:30:00.000000Z")


# ── abuse ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_ten_thousand_wrong_signatures_leave_nothing_behind(hooks: Hooks) -> None:
    """All are 403, quickly; no row, no receipt, no fault."""
    began = time.monotonic()
    for n in range(10_000):
        answer = await hooks.ask("POST", "/hook/plain", b'{"n": 1}', x_sig=f"{n:064x}")
        assert answer.status == 403
    assert time.monotonic() - began < 60
    assert hooks.jobs() == 0
    assert hooks.rows("SELECT COUNT(*) FROM journal") == [(0,)]
    assert hooks.faults == []


# ── the documentation ───────────────────────────────────────────────────────────────────────────────────────────────

PAGE = (Path(ductile.__file__).parents[1] / "docs" / "webhooks.md").read_text()


def test_every_key_scheme_and_answer_is_documented() -> None:
    """docs/webhooks.md has all that an endpoint may say, and all that a sender may hear."""

    def family(cls: type[DeliveryRefused]) -> set[str]:
        return {cls.code}.union(*map(family, cls.__subclasses__()))

    keys = {key.name for key in fields(WebhookEndpoint)} | {"listen", "public_health", "trusted_proxies"}
    words = keys | set(SCHEMES) | family(DeliveryRefused) | {REFUSED, REPEATED}
    assert sorted(word for word in words if not re.search(rf"`(?:webhooks\.)?{word}[`:]", PAGE)) == []
