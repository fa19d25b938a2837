"""The clients of the workload: they post jobs and runs over keep-alive connections and record every acknowledgement.

Some continue at once; others wait for the end of the runs that they start and keep the response.
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

from scripts.tortures.lib.instance import TOKEN, Instance

REQUEST_TIMEOUT = 5.0
"""Longer than the timeout of any pipeline."""
JOB_CLIENT_TIMEOUT = 30.0
WAITING_REQUESTS_PER_SECOND = 5.0


@frozen
class RequestTarget:
    """A plugin or pipeline that clients request."""

    name: str
    path: str


@frozen
class Acknowledgement:
    """A 202, or the 200 at the end of a run. From `at` on the job must not be lost."""

    job_id: str
    target: str
    """The plugin or pipeline."""
    at: int
    """Monotonic nanoseconds."""
    number: int = 0
    """The number in the payload of the request."""
    response: Mapping[str, Any] | None = field(default=None, repr=False)
    """The body of the response, if the client waited for the end of the run."""


@frozen
class JobClient:
    """One connection that requests jobs one after the other."""

    connection: http.client.HTTPConnection

    @classmethod
    def connect(cls, url: str | None) -> "JobClient":
        assert url is not None, "the service has no address"
        return cls(http.client.HTTPConnection(urlsplit(url).netloc, timeout=JOB_CLIENT_TIMEOUT))

    def post(self, plugin: str, number: int) -> tuple[int, dict[str, str], Any]:
        """Return status, headers and body of the response."""
        body = json.dumps({"payload": {"number": number}})
        self.connection.request("POST", f"/plugin/{plugin}/poll", body, {"authorization": f"Bearer {TOKEN}"})
        response = self.connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return response.status, headers, json.loads(response.read())


@define
class WorkloadClients:
    """Client threads that continue while services are killed and started."""

    instance: Instance
    per_second: float
    seed: int
    record: Path
    """`stop` writes the acknowledgements to this file."""
    count: int = 4
    waiting: int = 2
    """Clients that wait for synchronous pipelines, if there are any."""
    acknowledged: list[Acknowledgement] = field(factory=list)
    unanswered: int = 0
    refused: list[str] = field(factory=list)
    _url: str | None = None
    _only_waiting: bool = False
    _changed: threading.Condition = field(factory=threading.Condition)
    _is_stopping: bool = False
    _threads: list[threading.Thread] = field(factory=list)

    def start(self) -> None:
        plugins, pipelines = self.instance.plugins, self.instance.pipelines
        targets = [RequestTarget(one.name, f"/plugin/{one.name}/poll") for one in plugins for _ in range(one.weight)]
        targets += [
            RequestTarget(one.name, f"/pipeline/{one.name}?async=true") for one in pipelines for _ in range(one.weight)
        ]
        synchronous = [RequestTarget(one.name, f"/pipeline/{one.name}") for one in pipelines if one.is_synchronous]
        rate = self.per_second / self.count
        work = [(str(number), targets, rate, False) for number in range(self.count)]
        if synchronous:
            rate = WAITING_REQUESTS_PER_SECOND
            work += [(f"waiting/{number}", synchronous, rate, True) for number in range(self.waiting)]
        self._threads = [threading.Thread(target=self._send_requests, args=args) for args in work]
        for thread in self._threads:
            thread.start()

    def use_url(self, url: str | None, *, only_waiting: bool = False) -> None:
        """Send requests to `url`, or pause with None. With `only_waiting`, only waiting clients send requests."""
        with self._changed:
            self._url, self._only_waiting = url, only_waiting
            self._changed.notify_all()

    def wait_for_run_end(self, seconds: float) -> None:
        """Wait until a client gets the end of a run, the service is unreachable, or the time is over."""
        with self._changed:
            before = self.completed
            self._changed.wait_for(lambda: self.completed > before or self._url is None, seconds)

    @property
    def completed(self) -> int:
        """The number of runs whose end was returned to a waiting client."""
        return sum(one.response is not None for one in self.acknowledged)

    def stop(self) -> None:
        """End all threads and write the record."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        lines = [f"{one.job_id} {one.target} {one.at}\n" for one in self.acknowledged]
        self.record.write_text("".join(lines))

    def _next_url(self, waits: bool) -> str | None:
        with self._changed:
            self._changed.wait_for(
                lambda: (self._url is not None and (waits or not self._only_waiting)) or self._is_stopping
            )
            return None if self._is_stopping else self._url

    def _send_requests(self, name: str, targets: Sequence[RequestTarget], per_second: float, waits: bool) -> None:
        rng = random.Random(f"{self.seed}/{name}")
        while url := self._next_url(waits):
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=REQUEST_TIMEOUT)
            try:
                while self._url == url and not self._is_stopping:
                    self._post(connection, rng.choice(targets), rng.randrange(1 << 30))
                    time.sleep(rng.expovariate(per_second))
            except (OSError, http.client.HTTPException):
                self.unanswered += 1
                self._forget_url(url)
            finally:
                connection.close()

    def _forget_url(self, url: str) -> None:
        """Pause all clients until the next service has an address."""
        with self._changed:
            if self._url == url:
                self._url = None
                self._changed.notify_all()

    def _post(self, connection: http.client.HTTPConnection, target: RequestTarget, number: int) -> None:
        body = json.dumps({"payload": {"number": number}})
        connection.request("POST", target.path, body, {"authorization": f"Bearer {TOKEN}"})
        response = connection.getresponse()
        content = response.read()
        if response.status in (200, 202):
            job = json.loads(content)
            end = job if response.status == 200 else None
            with self._changed:
                self.acknowledged.append(Acknowledgement(job["job_id"], target.name, time.monotonic_ns(), number, end))
                self._changed.notify_all()
        else:
            self.refused.append(f"{response.status} {content[:200]!r}")
