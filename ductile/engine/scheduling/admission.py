"""From what the calendar says to what the ledger gets: the gates that only the ledger can open, and the firing itself.

Runs inside the writer's transaction, so that job, slot and next run are one. Knows pauses, health, breakers and earlier
jobs; not when to look. The scheduler decides that and calls `apply_all`.
"""

from datetime import datetime, timedelta
from functools import partial
from itertools import groupby

from attrs import evolve, frozen

from ductile.calendar.definition import After, At, CatchUp, Definition
from ductile.calendar.due import Look
from ductile.calendar.firing import Slot
from ductile.calendar.reasons import SkipReason
from ductile.calendar.slots import TICK
from ductile.config.sections.settings import Schedule
from ductile.config.snapshot import ConfiguredPlugin, Snapshot
from ductile.core.clock import to_text
from ductile.core.formats import strict_json
from ductile.core.instance.failpoints import failpoint
from ductile.core.model import Held, NewJob
from ductile.engine import breaker
from ductile.engine.follow_up_rules import rule_of
from ductile.engine.scheduling.sla import expect
from ductile.ledger.admin.operate import CancelRequested, cancel
from ductile.ledger.completion.record import Recorded
from ductile.ledger.queue.rows import get_job
from ductile.ledger.storage.db import Db, RowFault, written_or_fault
from ductile.ledger.tables import breakers, journal, schedules
from ductile.ledger.tables.schedules import EntryStatus, ScheduleEntry

RECHECK_AFTER_CANCEL = timedelta(seconds=1)
RECHECK_HEALTH = timedelta(minutes=1)
HOLDING = frozenset({SkipReason.PLUGIN_UNHEALTHY, SkipReason.CIRCUIT_OPEN, SkipReason.ALREADY_RUNNING})
"""What holds a slot here. One that was held runs when the gate opens, however late: nobody missed it."""
EXCUSES = HOLDING | {SkipReason.SCHEDULE_FAULT}
"""What keeps slots from being decided in time while the service is up."""
CANCELLED = "another run of its schedule is due"
WITHOUT_ENTRY = "every schedule that is looked at has its entry"

Key = tuple[str, str]
Hold = tuple[SkipReason, datetime]
"""Why a slot waits, and which."""


@frozen(eq=False)
class Planned:
    """One schedule under one configuration."""

    lane: ConfiguredPlugin
    schedule: Schedule
    definition: Definition
    hash: str

    @property
    def key(self) -> Key:
        return self.lane.name, self.schedule.id

    @property
    def is_once(self) -> bool:
        return isinstance(self.definition.when, At | After)

    def definition_after(self, held_reason: str | None) -> Definition:
        """The definition to look with: a slot that a gate held runs when that opens, not only if it is on time."""
        if held_reason in HOLDING and self.definition.catch_up is CatchUp.SKIP:
            return evolve(self.definition, catch_up=CatchUp.RUN_ONCE)
        return self.definition


@frozen(eq=False)
class SlotDecision:
    """What one look said about a schedule as its entry was then; `hold` is what the look before it found waiting, if
    this process saw it. `fault`: why there was nothing to see; the look only says when to look again."""

    planned: Planned
    entry: ScheduleEntry
    look: Look
    hold: Hold | None = None
    fault: str | None = None


@frozen(kw_only=True, eq=False)
class Applied:
    """What became of a decision: the entry as it is now, the next look, and the jobs that were made or are to end."""

    entry: ScheduleEntry
    next_at: datetime | None
    hold: Hold | None = None
    fired: tuple[str, ...] = ()
    ended: tuple[Recorded, ...] = ()
    """Waiting jobs that made room."""
    to_stop: tuple[str, ...] = ()
    """Running jobs whose process is to end first."""


@frozen(kw_only=True, eq=False)
class Now:
    """What all decisions of one transaction have in common."""

    at: datetime
    snapshot: Snapshot
    unhealthy: frozenset[str]


def apply_all(db: Db, decisions: list[SlotDecision], now: Now) -> list[Applied | RowFault]:
    """Every decision is in the ledger, as far as the gates let it; one that cannot be written does not touch others."""
    applied: list[Applied | RowFault] = []
    for only_looks_ahead, group in groupby(decisions, key=_only_looks_ahead):
        alike = list(group)
        # Thousands of new schedules are told nothing but their next run, and one savepoint does for many of them.
        together = written_or_fault(db, partial(_look_ahead, db, alike, now)) if only_looks_ahead else None
        if together is None or isinstance(together, RowFault):
            applied += [written_or_fault(db, partial(_applied, db, decision, now)) for decision in alike]
        else:
            applied += together
    return applied


def _only_looks_ahead(decision: SlotDecision) -> bool:
    """Whether all there is to write is the next run, paused or not; a schedule with one slot waits for its pause."""
    found = decision.look
    is_held = found.held or decision.fault or decision.entry.held_reason == SkipReason.SCHEDULE_FAULT
    return not (found.due or is_held or found.decided_to or found.clock_set_back or decision.planned.is_once)


def _look_ahead(db: Db, decisions: list[SlotDecision], now: Now) -> list[Applied]:
    """What `_applied` does for these, without asking first what is not to be decided."""
    next_runs = [(*decision.planned.key, decision.look.next_at) for decision in decisions]
    written = schedules.set_all_next(db, next_runs, now=now.at)
    assert written == len(decisions), WITHOUT_ENTRY
    # Not read again: whatever else is in an entry was no part of the look, and who changes it by hand announces that.
    return [
        Applied(entry=evolve(decision.entry, next_run_at=decision.look.next_at), next_at=decision.look.next_at)
        for decision in decisions
    ]


def _applied(db: Db, decision: SlotDecision, now: Now) -> Applied:
    planned, found = decision.planned, decision.look
    if _fresh(db, planned).status is EntryStatus.PAUSED_MANUAL:
        return _paused(db, decision, now)
    if decision.fault is not None:
        return _faulty(db, decision, now)
    if found.held is not None:
        return _held(db, decision, found.held.reason, found.held.slot_at, found.next_at, now)
    if found.due:
        return _fired(db, decision, now)
    if found.clock_set_back:
        _tell_set_back(db, decision, now)
    if found.decided_to is not None:
        if found.skipped and not found.clock_set_back:
            missed = Slot(at=found.decided_to, fire_at=found.decided_to)
            expect(db, planned.key, planned.schedule.expect, (missed,))
        _pass_over(db, decision, _skip_reason(decision), found.skipped, now)
    else:
        schedules.release(db, *planned.key, found.next_at, now=now.at)
    return Applied(entry=_fresh(db, planned), next_at=found.next_at)


def _paused(db: Db, decision: SlotDecision, now: Now) -> Applied:
    """Slots go by unused, as the journal's pause says; the only slot of a schedule waits for the end of the pause."""
    planned, found = decision.planned, decision.look
    if planned.is_once:
        return Applied(entry=_fresh(db, planned), next_at=None)
    if found.decided_to is not None:
        _pass_over(db, decision, SkipReason.SCHEDULE_PAUSED_MANUAL, 0, now)
    else:
        schedules.set_next(db, *planned.key, found.next_at, now=now.at)
    return Applied(entry=_fresh(db, planned), next_at=found.next_at)


def _fired(db: Db, decision: SlotDecision, now: Now) -> Applied:
    """The due slots are jobs, or one of the gates holds or drops them."""
    planned, found = decision.planned, decision.look
    if planned.lane.name in now.unhealthy:
        return _stopped(db, decision, SkipReason.PLUGIN_UNHEALTHY, now.at + RECHECK_HEALTH, now)
    state = breakers.get(db, planned.lane.name, planned.schedule.command)
    probe = get_job(db, state.probe_job_id) if state.probe_job_id else None
    rules, status = planned.lane.entry.circuit_breaker, probe.status if probe else None
    gate = breaker.may_start(state, rules, now.at, probe_status=status)
    if isinstance(gate, Held):
        return _stopped(db, decision, SkipReason.CIRCUIT_OPEN, gate.until or now.at + breaker.RECHECK_PROBE, now)
    is_probe = isinstance(gate, breaker.Probe)
    room = _make_room(db, decision, found.due[-1:] if is_probe else found.due, now)
    if room.to_stop:
        held = _stopped(db, decision, SkipReason.ALREADY_RUNNING, now.at + RECHECK_AFTER_CANCEL, now)
        return evolve(held, ended=room.ended, to_stop=room.to_stop)
    fired = tuple(_fire(db, planned, slot, found, now) for slot in room.slots)
    # Of slots that are made up for together the latest stands for all.
    expect(db, planned.key, planned.schedule.expect, room.slots[-1:])
    if is_probe and fired:
        breakers.put(db, breaker.probing(state, fired[0]), now=now.at, job_id=fired[0])
    for reason, count in (
        (_skip_reason(decision), found.skipped),
        (SkipReason.CIRCUIT_OPEN, len(found.due) - 1 if is_probe else 0),
        (room.reason, room.dropped),
    ):
        if reason and count:
            _pass_over(db, decision, reason, count, now)
    return Applied(entry=_fresh(db, planned), next_at=found.next_at, fired=fired, ended=room.ended)


@frozen(kw_only=True)
class Overlap:
    """Which slots may fire beside the schedule's earlier jobs, why others may not, and who has to go first."""

    slots: tuple[Slot, ...]
    dropped: int = 0
    reason: SkipReason | None = None
    ended: tuple[Recorded, ...] = ()
    to_stop: tuple[str, ...] = ()


def _make_room(db: Db, decision: SlotDecision, due: tuple[Slot, ...], now: Now) -> Overlap:
    """`if_running` is asked for slots that are on time or were held; missed ones queue behind each other."""
    planned, hold = decision.planned, decision.hold
    outstanding = schedules.outstanding(db, *planned.key)
    missed = tuple(slot for slot in due if slot.is_catch_up and not (hold and slot.at >= hold[1]))
    on_time = len(due) - len(missed)
    if not outstanding or not on_time:
        return Overlap(slots=due)
    match planned.schedule.if_running:
        case "skip":
            return Overlap(slots=missed, dropped=on_time, reason=SkipReason.ALREADY_RUNNING)
        case "queue" if len(outstanding) > planned.lane.entry.max_outstanding_polls:
            return Overlap(slots=missed, dropped=on_time, reason=SkipReason.OUTSTANDING_LIMIT)
        case "cancel":
            return _cancel_all(db, outstanding, due, now)
        case _:
            return Overlap(slots=due)


def _cancel_all(db: Db, outstanding: list[str], due: tuple[Slot, ...], now: Now) -> Overlap:
    """Waiting jobs are over; while a process runs the slots wait until it is really gone."""
    ttl = now.snapshot.config.settings.service.dedupe_ttl
    rule, budget = rule_of(now.snapshot), now.snapshot.budget
    results = [
        cancel(db, job_id, CANCELLED, now=now.at, rule=rule, default_ttl=ttl, budget=budget) for job_id in outstanding
    ]
    return Overlap(
        slots=due,
        ended=tuple(one for one in results if isinstance(one, Recorded)),
        to_stop=tuple(one.job_id for one in results if isinstance(one, CancelRequested)),
    )


def _fire(db: Db, planned: Planned, slot: Slot, found: Look, now: Now) -> str:
    """The slot is a job, and the entry points at the next run; the id of the job."""
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
        snapshot_id=now.snapshot.id,
    )
    is_over = isinstance(planned.definition.when, At)
    made = schedules.fire(db, new, now=now.at, next_run_at=found.next_at, exhausted=is_over)
    while made.existed and not planned.is_once:
        # Only a clock that was set back comes to a slot twice. The second time is another run, with a slot of its own.
        assert new.slot_at is not None
        new = evolve(new, slot_at=new.slot_at + TICK)
        made = schedules.fire(db, new, now=now.at, next_run_at=found.next_at)
    failpoint("schedule.after_insert")
    return made.job_id


def _stopped(db: Db, decision: SlotDecision, reason: SkipReason, until: datetime, now: Now) -> Applied:
    """A gate that only the ledger can open holds the latest slot; its run is expected all the same."""
    latest = decision.look.due[-1]
    expect(db, decision.planned.key, decision.planned.schedule.expect, (latest,))
    return _held(db, decision, reason, latest.at, until, now)


def _faulty(db: Db, decision: SlotDecision, now: Now) -> Applied:
    """Nobody knows its slots; what stands for them in the journal is when this began."""
    known = decision.hold if decision.hold and decision.hold[0] is SkipReason.SCHEDULE_FAULT else None
    return _held(db, decision, SkipReason.SCHEDULE_FAULT, known[1] if known else now.at, decision.look.next_at, now)


def _held(
    db: Db, decision: SlotDecision, reason: SkipReason, slot_at: datetime, until: datetime | None, now: Now
) -> Applied:
    """The slot waits. The journal is told once for each slot and reason, not with every look."""
    planned, hold = decision.planned, (reason, slot_at)
    if decision.hold == hold:
        schedules.set_next(db, *planned.key, until, now=now.at)
    else:
        why = (reason, decision.fault)
        schedules.hold(db, *planned.key, *why, now=now.at, slot_at=slot_at, next_run_at=until)
    return Applied(entry=_fresh(db, planned), next_at=until, hold=hold)


def _pass_over(db: Db, decision: SlotDecision, reason: SkipReason, count: int, now: Now) -> None:
    """Everything up to the look is decided; `count` slots will never run, and the journal says why."""
    found = decision.look
    assert found.decided_to is not None, "a look that passes over something says how far"
    schedules.pass_over(
        db, *decision.planned.key, found.decided_to, reason, now=now.at, next_run_at=found.next_at, count=count
    )


def _skip_reason(decision: SlotDecision) -> SkipReason:
    """Why the look passes over slots; those that came and went while the schedule was held were not missed."""
    found = decision.look
    if found.capped:
        return SkipReason.CATCH_UP_CAPPED
    if decision.hold is not None and decision.hold[0] in EXCUSES and found.skip_reason is SkipReason.MISSED:
        return decision.hold[0]
    return found.skip_reason or SkipReason.MISSED


def _tell_set_back(db: Db, decision: SlotDecision, now: Now) -> None:
    """No slot is passed over by this, but whoever asks why the schedule went on earlier finds the reason."""
    plugin, schedule_id = decision.planned.key
    next_at = decision.look.next_at
    data = {
        "schedule_id": schedule_id,
        "command": decision.planned.schedule.command,
        "reason": SkipReason.CLOCK_SET_BACK,
        "slot_at": to_text(now.at),
        "count": 0,
        "next_run_at": to_text(next_at) if next_at else None,
    }
    journal.append(db, "scheduler.skipped", now=now.at, plugin=plugin, data=data)


def _fresh(db: Db, planned: Planned) -> ScheduleEntry:
    entry = schedules.get(db, *planned.key)
    assert entry is not None, WITHOUT_ENTRY
    return entry
