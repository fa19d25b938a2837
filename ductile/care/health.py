"""How plugins are: each one that declares `health` is asked, in a process as a job would have, outside the ledger.

Nothing follows from the answer: no facts, no events, no row. `system status` and `system doctor` call it. Plugins are
waited for in threads: an event loop would take longer to import than most answers take.
"""

import time
import uuid
from collections.abc import Mapping
from contextlib import chdir
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

from ductile.authoring.attempt import LocalRun, conclude, prepare
from ductile.config.snapshot import Lane, Snapshot
from ductile.engine.ask import end_strays, run_and_wait
from ductile.engine.processes import become_subreaper, is_subreaper
from ductile.errors import DuctileError
from ductile.ledger import facts
from ductile.ledger.store import open_reader
from ductile.model import Job, JobStatus, Succeeded
from ductile.values import frozen

HEALTH = "health"
PATIENCE = timedelta(seconds=10)
GRACE = timedelta(seconds=1)
AT_ONCE = 16


@frozen
class Health:
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


def ask_plugins(snapshot: Snapshot, states: Mapping[str, str]) -> list[Health]:
    """The health of every plugin that can run and declares it, by name; `states` is what each one remembers."""
    asked = sorted(name for name, lane in snapshot.lanes.items() if _declares(lane))
    if not asked:
        return []
    was_subreaper = is_subreaper()
    become_subreaper()  # what a plugin leaves behind comes to us and is ended with it
    try:
        with chdir(snapshot.config.directory):  # where a service runs them
            return _ask(snapshot, asked, states)
    finally:
        end_strays()
        become_subreaper(was_subreaper)


def _declares(lane: Lane) -> bool:
    return HEALTH in lane.plugin.manifest.commands


def _ask(snapshot: Snapshot, asked: list[str], states: Mapping[str, str]) -> list[Health]:
    from concurrent.futures import ThreadPoolExecutor

    stop = Event()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        try:
            return list(threads.map(lambda name: _health(snapshot, name, states.get(name, "{}"), stop), asked))
        except BaseException:  # nobody wants the answers any more
            stop.set()
            raise


def _health(snapshot: Snapshot, name: str, state_json: str, stop: Event) -> Health:
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
    local = _attempt(snapshot, job, state_json, stop)
    outcome, response = local.verdict.outcome, local.verdict.response
    is_well = isinstance(outcome, Succeeded)
    said = response.result if response and is_well else getattr(outcome, "error", "")
    return Health(name, is_well, _first_line(snapshot.config.mask(said or "")), time.monotonic() - began)


def _attempt(snapshot: Snapshot, job: Job, state_json: str, stop: Event) -> LocalRun:
    """As a service makes it, with its environment, caps and judgement."""
    attempt = prepare(snapshot, job, state_json=state_json, instance=f"health-{job.id}", deadline=PATIENCE, grace=GRACE)
    if isinstance(attempt, LocalRun):
        return attempt
    ready = attempt.ready
    run = run_and_wait(
        ready.argv,
        ready.request,
        timeout=ready.policy.timeout.total_seconds(),
        env=ready.environment,
        grace=ready.grace.total_seconds(),
        caps=ready.caps,
        limits=ready.limits,
        stop=stop,
    )
    return conclude(snapshot, attempt, run)


def _first_line(text: str) -> str:
    """The first line, without what is always said of an attempt that was the only one."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    return line.removeprefix("attempts used up (1 of 1): ")[:300]
