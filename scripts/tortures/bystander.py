"""Good traffic beside an attack: callers who ask for ordinary things, all the time, and measure each answer.

A process of its own, so that the attacker's work does not look like the service's. Comes from an address of its own.
Prints what it found when its standard input is closed.
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

from scripts.tortures.grounds import KEEPER, bearer, signed

ADDRESS = "127.0.0.2"
PATIENCE = 30.0


@frozen
class Found:
    """What good callers have lived through."""

    asked: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    lag_p99_ms: float
    failed: list[str]


@define(eq=False)
class Bystander:
    """Ordinary callers, from `start` to `stop`."""

    process: "subprocess.Popen[str]"

    @classmethod
    def start(cls, ports: tuple[int, int], *, per_second: float = 40.0) -> "Bystander":
        """At the API's and the webhooks' door."""
        command = [sys.executable, "-m", "scripts.tortures.bystander", *map(str, ports), str(per_second)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout
        assert process.stdout.readline() == "here\n"
        return cls(process)

    def stop(self) -> Found:
        said, _ = self.process.communicate("", PATIENCE * 2)
        return Found(**json.loads(said))


@define(eq=False)
class Caller:
    """One connection that is kept, and what came over it."""

    port: int
    ask: Callable[["Caller", int], tuple[str, str, bytes | None, dict[str, str]]]
    per_second: float
    seconds: list[float] = field(factory=list)
    lags: list[float] = field(factory=list)
    failed: list[str] = field(factory=list)

    def go_on(self, over: threading.Event) -> None:
        connection, number = self._connect(), 0
        while not over.wait(1 / self.per_second):
            number += 1
            method, path, body, headers = self.ask(self, number)
            begun = time.monotonic()
            try:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(f"{method} {path}: {error!r}")
                connection.close()
                connection = self._connect()
                continue
            self.seconds.append(time.monotonic() - begun)
            if answer.status not in (200, 202):
                self.failed.append(f"{method} {path}: {answer.status} {content[:200]!r}")
            if path == "/metrics":
                (line,) = [line for line in content.splitlines() if line.startswith(b"ductile_loop_lag_seconds ")]
                self.lags.append(float(line.split()[1]))
        connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE, source_address=(ADDRESS, 0))


def call_the_api(caller: Caller, number: int) -> tuple[str, str, bytes | None, dict[str, str]]:
    if number % 20 == 0:
        return "POST", "/plugin/well/poll", b'{"payload": {"from": "a bystander"}}', bearer(KEEPER)
    if number % 10 == 3:
        return "GET", "/jobs?limit=5", None, bearer(KEEPER)
    if number % 10 == 7:
        return "GET", "/metrics", None, bearer(KEEPER)
    return "GET", "/healthz", None, {}


def deliver(caller: Caller, number: int) -> tuple[str, str, bytes | None, dict[str, str]]:
    if number % 10:
        return "GET", "/healthz", None, {}
    body = json.dumps({"number": number}).encode()
    return "POST", "/hook/well", body, signed(body, f"bystander-{time.monotonic_ns()}")


def percentile(values: list[float], share: float) -> float:
    """In milliseconds; 0 for none."""
    return round(sorted(values)[min(len(values) - 1, int(len(values) * share))] * 1000, 1) if values else 0.0


def main() -> None:
    api, hooks, per_second = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    callers = [Caller(api, call_the_api, per_second), Caller(hooks, deliver, per_second)]
    over = threading.Event()
    threads = [threading.Thread(target=one.go_on, args=(over,)) for one in callers]
    for thread in threads:
        thread.start()
    print("here", flush=True)
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()
    print(json.dumps(summary(callers)), flush=True)


def summary(callers: list[Caller]) -> dict[str, Any]:
    seconds = [one for caller in callers for one in caller.seconds]
    lags = [one for caller in callers for one in caller.lags]
    return {
        "asked": len(seconds),
        "p50_ms": percentile(seconds, 0.5),
        "p99_ms": percentile(seconds, 0.99),
        "max_ms": percentile(seconds, 1.0),
        "lag_p99_ms": percentile(lags, 0.99),
        "failed": [one for caller in callers for one in caller.failed],
    }


if __name__ == "__main__":
    main()
