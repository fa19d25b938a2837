"""What a job costs without the service: its rows and its process, one after the other in a plain loop.

The ledger's own functions write the same rows in the same commits, and the same spawn starts the same plugin with three
pipes, two at a time. There is no event loop, no request, no trust, no judgement, no log: whatever Ductile does for a
job beyond this comes on top.
"""

import os
import select
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from attrs import frozen

from ductile.engine.posix_spawn import spawn
from ductile.ledger.claim import record_and_claim
from ductile.ledger.connections import transaction
from ductile.ledger.store import open_writer
from ductile.model import Ending, Evidence, Job, Succeeded

REQUEST = b"x" * 300
CHECKPOINT_AFTER_ROWS = 2000


@frozen
class Process:
    """A plugin that runs a job, and the pipes it is read by."""

    job: Job
    pid: int
    pidfd: int
    pipes: tuple[int, int, int]
    started_at: datetime
    begun: float


@frozen
class Floor:
    """What the loop came to."""

    jobs_per_second: float
    cpu_ms: float
    """A job's share of the processor time, without the plugin."""


def drained(ledger: Path, plugin: Path, lane: str, *, workers: int) -> Floor:
    """Every job that waits in the lane has run and is on record."""
    with closing(open_writer(ledger, synchronous="normal")) as db, select.epoll() as exits:
        running: dict[int, Process] = {}
        endings: list[Ending] = []
        jobs, at_checkpoint = 0, db.total_changes
        begun, used = time.monotonic(), time.process_time()
        while True:
            free = workers - len(running)
            with transaction(db):
                _, claimed = record_and_claim(
                    db, endings, now=datetime.now(UTC), run_id="floor", free={lane: free}, limit=free, carefully=False
                )
            jobs += len(endings)
            for job in claimed.jobs:
                process = started(plugin, job)
                running[process.pidfd] = process
                exits.register(process.pidfd, select.EPOLLIN)
            if not running:
                break
            if db.total_changes - at_checkpoint > CHECKPOINT_AFTER_ROWS:
                at_checkpoint = db.total_changes
                db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            endings = [ended(running.pop(pidfd), exits) for pidfd, _ in exits.poll()]
        return Floor(jobs / (time.monotonic() - begun), (time.process_time() - used) * 1000 / jobs)


def started(plugin: Path, job: Job) -> Process:
    theirs_in, ours_in = os.pipe2(os.O_CLOEXEC)
    ours_out, theirs_out = os.pipe2(os.O_CLOEXEC)
    ours_err, theirs_err = os.pipe2(os.O_CLOEXEC)
    os.write(ours_in, REQUEST)
    started_at, begun = datetime.now(UTC), time.monotonic()
    pid = spawn([str(plugin)], {}, (theirs_in, theirs_out, theirs_err))
    for end in (ours_in, theirs_in, theirs_out, theirs_err):
        os.close(end)
    pidfd = os.pidfd_open(pid)
    return Process(job, pid, pidfd, (pidfd, ours_out, ours_err), started_at, begun)


def ended(process: Process, exits: select.epoll) -> Ending:
    exits.unregister(process.pidfd)
    _, stdout, stderr = process.pipes
    said, _ = os.read(stdout, 65_536), os.read(stderr, 65_536)
    status = os.waitid(os.P_PIDFD, process.pidfd, os.WEXITED)
    assert status is not None
    for descriptor in process.pipes:
        os.close(descriptor)
    evidence = Evidence(
        started_at=process.started_at,
        duration=timedelta(seconds=time.monotonic() - process.begun),
        exit_code=status.si_status,
        result=said.decode(),
    )
    return Ending(job_id=process.job.id, attempt=process.job.attempt, outcome=Succeeded(evidence))
