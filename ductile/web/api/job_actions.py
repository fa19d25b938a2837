"""Routes that act on jobs: cancel, retry, replay.

Runs no job. Retry and replay are one transaction each and announce the work to the hub; cancellation is the engine's,
called through the context.
"""

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Annotated, Any, TypedDict

from ductile.core.errors import NotFound, WrongState
from ductile.core.formats import strict_json
from ductile.core.formats.json_schema import Keywords
from ductile.core.formats.yaml_fields import ONE_LINE
from ductile.core.model import HANDLE, PROCESSLESS_SLOTS, RELAY, Budget, FollowUps, Job, JobStatus, NewJob
from ductile.ledger.admin.job_actions import (
    replay,
    require_delayed,
    require_job,
    require_replayable,
    require_retryable,
    retry,
    retry_now,
)
from ductile.ledger.jobs.enqueue import enqueue
from ductile.ledger.storage.db import Db
from ductile.ledger.tables.receipts import StoredResponse
from ductile.web.auth.auth import require_scope
from ductile.web.context import (
    DRY_RUN,
    AppContext,
    BadRequest,
    get_submitter,
    read_flag,
    read_job_id,
    read_object,
    require_healthy,
)
from ductile.web.idempotency import KEY_HEADER, find_stored_response, read_idempotency_key, replay_headers, submit_once
from ductile.web.messages import Request, Response, encoded_json_response, json_response
from ductile.web.routing import AnyRoute, Argument, Route

MAX_REASON_CHARS = 200
NOW = Argument("now", bool, "Also start a queued job that waits for its retry time")


class ReasonBody(TypedDict, total=False):
    reason: Annotated[str, "Reason, stored with the job", Keywords(maxLength=MAX_REASON_CHARS)]


class ReplayBody(TypedDict, total=False):
    patch: Annotated[dict[str, Any], "JSON merge patch for the payload (RFC 7396)"]


class ActedView(TypedDict):
    job_id: str
    status: Annotated[str, "The current status"]
    dry_run: Annotated[bool, "True if nothing was changed"]


class ReplayedView(TypedDict):
    """The copy of a job."""

    job_id: Annotated[str, "The new job; null for a dry run"] | None
    replay_of: Annotated[str, "The copied job"]
    status: str
    plugin: str
    command: str
    payload_changed: Annotated[bool, "True if the patch changed the payload"]
    config_changed: Annotated[bool, "True if the configuration has changed since the job was enqueued"]
    attempts: Annotated[int, "Attempts of the copied job"]
    dry_run: bool


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the routes that act on jobs."""
    action = partial(Route, method="POST", scope="jobs:rw", group="jobs", query=(DRY_RUN,), error_statuses=(409, 422))
    yield action(
        path="/job/{id}/cancel",
        handler=partial(cancel_job, ctx),
        summary="Cancel a job; a running job ends when its process has terminated",
        request_body=ReasonBody,
        responses={200: ActedView, 202: ActedView},
    )
    yield action(
        path="/job/{id}/retry",
        handler=partial(retry_job, ctx),
        summary="Retry a failed or dead job and continue its run; requires the scope to run its command",
        query=(DRY_RUN, NOW),
        responses={200: ActedView, 202: ActedView},
    )
    yield action(
        path="/job/{id}/replay",
        handler=partial(replay_job, ctx),
        summary="Run a copy of a job, optionally with a patched payload; requires the scope to run its command",
        request_body=ReplayBody,
        responses={200: ReplayedView, 202: ReplayedView},
        error_statuses=(409, 422, 429),
        headers=(KEY_HEADER,),
    )


# ── handlers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def cancel_job(ctx: AppContext, request: Request) -> Response:
    """Return 200 if the job is dead, 202 while its process is terminating. Raises WrongState if it has ended."""
    job_id, reason = read_job_id(request), read_reason(request) or f"by {request.principal.name}"
    if read_flag(request, "dry_run"):
        job = await ctx.ledger.read(require_job, job_id)
        if job.status.is_final:
            raise WrongState(f"{job_id}: already {job.status}", hint="Only queued and running jobs can be cancelled.")
        return json_response(ActedView(job_id=job_id, status=job.status, dry_run=True))
    is_dead = await ctx.cancel(job_id, reason, request.principal.actor)
    view = ActedView(job_id=job_id, status="dead" if is_dead else "running", dry_run=False)
    return json_response(view, 200 if is_dead else 202)


async def retry_job(ctx: AppContext, request: Request) -> Response:
    """Return 202 when the job is queued again, or 200 for a dry run."""
    job_id, is_urgent = read_job_id(request), read_flag(request, "now")
    job = await ctx.ledger.read(_read_retryable, job_id, is_urgent=is_urgent)
    _require_startable(ctx, job)
    _require_start_scope(ctx, request, job)
    if read_flag(request, "dry_run"):
        return json_response(ActedView(job_id=job_id, status=job.status, dry_run=True))
    act = retry_now if is_urgent and job.status is JobStatus.QUEUED else retry
    job = await ctx.ledger.write(act, job_id, actor=request.principal.actor, now=ctx.clock.now())
    ctx.hub.announce_work()
    return json_response(ActedView(job_id=job_id, status=job.status, dry_run=False), 202)


async def replay_job(ctx: AppContext, request: Request) -> Response:
    """Return 202 with the new job id when it is durable, or 200 for a dry run."""
    key = read_idempotency_key(request)
    stored = await find_stored_response(ctx, key)
    if stored is None:
        job_id, now = read_job_id(request), ctx.clock.now()
        job = await ctx.ledger.read(_read_replayable, job_id)
        _require_startable(ctx, job)
        _require_start_scope(ctx, request, job)
        payload = _patch_payload(job, read_single_member(request, "patch").get("patch"))
        new = await ctx.ledger.read(
            replay,
            job_id,
            submitted_by=get_submitter(request),
            actor=request.principal.actor,
            payload=payload,
            max_attempts=ctx.snapshot().routing.target(job.plugin).max_attempts,
            snapshot_id=ctx.snapshot().id,
        )
        view = _replay_view(ctx, job, payload)
        if read_flag(request, "dry_run"):
            return json_response(view)
        stored = await submit_once(
            ctx,
            key,
            partial(_enqueue, new=new, view=view, now=now, budget=ctx.snapshot().budget),
            [FollowUps(children=(new,))],
            actor=request.principal.actor,
        )
    return encoded_json_response(stored.text.encode(), 202, replay_headers(stored))


def _read_retryable(db: Db, job_id: str, *, is_urgent: bool) -> Job:
    job = require_job(db, job_id)
    check = require_delayed if is_urgent and job.status is JobStatus.QUEUED else require_retryable
    check(db, job)
    return job


def _read_replayable(db: Db, job_id: str) -> Job:
    job = require_job(db, job_id)
    require_replayable(db, job)
    return job


def _enqueue(db: Db, *, new: NewJob, view: ReplayedView, now: datetime, budget: Budget) -> StoredResponse:
    enqueued = enqueue(db, new, now=now, budget=budget)
    view = {**view, "job_id": enqueued.job_id, "status": enqueued.status, "dry_run": False}
    return StoredResponse(job_id=enqueued.job_id, text=strict_json.dumps(view))


def _replay_view(ctx: AppContext, job: Job, payload: str | None) -> ReplayedView:
    """Return the response of a dry run, with what has changed since the job was enqueued."""
    return {
        "job_id": None,
        "replay_of": job.id,
        "status": job.status,
        "plugin": job.plugin,
        "command": job.command,
        "payload_changed": payload is not None and payload != job.payload,
        "config_changed": job.enqueued_snapshot_id != ctx.snapshot().id,
        "attempts": job.attempt,
        "dry_run": True,
    }


def _require_startable(ctx: AppContext, job: Job) -> None:
    """Raise if the plugin of the job is missing, disabled or unhealthy."""
    if job.plugin == RELAY:
        if not ctx.snapshot().config.settings.instances:
            raise NotFound(
                "the configuration has no relay instances", hint="Add the receiver under `instances`, then reload."
            )
    elif job.plugin not in PROCESSLESS_SLOTS:
        ctx.snapshot().plugin(job.plugin)
        require_healthy(ctx, job.plugin)


def _require_start_scope(ctx: AppContext, request: Request, job: Job) -> None:
    is_write = job.plugin in PROCESSLESS_SLOTS or ctx.snapshot().plugin(job.plugin).writes(job.command)
    require_scope(request, "plugin:rw" if is_write else "plugin:invoke:ro", plugin=job.plugin)


def _patch_payload(job: Job, patch: Any) -> str | None:
    """Return the patched payload of the job; None without a patch. For `handle`, the event's payload is patched."""
    if patch is None:
        return None
    if not isinstance(patch, dict):
        raise BadRequest("patch must be a JSON object", hint='Send {"patch": {…}}; null removes a member.')
    payload = strict_json.loads(job.payload) if job.payload else {}
    if job.command == HANDLE:
        return strict_json.dumps({**payload, "payload": merge_patch(payload.get("payload", {}), patch)})
    return strict_json.dumps(merge_patch(payload, patch))


def merge_patch(target: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396): objects are merged, null removes a member, other values replace."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def read_reason(request: Request) -> str | None:
    """Return the `reason` of the body; None if it is absent."""
    reason = read_single_member(request, "reason").get("reason")
    if reason is None:
        return None
    if not isinstance(reason, str) or not ONE_LINE.allows(reason) or len(reason) > MAX_REASON_CHARS:
        raise BadRequest(f"reason: expected {ONE_LINE.allowed}, at most {MAX_REASON_CHARS} characters")
    return reason


def read_single_member(request: Request, name: str) -> dict[str, Any]:
    """Return the body, an object with at most this member; empty without a body."""
    if not request.body.strip():
        return {}
    body = read_object(request, hint=f'Send {{"{name}": …}}.')
    if body.keys() - {name}:
        raise BadRequest(f"the body must be a JSON object with no member but {name}")
    return body
