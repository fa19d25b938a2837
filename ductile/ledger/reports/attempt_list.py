"""Attempts for people: newest first, filtered, page by page. Lists of jobs are in `listed`.

Words are looked for in `search`. Reads only.
"""

from datetime import datetime

from ductile.ledger.reports.job_details import ATTEMPT_COLUMNS, LoggedAttempt, attempt_from_row
from ductile.ledger.reports.pagination import (
    CLOCK_SLACK,
    EVERYTHING,
    NEWEST,
    ListFilter,
    Listing,
    Page,
    SqlFilter,
    asking,
    of_one,
    page,
    seq_at,
)
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import as_bytes

LONGEST_RESULT = 64 << 10

LOGS = Listing[LoggedAttempt](
    table="job_log",
    columns=ATTEMPT_COLUMNS.replace(" result", " NULL"),
    time_column="completed_at",
    id_column="job_id",
    searched=("plugin", "command", "last_error", "stderr", "result"),
    read=attempt_from_row,
    seq_of=lambda attempt: attempt.seq,
)


def logs(db: Db, wanted: ListFilter = EVERYTHING, *, before: int = NEWEST, limit: int = 50) -> Page[LoggedAttempt]:
    """The attempts that fit, without their results."""
    return page(db, LOGS, of_logs(db, wanted), before=before, limit=limit)


RESULT = f"""
    SELECT CASE WHEN octets <= ? THEN result END, octets
      FROM (SELECT result, length({as_bytes("result")}) AS octets FROM job_log WHERE seq = ?)
"""


def result_of(db: Db, attempt: LoggedAttempt) -> tuple[str | None, bool]:
    """What the attempt left, if it is small enough for a list; and whether it left anything."""
    row = db.execute(RESULT, (LONGEST_RESULT, attempt.seq)).fetchone()
    return (row[0], row[1] is not None) if row else (None, False)


def of_logs(db: Db, wanted: ListFilter) -> SqlFilter:
    """`wanted` as a question to the log."""
    status, plugin = wanted.status, wanted.plugin
    if wanted.root or wanted.job_id:
        known = of_one(LOGS, wanted)
    elif status and status != "succeeded":
        known = SqlFilter(indexed="status = ? AND status <> 'succeeded'", using="job_log_unusual", values=(status,))
    elif plugin:
        known = SqlFilter(indexed="plugin = ?", using="job_log_by_plugin", values=(plugin,))
    else:
        known = SqlFilter()
    return asking(db, LOGS, wanted, known)


def first_log_since(db: Db, since: datetime) -> int:
    """The `seq` before which no attempt ended at that moment or later."""
    return seq_at(db, LOGS, since, -CLOCK_SLACK)
