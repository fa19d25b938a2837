"""A scheduler on a virtual clock with a real ledger. The test decides how jobs end."""

import json
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import trio
from attrs import define, field

from ductile.config.snapshot import Snapshot
from ductile.core.hub import Hub
from ductile.core.logs import Log
from ductile.core.model import Breaker, Completion, Dead, Evidence, Failed, Job, Outcome, Succeeded
from ductile.engine import breaker
from ductile.engine.scheduling.scheduler import Scheduler
from ductile.engine.scheduling.simulate import VirtualClock
from ductile.ledger.admin.job_actions import cancel
from ductile.ledger.completion.record import record
from ductile.ledger.queue.claim import claim
from ductile.ledger.queue.recover import recover_orphans
from ductile.ledger.storage.async_ledger import Ledger, open_ledger
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import breakers, schedules
from ductile.ledger.tables.schedules import EntryStatus, ScheduleEntry
from tests.e2e.service import Home
from tests.engine.builders import snapshot_of
from tests.ledger.reading import read_now

NOON = datetime(2026, 3, 9, 12, tzinfo=UTC)
"""A Monday."""
SECOND, MINUTE, HOUR, DAY = (timedelta(**{unit: 1}) for unit in ("seconds", "minutes", "hours", "days"))
OK = Succeeded(Evidence(started_at=NOON, duration=SECOND))
FAILED = Failed("broken")


@define(eq=False)
class CountingLedger:
    """A ledger that counts its transactions."""

    ledger: Ledger
    writes: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ledger, name)

    async def write(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await self.transact(lambda db: function(db, *args, **kwargs))

    async def transact(self, work: Callable[[Db], Any], **options: Any) -> Any:
        self.writes += 1
        return await self.ledger.transact(work, **options)


@define(eq=False)
class SchedulerService:
    """One configuration, one ledger and one scheduler at a time, on a virtual clock."""

    home: Home
    ledger: Ledger
    log: Log
    lines: Path
    snapshot: Snapshot
    clock: VirtualClock = field(factory=lambda: VirtualClock(NOON))
    hub: Hub = field(factory=Hub)
    unhealthy: set[str] = field(factory=set)
    stopped: list[str] = field(factory=list)
    """Jobs that the scheduler stopped."""
    scheduler: Scheduler = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.start()

    # ── the service ─────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Replace the scheduler, as a restart of the service does."""
        self.scheduler = Scheduler(
            self.ledger,
            self.hub,
            self.clock,
            self.log,
            lambda: self.snapshot,
            lambda: self.unhealthy,
            lambda job_id, _: self.stopped.append(job_id),
        )

    def configure(self, plugins: str) -> None:
        """Replace the plugins of the configuration."""
        text = (self.home.path / "config.yaml").read_text().partition("plugins:\n")[0]
        self.home.write("config.yaml", f"{text}plugins:\n{plugins}\n")
        self.snapshot = snapshot_of(self.home)

    async def tick(self) -> datetime | None:
        return await self.scheduler.tick()

    async def advance_to(self, moment: datetime, *, outcome: Outcome | None = OK) -> None:
        """Run ticks until `moment`. Jobs end with `outcome` as soon as they are created; None leaves them queued."""
        while True:
            until = await self.tick()
            if outcome is not None:
                await self.run_jobs(outcome)
            if self.clock.now() >= moment:
                return
            self.clock.advance_to(min(until or moment, moment))

    async def advance_by(self, span: timedelta, *, outcome: Outcome | None = OK) -> None:
        await self.advance_to(self.clock.now() + span, outcome=outcome)

    async def refresh(self) -> None:
        """Run a tick as after an announced change."""
        self.scheduler._is_stale = True
        await self.tick()

    # ── jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def claim(self, limit: int = 1000) -> tuple[Job, ...]:
        free = dict.fromkeys(self.snapshot.plugins, limit)
        claimed = await self.ledger.write(claim, now=self.clock.now(), run_id="run", free=free, limit=limit)
        return claimed.jobs

    async def complete(self, job: Job, outcome: Outcome = OK) -> None:
        """Record the outcome as the dispatcher does, including the breaker."""
        rule = breaker.completion_rule(self.snapshot.plugins[job.plugin].entry.circuit_breaker)
        completion = Completion(job_id=job.id, attempt=job.attempt, outcome=outcome, breaker=rule)
        await self.ledger.write(record, completion, now=self.clock.now())

    async def run_jobs(self, outcome: Outcome = OK) -> None:
        """Run all queued jobs with this outcome."""
        for job in await self.claim():
            await self.complete(job, outcome)

    async def cancel(self, job_id: str) -> None:
        await self.ledger.write(cancel, job_id, "operator", now=self.clock.now())

    async def crash(self) -> None:
        """Restart after a crash: recover the running jobs."""
        await self.ledger.write(recover_orphans, run_id="another", now=self.clock.now())
        self.start()

    def jobs(self, columns: str = "slot_at", where: str = "1") -> list[Any]:
        found = self.rows(f"SELECT {columns} FROM job_queue WHERE {where} ORDER BY seq")
        return [row[0] if len(row) == 1 else row for row in found]

    def slots(self, form: str = "%H:%M") -> list[str]:
        """Return the slots that became jobs."""
        return [f"{datetime.fromisoformat(slot):{form}}" for slot in self.jobs()]

    # ── the ledger and the log ──────────────────────────────────────────────────────────────────────────────────────

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        def select(db: Db) -> list[tuple[Any, ...]]:
            return db.execute(statement).fetchall()

        return read_now(self.ledger, select)

    def entry(self, plugin: str = "echo", schedule_id: str = "default") -> ScheduleEntry:
        found = read_now(self.ledger, schedules.get, plugin, schedule_id)
        assert found is not None
        return found

    async def set_status(
        self, status: EntryStatus, plugin: str = "echo", schedule_id: str = "default", **why: str
    ) -> None:
        """Pause or resume a schedule as an operator does. `why` has its `reason` and `actor`."""
        await self.ledger.write(schedules.set_status, plugin, schedule_id, status, now=self.clock.now(), **why)
        await self.refresh()

    def breaker(self, plugin: str = "echo", command: str = "poll") -> Breaker:
        return read_now(self.ledger, breakers.get, plugin, command)

    async def reset(self, plugin: str = "echo", command: str = "poll") -> None:
        change = breaker.reset(self.breaker(plugin, command))
        await self.ledger.write(breakers.put, change, now=self.clock.now())
        await self.refresh()

    def skips(self) -> list[tuple[str, int | None]]:
        """Return reason and count of the skipped slots in the journal; a held slot has no count."""
        rows = self.rows("SELECT data FROM journal WHERE kind = 'scheduler.skipped' ORDER BY seq")
        return [(data["reason"], data.get("count")) for data in (json.loads(row[0]) for row in rows)]

    def log_messages(self) -> list[str]:
        """Close the log and return its messages."""
        self.log.close()
        return [json.loads(line)["message"] for line in self.lines.read_text().splitlines()]


@asynccontextmanager
async def open_scheduler_service(path: Path, plugins: str) -> AsyncIterator[SchedulerService]:
    """Open a service with these `plugins:`. The plugins `echo` and `other` have the commands poll, sync and handle."""
    home = Home.make(path / "ductile")
    for name in ("echo", "other"):
        home.plugin(name, "#!/bin/sh\n", commands="poll: {}, sync: {}, handle: {}")
    home.add(f"plugins:\n{plugins}\n")
    lines = path / "log"
    with open_log(lines) as log:
        async with open_ledger(path / "ledger" / "state.db", synchronous="off") as ledger:
            yield SchedulerService(home, ledger, log, lines, snapshot_of(home))


@contextmanager
def open_log(lines: Path) -> Iterator[Log]:
    """Open a log at level debug that writes to the file `lines`."""
    descriptor = os.open(lines, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    log = Log(level="debug", descriptor=descriptor)
    try:
        yield log
    finally:
        log.close()
        os.close(descriptor)


class StartService(Protocol):
    """Starts a service with these plugins."""

    async def __call__(self, plugins: str = ...) -> SchedulerService: ...


@asynccontextmanager
async def scheduler_services(path: Path, default: str = "") -> AsyncIterator[StartService]:
    """Start services that stay open until the block ends, each in a task of its own: an open ledger has a nursery."""
    is_over = trio.Event()

    async def keep_open(plugins: str, *, task_status: trio.TaskStatus[SchedulerService]) -> None:
        async with open_scheduler_service(path, plugins) as service:
            task_status.started(service)
            await is_over.wait()

    async def start(plugins: str = default) -> SchedulerService:
        service: SchedulerService = await nursery.start(keep_open, plugins)
        return service

    async with trio.open_nursery() as nursery:
        yield start
        is_over.set()


__all__ = [
    "DAY",
    "FAILED",
    "HOUR",
    "MINUTE",
    "NOON",
    "OK",
    "SECOND",
    "CountingLedger",
    "Dead",
    "SchedulerService",
    "StartService",
    "open_log",
    "open_scheduler_service",
    "scheduler_services",
]
