"""Run the `health` command of every plugin that declares it, in the same way as a job.

Records nothing: no facts, no events, no rows in the ledger.
"""

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import chdir
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from ductile.config.checksums import INTEGRITY
from ductile.config.snapshot import Snapshot
from ductile.core.errors import DuctileError
from ductile.core.model import Dead, Job, JobStatus, Outcome, Succeeded
from ductile.engine.process.procfs import become_subreaper, is_subreaper, restore_sigchld
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
    """The result of the health command of a plugin, or its error. `was_run` is False if the seal does not allow it."""

    plugin: str
    ok: bool
    detail: str
    seconds: float
    was_run: bool = True

    def as_data(self) -> dict[str, object]:
        duration = round(self.seconds * 1000)
        return {"plugin": self.plugin, "ok": self.ok, "detail": self.detail, "duration_ms": duration}


def read_plugin_states(snapshot: Snapshot, ledger: Path) -> Mapping[str, str]:
    """Return the stored state of each plugin; empty if the ledger cannot be read."""
    try:
        with open_reader(ledger) as db:
            return {name: facts.state(db, name) for name in snapshot.plugins}
    except DuctileError:
        return {}


def check_plugins(snapshot: Snapshot, states: Mapping[str, str]) -> list[HealthResult]:
    """Run the health command of every loaded plugin that declares it. `states` has the plugin states as JSON.

    A plugin whose files a start would refuse is not run and fails.
    """
    declared = sorted(name for name, entry in snapshot.plugins.items() if HEALTH in entry.plugin.manifest.commands)
    refused = [
        HealthResult(name, False, f"not run: {why}", 0.0, was_run=False) for name, why in _refused(snapshot, declared)
    ]
    trusted = [name for name in declared if name not in {result.plugin for result in refused}]
    return [*_run_all(snapshot, trusted, states), *refused]


def _refused(snapshot: Snapshot, plugins: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the plugins that `strict_mode` or `admission` does not let run with their files, each with the reason."""
    for name in plugins:
        found = [one for one in snapshot.report.errors if (one.category, one.path) == (INTEGRITY, f"plugins.{name}")]
        if found:
            yield name, "; ".join(complaint.message for complaint in found)


def _run_all(snapshot: Snapshot, plugins: list[str], states: Mapping[str, str]) -> list[HealthResult]:
    if not plugins:
        return []
    import trio  # slow to import; not needed without a health command

    was_subreaper = is_subreaper()
    become_subreaper()  # orphans of a plugin become children of this process and are killed
    restore_sigchld()
    try:
        with chdir(snapshot.config.directory):  # the working directory of a service
            return trio.run(_check_all, snapshot, plugins, states)
    finally:
        become_subreaper(was_subreaper)


async def _check_all(snapshot: Snapshot, plugins: list[str], states: Mapping[str, str]) -> list[HealthResult]:
    import trio

    from ductile.engine.process.descendants import ProcessTable

    results: dict[str, HealthResult] = {}
    processes, slots = ProcessTable(), trio.CapacityLimiter(MAX_CONCURRENT)

    async def check(name: str) -> None:
        async with slots:
            results[name] = await _run_health(snapshot, name, states.get(name, "{}"), processes)

    async with trio.open_nursery() as nursery:
        for name in plugins:
            nursery.start_soon(check, name, name=f"health {name}")
    return [results[name] for name in plugins]


async def _run_health(snapshot: Snapshot, name: str, state_json: str, processes: "ProcessTable") -> HealthResult:
    from ductile.devkit.local.run import attempt_locally

    started, job_id = time.monotonic(), str(uuid.uuid4())
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
    text = response.result if response and is_healthy else _error(outcome)
    return HealthResult(name, is_healthy, _first_line(snapshot.config.mask(text or "")), time.monotonic() - started)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:300] if text.strip() else ""


def _error(outcome: Outcome) -> str:
    """Return the error of the attempt, without the message that no attempts are left."""
    attempt_error = outcome.data.get("error") if isinstance(outcome, Dead) else None
    return str(attempt_error or getattr(outcome, "error", ""))
