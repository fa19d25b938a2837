"""The nouns of Ductile: what a job is, how one is asked for, and how an attempt can end.

Frozen values without behaviour beyond their own shape. Payloads, results and states are JSON text that passes through
unread; whoever makes one of these has validated it before.
"""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from attrs import field, frozen

from ductile.core.statuses import AttemptStatus as AttemptStatus
from ductile.core.statuses import BreakerState as BreakerState
from ductile.core.statuses import JobStatus as JobStatus

CORE, RELAY = "core.", "core.relay"
RELAY_SLOTS = 16
"""Relay jobs that may run at the same time. They have no process and need no worker."""


def runs_nothing(plugin: str) -> bool:
    """True for what the core does by itself: starts, switches and joins. A relay sends something."""
    return plugin.startswith(CORE) and plugin != RELAY


@frozen
class Budget:
    """How far one root may reach: crossings in a chain, jobs in a tree."""

    hops: int = 20
    tree_jobs: int = 10_000


@frozen(kw_only=True)
class Prefinished:
    """A job that is over the moment it is written, such as a decided switch."""

    status: JobStatus
    result: str | None = field(default=None, repr=False)
    error: str | None = None


@frozen(kw_only=True)
class NewJob:
    """A job as a producer asks for it; `ledger.jobs.enqueue` is the one door.

    `child_key` tells the children of one parent apart: event, pipeline run, call-frame path, step, foreach index.
    A job with `own_tree` is a root although it has a parent (a hook run). A `dedupe_ttl` of its own makes the producer
    lose against a twin that is still in flight, too. `join_id` is the innermost join it is a member of; a row that
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
    settled: Prefinished | None = None


@frozen(kw_only=True)
class Job:
    """A row of the queue as the engine sees it. `(id, attempt)` is the fencing token of a claim.

    `context` is the baggage of its `event_context_id`, read together with the row.
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
    context: str | None = field(default=None, repr=False)

    @property
    def tries(self) -> int:
        """Attempts that count against `max_attempts`, this one included."""
        return self.attempt - self.interruptions

    @property
    def is_root(self) -> bool:
        return self.root_job_id == self.id


@frozen(kw_only=True)
class Evidence:
    """What one run of a plugin left behind."""

    started_at: datetime
    duration: timedelta
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    result: str | None = field(default=None, repr=False)
    stderr: str | None = field(default=None, repr=False)


@frozen
class Succeeded:
    """The attempt did what it was asked."""

    evidence: Evidence


@frozen
class Retried:
    """The attempt failed or timed out; the job is queued again after `delay`."""

    error: str
    delay: timedelta
    evidence: Evidence | None = None


@frozen
class Failed:
    """Finally failed: trying again would not help."""

    error: str
    evidence: Evidence | None = None


@frozen
class Dead:
    """Given up: attempts used up, cancelled, plugin removed, or a budget exceeded."""

    error: str
    evidence: Evidence | None = None


@frozen
class Skipped:
    """Decided not to run."""

    reason: str


@frozen
class Interrupted:
    """Ended by the drain; queued again, not counted."""

    reason: str
    evidence: Evidence | None = None


Outcome = Succeeded | Retried | Failed | Dead | Skipped | Interrupted


@frozen(kw_only=True)
class NewContext:
    """One row of baggage; its id is chosen by the maker, so that jobs of the same transaction can name it."""

    id: str
    parent_id: str | None = None
    pipeline_name: str | None = None
    step_id: str | None = None
    accumulated_json: str = field(default="{}", repr=False)


@frozen(kw_only=True)
class NewFact:
    """An observation of a plugin; `mirrored` makes it the plugin's state as well."""

    fact_type: str
    fact_json: str = field(repr=False)
    mirrored: bool = False


@frozen(kw_only=True)
class Note:
    """Something that happened, or was decided not to happen, for the journal."""

    kind: str
    data: Mapping[str, Any]
    plugin: str | None = None
    job_id: str | None = None


@frozen(kw_only=True)
class BranchResult:
    """A branch of a join has come to its end with this payload."""

    join_id: str
    item: int = 0
    branch: int = 0
    payload: str = field(repr=False)


@frozen(kw_only=True)
class FollowUps:
    """What follows from a job that has ended, for the same transaction; the members of a join stand before the join."""

    contexts: tuple[NewContext, ...] = ()
    children: tuple[NewJob, ...] = ()
    arrivals: tuple[BranchResult, ...] = ()
    notes: tuple[Note, ...] = ()
    tolerated: bool | None = None
    """Whether the run goes on behind the failure that this follows from, where the job's row says something else."""


FollowRule = Callable[[Job, Outcome, datetime], FollowUps]
"""Decides what follows from a final ending that was not known before the transaction."""


@frozen(kw_only=True)
class JoinInput:
    """A join whose members are all over: what arrived, in order, and how many members failed without being tolerated.

    `failures` are the first few of those, as "step_id: error".
    """

    job: Job
    arrivals: tuple[BranchResult, ...] = ()
    failures: tuple[str, ...] = ()
    failed: int = 0


JoinRule = Callable[[JoinInput, datetime], tuple[Outcome, FollowUps]]
"""Decides how a join ends, and what follows from it."""


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
    """The breaker as it shall be, and why; the reason is kept only when the state changes."""

    breaker: Breaker
    reason: str


BreakerRule = Callable[[Breaker, Job, JobStatus, datetime], BreakerChange | None]
"""Decides, from the breaker as it is and a job that just ended, what it becomes; None leaves it alone."""


@frozen
class Held:
    """A job may not start before `until`; None: before something else has ended. `words` say what holds it."""

    until: datetime | None
    words: str


GateRule = Callable[[Breaker, Job, JobStatus | None, datetime], Held | BreakerChange | None]
"""Decides, from the breaker and the status of its probe, whether a job may start; a change is made if it starts."""


FEW_ROWS, LITTLE_TEXT = 10, 256 << 10
"""As much as can be written without holding up everybody else."""


def are_few(*parts: "FollowUps | Completion") -> bool:
    """Whether all of this together is a few rows with little text."""
    rows = texts = 0
    for part in parts:
        rows += len(part.contexts) + len(part.children) + len(part.arrivals) + len(part.notes)
        if rows > FEW_ROWS:
            return False
        for child in part.children:
            texts += len(child.payload or "")
        for context in part.contexts:
            texts += len(context.accumulated_json)
    return texts <= LITTLE_TEXT


NOTHING_TOLD: Mapping[str, Any] = MappingProxyType({})


@frozen(kw_only=True)
class Completion:
    """Everything that ends one attempt, for one transaction: either all of it is in the ledger or none.

    What follows is known for `outcome`; where the ledger makes another final ending of it, `rule` is asked instead.
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
    told: Mapping[str, Any] = NOTHING_TOLD
    """What the journal tells of the attempt besides how it ended: what preflight decided, the process it ran as."""
    tolerated: bool | None = None
    """Whether the failure counts, where the job's row says something else: it does if nothing follows that could stand
    for a success."""

    @property
    def is_small(self) -> bool:
        """Whether a few rows with little text hold it."""
        evidence = None if isinstance(self.outcome, Skipped) else self.outcome.evidence
        texts = len(self.state_updates or "") + sum(len(fact.fact_json) for fact in self.facts)
        texts += len(evidence.result or "") if evidence is not None else 0
        return texts <= LITTLE_TEXT and not self.arrivals and are_few(self)
