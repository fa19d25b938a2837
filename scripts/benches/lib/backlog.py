"""Jobs of an instance: queue a backlog, run it, wait for attempts, and read their times.

The ledger is polled rarely, because reading it takes processor time from the service.
"""

import json
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime

from attrs import frozen

from ductile.core.clock import from_text
from ductile.core.model import NewJob
from ductile.ledger.jobs.enqueue import enqueue
from ductile.ledger.storage.connections import transaction
from ductile.ledger.storage.open_file import open_writer
from scripts.benches.lib.instance import PLUGIN, Instance
from scripts.benches.lib.service import running_service
from scripts.benches.lib.usage import cpu_seconds

PAYLOAD = json.dumps({"filler": "x" * 100})
MAX_FAILURES_SHOWN = 3


@frozen
class Drained:
    """The speed at which a backlog was run."""

    jobs: int
    jobs_per_second: float
    own_cpu_ms: float
    """Processor time of the service itself per job."""
    first_run_seconds: float
    """Time from the start of the service to the start of the first job."""


def enqueue_backlog(instance: Instance, count: int, payload: str = PAYLOAD) -> None:
    """Queue `count` jobs. The service must not be running."""
    job = NewJob(plugin=PLUGIN, command="poll", submitted_by="bench", payload=payload)
    with closing(open_writer(instance.ledger)) as db, transaction(db):
        for _ in range(count):
            enqueue(db, job, now=datetime.now(UTC))
    os.sync()


def drain(instance: Instance, count: int, *, max_seconds: float = float("inf")) -> Drained:
    """Start the service, wait until `count` attempts are recorded or the time is over, and kill it."""
    before, deadline = attempt_count(instance), time.monotonic() + max_seconds
    with running_service(instance) as service, instance.read_ledger() as db:
        wait_for_attempt(db, before + 1, timeout=60, interval=0.02)
        cpu_before, seq_before = cpu_seconds(service.pid), last_attempt(db)
        wait_until(lambda: last_attempt(db) >= before + count or time.monotonic() > deadline)
        cpu, observed = cpu_seconds(service.pid) - cpu_before, last_attempt(db) - seq_before
    recorded = attempt_count(instance) - before
    first, last = time_span(instance, before, recorded)
    return Drained(
        jobs=recorded,
        jobs_per_second=recorded / (last - first).total_seconds(),
        own_cpu_ms=cpu * 1000 / max(observed, 1),
        first_run_seconds=(first - service.started_at).total_seconds(),
    )


def time_span(instance: Instance, after: int, count: int) -> tuple[datetime, datetime]:
    """Return the first start and the last end of the `count` attempts after number `after`. All must succeed."""
    (row,) = instance.rows(
        "SELECT MIN(started_at) AS first, MAX(completed_at) AS last, COUNT(*) AS n FROM job_log"
        " WHERE seq > ? AND status = 'succeeded'",
        after,
    )
    if row["n"] != count:
        raise SystemExit(f"{row['n']} of {count} jobs succeeded; {describe_failures(instance, after)}")
    return from_text(row["first"]), from_text(row["last"])


def describe_failures(instance: Instance, after: int) -> str:
    """Return the rows of some attempts that did not succeed."""
    rows = instance.rows(
        "SELECT job_id, status, exit_code, signal, last_error, stderr, duration_ms FROM job_log"
        " WHERE seq > ? AND status <> 'succeeded' LIMIT ?",
        after,
        MAX_FAILURES_SHOWN,
    )
    return "; ".join(str(dict(row)) for row in rows)


def attempt_count(instance: Instance) -> int:
    """Return the number of recorded attempts."""
    if not instance.ledger.exists():
        return 0
    with instance.read_ledger() as db:
        return last_attempt(db)


def last_attempt(db: sqlite3.Connection) -> int:
    """Return the sequence number of the last recorded attempt."""
    return int(db.execute("SELECT COALESCE(MAX(seq), 0) FROM job_log").fetchone()[0])


def wait_for_attempt(db: sqlite3.Connection, number: int, *, timeout: float = 300.0, interval: float = 0.1) -> None:
    """Wait until this many attempts are recorded."""
    wait_until(lambda: last_attempt(db) >= number, timeout=timeout, interval=interval)


def wait_until(condition: Callable[[], bool], *, timeout: float = 300.0, interval: float = 0.1) -> None:
    """Poll the condition. Raises SystemExit when the time is over."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"the service did not finish its jobs within {timeout:.0f} seconds")
        time.sleep(interval)
