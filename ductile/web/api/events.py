"""The route that sends an event: it starts the pipelines that the event triggers, like a webhook with `event:`.

Runs no job: the runs are stored by one transaction, with the note about an event that starts nothing.
"""

import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Annotated, Literal, TypedDict

from ductile.core.errors import did_you_mean
from ductile.core.formats import strict_json
from ductile.core.formats.yaml_fields import EVENT_TYPE
from ductile.core.instance.failpoints import failpoint
from ductile.core.model import FollowUps, JobStatus
from ductile.explain.reason import Reason
from ductile.ledger.completion.start_run import start_run
from ductile.ledger.jobs.enqueue import Enqueued
from ductile.ledger.storage.db import Db
from ductile.ledger.tables.receipts import StoredResponse
from ductile.pipeline.run.events import INTERNAL, Event
from ductile.pipeline.run.ingress import route_external_event
from ductile.pipeline.run.run_signals import run_rule_of
from ductile.web.context import (
    DRY_RUN,
    AppContext,
    BadRequest,
    PayloadBody,
    get_submitter,
    read_flag,
    read_payload,
)
from ductile.web.idempotency import KEY_HEADER, find_stored_response, read_idempotency_key, replay_headers, submit_once
from ductile.web.messages import Request, Response, encoded_json_response, json_response
from ductile.web.routing import AnyRoute, Route

MAX_TYPE_LENGTH = 255


class StartedRunView(TypedDict):
    """The root job of a run that the event starts."""

    job_id: Annotated[str, "The root job; null for a dry run"] | None
    status: Annotated[JobStatus, "`queued` if a job of the run will start, otherwise the status of the root job"]
    plugin: str
    command: str
    pipeline: str | None
    deduplicated: Annotated[bool, "True if the job existed already"]


class SkippedPipelineView(TypedDict):
    pipeline: str
    reason: str
    words: Annotated[str, "The reason as a sentence, with the values that the condition found"]


class EventSentView(TypedDict):
    event_id: str
    event_type: str
    status: Annotated[Literal["accepted", "unmatched", "planned"], "unmatched: the event starts nothing"]
    reason: Annotated[str, "Why the event starts nothing; null if it starts a run"] | None
    jobs: list[StartedRunView]
    skipped: Annotated[list[SkippedPipelineView], "Pipelines with this trigger that do not start"]
    dry_run: bool


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the route that sends an event."""
    yield Route(
        method="POST",
        path="/event/{type}",
        handler=partial(send_event, ctx),
        scope="plugin:rw",
        summary="Send an event: start the pipelines that it triggers",
        group="pipelines",
        query=(DRY_RUN,),
        headers=(KEY_HEADER,),
        request_body=PayloadBody,
        responses={200: EventSentView, 202: EventSentView},
        error_statuses=(422, 429),
        max_body=ctx.snapshot().config.settings.api.max_body_size,
    )


async def send_event(ctx: AppContext, request: Request) -> Response:
    """Return 202 with the root jobs when they are durable; 200 if the event starts nothing, or for a dry run."""
    key = read_idempotency_key(request)
    if (known := await find_stored_response(ctx, key)) is not None:
        return _sent_response(known)
    snapshot, now, submitter = ctx.snapshot(), ctx.clock.now(), get_submitter(request)
    event = Event(str(uuid.uuid4()), _read_type(request), read_payload(request) or {}, submitter, now)
    runs = route_external_event(event, snapshot.routing, submitted_by=submitter)
    known_types = list(snapshot.routing.plans.by_event)
    if read_flag(request, "dry_run"):
        return json_response(_view(event, runs, [None] * len(runs), known_types, dry_run=True))
    rules = partial(
        start_run,
        now=now,
        actor=request.principal.actor,
        default_ttl=snapshot.config.settings.service.dedupe_ttl,
        budget=snapshot.budget,
        run_rule=run_rule_of(snapshot.routing),
    )

    def store(db: Db) -> StoredResponse:
        started = [next(iter(rules(db, run)), None) for run in runs]
        view = _view(event, runs, started, known_types)
        first = next((root.job_id for root in started if root is not None), None)
        return StoredResponse(job_id=first, text=strict_json.dumps(view))

    failpoint("enqueue.before_begin")
    stored = await submit_once(ctx, key, store, runs, actor=request.principal.actor)
    failpoint("enqueue.after_commit")
    return _sent_response(stored)


def _read_type(request: Request) -> str:
    event_type = request.params["type"]
    if not EVENT_TYPE.allows(event_type) or len(event_type) > MAX_TYPE_LENGTH:
        raise BadRequest(f"event type: expected {EVENT_TYPE.allowed}, at most {MAX_TYPE_LENGTH} characters")
    if event_type.startswith(INTERNAL):
        raise BadRequest(f"event type: {INTERNAL}* is reserved for events of Ductile", hint="Choose another type.")
    return event_type


def _sent_response(stored: StoredResponse) -> Response:
    return encoded_json_response(stored.text.encode(), 202 if stored.job_id else 200, replay_headers(stored))


def _view(
    event: Event,
    runs: tuple[FollowUps, ...],
    started: Sequence[Enqueued | None],
    known_types: list[str],
    *,
    dry_run: bool = False,
) -> EventSentView:
    jobs = [_started(run, root) for run, root in zip(runs, started, strict=True) if run.children]
    skipped = [
        SkippedPipelineView(
            pipeline=note.data["pipeline"], reason=note.data["reason"], words=Reason(note.kind, note.data).words
        )
        for run in runs
        for note in run.notes
        if note.kind == "pipeline.skipped"
    ]
    reason = None
    if not jobs:
        close = did_you_mean(event.type, known_types)
        reason = "no pipeline with this trigger starts" if skipped else f"no pipeline has this trigger{close}"
    return {
        "event_id": event.id,
        "event_type": event.type,
        "status": "unmatched" if not jobs else "planned" if dry_run else "accepted",
        "reason": reason,
        "jobs": jobs,
        "skipped": skipped,
        "dry_run": dry_run,
    }


def _started(run: FollowUps, root: Enqueued | None) -> StartedRunView:
    first = run.children[0]
    status = first.prefinished.status if first.prefinished else JobStatus.QUEUED
    is_new = root is None or root.is_new
    starts_a_job = is_new and any(child.prefinished is None and not child.is_join for child in run.children)
    return {
        "job_id": root.job_id if root else None,
        "status": JobStatus.QUEUED if starts_a_job else root.status if root else status,
        "plugin": first.plugin,
        "command": first.command,
        "pipeline": first.pipeline,
        "deduplicated": root is not None and not root.is_new,
    }
