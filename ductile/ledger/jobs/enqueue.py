"""Enqueue jobs: every producer's `NewJob` becomes a row here, or is matched with a job that exists.

Dedupe check, budgets, tree counters, row and journal entry are part of the caller's transaction. Later changes of the
row are in `claim` (queued → running) and `record` (running → any other status).
"""

import os
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from attrs import evolve, frozen

from ductile.core.clock import to_text
from ductile.core.instance.failpoints import failpoint
from ductile.core.model import Budget, JobStatus, NewJob, OutcomeCode, Prefinished
from ductile.ledger.jobs import dedupe, joins, tree_counters
from ductile.ledger.jobs.dedupe import DEFAULT_TTL
from ductile.ledger.jobs.tree_counters import DEFAULT_BUDGET
from ductile.ledger.storage.bulk_insert import batch_statements, insert_rows
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import attempts, journal


@frozen(kw_only=True)
class Enqueued:
    """The result of an enqueue: the new job, or the existing one that replaces it."""

    job_id: str
    root_job_id: str
    status: JobStatus
    duplicate: dedupe.Duplicate | None = None
    existed: bool = False

    @property
    def deduplicated(self) -> bool:
        return self.duplicate is not None

    @property
    def is_new(self) -> bool:
        return not (self.deduplicated or self.existed)

    def is_open_in(self, root_job_id: str) -> bool:
        """True if this added an open job to the tree of that root."""
        return self.is_new and not self.status.is_final and self.root_job_id == root_job_id


NEWEST_SEQ = "SELECT COALESCE(MAX(seq), 0) FROM job_queue"


def newest_seq(db: Db) -> int:
    """Return the position of the newest job in the queue; 0 if the queue is empty."""
    newest: int = db.execute(NEWEST_SEQ).fetchone()[0]
    return newest


def enqueue(
    db: Db,
    new: NewJob,
    *,
    now: datetime,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = DEFAULT_BUDGET,
) -> Enqueued:
    """Insert the job, or return its dedupe winner or the existing job with the same id, child key or slot."""
    root = tree_counters.find_root(db, new.parent_job_id) if new.parent_job_id and not new.own_tree else None
    if root and root.is_replay:
        # A replay runs its whole tree again, so dedupe does not apply.
        new = evolve(new, dedupe_key=None)
    if winner := dedupe.find_winner(db, new, root.id if root else None, now=now, default_ttl=default_ttl):
        return _deduplicate(db, new, winner, now=now)
    prefinished = new.prefinished
    if prefinished is None and (prefinished := _check_budget(new, root, budget)):
        # The budget error has no follow-up jobs, so it fails the tree even if failures of this step are tolerated.
        new = evolve(new, tolerated=False)
    job_id = new.id or new_id(now)
    root_id = root.id if root else job_id
    now_text = to_text(now)
    actor = root.actor if root else new.actor or new.submitted_by
    if not _insert(db, new, job_id, root_id, actor, prefinished, now_text):
        return _find_existing(db, new, job_id)
    failpoint("enqueue.after_insert")
    if root:
        tree_counters.add_jobs(db, root.id, opened=int(prefinished is None))
    if new.join_id and prefinished is None:
        joins.add_members(db, new.join_id)
    status = prefinished.status if prefinished else JobStatus.QUEUED
    if prefinished:
        attempts.log_prefinished(db, job_id, prefinished, now=now)
    _journal_new_job(db, new, job_id, root_id, status, prefinished, now_text)
    return Enqueued(job_id=job_id, root_job_id=root_id, status=status)


def enqueue_all(
    db: Db,
    news: Iterable[NewJob],
    *,
    now: datetime,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = DEFAULT_BUDGET,
) -> list[Enqueued]:
    """Enqueue each job, in order. On an error the caller rolls back its transaction, so all are written or none."""
    enqueued: list[Enqueued] = []
    for parent_id, group in groupby(news, key=_batch_parent):
        siblings = list(group)
        root = tree_counters.find_root(db, parent_id) if parent_id and len(siblings) > 1 else None
        if root and _fit_budget(siblings, root, budget):
            enqueued += _enqueue_siblings(db, siblings, root, now=now)
        else:
            enqueued += [enqueue(db, new, now=now, default_ttl=default_ttl, budget=budget) for new in siblings]
    return enqueued


def _batch_parent(new: NewJob) -> str | None:
    """Return the parent of a job that can be inserted in a batch with its siblings; None if it needs checks first."""
    is_plain = new.id is None and new.dedupe_key is None and new.prefinished is None
    return new.parent_job_id if is_plain and not (new.is_join or new.own_tree) else None


def _fit_budget(siblings: list[NewJob], root: tree_counters.Root, budget: Budget) -> bool:
    return root.tree_jobs + len(siblings) <= budget.tree_jobs and max(new.hops for new in siblings) <= budget.hops


def _enqueue_siblings(db: Db, siblings: list[NewJob], root: tree_counters.Root, *, now: datetime) -> list[Enqueued]:
    """Do the same as `enqueue` for each job, with shared statements."""
    ids = new_ids(now, len(siblings))
    are_new = _insert_siblings(db, siblings, ids, root, now=now)
    new_ones = [(new, job_id) for new, job_id, is_new in zip(siblings, ids, are_new, strict=True) if is_new]
    for _ in new_ones:  # once per job, so that a test hits the same job with and without batching
        failpoint("enqueue.after_insert")
    if new_ones:
        tree_counters.add_jobs(db, root.id, jobs=len(new_ones), opened=len(new_ones))
    for join_id, count in Counter(new.join_id for new, _ in new_ones if new.join_id).items():
        joins.add_members(db, join_id, count)
    journal.append_all(
        db,
        "job.enqueued",
        ((new.plugin, job_id, root.id, _journal_data(new, JobStatus.QUEUED, None)) for new, job_id in new_ones),
        now=now,
    )
    return [
        Enqueued(job_id=job_id, root_job_id=root.id, status=JobStatus.QUEUED)
        if is_new
        else _find_existing(db, new, job_id)
        for new, job_id, is_new in zip(siblings, ids, are_new, strict=True)
    ]


def new_id(now: datetime) -> str:
    """Return a UUID version 7. It sorts by time, so that rows of jobs that run together are close on disk."""
    return _with_random_half(_time_half(now), os.urandom(8))


def new_ids(now: datetime, count: int) -> list[str]:
    """Return `count` ids with the same time."""
    time, random_bytes = _time_half(now), os.urandom(8 * count)
    return [_with_random_half(time, random_bytes[at : at + 8]) for at in range(0, len(random_bytes), 8)]


def _time_half(now: datetime) -> str:
    """Return the first half of an id: 48 bits of milliseconds, the version, 12 bits of the fraction."""
    millis, fraction = divmod((now - _EPOCH) // _MICROSECOND, 1000)
    text = f"{millis & (1 << 48) - 1:012x}"
    return f"{text[:8]}-{text[8:]}-7{fraction * 4096 // 1000:03x}"


def _with_random_half(first_half: str, random_bytes: bytes) -> str:
    """Append the second half of an id: the variant and 62 random bits."""
    text = f"{2 << 62 | int.from_bytes(random_bytes) >> 2:016x}"
    return f"{first_half}-{text[:4]}-{text[4:]}"


_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def _check_budget(new: NewJob, root: tree_counters.Root | None, budget: Budget) -> Prefinished | None:
    """Return the dead outcome of a job beyond the budget; None within it. Such a job gets a row but never starts."""
    if new.hops > budget.hops:
        return _beyond("hops", budget.hops, f"chain of more than {budget.hops} hops")
    if root and root.tree_jobs >= budget.tree_jobs:
        return _beyond("tree_jobs", budget.tree_jobs, f"tree of more than {budget.tree_jobs} jobs")
    return None


def _beyond(limit: str, most: int, error: str) -> Prefinished:
    data = {"limit": limit, "max": most, "limit_key": f"service.limits.{limit}"}
    return Prefinished(status=JobStatus.DEAD, error=error, code=OutcomeCode.OVER_BUDGET, data=data)


COMMON_COLUMNS = """
        id, plugin, command, payload, status, max_attempts, submitted_by, created_at, enqueued_config_snapshot_id,
        root_job_id, open_jobs, tree_jobs, asked_at, lane, actor"""
RARE_COLUMNS = """
        dedupe_key, completed_at, last_error, parent_job_id, source_event_id, event_context_id, tree_completed_at,
        child_key, pipeline, step_id, schedule_id, slot_at, dedupe_ttl_seconds, replay_of, join_id,
        outcome_code, hops, notify, is_join, waits_for, tolerated"""
RARE_DEFAULTS = (None,) * 16 + (0,) * 5
"""The defaults of the rare columns."""


def _insert_statements(columns: str) -> dict[int, str]:
    row = f"({', '.join('?' * len(columns.split(',')))})"
    return batch_statements(f"INSERT INTO job_queue ({columns})", row, "ON CONFLICT DO NOTHING")


INSERT_JOBS = _insert_statements(f"{COMMON_COLUMNS}, {RARE_COLUMNS}")
INSERT_JOB = INSERT_JOBS[1]
INSERT_PLAIN_JOB = _insert_statements(COMMON_COLUMNS)[1]
"""Without the rare columns: binding their defaults would take a quarter of the insert."""


def _insert(
    db: Db,
    new: NewJob,
    job_id: str,
    root_id: str,
    actor: str | None,
    prefinished: Prefinished | None,
    now_text: str,
) -> bool:
    """Insert the row; False if a job with the same id, child key or slot exists."""
    # The members of a join are inserted before it.
    waits_for = joins.count_open_members(db, job_id) if new.is_join and not prefinished else 0
    common, rare = _values(new, job_id, root_id, actor, now_text, prefinished, waits_for)
    if rare == RARE_DEFAULTS:
        return db.execute(INSERT_PLAIN_JOB, common).rowcount == 1
    return db.execute(INSERT_JOB, common + rare).rowcount == 1


def _values(
    new: NewJob,
    job_id: str,
    root_id: str,
    actor: str | None,
    now_text: str,
    prefinished: Prefinished | None = None,
    waits_for: int = 0,
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Return the values of the common and the rare columns. By position: named parameters cost a quarter more."""
    is_root = root_id == job_id
    completed_at = now_text if prefinished else None
    common = (
        job_id,
        new.plugin,
        new.command,
        new.payload,
        prefinished.status if prefinished else "queued",
        new.max_attempts,
        new.submitted_by,
        now_text,  # created_at
        new.snapshot_id,
        root_id,
        int(prefinished is None) if is_root else None,  # open_jobs
        1 if is_root else None,  # tree_jobs
        now_text,  # asked_at
        None if prefinished or waits_for else new.plugin,  # lane
        actor,
    )
    rare = (
        new.dedupe_key,
        completed_at,
        prefinished.error if prefinished else None,
        new.parent_job_id,
        new.source_event_id,
        new.event_context_id,
        completed_at if is_root else None,  # tree_completed_at
        new.child_key,
        new.pipeline,
        new.step_id,
        new.schedule_id,
        to_text(new.slot_at) if new.slot_at else None,
        new.dedupe_ttl.total_seconds() if new.dedupe_ttl is not None else None,
        new.replay_of,
        new.join_id,
        prefinished.code if prefinished else None,
        new.hops,
        new.notify,
        new.is_join,
        waits_for,
        new.tolerated,
    )
    return common, rare


def _insert_siblings(
    db: Db, siblings: list[NewJob], ids: list[str], root: tree_counters.Root, *, now: datetime
) -> list[bool]:
    """Insert the rows; False for each job whose child key exists. The ids are new."""
    now_text = to_text(now)
    values = [_values(new, job_id, root.id, root.actor, now_text) for new, job_id in zip(siblings, ids, strict=True)]
    rows = [common + rare for common, rare in values]
    if insert_rows(db, INSERT_JOBS, rows) == len(rows):
        return [True] * len(rows)
    return [db.execute(SAME_ID, (job_id,)).fetchone() is not None for job_id in ids]


SAME_CHILD = "SELECT id, root_job_id, status FROM job_queue WHERE parent_job_id = ? AND child_key = ?"
SAME_SLOT = "SELECT id, root_job_id, status FROM job_queue WHERE plugin = ? AND schedule_id = ? AND slot_at = ?"
SAME_ID = "SELECT id, root_job_id, status FROM job_queue WHERE id = ?"


def _find_existing(db: Db, new: NewJob, job_id: str) -> Enqueued:
    row = db.execute(SAME_ID, (job_id,)).fetchone()
    if row is None and new.child_key is not None:
        row = db.execute(SAME_CHILD, (new.parent_job_id, new.child_key)).fetchone()
    if row is None and new.slot_at is not None:
        row = db.execute(SAME_SLOT, (new.plugin, new.schedule_id, to_text(new.slot_at))).fetchone()
    return Enqueued(job_id=row[0], root_job_id=row[1], status=JobStatus(row[2]), existed=True)


def _deduplicate(db: Db, new: NewJob, winner: dedupe.Winner, *, now: datetime) -> Enqueued:
    row = db.execute(SAME_ID, (winner.job_id,)).fetchone()  # the winner may have been pruned
    root_id, status = (row[1], JobStatus(row[2])) if row else (winner.job_id, JobStatus.SUCCEEDED)
    journal.append(
        db,
        "job.deduplicated",
        now=now,
        plugin=new.plugin,
        job_id=new.parent_job_id or winner.job_id,
        root_job_id=root_id,
        data={
            "reason": winner.reason,
            "winner": winner.job_id,
            "command": new.command,
            "dedupe_key": new.dedupe_key,
            "submitted_by": new.submitted_by,
            "source_event_id": new.source_event_id,
        },
        actor=new.actor,
    )
    assert new.dedupe_key is not None, "only a job with a key can be a duplicate"
    duplicate = dedupe.Duplicate(new.plugin, new.command, new.dedupe_key, winner.job_id)
    return Enqueued(job_id=winner.job_id, root_job_id=root_id, status=status, duplicate=duplicate)


def _journal_new_job(
    db: Db,
    new: NewJob,
    job_id: str,
    root_id: str,
    status: JobStatus,
    prefinished: Prefinished | None,
    now_text: str,
) -> None:
    kind, data = (
        attempts.journal_kind(status) if prefinished else "job.enqueued",
        _journal_data(new, status, prefinished),
    )
    journal.append(
        db, kind, now=now_text, plugin=new.plugin, job_id=job_id, root_job_id=root_id, data=data, actor=new.actor
    )


def _journal_data(new: NewJob, status: JobStatus, prefinished: Prefinished | None) -> dict[str, Any]:
    """Return the journal data of a new job."""
    data: dict[str, Any] = {"from": None, "to": status, "command": new.command, "submitted_by": new.submitted_by}
    for name, value in (
        ("parent_job_id", new.parent_job_id),
        ("pipeline", new.pipeline),
        ("step_id", new.step_id),
        ("schedule_id", new.schedule_id),
        ("event_context_id", new.event_context_id),
        ("replay_of", new.replay_of),
        ("reason", prefinished.error if prefinished else None),
        ("outcome_code", prefinished.code if prefinished and prefinished.error else None),
    ):
        if value is not None:
            data[name] = value
    return data
