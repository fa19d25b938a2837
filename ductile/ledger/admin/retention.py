"""What is forgotten, when, and in which portions.

Jobs leave the queue as whole finished trees; their attempts stay in the log for longer. Nothing a tree, a dedupe
window or a log row still needs is touched. One call is one short transaction; the caller repeats it in quiet moments.
"""

from datetime import datetime, timedelta

from attrs import asdict, frozen

from ductile.core.clock import to_text
from ductile.core.instance.failpoints import failpoint
from ductile.ledger.storage.db import Db


@frozen(kw_only=True)
class RetentionPolicy:
    """How long each kind of row is kept; None keeps it for good."""

    job_queue: timedelta | None = timedelta(hours=24)
    job_log: timedelta | None = timedelta(days=30)
    journal: timedelta | None = timedelta(days=30)
    breaker_transitions: timedelta | None = timedelta(days=90)
    facts: timedelta | None = None


@frozen(kw_only=True)
class Pruned:
    """How many rows are gone."""

    jobs: int = 0
    arrivals: int = 0
    attempts: int = 0
    journal: int = 0
    contexts: int = 0
    facts: int = 0
    snapshots: int = 0
    receipts: int = 0
    breaker_transitions: int = 0

    @property
    def total(self) -> int:
        return sum(asdict(self).values())


ALL_OF_IT = 1 << 62


@frozen(kw_only=True)
class Reach:
    """The last row of each kind that may be old: of the attempts of trees, of attempts, of the journal, of facts. Later
    ones are young, whatever moment a wrong clock gave them."""

    trees: int = ALL_OF_IT
    attempts: int = ALL_OF_IT
    journal: int = ALL_OF_IT
    facts: int = ALL_OF_IT


EVERYTHING = Reach()
POSITIONS = """
    SELECT 'job_log', COALESCE(MAX(seq), 0) FROM job_log
    UNION ALL SELECT 'journal', COALESCE(MAX(seq), 0) FROM journal
    UNION ALL SELECT 'plugin_facts', COALESCE(MAX(id), 0) FROM plugin_facts
"""


def positions(db: Db) -> dict[str, int]:
    """Return the position of the last row of each table that retention follows; 0 for an empty one."""
    return dict(db.execute(POSITIONS).fetchall())


# A snapshot was in use until its successor was loaded; it goes when every job and attempt is younger than that. None is
# old if the oldest is not.
_OLDEST_JOB = """
    MIN(COALESCE((SELECT created_at FROM job_queue ORDER BY seq LIMIT 1), :now),
        COALESCE((SELECT created_at FROM job_log ORDER BY seq LIMIT 1), :now))
"""
_OLDEST_SNAPSHOT_IS_OLD = f"""
    (SELECT MIN(loaded_at) FROM config_snapshots WHERE loaded_at > (SELECT MIN(loaded_at) FROM config_snapshots))
    < {_OLDEST_JOB}
"""
# What else may keep a row is left for `prune` to find out, so that this costs the same however many rows there are.
ANYTHING_OLD = f"""
    SELECT EXISTS (SELECT 1 FROM job_queue WHERE tree_completed_at < :job_queue)
        OR EXISTS (SELECT 1 FROM job_log WHERE completed_at < :job_log)
        OR EXISTS (SELECT 1 FROM (SELECT seq, at FROM journal ORDER BY seq LIMIT :limit)
                    WHERE at < :journal AND seq < (SELECT MAX(seq) FROM journal))
        OR EXISTS (SELECT 1 FROM event_context WHERE created_at < :contexts)
        OR EXISTS (SELECT 1 FROM (SELECT created_at FROM plugin_facts ORDER BY id LIMIT :limit)
                    WHERE created_at < :facts)
        OR COALESCE({_OLDEST_SNAPSHOT_IS_OLD}, FALSE)
        OR EXISTS (SELECT 1 FROM receipts WHERE expires_at < :now)
        OR EXISTS (SELECT 1 FROM dedupe_receipts WHERE expires_at < :now)
        OR EXISTS (SELECT 1 FROM circuit_breaker_transitions WHERE created_at < :breaker_transitions)
"""


def anything_old(db: Db, policy: RetentionPolicy, *, now: datetime, limit: int = 500) -> bool:
    """Whether `prune` might find something; if not, there is no need to write."""
    moments = {
        "job_queue": _before(now, policy.job_queue),
        "job_log": _before(now, policy.job_log),
        "journal": _before(now, policy.journal),
        "contexts": _before(now, _longer(policy.job_queue, policy.job_log)),
        "facts": _before(now, policy.facts),
        "breaker_transitions": _before(now, policy.breaker_transitions),
        "now": to_text(now),
    }
    return bool(db.execute(ANYTHING_OLD, {**moments, "limit": limit}).fetchone()[0])


def prune(db: Db, policy: RetentionPolicy, *, now: datetime, limit: int = 500, reach: Reach = EVERYTHING) -> Pruned:
    """Up to about `limit` rows of each kind that nobody needs are gone; call again while anything is."""
    jobs, arrivals = _prune_trees(db, _before(now, policy.job_queue), limit, reach.trees)
    pruned = Pruned(
        jobs=jobs,
        arrivals=arrivals,
        attempts=_run(db, PRUNE_ATTEMPTS, _before(now, policy.job_log), limit, reach.attempts),
        journal=_run(db, PRUNE_JOURNAL, _before(now, policy.journal), limit, reach.journal),
        contexts=_run(db, PRUNE_CONTEXTS, _before(now, _longer(policy.job_queue, policy.job_log)), limit),
        facts=_run(db, PRUNE_FACTS, _before(now, policy.facts), limit, reach.facts),
        snapshots=db.execute(PRUNE_SNAPSHOTS, {"now": to_text(now), "limit": limit}).rowcount,
        receipts=_run(db, PRUNE_RECEIPTS, to_text(now), limit) + _run(db, PRUNE_WINDOWS, to_text(now), limit),
        breaker_transitions=_run(db, PRUNE_BREAKER_TRANSITIONS, _before(now, policy.breaker_transitions), limit),
    )
    if pruned.total:
        db.execute(f"PRAGMA incremental_vacuum({limit})").fetchall()
    return pruned


def _before(now: datetime, keep: timedelta | None) -> str | None:
    return None if keep is None else to_text(now - keep)


def _longer(one: timedelta | None, other: timedelta | None) -> timedelta | None:
    return None if one is None or other is None else max(one, other)


def _run(db: Db, statement: str, before: str | None, limit: int, last: int = ALL_OF_IT) -> int:
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
    """Whole trees with what arrived at their joins, oldest first, until `limit` jobs are gone; one tree may be larger
    than that. How many jobs and arrivals that were."""
    gone = arrivals = 0
    asked = {"before": before, "last": last, "limit": limit}
    for root_id, tree_jobs, is_join in db.execute(FINISHED_TREES, asked).fetchall() if before else ():
        if gone and gone + tree_jobs > limit:
            break
        if tree_jobs > 1 or is_join:
            arrivals += db.execute(DELETE_ARRIVALS, {"root": root_id}).rowcount
        gone += db.execute(DELETE_TREE, (root_id,)).rowcount
        failpoint("prune.half_way")
        gone += db.execute(DELETE_ROOT, (root_id,)).rowcount
    return gone, arrivals


# A job still in the queue keeps its attempts, however old: they tell how it came to where it is.
PRUNE_ATTEMPTS = """
    DELETE FROM job_log WHERE seq IN (
        SELECT seq FROM job_log AS log
         WHERE completed_at < :before AND +seq <= :last
           AND NOT EXISTS (SELECT 1 FROM job_queue WHERE job_queue.id = log.job_id)
         ORDER BY completed_at LIMIT :limit)
"""
# Only the oldest rows are looked at, so a call that finds nothing to do costs as little as one that does.
# The newest row stays: it has the position of the journal.
PRUNE_JOURNAL = """
    DELETE FROM journal WHERE seq IN (
        SELECT seq FROM (SELECT seq, at FROM journal ORDER BY seq LIMIT :limit) WHERE at < :before AND seq <= :last)
       AND seq < (SELECT MAX(seq) FROM journal)
"""
# Asked only of contexts older than any job or log row is kept, so nearly every one looked at can go.
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
PRUNE_RECEIPTS = """
    DELETE FROM receipts WHERE (scope, key) IN (
        SELECT scope, key FROM receipts WHERE expires_at < :before ORDER BY expires_at LIMIT :limit)
"""
PRUNE_WINDOWS = """
    DELETE FROM dedupe_receipts WHERE (plugin, command, dedupe_key) IN (
        SELECT plugin, command, dedupe_key FROM dedupe_receipts
         WHERE expires_at < :before ORDER BY expires_at LIMIT :limit)
"""
PRUNE_BREAKER_TRANSITIONS = """
    DELETE FROM circuit_breaker_transitions WHERE id IN (
        SELECT id FROM circuit_breaker_transitions WHERE created_at < :before ORDER BY created_at LIMIT :limit)
"""
