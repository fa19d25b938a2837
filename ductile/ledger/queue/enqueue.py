"""The door into the queue: every producer's `NewJob` becomes a row here, or is recognised as one that exists.

Dedupe check, budgets, tree counter, row and journal are one transaction, the caller's. What happens to the row later
is in `claim` (queued → running) and `record` (running → everything else).
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
from ductile.core.model import Budget, JobStatus, NewJob, Prefinished
from ductile.ledger.completion import attempts
from ductile.ledger.queue import dedupe, joins, tree_counters
from ductile.ledger.queue.dedupe import DEFAULT_TTL
from ductile.ledger.queue.tree_counters import ORDINARY
from ductile.ledger.storage.bulk_insert import in_portions, insert_all
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal


@frozen(kw_only=True)
class Enqueued:
    """The answer to a producer: the job that will do, or has done, what it asked for."""

    job_id: str
    root_job_id: str
    status: JobStatus
    deduplicated: bool = False
    existed: bool = False

    @property
    def is_new(self) -> bool:
        return not (self.deduplicated or self.existed)

    def is_open_in(self, root_job_id: str) -> bool:
        """True if this made the tree of that root wait for one more job."""
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
    budget: Budget = ORDINARY,
) -> Enqueued:
    """A job that does what `new` asks for is in the ledger: a new one, its dedupe winner, or the same child or slot."""
    root = tree_counters.root_of(db, new.parent_job_id) if new.parent_job_id and not new.own_tree else None
    if root and root.is_replay:
        # Whoever replays a job wants to see all of it happen again.
        new = evolve(new, dedupe_key=None)
    if winner := dedupe.winner_over(db, new, now=now, default_ttl=default_ttl):
        return _dropped(db, new, winner, now=now)
    settled = new.settled
    if settled is None and (settled := _over_budget(new, root, budget)):
        # Nobody asked to tolerate this, and nothing follows from it.
        new = evolve(new, tolerated=False)
    job_id = new.id or new_id(now)
    root_id = root.id if root else job_id
    moment = to_text(now)
    if not _insert(db, new, job_id, root_id, settled, moment):
        return _existing(db, new, job_id)
    failpoint("enqueue.after_insert")
    if root:
        tree_counters.grow(db, root.id, opened=int(settled is None))
    if new.join_id and settled is None:
        joins.count_in(db, new.join_id)
    status = settled.status if settled else JobStatus.QUEUED
    if settled:
        attempts.log_settled(db, job_id, settled, now=now)
    _announce(db, new, job_id, root_id, status, settled, moment)
    return Enqueued(job_id=job_id, root_job_id=root_id, status=status)


def enqueue_all(
    db: Db,
    news: Iterable[NewJob],
    *,
    now: datetime,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = ORDINARY,
) -> list[Enqueued]:
    """`enqueue` for each, in order; all of them or, in the caller's transaction, none."""
    made: list[Enqueued] = []
    for parent_id, group in groupby(news, key=_parent_of_plain):
        siblings = list(group)
        root = tree_counters.root_of(db, parent_id) if parent_id and len(siblings) > 1 else None
        if root and _have_room(siblings, root, budget):
            made += _enqueue_siblings(db, siblings, root, now=now)
        else:
            made += [enqueue(db, new, now=now, default_ttl=default_ttl, budget=budget) for new in siblings]
    return made


def _parent_of_plain(new: NewJob) -> str | None:
    """The parent of a job that can be written together with its siblings; None if there is something to ask first."""
    is_plain = new.id is None and new.dedupe_key is None and new.settled is None
    return new.parent_job_id if is_plain and not (new.is_join or new.own_tree) else None


def _have_room(siblings: list[NewJob], root: tree_counters.Root, budget: Budget) -> bool:
    return root.tree_jobs + len(siblings) <= budget.tree_jobs and max(new.hops for new in siblings) <= budget.hops


def _enqueue_siblings(db: Db, siblings: list[NewJob], root: tree_counters.Root, *, now: datetime) -> list[Enqueued]:
    """What `enqueue` does for each of these, done once for all of them where it is the same."""
    ids = new_ids(now, len(siblings))
    are_new = _insert_siblings(db, siblings, ids, root.id, now=now)
    new_ones = [(new, job_id) for new, job_id, is_new in zip(siblings, ids, are_new, strict=True) if is_new]
    for _ in new_ones:  # each counts, so that a test can name the same one whether or not it came with others
        failpoint("enqueue.after_insert")
    if new_ones:
        tree_counters.grow(db, root.id, jobs=len(new_ones), opened=len(new_ones))
    for join_id, count in Counter(new.join_id for new, _ in new_ones if new.join_id).items():
        joins.count_in(db, join_id, count)
    journal.append_all(
        db,
        "job.enqueued",
        ((new.plugin, job_id, root.id, _told(new, JobStatus.QUEUED, None)) for new, job_id in new_ones),
        now=now,
    )
    return [
        Enqueued(job_id=job_id, root_job_id=root.id, status=JobStatus.QUEUED) if is_new else _existing(db, new, job_id)
        for new, job_id, is_new in zip(siblings, ids, are_new, strict=True)
    ]


def new_id(now: datetime) -> str:
    """A UUID (version 7) that sorts by time, so that the rows of jobs that run together lie together on the disk."""
    return _by_chance(_by_time(now), os.urandom(8))


def new_ids(now: datetime, count: int) -> list[str]:
    """As many of these for the same moment."""
    time, chance = _by_time(now), os.urandom(8 * count)
    return [_by_chance(time, chance[at : at + 8]) for at in range(0, len(chance), 8)]


def _by_time(now: datetime) -> str:
    """The first half of an id: 48 bits of milliseconds, the version, twelve bits of what is left of the time."""
    millis, fraction = divmod((now - _EPOCH) // _MICROSECOND, 1000)
    text = f"{millis & (1 << 48) - 1:012x}"
    return f"{text[:8]}-{text[8:]}-7{fraction * 4096 // 1000:03x}"


def _by_chance(first_half: str, chance: bytes) -> str:
    """With the second half: the variant, 62 random bits."""
    text = f"{2 << 62 | int.from_bytes(chance) >> 2:016x}"
    return f"{first_half}-{text[:4]}-{text[4:]}"


_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)


def _over_budget(new: NewJob, root: tree_counters.Root | None, budget: Budget) -> Prefinished | None:
    """A job beyond the budget is written down as dead: it is never started and never silently missing."""
    if new.hops > budget.hops:
        return Prefinished(status=JobStatus.DEAD, error=f"chain of more than {budget.hops} hops")
    if root and root.tree_jobs >= budget.tree_jobs:
        return Prefinished(status=JobStatus.DEAD, error=f"tree of more than {budget.tree_jobs} jobs")
    return None


_USUAL = """
        id, plugin, command, payload, status, max_attempts, submitted_by, created_at, enqueued_config_snapshot_id,
        root_job_id, open_jobs, tree_jobs, asked_at, lane"""
_RARE = """
        dedupe_key, completed_at, last_error, parent_job_id, source_event_id, event_context_id, tree_completed_at,
        child_key, pipeline, step_id, schedule_id, slot_at, dedupe_ttl_seconds, replay_of, join_id,
        hops, notify, is_join, waits_for, tolerated"""
_NOTHING_RARE = (None,) * 15 + (0,) * 5
"""What the rare columns have of themselves."""


def _inserting(columns: str) -> dict[int, str]:
    row = f"({', '.join('?' * len(columns.split(',')))})"
    return in_portions(f"INSERT INTO job_queue ({columns})", row, "ON CONFLICT DO NOTHING")


INSERT_JOBS = _inserting(f"{_USUAL}, {_RARE}")
INSERT_JOB = INSERT_JOBS[1]
INSERT_PLAIN_JOB = _inserting(_USUAL)[1]
"""To bind values that a column has anyway takes a quarter of the insert."""


def _insert(db: Db, new: NewJob, job_id: str, root_id: str, settled: Prefinished | None, moment: str) -> bool:
    """True if the row is new; False if the same child, slot or id is there already."""
    # The members of a join are written before it.
    waits_for = joins.open_members(db, job_id) if new.is_join and not settled else 0
    usual, rare = _values(new, job_id, root_id, moment, settled, waits_for)
    if rare == _NOTHING_RARE:
        return db.execute(INSERT_PLAIN_JOB, usual).rowcount == 1
    return db.execute(INSERT_JOB, usual + rare).rowcount == 1


def _values(
    new: NewJob, job_id: str, root_id: str, moment: str, settled: Prefinished | None = None, waits_for: int = 0
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The row of a new job: what most have, and what few have; by place, because names cost a quarter of the insert."""
    is_root = root_id == job_id
    completed_at = moment if settled else None
    usual = (
        job_id,
        new.plugin,
        new.command,
        new.payload,
        settled.status if settled else "queued",
        new.max_attempts,
        new.submitted_by,
        moment,  # created_at
        new.snapshot_id,
        root_id,
        int(settled is None) if is_root else None,  # open_jobs
        1 if is_root else None,  # tree_jobs
        moment,  # asked_at
        None if settled or waits_for else new.plugin,  # lane
    )
    rare = (
        new.dedupe_key,
        completed_at,
        settled.error if settled else None,
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
        new.hops,
        new.notify,
        new.is_join,
        waits_for,
        new.tolerated,
    )
    return usual, rare


def _insert_siblings(db: Db, siblings: list[NewJob], ids: list[str], root_id: str, *, now: datetime) -> list[bool]:
    """For each whether its row is new; False if the same child is there already. The ids are fresh."""
    moment = to_text(now)
    valued = [_values(new, job_id, root_id, moment) for new, job_id in zip(siblings, ids, strict=True)]
    rows = [usual + rare for usual, rare in valued]
    if insert_all(db, INSERT_JOBS, rows) == len(rows):
        return [True] * len(rows)
    return [db.execute(SAME_ID, (job_id,)).fetchone() is not None for job_id in ids]


SAME_CHILD = "SELECT id, root_job_id, status FROM job_queue WHERE parent_job_id = ? AND child_key = ?"
SAME_SLOT = "SELECT id, root_job_id, status FROM job_queue WHERE plugin = ? AND schedule_id = ? AND slot_at = ?"
SAME_ID = "SELECT id, root_job_id, status FROM job_queue WHERE id = ?"


def _existing(db: Db, new: NewJob, job_id: str) -> Enqueued:
    row = db.execute(SAME_ID, (job_id,)).fetchone()
    if row is None and new.child_key is not None:
        row = db.execute(SAME_CHILD, (new.parent_job_id, new.child_key)).fetchone()
    if row is None and new.slot_at is not None:
        row = db.execute(SAME_SLOT, (new.plugin, new.schedule_id, to_text(new.slot_at))).fetchone()
    return Enqueued(job_id=row[0], root_job_id=row[1], status=JobStatus(row[2]), existed=True)


def _dropped(db: Db, new: NewJob, winner: dedupe.Winner, *, now: datetime) -> Enqueued:
    row = db.execute(SAME_ID, (winner.job_id,)).fetchone()  # the winner itself may have been pruned
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
    )
    return Enqueued(job_id=winner.job_id, root_job_id=root_id, status=status, deduplicated=True)


def _announce(
    db: Db,
    new: NewJob,
    job_id: str,
    root_id: str,
    status: JobStatus,
    settled: Prefinished | None,
    moment: str,
) -> None:
    kind, data = attempts.kind_of(status) if settled else "job.enqueued", _told(new, status, settled)
    journal.append(db, kind, now=moment, plugin=new.plugin, job_id=job_id, root_job_id=root_id, data=data)


def _told(new: NewJob, status: JobStatus, settled: Prefinished | None) -> dict[str, Any]:
    """What the journal tells of a new job."""
    data: dict[str, Any] = {"from": None, "to": status, "command": new.command, "submitted_by": new.submitted_by}
    for name, value in (
        ("parent_job_id", new.parent_job_id),
        ("pipeline", new.pipeline),
        ("step_id", new.step_id),
        ("schedule_id", new.schedule_id),
        ("event_context_id", new.event_context_id),
        ("reason", settled.error if settled else None),
    ):
        if value is not None:
            data[name] = value
    return data
