"""One tick of the scheduler: evaluate the schedules that are due and apply the results.

`calendar` decides what is due, `admission` what may fire; the planner keeps the state between ticks. It waits only for
the ledger: `scheduler` runs it in the service, `simulate` with a virtual clock.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Generic, Protocol, TypeVar

from attrs import define, field

from ductile.calendar.definition import After, History
from ductile.calendar.due import Evaluation, evaluate
from ductile.calendar.reasons import SkipReason
from ductile.config.sections.schedules import build_definition, definition_hash
from ductile.config.snapshot import Snapshot
from ductile.core.clock import Clock
from ductile.core.instance.failpoints import failpoint
from ductile.core.logs import Log
from ductile.engine.scheduling.admission import (
    CANCEL_REASON,
    Applied,
    Hold,
    PlannedSchedule,
    ScheduleKey,
    SlotDecision,
    TickContext,
    apply_all,
)
from ductile.engine.scheduling.sla import raise_alarms
from ductile.ledger.storage.db import Db, RowFault
from ductile.ledger.storage.sync_ledger import AnyLedger
from ductile.ledger.tables import schedules, sla
from ductile.ledger.tables.schedules import EntryStatus, ScheduleEntry

BATCH_SIZE = 100
"""Schedules decided in one transaction."""
MIN_CLOCK_JUMP = timedelta(seconds=1)
FAULT_RETRY_INTERVAL = timedelta(seconds=30)
IMMEDIATELY = datetime.min.replace(tzinfo=UTC)

T = TypeVar("T")


class Announcer(Protocol):
    """The part of the hub that the planner needs."""

    def announce_work(self) -> None: ...

    def announce_end(self, job_id: str, *, tree: str | None) -> None: ...


LedgerT = TypeVar("LedgerT", bound=AnyLedger)
HubT = TypeVar("HubT", bound=Announcer)


@define(eq=False)
class Planner(Generic[LedgerT, HubT]):
    """The schedules of the current configuration, and when each has to be evaluated."""

    ledger: LedgerT
    hub: HubT
    clock: Clock
    log: Log
    snapshot: Callable[[], Snapshot]
    unhealthy: Callable[[], Iterable[str]] = tuple
    stop_job: Callable[[str, str], None] = lambda job_id, reason: None
    """Terminates the process of a running job."""
    planned: dict[ScheduleKey, PlannedSchedule] = field(factory=dict)
    entries: dict[ScheduleKey, ScheduleEntry] = field(factory=dict)
    holds: dict[ScheduleKey, Hold] = field(factory=dict)
    """The slots that the last evaluation found held."""
    first_seen: dict[ScheduleKey, float] = field(factory=dict)
    """When this process loaded the schedule, by the monotonic clock."""
    fired_once: set[ScheduleKey] = field(factory=set)
    """The `after` schedules that have fired since then."""
    _upcoming: list[tuple[datetime, ScheduleKey]] = field(factory=list)
    _has_expectations: bool = False
    _loaded: Snapshot | None = None
    _is_stale: bool = False
    _last_clocks: tuple[datetime, float] | None = None

    async def tick(self) -> datetime | None:
        """Decide everything that is due now. Returns when the next tick is needed; None if not at all."""
        now, monotonic = self.clock.now(), self.clock.monotonic()
        jumped = self._clock_jumped(now)
        if self.snapshot() is not self._loaded:
            await self._load(self.snapshot(), now)
        elif self._is_stale or jumped:
            await self._refresh(now)
        self._is_stale, self._last_clocks = False, (now, monotonic)
        for keys in _batches(list(self._pop_due(now)), BATCH_SIZE):
            await self._yield_to_others()
            decisions = [decision for key in keys if (decision := self._decide_safely(key, now))]
            if decisions:
                await self._apply(decisions, now)
        await self._raise_alarms(now)
        upcoming = self._upcoming[0][0] if self._upcoming else None
        alarm = await self._next_alarm()
        return min((moment for moment in (upcoming, alarm) if moment is not None), default=None)

    async def _yield_to_others(self) -> None:
        """Let other tasks run between batches. There are none in a simulation."""

    async def _next_alarm(self) -> datetime | None:
        return await self.ledger.read(sla.next_due) if self._has_expectations else None

    async def _raise_alarms(self, now: datetime) -> None:
        """Check the expectations that are due, and log and announce the alarms."""
        while (due := await self._next_alarm()) is not None and due <= now:
            assert self._loaded is not None, "expectations belong to a configuration"
            alarms = await self.ledger.write(raise_alarms, self._loaded, now=now)
            for alarm in alarms:
                if isinstance(alarm, RowFault):
                    self.log.error("scheduler", f"an expectation cannot be checked: {alarm.reason}")
                    continue
                fields = {name: alarm.data[name] for name in ("schedule_id", "slot_at", "job_id") if alarm.data[name]}
                self.log.warn("scheduler", alarm.message, plugin=alarm.plugin, kind=alarm.kind, **fields)
            if alarms:
                self.hub.announce_work()

    def _clock_jumped(self, now: datetime) -> bool:
        """True if the wall clock and the monotonic clock differ since the last tick."""
        if self._last_clocks is None:
            return False
        wall, monotonic = self._last_clocks
        jump = (now - wall) - timedelta(seconds=self.clock.monotonic() - monotonic)
        if abs(jump) <= MIN_CLOCK_JUMP:
            return False
        message = "the clock jumped, or the host was suspended; all schedules are evaluated again"
        self.log.warn("scheduler", message, seconds=round(jump.total_seconds(), 1))
        return True

    async def _load(self, snapshot: Snapshot, now: datetime) -> None:
        """Load the schedules of this configuration. Create missing entries and delete those of removed schedules.

        A plugin that cannot run keeps its entries, so that a past `at` does not fire again when the plugin is back.
        """
        planned = {one.key: one for one in _planned(snapshot)}
        for batch in _batches(list(planned.values()), BATCH_SIZE * 10):
            await self.ledger.transact(partial(_define_all, planned=batch, now=now), in_thread=True)
        configured_keys = {
            (name, schedule.id)
            for name, entry in snapshot.config.settings.plugins.items()
            for schedule in entry.schedules
        }
        if removed := [key for key in await self.ledger.read(schedules.all_keys) if key not in configured_keys]:
            await self.ledger.write(_delete_all, removed)
        unchanged = {key for key, one in planned.items() if key in self.planned and self.planned[key].hash == one.hash}
        monotonic = self.clock.monotonic()
        self.first_seen = {key: self.first_seen[key] if key in unchanged else monotonic for key in planned}
        self.fired_once &= unchanged
        self.holds = {key: hold for key, hold in self.holds.items() if key in unchanged}
        self.planned, self._loaded = planned, snapshot
        # Expectations of an older configuration have to be checked and removed too.
        is_expecting = any(one.schedule.expect is not None for one in planned.values())
        self._has_expectations = is_expecting or await self.ledger.read(sla.next_due) is not None
        await self._refresh(now)

    async def _refresh(self, now: datetime) -> None:
        """Read all entries and evaluate every schedule again. An entry that cannot be read is reset."""
        known = await self._entries()
        if unreadable := [key for key in self.planned if key not in known]:
            await self.ledger.write(schedules.reset, unreadable, now=now)
            known = await self._entries()
            for plugin, schedule_id in unreadable:
                self.log.error("scheduler", schedules.UNREADABLE, plugin=plugin, schedule_id=schedule_id)
        self.entries = {key: known[key] for key in self.planned if key in known}
        self._upcoming = [(IMMEDIATELY, key) for key in self.entries]
        heapq.heapify(self._upcoming)

    async def _entries(self) -> dict[ScheduleKey, ScheduleEntry]:
        return {(entry.plugin, entry.schedule_id): entry for entry in await self.ledger.read(schedules.all_entries)}

    def _pop_due(self, now: datetime) -> Iterator[ScheduleKey]:
        while self._upcoming and self._upcoming[0][0] <= now:
            yield heapq.heappop(self._upcoming)[1]

    def _decide_safely(self, key: ScheduleKey, now: datetime) -> SlotDecision | None:
        """Decide one schedule. An internal error is logged and becomes a fault of this schedule only."""
        try:
            return self._decide(key, now)
        except Exception as error:
            message = f"cannot be decided: internal error: {error!r}; trying again in {FAULT_RETRY_INTERVAL.seconds} s"
            self.log.error("scheduler", message, plugin=key[0], schedule_id=key[1])
            retry = Evaluation(next_at=now + FAULT_RETRY_INTERVAL)
            return SlotDecision(self.planned[key], self.entries[key], retry, self.holds.get(key), fault=repr(error))

    def _decide(self, key: ScheduleKey, now: datetime) -> SlotDecision | None:
        """Evaluate one schedule. Returns None if nothing has to be written."""
        planned, entry = self.planned[key], self.entries[key]
        if planned.is_once and entry.status is EntryStatus.PAUSED_MANUAL:
            return None  # a resume is announced and causes another evaluation
        evaluation = evaluate(planned.definition_after(entry.held_reason), self.history(key, now), now)
        is_changed = evaluation.next_at != entry.next_run_at or entry.held_reason == SkipReason.SCHEDULE_FAULT
        if evaluation.due or evaluation.held or evaluation.decided_to or is_changed:
            return SlotDecision(planned, entry, evaluation, self.holds.get(key))
        self._check_at(key, evaluation.next_at)
        return None

    def history(self, key: ScheduleKey, now: datetime) -> History:
        """Return the history of a schedule for its evaluation."""
        planned, entry = self.planned[key], self.entries[key]
        uptime = timedelta(seconds=self.clock.monotonic() - self.first_seen[key])
        each_start = isinstance(planned.definition.when, After)
        return History(
            anchored_at=entry.anchored_at or now,
            last_slot_at=entry.last_slot_at,
            last_fired_at=entry.last_fired_at,
            started_at=now - uptime,
            exhausted=key in self.fired_once if each_start else entry.status is EntryStatus.EXHAUSTED,
        )

    def _check_at(self, key: ScheduleKey, at: datetime | None) -> None:
        if at is not None:
            heapq.heappush(self._upcoming, (at, key))

    async def _apply(self, decisions: list[SlotDecision], now: datetime) -> None:
        assert self._loaded is not None, "decisions are made under a configuration"
        failpoint("schedule.before_fire")
        context = TickContext(at=now, snapshot=self._loaded, unhealthy=frozenset(self.unhealthy()))
        results = await self.ledger.transact(
            partial(apply_all, decisions=decisions, now=context), wait=False, in_thread=len(decisions) > 1
        )
        failpoint("schedule.after_commit")
        # Before the commit is durable: a slot must not fire again because the disk is slow.
        for decision, result in zip(decisions, results, strict=True):
            if isinstance(result, RowFault):
                self._retry_later(decision, result, now)
            else:
                self._update(decision, result)
        if any(isinstance(result, Applied) and result.fired for result in results):
            self.hub.announce_work()
        await self.ledger.until_durable()
        for ended in (ended for result in results if isinstance(result, Applied) for ended in result.ended):
            self.hub.announce_end(ended.job_id, tree=ended.root_job_id if ended.tree_is_done else None)

    def _update(self, decision: SlotDecision, result: Applied) -> None:
        """Update the state of the planner, and stop running jobs that the decision cancels."""
        key, skipped = decision.planned.key, decision.evaluation.skipped
        self.entries[key] = result.entry
        if result.hold is None:
            self.holds.pop(key, None)
        else:
            self.holds[key] = result.hold
        if result.fired and isinstance(decision.planned.definition.when, After):
            self.fired_once.add(key)
        if decision.evaluation.capped and result.fired:
            fields = {"plugin": key[0], "schedule_id": key[1], "made": len(result.fired), "dropped": skipped}
            self.log.warn("scheduler", SkipReason.CATCH_UP_CAPPED.message, **fields)
        for job_id in result.to_stop:
            self.stop_job(job_id, CANCEL_REASON)
        self._check_at(key, result.next_at)

    def _retry_later(self, decision: SlotDecision, fault: RowFault, now: datetime) -> None:
        plugin, schedule_id = decision.planned.key
        self.log.error("scheduler", f"not fired: {fault.reason}", plugin=plugin, schedule_id=schedule_id)
        self._check_at(decision.planned.key, now + FAULT_RETRY_INTERVAL)


def _planned(snapshot: Snapshot) -> Iterator[PlannedSchedule]:
    for configured in snapshot.plugins.values():
        for schedule in configured.entry.schedules:
            yield PlannedSchedule(
                configured, schedule, build_definition(configured.name, schedule), definition_hash(schedule)
            )


def _batches(items: list[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _define_all(db: Db, planned: list[PlannedSchedule], *, now: datetime) -> None:
    schedules.define_all(db, ((*one.key, one.schedule.command, one.hash) for one in planned), now=now)


def _delete_all(db: Db, keys: list[ScheduleKey]) -> None:
    for plugin, schedule_id in keys:
        schedules.delete(db, plugin, schedule_id)
        sla.delete(db, plugin, schedule_id)
