"""Value types shared by every layer: jobs, attempt outcomes, follow-ups, joins and breakers.

Frozen values without behaviour beyond their own fields. Payloads, results and states are JSON text that was validated
by the producer and is never parsed here.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, TypeVar

from attrs import evolve, field, frozen

from ductile.core.statuses import AttemptStatus as AttemptStatus
from ductile.core.statuses import BreakerState as BreakerState
from ductile.core.statuses import JobStatus as JobStatus
from ductile.core.statuses import OutcomeCode as OutcomeCode

CORE, RELAY, PUBLISH = "core.", "core.relay", "core.publish"
HANDLE = "handle"
"""The command that receives an event."""
PROCESSLESS_SLOTS: Mapping[str, int] = MappingProxyType({RELAY: 16, PUBLISH: 16})
"""How many jobs of the core's own plugins may run at the same time. They start no process and take no worker slot."""


def is_control_plugin(plugin: str) -> bool:
    """True for the core's own bookkeeping jobs: starts, switches and joins. Relays and messages are not: they run."""
    return plugin.startswith(CORE) and plugin not in PROCESSLESS_SLOTS


NO_DATA: Mapping[str, Any] = MappingProxyType({})


@frozen
class Budget:
    """Limits of one job tree: hops in a chain, jobs in the tree."""

    hops: int = 20
    tree_jobs: int = 10_000


@frozen(kw_only=True)
class Prefinished:
    """The final state of a job that is inserted as finished, such as a decided switch."""

    status: JobStatus
    result: str | None = field(default=None, repr=False)
    error: str | None = None
    code: OutcomeCode = OutcomeCode.DECIDED
    data: Mapping[str, Any] = NO_DATA


@frozen(kw_only=True)
class NewJob:
    """A job to be enqueued; `ledger.queue.enqueue` is the only way in.

    `child_key` distinguishes the children of one parent: event, pipeline run, call-frame path, step, foreach index.
    A job with `own_tree` is a root although it has a parent (a hook run). With a `dedupe_ttl` the job is also a
    duplicate of one that is still queued or running. `join_id` is the innermost join it is a member of; a row that
    `is_join` runs nothing and waits for its members. A `tolerated` job may fail without failing its tree or its join.
    """

    plugin: str
    command: str
    submitted_by: str
    payload: str | None = field(default=None, repr=False)
    max_attempts: int = 4
    id: str | None = None
    dedupe_key: str | None = None
    dedupe_ttl: timedelta | None = None
    parent_job_id: str | None = None
    own_tree: bool = False
    child_key: str | None = None
    source_event_id: str | None = None
    event_context_id: str | None = None
    pipeline: str | None = None
    step_id: str | None = None
    schedule_id: str | None = None
    slot_at: datetime | None = None
    hops: int = 0
    snapshot_id: str | None = None
    notify: bool = False
    replay_of: str | None = None
    join_id: str | None = None
    is_join: bool = False
    tolerated: bool = False
    prefinished: Prefinished | None = None
    actor: str | None = None
    """The caller that requested the job; None if its producer (`submitted_by`) did."""


@frozen(kw_only=True)
class Job:
    """A row of the queue. `(id, attempt)` is the fencing token of a claim.

    `context` is the baggage of `event_context_id`, read together with the row.
    """

    id: str
    plugin: str
    command: str
    status: JobStatus
    attempt: int
    max_attempts: int
    submitted_by: str
    created_at: datetime
    payload: str | None = field(default=None, repr=False)
    dedupe_key: str | None = None
    parent_job_id: str | None = None
    root_job_id: str = ""
    seq: int = 0
    interruptions: int = 0
    recoveries: int = 0
    started_at: datetime | None = None
    completed_at: datetime | None = None
    next_retry_at: datetime | None = None
    last_error: str | None = None
    dedupe_ttl: timedelta | None = None
    child_key: str | None = None
    source_event_id: str | None = None
    event_context_id: str | None = None
    pipeline: str | None = None
    step_id: str | None = None
    schedule_id: str | None = None
    slot_at: datetime | None = None
    hops: int = 0
    enqueued_snapshot_id: str | None = None
    started_snapshot_id: str | None = None
    notify: bool = False
    replay_of: str | None = None
    cancel_requested_at: datetime | None = None
    cancel_reason: str | None = None
    join_id: str | None = None
    is_join: bool = False
    tolerated: bool = False
    outcome_code: str | None = None
    """Why the job ended; None while it is open."""
    actor: str | None = None
    """Who caused the run of the job; None for rows of older ledgers."""
    context: str | None = field(default=None, repr=False)

    @property
    def tries(self) -> int:
        """Attempts that count against `max_attempts`, including the current one."""
        return self.attempt - self.interruptions

    @property
    def is_root(self) -> bool:
        return self.root_job_id == self.id


@frozen(kw_only=True)
class Evidence:
    """The exit data and output of one plugin run."""

    started_at: datetime
    duration: timedelta
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    result: str | None = field(default=None, repr=False)
    stderr: str | None = field(default=None, repr=False)
    plugin_fingerprint: str | None = None
    """One hash over the files of the plugin that ran."""
    plugin_changes: Mapping[str, str | None] = NO_DATA
    """The hash of each of its files that differed from the loaded ones; None if it was missing."""


@frozen
class Succeeded:
    """The attempt succeeded."""

    evidence: Evidence
    code: OutcomeCode = OutcomeCode.ANSWERED_OK
    data: Mapping[str, Any] = NO_DATA


@frozen
class Retried:
    """The attempt failed or timed out; the job is queued again after `delay`."""

    error: str
    delay: timedelta
    evidence: Evidence | None = None
    data: Mapping[str, Any] = NO_DATA
    """`limit_key`, if a limit caused the failure."""


@frozen
class Failed:
    """The attempt failed and a retry would not help. `code` is the rule that decided it, `data` its values."""

    error: str
    evidence: Evidence | None = None
    code: OutcomeCode = OutcomeCode.FINAL
    data: Mapping[str, Any] = NO_DATA


@frozen
class Dead:
    """The job is given up. `code` is the cause: attempts exhausted, cancelled, plugin removed, budget exceeded."""

    error: str
    evidence: Evidence | None = None
    code: OutcomeCode = OutcomeCode.GIVEN_UP
    data: Mapping[str, Any] = NO_DATA


@frozen
class Skipped:
    """The job was decided not to run."""

    reason: str
    code: OutcomeCode = OutcomeCode.SKIPPED
    data: Mapping[str, Any] = NO_DATA


@frozen
class Interrupted:
    """The drain ended the attempt; the job is queued again and the attempt does not count."""

    reason: str
    evidence: Evidence | None = None


Outcome = Succeeded | Retried | Failed | Dead | Skipped | Interrupted


def cancelled(reason: str | None, evidence: Evidence | None = None) -> Dead:
    """Return the outcome of a job that the operator ended."""
    return Dead(f"cancelled: {reason}", evidence, OutcomeCode.CANCELLED, {"reason": reason})


def attempts_used_up(job: "Job", error: str | None, evidence: Evidence | None = None) -> Dead:
    """Return the outcome of a job whose last attempt failed with `error`."""
    data = {"attempts": job.tries, "max_attempts": job.max_attempts, "error": error}
    text = f"attempts used up ({job.tries} of {job.max_attempts}): {error}"
    return Dead(text, evidence, OutcomeCode.ATTEMPTS_USED_UP, data)


_Failure = TypeVar("_Failure", Failed, Dead)


def with_problem(outcome: _Failure, problem: str) -> _Failure:
    """Return the same outcome with a second problem, which its follow-up jobs have."""
    data = {**outcome.data, "problem": problem}
    return evolve(outcome, error=f"{outcome.error}; {problem}", data=data)


@frozen(kw_only=True)
class NewContext:
    """A new baggage row. The producer chooses the id, so that jobs of the same transaction can refer to it."""

    id: str
    parent_id: str | None = None
    pipeline_name: str | None = None
    step_id: str | None = None
    accumulated_json: str = field(default="{}", repr=False)


@frozen(kw_only=True)
class NewFact:
    """An observation of a plugin. A `mirrored` fact also replaces the plugin's state."""

    fact_type: str
    fact_json: str = field(repr=False)
    mirrored: bool = False


@frozen(kw_only=True)
class Note:
    """A journal entry: something that happened, or was decided not to happen."""

    kind: str
    data: Mapping[str, Any]
    plugin: str | None = None
    job_id: str | None = None


@frozen(kw_only=True)
class BranchResult:
    """The payload with which a branch reached its join."""

    join_id: str
    item: int = 0
    branch: int = 0
    payload: str = field(repr=False)


@frozen(kw_only=True)
class FollowUps:
    """Rows to write in the transaction that finishes a job. Members of a join come before the join."""

    contexts: tuple[NewContext, ...] = ()
    children: tuple[NewJob, ...] = ()
    arrivals: tuple[BranchResult, ...] = ()
    notes: tuple[Note, ...] = ()
    tolerated: bool | None = None
    """Overrides the job's `tolerated` column: whether the run continues after this failure. None keeps the column."""


FollowRule = Callable[[Job, Outcome, datetime], FollowUps]
"""Derives the follow-ups of a final outcome that is known only inside the transaction."""


@frozen(kw_only=True)
class JoinInput:
    """A join whose members have all finished: the branch results in order, and the number of untolerated failures.

    `failures` lists the first of them as "step_id: error".
    """

    job: Job
    arrivals: tuple[BranchResult, ...] = ()
    failures: tuple[str, ...] = ()
    failed: int = 0


JoinRule = Callable[[JoinInput, datetime], tuple[Outcome, FollowUps]]
"""Decides the outcome of a join and its follow-ups."""


@frozen(kw_only=True)
class FailedJob:
    """A job that made its run fail. `code` is its outcome code; None for a job of an older version."""

    id: str
    plugin: str
    command: str
    step_id: str | None
    status: JobStatus
    error: str | None
    code: str | None


@frozen(kw_only=True)
class EndedRun:
    """A run whose last job has just ended. `failures` lists the first failed jobs, causes first.

    `failed` counts the jobs that ended failed or dead and that no step tolerates; `cancelled` is how many of them an
    operator or a schedule cancelled.
    """

    root: Job
    jobs: int
    ended_at: datetime
    failures: tuple[FailedJob, ...] = ()
    failed: int = 0
    cancelled: int = 0


@frozen(kw_only=True)
class RunRule:
    """Derives what follows from the end of a run. Runs without failed jobs are passed only with `on_success`."""

    decide: Callable[[EndedRun], FollowUps]
    on_success: bool = False


@frozen(kw_only=True)
class Breaker:
    """The circuit breaker of one command of one plugin."""

    plugin: str
    command: str
    state: BreakerState = BreakerState.CLOSED
    failure_count: int = 0
    opened_at: datetime | None = None
    last_failure_at: datetime | None = None
    last_job_id: str | None = None
    probe_job_id: str | None = None


@frozen
class BreakerChange:
    """The new state of a breaker and the reason, which is stored only when the state changes."""

    breaker: Breaker
    reason: str


BreakerRule = Callable[[Breaker, Job, JobStatus, datetime], BreakerChange | None]
"""Derives the change of a breaker from a job that just finished; None leaves the breaker unchanged."""


@frozen
class Held:
    """A job may not start before `until`; None if it waits for another job to finish. `message` is the reason."""

    until: datetime | None
    message: str


GateRule = Callable[[Breaker, Job, JobStatus | None, datetime], Held | BreakerChange | None]
"""Decides from the breaker and its probe's status whether a job may start; a returned change applies if it starts."""


MAX_SMALL_ROWS, MAX_SMALL_TEXT = 10, 256 << 10
"""Limits of a write that is small enough to share a transaction with others: rows, and characters of JSON text."""


def is_small_write(*parts: "FollowUps | Completion") -> bool:
    """True if all parts together stay within the limits of a small write."""
    rows = length = 0
    for part in parts:
        rows += len(part.contexts) + len(part.children) + len(part.arrivals) + len(part.notes)
        if rows > MAX_SMALL_ROWS:
            return False
        for child in part.children:
            length += len(child.payload or "")
        for context in part.contexts:
            length += len(context.accumulated_json)
    return length <= MAX_SMALL_TEXT


NO_JOURNAL_DATA: Mapping[str, Any] = MappingProxyType({})


@frozen(kw_only=True)
class Completion:
    """Everything that one attempt writes when it ends, in one transaction.

    The follow-ups are those of `outcome`. If the ledger records another final outcome, `rule` derives them instead.
    """

    job_id: str
    attempt: int
    outcome: Outcome
    facts: tuple[NewFact, ...] = ()
    state_updates: str | None = field(default=None, repr=False)
    state_limit: int = 1 << 20
    contexts: tuple[NewContext, ...] = ()
    children: tuple[NewJob, ...] = ()
    arrivals: tuple[BranchResult, ...] = ()
    notes: tuple[Note, ...] = ()
    breaker: BreakerRule | None = None
    rule: FollowRule | None = None
    journal_data: Mapping[str, Any] = NO_JOURNAL_DATA
    """Extra fields of the attempt's journal entry: the preflight decision, the process."""
    tolerated: bool | None = None
    """Overrides the job's `tolerated` column: False if no follow-up job can replace the failed one. None keeps it."""

    @property
    def is_small(self) -> bool:
        """True if this stays within the limits of a small write."""
        evidence = None if isinstance(self.outcome, Skipped) else self.outcome.evidence
        length = len(self.state_updates or "") + sum(len(fact.fact_json) for fact in self.facts)
        length += len(evidence.result or "") if evidence is not None else 0
        return length <= MAX_SMALL_TEXT and not self.arrivals and is_small_write(self)
