"""Claim the oldest ready jobs (queued → running), up to each plugin's free slots.

A ready job has its plugin's name in the `lane` column. Delayed jobs, jobs that wait for a dedupe key and jobs of a full
plugin are never read, so the cost of a claim depends neither on history nor on the backlog.
"""

import heapq
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any

from attrs import evolve, frozen

from ductile.core.clock import from_text, from_text_or_none, to_text
from ductile.core.model import Budget, GateRule, Held, Job, JobStatus, JoinRule, OutcomeCode, Skipped
from ductile.ledger.completion.quarantine import quarantine
from ductile.ledger.completion.record import Recorded, end_queued
from ductile.ledger.completion.resolve_joins import MAX_JOINS_AT_ONCE, resolve_ready_joins
from ductile.ledger.jobs import dedupe, joins
from ductile.ledger.jobs.dedupe import DEFAULT_TTL, Duplicate
from ductile.ledger.jobs.rows import ATTEMPT, DEDUPE_KEY, ID, JOB_COLUMNS, SEQ, Start, job_from_row
from ductile.ledger.jobs.tree_counters import DEFAULT_BUDGET
from ductile.ledger.queue.waits import HELD_KEY, NO_HOLDS, Holds, QueuedTime, wait_data
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.sqlite_errors import error_text, is_row_fault
from ductile.ledger.tables import blocked_jobs, breakers, facts, journal

CLOCK_SLACK = timedelta(seconds=60)
"""A retry whose failure is further in the future was written before the clock was set back. It is due."""
MAX_DIRECT_LOOKUPS = 4
"""With more free plugins than this, the plugins that have ready jobs are listed first."""
BEFORE_FIRST = -1 << 62
"""Before the first `seq`, which is negative in an adopted ledger."""
NO_STATES: Mapping[str, str] = MappingProxyType({})
NO_GATES: Mapping[str, GateRule] = MappingProxyType({})
MAX_NOT_STARTED = 40
"""Jobs that one claim may skip or make wait for their key, so that its transaction stays short."""


@frozen(kw_only=True)
class Claimed:
    """The result of a claim: jobs to run, and jobs that were skipped as duplicates or quarantined.

    `states` has the state of each plugin as JSON text. `more`: another claim must follow immediately. `next_due` is
    when the next delayed job becomes ready; it is set only if fewer than `limit` jobs were claimed.
    """

    jobs: tuple[Job, ...] = ()
    states: Mapping[str, str] = NO_STATES
    skipped: tuple[Recorded, ...] = ()
    more: bool = False
    next_due: datetime | None = None


def claim(
    db: Db,
    *,
    now: datetime,
    run_id: str,
    free: Mapping[str, int],
    limit: int,
    default_ttl: timedelta = DEFAULT_TTL,
    snapshot_id: str | None = None,
    gates: Mapping[str, GateRule] | None = None,
    holds: Holds = NO_HOLDS,
    may_wake: bool = True,
) -> Claimed:
    """Start up to `limit` jobs under `run_id`, oldest first, at most `free[plugin]` of each plugin.

    Jobs of plugins that are not in `free` stay queued: paused, blocked and unknown plugins are left out. A job of a
    plugin in `gates` starts only if the breaker of its command allows it. `holds` is what the dispatcher knows about
    past waits. Pass `may_wake=False` if no job is delayed. A row that cannot be read is quarantined.
    """
    if may_wake:
        wake_due(db, now=now)
    if limit <= 0:
        free = {}
    slots = {plugin: count for plugin, count in free.items() if count > 0 and plugin != joins.JOIN_PLUGIN}
    heads = [head for plugin in _candidates(db, slots) if (head := _head(db, plugin))]
    heapq.heapify(heads)
    start = Start(now, snapshot_id)
    jobs: list[Job] = []
    to_start: list[Starting] = []
    skipped: list[Recorded] = []
    not_started, any_blocked = 0, False
    gates = gates or NO_GATES
    while heads and len(jobs) < limit and not_started < MAX_NOT_STARTED:
        head = heapq.heappop(heads)
        decision = _decide(db, head, start, now=now, ttl=default_ttl, gates=gates)
        if decision is None:
            # The next claim continues with this plugin, so that this transaction stays short.
            any_blocked |= head.plugin in gates
            continue
        if isinstance(decision, Job):
            jobs.append(decision)
            to_start.append((decision, _wait_data(db, head, decision, holds, now=now)))
            slots[head.plugin] -= 1
            if head.is_keyed or head.plugin in gates:  # the next decision depends on the stored status
                _start_all(db, to_start, start, run_id=run_id)
                to_start = []
        else:
            skipped.extend(decision)
            not_started += 1
        if slots[head.plugin] > 0 and len(jobs) < limit and (next_head := _head(db, head.plugin, after=head.seq)):
            heapq.heappush(heads, next_head)
    _start_all(db, to_start, start, run_id=run_id)
    has_capacity = len(jobs) < limit
    return Claimed(
        jobs=tuple(jobs),
        states={plugin: facts.state(db, plugin) for plugin in {job.plugin for job in jobs}},
        skipped=tuple(skipped),
        more=(bool(heads) or any_blocked) and has_capacity,
        next_due=_next_due_or_now(db, now=now) if has_capacity and (may_wake or any_blocked) else None,
    )


# One statement for three checks that nearly always find nothing.
WAITING = """
    SELECT EXISTS (SELECT 1 FROM job_queue WHERE lane = 'core.join' AND is_join = 1),
           EXISTS (SELECT 1 FROM job_queue WHERE next_retry_at IS NOT NULL),
           EXISTS (SELECT 1 FROM job_queue WHERE lane IN ('core.publish', 'core.relay'))
"""


def claim_next(
    db: Db,
    *,
    now: datetime,
    run_id: str,
    free: Mapping[str, int],
    limit: int,
    processless: Mapping[str, int] | None = None,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = DEFAULT_BUDGET,
    snapshot_id: str | None = None,
    join_rule: JoinRule | None = None,
    gates: Mapping[str, GateRule] | None = None,
    holds: Holds = NO_HOLDS,
) -> tuple[list[Recorded], Claimed]:
    """Resolve the ready joins, then claim. Return the resolved joins and the claim.

    Jobs without a process, such as relays, need no worker, so `processless` is their only limit.
    """
    join_is_ready, any_delayed, any_processless = db.execute(WAITING).fetchone()
    settled: list[Recorded] = []
    if join_rule and join_is_ready:
        settled = resolve_ready_joins(db, join_rule, now=now, default_ttl=default_ttl, budget=budget)
    start = partial(claim, db, now=now, run_id=run_id, default_ttl=default_ttl, snapshot_id=snapshot_id, holds=holds)
    claimed = start(free=free, limit=limit, gates=gates, may_wake=bool(any_delayed or settled))
    if processless and (any_processless or any_delayed or settled):
        more = start(free=processless, limit=sum(processless.values()))
        claimed = evolve(
            claimed,
            jobs=claimed.jobs + more.jobs,
            states={**claimed.states, **more.states},
            skipped=claimed.skipped + more.skipped,
            more=claimed.more or more.more,
            next_due=claimed.next_due or more.next_due,
        )
    # A skipped job can be the last open member of a join.
    if join_rule and (claimed.skipped or len(settled) == MAX_JOINS_AT_ONCE) and joins.has_ready(db):
        claimed = evolve(claimed, more=True)
    return settled, claimed


# Checked first: nearly always no job is due, and an update that finds nothing costs three times as much.
ANY_DUE = """
    SELECT EXISTS (SELECT 1 FROM job_queue WHERE next_retry_at <= ?)
        OR EXISTS (SELECT 1 FROM job_queue WHERE next_retry_at IS NOT NULL AND failed_at > ?)
"""
WAKE_DUE = "UPDATE job_queue SET next_retry_at = NULL, lane = plugin WHERE next_retry_at <= ?"
WAKE_AFTER_CLOCK_JUMP = """
    UPDATE job_queue SET next_retry_at = NULL, lane = plugin WHERE next_retry_at IS NOT NULL AND failed_at > ?
"""


def wake_due(db: Db, *, now: datetime) -> None:
    """Make delayed jobs ready that are due, or whose delay was computed before the clock was set back."""
    due, stranded = to_text(now), to_text(now + CLOCK_SLACK)
    if db.execute(ANY_DUE, (due, stranded)).fetchone()[0]:
        db.execute(WAKE_DUE, (due,))
        db.execute(WAKE_AFTER_CLOCK_JUMP, (stranded,))


NEXT_DUE = "SELECT MIN(next_retry_at) FROM job_queue WHERE next_retry_at IS NOT NULL"


def next_due(db: Db) -> datetime | None:
    """Return when the next delayed job becomes ready; None if no job is delayed."""
    return from_text_or_none(db.execute(NEXT_DUE).fetchone()[0])


WAKE_UNREADABLE = f"UPDATE job_queue SET next_retry_at = NULL, lane = plugin WHERE next_retry_at = ({NEXT_DUE})"


def _next_due_or_now(db: Db, *, now: datetime) -> datetime | None:
    """Return `next_due`. A job with an unreadable time is made ready now."""
    try:
        return next_due(db)
    except (ValueError, sqlite3.Error) as error:
        if not is_row_fault(error):
            raise
        db.execute(WAKE_UNREADABLE)
        return now


def _candidates(db: Db, slots: Mapping[str, int]) -> list[str]:
    if len(slots) <= MAX_DIRECT_LOOKUPS:
        return list(slots)
    return [plugin for plugin in plugins_with_ready_jobs(db) if plugin in slots]


# One index step per plugin, however many jobs it has.
PLUGINS_WITH_READY_JOBS = """
    WITH RECURSIVE lane (plugin) AS (
        SELECT MIN(job.lane) FROM job_queue AS job WHERE job.lane IS NOT NULL
        UNION ALL
        SELECT (SELECT MIN(job.lane) FROM job_queue AS job WHERE job.lane > lane.plugin)
          FROM lane WHERE lane.plugin IS NOT NULL
    )
    SELECT plugin FROM lane WHERE plugin IS NOT NULL
"""


def plugins_with_ready_jobs(db: Db) -> list[str]:
    """List the plugins that have a ready job, also those that may not start jobs."""
    return [plugin for (plugin,) in db.execute(PLUGINS_WITH_READY_JOBS) if plugin != joins.JOIN_PLUGIN]


@frozen(order=True)
class Head:
    """The oldest ready job of a plugin. `row` has JOB_COLUMNS, `failed_at`, `blocked_reason` and `asked_at`.

    If SQLite cannot decode the row, `fault` is the error and `row` has only id, attempt and seq.
    """

    seq: int
    plugin: str
    row: tuple[Any, ...]
    fault: str | None = None

    @property
    def job(self) -> Job:
        return job_from_row(self.row)

    @property
    def asked_at(self) -> str:
        asked_at: str = self.row[-1]
        return asked_at

    @property
    def failed_at(self) -> str | None:
        failed_at: str | None = self.row[-3]
        return failed_at

    @property
    def is_keyed(self) -> bool:
        return self.row[DEDUPE_KEY] is not None


OLDEST_READY = f"""
    SELECT {JOB_COLUMNS}, failed_at, blocked_reason, asked_at FROM job_queue
     WHERE lane = ? AND seq > ? ORDER BY seq LIMIT 1
"""
OLDEST_READY_KEYS = "SELECT id, attempt, seq FROM job_queue WHERE lane = ? AND seq > ? ORDER BY seq LIMIT 1"


def _head(db: Db, plugin: str, *, after: int = BEFORE_FIRST) -> Head | None:
    """Return the oldest ready job of the plugin with `seq > after`."""
    try:
        row = db.execute(OLDEST_READY, (plugin, after)).fetchone()
    except sqlite3.Error as error:
        if not is_row_fault(error):
            raise
        columns: list[Any] = [None] * (max(ID, ATTEMPT, DEDUPE_KEY, SEQ) + 1)
        columns[ID], columns[ATTEMPT], columns[SEQ] = db.execute(OLDEST_READY_KEYS, (plugin, after)).fetchone()
        return Head(columns[SEQ], plugin, tuple(columns), error_text(error))
    return None if row is None else Head(row[SEQ], plugin, row)


def _decide(
    db: Db, head: Head, start: Start, *, now: datetime, ttl: timedelta, gates: Mapping[str, GateRule]
) -> Job | tuple[Recorded, ...] | None:
    """Return the job if it may start, the skipped or quarantined job if it ended, or None if it stays queued."""
    if fault := _find_fault(head):
        reason = f"cannot be started: {fault}"
        ended = quarantine(db, head.row[ID], head.row[ATTEMPT], reason, now=now, was=JobStatus.QUEUED)
        return (ended,) if ended else None
    if head.is_keyed and (not_started := _check_key(db, head, now=now, ttl=ttl)) is not None:
        return not_started
    if head.plugin in gates and not _passes_breaker(db, head.job, gates[head.plugin], now=now):
        return None
    return job_from_row(head.row, start)


def _find_fault(head: Head) -> str | None:
    """Return why the row cannot be read as a job with its wait; None if it can."""
    if head.fault is not None:
        return head.fault
    try:
        job_from_row(head.row)
        from_text(head.asked_at)
        from_text_or_none(head.failed_at)
    except (ValueError, TypeError, ArithmeticError) as error:
        return error_text(error)
    return None


def _check_key(db: Db, head: Head, *, now: datetime, ttl: timedelta) -> tuple[Recorded, ...] | None:
    """Return None if a job with a dedupe key may start. Otherwise make it wait for the key, or skip and return it."""
    job = head.job
    if holder := dedupe.find_key_holder(db, job):
        dedupe.wait_for_key(db, job.id)
        data = {"reason": HELD_KEY, "holder": holder, "dedupe_key": job.dedupe_key}
        root_id = job.root_job_id or job.id
        journal.append(db, "job.waiting", now=now, plugin=job.plugin, job_id=job.id, root_job_id=root_id, data=data)
        return ()
    if winner := dedupe.find_winner_since(db, job, asked_at=head.asked_at, now=now, ttl=ttl):
        data = {"winner": winner, "dedupe_key": job.dedupe_key}
        outcome = Skipped(f"deduplicated: {winner} succeeded meanwhile", OutcomeCode.DEDUPLICATED, data)
        ended = end_queued(db, job.id, job.attempt, outcome, now=now)
        duplicate = Duplicate(job.plugin, job.command, job.dedupe_key or "", winner)
        return (evolve(ended, skipped_as=duplicate),) if ended else ()
    return None


def _passes_breaker(db: Db, job: Job, rule: GateRule, *, now: datetime) -> bool:
    """True if the breaker lets the job start; it may become the probe. Otherwise block the jobs of its command."""
    verdict = blocked_jobs.check_breaker(db, rule, breakers.get(db, job.plugin, job.command), job, now=now)
    if isinstance(verdict, Held):
        blocked_jobs.block_command(db, job, verdict, now=now)
        return False
    if verdict is not None:
        breakers.put(db, verdict, now=now, job_id=job.id)
    return True


WAITED_FOR_KEY = "SELECT 1 FROM journal WHERE job_id = ? AND kind = 'job.waiting' LIMIT 1"


def _wait_data(db: Db, head: Head, job: Job, holds: Holds, *, now: datetime) -> dict[str, Any]:
    queued = QueuedTime(
        asked_at=head.asked_at,
        failed_at=head.failed_at,
        blocked_reason=head.row[-2],
        is_retry=job.attempt > 1,
        waited_for_key=head.is_keyed and db.execute(WAITED_FOR_KEY, (job.id,)).fetchone() is not None,
    )
    return wait_data(queued, job.plugin, holds, now=now)


Starting = tuple[Job, Mapping[str, Any]]
"""A job to start, and the data of its journal row about its wait."""
START = """
    UPDATE job_queue
       SET status = 'running', lane = NULL, started_at = ?, claimed_by = ?, started_config_snapshot_id = ?,
           blocked_reason = NULL
     WHERE seq = ? AND status = 'queued' AND attempt = ?
"""


def _start_all(db: Db, starting: Sequence[Starting], start: Start, *, run_id: str) -> None:
    """Set the jobs to running and journal each start."""
    if not starting:
        return
    claimed = (to_text(start.at), run_id, start.snapshot_id)
    changed = db.executemany(START, [(*claimed, job.seq, job.attempt) for job, _ in starting]).rowcount
    assert changed == len(starting), "jobs that were just read are queued: this transaction is the only writer"
    entries = (
        (job.plugin, job.id, job.root_job_id or job.id, {**_started_data(job), **waited}) for job, waited in starting
    )
    journal.append_all(db, "job.started", entries, now=start.at)


def _started_data(job: Job) -> dict[str, Any]:
    data: dict[str, Any] = {
        "from": "queued",
        "to": "running",
        "attempt": job.attempt,
        "command": job.command,
        "submitted_by": job.submitted_by,
    }
    if job.parent_job_id is not None:
        data["parent_job_id"] = job.parent_job_id
    if job.schedule_id is not None:
        data["schedule_id"] = job.schedule_id
    return data


NOTE_PROCESS = """
    UPDATE job_queue SET pid = ?, pid_started = ?, boot_id = ?
     WHERE id = ? AND status = 'running' AND attempt = ? AND claimed_by = ?
    RETURNING plugin, command, root_job_id
"""


@frozen
class ProcessNote:
    """The process of an attempt. Pid, start ticks and boot id identify it even after a reboot."""

    job_id: str
    attempt: int
    pid: int
    start_ticks: int
    boot_id: str


def note_process(db: Db, process: ProcessNote, *, run_id: str, now: datetime) -> bool:
    """Store and journal the process of a running attempt, so that recovery can find it.

    False if the attempt is over or belongs to another run.
    """
    job_id = process.job_id
    values = (process.pid, process.start_ticks, process.boot_id, job_id, process.attempt, run_id)
    rows = db.execute(NOTE_PROCESS, values).fetchall()
    for plugin, command, root_job_id in rows:
        data = {"attempt": process.attempt, "command": command, "pid": process.pid}
        journal.append(db, "plugin.spawned", now=now, plugin=plugin, job_id=job_id, root_job_id=root_job_id, data=data)
    return bool(rows)
