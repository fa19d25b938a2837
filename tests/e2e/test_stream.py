"""The event stream of a running service, followed by clients that know nothing of us: curl and a WebSocket library."""

import json
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from time import monotonic
from typing import IO, Any

import pytest
from attrs import define, field
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.e2e.furnished import Door, furnish
from tests.e2e.service import PATIENCE, TOKEN, Home, Service
from tests.web.original_events import FIELDS

Start = Callable[..., Service]
OK = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "done"}\'\n'
OTHER = "another-token-0123456789abcdef"
OTHER_TOKEN = f'      - {{name: other, token: {OTHER}, scopes: ["events:ro"]}}\n'
LIFE = ["job.enqueued", "job.started", "job.preflight", "plugin.spawned", "job.completed"]


@define(eq=False)
class Curl:
    """`curl -N` on the stream, and the position it has come to, as a browser would remember it."""

    process: "subprocess.Popen[bytes]"
    position: int
    comments: list[str] = field(factory=list)

    @classmethod
    def follow(cls, service: Service, query: str = "", *, token: str = TOKEN, last: int | None = None) -> "Curl":
        command = ["curl", "-sSN", "-H", f"Authorization: Bearer {token}", f"{service.url}/events{query}"]
        if last is not None:
            command += ["-H", f"Last-Event-ID: {last}"]
        curl = cls(subprocess.Popen(command, stdout=subprocess.PIPE), -1)
        assert curl.block()["retry"] == "1000"
        return curl

    @property
    def out(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def block(self) -> dict[str, str]:
        """The fields of the next block; none at the end."""
        fields: dict[str, str] = {}
        while line := self.out.readline().decode():
            if line == "\n":
                break
            name, _, value = line.rstrip("\n").partition(": ")
            if name:
                fields[name] = value
            else:
                self.comments.append(value)
                fields[""] = value
        self.position = int(fields.get("id", self.position))
        return fields

    def events(self) -> Iterator[dict[str, Any]]:
        """Everything until the stream ends."""
        while fields := self.block():
            if "event" in fields:
                yield {"event": fields["event"], "data": json.loads(fields["data"])}

    def take(self, count: int) -> list[dict[str, Any]]:
        found = []
        for event in self.events():
            found.append(event)
            if len(found) == count:
                break
        return found

    def until(self, name: str, **data: Any) -> list[dict[str, Any]]:
        """Everything up to an event of that name and with that data."""
        found = []
        for event in self.events():
            found.append(event)
            if event["event"] == name and data.items() <= event["data"].items():
                return found
        pytest.fail(f"the stream ended before {name} {data}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.out.close()


@pytest.fixture
def follow() -> Iterator[Callable[..., Curl]]:
    """Follows the stream with curl, as often as wanted."""
    started: list[Curl] = []

    def one_more(service: Service, query: str = "", **options: Any) -> Curl:
        started.append(Curl.follow(service, query, **options))
        return started[-1]

    yield one_more
    for curl in started:
        curl.close()


@contextmanager
def converse(service: Service, query: str = "", *, token: str = TOKEN) -> Iterator[ClientConnection]:
    url = f"{service.url.replace('http:', 'ws:')}/events/ws{query}"
    with connect(url, additional_headers={"Authorization": f"Bearer {token}"}) as socket:
        assert json.loads(socket.recv(PATIENCE))["event"] == "stream.opened"
        yield socket


def hear(socket: ClientConnection, count: int) -> list[dict[str, Any]]:
    return [json.loads(socket.recv(PATIENCE)) for _ in range(count)]


def journal(home: Home) -> list[int]:
    return [row["seq"] for row in home.rows("SELECT seq FROM journal ORDER BY seq")]


def rows_of(events: list[dict[str, Any]]) -> list[int]:
    """The rows of the journal that the events tell of, each once."""
    return list(dict.fromkeys(event["data"]["seq"] for event in events))


def test_two_clients_see_the_life_of_a_job_in_order(home: Home, start: Start, follow: Callable[..., Curl]) -> None:
    """The same over both ways, from the request to the end, with the identity that the caller was told."""
    home.plugin("ok", OK)
    service = start()
    curl = follow(service)
    with converse(service) as socket:
        job_id = service.post("ok")
        seen, heard = curl.take(5), hear(socket, 5)

    assert [event["event"] for event in seen] == LIFE
    assert {event["data"]["job_id"] for event in seen} == {job_id}
    assert [(event["event"], event["data"]) for event in heard] == [(event["event"], event["data"]) for event in seen]
    assert [event["seq"] for event in heard] == [1, 2, 2, 2, 3]


def test_a_reader_that_is_cut_off_again_and_again_misses_nothing(
    home: Home, start: Start, follow: Callable[..., Curl]
) -> None:
    """Among 200 jobs, once with a restart between: what it has in the end is the journal, every row, once."""
    home.plugin("ok", OK)
    service = start()
    jobs, events, position = 0, [], 0
    for stop_after in (7, 23, 61, 160):
        curl = follow(service, last=position)
        for _ in range(50):
            service.post("ok")
            jobs += 1
        events += curl.take(stop_after)
        # Half a row that came before the cut comes again as a whole.
        events = [event for event in events if event["data"]["seq"] <= curl.position]
        position = curl.position
        curl.close()
        if stop_after == 61:
            service.stop()
            service = start()
    last = follow(service, last=position)
    while sum(event["event"] == "job.completed" for event in events) < jobs:
        events += last.take(1)

    assert jobs == 200
    assert rows_of(events) == journal(home)
    named = [(event["data"]["seq"], event["event"]) for event in events]
    assert len(named) == len(set(named))
    for name in LIFE:
        assert sum(event["event"] == name for event in events) == jobs


def test_a_reader_that_was_away_for_too_long_is_told_what_is_missing(
    home: Home, start: Start, follow: Callable[..., Curl]
) -> None:
    """A gap mark for rows that are kept no more, also over a restart; then the rest."""
    home.plugin("ok", OK)
    service = start()
    for _ in range(3):
        service.run("ok")
    service.stop()
    with closing(sqlite3.connect(home.ledger)) as db, db:
        db.execute("DELETE FROM journal WHERE seq <= 5")
    service = start()
    gap, *events = follow(service, last=2).take(1 + 1 + 1 + 4)
    with converse(service, "?since=2") as socket:
        (heard,) = hear(socket, 1)

    assert (gap["event"], gap["data"]) == ("gap", {"from": 3, "to": 5, "reason": "pruned"})
    assert rows_of(events) == [6, 7, 8, 9]
    assert (heard["seq"], heard["event"], heard["data"]) == (5, gap["event"], gap["data"])


def test_a_reload_without_its_token_ends_a_stream_and_no_other(
    home: Home, start: Start, follow: Callable[..., Curl]
) -> None:
    """Within five seconds, with a reason; who may still listen hears everything."""
    home.plugin("ok", OK)
    text = (home.path / "config.yaml").read_text()
    home.add(OTHER_TOKEN)
    service = start()
    gone, stays = follow(service, token=OTHER), follow(service)
    with converse(service, token=OTHER) as gone_socket, converse(service) as stays_socket:
        home.write("config.yaml", text)
        began = monotonic()
        service.signal(signal.SIGHUP)
        assert list(gone.events()) == []
        with pytest.raises(ConnectionClosed) as closed:
            gone_socket.recv(PATIENCE)
        took = monotonic() - began
        job_id = service.run("ok")["job_id"]
        heard = hear(stays_socket, 5)

    assert took < 5
    assert gone.comments == ["the token no longer has access"]
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
    assert [event["data"]["job_id"] for event in (*stays.take(5), *heard)] == [job_id] * 10


def test_streams_end_when_the_service_begins_to_stop(home: Home, start: Start, follow: Callable[..., Curl]) -> None:
    """They do not wait for jobs that still run, nor do these wait for them."""
    door = Door.make(home)
    service = start()
    service.post("door")
    door.reached()
    curl = follow(service, "?kind=job.completed")
    with converse(service, "?kind=job.completed") as socket:
        service.signal(signal.SIGTERM)
        assert list(curl.events()) == []
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(PATIENCE)
    assert service.process.poll() is None
    door.let_through()

    assert service.wait() == 0
    assert curl.comments == ["the service is stopping"]
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001
    door.close()


def test_a_token_in_the_address_is_not_a_token(home: Home, start: Start) -> None:
    """Addresses end up in logs and histories."""
    service = start()

    assert service.ask("GET", f"/events?token={TOKEN}", token=None)[0] == 401


FAULTY = """
  flaky: {retry: {max_attempts: 2, backoff_base: 10ms}}
  hangs: {timeouts: {poll: 200ms}, retry: {max_attempts: 1}}
  polled:
    circuit_breaker: {threshold: 1, reset_after: 1500ms}
    retry: {max_attempts: 1}
    schedules: [{id: often, every: 1s}]
"""
SAYS_NO = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "error", "error": "no", "retry": true}\'\n'


def test_real_events_have_the_fields_of_the_original(home: Home, start: Start, follow: Callable[..., Curl]) -> None:
    """A run, a retry, a timeout and a schedule whose breaker opens and lets a probe through: as they are told."""
    furnish(home)
    home.plugin("flaky", SAYS_NO)
    home.plugin("polled", SAYS_NO)
    home.plugin("hangs", "#!/bin/sh\nexec sleep 60\n")
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("\npipelines:\n", f"{FAULTY}pipelines:\n"))
    service = start()
    curl = follow(service, "?since=0")
    service.ask("POST", "/pipeline/chain")
    for plugin in ("flaky", "hangs", "broken"):
        service.run(plugin)
    events = curl.until("scheduler.circuit_half_open", plugin="polled")
    events += curl.until("poll.completed", plugin="polled")

    told = {event["event"] for event in events}
    assert FIELDS.keys() - told <= {"job.skipped"}
    missing = {
        (event["event"], *sorted(FIELDS[event["event"]] - event["data"].keys()))
        for event in events
        if event["event"] in FIELDS and not FIELDS[event["event"]] <= event["data"].keys()
    }
    assert missing == set()
