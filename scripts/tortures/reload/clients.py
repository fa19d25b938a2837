"""Clients that a reload must not disturb: webhook deliveries, runs with a waiting client, an open event stream.

Each client is a thread that records every response. The test sets the key that they use.
"""

import hashlib
import hmac
import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from attrs import define, field, frozen

from scripts.tortures.lib.clients import Acknowledgement
from scripts.tortures.lib.instance import TOKEN
from scripts.tortures.reload.editions import PIPELINE, WEBHOOK_PATH, secret, token

CLIENT_TIMEOUT = 30.0


@frozen
class TimedResponse:
    """A response with its decoded body and the seconds that it took."""

    status: int
    body: Mapping[str, Any]
    seconds: float


class KeepAliveClient:
    """A connection that is used for many requests."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=CLIENT_TIMEOUT)

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> TimedResponse:
        begun = time.monotonic()
        self._connection.request("POST", path, body, dict(headers))
        response = self._connection.getresponse()
        content = json.loads(response.read())
        return TimedResponse(response.status, content, time.monotonic() - begun)

    def close(self) -> None:
        self._connection.close()


def run_pipeline(client: KeepAliveClient, number: int, key: int) -> TimedResponse:
    """Start a run and wait for its end."""
    body = json.dumps({"payload": {"number": number}}).encode()
    return client.post(f"/pipeline/{PIPELINE}", body, {"authorization": f"Bearer {token(key)}"})


def deliver_webhook(client: KeepAliveClient, number: int, key: int) -> TimedResponse:
    body = json.dumps({"number": number}).encode()
    signature = hmac.new(secret(key).encode(), body, hashlib.sha256).hexdigest()
    headers = {"x-signature-256": signature, "x-delivery": f"delivery-{key}-{number}"}
    return client.post(WEBHOOK_PATH, body, headers)


Send = Callable[[KeepAliveClient, int, int], TimedResponse]


@define
class KeyedClients:
    """Threads that send requests with the current key."""

    api: str
    webhooks: str
    deliveries_per_second: float = 5.0
    key: int = 0
    acknowledged: list[Acknowledgement] = field(factory=list)
    runs: list[TimedResponse] = field(factory=list)
    failed: list[str] = field(factory=list)
    max_seconds: float = 0.0
    _done: dict[str, int] = field(factory=dict)
    _stopping: threading.Event = field(factory=threading.Event)
    _threads: list[threading.Thread] = field(factory=list)

    def start(self) -> None:
        work: list[tuple[str, Send]] = [
            ("webhook 1", deliver_webhook),
            ("run 1", run_pipeline),
            ("run 2", run_pipeline),
        ]
        self._threads = [threading.Thread(target=self._send_requests, args=args, name=args[0]) for args in work]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def change_key(self, key: int) -> None:
        """Switch to a key and return when no request with the old one is in progress."""
        self.key = key
        before = dict(self._done)
        deadline = time.monotonic() + CLIENT_TIMEOUT
        # A request in progress may have the old key; the next one does not.
        while any(self._done.get(name, 0) < count + 2 for name, count in before.items()):
            assert time.monotonic() < deadline, f"a client got no response: {before} {self._done} {self.failed}"
            time.sleep(0.01)

    def _send_requests(self, name: str, send: Send) -> None:
        is_run, number = send is run_pipeline, 0
        url = self.api if is_run else self.webhooks
        client = KeepAliveClient(url)
        while not self._stopping.is_set():
            number += 1
            try:
                response = send(client, number * 10 + int(name[-1]), self.key)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.failed.append(f"{name}: {error!r}")
                client = KeepAliveClient(url)
            else:
                self._record(name, response, is_run=is_run)
            self._done[name] = number
            self._stopping.wait(0 if is_run else 1 / self.deliveries_per_second)
        client.close()

    def _record(self, name: str, response: TimedResponse, *, is_run: bool) -> None:
        if response.status not in (200, 202):
            self.failed.append(f"{name}: {response.status} {response.body}")
            return
        self.max_seconds = max(self.max_seconds, response.seconds)
        target = PIPELINE if is_run else "keep"
        self.acknowledged.append(Acknowledgement(response.body["job_id"], target, time.monotonic_ns()))
        if is_run:
            self.runs.append(response)


@define
class EventStreamReader:
    """Reads the event stream over one connection."""

    url: str
    events: list[tuple[int, str, str]] = field(factory=list)
    """Position, name and data of each event."""
    ended: str | None = None
    """Why the stream ended before `stop`."""
    _is_stopping: bool = False
    _thread: threading.Thread | None = None
    _connection: http.client.HTTPConnection | None = None

    def start(self) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=CLIENT_TIMEOUT)
        self._connection.request("GET", "/events?since=0", headers={"authorization": f"Bearer {TOKEN}"})
        response = self._connection.getresponse()
        assert response.status == 200, response.read()
        self._thread = threading.Thread(target=self._read, args=(response,))
        self._thread.start()

    def _read(self, response: http.client.HTTPResponse) -> None:
        block: dict[str, str] = {}
        try:
            for raw in response:
                line = raw.decode().rstrip("\r\n")
                if not line:
                    if "data" in block:
                        self.events.append((int(block["id"]), block["event"], block["data"]))
                    block = {}
                elif not line.startswith(":"):
                    name, _, value = line.partition(": ")
                    block[name] = value
            reason = "the service closed it"
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = repr(error)
        if not self._is_stopping:
            self.ended = reason

    def wait_until(self, position: int, seconds: float = CLIENT_TIMEOUT) -> bool:
        """Return True when all events up to this position have been read."""
        deadline = time.monotonic() + seconds
        while not self.events or self.events[-1][0] < position:
            if self.ended or time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def stop(self) -> None:
        self._is_stopping = True
        if self._connection and self._connection.sock:
            self._connection.sock.close()
        if self._thread:
            self._thread.join(1.0)
