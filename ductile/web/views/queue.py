"""Queued jobs as JSON data, each with the reasons why it waits, for the API and the CLI."""

from pathlib import Path
from typing import Annotated, TypedDict

from ductile.core.formats.json_schema import Keywords
from ductile.explain.reason import AnyReasonView
from ductile.explain.waiting import read_queue_conditions, waiting_reasons
from ductile.ledger.reports import wait_reasons
from ductile.ledger.reports.filters import MAX_PAGE_SIZE
from ductile.ledger.storage.db import Db
from ductile.web.views.jobs import ListedJobView, job_list_view


class WaitingJobView(ListedJobView):
    """A queued job."""

    why: Annotated[list[AnyReasonView], "What keeps it from starting, the strongest reason first"]


class WaitingJobsView(TypedDict):
    """Queued jobs, oldest first."""

    jobs: Annotated[list[WaitingJobView], Keywords(maxItems=MAX_PAGE_SIZE)]
    more: Annotated[bool, "True if more jobs are queued than `limit`"]


def waiting_jobs_view(db: Db, ledger: Path, *, plugin: str | None, limit: int) -> WaitingJobsView:
    """Return the oldest queued jobs, of one plugin or of all."""
    conditions = read_queue_conditions(db, ledger)
    found = wait_reasons.all_waiting(db, plugin, limit=limit + 1)
    jobs: list[WaitingJobView] = [
        {
            **job_list_view(waiting.job, shows_result=True),
            "why": [why.as_data() for why in waiting_reasons(db, waiting, conditions)],
        }
        for waiting in found[:limit]
    ]
    return {"jobs": jobs, "more": len(found) > limit}
