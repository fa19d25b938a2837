"""Apply schedule evaluations to the ledger: create the job of a due slot, or hold or skip the slot.

Runs inside one transaction, so that job, slot and next run change together. Knows pauses, health, breakers and open
jobs; does not know when to evaluate.
"""

from datetime import datetime, timedelta
from functools import partial
from itertools import groupby

from attrs import evolve, frozen

from ductile.calendar.definition import After, At, CatchUp, Definition
from ductile.calendar.due import Evaluation
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
from ductile.engine.follow_up_rules import follow_up_rule_of, signal_runs
from ductile.engine.scheduling.sla import add_expectations
from ductile.ledger.admin.job_actions import CancelRequested, cancel
from ductile.ledger.completion.record import Recorded
from ductile.ledger.jobs import schedule_jobs
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.storage.db import Db, RowFault, try_in_savepoint
from ductile.ledger.tables import breakers, journal, schedules
from ductile.ledger.tables.schedules import EntryStatus, ScheduleEntry

CANCEL_RECHECK_INTERVAL = timedelta(seconds=1)
HEALTH_RECHECK_INTERVAL = timedelta(minutes=1)
HOLD_REASONS = frozenset({SkipReason.PLUGIN_UNHEALTHY, SkipReason.CIRCUIT_OPEN, SkipReason.ALREADY_RUNNING})
"""Why a due slot is held. It fires when the reason is gone, however late; it does not count as missed."""
DELAY_REASONS = HOLD_REASONS | {SkipReason.SCHEDULE_FAULT}
"""Why slots are decided late although the service is up."""
CANCEL_REASON = "another run of its schedule is due"
NO_ENTRY = "every evaluated schedule has an entry"

ScheduleKey = tuple[str, str]
Hold = tuple[SkipReason, datetime]
"""Why a slot is held, and the time of the slot."""


@frozen(eq=False)
class PlannedSchedule:
    """One schedule under one configuration."""

    configured: ConfiguredPlugin
    schedule: Schedule
    definition: Definition
    hash: str

    @property
    def key(self) -> ScheduleKey:
        return self.configured.name, self.schedule.id

    @property
    def is_once(self) -> bool:
        return isinstance(self.definition.when, At | After)

    def definition_after(self, held_reason: str | None) -> Definition:
        """Return the definition to evaluate. A slot that was held fires even if it is late by then."""
        if held_reason in HOLD_REASONS and self.definition.catch_up is CatchUp.SKIP:
            return evolve(self.definition, catch_up=CatchUp.RUN_ONCE)
        return self.definition


@frozen(eq=False)
class SlotDecision:
    """An evaluation of a schedule that has to be applied.

    `hold`: the slot that the evaluation before found held, if this process made it. `fault`: the internal error that
    prevented the evaluation, which then only has the time of the next try.
    """

    planned: PlannedSchedule
    entry: ScheduleEntry
    evaluation: Evaluation
    hold: Hold | None = None
    fault: str | None = None


@frozen(kw_only=True, eq=False)
class Applied:
    """The result of a decision: the new entry, the time of the next evaluation, and the affected jobs."""

    entry: ScheduleEntry
    next_at: datetime | None
    hold: Hold | None = None
    fired: tuple[str, ...] = ()
    ended: tuple[Recorded, ...] = ()
    """Queued jobs that were cancelled for this slot."""
    to_stop: tuple[str, ...] = ()
    """Running jobs whose process must exit before the slot can fire."""


@frozen(kw_only=True, eq=False)
class TickContext:
    """The values that all decisions of one transaction share."""

    at: datetime
    snapshot: Snapshot
    unhealthy: frozenset[str]


def apply_all(db: Db, decisions: list[SlotDecision], now: TickContext) -> list[Applied | RowFault]:
    """Apply every decision. One that cannot be written results in a RowFault and does not affect the others."""
    applied: list[Applied | RowFault] = []
    for only_sets_next_run, group in groupby(decisions, key=_only_sets_next_run):
        batch = list(group)
        # Thousands of new schedules need only their next run, which one savepoint can write for many of them.
        results = try_in_savepoint(db, partial(_set_next_runs, db, batch, now)) if only_sets_next_run else None
        if results is None or isinstance(results, RowFault):
            applied += [try_in_savepoint(db, partial(_apply, db, decision, now)) for decision in batch]
        else:
            applied += results
    return applied


def _only_sets_next_run(decision: SlotDecision) -> bool:
    """True if only the next run changes, whether the schedule is paused or not."""
    evaluation = decision.evaluation
    is_held = evaluation.held or decision.fault or decision.entry.held_reason == SkipReason.SCHEDULE_FAULT
    return not (
        evaluation.due or is_held or evaluation.decided_to or evaluation.clock_set_back or decision.planned.is_once
    )


def _set_next_runs(db: Db, decisions: list[SlotDecision], now: TickContext) -> list[Applied]:
    """Do what `_apply` does for decisions that only set the next run, in one statement."""
    next_runs = [(*decision.planned.key, decision.evaluation.next_at) for decision in decisions]
    written = schedules.set_next_runs(db, next_runs, now=now.at)
    assert written == len(decisions), NO_ENTRY
    # The entries are not read again: a change by an operator is announced and causes another evaluation.
    return [
        Applied(
            entry=evolve(decision.entry, next_run_at=decision.evaluation.next_at), next_at=decision.evaluation.next_at
        )
        for decision in decisions
    ]


def _apply(db: Db, decision: SlotDecision, now: TickContext) -> Applied:
    planned, evaluation = decision.planned, decision.evaluation
    if _read_entry(db, planned).status is EntryStatus.PAUSED_MANUAL:
        return _apply_paused(db, decision, now)
    if decision.fault is not None:
        return _hold_faulty(db, decision, now)
    if evaluation.held is not None:
        return _hold(db, decision, evaluation.held.reason, evaluation.held.slot_at, evaluation.next_at, now)
    if evaluation.due:
        return _apply_due(db, decision, now)
    if evaluation.clock_set_back:
        _journal_clock_set_back(db, decision, now)
    if evaluation.decided_to is not None:
        if evaluation.skipped and not evaluation.clock_set_back:
            missed = Slot(at=evaluation.decided_to, fire_at=evaluation.decided_to)
            add_expectations(db, planned.key, planned.schedule.expect, (missed,))
        _skip_slots(db, decision, _skip_reason(decision), evaluation.skipped, now)
    else:
        schedules.release_slot(db, *planned.key, evaluation.next_at, now=now.at)
    return Applied(entry=_read_entry(db, planned), next_at=evaluation.next_at)


def _apply_paused(db: Db, decision: SlotDecision, now: TickContext) -> Applied:
    """Skip the slots of a paused schedule. The only slot of an `at` or `after` schedule waits until it is resumed."""
    planned, evaluation = decision.planned, decision.evaluation
    if planned.is_once:
        return Applied(entry=_read_entry(db, planned), next_at=None)
    if evaluation.decided_to is not None:
        _skip_slots(db, decision, SkipReason.SCHEDULE_PAUSED_MANUAL, 0, now)
    else:
        schedules.set_next_run(db, *planned.key, evaluation.next_at, now=now.at)
    return Applied(entry=_read_entry(db, planned), next_at=evaluation.next_at)


def _apply_due(db: Db, decision: SlotDecision, now: TickContext) -> Applied:
    """Create jobs for the due slots, unless health, the breaker or open jobs hold or skip them."""
    planned, evaluation = decision.planned, decision.evaluation
    if planned.configured.name in now.unhealthy:
        return _hold_due(db, decision, SkipReason.PLUGIN_UNHEALTHY, now.at + HEALTH_RECHECK_INTERVAL, now)
    state = breakers.get(db, planned.configured.name, planned.schedule.command)
    probe = get_job(db, state.probe_job_id) if state.probe_job_id else None
    rules, status = planned.configured.entry.circuit_breaker, probe.status if probe else None
    gate = breaker.check_start(state, rules, now.at, probe_status=status)
    if isinstance(gate, Held):
        return _hold_due(
            db, decision, SkipReason.CIRCUIT_OPEN, gate.until or now.at + breaker.PROBE_RECHECK_INTERVAL, now
        )
    is_probe = isinstance(gate, breaker.Probe)
    overlap = _resolve_overlap(db, decision, evaluation.due[-1:] if is_probe else evaluation.due, now)
    if overlap.to_stop:
        held = _hold_due(db, decision, SkipReason.ALREADY_RUNNING, now.at + CANCEL_RECHECK_INTERVAL, now)
        return evolve(held, ended=overlap.ended, to_stop=overlap.to_stop)
    fired = tuple(_fire(db, planned, slot, evaluation, now) for slot in overlap.slots)
    # Slots that are caught up together have one expectation: that of the latest.
    add_expectations(db, planned.key, planned.schedule.expect, overlap.slots[-1:])
    if is_probe and fired:
        breakers.put(db, breaker.start_probe(state, fired[0]), now=now.at, job_id=fired[0])
    for reason, count in (
        (_skip_reason(decision), evaluation.skipped),
        (SkipReason.CIRCUIT_OPEN, len(evaluation.due) - 1 if is_probe else 0),
        (overlap.reason, overlap.dropped),
    ):
        if reason and count:
            _skip_slots(db, decision, reason, count, now, overlap.open_job_id if reason is overlap.reason else None)
    return Applied(entry=_read_entry(db, planned), next_at=evaluation.next_at, fired=fired, ended=overlap.ended)


MIN_OUTSTANDING = 2
"""`if_running: queue` always allows one job behind the running one."""


@frozen(kw_only=True)
class Overlap:
    """The slots that may fire despite open jobs of the schedule, why others are skipped, and the cancelled jobs."""

    slots: tuple[Slot, ...]
    dropped: int = 0
    reason: SkipReason | None = None
    open_job_id: str | None = None
    """The oldest open job, if the slots are skipped because of it."""
    ended: tuple[Recorded, ...] = ()
    to_stop: tuple[str, ...] = ()


def _resolve_overlap(db: Db, decision: SlotDecision, due: tuple[Slot, ...], now: TickContext) -> Overlap:
    """Apply `if_running` to slots that are on time or were held. Missed slots are queued regardless of open jobs."""
    planned, hold = decision.planned, decision.hold
    outstanding = schedule_jobs.open_job_ids(db, *planned.key)
    missed = tuple(slot for slot in due if slot.is_catch_up and not (hold and slot.at >= hold[1]))
    on_time = len(due) - len(missed)
    if not outstanding or not on_time:
        return Overlap(slots=due)
    match planned.schedule.if_running:
        case "skip":
            return Overlap(slots=missed, dropped=on_time, reason=SkipReason.ALREADY_RUNNING, open_job_id=outstanding[0])
        case "queue" if len(outstanding) >= max(planned.configured.entry.max_outstanding_polls, MIN_OUTSTANDING):
            return Overlap(
                slots=missed, dropped=on_time, reason=SkipReason.OUTSTANDING_LIMIT, open_job_id=outstanding[0]
            )
        case "cancel":
            return _cancel_outstanding(db, outstanding, due, now)
        case _:
            return Overlap(slots=due)


def _cancel_outstanding(db: Db, outstanding: list[str], due: tuple[Slot, ...], now: TickContext) -> Overlap:
    """Cancel the open jobs. While a process of one still runs, the slots wait for its exit."""
    ttl = now.snapshot.config.settings.service.dedupe_ttl
    rule, budget = follow_up_rule_of(now.snapshot), now.snapshot.budget
    results = [
        cancel(db, job_id, CANCEL_REASON, now=now.at, rule=rule, default_ttl=ttl, budget=budget)
        for job_id in outstanding
    ]
    signal_runs(db, results, now.snapshot, now=now.at)
    return Overlap(
        slots=due,
        ended=tuple(result for result in results if isinstance(result, Recorded)),
        to_stop=tuple(result.job_id for result in results if isinstance(result, CancelRequested)),
    )


def _fire(db: Db, planned: PlannedSchedule, slot: Slot, evaluation: Evaluation, now: TickContext) -> str:
    """Create the job of a slot and set the next run. Returns the job id."""
    schedule, configured = planned.schedule, planned.configured
    new = NewJob(
        plugin=configured.name,
        command=schedule.command,
        payload=strict_json.dumps(dict(schedule.payload)) if schedule.payload else None,
        submitted_by="scheduler",
        max_attempts=configured.entry.retry.max_attempts,
        schedule_id=schedule.id,
        slot_at=slot.at,
        notify=configured.entry.notify_on_complete,
        snapshot_id=now.snapshot.id,
    )
    is_over = isinstance(planned.definition.when, At)
    made = schedule_jobs.fire(db, new, now=now.at, next_run_at=evaluation.next_at, exhausted=is_over)
    while made.existed and not planned.is_once:
        # After a clock was set back, a slot can come twice. The second run gets a slot time of its own.
        assert new.slot_at is not None
        new = evolve(new, slot_at=new.slot_at + TICK)
        made = schedule_jobs.fire(db, new, now=now.at, next_run_at=evaluation.next_at)
    failpoint("schedule.after_insert")
    return made.job_id


def _hold_due(db: Db, decision: SlotDecision, reason: SkipReason, until: datetime, now: TickContext) -> Applied:
    """Hold the latest due slot. Its run is still expected in time."""
    latest = decision.evaluation.due[-1]
    add_expectations(db, decision.planned.key, decision.planned.schedule.expect, (latest,))
    return _hold(db, decision, reason, latest.at, until, now)


def _hold_faulty(db: Db, decision: SlotDecision, now: TickContext) -> Applied:
    """Hold a schedule that cannot be evaluated. Its slots are unknown; the journal has the time of the first fault."""
    known = decision.hold if decision.hold and decision.hold[0] is SkipReason.SCHEDULE_FAULT else None
    return _hold(
        db, decision, SkipReason.SCHEDULE_FAULT, known[1] if known else now.at, decision.evaluation.next_at, now
    )


def _hold(
    db: Db, decision: SlotDecision, reason: SkipReason, slot_at: datetime, until: datetime | None, now: TickContext
) -> Applied:
    """Hold the slot. The journal gets one row per slot and reason, not one per evaluation."""
    planned, hold = decision.planned, (reason, slot_at)
    if decision.hold == hold:
        schedules.set_next_run(db, *planned.key, until, now=now.at)
    else:
        schedules.hold_slot(db, *planned.key, reason, decision.fault, now=now.at, slot_at=slot_at, next_run_at=until)
    return Applied(entry=_read_entry(db, planned), next_at=until, hold=hold)


def _skip_slots(
    db: Db, decision: SlotDecision, reason: SkipReason, count: int, now: TickContext, open_job_id: str | None = None
) -> None:
    """Mark all slots up to the evaluation as decided. The journal records `count` skipped slots and the reason."""
    evaluation = decision.evaluation
    assert evaluation.decided_to is not None, "an evaluation that skips slots has decided_to"
    schedules.skip_slots(
        db,
        *decision.planned.key,
        evaluation.decided_to,
        reason,
        now=now.at,
        next_run_at=evaluation.next_at,
        count=count,
        open_job_id=open_job_id,
    )


def _skip_reason(decision: SlotDecision) -> SkipReason:
    """Return why the evaluation skips slots. Slots that passed while the schedule was held were not missed."""
    evaluation = decision.evaluation
    if evaluation.capped:
        return SkipReason.CATCH_UP_CAPPED
    if decision.hold is not None and decision.hold[0] in DELAY_REASONS and evaluation.skip_reason is SkipReason.MISSED:
        return decision.hold[0]
    return evaluation.skip_reason or SkipReason.MISSED


def _journal_clock_set_back(db: Db, decision: SlotDecision, now: TickContext) -> None:
    """Record in the journal that the clock was set back, which changes the next run but skips no slot."""
    plugin, schedule_id = decision.planned.key
    next_at = decision.evaluation.next_at
    data = {
        "schedule_id": schedule_id,
        "command": decision.planned.schedule.command,
        "reason": SkipReason.CLOCK_SET_BACK,
        "slot_at": to_text(now.at),
        "count": 0,
        "next_run_at": to_text(next_at) if next_at else None,
    }
    journal.append(db, "scheduler.skipped", now=now.at, plugin=plugin, data=data)


def _read_entry(db: Db, planned: PlannedSchedule) -> ScheduleEntry:
    entry = schedules.get(db, *planned.key)
    assert entry is not None, NO_ENTRY
    return entry
