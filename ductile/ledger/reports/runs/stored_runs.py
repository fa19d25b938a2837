"""Runs: the trees of root jobs, in pages, and the jobs and attempts of one run. Read-only.

Every query reads a bounded number of rows. Payloads and results are not read.
"""

from datetime import datetime
from typing import Any

from attrs import evolve, frozen

from ductile.core.clock import from_text, from_text_or_none
from ductile.core.model import AttemptStatus, Job, OutcomeCode
from ductile.ledger.jobs.rows import LIST_COLUMNS, job_from_row
from ductile.ledger.reports import job_details
from ductile.ledger.reports.pagination import (
    NEWEST,
    NO_FILTER,
    ListFilter,
    Listing,
    Page,
    SqlFilter,
    complete_filter,
    page,
)
from ductile.ledger.reports.trees import TREE_IN_LOG, TreeStatus
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

MAX_JOBS = 1_000
"""Jobs of one run that are read."""
MAX_ATTEMPTS = 5_000
"""Attempts of one run that are read, and of its first job."""
BYPASSING = (OutcomeCode.CONDITION_FALSE, OutcomeCode.NOT_JOINED)
"""Outcomes of control steps after which steps do not run."""
_NO_PAYLOAD = LIST_COLUMNS.replace(" payload,", " NULL,")


@frozen(kw_only=True)
class Run:
    """A run with its first job."""

    root: Job
    """Its first job; of a run that has left the queue, the first one that the log still has."""
    status: TreeStatus
    jobs: int
    open_jobs: int
    started_at: datetime | None
    """The start of the first attempt of its first job."""
    completed_at: datetime | None


# ── lists ───────────────────────────────────────────────────────────────────────────────────────────────────────────

IS_ROOT = "root_job_id = id"
_HAS_MEMBER = f"""
    EXISTS (SELECT 1 FROM job_queue AS member {using("job_queue_by_root")}
             WHERE member.root_job_id = job_queue.id AND member.root_job_id <> member.id AND {{}})
"""
_IS_FAILURE = "{0}status IN ('failed', 'dead') AND {0}tolerated = 0"
_HAS_FAILED = f"({_IS_FAILURE.format('')} OR {_HAS_MEMBER.format(_IS_FAILURE.format('member.'))})"
_STATUS = f"""
    CASE WHEN open_jobs > 0 THEN '{TreeStatus.OPEN}'
         WHEN {_HAS_FAILED} THEN '{TreeStatus.FAILED}' ELSE '{TreeStatus.SUCCEEDED}' END
"""
_FIRST_START = """
    COALESCE((SELECT started_at FROM job_log WHERE job_id = job_queue.id ORDER BY attempt LIMIT 1), started_at)
"""
RUN_COLUMNS = f"{_STATUS}, tree_jobs, open_jobs, {_FIRST_START}, tree_completed_at, {_NO_PAYLOAD}"
CONDITIONS = {
    TreeStatus.OPEN: "open_jobs > 0",
    TreeStatus.FAILED: f"open_jobs = 0 AND {_HAS_FAILED}",
    TreeStatus.SUCCEEDED: f"open_jobs = 0 AND NOT {_HAS_FAILED}",
}


def _run(row: tuple[Any, ...]) -> Run:
    status, jobs, open_jobs, started_at, completed_at, *columns = row
    return Run(
        root=job_from_row(tuple(columns)),
        status=TreeStatus(status),
        jobs=jobs,
        open_jobs=open_jobs,
        started_at=from_text_or_none(started_at),
        completed_at=from_text_or_none(completed_at),
    )


RUNS = Listing[Run](
    table="job_queue",
    columns=RUN_COLUMNS,
    time_column="created_at",
    id_column="id",
    search_columns=("plugin", "command", "pipeline", "step_id", "last_error"),
    read=_run,
    seq_of=lambda run: run.root.seq,
)


def list_runs(db: Db, wanted: ListFilter = NO_FILTER, *, before: int = NEWEST, limit: int = 50) -> Page[Run]:
    """Return a page of the matching runs, newest first. `wanted.pipeline` matches a run with a step of the pipeline."""
    return page(db, RUNS, _run_filter(db, wanted), before=before, limit=limit)


def _run_filter(db: Db, wanted: ListFilter) -> SqlFilter:
    if wanted.plugin:
        indexed = SqlFilter(index_condition="plugin = ?", index_name="job_queue_by_plugin", values=(wanted.plugin,))
    else:
        indexed = SqlFilter(index_condition=IS_ROOT, index_name="job_queue_roots")
    terms = complete_filter(db, RUNS, evolve(wanted, status=None, pipeline=None), indexed)
    more: list[tuple[str, tuple[str, ...]]] = [] if indexed.index_condition == IS_ROOT else [(IS_ROOT, ())]
    if wanted.pipeline:
        has_step = f"(pipeline = ? OR {_HAS_MEMBER.format('member.pipeline = ?')})"
        more.append((has_step, (wanted.pipeline, wanted.pipeline)))
    if wanted.status:
        more.append((CONDITIONS[TreeStatus(wanted.status)], ()))
    conditions = [*filter(None, [terms.row_condition]), *(term for term, _ in more)]
    values = (*terms.row_values, *(value for _, values in more for value in values))
    return evolve(terms, row_condition=" AND ".join(conditions), row_values=values)


# ── one run ─────────────────────────────────────────────────────────────────────────────────────────────────────────

GET_RUN = f"SELECT {RUN_COLUMNS} FROM job_queue WHERE id = ? AND root_job_id = id"


def find_run(db: Db, job_id: str) -> Run:
    """Return the run that the job is in, also if only the log has it. Raises NotFound for an unknown id."""
    root_id = job_details.require_job(db, job_id).root_job_id
    row = db.execute(GET_RUN, (root_id,)).fetchone()
    return _run(row) if row else _logged_run(db, root_id)


def _logged_run(db: Db, root_id: str) -> Run:
    jobs = jobs_of_run(db, root_id)
    has_failed = any(job.status in ("failed", "dead") and not job.tolerated for job in jobs)
    attempts = job_details.attempts(db, jobs[0].id)  # the root may be pruned before its follow-up jobs
    return Run(
        root=jobs[0],
        status=TreeStatus.FAILED if has_failed else TreeStatus.SUCCEEDED,
        jobs=len(jobs),
        open_jobs=0,
        started_at=attempts[0].started_at,
        completed_at=max(job.completed_at for job in jobs if job.completed_at),
    )


JOBS_OF_RUN = f"""
    SELECT {_NO_PAYLOAD} FROM job_queue WHERE id = :root
    UNION ALL
    SELECT {_NO_PAYLOAD} FROM job_queue WHERE root_job_id = :root AND root_job_id <> id
     ORDER BY seq LIMIT :limit
"""


def jobs_of_run(db: Db, root_id: str, *, limit: int = MAX_JOBS) -> list[Job]:
    """Return the first jobs of the run in order of arrival, the root first."""
    rows = db.execute(JOBS_OF_RUN, {"root": root_id, "limit": limit}).fetchall()
    if rows:
        return [job_from_row(row) for row in rows]
    ids = dict.fromkeys([root_id, *(row[0] for row in db.execute(TREE_IN_LOG, (root_id, limit)))])
    return [job for job_id in ids if (job := job_details.logged_job(db, job_id))][:limit]


@frozen(kw_only=True)
class RunAttempt:
    """A finished attempt of a job in a run. One that ran no process has no start."""

    job_id: str
    attempt: int
    status: AttemptStatus
    started_at: datetime | None
    completed_at: datetime
    exit_code: int | None
    outcome_code: str | None
    outcome_data: str | None
    """The data of an outcome in BYPASSING; not read for others."""


_ATTEMPT = f"""
    job_id, attempt, status, started_at, completed_at, exit_code, outcome_code,
    CASE WHEN outcome_code IN ({", ".join(f"'{code}'" for code in BYPASSING)}) THEN outcome_data END
"""
ATTEMPTS_OF_RUN = f"""
    SELECT {_ATTEMPT} FROM (SELECT * FROM job_log WHERE job_id = :root ORDER BY attempt LIMIT :limit)
    UNION ALL
    SELECT {_ATTEMPT} FROM (
        SELECT * FROM job_log {using("job_log_by_root")}
         WHERE root_job_id = :root AND root_job_id <> job_id LIMIT :limit)
"""


def attempts_of_run(db: Db, root_id: str, *, limit: int = MAX_ATTEMPTS) -> list[RunAttempt]:
    """Return the finished attempts of the run, those of each job in order."""
    rows = db.execute(ATTEMPTS_OF_RUN, {"root": root_id, "limit": limit})
    found = [
        RunAttempt(
            job_id=row[0],
            attempt=row[1],
            status=AttemptStatus(row[2]),
            started_at=from_text_or_none(row[3]),
            completed_at=from_text(row[4]),
            exit_code=row[5],
            outcome_code=row[6],
            outcome_data=row[7],
        )
        for row in rows
    ]
    return sorted(found, key=lambda one: one.attempt)
