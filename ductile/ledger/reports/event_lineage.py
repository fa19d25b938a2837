"""The lineage of an event: the jobs it created and the decisions about it. Read-only.

There is no table of events. Their ids are in the jobs and in the journal; both are searched backwards, over a bounded
number of rows.
"""

from collections.abc import Iterable, Iterator

from attrs import frozen

from ductile.core.model import Job
from ductile.ledger.jobs.rows import LIST_COLUMNS, job_from_row
from ductile.ledger.reports.job_details import logged_job
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import contains, elements, is_json
from ductile.ledger.tables import journal
from ductile.ledger.tables.journal import JournalEntry

MAX_ROWS_SCANNED = 50_000
"""Rows of the journal, and of each table of jobs, that one query reads, newest first."""
MAX_PAYLOADS_READ = 5_000
"""Payloads that one query parses."""
MAX_RESULTS = 1_000

KINDS = ("event.unmatched", "event.no_route", "event.baggage_dropped", "pipeline.skipped", "step.bypassed")
_DECIDED = f"kind IN {(*KINDS, 'job.deduplicated')}"
DECISIONS = f"""
    SELECT {journal.COLUMNS} FROM journal
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM journal) - {MAX_ROWS_SCANNED} AND {_DECIDED}
       AND ? IN (data ->> 'event_id', data ->> 'source_event_id')
     ORDER BY seq LIMIT {MAX_RESULTS}
"""


def decisions(db: Db, event_id: str) -> list[JournalEntry]:
    """Return the decisions about the event, oldest first."""
    return journal.entries(db.execute(DECISIONS, (event_id,)))


JOBS_OF_EVENT = f"""
    SELECT {LIST_COLUMNS} FROM job_queue
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM job_queue) - {MAX_ROWS_SCANNED} AND source_event_id = ?
     ORDER BY seq LIMIT {MAX_RESULTS}
"""
LOGGED_JOBS_OF_EVENT = f"""
    SELECT DISTINCT job_id FROM job_log
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM job_log) - {MAX_ROWS_SCANNED} AND source_event_id = ?
     ORDER BY seq LIMIT {MAX_RESULTS}
"""


def jobs_of_event(db: Db, event_id: str) -> list[Job]:
    """Return the jobs that the event created, also those that only the log still has."""
    jobs = [job_from_row(row) for row in db.execute(JOBS_OF_EVENT, (event_id,))]
    known = {job.id for job in jobs}
    ids = [job_id for (job_id,) in db.execute(LOGGED_JOBS_OF_EVENT, (event_id,)) if job_id not in known]
    return [*(job for job_id in ids if (job := logged_job(db, job_id))), *jobs]


@frozen
class JoinEvent:
    """An event of a job that arrived at a join."""

    join_id: str
    job_id: str
    attempt: int
    index: int
    """Its position among the events of the attempt."""
    type: str
    plugin: str
    at: str


# An event that ends at a join creates no job that refers to it.
RECENT_ARRIVALS = f"""
    SELECT join_id, job_id FROM arrivals
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM arrivals) - {MAX_PAYLOADS_READ} ORDER BY seq DESC
"""
_RESULT = f"CASE WHEN {is_json('result')} THEN result ELSE '{{}}' END"
EVENTS_OF_JOB = f"""
    SELECT job_id, attempt, event.key, event.value ->> 'type', plugin, completed_at
      FROM job_log JOIN {elements(_RESULT, "$.events")} AS event
     WHERE job_id = ? AND status = 'succeeded' AND event.type = 'object'
"""


def join_events(db: Db) -> Iterator[JoinEvent]:
    """Yield the events of jobs that arrived at a join, newest first. Not every event has arrived itself."""
    for join_id, job_id in dict.fromkeys(db.execute(RECENT_ARRIVALS)):
        yield from (JoinEvent(join_id, *row) for row in db.execute(EVENTS_OF_JOB, (job_id,)))


# The journal has the type of events without a job; the payload of a `handle` job has that of the others.
DECIDED_IDS = f"""
    SELECT at, data ->> 'event_id' FROM journal
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM journal) - {MAX_ROWS_SCANNED} AND {_DECIDED}
       AND data ->> 'type' = ? AND data ->> 'event_id' IS NOT NULL
     ORDER BY seq DESC LIMIT {MAX_RESULTS}
"""
HANDLED_IDS = f"""
    SELECT created_at, source_event_id FROM job_queue
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM job_queue) - {MAX_PAYLOADS_READ}
       AND command = 'handle' AND source_event_id IS NOT NULL AND {contains("payload")}
       AND CASE WHEN {is_json("payload")} THEN payload ->> 'type' END = ?
     ORDER BY seq DESC LIMIT {MAX_RESULTS}
"""


# If the first step is not `handle`, only the attempt that emitted the event has the type. Events are routed only from
# the last attempt of a job.
ATTEMPTS_EMITTING = f"""
    SELECT completed_at, job_id, attempt, result FROM job_log AS log
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM job_log) - {MAX_PAYLOADS_READ} AND {contains("result")}
       AND NOT EXISTS (SELECT 1 FROM job_log WHERE job_id = log.job_id AND attempt > log.attempt)
     ORDER BY seq DESC LIMIT {MAX_RESULTS}
"""


def attempts_emitting(db: Db, event_type: str) -> list[tuple[str, str, int, str]]:
    """Return last attempts whose result contains this type, newest first: time, job id, attempt and result."""
    return db.execute(ATTEMPTS_EMITTING, (event_type,)).fetchall()


EVENT_IDS_WITH_EFFECT = f"""
    SELECT source_event_id FROM job_queue
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM job_queue) - {MAX_ROWS_SCANNED} AND source_event_id IS NOT NULL
    UNION
    SELECT source_event_id FROM job_log
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM job_log) - {MAX_ROWS_SCANNED} AND source_event_id IS NOT NULL
    UNION
    SELECT data ->> 'source_event_id' FROM journal
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM journal) - {MAX_ROWS_SCANNED} AND kind = 'job.deduplicated'
       AND data ->> 'source_event_id' IS NOT NULL
"""


def event_ids_with_effect(db: Db) -> frozenset[str]:
    """Return the ids of events that created a job or a dropped duplicate, among the rows that other queries read."""
    return frozenset(event_id for (event_id,) in db.execute(EVENT_IDS_WITH_EFFECT))


def ids_of_type(db: Db, event_type: str, *, limit: int, others: Iterable[tuple[str, str]] = ()) -> list[str]:
    """Return the newest events of this type. `others` are times and ids of further ones."""
    rows: list[tuple[str, str]] = [
        *db.execute(DECIDED_IDS, (event_type,)),
        *db.execute(HANDLED_IDS, (event_type, event_type)),
        *others,
    ]
    return list(dict.fromkeys(event_id for _, event_id in sorted(rows, reverse=True)))[:limit]


WITHHELD = f"""
    SELECT {journal.COLUMNS} FROM journal
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM journal) - {MAX_ROWS_SCANNED} AND kind = 'event.withheld'
       AND EXISTS (SELECT 1 FROM {elements("data", "$.types")} WHERE value = ?)
     ORDER BY seq DESC LIMIT ?
"""


def withheld(db: Db, event_type: str, *, limit: int) -> list[JournalEntry]:
    """Return the entries about retried attempts, whose events of this type were dropped; newest first."""
    return journal.entries(db.execute(WITHHELD, (event_type, limit)))


TYPES = f"""
    SELECT DISTINCT data ->> 'type' FROM journal
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM journal) - {MAX_ROWS_SCANNED} AND {_DECIDED}
       AND data ->> 'type' IS NOT NULL LIMIT {MAX_RESULTS}
"""


def known_types(db: Db) -> list[str]:
    """List recent event types, to suggest one for a mistyped name."""
    return [name for (name,) in db.execute(TYPES)]
