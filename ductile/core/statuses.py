"""The states of jobs, attempts, breakers, messages and claims, as stored and displayed.

Separate from `model` because commands that only read the ledger import these and not attrs.
"""

from enum import StrEnum


class JobStatus(StrEnum):
    """The state of a job. The last four are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"
    SKIPPED = "skipped"

    @property
    def is_final(self) -> bool:
        return self not in (JobStatus.QUEUED, JobStatus.RUNNING)


class AttemptStatus(StrEnum):
    """How an attempt ended. `interrupted` does not count against `max_attempts`; the last two never ran a plugin."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    INTERRUPTED = "interrupted"
    SKIPPED = "skipped"
    DEAD = "dead"


class OutcomeCode(StrEnum):
    """The rule by which a job ended, as the place that decides stores it. `ductile.explain` has a sentence for each."""

    ANSWERED_OK = "answered_ok"
    RELAYED = "relayed"
    PUBLISHED = "published"
    REPLIED = "replied"
    JOINED = "joined"
    DECIDED = "decided"
    CONDITION_TRUE = "condition_true"
    CONDITION_FALSE = "condition_false"
    DEDUPLICATED = "deduplicated"
    NOTHING_TO_JOIN = "nothing_to_join"
    SKIPPED = "skipped"
    EXIT_78 = "exit_78"
    RETRY_FALSE = "retry_false"
    FINAL = "final"
    REFUSED = "refused"
    RELAY_REFUSED = "relay_refused"
    REPLY_FAILED = "reply_failed"
    NO_REPLY = "no_reply"
    NOT_JOINED = "not_joined"
    JOIN_TOO_LARGE = "join_too_large"
    TOO_MANY_FOLLOW_UPS = "too_many_follow_ups"
    STATE_TOO_LARGE = "state_too_large"
    INTERNAL_ERROR = "internal_error"
    ATTEMPTS_USED_UP = "attempts_used_up"
    CORE_DIED = "core_died"
    CANCELLED = "cancelled"
    PURGED = "purged"
    OVER_BUDGET = "over_budget"
    PLUGIN_UNAVAILABLE = "plugin_unavailable"
    INSTANCE_UNAVAILABLE = "instance_unavailable"
    STEP_REMOVED = "step_removed"
    NOT_DECIDED = "not_decided"
    NOT_RECORDED = "not_recorded"
    QUARANTINED = "quarantined"
    NEVER_STARTED = "never_started"
    GIVEN_UP = "given_up"


ENDED_BY_OPERATOR = frozenset((OutcomeCode.CANCELLED, OutcomeCode.PURGED))
"""The codes of jobs that an operator ended. They are dead, but nothing failed."""


class BreakerState(StrEnum):
    """The state of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class ClaimStatus(StrEnum):
    """The state of a claim of a message. Only an active claim can be extended or ended."""

    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    EXPIRED = "expired"
    RELEASED = "released"

    @property
    def decides(self) -> bool:
        """True if the message is not delivered again after a claim that ended like this."""
        return self in (ClaimStatus.COMPLETED, ClaimStatus.FAILED, ClaimStatus.TIMED_OUT)


class ReplyState(StrEnum):
    """The state of a conversation: which reply its request has."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILURE = "failure"
    TIMED_OUT = "timed_out"
    DEAD = "dead"


class MessageState(StrEnum):
    """The state of a message, derived from its delivery and its claims. The last four are final."""

    READY = "ready"
    DELAYED = "delayed"
    WAITING = "waiting"
    CLAIMED = "claimed"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    DEAD = "dead"

    @property
    def is_open(self) -> bool:
        return self in (MessageState.READY, MessageState.DELAYED, MessageState.WAITING, MessageState.CLAIMED)
