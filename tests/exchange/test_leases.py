"""The deadlines of claims after a restart of the service."""

from datetime import UTC, datetime, timedelta

from ductile.core.message import RESTART_LEASE, Claim, ClaimStatus
from ductile.exchange.leases import Leases

CLAIMED_AT = datetime(2026, 11, 19, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def seconds_left(*, lease: timedelta, extended_after: timedelta = timedelta(), now: datetime) -> float | None:
    """Return what a claim has left after a restart at this wall time."""
    claim = Claim(
        id="c",
        message_id="m",
        topic="t",
        worker_group="g",
        worker_instance_id="i",
        claimed_at=CLAIMED_AT,
        lease_until=CLAIMED_AT + extended_after + lease,
        lease=lease,
        status=ClaimStatus.ACTIVE,
        completed_at=None,
        delivery=1,
        extensions=1,
        reason=None,
        follow_up_id=None,
        job_id=None,
        claimed_by="token:w",
    )
    leases = Leases()
    leases.restore([claim], now=now, clock=100.0)
    return leases.seconds_left("c", clock=100.0)


def test_after_a_restart_a_claim_has_what_was_left_of_its_lease() -> None:
    assert seconds_left(lease=MINUTE, now=CLAIMED_AT + timedelta(seconds=20)) == 40


def test_after_a_restart_a_claim_has_at_least_ten_seconds() -> None:
    """The outage of the service is not the fault of the worker, also if the clock was set ahead."""
    for outage in (timedelta(seconds=59), MINUTE, timedelta(hours=1)):
        assert seconds_left(lease=MINUTE, now=CLAIMED_AT + outage) == RESTART_LEASE.total_seconds()
    assert seconds_left(lease=timedelta(seconds=2), now=CLAIMED_AT) == RESTART_LEASE.total_seconds()


def test_a_clock_that_is_set_back_makes_no_lease_longer() -> None:
    """The message of a lost worker would wait for hours."""
    for back in (timedelta(seconds=1), timedelta(hours=1), timedelta(days=400)):
        assert seconds_left(lease=MINUTE, now=CLAIMED_AT - back) == 60
        assert seconds_left(lease=MINUTE, extended_after=timedelta(hours=3), now=CLAIMED_AT - back) == 60
