"""The route of the journal: everything that happened or was decided not to happen, in pages."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Any, TypedDict

from ductile.core.clock import to_text
from ductile.core.errors import did_you_mean
from ductile.core.formats.json_schema import Keywords, Omittable, Ordinal, Timestamp, without_none
from ductile.ledger.reports.filters import MAX_PAGE_SIZE, PageFields, page_fields, parse_moment
from ductile.ledger.reports.journal_list import list_journal
from ductile.ledger.tables.journal import JournalEntry
from ductile.web.api.lists import PAGE, TIME_RANGE, read_cursor, read_limit, usage_as_bad_request
from ductile.web.auth.auth import EVENTS, EVENTS_WITH_PAYLOAD
from ductile.web.context import AppContext, BadRequest
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Argument, Route
from ductile.web.stream.broadcast import compile_names
from ductile.web.stream.event_types import MAPPED, UNCHANGED, StreamEvent

MAX_KINDS = 50
KINDS = frozenset(MAPPED) | UNCHANGED


class JournalRowView(TypedDict):
    """A row of the journal."""

    seq: Annotated[Ordinal, "Its position, also in the event stream"]
    at: Timestamp
    kind: str
    plugin: Omittable[str]
    job_id: Omittable[str]
    root_job_id: Omittable[str]
    actor: Omittable[Annotated[str, "Who caused it; only for actions"]]
    data: Annotated[dict[str, Any], "Without events:payload:ro, only names, ids, states, times and numbers"]


class JournalPageView(PageFields):
    rows: Annotated[list[JournalRowView], Keywords(maxItems=MAX_PAGE_SIZE)]


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the route of the journal."""
    yield Route(
        method="GET",
        path="/journal",
        handler=partial(show_journal, ctx),
        scope=EVENTS,
        summary="List what happened and what was decided not to happen, newest first",
        group="explanations",
        query=(
            Argument("kind", str, "Only this kind; may be repeated. `job.*` matches all kinds of jobs"),
            Argument("plugin", str),
            Argument("job", str, "Only the rows of this job"),
            *TIME_RANGE,
            *PAGE,
        ),
        responses={200: JournalPageView},
    )


async def show_journal(ctx: AppContext, request: Request) -> Response:
    with usage_as_bad_request():
        since, until = (parse_moment(request.argument(name), name) for name in ("from", "to"))
    limit = read_limit(request)
    read = partial(
        list_journal,
        kinds=_read_kinds(request.query.get("kind", ())),
        plugin=request.argument("plugin"),
        job_id=request.argument("job"),
        since=since,
        until=until,
        before=read_cursor(request),
        limit=limit,
    )
    page = await ctx.ledger.read(read)
    is_full = request.principal.has_scope(EVENTS_WITH_PAYLOAD)
    rows = [_row(entry, is_full=is_full) for entry in page.items]
    return json_response(JournalPageView(rows=rows, **page_fields(page, limit)))


def _read_kinds(kinds: Sequence[str]) -> Sequence[str]:
    if len(kinds) > MAX_KINDS:
        raise BadRequest(f"kind: {len(kinds)} values", hint=f"Send at most {MAX_KINDS}; `job.*` matches all of jobs.")
    for kind in kinds:
        if not any(map(compile_names([kind]).fullmatch, KINDS)):
            close = did_you_mean(kind, KINDS)
            raise BadRequest(f"kind: unknown kind {kind[:80]!r}{close}", hint="See docs/database.md for all kinds.")
    return kinds


def _row(entry: JournalEntry, *, is_full: bool) -> JournalRowView:
    view: JournalRowView = {
        "seq": entry.seq,
        "at": to_text(entry.at),
        "kind": entry.kind,
        "plugin": entry.plugin,
        "job_id": entry.job_id,
        "root_job_id": entry.root_job_id,
        "actor": entry.actor,
        "data": entry.data if is_full else StreamEvent(entry.kind, entry.data).bare(),
    }
    return without_none(view)
