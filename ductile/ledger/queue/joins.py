"""Joins as rows: a join is a queued `core.join` job that counts its open members and runs nothing.

At zero it stands in a lane of its own, ready to be decided. Here are the counts, the arrivals and the question who
failed; what a join comes to is decided in `settle`. Called by every room that adds or ends jobs.
"""

from collections.abc import Iterable

from ductile.core.model import BranchResult, Job, JoinInput
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

LANE = "core.join"
MOST_TOLD = 5
"""How many of its failed members a join names, and …"""
MOST_OF_ONE = 200
"""… how many characters of each one's error."""

# A join that is over (cancelled, say) waits for nobody any more: members that come or go later find no row.
COUNT_IN = """
    UPDATE job_queue SET waits_for = waits_for + ?, lane = NULL WHERE id = ? AND status = 'queued' AND is_join = 1
"""


def count_in(db: Db, join_id: str, members: int = 1) -> None:
    """The join, if it is there and still waits, waits for so many more jobs."""
    db.execute(COUNT_IN, (members, join_id))


COUNT_OUT = """
    UPDATE job_queue SET waits_for = waits_for - 1, lane = CASE WHEN waits_for = 1 THEN plugin END
     WHERE id = ? AND status = 'queued' AND is_join = 1
"""


def count_out(db: Db, join_id: str) -> None:
    """The join, if it still waits, waits for one job less; with none left it is ready."""
    db.execute(COUNT_OUT, (join_id,))


OPEN_MEMBERS = f"""
    SELECT COUNT(*) FROM job_queue {using("job_queue_by_join")} WHERE join_id = ? AND status IN ('queued', 'running')
"""


def open_members(db: Db, join_id: str) -> int:
    """How many jobs a join has to wait for."""
    count: int = db.execute(OPEN_MEMBERS, (join_id,)).fetchone()[0]
    return count


READY = "SELECT id, attempt FROM job_queue WHERE lane = 'core.join' AND is_join = 1 ORDER BY seq LIMIT ?"


def ready(db: Db, limit: int) -> list[tuple[str, int]]:
    """Id and attempt of the oldest joins that wait only for a decision."""
    return db.execute(READY, (limit,)).fetchall()


def any_ready(db: Db) -> bool:
    """True if a join waits for a decision; one look at an index."""
    return bool(ready(db, 1))


PUT_ARRIVAL = """
    INSERT INTO arrivals (join_id, item, branch, payload, job_id)
    SELECT id, ?, ?, ?, ? FROM job_queue WHERE id = ? AND is_join = 1
"""


def put_arrivals(db: Db, arrivals: Iterable[BranchResult], job_id: str) -> None:
    """What `job_id` brings to joins is kept. Raises ValueError for an id that is no join's."""
    for new in arrivals:
        values = (new.item, new.branch, new.payload, job_id, new.join_id)
        if db.execute(PUT_ARRIVAL, values).rowcount != 1:
            raise ValueError(f"arrival at {new.join_id}: there is no such join")


WITHDRAW = "DELETE FROM arrivals WHERE join_id = ? AND job_id = ?"


def withdraw_arrivals(db: Db, job: Job) -> None:
    """What a member brought to its join is taken back: it is tried again, and brings its arrivals once."""
    if job.join_id:
        db.execute(WITHDRAW, (job.join_id, job.id))


TOLERATE = """
    UPDATE job_queue SET tolerated = ? WHERE id = ? AND attempt = ? AND status IN ('queued', 'running')
"""


def tolerate(db: Db, job_id: str, attempt: int, *, is_tolerated: bool) -> None:
    """When the open job fails, its tree does; unless that is tolerated, because the run goes on behind it."""
    db.execute(TOLERATE, (is_tolerated, job_id, attempt))


ARRIVALS = "SELECT item, branch, payload FROM arrivals WHERE join_id = ? ORDER BY item, branch, seq"
_FAILED = "join_id = ? AND status IN ('failed', 'dead') AND tolerated = 0"
COUNT_FAILED = f"SELECT COUNT(*) FROM job_queue {using('job_queue_by_join')} WHERE {_FAILED}"
FAILURES = f"""
    SELECT COALESCE(step_id, plugin), last_error FROM job_queue {using("job_queue_by_join")}
     WHERE {_FAILED} ORDER BY seq LIMIT ?
"""


def joined(db: Db, job: Job) -> JoinInput:
    """What has come of the members of this join."""
    rows = db.execute(ARRIVALS, (job.id,))
    arrivals = tuple(BranchResult(join_id=job.id, item=row[0], branch=row[1], payload=row[2]) for row in rows)
    failed: int = db.execute(COUNT_FAILED, (job.id,)).fetchone()[0]
    told = db.execute(FAILURES, (job.id, MOST_TOLD)).fetchall() if failed else ()
    failures = tuple(f"{step}: {(error or 'failed')[:MOST_OF_ONE]}" for step, error in told)
    return JoinInput(job=job, arrivals=arrivals, failures=failures, failed=failed)
