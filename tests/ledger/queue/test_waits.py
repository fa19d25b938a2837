"""What a claim records about the wait of a job: how long, and what held it."""

import json
from datetime import timedelta
from typing import Any

from ductile.core.model import RELAY, Retried
from ductile.ledger.queue import outbox
from ductile.ledger.queue.claim import claim
from ductile.ledger.queue.waits import Hold
from ductile.ledger.storage.connections import transaction


def claim_with(ledger: Any, holds: dict[str, Hold]) -> list[Any]:
    with transaction(ledger.db):
        free = {"echo": 100}
        return list(claim(ledger.db, now=ledger.now, run_id="run-1", free=free, limit=100, holds=holds).jobs)


def waits(ledger: Any) -> list[tuple[int, list[str] | None]]:
    rows = ledger.db.execute("SELECT data FROM journal WHERE kind = 'job.started' ORDER BY seq")
    return [(data["waited_ms"], data.get("waited_for")) for data in (json.loads(row[0]) for row in rows)]


def test_a_claim_records_how_long_a_job_waited_and_that_workers_were_busy(ledger: Any) -> None:
    """A wait below 100 ms has no reason."""
    ledger.enqueue()
    ledger.advance(milliseconds=99)
    ledger.enqueue(plugin="other")
    ledger.claim(1)
    ledger.advance(seconds=2)
    ledger.claim(1, other=1)
    assert waits(ledger) == [(99, None), (2000, ["busy"])]


def test_a_hold_counts_if_it_was_seen_after_the_enqueue(ledger: Any) -> None:
    """Of its plugin, or of all plugins."""
    before = ledger.now - timedelta(seconds=1)
    ledger.enqueue()
    ledger.advance(seconds=3)
    claim_with(ledger, {"*": Hold("queue_paused", ledger.now), "echo": Hold("paused", before)})
    assert waits(ledger) == [(3000, ["queue_paused"])]


def test_a_job_that_waits_on_after_the_start_of_the_service_also_waited_for_a_worker(ledger: Any) -> None:
    """The service was down until `seen_at`. A start takes a few seconds."""
    for after_start in (timedelta(seconds=4), timedelta(seconds=60)):
        ledger.enqueue()
        ledger.advance(seconds=90)
        claim_with(ledger, {"*": Hold("service_down", ledger.now - after_start)})
    assert [held_by for _, held_by in waits(ledger)] == [["service_down"], ["service_down", "busy"]]


def test_a_retry_waited_for_its_retry_time(ledger: Any) -> None:
    """From the failure on. If the plugin was paused too, both are recorded."""
    ledger.enqueue()
    job = ledger.claim_one()
    ledger.advance(seconds=10)
    ledger.end(job, Retried("no luck", timedelta(seconds=30), ledger.evidence()))
    ledger.advance(seconds=60)
    claim_with(ledger, {"echo": Hold("paused", ledger.now)})
    assert waits(ledger)[1:] == [(60_000, ["retry_time", "paused"])]


def test_a_job_that_waited_for_its_key_names_the_holder(ledger: Any) -> None:
    """The journal has the running job when the wait begins."""
    holder, waiter = (ledger.enqueue(dedupe_key="k").job_id for _ in range(2))
    job = ledger.claim_one()
    assert ledger.claim().jobs == ()
    row = ledger.db.execute("SELECT job_id, data FROM journal WHERE kind = 'job.waiting'").fetchone()
    assert (row[0], json.loads(row[1])["holder"]) == (waiter, holder)
    ledger.advance(seconds=1)
    ledger.end(job, Retried("no luck", timedelta(hours=1), ledger.evidence()))
    ledger.claim_one()
    assert waits(ledger)[1:] == [(1000, ["held_key"])]


def test_a_job_held_for_changed_files_did_not_wait_for_a_breaker(ledger: Any) -> None:
    ledger.enqueue()
    job = ledger.claim_one()
    with transaction(ledger.db):
        outbox.postpone(ledger.db, job.id, 1, "plugin_changed", run_id=ledger.run_id, until=None, now=ledger.now)
    ledger.advance(seconds=2)
    claim_with(ledger, {"echo": Hold("drifted", ledger.now)})
    assert waits(ledger)[1:] == [(2000, ["drifted"])]


def test_a_relayed_event_that_waited_for_its_instance_did_not_wait_for_a_breaker(ledger: Any) -> None:
    """Whether its time came, or the instance answered again."""
    for is_woken in (False, True):
        ledger.enqueue(plugin=RELAY)
        job = ledger.claim_one(RELAY)
        until, reason = ledger.now + timedelta(seconds=5), outbox.block_reason("b")
        with transaction(ledger.db):
            outbox.postpone(ledger.db, job.id, 1, reason, run_id=ledger.run_id, until=until, now=ledger.now)
            if is_woken:
                outbox.wake(ledger.db, "b")
        ledger.advance(seconds=6)
        assert ledger.claim_one(RELAY).id == job.id
        assert waits(ledger)[-1] == (6000, ["blocked"])
