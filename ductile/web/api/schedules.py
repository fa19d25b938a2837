"""Schedules and breakers over HTTP: see them, pause, resume and run a schedule, close a breaker.

Nothing is fired here. A change is one transaction, then the hub tells the scheduler to look again. The rule by which a
breaker is reset comes from outside, with the runtime.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Any

from ductile.config.sections.schedules import definition_hash
from ductile.config.sections.settings import Schedule
from ductile.core.errors import WrongState
from ductile.core.formats import strict_json
from ductile.core.hub import SCHEDULES
from ductile.core.model import Breaker, BreakerChange, NewJob
from ductile.ledger.queue.enqueue import enqueue
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import breakers, outbox, schedules
from ductile.ledger.tables.receipts import StoredAnswer
from ductile.ledger.tables.schedules import EntryStatus, ScheduleEntry
from ductile.pipeline.compile.plan import RELAY
from ductile.web.api.job_actions import reason_of
from ductile.web.auth.auth import require_scope
from ductile.web.context import AppContext, BadRequest, flag_of, require_healthy, seated, submitter_of
from ductile.web.idempotency import KEY_HEADER, done_once, headers_of, known_answer, ticket_of
from ductile.web.messages import Request, Response, encoded_json_response, json_response
from ductile.web.openapi.responses import (
    ALL_BREAKERS,
    BREAKERS,
    BREAKERS_RESET,
    DRY_RUN,
    SCHEDULE_CHANGED,
    SCHEDULE_PLANNED,
    SCHEDULE_RUN,
)
from ductile.web.openapi.responses import SCHEDULES as SCHEDULES_LIST
from ductile.web.openapi.schemas import Argument, integer, nullable, record, text
from ductile.web.routes import AnyRoute, Route
from ductile.web.views.schedules import (
    all_breakers_view,
    breakers_view,
    resettable,
    schedules_view,
    written_schedule,
)

Reset = Callable[[Breaker], BreakerChange]
MOST_TRANSITIONS, TRANSITIONS = 200, 20
COMMAND = Argument("command", text(), "Only that of this command")
LONGEST_REASON = 200
REASON = record({}, {"reason": nullable(text("One line, for whoever looks later"))})
PAUSED, ACTIVE, EXHAUSTED = EntryStatus.PAUSED_MANUAL, EntryStatus.ACTIVE, EntryStatus.EXHAUSTED


def routes(desk: AppContext, reset: Reset) -> Iterable[AnyRoute]:
    """What the API answers about schedules and breakers."""

    on = seated(desk)

    yield Route(
        method="GET",
        path="/scheduler/jobs",
        handler=on(list_schedules),
        scope="jobs:ro",
        summary="Every schedule: whether it will fire, when it did last and when it will next",
        group="schedules",
        gives={200: SCHEDULES_LIST},
    )
    yield Route(
        method="POST",
        path="/schedule/{plugin}/{id}/pause",
        handler=on(partial(change_status, status=PAUSED)),
        scope="system:rw",
        summary="Let the slots of a schedule go by until it is resumed; ?dry_run=true only says what would change",
        group="schedules",
        asks=(DRY_RUN,),
        takes=REASON,
        gives={200: SCHEDULE_CHANGED},
        refuses=(409,),
    )
    yield Route(
        method="POST",
        path="/schedule/{plugin}/{id}/resume",
        handler=on(partial(change_status, status=ACTIVE)),
        scope="system:rw",
        summary="End the pause of a schedule; ?dry_run=true only says what would change",
        group="schedules",
        asks=(DRY_RUN,),
        takes=REASON,
        gives={200: SCHEDULE_CHANGED},
        refuses=(409,),
    )
    yield Route(
        method="POST",
        path="/schedule/{plugin}/{id}/run",
        handler=on(run_now),
        scope="plugin:invoke:ro",
        summary="Run the command of a schedule now, with its payload; plugin:rw if the command writes",
        group="schedules",
        asks=(DRY_RUN,),
        gives={200: SCHEDULE_PLANNED, 202: SCHEDULE_RUN},
        refuses=(409,),
        heeds=(KEY_HEADER,),
    )
    yield Route(
        method="GET",
        path="/breakers",
        handler=on(list_breakers),
        scope="jobs:ro",
        summary="Every circuit breaker that has counted something, without history",
        group="schedules",
        gives={200: ALL_BREAKERS},
    )
    yield Route(
        method="GET",
        path="/breaker/{plugin}",
        handler=on(show_breakers),
        scope="jobs:ro",
        summary="The circuit breakers of a plugin, one per command, and how they came to their state",
        group="schedules",
        asks=(COMMAND, Argument("limit", integer(minimum=1, maximum=MOST_TRANSITIONS), "How much history; 20")),
        gives={200: BREAKERS},
        refuses=(409,),
    )
    yield Route(
        method="POST",
        path="/breaker/{plugin}/reset",
        handler=on(partial(reset_breakers, reset=reset)),
        scope="system:rw",
        summary="Close the breakers of a plugin, or that of ?command=; ?dry_run=true only says which",
        group="schedules",
        asks=(COMMAND, DRY_RUN),
        gives={200: BREAKERS_RESET},
        refuses=(409,),
    )


# ── schedules ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def list_schedules(desk: AppContext, request: Request) -> Response:
    snapshot = desk.snapshot()

    def read(db: Db) -> list[dict[str, Any]]:
        return schedules_view(snapshot, schedules.all_entries(db))

    return json_response({"jobs": await desk.ledger.read(read)})


async def change_status(desk: AppContext, request: Request, *, status: EntryStatus) -> Response:
    """200 once the schedule is paused or goes on; 409 for one that is over."""
    plugin, schedule = _addressed(desk, request)
    reason, dry_run = reason_of(request), flag_of(request, "dry_run")
    if status is PAUSED and reason is None:
        reason = f"paused by {request.principal.name}"
    before = await desk.ledger.read(schedules.get, plugin, schedule.id)
    _require_changeable(plugin, schedule, before)
    changes = (before.status if before else ACTIVE) is not status
    if not dry_run:
        now = desk.clock.now()
        changes = await desk.ledger.write(_set_status, plugin, schedule, status, reason, now=now)
        desk.hub.announce(SCHEDULES)
    content = {
        "plugin": plugin,
        "schedule_id": schedule.id,
        "status": "paused" if status is PAUSED else "scheduled",
        "changed": changes,
        "dry_run": dry_run,
    }
    return json_response(content)


def _set_status(
    db: Db, plugin: str, schedule: Schedule, status: EntryStatus, reason: str | None, *, now: datetime
) -> bool:
    """The schedule has that status; True if it had another."""
    entry = schedules.get(db, plugin, schedule.id)
    if entry is None:  # the scheduler has not come to it yet
        entry = schedules.define(db, plugin, schedule.id, schedule.command, definition_hash(schedule), now=now)
    _require_changeable(plugin, schedule, entry)
    if entry.status is status:
        return False
    told = reason if status is PAUSED else None
    return schedules.set_status(db, plugin, schedule.id, status, now=now, reason=told)


def _require_changeable(plugin: str, schedule: Schedule, entry: ScheduleEntry | None) -> None:
    if entry is not None and entry.status is EXHAUSTED:
        raise WrongState(
            f"schedule {schedule.id} of {plugin} has run once and does not repeat",
            hint="edit its `at` to run it again, or run its command now",
        )


async def run_now(desk: AppContext, request: Request) -> Response:
    """202 with the id of an ordinary job, outside of the slots: no pause, window, breaker or `if_running` holds it."""
    plugin, schedule = _addressed(desk, request)
    snapshot = desk.snapshot()
    lane = snapshot.lane(plugin)
    if lane.writes(schedule.command):
        require_scope(request, "plugin:rw", plugin=plugin)
    ticket = ticket_of(request)
    if (known := await known_answer(desk, ticket)) is not None:
        return encoded_json_response(known.text.encode(), 202, headers_of(known))
    require_healthy(desk, plugin)
    content = {"plugin": plugin, "schedule_id": schedule.id, "command": schedule.command}
    if flag_of(request, "dry_run"):
        return json_response({**content, "status": "planned", "dry_run": True})
    new = NewJob(
        plugin=plugin,
        command=schedule.command,
        payload=strict_json.dumps(dict(schedule.payload)) if schedule.payload else None,
        submitted_by=submitter_of(request),
        max_attempts=lane.entry.retry.max_attempts,
        notify=lane.entry.notify_on_complete,
        snapshot_id=snapshot.id,
    )
    answer = await done_once(desk, ticket, partial(_enqueue, new=new, content=content, now=desk.clock.now()))
    return encoded_json_response(answer.text.encode(), 202, headers_of(answer))


def _enqueue(db: Db, *, new: NewJob, content: dict[str, str], now: datetime) -> StoredAnswer:
    made = enqueue(db, new, now=now)
    text = strict_json.dumps({"job_id": made.job_id, "status": made.status, **content})
    return StoredAnswer(job_id=made.job_id, text=text)


def _addressed(desk: AppContext, request: Request) -> tuple[str, Schedule]:
    plugin = request.params["plugin"]
    return plugin, written_schedule(desk.snapshot(), plugin, request.params["id"])


# ── breakers ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def list_breakers(desk: AppContext, request: Request) -> Response:
    view = partial(all_breakers_view, snapshot=desk.snapshot())
    return json_response({"breakers": await desk.ledger.read(view)})


async def show_breakers(desk: AppContext, request: Request) -> Response:
    plugin, command, limit = request.params["plugin"], request.argument("command"), _limit_of(request)
    view = partial(breakers_view, snapshot=desk.snapshot(), plugin=plugin, command=command, transitions=limit)
    return json_response(await desk.ledger.read(view))


def _limit_of(request: Request) -> int:
    text = request.argument("limit") or str(TRANSITIONS)
    if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= MOST_TRANSITIONS):
        raise BadRequest(f"limit: expected 1 to {MOST_TRANSITIONS}, got {text[:80]!r}")
    return int(text)


async def reset_breakers(desk: AppContext, request: Request, *, reset: Reset) -> Response:
    """200 with the breakers that were not closed or had counted failures; they are closed and at zero now."""
    plugin, command, dry_run = request.params["plugin"], request.argument("command"), flag_of(request, "dry_run")
    find = partial(resettable, snapshot=desk.snapshot(), plugin=plugin, command=command)
    if dry_run:
        found = await desk.ledger.read(find)
    else:
        found = await desk.ledger.write(_reset_all, find, reset, now=desk.clock.now())
        desk.hub.announce(SCHEDULES)
        desk.hub.announce_work()
    changes = [
        {"command": one.command, "previous_state": str(one.state), "failure_count": one.failure_count} for one in found
    ]
    return json_response({"plugin": plugin, "reset": changes, "dry_run": dry_run})


def _reset_all(db: Db, find: Callable[[Db], list[Breaker]], reset: Reset, *, now: datetime) -> list[Breaker]:
    """The breakers are closed; as they were before."""
    found = find(db)
    for breaker in found:
        breakers.put(db, reset(breaker), now=now)
    for breaker in found:
        if breaker.plugin == RELAY:
            outbox.wake_all(db, RELAY, breaker.command)
    return found
