"""Silence alarms: a schedule whose job does not start in time, a job of a schedule that does not end in time.

What a slot is expected to do is written down when the slot is decided; when the moment has come, one transaction looks
whether it was done and starts what waits for the alarm. The scheduler knows when to look.
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
from ductile.ledger.completion.follow_ups import start_run
from ductile.ledger.queue.rows import get_job
from ductile.ledger.storage.db import Db, RowFault, written_or_fault
from ductile.ledger.tables import journal, schedules, sla
from ductile.ledger.tables.schedules import EntryStatus
from ductile.ledger.tables.sla import Expectation
from ductile.pipeline.run.events import Event, derived_id
from ductile.pipeline.run.ingress import sound

LATE, OVERDUE = "schedule.late", "job.overdue"


@frozen(kw_only=True)
class Alarm:
    """An expectation that was not met."""

    kind: str
    plugin: str
    job: Job | None
    data: dict[str, Any]

    @property
    def words(self) -> str:
        return str(self.data["message"])


def expect(db: Db, key: tuple[str, str], wanted: Expect | None, slots: Sequence[Slot]) -> None:
    """What the operator expects of these slots is written down."""
    if wanted is None:
        return
    for kind, patience in ((LATE, wanted.start_within), (OVERDUE, wanted.finish_within)):
        if patience is not None:
            for slot in slots:
                due_at = slot.fire_at + patience
                one = Expectation(plugin=key[0], schedule_id=key[1], slot_at=slot.at, kind=kind, due_at=due_at)
                sla.put(db, one)


def raise_alarms(db: Db, snapshot: Snapshot, *, now: datetime) -> list[Alarm | RowFault]:
    """Every expectation whose moment has come was looked at; what waits for those that were not met has begun.

    One that cannot be looked at is told and does not touch the others.
    """
    taken = sla.take_due(db, now=now)
    looked = [written_or_fault(db, partial(_raised, db, one, snapshot, now=now)) for one in taken]
    return [one for one in looked if one is not None]


def _raised(db: Db, one: Expectation, snapshot: Snapshot, *, now: datetime) -> Alarm | None:
    alarm = _judged(db, one, snapshot)
    if alarm is not None:
        _sound(db, one, alarm, snapshot, now=now)
    return alarm


def _judged(db: Db, one: Expectation, snapshot: Snapshot) -> Alarm | None:
    """The alarm; None if the expectation was met, or nobody holds it any more."""
    entry = schedules.get(db, one.plugin, one.schedule_id)
    patience = _patience(snapshot, one)
    if entry is None or patience is None:
        return None
    job_id = schedules.job_of_slot(db, one.plugin, one.schedule_id, one.slot_at)
    job = get_job(db, job_id) if job_id else None
    if job_id is not None and (job is None or _is_met(one.kind, job)):
        return None
    if job is None and entry.status is EntryStatus.PAUSED_MANUAL:
        return None
    data = {
        "plugin": one.plugin,
        "command": entry.command,
        "schedule_id": one.schedule_id,
        "slot_at": to_text(one.slot_at),
        "due_at": to_text(one.due_at),
        "within": format_duration(patience),
        "job_id": job.id if job else None,
        "status": job.status if job else None,
        "reason": _reason(entry.held_reason, job),
    }
    did_not = "has not started" if one.kind == LATE else "is not over"
    message = f"Schedule {one.plugin}/{one.schedule_id}: the run of {data['slot_at']} {did_not}: {data['reason']}"
    return Alarm(kind=one.kind, plugin=one.plugin, job=job, data={**data, "message": message, "text": message})


def _patience(snapshot: Snapshot, one: Expectation) -> timedelta | None:
    """How long the configuration of the moment waits for the schedule; None if it does not say."""
    lane = snapshot.lanes.get(one.plugin)
    for schedule in lane.entry.schedules if lane is not None else ():
        if schedule.id == one.schedule_id and schedule.expect is not None:
            return schedule.expect.start_within if one.kind == LATE else schedule.expect.finish_within
    return None


def _is_met(kind: str, job: Job) -> bool:
    return job.status.is_final or (kind == LATE and (job.status is JobStatus.RUNNING or job.attempt > 1))


def _reason(held: str | None, job: Job | None) -> str:
    if job is not None:
        return f"job {job.id} is {job.status}"
    if held in {reason.value for reason in SkipReason}:
        return SkipReason(held).words
    return "no job was made for it: the service was down, or the slot was passed over"


def _sound(db: Db, one: Expectation, alarm: Alarm, snapshot: Snapshot, *, now: datetime) -> None:
    job = alarm.job
    about = {"job_id": job.id if job else None, "root_job_id": job.root_job_id if job else None}
    journal.append(db, alarm.kind, now=now, plugin=alarm.plugin, data=alarm.data, **about)
    event_id = derived_id("alarm", alarm.kind, one.plugin, one.schedule_id, to_text(one.slot_at))
    event = Event(event_id, alarm.kind, alarm.data, one.plugin, now)
    ttl, budget = snapshot.config.settings.service.dedupe_ttl, snapshot.budget
    for following in sound(event, snapshot.world, one.plugin, submitted_by="scheduler"):
        start_run(db, following, now=now, default_ttl=ttl, budget=budget)
