"""Requests to a service that can die at any moment."""

import http.client
import json
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from attrs import define, field, frozen

from scripts.tortures.lib.instance import TOKEN

REQUEST_TIMEOUT = 20.0


@frozen
class Answer:
    """A response."""

    status: int
    body: Mapping[str, Any]


@define
class ServiceAddress:
    """The address of the running service. Shared by the threads of all clients."""

    faults: list[str] = field(factory=list)
    """Responses that no client may get."""
    unanswered: int = 0
    _url: str | None = None
    _is_over: bool = False
    _changed: threading.Condition = field(factory=threading.Condition)

    def use(self, url: str | None) -> None:
        """Send requests to `url`, or pause with None."""
        with self._changed:
            self._url = url
            self._changed.notify_all()

    def close(self) -> None:
        """End the wait of every client."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait(self) -> str | None:
        """Wait for a service; None if there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._url is not None or self._is_over)
            return None if self._is_over else self._url

    def post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Answer | None:
        """Send the request until a service answers. Returns None if there is no service any more."""
        while url := self.wait():
            try:
                return self._post(url, path, body, headers or {})
            except (OSError, http.client.HTTPException):
                self._forget(url)
        return None

    def _post(self, url: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Answer:
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=REQUEST_TIMEOUT)
        try:
            all_headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json", **headers}
            connection.request("POST", path, json.dumps(body), all_headers)
            response = connection.getresponse()
            answer = Answer(response.status, json.loads(response.read()))
        finally:
            connection.close()
        if answer.status >= 500 and answer.status != http.HTTPStatus.SERVICE_UNAVAILABLE:
            self.faults.append(f"POST {path}: {answer.status} {answer.body}")
        return answer

    def _forget(self, url: str) -> None:
        """Pause all clients until the next service has an address."""
        with self._changed:
            self.unanswered += 1
            if self._url == url:
                self._url = None


@define
class Background:
    """Threads that repeat a function with their number until `stop`."""

    work: Callable[[int], None]
    count: int
    _is_stopping: threading.Event = field(factory=threading.Event)
    _threads: list[threading.Thread] = field(factory=list)

    def start(self) -> None:
        self._threads = [threading.Thread(target=self._repeat, args=[number]) for number in range(self.count)]
        for thread in self._threads:
            thread.start()

    def _repeat(self, number: int) -> None:
        while not self._is_stopping.is_set():
            self.work(number)

    def stop(self) -> None:
        """Finish what has begun. A service must be running."""
        self._is_stopping.set()
        for thread in self._threads:
            thread.join()
