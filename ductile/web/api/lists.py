"""What happened, over HTTP: lists of jobs and of attempts.

Questions are read and answered by the ledger, which bounds what one answer costs. Who may not see results gets the
same lists without them.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import trio

from ductile.core.errors import LedgerError, UsageInvalid
from ductile.core.formats import strict_json
from ductile.core.model import AttemptStatus, JobStatus
from ductile.ledger.reports import attempt_list, job_list, search
from ductile.ledger.reports.filters import ARGUMENTS, ends_of, read_cursor, read_limit, read_wanted
from ductile.ledger.reports.job_details import LoggedAttempt
from ductile.ledger.reports.pagination import ListFilter, Page
from ductile.ledger.storage.db import Db
from ductile.web.auth.auth import require_scope
from ductile.web.context import AppContext, BadRequest, flag_of, seated
from ductile.web.messages import Request, Response, encoded_json_response, json_response
from ductile.web.openapi.responses import JOB_FILTERS, JOB_PAGE, LOG_FILTERS, LOG_PAGE
from ductile.web.routes import AnyRoute, Route
from ductile.web.views.jobs import RESULT_SCOPE, attempt_text

SEARCH_SECONDS = 0.3
"""How long a search brings its index up to date before it answers with what there is."""


def routes(desk: AppContext) -> Iterable[AnyRoute]:
    """What the API lists."""

    on = seated(desk)

    yield Route(
        method="GET",
        path="/jobs",
        handler=on(list_jobs),
        scope="jobs:status:ro",
        summary="The jobs in the queue and those that ended lately, newest first",
        group="jobs",
        asks=JOB_FILTERS,
        gives={200: JOB_PAGE},
    )
    yield Route(
        method="GET",
        path="/job-logs",
        handler=on(list_logs),
        scope="jobs:logs:ro",
        summary="Every attempt on record, newest first; ?query= finds words in errors, stderr and results",
        group="jobs",
        asks=LOG_FILTERS,
        gives={200: LOG_PAGE},
    )


async def list_jobs(desk: AppContext, request: Request) -> Response:
    wanted, before, limit = _wanted(request, JobStatus), _before(request), _limit(request)
    page = await desk.ledger.read(job_list.jobs, wanted, before=before, limit=limit)
    if not request.principal.may(RESULT_SCOPE):
        for job in page.items:
            job.pop("last_error", None)
    return json_response({"jobs": page.items, **ends_of(page, limit)})


async def list_logs(desk: AppContext, request: Request) -> Response:
    wanted, before, limit = _wanted(request, AttemptStatus), _before(request), _limit(request)
    wants_result = flag_of(request, "include_result")
    shows_result = request.principal.may(RESULT_SCOPE)
    if wanted.words:
        await _bring_up_to_date(desk)

    def read(db: Db) -> bytes:
        page = (search.logs if wanted.words else attempt_list.logs)(db, wanted, before=before, limit=limit)
        results = [attempt_list.result_of(db, item) if wants_result and shows_result else None for item in page.items]
        rows = [
            attempt_text(item, result, shows_result=shows_result)
            for item, result in zip(page.items, results, strict=True)
        ]
        return _logs_text(rows, page, limit).encode()

    return encoded_json_response(await desk.ledger.read(read))


def _logs_text(rows: list[str], page: Page[LoggedAttempt], limit: int) -> str:
    return f'{{"logs":[{",".join(rows)}],{strict_json.dumps(ends_of(page, limit))[1:]}'


async def _bring_up_to_date(desk: AppContext) -> None:
    """The index has what is on record, or as much of it as one search may wait for."""
    with trio.move_on_after(SEARCH_SECONDS), suppress(LedgerError):  # a full disk does not keep anybody from reading
        for _ in range(search.MOST_PORTIONS):
            if not await desk.ledger.read(search.is_behind):
                return
            await desk.ledger.transact(search.catch_up, in_thread=True)


def _before(request: Request) -> int:
    with _asked():
        return read_cursor(request.argument("cursor"))


def _limit(request: Request) -> int:
    with _asked():
        return read_limit(request.argument("limit"))


def _wanted(request: Request, statuses: Iterable[str]) -> ListFilter:
    with _asked():
        wanted = read_wanted({name: request.argument(name) for name in ARGUMENTS}, statuses)
    if request.argument("query"):
        require_scope(request, RESULT_SCOPE)  # whoever may search can guess what was said
    return wanted


@contextmanager
def _asked() -> Iterator[None]:
    """What is wrong with a question is wrong with the request."""
    try:
        yield
    except UsageInvalid as error:
        raise BadRequest(str(error), hint=error.hint) from error
