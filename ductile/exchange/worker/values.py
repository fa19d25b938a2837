"""Values of the worker host: the claims it holds, its settings, what it decides, and what it needs of a service.

Does not know HTTP or processes.
"""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from attrs import field, frozen

from ductile.core.message import DEFAULT_BODY_BYTES, ClaimStatus, ReplyTopics


@frozen(kw_only=True)
class HeldClaim:
    """A claim that this host holds, with its message. `held_since` is on the clock of Trio."""

    claim_id: str
    delivery: int
    lease_seconds: float
    held_since: float
    message_id: str
    conversation_id: str
    topic: str
    body: str = field(repr=False)
    metadata: Mapping[str, Any] = field(factory=dict, repr=False)
    max_body_size: int = DEFAULT_BODY_BYTES


@frozen(kw_only=True)
class WorkSettings:
    """The command that handles messages, its time limit, and the topics of its follow-ups."""

    argv: tuple[str, ...]
    topics: ReplyTopics
    timeout_seconds: float
    replace_invalid: bool = False
    """Replace bytes that are not UTF-8 instead of failing."""
    environment: Mapping[str, str] = field(factory=dict, repr=False)


@frozen(kw_only=True)
class HostSettings:
    """How many messages the host handles, at once and in all, and when it stops."""

    concurrency: int = 1
    max_messages: int | None = None
    idle_seconds: float | None = None
    """Stop when no message has come for this time."""
    idle_exit_code: int = 0
    drain_seconds: float = 10.0
    """Time for running commands to finish after a stop."""


@frozen(kw_only=True)
class ClaimEnd:
    """A decision: end the claim with this status and follow-up. The message is then decided."""

    status: ClaimStatus
    topic: str
    body: str = field(repr=False)
    metadata: Mapping[str, Any] = field(repr=False)


@frozen(kw_only=True)
class GiveBack:
    """A decision: release the claim for another delivery. `uncounted`: this delivery is not counted."""

    reason: str
    delay: timedelta = timedelta()
    uncounted: bool = False


class ClaimService(Protocol):
    """The part of a service that a worker host uses.

    Every call raises a DuctileError: ClaimLost or ClaimUnknown if the claim has ended, one with exit code 69 or 75 for
    what a later call may achieve, else a final refusal.
    """

    async def claim(self, *, limit: int, wait_seconds: float) -> Sequence[HeldClaim]:
        """Wait for messages and claim up to `limit`. If it is cancelled, no claim stays behind."""

    async def extend(self, claim: HeldClaim) -> None:
        """Renew the lease of the claim."""

    async def end(self, claim: HeldClaim, end: ClaimEnd) -> None:
        """End the claim and publish its follow-up."""

    async def release(self, claim: HeldClaim, give_back: GiveBack) -> None:
        """Release the claim."""
