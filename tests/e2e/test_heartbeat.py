"""`heartbeat`: a running service requests the URL of a monitor, and never shows it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from tests.e2e.commands import ductile
from tests.e2e.sample_plugins import OK
from tests.e2e.service import WAIT_SECONDS, Home, Start

SECRET = "s3cret-part-of-the-path"


class Monitor(HTTPServer):
    """A monitor on a local port that records the paths of requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.paths: list[str] = []
        self.changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/ping/{SECRET}"

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.paths) >= count, WAIT_SECONDS), self.paths


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Monitor)
        with self.server.changed:
            self.server.paths.append(self.path)
            self.server.changed.notify_all()
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing to stderr."""


@contextmanager
def monitoring() -> Iterator[Monitor]:
    with Monitor() as monitor:
        thread = threading.Thread(target=monitor.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield monitor
        finally:
            monitor.shutdown()
            thread.join()


def test_a_running_service_sends_heartbeats_and_hides_the_url(home: Home, start: Start) -> None:
    """The URL is masked in views and logs, also when it comes from the environment and the monitor is down."""
    home.plugin("quick", OK)
    home.add("heartbeat: {url: '${MONITOR_URL}', interval: 20ms}\n")
    with monitoring() as monitor:
        service = start(environ={"MONITOR_URL": monitor.url})
        monitor.wait_for(3)
    assert set(monitor.paths) == {f"/ping/{SECRET}"}
    service.wait_for_log("heartbeat failed")
    assert service.run("quick")["status"] == "succeeded"
    _, view = service.ask("GET", "/config/view")
    assert view["heartbeat"]["url"] == "***"
    assert SECRET not in json.dumps([*service.lines, *service.stderr])


def test_a_wrong_url_is_an_error_that_does_not_show_it(home: Home) -> None:
    """It names file and line."""
    home.add(f"heartbeat: {{url: 'monitor.example/{SECRET}'}}\n")
    checked = ductile(home, "config", "check")
    assert checked.exit_code == 78
    assert "heartbeat.url: is not a URL that can be requested" in checked.stdout + checked.stderr
    assert SECRET not in checked.stdout + checked.stderr
