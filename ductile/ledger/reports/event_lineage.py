"""What became of one event: the jobs it led to, and the decisions that it should lead to no more.

There is no table of events. Their ids stand in the jobs and in the journal, and both are looked through backwards, as
far as one answer may go. Reads only; the CLI calls it.
"""

from collections.abc import Iterable, Iterator

from attrs import frozen

from ductile.core.model import Job
from ductile.ledger.queue.rows import LISTED_COLUMNS, job_from_row
from ductile.ledger.reports.job_details import logged_job
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import contains, elements, is_json
from ductile.ledger.tables import journal
from ductile.ledger.tables.journal import JournalEntry

MOST_LOOKED_AT = 50_000
"""Rows of the journal, and of each table of jobs, that one answer looks at, the newest first."""
MOST_OPENED = 5_000
"""Payloads that one answer looks into."""
MOST_FOUND = 1_000

KINDS = ("event.unmatched", "event.no_route", "event.baggage_dropped", "pipeline.skipped", "step.bypassed")
_DECIDED = f"kind IN {(*KINDS, 'job.deduplicated')}"
DECISIONS = f"""
    SELECT seq, at, kind, plugin, job_id, root_job_id, data FROM journal
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM journal) - {MOST_LOOKED_AT} AND {_DECIDED}
       AND ? IN (data ->> 'event_id', data ->> 'source_event_id')
     ORDER BY seq LIMIT {MOST_FOUND}
"""


def decisions(db: Db, event_id: str) -> list[JournalEntry]:
    """What was decided about the event, first to last."""
    return journal.entries(db.execute(DECISIONS, (event_id,)))


LED_TO = f"""
    SELECT {LISTED_COLUMNS} FROM job_queue
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM job_queue) - {MOST_LOOKED_AT} AND source_event_id = ?
     ORDER BY seq LIMIT {MOST_FOUND}
"""
LED_TO_LONG_AGO = f"""
    SELECT DISTINCT job_id FROM job_log
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM job_log) - {MOST_LOOKED_AT} AND source_event_id = ?
     ORDER BY seq LIMIT {MOST_FOUND}
"""


def led_to(db: Db, event_id: str) -> list[Job]:
    """The jobs that were asked for because of the event, also those of which only the log is left."""
    jobs = [job_from_row(row) for row in db.execute(LED_TO, (event_id,))]
    known = {job.id for job in jobs}
    ids = [job_id for (job_id,) in db.execute(LED_TO_LONG_AGO, (event_id,)) if job_id not in known]
    return [*(job for job_id in ids if (job := logged_job(db, job_id))), *jobs]


@frozen
class Arrived:
    """An event of a job that brought something to a join."""

    join_id: str
    job_id: str
    attempt: int
    index: int
    """Its place among the events of the attempt."""
    type: str
    plugin: str
    at: str


# An event that ends at a join leads to no job that could name it.
BROUGHT = f"""
    SELECT join_id, job_id FROM arrivals
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM arrivals) - {MOST_OPENED} ORDER BY seq DESC
"""
_RESULT = f"CASE WHEN {is_json('result')} THEN result ELSE '{{}}' END"
EVENTS_OF_JOB = f"""
    SELECT job_id, attempt, event.key, event.value ->> 'type', plugin, completed_at
      FROM job_log JOIN {elements(_RESULT, "$.events")} AS event
     WHERE job_id = ? AND status = 'succeeded' AND event.type = 'object'
"""


def arrived(db: Db) -> Iterator[Arrived]:
    """The events of jobs that brought something to a join, the newest first; all that may have been among it."""
    for join_id, job_id in dict.fromkeys(db.execute(BROUGHT)):
        yield from (Arrived(join_id, *row) for row in db.execute(EVENTS_OF_JOB, (job_id,)))


# A type is told by the journal for what did not go on, and by the payload of a `handle` job for what did.
DECIDED_IDS = f"""
    SELECT at, data ->> 'event_id' FROM journal
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM journal) - {MOST_LOOKED_AT} AND {_DECIDED}
       AND data ->> 'type' = ? AND data ->> 'event_id' IS NOT NULL
     ORDER BY seq DESC LIMIT {MOST_FOUND}
"""
HANDLED_IDS = f"""
    SELECT created_at, source_event_id FROM job_queue
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM job_queue) - {MOST_OPENED}
       AND command = 'handle' AND source_event_id IS NOT NULL AND {contains("payload")}
       AND CASE WHEN {is_json("payload")} THEN payload ->> 'type' END = ?
     ORDER BY seq DESC LIMIT {MOST_FOUND}
"""


# What a first step that is no `handle` got tells no type; the attempt that emitted the event does. Its events went
# somewhere only if no attempt followed it.
EMITTED = f"""
    SELECT completed_at, job_id, attempt, result FROM job_log AS log
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM job_log) - {MOST_OPENED} AND {contains("result")}
       AND NOT EXISTS (SELECT 1 FROM job_log WHERE job_id = log.job_id AND attempt > log.attempt)
     ORDER BY seq DESC LIMIT {MOST_FOUND}
"""


def emitted(db: Db, event_type: str) -> list[tuple[str, str, int, str]]:
    """Last attempts whose answer speaks of this type, newest first: when, job, attempt and answer."""
    return db.execute(EMITTED, (event_type,)).fetchall()


LEADING = f"""
    SELECT source_event_id FROM job_queue
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM job_queue) - {MOST_LOOKED_AT} AND source_event_id IS NOT NULL
    UNION
    SELECT source_event_id FROM job_log
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM job_log) - {MOST_LOOKED_AT} AND source_event_id IS NOT NULL
"""


def leading(db: Db) -> frozenset[str]:
    """The events that jobs were asked for because of, as far back as `led_to` looks."""
    return frozenset(event_id for (event_id,) in db.execute(LEADING))


def ids_of_type(db: Db, event_type: str, *, limit: int, others: Iterable[tuple[str, str]] = ()) -> list[str]:
    """The newest events of this type; `others` are moments and ids of some that are known from elsewhere."""
    rows: list[tuple[str, str]] = [
        *db.execute(DECIDED_IDS, (event_type,)),
        *db.execute(HANDLED_IDS, (event_type, event_type)),
        *others,
    ]
    return list(dict.fromkeys(event_id for _, event_id in sorted(rows, reverse=True)))[:limit]


WITHHELD = f"""
    SELECT seq, at, kind, plugin, job_id, root_job_id, data FROM journal
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM journal) - {MOST_LOOKED_AT} AND kind = 'event.withheld'
       AND EXISTS (SELECT 1 FROM {elements("data", "$.types")} WHERE value = ?)
     ORDER BY seq DESC LIMIT ?
"""


def withheld(db: Db, event_type: str, *, limit: int) -> list[JournalEntry]:
    """Attempts that were tried again, so that their events of this type went nowhere; newest first."""
    return journal.entries(db.execute(WITHHELD, (event_type, limit)))


TYPES = f"""
    SELECT DISTINCT data ->> 'type' FROM journal
     WHERE seq > (SELECT COALESCE(MAX(seq), 0) FROM journal) - {MOST_LOOKED_AT} AND {_DECIDED}
       AND data ->> 'type' IS NOT NULL LIMIT {MOST_FOUND}
"""


def known_types(db: Db) -> list[str]:
    """Types that events have had lately, for whoever mistypes one."""
    return [name for (name,) in db.execute(TYPES)]
