"""The load: callers with keep-alive connections who write down every job that was acknowledged to them.

Some ask for jobs and runs and go on at once; others wait for the end of the runs they start and keep what they hear.
"""

import http.client
import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from attrs import define, field, frozen

from scripts.tortures.arena import TOKEN
from scripts.tortures.play import Role, Script

PATIENCE = 5.0
"""Longer than the caller of any pipeline has to wait for an answer."""
LONG_PATIENCE = 30.0
WAITS_PER_SECOND = 5.0


@frozen
class Call:
    """What a caller may ask for: a plugin or a pipeline."""

    name: str
    path: str


@frozen
class Acknowledged:
    """A 202, or the 200 at the end of a run: from this moment on the job may not be lost."""

    job_id: str
    plugin: str
    """Or pipeline."""
    at: int
    number: int = 0
    """What it was asked with."""
    answer: Mapping[str, Any] | None = field(default=None, repr=False)
    """What a caller was told who waited until the run was over."""


@frozen
class Caller:
    """Somebody with a connection who asks for one job after the other."""

    connection: http.client.HTTPConnection

    @classmethod
    def to(cls, url: str | None) -> "Caller":
        assert url is not None, "nobody is there"
        return cls(http.client.HTTPConnection(urlsplit(url).netloc, timeout=LONG_PATIENCE))

    def post(self, plugin: str, number: int) -> tuple[int, dict[str, str], Any]:
        """Status, headers and body of the answer."""
        body = json.dumps({"payload": {"number": number}})
        self.connection.request("POST", f"/plugin/{plugin}/poll", body, {"authorization": f"Bearer {TOKEN}"})
        reply = self.connection.getresponse()
        return reply.status, {name.lower(): value for name, value in reply.getheaders()}, json.loads(reply.read())


@define
class Clients:
    """Callers that go on while cores come and go."""

    roles: Sequence[Role]
    per_second: float
    seed: int
    ledger: Path
    count: int = 4
    scripts: Sequence[Script] = ()
    waiting: int = 2
    """Callers who wait for synchronous pipelines, if there are any."""
    acknowledged: list[Acknowledged] = field(factory=list)
    unanswered: int = 0
    refused: list[str] = field(factory=list)
    _url: str | None = None
    _is_quiet: bool = False
    _changed: threading.Condition = field(factory=threading.Condition)
    _over: bool = False
    _threads: list[threading.Thread] = field(factory=list)

    def start(self) -> None:
        at_once = [Call(one.name, f"/plugin/{one.name}/poll") for one in self.roles for _ in range(one.weight)]
        at_once += [
            Call(one.name, f"/pipeline/{one.name}?async=true") for one in self.scripts for _ in range(one.weight)
        ]
        at_the_end = [Call(one.name, f"/pipeline/{one.name}") for one in self.scripts if one.is_synchronous]
        rate = self.per_second / self.count
        work = [(str(number), at_once, rate, False) for number in range(self.count)]
        if at_the_end:
            work += [(f"waiting/{number}", at_the_end, WAITS_PER_SECOND, True) for number in range(self.waiting)]
        self._threads = [threading.Thread(target=self._call, args=args) for args in work]
        for thread in self._threads:
            thread.start()

    def serve_from(self, url: str | None, *, quiet: bool = False) -> None:
        """The service is there now; None while it is not. While it is quiet, only those call who wait for the end."""
        with self._changed:
            self._url, self._is_quiet = url, quiet
            self._changed.notify_all()

    def wait_for_an_answer(self, seconds: float) -> None:
        """Somebody was told the end of a run just now; or nobody was in time, or the service is gone."""
        with self._changed:
            before = self.answered
            self._changed.wait_for(lambda: self.answered > before or self._url is None, seconds)

    @property
    def answered(self) -> int:
        return sum(one.answer is not None for one in self.acknowledged)

    def stop(self) -> None:
        """Nobody calls any more; what was acknowledged is also in the file."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        lines = [f"{one.job_id} {one.plugin} {one.at}\n" for one in self.acknowledged]
        self.ledger.write_text("".join(lines))

    def _next_url(self, waits: bool) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: (self._url is not None and (waits or not self._is_quiet)) or self._over)
            return None if self._over else self._url

    def _call(self, name: str, calls: Sequence[Call], per_second: float, waits: bool) -> None:
        dice = random.Random(f"{self.seed}/{name}")
        while url := self._next_url(waits):
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
            try:
                while self._url == url and not self._over:
                    self._post(connection, dice.choice(calls), dice.randrange(1 << 30))
                    time.sleep(dice.expovariate(per_second))
            except (OSError, http.client.HTTPException):
                self.unanswered += 1
                self._give_up(url)
            finally:
                connection.close()

    def _give_up(self, url: str) -> None:
        """This address is dead for everybody, until the next core tells its own."""
        with self._changed:
            if self._url == url:
                self._url = None
                self._changed.notify_all()

    def _post(self, connection: http.client.HTTPConnection, call: Call, number: int) -> None:
        body = json.dumps({"payload": {"number": number}})
        connection.request("POST", call.path, body, {"authorization": f"Bearer {TOKEN}"})
        reply = connection.getresponse()
        content = reply.read()
        if reply.status in (200, 202):
            told = json.loads(content)
            answer = told if reply.status == 200 else None
            with self._changed:
                self.acknowledged.append(Acknowledged(told["job_id"], call.name, time.monotonic_ns(), number, answer))
                self._changed.notify_all()
        else:
            self.refused.append(f"{reply.status} {content[:200]!r}")
