"""A real ledger file for every test, and a driver that does the work of producers, dispatcher and engine on it."""

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ductile.core.model import (
    Completion,
    Evidence,
    Failed,
    FollowUps,
    Job,
    JoinInput,
    JoinRule,
    NewJob,
    Outcome,
    Succeeded,
)
from ductile.ledger.completion.record import Recorded, Stale, record
from ductile.ledger.completion.resolve_joins import resolve_ready_joins
from ductile.ledger.jobs.enqueue import Enqueued, enqueue
from ductile.ledger.queue.claim import Claimed, claim
from ductile.ledger.storage.connections import transaction
from ductile.ledger.storage.open_file import open_writer
from tests.ledger.recording import record_and_claim

START = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)


class LedgerDriver:
    """A ledger on which every call is one transaction at the time `now`. `advance` changes the time."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db, self.now, self.run_id = db, START, "run-1"

    def advance(self, **span: float) -> datetime:
        self.now += timedelta(**span)
        return self.now

    def new(self, **values: Any) -> NewJob:
        return NewJob(**{"plugin": "echo", "command": "poll", "submitted_by": "test", **values})

    def enqueue(self, **values: Any) -> Enqueued:
        with transaction(self.db):
            return enqueue(self.db, self.new(**values), now=self.now)

    def claim(self, limit: int = 100, **free: int) -> Claimed:
        with transaction(self.db):
            return claim(self.db, now=self.now, run_id=self.run_id, free=free or {"echo": 100}, limit=limit)

    def claim_one(self, plugin: str = "echo") -> Job:
        (job,) = self.claim(1, **{plugin: 1}).jobs
        return job

    def evidence(self, **values: Any) -> Evidence:
        return Evidence(**{"started_at": self.now, "duration": timedelta(seconds=1), "exit_code": 0, **values})

    def end(self, job: Job, outcome: Outcome | None = None, **more: Any) -> Recorded | Stale:
        with transaction(self.db):
            return record(
                self.db,
                Completion(
                    job_id=job.id, attempt=job.attempt, outcome=outcome or Succeeded(self.evidence(result="{}")), **more
                ),
                now=self.now,
            )

    def record_and_claim(
        self, *endings: Completion, rule: JoinRule | None = None, **free: int
    ) -> tuple[list[Recorded | Stale], Claimed]:
        """Record completions, resolve joins and claim, as the dispatcher does."""
        with transaction(self.db):
            return record_and_claim(
                self.db,
                endings,
                now=self.now,
                run_id=self.run_id,
                free=free,
                limit=100,
                join_rule=rule or fail_on_any_failure(),
            )

    def join(self, job_id: str = "J", **values: Any) -> NewJob:
        return self.new(id=job_id, plugin="core.join", command="handle", is_join=True, **values)

    def fan_out(self, *children: NewJob) -> Job:
        """Return a root job that has ended with these children."""
        self.enqueue(plugin="root")
        root = self.claim_one("root")
        self.end(root, children=children)
        return root

    def resolve_joins(self, rule: JoinRule | None = None, **more: Any) -> list[Recorded]:
        with transaction(self.db):
            return resolve_ready_joins(self.db, rule or fail_on_any_failure(), now=self.now, **more)

    def row(self, job_id: str) -> dict[str, Any]:
        cursor = self.db.execute("SELECT * FROM job_queue WHERE id = ?", (job_id,))
        names = [column[0] for column in cursor.description]
        return dict(zip(names, cursor.fetchone(), strict=True))

    def journal_kinds(self) -> list[str]:
        return [kind for (kind,) in self.db.execute("SELECT kind FROM journal ORDER BY seq")]

    def statuses(self) -> list[str]:
        return [status for (status,) in self.db.execute("SELECT status FROM job_queue ORDER BY seq")]


def fail_on_any_failure(follow: Callable[[JoinInput], FollowUps] = lambda joined: FollowUps()) -> JoinRule:
    """Return a rule: a join fails if a member failed. Else its result is the arrivals, and `follow` adds follow-ups."""

    def decide(joined: JoinInput, now: datetime) -> tuple[Outcome, FollowUps]:
        if joined.failed:
            return Failed(f"{joined.failed} failed: {'; '.join(joined.failures)}"), FollowUps()
        result = json.dumps([json.loads(arrival.payload) for arrival in joined.arrivals])
        return Succeeded(Evidence(started_at=now, duration=timedelta(0), result=result)), follow(joined)

    return decide


def result_of(ledger: LedgerDriver, job_id: str) -> Sequence[Any]:
    """Return the result of the last attempt of a job, parsed as JSON."""
    statement = "SELECT result FROM job_log WHERE job_id = ? ORDER BY attempt DESC"
    found: Sequence[Any] = json.loads(ledger.db.execute(statement, (job_id,)).fetchone()[0])
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ductile.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_writer(path, synchronous="off")) as connection:
        yield connection


@pytest.fixture
def ledger(db: sqlite3.Connection) -> LedgerDriver:
    return LedgerDriver(db)
