"""Measure how late schedules are, and how long the service takes to start with many of them.

load      start of the service with 10,000 schedules and with none
lateness  `at` and `after` among 1,000 other schedules: from the due time to the claim, which follows the commit;
          as a reference, a thread that sleeps until the same kind of due times and commits one row at each
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
from scripts.benches.lib.bench import Bench, Line, main, percentile
from scripts.benches.lib.instance import distant_schedules, new_instance
from scripts.benches.lib.service import running_service

MILLISECOND = timedelta(milliseconds=1)
SLOT_INTERVAL = 50 * MILLISECOND
START_ALLOWANCE = timedelta(seconds=6)
"""Time for the service to start and to plan every schedule, before the first sample is due."""


def measure_lateness(bench: Bench) -> Iterator[Line]:
    """Run `at` schedules, then `after` schedules, at fixed intervals. A claimed job is durable."""
    samples = bench.size(250, 40)
    begin = datetime.now(UTC) + START_ALLOWANCE
    at_schedules = [f"{{id: at{n}, at: '{to_text(begin + n * SLOT_INTERVAL)}'}}" for n in range(samples)]
    later = START_ALLOWANCE + samples * SLOT_INTERVAL
    after_schedules = [
        f"{{id: after{n}, after: {(later + n * SLOT_INTERVAL) // MILLISECOND}ms}}" for n in range(samples)
    ]
    with (
        new_instance(bench, schedules=[*distant_schedules(1000), *at_schedules, *after_schedules]) as instance,
        running_service(instance),
    ):
        reference = ReferenceThread(instance.path / "reference.db", begin + SLOT_INTERVAL / 2, 2 * samples)
        reference.start()
        time.sleep((later + samples * SLOT_INTERVAL).total_seconds() + 2)
        rows = instance.rows("SELECT schedule_id, slot_at, created_at, started_at FROM job_queue")
        reference.join()
    for kind in ("at", "after"):
        ran = [row for row in rows if row["schedule_id"].strip("0123456789") == kind and row["started_at"]]
        assert len(ran) == samples, f"{len(ran)} of {samples} `{kind}` schedules ran"
        decided = [_milliseconds(row["slot_at"], row["created_at"]) for row in ran]
        claimed = [_milliseconds(row["slot_at"], row["started_at"]) for row in ran]
        yield bench.line(
            "B15",
            f"{kind}_lateness_ms_p99",
            percentile(claimed, 99),
            p50=statistics.median(claimed),
            max=max(claimed),
            anchor_p50=statistics.median(reference.lateness),
            anchor_p99=percentile(reference.lateness, 99),
            over_anchor=percentile(claimed, 99) / percentile(reference.lateness, 99),
            decided_p50=statistics.median(decided),
            decided_p99=percentile(decided, 99),
            samples=samples,
        )


class ReferenceThread(threading.Thread):
    """Sleeps until each due time and commits a durable row: the lateness that the host itself causes."""

    def __init__(self, path: Path, begin: datetime, count: int) -> None:
        super().__init__(daemon=True)
        self.path, self.begin, self.count = path, begin, count
        self.lateness: list[float] = []

    def run(self) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("CREATE TABLE job (at TEXT)")
            for number in range(self.count):
                due = self.begin + number * SLOT_INTERVAL
                time.sleep(max((due - datetime.now(UTC)).total_seconds(), 0))
                db.execute("INSERT INTO job VALUES (?)", (to_text(due),))
                self.lateness.append((datetime.now(UTC) - due) / MILLISECOND)


def _milliseconds(start: str, end: str) -> float:
    return (from_text(end) - from_text(start)).total_seconds() * 1000


def measure_load(bench: Bench) -> Iterator[Line]:
    """Start a service with many schedules and one with none, alternately."""
    count = bench.size(10_000, 1_000)
    with new_instance(bench, schedules=distant_schedules(count)) as instance, new_instance(bench) as empty:
        starts: list[list[float]] = [[], []]
        for _ in range(bench.rounds):
            for times, each in zip(starts, (instance, empty), strict=True):
                begin = time.perf_counter()
                with running_service(each):
                    times.append(time.perf_counter() - begin)
    yield bench.line("schedule", "start_seconds", starts[0], schedules=count, without_schedules=starts[1])


if __name__ == "__main__":
    sys.exit(main("schedule", __doc__, {"load": measure_load, "lateness": measure_lateness}))
