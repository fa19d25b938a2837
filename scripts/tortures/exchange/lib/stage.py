"""What the disturbances act on: the service, the workers and the clients of one test, and what was observed of them."""

import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import define, field

from scripts.tortures.exchange.lib.api import Background, ServiceAddress
from scripts.tortures.exchange.lib.checker import ExchangeHistory, read_ledger
from scripts.tortures.exchange.lib.clients import HandWorkers, Publishers
from scripts.tortures.exchange.lib.instance import REQUESTS, RESTART_LEASE_SECONDS, ExchangeInstance, read_commands
from scripts.tortures.exchange.lib.workers import WorkerProcess, Workers
from scripts.tortures.lib.fault_library import FaultLibrary, set_clock_offset
from scripts.tortures.lib.instance import ServiceProcess

STALL_SECONDS = 90.0
"""Longer than the delay of any message and the lease of any claim."""
BUSY_TIMEOUT = 30.0
PUBLISHERS, HANDS = 3, 2
EXPIRY_TIMEOUT = RESTART_LEASE_SECONDS + 20.0
ACTIVE_CLAIMS = "SELECT COUNT(*) FROM claims WHERE worker_group = ? AND status = 'active'"
EXPIRED_CLAIMS = "SELECT COUNT(*) FROM claims WHERE worker_group = ? AND status = 'expired'"
BUSY_GROUPS = "SELECT worker_group FROM claims WHERE status = 'active'"


@define
class Stage:
    """One growing ledger, with services, workers and clients."""

    instance: ExchangeInstance
    library: FaultLibrary
    clock: Path
    publishers: Publishers
    hands: HandWorkers
    workers: Workers
    rng: random.Random
    address: ServiceAddress
    service: ServiceProcess | None = None
    faults: list[str] = field(factory=list)
    counts: Counter[str] = field(factory=Counter)
    ready_seconds: list[float] = field(factory=list)
    _threads: list[Background] = field(factory=list)

    @classmethod
    def build(cls, directory: Path, *, workers: int, per_second: float, seed: int) -> "Stage":
        """Write the instance. Raises UnsupportedHost without a C compiler."""
        instance, address = ExchangeInstance(directory), ServiceAddress()
        instance.build()
        library, clock = FaultLibrary.build(directory, directory / "data"), directory / "clock"
        set_clock_offset(clock, 0.0)
        return cls(
            instance,
            library,
            clock,
            Publishers(address, per_second, seed, PUBLISHERS),
            HandWorkers(address, seed),
            Workers(instance, workers),
            random.Random(seed),
            address,
        )

    def start_clients(self) -> None:
        self._threads = [
            Background(self.publishers.publish_one, PUBLISHERS),
            Background(self.hands.work_once, HANDS),
        ]
        for background in self._threads:
            background.start()

    # ── services ────────────────────────────────────────────────────────────────────────────────────────────────────

    def start_service(self, failpoint: str | None = None) -> ServiceProcess:
        """Start a service and wait until it is ready, or has died at its failpoint."""
        environ = dict(self.library.shifting_clock(self.clock))
        if failpoint:
            environ["DUCTILE_FAILPOINT"] = failpoint
        self.service = service = self.instance.launch(environ)
        if service.wait_until_ready():
            self.ready_seconds.append(service.ready_seconds or 0.0)
            self.address.use(service.url)
            self.workers.fill()
        elif not failpoint:
            self.faults.append(f"a service did not become ready: {service.stderr[-3:]}")
        return service

    def running_service(self) -> ServiceProcess:
        """Return the running service, or start one."""
        if self.service is None:
            return self.start_service()
        self.workers.fill()
        return self.service

    def kill_service(self) -> None:
        """Kill the service, if one is running. One that ended by itself is a fault."""
        if self.service is None:
            return
        self.address.use(None)
        if self.service.process.poll() not in (None, -9):
            self.faults.append(f"a service exited with {self.service.process.returncode}: {self.service.stderr[-3:]}")
        self.service.kill()
        self.service = None
        self.counts["service deaths"] += 1

    def wait_for(self, condition: Callable[[], bool], seconds: float, what: str) -> bool:
        """Wait for a condition. What does not happen in time is a fault."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self.faults.append(f"not within {seconds:.0f} s: {what}")
                return False
            time.sleep(0.05)
        return True

    # ── the ledger ──────────────────────────────────────────────────────────────────────────────────────────────────

    def count(self, statement: str, *parameters: object) -> int:
        with self.instance.read_ledger() as db:
            return int(db.execute(statement, parameters).fetchone()[0])

    def busy_workers(self, count: int) -> list[WorkerProcess]:
        """Return some workers, as soon as one of them has a claim. Starts a service if none is running."""
        service, deadline = self.running_service(), time.monotonic() + BUSY_TIMEOUT
        while time.monotonic() < deadline and not service.wait_for_exit(0.01):
            with self.instance.read_ledger() as db:
                busy = {group for (group,) in db.execute(BUSY_GROUPS)}
            if found := [worker for worker in self.workers.running if worker.group in busy]:
                others = [worker for worker in self.workers.running if worker.group not in busy]
                return [*found, *self.rng.sample(others, len(others))][:count]
        self.faults.append("no worker has a claim")
        return []

    def wait_for_end_of_claims(self, worker: WorkerProcess) -> None:
        """Wait until a worker that does not answer has no claim any more."""
        what = f"the claims of {worker.group} end"
        self.wait_for(lambda: not self.count(ACTIVE_CLAIMS, worker.group), EXPIRY_TIMEOUT, what)

    def expired_claims(self, worker: WorkerProcess) -> int:
        return self.count(EXPIRED_CLAIMS, worker.group)

    def open_requests(self) -> int:
        topics = ", ".join(f"'{topic}'" for topic in sorted(REQUESTS))
        return self.count(f"SELECT COUNT(*) FROM deliveries WHERE topic IN ({topics})")

    def finish(self) -> float:
        """Handle all remaining messages, stop everything, and return the seconds that the messages took."""
        self.running_service()
        for background in self._threads[:1]:
            background.stop()
        begun = last_progress = time.monotonic()
        before = -1
        while (left := self.open_requests()) and time.monotonic() - last_progress < STALL_SECONDS:
            if left != before:
                before, last_progress = left, time.monotonic()
            self.workers.fill()
            time.sleep(0.2)
        if left:
            self.faults.append(f"{left} messages were not handled")
        seconds = time.monotonic() - begun
        for background in self._threads[1:]:
            background.stop()
        self.address.close()
        self.workers.stop_all()
        if self.service and (code := self.service.stop()) != 0:
            self.faults.append(f"the last service exited with {code}: {self.service.stderr[-3:]}")
        self.service = None
        return seconds

    def history(self) -> ExchangeHistory:
        """Collect the records: those of the clients first, because the ledger has everything that they were told."""
        records: dict[str, Any] = {
            "acknowledged": list(self.publishers.acknowledged),
            "ended_by_hand": list(self.hands.ended),
            "refused_late": list(self.hands.refused_late),
            "started": read_commands(self.instance),
            "faults": [*self.faults, *self.workers.faults, *self.address.faults, *self.hands.wrong],
        }
        ledger = read_ledger(self.instance.ledger)
        return ExchangeHistory(**records, **ledger, commands=read_commands(self.instance))
