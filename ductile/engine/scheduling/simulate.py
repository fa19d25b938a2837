"""Simulate a schedule: run the planner of the service with a temporary ledger and a virtual clock.

Only time and plugins are simulated. Jobs succeed after a given time, and there are no other schedules. Used by
`ductile schedule simulate`.
"""

import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from attrs import define, evolve, field, frozen

from ductile.calendar.definition import Definition, History
from ductile.calendar.firing import build_timetable
from ductile.calendar.slots import TICK
from ductile.calendar.zones import offset_periods
from ductile.config.sections.schedules import build_definition, definition_hash
from ductile.config.sections.settings import Schedule
from ductile.config.snapshot import ConfiguredPlugin, Snapshot
from ductile.core.clock import Clock, from_text
from ductile.core.logs import Log
from ductile.core.model import Completion, Dead, Evidence, Interrupted, Job, Outcome, Succeeded
from ductile.engine.scheduling.tick import Planner
from ductile.ledger.completion.record import record
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.queue.claim import claim
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.sync_ledger import SyncLedger, open_sync_ledger, run_sync
from ductile.ledger.tables import journal, schedules

MAX_EVENTS = 200
NO_TIME = timedelta()
Period = tuple[datetime, datetime]


@define
class VirtualClock(Clock):
    """A clock that tests and simulations move: `advance_to` moves both times, `jump` only the wall clock."""

    moment: datetime
    steady: timedelta = timedelta()

    def now(self) -> datetime:
        return self.moment

    def monotonic(self) -> float:
        return self.steady.total_seconds()

    def advance_to(self, moment: datetime) -> None:
        """Let time pass until `moment`."""
        self.steady += moment - self.moment
        self.moment = moment

    def jump(self, span: timedelta) -> None:
        """Set the wall clock, as an operator does or a host that was suspended."""
        self.moment += span


@frozen(kw_only=True)
class SimulatedEvent:
    """An event of a simulation: a slot fired, was skipped or held; the service went down or up; the UTC offset changed.

    `until` is when a held slot is evaluated again. `offsets` are the UTC offsets before and after a change.
    """

    at: datetime
    kind: str
    slot_at: datetime | None = None
    reason: str | None = None
    count: int = 1
    until: datetime | None = None
    offsets: tuple[timedelta, timedelta] | None = None

    @property
    def delay(self) -> timedelta:
        """The time between the slot and its firing."""
        return max(self.at - self.slot_at, timedelta()) if self.kind == "fired" and self.slot_at else timedelta()


@frozen(kw_only=True)
class Simulation:
    """The events of a simulation; not `is_complete` if it stopped after `max_events` slots."""

    events: tuple[SimulatedEvent, ...]
    is_complete: bool


@frozen(kw_only=True)
class SimulationRequest:
    """The schedule to simulate, the period, and the conditions.

    `down`: the periods in which the service does not run, in order. `anchored_at`: when a service first loaded the
    schedule, where the intervals of `every` begin; None for the start of the simulation.
    """

    snapshot: Snapshot
    plugin: str
    schedule: Schedule
    start: datetime
    end: datetime
    down: tuple[Period, ...] = ()
    job_duration: timedelta = NO_TIME
    max_events: int = MAX_EVENTS
    anchored_at: datetime | None = None

    @property
    def configured(self) -> ConfiguredPlugin:
        """The plugin with this schedule only."""
        configured = self.snapshot.plugin(self.plugin)
        return evolve(configured, entry=evolve(configured.entry, schedules=(self.schedule,)))

    @property
    def definition(self) -> Definition:
        return build_definition(self.plugin, self.schedule)

    def up(self) -> Iterator[Period]:
        """Yield the periods in which the service runs."""
        at = self.start
        for begin, end in (*self.down, (self.end, self.end)):
            until = min(begin, self.end)
            if at < until:
                yield at, until
            at = max(at, end)


def simulate(request: SimulationRequest) -> Simulation:
    """Return the events in order. Slots before the start count as decided."""
    with tempfile.TemporaryDirectory(prefix="ductile-simulation-") as folder:
        return run_sync(_simulate(request, Path(folder) / "ledger.db"))


async def _simulate(request: SimulationRequest, path: Path) -> Simulation:
    log = Log(level="error", descriptor=2)
    try:
        with open_sync_ledger(path, synchronous="off") as ledger:
            service = _SimulatedService(request, ledger, log, VirtualClock(request.start))
            await service.prepare()
            is_complete = await service.run()
    finally:
        log.close()
    last = request.end if is_complete else service.events[-1].at
    events = [*service.events, *_offset_changes(request, last)]
    return Simulation(events=tuple(sorted(events, key=lambda event: event.at)), is_complete=is_complete)


class _NoListeners:
    """An announcer without listeners."""

    def announce_work(self) -> None:
        pass

    def announce_end(self, job_id: str, *, tree: str | None) -> None:
        pass


@define(eq=False)
class _SimulatedService:
    """A service with simulated time and jobs."""

    request: SimulationRequest
    ledger: SyncLedger
    log: Log
    clock: VirtualClock
    events: list[SimulatedEvent] = field(factory=list)
    running: dict[str, tuple[Job, datetime]] = field(factory=dict)
    """Job id → the job and when it will end."""
    _last_seq: int = 0

    async def prepare(self) -> None:
        """Prepare the ledger as if the service had run until the start."""
        request = self.request
        key, anchored_at = (request.plugin, request.schedule.id), request.anchored_at or request.start
        definition = (request.schedule.command, definition_hash(request.schedule))
        await self.ledger.write(schedules.define, *key, *definition, now=anchored_at)
        table = build_timetable(request.definition, History(anchored_at=anchored_at, started_at=request.start))
        decided = table.latest(request.start - TICK)
        if decided is not None:
            await self.ledger.write(
                schedules.skip_slots, *key, decided, "", now=request.start, next_run_at=None, count=0
            )

    async def run(self) -> bool:
        """Simulate the whole period. False if it stopped after `max_events` slots."""
        for start, end in self.request.up():
            if start > self.request.start:
                self.events.append(SimulatedEvent(at=start, kind="up"))
            self.clock.advance_to(start)
            if not await self._run_until(end):
                return False
            if end < self.request.end:
                self.events.append(SimulatedEvent(at=end, kind="down"))
                await self._complete_all(tuple(self.running), Interrupted("the service stops"))
        return True

    async def _run_until(self, end: datetime) -> bool:
        snapshot = evolve(self.request.snapshot, plugins={self.request.plugin: self.request.configured})
        to_stop: list[str] = []
        planner = Planner(
            self.ledger,
            _NoListeners(),
            self.clock,
            self.log,
            lambda: snapshot,
            stop_job=lambda job_id, _: to_stop.append(job_id),
        )
        while self.clock.now() < end:
            until = await planner.tick()
            await self._complete_all(tuple(to_stop), Dead("cancelled"))
            to_stop.clear()
            await self._run_jobs()
            if not await self._collect_events():
                return False
            upcoming = [moment for moment in (until, *(done_at for _, done_at in self.running.values())) if moment]
            self.clock.advance_to(max(self.clock.now(), min([*upcoming, end])))
        return True

    async def _run_jobs(self) -> None:
        """Start the jobs that can start, and complete those that end by now."""
        while True:
            now = self.clock.now()
            done = [job_id for job_id, (_, done_at) in self.running.items() if done_at <= now]
            await self._complete_all(
                tuple(done), Succeeded(Evidence(started_at=now, duration=self.request.job_duration))
            )
            name = self.request.plugin
            free = {name: self.request.configured.slots - len(self.running)}
            claimed = await self.ledger.write(claim, now=now, run_id="simulation", free=free, limit=free[name])
            self.running |= {job.id: (job, now + self.request.job_duration) for job in claimed.jobs}
            if not claimed.jobs:
                return

    async def _complete_all(self, job_ids: tuple[str, ...], outcome: Outcome) -> None:
        now = self.clock.now()
        for job_id in job_ids:
            job, _ = self.running.pop(job_id)
            completion = Completion(job_id=job_id, attempt=job.attempt, outcome=outcome)
            await self.ledger.write(record, completion, now=now)

    async def _collect_events(self) -> bool:
        """Add the new journal rows about slots as events. False if there would be more than `max_events`."""
        for entry, job in await self.ledger.read(_new_entries, self._last_seq):
            self._last_seq = entry.seq
            if job is None and entry.kind != "scheduler.skipped":
                continue
            if sum(event.slot_at is not None for event in self.events) == self.request.max_events:
                return False
            fired = job and SimulatedEvent(at=entry.at, kind="fired", slot_at=job.slot_at)
            self.events.append(fired or _skip_event(entry.at, entry.data))
        return True


def _new_entries(db: Db, seq: int) -> list[tuple[journal.JournalEntry, Job | None]]:
    """Return the new journal rows, each with its job if it records that a slot became a job."""
    entries = journal.read_since(db, seq, limit=10_000)
    return [(entry, get_job(db, entry.job_id or "") if entry.kind == "job.enqueued" else None) for entry in entries]


def _skip_event(at: datetime, data: dict[str, Any]) -> SimulatedEvent:
    until = data["next_run_at"]
    return SimulatedEvent(
        at=at,
        kind="skipped" if "count" in data else "held",
        slot_at=from_text(data["slot_at"]),
        reason=data["reason"],
        count=data.get("count", 1),
        until=from_text(until) if until and "count" not in data else None,
    )


def _offset_changes(request: SimulationRequest, last: datetime) -> Iterator[SimulatedEvent]:
    for before, after in pairwise(offset_periods(request.definition.zone, request.start, last)):
        yield SimulatedEvent(at=after.start, kind="clocks", offsets=(before.offset, after.offset))
