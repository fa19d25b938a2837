"""Retention: delete expired rows in batches.

Jobs leave the queue as whole finished trees; their attempts stay in the log for longer. Rows that a tree, a dedupe
window or a log row still needs are kept. One call is one short transaction; the caller repeats it.
"""

from datetime import datetime, timedelta

from attrs import asdict, frozen

from ductile.core.clock import EARLIEST_TIME, to_text
from ductile.core.instance.failpoints import failpoint
from ductile.ledger.admin.service_log import RECOVERED, STARTED, STOPPED
from ductile.ledger.storage.db import Db


@frozen(kw_only=True)
class RetentionPolicy:
    """How long each kind of row is kept; None keeps it forever."""

    job_queue: timedelta | None = timedelta(hours=24)
    job_log: timedelta | None = timedelta(days=30)
    journal: timedelta | None = timedelta(days=30)
    breaker_transitions: timedelta | None = timedelta(days=90)
    facts: timedelta | None = None
    dedupe: timedelta | None = timedelta(days=30)
    """How long a success is kept after its own dedupe window, for jobs that have a longer one."""
    receipts: timedelta = timedelta(days=7)
    """How long a receipt is kept if it was stored by a wrong clock. Otherwise it has its own lifetime."""
    deliveries: timedelta | None = timedelta(days=7)
    messages: timedelta | None = timedelta(days=30)
    """The shortest retention of a topic. The exchange has its own functions (`ledger.exchange.retention`)."""


@frozen(kw_only=True)
class Pruned:
    """The number of deleted rows by kind."""

    jobs: int = 0
    arrivals: int = 0
    attempts: int = 0
    journal: int = 0
    contexts: int = 0
    facts: int = 0
    snapshots: int = 0
    receipts: int = 0
    breaker_transitions: int = 0
    deliveries: int = 0

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


NO_LIMIT = 1 << 62


@frozen(kw_only=True)
class Watermarks:
    """The last row of each kind that may be expired. Later rows are recent, whatever time a wrong clock gave them.

    `trees` is a position in the log of attempts, like `attempts`. `receipts` is a position in the journal.
    """

    trees: int = NO_LIMIT
    attempts: int = NO_LIMIT
    journal: int = NO_LIMIT
    facts: int = NO_LIMIT
    receipts: int = NO_LIMIT
    deliveries: int = NO_LIMIT
    messages: int = NO_LIMIT


NO_WATERMARKS = Watermarks()
POSITIONS = """
    SELECT 'job_log', COALESCE(MAX(seq), 0) FROM job_log
    UNION ALL SELECT 'journal', COALESCE(MAX(seq), 0) FROM journal
    UNION ALL SELECT 'plugin_facts', COALESCE(MAX(id), 0) FROM plugin_facts
    UNION ALL SELECT 'webhook_deliveries', COALESCE(MAX(seq), 0) FROM webhook_deliveries
    UNION ALL SELECT 'messages', COALESCE(MAX(seq), 0) FROM messages
"""


def positions(db: Db) -> dict[str, int]:
    """Return the position of the last row of each table that retention follows; 0 for an empty one."""
    return dict(db.execute(POSITIONS).fetchall())


# A snapshot was in use until the next one was loaded. It expires when every job and attempt is newer than that. If the
# oldest has not expired, none has.
_OLDEST_JOB = """
    MIN(COALESCE((SELECT created_at FROM job_queue ORDER BY seq LIMIT 1), :now),
        COALESCE((SELECT created_at FROM job_log ORDER BY seq LIMIT 1), :now))
"""
_OLDEST_SNAPSHOT_IS_OLD = f"""
    (SELECT MIN(loaded_at) FROM config_snapshots WHERE loaded_at > (SELECT MIN(loaded_at) FROM config_snapshots))
    < {_OLDEST_JOB}
"""
# The newest entry holds the position of the journal, the newest start or stop shows whether the service was killed.
_KEPT_ENTRIES = f"""(
    SELECT COALESCE(MAX(seq), 0) FROM journal
    UNION ALL
    SELECT COALESCE(MAX(seq), 0) FROM journal
     WHERE job_id IS NULL AND plugin IS NULL AND kind IN ('{STARTED}', '{STOPPED}', '{RECOVERED}'))
"""
# Other references to a row are left to `prune`, so that the cost does not depend on the number of rows.
HAS_EXPIRED_ROWS = f"""
    SELECT EXISTS (SELECT 1 FROM job_queue WHERE tree_completed_at < :job_queue)
        OR EXISTS (SELECT 1 FROM job_log WHERE completed_at < :job_log)
        OR EXISTS (SELECT 1 FROM (SELECT seq, at FROM journal ORDER BY seq LIMIT :limit)
                    WHERE at < :journal AND seq NOT IN {_KEPT_ENTRIES})
        OR EXISTS (SELECT 1 FROM event_context WHERE created_at < :contexts)
        OR EXISTS (SELECT 1 FROM (SELECT created_at FROM plugin_facts ORDER BY id LIMIT :limit)
                    WHERE created_at < :facts)
        OR COALESCE({_OLDEST_SNAPSHOT_IS_OLD}, FALSE)
        OR EXISTS (SELECT 1 FROM receipts WHERE expires_at < :now)
        OR EXISTS (SELECT 1 FROM dedupe_receipts WHERE expires_at < :dedupe)
        OR EXISTS (SELECT 1 FROM circuit_breaker_transitions WHERE created_at < :breaker_transitions)
        OR EXISTS (SELECT 1 FROM (SELECT at FROM webhook_deliveries ORDER BY seq LIMIT :limit) WHERE at < :deliveries)
"""


def has_expired_rows(db: Db, policy: RetentionPolicy, *, now: datetime, limit: int = 500) -> bool:
    """True if `prune` may find rows to delete. If not, no transaction is needed."""
    cutoffs = {
        "job_queue": _cutoff(now, policy.job_queue),
        "job_log": _cutoff(now, policy.job_log),
        "journal": _cutoff(now, policy.journal),
        "contexts": _cutoff(now, _longer(policy.job_queue, policy.job_log)),
        "facts": _cutoff(now, policy.facts),
        "breaker_transitions": _cutoff(now, policy.breaker_transitions),
        "dedupe": _cutoff(now, policy.dedupe),
        "deliveries": _cutoff(now, policy.deliveries),
        "now": to_text(now),
    }
    return bool(db.execute(HAS_EXPIRED_ROWS, {**cutoffs, "limit": limit}).fetchone()[0])


def prune(
    db: Db, policy: RetentionPolicy, *, now: datetime, limit: int = 500, watermarks: Watermarks = NO_WATERMARKS
) -> Pruned:
    """Delete up to about `limit` expired rows of each kind. Call again while any were deleted."""
    jobs, arrivals = _prune_trees(db, _cutoff(now, policy.job_queue), limit, watermarks.trees)
    pruned = Pruned(
        jobs=jobs,
        arrivals=arrivals,
        attempts=_run(db, PRUNE_ATTEMPTS, _cutoff(now, policy.job_log), limit, watermarks.attempts),
        journal=_run(db, PRUNE_JOURNAL, _cutoff(now, policy.journal), limit, watermarks.journal),
        contexts=_run(db, PRUNE_CONTEXTS, _cutoff(now, _longer(policy.job_queue, policy.job_log)), limit),
        facts=_run(db, PRUNE_FACTS, _cutoff(now, policy.facts), limit, watermarks.facts),
        snapshots=db.execute(PRUNE_SNAPSHOTS, {"now": to_text(now), "limit": limit}).rowcount,
        receipts=_prune_receipts(db, policy, now, limit, watermarks.receipts)
        + _run(db, PRUNE_WINDOWS, _cutoff(now, policy.dedupe), limit),
        breaker_transitions=_run(db, PRUNE_BREAKER_TRANSITIONS, _cutoff(now, policy.breaker_transitions), limit),
        deliveries=_run(db, PRUNE_DELIVERIES, _cutoff(now, policy.deliveries), limit, watermarks.deliveries),
    )
    if pruned.total:
        db.execute(f"PRAGMA incremental_vacuum({limit})").fetchall()
    return pruned


def _cutoff(now: datetime, retention: timedelta | None) -> str | None:
    return None if retention is None else to_text(now - retention)


def _longer(one: timedelta | None, other: timedelta | None) -> timedelta | None:
    return None if one is None or other is None else max(one, other)


def _run(db: Db, statement: str, before: str | None, limit: int, last: int = NO_LIMIT) -> int:
    return 0 if before is None else db.execute(statement, {"before": before, "limit": limit, "last": last}).rowcount


FINISHED_TREES = """
    SELECT id, tree_jobs, is_join FROM job_queue AS root
     WHERE tree_completed_at < :before AND open_jobs = 0
       AND NOT EXISTS (SELECT 1 FROM job_log WHERE job_id = root.id AND seq > :last)
       AND NOT EXISTS (SELECT 1 FROM job_log WHERE root_job_id = root.id AND root_job_id <> job_id AND seq > :last)
     ORDER BY tree_completed_at LIMIT :limit
"""
DELETE_ARRIVALS = """
    DELETE FROM arrivals WHERE join_id IN (
        SELECT :root
        UNION ALL
        SELECT id FROM job_queue WHERE root_job_id = :root AND root_job_id <> id AND is_join = 1)
"""
DELETE_TREE = "DELETE FROM job_queue WHERE root_job_id = ? AND root_job_id <> id"
DELETE_ROOT = "DELETE FROM job_queue WHERE id = ? AND open_jobs = 0"


def _prune_trees(db: Db, before: str | None, limit: int, last: int) -> tuple[int, int]:
    """Delete whole trees with the arrivals at their joins, oldest first, up to `limit` jobs or one larger tree.

    Return the number of deleted jobs and arrivals.
    """
    deleted = arrivals = 0
    values = {"before": before, "last": last, "limit": limit}
    for root_id, tree_jobs, is_join in db.execute(FINISHED_TREES, values).fetchall() if before else ():
        if deleted and deleted + tree_jobs > limit:
            break
        if tree_jobs > 1 or is_join:
            arrivals += db.execute(DELETE_ARRIVALS, {"root": root_id}).rowcount
        deleted += db.execute(DELETE_TREE, (root_id,)).rowcount
        failpoint("prune.half_way")
        deleted += db.execute(DELETE_ROOT, (root_id,)).rowcount
    return deleted, arrivals


# The attempts of a job that is still in the queue are kept, however old: they are its history.
PRUNE_ATTEMPTS = """
    DELETE FROM job_log WHERE seq IN (
        SELECT seq FROM job_log AS log
         WHERE completed_at < :before AND +seq <= :last
           AND NOT EXISTS (SELECT 1 FROM job_queue WHERE job_queue.id = log.job_id)
         ORDER BY completed_at LIMIT :limit)
"""
# Only the oldest rows are read, so that a call that deletes nothing is as cheap.
PRUNE_JOURNAL = f"""
    DELETE FROM journal WHERE seq IN (
        SELECT seq FROM (SELECT seq, at FROM journal ORDER BY seq LIMIT :limit) WHERE at < :before AND seq <= :last)
       AND seq NOT IN {_KEPT_ENTRIES}
"""
# Only contexts older than any job or log row are checked, so nearly all of them can be deleted.
PRUNE_CONTEXTS = """
    DELETE FROM event_context WHERE id IN (
        SELECT id FROM event_context AS context
         WHERE created_at < :before
           AND NOT EXISTS (SELECT 1 FROM job_queue WHERE event_context_id = context.id)
           AND NOT EXISTS (SELECT 1 FROM job_log WHERE event_context_id = context.id)
           AND NOT EXISTS (SELECT 1 FROM event_context AS child WHERE child.parent_id = context.id)
         ORDER BY created_at LIMIT :limit)
"""
PRUNE_FACTS = """
    DELETE FROM plugin_facts WHERE id IN (
        SELECT id FROM (SELECT id, created_at FROM plugin_facts ORDER BY id LIMIT :limit)
         WHERE created_at < :before AND id <= :last)
"""
PRUNE_SNAPSHOTS = f"""
    DELETE FROM config_snapshots WHERE id IN (
        SELECT id FROM config_snapshots AS snapshot
         WHERE (SELECT MIN(later.loaded_at) FROM config_snapshots AS later
                 WHERE later.loaded_at > snapshot.loaded_at)
               < {_OLDEST_JOB}
         ORDER BY loaded_at LIMIT :limit)
"""
RENEW_RECEIPTS = "UPDATE receipts SET expires_at = :until WHERE expires_at < :earliest"
# A receipt at the watermark itself may be newer: not every receipt comes with a row of the journal.
PRUNE_RECEIPTS = """
    DELETE FROM receipts WHERE (scope, key) IN (
        SELECT scope, key FROM receipts
         WHERE expires_at < :before AND journal_seq < :last ORDER BY expires_at LIMIT :limit)
"""


def _prune_receipts(db: Db, policy: RetentionPolicy, now: datetime, limit: int, last: int) -> int:
    """Delete expired receipts. Those from before the clock was set expire one lifetime after it was."""
    if now >= EARLIEST_TIME:
        db.execute(RENEW_RECEIPTS, {"until": to_text(now + policy.receipts), "earliest": to_text(EARLIEST_TIME)})
    return _run(db, PRUNE_RECEIPTS, to_text(now), limit, last)


PRUNE_WINDOWS = """
    DELETE FROM dedupe_receipts WHERE (plugin, command, dedupe_key) IN (
        SELECT plugin, command, dedupe_key FROM dedupe_receipts
         WHERE expires_at < :before ORDER BY expires_at LIMIT :limit)
"""
PRUNE_DELIVERIES = """
    DELETE FROM webhook_deliveries WHERE seq IN (
        SELECT seq FROM (SELECT seq, at FROM webhook_deliveries ORDER BY seq LIMIT :limit)
         WHERE at < :before AND seq <= :last)
"""
PRUNE_BREAKER_TRANSITIONS = """
    DELETE FROM circuit_breaker_transitions WHERE id IN (
        SELECT id FROM circuit_breaker_transitions WHERE created_at < :before ORDER BY created_at LIMIT :limit)
"""
