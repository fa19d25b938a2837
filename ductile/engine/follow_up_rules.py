"""Rules that the ledger applies when only its transaction determines how a job ended.

Each rule is a function of one configuration. `pipeline.run` makes the decisions.
"""

from collections.abc import Iterable
from datetime import datetime
from functools import lru_cache

from ductile.config.snapshot import Snapshot
from ductile.core.model import (
    Breaker,
    BreakerChange,
    BreakerRule,
    Dead,
    Failed,
    FollowRule,
    FollowUps,
    GateRule,
    Interrupted,
    Job,
    JobStatus,
    JoinInput,
    JoinRule,
    Note,
    Outcome,
    Retried,
    Skipped,
    Succeeded,
)
from ductile.engine import breaker
from ductile.ledger.completion.ended_runs import signal_ended_runs
from ductile.ledger.completion.record import Recorded
from ductile.ledger.storage.db import Db
from ductile.pipeline.run.events import JobResult
from ductile.pipeline.run.route import TooManyFollowUps, compute_follow_ups, resolve_join
from ductile.pipeline.run.run_signals import run_rule_of


def follow_up_rule_of(snapshot: Snapshot) -> FollowRule:
    """Return the rule that computes the follow-up jobs of a final outcome: `on_error` steps and hooks."""

    def decide(job: Job, outcome: Outcome, now: datetime) -> FollowUps:
        try:
            return compute_follow_ups(job, ended_of(outcome), (), snapshot.routing, now=now)
        except TooManyFollowUps as error:
            return FollowUps(notes=(Note(kind="run.ended", data={"reason": str(error)}),), tolerated=False)

    return decide


def join_rule_of(snapshot: Snapshot) -> JoinRule:
    """Return the rule that resolves a join and computes its follow-up jobs."""

    def decide(joined: JoinInput, now: datetime) -> tuple[Outcome, FollowUps]:
        return resolve_join(joined, snapshot.routing, now=now)

    return decide


def signal_runs(db: Db, results: Iterable[object], snapshot: Snapshot, *, now: datetime) -> None:
    """Signal the runs whose last job is among these results. Call it in the transaction that recorded them."""
    ended = [result.root_job_id for result in results if isinstance(result, Recorded) and result.tree_is_done]
    if ended:
        ttl, budget = snapshot.config.settings.service.dedupe_ttl, snapshot.budget
        signal_ended_runs(db, ended, run_rule_of(snapshot.routing), now=now, default_ttl=ttl, budget=budget)


def breaker_rule_of(snapshot: Snapshot) -> BreakerRule:
    """Return the rule that computes the breaker of a command after one of its jobs has ended."""

    def decide(known: Breaker, job: Job, status: JobStatus, now: datetime) -> BreakerChange | None:
        configured = snapshot.plugins.get(job.plugin)
        if configured is None:
            return None
        return breaker.completion_rule(configured.entry.circuit_breaker)(known, job, status, now)

    return decide


@lru_cache(maxsize=2)
def gates_of(snapshot: Snapshot) -> dict[str, GateRule]:
    """Return the start rules of plugins whose breakers apply to all jobs. Cached, because every claim needs them."""
    rules = ((name, breaker.gate(configured.entry.circuit_breaker)) for name, configured in snapshot.plugins.items())
    return {name: rule for name, rule in rules if rule is not None}


def ended_of(outcome: Outcome, result: str | None = None) -> JobResult:
    """Return a final outcome as follow-up jobs see it."""
    match outcome:
        case Succeeded(evidence):
            return JobResult(status=JobStatus.SUCCEEDED, duration=evidence.duration, result=result)
        case Skipped(reason):
            return JobResult(status=JobStatus.SKIPPED, error=reason)
        case Failed(error, evidence) | Dead(error, evidence):
            return JobResult(
                status=JobStatus.FAILED if isinstance(outcome, Failed) else JobStatus.DEAD,
                error=error,
                timed_out=evidence is not None and evidence.timed_out,
                duration=evidence.duration if evidence else None,
                result=result,
            )
        case Retried() | Interrupted():
            raise AssertionError("an attempt that is retried has no follow-up jobs")
