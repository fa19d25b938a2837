"""Routes for running plugins and pipelines and reading jobs, the index and the health check.

Runs no job: handlers use the ledger and the hub only.
"""

import uuid
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Literal, TypedDict

import trio

from ductile import __version__
from ductile.core.formats import strict_json
from ductile.core.formats.json_schema import Count
from ductile.core.hub import job_topic
from ductile.core.instance.failpoints import failpoint
from ductile.core.instance.systemd import MAX_STUCK_SECONDS
from ductile.core.model import FollowUps, NewJob
from ductile.explain.health import Health, HealthVerdict, judge_health, read_health_facts
from ductile.ledger.jobs.enqueue import enqueue
from ductile.ledger.reports import job_details, queue_status, trees
from ductile.ledger.reports.queue_status import OldestJob
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.lock_holder import find_lock_holder
from ductile.ledger.tables.breakers import count_plugins_with_open_breakers
from ductile.ledger.tables.receipts import StoredResponse
from ductile.pipeline.run.route import Event
from ductile.web.api.pipelines import StillRunningView, show_tree, start_pipeline
from ductile.web.auth.auth import require_scope
from ductile.web.context import (
    DRY_RUN,
    RECHECK_INTERVAL,
    WAIT,
    AppContext,
    PayloadBody,
    get_submitter,
    read_flag,
    read_job_id,
    read_payload,
    read_wait_seconds,
    require_healthy,
    wait_slot,
)
from ductile.web.idempotency import KEY_HEADER, find_stored_response, read_idempotency_key, replay_headers, submit_once
from ductile.web.messages import Request, Response, encoded_json_response, json_response
from ductile.web.routing import AnyRoute, Argument, Route
from ductile.web.views.jobs import (
    RESULT_SCOPE,
    AcceptedRunView,
    AcceptedView,
    JobView,
    PlannedRunView,
    PlannedView,
    RunView,
    TreeNodeView,
    job_json,
)


class WelcomeView(TypedDict):
    name: str
    description: str
    version: str
    uptime_seconds: Count
    discovery: Annotated[dict[str, Annotated[str, "A path"]], "Main paths of the API"]


class HealthView(TypedDict):
    status: Literal["ok", "degraded"]
    uptime_seconds: Count
    queue_depth: Annotated[Count, "Queued and running jobs, counted up to 10,000"]
    plugins_loaded: Count
    plugins_circuit_open: Count
    version: str
    oldest_claimable_seconds: Annotated[float, "How long the oldest job that may start has been ready"]
    verdict: Annotated[HealthVerdict, "The verdict of `ductile system status`"]
    reasons: Annotated[list[str], "Why the verdict is not healthy: codes"]


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the routes for jobs, pipelines and health."""
    max_body = ctx.snapshot().config.settings.api.max_body_size
    yield Route(
        method="GET",
        path="/",
        handler=partial(welcome, ctx),
        summary="Get the name, version and main paths of this service",
        group="discovery",
        responses={200: WelcomeView},
    )
    yield Route(
        method="GET",
        path="/healthz",
        handler=partial(health, ctx),
        summary="Check the health of the service",
        group="system",
        responses={200: HealthView, 503: HealthView},
    )
    yield Route(
        method="POST",
        path="/plugin/{plugin}/{command}",
        handler=partial(trigger, ctx),
        scope="plugin:invoke:ro",
        summary="Run a plugin command; plugin:invoke:ro for read commands, plugin:rw for write commands",
        group="plugins",
        headers=(KEY_HEADER,),
        query=(DRY_RUN,),
        request_body=PayloadBody,
        responses={200: PlannedView, 202: AcceptedView},
        error_statuses=(409, 422, 429),
        max_body=max_body,
    )
    yield Route(
        method="GET",
        path="/job/{id}",
        handler=partial(show_job, ctx),
        scope="jobs:status:ro",
        summary="Get a job and its result; ?wait=10s waits for its end",
        group="jobs",
        query=(WAIT,),
        responses={200: JobView},
        error_statuses=(429,),
        waits=True,
    )
    yield Route(
        method="POST",
        path="/pipeline/{pipeline}",
        handler=partial(start_pipeline, ctx),
        scope="plugin:rw",
        summary="Start a pipeline; a synchronous one responds at the end of the run, unless ?async=true",
        group="pipelines",
        query=(Argument("async", bool, "Do not wait for the end of the run"), DRY_RUN),
        headers=(KEY_HEADER,),
        request_body=PayloadBody,
        responses={200: RunView | PlannedRunView, 202: AcceptedRunView | StillRunningView},
        error_statuses=(409, 422, 429),
        max_body=max_body,
        waits=True,
    )
    yield Route(
        method="GET",
        path="/job/{id}/tree",
        handler=partial(show_tree, ctx),
        scope="jobs:tree:ro",
        summary="List the jobs of a job tree; ?wait=10s waits for its end",
        group="jobs",
        query=(WAIT,),
        responses={200: list[TreeNodeView]},
        error_statuses=(429,),
        waits=True,
    )


async def welcome(ctx: AppContext, request: Request) -> Response:
    view: WelcomeView = {
        "name": "Ductile Gateway",
        "description": "A durable job runtime for plugins and pipelines",
        "version": __version__,
        "uptime_seconds": _uptime(ctx),
        "discovery": {
            "openapi": "/openapi.json",
            "skills": "/skills",
            "plugins": "/plugins",
            "health": "/healthz",
            "trigger": "/plugin/{plugin}/{command}",
            "pipeline": "/pipeline/{pipeline}",
            "job": "/job/{id}",
            "tree": "/job/{id}/tree",
            "jobs": "/jobs",
            "runs": "/runs",
            "pipelines": "/pipelines",
            "agenda": "/schedules/agenda",
            "journal": "/journal",
            "logs": "/job-logs",
            "queue": "/analytics/queue",
            "schedules": "/scheduler/jobs",
            "topology": "/topology",
            "events": "/events",
            "events_ws": "/events/ws",
            "metrics": "/metrics",
            "config": "/config/view",
            "doctor": "/system/doctor",
            "ai_plugin": "/.well-known/ai-plugin.json",
        },
    }
    return json_response(view)


async def health(ctx: AppContext, request: Request) -> Response:
    """Return 200 if the service works, 503 if the ledger is not writable or the scheduler is stuck."""
    snapshot, now, is_stuck = ctx.snapshot(), ctx.clock.now(), is_service_stuck(ctx)
    judge = health_judge(ctx)

    def read(db: Db) -> tuple[int, OldestJob | None, int, Health]:
        oldest = queue_status.oldest_ready_job(db, ctx.startable_plugins(db), now=now)
        return queue_status.depth(db), oldest, count_plugins_with_open_breakers(db), judge(db)

    queue, oldest, open_breakers, verdict = await ctx.ledger.read(read)
    view: HealthView = {
        "status": "degraded" if is_stuck else "ok",
        "uptime_seconds": _uptime(ctx),
        "queue_depth": queue,
        "plugins_loaded": len(snapshot.plugins),
        "plugins_circuit_open": open_breakers,
        "version": __version__,
        "oldest_claimable_seconds": max(round((now - oldest.ready_at).total_seconds(), 1), 0) if oldest else 0,
        "verdict": verdict.verdict,
        "reasons": verdict.codes,
    }
    return json_response(view, 503 if is_stuck else 200)


def is_service_stuck(ctx: AppContext) -> bool:
    """Return whether the ledger is not writable or the schedules are not evaluated."""
    return ctx.ledger.broken.is_set() or ctx.stuck_seconds() >= MAX_STUCK_SECONDS


def health_judge(ctx: AppContext) -> Callable[[Db], Health]:
    """Return a function of the ledger that decides the verdict about this service now."""
    plugins, now, is_stuck = ctx.snapshot().plugins, ctx.clock.now(), is_service_stuck(ctx)
    holder = find_lock_holder(ctx.ledger.path)

    def judge(db: Db) -> Health:
        return judge_health(read_health_facts(db, plugins, now=now, is_stuck=is_stuck, lock_holder=holder))

    return judge


async def trigger(ctx: AppContext, request: Request) -> Response:
    """Return 202 with the job id when the job is durable."""
    snapshot = ctx.snapshot()
    configured, command = snapshot.plugin(request.params["plugin"]), request.params["command"]
    if configured.writes(command):
        require_scope(request, "plugin:rw", plugin=configured.name)
    if read_flag(request, "dry_run"):
        require_healthy(ctx, configured.name)
        read_payload(request)
        return json_response(PlannedView(status="planned", plugin=configured.name, command=command, dry_run=True))
    key = read_idempotency_key(request)
    if (known := await find_stored_response(ctx, key)) is not None:
        return _accepted(known)
    require_healthy(ctx, configured.name)
    now = ctx.clock.now()
    payload = read_payload(request)
    if command == "handle":
        event = Event(str(uuid.uuid4()), "api.trigger", payload or {}, "api", now)
        text: str | None = event.envelope()
    else:
        text = strict_json.dumps(payload) if payload is not None else None
    new = NewJob(
        plugin=configured.name,
        command=command,
        payload=text,
        submitted_by=get_submitter(request),
        actor=request.principal.actor,
        max_attempts=configured.entry.retry.max_attempts,
        notify=configured.entry.notify_on_complete,
        snapshot_id=snapshot.id,
    )
    failpoint("enqueue.before_begin")
    ttl = snapshot.config.settings.service.dedupe_ttl
    act = partial(_enqueue, new=new, now=now, default_ttl=ttl)
    stored = await submit_once(ctx, key, act, [FollowUps(children=(new,))], actor=request.principal.actor)
    failpoint("enqueue.after_commit")
    return _accepted(stored)


def _enqueue(db: Db, *, new: NewJob, now: datetime, default_ttl: timedelta) -> StoredResponse:
    enqueued = enqueue(db, new, now=now, default_ttl=default_ttl)
    view = AcceptedView(job_id=enqueued.job_id, status=enqueued.status, plugin=new.plugin, command=new.command)
    return StoredResponse(job_id=enqueued.job_id, text=strict_json.dumps(view))


def _accepted(stored: StoredResponse) -> Response:
    return encoded_json_response(stored.text.encode(), 202, replay_headers(stored))


async def show_job(ctx: AppContext, request: Request) -> Response:
    """Return the job, after waiting for its end if `?wait=` is given."""
    job_id = read_job_id(request)
    wait_seconds = read_wait_seconds(request, ctx.snapshot())
    slot = wait_slot(ctx, request, wait_seconds)
    with slot, ctx.hub.watch(job_topic(job_id)) as hints, trio.move_on_after(wait_seconds):
        while not await ctx.ledger.read(job_details.is_finished, job_id) and not ctx.is_stopping():
            # A hint can be lost, so the ledger is read again after a while.
            with trio.move_on_after(RECHECK_INTERVAL):
                await hints.receive()
    report, tree = await ctx.ledger.read(trees.brief, job_id)
    if wait_seconds:  # report only an end that survives a power failure
        await ctx.ledger.until_durable()
    shows_result = request.principal.has_scope(RESULT_SCOPE)
    text = job_json(report, ctx.live_stderr(job_id), tree=tree, shows_result=shows_result)
    return encoded_json_response(text.encode())


def _uptime(ctx: AppContext) -> int:
    return int(trio.current_time() - ctx.started)
