"""Measures of the ledger, as ratios within one run, so that a slow or busy machine does not decide.

group_commit      durable enqueues per second by 64 callers ÷ the same statements with a commit each
claim_and_record  cost of one claim + record with a long history ÷ with a short one
memory            memory of the process with a long history ÷ with a short one
"""

import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trio

from ductile.ledger import history, listed, queue_reports
from ductile.ledger.claim import record_and_claim
from ductile.ledger.connections import transaction
from ductile.ledger.jobs import enqueue
from ductile.ledger.store import open_writer
from ductile.ledger.writer import Ledger, open_ledger
from ductile.model import Ending, Evidence, Job, NewJob, Succeeded
from scripts.benches.bench import Bench, Line, main
from scripts.benches.histories import filled
from scripts.benches.usage import pss_mb

CALLERS = 64
SHORT_HISTORY = 1_000
MEMORY_OF = "--memory-of"
NEW = NewJob(plugin="echo", command="poll", submitted_by="bench", payload='{"message":"' + "x" * 200 + '"}')


def measure_group_commit(bench: Bench) -> Iterator[Line]:
    together, one_by_one = [], []
    with tempfile.TemporaryDirectory(dir=bench.folder) as directory:
        for number in range(bench.size(5, 1)):
            one_by_one.append(commit_each(Path(directory, f"each-{number}.db")))
            together.append(trio.run(commit_together, Path(directory, f"together-{number}.db")))
    ratios = [fast / slow for fast, slow in zip(together, one_by_one, strict=True)]
    yield bench.line(
        "ledger",
        "group_commit",
        ratios,
        mode="full",
        callers=CALLERS,
        together_per_second=statistics.median(together),
        one_by_one_per_second=statistics.median(one_by_one),
    )


def commit_each(path: Path, jobs: int = 600) -> float:
    with closing(open_writer(path)) as db:
        begun = time.perf_counter()
        for _ in range(jobs):
            with transaction(db):
                enqueue(db, NEW, now=datetime.now(UTC))
        return jobs / (time.perf_counter() - begun)


async def commit_together(path: Path, jobs_each: int = 60) -> float:
    async def caller(ledger: Ledger) -> None:
        for _ in range(jobs_each):
            await ledger.write(enqueue, NEW, now=datetime.now(UTC))

    async with open_ledger(path) as ledger:
        begun = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for _ in range(CALLERS):
                nursery.start_soon(caller, ledger)
        return CALLERS * jobs_each / (time.perf_counter() - begun)


@contextmanager
def short_and_long(bench: Bench) -> Iterator[tuple[Path, Path]]:
    with tempfile.TemporaryDirectory(dir=bench.folder) as directory:
        short, long = Path(directory, "short.db"), Path(directory, "long.db")
        for path, rows in ((short, SHORT_HISTORY), (long, bench.rows)):
            shutil.copyfile(filled(bench.folder, rows), path)
        yield short, long


def measure_claim_and_record(bench: Bench) -> Iterator[Line]:
    with short_and_long(bench) as paths, ExitStack() as stack:
        quick, slow = (stack.enter_context(warm(path)) for path in paths)
        pairs = [(cost(quick), cost(slow)) for _ in range(bench.size(7, 3))]
    yield bench.line(
        "ledger",
        "claim_and_record",
        [with_long / with_short for with_short, with_long in pairs],
        rows=bench.rows,
        microseconds_short=statistics.median(pair[0] for pair in pairs) * 1e6,
        microseconds_long=statistics.median(pair[1] for pair in pairs) * 1e6,
    )


@contextmanager
def warm(path: Path) -> Iterator[sqlite3.Connection]:
    # Without fsync: the disk costs the same for both and would only hide the difference.
    with closing(open_writer(path, synchronous="off")) as db:
        cost(db)
        yield db


def cost(db: sqlite3.Connection, jobs: int = 400) -> float:
    """CPU seconds for recording one job and claiming the next, each step a transaction of its own."""
    with transaction(db):
        for _ in range(jobs):
            enqueue(db, NEW, now=datetime.now(UTC))
    running: list[Job] = []
    begun = time.process_time()
    for _ in range(jobs + 1):
        with transaction(db):
            running = next_step(db, running)
    spent = time.process_time() - begun
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    return spent / jobs


def next_step(db: sqlite3.Connection, running: list[Job]) -> list[Job]:
    """What runs has succeeded, and the next job runs."""
    now = datetime.now(UTC)
    evidence = Evidence(started_at=now, duration=timedelta(milliseconds=12), exit_code=0, result='{"status":"ok"}')
    endings = [Ending(job_id=job.id, attempt=job.attempt, outcome=Succeeded(evidence)) for job in running]
    _, claimed = record_and_claim(db, endings, now=now, run_id="bench", free={"echo": 1}, limit=1)
    return list(claimed.jobs)


def measure_memory(bench: Bench) -> Iterator[Line]:
    """Each history in a fresh process that enqueues, claims, records and lists."""
    with short_and_long(bench) as paths:
        short, long = (
            float(subprocess.run([sys.executable, "-P", __file__, MEMORY_OF, path], stdout=-1, check=True).stdout)
            for path in paths
        )
    yield bench.line("ledger", "memory", long / short, rows=bench.rows, short_mb=short, long_mb=long)


def memory_after_some_work(path: Path) -> float:
    async def work() -> float:
        async with open_ledger(path, synchronous="normal") as ledger:
            for _ in range(300):
                await ledger.write(enqueue, NEW, now=datetime.now(UTC))
            running: list[Job] = []
            for _ in range(300):
                running = await ledger.write(next_step, running)
            for _ in range(20):
                await ledger.read_slowly(listed.jobs)
                await ledger.read_slowly(history.logs)
                await ledger.read_slowly(queue_reports.queue)
            return pss_mb(os.getpid())

    return trio.run(work)


if __name__ == "__main__":
    if sys.argv[1:2] == [MEMORY_OF]:
        print(memory_after_some_work(Path(sys.argv[2])))
        sys.exit()
    measures = {"group_commit": measure_group_commit, "claim": measure_claim_and_record, "memory": measure_memory}
    sys.exit(main("ledger", __doc__, measures))
