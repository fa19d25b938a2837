"""What a schedule would do: the service's planner and a ledger for the moment, on a clock that jumps from look to look.

Everything that decides is the service's own code; only time and plugins are played. Jobs succeed after a given time,
other schedules do not exist. Called by `ductile schedule simulate`.
"""

import tempfile
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from attrs import define, evolve, field, frozen

from ductile.calendar.definition import Definition, History
from ductile.calendar.firing import timetable
from ductile.calendar.slots import TICK
from ductile.calendar.zones import stretches
from ductile.config.sections.schedules import definition_hash, definition_of
from ductile.config.sections.settings import Schedule
from ductile.config.snapshot import ConfiguredPlugin, Snapshot
from ductile.core.clock import Clock, from_text
from ductile.core.logs import Log
from ductile.core.model import Completion, Dead, Evidence, Interrupted, Job, Outcome, Succeeded
from ductile.engine.scheduling.tick import Planner
from ductile.ledger.completion.record import record
from ductile.ledger.queue.claim import claim
from ductile.ledger.queue.rows import get_job
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.sync_ledger import SyncLedger, open_sync_ledger, run_sync
from ductile.ledger.tables import journal, schedules

MOST_EVENTS = 200
INSTANTLY = timedelta()
Span = tuple[datetime, datetime]


@define
class VirtualClock(Clock):
    """A clock that stands still until it is moved; the monotonic one goes along unless told otherwise."""

    moment: datetime
    steady: timedelta = timedelta()

    def now(self) -> datetime:
        return self.moment

    def monotonic(self) -> float:
        return self.steady.total_seconds()

    def pass_to(self, moment: datetime) -> None:
        """Time has passed."""
        self.steady += moment - self.moment
        self.moment = moment

    def jump(self, span: timedelta) -> None:
        """Somebody has set the clock, or the host has slept."""
        self.moment += span


@frozen(kw_only=True)
class Happening:
    """One line of the story: a slot that fired, was skipped or waits; the service going down or up; clocks changing.

    `until` is when a waiting slot is looked at again. `offsets` are those before and after a change of the clocks.
    """

    at: datetime
    kind: str
    slot_at: datetime | None = None
    reason: str | None = None
    count: int = 1
    until: datetime | None = None
    offsets: tuple[timedelta, timedelta] | None = None

    @property
    def late(self) -> timedelta:
        """How long after its slot it fired."""
        return max(self.at - self.slot_at, timedelta()) if self.kind == "fired" and self.slot_at else timedelta()


@frozen(kw_only=True)
class Simulation:
    """The story; `is_complete` unless it was cut after as many slots as were asked for."""

    happenings: tuple[Happening, ...]
    is_complete: bool


@frozen(kw_only=True)
class Question:
    """Which schedule, from when to when, and under which circumstances.

    `down` are the spans in which the service does not run, in order. `anchored_at` is when a service first saw the
    schedule, where the grid of `every` begins; None if that is the start of the simulation.
    """

    snapshot: Snapshot
    plugin: str
    schedule: Schedule
    start: datetime
    end: datetime
    down: tuple[Span, ...] = ()
    takes: timedelta = INSTANTLY
    most: int = MOST_EVENTS
    anchored_at: datetime | None = None

    @property
    def lane(self) -> ConfiguredPlugin:
        """The plugin's lane with this schedule alone."""
        lane = self.snapshot.lane(self.plugin)
        return evolve(lane, entry=evolve(lane.entry, schedules=(self.schedule,)))

    @property
    def definition(self) -> Definition:
        return definition_of(self.plugin, self.schedule)

    def up(self) -> Iterator[Span]:
        """The spans in which the service runs."""
        at = self.start
        for begin, end in (*self.down, (self.end, self.end)):
            until = min(begin, self.end)
            if at < until:
                yield at, until
            at = max(at, end)


def simulate(question: Question) -> Simulation:
    """What would happen, told in order; every slot of the time before counts as decided."""
    with tempfile.TemporaryDirectory(prefix="ductile-simulation-") as folder:
        return run_sync(_simulate(question, Path(folder) / "ledger.db"))


async def _simulate(question: Question, path: Path) -> Simulation:
    log = Log(level="error", descriptor=2)
    try:
        with open_sync_ledger(path, synchronous="off") as ledger:
            play = _Play(question, ledger, log, VirtualClock(question.start))
            await play.begin()
            is_complete = await play.play()
    finally:
        log.close()
    last = question.end if is_complete else play.told[-1].at
    story = [*play.told, *_changes_of_clocks(question, last)]
    return Simulation(happenings=tuple(sorted(story, key=lambda one: one.at)), is_complete=is_complete)


class _Nobody:
    """Who waits for announcements while a schedule is played."""

    def announce_work(self) -> None:
        pass

    def announce_end(self, job_id: str, *, tree: str | None) -> None:
        pass


@define(eq=False)
class _Play:
    """The service as the simulation plays it."""

    question: Question
    ledger: SyncLedger
    log: Log
    clock: VirtualClock
    told: list[Happening] = field(factory=list)
    running: dict[str, tuple[Job, datetime]] = field(factory=dict)
    """Job id → the job and when it will be done."""
    _read: int = 0

    async def begin(self) -> None:
        """The ledger knows the schedule as a service would that has been up until the first moment."""
        question = self.question
        key, anchored_at = (question.plugin, question.schedule.id), question.anchored_at or question.start
        what = (question.schedule.command, definition_hash(question.schedule))
        await self.ledger.write(schedules.define, *key, *what, now=anchored_at)
        table = timetable(question.definition, History(anchored_at=anchored_at, started_at=question.start))
        decided = table.latest(question.start - TICK)
        if decided is not None:
            await self.ledger.write(
                schedules.pass_over, *key, decided, "", now=question.start, next_run_at=None, count=0
            )

    async def play(self) -> bool:
        """Up and down until the end; False if there was more to tell than was asked for."""
        for start, end in self.question.up():
            if start > self.question.start:
                self._tell(Happening(at=start, kind="up"))
            self.clock.pass_to(start)
            if not await self._stay_up(end):
                return False
            if end < self.question.end:
                self._tell(Happening(at=end, kind="down"))
                await self._end_all(tuple(self.running), Interrupted("the service stops"))
        return True

    async def _stay_up(self, end: datetime) -> bool:
        snapshot = evolve(self.question.snapshot, lanes={self.question.plugin: self.question.lane})
        to_stop: list[str] = []
        planner = Planner(
            self.ledger,
            _Nobody(),
            self.clock,
            self.log,
            lambda: snapshot,
            stop_job=lambda job_id, _: to_stop.append(job_id),
        )
        while self.clock.now() < end:
            until = await planner.turn()
            await self._end_all(tuple(to_stop), Dead("cancelled"))
            to_stop.clear()
            await self._run_jobs()
            if not await self._listen():
                return False
            coming = [moment for moment in (until, *(done_at for _, done_at in self.running.values())) if moment]
            self.clock.pass_to(max(self.clock.now(), min([*coming, end])))
        return True

    async def _run_jobs(self) -> None:
        """Whatever may run runs, and what is done by now is over."""
        while True:
            now = self.clock.now()
            done = [job_id for job_id, (_, done_at) in self.running.items() if done_at <= now]
            await self._end_all(tuple(done), Succeeded(Evidence(started_at=now, duration=self.question.takes)))
            name = self.question.plugin
            free = {name: self.question.lane.slots - len(self.running)}
            claimed = await self.ledger.write(claim, now=now, run_id="simulation", free=free, limit=free[name])
            self.running |= {job.id: (job, now + self.question.takes) for job in claimed.jobs}
            if not claimed.jobs:
                return

    async def _end_all(self, job_ids: tuple[str, ...], outcome: Outcome) -> None:
        now = self.clock.now()
        for job_id in job_ids:
            job, _ = self.running.pop(job_id)
            ending = Completion(job_id=job_id, attempt=job.attempt, outcome=outcome)
            await self.ledger.write(record, ending, now=now)

    async def _listen(self) -> bool:
        """What the journal says about slots since the last time is told; False if that would be too much."""
        for entry, job in await self.ledger.read(_news, self._read):
            self._read = entry.seq
            if job is None and entry.kind != "scheduler.skipped":
                continue
            if sum(one.slot_at is not None for one in self.told) == self.question.most:
                return False
            fired = job and Happening(at=entry.at, kind="fired", slot_at=job.slot_at)
            self._tell(fired or _skipped(entry.at, entry.data))
        return True

    def _tell(self, happening: Happening) -> None:
        self.told.append(happening)


def _news(db: Db, seq: int) -> list[tuple[journal.JournalEntry, Job | None]]:
    """New rows of the journal; those that say that a slot became a job come with the job."""
    entries = journal.read_since(db, seq, limit=10_000)
    return [(one, get_job(db, one.job_id or "") if one.kind == "job.enqueued" else None) for one in entries]


def _skipped(at: datetime, data: dict[str, Any]) -> Happening:
    until = data["next_run_at"]
    return Happening(
        at=at,
        kind="skipped" if "count" in data else "held",
        slot_at=from_text(data["slot_at"]),
        reason=data["reason"],
        count=data.get("count", 1),
        until=from_text(until) if until and "count" not in data else None,
    )


def _changes_of_clocks(question: Question, last: datetime) -> Iterator[Happening]:
    for before, after in pairwise(stretches(question.definition.zone, question.start, last)):
        yield Happening(at=after.start, kind="clocks", offsets=(before.offset, after.offset))
