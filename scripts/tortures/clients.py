"""The load: callers with keep-alive connections who write down every job that was acknowledged to them."""

import http.client
import json
import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from attrs import define, field, frozen

from scripts.tortures.arena import TOKEN, Role

PATIENCE = 5.0


@frozen
class Acknowledged:
    """A 202: from this moment on the job may not be lost."""

    job_id: str
    plugin: str
    at: int


@define
class Clients:
    """Callers that go on while cores come and go."""

    roles: Sequence[Role]
    per_second: float
    seed: int
    ledger: Path
    count: int = 4
    acknowledged: list[Acknowledged] = field(factory=list)
    unanswered: int = 0
    refused: list[str] = field(factory=list)
    _url: str | None = None
    _changed: threading.Condition = field(factory=threading.Condition)
    _over: bool = False
    _threads: list[threading.Thread] = field(factory=list)

    def start(self) -> None:
        self._threads = [threading.Thread(target=self._call, args=(number,)) for number in range(self.count)]
        for thread in self._threads:
            thread.start()

    def serve_from(self, url: str | None) -> None:
        """The service is there now; None while it is not."""
        with self._changed:
            self._url = url
            self._changed.notify_all()

    def stop(self) -> None:
        """Nobody calls any more; what was acknowledged is also in the file."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        lines = [f"{one.job_id} {one.plugin} {one.at}\n" for one in self.acknowledged]
        self.ledger.write_text("".join(lines))

    def _next_url(self) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: self._url is not None or self._over)
            return None if self._over else self._url

    def _call(self, number: int) -> None:
        dice = random.Random(f"{self.seed}/{number}")
        asked = [role.name for role in self.roles for _ in range(role.weight)]
        while url := self._next_url():
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)
            try:
                while self._url == url and not self._over:
                    self._post(connection, dice.choice(asked), dice.randrange(1 << 30))
                    time.sleep(dice.expovariate(self.per_second / self.count))
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

    def _post(self, connection: http.client.HTTPConnection, plugin: str, number: int) -> None:
        body = json.dumps({"payload": {"number": number}})
        connection.request("POST", f"/plugin/{plugin}/poll", body, {"authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        content = answer.read()
        if answer.status == 202:
            self.acknowledged.append(Acknowledged(json.loads(content)["job_id"], plugin, time.monotonic_ns()))
        else:
            self.refused.append(f"{answer.status} {content[:200]!r}")
