"""Webhook deliveries: rejection, conversion to jobs, idempotency, and counts of rejections."""

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
from ductile.config.checks.examine import examine
from ductile.config.load.load import load
from ductile.config.sections.settings import WebhookEndpoint
from ductile.config.snapshot import Snapshot, build_snapshot
from ductile.core.clock import Clock
from ductile.core.errors import LedgerFull
from ductile.core.formats import strict_json
from ductile.core.hub import Hub
from ductile.engine.control.pause import PausedPlugins
from ductile.exchange.service import MessageExchange
from ductile.ledger.storage.async_ledger import Ledger, open_ledger
from ductile.ledger.tables import journal, receipts
from ductile.ledger.webhooks.deliveries import (
    ALL_DELIVERIES,
    MAX_STORED_BODY,
    MAX_STORED_PER_PATH,
    DeliveryFilter,
    DeliveryRecord,
    list_deliveries,
)
from ductile.web.context import AppContext, RunRefused
from ductile.web.messages import HTTPError, Request, Response
from ductile.web.routing import Route
from ductile.web.server.site import AccessLogEntry, Site
from ductile.web.webhooks import rejections as rejection_counter
from ductile.web.webhooks.deliveries import DeliveryRefused
from ductile.web.webhooks.receiver import NO_ENDPOINT, build_site
from ductile.web.webhooks.rejections import (
    MAX_LABELS,
    MAX_RECORDED_PER_PATH,
    OTHERS,
    REFUSED,
    REPEATED,
    RejectionCounter,
)
from ductile.web.webhooks.signatures import SCHEMES
from tests.e2e.service import Home
from tests.ledger.reading import read_now

NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)
FORBIDDEN = (
    b'{"error":"forbidden","code":"forbidden","status":403,"hint":"Sign the raw body with the secret of the endpoint. '
    b'The operator sees the reason with `ductile webhook deliveries`.","context":{}}'
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


class FixedClock(Clock):
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.current = NOW

    def now(self) -> datetime:
        return self.current


@define(eq=False)
class WebhookHarness:
    """A receiver with a real ledger, and functions that send signed deliveries."""

    prepared: Home
    folder: Path
    ledger: Ledger
    snapshot: Snapshot
    rejections: RejectionCounter
    clock: FixedClock
    faults: list[BaseException] = field(factory=list)
    site: Site = field(init=False)

    def __attrs_post_init__(self) -> None:
        ctx = AppContext(
            ledger=self.ledger,
            hub=Hub(),
            clock=self.clock,
            snapshot=lambda: self.snapshot,
            live_stderr=lambda _: None,
            stuck_seconds=lambda: 0.0,
            reload=lambda **_: pytest.fail("unexpected reload"),
            cancel=lambda *_: pytest.fail("unexpected cancel"),
            purge=lambda *_: pytest.fail("unexpected purge"),
            pause_control=PausedPlugins(self.ledger, Hub(), self.clock, {}),
            exchange=MessageExchange(
                ledger=self.ledger,
                hub=Hub(),
                clock=self.clock,
                settings=lambda: self.snapshot.config.settings.exchange,
                is_stopping=lambda: False,
            ),
        )
        self.site = build_site(ctx, self.rejections, on_fault=lambda error, _: self.faults.append(error))

    @property
    def home(self) -> Home:
        """A private copy of the configuration."""
        if not self.folder.exists():
            shutil.copytree(self.prepared.path, self.folder)
            Home(self.folder).seal()
        return Home(self.folder)

    def reload(self, change: Callable[[str], str] = str) -> None:
        """Change the configuration and use its new snapshot."""
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
        return await self.site.handle(route, request)

    async def post(self, path: str, body: Any = None, *, secret: str = "first", **headers: Any) -> tuple[int, Any]:
        """Send a delivery with a plain signature, unless the test passes another one."""
        raw = body if isinstance(body, bytes) else json.dumps(body if body is not None else {}).encode()
        answer = await self.ask("POST", path, raw, **{"x_sig": signed(raw, secret), **headers})
        assert isinstance(answer.body, bytes)
        return answer.status, json.loads(answer.body) if answer.body else None

    async def github(self, kind: str, body: Any = None, *, delivery: str = "d-1", secret: str = "first") -> Any:
        raw = json.dumps(body if body is not None else GITHUB[kind]).encode()
        headers = {"x_hub_signature_256": f"sha256={signed(raw, secret)}", "x_github_delivery": delivery}
        return await self.post("/github", raw, x_github_event=kind, **headers)

    def rows(self, statement: str, *values: Any) -> list[Any]:
        return read_now(self.ledger, lambda db: db.execute(statement, values).fetchall())

    def job_count(self) -> int:
        count: int = self.rows("SELECT COUNT(*) FROM job_queue")[0][0]
        return count

    def event(self) -> dict[str, Any]:
        """Return the event of the only job."""
        ((payload,),) = self.rows("SELECT payload FROM job_queue")
        return dict(json.loads(payload))

    def deliveries(self, **wanted: Any) -> list[DeliveryRecord]:
        """Return the records of deliveries, newest first."""
        return list(read_now(self.ledger, list_deliveries, evolve(ALL_DELIVERIES, **wanted), limit=200).items)

    def journal_data(self, kind: str) -> list[dict[str, Any]]:
        return [entry.data for entry in read_now(self.ledger, journal.read_since, 0) if entry.kind == kind]


def _values(value: Any) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else (value,)


def signed(body: bytes, secret: str = "first") -> str:
    return hmac.new(SECRETS[secret].encode(), body, hashlib.sha256).hexdigest()


def snapshot_of(home: Home) -> Snapshot:
    return build_snapshot(examine(load(home.path / "config.yaml")), {"PATH": "/usr/bin:/bin"})


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Snapshot]:
    """Prepare the configuration once per module. Tests that change it use a copy."""
    home = Home.make(tmp_path_factory.mktemp("webhooks") / "home")
    for name in ("taker", "other"):
        home.plugin(name, PLUGIN)
    home.write("tokens.yaml", TOKENS)
    home.add("include: [tokens.yaml]\n" + CONFIG)
    home.seal()
    return home, snapshot_of(home)


@pytest.fixture
async def hooks(prepared: tuple[Home, Snapshot], tmp_path: Path) -> AsyncIterator[WebhookHarness]:
    home, snapshot = prepared
    clock = FixedClock()
    async with open_ledger(tmp_path / "state.db", synchronous="normal") as ledger:
        yield WebhookHarness(home, tmp_path / "home", ledger, snapshot, RejectionCounter(ledger, clock), clock)


# ── accepted ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_signed_delivery_becomes_a_job_of_its_plugin(hooks: WebhookHarness) -> None:
    """202 with the id of a stored job, which has the retry and hook settings of the plugin."""
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


async def test_the_response_is_sent_after_the_commit(hooks: WebhookHarness) -> None:
    """Another connection can read the job when the response arrives."""
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
async def test_a_body_cannot_set_event_fields(hooks: WebhookHarness, body: dict[str, Any]) -> None:
    """The body is the payload. Type, source and id are set by the receiver."""
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
async def test_a_json_body_that_is_not_an_object_is_wrapped(hooks: WebhookHarness, raw: bytes, payload: Any) -> None:
    """An object is the payload unchanged, with exact numbers."""
    assert (await hooks.post("/hook/plain", raw))[0] == 202
    assert hooks.event()["payload"] == payload


@pytest.mark.parametrize("declared", ["application/json", "application/x-www-form-urlencoded", "text/plain", "a/b;c"])
async def test_the_content_type_does_not_select_the_parser(hooks: WebhookHarness, declared: str) -> None:
    """curl declares a form for JSON by default."""
    assert (await hooks.post("/hook/plain", {"n": 1}, content_type=declared))[0] == 202


async def test_only_listed_headers_are_forwarded(hooks: WebhookHarness) -> None:
    """With lower-case names. Credentials and the signature are never forwarded, even if listed."""
    sent = {"x_kind": "a", "x_other": "b", "authorization": "Bearer x", "cookie": "c=1"}
    await hooks.post("/hook/ids", {}, x_delivery="1", **sent)

    assert hooks.event()["headers"] == {"x-kind": "a"}
    assert hooks.event()["type"] == "webhook.ided"


async def test_github_deliveries_have_their_event_and_id_headers(hooks: WebhookHarness) -> None:
    """Without `forward_headers`, because a plugin needs them to interpret the body."""
    await hooks.github("push", delivery="d-7")

    ((payload,), *_) = hooks.rows("SELECT payload FROM job_queue WHERE pipeline = 'pushed'")
    assert json.loads(payload)["headers"] == {"x-github-event": "push", "x-github-delivery": "d-7"}


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
async def test_a_form_becomes_an_object_of_its_fields(hooks: WebhookHarness, raw: bytes, payload: Any) -> None:
    """Repeated fields become lists. A single `payload` field with a JSON object is unwrapped (GitHub, Slack)."""
    assert (await hooks.post("/hook/form", raw))[0] == 202
    assert hooks.event()["payload"] == payload


async def test_a_pipeline_endpoint_ignores_the_trigger_conditions(hooks: WebhookHarness) -> None:
    """The endpoint names the pipeline, so `on` and `if` do not apply."""
    status, body = await hooks.post("/hook/named", {"n": 1})

    assert status == 202
    statement = "SELECT id, plugin, pipeline, step_id, submitted_by FROM job_queue"
    assert hooks.rows(statement) == [(body["job_id"], "taker", "named", "one", "webhook:/hook/named")]
    assert hooks.event()["type"] == "webhook.named"


async def test_a_run_that_fails_on_its_payload_is_stored_with_the_reason(hooks: WebhookHarness) -> None:
    """The delivery is valid, so the sender gets 202 and the operator sees the failed job."""
    status, body = await hooks.post("/hook/claims", {"sender": None})

    assert status == 202
    ((job_id, job_status, error),) = hooks.rows("SELECT id, status, last_error FROM job_queue")
    assert (job_id, job_status) == (body["job_id"], "failed")
    assert "payload.sender.login" in error


async def test_an_event_starts_every_matching_pipeline(hooks: WebhookHarness) -> None:
    """Each run is a separate tree. `from_plugin` does not match, and a false `if` is recorded."""
    status, body = await hooks.github("push", {**PUSH, "ref": "refs/heads/topic"})

    assert status == 202
    roots = hooks.rows("SELECT id, pipeline, plugin FROM job_queue WHERE root_job_id = id ORDER BY seq")
    assert [root[1:] for root in roots] == [("pushed", "taker"), ("also-pushed", "core.start")]
    assert (body["job_id"], body["job_ids"]) == (roots[0][0], [root[0] for root in roots])
    skipped = {note["pipeline"]: note["reason"] for note in hooks.journal_data("pipeline.skipped")}
    assert skipped == {"from-a-plugin": "from_plugin is taker", "only-main": "if is false"}
    assert hooks.journal_data("event.unmatched") == []
    children = hooks.rows("SELECT plugin FROM job_queue WHERE root_job_id = ? AND id <> root_job_id", roots[1][0])
    assert sorted(children) == [("other",), ("taker",)]


async def test_a_signed_ping_is_answered_and_is_not_an_event(hooks: WebhookHarness) -> None:
    """With `ping: deliver` it is an event."""
    assert await hooks.github("ping") == (200, {"status": "pong"})
    assert hooks.job_count() == 0
    assert hooks.journal_data("event.unmatched") == []
    assert (await hooks.github("ping", secret="second"))[0] == 403
    hooks.reload(lambda text: text.replace("scheme: github,", "scheme: github, ping: deliver,"))
    assert await hooks.github("ping") == (202, {"job_id": None})
    assert [note["type"] for note in hooks.journal_data("event.unmatched")] == ["github.ping"]


@pytest.mark.parametrize("kind", ["issues", "pull_request"])
async def test_an_event_without_a_pipeline_is_accepted_and_recorded(hooks: WebhookHarness, kind: str) -> None:
    """The journal has an `event.unmatched` row."""
    assert await hooks.github(kind) == (202, {"job_id": None})

    assert hooks.job_count() == 0
    (note,) = hooks.journal_data("event.unmatched")
    assert (note["type"], note["source"]) == (f"github.{kind}", "webhook:/github")
    assert await hooks.github(kind) == (202, {"job_id": None})
    assert len(hooks.journal_data("event.unmatched")) == 1


@pytest.mark.parametrize("value", [(), ("push", "ping"), "", "a b", "pu\tsh", "é", "{x}", "-x", "x" * 129])
async def test_a_header_in_the_event_type_must_be_a_valid_name(hooks: WebhookHarness, value: Any) -> None:
    """A delivery without a valid event type is refused."""
    raw = b"{}"
    status, body = await hooks.post(
        "/github",
        raw,
        x_hub_signature_256=f"sha256={signed(raw)}",
        **({"x_github_event": value} if value != () else {}),
    )
    assert (status, body["code"]) == (400, "delivery_refused")
    assert "x-github-event" in body["error"]
    assert hooks.job_count() == 0


# ── rejected ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "signature", [(), "", "sha256=", "0" * 64, "é" * 64, ("a", "b"), signed(b"[]"), signed(b"{}", "second")]
)
async def test_every_invalid_signature_gets_the_same_response(hooks: WebhookHarness, signature: Any) -> None:
    """403 with the same bytes for every reason, and nothing is stored."""
    headers = {"x_sig": signature} if signature != () else {}
    answer = await hooks.ask("POST", "/hook/plain", b"{}", **headers)

    assert answer.status == 403
    assert answer.body == FORBIDDEN
    assert answer == await hooks.ask("POST", "/hook/plain", b"not json either", x_sig="nonsense")
    assert hooks.job_count() == 0
    assert hooks.rows("SELECT COUNT(*) FROM receipts") == [(0,)]


async def test_the_signature_is_checked_first(hooks: WebhookHarness) -> None:
    """Without a valid signature, the response reveals nothing about bodies, ids or plugins."""
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
async def test_an_invalid_delivery_creates_no_job(
    hooks: WebhookHarness, path: str, body: bytes, headers: dict[str, Any], status: int, code: str, words: str
) -> None:
    """The error names the problem."""
    got, answer = await hooks.post(path, body, **headers)
    assert (got, answer["code"]) == (status, code)
    assert words in answer["error"]
    assert hooks.job_count() == 0


@pytest.mark.parametrize("depth", [59, 60])
async def test_a_body_with_the_maximum_depth_can_be_parsed_again(hooks: WebhookHarness, depth: int) -> None:
    """The event around it does not exceed the depth limit."""
    assert (await hooks.post("/hook/plain", b"[" * depth + b"]" * depth))[0] == 202
    ((payload,),) = hooks.rows("SELECT payload FROM job_queue")
    assert strict_json.loads(payload)["payload"].keys() == {"body"}


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_only_post_is_allowed(hooks: WebhookHarness, method: str) -> None:
    """405 with `Allow`."""
    answer = await hooks.ask(method, "/hook/plain")
    assert (answer.status, dict(answer.headers)["allow"]) == (405, "POST")


@pytest.mark.parametrize("path", ["/", "/hook", "/hook/plain/", "/hook/Plain", "/hook/plain2", "/job/1", "/odd/x/"])
async def test_only_the_exact_path_matches(hooks: WebhookHarness, path: str) -> None:
    """404 for every other path, including those of the API."""
    assert (await hooks.post(path))[0] == 404


async def test_braces_and_a_trailing_slash_in_a_path_are_literal(hooks: WebhookHarness) -> None:
    assert (await hooks.post("/odd/{name}/"))[0] == 202
    assert hooks.event()["type"] == "webhook.{name}"


async def test_each_endpoint_has_its_own_body_limit(hooks: WebhookHarness) -> None:
    """The limit is a property of the route, so that the server can stop reading."""
    sizes = {path: hooks.site.table.match("POST", path).route for path in ("/hook/small", "/hook/plain")}
    assert {path: route.max_body for path, route in sizes.items() if isinstance(route, Route)} == {
        "/hook/small": 64,
        "/hook/plain": 1 << 20,
    }


@pytest.mark.parametrize("path", ["/hook/plain", "/hook/named"])
async def test_a_delivery_for_a_disabled_plugin_is_503(hooks: WebhookHarness, path: str) -> None:
    """With Retry-After, and without details of the configuration."""
    hooks.reload(lambda text: text.replace("taker: {", "taker: {enabled: false, "))

    answer = await hooks.ask("POST", path, b"{}", x_sig=signed(b"{}"))

    assert (answer.status, "retry-after" in dict(answer.headers)) == (503, True)
    assert b"endpoint_unavailable" in bytes(answer.body)  # type: ignore[arg-type]
    assert b"taker" not in bytes(answer.body)  # type: ignore[arg-type]
    assert hooks.job_count() == 0
    hooks.reload(lambda text: text.replace("enabled: false, ", ""))
    assert (await hooks.post(path))[0] == 202


async def test_deliveries_for_a_plugin_that_fails_to_load_are_queued(hooks: WebhookHarness) -> None:
    """The operator can fix the plugin, so the sender does not have to retry."""
    (hooks.home.path / "plugins" / "taker" / "run").chmod(0o600)
    hooks.reload()
    assert (await hooks.post("/hook/plain"))[0] == 202
    assert hooks.rows("SELECT plugin, status FROM job_queue") == [("taker", "queued")]


async def test_a_run_over_the_job_limit_is_refused(hooks: WebhookHarness) -> None:
    """422 for an endpoint with a pipeline. For an event, the other pipelines start."""
    many = "  - {name: named, on: github.push, steps: [{uses: taker, foreach: payload.list}]}\n"
    hooks.reload(lambda text: re.sub(r"  - \{name: named.*\n", many, text).replace("max_workers", LIMIT, 1))
    body = {"list": [1, 2, 3, 4], "ref": "x"}

    status, answer = await hooks.post("/hook/named", body)
    assert (status, answer["code"]) == (422, "run_refused")
    assert hooks.job_count() == 0

    assert (await hooks.github("push", body))[0] == 202
    reasons = {note["pipeline"]: note["reason"] for note in hooks.journal_data("pipeline.skipped")}
    assert "more than 3 jobs" in reasons["named"]
    assert hooks.rows("SELECT pipeline FROM job_queue WHERE id = root_job_id") == [("pushed",), ("also-pushed",)]


LIMIT = "limits: {tree_jobs: 3}\n  max_workers"


class FullLedger:
    """A ledger on a full disk: readable, but not writable."""

    def __init__(self, ledger: Ledger) -> None:
        self.read = ledger.read

    async def write(self, *_: Any, **__: Any) -> None:
        raise LedgerFull("/srv/ductile/state.db: no space left on device")

    transact = write


async def test_a_delivery_that_cannot_be_stored_is_503(hooks: WebhookHarness) -> None:
    """With Retry-After, and without the path of the ledger."""
    full = FullLedger(hooks.ledger)
    full_hooks = evolve(hooks, ledger=full)  # type: ignore[arg-type]
    answer = await full_hooks.ask("POST", "/hook/plain", b"{}", x_sig=signed(b"{}"))
    assert (answer.status, "retry-after" in dict(answer.headers)) == (503, True)
    assert b"/srv" not in bytes(answer.body)  # type: ignore[arg-type]


# ── idempotency ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_repeated_delivery_gets_the_first_response(hooks: WebhookHarness) -> None:
    """Also if the plugin has been disabled in the meantime."""
    first = await hooks.post("/hook/ids", {"n": 1}, x_delivery="a")
    second = await hooks.post("/hook/ids", {"n": 1}, x_delivery="b")

    assert await hooks.post("/hook/ids", {"n": 1}, x_delivery="a") == first
    assert first != second
    hooks.reload(lambda text: text.replace("taker: {", "taker: {enabled: false, "))
    assert await hooks.post("/hook/ids", {"n": 1}, x_delivery="a") == first
    assert hooks.job_count() == 2


async def test_concurrent_repeated_deliveries_create_one_job(hooks: WebhookHarness) -> None:
    """The receipt and the job are stored in one transaction."""
    answers: list[Any] = []

    async def deliver() -> None:
        answers.append(await hooks.github("push"))

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(deliver)

    assert answers == [answers[0]] * 200
    assert hooks.rows("SELECT COUNT(*) FROM job_queue WHERE pipeline = 'pushed'") == [(1,)]


async def test_delivery_ids_are_scoped_to_their_endpoint(hooks: WebhookHarness) -> None:
    """Ids of different senders can collide."""
    hooks.reload(lambda text: text.replace("/hook/plain, plugin: taker,", "/hook/plain, plugin: taker, " + ID))
    assert (await hooks.post("/hook/ids", {}, x_delivery="a"))[1] != (
        await hooks.post("/hook/plain", {}, x_delivery="a")
    )[1]
    assert hooks.job_count() == 2


ID = "delivery_id_header: X-Delivery,"


async def test_another_body_with_the_same_id_is_409(hooks: WebhookHarness) -> None:
    """A header that is wrongly configured as the id must not drop deliveries silently."""
    await hooks.post("/hook/ids", {"n": 1}, x_delivery="a")
    status, body = await hooks.post("/hook/ids", {"n": 2}, x_delivery="a")
    assert (status, body["code"]) == (409, "delivery_id_reused")
    assert hooks.job_count() == 1


@pytest.mark.parametrize("headers", [{}, {"x_delivery": ""}])
async def test_without_an_id_every_delivery_is_new(hooks: WebhookHarness, headers: dict[str, str]) -> None:
    """Equal bodies can be separate deliveries."""
    for _ in range(2):
        assert (await hooks.post("/hook/ids", {}, **headers))[0] == 202
    assert hooks.job_count() == 2
    assert hooks.rows("SELECT COUNT(*) FROM receipts") == [(0,)]


async def test_a_repeated_delivery_is_recognized_for_seven_days(hooks: WebhookHarness) -> None:
    """Whatever the clock says: until its receipt is pruned."""
    first = await hooks.post("/hook/ids", {}, x_delivery="a")
    receipt = read_now(hooks.ledger, receipts.get, "webhook:/hook/ids", "a")
    assert receipt is not None
    assert receipt.expires_at == NOW + timedelta(days=7)
    for clock in (NOW - timedelta(days=20_000), NOW + timedelta(days=8)):
        hooks.clock.current = clock
        assert await hooks.post("/hook/ids", {}, x_delivery="a") == first


async def test_a_refused_delivery_has_no_receipt(hooks: WebhookHarness) -> None:
    """It can be sent again with the same id."""
    hooks.reload(lambda text: text.replace("taker: {", "taker: {enabled: false, "))
    assert (await hooks.post("/hook/ids", {}, x_delivery="a"))[0] == 503
    hooks.reload(lambda text: text.replace("enabled: false, ", ""))
    assert (await hooks.post("/hook/ids", {}, x_delivery="a"))[0] == 202


def stripe_headers(raw: bytes, moment: datetime) -> dict[str, str]:
    at = int(moment.timestamp())
    return {"stripe_signature": f"t={at},v1={signed(f'{at}.'.encode() + raw)}"}


async def test_a_stripe_delivery_is_identified_by_the_event_id_in_its_body(hooks: WebhookHarness) -> None:
    """A retry has a new signature and can have another `pending_webhooks`."""
    bodies = [json.dumps({"id": "evt_1", "type": "paid", "pending_webhooks": n}).encode() for n in (2, 1)]
    for minutes, raw in enumerate(bodies):
        hooks.clock.current = NOW + timedelta(minutes=minutes)
        answer = await hooks.post("/stripe", raw, **stripe_headers(raw, hooks.clock.current))
        assert answer == (202, {"job_id": None})
    assert len(hooks.journal_data("event.unmatched")) == 1
    assert hooks.rows("SELECT key FROM receipts") == [("evt_1",)]


async def test_a_timestamped_signature_without_an_id_is_accepted_once(hooks: WebhookHarness) -> None:
    """A recorded delivery cannot be replayed within the tolerance."""
    raw = b'{"type": "paid"}'
    headers = stripe_headers(raw, NOW)
    for _ in range(3):
        assert (await hooks.post("/stripe", raw, **headers))[0] == 202
    assert len(hooks.journal_data("event.unmatched")) == 1
    hooks.clock.current = NOW + timedelta(seconds=1)
    await hooks.post("/stripe", raw, **stripe_headers(raw, hooks.clock.current))
    assert len(hooks.journal_data("event.unmatched")) == 2


def standard_headers(message: str, moment: datetime) -> dict[str, str]:
    """Return the signature headers for the body `{}`."""
    key, at = base64.b64decode(SECRETS["standard"].removeprefix("whsec_")), str(int(moment.timestamp()))
    signature = base64.b64encode(hmac.digest(key, f"{message}.{at}.{{}}".encode(), "sha256")).decode()
    return {"webhook_id": message, "webhook_timestamp": at, "webhook_signature": f"v1,{signature}"}


async def test_a_standard_webhook_is_identified_by_its_signed_id(hooks: WebhookHarness) -> None:
    """A retry with a new signature and the same id is the same delivery."""
    answers = []
    for minutes in (0, 60):
        hooks.clock.current = NOW + timedelta(minutes=minutes)
        answers.append(await hooks.post("/standard", b"{}", **standard_headers("msg_1", hooks.clock.current)))
    assert answers[0][0] == 202
    assert answers[0] == answers[1]
    assert hooks.job_count() == 1


async def test_a_signed_identity_wins_over_the_id_header(hooks: WebhookHarness) -> None:
    """The header is not signed, so a replayed delivery could have any value there."""
    hooks.reload(lambda text: text.replace("scheme: stripe,", f"scheme: stripe, {ID}").replace(STANDARD, STANDARD + ID))
    bodies = {"id": b'{"id": "evt_1"}', "content": b'{"type": "paid"}'}
    for identity, raw in bodies.items():
        for delivery in ("a", "b"):
            assert (await hooks.post("/stripe", raw, x_delivery=delivery, **stripe_headers(raw, NOW)))[0] == 202
        assert len(hooks.journal_data("event.unmatched")) == 1 + list(bodies).index(identity), identity
    headers = standard_headers("msg_1", NOW)
    answers = [await hooks.post("/standard", b"{}", x_delivery=delivery, **headers) for delivery in ("a", "b")]
    assert answers[0] == answers[1]


STANDARD = "scheme: standard-webhooks, "


async def test_with_once_body_an_equal_body_is_a_repeated_delivery(hooks: WebhookHarness) -> None:
    """Whatever the unsigned headers say: an attacker can change them."""
    for path in ("/hook/plain", "/github"):
        hooks.reload(lambda text, path=path: text.replace(f"{path},", f"{path}, once: body,"))  # type: ignore[misc]
    first = await hooks.post("/hook/plain", {"n": 1})
    assert await hooks.post("/hook/plain", {"n": 1}, x_delivery="other") == first
    assert await hooks.post("/hook/plain", {"n": 2}) != first
    assert await hooks.github("push", delivery="a") == await hooks.github("push", delivery="b")


# ── records ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_every_delivery_is_on_record_with_what_it_became(hooks: WebhookHarness) -> None:
    """As soon as its response is sent, with and without an id of the sender."""
    _, plain = await hooks.post("/hook/plain", {"n": 1})
    _, pushed = await hooks.github("push")
    await hooks.github("issues", delivery="d-2")
    await hooks.github("push")
    await hooks.ask("POST", "/hook/plain", b"{}", x_sig="0" * 64)
    await hooks.post("/hook/plain", b"{")

    found = [(one.path, one.verdict, one.code, one.status, one.delivery_id, list(one.job_ids))
             for one in reversed(hooks.deliveries())]  # fmt: skip
    assert found == [
        ("/hook/plain", "accepted", None, 202, None, [plain["job_id"]]),
        ("/github", "accepted", None, 202, "d-1", pushed["job_ids"]),
        ("/github", "unmatched", "no_pipeline", 202, "d-2", []),
        ("/github", "repeated", None, 202, "d-1", pushed["job_ids"]),
        ("/hook/plain", "refused", "signature_mismatch", 403, None, []),
        ("/hook/plain", "refused", "delivery_refused", 400, None, []),
    ]


async def test_only_verified_deliveries_are_stored_with_their_body(hooks: WebhookHarness) -> None:
    """Never a refused or repeated one, never a signature that is valid, and no body above the limit."""
    for _ in range(2):
        await hooks.post("/hook/ids", {"n": 1}, x_delivery="a", authorization="Bearer x")
    await hooks.post("/hook/ids", {"n": "x" * MAX_STORED_BODY}, x_delivery="b")
    await hooks.post("/hook/ids", {"n": 1}, secret="second")

    refused, large, repeated, accepted = hooks.deliveries()
    assert [one.has_body for one in (accepted, repeated, large, refused)] == [True, False, False, False]
    assert (accepted.headers, "x-sig" in refused.headers) == ({"x-delivery": ["a"]}, True)
    assert hooks.rows("SELECT body FROM webhook_deliveries WHERE body IS NOT NULL") == [(b'{"n": 1}',)]


async def test_refused_and_repeated_deliveries_cannot_fill_the_ledger(
    hooks: WebhookHarness, mock_clock: MockClock
) -> None:
    """Ten of each path and minute are recorded, and the latest fifty are kept."""
    for minute in range(7):
        await hooks.post("/hook/ids", {}, x_delivery="a")
        for _ in range(20):
            await hooks.ask("POST", "/hook/plain", b"{}")
            await hooks.post("/hook/ids", {}, x_delivery="a")
        assert len(hooks.deliveries(verdict="refused")) == min(10 * (minute + 1), MAX_STORED_PER_PATH)
        mock_clock.jump(rejection_counter.WRITE_INTERVAL)
    assert len(hooks.deliveries(verdict="repeated")) == MAX_STORED_PER_PATH
    assert len(hooks.deliveries(verdict="accepted")) == 1


async def test_the_list_of_deliveries_has_filters(hooks: WebhookHarness) -> None:
    for delivery in ("a", "b"):
        await hooks.post("/hook/ids", {}, x_delivery=delivery)
        hooks.clock.current += timedelta(minutes=10)
    await hooks.post("/hook/plain", {}, secret="second")

    counts = {
        DeliveryFilter(): 3,
        DeliveryFilter(path="/hook/ids"): 2,
        DeliveryFilter(verdict="refused"): 1,
        DeliveryFilter(path="/hook/ids", verdict="accepted"): 2,
        DeliveryFilter(delivery_id="b"): 1,
        DeliveryFilter(delivery_id="b", verdict="refused"): 0,
        DeliveryFilter(since=NOW + timedelta(minutes=5)): 2,
        DeliveryFilter(until=NOW + timedelta(minutes=5), path="/hook/ids"): 1,
    }
    found = {wanted: read_now(hooks.ledger, list_deliveries, wanted).total for wanted in counts}
    assert found == counts


# ── Slack ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def slack(hooks: WebhookHarness, raw: bytes, *, path: str = "/slack", secret: str = "first") -> tuple[int, Any]:
    at = int(NOW.timestamp())
    signature = f"v0={signed(f'v0:{at}:'.encode() + raw, secret)}"
    return await hooks.post(path, raw, x_slack_signature=signature, x_slack_request_timestamp=str(at))


async def test_a_signed_slack_challenge_is_answered(hooks: WebhookHarness) -> None:
    """It verifies the URL and is not an event. An unsigned challenge is refused."""
    raw = json.dumps({"token": "t", "challenge": "3eZbrw1aB", "type": "url_verification"}).encode()
    assert await slack(hooks, raw) == (200, {"challenge": "3eZbrw1aB"})
    assert (await slack(hooks, raw, secret="second"))[0] == 403
    assert hooks.rows("SELECT COUNT(*) FROM journal") == [(0,)]


@pytest.mark.parametrize("path", ["/hook/plain", "/slack"])
async def test_a_challenge_is_answered_only_for_the_slack_scheme(hooks: WebhookHarness, path: str) -> None:
    """Elsewhere, and without a text value, the body is an ordinary payload."""
    raw = json.dumps({"type": "url_verification", "challenge": "x" if path != "/slack" else 1}).encode()
    assert (await (slack(hooks, raw) if path == "/slack" else hooks.post(path, raw)))[0] == 202


async def test_a_slack_event_is_identified_by_its_event_id(hooks: WebhookHarness) -> None:
    """Slack retries with the same id."""
    for retry in (0, 1):
        raw = json.dumps({"type": "event_callback", "event_id": "Ev1", "retry": retry}).encode()
        assert (await slack(hooks, raw))[0] == 202
    assert len(hooks.journal_data("event.unmatched")) == 1


async def test_a_slack_command_gets_an_empty_200(hooks: WebhookHarness) -> None:
    """Slack shows the response to the user and treats every other status as a failure."""
    for _ in range(2):
        assert await slack(hooks, b"command=%2Fdeploy&text=now", path="/slack/command") == (200, None)
    assert hooks.event()["payload"] == {"command": "/deploy", "text": "now"}


# ── reload ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_during_a_rotation_both_secrets_are_valid(hooks: WebhookHarness) -> None:
    """With two names in `secret_ref`; afterwards only the new one."""
    for secret in ("first", "second"):
        assert (await hooks.post("/hook/rotating", secret=secret))[0] == 202
    hooks.reload(lambda text: text.replace("secret_ref: [first, second]", "secret_ref: second"))
    assert (await hooks.post("/hook/rotating", secret="first"))[0] == 403
    assert (await hooks.post("/hook/rotating", secret="second"))[0] == 202


async def test_secrets_and_paths_follow_the_current_configuration(hooks: WebhookHarness) -> None:
    """A reload applies to the next delivery."""
    hooks.reload(lambda text: text.replace("/hook/plain, plugin: taker, secret_ref: first", MOVED))
    assert (await hooks.post("/hook/plain"))[0] == 404
    assert (await hooks.post("/hook/moved"))[0] == 403
    assert (await hooks.post("/hook/moved", secret="second"))[0] == 202


MOVED = "/hook/moved, plugin: taker, secret_ref: second"


async def test_an_endpoint_removed_while_its_body_is_read_is_404(hooks: WebhookHarness) -> None:
    """The request was matched before the reload."""
    headers = {"x-sig": (signed(b"{}"),)}
    route, request = hooks.site.admit(Request(method="POST", path="/hook/plain", headers=headers))
    assert isinstance(route, Route)
    hooks.reload(lambda text: text.replace("/hook/plain", "/hook/moved"))
    assert (await hooks.site.handle(route, evolve(request, body=b"{}"))).status == 404


# ── health ───────────────────────────────────────────────────────────────────────────────────────────────────────────


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
async def test_health_is_available_on_this_host_only(
    hooks: WebhookHarness, peer: str, headers: dict[str, str], status: int
) -> None:
    """Requests through a proxy on this host are refused."""
    answer = await hooks.ask("GET", "/healthz", b"", peer, **headers)
    assert answer.status == status
    assert (b"queue_depth" in bytes(answer.body)) == (status == 200)  # type: ignore[arg-type]


async def test_health_can_be_made_public(hooks: WebhookHarness) -> None:
    """With `webhooks.public_health`. It has the members of the API's health check."""
    hooks.reload(lambda text: text.replace("webhooks:\n", "webhooks:\n  public_health: true\n"))
    answer = await hooks.ask("GET", "/healthz", peer="192.0.2.7", x_forwarded_for="192.0.2.8")
    assert answer.status == 200
    messages = json.loads(bytes(answer.body))  # type: ignore[arg-type]
    assert {"status", "uptime_seconds", "queue_depth", "plugins_loaded", "plugins_circuit_open"} <= messages.keys()


# ── counts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def flush(hooks: WebhookHarness) -> None:
    """Write the counts, as at the stop of the service."""
    with trio.CancelScope() as scope:
        scope.cancel()
        await hooks.rejections.run()


async def test_rejections_are_counted_in_the_journal_with_their_reasons(hooks: WebhookHarness) -> None:
    """One row per endpoint. The reasons are for the operator and not in the response."""
    for signature in ("0" * 64, "0" * 64, "short"):
        await hooks.ask("POST", "/hook/plain", b"{}", x_sig=signature)
    await hooks.post("/hook/plain", b"{")
    await hooks.ask("POST", "/github", b"{}")
    await hooks.ask("POST", "/nowhere", b"{}")
    hooks.clock.current = NOW + timedelta(seconds=5)
    await flush(hooks)

    plain, github = hooks.journal_data("webhook.refused")
    assert (plain["path"], plain["count"], plain["since"]) == ("/hook/plain", 4, "2026-02-08T09:30:00.000000Z")
    assert plain["why"]["the signature matches no secret of the endpoint"] == 2
    assert plain["why"]["the header x-sig is malformed"] == 1
    assert github == {**github, "path": "/github", "why": {"the header x-hub-signature-256 is missing": 1}}
    assert SECRETS["first"] not in json.dumps([plain, github])


async def test_repeated_deliveries_are_counted_by_id(hooks: WebhookHarness) -> None:
    """In a journal row of their own."""
    for delivery in ("a", "a", "b", "a"):
        await hooks.post("/hook/ids", {}, x_delivery=delivery)
    await flush(hooks)
    (note,) = hooks.journal_data("webhook.repeated")
    assert (note["path"], note["why"]) == ("/hook/ids", {"a": 2})


@pytest.mark.parametrize(("status", "why"), [(413, "the body is too large"), (408, "too slow")])
async def test_rejections_by_the_server_are_counted(hooks: WebhookHarness, status: int, why: str) -> None:
    """A request whose body was not read does not reach the receiver."""
    route = hooks.site.table.match("POST", "/hook/small").route
    about: dict[str, Any] = {"peer": "x", "method": "POST", "status": status, "duration_seconds": 0.0}
    hooks.site.on_request(AccessLogEntry(path="/hook/small", route=route, received_bytes=0, sent_bytes=0, **about))
    hooks.site.on_request(AccessLogEntry(path="/random", route=None, received_bytes=0, sent_bytes=0, **about))
    await flush(hooks)
    (note,) = hooks.journal_data("webhook.refused")
    assert (note["path"], note["why"]) == ("/hook/small", {why: 1})
    (rejected,) = hooks.deliveries(path="/hook/small")
    assert (rejected.reason, rejected.status, rejected.peer, rejected.headers) == (why, status, "x", {})


async def test_deliveries_to_unknown_paths_are_recorded_with_the_path(hooks: WebhookHarness) -> None:
    """A sender with a wrong URL is seen. All unknown paths share one limit. Other methods are no deliveries."""
    about: dict[str, Any] = {"peer": "x", "status": 404, "duration_seconds": 0.0, "received_bytes": 0, "sent_bytes": 0}
    for number in range(20):
        hooks.site.on_request(AccessLogEntry(method="POST", path=f"/{'x' * 1000}{number}", route=None, **about))
        hooks.site.on_request(AccessLogEntry(method="GET", path="/robots.txt", route=None, **about))
    hooks.site.on_request(AccessLogEntry(method="POST", path="/hook/gitub", route=None, **about))
    await flush(hooks)

    found = hooks.deliveries(path=NO_ENDPOINT)
    assert len(found) == len(hooks.deliveries()) == MAX_RECORDED_PER_PATH
    assert {(one.code, one.status) for one in found} == {("not_found", 404)}
    assert max(len(one.reason or "") for one in found) < 300
    (note,) = hooks.journal_data("webhook.refused")
    assert (note["path"], note["count"]) == (NO_ENDPOINT, 21)


async def test_the_labels_of_a_count_are_bounded(hooks: WebhookHarness) -> None:
    """Further reasons or ids are counted as `others`."""
    for n in range(1000):
        hooks.rejections.count("webhook.repeated", "/hook/ids", f"delivery-{n}")
    await flush(hooks)
    (note,) = hooks.journal_data("webhook.repeated")
    assert (note["count"], len(note["why"])) == (1000, MAX_LABELS + 1)
    assert note["why"][OTHERS] == 1000 - MAX_LABELS


async def test_rejections_are_written_once_a_minute(
    hooks: WebhookHarness, mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    """The first at once, later ones together, so that invalid requests cannot fill the disk."""
    messages: list[str] = []
    written = trio.Event()

    def record_warning(line: str) -> None:
        messages.append(line)
        written.set()

    hooks.rejections.warn = record_warning
    nursery.start_soon(hooks.rejections.run)
    await hooks.ask("POST", "/hook/plain", b"{}")
    await written.wait()
    for _ in range(500):
        await hooks.ask("POST", "/hook/plain", b"{}")
    await wait_all_tasks_blocked()
    await hooks.post("/hook/plain")  # writes are ordered, so earlier ones are done now
    assert len(hooks.journal_data("webhook.refused")) == 1

    written = trio.Event()
    mock_clock.jump(rejection_counter.WRITE_INTERVAL)
    await written.wait()

    assert [note["count"] for note in hooks.journal_data("webhook.refused")] == [1, 500]
    assert messages[1] == "rejected at /hook/plain: 500 × the header x-sig is missing"
    nursery.cancel_scope.cancel()


async def test_counts_are_kept_when_the_ledger_is_full(hooks: WebhookHarness) -> None:
    """They are written later."""
    rejections = RejectionCounter(FullLedger(hooks.ledger), hooks.clock)  # type: ignore[arg-type]
    rejections.count("webhook.refused", "/hook/plain", "x")
    rejections.count("webhook.refused", "/hook/plain", "x")
    hooks.rejections = rejections
    await flush(hooks)
    rejections.ledger = hooks.ledger
    hooks.clock.current = NOW + timedelta(hours=1)
    await flush(hooks)
    (note,) = hooks.journal_data("webhook.refused")
    assert (note["count"], note["since"]) == (2, "2026-02-08T09:30:00.000000Z")


# ── abuse ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_ten_thousand_invalid_signatures_store_nothing(hooks: WebhookHarness) -> None:
    """Each is a 403 without a row, a receipt or a fault."""
    started = time.monotonic()
    for n in range(10_000):
        answer = await hooks.ask("POST", "/hook/plain", b'{"n": 1}', x_sig=f"{n:064x}")
        assert answer.status == 403
    assert time.monotonic() - started < 60
    assert hooks.job_count() == 0
    assert hooks.rows("SELECT COUNT(*) FROM journal") == [(0,)]
    assert hooks.faults == []


# ── documentation ────────────────────────────────────────────────────────────────────────────────────────────────────

PAGE = (Path(ductile.__file__).parents[1] / "docs" / "webhooks.md").read_text()


def test_every_key_scheme_and_error_code_is_documented() -> None:
    """In docs/webhooks.md."""

    def codes(cls: type[DeliveryRefused]) -> set[str]:
        return {cls.code}.union(*map(codes, cls.__subclasses__()))

    keys = {key.name for key in fields(WebhookEndpoint)} | {"listen", "public_health", "trusted_proxies"}
    words = keys | set(SCHEMES) | codes(DeliveryRefused) | {RunRefused.code, REFUSED, REPEATED}
    assert sorted(word for word in words if not re.search(rf"`(?:webhooks\.)?{word}[`:]", PAGE)) == []
