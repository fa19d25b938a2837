"""Model-based test: random histories must leave the ledger and a small model of it in the same state.

The normal run tries 2,000 histories, split so that they run in parallel; `scripts/model-check` sets
DUCTILE_MODEL_EXAMPLES to try more.
"""

import os
import sqlite3
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import pytest
from attrs import define, evolve, field
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from ductile.core.errors import WrongState
from ductile.core.model import (
    BranchResult,
    Completion,
    Dead,
    Evidence,
    Failed,
    FollowRule,
    FollowUps,
    Interrupted,
    Job,
    JoinInput,
    JoinRule,
    NewJob,
    Outcome,
    Retried,
    Skipped,
    Succeeded,
)
from ductile.ledger.admin.job_actions import cancel, retry
from ductile.ledger.admin.retention import RetentionPolicy, prune
from ductile.ledger.completion.record import Recorded, Stale, record
from ductile.ledger.completion.resolve_joins import resolve_ready_joins
from ductile.ledger.completion.start_run import start_run
from ductile.ledger.jobs.enqueue import enqueue
from ductile.ledger.queue.claim import claim
from ductile.ledger.queue.recover import recover_orphans
from ductile.ledger.storage.connections import transaction
from ductile.ledger.storage.open_file import schema

EXAMPLES = int(os.environ.get("DUCTILE_MODEL_EXAMPLES", "2000"))
PARTS = 8
TTL = timedelta(minutes=10)
KEEP = timedelta(minutes=30)
DELAY = timedelta(minutes=2)
PLUGINS = ("a", "b")
KEYS = st.sampled_from(["k", None, "k", "l"])
PICK = st.integers(0, 7)
MEMBERS = st.lists(st.tuples(st.sampled_from(PLUGINS), KEYS, st.booleans()), max_size=2)
FINAL = ("succeeded", "failed", "dead", "skipped")
BAD = ("failed", "dead")


@define
class ModelJob:
    """A job in the model."""

    id: str
    seq: int
    plugin: str
    key: str | None
    own_ttl: timedelta | None
    asked_at: datetime
    max_attempts: int
    parent: str | None
    root: str
    join: str | None = None
    is_join: bool = False
    tolerated: bool = False
    status: str = "queued"
    attempt: int = 1
    interruptions: int = 0
    recoveries: int = 0
    due_at: datetime | None = None
    cancelled: bool = False
    ended_at: datetime | None = None
    pruned: bool = False

    @property
    def scope(self) -> tuple[str, str] | None:
        return None if self.key is None else (self.plugin, self.key)


@define
class Model:
    """The state machine of the queue, without a database."""

    jobs: dict[str, ModelJob] = field(factory=dict)
    successes: dict[tuple[str, str], tuple[str, datetime]] = field(factory=dict)
    arrivals: list[tuple[str, str]] = field(factory=list)
    """(join, job) in order of arrival."""

    def open_in(self, root: str) -> int:
        return sum(job.root == root and job.status not in FINAL for job in self.jobs.values())

    def members_of(self, join: str) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.join == join]

    def waits_for(self, join: ModelJob) -> int:
        return sum(job.status not in FINAL for job in self.members_of(join.id)) if join.status == "queued" else 0

    def ready_joins(self) -> list[ModelJob]:
        """Oldest first."""
        joins = (job for job in self.jobs.values() if job.is_join and job.status == "queued")
        return sorted((join for join in joins if not self.waits_for(join)), key=lambda join: join.seq)

    def failed_members(self, join: str) -> int:
        return sum(job.status in BAD and not job.tolerated for job in self.members_of(join))

    def retry_job(self, job: ModelJob, now: datetime) -> None:
        """Retry the job and every failed enclosing join."""
        job.status, job.attempt, job.cancelled = "queued", job.attempt + 1, False
        job.asked_at, job.ended_at = now, None
        job.max_attempts = max(job.max_attempts, job.attempt - job.interruptions)
        join = self.jobs.get(job.join or "")
        if join is None or join.status not in ("queued", *BAD):
            return
        self.arrivals = [arrival for arrival in self.arrivals if arrival != (join.id, job.id)]
        if join.status in BAD:
            self.retry_job(join, now)

    def expired(self, cutoff: datetime) -> set[str]:
        """Return the jobs of trees that ended before `cutoff` and are not pruned."""
        recent = {job.root for job in self.jobs.values() if job.ended_at is None or job.ended_at >= cutoff}
        return {job.id for job in self.jobs.values() if job.root not in recent and not job.pruned}

    def duplicate_of(self, plugin: str, key: str | None, own_ttl: timedelta | None, now: datetime) -> str | None:
        if key is None:
            return None
        if own_ttl is not None:
            for job in self.jobs.values():
                if job.scope == (plugin, key) and job.status not in FINAL:
                    return job.id
        winner, at = self.successes.get((plugin, key), ("", now - TTL * 99))
        window = TTL if own_ttl is None else own_ttl
        return winner if now - window < at < now + window else None

    def ready(self, now: datetime, slots: dict[str, int]) -> list[ModelJob]:
        running = {job.scope for job in self.jobs.values() if job.status == "running" and job.scope}
        return [
            job
            for job in sorted(self.jobs.values(), key=lambda job: job.seq)
            if job.status == "queued"
            and (job.due_at is None or job.due_at <= now)
            and slots.get(job.plugin, 0) > 0
            and job.scope not in running
        ]

    def claim(self, now: datetime, slots: dict[str, int], limit: int) -> tuple[list[str], list[str]]:
        started: list[str] = []
        skipped: list[str] = []
        while len(started) < limit and (ready := self.ready(now, slots)):
            job = ready[0]
            if self._succeeded_since(job, now):
                self.end(job, "skipped", now)
                skipped.append(job.id)
            else:
                job.status, job.due_at = "running", None
                slots[job.plugin] -= 1
                started.append(job.id)
        return started, skipped

    def _succeeded_since(self, job: ModelJob, now: datetime) -> bool:
        if job.scope is None or job.scope not in self.successes:
            return False
        winner, at = self.successes[job.scope]
        window = TTL if job.own_ttl is None else job.own_ttl
        return winner != job.id and at >= max(job.asked_at, now - window)

    def end(self, job: ModelJob, status: str, now: datetime) -> None:
        job.status, job.due_at, job.ended_at = status, None, now
        if status == "succeeded" and job.scope:
            self.successes[job.scope] = (job.id, now)

    def requeue(self, job: ModelJob, due_at: datetime | None, *, counted: bool, now: datetime) -> str:
        """Requeue the job, unless it was cancelled or has no attempt left. Return its new status."""
        if job.cancelled or (counted and job.attempt - job.interruptions >= job.max_attempts):
            self.end(job, "dead", now)
        else:
            job.status, job.due_at, job.attempt = "queued", due_at, job.attempt + 1
            job.interruptions += not counted
        return job.status


@cache
def empty_ledger() -> bytes:
    db = sqlite3.connect(":memory:")
    db.executescript(schema())
    image = db.serialize()
    db.close()
    return image


def connect(image: bytes) -> sqlite3.Connection:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.deserialize(image)
    return db


class LedgerMachine(RuleBasedStateMachine):
    """Producers, a dispatcher, operators, time and crashes in any order."""

    made = Bundle("made")

    def __init__(self) -> None:
        super().__init__()
        self.db = connect(empty_ledger())
        self.model, self.now, self.runs = Model(), datetime(2026, 1, 1, tzinfo=UTC), 1

    def teardown(self) -> None:
        self.db.close()

    @property
    def run_id(self) -> str:
        return f"run-{self.runs}"

    def new(self, plugin: str, key: str | None, own: bool, attempts: int, parent: str | None, **inside: Any) -> NewJob:
        return NewJob(
            plugin=plugin,
            command="poll",
            submitted_by="model",
            dedupe_key=key,
            dedupe_ttl=TTL / 2 if own else None,
            max_attempts=attempts,
            parent_job_id=parent,
            **inside,
        )

    def track(self, new: NewJob, got: Any, expected: str | None) -> str:
        """Add a new job of the ledger to the model, or check that it found the expected duplicate."""
        if expected is not None:
            assert (got.deduplicated, got.job_id) == (True, expected)
            return expected
        assert got.is_new
        parent = self.model.jobs.get(new.parent_job_id or "")
        self.model.jobs[got.job_id] = ModelJob(
            got.job_id,
            len(self.model.jobs) + 1,
            new.plugin,
            new.dedupe_key,
            new.dedupe_ttl,
            self.now,
            new.max_attempts,
            parent.id if parent else None,
            parent.root if parent else got.job_id,
            new.join_id,
            new.is_join,
            new.tolerated,
        )
        assert got.root_job_id == self.model.jobs[got.job_id].root
        return str(got.job_id)

    @rule(target=made, plugin=st.sampled_from(PLUGINS), key=KEYS, own=st.sampled_from([False, False, True]))
    def enqueue(self, plugin: str, key: str | None, own: bool, attempts: int = 3) -> str:
        new = self.new(plugin, key, own, attempts, None)
        expected = self.model.duplicate_of(plugin, key, new.dedupe_ttl, self.now)
        with transaction(self.db):
            got = enqueue(self.db, new, now=self.now, default_ttl=TTL)
        return self.track(new, got, expected)

    @rule(target=made, plugin=st.sampled_from(PLUGINS), key=KEYS, attempts=st.integers(1, 2))
    def enqueue_with_few_attempts(self, plugin: str, key: str | None, attempts: int) -> str:
        return str(self.enqueue(plugin, key, False, attempts))

    @rule(limit=st.integers(1, 4))
    def dispatch_all(self, limit: int) -> None:
        self.dispatch(dict.fromkeys(PLUGINS, 3), limit)

    @rule(free=st.dictionaries(st.sampled_from(PLUGINS), st.integers(0, 3), min_size=1), limit=st.integers(0, 4))
    def dispatch(self, free: dict[str, int], limit: int) -> None:
        with transaction(self.db):
            got = claim(self.db, now=self.now, run_id=self.run_id, free=free, limit=limit, default_ttl=TTL)
        started, skipped = self.model.claim(self.now, dict(free), limit)
        assert [job.id for job in got.jobs] == started
        assert [ended.job_id for ended in got.skipped] == skipped
        assert [job.attempt for job in got.jobs] == [self.model.jobs[job_id].attempt for job_id in started]

    def ending(self, job: ModelJob, outcome: Outcome, attempt: int | None = None, **more: Any) -> Completion:
        return Completion(job_id=job.id, attempt=attempt or job.attempt, outcome=outcome, **more)

    def arrival(self, job: ModelJob) -> tuple[BranchResult, ...]:
        """Return the arrival of a job at its join, and add it to the model."""
        if job.join is None:
            return ()
        self.model.arrivals.append((job.join, job.id))
        return (BranchResult(join_id=job.join, payload=job.id),)

    def follow_up_rule(self) -> FollowRule:
        """Return a rule that adds one follow-up job, a member of the same join, to an unplanned failure."""
        self.follow_ups = list[NewJob]()

        def follow(job: Job, outcome: Outcome, now: datetime) -> FollowUps:
            self.follow_ups.append(self.new("a", None, False, 1, job.id, join_id=job.join_id))
            return FollowUps(children=(self.follow_ups[-1],))

        return follow

    def track_follow_ups(self, ended: Recorded) -> None:
        for child in ended.children:
            self.track(self.follow_ups.pop(0), child, None)

    def evidence(self) -> Evidence:
        return Evidence(started_at=self.now, duration=timedelta(0))

    def any_running(self) -> bool:
        return any(job.status == "running" for job in self.model.jobs.values())

    def pick_running(self, pick: int) -> ModelJob:
        running = [job for job in self.model.jobs.values() if job.status == "running"]
        return running[pick % len(running)]

    def succeed_with(self, job: ModelJob, news: list[NewJob], arrivals: tuple[BranchResult, ...] = ()) -> list[str]:
        with transaction(self.db):
            ending = self.ending(job, Succeeded(self.evidence()), children=tuple(news), arrivals=arrivals)
            got = record(self.db, ending, now=self.now, default_ttl=TTL)
        assert not isinstance(got, Stale)
        self.model.end(job, "succeeded", self.now)
        made = [
            self.track(new, child, self.model.duplicate_of(new.plugin, new.dedupe_key, None, self.now))
            for new, child in zip(news, got.children, strict=True)
        ]
        assert got.tree_is_done == (self.model.open_in(job.root) == 0)
        return made

    @precondition(any_running)
    @rule(pick=PICK, children=st.lists(st.tuples(st.sampled_from(PLUGINS), KEYS), max_size=2), arrives=st.booleans())
    def succeed(self, pick: int, children: list[tuple[str, str | None]], arrives: bool) -> None:
        """Its children are members of its join, or it arrives there and they are not."""
        job = self.pick_running(pick)
        join = None if arrives else job.join
        news = [self.new(plugin, key, False, 2, job.id, join_id=join) for plugin, key in children]
        self.succeed_with(job, news, self.arrival(job) if arrives else ())

    @precondition(any_running)
    @rule(target=made, pick=PICK, members=MEMBERS, inner=st.none() | MEMBERS)
    def fan_out(
        self, pick: int, members: list[tuple[str, str | None, bool]], inner: list[tuple[str, str | None, bool]] | None
    ) -> MultipleResults[str]:
        """Into a join, with or without an inner join."""
        job = self.pick_running(pick)
        return multiple(*self.succeed_with(job, self.joined(job.id, job.join, members, inner)))

    @rule(target=made, members=MEMBERS, inner=MEMBERS)
    def start_run_with_joins(
        self, members: list[tuple[str, str | None, bool]], inner: list[tuple[str, str | None, bool]]
    ) -> MultipleResults[str]:
        root = self.new("b", None, False, 1, None, id=f"root-{len(self.model.jobs)}")
        news = [root, *self.joined(None, None, members, inner)]
        with transaction(self.db):
            got = start_run(self.db, FollowUps(children=tuple(news)), now=self.now, default_ttl=TTL)
        made = [self.track(root, got[0], None)]
        for new, child in zip(news[1:], got[1:], strict=True):
            duplicate = self.model.duplicate_of(new.plugin, new.dedupe_key, None, self.now)
            made.append(self.track(evolve(new, parent_job_id=root.id), child, duplicate))
        return multiple(*made)

    def joined(
        self,
        parent: str | None,
        around: str | None,
        members: list[tuple[str, str | None, bool]],
        inner: list[tuple[str, str | None, bool]] | None,
    ) -> list[NewJob]:
        """Return the members of a join and the join, with or without an inner join and its members."""
        outside = f"join-{len(self.model.jobs)}"
        inside = f"{outside}-inside"
        news = self.members(parent, outside, members)
        if inner is not None:
            news += [*self.members(parent, inside, inner), self.join(parent, inside, outside)]
        return [*news, self.join(parent, outside, around)]

    def members(self, parent: str | None, join: str, wanted: list[tuple[str, str | None, bool]]) -> list[NewJob]:
        return [
            self.new(plugin, key, False, 1, parent, join_id=join, tolerated=tolerated)
            for plugin, key, tolerated in wanted
        ]

    def join(self, parent: str | None, join: str, around: str | None) -> NewJob:
        return self.new("core.join", None, False, 1, parent, id=join, is_join=True, join_id=around)

    def any_join_ready(self) -> bool:
        return bool(self.model.ready_joins())

    @precondition(any_join_ready)
    @rule(limit=st.sampled_from([1, 500]), kind=st.sampled_from(["arrive", "arrive", "follow", "raise"]))
    def resolve_joins(self, limit: int, kind: str) -> None:
        seen: list[JoinInput] = []
        with transaction(self.db):
            got = resolve_ready_joins(self.db, self.decision(kind, seen), now=self.now, default_ttl=TTL, limit=limit)
        for ended, joined in zip(got, seen, strict=True):
            join = self.model.ready_joins()[0]
            assert (ended.job_id, joined.job.id) == (join.id, join.id)
            assert joined.failed == self.model.failed_members(join.id)
            assert [arrival.payload for arrival in joined.arrivals] == [
                job_id for join_id, job_id in self.model.arrivals if join_id == join.id
            ]
            self.model.end(join, self.expected(join, kind), self.now)
            assert ended.status == join.status
            if join.status == "succeeded" and kind == "arrive":
                self.arrival(join)
            for child in ended.children:
                self.track(self.new("a", None, False, 1, join.id, join_id=join.join), child, None)
            assert ended.tree_is_done == (self.model.open_in(join.root) == 0)
        assert len(got) == limit or self.model.ready_joins() == []

    def expected(self, join: ModelJob, kind: str) -> str:
        if kind == "raise":
            return "dead"
        return "failed" if self.model.failed_members(join.id) else "succeeded"

    def decision(self, kind: str, seen: list[JoinInput]) -> JoinRule:
        def decide(joined: JoinInput, now: datetime) -> tuple[Outcome, FollowUps]:
            seen.append(joined)
            if kind == "raise":
                raise ValueError("no")
            if joined.failed:
                return Failed("no"), FollowUps()
            around = joined.job.join_id
            if kind == "follow":
                child = self.new("a", None, False, 1, joined.job.id, join_id=around)
                return Succeeded(self.evidence()), FollowUps(children=(child,))
            arrivals = (BranchResult(join_id=around, payload=joined.job.id),) if around else ()
            return Succeeded(self.evidence()), FollowUps(arrivals=arrivals)

        return decide

    @precondition(any_running)
    @rule(pick=PICK, kind=st.sampled_from(["failed", "dead", "skipped"]))
    def end_with(self, pick: int, kind: str) -> None:
        job = self.pick_running(pick)
        outcomes: dict[str, Outcome] = {"failed": Failed("no"), "dead": Dead("no"), "skipped": Skipped("no")}
        arrivals = self.arrival(job) if job.tolerated and kind in BAD else ()
        with transaction(self.db):
            got = record(self.db, self.ending(job, outcomes[kind], arrivals=arrivals), now=self.now)
        assert not isinstance(got, Stale)
        self.model.end(job, kind, self.now)

    @precondition(any_running)
    @rule(pick=PICK, counted=st.booleans(), delayed=st.booleans())
    def fail_or_interrupt(self, pick: int, counted: bool, delayed: bool) -> None:
        job = self.pick_running(pick)
        outcome: Outcome = Retried("no", DELAY if delayed else timedelta(0)) if counted else Interrupted("drain")
        with transaction(self.db):
            got = record(self.db, self.ending(job, outcome, rule=self.follow_up_rule()), now=self.now)
        assert not isinstance(got, Stale)
        due_at = self.now + DELAY if counted and delayed else None
        assert got.status == self.model.requeue(job, due_at, counted=counted, now=self.now)
        assert len(got.children) == (got.status == "dead")
        self.track_follow_ups(got)

    @rule(job_id=made, outcome=st.sampled_from([Failed("late"), Retried("late", DELAY), Interrupted("late")]))
    def complete_a_job_that_does_not_run(self, job_id: str, outcome: Outcome) -> None:
        job = self.model.jobs[job_id]
        if job.status != "running":
            with transaction(self.db):
                assert isinstance(record(self.db, self.ending(job, outcome), now=self.now), Stale)

    @rule(job_id=made)
    def complete_another_attempt(self, job_id: str) -> None:
        job = self.model.jobs[job_id]
        with transaction(self.db):
            got = record(self.db, self.ending(job, Succeeded(self.evidence()), job.attempt + 1), now=self.now)
        assert isinstance(got, Stale)

    @precondition(any_running)
    @rule(pick=PICK)
    def cancel_a_running_job(self, pick: int) -> None:
        self.cancel(self.pick_running(pick).id)

    @rule(job_id=made)
    def cancel(self, job_id: str) -> None:
        job = self.model.jobs[job_id]
        if job.status in FINAL:
            with pytest.raises((WrongState,)), transaction(self.db):
                cancel(self.db, job_id, "operator", now=self.now)
            return
        with transaction(self.db):
            ended = cancel(self.db, job_id, "operator", now=self.now, rule=self.follow_up_rule())
        if job.status == "running":
            job.cancelled = True
        else:
            assert isinstance(ended, Recorded)
            self.model.end(job, "dead", self.now)
            assert len(ended.children) == (not job.is_join)
            self.track_follow_ups(ended)

    def any_failed(self) -> bool:
        return any(job.status in BAD and not job.pruned for job in self.model.jobs.values())

    @precondition(any_failed)
    @rule(pick=PICK)
    def retry_job(self, pick: int) -> None:
        failed = [job for job in self.model.jobs.values() if job.status in BAD and not job.pruned]
        job = failed[pick % len(failed)]
        with transaction(self.db):
            retry(self.db, job.id, now=self.now)
        self.model.retry_job(job, self.now)

    @rule(minutes=st.sampled_from([1, 3, 11, 40]))
    def time_passes(self, minutes: int) -> None:
        self.now += timedelta(minutes=minutes)

    @rule(free=st.integers(1, 3))
    def crash(self, free: int) -> None:
        """Kill the process in a transaction. The next run opens the committed state and recovers."""
        image = self.db.serialize()
        self.db.execute("BEGIN IMMEDIATE")
        resolve_ready_joins(self.db, self.decision("follow", []), now=self.now)
        claim(self.db, now=self.now, run_id=self.run_id, free=dict.fromkeys(PLUGINS, free), limit=free)
        self.db.close()
        self.db, self.runs = connect(image), self.runs + 1
        with transaction(self.db):
            got = recover_orphans(
                self.db, run_id=self.run_id, now=self.now, default_ttl=TTL, rule=self.follow_up_rule()
            )
        orphans = sorted((job for job in self.model.jobs.values() if job.status == "running"), key=lambda job: job.seq)
        assert [job.job_id for job in got] == [job.id for job in orphans]
        for job, ended in zip(orphans, got, strict=True):
            backoff = timedelta(seconds=30) * 2 ** (job.recoveries - 1) if job.recoveries else None
            job.recoveries += 1
            self.model.requeue(job, self.now + backoff if backoff else None, counted=True, now=self.now)
            assert isinstance(ended, Recorded)
            assert len(ended.children) == (ended.status == "dead")
            self.track_follow_ups(ended)

    @rule(limit=st.sampled_from([1, 500]))
    def prune(self, limit: int) -> None:
        expired = self.model.expired(self.now - KEEP)
        with transaction(self.db):
            prune(self.db, RetentionPolicy(job_queue=KEEP), now=self.now, limit=limit)
        left = {job_id for (job_id,) in self.db.execute("SELECT id FROM job_queue")}
        gone = {job.id for job in self.model.jobs.values() if not job.pruned} - left
        assert gone <= expired, "only trees that ended long enough ago"
        assert gone == expired or limit < len(expired)
        for job_id in gone:
            self.model.jobs[job_id].pruned = True
        self.model.arrivals = [arrival for arrival in self.model.arrivals if arrival[0] not in gone]
        split = {job.root for job in self.model.jobs.values() if job.pruned}
        assert not any(job.root in split and not job.pruned for job in self.model.jobs.values()), "whole trees"

    @invariant()
    def ledger_and_model_have_the_same_jobs(self) -> None:
        rows = self.db.execute(
            "SELECT id, status, attempt, interruptions, max_attempts, root_job_id, cancel_requested_at IS NOT NULL"
            "  FROM job_queue ORDER BY seq"
        ).fetchall()
        expected = [
            (job.id, job.status, job.attempt, job.interruptions, job.max_attempts, job.root)
            for job in sorted(self.model.jobs.values(), key=lambda job: job.seq)
            if not job.pruned
        ]
        assert [row[:6] for row in rows] == expected

    @invariant()
    def every_tree_counts_its_open_jobs(self) -> None:
        for root, open_jobs, done_at in self.db.execute(
            "SELECT id, open_jobs, tree_completed_at FROM job_queue WHERE root_job_id = id"
        ):
            assert open_jobs == self.model.open_in(root)
            assert (done_at is not None) == (open_jobs == 0)

    @invariant()
    def every_join_counts_its_open_members(self) -> None:
        for join, waits_for, lane in self.db.execute("SELECT id, waits_for, lane FROM job_queue WHERE is_join = 1"):
            job = self.model.jobs[join]
            assert waits_for == self.model.waits_for(job)
            assert lane == ("core.join" if job.status == "queued" and waits_for == 0 else None)

    @invariant()
    def arrivals_are_stored_in_order(self) -> None:
        assert self.db.execute("SELECT join_id, job_id FROM arrivals ORDER BY seq").fetchall() == self.model.arrivals

    @invariant()
    def no_job_waits_for_a_free_key(self) -> None:
        stuck = self.db.execute(
            "SELECT id FROM job_queue AS waiter WHERE waits_for_key = 1 AND NOT EXISTS ("
            " SELECT 1 FROM job_queue AS other WHERE other.plugin = waiter.plugin"
            "    AND other.dedupe_key = waiter.dedupe_key AND other.status IN ('queued', 'running')"
            "    AND other.waits_for_key = 0 AND other.next_retry_at IS NULL)"
        ).fetchall()
        assert stuck == []

    @invariant()
    def the_journal_ends_with_the_current_status(self) -> None:
        last = dict(self.db.execute("SELECT job_id, to_status FROM job_transitions ORDER BY id").fetchall())
        for job_id, status in self.db.execute("SELECT id, status FROM job_queue"):
            assert last[job_id] == status

    @invariant()
    def every_finished_attempt_has_one_row(self) -> None:
        for job_id, count in self.db.execute(
            "SELECT queue.id, (SELECT COUNT(*) FROM job_log WHERE job_log.job_id = queue.id) FROM job_queue AS queue"
        ):
            job = self.model.jobs[job_id]
            assert count == (job.attempt if job.status in FINAL else job.attempt - 1)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_ledger_and_model_agree_after_any_history(part: int) -> None:
    """Enqueue, dedupe, claim, completions, joins, retry, cancel, crash and prune behave as in the model."""
    run_state_machine_as_test(
        LedgerMachine,
        settings=settings(
            max_examples=-(-EXAMPLES // PARTS),
            stateful_step_count=25,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
