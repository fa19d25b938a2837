"""The deadlines of active claims, on the monotonic clock of this process.

The ledger has `lease_until` for people and for the next start. Whether a lease is over is decided here only.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from math import inf

from attrs import define, field

from ductile.core.message import RESTART_LEASE, Claim


@define(eq=False)
class Leases:
    """The lease of each active claim that has one."""

    _deadlines: dict[str, float] = field(factory=dict)

    def __len__(self) -> int:
        return len(self._deadlines)

    def restore(self, claims: Iterable[Claim], *, now: datetime, clock: float) -> None:
        """Set the deadlines of the claims of an earlier run: what was left, at least RESTART_LEASE.

        The wall clock can have been set back since: no claim has more left than the length of its lease.
        """
        for claim in claims:
            assert claim.lease_until is not None, "a claim of a consumer has no lease"
            assert claim.lease is not None, "a lease has a length"
            left = max(min(claim.lease_until - now, claim.lease), RESTART_LEASE)
            self._deadlines[claim.id] = clock + left.total_seconds()

    def start(self, claim_id: str, length: timedelta, *, clock: float) -> None:
        """Begin the lease of a claim, or begin it again."""
        self._deadlines[claim_id] = clock + length.total_seconds()

    def end(self, claim_id: str) -> None:
        """Remove the lease of an ended claim. Does nothing for other claims."""
        self._deadlines.pop(claim_id, None)

    def seconds_left(self, claim_id: str, *, clock: float) -> float | None:
        """Return how long the lease lasts; None if the claim has none."""
        deadline = self._deadlines.get(claim_id)
        return None if deadline is None else max(deadline - clock, 0.0)

    def is_over(self, claim_id: str, *, clock: float) -> bool:
        """True if the claim has a lease that is over."""
        return self.seconds_left(claim_id, clock=clock) == 0

    def over(self, *, clock: float) -> list[str]:
        """Return the claims whose lease is over, in the order of their deadlines."""
        due = [(deadline, claim_id) for claim_id, deadline in self._deadlines.items() if clock >= deadline]
        return [claim_id for _, claim_id in sorted(due)]

    def next_deadline(self) -> float:
        """Return when the next lease is over; infinity if there is none."""
        return min(self._deadlines.values(), default=inf)
