"""What happened, over HTTP: lists of jobs and of attempts.

Questions are read here and answered by the ledger, which bounds what one answer costs. Who may not see results gets the
same lists without them.
"""

import base64
import binascii
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime
from typing import Any

import trio

from ductile import strict_json
from ductile.clock import from_text
from ductile.errors import LedgerError, did_you_mean
from ductile.ledger import history, search
from ductile.ledger.connections import Connection
from ductile.ledger.history import NEWEST, Page, Wanted
from ductile.ledger.reports import Attempt
from ductile.model import AttemptStatus, JobStatus
from ductile.units import shown
from ductile.web.auth import forbidden
from ductile.web.desk import BadRequest, Desk, flag_of
from ductile.web.message import Refusal, Request, Response, encoded_json_response, json_response
from ductile.web.routes import AnyRoute, Route
from ductile.web.shapes import (
    JOB_FILTERS,
    JOB_PAGE,
    LOG_FILTERS,
    LOG_PAGE,
    MOST_IN_A_PAGE,
)
from ductile.web.views import RESULT_SCOPE, attempt_text, listed_job

IN_A_PAGE = 50
LONGEST_TEXT, MOST_WORDS = 500, 20
SYNONYMS = {"pending": "queued", "ok": "succeeded", "error": "failed"}
SEARCH_SECONDS = 0.3
"""How long a search brings its index up to date before it answers with what there is."""


def routes(desk: Desk) -> Iterable[AnyRoute]:
    """What the API lists."""

    def on(handler: Callable[[Desk, Request], Any]) -> Callable[[Request], Any]:
        return lambda request: handler(desk, request)

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


async def list_jobs(desk: Desk, request: Request) -> Response:
    wanted = _wanted(request, JobStatus)
    page = await desk.ledger.read_slowly(history.jobs, wanted, before=_before(request), limit=_limit(request))
    shows_result = request.principal.may(RESULT_SCOPE)
    return json_response({"jobs": [listed_job(job, shows_result=shows_result) for job in page.items], **_ends(page)})


async def list_logs(desk: Desk, request: Request) -> Response:
    wanted, before, limit = _wanted(request, AttemptStatus), _before(request), _limit(request)
    wants_result = flag_of(request, "include_result")
    shows_result = request.principal.may(RESULT_SCOPE)
    if wanted.words:
        await _bring_up_to_date(desk)

    def read(db: Connection) -> bytes:
        page = (search.logs if wanted.words else history.logs)(db, wanted, before=before, limit=limit)
        results = [history.result_of(db, item) if wants_result and shows_result else None for item in page.items]
        rows = [
            attempt_text(item, result, shows_result=shows_result)
            for item, result in zip(page.items, results, strict=True)
        ]
        return _logs_text(rows, page).encode()

    return encoded_json_response(await desk.ledger.read_slowly(read))


def _logs_text(rows: list[str], page: Page[Attempt]) -> str:
    return f'{{"logs":[{",".join(rows)}],{strict_json.dumps(_ends(page))[1:]}'


async def _bring_up_to_date(desk: Desk) -> None:
    """The index has what is on record, or as much of it as one search may wait for."""
    with trio.move_on_after(SEARCH_SECONDS), suppress(LedgerError):  # a full disk does not keep anybody from reading
        for _ in range(search.MOST_PORTIONS):
            if not desk.ledger.read(search.is_behind):
                return
            await desk.ledger.write(search.catch_up)


def _ends(page: Page[Any]) -> dict[str, Any]:
    return {
        "total": page.total,
        "total_is_exact": page.is_exact,
        "next_cursor": None if page.next_before is None else cursor_text(page.next_before),
    }


def cursor_text(before: int) -> str:
    return base64.urlsafe_b64encode(str(before).encode()).decode().rstrip("=")


def _before(request: Request) -> int:
    text = request.argument("cursor")
    if not text:
        return NEWEST
    try:
        digits = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        digits = b""
    if not digits.isdigit() or len(digits) > len(str(NEWEST)) or cursor_text(int(digits)) != text:
        raise BadRequest(f"cursor: {shown(text)} is not one of ours", hint="send `next_cursor` of the page before")
    return min(int(digits), NEWEST)


def _limit(request: Request) -> int:
    text = request.argument("limit") or str(IN_A_PAGE)
    if not (text.isascii() and text.isdigit() and int(text[:9])):
        raise BadRequest(f"limit: expected a number from 1 on, got {shown(text)}")
    return min(int(text[:9]), MOST_IN_A_PAGE)


def _wanted(request: Request, statuses: Iterable[str]) -> Wanted:
    names = ("plugin", "command", "submitted_by", "schedule_id", "pipeline", "root", "job_id")
    given = {name: _text(request, name) for name in names}
    since, until = _moment(request, "from"), _moment(request, "to")
    return Wanted(status=_status(request, statuses), since=since, until=until, words=_words(request), **given)


def _text(request: Request, name: str) -> str | None:
    text = request.argument(name) or None
    if text is not None and len(text) > LONGEST_TEXT:
        raise BadRequest(f"{name}: longer than {LONGEST_TEXT} characters")
    return text


def _words(request: Request) -> str | None:
    text = _text(request, "query")
    if text is not None and len(text.split()) > MOST_WORDS:
        raise BadRequest(f"query: more than {MOST_WORDS} words")
    if text is not None and not request.principal.may(RESULT_SCOPE):
        raise Refusal(forbidden())  # whoever may search can guess what was said
    return text if text is not None and text.strip() else None


def _status(request: Request, statuses: Iterable[str]) -> str | None:
    text = request.argument("status")
    if not text:
        return None
    known, wanted = [str(status) for status in statuses], SYNONYMS.get(text, text)
    if wanted not in known:
        close = did_you_mean(text, [*known, *SYNONYMS])
        raise BadRequest(f"status: there is no {shown(text)}{close}", hint=f"one of {', '.join(known)}")
    return wanted


def _moment(request: Request, name: str) -> datetime | None:
    text = request.argument(name)
    if not text:
        return None
    try:
        return from_text(text)
    except ValueError as error:
        raise BadRequest(f"{name}: {error}", hint="write + as %2B in a query") from error
