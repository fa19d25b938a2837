"""The service under siege: its two doors, its ledger, and how it bears up.

Starts and stops one service in one directory and looks at its memory, descriptors and log. Knows no attack; the
attacks know it.
"""

import json
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

from scripts.benches.lib.history import fill
from scripts.tortures.grounds import CONFIG, KEEPER, LATE, PLUGINS, TOKENS, WEBHOOKS
from tests.e2e.service import Home, Service

MIB = 1024 * 1024
DESCRIPTORS = 16_000
NEVER_SAID, OUR_ROOMS = ("Traceback", "internal_error"), ("api", "webhooks")
MOST_PATIENCE = 20.0
"""Times as long as on a quiet host."""
SPARE_DESCRIPTORS = 12
"""Connections of the ledger's readers and the like, opened when they are first needed."""


@define
class Findings:
    """What one attack came to: what was counted, and what should not have happened."""

    numbers: dict[str, Any] = field(factory=dict)
    wrong: list[str] = field(factory=list)

    def expect(self, fact: bool, otherwise: str) -> None:
        if not fact:
            self.wrong.append(otherwise)


@frozen
class Footprint:
    """What the service takes up."""

    memory: int
    descriptors: int


@define(eq=False)
class Siege:
    """One service, and where to find it."""

    home: Home
    leniency: float = 1.0
    """How many times as long as promised things may take, on a host that has other things to do; inf: no matter."""
    service: Service = field(init=False)
    services: list[Service] = field(factory=list)
    _known: set[str] = field(factory=set)

    @classmethod
    def lay(cls, directory: Path, *, history: int = 0, leniency: float = 1.0) -> "Siege":
        """A service that is ready, in a directory of its own, with so many jobs behind it."""
        home = Home.make(directory)
        for name, script in PLUGINS.items():
            home.plugin(name, script)
        siege = cls(home, leniency)
        siege.configure()
        if history:
            home.ledger.parent.mkdir(mode=0o700)
            fill(home.ledger, history)
        siege.start()
        return siege

    def configure(self, *, secrets: str = "[first]", knows_late: bool = True) -> None:
        """The next start or reload finds this configuration."""
        self.home.write("config.yaml", CONFIG.replace("      LATE\n", f"      {LATE}\n" if knows_late else ""))
        self.home.write("tokens.yaml", TOKENS)
        self.home.write("webhooks.yaml", WEBHOOKS.replace("SECRETS", secrets))
        self.home.seal()

    def patient(self, seconds: float) -> float:
        """How long to wait for what comes within so many seconds on a quiet host: never for ever."""
        return seconds * min(self.leniency, MOST_PATIENCE)

    def start(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(DESCRIPTORS, hard), hard))
        self.service = self.home.start()
        self.services.append(self.service)

    def restart(self) -> None:
        assert self.service.stop() == 0, self.service.stderr
        self.start()

    def reload(self) -> None:
        status, told = self.ask("POST", "/system/reload")
        assert status == 200, told

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """What the keeper of the service is told."""
        return self.service.ask(method, path, body, token=KEEPER, headers=headers)

    def open_gate(self, *, is_open: bool) -> None:
        """Whether the jobs of `gated` come to their end."""
        gate = self.home.path / "go"
        gate.touch() if is_open else gate.unlink(missing_ok=True)

    @property
    def ports(self) -> tuple[int, int]:
        """Of the API and of the webhooks."""
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

    def footprint(self) -> Footprint:
        pid = self.service.process.pid
        status = Path(f"/proc/{pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found
        return Footprint(int(found[1]) * 1024, len(os.listdir(f"/proc/{pid}/fd")))

    def wait_until_left(self, descriptors: int, seconds: float) -> float | None:
        """How long it took until the descriptors of all guests were given back; None if they were not."""
        begun = time.monotonic()
        while self.footprint().descriptors > descriptors + SPARE_DESCRIPTORS:
            if time.monotonic() - begun > seconds:
                return None
            time.sleep(0.05)
        return time.monotonic() - begun

    def wait_until_idle(self, seconds: float = 60.0) -> bool:
        """True when nothing waits or runs, False if that takes too long."""
        begun = time.monotonic()
        while self.count(where="status IN ('queued', 'running')"):
            if time.monotonic() - begun > seconds:
                return False
            time.sleep(0.05)
        return True

    def complaints(self) -> Iterator[str]:
        """What the service has said that it never should; each is told once."""
        for service in self.services:
            faults = [line for line in service.lines if line["level"] == "error" and line["component"] in OUR_ROOMS]
            said = [*map(json.dumps, service.lines), *service.stderr]
            for line in [*map(json.dumps, faults), *(one for one in said if any(mark in one for mark in NEVER_SAID))]:
                if line not in self._known:
                    self._known.add(line)
                    yield line[:500]

    def end(self) -> None:
        if self.service.process.poll() is None:
            self.service.kill()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def until(fact: Callable[[], bool], seconds: float) -> bool:
    """True as soon as the fact is one; False after so many seconds. For facts in files, which cannot call."""
    with trio.move_on_after(seconds):
        while True:
            if fact():
                return True
            await trio.sleep(0.02)
    return False
