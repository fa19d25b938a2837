"""The health of an instance: facts of the ledger and of the service in, a verdict with its reasons out.

The one place that decides it. `system status`, `system doctor`, `system watch` and `GET /healthz` show the result.
"""

import shlex
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

from attrs import field, frozen

from ductile.core.clock import to_text
from ductile.core.formats.json_schema import OPEN
from ductile.core.formats.stored_json import load_stored_object
from ductile.core.model import PROCESSLESS_SLOTS, Breaker, BreakerState
from ductile.explain.reason import Reason, ReasonView
from ductile.ledger.admin.drifted_plugins import DriftedPlugin, all_drifted
from ductile.ledger.admin.pauses import ALL_PLUGINS, Pause, all_pauses
from ductile.ledger.reports.job_stats import FailureRun, failures_since_success
from ductile.ledger.reports.queue_status import OldestJob, oldest_ready_job, running_by_plugin
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.lock_holder import LockHolder
from ductile.ledger.tables import breakers, plugin_inits, schedules, sla, snapshots
from ductile.ledger.tables.schedules import EntryStatus, ScheduleEntry
from ductile.ledger.tables.sla import Expectation

MAX_READY = timedelta(minutes=5)
"""A job that could start and has waited longer needs attention."""
MAX_LATE = timedelta(minutes=1)
"""A schedule that is due and was not evaluated for longer is late."""


class HealthVerdict(StrEnum):
    """The health of an instance. Only the first exits with 0."""

    HEALTHY = "healthy"
    ATTENTION = "attention"
    FAILED = "failed"


@frozen(kw_only=True)
class HealthFacts:
    """What decides the verdict, at one moment."""

    now: datetime
    is_stuck: bool = False
    """True if the service cannot write the ledger or evaluate schedules."""
    lock_holder: LockHolder | None = None
    """Another process that keeps the service from writing."""
    was_killed: bool = False
    """True if the last run of the service ended without a shutdown."""
    orphaned: int = 0
    pauses: tuple[Pause, ...] = ()
    unhealthy: tuple[tuple[str, str], ...] = ()
    """Plugins whose `init` failed, each with its error."""
    drifted: tuple[DriftedPlugin, ...] = ()
    """Plugins that do not run because their files have changed."""
    breakers: tuple[Breaker, ...] = ()
    late: tuple[ScheduleEntry, ...] = ()
    missed: tuple[Expectation, ...] = ()
    oldest_ready: OldestJob | None = None
    failing: tuple[FailureRun, ...] = ()


class HealthReasonData(ReasonView):
    """Why the verdict is not healthy. Its other members are the data of the code."""

    verdict: HealthVerdict
    fix: Annotated[str, "The command that shows more or fixes it"]


HealthReasonView = Annotated[HealthReasonData, OPEN]


@frozen
class HealthReason:
    """Why the verdict is not healthy, and the command that shows more or fixes it."""

    verdict: HealthVerdict
    reason: Reason
    fix: str

    def as_data(self) -> HealthReasonData:
        return {"verdict": self.verdict, **self.reason.as_data(), "fix": self.fix}


def _worst_first(reasons: Iterable[HealthReason]) -> tuple[HealthReason, ...]:
    return tuple(sorted(reasons, key=lambda one: one.verdict is not HealthVerdict.FAILED))


@frozen
class Health:
    """The verdict with its reasons, the worst first."""

    reasons: tuple[HealthReason, ...] = field(default=(), converter=_worst_first)

    @property
    def verdict(self) -> HealthVerdict:
        return self.reasons[0].verdict if self.reasons else HealthVerdict.HEALTHY

    @property
    def codes(self) -> list[str]:
        """The codes of the reasons, each once."""
        return list(dict.fromkeys(one.reason.code for one in self.reasons))


# ── decide ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def judge_health(facts: HealthFacts) -> Health:
    """Decide the verdict."""
    return Health((*_failures(facts), *_stopped(facts), *_waiting(facts), *_schedules(facts), *_failing(facts)))


def _failures(facts: HealthFacts) -> Iterator[HealthReason]:
    if holder := facts.lock_holder:
        yield _failed("ledger_locked", {"pid": holder.pid, "command": holder.command}, f"ps -fp {holder.pid}")
    elif facts.is_stuck:
        yield _failed("stuck", {}, "ductile system doctor")
    for plugin, error in facts.unhealthy:
        yield _failed("unhealthy", {"plugin": plugin, "error": error}, "ductile system reload")
    for drifted in facts.drifted:
        yield HealthReason(HealthVerdict.FAILED, Reason(drifted.code, drifted.data, facts.now), "ductile config check")


def _stopped(facts: HealthFacts) -> Iterator[HealthReason]:
    if facts.was_killed or facts.orphaned:
        yield _attention(facts, "stopped_uncleanly", {"orphaned": facts.orphaned}, "ductile system start")


def _waiting(facts: HealthFacts) -> Iterator[HealthReason]:
    for pause in facts.pauses:
        is_queue = pause.plugin == ALL_PLUGINS
        data = {"paused_at": to_text(pause.paused_at), "reason": pause.reason}
        data |= {"actor": pause.actor} if pause.actor else {}
        fix = "ductile queue resume" if is_queue else f"ductile plugin resume {shlex.quote(pause.plugin)}"
        yield _attention(facts, "queue_paused" if is_queue else "paused", {"plugin": pause.plugin, **data}, fix)
    for breaker in facts.breakers:
        counts: dict[str, Any] = {
            "plugin": breaker.plugin,
            "command": breaker.command,
            "failure_count": breaker.failure_count,
        }
        probe = {"probe": breaker.probe_job_id} if breaker.probe_job_id else {}
        fix = f"ductile system reset {shlex.join((breaker.plugin, breaker.command))}"
        yield _attention(facts, "breaker", counts | probe, fix)
    job = facts.oldest_ready
    if job is not None and facts.now - job.ready_at > MAX_READY:
        data = {"job_id": job.id, "plugin": job.plugin, "since": to_text(job.ready_at)}
        yield _attention(facts, "ready_too_long", data, f"ductile job why {job.id}")


def _schedules(facts: HealthFacts) -> Iterator[HealthReason]:
    for entry in facts.late:
        assert entry.next_run_at is not None, "only due schedules are late"
        yield _late(facts, "schedule_late", entry.plugin, entry.schedule_id, entry.next_run_at)
    for missed in facts.missed:
        yield _late(facts, "job_late", missed.plugin, missed.schedule_id, missed.due_at)


def _late(facts: HealthFacts, code: str, plugin: str, schedule_id: str, due_at: datetime) -> HealthReason:
    data = {"plugin": plugin, "schedule_id": schedule_id, "due_at": to_text(due_at)}
    return _attention(facts, code, data, f"ductile schedule why {shlex.join((plugin, schedule_id))}")


def _failing(facts: HealthFacts) -> Iterator[HealthReason]:
    for run in facts.failing:
        data = {"plugin": run.plugin, "count": run.count, "last_at": to_text(run.last_at), "error": run.last_error}
        capped = {"is_capped": True} if run.is_capped else {}
        fix = f"ductile job diagnose {run.last_job_id}"
        yield _attention(facts, "failing", {**data, "job_id": run.last_job_id, **capped}, fix)


def _attention(facts: HealthFacts, code: str, data: dict[str, Any], fix: str) -> HealthReason:
    return HealthReason(HealthVerdict.ATTENTION, Reason(code, data, facts.now), fix)


def _failed(code: str, data: dict[str, Any], fix: str) -> HealthReason:
    return HealthReason(HealthVerdict.FAILED, Reason(code, data), fix)


# ── read ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_health_facts(
    db: Db,
    plugins: Collection[str],
    *,
    now: datetime,
    is_running: bool = True,
    was_killed: bool = False,
    is_stuck: bool = False,
    lock_holder: LockHolder | None = None,
) -> HealthFacts:
    """Read the facts of these plugins. What only a running service can be late with is left out while none runs."""
    pauses = tuple(pause for pause in all_pauses(db) if pause.plugin in {*plugins, ALL_PLUGINS})
    unhealthy = tuple(
        (name, init.error)
        for name, init in sorted(plugin_inits.all_inits(db).items())
        if is_running and name in plugins and init.error is not None
    )
    drifted = tuple(one for name, one in all_drifted(db).items() if is_running and name in plugins)
    blocked = {*(pause.plugin for pause in pauses), *(name for name, _ in unhealthy), *(one.plugin for one in drifted)}
    claimable = [] if ALL_PLUGINS in blocked or not is_running else sorted({*plugins, *PROCESSLESS_SLOTS} - blocked)
    failing = (failures_since_success(db, name) for name in sorted({*plugins, *PROCESSLESS_SLOTS}))
    return HealthFacts(
        now=now,
        is_stuck=is_stuck,
        lock_holder=lock_holder,
        was_killed=was_killed,
        orphaned=0 if is_running else sum(running_by_plugin(db).values()),
        pauses=pauses,
        unhealthy=unhealthy,
        drifted=drifted,
        breakers=tuple(
            one for one in breakers.all_breakers(db) if one.state is not BreakerState.CLOSED and one.plugin in plugins
        ),
        late=tuple(_late_schedules(db, plugins, now)) if is_running else (),
        missed=tuple(one for one in sla.missed(db, now=now) if one.plugin in plugins) if is_running else (),
        oldest_ready=oldest_ready_job(db, claimable, now=now),
        failing=tuple(run for run in failing if run is not None),
    )


def loaded_plugins(db: Db) -> Collection[str]:
    """Return the plugins of the configuration that a service loaded last."""
    last = snapshots.newest(db)
    return load_stored_object(last.plugin_fingerprints if last else None).keys()


def _late_schedules(db: Db, plugins: Collection[str], now: datetime) -> Iterator[ScheduleEntry]:
    for entry in schedules.all_entries(db):
        is_due = entry.next_run_at is not None and now - entry.next_run_at > MAX_LATE
        if is_due and entry.status is EntryStatus.ACTIVE and entry.plugin in plugins:
            yield entry
