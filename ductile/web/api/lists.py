"""Routes that list jobs and attempts.

The ledger parses the filters and bounds the cost of a page. Callers without the result scope get the lists without
results.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Annotated, cast

import trio

from ductile.core.errors import LedgerError, UsageInvalid
from ductile.core.formats import strict_json
from ductile.core.formats.json_schema import Keywords, Ordinal
from ductile.core.model import AttemptStatus, JobStatus
from ductile.ledger.reports import attempt_list, job_list, search
from ductile.ledger.reports.filters import (
    ARGUMENTS,
    MAX_PAGE_SIZE,
    PageFields,
    page_fields,
    parse_cursor,
    parse_filter,
    parse_limit,
)
from ductile.ledger.reports.job_details import LoggedAttempt
from ductile.ledger.reports.pagination import ListFilter, Page
from ductile.ledger.storage.db import Db
from ductile.web.auth.auth import require_scope
from ductile.web.context import AppContext, BadRequest, read_flag
from ductile.web.messages import Request, Response, encoded_json_response, json_response
from ductile.web.routing import AnyRoute, Argument, Route
from ductile.web.views.jobs import RESULT_SCOPE, AttemptView, ListedJobView, attempt_json

INDEX_UPDATE_TIMEOUT = 0.3
"""The most seconds that a search spends on updating the index before it runs."""

TIME_RANGE = (
    Argument("from", str, "Start of the time range, inclusive (RFC 3339)"),
    Argument("to", str, "End of the time range, exclusive (RFC 3339)"),
)
PAGE = (
    Argument("limit", Ordinal, f"Items per page; default 50, at most {MAX_PAGE_SIZE}"),
    Argument("cursor", str, "`next_cursor` of the previous page"),
)
JOB_FILTERS = (
    Argument("plugin", str),
    Argument("command", str),
    Argument("status", str, "A status; pending, ok and error are accepted as aliases"),
    Argument("submitted_by", str),
    Argument("schedule_id", str),
    Argument("pipeline", str),
    Argument("root", str, "Only the tree of this root job"),
    Argument("job_id", str),
    *TIME_RANGE,
    Argument("query", str, "Words that must all occur"),
    *PAGE,
)
LOG_FILTERS = (*JOB_FILTERS, Argument("include_result", bool, "Include results; requires jobs:result:ro"))


class JobPageView(PageFields):
    jobs: Annotated[list[ListedJobView], Keywords(maxItems=MAX_PAGE_SIZE)]


class LogPageView(PageFields):
    logs: Annotated[list[AttemptView], Keywords(maxItems=MAX_PAGE_SIZE)]


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the list routes."""
    yield Route(
        method="GET",
        path="/jobs",
        handler=partial(list_jobs, ctx),
        scope="jobs:status:ro",
        summary="List queued, running and recently ended jobs, newest first",
        group="jobs",
        query=JOB_FILTERS,
        responses={200: JobPageView},
    )
    yield Route(
        method="GET",
        path="/job-logs",
        handler=partial(list_logs, ctx),
        scope="jobs:logs:ro",
        summary="List recorded attempts, newest first; ?query= searches errors, stderr and results",
        group="jobs",
        query=LOG_FILTERS,
        responses={200: LogPageView},
    )


async def list_jobs(ctx: AppContext, request: Request) -> Response:
    filters, before, limit = read_filter(request, JobStatus), read_cursor(request), read_limit(request)
    page = await ctx.ledger.read(job_list.jobs, filters, before=before, limit=limit)
    if not request.principal.has_scope(RESULT_SCOPE):
        for job in page.items:
            job.pop("last_error", None)
    view: JobPageView = {"jobs": cast(list[ListedJobView], page.items), **page_fields(page, limit)}
    return json_response(view)


async def list_logs(ctx: AppContext, request: Request) -> Response:
    filters, before, limit = read_filter(request, AttemptStatus), read_cursor(request), read_limit(request)
    wants_result = read_flag(request, "include_result")
    shows_result = request.principal.has_scope(RESULT_SCOPE)
    if filters.words:
        await _update_search_index(ctx)

    def read(db: Db) -> bytes:
        page = (search.search_attempts if filters.words else attempt_list.list_attempts)(
            db, filters, before=before, limit=limit
        )
        results = [attempt_list.read_result(db, item) if wants_result and shows_result else None for item in page.items]
        rows = [
            attempt_json(item, result, shows_result=shows_result)
            for item, result in zip(page.items, results, strict=True)
        ]
        return _logs_json(rows, page, limit).encode()

    return encoded_json_response(await ctx.ledger.read(read))


def _logs_json(rows: list[str], page: Page[LoggedAttempt], limit: int) -> str:
    return f'{{"logs":[{",".join(rows)}],{strict_json.dumps(page_fields(page, limit))[1:]}'


async def _update_search_index(ctx: AppContext) -> None:
    """Update the search index, for INDEX_UPDATE_TIMEOUT at most."""
    # Searching must work on a full disk.
    with trio.move_on_after(INDEX_UPDATE_TIMEOUT), suppress(LedgerError):
        for _ in range(search.MAX_BATCHES_PER_SEARCH):
            if not await ctx.ledger.read(search.is_behind):
                return
            await ctx.ledger.transact(search.update_index, in_thread=True)


def read_cursor(request: Request) -> int:
    """Return the position of `?cursor=`. Raises BadRequest."""
    with usage_as_bad_request():
        return parse_cursor(request.argument("cursor"))


def read_limit(request: Request) -> int:
    """Return the page size of `?limit=`. Raises BadRequest."""
    with usage_as_bad_request():
        return parse_limit(request.argument("limit"))


def read_filter(request: Request, statuses: Iterable[str]) -> ListFilter:
    """Return the filters of the query arguments. Raises BadRequest."""
    with usage_as_bad_request():
        filters = parse_filter({name: request.argument(name) for name in ARGUMENTS}, statuses)
    if request.argument("query"):
        require_scope(request, RESULT_SCOPE)  # a search can reveal results
    return filters


@contextmanager
def usage_as_bad_request() -> Iterator[None]:
    """Convert UsageInvalid, which the ledger raises for an invalid filter, to BadRequest."""
    try:
        yield
    except UsageInvalid as error:
        # The usual hint of UsageInvalid is about the command line.
        raise BadRequest(str(error), hint=None if error.hint == UsageInvalid.hint else error.hint) from error
