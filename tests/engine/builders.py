"""Values for tests of decisions: a job, a finished process, a snapshot. Everything has a default."""

import json
from datetime import UTC, datetime
from typing import Any

from ductile.config.check import examine
from ductile.config.load import load
from ductile.config.snapshot import Snapshot, take_snapshot
from ductile.engine.running import Cause, Finished
from ductile.model import Job, JobStatus
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
    """A process that exited 0 after saying `stdout`, unless the test says otherwise."""
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
        "pipe_held": False,
        "swept": 0,
        "lost": False,
        "duration": 1.5,
    }
    return Finished(**defaults | values)


def snapshot_of(home: Home) -> Snapshot:
    """The configuration in `home`, as a service that starts now would use it."""
    return take_snapshot(examine(load(home.path / "config.yaml")), ENVIRON)
