"""The event stream over real sockets and a real ledger: positions, filters, rights, slow readers, the end."""

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
from ductile.ledger.storage.writer import Ledger, open_ledger
from ductile.ledger.tables import journal
from ductile.web.auth.auth import OPERATOR, Principal, implied
from ductile.web.context import AppContext
from ductile.web.messages import Request, Response, refusal_response
from ductile.web.routes import AnyRoute
from ductile.web.server.limits import ConnectionLimits
from ductile.web.server.listeners import open_unix
from ductile.web.stream import cursor, stream
from ductile.web.stream.broadcast import KEPT, PORTION, Feed
from tests.engine.dispatching import Disk, disk

if TYPE_CHECKING:
    from pathlib import Path

    from tests.web.conftest import Answer, Client, Server, StartServer

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
class Station:
    """A server with the stream, the ledger it tells of, and the tokens that may listen."""

    ledger: Ledger
    hub: Hub
    tokens: dict[str, tuple[str, ...]] = field(factory=lambda: dict(TOKENS))
    snapshot: object = field(factory=object)
    is_stopping: bool = False
    server: "Server" = field(init=False)

    @property
    def desk(self) -> AppContext:
        """What there is on a desk that readers have anything to do with."""
        furniture = SimpleNamespace(
            ledger=self.ledger,
            hub=self.hub,
            clock=Clock(),
            snapshot=lambda: self.snapshot,
            is_stopping=lambda: self.is_stopping,
        )
        return cast(AppContext, furniture)

    def authorize(self, route: AnyRoute, request: Request) -> Request | Response:
        if request.peer == "unix" or route.scope is None:
            return evolve(request, principal=OPERATOR)
        _, _, token = (request.header("authorization") or "").partition(" ")
        if token not in self.tokens:
            return refusal_response(401, "unauthorized", "invalid token", hint="knock")
        principal = Principal(token, implied(self.tokens[token]))
        if not principal.may(route.scope):
            return refusal_response(403, "insufficient_scope", "insufficient scope", hint="ask for more")
        return evolve(request, principal=principal)

    async def happen(self, count: int = 1, kind: str = "run.ended", plugin: str | None = "echo", **more: Any) -> None:
        """Rows of the journal, in one commit."""

        def append(db: Any) -> None:
            for number in range(count):
                journal.append(db, kind, now=NOW, plugin=plugin, **{"data": {"reason": f"n{number}"}, **more})

        await self.ledger.write(append)

    async def forget(self, count: int) -> None:
        """The oldest rows are pruned."""
        policy = RetentionPolicy(journal=timedelta(0))
        await self.ledger.write(prune, policy, now=NOW + timedelta(days=1), limit=count)

    def reload(self, **tokens: tuple[str, ...]) -> None:
        """What a reload does: another configuration is in use, and everybody is told."""
        self.tokens, self.snapshot = tokens, object()
        self.hub.announce_everyone()

    async def listen(self, query: str = "", *headers: str, token: str = "all", **options: Any) -> "Listener":
        client = await self.server.connect(**options)
        lines = "".join(f"{line}\r\n" for line in (f"Authorization: Bearer {token}", *headers))
        await client.send(f"GET /events{query} HTTP/1.1\r\nHost: here\r\n{lines}\r\n".encode())
        return Listener(client)

    async def upgrade(self, query: str = "") -> "Answer":
        """The answer to a wish for a WebSocket."""
        client = await self.server.connect()
        return await client.get(f"/events/ws{query}", "Authorization: Bearer all", *UPGRADE)

    async def converse(self, query: str = "", token: str = "all") -> "Socket":
        client = await self.server.connect()
        answer = await client.get(f"/events/ws{query}", f"Authorization: Bearer {token}", *UPGRADE)
        assert answer.status == 101
        socket = Socket(client)
        assert (await socket.next())["event"] == "stream.opened"
        return socket


@define(eq=False)
class Listener:
    """A client of server-sent events."""

    client: "Client"
    text: str = ""
    begun: bool = False

    async def begin(self) -> str:
        """The opening block, after the head of the answer."""
        while b"\r\n\r\n" not in self.client.seen:
            self.client.seen += await self.client.stream.receive_some()
        head, _, self.client.seen = self.client.seen.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        assert b"content-type: text/event-stream" in head
        self.begun = True
        return await self.block()

    async def block(self) -> str:
        if not self.begun:
            await self.begin()
        while "\n\n" not in self.text:
            piece = await self.client.chunk()
            if not piece:
                return ""
            self.text += piece.decode()
        block, _, self.text = self.text.partition("\n\n")
        return block

    async def next(self) -> dict[str, Any]:
        """The next event: its id, name and data."""
        while True:
            block = await self.block()
            assert block, "the stream is over"
            fields = dict(line.split(": ", 1) for line in block.splitlines())
            if "event" in fields:
                return {"id": int(fields["id"]), "event": fields["event"], "data": json.loads(fields["data"])}

    async def take(self, count: int) -> list[dict[str, Any]]:
        return [await self.next() for _ in range(count)]

    async def rest(self) -> list[str]:
        """Every block until the server ends the stream."""
        blocks = []
        while block := await self.block():
            blocks.append(block)
        return blocks


@define(eq=False)
class Socket:
    """A client of the WebSocket that sees every frame."""

    client: "Client"

    async def next(self) -> dict[str, Any]:
        opcode, content = await self.frame()
        assert opcode == 1, (opcode, content)
        return dict(json.loads(content))

    async def close_code(self) -> int:
        """The code with which the server closes, if it says nothing else before."""
        opcode, content = await self.frame()
        assert opcode == 8, (opcode, content)
        return int.from_bytes(content[:2], "big")

    async def frame(self) -> tuple[int, bytes]:
        first, length = await self.client.take(2)
        if length >= 126:
            length = int.from_bytes(await self.client.take(2 if length == 126 else 8), "big")
        content = await self.client.take(length)
        return (first & 15, content) if first & 15 != 9 else await self.frame()  # a ping is nothing to us

    async def say(self, content: bytes) -> None:
        await self.client.send(b"\x82\xfe" + len(content).to_bytes(2, "big") + bytes(4) + content)


@pytest.fixture
async def station(tmp_path: "Path", start_server: "StartServer") -> AsyncIterator[Station]:
    async with _open(tmp_path) as opened:
        routes, limits = stream.routes(opened.desk, opened.authorize), ConnectionLimits(linger_seconds=0.02)
        opened.server = await start_server(*routes, authorize=opened.authorize, limits=limits)
        yield opened
        opened.server.stopping.set()
        opened.is_stopping = True
        opened.hub.announce_everyone()
        for client in opened.server.clients:
            await client.aclose()
        await opened.server.ended.wait()


@asynccontextmanager
async def _open(folder: "Path") -> AsyncIterator[Station]:
    hub = Hub()
    async with open_ledger(folder / "state.db", on_commit=partial(hub.announce, JOURNAL)) as ledger:
        yield Station(ledger, hub)


def seqs(events: Iterable[dict[str, Any]]) -> list[int]:
    return [event["data"]["seq"] for event in events]


# ── positions ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_new_reader_hears_what_happens_from_now_on(station: Station) -> None:
    """And knows from the start where it is, so that it can reconnect before the first event."""
    await station.happen(3)
    listener = await station.listen()
    opening = await listener.begin()
    await station.happen(2)

    assert opening.splitlines() == ["retry: 1000", "id: 3"]
    assert seqs(await listener.take(2)) == [4, 5]


@pytest.mark.parametrize("by", ["since", "last-event-id"])
async def test_a_reader_that_comes_back_gets_exactly_the_rest(station: Station, by: str) -> None:
    """From every position: nothing is skipped, nothing comes twice."""
    await station.happen(12)

    for last in range(13):
        where = (f"?since={last}",) if by == "since" else ("", f"Last-Event-ID: {last}")
        listener = await station.listen(*where)
        found = await listener.take(12 - last)
        assert seqs(found) == list(range(last + 1, 13))
        assert [event["id"] for event in found] == seqs(found)
        await listener.client.aclose()


async def test_the_header_wins_over_the_address(station: Station) -> None:
    """A browser that reconnects sends the address it was given and the last event it has."""
    await station.happen(9)
    listener = await station.listen("?since=2", "Last-Event-ID: 7")

    assert seqs(await listener.take(2)) == [8, 9]


async def test_a_reader_far_behind_gets_everything_in_order(station: Station) -> None:
    """However much that is, and although it goes on growing meanwhile."""
    many = KEPT + 3 * PORTION
    await station.happen(many)
    newest = await station.listen()
    await newest.begin()
    late = await station.listen("?since=0")
    await station.happen(PORTION + 7)

    assert seqs(await newest.take(PORTION + 7)) == list(range(many + 1, many + PORTION + 8))
    assert seqs(await late.take(many + PORTION + 7)) == list(range(1, many + PORTION + 8))


async def test_a_reader_takes_no_breath_while_it_is_behind(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits between two looks only when it has seen everything, whether or not it wanted it."""
    monkeypatch.setattr(cursor, "BREATH_SECONDS", 1e6)
    await station.happen(KEPT + 3 * PORTION)
    await station.happen(1, plugin="other")
    everything, other = await station.listen("?since=0"), await station.listen("?since=0&plugin=other")

    assert seqs(await everything.take(KEPT + 3 * PORTION + 1)) == list(range(1, KEPT + 3 * PORTION + 2))
    assert seqs([await other.next()]) == [KEPT + 3 * PORTION + 1]


async def test_readers_at_different_places_do_not_disturb_each_other(station: Station) -> None:
    """Each has its own position, whoever asks first."""
    await station.happen(KEPT)
    listeners = [await station.listen(f"?since={since}") for since in (KEPT, 5, KEPT - 5, 0, KEPT)]
    await station.happen(50)

    for listener, since in zip(listeners, (KEPT, 5, KEPT - 5, 0, KEPT), strict=True):
        assert seqs(await listener.take(KEPT + 50 - since)) == list(range(since + 1, KEPT + 51))


async def test_a_row_that_is_several_events_is_a_place_only_after_the_last(station: Station) -> None:
    """Whoever is cut off between them gets the row again: rather twice than not at all."""
    data = {"from": "running", "to": "succeeded", "status": "succeeded", "preflight": "run", "pid": 1}
    await station.happen(1)
    await station.happen(1, "job.completed", data=data)
    events = await (await station.listen("?since=1")).take(3)

    assert [event["event"] for event in events] == ["job.preflight", "plugin.spawned", "job.completed"]
    assert [event["id"] for event in events] == [1, 1, 2]
    assert seqs(events) == [2, 2, 2]


@pytest.mark.parametrize("asked", ["x", "", "-1", "1.5", "٣", "9" * 20, "1 2"])
async def test_a_place_that_is_none_is_refused(station: Station, asked: str) -> None:
    """400 with the reason."""
    await station.happen(3)
    client = await station.server.connect()
    header = f"Last-Event-ID: {asked}".encode().decode("latin-1")
    answer = await client.get("/events", "Authorization: Bearer all", header)

    assert (answer.status, answer.json["code"]) == (400, "bad_request")
    assert "Last-Event-ID" in answer.json["error"]


async def test_a_place_that_has_not_come_yet_is_the_end(station: Station) -> None:
    """A reader from before a restored backup comes in, and hears what happens from now on."""
    await station.happen(3)
    socket = await station.converse("?since=4000")
    await station.happen(1)
    assert (await socket.next())["seq"] == 4


async def test_an_event_is_told_as_soon_as_it_is_committed(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit itself wakes the readers: nobody waits for the next look."""
    monkeypatch.setattr(cursor, "RECHECK_SECONDS", 1e6)
    monkeypatch.setattr(cursor, "KEEP_ALIVE_SECONDS", 1e6)
    listener, socket = await station.listen(), await station.converse()
    await listener.begin()
    for number in range(1, 4):
        await station.happen(1)
        assert seqs([await listener.next()]) == [number]
        assert (await socket.next())["seq"] == number


# ── what is kept no more ────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_was_pruned_is_marked_as_a_gap(station: Station) -> None:
    """From the first missing position to the last; then the stream goes on."""
    await station.happen(9)
    await station.forget(4)
    gap, *events = await (await station.listen("?since=2")).take(6)

    assert (gap["event"], gap["id"], gap["data"]) == ("gap", 4, {"from": 3, "to": 4, "reason": "pruned"})
    assert seqs(events) == [5, 6, 7, 8, 9]


async def test_from_the_first_that_is_kept_has_no_gap(station: Station) -> None:
    """`since=0` asks for what there is."""
    await station.happen(9)
    await station.forget(4)

    assert seqs(await (await station.listen("?since=0")).take(5)) == [5, 6, 7, 8, 9]


async def test_a_pruned_journal_keeps_its_position(station: Station) -> None:
    """Its newest row stays. What the reader missed is one gap; a position it had before is not in the future."""
    await station.happen(5)
    await station.forget(5)
    listener = await station.listen("?since=3")
    gap = await listener.next()
    await station.happen(1)

    assert gap["data"] == {"from": 4, "to": 4, "reason": "pruned"}
    assert seqs(await listener.take(2)) == [5, 6]
    assert seqs([await (await station.listen("?since=5")).next()]) == [6]


# ── filters ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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
        ("plugin=nobody", []),
    ],
)
@pytest.mark.parametrize("way", ["sse", "websocket"])
async def test_a_reader_gets_what_it_asked_for(station: Station, way: str, query: str, wanted: list[int]) -> None:
    """All conditions hold at once; several kinds are alternatives; the last row is for everybody."""
    await station.happen(1, job_id="j1", root_job_id="t1")
    await station.happen(1, plugin="other", job_id="j1", root_job_id="t2")
    await station.happen(1, "job.deduplicated", job_id="j2", root_job_id="t1")
    await station.happen(1, plugin=None, job_id="j3")
    await station.happen(1, "webhook.refused", plugin=None)
    await station.forget(0)
    found: list[int] = []
    if way == "sse":
        listener = await station.listen(f"?since=0&{query}")
        found = seqs(await listener.take(len(wanted)))
    else:
        socket = await station.converse(f"?since=0&{query}")
        found = [(await socket.next())["seq"] for _ in wanted]

    assert found == wanted


async def test_a_kind_that_cannot_be_is_refused(station: Station) -> None:
    """With the name that was probably meant."""
    client = await station.server.connect()
    answer = await client.get("/events?kind=job.complete", "Authorization: Bearer all")

    assert answer.status == 400
    assert "did you mean 'job.completed'?" in answer.json["error"]


@pytest.mark.parametrize("query", ["plugin=a&plugin=b", "job=a&job=b", "tree=a&tree=b", "since=1&since=2"])
async def test_what_can_be_given_once_is_not_given_twice(station: Station, query: str) -> None:
    """400, over both ways, before anything is streamed."""
    client = await station.server.connect()
    answer = await client.get(f"/events?{query}", "Authorization: Bearer all")
    assert (answer.status, answer.json["code"]) == (400, "argument_repeated")

    assert (await station.upgrade(f"?{query}")).status == 400


# ── the WebSocket ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_websocket_gets_messages_with_position_moment_name_and_data(station: Station) -> None:
    """One JSON text for each event, and first of all the place where it begins."""
    socket = await station.converse()
    await station.happen(1, job_id="j1")

    assert await socket.next() == {
        "seq": 1,
        "at": "2026-11-16T06:40:00.000000Z",
        "event": "run.ended",
        "data": {"seq": 1, "at": "2026-11-16T06:40:00.000000Z", "job_id": "j1", "plugin": "echo", "reason": "n0"},
    }


async def test_what_a_websocket_client_says_is_ignored(station: Station) -> None:
    """It neither ends the stream nor fills it."""
    socket = await station.converse()
    for _ in range(50):
        await socket.say(b"x" * 1000)
    await station.happen(3)

    assert [(await socket.next())["seq"] for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize("since", ["x", "-5"])
async def test_a_websocket_at_no_place_is_refused_as_plain_http(station: Station, since: str) -> None:
    """400 instead of the upgrade."""
    answer = await station.upgrade(f"?since={since}")

    assert (answer.status, answer.json["code"]) == (400, "bad_request")
    assert await station.server.is_healthy()


# ── rights ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("scopes", "status"),
    [(("jobs:ro",), 403), (("events:ro",), 200), (("events:rw",), 200), (("events:meta:ro",), 200), (("*",), 200)],
)
async def test_listening_takes_a_right_to_events(station: Station, scopes: tuple[str, ...], status: int) -> None:
    """Any of them; others do not do."""
    station.tokens["mine"] = scopes
    client = await station.server.connect()

    assert (await client.get("/events", "Authorization: Bearer mine", method="HEAD")).status == status
    assert await station.server.is_healthy()


@pytest.mark.parametrize(("token", "sees_words"), [("all", True), ("events", True), ("payload", True), ("meta", False)])
async def test_words_and_data_take_the_right_to_payloads(station: Station, token: str, sees_words: bool) -> None:
    """Over both ways alike."""
    await station.happen(1)
    event = await (await station.listen("?since=0", token=token)).next()
    message = await (await station.converse("?since=0", token=token)).next()

    assert ("reason" in event["data"]) is sees_words
    assert event["data"]["plugin"] == "echo"
    assert message["data"] == event["data"]


async def test_a_reload_without_the_token_ends_its_streams(station: Station) -> None:
    """With a reason, and at once; whoever may still listen is not interrupted."""
    gone, stays = await station.listen(token="meta"), await station.listen(token="all")
    for listener in (gone, stays):
        await listener.begin()
    gone_socket, stays_socket = await station.converse(token="meta"), await station.converse(token="all")
    with trio.fail_after(5):
        station.reload(all=("*",))
        assert await gone.rest() == [": the token may not listen any more"]
        assert await gone_socket.close_code() == 1008
    await station.happen(1)

    assert (await stays_socket.next())["seq"] == 1
    assert seqs([await stays.next()]) == [1]


async def test_a_reload_that_takes_the_right_to_payloads_is_seen_in_the_next_event(station: Station) -> None:
    """The stream goes on with less in it."""
    listener = await station.listen(token="events")
    await listener.begin()
    await station.happen(1)
    assert "reason" in (await listener.next())["data"]
    station.reload(events=("events:meta:ro",))
    await station.happen(1)

    assert "reason" not in (await listener.next())["data"]


async def test_a_lost_hint_does_not_keep_a_lost_right(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    """The right is looked at again after a while, told or not."""
    monkeypatch.setattr(cursor, "LOSS_IS_SEEN_AFTER_SECONDS", 0.02)
    monkeypatch.setattr(cursor, "LAST_WORDS_SECONDS", 0.02)
    listener = await station.listen(token="meta")
    await listener.begin()
    await station.happen(1)
    await listener.next()
    station.tokens, station.snapshot = {}, object()

    with trio.fail_after(2):
        await station.server.has_served(1)


async def test_a_stream_opens_at_a_position_that_is_durable(tmp_path: "Path", disk: Disk) -> None:
    """After a power cut, an earlier position would be given again, to an event that this reader then never gets."""
    opened: list[int] = []
    async with open_ledger(tmp_path / "state" / "ductile.db") as ledger, trio.open_nursery() as nursery:
        desk: Any = SimpleNamespace(ledger=ledger)
        request: Any = SimpleNamespace(query={}, argument=lambda _: None, header=lambda _: None)

        async def open_stream() -> None:
            opened.append((await cursor.open_reader(desk, Feed(ledger), request, lambda: request)).last)

        with disk.held():
            await ledger.transact(lambda db: journal.append(db, "run.ended", now=NOW), wait=False)
            nursery.start_soon(open_stream)
            for _ in range(4):  # it has read, too
                assert await ledger.read(journal.position) == 1
            assert opened == []
            disk.release()
    assert opened == [1]


# ── slow readers ────────────────────────────────────────────────────────────────────────────────────────────────────


async def fill(station: Station, rows: int = 400) -> None:
    """More than the kernel keeps for a client that does not read."""
    for _ in range(rows // 100):
        await station.happen(100, data={"reason": "x" * 40_000})


@pytest.fixture
async def impatient(tmp_path: "Path", start_server: "StartServer") -> AsyncIterator[Station]:
    """A station that gives up on clients after a quarter of a second."""
    async with _open(tmp_path) as opened:
        limits = ConnectionLimits(write_stall_seconds=0.25, linger_seconds=0.05)
        routes = stream.routes(opened.desk, opened.authorize)
        opened.server = await start_server(*routes, authorize=opened.authorize, limits=limits, grace_seconds=0.5)
        yield opened
        opened.server.stopping.set()
        for client in opened.server.clients:
            await client.aclose()
        await opened.server.ended.wait()


async def test_a_client_that_does_not_read_is_cut_and_nobody_else_notices(impatient: Station) -> None:
    """Writers and other readers go on; when it comes back it gets the rest."""
    stuck = await impatient.listen("?since=0", receive_buffer=4096)
    fast = await impatient.listen("?since=0")
    await impatient.happen(3)
    last = seqs(await stuck.take(3))[-1]
    await fill(impatient)

    assert seqs(await fast.take(403)) == list(range(1, 404))
    await impatient.server.has_served(1)
    again = await impatient.listen(f"?since={last}")
    assert seqs(await again.take(400)) == list(range(4, 404))
    assert not impatient.server.faults


@pytest.mark.parametrize("way", ["sse", "websocket"])
async def test_a_client_that_does_not_read_is_cut_when_its_right_is_lost(
    station: Station, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before it is cut for being slow."""
    monkeypatch.setattr(cursor, "LAST_WORDS_SECONDS", 0.05)
    client = await station.server.connect(receive_buffer=4096)
    path, more = ("/events", "") if way == "sse" else ("/events/ws", "".join(f"{line}\r\n" for line in UPGRADE))
    await client.send(f"GET {path} HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer meta\r\n{more}\r\n".encode())
    while b"id: 0" not in client.seen and b"stream.opened" not in client.seen:
        client.seen += await client.stream.receive_some()
    await fill(station, 100)
    with trio.fail_after(5):
        station.reload()
        await station.server.has_served(1)

    assert await station.server.is_healthy()


async def test_many_readers_of_whom_some_never_read_cost_little_memory(
    tmp_path: "Path", start_server: "StartServer"
) -> None:
    """A hundred of them: what waits for the slow ones is in the ledger, not in memory."""
    async with _open(tmp_path) as station:
        station.server = await start_server(
            *stream.routes(station.desk, station.authorize),
            authorize=station.authorize,
            listener=open_unix(tmp_path / "listener.sock"),
            grace_seconds=0.5,
        )
        for _ in range(10):
            await (await station.listen(receive_buffer=4096)).begin()
        listeners = [await station.listen("?kind=webhook.repeated") for _ in range(90)]
        for listener in listeners:
            await listener.begin()
        await fill(station, 200)
        before = resident_bytes()
        for _ in range(3):
            await fill(station, 200)
        await station.happen(1, "webhook.repeated")
        for listener in listeners:
            assert (await listener.next())["data"]["seq"] == 801
        after = resident_bytes()
        station.server.stopping.set()
        station.is_stopping = True
        station.hub.announce_everyone()
        await station.server.ended.wait()

    # Twenty-four megabytes were written meanwhile, for each of the ten.
    assert after - before < 24 << 20


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ── while nothing happens, and the end ──────────────────────────────────────────────────────────────────────────────


async def test_a_quiet_stream_says_that_it_is_alive(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its place, which moves on past what the reader did not want."""
    monkeypatch.setattr(cursor, "KEEP_ALIVE_SECONDS", 0.1)
    listener = await station.listen("?kind=job.*")
    await listener.begin()
    await station.happen(5)

    assert await listener.block() in (": still here\nid: 5", ": still here\nid: 0")
    assert await listener.block() == ": still here\nid: 5"


async def test_streams_end_at_once_when_the_service_stops(station: Station) -> None:
    """With a word to each: 1001 over a WebSocket, a comment over SSE."""
    listener = await station.listen()
    await listener.begin()
    socket = await station.converse()
    with trio.fail_after(2):
        station.is_stopping = True
        station.server.stopping.set()
        station.hub.announce_everyone()
        assert await socket.close_code() == 1001
        await socket.client.aclose()
        assert await listener.rest() == [": the service is stopping"]
        await station.server.ended.wait()


async def test_only_so_many_may_follow(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one gets 503 and can try again; whoever leaves makes room."""
    monkeypatch.setattr(stream, "MOST_STREAMS_PER_PEER", 2)
    first = await station.listen()
    await first.begin()
    second = await station.converse()
    client = await station.server.connect()
    answer = await client.get("/events", "Authorization: Bearer all")
    refused = await station.upgrade()
    await second.client.aclose()
    await station.server.has_served(3)
    await (await station.listen()).begin()

    assert (answer.status, answer.json["code"], refused.status) == (503, "too_many_streams", 503)
    assert answer.headers["retry-after"]
