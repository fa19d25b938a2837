"""The HTTP API: what can be asked for and what comes back. Requests become ledger calls, values become JSON.

Knows nothing of sockets or of how jobs run: it talks to the ledger and the hub. The runtime builds the table.
"""

import uuid
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial

import trio

from ductile import __version__
from ductile.config.snapshot import Snapshot
from ductile.core.formats import strict_json
from ductile.core.hub import job_topic
from ductile.core.instance.failpoints import failpoint
from ductile.core.instance.systemd import STUCK_SECONDS
from ductile.core.model import FollowUps, NewJob, are_few
from ductile.ledger.queue.enqueue import enqueue
from ductile.ledger.reports import job_details, queue_status, trees
from ductile.ledger.storage.db import Db
from ductile.ledger.tables.breakers import plugins_with_open_breakers
from ductile.ledger.tables.receipts import StoredAnswer
from ductile.pipeline.run.route import Event
from ductile.web.api.pipelines import show_tree, start_pipeline
from ductile.web.auth.auth import require_scope
from ductile.web.context import (
    RECHECK_SECONDS,
    AppContext,
    flag_of,
    job_id_of,
    payload_of,
    require_healthy,
    seated,
    submitter_of,
    wait_of,
)
from ductile.web.idempotency import KEY_HEADER, done_once, headers_of, known_answer, ticket_of
from ductile.web.messages import Request, Response, encoded_json_response, json_response
from ductile.web.openapi.responses import (
    ACCEPTED,
    DRY_RUN,
    HEALTH,
    JOB,
    PAYLOAD,
    PLANNED,
    RUN,
    STILL_RUNNING,
    TREE,
    WAIT,
    WELCOME,
)
from ductile.web.openapi.schemas import Argument, boolean
from ductile.web.routes import AnyRoute, Route
from ductile.web.views.jobs import RESULT_SCOPE, job_text

__all__ = ["AppContext", "routes"]


def routes(desk: AppContext) -> Iterable[AnyRoute]:
    """Everything the API answers."""
    most = desk.snapshot().config.settings.api.max_body_size

    on = seated(desk)

    yield Route(
        method="GET",
        path="/",
        handler=on(welcome),
        summary="What this is and where to go",
        group="discovery",
        gives={200: WELCOME},
    )
    yield Route(
        method="GET",
        path="/healthz",
        handler=on(health),
        summary="Whether the service works",
        group="system",
        gives={200: HEALTH, 503: HEALTH},
    )
    yield Route(
        method="POST",
        path="/plugin/{plugin}/{command}",
        handler=on(trigger),
        scope="plugin:invoke:ro",
        summary="Run a plugin's command: plugin:invoke:ro for commands that read, plugin:rw for those that write",
        group="plugins",
        heeds=(KEY_HEADER,),
        asks=(DRY_RUN,),
        takes=PAYLOAD,
        gives={200: PLANNED, 202: ACCEPTED},
        refuses=(409, 422),
        max_body=most,
    )
    yield Route(
        method="GET",
        path="/job/{id}",
        handler=on(show_job),
        scope="jobs:status:ro",
        summary="One job and its result; ?wait=10s waits until it is over",
        group="jobs",
        asks=(WAIT,),
        gives={200: JOB},
        waits=True,
    )
    yield Route(
        method="POST",
        path="/pipeline/{pipeline}",
        handler=on(start_pipeline),
        scope="plugin:rw",
        summary="Start a pipeline; a synchronous one answers when the run is over, unless ?async=true",
        group="pipelines",
        asks=(Argument("async", boolean(), "Do not wait for the end of the run"), DRY_RUN),
        heeds=(KEY_HEADER,),
        takes=PAYLOAD,
        gives={200: {"anyOf": [RUN, PLANNED]}, 202: {"anyOf": [ACCEPTED, STILL_RUNNING]}},
        refuses=(409, 422),
        max_body=most,
        waits=True,
    )
    yield Route(
        method="GET",
        path="/job/{id}/tree",
        handler=on(show_tree),
        scope="jobs:tree:ro",
        summary="Every job of the tree a job is in; ?wait=10s waits until the tree is done",
        group="jobs",
        asks=(WAIT,),
        gives={200: TREE},
        waits=True,
    )


async def welcome(desk: AppContext, request: Request) -> Response:
    return json_response(
        {
            "name": "Ductile Gateway",
            "description": "An automation runtime: jobs in, plugins run, everything on record",
            "version": __version__,
            "uptime_seconds": _uptime(desk),
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
    )


async def health(desk: AppContext, request: Request) -> Response:
    """200 while work is being done or could be; 503 when the ledger takes no writes or no schedule is decided."""
    snapshot = desk.snapshot()
    queue, oldest, open_breakers = await desk.ledger.read(_queue_health, snapshot)
    works = not desk.ledger.broken.is_set() and desk.stuck_seconds() < STUCK_SECONDS
    content = {
        "status": "ok" if works else "degraded",
        "uptime_seconds": _uptime(desk),
        "queue_depth": queue,
        "plugins_loaded": len(snapshot.lanes),
        "plugins_circuit_open": open_breakers,
        "version": __version__,
        "oldest_claimable_seconds": round((desk.clock.now() - oldest).total_seconds(), 1) if oldest else 0,
    }
    return json_response(content, 200 if works else 503)


def _queue_health(db: Db, snapshot: Snapshot) -> tuple[int, datetime | None, int]:
    oldest = queue_status.oldest_claimable(db, snapshot.slots)
    return queue_status.depth(db), oldest, plugins_with_open_breakers(db)


async def trigger(desk: AppContext, request: Request) -> Response:
    """202 with the job's id, after the job is durable."""
    snapshot = desk.snapshot()
    lane, command = snapshot.lane(request.params["plugin"]), request.params["command"]
    if lane.writes(command):
        require_scope(request, "plugin:rw", plugin=lane.name)
    if flag_of(request, "dry_run"):
        require_healthy(desk, lane.name)
        payload_of(request)
        return json_response({"status": "planned", "plugin": lane.name, "command": command, "dry_run": True})
    ticket = ticket_of(request)
    if (known := await known_answer(desk, ticket)) is not None:
        return _triggered(known)
    require_healthy(desk, lane.name)
    now = desk.clock.now()
    payload = payload_of(request)
    if command == "handle":
        event = Event(str(uuid.uuid4()), "api.trigger", payload or {}, "api", now)
        text: str | None = event.envelope()
    else:
        text = strict_json.dumps(payload) if payload is not None else None
    new = NewJob(
        plugin=lane.name,
        command=command,
        payload=text,
        submitted_by=submitter_of(request),
        max_attempts=lane.entry.retry.max_attempts,
        notify=lane.entry.notify_on_complete,
        snapshot_id=snapshot.id,
    )
    failpoint("enqueue.before_begin")
    ttl = snapshot.config.settings.service.dedupe_ttl
    act = partial(_enqueue, new=new, now=now, default_ttl=ttl)
    answer = await done_once(desk, ticket, act, is_large=not are_few(FollowUps(children=(new,))))
    failpoint("enqueue.after_commit")
    return _triggered(answer)


def _enqueue(db: Db, *, new: NewJob, now: datetime, default_ttl: timedelta) -> StoredAnswer:
    made = enqueue(db, new, now=now, default_ttl=default_ttl)
    told = {"job_id": made.job_id, "status": made.status, "plugin": new.plugin, "command": new.command}
    return StoredAnswer(job_id=made.job_id, text=strict_json.dumps(told))


def _triggered(answer: StoredAnswer) -> Response:
    return encoded_json_response(answer.text.encode(), 202, headers_of(answer))


async def show_job(desk: AppContext, request: Request) -> Response:
    """The job as it is, or as it is when it ends or the wait is over."""
    job_id = job_id_of(request)
    patience = wait_of(request, desk.snapshot())
    with desk.hub.watch(job_topic(job_id)) as hints, trio.move_on_after(patience):
        while not await desk.ledger.read(job_details.is_over, job_id) and not desk.is_stopping():
            # A hint can be lost, so the ledger is asked again after a while.
            with trio.move_on_after(RECHECK_SECONDS):
                await hints.receive()
    report, tree = await desk.ledger.read(trees.brief, job_id)
    if patience:  # nobody who waits for an end is told of one that a power cut could take back
        await desk.ledger.until_durable()
    shows_result = request.principal.may(RESULT_SCOPE)
    text = job_text(report, desk.live_stderr(job_id), tree=tree, shows_result=shows_result)
    return encoded_json_response(text.encode())


def _uptime(desk: AppContext) -> int:
    return int(trio.current_time() - desk.started)
