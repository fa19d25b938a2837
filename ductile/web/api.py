"""The HTTP API: what can be asked for and what comes back. Requests become ledger calls, values become JSON.

Knows nothing of sockets or of how jobs run: it talks to the ledger and the hub. The runtime builds the table.
"""

import uuid
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import trio
from attrs import field, frozen

from ductile import __version__, strict_json
from ductile.clock import Clock, to_text
from ductile.config.snapshot import Snapshot
from ductile.errors import DuctileError, Unreadable
from ductile.failpoints import failpoint
from ductile.hub import Hub, job_topic
from ductile.ledger import reports
from ductile.ledger.jobs import enqueue
from ductile.ledger.writer import Ledger
from ductile.model import JobStatus, NewJob
from ductile.pipeline.route import Event
from ductile.units import parse_duration
from ductile.web.auth import OPERATOR, forbidden
from ductile.web.message import Refusal, Request, Response, encoded_json_response, json_response
from ductile.web.routes import AnyRoute, Route

RECHECK_SECONDS = 5.0
LONGEST_OUTPUT = 64 << 10


@frozen(kw_only=True, eq=False)
class Desk:
    """What the handlers work with."""

    ledger: Ledger
    hub: Hub
    clock: Clock
    snapshot: Callable[[], Snapshot]
    live_stderr: Callable[[str], str | None]
    """What a running job has written to stderr so far; None when it does not run here."""
    stuck_seconds: Callable[[], float]
    """How long the ledger has kept a writer waiting."""
    is_stopping: Callable[[], bool] = lambda: False
    started: float = field(factory=trio.current_time)


class BadRequest(DuctileError):
    """The request cannot be understood."""

    code, exit_code, status = "bad_request", 2, 400


def routes(desk: Desk) -> Iterable[AnyRoute]:
    """Everything the API answers."""
    most = desk.snapshot().config.settings.api.max_body_size

    def on(handler: Callable[[Desk, Request], Any]) -> Callable[[Request], Any]:
        return lambda request: handler(desk, request)

    yield Route(method="GET", path="/", handler=on(welcome), summary="What this is and where to go")
    yield Route(method="GET", path="/healthz", handler=on(health), summary="Whether the service works", hot=True)
    yield Route(
        method="POST",
        path="/plugin/{plugin}/{command}",
        handler=on(trigger),
        scope="plugin:ro",
        summary="Run a plugin's command: plugin:ro for commands that read, plugin:rw for those that write",
        max_body=most,
        hot=True,
    )
    yield Route(
        method="GET",
        path="/job/{id}",
        handler=on(show_job),
        scope="jobs:ro",
        summary="One job and its result; ?wait=10s waits until it is over",
        hot=True,
        waits=True,
    )


async def welcome(desk: Desk, request: Request) -> Response:
    return json_response(
        {
            "name": "Ductile Gateway",
            "description": "An automation runtime: jobs in, plugins run, everything on record",
            "version": __version__,
            "uptime_seconds": _uptime(desk),
            "discovery": {"health": "/healthz", "trigger": "/plugin/{plugin}/{command}", "job": "/job/{id}"},
        }
    )


HEALTHY_WITHIN_SECONDS = 10.0


async def health(desk: Desk, request: Request) -> Response:
    """200 while work is being done or could be; 503 when the ledger does not take writes."""
    snapshot = desk.snapshot()
    queue = desk.ledger.read(reports.depth)
    oldest = desk.ledger.read(reports.oldest_claimable, snapshot.slots)
    works = not desk.ledger.broken.is_set() and desk.stuck_seconds() < HEALTHY_WITHIN_SECONDS
    content = {
        "status": "ok" if works else "degraded",
        "uptime_seconds": _uptime(desk),
        "queue_depth": queue,
        "plugins_loaded": len(snapshot.lanes),
        "plugins_circuit_open": 0,
        "version": __version__,
        "oldest_claimable_seconds": round((desk.clock.now() - oldest).total_seconds(), 1) if oldest else 0,
    }
    return json_response(content, 200 if works else 503)


async def trigger(desk: Desk, request: Request) -> Response:
    """202 with the job's id, after the job is durable."""
    snapshot = desk.snapshot()
    lane, command = snapshot.lane(request.params["plugin"]), request.params["command"]
    if lane.writes(command) and not request.principal.may("plugin:rw", plugin=lane.name):
        raise Refusal(forbidden())
    now = desk.clock.now()
    payload = _payload(request)
    if command == "handle":
        event = Event(str(uuid.uuid4()), "api.trigger", payload or {}, "api", now)
        text: str | None = event.envelope()
    else:
        text = strict_json.dumps(payload) if payload is not None else None
    new = NewJob(
        plugin=lane.name,
        command=command,
        payload=text,
        submitted_by="cli" if request.principal is OPERATOR else "api",
        max_attempts=lane.entry.retry.max_attempts,
    )
    failpoint("enqueue.before_begin")
    await desk.hub.announce_coming_work()
    made = await desk.ledger.write(enqueue, new, now=now, default_ttl=snapshot.config.settings.service.dedupe_ttl)
    failpoint("enqueue.after_commit")
    desk.hub.announce_work()
    return json_response({"job_id": made.job_id, "status": made.status, "plugin": lane.name, "command": command}, 202)


def _payload(request: Request) -> dict[str, Any] | None:
    if not request.body.strip():
        return None
    try:
        body = strict_json.loads(request.body, source="body")
    except Unreadable as error:
        raise BadRequest(f"the body is not JSON: {error.reason}", hint='send {"payload": {…}}') from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", hint='send {"payload": {…}}')
    unknown = sorted(body.keys() - {"payload"})
    if unknown:
        raise BadRequest(f"unknown key {unknown[0]!r}", hint="what the plugin is to get belongs into payload")
    payload = body.get("payload")
    if payload is not None and not isinstance(payload, dict):
        raise BadRequest("payload must be a JSON object")
    return payload


async def show_job(desk: Desk, request: Request) -> Response:
    """The job as it is, or as it is when it ends or the wait is over."""
    job_id = _job_id(request.params["id"])
    patience = _wait(request, desk.snapshot())
    with desk.hub.watch(job_topic(job_id)) as hints, trio.move_on_after(patience):
        while not desk.ledger.look_up(reports.is_over, job_id) and not desk.is_stopping():
            # A hint can be lost, so the ledger is asked again after a while.
            with trio.move_on_after(RECHECK_SECONDS):
                await hints.receive()
    return encoded_json_response(_job_json(desk, await desk.ledger.read_slowly(reports.brief, job_id)))


def _job_json(desk: Desk, report: reports.JobBrief) -> bytes:
    job = report.job
    content: dict[str, Any] = {
        "job_id": job.id,
        "status": job.status,
        "plugin": job.plugin,
        "command": job.command,
        "submitted_by": job.submitted_by,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "parent_job_id": job.parent_job_id,
        "root_job_id": job.root_job_id,
        "created_at": to_text(job.created_at),
        "started_at": _moment(job.started_at),
        "completed_at": _moment(job.completed_at),
        "next_retry_at": _moment(job.next_retry_at),
        "last_error": job.last_error,
        "stderr": desk.live_stderr(job.id),
    }
    present = {name: value for name, value in content.items() if value is not None}
    result = report.result
    if result is not None and job.status is not JobStatus.SUCCEEDED and not _is_object(result):
        present["output"], result = result[:LONGEST_OUTPUT], None
    text = strict_json.dumps(present)
    # The result only passes through: it is the plugin's own JSON, validated when it came.
    return (text if result is None else f'{text[:-1]},"result":{result}}}').encode()


def _is_object(text: str) -> bool:
    if len(text) > LONGEST_OUTPUT:
        return False
    try:
        return isinstance(strict_json.loads(text), dict)
    except Unreadable:
        return False


def _job_id(text: str) -> str:
    try:
        canonical = str(uuid.UUID(text))
    except ValueError:
        canonical = ""
    if text != canonical:
        raise BadRequest(f"{text[:80]!r} is not a job id", hint="a job id is a UUID in lower case")
    return text


def _wait(request: Request, snapshot: Snapshot) -> float:
    text = request.argument("wait")
    if text is None:
        return 0.0
    try:
        wanted = parse_duration(text)
    except ValueError as error:
        raise BadRequest(f"wait: {error}") from error
    return max(0.0, min(wanted, snapshot.config.settings.api.max_sync_timeout).total_seconds())


def _moment(moment: datetime | None) -> str | None:
    return to_text(moment.astimezone(UTC)) if moment else None


def _uptime(desk: Desk) -> int:
    return int(trio.current_time() - desk.started)
