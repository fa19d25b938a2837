"""The service that is attacked: start, configure and reload it, and measure its memory, descriptors and log."""

import json
import os
import re
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

from scripts.benches.lib.history import fill
from scripts.tortures.http.lib.target_config import ADMIN_TOKEN, CONFIG, PLUGINS, REMOVABLE_ENTRY, TOKENS, WEBHOOKS
from scripts.tortures.lib.harness import lenient_wait
from tests.e2e.service import Home, Service

MIB = 1024 * 1024
MAX_DESCRIPTORS = 16_000
FORBIDDEN_OUTPUT, HTTP_COMPONENTS = ("Traceback", "internal_error"), ("api", "webhooks")
SPARE_DESCRIPTORS = 12
"""Connections of ledger readers and the like, which are opened on demand."""


@define
class AttackResult:
    """The numbers of one attack, and its violations."""

    numbers: dict[str, Any] = field(factory=dict)
    violations: list[str] = field(factory=list)

    def expect(self, condition: bool, violation: str) -> None:
        if not condition:
            self.violations.append(violation)


@frozen
class ResourceUsage:
    """The resident memory of the service in bytes, and its open descriptors."""

    memory: int
    descriptors: int


@define(eq=False)
class TargetService:
    """One instance and its running service."""

    home: Home
    leniency: float = 1.0
    """Factor for all time limits; with inf, speeds are not judged."""
    service: Service = field(init=False)
    services: list[Service] = field(factory=list)
    _reported: set[str] = field(factory=set)

    @classmethod
    def create(cls, directory: Path, *, existing_jobs: int = 0, leniency: float = 1.0) -> "TargetService":
        """Start a service with this number of finished jobs in its ledger."""
        home = Home.make(directory)
        for name, script in PLUGINS.items():
            home.plugin(name, script)
        target = cls(home, leniency)
        target.configure()
        if existing_jobs:
            home.ledger.parent.mkdir(mode=0o700)
            fill(home.ledger, existing_jobs)
        target.start()
        return target

    def configure(self, *, secrets: str = "[first]", has_removable_token: bool = True) -> None:
        """Write the configuration for the next start or reload."""
        removable = f"      {REMOVABLE_ENTRY}\n" if has_removable_token else ""
        self.home.write("config.yaml", CONFIG.replace("      REMOVABLE\n", removable))
        self.home.write("tokens.yaml", TOKENS)
        self.home.write("webhooks.yaml", WEBHOOKS.replace("SECRETS", secrets))
        self.home.seal()

    def wait_seconds(self, seconds: float) -> float:
        """Return how long to wait for what takes this long on an idle host."""
        return lenient_wait(seconds, self.leniency)

    def start(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(MAX_DESCRIPTORS, hard), hard))
        self.service = self.home.start()
        self.services.append(self.service)

    def restart(self) -> None:
        assert self.service.stop() == 0, self.service.stderr
        self.start()

    def reload(self) -> None:
        status, body = self.request("POST", "/system/reload")
        assert status == 200, body

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Send a valid request with all scopes; return status and body."""
        return self.service.ask(method, path, body, token=ADMIN_TOKEN, headers=headers)

    def open_gate(self, *, is_open: bool) -> None:
        """Let the jobs of the plugin `gated` end, or make them wait."""
        gate = self.home.path / "go"
        gate.touch() if is_open else gate.unlink(missing_ok=True)

    @property
    def ports(self) -> tuple[int, int]:
        """The ports of the API and of the webhook listener."""
        (line,) = [line for line in self.service.stderr if " is ready: " in line]
        api, hooks = re.findall(r"http://[^,\s]+:(\d+)", line)
        return int(api), int(hooks)

    @property
    def api(self) -> int:
        return self.ports[0]

    @property
    def hooks(self) -> int:
        return self.ports[1]

    def count(self, table: str = "job_queue", where: str = "1") -> int:
        found: int = self.home.rows(f"SELECT COUNT(*) AS n FROM {table} WHERE {where}")[0]["n"]
        return found

    def resource_usage(self) -> ResourceUsage:
        pid = self.service.process.pid
        status = Path(f"/proc/{pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found
        return ResourceUsage(int(found[1]) * 1024, len(os.listdir(f"/proc/{pid}/fd")))

    def wait_until_memory_below(self, limit: int, seconds: float) -> int:
        """Return the memory when it is below the limit, or when the time is over."""
        deadline = time.monotonic() + seconds
        while (memory := self.resource_usage().memory) >= limit and time.monotonic() < deadline:
            time.sleep(0.005)
        return memory

    def wait_until_released(self, descriptors: int, seconds: float) -> float | None:
        """Return the seconds until the descriptors of all attackers were released; None if they were not."""
        begun = time.monotonic()
        while self.resource_usage().descriptors > descriptors + SPARE_DESCRIPTORS:
            if time.monotonic() - begun > seconds:
                return None
            time.sleep(0.05)
        return time.monotonic() - begun

    def wait_until_idle(self, seconds: float = 60.0) -> bool:
        """Return True when no job is queued or running, False if that takes too long."""
        begun = time.monotonic()
        while self.count(where="status IN ('queued', 'running')"):
            if time.monotonic() - begun > seconds:
                return False
            time.sleep(0.05)
        return True

    def forbidden_output(self) -> Iterator[str]:
        """Yield each forbidden line of the log and of stderr once."""
        for service in self.services:
            errors = [
                line for line in service.lines if line["level"] == "error" and line["component"] in HTTP_COMPONENTS
            ]
            output = [*map(json.dumps, service.lines), *service.stderr]
            forbidden = [line for line in output if any(text in line for text in FORBIDDEN_OUTPUT)]
            for line in [*map(json.dumps, errors), *forbidden]:
                if line not in self._reported:
                    self._reported.add(line)
                    yield line[:500]

    def kill(self) -> None:
        if self.service.process.poll() is None:
            self.service.kill()


async def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll a condition; return True as soon as it holds, False after so many seconds."""
    with trio.move_on_after(seconds):
        while True:
            if condition():
                return True
            await trio.sleep(0.02)
    return False
