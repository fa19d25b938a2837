"""The heartbeat: requests while healthy, silence while degraded, and failures that only reach the log."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import trio
from attrs import define, field

from ductile.config.sections.monitoring import Heartbeat, is_request_url
from ductile.core.hub import Hub
from ductile.core.secret import Secret
from ductile.ops.heartbeat import HeartbeatSender
from tests.engine.scheduler_service import open_log

FAST = timedelta(milliseconds=10)
pytestmark = pytest.mark.trio


@define(eq=False)
class Monitor:
    """An HTTP server that records request heads and answers with `status`; with None it never answers."""

    url: str = ""
    status: int | None = 200
    requests: list[str] = field(factory=list)
    _changed: trio.Condition = field(factory=trio.Condition)

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            head = b""
            while b"\r\n\r\n" not in head:
                head += await stream.receive_some()
            async with self._changed:
                self.requests.append(head.decode())
                self._changed.notify_all()
            if self.status is None:
                await trio.sleep_forever()
            await stream.send_all(f"HTTP/1.1 {self.status} X\r\nContent-Length: 2\r\n\r\nok".encode())

    async def receive(self, count: int) -> list[str]:
        """Wait until `count` requests have arrived."""
        with trio.fail_after(30):
            async with self._changed:
                while len(self.requests) < count:
                    await self._changed.wait()
        return self.requests


@define(eq=False)
class Sending:
    """A running heartbeat with its configuration, health and log."""

    monitor: Monitor
    hub: Hub
    lines: Path
    config: Heartbeat | None = None
    is_healthy: bool = True

    def configure(self, **values: object) -> None:
        made = {"url": Secret(f"{self.monitor.url}/ping/s3cret-path?key=s3cret"), "interval": FAST, **values}
        self.config = Heartbeat(**made)  # type: ignore[arg-type]
        self.hub.announce_all()

    def messages(self) -> list[str]:
        return [json.loads(line)["message"] for line in self.lines.read_text().splitlines()]

    async def wait_for_message(self, text: str) -> None:
        with trio.fail_after(30):
            while not any(text in message for message in self.messages()):  # noqa: ASYNC110 - a file
                await trio.sleep(0.005)


@asynccontextmanager
async def sending(tmp_path: Path) -> AsyncIterator[Sending]:
    monitor, hub, lines = Monitor(), Hub(), tmp_path / "log"
    made = Sending(monitor, hub, lines)
    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, monitor.serve, 0, host="127.0.0.1"))
        monitor.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        with open_log(lines) as log:
            nursery.start_soon(HeartbeatSender(lambda: made.config, lambda: made.is_healthy, hub, log).run)
            yield made
            nursery.cancel_scope.cancel()


async def test_a_healthy_service_requests_the_url_at_an_interval(tmp_path: Path) -> None:
    """With path and query. A reload that adds the section takes effect immediately."""
    async with sending(tmp_path) as one:
        one.configure()
        first, *_ = await one.monitor.receive(3)
    assert first.startswith("GET /ping/s3cret-path?key=s3cret HTTP/1.1\r\n")
    assert one.messages() == []


async def test_a_degraded_service_sends_nothing(tmp_path: Path) -> None:
    """It logs that once, and continues when it is healthy again."""
    async with sending(tmp_path) as one:
        one.is_healthy = False
        one.configure()
        await one.wait_for_message("heartbeat withheld")
        assert one.monitor.requests == []
        one.is_healthy = True
        await one.monitor.receive(1)
    assert one.messages() == ["heartbeat withheld: the service is degraded or stopping"]


async def test_failures_are_logged_less_and_less_often(tmp_path: Path) -> None:
    """The first, the second, the fourth …; then that it succeeded again. The URL is not logged."""
    async with sending(tmp_path) as one:
        one.monitor.status = 500
        one.configure()
        await one.monitor.receive(8)
        await one.wait_for_message("heartbeat failed")
        one.monitor.status = 200
        await one.wait_for_message("heartbeat succeeded again")
    failed = [message for message in one.messages() if "failed" in message]
    assert set(failed) == {"heartbeat failed: the monitor responded with HTTP 500"}
    assert len(failed) in (3, 4)
    assert "s3cret" not in one.lines.read_text()


async def test_a_monitor_that_does_not_answer_is_a_failure(tmp_path: Path) -> None:
    """A silent monitor costs one timeout, a closed port nothing; the next request follows."""
    async with sending(tmp_path) as one:
        one.monitor.status = None
        one.configure(timeout=timedelta(milliseconds=20))
        await one.monitor.receive(2)
        await one.wait_for_message("no response within 20ms")
        one.configure(url=Secret("http://127.0.0.1:1/"))
        await one.wait_for_message("Connection refused")


async def test_the_method_can_be_changed(tmp_path: Path) -> None:
    """Some monitors accept only one."""
    async with sending(tmp_path) as one:
        for number, method in enumerate(("HEAD", "POST"), 1):
            one.monitor.requests.clear()
            one.configure(method=method, interval=timedelta(hours=number))
            (request,) = await one.monitor.receive(1)
            assert request.startswith(f"{method} /ping")
    assert one.messages() == []


async def test_only_urls_that_can_be_requested_are_accepted() -> None:
    """Credentials belong into the path or the query, not in front of the host."""
    good = ["https://hc.example/ping/1", "http://127.0.0.1:80/x?y=1&z=%20", "https://[::1]/"]
    bad = [
        "",
        "hc.example/1",
        "ftp://x/",
        "https:///x",
        "https://u:p@x/",
        "https://x/#a",
        "https://x/a b",
        "http://x:0/",
    ]
    assert [url for url in good if not is_request_url(url)] == []
    assert [url for url in bad if is_request_url(url)] == []
