"""From queued to running: the oldest claimable jobs of every lane that has a free slot.

A lane is one plugin's ready jobs in order of arrival. A full lane, a delayed job or a held key is never looked at, so
the cost of a claim depends neither on history nor on the backlog behind them. Called by the dispatcher.
"""

import heapq
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from attrs import evolve, frozen

from ductile.core.clock import to_text
from ductile.core.model import Budget, GateRule, Held, Job, JobStatus, JoinRule, Skipped
from ductile.ledger.admin.quarantine import quarantine
from ductile.ledger.completion.record import Recorded, end_queued
from ductile.ledger.queue import breaker_holds, dedupe, joins
from ductile.ledger.queue.dedupe import DEFAULT_TTL
from ductile.ledger.queue.lanes import lanes_with_work
from ductile.ledger.queue.resolve_joins import MOST_AT_ONCE, settle_joins
from ductile.ledger.queue.rows import ATTEMPT, DEDUPE_KEY, ID, JOB_COLUMNS, SEQ, Start, job_from_row, moment
from ductile.ledger.queue.tree_counters import ORDINARY
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.sqlite_errors import is_of_one_row, told
from ductile.ledger.tables import breakers, facts, journal

CLOCK_SLACK = timedelta(seconds=60)
"""A retry whose failure lies further in the future than this was written before the clock was set back: it is due."""
FEW_LANES = 4
BEFORE_ALL = -1 << 62
"""Before the first place in the queue: an adopted ledger has negative ones."""
NO_STATES: Mapping[str, str] = MappingProxyType({})
NO_GATES: Mapping[str, GateRule] = MappingProxyType({})
MOST_NOT_STARTED = 40
"""How many jobs one claim skips or lets wait for their key at most, so that its transaction stays short."""


@frozen(kw_only=True)
class Claimed:
    """The jobs that now run, and those found unnecessary on the way. `more` asks for another turn at once.

    `states` has the state of each of their plugins, as JSON text. `next_due` is when the next delayed job becomes
    claimable; only told when there was room for more jobs.
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
    may_wake: bool = True,
) -> Claimed:
    """Start up to `limit` jobs under `run_id`, oldest first, no plugin with more than its `free` slots.

    A plugin that `free` does not name gets nothing: paused, blocked and unknown plugins are left out. A job of a plugin
    that `gates` names starts only if the breaker of its command allows it. `may_wake=False` says that no job is
    delayed. A row that cannot be read is quarantined.
    """
    if may_wake:
        wake_due(db, now=now)
    slots = {plugin: count for plugin, count in free.items() if count > 0 and plugin != joins.LANE} if limit > 0 else {}
    heads = [head for lane in _lanes(db, slots) if (head := _head(db, lane))]
    heapq.heapify(heads)
    start = Start(now, snapshot_id)
    jobs: list[Job] = []
    to_start: list[Job] = []
    skipped: list[Recorded] = []
    not_started, held_any = 0, False
    gates = gates or NO_GATES
    while heads and len(jobs) < limit and not_started < MOST_NOT_STARTED:
        head = heapq.heappop(heads)
        taken = _take(db, head, start, now=now, ttl=default_ttl, gates=gates)
        if taken is None:
            # The rest of this lane has its turn with the next claim, so that this one stays short.
            held_any |= head.lane in gates
            continue
        if isinstance(taken, Job):
            jobs.append(taken)
            to_start.append(taken)
            slots[head.lane] -= 1
            if head.is_keyed or head.lane in gates:  # what is decided next depends on it
                _start_all(db, to_start, start, run_id=run_id)
                to_start = []
        else:
            skipped.extend(taken)
            not_started += 1
        if slots[head.lane] > 0 and len(jobs) < limit and (following := _head(db, head.lane, after=head.seq)):
            heapq.heappush(heads, following)
    _start_all(db, to_start, start, run_id=run_id)
    has_room = len(jobs) < limit
    return Claimed(
        jobs=tuple(jobs),
        states={plugin: facts.state(db, plugin) for plugin in {job.plugin for job in jobs}},
        skipped=tuple(skipped),
        more=(bool(heads) or held_any) and has_room,
        next_due=_next_due_or_now(db, now=now) if has_room and (may_wake or held_any) else None,
    )


# One statement for three questions whose answer is nearly always no.
WAITING = """
    SELECT EXISTS (SELECT 1 FROM job_queue WHERE lane = 'core.join' AND is_join = 1),
           EXISTS (SELECT 1 FROM job_queue WHERE next_retry_at IS NOT NULL),
           EXISTS (SELECT 1 FROM job_queue WHERE lane = 'core.relay')
"""


def claim_next(
    db: Db,
    *,
    now: datetime,
    run_id: str,
    free: Mapping[str, int],
    limit: int,
    relays: Mapping[str, int] | None = None,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = ORDINARY,
    snapshot_id: str | None = None,
    join_rule: JoinRule | None = None,
    gates: Mapping[str, GateRule] | None = None,
) -> tuple[list[Recorded], Claimed]:
    """End the joins that are ready, then claim. Relays need no worker: their slots are their only limit.

    Returns the joins that ended, and the claim.
    """
    join_is_ready, any_delayed, any_relay = db.execute(WAITING).fetchone()
    settled: list[Recorded] = []
    if join_rule and join_is_ready:
        settled = settle_joins(db, join_rule, now=now, default_ttl=default_ttl, budget=budget)
    start = partial(claim, db, now=now, run_id=run_id, default_ttl=default_ttl, snapshot_id=snapshot_id)
    claimed = start(free=free, limit=limit, gates=gates, may_wake=bool(any_delayed or settled))
    if relays and (any_relay or any_delayed or settled):
        more = start(free=relays, limit=sum(relays.values()))
        claimed = evolve(
            claimed,
            jobs=claimed.jobs + more.jobs,
            states={**claimed.states, **more.states},
            skipped=claimed.skipped + more.skipped,
            more=claimed.more or more.more,
            next_due=claimed.next_due or more.next_due,
        )
    # A skipped job can be the last that a join waited for.
    if join_rule and (claimed.skipped or len(settled) == MOST_AT_ONCE) and joins.any_ready(db):
        claimed = evolve(claimed, more=True)
    return settled, claimed


# Asked first, because nearly always nobody is due and an update that finds nothing costs three times as much.
ANYONE_DUE = """
    SELECT EXISTS (SELECT 1 FROM job_queue WHERE next_retry_at <= ?)
        OR EXISTS (SELECT 1 FROM job_queue WHERE next_retry_at IS NOT NULL AND failed_at > ?)
"""
WAKE_DUE = "UPDATE job_queue SET next_retry_at = NULL, lane = plugin WHERE next_retry_at <= ?"
WAKE_STRANDED = """
    UPDATE job_queue SET next_retry_at = NULL, lane = plugin WHERE next_retry_at IS NOT NULL AND failed_at > ?
"""


def wake_due(db: Db, *, now: datetime) -> None:
    """Jobs whose delay is over are in their lanes; so are those a clock that was set back would strand for years."""
    due, stranded = to_text(now), to_text(now + CLOCK_SLACK)
    if db.execute(ANYONE_DUE, (due, stranded)).fetchone()[0]:
        db.execute(WAKE_DUE, (due,))
        db.execute(WAKE_STRANDED, (stranded,))


NEXT_DUE = "SELECT MIN(next_retry_at) FROM job_queue WHERE next_retry_at IS NOT NULL"


def next_due(db: Db) -> datetime | None:
    """When the next delayed job becomes claimable, if one is delayed."""
    return moment(db.execute(NEXT_DUE).fetchone()[0])


WAKE_UNREADABLE = f"UPDATE job_queue SET next_retry_at = NULL, lane = plugin WHERE next_retry_at = ({NEXT_DUE})"


def _next_due_or_now(db: Db, *, now: datetime) -> datetime | None:
    """`next_due`; but a delay that cannot be read is over."""
    try:
        return next_due(db)
    except (ValueError, sqlite3.Error) as error:
        if not is_of_one_row(error):
            raise
        db.execute(WAKE_UNREADABLE)
        return now


def _lanes(db: Db, slots: Mapping[str, int]) -> list[str]:
    return list(slots) if len(slots) <= FEW_LANES else [lane for lane in lanes_with_work(db) if lane in slots]


class Head(NamedTuple):
    """The oldest job of a lane: its place in the queue and its row, which ends with the moment it was asked for.

    With a `fault`, which says why SQLite does not give the row, that has only the job's id, attempt and place.
    """

    seq: int
    lane: str
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
    def is_keyed(self) -> bool:
        return self.row[DEDUPE_KEY] is not None


LANE_HEAD = f"SELECT {JOB_COLUMNS}, asked_at FROM job_queue WHERE lane = ? AND seq > ? ORDER BY seq LIMIT 1"


HEAD_ALONE = "SELECT id, attempt, seq FROM job_queue WHERE lane = ? AND seq > ? ORDER BY seq LIMIT 1"


def _head(db: Db, lane: str, *, after: int = BEFORE_ALL) -> Head | None:
    """Return the oldest job of the lane behind the position `after`. A row that SQLite cannot decode has a fault."""
    try:
        row = db.execute(LANE_HEAD, (lane, after)).fetchone()
    except sqlite3.Error as error:
        if not is_of_one_row(error):
            raise
        columns: list[Any] = [None] * (max(ID, ATTEMPT, DEDUPE_KEY, SEQ) + 1)
        columns[ID], columns[ATTEMPT], columns[SEQ] = db.execute(HEAD_ALONE, (lane, after)).fetchone()
        return Head(columns[SEQ], lane, tuple(columns), told(error))
    return None if row is None else Head(row[SEQ], lane, row)


def _take(
    db: Db, head: Head, start: Start, *, now: datetime, ttl: timedelta, gates: Mapping[str, GateRule]
) -> Job | tuple[Recorded, ...] | None:
    """Return the job if it is to start; what was skipped or quarantined if not; None if it stays in its lane."""
    if fault := _unreadable(head):
        reason = f"cannot be started: {fault}"
        ended = quarantine(db, head.row[ID], head.row[ATTEMPT], reason, now=now, was=JobStatus.QUEUED)
        return (ended,) if ended else None
    if head.is_keyed and (not_started := _not_started(db, head, now=now, ttl=ttl)) is not None:
        return not_started
    if head.lane in gates and not _passes(db, head.job, gates[head.lane], now=now):
        return None
    return job_from_row(head.row, start)


def _unreadable(head: Head) -> str | None:
    """What is wrong with the values in the row; None if a job can be made of them."""
    if head.fault is not None:
        return head.fault
    try:
        job_from_row(head.row)
    except (ValueError, TypeError, ArithmeticError) as error:
        return told(error)
    return None


def _not_started(db: Db, head: Head, *, now: datetime, ttl: timedelta) -> tuple[Recorded, ...] | None:
    """A keyed job that must not start waits for its key, or is skipped and returned; None if it may start."""
    job = head.job
    assert job.dedupe_key is not None
    scope = (job.plugin, job.command, job.dedupe_key)
    if dedupe.is_held(db, scope):
        dedupe.wait_for_key(db, job.id)
        return ()
    if winner := dedupe.winner_meanwhile(db, job, asked_at=head.asked_at, now=now, ttl=ttl):
        ended = end_queued(db, job.id, job.attempt, Skipped(f"deduplicated: {winner} succeeded meanwhile"), now=now)
        return (ended,) if ended else ()
    return None


def _passes(db: Db, job: Job, rule: GateRule, *, now: datetime) -> bool:
    """True, and the breaker knows its probe; False, and the job waits with all of its kind."""
    verdict = breaker_holds.judged(db, rule, breakers.get(db, job.plugin, job.command), job, now=now)
    if isinstance(verdict, Held):
        breaker_holds.hold(db, job, verdict, now=now)
        return False
    if verdict is not None:
        breakers.put(db, verdict, now=now, job_id=job.id)
    return True


START = """
    UPDATE job_queue
       SET status = 'running', lane = NULL, started_at = ?, claimed_by = ?, started_config_snapshot_id = ?,
           blocked_reason = NULL
     WHERE seq = ? AND status = 'queued' AND attempt = ?
"""


def _start_all(db: Db, jobs: Sequence[Job], start: Start, *, run_id: str) -> None:
    """The jobs run, and the journal tells of each."""
    if not jobs:
        return
    claimed = (to_text(start.at), run_id, start.snapshot_id)
    changed = db.executemany(START, [(*claimed, job.seq, job.attempt) for job in jobs]).rowcount
    assert changed == len(jobs), "heads that were just read are queued: this transaction is the only writer"
    told = ((job.plugin, job.id, job.root_job_id or job.id, _started(job)) for job in jobs)
    journal.append_all(db, "job.started", told, now=start.at)


def _started(job: Job) -> dict[str, Any]:
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


class ProcessNote(NamedTuple):
    """The process that an attempt runs as, for all time."""

    job_id: str
    attempt: int
    pid: int
    start_ticks: int
    boot_id: str


def note_process(db: Db, process: ProcessNote, *, run_id: str, now: datetime) -> bool:
    """Store and journal the process of a running attempt, so that recovery can find it.

    False if the attempt is over or belongs to another run.
    """
    job_id, attempt, pid, start_ticks, boot_id = process
    rows = db.execute(NOTE_PROCESS, (pid, start_ticks, boot_id, job_id, attempt, run_id)).fetchall()
    for plugin, command, root_job_id in rows:
        data = {"attempt": attempt, "command": command, "pid": pid}
        journal.append(db, "plugin.spawned", now=now, plugin=plugin, job_id=job_id, root_job_id=root_job_id, data=data)
    return bool(rows)
