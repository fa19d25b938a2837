"""Values for tests: a job, a finished process, a snapshot, a job context. Everything has a default."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from ductile.config.checks.examine import examine
from ductile.config.load.load import load
from ductile.config.snapshot import Snapshot, build_snapshot
from ductile.core.clock import Clock
from ductile.core.hub import Hub
from ductile.core.logs import Log
from ductile.core.model import RELAY, Job, JobStatus
from ductile.engine.job_context import JobContext
from ductile.engine.process.descendants import ProcessTable
from ductile.engine.process.limits import ResourceLimits
from ductile.engine.process.run import Cause, Finished, ProcessControl, StopRequest, run_process
from ductile.engine.process.start import Process, ProcessSpec, SpawnFailed
from ductile.engine.process.streams import Caps, TailBuffer
from ductile.ledger.storage.async_ledger import Ledger
from ductile.relay.send import send_job
from tests.e2e.service import Home

NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)
ENVIRON = {"PATH": "/usr/bin:/bin", "SECRET_OF_THE_HOST": "x"}


def a_job(**values: Any) -> Job:
    defaults: dict[str, Any] = {
        "id": "3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11",
        "plugin": "echo",
        "command": "poll",
        "status": JobStatus.RUNNING,
        "attempt": 1,
        "max_attempts": 4,
        "submitted_by": "test",
        "created_at": NOW,
    }
    return Job(**defaults | values)


def a_run(stdout: bytes | dict[str, Any] = b"", **values: Any) -> Finished:
    """Return a run that wrote `stdout` and exited with 0, with `values` replaced."""
    said = json.dumps(stdout).encode() if isinstance(stdout, dict) else stdout
    stderr: bytes = values.get("stderr", b"")
    defaults: dict[str, Any] = {
        "exit_code": 0,
        "signal": None,
        "cause": Cause.EXITED,
        "stopped": None,
        "stdout": said,
        "stdout_total": len(said),
        "stdout_over_cap": False,
        "stderr": stderr,
        "stderr_total": len(stderr),
        "pipe_left_open": False,
        "swept": 0,
        "lost": False,
        "duration": 1.5,
    }
    return Finished(**defaults | values)


def snapshot_of(home: Home) -> Snapshot:
    """Load the configuration in `home` as a starting service does."""
    return build_snapshot(examine(load(home.path / "config.yaml")), ENVIRON)


def job_context(ledger: Ledger, log: Log, snapshot: Snapshot, /, **values: Any) -> JobContext:
    """Return the dependencies of jobs, with `values` replaced."""
    defaults: dict[str, Any] = {
        "hub": Hub(),
        "clock": Clock(),
        "instance": "test",
        "run_id": "run",
        "snapshot": lambda: snapshot,
        "processless": {RELAY: send_job},
    }
    return JobContext(ledger=ledger, log=log, **defaults | values)


async def run_plugin(
    argv: Sequence[str],
    request: bytes,
    *,
    timeout: float,  # noqa: ASYNC109 - the plugin's deadline, not the caller's
    env: Mapping[str, str],
    grace: float = 5.0,
    caps: Caps | None = None,
    limits: ResourceLimits | None = None,
    stop: StopRequest | None = None,
    tail: TailBuffer | None = None,
    on_start: Callable[[Process], None] = lambda _: None,
    table: ProcessTable | None = None,
) -> Finished | SpawnFailed:
    """Run one process to its end. Runs of one event loop share a `table`."""
    spec = ProcessSpec(
        argv=argv,
        request=request,
        environment=env,
        timeout_seconds=timeout,
        grace_seconds=grace,
        caps=caps or Caps(),
        limits=limits,
    )
    control = ProcessControl(stop=stop or StopRequest(), stderr=tail or TailBuffer(), on_start=on_start)
    return await run_process(spec, control, table or ProcessTable())
