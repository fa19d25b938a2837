"""Schedules become jobs: sleeps until the next moment something is due, looks, and fires in one transaction.

When something is due is the calendar's matter; here are the gates that need the ledger (pause, health, breaker,
earlier jobs), and the waiting. Whoever changes a schedule, the configuration or the clock makes it look again.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import trio
from attrs import define, field, frozen

from ductile import strict_json
from ductile.calendar.definition import After, At, Definition, History
from ductile.calendar.firing import Slot
from ductile.calendar.look import Look, look
from ductile.calendar.reasons import Reason
from ductile.clock import Clock
from ductile.config.schedules import definition_hash, definition_of
from ductile.config.sections import Schedule
from ductile.config.snapshot import Lane, Snapshot
from ductile.engine import breaker
from ductile.failpoints import failpoint
from ductile.hub import Hub
from ductile.ledger import breakers, schedules
from ductile.ledger.connections import Connection
from ductile.ledger.operate import CancelRequested, cancel
from ductile.ledger.rows import get_job
from ductile.ledger.schedules import Entry, EntryStatus
from ductile.ledger.writer import Ledger
from ductile.logs import Log
from ductile.model import NewJob

TOPIC = "schedules"
"""Announced when an entry was changed from outside."""
PORTION = 100
"""Schedules decided in one transaction."""
CLOCK_JUMP = timedelta(seconds=1)
RECHECK_AFTER_CANCEL = timedelta(seconds=1)
UNHEALTHY = "plugin_unhealthy"
AT_ONCE = datetime.min.replace(tzinfo=UTC)

Key = tuple[str, str]
T = TypeVar("T")


@frozen(eq=False)
class Planned:
    """One schedule under one configuration."""

    lane: Lane
    schedule: Schedule
    definition: Definition
    hash: str

    @property
    def key(self) -> Key:
        return self.lane.name, self.schedule.id


@frozen(eq=False)
class Decision:
    """What one look said about a schedule."""

    planned: Planned
    look: Look


@frozen(eq=False)
class Applied:
    """What became of a decision: the entry as it is now, the jobs that were made or are to be ended, the next look."""

    entry: Entry
    next_at: datetime | None
    fired: tuple[str, ...] = ()
    to_stop: tuple[str, ...] = ()


@define(eq=False)
class Scheduler:
    """The schedules of the configuration of the moment, and when each needs a look."""

    ledger: Ledger
    hub: Hub
    clock: Clock
    log: Log
    snapshot: Callable[[], Snapshot]
    unhealthy: Callable[[], Iterable[str]] = tuple
    stop_job: Callable[[str, str], None] = lambda job_id, reason: None
    """Ends the process of a running job."""
    planned: dict[Key, Planned] = field(factory=dict)
    entries: dict[Key, Entry] = field(factory=dict)
    taken_up: dict[Key, float] = field(factory=dict)
    """When this process first saw the schedule, by the monotonic clock."""
    fired_once: set[Key] = field(factory=set)
    """The `after` schedules that have fired since then."""
    late_since: datetime | None = None
    _ahead: list[tuple[datetime, Key]] = field(factory=list)
    _loaded: Snapshot | None = None
    _stale: bool = False
    _clocks: tuple[datetime, float] | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Fire what is due, for as long as the service takes work."""
        with self.hub.watch(TOPIC) as hints:
            task_status.started()
            while True:
                until = await self.turn()
                tick = self.snapshot().config.settings.service.tick_interval
                now = self.clock.now()
                pause = tick if until is None else min(max(until - now, timedelta()), tick)
                with trio.CancelScope(deadline=trio.current_time() + pause.total_seconds()):
                    await hints.receive()
                    self._stale = True

    async def turn(self) -> datetime | None:
        """Everything that is due now has been decided; when the next look is needed."""
        now = self.clock.now()
        if self.snapshot() is not self._loaded:
            await self._load(self.snapshot(), now)
        elif self._stale or self._clock_jumped(now):
            self._refresh()
        self._stale, self._clocks = False, (now, self.clock.monotonic())
        decisions = [decision for key in self._take_due(now) if (decision := self._decide(key, now))]
        for portion in _portions(decisions, PORTION):
            await self._apply(portion, now)
        return self._ahead[0][0] if self._ahead else None

    def _clock_jumped(self, now: datetime) -> bool:
        if self._clocks is None:
            return False
        wall, steady = self._clocks
        elapsed = timedelta(seconds=self.clock.monotonic() - steady)
        return abs((now - wall) - elapsed) > CLOCK_JUMP

    async def _load(self, snapshot: Snapshot, now: datetime) -> None:
        """The schedules are those of this configuration, each with its entry; those that are gone are forgotten."""
        planned = {one.key: one for one in _planned(snapshot)}
        for portion in _portions(list(planned.values()), PORTION * 10):
            await self.ledger.write(_define_all, portion, now=now)
        known = {(entry.plugin, entry.schedule_id): entry for entry in self.ledger.read(schedules.all_entries)}
        gone = [key for key in known if key not in planned]
        if gone:
            await self.ledger.write(_forget_all, gone)
        steady = self.clock.monotonic()
        self.taken_up = {
            key: self.taken_up.get(key, steady)
            if key in self.planned and self.planned[key].hash == one.hash
            else steady
            for key, one in planned.items()
        }
        self.fired_once = {key for key in self.fired_once if self.taken_up.get(key, steady) < steady}
        self.planned, self._loaded = planned, snapshot
        self._refresh()

    def _refresh(self) -> None:
        """Every schedule is looked at again, with its entry as it is now."""
        known = {(entry.plugin, entry.schedule_id): entry for entry in self.ledger.read(schedules.all_entries)}
        self.entries = {key: known[key] for key in self.planned if key in known}
        self._ahead = [(AT_ONCE, key) for key in self.entries]
        heapq.heapify(self._ahead)

    def _take_due(self, now: datetime) -> Iterator[Key]:
        while self._ahead and self._ahead[0][0] <= now:
            yield heapq.heappop(self._ahead)[1]

    def _decide(self, key: Key, now: datetime) -> Decision | None:
        """What the calendar says; None if there is nothing to write down, and the next look is noted."""
        planned, entry = self.planned[key], self.entries[key]
        if entry.status is EntryStatus.PAUSED_MANUAL:
            return None  # resuming it announces itself
        found = look(planned.definition, self.history(key, now), now)
        if found.due or found.held or found.decided_to or found.next_at != entry.next_run_at:
            return Decision(planned, found)
        self._look_again(key, found.next_at)
        return None

    def history(self, key: Key, now: datetime) -> History:
        """What is known of a schedule, for the calendar."""
        planned, entry = self.planned[key], self.entries[key]
        uptime = timedelta(seconds=self.clock.monotonic() - self.taken_up[key])
        is_once = isinstance(planned.definition.when, After)
        return History(
            anchored_at=entry.anchored_at or now,
            last_slot_at=entry.last_slot_at,
            last_fired_at=entry.last_fired_at,
            started_at=now - uptime,
            exhausted=key in self.fired_once if is_once else entry.status is EntryStatus.EXHAUSTED,
        )

    def _look_again(self, key: Key, at: datetime | None) -> None:
        if at is not None:
            heapq.heappush(self._ahead, (at, key))

    async def _apply(self, decisions: list[Decision], now: datetime) -> None:
        failpoint("schedule.before_fire")
        applied = await self.ledger.write(
            _apply_all, decisions, now=now, unhealthy=frozenset(self.unhealthy()), snapshot_id=self.snapshot().id
        )
        failpoint("schedule.after_commit")
        for decision, one in zip(decisions, applied, strict=True):
            key = decision.planned.key
            self.entries[key] = one.entry
            if one.fired and isinstance(decision.planned.definition.when, After):
                self.fired_once.add(key)
            for job_id in one.to_stop:
                self.stop_job(job_id, "another run of its schedule is due")
            self._look_again(key, one.next_at)
        if any(one.fired for one in applied):
            self.hub.announce_work()


def _planned(snapshot: Snapshot) -> Iterator[Planned]:
    for lane in snapshot.lanes.values():
        for schedule in lane.entry.schedules:
            yield Planned(lane, schedule, definition_of(lane.name, schedule), definition_hash(schedule))


def _portions(items: list[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


# ── inside the transaction ──────────────────────────────────────────────────────────────────────────────────────────


def _define_all(db: Connection, planned: list[Planned], *, now: datetime) -> None:
    for one in planned:
        schedules.define(db, *one.key, one.schedule.command, one.hash, now=now)


def _forget_all(db: Connection, keys: list[Key]) -> None:
    for plugin, schedule_id in keys:
        schedules.forget(db, plugin, schedule_id)


def _apply_all(
    db: Connection,
    decisions: list[Decision],
    *,
    now: datetime,
    unhealthy: frozenset[str],
    snapshot_id: str,
) -> list[Applied]:
    return [_applied(db, one, now=now, unhealthy=unhealthy, snapshot_id=snapshot_id) for one in decisions]


def _applied(
    db: Connection, decision: Decision, *, now: datetime, unhealthy: frozenset[str], snapshot_id: str
) -> Applied:
    """The decision is in the ledger, as far as the gates let it."""
    planned, found = decision.planned, decision.look
    entry = schedules.get(db, *planned.key)
    assert entry is not None, "every schedule that is looked at has its entry"
    if entry.status is EntryStatus.PAUSED_MANUAL:
        return Applied(entry, None)
    if found.held is not None:
        _hold(db, planned, found.held.reason, found.held.slot_at, found.next_at, now=now)
        return Applied(_fresh(db, planned), found.next_at)
    if found.due:
        return _fired(db, planned, found, now=now, unhealthy=unhealthy, snapshot_id=snapshot_id)
    if found.decided_to is not None:
        reason = Reason.CLOCK_SET_BACK if found.clock_set_back else found.skip_reason or Reason.MISSED
        _pass_over(db, planned, found, reason, now=now)
    else:
        schedules.set_next(db, *planned.key, found.next_at, now=now)
    return Applied(_fresh(db, planned), found.next_at)


def _fired(
    db: Connection, planned: Planned, found: Look, *, now: datetime, unhealthy: frozenset[str], snapshot_id: str
) -> Applied:
    """The due slots are jobs, or one of the gates holds or drops them."""
    latest = found.due[-1]
    if planned.lane.name in unhealthy:
        again = now + timedelta(minutes=1)
        _hold(db, planned, UNHEALTHY, latest.at, again, now=now)
        return Applied(_fresh(db, planned), again)
    state = breakers.get(db, planned.lane.name, planned.schedule.command)
    probe = get_job(db, state.probe_job_id) if state.probe_job_id else None
    gate = breaker.may_start(
        state, planned.lane.entry.circuit_breaker, now, probe_status=probe.status if probe else None
    )
    if isinstance(gate, breaker.Held):
        until = gate.until or now + timedelta(seconds=30)
        _hold(db, planned, Reason.CIRCUIT_OPEN, latest.at, until, now=now)
        return Applied(_fresh(db, planned), until)
    due = found.due[-1:] if isinstance(gate, breaker.Probe) else found.due
    stopped = _make_room(db, planned, due, found, now=now)
    if isinstance(stopped, Applied):
        return stopped
    fired = [_fire(db, planned, slot, found, now=now, snapshot_id=snapshot_id) for slot in due]
    if isinstance(gate, breaker.Probe):
        breakers.put(db, breaker.probing(state, fired[0]), now=now, job_id=fired[0])
    if found.skipped:
        reason = found.skip_reason or Reason.SUPERSEDED
        schedules.pass_over(
            db, *planned.key, latest.at, reason, now=now, next_run_at=found.next_at, count=found.skipped
        )
    return Applied(_fresh(db, planned), found.next_at, tuple(fired))


def _make_room(
    db: Connection, planned: Planned, due: tuple[Slot, ...], found: Look, *, now: datetime
) -> Applied | None:
    """None if the slot may fire beside the schedule's earlier jobs; otherwise what becomes of it."""
    if due[-1].is_catch_up:
        return None  # missed runs queue behind each other
    outstanding = schedules.outstanding(db, *planned.key)
    match planned.schedule.if_running:
        case "skip" if outstanding:
            _pass_over(db, planned, found, Reason.ALREADY_RUNNING, now=now)
            return Applied(_fresh(db, planned), found.next_at)
        case "queue" if len(outstanding) > planned.lane.entry.max_outstanding_polls:
            _pass_over(db, planned, found, Reason.OUTSTANDING_LIMIT, now=now)
            return Applied(_fresh(db, planned), found.next_at)
        case "cancel" if outstanding:
            ended = [cancel(db, job_id, "another run of its schedule is due", now=now) for job_id in outstanding]
            running = tuple(one.job_id for one in ended if isinstance(one, CancelRequested))
            if running:
                # The slot waits until the process is really gone.
                again = now + RECHECK_AFTER_CANCEL
                _hold(db, planned, Reason.ALREADY_RUNNING, due[-1].at, again, now=now)
                return Applied(_fresh(db, planned), again, to_stop=running)
    return None


def _fire(db: Connection, planned: Planned, slot: Slot, found: Look, *, now: datetime, snapshot_id: str) -> str:
    schedule, lane = planned.schedule, planned.lane
    new = NewJob(
        plugin=lane.name,
        command=schedule.command,
        payload=strict_json.dumps(dict(schedule.payload)) if schedule.payload else None,
        submitted_by="scheduler",
        max_attempts=lane.entry.retry.max_attempts,
        schedule_id=schedule.id,
        slot_at=slot.at,
        notify=lane.entry.notify_on_complete,
        snapshot_id=snapshot_id,
    )
    is_over = isinstance(planned.definition.when, At)
    made = schedules.fire(db, new, now=now, next_run_at=found.next_at, exhausted=is_over)
    failpoint("schedule.after_insert")
    return made.job_id


def _hold(
    db: Connection, planned: Planned, reason: str, slot_at: datetime, until: datetime | None, *, now: datetime
) -> None:
    schedules.hold(db, *planned.key, reason, now=now, slot_at=slot_at, next_run_at=until)


def _pass_over(db: Connection, planned: Planned, found: Look, reason: Reason, *, now: datetime) -> None:
    slot_at = found.decided_to or found.due[-1].at
    count = found.skipped + len(found.due)
    schedules.pass_over(db, *planned.key, slot_at, reason, now=now, next_run_at=found.next_at, count=count)


def _fresh(db: Connection, planned: Planned) -> Entry:
    entry = schedules.get(db, *planned.key)
    assert entry is not None, "the entry was there a moment ago in this transaction"
    return entry
