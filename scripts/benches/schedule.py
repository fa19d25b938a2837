"""How late schedules are, and what many of them cost.

load      start of the service with 10,000 schedules, and with none beside it
lateness  `at` and `after` under 1,000 others: from the due moment to the claim, which is after the commit;
          beside it, at the same time, a bare thread that sleeps until a moment and commits one row
"""

import sqlite3
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ductile.core.clock import from_text, to_text
from scripts.benches.bench import Bench, Line, main, percentile
from scripts.benches.homes import asleep, furnished, running

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
    """Start a service with many schedules, and one with none beside it."""
    count = bench.size(10_000, 1_000)
    with furnished(bench, schedules=asleep(count)) as home, furnished(bench) as bare:
        starts: list[list[float]] = [[], []]
        for _ in range(bench.rounds):
            for times, one in zip(starts, (home, bare), strict=True):
                began = time.perf_counter()
                with running(one):
                    times.append(time.perf_counter() - began)
    yield bench.line("schedule", "start_seconds", starts[0], schedules=count, without_schedules=starts[1])


if __name__ == "__main__":
    sys.exit(main("schedule", __doc__, {"load": measure_load, "lateness": measure_lateness}))
