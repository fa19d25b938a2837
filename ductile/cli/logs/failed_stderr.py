"""What a failed attempt wrote to stderr, for whoever reads the event of its end.

From the ledger, or from the service where that is far away.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from ductile.cli.base.connect import client_for, ledger_for
from ductile.core.errors import ServiceUnreachable
from ductile.ledger.reports.job_details import attempts
from ductile.ledger.storage.open_file import open_reader

ENDINGS = frozenset({"job.failed", "job.timed_out", "job.retry_scheduled"})


def last_words(where: Mapping[str, Any], event: Mapping[str, Any], lines: int) -> list[str]:
    """The last lines of the attempt; none if the event is not the end of one that failed, or it wrote nothing."""
    job_id, attempt = event["data"].get("job_id"), event["data"].get("attempt")
    if event["event"] not in ENDINGS or job_id is None:
        return []
    rows = _told(where, job_id) if where["api_url"] else _kept(where, job_id)
    return (rows.get(attempt) or "").splitlines()[-lines:]


def _kept(where: Mapping[str, Any], job_id: str) -> dict[int, str | None]:
    with open_reader(ledger_for(where)) as db:
        return {one.attempt: one.stderr for one in attempts(db, job_id)}


def _told(where: Mapping[str, Any], job_id: str) -> dict[int, str | None]:
    try:
        page = client_for(where).ask("GET", f"/job-logs?job_id={quote(job_id, safe='')}&limit=200")
    except ServiceUnreachable:
        return {}  # it went away; the event is told without
    return {row["attempt"]: row.get("stderr") for row in page["logs"]}
