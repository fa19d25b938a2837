"""Dedupe windows: which earlier job makes a new one unnecessary. Scope is (plugin, command, key).

A success within the window wins; a twin still in flight wins only against a producer that set its own window. Receipts
live apart from the jobs, so pruning a job cannot reopen its window. Called by `jobs`, `claim` and `record`.
"""

from datetime import datetime, timedelta

from attrs import frozen

from ductile.core.clock import to_text
from ductile.core.model import Job, NewJob
from ductile.ledger.storage.db import Db

DEFAULT_TTL = timedelta(hours=24)


@frozen
class Winner:
    job_id: str
    reason: str


def winner_over(db: Db, new: NewJob, *, now: datetime, default_ttl: timedelta) -> Winner | None:
    """The job that makes `new` a duplicate at this moment, or None."""
    if new.dedupe_key is None:
        return None
    scope = (new.plugin, new.command, new.dedupe_key)
    if new.dedupe_ttl is not None and (outstanding := _in_flight(db, scope)):
        return Winner(outstanding, "outstanding")
    window = default_ttl if new.dedupe_ttl is None else new.dedupe_ttl
    recent = _success_between(db, scope, now - window, now + window)
    return Winner(recent, "recent_success") if recent else None


def winner_meanwhile(db: Db, job: Job, *, asked_at: str, now: datetime, ttl: timedelta) -> str | None:
    """The twin that succeeded since `job` was asked for, if its window is still open."""
    assert job.dedupe_key is not None
    since = max(asked_at, to_text(now - (ttl if job.dedupe_ttl is None else job.dedupe_ttl)))
    row = db.execute(SUCCESS_SINCE, (job.plugin, job.command, job.dedupe_key, since, job.id)).fetchone()
    return row[0] if row else None


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
    # A success "from the future" counts only within one window: after a clock was set back, keys come free again.
    row = db.execute(SUCCESS_BETWEEN, (*scope, to_text(since), to_text(until))).fetchone()
    return row[0] if row else None


PUT_RECEIPT = """
    INSERT INTO dedupe_receipts (plugin, command, dedupe_key, job_id, succeeded_at, expires_at)
    VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (plugin, command, dedupe_key) DO UPDATE
       SET job_id = excluded.job_id, succeeded_at = excluded.succeeded_at, expires_at = excluded.expires_at
"""


def put_receipt(db: Db, scope: tuple[str, str, str], job_id: str, *, now: datetime, ttl: timedelta) -> None:
    """The success of `job_id` closes the window of its key until now + ttl."""
    db.execute(PUT_RECEIPT, (*scope, job_id, to_text(now), to_text(now + ttl)))


HELD = """
    SELECT 1 FROM job_queue
     WHERE status IN ('queued', 'running') AND plugin = ? AND command = ? AND dedupe_key = ? AND status = 'running'
     LIMIT 1
"""


def is_held(db: Db, scope: tuple[str, str, str]) -> bool:
    """True while a job with this key runs: two of a key never run side by side."""
    return db.execute(HELD, scope).fetchone() is not None


WAIT_FOR_KEY = "UPDATE job_queue SET waits_for_key = 1, lane = NULL WHERE id = ? AND status = 'queued'"


def wait_for_key(db: Db, job_id: str) -> None:
    """The job left its lane until its key comes free, so that it is not looked at again with every claim."""
    db.execute(WAIT_FOR_KEY, (job_id,))


RELEASE_NEXT = """
    UPDATE job_queue SET waits_for_key = 0, lane = plugin
     WHERE seq = (SELECT seq FROM job_queue
                   WHERE waits_for_key = 1 AND plugin = ? AND command = ? AND dedupe_key = ?
                   ORDER BY seq LIMIT 1)
"""


def release_next(db: Db, scope: tuple[str, str, str]) -> None:
    """The oldest job waiting for this key is back in its lane. Due whenever a job with a key stops running or ends."""
    db.execute(RELEASE_NEXT, scope)


RELEASE_ALL = "UPDATE job_queue SET waits_for_key = 0, lane = plugin WHERE waits_for_key = 1"


def release_all(db: Db) -> None:
    """No job waits for a key; the next claim decides anew."""
    db.execute(RELEASE_ALL)
