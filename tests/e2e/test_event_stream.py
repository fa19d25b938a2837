"""The event stream of a running service, read with curl and with a WebSocket library."""

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

from tests.e2e.sample_pipelines import add_sample_pipelines
from tests.e2e.sample_plugins import OK, BlockingPlugin
from tests.e2e.service import TOKEN, WAIT_SECONDS, Home, Service, Start
from tests.web.original_events import FIELDS

OTHER = "another-token-0123456789abcdef"
OTHER_TOKEN = f'      - {{name: other, token: {OTHER}, scopes: ["events:ro"]}}\n'
LIFE_CYCLE = ["job.enqueued", "job.started", "job.preflight", "plugin.spawned", "job.completed"]


@define(eq=False)
class Curl:
    """A `curl -N` process on the stream, and the id of its last event."""

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
        """Read the next block and return its fields. At the end of the stream there are none."""
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
        """Yield the events until the stream ends."""
        while fields := self.block():
            if "event" in fields:
                yield {"event": fields["event"], "data": json.loads(fields["data"])}

    def read(self, count: int) -> list[dict[str, Any]]:
        found = []
        for event in self.events():
            found.append(event)
            if len(found) == count:
                break
        return found

    def read_until(self, name: str, **data: Any) -> list[dict[str, Any]]:
        """Return the events up to one with this name and this data."""
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
    """Return a function that starts curl on the stream. Every process is killed at the end."""
    started: list[Curl] = []

    def start_curl(service: Service, query: str = "", **options: Any) -> Curl:
        started.append(Curl.follow(service, query, **options))
        return started[-1]

    yield start_curl
    for curl in started:
        curl.close()


@contextmanager
def open_websocket(service: Service, query: str = "", *, token: str = TOKEN) -> Iterator[ClientConnection]:
    url = f"{service.url.replace('http:', 'ws:')}/events/ws{query}"
    with connect(url, additional_headers={"Authorization": f"Bearer {token}"}) as socket:
        assert json.loads(socket.recv(WAIT_SECONDS))["event"] == "stream.opened"
        yield socket


def receive(socket: ClientConnection, count: int) -> list[dict[str, Any]]:
    return [json.loads(socket.recv(WAIT_SECONDS)) for _ in range(count)]


def receive_until_closed(socket: ClientConnection) -> None:
    while True:
        socket.recv(WAIT_SECONDS)


def journal(home: Home) -> list[int]:
    return [row["seq"] for row in home.rows("SELECT seq FROM journal ORDER BY seq")]


def rows_of(events: list[dict[str, Any]]) -> list[int]:
    """Return the journal rows of the events, without repetition."""
    return list(dict.fromkeys(event["data"]["seq"] for event in events))


def test_sse_and_websocket_clients_get_the_events_of_a_job_in_order(
    home: Home, start: Start, follow: Callable[..., Curl]
) -> None:
    """Names and data are the same for both, and have the id of the job."""
    home.plugin("ok", OK)
    service = start()
    curl = follow(service)
    with open_websocket(service) as socket:
        job_id = service.post("ok")
        seen, received = curl.read(5), receive(socket, 5)

    assert [event["event"] for event in seen] == LIFE_CYCLE
    assert {event["data"]["job_id"] for event in seen} == {job_id}
    assert [(event["event"], event["data"]) for event in received] == [
        (event["event"], event["data"]) for event in seen
    ]
    assert [event["seq"] for event in received] == [2, 3, 3, 3, 4]


def test_a_client_that_reconnects_with_its_last_event_id_misses_nothing(
    home: Home, start: Start, follow: Callable[..., Curl]
) -> None:
    """Across 200 jobs, three reconnects and one restart, every journal row arrives once."""
    home.plugin("ok", OK)
    service = start()
    jobs, events, position = 0, [], 0
    for stop_after in (7, 23, 61, 160):
        curl = follow(service, last=position)
        for _ in range(50):
            service.post("ok")
            jobs += 1
        events += curl.read(stop_after)
        # The events of a row that was read in part arrive again.
        events = [event for event in events if event["data"]["seq"] <= curl.position]
        position = curl.position
        curl.close()
        if stop_after == 61:
            service.stop()
            service = start()
    last = follow(service, last=position)
    while sum(event["event"] == "job.completed" for event in events) < jobs:
        events += last.read(1)

    assert jobs == 200
    assert rows_of(events) == journal(home)
    named = [(event["data"]["seq"], event["event"]) for event in events]
    assert len(named) == len(set(named))
    for name in LIFE_CYCLE:
        assert sum(event["event"] == name for event in events) == jobs


def test_a_client_gets_a_gap_event_for_deleted_rows(home: Home, start: Start, follow: Callable[..., Curl]) -> None:
    """The gap has the range of missing rows, also after a restart. Later events follow."""
    home.plugin("ok", OK)
    service = start()
    for _ in range(3):
        service.run("ok")
    service.stop()
    with closing(sqlite3.connect(home.ledger)) as db, db:
        db.execute("DELETE FROM journal WHERE seq <= 5")
    service = start()
    gap, *events = follow(service, last=2).read(1 + 1 + 1 + 4)
    with open_websocket(service, "?since=2") as socket:
        (received,) = receive(socket, 1)

    assert (gap["event"], gap["data"]) == ("gap", {"from": 3, "to": 5, "reason": "pruned"})
    assert rows_of(events) == [6, 7, 8, 9]
    assert (received["seq"], received["event"], received["data"]) == (5, gap["event"], gap["data"])


def test_a_reload_that_removes_a_token_ends_its_streams(home: Home, start: Start, follow: Callable[..., Curl]) -> None:
    """They end within five seconds with the reason. Streams of other tokens continue."""
    home.plugin("ok", OK)
    text = (home.path / "config.yaml").read_text()
    home.add(OTHER_TOKEN)
    service = start()
    revoked, kept = follow(service, token=OTHER), follow(service)
    with open_websocket(service, token=OTHER) as revoked_socket, open_websocket(service) as kept_socket:
        home.write("config.yaml", text)
        began = monotonic()
        service.signal(signal.SIGHUP)
        assert {event["event"] for event in revoked.events()} <= {"config.reloaded"}
        with pytest.raises(ConnectionClosed) as closed:
            receive_until_closed(revoked_socket)
        seconds = monotonic() - began
        job_id = service.run("ok")["job_id"]
        while json.loads(kept_socket.recv(WAIT_SECONDS))["data"].get("job_id") != job_id:
            pass  # events of the reload

    assert seconds < 5
    assert revoked.comments == ["the token no longer has access"]
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
    kept.read_until("job.completed", job_id=job_id)


def test_streams_end_when_the_service_begins_to_stop(
    home: Home, start: Start, blocking: BlockingPlugin, follow: Callable[..., Curl]
) -> None:
    """They do not wait for running jobs."""
    service = start()
    service.post("blocking")
    blocking.wait_until_started()
    curl = follow(service, "?kind=job.completed")
    with open_websocket(service, "?kind=job.completed") as socket:
        service.signal(signal.SIGTERM)
        assert list(curl.events()) == []
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv(WAIT_SECONDS)
    assert service.process.poll() is None
    blocking.release()

    assert service.wait() == 0
    assert curl.comments == ["the service is stopping"]
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1001


def test_a_token_in_the_query_is_ignored(home: Home, start: Start) -> None:
    """URLs are stored in logs and histories."""
    service = start()

    assert service.ask("GET", f"/events?token={TOKEN}", token=None)[0] == 401


FAILING_PLUGINS = """
  flaky: {retry: {max_attempts: 2, backoff_base: 10ms}}
  hangs: {timeouts: {poll: 200ms}, retry: {max_attempts: 1}}
  polled:
    circuit_breaker: {threshold: 1, reset_after: 1500ms}
    retry: {max_attempts: 1}
    schedules: [{id: often, every: 1s}]
"""
FAILING = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "error", "error": "no", "retry": true}\'\n'


def test_events_have_the_documented_fields(home: Home, start: Start, follow: Callable[..., Curl]) -> None:
    """A run, a retry, a timeout, and a schedule whose breaker opens and runs a probe."""
    add_sample_pipelines(home)
    home.plugin("flaky", FAILING)
    home.plugin("polled", FAILING)
    home.plugin("hangs", "#!/bin/sh\nexec sleep 60\n")
    home.replace("\npipelines:\n", f"{FAILING_PLUGINS}pipelines:\n")
    service = start()
    curl = follow(service, "?since=0")
    service.ask("POST", "/pipeline/chain")
    for plugin in ("flaky", "hangs", "broken"):
        service.run(plugin)
    events = curl.read_until("scheduler.circuit_half_open", plugin="polled")
    events += curl.read_until("poll.completed", plugin="polled")

    names = {event["event"] for event in events}
    assert FIELDS.keys() - names <= {"job.skipped"}
    missing = {
        (event["event"], *sorted(FIELDS[event["event"]] - event["data"].keys()))
        for event in events
        if event["event"] in FIELDS and not FIELDS[event["event"]] <= event["data"].keys()
    }
    assert missing == set()
