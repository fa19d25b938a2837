"""What is due becomes jobs, one turn at a time: looks, and has what it finds applied.

When something is due is the calendar's matter, what the ledger lets through that of `gates`; here is the memory between
looks. Waits for nothing but the ledger: `scheduler` turns it for the service, `simulate` on a clock of its own.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Generic, Protocol, TypeVar

from attrs import define, field

from ductile.calendar.definition import After, History
from ductile.calendar.due import Look, look
from ductile.calendar.reasons import SkipReason
from ductile.config.sections.schedules import definition_hash, definition_of
from ductile.config.snapshot import Snapshot
from ductile.core.clock import Clock
from ductile.core.instance.failpoints import failpoint
from ductile.core.logs import Log
from ductile.engine.scheduling.admission import (
    CANCELLED,
    Applied,
    Hold,
    Key,
    Now,
    Planned,
    SlotDecision,
    apply_all,
)
from ductile.engine.scheduling.sla import raise_alarms
from ductile.ledger.storage.db import Db, RowFault
from ductile.ledger.storage.sync_ledger import AnyLedger
from ductile.ledger.tables import schedules, sla
from ductile.ledger.tables.schedules import EntryStatus, ScheduleEntry

PORTION = 100
"""Schedules decided in one transaction."""
FEW = 5
"""So many are decided on the event loop."""
CLOCK_JUMP = timedelta(seconds=1)
AFTER_A_FAULT = timedelta(seconds=30)
AT_ONCE = datetime.min.replace(tzinfo=UTC)

T = TypeVar("T")


class Announcing(Protocol):
    """Whoever tells those who wait."""

    def announce_work(self) -> None: ...

    def announce_end(self, job_id: str, *, tree: str | None) -> None: ...


LedgerT = TypeVar("LedgerT", bound=AnyLedger)
HubT = TypeVar("HubT", bound=Announcing)


@define(eq=False)
class Planner(Generic[LedgerT, HubT]):
    """The schedules of the configuration of the moment, and when each needs a look."""

    ledger: LedgerT
    hub: HubT
    clock: Clock
    log: Log
    snapshot: Callable[[], Snapshot]
    unhealthy: Callable[[], Iterable[str]] = tuple
    stop_job: Callable[[str, str], None] = lambda job_id, reason: None
    """Ends the process of a running job."""
    planned: dict[Key, Planned] = field(factory=dict)
    entries: dict[Key, ScheduleEntry] = field(factory=dict)
    holds: dict[Key, Hold] = field(factory=dict)
    """What waited at the last look."""
    taken_up: dict[Key, float] = field(factory=dict)
    """When this process first saw the schedule, by the monotonic clock."""
    fired_once: set[Key] = field(factory=set)
    """The `after` schedules that have fired since then."""
    _ahead: list[tuple[datetime, Key]] = field(factory=list)
    _expects: bool = False
    _loaded: Snapshot | None = None
    _stale: bool = False
    _clocks: tuple[datetime, float] | None = None

    async def turn(self) -> datetime | None:
        """Everything that is due now has been decided; when the next look is needed."""
        now, steady = self.clock.now(), self.clock.monotonic()
        jumped = self._clock_jumped(now)
        if self.snapshot() is not self._loaded:
            await self._load(self.snapshot(), now)
        elif self._stale or jumped:
            await self._refresh(now)
        self._stale, self._clocks = False, (now, steady)
        for keys in _portions(list(self._take_due(now)), PORTION):
            await self._let_others_work()
            decisions = [decision for key in keys if (decision := self._decide_or_later(key, now))]
            if decisions:
                await self._apply(decisions, now)
        await self._raise_alarms(now)
        ahead = self._ahead[0][0] if self._ahead else None
        alarm = await self._next_alarm()
        return min((moment for moment in (ahead, alarm) if moment is not None), default=None)

    async def _let_others_work(self) -> None:
        """Thousands of schedules do not keep everybody else from working, where there is anybody else."""

    async def _next_alarm(self) -> datetime | None:
        return await self.ledger.read(sla.next_due) if self._expects else None

    async def _raise_alarms(self, now: datetime) -> None:
        """Whatever was expected by now has been looked at, and whoever waits for an alarm works."""
        while (due := await self._next_alarm()) is not None and due <= now:
            assert self._loaded is not None, "expectations are held under a configuration"
            alarms = await self.ledger.write(raise_alarms, self._loaded, now=now)
            for alarm in alarms:
                if isinstance(alarm, RowFault):
                    self.log.error("scheduler", f"an expectation cannot be looked at: {alarm.reason}")
                    continue
                about = {name: alarm.data[name] for name in ("schedule_id", "slot_at", "job_id") if alarm.data[name]}
                self.log.warn("scheduler", alarm.words, plugin=alarm.plugin, kind=alarm.kind, **about)
            if alarms:
                self.hub.announce_work()

    def _clock_jumped(self, now: datetime) -> bool:
        """Whether the wall clock did something else since the last turn than the time that really passed."""
        if self._clocks is None:
            return False
        wall, steady = self._clocks
        jump = (now - wall) - timedelta(seconds=self.clock.monotonic() - steady)
        if abs(jump) <= CLOCK_JUMP:
            return False
        what = "the clock jumped, or the host slept; every schedule is looked at again"
        self.log.warn("scheduler", what, seconds=round(jump.total_seconds(), 1))
        return True

    async def _load(self, snapshot: Snapshot, now: datetime) -> None:
        """The schedules are those of this configuration, each with its entry; those that are gone are forgotten.

        A plugin that cannot run keeps its entries: what is over must not begin again when the plugin comes back.
        """
        planned = {one.key: one for one in _planned(snapshot)}
        for portion in _portions(list(planned.values()), PORTION * 10):
            await self.ledger.transact(partial(_define_all, planned=portion, now=now), in_thread=True)
        written = {
            (name, schedule.id)
            for name, entry in snapshot.config.settings.plugins.items()
            for schedule in entry.schedules
        }
        if gone := [key for key in await self.ledger.read(schedules.all_keys) if key not in written]:
            await self.ledger.write(_forget_all, gone)
        same = {key for key, one in planned.items() if key in self.planned and self.planned[key].hash == one.hash}
        steady = self.clock.monotonic()
        self.taken_up = {key: self.taken_up[key] if key in same else steady for key in planned}
        self.fired_once &= same
        self.holds = {key: hold for key, hold in self.holds.items() if key in same}
        self.planned, self._loaded = planned, snapshot
        # What was expected under an older configuration is taken down too.
        expects_now = any(one.schedule.expect is not None for one in planned.values())
        self._expects = expects_now or await self.ledger.read(sla.next_due) is not None
        await self._refresh(now)

    async def _refresh(self, now: datetime) -> None:
        """Every schedule is looked at again, with its entry as it is now; one that cannot be read starts anew."""
        known = await self._entries()
        if lost := [key for key in self.planned if key not in known]:
            await self.ledger.write(schedules.start_anew, lost, now=now)
            known = await self._entries()
            for plugin, schedule_id in lost:
                self.log.error("scheduler", schedules.UNREADABLE, plugin=plugin, schedule_id=schedule_id)
        self.entries = {key: known[key] for key in self.planned if key in known}
        self._ahead = [(AT_ONCE, key) for key in self.entries]
        heapq.heapify(self._ahead)

    async def _entries(self) -> dict[Key, ScheduleEntry]:
        return {(entry.plugin, entry.schedule_id): entry for entry in await self.ledger.read(schedules.all_entries)}

    def _take_due(self, now: datetime) -> Iterator[Key]:
        while self._ahead and self._ahead[0][0] <= now:
            yield heapq.heappop(self._ahead)[1]

    def _decide_or_later(self, key: Key, now: datetime) -> SlotDecision | None:
        """The edge of a look: what goes wrong in one is told, and the other schedules are none the worse for it."""
        try:
            return self._decide(key, now)
        except Exception as error:
            told = f"cannot be decided: internal error: {error!r}"
            again = f"looking again in {AFTER_A_FAULT.seconds} s"
            self.log.error("scheduler", f"{told}; {again}", plugin=key[0], schedule_id=key[1])
            later = Look(next_at=now + AFTER_A_FAULT)
            return SlotDecision(self.planned[key], self.entries[key], later, self.holds.get(key), fault=repr(error))

    def _decide(self, key: Key, now: datetime) -> SlotDecision | None:
        """What the calendar says; None if there is nothing to write down, and the next look is noted."""
        planned, entry = self.planned[key], self.entries[key]
        if planned.is_once and entry.status is EntryStatus.PAUSED_MANUAL:
            return None  # resuming it announces itself
        found = look(planned.definition_after(entry.held_reason), self.history(key, now), now)
        is_news = found.next_at != entry.next_run_at or entry.held_reason == SkipReason.SCHEDULE_FAULT
        if found.due or found.held or found.decided_to or is_news:
            return SlotDecision(planned, entry, found, self.holds.get(key))
        self._look_again(key, found.next_at)
        return None

    def history(self, key: Key, now: datetime) -> History:
        """What is known of a schedule, for the calendar."""
        planned, entry = self.planned[key], self.entries[key]
        uptime = timedelta(seconds=self.clock.monotonic() - self.taken_up[key])
        each_start = isinstance(planned.definition.when, After)
        return History(
            anchored_at=entry.anchored_at or now,
            last_slot_at=entry.last_slot_at,
            last_fired_at=entry.last_fired_at,
            started_at=now - uptime,
            exhausted=key in self.fired_once if each_start else entry.status is EntryStatus.EXHAUSTED,
        )

    def _look_again(self, key: Key, at: datetime | None) -> None:
        if at is not None:
            heapq.heappush(self._ahead, (at, key))

    async def _apply(self, decisions: list[SlotDecision], now: datetime) -> None:
        assert self._loaded is not None, "decisions are made under a configuration"
        failpoint("schedule.before_fire")
        moment = Now(at=now, snapshot=self._loaded, unhealthy=frozenset(self.unhealthy()))
        applied = await self.ledger.transact(
            partial(apply_all, decisions=decisions, now=moment), wait=False, in_thread=len(decisions) > 1
        )
        failpoint("schedule.after_commit")
        # Noted at the commit: a slot that the disk confirms late must not fire again.
        for decision, one in zip(decisions, applied, strict=True):
            if isinstance(one, RowFault):
                self._set_apart(decision, one, now)
            else:
                self._note(decision, one)
        if any(isinstance(one, Applied) and one.fired for one in applied):
            self.hub.announce_work()
        await self.ledger.until_durable()
        for ended in (ended for one in applied if isinstance(one, Applied) for ended in one.ended):
            self.hub.announce_end(ended.job_id, tree=ended.root_job_id if ended.tree_is_done else None)

    def _note(self, decision: SlotDecision, one: Applied) -> None:
        """Take over what the ledger knows, and stop the processes of jobs that are to end."""
        key = decision.planned.key
        self.entries[key] = one.entry
        if one.hold is None:
            self.holds.pop(key, None)
        else:
            self.holds[key] = one.hold
        if one.fired and isinstance(decision.planned.definition.when, After):
            self.fired_once.add(key)
        if decision.look.capped and one.fired:
            told = {"plugin": key[0], "schedule_id": key[1], "made": len(one.fired), "dropped": decision.look.skipped}
            self.log.warn("scheduler", SkipReason.CATCH_UP_CAPPED.words, **told)
        for job_id in one.to_stop:
            self.stop_job(job_id, CANCELLED)
        self._look_again(key, one.next_at)

    def _set_apart(self, decision: SlotDecision, fault: RowFault, now: datetime) -> None:
        plugin, schedule_id = decision.planned.key
        self.log.error("scheduler", f"not fired: {fault.reason}", plugin=plugin, schedule_id=schedule_id)
        self._look_again(decision.planned.key, now + AFTER_A_FAULT)


def _planned(snapshot: Snapshot) -> Iterator[Planned]:
    for lane in snapshot.lanes.values():
        for schedule in lane.entry.schedules:
            yield Planned(lane, schedule, definition_of(lane.name, schedule), definition_hash(schedule))


def _portions(items: list[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _define_all(db: Db, planned: list[Planned], *, now: datetime) -> None:
    schedules.define_all(db, ((*one.key, one.schedule.command, one.hash) for one in planned), now=now)


def _forget_all(db: Db, keys: list[Key]) -> None:
    for plugin, schedule_id in keys:
        schedules.forget(db, plugin, schedule_id)
        sla.forget(db, plugin, schedule_id)
