"""What a job costs without the service: its delivery, its rows and its process, in a plain loop.

The ledger's own functions write the same rows in the same commits, and the same spawn starts the same plugin with three
pipes, two at a time. There is no event loop, no route, no trust, no judgement, no log: whatever Ductile does for a
job beyond this comes on top.
"""

import hashlib
import hmac
import os
import re
import select
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from attrs import field, frozen

from ductile import strict_json
from ductile.engine.posix_spawn import spawn
from ductile.ledger import receipts
from ductile.ledger.claim import record_and_claim
from ductile.ledger.connections import transaction
from ductile.ledger.jobs import enqueue
from ductile.ledger.store import open_writer
from ductile.model import Ending, Evidence, Job, NewJob, Succeeded

REQUEST = b"x" * 300
CHECKPOINT_AFTER_ROWS = 2000
SCOPE, KEPT = "webhook:/hook", timedelta(days=7)
HEADER = re.compile(rb"\r\n(content-length|x-hub-signature-256|x-github-delivery): ([^\r]*)", re.IGNORECASE)
ANSWER = "HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"


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


@frozen
class Door:
    """Where deliveries come in: no limits, no deadlines, and everything about them is believed but the signature."""

    listener: socket.socket
    secret: bytes
    clients: dict[int, socket.socket] = field(factory=dict)

    def came(self, ready: int) -> bytes:
        """What a client has sent; one that has hung up is forgotten."""
        request = self.clients[ready].recv(65_536)
        if not request:
            self.clients.pop(ready).close()
        return request

    def taken(self, request: bytes, db: sqlite3.Connection, lane: str, *, now: datetime) -> bytes:
        """The delivery is in the ledger; the answer that it may get after the commit."""
        head, _, body = request.partition(b"\r\n\r\n")
        headers = {name.lower(): value for name, value in HEADER.findall(head)}
        assert len(body) == int(headers[b"content-length"]), "the client sends a request in one piece"
        signature = "sha256=" + hmac.digest(self.secret, body, hashlib.sha256).hex()
        assert hmac.compare_digest(signature.encode(), headers[b"x-hub-signature-256"])
        key = headers[b"x-github-delivery"].decode()
        assert receipts.get(db, SCOPE, key, now=now) is None
        payload = strict_json.dumps({"type": "webhook.hook", "payload": strict_json.loads(body), "source": SCOPE})
        made = enqueue(db, NewJob(plugin=lane, command="handle", submitted_by=SCOPE, payload=payload), now=now)
        answer = strict_json.dumps({"job_id": made.job_id})
        receipts.put(db, SCOPE, key, now=now, keep=KEPT, job_id=made.job_id, response=answer)
        return (ANSWER % (len(answer), answer)).encode()


@frozen
class Loop:
    """A ledger, a plugin, and what is waited for."""

    db: sqlite3.Connection
    plugin: Path
    lane: str
    workers: int
    ready: select.epoll
    running: dict[int, Process] = field(factory=dict)

    def turn(self, endings: list[Ending], *, now: datetime) -> list[Job]:
        """What has ended is recorded, and what may run is claimed."""
        free = self.workers - len(self.running)
        _, claimed = record_and_claim(
            self.db, endings, now=now, run_id="floor", free={self.lane: free}, limit=free, carefully=False
        )
        return list(claimed.jobs)

    def start(self, jobs: list[Job]) -> None:
        for job in jobs:
            process = started(self.plugin, job)
            self.running[process.pidfd] = process
            self.ready.register(process.pidfd, select.EPOLLIN)


@contextmanager
def looping(ledger: Path, plugin: Path, lane: str, workers: int) -> Iterator[Loop]:
    with closing(open_writer(ledger, synchronous="normal")) as db, select.epoll() as ready:
        yield Loop(db, plugin, lane, workers, ready)


def drained(ledger: Path, plugin: Path, lane: str, *, workers: int) -> Floor:
    """Every job that waits in the lane has run and is on record."""
    with looping(ledger, plugin, lane, workers) as loop:
        endings: list[Ending] = []
        jobs, at_checkpoint = 0, loop.db.total_changes
        begun, used = time.monotonic(), time.process_time()
        while True:
            with transaction(loop.db):
                claimed = loop.turn(endings, now=datetime.now(UTC))
            jobs += len(endings)
            loop.start(claimed)
            if not loop.running:
                break
            at_checkpoint = checkpointed(loop.db, at_checkpoint)
            endings = [ended(loop.running.pop(pidfd), loop.ready) for pidfd, _ in loop.ready.poll()]
        return Floor(jobs / (time.monotonic() - begun), (time.process_time() - used) * 1000 / jobs)


def delivered(
    listener: socket.socket, secret: bytes, ledger: Path, plugin: Path, lane: str, *, workers: int, jobs: int
) -> Floor:
    """So many deliveries were taken, and their jobs have run and are on record."""
    door = Door(listener, secret)
    with looping(ledger, plugin, lane, workers) as loop:
        loop.ready.register(listener.fileno(), select.EPOLLIN)
        recorded, at_checkpoint = 0, loop.db.total_changes
        begun = used = 0.0
        while recorded < jobs:
            heard = [descriptor for descriptor, _ in loop.ready.poll()]
            if listener.fileno() in heard:
                client, _ = listener.accept()
                door.clients[client.fileno()] = client
                loop.ready.register(client.fileno(), select.EPOLLIN)
                continue
            if not begun:
                begun, used = time.monotonic(), time.process_time()
            endings = [ended(loop.running.pop(one), loop.ready) for one in heard if one in loop.running]
            with transaction(loop.db):
                now = datetime.now(UTC)
                came = {one: request for one in heard if one in door.clients and (request := door.came(one))}
                answers = {one: door.taken(request, loop.db, lane, now=now) for one, request in came.items()}
                claimed = loop.turn(endings, now=now)
            for one, answer in answers.items():
                door.clients[one].send(answer)
            loop.start(claimed)
            recorded += len(endings)
            at_checkpoint = checkpointed(loop.db, at_checkpoint)
        return Floor(jobs / (time.monotonic() - begun), (time.process_time() - used) * 1000 / jobs)


def checkpointed(db: sqlite3.Connection, at: int) -> int:
    """How many rows were written at the last checkpoint, which is now if it was long ago."""
    if db.total_changes - at <= CHECKPOINT_AFTER_ROWS:
        return at
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    return db.total_changes


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
