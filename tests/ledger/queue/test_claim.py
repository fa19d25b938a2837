"""From queued to running: order, lanes, caps, keys, delays."""

from datetime import timedelta
from typing import Any

import pytest

from ductile.core.model import Completion, Dead, Failed, Interrupted, Outcome, Retried, Succeeded
from ductile.ledger.admin.operate import cancel
from ductile.ledger.queue.block_reasons import note_blocked
from ductile.ledger.queue.claim import ProcessNote, claim, next_due, note_process
from ductile.ledger.reports.queue_status import queue
from ductile.ledger.storage.connections import transaction
from tests.ledger.recording import record_and_claim

MINUTE = timedelta(minutes=1)


def ids(claimed: Any) -> list[str]:
    return [job.id for job in claimed.jobs]


def test_the_oldest_claimable_job_of_all_lanes_comes_first(drive: Any) -> None:
    """FIFO by sequence over all lanes that have a free slot."""
    jobs = [drive.enqueue(plugin=plugin).job_id for plugin in "abcab"]
    assert ids(drive.claim(4, a=5, b=5, c=5)) == jobs[:4]


def test_many_lanes_are_found_by_the_work_in_them(drive: Any) -> None:
    """With more plugins than lanes, only lanes with work are looked at; the order stays."""
    jobs = [drive.enqueue(plugin=plugin).job_id for plugin in ("z", "m", "a")]
    free = {f"p{number}": 1 for number in range(50)} | {"a": 1, "m": 1, "z": 1}
    assert ids(drive.claim(10, **free)) == jobs


def test_a_full_lane_does_not_block_others(drive: Any) -> None:
    """A plugin at its cap is passed by."""
    for _ in range(3):
        drive.enqueue(plugin="slow")
    quick = drive.enqueue(plugin="quick").job_id
    assert len(drive.claim(9, slow=2, quick=2).jobs) == 3
    assert ids(drive.claim(9, slow=0, quick=2)) == []
    assert drive.row(quick)["status"] == "running"


def test_a_plugin_that_is_not_named_is_not_claimed_but_reported(drive: Any) -> None:
    """A removed or broken plugin's jobs stay queued, and the queue says so."""
    job = drive.enqueue(plugin="ghost").job_id
    assert ids(drive.claim(5, echo=5)) == []
    assert queue(drive.db, claimable={"echo"}).unclaimable == ["ghost"]
    with transaction(drive.db):
        assert note_blocked(drive.db, "ghost", "did not load") == 1
        assert note_blocked(drive.db, "ghost", "did not load") == 0  # told already: nothing to write
    assert drive.row(job)["blocked_reason"] == "did not load"


def test_a_state_that_is_not_utf8_does_not_keep_its_plugin_from_running(drive: Any) -> None:
    """A database of the original may have one; its job gets what that would have read."""
    state = "CAST(x'7b2261223a22ff227d' AS TEXT)"
    drive.db.execute(f"INSERT INTO plugin_state (plugin_name, state, updated_at) VALUES ('echo', {state}, '')")
    drive.enqueue()
    claimed = drive.claim()
    assert (len(claimed.jobs), claimed.states["echo"]) == (1, '{"a":"\ufffd"}')
    drive.end(claimed.jobs[0], state_updates='{"b":1}')
    assert drive.db.execute("SELECT state FROM plugin_state").fetchall() == [('{"a":"\ufffd","b":1}',)]


def test_two_of_a_key_never_run_side_by_side(drive: Any) -> None:
    """The second waits for the first, and others of its lane pass it."""
    first, second, third = (drive.enqueue(dedupe_key=key).job_id for key in ("k", "k", None))
    assert ids(drive.claim()) == [first, third]
    assert drive.row(second)["waits_for_key"] == 1


@pytest.mark.parametrize("outcome", [Retried("no", MINUTE), Interrupted("drain"), Failed("no"), Dead("no"), None])
def test_a_held_key_comes_free_however_its_holder_ends(drive: Any, outcome: Outcome | None) -> None:
    """Success, retry, interruption, failure, death: the next of the key is back in its lane."""
    drive.enqueue(dedupe_key="k")
    waiter = drive.enqueue(dedupe_key="k").job_id
    (holder,) = drive.claim().jobs
    assert drive.row(waiter)["lane"] is None
    drive.end(holder, outcome)
    assert drive.row(waiter)["lane"] == "echo"


def test_a_cancelled_job_hands_its_turn_to_the_next_of_its_key(drive: Any) -> None:
    """A job that was let back into its lane and then ends there does not leave the others waiting for ever."""
    drive.enqueue(dedupe_key="k")
    second, third = (drive.enqueue(dedupe_key="k").job_id for _ in range(2))
    (holder,) = drive.claim().jobs
    drive.end(holder, Failed("no"))
    drive.claim(1, other=1)
    with transaction(drive.db):
        cancel(drive.db, second, "not needed", now=drive.now)
    assert ids(drive.claim()) == [third]


def test_a_twin_that_succeeded_meanwhile_makes_the_job_skipped(drive: Any) -> None:
    """Two identical events that arrive together run once; the second ends skipped, in the log, and its tree is done."""
    first, second = drive.enqueue(dedupe_key="k"), drive.enqueue(dedupe_key="k")
    job = drive.claim_one()
    assert job.id == first.job_id
    drive.end(job)
    claimed = drive.claim()
    assert claimed.jobs == ()
    (skipped,) = claimed.skipped
    assert (skipped.job_id, skipped.tree_is_done) == (second.job_id, True)
    assert drive.row(second.job_id)["last_error"] == f"deduplicated: {first.job_id} succeeded meanwhile"
    assert drive.db.execute("SELECT status FROM job_log WHERE job_id = ?", (second.job_id,)).fetchone() == ("skipped",)


def test_a_success_from_before_the_job_was_asked_for_does_not_skip_it(drive: Any) -> None:
    """At claim only what happened meanwhile counts; the window was judged at the door."""
    drive.enqueue(dedupe_key="k")
    drive.end(drive.claim_one())
    drive.later(hours=2)
    again = drive.enqueue(dedupe_key="k", dedupe_ttl=timedelta(hours=1))
    assert ids(drive.claim()) == [again.job_id]


def test_a_long_line_of_twins_is_set_aside_in_portions(drive: Any) -> None:
    """One claim stays a short transaction; `more` asks for the next."""
    for _ in range(450):
        drive.enqueue(dedupe_key="k")
    other = drive.enqueue()
    drive.end(drive.claim_one())
    rounds = [drive.claim(1) for _ in range(12)]
    assert [len(claimed.skipped) for claimed in rounds] == [40] * 11 + [9]
    assert [claimed.more for claimed in rounds] == [True] * 11 + [False]
    assert ids(rounds[-1]) == [other.job_id]


def test_a_retry_waits_for_its_moment(drive: Any) -> None:
    """A delayed job is not in its lane until it is due, and keeps its place in the order."""
    delayed = drive.enqueue()
    drive.end(drive.claim_one(), Retried("no", MINUTE))
    assert drive.claim().jobs == ()
    assert next_due(drive.db) == drive.now + MINUTE
    later = drive.enqueue()
    drive.later(minutes=1)
    assert ids(drive.claim()) == [delayed.job_id, later.job_id]


def test_a_clock_set_back_does_not_strand_a_retry(drive: Any) -> None:
    """A failure that lies in the future was written by a wrong clock: the retry is due."""
    drive.enqueue()
    drive.end(drive.claim_one(), Retried("no", MINUTE))
    drive.later(seconds=-59)
    assert drive.claim().jobs == ()
    drive.later(days=-3650)
    assert len(drive.claim().jobs) == 1


def test_a_claim_names_run_attempt_and_snapshot(drive: Any) -> None:
    """(job, attempt) is the fencing token; the run is who may not be an orphan of itself."""
    drive.enqueue()
    with transaction(drive.db):
        claimed = claim(drive.db, now=drive.now, run_id="r", free={"echo": 1}, limit=1, snapshot_id="cfg_1")
    (job,) = claimed.jobs
    row = drive.row(job.id)
    assert (row["claimed_by"], row["attempt"], row["started_config_snapshot_id"]) == ("r", 1, "cfg_1")
    assert (job.status, job.started_at) == ("running", drive.now)


def test_a_process_is_noted_only_for_the_current_attempt(drive: Any) -> None:
    """pid, start ticks and boot id belong to one attempt; the journal tells of the process."""
    drive.enqueue()
    job = drive.claim_one()
    with transaction(drive.db):
        assert note_process(
            drive.db, ProcessNote(job.id, 1, pid=42, start_ticks=7, boot_id="b"), run_id=drive.run_id, now=drive.now
        )
        assert not note_process(
            drive.db, ProcessNote(job.id, 2, pid=43, start_ticks=7, boot_id="b"), run_id=drive.run_id, now=drive.now
        )
    assert drive.row(job.id)["pid"] == 42
    told = drive.db.execute("SELECT job_id, plugin, data ->> 'pid' FROM journal WHERE kind = 'plugin.spawned'")
    assert told.fetchall() == [(job.id, job.plugin, 42)]
    drive.end(job)
    assert drive.row(job.id)["pid"] is None


def test_recording_and_claiming_share_a_transaction(drive: Any) -> None:
    """What one job's end makes claimable is claimed in the same step."""
    drive.enqueue(dedupe_key="k")
    job = drive.claim_one()
    child = drive.new(plugin="next", child_key="1")
    ending = Completion(job_id=job.id, attempt=1, outcome=Succeeded(drive.evidence()), children=(child,))
    with transaction(drive.db):
        recorded, claimed = record_and_claim(
            drive.db, [ending], now=drive.now, run_id="run-1", free={"next": 1}, limit=1
        )
    assert claimed.jobs[0].parent_job_id == job.id
    assert not recorded[0].tree_is_done  # type: ignore[union-attr]
