"""One attempt of one plugin without a service and without a ledger, run and judged by the service's own code.

Whoever wants to see what a plugin does calls `run_locally` under `trio.run`, from a process fitted by `harden_self`
whose working directory is the one the plugin is to have. Knows nothing of fixtures, rules or the command line.
"""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from attrs import field, frozen

from ductile.config.snapshot import Snapshot
from ductile.core.formats import strict_json
from ductile.core.model import Job, JobStatus
from ductile.devkit.local.attempt import Alter, LocalRun, conclude, prepare
from ductile.engine.process.descendants import ProcessTable
from ductile.engine.process.run import ProcessControl, StopRequest, run_process
from ductile.pipeline.compile.plan import HANDLE
from ductile.pipeline.run.events import Event

INSTANCE = "local"
"""The mark on the processes of a local run: no service takes them for its own."""


@frozen(kw_only=True)
class LocalRequest:
    """What a plugin is asked to do. For `handle`, `payload` is what its event carries, and `event` all that it says."""

    command: str
    payload: Mapping[str, Any] | None = None
    event: Mapping[str, Any] | None = None
    state: Mapping[str, Any] = field(factory=dict, repr=False)
    attempt: int = 1
    job_id: str = field(factory=lambda: str(uuid.uuid4()))


async def run_locally(snapshot: Snapshot, plugin: str, asked: LocalRequest, **how: Any) -> LocalRun:
    """The plugin has run as a service would run it. `how` is as for `attempt_locally`."""
    job = _job(snapshot, plugin, asked, datetime.now(UTC))
    return await attempt_locally(snapshot, job, state_json=strict_json.dumps(dict(asked.state)), **how)


async def attempt_locally(
    snapshot: Snapshot,
    job: Job,
    *,
    state_json: str,
    instance: str = INSTANCE,
    deadline: timedelta | None = None,
    grace: timedelta | None = None,
    fault: str | None = None,
    alter: Alter | None = None,
    stop: StopRequest | None = None,
    processes: ProcessTable | None = None,
) -> LocalRun:
    """One attempt of the job was made as a service makes it, with its environment, deadline, caps and judgement.

    `deadline` and `grace` stand for the configured ones; a `fault` of `disturb.FAULTS` comes between the plugin and
    the core. Nothing is recorded anywhere. Refused plugins and commands are verdicts too, not errors. Attempts that run
    at the same time share their `processes`.
    """
    attempt = prepare(
        snapshot,
        job,
        state_json=state_json,
        instance=instance,
        deadline=deadline,
        grace=grace,
        fault=fault,
        alter=alter,
    )
    if isinstance(attempt, LocalRun):
        return attempt
    control = ProcessControl(stop=stop or StopRequest())
    return conclude(snapshot, attempt, await run_process(attempt.ready.spec, control, processes or ProcessTable()))


def _job(snapshot: Snapshot, plugin: str, asked: LocalRequest, now: datetime) -> Job:
    lane = snapshot.lanes.get(plugin)
    most = lane.entry.retry.max_attempts if lane else asked.attempt
    return Job(
        id=asked.job_id,
        root_job_id=asked.job_id,
        plugin=plugin,
        command=asked.command,
        status=JobStatus.RUNNING,
        attempt=asked.attempt,
        max_attempts=max(most, asked.attempt),
        submitted_by=INSTANCE,
        created_at=now,
        payload=_payload_text(asked, now),
    )


def _payload_text(asked: LocalRequest, now: datetime) -> str | None:
    if asked.command != HANDLE:
        return strict_json.dumps(dict(asked.payload)) if asked.payload is not None else None
    # Id, source and time are the core's, unless somebody brings an event as the core once had it.
    bare = Event(str(uuid.uuid4()), "api.trigger", dict(asked.payload or {}), INSTANCE, now)
    return strict_json.dumps({**strict_json.loads(bare.envelope()), **(asked.event or {})})
