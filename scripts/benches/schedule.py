"""How late schedules are, and what many of them cost.

burst     1,000 due at one moment: how many transactions, and how long until all their jobs are durable
load      10,000 schedules: the scheduler's first turn, on a new ledger and again; and the whole start
lateness  `at` and `after` under 1,000 others: from the due moment to the claim, which is after the commit;
          beside it, at the same time, a bare thread that sleeps until a moment and commits one row
"""

import os
import sqlite3
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trio
from attrs import frozen

from ductile.clock import Clock, from_text, to_text
from ductile.engine.scheduler import Scheduler
from ductile.engine.simulate import VirtualClock
from ductile.hub import Hub
from ductile.ledger.writer import open_ledger
from ductile.logs import Log
from scripts.benches.bench import Bench, Line, main, percentile
from scripts.benches.homes import asleep, furnished, running
from tests.e2e.service import Home
from tests.engine.builders import snapshot_of
from tests.engine.stage import Counted

MILLISECOND = timedelta(milliseconds=1)
APART = 50 * MILLISECOND
SAMPLES_BEGIN_AFTER = timedelta(seconds=6)
"""The service is up and has looked at every schedule by then."""


def measure_lateness(bench: Bench) -> Iterator[Line]:
    """One moment and one delay after the other, each alone; a job that was claimed is durable."""
    samples = bench.size(250, 40)
    begin = datetime.now(UTC) + SAMPLES_BEGIN_AFTER
    moments = [f"{{id: at{n}, at: '{to_text(begin + n * APART)}'}}" for n in range(samples)]
    later = SAMPLES_BEGIN_AFTER + samples * APART
    delays = [f"{{id: after{n}, after: {(later + n * APART) // MILLISECOND}ms}}" for n in range(samples)]
    with furnished(bench, schedules=[*asleep(1000), *moments, *delays]) as home, running(home):
        anchor = Sleeper(home.path / "anchor.db", begin + APART / 2, 2 * samples)
        anchor.start()
        time.sleep((later + samples * APART).total_seconds() + 2)
        rows = home.rows("SELECT schedule_id, slot_at, created_at, started_at FROM job_queue")
        anchor.join()
    for kind in ("at", "after"):
        found = [row for row in rows if row["schedule_id"].strip("0123456789") == kind and row["started_at"]]
        assert len(found) == samples, f"{len(found)} of {samples} `{kind}` schedules ran"
        decided = [_milliseconds(row["slot_at"], row["created_at"]) for row in found]
        claimed = [_milliseconds(row["slot_at"], row["started_at"]) for row in found]
        yield bench.line(
            "B15",
            f"{kind}_lateness_ms_p99",
            percentile(claimed, 99),
            p50=statistics.median(claimed),
            max=max(claimed),
            anchor_p50=statistics.median(anchor.lateness),
            anchor_p99=percentile(anchor.lateness, 99),
            over_anchor=percentile(claimed, 99) / percentile(anchor.lateness, 99),
            decided_p50=statistics.median(decided),
            decided_p99=percentile(decided, 99),
            samples=samples,
        )


class Sleeper(threading.Thread):
    """Sleeps from moment to moment and writes a row at each, as durable as a job: what the host makes of that."""

    def __init__(self, path: Path, begin: datetime, moments: int) -> None:
        super().__init__(daemon=True)
        self.path, self.begin, self.moments = path, begin, moments
        self.lateness: list[float] = []

    def run(self) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("CREATE TABLE job (at TEXT)")
            for number in range(self.moments):
                due = self.begin + number * APART
                time.sleep(max((due - datetime.now(UTC)).total_seconds(), 0))
                db.execute("INSERT INTO job VALUES (?)", (to_text(due),))
                self.lateness.append((datetime.now(UTC) - due) / MILLISECOND)


def _milliseconds(start: str, end: str) -> float:
    return (from_text(end) - from_text(start)).total_seconds() * 1000


def measure_load(bench: Bench) -> Iterator[Line]:
    """Many schedules, first seen and known; and the start of a whole service beside one that has none."""
    count = bench.size(10_000, 1_000)
    with furnished(bench, schedules=asleep(count)) as home, furnished(bench) as bare:
        turns = trio.run(_first_turns, home, bench.rounds)
        starts: list[list[float]] = [[], []]
        for _ in range(bench.rounds):
            for times, one in zip(starts, (home, bare), strict=True):
                began = time.perf_counter()
                with running(one):
                    times.append(time.perf_counter() - began)
    for name, found in turns.items():
        cpu = statistics.median(one.cpu_seconds for one in found)
        yield bench.line("schedule", name, [one.seconds for one in found], schedules=count, cpu_seconds=cpu)
    yield bench.line("schedule", "start_seconds", starts[0], schedules=count, without_schedules=starts[1])


@frozen
class Turn:
    """One turn of a scheduler that has just started: what it took, what it asked the writer for, all jobs then."""

    seconds: float
    cpu_seconds: float
    writes: int
    jobs: int


async def _first_turns(home: Home, rounds: int) -> dict[str, list[Turn]]:
    turns: dict[str, list[Turn]] = {"load_seconds": [], "load_again_seconds": []}
    for number in range(rounds):
        path = home.path / f"ledger{number}" / "state.db"
        path.parent.mkdir(mode=0o700)
        for found in turns.values():
            found.append(await _turn(home, path, Clock()))
    return turns


async def _turn(home: Home, path: Path, clock: Clock) -> Turn:
    snapshot, nowhere = snapshot_of(home), os.open(os.devnull, os.O_WRONLY)
    log = Log(level="warn", descriptor=nowhere)
    try:
        async with open_ledger(path) as ledger:
            counted = Counted(ledger)
            scheduler = Scheduler(counted, Hub(), clock, log, lambda: snapshot)  # type: ignore[arg-type]
            began, spent = time.perf_counter(), time.process_time()
            await scheduler.turn()
            seconds, spent = time.perf_counter() - began, time.process_time() - spent
            jobs: int = ledger.read(lambda db: db.execute("SELECT COUNT(*) FROM job_queue").fetchone()[0])
            return Turn(seconds, spent, counted.writes, jobs)
    finally:
        log.close()
        os.close(nowhere)


def measure_burst(bench: Bench) -> Iterator[Line]:
    """A thousand intervals that were defined before, all due in the same moment."""
    schedules = [f"{{id: s{number}, every: 1h, if_running: queue}}" for number in range(1000)]
    seconds, writes = [], []
    with furnished(bench, schedules=schedules) as home:
        for number in range(bench.rounds):
            path = home.path / f"ledger{number}" / "state.db"
            path.parent.mkdir(mode=0o700)
            trio.run(_turn, home, path, Clock())
            later = VirtualClock(datetime.now(UTC) + timedelta(hours=2))
            turn = trio.run(_turn, home, path, later)
            assert turn.jobs == 2000, f"{turn.jobs} jobs, not 2000"
            seconds.append(turn.seconds)
            writes.append(turn.writes)
    yield bench.line("schedule", "transactions", max(writes), jobs=1000)
    yield bench.line("schedule", "burst_seconds", seconds, jobs=1000)


if __name__ == "__main__":
    sys.exit(main("schedule", __doc__, {"burst": measure_burst, "load": measure_load, "lateness": measure_lateness}))
