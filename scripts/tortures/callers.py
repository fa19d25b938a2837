"""Callers who must not notice that the configuration changes: deliveries, runs that are waited for, an open stream.

Each is a thread that writes down every answer. With which keys they come is told to them; why those change is not.
"""

import hashlib
import hmac
import http.client
import json
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from attrs import define, field, frozen

from scripts.tortures.arena import TOKEN
from scripts.tortures.clients import Acknowledged
from scripts.tortures.turnover import HOOK, TURN, secret, token

PATIENCE = 30.0


@frozen
class Answer:
    """What one caller was told, and how long that took."""

    status: int
    body: Mapping[str, Any]
    seconds: float


class Line:
    """A connection that is kept."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        begun = time.monotonic()
        self._connection.request("POST", path, body, dict(headers))
        reply = self._connection.getresponse()
        content = json.loads(reply.read())
        return Answer(reply.status, content, time.monotonic() - begun)

    def close(self) -> None:
        self._connection.close()


def run_a_pipeline(line: Line, number: int, key: int) -> Answer:
    """Waits for the end of the run."""
    body = json.dumps({"payload": {"number": number}}).encode()
    return line.post(f"/pipeline/{TURN}", body, {"authorization": f"Bearer {token(key)}"})


def deliver(line: Line, number: int, key: int) -> Answer:
    body = json.dumps({"number": number}).encode()
    signature = hmac.new(secret(key).encode(), body, hashlib.sha256).hexdigest()
    return line.post(HOOK, body, {"x-signature-256": signature, "x-delivery": f"delivery-{key}-{number}"})


@define
class Callers:
    """Who calls all the time, with the key of the moment."""

    api: str
    webhooks: str
    per_second: float = 5.0
    key: int = 0
    acknowledged: list[Acknowledged] = field(factory=list)
    runs: list[Answer] = field(factory=list)
    failed: list[str] = field(factory=list)
    slowest: float = 0.0
    _done: dict[str, int] = field(factory=dict)
    _over: threading.Event = field(factory=threading.Event)
    _threads: list[threading.Thread] = field(factory=list)

    def start(self) -> None:
        work = [("webhook 1", deliver), ("run 1", run_a_pipeline), ("run 2", run_a_pipeline)]
        self._threads = [threading.Thread(target=self._call, args=args, name=args[0]) for args in work]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def change_to(self, key: int) -> None:
        """Nobody comes with the old key any more, and all have been here with the new one."""
        self.key = key
        before = dict(self._done)
        deadline = time.monotonic() + PATIENCE
        # The call that was under way may have begun with the old key; the one after it has not.
        while any(self._done.get(name, 0) < count + 2 for name, count in before.items()):
            assert time.monotonic() < deadline, f"somebody waits for an answer: {before} {self._done} {self.failed}"
            time.sleep(0.01)

    def _call(self, name: str, ask: Any) -> None:
        line, number = Line(self.webhooks if ask is deliver else self.api), 0
        while not self._over.is_set():
            number += 1
            try:
                answer = ask(line, number * 10 + int(name[-1]), self.key)
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.failed.append(f"{name}: {error!r}")
                line = Line(self.webhooks if ask is deliver else self.api)
            else:
                self._take(name, answer, is_run=ask is run_a_pipeline)
            self._done[name] = number
            self._over.wait(1 / self.per_second if ask is deliver else 0)
        line.close()

    def _take(self, name: str, answer: Answer, *, is_run: bool) -> None:
        if answer.status not in (200, 202):
            self.failed.append(f"{name}: {answer.status} {answer.body}")
            return
        self.slowest = max(self.slowest, answer.seconds)
        self.acknowledged.append(
            Acknowledged(answer.body["job_id"], TURN if is_run else "keep", time.monotonic_ns(), 0)
        )
        if is_run:
            self.runs.append(answer)


@define
class Listener:
    """Follows the events over one connection; `heard` has each block as it came."""

    url: str
    heard: list[tuple[int, str, str]] = field(factory=list)
    """Position, name and data."""
    ended: str | None = None
    """Why the stream was over, if it was before we left."""
    _leaving: bool = False
    _thread: threading.Thread | None = None
    _connection: http.client.HTTPConnection | None = None

    def start(self) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=PATIENCE)
        self._connection.request("GET", "/events?since=0", headers={"authorization": f"Bearer {TOKEN}"})
        reply = self._connection.getresponse()
        assert reply.status == 200, reply.read()
        self._thread = threading.Thread(target=self._listen, args=(reply,))
        self._thread.start()

    def _listen(self, reply: http.client.HTTPResponse) -> None:
        block: dict[str, str] = {}
        try:
            for raw in reply:
                line = raw.decode().rstrip("\r\n")
                if not line:
                    if "data" in block:
                        self.heard.append((int(block["id"]), block["event"], block["data"]))
                    block = {}
                elif not line.startswith(":"):
                    name, _, value = line.partition(": ")
                    block[name] = value
            said = "the service closed it"
        except (OSError, http.client.HTTPException, ValueError) as error:
            said = repr(error)
        if not self._leaving:
            self.ended = said

    def wait_until(self, position: int, seconds: float = PATIENCE) -> bool:
        """True when everything up to there was heard."""
        deadline = time.monotonic() + seconds
        while not self.heard or self.heard[-1][0] < position:
            if self.ended or time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def stop(self) -> None:
        self._leaving = True
        if self._connection and self._connection.sock:
            self._connection.sock.close()
        if self._thread:
            self._thread.join(1.0)


def webhook_address(said: list[str]) -> str:
    """The second address of the line with which a core says that it is ready."""
    (line,) = [line for line in said if " is ready: " in line]
    addresses = [part.strip(" ,\n") for part in line.split() if part.startswith("http://")]
    return addresses[1]


__all__ = ["Answer", "Callers", "Line", "Listener", "deliver", "run_a_pipeline", "webhook_address"]
