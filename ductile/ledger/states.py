"""How the jobs of a status and the attempts of a job are asked for: in the words of the index that has them.

SQLite uses an index over some of the rows only for a question that repeats its condition. Jobs that are open and jobs
that are over have an index each, and both take the status from what else is known of the job.
"""

from typing import NamedTuple

OPEN = "status IN ('queued', 'running')"
QUEUED = f"{OPEN} AND claimed_by IS NULL"
RUNNING = f"{OPEN} AND claimed_by > ''"
OVER = "completed_at IS NOT NULL"


class Asked(NamedTuple):
    """A status as SQL: the index, what to ask it, and the values for that."""

    using: str
    where: str
    values: tuple[str, ...] = ()


_OF_OPEN = {"queued": Asked("job_queue_open", QUEUED), "running": Asked("job_queue_open", RUNNING)}


def asked(status: str) -> Asked:
    """The question for the jobs of a status, which are in order of arrival unless they run."""
    return _OF_OPEN.get(status) or Asked("job_queue_by_status", f"status = ? AND {OVER}", (status,))


def attempts_of(job: str) -> str:
    """The condition for the attempts of a job, which is given in SQL: its id begins theirs, and these have an index."""
    return f"job_id = {job} AND id BETWEEN {job} || '-' AND {job} || '.'"
