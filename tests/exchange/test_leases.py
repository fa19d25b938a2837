"""The deadlines of claims, on the monotonic clock."""

from datetime import UTC, datetime, timedelta
from math import inf

from ductile.core.message import MAX_LEASE, Claim, ClaimStatus
from ductile.exchange.leases import Leases

NOW = datetime(2026, 11, 19, tzinfo=UTC)


def claim(claim_id: str, lease_until: datetime) -> Claim:
    return Claim(
        id=claim_id,
        message_id="m",
        topic="a.b",
        worker_group="w",
        worker_instance_id="w",
        claimed_at=NOW,
        lease_until=lease_until,
        status=ClaimStatus.ACTIVE,
        completed_at=None,
        delivery=1,
        extensions=0,
        reason=None,
        follow_up_id=None,
        job_id=None,
        claimed_by="token:t",
    )


def test_a_lease_is_over_at_its_deadline_unless_it_began_again() -> None:
    leases = Leases()
    leases.start("a", timedelta(seconds=2), clock=100)
    leases.start("b", timedelta(seconds=1), clock=100)
    assert leases.next_deadline() == 101
    assert leases.over(clock=102) == ["b", "a"]
    leases.start("b", timedelta(seconds=5), clock=101)
    assert (leases.over(clock=102), leases.is_over("b", clock=102), leases.seconds_left("b", clock=102)) == (
        ["a"],
        False,
        4,
    )
    leases.end("a")
    leases.end("b")
    assert (leases.next_deadline(), leases.over(clock=1000), leases.seconds_left("a", clock=0)) == (inf, [], None)


def test_after_a_restart_a_claim_has_what_was_left_within_limits() -> None:
    """At least 10 s, so that workers can come back; at most 12 h, because the clock can be wrong."""
    leases = Leases()
    ends = {"over": -3600, "short": 2, "long": 3600, "clock set back": 10**6}
    claims = [claim(name, NOW + timedelta(seconds=seconds)) for name, seconds in ends.items()]
    leases.restore(claims, now=NOW, clock=50)
    left = {name: leases.seconds_left(name, clock=50) for name in ends}
    assert left == {"over": 10, "short": 10, "long": 3600, "clock set back": MAX_LEASE.total_seconds()}
    assert leases.length("long") is None
