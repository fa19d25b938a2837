"""The event stream over real sockets and a real ledger: positions, filters, access, slow clients, shutdown."""

import json
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio
from attrs import define, evolve, field

from ductile.core.clock import Clock
from ductile.core.hub import JOURNAL, Hub
from ductile.ledger.admin.retention import RetentionPolicy, prune
from ductile.ledger.storage.async_ledger import Ledger, open_ledger
from ductile.ledger.tables import journal
from ductile.web.auth.auth import Principal, expand_scopes, local_principal
from ductile.web.caller_limits import held_connections
from ductile.web.caller_limits.held_connections import HeldConnections
from ductile.web.context import AppContext
from ductile.web.messages import Request, Response, refusal_response
from ductile.web.routing import AnyRoute
from ductile.web.server.limits import ConnectionLimits
from ductile.web.server.listeners import open_unix
from ductile.web.stream import cursor, stream
from ductile.web.stream.broadcast import MAX_BATCH_ROWS, MAX_CACHED_ROWS, JournalFeed
from tests.engine.dispatcher_service import Disk, disk

if TYPE_CHECKING:
    from pathlib import Path

    from tests.web.conftest import Client, ClientResponse, Server, StartServer

__all__ = ["disk"]  # a fixture

NOW = datetime(2026, 11, 16, 6, 40, tzinfo=UTC)
UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
TOKENS = {"all": ("*",), "events": ("events:ro",), "meta": ("events:meta:ro",), "payload": ("events:payload:ro",)}


@define(eq=False)
class StreamHarness:
    """A server with the stream routes, a ledger, and the tokens with access."""

    ledger: Ledger
    hub: Hub
    tokens: dict[str, tuple[str, ...]] = field(factory=lambda: dict(TOKENS))
    snapshot: object = field(factory=object)
    is_stopping: bool = False
    held: HeldConnections = field(factory=HeldConnections)
    server: "Server" = field(init=False)

    @property
    def ctx(self) -> AppContext:
        """The part of the context that streams use."""
        ctx = SimpleNamespace(
            held=self.held,
            ledger=self.ledger,
            hub=self.hub,
            clock=Clock(),
            snapshot=lambda: self.snapshot,
            is_stopping=lambda: self.is_stopping,
        )
        return cast(AppContext, ctx)

    def authorize(self, route: AnyRoute, request: Request) -> Request | Response:
        if request.peer == "unix" or route.scope is None:
            return evolve(request, principal=local_principal(0))
        _, _, token = (request.header("authorization") or "").partition(" ")
        if token not in self.tokens:
            return refusal_response(401, "unauthorized", "invalid token", hint="-")
        principal = Principal(token, expand_scopes(self.tokens[token]), f"token:{token}")
        if not principal.has_scope(route.scope):
            return refusal_response(403, "insufficient_scope", "insufficient scope", hint="-")
        return evolve(request, principal=principal)

    async def append_events(
        self, count: int = 1, kind: str = "run.ended", plugin: str | None = "echo", **more: Any
    ) -> None:
        """Append journal rows in one commit."""

        def append(db: Any) -> None:
            for number in range(count):
                journal.append(db, kind, now=NOW, plugin=plugin, **{"data": {"reason": f"n{number}"}, **more})

        await self.ledger.write(append)

    async def prune_events(self, count: int) -> None:
        """Prune the oldest rows."""
        policy = RetentionPolicy(journal=timedelta(0))
        await self.ledger.write(prune, policy, now=NOW + timedelta(days=1), limit=count)

    def reload(self, **tokens: tuple[str, ...]) -> None:
        """Replace the configuration and announce it."""
        self.tokens, self.snapshot = tokens, object()
        self.hub.announce_all()

    async def subscribe(self, query: str = "", *headers: str, token: str = "all", **options: Any) -> "SseClient":
        client = await self.server.connect(**options)
        lines = "".join(f"{line}\r\n" for line in (f"Authorization: Bearer {token}", *headers))
        await client.send(f"GET /events{query} HTTP/1.1\r\nHost: here\r\n{lines}\r\n".encode())
        return SseClient(client)

    async def upgrade(self, query: str = "") -> "ClientResponse":
        """Return the response to an upgrade request."""
        client = await self.server.connect()
        return await client.get(f"/events/ws{query}", "Authorization: Bearer all", *UPGRADE)

    async def open_websocket(self, query: str = "", token: str = "all") -> "WebSocketClient":
        client = await self.server.connect()
        answer = await client.get(f"/events/ws{query}", f"Authorization: Bearer {token}", *UPGRADE)
        assert answer.status == 101
        socket = WebSocketClient(client)
        assert (await socket.next_event())["event"] == "stream.opened"
        return socket


@define(eq=False)
class SseClient:
    """An SSE client."""

    client: "Client"
    text: str = ""
    is_open: bool = False

    async def open(self) -> str:
        """Read the head of the response and return the first block."""
        while b"\r\n\r\n" not in self.client.buffer:
            self.client.buffer += await self.client.stream.receive_some()
        head, _, self.client.buffer = self.client.buffer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        assert b"content-type: text/event-stream" in head
        self.is_open = True
        return await self.read_block()

    async def read_block(self) -> str:
        if not self.is_open:
            await self.open()
        while "\n\n" not in self.text:
            piece = await self.client.read_chunk()
            if not piece:
                return ""
            self.text += piece.decode()
        block, _, self.text = self.text.partition("\n\n")
        return block

    async def next_event(self) -> dict[str, Any]:
        """Return the next event: its id, name and data."""
        while True:
            block = await self.read_block()
            assert block, "the stream is over"
            fields = dict(line.split(": ", 1) for line in block.splitlines())
            if "event" in fields:
                return {"id": int(fields["id"]), "event": fields["event"], "data": json.loads(fields["data"])}

    async def read_events(self, count: int) -> list[dict[str, Any]]:
        return [await self.next_event() for _ in range(count)]

    async def read_rest(self) -> list[str]:
        """Return every block until the server ends the stream."""
        blocks = []
        while block := await self.read_block():
            blocks.append(block)
        return blocks


@define(eq=False)
class WebSocketClient:
    """A WebSocket client that reads single frames."""

    client: "Client"

    async def next_event(self) -> dict[str, Any]:
        opcode, content = await self.read_frame()
        assert opcode == 1, (opcode, content)
        return dict(json.loads(content))

    async def close_code(self) -> int:
        """Return the close code of the server, which must be the next frame."""
        opcode, content = await self.read_frame()
        assert opcode == 8, (opcode, content)
        return int.from_bytes(content[:2], "big")

    async def read_frame(self) -> tuple[int, bytes]:
        first, length = await self.client.read(2)
        if length >= 126:
            length = int.from_bytes(await self.client.read(2 if length == 126 else 8), "big")
        content = await self.client.read(length)
        return (first & 15, content) if first & 15 != 9 else await self.read_frame()  # skip pings

    async def send_message(self, content: bytes) -> None:
        await self.client.send(b"\x82\xfe" + len(content).to_bytes(2, "big") + bytes(4) + content)


@pytest.fixture
async def harness(tmp_path: "Path", start_server: "StartServer") -> AsyncIterator[StreamHarness]:
    async with _open(tmp_path) as opened:
        routes, limits = stream.routes(opened.ctx, opened.authorize), ConnectionLimits(linger_seconds=0.02)
        opened.server = await start_server(*routes, authorize=opened.authorize, limits=limits)
        yield opened
        opened.server.stopping.set()
        opened.is_stopping = True
        opened.hub.announce_all()
        for client in opened.server.clients:
            await client.aclose()
        await opened.server.ended.wait()


@asynccontextmanager
async def _open(folder: "Path") -> AsyncIterator[StreamHarness]:
    hub = Hub()
    async with open_ledger(folder / "state.db", on_commit=partial(hub.announce, JOURNAL)) as ledger:
        yield StreamHarness(ledger, hub)


def seqs(events: Iterable[dict[str, Any]]) -> list[int]:
    return [event["data"]["seq"] for event in events]


# ── positions ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_new_subscriber_gets_only_new_events(harness: StreamHarness) -> None:
    """It gets its position first, so that it can reconnect before the first event."""
    await harness.append_events(3)
    subscriber = await harness.subscribe()
    opening = await subscriber.open()
    await harness.append_events(2)

    assert opening.splitlines() == ["retry: 1000", "id: 3"]
    assert seqs(await subscriber.read_events(2)) == [4, 5]


@pytest.mark.parametrize("by", ["since", "last-event-id"])
async def test_a_subscriber_resumes_without_gaps_or_repetitions(harness: StreamHarness, by: str) -> None:
    """From every position."""
    await harness.append_events(12)

    for last in range(13):
        where = (f"?since={last}",) if by == "since" else ("", f"Last-Event-ID: {last}")
        subscriber = await harness.subscribe(*where)
        found = await subscriber.read_events(12 - last)
        assert seqs(found) == list(range(last + 1, 13))
        assert [event["id"] for event in found] == seqs(found)
        await subscriber.client.aclose()


async def test_last_event_id_overrides_since(harness: StreamHarness) -> None:
    """A browser that reconnects sends its original URL and the id of the last event."""
    await harness.append_events(9)
    subscriber = await harness.subscribe("?since=2", "Last-Event-ID: 7")

    assert seqs(await subscriber.read_events(2)) == [8, 9]


async def test_a_subscriber_far_behind_gets_every_event_in_order(harness: StreamHarness) -> None:
    """While new events are added."""
    many = MAX_CACHED_ROWS + 3 * MAX_BATCH_ROWS
    await harness.append_events(many)
    newest = await harness.subscribe()
    await newest.open()
    late = await harness.subscribe("?since=0")
    await harness.append_events(MAX_BATCH_ROWS + 7)

    assert seqs(await newest.read_events(MAX_BATCH_ROWS + 7)) == list(range(many + 1, many + MAX_BATCH_ROWS + 8))
    assert seqs(await late.read_events(many + MAX_BATCH_ROWS + 7)) == list(range(1, many + MAX_BATCH_ROWS + 8))


async def test_a_subscriber_reads_without_delay_while_it_is_behind(
    harness: StreamHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The minimum interval applies only after it has reached the end, also if the rows do not match."""
    monkeypatch.setattr(cursor, "MIN_READ_INTERVAL", 1e6)
    await harness.append_events(MAX_CACHED_ROWS + 3 * MAX_BATCH_ROWS)
    await harness.append_events(1, plugin="other")
    everything, other = await harness.subscribe("?since=0"), await harness.subscribe("?since=0&plugin=other")

    assert seqs(await everything.read_events(MAX_CACHED_ROWS + 3 * MAX_BATCH_ROWS + 1)) == list(
        range(1, MAX_CACHED_ROWS + 3 * MAX_BATCH_ROWS + 2)
    )
    assert seqs([await other.next_event()]) == [MAX_CACHED_ROWS + 3 * MAX_BATCH_ROWS + 1]


async def test_subscribers_at_different_positions_are_independent(harness: StreamHarness) -> None:
    """In any order."""
    await harness.append_events(MAX_CACHED_ROWS)
    subscribers = [
        await harness.subscribe(f"?since={since}")
        for since in (MAX_CACHED_ROWS, 5, MAX_CACHED_ROWS - 5, 0, MAX_CACHED_ROWS)
    ]
    await harness.append_events(50)

    for subscriber, since in zip(
        subscribers, (MAX_CACHED_ROWS, 5, MAX_CACHED_ROWS - 5, 0, MAX_CACHED_ROWS), strict=True
    ):
        assert seqs(await subscriber.read_events(MAX_CACHED_ROWS + 50 - since)) == list(
            range(since + 1, MAX_CACHED_ROWS + 51)
        )


async def test_only_the_last_event_of_a_row_has_the_position_of_the_row(harness: StreamHarness) -> None:
    """A subscriber that is disconnected in between gets the whole row again."""
    data = {"from": "running", "to": "succeeded", "status": "succeeded", "preflight": "run", "pid": 1}
    await harness.append_events(1)
    await harness.append_events(1, "job.completed", data=data)
    events = await (await harness.subscribe("?since=1")).read_events(3)

    assert [event["event"] for event in events] == ["job.preflight", "plugin.spawned", "job.completed"]
    assert [event["id"] for event in events] == [1, 1, 2]
    assert seqs(events) == [2, 2, 2]


@pytest.mark.parametrize("text", ["x", "", "-1", "1.5", "٣", "9" * 20, "1 2"])
async def test_an_invalid_position_is_refused(harness: StreamHarness, text: str) -> None:
    """400 with the name of the header."""
    await harness.append_events(3)
    client = await harness.server.connect()
    header = f"Last-Event-ID: {text}".encode().decode("latin-1")
    answer = await client.get("/events", "Authorization: Bearer all", header)

    assert (answer.status, answer.json["code"]) == (400, "bad_request")
    assert "Last-Event-ID" in answer.json["error"]


async def test_a_position_in_the_future_is_the_end(harness: StreamHarness) -> None:
    """A subscriber from before a restored backup gets only new events."""
    await harness.append_events(3)
    socket = await harness.open_websocket("?since=4000")
    await harness.append_events(1)
    assert (await socket.next_event())["seq"] == 4


async def test_an_event_is_sent_when_it_is_committed(harness: StreamHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit wakes the subscribers without polling."""
    monkeypatch.setattr(cursor, "RECHECK_INTERVAL", 1e6)
    monkeypatch.setattr(cursor, "KEEP_ALIVE_INTERVAL", 1e6)
    subscriber, socket = await harness.subscribe(), await harness.open_websocket()
    await subscriber.open()
    for number in range(1, 4):
        await harness.append_events(1)
        assert seqs([await subscriber.next_event()]) == [number]
        assert (await socket.next_event())["seq"] == number


# ── pruned rows ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_pruned_rows_are_reported_as_a_gap(harness: StreamHarness) -> None:
    """From the first to the last missing position."""
    await harness.append_events(9)
    await harness.prune_events(4)
    gap, *events = await (await harness.subscribe("?since=2")).read_events(6)

    assert (gap["event"], gap["id"], gap["data"]) == ("gap", 4, {"from": 3, "to": 4, "reason": "pruned"})
    assert seqs(events) == [5, 6, 7, 8, 9]


async def test_since_0_starts_at_the_oldest_event_without_a_gap(harness: StreamHarness) -> None:
    await harness.append_events(9)
    await harness.prune_events(4)

    assert seqs(await (await harness.subscribe("?since=0")).read_events(5)) == [5, 6, 7, 8, 9]


async def test_a_pruned_journal_keeps_its_position(harness: StreamHarness) -> None:
    """Its newest row is kept, so that older positions stay valid."""
    await harness.append_events(5)
    await harness.prune_events(5)
    subscriber = await harness.subscribe("?since=3")
    gap = await subscriber.next_event()
    await harness.append_events(1)

    assert gap["data"] == {"from": 4, "to": 4, "reason": "pruned"}
    assert seqs(await subscriber.read_events(2)) == [5, 6]
    assert seqs([await (await harness.subscribe("?since=5")).next_event()]) == [6]


# ── filters ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("kind=run.ended", [1, 2, 4]),
        ("kind=run.*", [1, 2, 4]),
        ("kind=*", [1, 2, 3, 4, 5]),
        ("kind=webhook.refused&kind=run.ended", [1, 2, 4, 5]),
        ("kind=job.deduplicated", [3]),
        ("plugin=echo", [1, 3]),
        ("job=j1", [1, 2]),
        ("tree=t1", [1, 3]),
        ("tree=t1&job=j1", [1]),
        ("plugin=other&kind=run.*", [2]),
        ("plugin=unknown", []),
    ],
)
@pytest.mark.parametrize("transport", ["sse", "websocket"])
async def test_a_subscriber_gets_only_matching_events(
    harness: StreamHarness, transport: str, query: str, wanted: list[int]
) -> None:
    """All conditions must match; several kinds are alternatives."""
    await harness.append_events(1, job_id="j1", root_job_id="t1")
    await harness.append_events(1, plugin="other", job_id="j1", root_job_id="t2")
    await harness.append_events(1, "job.deduplicated", job_id="j2", root_job_id="t1")
    await harness.append_events(1, plugin=None, job_id="j3")
    await harness.append_events(1, "webhook.refused", plugin=None)
    await harness.prune_events(0)
    found: list[int] = []
    if transport == "sse":
        subscriber = await harness.subscribe(f"?since=0&{query}")
        found = seqs(await subscriber.read_events(len(wanted)))
    else:
        socket = await harness.open_websocket(f"?since=0&{query}")
        found = [(await socket.next_event())["seq"] for _ in wanted]

    assert found == wanted


async def test_an_unknown_kind_is_refused(harness: StreamHarness) -> None:
    """With a suggestion."""
    client = await harness.server.connect()
    answer = await client.get("/events?kind=job.complete", "Authorization: Bearer all")

    assert answer.status == 400
    assert "did you mean 'job.completed'?" in answer.json["error"]


@pytest.mark.parametrize("query", ["plugin=a&plugin=b", "job=a&job=b", "tree=a&tree=b", "since=1&since=2"])
async def test_repeated_arguments_are_refused(harness: StreamHarness, query: str) -> None:
    """Over SSE and WebSocket, before the stream starts."""
    client = await harness.server.connect()
    answer = await client.get(f"/events?{query}", "Authorization: Bearer all")
    assert (answer.status, answer.json["code"]) == (400, "argument_repeated")

    assert (await harness.upgrade(f"?{query}")).status == 400


# ── WebSocket ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_websocket_message_has_position_time_name_and_data(harness: StreamHarness) -> None:
    """One JSON text per event, after a first message with the position."""
    socket = await harness.open_websocket()
    await harness.append_events(1, job_id="j1")

    assert await socket.next_event() == {
        "seq": 1,
        "at": "2026-11-16T06:40:00.000000Z",
        "event": "run.ended",
        "data": {"seq": 1, "at": "2026-11-16T06:40:00.000000Z", "job_id": "j1", "plugin": "echo", "reason": "n0"},
    }


async def test_messages_of_a_websocket_client_are_discarded(harness: StreamHarness) -> None:
    """They neither end nor block the stream."""
    socket = await harness.open_websocket()
    for _ in range(50):
        await socket.send_message(b"x" * 1000)
    await harness.append_events(3)

    assert [(await socket.next_event())["seq"] for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("since", ["x", "-5"])
async def test_a_websocket_with_an_invalid_position_is_refused_as_plain_http(
    harness: StreamHarness, since: str
) -> None:
    """400 instead of the upgrade."""
    answer = await harness.upgrade(f"?since={since}")

    assert (answer.status, answer.json["code"]) == (400, "bad_request")
    assert await harness.server.is_healthy()


# ── access ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("scopes", "status"),
    [(("jobs:ro",), 403), (("events:ro",), 200), (("events:rw",), 200), (("events:meta:ro",), 200), (("*",), 200)],
)
async def test_a_stream_requires_an_events_scope(harness: StreamHarness, scopes: tuple[str, ...], status: int) -> None:
    """Any of the events scopes."""
    harness.tokens["mine"] = scopes
    client = await harness.server.connect()

    assert (await client.get("/events", "Authorization: Bearer mine", method="HEAD")).status == status
    assert await harness.server.is_healthy()


@pytest.mark.parametrize(("token", "sees_data"), [("all", True), ("events", True), ("payload", True), ("meta", False)])
async def test_messages_and_data_require_the_payload_scope(harness: StreamHarness, token: str, sees_data: bool) -> None:
    """Over SSE and WebSocket."""
    await harness.append_events(1)
    event = await (await harness.subscribe("?since=0", token=token)).next_event()
    message = await (await harness.open_websocket("?since=0", token=token)).next_event()

    assert ("reason" in event["data"]) is sees_data
    assert event["data"]["plugin"] == "echo"
    assert message["data"] == event["data"]


async def test_a_reload_that_removes_a_token_ends_its_streams(harness: StreamHarness) -> None:
    """Immediately and with a reason. Other streams continue."""
    removed, kept_open = await harness.subscribe(token="meta"), await harness.subscribe(token="all")
    for subscriber in (removed, kept_open):
        await subscriber.open()
    removed_socket, kept_open_socket = (
        await harness.open_websocket(token="meta"),
        await harness.open_websocket(token="all"),
    )
    with trio.fail_after(5):
        harness.reload(all=("*",))
        assert await removed.read_rest() == [": the token no longer has access"]
        assert await removed_socket.close_code() == 1008
    await harness.append_events(1)

    assert (await kept_open_socket.next_event())["seq"] == 1
    assert seqs([await kept_open.next_event()]) == [1]


async def test_a_reload_that_removes_the_payload_scope_applies_to_the_next_event(harness: StreamHarness) -> None:
    """The stream continues without payload data."""
    subscriber = await harness.subscribe(token="events")
    await subscriber.open()
    await harness.append_events(1)
    assert "reason" in (await subscriber.next_event())["data"]
    harness.reload(events=("events:meta:ro",))
    await harness.append_events(1)

    assert "reason" not in (await subscriber.next_event())["data"]


async def test_access_is_checked_without_a_hint(harness: StreamHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Periodically, because a hint can be lost."""
    monkeypatch.setattr(cursor, "ACCESS_CHECK_INTERVAL", 0.02)
    monkeypatch.setattr(cursor, "CLOSE_GRACE_SECONDS", 0.02)
    subscriber = await harness.subscribe(token="meta")
    await subscriber.open()
    await harness.append_events(1)
    await subscriber.next_event()
    harness.tokens, harness.snapshot = {}, object()

    with trio.fail_after(2):
        await harness.server.wait_for_requests(1)


async def test_a_stream_opens_at_a_durable_position(tmp_path: "Path", disk: Disk) -> None:
    """After a power failure, the position would be reused for an event that this subscriber would never get."""
    opened: list[int] = []
    async with open_ledger(tmp_path / "state" / "ductile.db") as ledger, trio.open_nursery() as nursery:
        ctx: Any = SimpleNamespace(ledger=ledger)
        request: Any = SimpleNamespace(query={}, argument=lambda _: None, header=lambda _: None)

        async def open_stream() -> None:
            opened.append((await cursor.open_cursor(ctx, JournalFeed(ledger), request, lambda: request)).position)

        with disk.blocked():
            await ledger.transact(lambda db: journal.append(db, "run.ended", now=NOW), wait=False)
            nursery.start_soon(open_stream)
            for _ in range(4):  # the cursor has read the position by now
                assert await ledger.read(journal.position) == 1
            assert opened == []
            disk.release()
    assert opened == [1]


# ── slow clients ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def fill(harness: StreamHarness, rows: int = 400) -> None:
    """Append more data than the kernel buffers for a client."""
    for _ in range(rows // 100):
        await harness.append_events(100, data={"reason": "x" * 40_000})


@pytest.fixture
async def short_timeout(tmp_path: "Path", start_server: "StartServer") -> AsyncIterator[StreamHarness]:
    """A harness with a write timeout of a second."""
    async with _open(tmp_path) as opened:
        limits = ConnectionLimits(write_stall_seconds=1.0, linger_seconds=0.05)
        routes = stream.routes(opened.ctx, opened.authorize)
        opened.server = await start_server(*routes, authorize=opened.authorize, limits=limits, grace_seconds=0.5)
        yield opened
        opened.server.stopping.set()
        for client in opened.server.clients:
            await client.aclose()
        await opened.server.ended.wait()


async def test_a_client_that_does_not_read_is_disconnected_without_effect_on_others(
    short_timeout: StreamHarness,
) -> None:
    """It can resume later."""
    stalled = await short_timeout.subscribe("?since=0", receive_buffer=4096)
    fast = await short_timeout.subscribe("?since=0")
    await short_timeout.append_events(3)
    last = seqs(await stalled.read_events(3))[-1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fill, short_timeout)  # while the other client reads: it must not stall too
        assert seqs(await fast.read_events(403)) == list(range(1, 404))

    await short_timeout.server.wait_for_requests(1)
    again = await short_timeout.subscribe(f"?since={last}")
    assert seqs(await again.read_events(400)) == list(range(4, 404))
    assert not short_timeout.server.faults


@pytest.mark.parametrize("transport", ["sse", "websocket"])
async def test_a_client_that_does_not_read_is_disconnected_when_it_loses_access(
    harness: StreamHarness, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the write timeout."""
    monkeypatch.setattr(cursor, "CLOSE_GRACE_SECONDS", 0.05)
    client = await harness.server.connect(receive_buffer=4096)
    path, more = ("/events", "") if transport == "sse" else ("/events/ws", "".join(f"{line}\r\n" for line in UPGRADE))
    await client.send(f"GET {path} HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer meta\r\n{more}\r\n".encode())
    while b"id: 0" not in client.buffer and b"stream.opened" not in client.buffer:
        client.buffer += await client.stream.receive_some()
    await fill(harness, 100)
    with trio.fail_after(5):
        harness.reload()
        await harness.server.wait_for_requests(1)

    assert await harness.server.is_healthy()


async def test_subscribers_that_do_not_read_use_little_memory(tmp_path: "Path", start_server: "StartServer") -> None:
    """The ledger is their buffer."""
    async with _open(tmp_path) as harness:
        harness.server = await start_server(
            *stream.routes(harness.ctx, harness.authorize),
            authorize=harness.authorize,
            listener=open_unix(tmp_path / "listener.sock"),
            grace_seconds=0.5,
        )
        for _ in range(10):
            await (await harness.subscribe(receive_buffer=4096)).open()
        subscribers = [await harness.subscribe("?kind=webhook.repeated") for _ in range(90)]
        for subscriber in subscribers:
            await subscriber.open()
        await fill(harness, 200)
        before = resident_bytes()
        for _ in range(3):
            await fill(harness, 200)
        await harness.append_events(1, "webhook.repeated")
        for subscriber in subscribers:
            assert (await subscriber.next_event())["data"]["seq"] == 801
        after = resident_bytes()
        harness.server.stopping.set()
        harness.is_stopping = True
        harness.hub.announce_all()
        await harness.server.ended.wait()

    # 24 MB were written in between for each of the ten stalled clients.
    assert after - before < 24 << 20


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ── keep-alive, shutdown and limits ──────────────────────────────────────────────────────────────────────────────────


async def test_an_idle_stream_sends_keep_alive_comments(
    harness: StreamHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the position, which advances past events that do not match."""
    monkeypatch.setattr(cursor, "KEEP_ALIVE_INTERVAL", 0.1)
    subscriber = await harness.subscribe("?kind=job.*")
    await subscriber.open()
    await harness.append_events(5)

    assert await subscriber.read_block() in (": keep-alive\nid: 5", ": keep-alive\nid: 0")
    assert await subscriber.read_block() == ": keep-alive\nid: 5"


async def test_streams_end_when_the_service_stops(harness: StreamHarness) -> None:
    """With 1001 over a WebSocket and a comment over SSE."""
    subscriber = await harness.subscribe()
    await subscriber.open()
    socket = await harness.open_websocket()
    with trio.fail_after(2):
        harness.is_stopping = True
        harness.server.stopping.set()
        harness.hub.announce_all()
        assert await socket.close_code() == 1001
        await socket.client.aclose()
        assert await subscriber.read_rest() == [": the service is stopping"]
        await harness.server.ended.wait()


async def test_the_number_of_streams_is_limited(harness: StreamHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next request gets 503 until a stream has ended."""
    monkeypatch.setattr(held_connections, "MAX_HELD_PER_PEER", 2)
    first = await harness.subscribe()
    await first.open()
    second = await harness.open_websocket()
    client = await harness.server.connect()
    answer = await client.get("/events", "Authorization: Bearer all")
    refused = await harness.upgrade()
    await second.client.aclose()
    await harness.server.wait_for_requests(3)
    await (await harness.subscribe()).open()

    assert (answer.status, answer.json["code"], refused.status) == (503, "too_many_streams", 503)
    assert answer.headers["retry-after"]
