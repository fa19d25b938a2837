"""A scheduler on a clock that tests move, with the real ledger; the test plays the plugins."""

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
from ductile.ledger.admin.operate import cancel
from ductile.ledger.completion.record import record
from ductile.ledger.queue.claim import claim
from ductile.ledger.queue.recover import recover_orphans
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.writer import Ledger, open_ledger
from ductile.ledger.tables import breakers, schedules
from ductile.ledger.tables.schedules import EntryStatus, ScheduleEntry
from tests.e2e.service import Home
from tests.engine.builders import snapshot_of
from tests.ledger.reading import look

NOON = datetime(2026, 3, 9, 12, tzinfo=UTC)
"""A Monday."""
SECOND, MINUTE, HOUR, DAY = (timedelta(**{unit: 1}) for unit in ("seconds", "minutes", "hours", "days"))
OK = Succeeded(Evidence(started_at=NOON, duration=SECOND))
BROKEN = Failed("broken")


@define(eq=False)
class Counted:
    """A ledger that counts what is asked of its writer."""

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
class Stage:
    """One configuration, one ledger, one scheduler at a time."""

    home: Home
    ledger: Ledger
    log: Log
    lines: Path
    snapshot: Snapshot
    clock: VirtualClock = field(factory=lambda: VirtualClock(NOON))
    hub: Hub = field(factory=Hub)
    unhealthy: set[str] = field(factory=set)
    stopped: list[str] = field(factory=list)
    """Jobs whose process the scheduler wanted to end."""
    scheduler: Scheduler = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.start()

    # ── the service ─────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """A service that has just started; the one before it is gone without a word."""
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
        """From now on the configuration has these plugins."""
        text = (self.home.path / "config.yaml").read_text().partition("plugins:\n")[0]
        self.home.write("config.yaml", f"{text}plugins:\n{plugins}\n")
        self.snapshot = snapshot_of(self.home)

    async def turn(self) -> datetime | None:
        return await self.scheduler.turn()

    async def pass_to(self, moment: datetime, *, then: Outcome | None = OK) -> None:
        """Time goes by as it does for a service that is up; jobs end as `then` says as soon as they are made."""
        while True:
            until = await self.turn()
            if then is not None:
                await self.work(then)
            if self.clock.now() >= moment:
                return
            self.clock.pass_to(min(until or moment, moment))

    async def pass_for(self, span: timedelta, *, then: Outcome | None = OK) -> None:
        await self.pass_to(self.clock.now() + span, then=then)

    async def look_again(self) -> None:
        """Somebody has announced a change."""
        self.scheduler._stale = True
        await self.turn()

    # ── jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def claim(self, limit: int = 1000) -> tuple[Job, ...]:
        free = dict.fromkeys(self.snapshot.lanes, limit)
        claimed = await self.ledger.write(claim, now=self.clock.now(), run_id="run", free=free, limit=limit)
        return claimed.jobs

    async def end(self, job: Job, outcome: Outcome = OK) -> None:
        """As the dispatcher records it, breaker included."""
        rule = breaker.rule(self.snapshot.lanes[job.plugin].entry.circuit_breaker)
        ending = Completion(job_id=job.id, attempt=job.attempt, outcome=outcome, breaker=rule)
        await self.ledger.write(record, ending, now=self.clock.now())

    async def work(self, outcome: Outcome = OK) -> None:
        """Everything that waits has run and ended like this."""
        for job in await self.claim():
            await self.end(job, outcome)

    async def cancel(self, job_id: str) -> None:
        await self.ledger.write(cancel, job_id, "operator", now=self.clock.now())

    async def crash(self) -> None:
        """The service died and is back: what ran is queued again or dead."""
        await self.ledger.write(recover_orphans, run_id="another", now=self.clock.now())
        self.start()

    def jobs(self, columns: str = "slot_at", where: str = "1") -> list[Any]:
        found = self.rows(f"SELECT {columns} FROM job_queue WHERE {where} ORDER BY seq")
        return [row[0] if len(row) == 1 else row for row in found]

    def slots(self, form: str = "%H:%M") -> list[str]:
        """The slots that became jobs."""
        return [f"{datetime.fromisoformat(slot):{form}}" for slot in self.jobs()]

    # ── what is on record ───────────────────────────────────────────────────────────────────────────────────────────

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        def ask(db: Db) -> list[tuple[Any, ...]]:
            return db.execute(statement).fetchall()

        return look(self.ledger, ask)

    def entry(self, plugin: str = "echo", schedule_id: str = "default") -> ScheduleEntry:
        found = look(self.ledger, schedules.get, plugin, schedule_id)
        assert found is not None
        return found

    async def set_status(self, status: EntryStatus, plugin: str = "echo", schedule_id: str = "default") -> None:
        """What the operator does, and its announcement."""
        await self.ledger.write(schedules.set_status, plugin, schedule_id, status, now=self.clock.now())
        await self.look_again()

    def breaker(self, plugin: str = "echo", command: str = "poll") -> Breaker:
        return look(self.ledger, breakers.get, plugin, command)

    async def reset(self, plugin: str = "echo", command: str = "poll") -> None:
        change = breaker.reset(self.breaker(plugin, command))
        await self.ledger.write(breakers.put, change, now=self.clock.now())
        await self.look_again()

    def skips(self) -> list[tuple[str, int | None]]:
        """What the journal says did not run: reason and count; no count for a slot that waits."""
        rows = self.rows("SELECT data FROM journal WHERE kind = 'scheduler.skipped' ORDER BY seq")
        return [(data["reason"], data.get("count")) for data in (json.loads(row[0]) for row in rows)]

    def said(self) -> list[str]:
        """What was logged; nothing can be logged any more."""
        self.log.close()
        return [json.loads(line)["message"] for line in self.lines.read_text().splitlines()]


@asynccontextmanager
async def open_stage(path: Path, plugins: str) -> AsyncIterator[Stage]:
    """A stage with these `plugins:`; each name has a plugin with the commands poll and sync."""
    home = Home.make(path / "ductile")
    for name in ("echo", "other"):
        home.plugin(name, "#!/bin/sh\n", commands="poll: {}, sync: {}, handle: {}")
    home.add(f"plugins:\n{plugins}\n")
    lines = path / "log"
    with open_log(lines) as log:
        async with open_ledger(path / "ledger" / "state.db", synchronous="off") as ledger:
            yield Stage(home, ledger, log, lines, snapshot_of(home))


@contextmanager
def open_log(lines: Path) -> Iterator[Log]:
    """A log that tells everything, into the file `lines`."""
    descriptor = os.open(lines, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    log = Log(level="debug", descriptor=descriptor)
    try:
        yield log
    finally:
        log.close()
        os.close(descriptor)


class MakeStage(Protocol):
    async def __call__(self, plugins: str = ...) -> Stage: ...


@asynccontextmanager
async def open_stages(path: Path, default: str = "") -> AsyncIterator[MakeStage]:
    """Make stages that are open until the block ends, each in a task of its own: an open ledger has a nursery."""
    over = trio.Event()

    async def hold(plugins: str, *, task_status: trio.TaskStatus[Stage]) -> None:
        async with open_stage(path, plugins) as one:
            task_status.started(one)
            await over.wait()

    async def make(plugins: str = default) -> Stage:
        made: Stage = await nursery.start(hold, plugins)
        return made

    async with trio.open_nursery() as nursery:
        yield make
        over.set()


__all__ = [
    "BROKEN",
    "DAY",
    "HOUR",
    "MINUTE",
    "NOON",
    "OK",
    "SECOND",
    "Counted",
    "Dead",
    "MakeStage",
    "Stage",
    "open_log",
    "open_stage",
    "open_stages",
]
