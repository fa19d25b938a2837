"""Routes for schedules and breakers: list them, pause, resume and run a schedule, reset a breaker.

Fires no schedule. A change is one transaction, then a hub announcement wakes the scheduler. The runtime supplies the
reset rule of breakers.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import partial
from typing import Annotated, Literal, TypedDict

from ductile.config.sections.schedules import definition_hash
from ductile.config.sections.settings import Schedule
from ductile.core.errors import WrongState
from ductile.core.formats import strict_json
from ductile.core.formats.json_schema import Count, Keywords
from ductile.core.hub import SCHEDULES
from ductile.core.model import Breaker, BreakerChange, BreakerState, FollowUps, JobStatus, NewJob
from ductile.ledger.jobs.enqueue import enqueue
from ductile.ledger.queue import outbox
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import breakers, schedules
from ductile.ledger.tables.receipts import StoredResponse
from ductile.ledger.tables.schedules import EntryStatus, ScheduleEntry
from ductile.pipeline.compile.plan import RELAY
from ductile.web.api.job_actions import read_reason
from ductile.web.auth.auth import require_scope
from ductile.web.context import DRY_RUN, AppContext, get_submitter, read_flag, read_number, require_healthy
from ductile.web.idempotency import KEY_HEADER, find_stored_response, read_idempotency_key, replay_headers, submit_once
from ductile.web.messages import Request, Response, encoded_json_response, json_response
from ductile.web.routing import AnyRoute, Argument, Route
from ductile.web.views.schedules import (
    ListedBreakerView,
    PluginBreakersView,
    ScheduleView,
    all_breakers_view,
    breakers_view,
    find_resettable,
    find_schedule,
    schedules_view,
)

Reset = Callable[[Breaker], BreakerChange]
MAX_TRANSITIONS, DEFAULT_TRANSITIONS = 200, 20
COMMAND = Argument("command", str, "Only the breaker of this command")
PAUSED, ACTIVE, EXHAUSTED = EntryStatus.PAUSED_MANUAL, EntryStatus.ACTIVE, EntryStatus.EXHAUSTED


class ScheduleReasonBody(TypedDict, total=False):
    reason: Annotated[str, "One line, shown with the schedule"] | None


class SchedulesView(TypedDict):
    jobs: list[ScheduleView]


class ScheduleChangedView(TypedDict):
    plugin: str
    schedule_id: str
    status: Literal["paused", "scheduled"]
    changed: Annotated[bool, "False if the status was the same before"]
    dry_run: bool


class _ScheduledCommand(TypedDict):
    plugin: str
    schedule_id: str
    command: str


class ScheduleRunView(_ScheduledCommand):
    """The job that runs the command of a schedule."""

    job_id: str
    status: JobStatus


class SchedulePlannedView(_ScheduledCommand):
    """The run that a dry run would create."""

    status: Literal["planned"]
    dry_run: bool


class BreakersView(TypedDict):
    """All circuit breakers that have counted an attempt."""

    breakers: list[ListedBreakerView]


class BreakerResetView(TypedDict):
    """A circuit breaker before its reset."""

    command: str
    previous_state: BreakerState
    failure_count: Count


class BreakersResetView(TypedDict):
    """The circuit breakers that a reset changed or would change."""

    plugin: str
    reset: list[BreakerResetView]
    dry_run: bool


def routes(ctx: AppContext, reset: Reset) -> Iterable[AnyRoute]:
    """Return the routes for schedules and breakers."""
    yield Route(
        method="GET",
        path="/scheduler/jobs",
        handler=partial(list_schedules, ctx),
        scope="jobs:ro",
        summary="List schedules with their status, last run and next run",
        group="schedules",
        responses={200: SchedulesView},
    )
    yield Route(
        method="POST",
        path="/schedule/{plugin}/{id}/pause",
        handler=partial(change_status, ctx, status=PAUSED),
        scope="system:rw",
        summary="Pause a schedule; slots that become due are skipped",
        group="schedules",
        query=(DRY_RUN,),
        request_body=ScheduleReasonBody,
        responses={200: ScheduleChangedView},
        error_statuses=(409,),
    )
    yield Route(
        method="POST",
        path="/schedule/{plugin}/{id}/resume",
        handler=partial(change_status, ctx, status=ACTIVE),
        scope="system:rw",
        summary="Resume a paused schedule",
        group="schedules",
        query=(DRY_RUN,),
        request_body=ScheduleReasonBody,
        responses={200: ScheduleChangedView},
        error_statuses=(409,),
    )
    yield Route(
        method="POST",
        path="/schedule/{plugin}/{id}/run",
        handler=partial(run_now, ctx),
        scope="plugin:invoke:ro",
        summary="Run the command of a schedule now, with its payload; plugin:rw for write commands",
        group="schedules",
        query=(DRY_RUN,),
        responses={200: SchedulePlannedView, 202: ScheduleRunView},
        error_statuses=(409, 429),
        headers=(KEY_HEADER,),
    )
    yield Route(
        method="GET",
        path="/breakers",
        handler=partial(list_breakers, ctx),
        scope="jobs:ro",
        summary="List circuit breakers that have counted an attempt",
        group="schedules",
        responses={200: BreakersView},
    )
    yield Route(
        method="GET",
        path="/breaker/{plugin}",
        handler=partial(show_breakers, ctx),
        scope="jobs:ro",
        summary="Get the circuit breakers of a plugin, one per command, with their transitions",
        group="schedules",
        query=(
            COMMAND,
            Argument(
                "limit",
                Annotated[int, Keywords(minimum=1, maximum=MAX_TRANSITIONS)],
                "Number of transitions; default 20",
            ),
        ),
        responses={200: PluginBreakersView},
        error_statuses=(409,),
    )
    yield Route(
        method="POST",
        path="/breaker/{plugin}/reset",
        handler=partial(reset_breakers, ctx, reset=reset),
        scope="system:rw",
        summary="Reset the breakers of a plugin, or of one command",
        group="schedules",
        query=(COMMAND, DRY_RUN),
        responses={200: BreakersResetView},
        error_statuses=(409,),
    )


# ── schedules ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def list_schedules(ctx: AppContext, request: Request) -> Response:
    snapshot = ctx.snapshot()

    def read(db: Db) -> SchedulesView:
        return {"jobs": schedules_view(snapshot, schedules.all_entries(db))}

    return json_response(await ctx.ledger.read(read))


async def change_status(ctx: AppContext, request: Request, *, status: EntryStatus) -> Response:
    """Return 200 when the schedule is paused or resumed. Raises WrongState for an exhausted schedule."""
    plugin, schedule = _find_addressed(ctx, request)
    reason, dry_run = read_reason(request), read_flag(request, "dry_run")
    if status is PAUSED and reason is None:
        reason = f"paused by {request.principal.name}"
    before = await ctx.ledger.read(schedules.get, plugin, schedule.id)
    _require_changeable(plugin, schedule, before)
    changes = (before.status if before else ACTIVE) is not status
    if not dry_run:
        now = ctx.clock.now()
        actor = request.principal.actor
        changes = await ctx.ledger.write(_set_status, plugin, schedule, status, reason, actor, now=now)
        ctx.hub.announce(SCHEDULES)
    view: ScheduleChangedView = {
        "plugin": plugin,
        "schedule_id": schedule.id,
        "status": "paused" if status is PAUSED else "scheduled",
        "changed": changes,
        "dry_run": dry_run,
    }
    return json_response(view)


def _set_status(
    db: Db, plugin: str, schedule: Schedule, status: EntryStatus, reason: str | None, actor: str, *, now: datetime
) -> bool:
    """Set the status of the schedule. Returns False if it had that status already."""
    entry = schedules.get(db, plugin, schedule.id)
    if entry is None:  # not loaded by the scheduler yet
        entry = schedules.define(db, plugin, schedule.id, schedule.command, definition_hash(schedule), now=now)
    _require_changeable(plugin, schedule, entry)
    if entry.status is status:
        return False
    reason = reason if status is PAUSED else None
    return schedules.set_status(db, plugin, schedule.id, status, now=now, reason=reason, actor=actor)


def _require_changeable(plugin: str, schedule: Schedule, entry: ScheduleEntry | None) -> None:
    if entry is not None and entry.status is EXHAUSTED:
        raise WrongState(
            f"schedule {schedule.id} of {plugin} has run once and does not repeat",
            hint="Change its `at` to run it again, or run its command now.",
        )


async def run_now(ctx: AppContext, request: Request) -> Response:
    """Return 202 with the job id. The job ignores the schedule's slots, pause, window, breaker and `if_running`."""
    plugin, schedule = _find_addressed(ctx, request)
    snapshot = ctx.snapshot()
    configured = snapshot.plugin(plugin)
    if configured.writes(schedule.command):
        require_scope(request, "plugin:rw", plugin=plugin)
    key = read_idempotency_key(request)
    if (known := await find_stored_response(ctx, key)) is not None:
        return encoded_json_response(known.text.encode(), 202, replay_headers(known))
    require_healthy(ctx, plugin)
    scheduled = _ScheduledCommand(plugin=plugin, schedule_id=schedule.id, command=schedule.command)
    if read_flag(request, "dry_run"):
        return json_response(SchedulePlannedView(**scheduled, status="planned", dry_run=True))
    new = NewJob(
        plugin=plugin,
        command=schedule.command,
        payload=strict_json.dumps(dict(schedule.payload)) if schedule.payload else None,
        submitted_by=get_submitter(request),
        actor=request.principal.actor,
        max_attempts=configured.entry.retry.max_attempts,
        notify=configured.entry.notify_on_complete,
        snapshot_id=snapshot.id,
    )
    act = partial(_enqueue, new=new, scheduled=scheduled, now=ctx.clock.now())
    stored = await submit_once(ctx, key, act, [FollowUps(children=(new,))], actor=request.principal.actor)
    return encoded_json_response(stored.text.encode(), 202, replay_headers(stored))


def _enqueue(db: Db, *, new: NewJob, scheduled: _ScheduledCommand, now: datetime) -> StoredResponse:
    enqueued = enqueue(db, new, now=now)
    view = ScheduleRunView(job_id=enqueued.job_id, status=enqueued.status, **scheduled)
    return StoredResponse(job_id=enqueued.job_id, text=strict_json.dumps(view))


def _find_addressed(ctx: AppContext, request: Request) -> tuple[str, Schedule]:
    plugin = request.params["plugin"]
    return plugin, find_schedule(ctx.snapshot(), plugin, request.params["id"])


# ── breakers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def list_breakers(ctx: AppContext, request: Request) -> Response:
    view = partial(all_breakers_view, snapshot=ctx.snapshot())
    return json_response(BreakersView(breakers=await ctx.ledger.read(view)))


async def show_breakers(ctx: AppContext, request: Request) -> Response:
    plugin, command = request.params["plugin"], request.argument("command")
    limit = read_number(request, "limit", DEFAULT_TRANSITIONS, least=1, most=MAX_TRANSITIONS)
    view = partial(breakers_view, snapshot=ctx.snapshot(), plugin=plugin, command=command, transitions=limit)
    return json_response(await ctx.ledger.read(view))


async def reset_breakers(ctx: AppContext, request: Request, *, reset: Reset) -> Response:
    """Return 200 with the breakers that were open, half-open or had counted failures; all are reset."""
    plugin, command, dry_run = request.params["plugin"], request.argument("command"), read_flag(request, "dry_run")
    find = partial(find_resettable, snapshot=ctx.snapshot(), plugin=plugin, command=command)
    if dry_run:
        found = await ctx.ledger.read(find)
    else:
        found = await ctx.ledger.write(_reset_all, find, reset, request.principal.actor, now=ctx.clock.now())
        ctx.hub.announce(SCHEDULES)
        ctx.hub.announce_work()
    changes = [
        BreakerResetView(command=breaker.command, previous_state=breaker.state, failure_count=breaker.failure_count)
        for breaker in found
    ]
    return json_response(BreakersResetView(plugin=plugin, reset=changes, dry_run=dry_run))


def _reset_all(
    db: Db, find: Callable[[Db], list[Breaker]], reset: Reset, actor: str, *, now: datetime
) -> list[Breaker]:
    """Reset the breakers and return them as they were before."""
    found = find(db)
    for breaker in found:
        breakers.put(db, reset(breaker), now=now, actor=actor)
    for breaker in found:
        if breaker.plugin == RELAY:
            outbox.wake_all(db, RELAY, breaker.command)
    return found
