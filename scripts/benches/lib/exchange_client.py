"""Clients of the exchange over the local socket: raw requests, so that the client uses little processor time."""

import json
import selectors
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import define

from scripts.benches.lib.instance import Instance

TIMEOUT = 60.0
CLAIM_ID = b'"claim_id":"'


@define(eq=False)
class SocketClient:
    """One connection. Sends a request, and receives its response later."""

    stream: socket.socket
    _received: bytes = b""

    @classmethod
    @contextmanager
    def connected(cls, instance: Instance) -> Iterator["SocketClient"]:
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(TIMEOUT)
            stream.connect(str(instance.ledger.parent / "ductile.sock"))
            yield cls(stream)

    def fileno(self) -> int:
        return self.stream.fileno()

    def send(self, request: bytes) -> None:
        self.stream.sendall(request)

    def receive(self) -> bytes:
        """Wait for one response and return its body. A status of 300 or more is an error."""
        while (head_end := self._received.find(b"\r\n\r\n")) < 0:
            self._read()
        head, start = self._received[:head_end], head_end + 4
        assert head.startswith(b"HTTP/1.1 2"), self._received[:500]
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        while len(self._received) < start + length:
            self._read()
        body, self._received = self._received[start : start + length], self._received[start + length :]
        return body

    def _read(self) -> None:
        data = self.stream.recv(1 << 16)
        assert data, "the service closed the connection"
        self._received += data

    def ask(self, request: bytes) -> Any:
        """Send a request and return the decoded body of its response."""
        self.send(request)
        return json.loads(self.receive())


def post(path: str, body: Mapping[str, Any]) -> bytes:
    return request_bytes("POST", path, json.dumps(body).encode())


def get(path: str) -> bytes:
    return request_bytes("GET", path, b"")


def request_bytes(method: str, path: str, body: bytes) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def claim_request(topic: str, *, wait: str = "0s") -> bytes:
    return post("/exchange/claims", {"topic": topic, "worker_group": "bench", "wait": wait})


def claim_id_in(answer: bytes) -> str:
    """Return the id of the first claim in the answer. Raises IndexError if there is none."""
    return answer.replace(b" ", b"").split(CLAIM_ID, 1)[1].split(b'"', 1)[0].decode()


def publish_backlog(client: SocketClient, topic: str, count: int) -> None:
    """Publish small messages, a thousand at a time."""
    for start in range(0, count, 1000):
        messages = [{"topic": topic, "body": f"message {number}"} for number in range(start, min(start + 1000, count))]
        client.ask(post("/exchange/messages", {"messages": messages}))


def handle_one_by_one(clients: Sequence[SocketClient], topic: str, count: int) -> float:
    """Let each client claim a message, complete it and claim the next. Return the messages handled per second."""
    claim, ended = claim_request(topic), 0
    claimed: dict[SocketClient, bool] = dict.fromkeys(clients, True)
    """Whether the next response of the client is that of a claim."""
    with selectors.DefaultSelector() as selector:
        begin = time.perf_counter()
        for client in clients:
            selector.register(client, selectors.EVENT_READ, client)
            client.send(claim)
        while ended < count:
            for key, _ in selector.select(TIMEOUT):
                client = key.data
                answer = client.receive()
                if claimed[client]:
                    client.send(post(f"/exchange/claims/{claim_id_in(answer)}/complete", {"body": "done"}))
                else:
                    ended += 1
                    client.send(claim)
                claimed[client] = not claimed[client]
        seconds = time.perf_counter() - begin
    for client in clients:
        client.receive()
    return ended / seconds
