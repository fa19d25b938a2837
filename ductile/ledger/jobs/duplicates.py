"""Follow-up jobs that were not created because of their dedupe key, by the job that produced them. Read-only."""

import json
from collections.abc import Iterable

from attrs import frozen

from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import members

MAX_READ = 1_000
CONTROL_PREFIX = "core."


@frozen(kw_only=True)
class DroppedJob:
    """A follow-up job that was not created, and the job that it duplicates."""

    producer: str
    """The job whose event it would have handled, or the switch that it would have followed."""
    plugin: str
    command: str
    dedupe_key: str
    winner: str
    reason: str


_COLUMNS = """job_id, plugin, data ->> 'command', data ->> 'dedupe_key', data ->> 'winner', data ->> 'reason'"""
# Without a producer, the row belongs to the winner.
_IS_DROPPED = "kind = 'job.deduplicated' AND data ->> 'winner' <> job_id"
DROPPED_BY = f"""
    SELECT {_COLUMNS} FROM journal
     WHERE job_id IN {members(":producers")} AND {_IS_DROPPED} ORDER BY seq LIMIT {MAX_READ}
"""


def dropped_by(db: Db, job_ids: Iterable[str]) -> list[DroppedJob]:
    """Return the dropped follow-up jobs of these jobs, oldest first."""
    rows = db.execute(DROPPED_BY, {"producers": json.dumps(list(job_ids))})
    return [_dropped(row) for row in rows]


# Steps behind an `if` follow from its switch, not from the job that emitted the event.
WITH_SWITCHES = f"""
    WITH RECURSIVE line (id) AS (
        SELECT :id
        UNION ALL
        SELECT job.id FROM line JOIN job_queue AS job ON job.parent_job_id = line.id
         WHERE substr(job.plugin, 1, 5) = '{CONTROL_PREFIX}'
    )
    SELECT id FROM line LIMIT {MAX_READ}
"""


def dropped_behind(db: Db, job_id: str) -> list[DroppedJob]:
    """Return the dropped follow-up jobs of a job, also those behind its switches."""
    return dropped_by(db, [row[0] for row in db.execute(WITH_SWITCHES, {"id": job_id})])


def _dropped(row: tuple[str, str, str, str, str, str]) -> DroppedJob:
    producer, plugin, command, dedupe_key, winner, reason = row
    return DroppedJob(
        producer=producer, plugin=plugin, command=command, dedupe_key=dedupe_key, winner=winner, reason=reason
    )
