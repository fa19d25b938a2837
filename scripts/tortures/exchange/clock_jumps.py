"""A wall clock that is set by an hour: leases keep their length. Only the service has the shifted clock."""

from typing import Any

from scripts.tortures.exchange.lib.stage import Stage
from scripts.tortures.lib.fault_library import set_clock_offset

HOUR = 3600.0
LONG_LEASE, SHORT_LEASE = "60s", "1s"
AFTER_SHORT_LEASE = 1.5
"""Seconds after which the short lease is over and the long one is not."""


def set_clock(stage: Stage) -> None:
    """Set the clock by an hour while two claims are held: that with the long lease lives on, the other one is lost."""
    service = stage.running_service()
    offset = stage.rng.choice((HOUR, HOUR, -HOUR))
    held = {lease: _held_claim(stage, lease) for lease in (LONG_LEASE, SHORT_LEASE)}
    set_clock_offset(stage.clock, offset)
    service.wait_for_exit(AFTER_SHORT_LEASE)
    for lease, claim_id in held.items():
        ended = stage.address.post(f"/exchange/claims/{claim_id}/complete", {"topic": "held.done", "body": lease})
        status = ended.status if ended else None
        if status != (200 if lease == LONG_LEASE else 409):
            stage.faults.append(f"clock set by {offset:+.0f} s: a claim with a lease of {lease} ended with {ended}")
    set_clock_offset(stage.clock, 0.0)
    stage.counts["clock jumps"] += 1


def _held_claim(stage: Stage, lease: str) -> str:
    """Publish a message on a topic of its own, and claim it."""
    topic = f"held.{stage.counts['clock jumps']}.{lease}"
    stage.address.post("/exchange/messages", {"topic": topic, "body": lease})
    body: dict[str, Any] = {"topic": topic, "worker_group": "holder", "lease": lease}
    answer = stage.address.post("/exchange/claims", body)
    assert answer is not None, "the service is running"
    claim_id: str = answer.body["claims"][0]["claim_id"]
    return claim_id
