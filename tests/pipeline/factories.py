"""Factories for jobs, events and routing configurations, and readers for follow-ups."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ductile.core.model import FollowUps, Job, JobStatus, NewJob
from ductile.pipeline.run.events import Event, JobResult
from ductile.pipeline.run.execute import Target
from ductile.pipeline.run.route import Routes, RoutingConfig
from tests.pipeline.compiling import compile_text

NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)
SUCCEEDED = JobResult(status=JobStatus.SUCCEEDED, result="done")
TARGETS = {
    "off": Target(refused="is disabled (enabled: false)"),
    "twice": Target(max_attempts=2),
    "loud": Target(notify=True),
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {"fetch": {"level": 3}}


def make_job(**values: Any) -> Job:
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


def make_event(kind: str = "made", payload: Mapping[str, Any] | None = None, **values: Any) -> Event:
    content = {"n": 1} if payload is None else payload
    defaults: dict[str, Any] = {"id": "event-1", "type": kind, "payload": content, "source": "emits", "at": NOW}
    return Event(**defaults | values)


def make_routing(
    pipelines: str | Sequence[Any] = "[]", routes: Sequence[tuple[str, str, str]] = (), **limits: Any
) -> RoutingConfig:
    """Create a routing configuration with these pipelines (YAML) and routes. The plugin `off` is disabled."""
    return RoutingConfig(
        plans=compile_text(pipelines),
        routes=Routes.of(routes),
        target=lambda name: TARGETS.get(name, Target()),
        config_of=lambda name: CONFIGS.get(name, {}),
        **limits,
    )


def to_job(new: NewJob, follow_ups: FollowUps, **values: Any) -> Job:
    """Return the running job that the ledger would create from `new`."""
    contexts = {context.id: context.accumulated_json for context in follow_ups.contexts}
    names = ("plugin", "command", "submitted_by", "payload", "pipeline", "step_id", "event_context_id", "hops")
    more_names = ("parent_job_id", "join_id", "is_join", "tolerated", "notify", "max_attempts", "dedupe_key")
    copied_values = {name: getattr(new, name) for name in (*names, *more_names)}
    defaults = {"id": new.id or f"row of {new.step_id}", "context": contexts.get(new.event_context_id or "")}
    return make_job(**copied_values | defaults | values)


def payload_of(new: NewJob) -> dict[str, Any]:
    """Return the event payload of a `handle` job."""
    payload: dict[str, Any] = json.loads(new.payload or "{}")["payload"]
    return payload


def context_of(new: NewJob, follow_ups: FollowUps) -> dict[str, Any]:
    """Return the content of the job's context row."""
    (row,) = [context for context in follow_ups.contexts if context.id == new.event_context_id]
    content: dict[str, Any] = json.loads(row.accumulated_json)
    return content


def steps_of(follow_ups: FollowUps) -> list[str]:
    """Return the steps of the new jobs, in order; `!` marks a failed job, `=` a switch."""
    return [_step_with_status(new) for new in follow_ups.children]


def _step_with_status(new: NewJob) -> str:
    if new.prefinished is None:
        return str(new.step_id or new.plugin)
    suffix = "=" if new.prefinished.status is JobStatus.SUCCEEDED else "!"
    return f"{new.step_id or new.plugin}{suffix}"
