"""Measures of the ledger, as ratios within one run, so that a slow or busy machine does not decide.

group_commit      durable enqueues per second by 64 callers ÷ the same statements with a commit each (at least 3)
claim_and_record  cost of one claim + record with a long history ÷ with a short one (at most 1.5)
memory            memory of the process with a long history ÷ with a short one (at most 1.2)
"""

import argparse
import json
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trio

from ductile.ledger import history, reports
from ductile.ledger.claim import record_and_claim
from ductile.ledger.connections import transaction
from ductile.ledger.jobs import enqueue
from ductile.ledger.store import open_writer
from ductile.ledger.writer import Ledger, open_ledger
from ductile.model import Ending, Evidence, Job, NewJob, Succeeded

CALLERS = 64
SHORT_HISTORY = 1_000
NEW = NewJob(plugin="echo", command="poll", submitted_by="bench", payload='{"message":"' + "x" * 200 + '"}')

FILL = (
    """
    WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :rows),
         job (id, n) AS MATERIALIZED (SELECT lower(hex(randomblob(16))), n FROM number)
    INSERT INTO job_queue (id, plugin, command, payload, status, submitted_by, created_at, started_at, completed_at,
                           root_job_id, open_jobs, tree_jobs, tree_completed_at, asked_at)
    SELECT id, 'plugin-' || (n % 20), 'poll', '{"message":"a payload of ordinary size"}', 'succeeded', 'bench',
           :now, :now, :now, id, 0, 1, :now, :now FROM job
    """,
    """
    INSERT INTO job_log (id, job_id, plugin, command, status, result, attempt, submitted_by, created_at, completed_at,
                         root_job_id, job_status, started_at, duration_ms, exit_code, max_attempts)
    SELECT id || '-1', id, plugin, command, 'succeeded', '{"status":"ok","result":"done"}', 1, submitted_by, :now, :now,
           id, 'succeeded', :now, 12, 0, 4 FROM job_queue WHERE :rows > 0
    """,
    """
    INSERT INTO journal (at, kind, plugin, job_id, root_job_id, data)
    SELECT :now, 'job.completed', plugin, id, id, '{"from":"running","to":"succeeded"}' FROM job_queue WHERE :rows > 0
    """,
)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def report(measure: str, ratio: float, **details: float) -> None:
    print(json.dumps({"measure": measure, "ratio": round(ratio, 3), **details}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench ledger", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="length of the long history")
    parser.add_argument("--directory", type=Path, help="where to put the databases (default: a temporary directory)")
    parser.add_argument("--memory-of", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.memory_of:
        print(memory_after_some_work(chosen.memory_of))
        return
    with tempfile.TemporaryDirectory(prefix="ductile-bench-ledger-", dir=chosen.directory) as directory:
        measure_group_commit(Path(directory))
        short, long = Path(directory, "short.db"), Path(directory, "long.db")
        fill(short, SHORT_HISTORY)
        fill(long, chosen.rows)
        measure_memory(short, long, chosen.rows)
        measure_claim_and_record(short, long, chosen.rows)


def measure_group_commit(directory: Path, rounds: int = 5) -> None:
    together, one_by_one = [], []
    for number in range(rounds):
        say(f"group commit, round {number + 1} of {rounds}")
        one_by_one.append(commit_each(directory / f"each-{number}.db"))
        together.append(trio.run(commit_together, directory / f"together-{number}.db"))
    ratio = statistics.median(fast / slow for fast, slow in zip(together, one_by_one, strict=True))
    report(
        "group_commit",
        ratio,
        callers=CALLERS,
        together_per_second=round(statistics.median(together)),
        one_by_one_per_second=round(statistics.median(one_by_one)),
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


def fill(path: Path, rows: int) -> None:
    """A ledger with `rows` finished jobs, their attempts and their journal."""
    say(f"filling {path.name} with {rows:,} finished jobs")
    now = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    with closing(open_writer(path, synchronous="off")) as db:
        db.execute("PRAGMA cache_size = -400000")
        for statement in FILL:
            with transaction(db):
                db.execute(statement, {"rows": rows, "now": now})
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    say(f"  {path.stat().st_size / 1e6:,.0f} MB")


def measure_claim_and_record(short: Path, long: Path, rows: int, rounds: int = 7) -> None:
    with warm(short) as quick, warm(long) as slow:
        pairs = []
        for number in range(rounds):
            say(f"claim + record, round {number + 1} of {rounds}")
            pairs.append((cost(quick), cost(slow)))
    ratio = statistics.median(with_long / with_short for with_short, with_long in pairs)
    report(
        "claim_and_record",
        ratio,
        rows=rows,
        microseconds_short=round(statistics.median(pair[0] for pair in pairs) * 1e6, 1),
        microseconds_long=round(statistics.median(pair[1] for pair in pairs) * 1e6, 1),
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


def measure_memory(short: Path, long: Path, rows: int) -> None:
    """Each history in a fresh process that enqueues, claims, records and lists."""
    say("memory")
    taken = []
    for path in (short, long):
        command = [sys.executable, __file__, "--memory-of", str(path)]
        taken.append(int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout))
    report("memory", taken[1] / taken[0], rows=rows, kilobytes_short=taken[0], kilobytes_long=taken[1])


def memory_after_some_work(path: Path) -> int:
    async def work() -> int:
        async with open_ledger(path, synchronous="normal") as ledger:
            for _ in range(300):
                await ledger.write(enqueue, NEW, now=datetime.now(UTC))
            running: list[Job] = []
            for _ in range(300):
                running = await ledger.write(next_step, running)
            for _ in range(20):
                await ledger.read_slowly(history.jobs)
                await ledger.read_slowly(history.logs)
                await ledger.read_slowly(reports.queue)
            return proportional_kilobytes()

    return trio.run(work)


def proportional_kilobytes() -> int:
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    raise RuntimeError("this kernel does not tell the memory of a process")


if __name__ == "__main__":
    main()
