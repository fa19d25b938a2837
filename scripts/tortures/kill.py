"""kill -9 at random moments: load, kill, start again, on one growing ledger; then let it come to rest and check.

Some kills hit a core on its way up, in its recovery, or just after it has become ready; some are done by a failpoint
at a named place.
"""

import os
import random
import sqlite3
import statistics
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from platform import python_version
from typing import Any, Literal

import trio
from attrs import define, field, frozen

from ductile import __version__
from ductile.core.clock import to_text
from ductile.core.instance.failpoints import NAMES
from ductile.engine.process.procfs import become_subreaper
from scripts.tortures.arena import Arena, Core, cpu_seconds, start_ticks
from scripts.tortures.case import Case
from scripts.tortures.checker import check
from scripts.tortures.clients import Clients
from scripts.tortures.runs import story_of

PROGRESS_EVERY = 25
STALL_SECONDS = 180.0
"""Longer than the delay of a job that was hit three times; one hit four times is dead."""
SHOWN = 20
UNREACHED = frozenset({"drain.started", "prune.half_way"})
"""Failpoints that this load never comes to."""


@frozen
class Options:
    """What one torture is asked to do. The same seed makes the same plan, not the same interleaving."""

    cycles: int
    seed: int
    jobs_per_second: float = 20.0
    workers: int = 4
    hurry: bool = False
    """Cut short the delays of jobs that were hit several times, before the last start."""


@frozen
class Blow:
    """How one cycle ends."""

    when: Literal["start", "recovery", "ready", "answer"]
    delay: float
    """Seconds after the first log line (recovery) or after it is ready; for a start, the share of its usual time.

    For an answer, how long it may take until a caller who waits for a run is told its end: that is the moment.
    """
    failpoint: str | None = None

    @classmethod
    def drawn(cls, dice: random.Random) -> "Blow":
        kind = dice.random()
        if kind < 0.10:
            return cls("start", dice.uniform(0.0, 1.0))
        if kind < 0.25:
            return cls("recovery", dice.uniform(0.0, 0.06))
        if kind < 0.40:
            return cls("ready", dice.uniform(0.0, 0.05))
        if kind < 0.50:
            name = dice.choice(sorted(NAMES - UNREACHED))
            return cls("ready", 0.8, f"{name}:{dice.randint(1, 12)}")
        if kind < 0.90:
            return cls("ready", dice.uniform(0.05, 0.9))
        return cls("answer", 4.0)


@define
class Torture:
    """One run: what was done to the cores and what was seen of them."""

    arena: Arena
    options: Options
    deaths: list[str] = field(factory=list)
    ready_seconds: list[float] = field(factory=list)
    ready_cpu_seconds: list[float] = field(factory=list)
    stuck: list[str] = field(factory=list)
    orphans: list[str] = field(factory=list)
    miscounted: list[str] = field(factory=list)
    faults: list[str] = field(factory=list)

    def run(self) -> dict[str, Any]:
        """The summary of the whole run, checked."""
        become_subreaper()  # what dead cores leave behind comes to us and is reaped, whatever the host's init does
        options, dice = self.options, random.Random(self.options.seed)
        self.arena.build()
        clients = Clients(
            self.arena.roles,
            options.jobs_per_second,
            options.seed,
            self.arena.path / "client",
            scripts=self.arena.scripts,
        )
        clients.start()
        begun = time.monotonic()
        try:
            for cycle in range(1, options.cycles + 1):
                self.cycle(clients, Blow.drawn(dice))
                if cycle % PROGRESS_EVERY == 0 or cycle == options.cycles:
                    self._tell(cycle, clients, begun)
        finally:
            clients.stop()
        if options.hurry:
            self.cut_delays_short()
        rest = self.come_to_rest()
        return self._summary(clients, seconds=time.monotonic() - begun, rest_seconds=rest)

    def cycle(self, clients: Clients, blow: Blow) -> None:
        """One core from launch to death."""
        core = self._launch(blow.failpoint)
        patience = blow.delay
        match blow.when:
            case "start":
                patience *= statistics.median(self.ready_seconds[-9:]) if self.ready_seconds else 1.0
            case "recovery":
                core.wait_until_starting()
            case "ready" if self._is_ready(core, armed=blow.failpoint is not None):
                clients.serve_from(core.url)
            case "answer" if self._is_ready(core):
                clients.serve_from(core.url, quiet=True)
                clients.wait_for_an_answer(patience)
                patience = 0.0
        fell = core.wait_until_gone(patience)
        clients.serve_from(None)
        if fell and core.process.returncode != -9:
            self.faults.append(f"a core ended by itself with {core.process.returncode}: {core.said[-3:]}")
        self.deaths.append(core.kill())
        reap_adopted()

    def come_to_rest(self) -> float:
        """A last core works off everything and is told to stop; how long the work took."""
        self.arena.configure(scheduled=False)
        core = self._launch()
        self._is_ready(core)
        begun = moved = time.monotonic()
        before = -1
        while (
            (left := self._open_jobs()) and time.monotonic() - moved < STALL_SECONDS and not core.wait_until_gone(0.1)
        ):
            if left != before:
                before, moved = left, time.monotonic()
        seconds = time.monotonic() - begun
        code = core.stop()
        if code != 0:
            self.faults.append(f"the last core ended with {code}: {core.said[-3:]}")
        reap_adopted()
        self.orphans += [f"process {pid} lives after the end" for pid in self.arena.processes()]
        return seconds

    def _launch(self, failpoint: str | None = None) -> Core:
        return self.arena.launch({"DUCTILE_FAILPOINT": failpoint} if failpoint else None)

    def _is_ready(self, core: Core, *, armed: bool = False) -> bool:
        """True if it is ready, with what must hold at that moment looked at."""
        launched = to_text(datetime.now(UTC))
        if not core.wait_until_ready():
            if not armed:
                self.faults.append(f"a core did not become ready: {core.said[-3:]}")
            return False
        assert core.ready_seconds is not None
        self.ready_seconds.append(core.ready_seconds)
        try:
            born = start_ticks(core.process.pid)
            self.ready_cpu_seconds.append(cpu_seconds(core.process.pid))
        except OSError:  # a failpoint was quicker
            return True
        self.orphans += [
            f"process {pid} of an earlier core lives beside core {core.process.pid}"
            for pid, ticks in self.arena.processes().items()
            if ticks < born
        ]
        with self.arena.read_ledger() as db:
            old = "SELECT id FROM job_queue WHERE claimed_by > '' AND started_at < ?"
            self.stuck += [
                f"{row[0]} is running since before core {core.process.pid}" for row in db.execute(old, (launched,))
            ]
            self.miscounted += [f"{row[0]} {row[1]} beside core {core.process.pid}" for row in db.execute(MISCOUNTED)]
        return True

    def _open_jobs(self) -> int:
        with self.arena.read_ledger() as db:
            count: int = db.execute(OPEN_JOBS).fetchone()[0]
            return count

    def cut_delays_short(self) -> None:
        """One core more recovers and is drained; what waits for its next attempt after that need not wait."""
        core = self._launch()
        self._is_ready(core)
        if (code := core.stop()) != 0:
            self.faults.append(f"a drained core ended with {code}: {core.said[-3:]}")
        reap_adopted()
        db = sqlite3.connect(self.arena.ledger)
        with db:
            db.execute("UPDATE job_queue SET next_retry_at = failed_at WHERE next_retry_at IS NOT NULL")
        db.close()

    def _tell(self, cycle: int, clients: Clients, begun: float) -> None:
        times = sorted(self.ready_seconds) or [0.0]
        print(
            f"cycle {cycle}/{self.options.cycles}: {len(clients.acknowledged)} acknowledged, "
            f"{self._ledger_megabytes():.0f} MB, ready p50 {percentile(times, 50):.2f} s max {times[-1]:.2f} s, "
            f"{len(self.stuck)} stuck, {len(self.orphans)} orphans, {len(self.faults)} faults, "
            f"{time.monotonic() - begun:.0f} s",
            file=sys.stderr,
            flush=True,
        )

    def _ledger_megabytes(self) -> float:
        return self.arena.ledger.stat().st_size / 1e6 if self.arena.ledger.exists() else 0.0

    def _summary(self, clients: Clients, *, seconds: float, rest_seconds: float) -> dict[str, Any]:
        case = Case.of(
            self.arena,
            clients.acknowledged,
            deaths=self.deaths,
            stuck=self.stuck,
            orphans=self.orphans,
            miscounted=self.miscounted,
            faults=[*self.faults, *(answer for answer in clients.refused if answer.startswith("500"))],
        )
        violations, told = check(case), story_of(case).told
        for name, found in violations.items():
            for violation in found[:SHOWN]:
                print(f"{name}: {violation}", file=sys.stderr)
            if len(found) > SHOWN:
                print(f"{name}: and {len(found) - SHOWN} more", file=sys.stderr)
        return {
            "torture": "kill",
            "cycles": self.options.cycles,
            "seed": self.options.seed,
            "workers": self.options.workers,
            "jobs_per_second": self.options.jobs_per_second,
            "acknowledged": len(clients.acknowledged),
            "unanswered": clients.unanswered,
            "refused": len(clients.refused),
            "jobs": len(case.jobs),
            "attempts": sum(map(len, case.attempts.values())),
            **{name: told[name] for name in ("runs", "steps", "joins", "hooks")},
            "scheduled": sum(job["slot_at"] is not None for job in case.jobs.values()),
            "waited": clients.answered,
            "excused": len(case.excused),
            "lost_attempts": len(case.rows("SELECT 1 FROM journal WHERE kind = 'job.recovered'")),
            "by_status": {row["status"]: row["n"] for row in case.rows(BY_STATUS)},
            "violations": {name.split()[0]: len(found) for name, found in violations.items()},
            "ready_seconds": spread(self.ready_seconds),
            "ready_cpu_seconds": spread(self.ready_cpu_seconds),
            "load_average": round(os.getloadavg()[2], 1),
            "seconds": round(seconds, 1),
            "rest_seconds": round(rest_seconds, 1),
            "ledger_megabytes": round(self._ledger_megabytes(), 1),
            "versions": {
                "ductile": __version__,
                "python": python_version(),
                "sqlite": sqlite3.sqlite_version,
                "trio": trio.__version__,
            },
        }


OPEN_JOBS = "SELECT COUNT(*) FROM job_queue WHERE status IN ('queued', 'running')"
MISCOUNTED = """
    SELECT id, 'waits for ' || waits_for || ' jobs, which are not there' FROM job_queue AS waiting
     WHERE is_join = 1 AND status = 'queued'
       AND waits_for <> (SELECT COUNT(*) FROM job_queue
                          WHERE join_id = waiting.id AND status IN ('queued', 'running'))
    UNION ALL
    SELECT id, 'counts ' || open_jobs || ' open jobs, which are not there' FROM job_queue AS root
     WHERE open_jobs IS NOT NULL AND tree_completed_at IS NULL
       AND open_jobs <> (status IN ('queued', 'running'))
                      + (SELECT COUNT(*) FROM job_queue
                          WHERE root_job_id = root.id AND root_job_id <> id AND status IN ('queued', 'running'))
    UNION ALL
    SELECT id, 'is closed with ' || open_jobs || ' open jobs' FROM job_queue
     WHERE tree_completed_at IS NOT NULL AND open_jobs > 0
"""
BY_STATUS = "SELECT status, COUNT(*) AS n FROM job_queue GROUP BY status ORDER BY status"


def spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values) or [0.0]
    return {
        "count": len(values),
        "p50": round(percentile(ordered, 50), 3),
        "p99": round(percentile(ordered, 99), 3),
        "max": round(ordered[-1], 3),
    }


def percentile(ordered: Sequence[float], percent: int) -> float:
    if len(ordered) < 2:
        return ordered[0]
    return statistics.quantiles(ordered, n=100, method="inclusive")[percent - 1]


def reap_adopted() -> None:
    """No zombie is left; called only while no core of ours is alive or unreaped."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def torture(directory: Path, options: Options) -> dict[str, Any]:
    """Run the torture in an empty directory; the summary, with the number of violations of each invariant."""
    return Torture(Arena(directory, workers=options.workers), options).run()
