"""Lists of attempts: newest first, filtered, in pages. Read-only. Full-text search is in `search`."""

from datetime import datetime

from ductile.ledger.reports.job_details import ATTEMPT_COLUMNS, LoggedAttempt, attempt_from_row
from ductile.ledger.reports.pagination import (
    CLOCK_SLACK,
    NEWEST,
    NO_FILTER,
    ListFilter,
    Listing,
    Page,
    SqlFilter,
    complete_filter,
    find_seq,
    id_filter,
    page,
)
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import as_bytes

MAX_RESULT_BYTES = 64 << 10

ATTEMPTS = Listing[LoggedAttempt](
    table="job_log",
    columns=ATTEMPT_COLUMNS.replace(" result", " NULL"),
    time_column="completed_at",
    id_column="job_id",
    search_columns=("plugin", "command", "last_error", "stderr", "result"),
    read=attempt_from_row,
    seq_of=lambda attempt: attempt.seq,
)


def list_attempts(
    db: Db, wanted: ListFilter = NO_FILTER, *, before: int = NEWEST, limit: int = 50
) -> Page[LoggedAttempt]:
    """Return a page of the matching attempts, without their results."""
    return page(db, ATTEMPTS, attempt_filter(db, wanted), before=before, limit=limit)


RESULT = f"""
    SELECT CASE WHEN octets <= ? THEN result END, octets
      FROM (SELECT result, length({as_bytes("result")}) AS octets FROM job_log WHERE seq = ?)
"""


def read_result(db: Db, attempt: LoggedAttempt) -> tuple[str | None, bool]:
    """Return the result of the attempt if it is small enough for a list, and whether it has one."""
    row = db.execute(RESULT, (MAX_RESULT_BYTES, attempt.seq)).fetchone()
    return (row[0], row[1] is not None) if row else (None, False)


def attempt_filter(db: Db, wanted: ListFilter) -> SqlFilter:
    """Translate `wanted` to SQL for the log of attempts."""
    status, plugin = wanted.status, wanted.plugin
    if wanted.root or wanted.job_id:
        indexed = id_filter(ATTEMPTS, wanted)
    elif status and status != "succeeded":
        indexed = SqlFilter(
            index_condition="status = ? AND status <> 'succeeded'", index_name="job_log_unusual", values=(status,)
        )
    elif plugin:
        indexed = SqlFilter(index_condition="plugin = ?", index_name="job_log_by_plugin", values=(plugin,))
    else:
        indexed = SqlFilter()
    return complete_filter(db, ATTEMPTS, wanted, indexed)


def first_seq_since(db: Db, since: datetime) -> int:
    """Return a `seq` before which no attempt ended at `since` or later."""
    return find_seq(db, ATTEMPTS, since, -CLOCK_SLACK)
