"""Background clients: they send ordinary requests during an attack and measure each response.

They run in their own process, so that the attackers do not slow them down, and use their own address. The process
prints its report when its standard input is closed.
"""

import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from attrs import define, field, frozen

from scripts.tortures.http.lib.target_config import ADMIN_TOKEN, bearer, signed
from scripts.tortures.lib.report import percentile_ms

ADDRESS = "127.0.0.2"
REQUEST_TIMEOUT = 30.0


@frozen
class BackgroundReport:
    """The results of all background clients."""

    asked: int
    """The number of responses."""
    p50_ms: float
    p99_ms: float
    max_ms: float
    lag_p99_ms: float
    """The event loop lag that the service reported."""
    failed: list[str]


@define(eq=False)
class BackgroundClients:
    """The process with the background clients."""

    process: "subprocess.Popen[str]"

    @classmethod
    def start(cls, ports: tuple[int, int], *, per_second: float = 40.0) -> "BackgroundClients":
        """Start one client for the API and one for the webhook listener."""
        command = [sys.executable, "-m", __name__, *map(str, ports), str(per_second)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        assert process.stdout.readline() == "started\n"
        return cls(process)

    def stop(self) -> BackgroundReport:
        output, _ = self.process.communicate("", REQUEST_TIMEOUT * 2)
        return BackgroundReport(**json.loads(output))


RequestParts = tuple[str, str, bytes | None, dict[str, str]]


@define(eq=False)
class BackgroundClient:
    """One keep-alive connection and its measurements."""

    port: int
    next_request: Callable[[int], RequestParts]
    per_second: float
    seconds: list[float] = field(factory=list)
    lags: list[float] = field(factory=list)
    failed: list[str] = field(factory=list)

    def send_requests(self, stopping: threading.Event) -> None:
        connection, number = self._connect(), 0
        while not stopping.wait(1 / self.per_second):
            number += 1
            method, path, body, headers = self.next_request(number)
            begun = time.monotonic()
            try:
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                content = response.read()
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(f"{method} {path}: {error!r}")
                connection.close()
                connection = self._connect()
                continue
            self.seconds.append(time.monotonic() - begun)
            if response.status not in (200, 202):
                self.failed.append(f"{method} {path}: {response.status} {content[:200]!r}")
            if path == "/metrics":
                (line,) = [line for line in content.splitlines() if line.startswith(b"ductile_loop_lag_seconds ")]
                self.lags.append(float(line.split()[1]))
        connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=REQUEST_TIMEOUT, source_address=(ADDRESS, 0))


def api_request(number: int) -> RequestParts:
    if number % 20 == 0:
        return "POST", "/plugin/ok/poll", b'{"payload": {"from": "a background client"}}', bearer(ADMIN_TOKEN)
    if number % 10 == 3:
        return "GET", "/jobs?limit=5", None, bearer(ADMIN_TOKEN)
    if number % 10 == 7:
        return "GET", "/metrics", None, bearer(ADMIN_TOKEN)
    return "GET", "/healthz", None, {}


def webhook_request(number: int) -> RequestParts:
    if number % 10:
        return "GET", "/healthz", None, {}
    body = json.dumps({"number": number}).encode()
    return "POST", "/hook/ok", body, signed(body, f"background-{time.monotonic_ns()}")


def report(clients: list[BackgroundClient]) -> dict[str, Any]:
    seconds = [one for client in clients for one in client.seconds]
    lags = [one for client in clients for one in client.lags]
    return {
        "asked": len(seconds),
        "p50_ms": percentile_ms(seconds, 0.5),
        "p99_ms": percentile_ms(seconds, 0.99),
        "max_ms": percentile_ms(seconds, 1.0),
        "lag_p99_ms": percentile_ms(lags, 0.99),
        "failed": [one for client in clients for one in client.failed],
    }


def main() -> None:
    api, hooks, per_second = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    clients = [BackgroundClient(api, api_request, per_second), BackgroundClient(hooks, webhook_request, per_second)]
    stopping = threading.Event()
    threads = [threading.Thread(target=one.send_requests, args=(stopping,)) for one in clients]
    for thread in threads:
        thread.start()
    print("started", flush=True)
    sys.stdin.read()
    stopping.set()
    for thread in threads:
        thread.join()
    print(json.dumps(report(clients)), flush=True)


if __name__ == "__main__":
    main()
