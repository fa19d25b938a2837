"""Run one attempt of a plugin without service and ledger, with the code of the service.

Call `run_locally` under `trio.run`, in a process prepared with `harden_self`, in the working directory for the plugin.
Does not depend on fixtures, rules or the CLI.
"""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from attrs import field, frozen

from ductile.config.snapshot import Snapshot
from ductile.core.formats import strict_json
from ductile.core.model import HANDLE, Job, JobStatus
from ductile.devkit.local.attempt import LocalRun, Mutation, conclude, prepare
from ductile.engine.process.descendants import ProcessTable
from ductile.engine.process.run import ProcessControl, StopRequest, run_process
from ductile.pipeline.run.events import Event

INSTANCE = "local"
"""The instance id of local runs, so that no service adopts their processes."""


@frozen(kw_only=True)
class LocalRequest:
    """A request to a plugin. For `handle`, `payload` is the payload of the event, and `event` overrides its fields."""

    command: str
    payload: Mapping[str, Any] | None = None
    event: Mapping[str, Any] | None = None
    state: Mapping[str, Any] = field(factory=dict, repr=False)
    attempt: int = 1
    job_id: str = field(factory=lambda: str(uuid.uuid4()))


async def run_locally(snapshot: Snapshot, plugin: str, request: LocalRequest, **how: Any) -> LocalRun:
    """Run the plugin as a service would. `how` is passed to `attempt_locally`."""
    job = _job(snapshot, plugin, request, datetime.now(UTC))
    return await attempt_locally(snapshot, job, state_json=strict_json.dumps(dict(request.state)), **how)


async def attempt_locally(
    snapshot: Snapshot,
    job: Job,
    *,
    state_json: str,
    instance: str = INSTANCE,
    deadline: timedelta | None = None,
    grace: timedelta | None = None,
    fault: str | None = None,
    mutate: Mutation | None = None,
    stop: StopRequest | None = None,
    processes: ProcessTable | None = None,
) -> LocalRun:
    """Run one attempt of the job as a service would: environment, deadline, limits and verdict. Records nothing.

    `deadline` and `grace` override the configured values. `fault` is a name in `fault_injector.FAULTS`. A plugin or
    command that cannot run is a verdict, not an error. Concurrent attempts must share `processes`.
    """
    attempt = prepare(
        snapshot,
        job,
        state_json=state_json,
        instance=instance,
        deadline=deadline,
        grace=grace,
        fault=fault,
        mutate=mutate,
    )
    if isinstance(attempt, LocalRun):
        return attempt
    control = ProcessControl(stop=stop or StopRequest())
    return conclude(snapshot, attempt, await run_process(attempt.ready.spec, control, processes or ProcessTable()))


def _job(snapshot: Snapshot, plugin: str, request: LocalRequest, now: datetime) -> Job:
    configured = snapshot.plugins.get(plugin)
    max_attempts = configured.entry.retry.max_attempts if configured else request.attempt
    return Job(
        id=request.job_id,
        root_job_id=request.job_id,
        plugin=plugin,
        command=request.command,
        status=JobStatus.RUNNING,
        attempt=request.attempt,
        max_attempts=max(max_attempts, request.attempt),
        submitted_by=INSTANCE,
        created_at=now,
        payload=_payload_text(request, now),
    )


def _payload_text(request: LocalRequest, now: datetime) -> str | None:
    if request.command != HANDLE:
        return strict_json.dumps(dict(request.payload)) if request.payload is not None else None
    # Defaults for id, source and time; an exported event has its own.
    default = Event(str(uuid.uuid4()), "api.trigger", dict(request.payload or {}), INSTANCE, now)
    return strict_json.dumps({**strict_json.loads(default.envelope()), **(request.event or {})})
