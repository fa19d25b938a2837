"""Dedupe windows: which earlier job makes a new one a duplicate. The scope of a key is (plugin, command).

A success within the window wins. A queued or running job wins only against a producer that set its own window.
The steps of one run never win against each other: an event may pass the same plugin more than once. Receipts are
separate rows, so pruning a job does not reopen its window.
"""

from datetime import datetime, timedelta

from attrs import frozen

from ductile.core.clock import to_text
from ductile.core.model import Job, NewJob
from ductile.ledger.storage.db import Db

DEFAULT_TTL = timedelta(hours=24)


@frozen
class Winner:
    """The job that makes another one a duplicate."""

    job_id: str
    reason: str


@frozen
class Duplicate:
    """A dropped or skipped job, its key, and the job that it duplicates."""

    plugin: str
    command: str
    dedupe_key: str
    winner: str


def find_winner(
    db: Db, new: NewJob, root_job_id: str | None, *, now: datetime, default_ttl: timedelta
) -> Winner | None:
    """Return the job that makes `new`, which belongs to the tree of `root_job_id`, a duplicate now; or None.

    A join is never a duplicate: its members may be.
    """
    if new.dedupe_key is None or new.is_join:
        return None
    scope = (new.plugin, new.command, new.dedupe_key)
    if new.dedupe_ttl is not None and (outstanding := _in_flight(db, scope)):
        return Winner(outstanding, "outstanding")
    window = default_ttl if new.dedupe_ttl is None else new.dedupe_ttl
    recent = _success_between(db, scope, now - window, now + window)
    if recent is None or _is_other_step(db, recent, new, root_job_id):
        return None
    return Winner(recent, "recent_success")


def find_winner_since(db: Db, job: Job, *, asked_at: str, now: datetime, ttl: timedelta) -> str | None:
    """Return the job with the same key that succeeded since `job` was enqueued, if its window is still open."""
    assert job.dedupe_key is not None
    since = max(asked_at, to_text(now - (ttl if job.dedupe_ttl is None else job.dedupe_ttl)))
    row = db.execute(SUCCESS_SINCE, (job.plugin, job.command, job.dedupe_key, since, job.id)).fetchone()
    return None if row is None or _is_other_step(db, row[0], job, job.root_job_id) else row[0]


# The same pipeline in the same tree: another step, or the same step once more for one event (`foreach`, `split`).
_OTHER_STEP = "(root_job_id = ? AND pipeline = ? AND (step_id <> ? OR source_event_id = ?))"
IS_OTHER_STEP = f"SELECT 1 FROM job_queue WHERE id = ? AND {_OTHER_STEP}"


def _is_other_step(db: Db, job_id: str, job: Job | NewJob, root_job_id: str | None) -> bool:
    """True if `job_id` is another step of the run of `job`, so that neither is a duplicate of the other."""
    if job.pipeline is None or root_job_id is None:
        return False
    return db.execute(IS_OTHER_STEP, (job_id, *_step(job, root_job_id))).fetchone() is not None


def _step(job: Job | NewJob, root_job_id: str) -> tuple[str | None, ...]:
    return (root_job_id, job.pipeline, job.step_id, job.source_event_id)


IN_FLIGHT = """
    SELECT id FROM job_queue
     WHERE status IN ('queued', 'running') AND plugin = ? AND command = ? AND dedupe_key = ? ORDER BY +seq LIMIT 1
"""


def _in_flight(db: Db, scope: tuple[str, str, str]) -> str | None:
    row = db.execute(IN_FLIGHT, scope).fetchone()
    return row[0] if row else None


SUCCESS_BETWEEN = """
    SELECT job_id FROM dedupe_receipts
     WHERE plugin = ? AND command = ? AND dedupe_key = ? AND succeeded_at > ? AND succeeded_at < ?
"""
SUCCESS_SINCE = """
    SELECT job_id FROM dedupe_receipts
     WHERE plugin = ? AND command = ? AND dedupe_key = ? AND succeeded_at >= ? AND job_id <> ?
"""


def _success_between(db: Db, scope: tuple[str, str, str], since: datetime, until: datetime) -> str | None:
    # A success in the future counts only within one window, so that a clock that was set back does not block the key.
    row = db.execute(SUCCESS_BETWEEN, (*scope, to_text(since), to_text(until))).fetchone()
    return row[0] if row else None


PUT_RECEIPT = """
    INSERT INTO dedupe_receipts (plugin, command, dedupe_key, job_id, succeeded_at, expires_at)
    VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (plugin, command, dedupe_key) DO UPDATE
       SET job_id = excluded.job_id, succeeded_at = excluded.succeeded_at, expires_at = excluded.expires_at
"""


def put_receipt(db: Db, scope: tuple[str, str, str], job_id: str, *, now: datetime, ttl: timedelta) -> None:
    """Record the success of `job_id`: until now + ttl, jobs with this key are duplicates."""
    db.execute(PUT_RECEIPT, (*scope, job_id, to_text(now), to_text(now + ttl)))


KEY_HOLDER = f"""
    SELECT id FROM job_queue
     WHERE status IN ('queued', 'running') AND plugin = ? AND command = ? AND dedupe_key = ? AND status = 'running'
       AND {_OTHER_STEP} IS NOT TRUE
     LIMIT 1
"""


def find_key_holder(db: Db, job: Job) -> str | None:
    """Return the running job that `job` has to wait for: one with its key that is not another step of its run."""
    row = db.execute(KEY_HOLDER, (job.plugin, job.command, job.dedupe_key, *_step(job, job.root_job_id))).fetchone()
    return row[0] if row else None


WAIT_FOR_KEY = "UPDATE job_queue SET waits_for_key = 1, lane = NULL WHERE id = ? AND status = 'queued'"


def wait_for_key(db: Db, job_id: str) -> None:
    """Take the job out of the ready jobs until its key is free, so that no claim reads it meanwhile."""
    db.execute(WAIT_FOR_KEY, (job_id,))


RELEASE_NEXT = """
    UPDATE job_queue SET waits_for_key = 0, lane = plugin
     WHERE seq = (SELECT seq FROM job_queue
                   WHERE waits_for_key = 1 AND plugin = ? AND command = ? AND dedupe_key = ?
                   ORDER BY seq LIMIT 1)
"""


def release_next(db: Db, scope: tuple[str, str, str]) -> None:
    """Make the oldest job that waits for this key ready. Call it whenever a job with a key stops running or ends."""
    db.execute(RELEASE_NEXT, scope)


RELEASE_ALL = "UPDATE job_queue SET waits_for_key = 0, lane = plugin WHERE waits_for_key = 1"


def release_all(db: Db) -> None:
    """Make all jobs that wait for a key ready; the next claim checks their keys again."""
    db.execute(RELEASE_ALL)
