"""Run the `health` command of every plugin that declares it, as a job would run, but outside the ledger.

Nothing is recorded: no facts, no events, no row. `system status` and `system doctor` call it.
"""

import time
import uuid
from collections.abc import Mapping
from contextlib import chdir
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from ductile.config.snapshot import Snapshot
from ductile.core.errors import DuctileError
from ductile.core.model import Job, JobStatus, Succeeded
from ductile.engine.process.procfs import become_subreaper, heed_children, is_subreaper
from ductile.ledger.storage.open_file import open_reader
from ductile.ledger.tables import facts

if TYPE_CHECKING:
    from ductile.engine.process.descendants import ProcessTable

HEALTH = "health"
HEALTH_TIMEOUT = timedelta(seconds=10)
HEALTH_GRACE = timedelta(seconds=1)
MAX_CONCURRENT = 16


@frozen
class HealthResult:
    """What one plugin said, or why it said nothing."""

    plugin: str
    ok: bool
    detail: str
    seconds: float

    def as_data(self) -> dict[str, object]:
        duration = round(self.seconds * 1000)
        return {"plugin": self.plugin, "ok": self.ok, "detail": self.detail, "duration_ms": duration}


def remembered(snapshot: Snapshot, ledger: Path) -> Mapping[str, str]:
    """What each plugin keeps as its state; nothing where there is no ledger that can be read."""
    try:
        with open_reader(ledger) as db:
            return {name: facts.state(db, name) for name in snapshot.lanes}
    except DuctileError:
        return {}


def ask_plugins(snapshot: Snapshot, states: Mapping[str, str]) -> list[HealthResult]:
    """Run `health` of every plugin that can run and declares it; `states` has the state of each plugin."""
    declared = sorted(name for name, lane in snapshot.lanes.items() if HEALTH in lane.plugin.manifest.commands)
    if not declared:
        return []
    import trio  # without a plugin to run, `system status` needs no event loop

    was_subreaper = is_subreaper()
    become_subreaper()  # orphans of a plugin become our children and are ended with it
    heed_children()
    try:
        with chdir(snapshot.config.directory):  # the working directory that a service has
            return trio.run(_ask_all, snapshot, declared, states)
    finally:
        become_subreaper(was_subreaper)


async def _ask_all(snapshot: Snapshot, plugins: list[str], states: Mapping[str, str]) -> list[HealthResult]:
    import trio

    from ductile.engine.process.descendants import ProcessTable

    answers: dict[str, HealthResult] = {}
    processes, slots = ProcessTable(), trio.CapacityLimiter(MAX_CONCURRENT)

    async def ask(name: str) -> None:
        async with slots:
            answers[name] = await _health(snapshot, name, states.get(name, "{}"), processes)

    async with trio.open_nursery() as nursery:
        for name in plugins:
            nursery.start_soon(ask, name, name=f"health {name}")
    return [answers[name] for name in plugins]


async def _health(snapshot: Snapshot, name: str, state_json: str, processes: "ProcessTable") -> HealthResult:
    from ductile.devkit.local.local import attempt_locally

    began, job_id = time.monotonic(), str(uuid.uuid4())
    job = Job(
        id=job_id,
        plugin=name,
        command=HEALTH,
        status=JobStatus.RUNNING,
        attempt=1,
        max_attempts=1,
        submitted_by="cli",
        created_at=datetime.now(UTC),
    )
    local = await attempt_locally(
        snapshot,
        job,
        state_json=state_json,
        instance=f"health-{job_id}",
        deadline=HEALTH_TIMEOUT,
        grace=HEALTH_GRACE,
        processes=processes,
    )
    outcome, response = local.verdict.outcome, local.verdict.response
    is_healthy = isinstance(outcome, Succeeded)
    text = response.result if response and is_healthy else getattr(outcome, "error", "")
    return HealthResult(name, is_healthy, _first_line(snapshot.config.mask(text or "")), time.monotonic() - began)


def _first_line(text: str) -> str:
    """The first line, without what is always said of an attempt that was the only one."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line.removeprefix("attempts used up (1 of 1): ")[:300]
