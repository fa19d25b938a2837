"""What a person does to a job over HTTP: cancel, retry, replay.

Nothing runs here. Each act is one transaction; whoever has to know is told by the hub. How a running process is ended
and what follows from an ending is the engine's matter, and the desk has somebody for it.
"""

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any

from ductile.core.errors import NotFound, WrongState
from ductile.core.formats import strict_json
from ductile.core.formats.yaml_fields import ONE_LINE
from ductile.core.model import RELAY, Budget, FollowUps, Job, NewJob, are_few
from ductile.ledger.admin.operate import known_job, replay, require_replayable, require_retryable, retry
from ductile.ledger.queue.enqueue import enqueue
from ductile.ledger.storage.db import Db
from ductile.ledger.tables.receipts import StoredAnswer
from ductile.pipeline.compile.plan import HANDLE
from ductile.web.auth.auth import require_scope
from ductile.web.context import (
    AppContext,
    BadRequest,
    flag_of,
    job_id_of,
    object_of,
    require_healthy,
    seated,
    submitter_of,
)
from ductile.web.idempotency import KEY_HEADER, done_once, headers_of, known_answer, ticket_of
from ductile.web.messages import Request, Response, encoded_json_response, json_response
from ductile.web.openapi.responses import DRY_RUN
from ductile.web.openapi.schemas import anything, boolean, by_name, integer, nullable, record, text
from ductile.web.routes import AnyRoute, Route

LONGEST_REASON = 200
REASON = record({}, {"reason": text("Why, for whoever looks later", maxLength=LONGEST_REASON)}, title="Reason")
ACTED = record(
    {
        "job_id": text("The job"),
        "status": text("What it is now"),
        "dry_run": boolean("True if nothing was done"),
    },
    title="Acted",
)


def routes(desk: AppContext) -> Iterable[AnyRoute]:
    """What the API does to jobs."""

    on = seated(desk)

    act = partial(Route, method="POST", scope="jobs:rw", group="jobs", asks=(DRY_RUN,), refuses=(409, 422))
    yield act(
        path="/job/{id}/cancel",
        handler=on(cancel_job),
        summary="End a job: a waiting one at once, a running one as soon as its process is gone",
        takes=REASON,
        gives={200: ACTED, 202: ACTED},
    )
    yield act(
        path="/job/{id}/retry",
        handler=on(retry_job),
        summary="Queue a job again that ended failed or dead; its run goes on with it. Needs the right to run it",
        gives={200: ACTED, 202: ACTED},
    )
    yield act(
        path="/job/{id}/replay",
        handler=on(replay_job),
        summary="Run a job once more as a new one, in any state, its payload patched or not. Needs the right to run it",
        takes=record({}, {"patch": by_name(anything(), "JSON merge patch for the payload (RFC 7396)")}, title="Replay"),
        gives={200: REPLAYED, 202: REPLAYED},
        heeds=(KEY_HEADER,),
    )


REPLAYED = record(
    {
        "job_id": nullable(text("The new job; null if nothing was done")),
        "replay_of": text("The job it is a copy of"),
        "status": text(),
        "plugin": text(),
        "command": text(),
        "payload_changed": boolean("Whether the patch made a difference"),
        "config_changed": boolean("Whether the configuration is another one than the job was asked for under"),
        "attempts": integer("How often the job was tried"),
        "dry_run": boolean(),
    },
    title="Replayed",
)


# ── jobs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def cancel_job(desk: AppContext, request: Request) -> Response:
    """200 if the job is dead now, 202 if its process is ending; 409 if it was over."""
    job_id, reason = job_id_of(request), reason_of(request) or f"by {request.principal.name}"
    if flag_of(request, "dry_run"):
        job = await desk.ledger.read(known_job, job_id)
        if job.status.is_final:
            raise WrongState(f"{job_id}: already {job.status}", hint="only queued and running jobs can be cancelled")
        return json_response({"job_id": job_id, "status": job.status, "dry_run": True})
    is_dead = await desk.cancel(job_id, reason)
    status = "dead" if is_dead else "running"
    return json_response({"job_id": job_id, "status": status, "dry_run": False}, 200 if is_dead else 202)


async def retry_job(desk: AppContext, request: Request) -> Response:
    """202 once the job is queued again; 200 if it could be."""
    job_id = job_id_of(request)
    job = await desk.ledger.read(_retryable, job_id)
    _require_startable(desk, job)
    _require_right_to_start(desk, request, job)
    if flag_of(request, "dry_run"):
        return json_response({"job_id": job_id, "status": job.status, "dry_run": True})
    job = await desk.ledger.write(retry, job_id, now=desk.clock.now())
    desk.hub.announce_work()
    return json_response({"job_id": job_id, "status": job.status, "dry_run": False}, 202)


async def replay_job(desk: AppContext, request: Request) -> Response:
    """202 with the new job's id once it is durable; 200 with what would be done."""
    ticket = ticket_of(request)
    answer = await known_answer(desk, ticket)
    if answer is None:
        job_id, now = job_id_of(request), desk.clock.now()
        job = await desk.ledger.read(_replayable, job_id)
        _require_startable(desk, job)
        _require_right_to_start(desk, request, job)
        payload = _patched(job, body_of(request, "patch").get("patch"))
        new = await desk.ledger.read(
            replay,
            job_id,
            submitted_by=submitter_of(request),
            payload=payload,
            snapshot_id=desk.snapshot().id,
        )
        told = _replayed(desk, job, payload)
        if flag_of(request, "dry_run"):
            return json_response({**told, "job_id": None, "dry_run": True})
        answer = await done_once(
            desk,
            ticket,
            partial(_enqueue, new=new, told=told, now=now, budget=desk.snapshot().budget),
            is_large=not are_few(FollowUps(children=(new,))),
        )
    return encoded_json_response(answer.text.encode(), 202, headers_of(answer))


def _retryable(db: Db, job_id: str) -> Job:
    job = known_job(db, job_id)
    require_retryable(db, job)
    return job


def _replayable(db: Db, job_id: str) -> Job:
    job = known_job(db, job_id)
    require_replayable(db, job)
    return job


def _enqueue(db: Db, *, new: NewJob, told: dict[str, Any], now: datetime, budget: Budget) -> StoredAnswer:
    made = enqueue(db, new, now=now, budget=budget)
    text = strict_json.dumps({**told, "job_id": made.job_id, "status": made.status, "dry_run": False})
    return StoredAnswer(job_id=made.job_id, text=text)


def _replayed(desk: AppContext, job: Job, payload: str | None) -> dict[str, Any]:
    """What a replay of this job is, and what is different from then."""
    return {
        "job_id": None,
        "replay_of": job.id,
        "status": job.status,
        "plugin": job.plugin,
        "command": job.command,
        "payload_changed": payload is not None and payload != job.payload,
        "config_changed": job.enqueued_snapshot_id != desk.snapshot().id,
        "attempts": job.attempt,
    }


def _require_startable(desk: AppContext, job: Job) -> None:
    """Raises for a job whose plugin is gone, disabled or unhealthy: it would only end again, or never start."""
    if job.plugin == RELAY:
        if not desk.snapshot().config.settings.instances:
            raise NotFound("this configuration has no instances", hint="name the receiver under `instances` and reload")
    else:
        desk.snapshot().lane(job.plugin)
        require_healthy(desk, job.plugin)


def _require_right_to_start(desk: AppContext, request: Request, job: Job) -> None:
    writes = job.plugin == RELAY or desk.snapshot().lane(job.plugin).writes(job.command)
    require_scope(request, "plugin:rw" if writes else "plugin:invoke:ro", plugin=job.plugin)


def _patched(job: Job, patch: Any) -> str | None:
    """The job's payload after the patch; None without one. Of an event, its own payload is patched."""
    if patch is None:
        return None
    if not isinstance(patch, dict):
        raise BadRequest("patch must be a JSON object", hint='send {"patch": {…}}; null takes a member away')
    known = strict_json.loads(job.payload) if job.payload else {}
    if job.command == HANDLE:
        return strict_json.dumps({**known, "payload": merge_patch(known.get("payload", {}), patch)})
    return strict_json.dumps(merge_patch(known, patch))


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396: members of objects are replaced, null takes one away, everything else stands in for the target."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def reason_of(request: Request) -> str | None:
    """The `reason` of the body; None if it gives none."""
    reason = body_of(request, "reason").get("reason")
    if reason is None:
        return None
    if not isinstance(reason, str) or not ONE_LINE.allows(reason) or len(reason) > LONGEST_REASON:
        raise BadRequest(f"reason: expected {ONE_LINE.allowed}, at most {LONGEST_REASON} characters")
    return reason


def body_of(request: Request, name: str) -> dict[str, Any]:
    """The body, an object with at most this member."""
    if not request.body.strip():
        return {}
    body = object_of(request, hint=f'send {{"{name}": …}}')
    if body.keys() - {name}:
        raise BadRequest(f"the body must be a JSON object with nothing but {name}")
    return body
