"""The deadlines of active claims, on the monotonic clock of this process.

The ledger has `lease_until` for people and for the next start. Whether a lease is over is decided here only.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from math import inf

from attrs import define, field, frozen

from ductile.core.message import MAX_LEASE, RESTART_LEASE, Claim


@frozen
class _Lease:
    deadline: float
    length: timedelta | None = None
    """None for a claim of an earlier run: the ledger does not have it."""


@define(eq=False)
class Leases:
    """The lease of each active claim that has one."""

    _leases: dict[str, _Lease] = field(factory=dict)

    def __len__(self) -> int:
        return len(self._leases)

    def restore(self, claims: Iterable[Claim], *, now: datetime, clock: float) -> None:
        """Set the deadlines of the claims of an earlier run: what was left, at least RESTART_LEASE.

        The wall clock can have been set since, so no lease becomes longer than MAX_LEASE.
        """
        for claim in claims:
            assert claim.lease_until is not None, "a claim of a consumer has no lease"
            left = min(max(claim.lease_until - now, RESTART_LEASE), MAX_LEASE)
            self._leases[claim.id] = _Lease(clock + left.total_seconds())

    def start(self, claim_id: str, length: timedelta, *, clock: float) -> None:
        """Begin the lease of a claim, or begin it again."""
        self._leases[claim_id] = _Lease(clock + length.total_seconds(), length)

    def end(self, claim_id: str) -> None:
        """Remove the lease of an ended claim. Does nothing for other claims."""
        self._leases.pop(claim_id, None)

    def length(self, claim_id: str) -> timedelta | None:
        """Return how long the lease was when it began; None if this is not known."""
        lease = self._leases.get(claim_id)
        return None if lease is None else lease.length

    def seconds_left(self, claim_id: str, *, clock: float) -> float | None:
        """Return how long the lease lasts; None if the claim has none."""
        lease = self._leases.get(claim_id)
        return None if lease is None else max(lease.deadline - clock, 0.0)

    def is_over(self, claim_id: str, *, clock: float) -> bool:
        """True if the claim has a lease that is over."""
        return self.seconds_left(claim_id, clock=clock) == 0

    def over(self, *, clock: float) -> list[str]:
        """Return the claims whose lease is over, in the order of their deadlines."""
        due = [(lease.deadline, claim_id) for claim_id, lease in self._leases.items() if clock >= lease.deadline]
        return [claim_id for _, claim_id in sorted(due)]

    def next_deadline(self) -> float:
        """Return when the next lease is over; infinity if there is none."""
        return min((lease.deadline for lease in self._leases.values()), default=inf)
