"""Claims of consumers: they have no lease, and end with the run that the message has started."""

from datetime import datetime
from typing import Any

from attrs import frozen

from ductile.core.formats import strict_json
from ductile.core.message import Claim, ClaimStatus
from ductile.core.model import EndedRun
from ductile.ledger.completion.ended_runs import ended_run
from ductile.ledger.exchange.rows import CLAIM_COLUMNS, claim_from_row
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

OPEN_CLAIMS = f"""
    SELECT {CLAIM_COLUMNS} FROM claims {using("claims_active")}
     WHERE status = 'active' AND job_id IS NOT NULL ORDER BY seq
"""


def open_consumer_claims(db: Db) -> list[Claim]:
    """Return the claims whose run has not ended yet, as far as the exchange knows."""
    return [claim_from_row(row) for row in db.execute(OPEN_CLAIMS)]


@frozen(kw_only=True)
class RunEnd:
    """The end of a run that a message has started. `result` is the response of the last job that succeeded."""

    run: EndedRun
    status: ClaimStatus
    result: Any


OPEN_JOBS = "SELECT open_jobs FROM job_queue WHERE id = ?"
TIMED_OUT = "SELECT status = 'timed_out' FROM job_log WHERE job_id = ? ORDER BY attempt DESC LIMIT 1"
_HAS_RESULT = "status = 'succeeded' AND (plugin NOT LIKE 'core.%' OR plugin = 'core.publish')"
LAST_RESULT = f"""
    SELECT log.result FROM (
        SELECT id, completed_at, seq FROM job_queue WHERE id = :root AND {_HAS_RESULT}
        UNION ALL
        SELECT id, completed_at, seq FROM job_queue {using("job_queue_by_root")}
         WHERE root_job_id = :root AND root_job_id <> id AND {_HAS_RESULT}
    ) AS job
      JOIN job_log AS log ON log.job_id = job.id AND log.status = 'succeeded'
     WHERE log.result IS NOT NULL
     ORDER BY job.completed_at DESC, job.seq DESC LIMIT 1
"""


def end_of_run(db: Db, root_job_id: str, *, now: datetime) -> RunEnd | None:
    """Return how the run ended; None while a job of it is open, or if retention has deleted it."""
    row = db.execute(OPEN_JOBS, (root_job_id,)).fetchone()
    run = ended_run(db, root_job_id, now=now) if row is not None and row[0] == 0 else None
    if run is None:
        return None
    result = db.execute(LAST_RESULT, {"root": root_job_id}).fetchone()
    return RunEnd(run=run, status=_status(db, run), result=strict_json.loads(result[0]) if result else None)


def _status(db: Db, run: EndedRun) -> ClaimStatus:
    if not run.failures:
        return ClaimStatus.COMPLETED
    row = db.execute(TIMED_OUT, (run.failures[0].id,)).fetchone()
    return ClaimStatus.TIMED_OUT if row and row[0] else ClaimStatus.FAILED
