"""What schedules cost, and how late they are.

idle_cpu_percent      1,000 cron schedules of which none is due, over a minute (at most 0.05); beside it the same minute
                      without schedules, and with 20 of them due at the turn of the minute
lateness_ms_p99       `at` and `after` under 1,000 others: from the due moment to the claim, which is after the commit;
                      beside it, at the same time, a bare thread that sleeps until a moment and commits one row
load_seconds          10,000 schedules: the scheduler's first turn, on a new ledger and again; and the whole start
transactions          1,000 due at one moment (at most 20), and how long until all their jobs are durable
"""

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trio
from attrs import frozen

from ductile.clock import Clock, from_text, to_text
from ductile.engine.scheduler import Scheduler
from ductile.engine.simulate import VirtualClock
from ductile.hub import Hub
from ductile.ledger.writer import open_ledger
from ductile.logs import Log
from scripts.benches.run import HERE, install, percentile, result, wakeups
from tests.e2e.service import Home, Service
from tests.engine.builders import snapshot_of
from tests.engine.stage import Counted

IDLE_SECONDS = 60
DUE_EACH_MINUTE = 20
SAMPLES = 250
MILLISECOND = timedelta(milliseconds=1)
APART = 50 * MILLISECOND
SAMPLES_BEGIN_AFTER = timedelta(seconds=6)
"""The service is up and has looked at every schedule by then."""


def asleep(count: int) -> list[str]:
    """Cron schedules that are due half a year from now, each at a time of its own."""
    month = (datetime.now(UTC).month + 5) % 12 + 1
    return [
        f"{{id: c{number}, cron: '{number % 60} {number // 60 % 24} {number // 1440 % 28 + 1} {month} *'}}"
        for number in range(count)
    ]


@contextmanager
def furnished(folder: Path, plugin: Path, schedules: list[str], *, workers: int = 2) -> Iterator[Home]:
    """A home whose only plugin has these schedules."""
    with tempfile.TemporaryDirectory(dir=folder) as directory:
        home = Home.make(Path(directory) / "home", workers=workers)
        install(home, "least", plugin)
        text = (home.path / "config.yaml").read_text().replace("log_level: debug", "log_level: warn")
        lines = "\n".join(f"      - {one}" for one in schedules)
        listed = f"    schedules:\n{lines}\n" if schedules else ""
        home.write("config.yaml", f"{text}plugins:\n  least:\n    parallelism: {workers}\n{listed}")
        home.seal()
        yield home


def cpu_seconds(pid: int) -> float:
    """The processor time of all threads so far, to the nanosecond; the clock ticks of `stat` are too coarse here."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def measure_idle(folder: Path, plugin: Path) -> Iterator[dict[str, Any]]:
    """Three services in the same minute, with one turn of the minute in it."""
    every_minute = [f"{{id: m{number}, cron: '* * * * *'}}" for number in range(DUE_EACH_MINUTE)]
    kinds = {"none": [], "idle": asleep(1000), "due": [*asleep(1000 - DUE_EACH_MINUTE), *every_minute]}
    with ExitStack() as stack:
        services = {}
        for name, schedules in kinds.items():
            services[name] = stack.enter_context(furnished(folder, plugin, schedules)).start()
            stack.callback(services[name].kill)
        time.sleep(15 - time.time() % 60 if time.time() % 60 < 15 else 75 - time.time() % 60)
        before = {name: _spent(service) for name, service in services.items()}
        time.sleep(IDLE_SECONDS)
        spent = {name: _since(service, before[name]) for name, service in services.items()}
        made = len(services["due"].home.rows("SELECT 1 FROM job_queue"))
    cpu = {name: one[0] / IDLE_SECONDS * 100 for name, one in spent.items()}
    yield measured("idle_cpu_percent", cpu["idle"], at_most=0.05, without_schedules=cpu["none"])
    yield measured("idle_wakeups_per_second", spent["idle"][1] / IDLE_SECONDS, at_most=2)
    job_ms = (spent["due"][0] - spent["idle"][0]) / DUE_EACH_MINUTE * 1000
    yield measured("cpu_ms_per_due_job", job_ms, at_most=5, cpu_percent=cpu["due"], jobs=made)


def _spent(service: Service) -> tuple[float, dict[str, int]]:
    return cpu_seconds(service.process.pid), wakeups(service.process.pid)


def _since(service: Service, before: tuple[float, dict[str, int]]) -> tuple[float, int]:
    cpu, woken = _spent(service)
    return cpu - before[0], sum(count - before[1].get(thread, 0) for thread, count in woken.items())


def measure_lateness(folder: Path, plugin: Path) -> Iterator[dict[str, Any]]:
    """One moment and one delay after the other, each alone; a job that was claimed is durable."""
    begin = datetime.now(UTC) + SAMPLES_BEGIN_AFTER
    moments = [f"{{id: at{n}, at: '{to_text(begin + n * APART)}'}}" for n in range(SAMPLES)]
    later = SAMPLES_BEGIN_AFTER + SAMPLES * APART
    delays = [f"{{id: after{n}, after: {(later + n * APART) // MILLISECOND}ms}}" for n in range(SAMPLES)]
    with furnished(folder, plugin, [*asleep(1000), *moments, *delays]) as home:
        service = home.start()
        anchor = Sleeper(home.path / "anchor.db", begin + APART / 2)
        try:
            anchor.start()
            time.sleep((later + SAMPLES * APART).total_seconds() + 2)
            rows = home.rows("SELECT schedule_id, slot_at, created_at, started_at FROM job_queue")
        finally:
            service.kill()
        anchor.join()
    for kind in ("at", "after"):
        found = [row for row in rows if row["schedule_id"].strip("0123456789") == kind]
        decided = [_milliseconds(row["slot_at"], row["created_at"]) for row in found]
        claimed = [_milliseconds(row["slot_at"], row["started_at"]) for row in found]
        yield measured(
            f"{kind}_lateness_ms_p99",
            percentile(claimed, 99),
            at_most=10,
            p50=statistics.median(claimed),
            max=max(claimed),
            anchor_p50=statistics.median(anchor.lateness),
            anchor_p99=percentile(anchor.lateness, 99),
            over_anchor=percentile(claimed, 99) / percentile(anchor.lateness, 99),
            decided_p50=statistics.median(decided),
            decided_p99=percentile(decided, 99),
            samples=len(found),
        )


class Sleeper(threading.Thread):
    """Sleeps from moment to moment and writes a row at each, as durable as a job: what the host makes of that."""

    def __init__(self, path: Path, begin: datetime) -> None:
        super().__init__(daemon=True)
        self.path, self.begin = path, begin
        self.lateness: list[float] = []

    def run(self) -> None:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as db:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.execute("CREATE TABLE job (at TEXT)")
            for number in range(2 * SAMPLES):
                due = self.begin + number * APART
                time.sleep(max((due - datetime.now(UTC)).total_seconds(), 0))
                db.execute("INSERT INTO job VALUES (?)", (to_text(due),))
                self.lateness.append((datetime.now(UTC) - due) / MILLISECOND)


def _milliseconds(start: str, end: str) -> float:
    return (from_text(end) - from_text(start)).total_seconds() * 1000


def measure_load(folder: Path, plugin: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """10,000 schedules, first seen and known; and the start of a whole service beside one that has none."""
    with furnished(folder, plugin, asleep(10_000)) as home, furnished(folder, plugin, []) as bare:
        turns = trio.run(_first_turns, home, rounds)
        starts: list[list[float]] = [[], []]
        for _ in range(rounds):
            for times, one in zip(starts, (home, bare), strict=True):
                began = time.perf_counter()
                service = one.start()
                times.append(time.perf_counter() - began)
                service.stop()
    for name, found in turns.items():
        times = [one.seconds for one in found]
        cpu = statistics.median(one.cpu_seconds for one in found)
        yield measured(name, statistics.median(times), at_most=2, rounds=times, cpu_seconds=cpu)
    whole, nothing = (statistics.median(times) for times in starts)
    yield measured("start_seconds", whole, at_most=5, rounds=starts[0], without_schedules=nothing)


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


def measure_burst(folder: Path, plugin: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """A thousand intervals that were defined before, all due in the same moment."""
    schedules = [f"{{id: s{number}, every: 1h, if_running: queue}}" for number in range(1000)]
    seconds, writes = [], []
    with furnished(folder, plugin, schedules) as home:
        for number in range(rounds):
            path = home.path / f"ledger{number}" / "state.db"
            path.parent.mkdir(mode=0o700)
            trio.run(_turn, home, path, Clock())
            later = VirtualClock(datetime.now(UTC) + timedelta(hours=2))
            turn = trio.run(_turn, home, path, later)
            assert turn.jobs == 2000, f"{turn.jobs} jobs, not 2000"
            seconds.append(turn.seconds)
            writes.append(turn.writes)
    yield measured("transactions", max(writes), at_most=20, jobs=1000)
    yield measured("burst_seconds", statistics.median(seconds), at_most=1, rounds=seconds, jobs=1000)


def measured(name: str, value: float, *, at_most: float, **more: Any) -> dict[str, Any]:
    return result(name, value, bench="schedule", at_most=at_most, met=value <= at_most, **more)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench schedule", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", help="idle, lateness, load or burst")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ductile-bench-") as directory:
        folder = Path(directory)
        plugin = folder / "plugin"
        subprocess.run(["gcc", "-O2", "-static", "-o", plugin, HERE / "plugin.c"], check=True)
        measures: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
            "burst": lambda: measure_burst(folder, plugin, options.rounds),
            "load": lambda: measure_load(folder, plugin, options.rounds),
            "lateness": lambda: measure_lateness(folder, plugin),
            "idle": lambda: measure_idle(folder, plugin),
        }
        for name, measure in measures.items():
            if options.only in (None, name):
                print(f"measuring {name} …", file=sys.stderr)
                for line in measure():
                    print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
