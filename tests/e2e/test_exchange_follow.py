"""The streams of messages of a running service: server-sent events and WebSocket."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from attrs import define
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.e2e.service import TOKEN, WAIT_SECONDS, Home, Service, Start, poll_until

READER = "reader-token-0123456789abcdef"
READER_TOKEN = f'      - {{name: reader, token: {READER}, scopes: ["exchange:review.*:ro"]}}\n'


@define
class Follower:
    """A reader of server-sent events."""

    response: http.client.HTTPResponse

    def block(self) -> dict[str, str]:
        """Read the next block and return its fields."""
        lines = iter(self.response.readline, b"\n")
        return dict(line.decode().rstrip("\n").split(": ", 1) for line in lines if b": " in line)

    def message(self) -> dict[str, Any]:
        """Read the next event and return its data, with the position as `id`."""
        while "data" not in (block := self.block()):
            pass
        return {"event": block["event"], "id": int(block["id"]), **json.loads(block["data"])}


@contextmanager
def follow(service: Service, query: str = "", *, token: str = TOKEN, last: int | None = None) -> Iterator[Follower]:
    parts = urlsplit(service.url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_SECONDS)) as connection:
        headers = {"authorization": f"Bearer {token}"}
        if last is not None:
            headers["last-event-id"] = str(last)
        connection.request("GET", f"/exchange/follow{query}", headers=headers)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        follower = Follower(response)
        assert follower.block()["retry"] == "1000"
        yield follower


def publish(service: Service, topic: str, **fields: Any) -> dict[str, Any]:
    status, published = service.ask("POST", "/exchange/messages", {"topic": topic, "body": f"of {topic}", **fields})
    assert status == 201, published
    return dict(published)


def test_a_stream_has_the_new_messages_of_a_pattern_or_conversation(start: Start) -> None:
    service = start()
    publish(service, "review.request")
    with follow(service, "?topic=review.*") as reviews, follow(service, "?conversation=c1") as conversation:
        publish(service, "deploy.request")
        second = publish(service, "review.done", conversation_id="c1", metadata={"n": 1})
        for follower in (reviews, conversation):
            message = follower.message()
            assert (message["event"], message["id"], message["message_id"]) == (
                "message",
                second["seq"],
                second["message_id"],
            )
            assert (message["body"], message["metadata"]) == ("of review.done", {"n": 1})


def test_a_stream_resumes_after_a_restart_without_losing_a_message(start: Start) -> None:
    service = start()
    with follow(service) as follower:
        first = publish(service, "a.b")
        assert follower.message()["id"] == first["seq"]
    publish(service, "a.c")
    service.stop()
    service = start()
    publish(service, "a.d")
    with follow(service, last=first["seq"]) as follower:
        assert [follower.message()["topic"] for _ in range(2)] == ["a.c", "a.d"]
    with follow(service, "?since=0") as follower:
        assert [follower.message()["topic"] for _ in range(3)] == ["a.b", "a.c", "a.d"]


def test_a_websocket_has_the_position_first_and_ends_with_the_service(start: Start) -> None:
    service = start()
    url = f"{service.url.replace('http', 'ws')}/exchange/follow/ws?topic=a.b"
    with connect(url, additional_headers={"authorization": f"Bearer {TOKEN}"}) as socket:
        assert json.loads(socket.recv(WAIT_SECONDS))["event"] == "stream.opened"
        published = publish(service, "a.b")
        message = json.loads(socket.recv(WAIT_SECONDS))
        assert (message["event"], message["seq"], message["data"]["body"]) == ("message", published["seq"], "of a.b")
        service.stop()
        with pytest.raises(ConnectionClosed, match="1001"):
            socket.recv(WAIT_SECONDS)


def test_a_stream_has_only_topics_that_the_token_may_read(home: Home, start: Start) -> None:
    home.replace("    tokens:\n", f"    tokens:\n{READER_TOKEN}")
    service = start()
    with follow(service, token=READER) as follower:
        publish(service, "deploy.request")
        publish(service, "review.request")
        assert follower.message()["topic"] == "review.request"


def test_deleted_messages_are_marked_as_a_gap(home: Home, start: Start) -> None:
    home.add("exchange: {retention: 1s}\n")
    home.replace("service:\n", "service:\n  tick_interval: 1s\n")
    service = start()
    for _ in range(3):
        publish(service, "a.b")
    _, claimed = service.ask("POST", "/exchange/claims", {"topic": "a.b", "worker_group": "tests", "max": 3})
    for claim in claimed["claims"]:
        service.ask("POST", f"/exchange/claims/{claim['claim_id']}/complete", {})
    poll_until(lambda: home.rows("SELECT COUNT(*) AS n FROM messages") == [{"n": 0}])
    last = publish(service, "a.c")
    with follow(service, last=1) as follower:
        gap = follower.message()
        assert (gap["event"], gap["from"], gap["to"]) == ("gap", 2, 3)
        assert follower.message()["id"] == last["seq"] == 4
