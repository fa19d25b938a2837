"""Joins as rows: a join is a queued `core.join` job that counts its open members and runs nothing.

With no open members it is ready. Owns the member counts, the arrivals and the failures of members. Does not know how a
join ends: see `resolve_joins`.
"""

from collections.abc import Iterable

from ductile.core.model import BranchResult, Job, JoinInput
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

JOIN_PLUGIN = "core.join"
MAX_FAILURES = 5
"""Failed members whose errors a join lists."""
MAX_ERROR_CHARACTERS = 200
"""Of the error of each failed member."""

# A finished join, such as a cancelled one, no longer counts: the statement finds no row for later members.
ADD_MEMBERS = """
    UPDATE job_queue SET waits_for = waits_for + ?, lane = NULL WHERE id = ? AND status = 'queued' AND is_join = 1
"""


def add_members(db: Db, join_id: str, members: int = 1) -> None:
    """Add open members to the join, if it exists and is queued."""
    db.execute(ADD_MEMBERS, (members, join_id))


REMOVE_MEMBER = """
    UPDATE job_queue SET waits_for = waits_for - 1, lane = CASE WHEN waits_for = 1 THEN plugin END
     WHERE id = ? AND status = 'queued' AND is_join = 1
"""


def remove_member(db: Db, join_id: str) -> None:
    """Subtract one open member from the join, if it is queued. With none left it is ready."""
    db.execute(REMOVE_MEMBER, (join_id,))


COUNT_OPEN_MEMBERS = f"""
    SELECT COUNT(*) FROM job_queue {using("job_queue_by_join")} WHERE join_id = ? AND status IN ('queued', 'running')
"""


def count_open_members(db: Db, join_id: str) -> int:
    """Count the queued and running members of a join."""
    count: int = db.execute(COUNT_OPEN_MEMBERS, (join_id,)).fetchone()[0]
    return count


READY = "SELECT id, attempt FROM job_queue WHERE lane = 'core.join' AND is_join = 1 ORDER BY seq LIMIT ?"


def ready_joins(db: Db, limit: int) -> list[tuple[str, int]]:
    """Return id and attempt of the oldest ready joins."""
    return db.execute(READY, (limit,)).fetchall()


def has_ready(db: Db) -> bool:
    """True if a join is ready. Costs one index lookup."""
    return bool(ready_joins(db, 1))


PUT_ARRIVAL = """
    INSERT INTO arrivals (join_id, item, branch, payload, job_id)
    SELECT id, ?, ?, ?, ? FROM job_queue WHERE id = ? AND is_join = 1
"""


def put_arrivals(db: Db, arrivals: Iterable[BranchResult], job_id: str) -> None:
    """Store the branch results of `job_id`. Raises ValueError if an id is not that of a join."""
    for new in arrivals:
        values = (new.item, new.branch, new.payload, job_id, new.join_id)
        if db.execute(PUT_ARRIVAL, values).rowcount != 1:
            raise ValueError(f"arrival at {new.join_id}: there is no such join")


WITHDRAW = "DELETE FROM arrivals WHERE join_id = ? AND job_id = ?"


def withdraw_arrivals(db: Db, job: Job) -> None:
    """Delete the branch results of a member that is retried, so that they are not counted twice."""
    if job.join_id:
        db.execute(WITHDRAW, (job.join_id, job.id))


SET_TOLERATED = """
    UPDATE job_queue SET tolerated = ? WHERE id = ? AND attempt = ? AND status IN ('queued', 'running')
"""


def set_tolerated(db: Db, job_id: str, attempt: int, *, is_tolerated: bool) -> None:
    """Set whether a failure of the open job is tolerated. If it is not, the tree fails with the job."""
    db.execute(SET_TOLERATED, (is_tolerated, job_id, attempt))


ARRIVALS = "SELECT item, branch, payload FROM arrivals WHERE join_id = ? ORDER BY item, branch, seq"
_FAILED = "join_id = ? AND status IN ('failed', 'dead') AND tolerated = 0"
COUNT_FAILED = f"SELECT COUNT(*) FROM job_queue {using('job_queue_by_join')} WHERE {_FAILED}"
FAILURES = f"""
    SELECT COALESCE(step_id, plugin), last_error FROM job_queue {using("job_queue_by_join")}
     WHERE {_FAILED} ORDER BY seq LIMIT ?
"""


def join_input(db: Db, job: Job) -> JoinInput:
    """Read the branch results and the failures of the members of this join."""
    rows = db.execute(ARRIVALS, (job.id,))
    arrivals = tuple(BranchResult(join_id=job.id, item=row[0], branch=row[1], payload=row[2]) for row in rows)
    failed: int = db.execute(COUNT_FAILED, (job.id,)).fetchone()[0]
    listed = db.execute(FAILURES, (job.id, MAX_FAILURES)).fetchall() if failed else ()
    failures = tuple(f"{step}: {(error or 'failed')[:MAX_ERROR_CHARACTERS]}" for step, error in listed)
    return JoinInput(job=job, arrivals=arrivals, failures=failures, failed=failed)
