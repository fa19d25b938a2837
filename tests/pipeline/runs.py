"""Values for tests of runs: a job, an event, a world of pipelines, and a job as the ledger would give it back."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ductile.core.model import FollowUps, Job, JobStatus, NewJob
from ductile.pipeline.run.events import Ended, Event
from ductile.pipeline.run.execute import Target
from ductile.pipeline.run.route import Routes, World
from tests.pipeline.written import compiled

NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)
SUCCEEDED = Ended(status=JobStatus.SUCCEEDED, result="done")
TARGETS = {
    "off": Target(refused="is disabled (enabled: false)"),
    "twice": Target(max_attempts=2),
    "loud": Target(notify=True),
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {"fetch": {"level": 3}}


def a_job(**values: Any) -> Job:
    defaults: dict[str, Any] = {
        "id": "job-1",
        "plugin": "emits",
        "command": "handle",
        "status": JobStatus.RUNNING,
        "attempt": 1,
        "max_attempts": 4,
        "submitted_by": "test",
        "created_at": NOW,
        "root_job_id": "root-1",
    }
    return Job(**defaults | values)


def an_event(kind: str = "made", payload: Mapping[str, Any] | None = None, **values: Any) -> Event:
    content = {"n": 1} if payload is None else payload
    defaults: dict[str, Any] = {"id": "event-1", "type": kind, "payload": content, "source": "emits", "at": NOW}
    return Event(**defaults | values)


def a_world(pipelines: str | Sequence[Any] = "[]", routes: Sequence[tuple[str, str, str]] = (), **limits: Any) -> World:
    """The pipelines (YAML of the list), the routes, and plugins of which `off` is disabled."""
    return World(
        plans=compiled(pipelines),
        routes=Routes.of(routes),
        target=lambda name: TARGETS.get(name, Target()),
        config_of=lambda name: CONFIGS.get(name, {}),
        **limits,
    )


def as_row(new: NewJob, following: FollowUps, **values: Any) -> Job:
    """The job that the ledger makes of `new`, once it runs."""
    contexts = {context.id: context.accumulated_json for context in following.contexts}
    copied = ("plugin", "command", "submitted_by", "payload", "pipeline", "step_id", "event_context_id", "hops")
    more = ("parent_job_id", "join_id", "is_join", "tolerated", "notify", "max_attempts", "dedupe_key")
    given = {name: getattr(new, name) for name in (*copied, *more)}
    defaults = {"id": new.id or f"row of {new.step_id}", "context": contexts.get(new.event_context_id or "")}
    return a_job(**given | defaults | values)


def payload_of(new: NewJob) -> dict[str, Any]:
    """The payload of the event that a `handle` job is for."""
    payload: dict[str, Any] = json.loads(new.payload or "{}")["payload"]
    return payload


def context_of(new: NewJob, following: FollowUps) -> dict[str, Any]:
    """What the job's context row holds."""
    (row,) = [context for context in following.contexts if context.id == new.event_context_id]
    content: dict[str, Any] = json.loads(row.accumulated_json)
    return content


def steps_of(following: FollowUps) -> list[str]:
    """What was made, in order, by step; `!` after what is over already and has failed, `=` after a switch."""
    return [_shown(new) for new in following.children]


def _shown(new: NewJob) -> str:
    if new.settled is None:
        return str(new.step_id or new.plugin)
    mark = "=" if new.settled.status is JobStatus.SUCCEEDED else "!"
    return f"{new.step_id or new.plugin}{mark}"
