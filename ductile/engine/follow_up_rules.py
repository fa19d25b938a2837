"""The rules by which the ledger decides what follows, where it learns only inside a transaction how a job ended.

All are functions of one configuration; what they decide is the pipeline room's business.
"""

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
from ductile.pipeline.run.events import Ended
from ductile.pipeline.run.route import TooManyFollowUps, after, after_join


def rule_of(snapshot: Snapshot) -> FollowRule:
    """What follows from an ending under this configuration: `on_error` steps and hooks."""

    def decide(job: Job, outcome: Outcome, now: datetime) -> FollowUps:
        try:
            return after(job, ended_of(outcome), (), snapshot.world, now=now)
        except TooManyFollowUps as error:
            return FollowUps(notes=(Note(kind="run.ended", data={"reason": str(error)}),), tolerated=False)

    return decide


def join_rule_of(snapshot: Snapshot) -> JoinRule:
    """How a join ends under this configuration, and where its run goes on."""

    def decide(joined: JoinInput, now: datetime) -> tuple[Outcome, FollowUps]:
        return after_join(joined, snapshot.world, now=now)

    return decide


def breaker_rule_of(snapshot: Snapshot) -> BreakerRule:
    """What the end of any job does to the breaker of its command, as far as that concerns it."""

    def decide(known: Breaker, job: Job, status: JobStatus, now: datetime) -> BreakerChange | None:
        lane = snapshot.lanes.get(job.plugin)
        return None if lane is None else breaker.rule(lane.entry.circuit_breaker)(known, job, status, now)

    return decide


@lru_cache(maxsize=2)
def gates_of(snapshot: Snapshot) -> dict[str, GateRule]:
    """Return the plugins whose breakers hold every job, with the rule. Cached: every claim asks."""
    rules = ((name, breaker.gate(lane.entry.circuit_breaker)) for name, lane in snapshot.lanes.items())
    return {name: rule for name, rule in rules if rule is not None}


def ended_of(outcome: Outcome, result: str | None = None) -> Ended:
    """A final outcome as those see it who come after it."""
    match outcome:
        case Succeeded(evidence):
            return Ended(status=JobStatus.SUCCEEDED, duration=evidence.duration, result=result)
        case Skipped(reason):
            return Ended(status=JobStatus.SKIPPED, error=reason)
        case Failed(error, evidence) | Dead(error, evidence):
            return Ended(
                status=JobStatus.FAILED if isinstance(outcome, Failed) else JobStatus.DEAD,
                error=error,
                timed_out=evidence is not None and evidence.timed_out,
                duration=evidence.duration if evidence else None,
                result=result,
            )
        case Retried() | Interrupted():
            raise AssertionError("only what is over has consequences")
