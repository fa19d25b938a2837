"""Claiming jobs: order, free slots, dedupe keys, delays."""

from datetime import timedelta
from typing import Any

import pytest

from ductile.core.model import Completion, Dead, Failed, Interrupted, Outcome, Retried, Succeeded
from ductile.ledger.admin.job_actions import cancel
from ductile.ledger.queue.claim import ProcessNote, claim, next_due, note_process
from ductile.ledger.reports.queue_status import queue
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables.blocked_jobs import set_block_reason
from tests.ledger.recording import record_and_claim

MINUTE = timedelta(minutes=1)


def ids(claimed: Any) -> list[str]:
    return [job.id for job in claimed.jobs]


def test_the_oldest_ready_job_of_all_plugins_is_claimed_first(ledger: Any) -> None:
    """Jobs start in order of arrival, across all plugins with a free slot."""
    jobs = [ledger.enqueue(plugin=plugin).job_id for plugin in "abcab"]
    assert ids(ledger.claim(4, a=5, b=5, c=5)) == jobs[:4]


def test_with_many_plugins_the_order_of_arrival_stays(ledger: Any) -> None:
    """With many free plugins, only those with ready jobs are read; the order does not change."""
    jobs = [ledger.enqueue(plugin=plugin).job_id for plugin in ("z", "m", "a")]
    free = {f"p{number}": 1 for number in range(50)} | {"a": 1, "m": 1, "z": 1}
    assert ids(ledger.claim(10, **free)) == jobs


def test_a_plugin_without_free_slots_does_not_block_others(ledger: Any) -> None:
    """Its jobs are passed over."""
    for _ in range(3):
        ledger.enqueue(plugin="slow")
    quick = ledger.enqueue(plugin="quick").job_id
    assert len(ledger.claim(9, slow=2, quick=2).jobs) == 3
    assert ids(ledger.claim(9, slow=0, quick=2)) == []
    assert ledger.row(quick)["status"] == "running"


def test_jobs_of_a_plugin_that_is_not_free_stay_queued_and_are_reported(ledger: Any) -> None:
    """The queue status lists the plugin, and its jobs get a reason."""
    job = ledger.enqueue(plugin="ghost").job_id
    assert ids(ledger.claim(5, echo=5)) == []
    assert queue(ledger.db, claimable={"echo"}).unclaimable == ["ghost"]
    with transaction(ledger.db):
        assert set_block_reason(ledger.db, "ghost", "did not load") == 1
        assert set_block_reason(ledger.db, "ghost", "did not load") == 0  # unchanged: nothing to write
    assert ledger.row(job)["blocked_reason"] == "did not load"


def test_a_plugin_with_a_state_that_is_not_utf8_can_run(ledger: Any) -> None:
    """An adopted database may have such a state. Invalid bytes are replaced, as the original did."""
    state = "CAST(x'7b2261223a22ff227d' AS TEXT)"
    ledger.db.execute(f"INSERT INTO plugin_state (plugin_name, state, updated_at) VALUES ('echo', {state}, '')")
    ledger.enqueue()
    claimed = ledger.claim()
    assert (len(claimed.jobs), claimed.states["echo"]) == (1, '{"a":"\ufffd"}')
    ledger.end(claimed.jobs[0], state_updates='{"b":1}')
    assert ledger.db.execute("SELECT state FROM plugin_state").fetchall() == [('{"a":"\ufffd","b":1}',)]


def test_two_jobs_with_one_key_never_run_at_the_same_time(ledger: Any) -> None:
    """The second waits for the first. Other jobs of the plugin start before it."""
    first, second, third = (ledger.enqueue(dedupe_key=key).job_id for key in ("k", "k", None))
    assert ids(ledger.claim()) == [first, third]
    assert ledger.row(second)["waits_for_key"] == 1


@pytest.mark.parametrize("outcome", [Retried("no", MINUTE), Interrupted("drain"), Failed("no"), Dead("no"), None])
def test_a_key_is_free_again_however_its_job_ends(ledger: Any, outcome: Outcome | None) -> None:
    """After success, retry, interruption, failure or death, the next job with the key is ready."""
    ledger.enqueue(dedupe_key="k")
    waiter = ledger.enqueue(dedupe_key="k").job_id
    (holder,) = ledger.claim().jobs
    assert ledger.row(waiter)["lane"] is None
    ledger.end(holder, outcome)
    assert ledger.row(waiter)["lane"] == "echo"


def test_a_cancelled_job_releases_the_next_job_with_its_key(ledger: Any) -> None:
    """A ready job that ends in the queue does not leave the other jobs with its key waiting forever."""
    ledger.enqueue(dedupe_key="k")
    second, third = (ledger.enqueue(dedupe_key="k").job_id for _ in range(2))
    (holder,) = ledger.claim().jobs
    ledger.end(holder, Failed("no"))
    ledger.claim(1, other=1)
    with transaction(ledger.db):
        cancel(ledger.db, second, "not needed", now=ledger.now)
    assert ids(ledger.claim()) == [third]


def test_a_job_is_skipped_if_one_with_its_key_succeeded_meanwhile(ledger: Any) -> None:
    """Two identical events that arrive together run once. The second job is skipped and logged. Its tree is done."""
    first, second = ledger.enqueue(dedupe_key="k"), ledger.enqueue(dedupe_key="k")
    job = ledger.claim_one()
    assert job.id == first.job_id
    ledger.end(job)
    claimed = ledger.claim()
    assert claimed.jobs == ()
    (skipped,) = claimed.skipped
    assert (skipped.job_id, skipped.tree_is_done) == (second.job_id, True)
    assert ledger.row(second.job_id)["last_error"] == f"deduplicated: {first.job_id} succeeded meanwhile"
    assert ledger.db.execute("SELECT status FROM job_log WHERE job_id = ?", (second.job_id,)).fetchone() == ("skipped",)


def test_a_success_before_the_enqueue_does_not_skip_a_job(ledger: Any) -> None:
    """A claim only considers later successes. The dedupe window was checked at the enqueue."""
    ledger.enqueue(dedupe_key="k")
    ledger.end(ledger.claim_one())
    ledger.advance(hours=2)
    again = ledger.enqueue(dedupe_key="k", dedupe_ttl=timedelta(hours=1))
    assert ids(ledger.claim()) == [again.job_id]


def test_many_duplicates_are_skipped_in_batches(ledger: Any) -> None:
    """One claim stays a short transaction. `more` asks for the next claim."""
    for _ in range(450):
        ledger.enqueue(dedupe_key="k")
    other = ledger.enqueue()
    ledger.end(ledger.claim_one())
    rounds = [ledger.claim(1) for _ in range(12)]
    assert [len(claimed.skipped) for claimed in rounds] == [40] * 11 + [9]
    assert [claimed.more for claimed in rounds] == [True] * 11 + [False]
    assert ids(rounds[-1]) == [other.job_id]


def test_a_retry_waits_for_its_backoff(ledger: Any) -> None:
    """A delayed job is not ready until it is due. It keeps its position in the order."""
    delayed = ledger.enqueue()
    ledger.end(ledger.claim_one(), Retried("no", MINUTE))
    assert ledger.claim().jobs == ()
    assert next_due(ledger.db) == ledger.now + MINUTE
    later = ledger.enqueue()
    ledger.advance(minutes=1)
    assert ids(ledger.claim()) == [delayed.job_id, later.job_id]


def test_a_retry_is_due_after_the_clock_was_set_back(ledger: Any) -> None:
    """A failure time in the future was written by a wrong clock."""
    ledger.enqueue()
    ledger.end(ledger.claim_one(), Retried("no", MINUTE))
    ledger.advance(seconds=-59)
    assert ledger.claim().jobs == ()
    ledger.advance(days=-3650)
    assert len(ledger.claim().jobs) == 1


def test_a_claim_stores_run_attempt_and_snapshot(ledger: Any) -> None:
    """(job, attempt) is the fencing token. The run id tells orphans of other runs apart."""
    ledger.enqueue()
    with transaction(ledger.db):
        claimed = claim(ledger.db, now=ledger.now, run_id="r", free={"echo": 1}, limit=1, snapshot_id="cfg_1")
    (job,) = claimed.jobs
    row = ledger.row(job.id)
    assert (row["claimed_by"], row["attempt"], row["started_config_snapshot_id"]) == ("r", 1, "cfg_1")
    assert (job.status, job.started_at) == ("running", ledger.now)


def test_a_process_is_stored_only_for_the_current_attempt(ledger: Any) -> None:
    """Pid, start ticks and boot id belong to one attempt. The journal has the pid."""
    ledger.enqueue()
    job = ledger.claim_one()
    with transaction(ledger.db):
        assert note_process(
            ledger.db, ProcessNote(job.id, 1, pid=42, start_ticks=7, boot_id="b"), run_id=ledger.run_id, now=ledger.now
        )
        assert not note_process(
            ledger.db, ProcessNote(job.id, 2, pid=43, start_ticks=7, boot_id="b"), run_id=ledger.run_id, now=ledger.now
        )
    assert ledger.row(job.id)["pid"] == 42
    rows = ledger.db.execute("SELECT job_id, plugin, data ->> 'pid' FROM journal WHERE kind = 'plugin.spawned'")
    assert rows.fetchall() == [(job.id, job.plugin, 42)]
    ledger.end(job)
    assert ledger.row(job.id)["pid"] is None


def test_recording_and_claiming_share_one_transaction(ledger: Any) -> None:
    """A job that becomes ready with a completion is claimed in the same transaction."""
    ledger.enqueue(dedupe_key="k")
    job = ledger.claim_one()
    child = ledger.new(plugin="next", child_key="1")
    ending = Completion(job_id=job.id, attempt=1, outcome=Succeeded(ledger.evidence()), children=(child,))
    with transaction(ledger.db):
        recorded, claimed = record_and_claim(
            ledger.db, [ending], now=ledger.now, run_id="run-1", free={"next": 1}, limit=1
        )
    assert claimed.jobs[0].parent_job_id == job.id
    assert not recorded[0].tree_is_done  # type: ignore[union-attr]


def test_steps_of_one_run_with_one_key_run_at_the_same_time(ledger: Any) -> None:
    """And none of them is a duplicate of another. A job of another run waits for all of them, and is skipped."""
    ledger.enqueue(plugin="root")
    tree = {"parent_job_id": ledger.claim_one("root").id, "dedupe_key": "k", "pipeline": "p", "source_event_id": "e"}
    a, b = (ledger.enqueue(**tree, step_id=name, child_key=name).job_id for name in "ab")
    other = ledger.enqueue(dedupe_key="k").job_id
    claimed = ledger.claim().jobs
    assert [job.id for job in claimed] == [a, b]
    ledger.end(claimed[0])
    later = ledger.enqueue(**tree, step_id="c", child_key="c")
    assert (later.is_new, ledger.claim().jobs[0].id) == (True, later.job_id)
    ledger.end(claimed[1])
    assert ledger.row(other)["status"] == "queued", "the step c runs"
