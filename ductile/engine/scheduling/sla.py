"""Alarms of schedules: a job that does not start in time, or does not finish in time.

Expectations are stored when a slot is decided. When one is due, a single transaction checks it and starts the
pipelines that react to the alarm. The scheduler decides when to check.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from attrs import frozen

from ductile.calendar.firing import Slot
from ductile.calendar.reasons import SkipReason
from ductile.config.sections.settings import Expect
from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text
from ductile.core.model import Job, JobStatus
from ductile.core.units import format_duration
from ductile.ledger.completion.start_run import start_run
from ductile.ledger.jobs import schedule_jobs
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.storage.db import Db, RowFault, try_in_savepoint
from ductile.ledger.tables import journal, schedules, sla
from ductile.ledger.tables.schedules import EntryStatus
from ductile.ledger.tables.sla import Expectation
from ductile.pipeline.run.events import Event, derived_id
from ductile.pipeline.run.ingress import route_alert
from ductile.pipeline.run.run_signals import run_rule_of

LATE, OVERDUE = "schedule.late", "job.overdue"


@frozen(kw_only=True)
class Alarm:
    """An expectation that was not met."""

    kind: str
    plugin: str
    job: Job | None
    data: dict[str, Any]

    @property
    def message(self) -> str:
        return str(self.data["message"])


def add_expectations(db: Db, key: tuple[str, str], expect: Expect | None, slots: Sequence[Slot]) -> None:
    """Store when the jobs of these slots have to start and to finish."""
    if expect is None:
        return
    for kind, allowed in ((LATE, expect.start_within), (OVERDUE, expect.finish_within)):
        if allowed is not None:
            for slot in slots:
                due_at = slot.fire_at + allowed
                expectation = Expectation(plugin=key[0], schedule_id=key[1], slot_at=slot.at, kind=kind, due_at=due_at)
                sla.put(db, expectation)


def raise_alarms(db: Db, snapshot: Snapshot, *, now: datetime) -> list[Alarm | RowFault]:
    """Check every expectation that is due. Publish and return an alarm for each one that is not met.

    One that cannot be checked results in a RowFault and does not affect the others.
    """
    results = [
        try_in_savepoint(db, partial(_check_expectation, db, expectation, snapshot, now=now))
        for expectation in sla.pop_due(db, now=now)
    ]
    return [result for result in results if result is not None]


def _check_expectation(db: Db, expectation: Expectation, snapshot: Snapshot, *, now: datetime) -> Alarm | None:
    alarm = _find_alarm(db, expectation, snapshot)
    if alarm is not None:
        _publish(db, expectation, alarm, snapshot, now=now)
    return alarm


def _find_alarm(db: Db, expectation: Expectation, snapshot: Snapshot) -> Alarm | None:
    """Return the alarm; None if the expectation is met or no longer configured."""
    entry = schedules.get(db, expectation.plugin, expectation.schedule_id)
    allowed = _allowed_time(snapshot, expectation)
    if entry is None or allowed is None:
        return None
    job_id = schedule_jobs.find_slot_job(db, expectation.plugin, expectation.schedule_id, expectation.slot_at)
    job = get_job(db, job_id) if job_id else None
    if job_id is not None and (job is None or _is_met(expectation.kind, job)):
        return None
    if job is None and entry.status is EntryStatus.PAUSED_MANUAL:
        return None
    data = {
        "plugin": expectation.plugin,
        "command": entry.command,
        "schedule_id": expectation.schedule_id,
        "slot_at": to_text(expectation.slot_at),
        "due_at": to_text(expectation.due_at),
        "within": format_duration(allowed),
        "job_id": job.id if job else None,
        "status": job.status if job else None,
        "reason": _reason(entry.held_reason, job),
    }
    name = f"{expectation.plugin}/{expectation.schedule_id}"
    problem = "has not started" if expectation.kind == LATE else "has not finished"
    message = f"Schedule {name}: the run of {data['slot_at']} {problem}: {data['reason']}"
    return Alarm(
        kind=expectation.kind, plugin=expectation.plugin, job=job, data={**data, "message": message, "text": message}
    )


def _allowed_time(snapshot: Snapshot, expectation: Expectation) -> timedelta | None:
    """Return the allowed time in the current configuration; None if it has none."""
    configured = snapshot.plugins.get(expectation.plugin)
    for schedule in configured.entry.schedules if configured is not None else ():
        if schedule.id == expectation.schedule_id and schedule.expect is not None:
            return schedule.expect.start_within if expectation.kind == LATE else schedule.expect.finish_within
    return None


def _is_met(kind: str, job: Job) -> bool:
    return job.status.is_final or (kind == LATE and (job.status is JobStatus.RUNNING or job.attempt > 1))


def _reason(held: str | None, job: Job | None) -> str:
    if job is not None:
        return f"job {job.id} is {job.status}"
    if held in {reason.value for reason in SkipReason}:
        return SkipReason(held).message
    return "no job was created: the service was down, or the slot was skipped"


def _publish(db: Db, expectation: Expectation, alarm: Alarm, snapshot: Snapshot, *, now: datetime) -> None:
    """Write the alarm to the journal and start the runs that react to it."""
    job = alarm.job
    references = {"job_id": job.id if job else None, "root_job_id": job.root_job_id if job else None}
    journal.append(db, alarm.kind, now=now, plugin=alarm.plugin, data=alarm.data, **references)
    event_id = derived_id(
        "alarm", alarm.kind, expectation.plugin, expectation.schedule_id, to_text(expectation.slot_at)
    )
    event = Event(event_id, alarm.kind, alarm.data, expectation.plugin, now)
    ttl, budget = snapshot.config.settings.service.dedupe_ttl, snapshot.budget
    for run in route_alert(event, snapshot.routing, expectation.plugin, submitted_by="scheduler"):
        start_run(db, run, now=now, default_ttl=ttl, budget=budget, run_rule=run_rule_of(snapshot.routing))
