"""The verdict about an instance: facts of the ledger in, reasons with their commands out."""

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from ductile.core.clock import to_text
from ductile.core.model import Breaker, BreakerChange, BreakerState, Dead, Failed, Held, OutcomeCode, Retried
from ductile.explain.health import Health, HealthVerdict, judge_health, read_health_facts
from ductile.explain.sentences import SENTENCES
from ductile.ledger.admin import drifted_plugins, job_actions, pauses
from ductile.ledger.admin.drifted_plugins import DriftedPlugin
from ductile.ledger.queue.claim import claim_next
from ductile.ledger.storage.connections import transaction
from ductile.ledger.storage.lock_holder import LockHolder
from ductile.ledger.storage.open_file import open_writer
from ductile.ledger.tables import blocked_jobs, breakers, plugin_inits, schedules, sla
from ductile.ledger.tables.plugin_inits import PluginInit
from ductile.ledger.tables.sla import Expectation
from tests.ledger.conftest import LedgerDriver

PLUGINS = ("echo", "other")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[LedgerDriver]:
    with closing(open_writer(tmp_path / "state.db", synchronous="off")) as db:
        yield LedgerDriver(db)


def health(ledger: Any, **more: Any) -> Health:
    return judge_health(read_health_facts(ledger.db, PLUGINS, now=ledger.now, **more))


def reasons(ledger: Any, **more: Any) -> list[tuple[str, str]]:
    """Return code and command of every reason. Each has a sentence."""
    found = health(ledger, **more).reasons
    assert {one.reason.code for one in found} <= SENTENCES.keys()
    assert all(one.reason.words and one.as_data()["fix"] == one.fix for one in found)
    return [(one.reason.code, one.fix) for one in found]


def test_an_idle_instance_is_healthy(ledger: Any) -> None:
    ledger.enqueue()
    ledger.end(ledger.claim_one())

    assert (health(ledger).verdict, health(ledger).codes) == (HealthVerdict.HEALTHY, [])


def test_pauses_need_attention(ledger: Any) -> None:
    """Of the queue and of loaded plugins."""
    with transaction(ledger.db):
        for plugin in ("*", "echo", "removed"):
            pauses.pause(ledger.db, plugin, "moving", now=ledger.now)

    assert health(ledger).verdict is HealthVerdict.ATTENTION
    assert reasons(ledger) == [
        ("queue_paused", "ductile queue resume"),
        ("paused", "ductile plugin resume echo"),
    ]


def test_an_open_breaker_needs_attention(ledger: Any) -> None:
    with transaction(ledger.db):
        for plugin, state in (("echo", BreakerState.OPEN), ("other", BreakerState.CLOSED)):
            breaker = Breaker(plugin=plugin, command="poll", state=state, failure_count=3)
            breakers.put(ledger.db, BreakerChange(breaker, "failures"), now=ledger.now)

    assert reasons(ledger) == [("breaker", "ductile system reset echo poll")]


def test_a_schedule_that_is_not_evaluated_is_late(ledger: Any) -> None:
    """Unless no service runs."""
    with transaction(ledger.db):
        schedules.define(ledger.db, "echo", "nightly", "poll", "hash", now=ledger.now)
        schedules.set_next_run(ledger.db, "echo", "nightly", ledger.now, now=ledger.now)
    assert reasons(ledger) == []
    ledger.advance(minutes=2)

    assert reasons(ledger) == [("schedule_late", "ductile schedule why echo nightly")]
    assert reasons(ledger, is_running=False) == []


def test_a_missed_deadline_of_an_open_job_is_late(ledger: Any) -> None:
    """It is on time once the job has started."""
    slot = ledger.now
    ledger.enqueue(schedule_id="nightly", slot_at=slot)
    with transaction(ledger.db):
        expected = Expectation(
            plugin="echo", schedule_id="nightly", slot_at=slot, kind="schedule.late", due_at=slot + timedelta(minutes=1)
        )
        sla.put(ledger.db, expected)
    assert reasons(ledger) == []
    ledger.advance(minutes=2)

    assert reasons(ledger) == [("job_late", "ductile schedule why echo nightly")]
    ledger.claim_one()
    assert reasons(ledger) == []


def test_a_job_that_could_start_for_long_needs_attention(ledger: Any) -> None:
    """Unless its plugin is paused, which is the reason then, or no service runs."""
    job_id = ledger.enqueue().job_id
    ledger.advance(minutes=6)

    assert reasons(ledger) == [("ready_too_long", f"ductile job why {job_id}")]
    assert reasons(ledger, is_running=False) == []
    with transaction(ledger.db):
        pauses.pause(ledger.db, "echo", "moving", now=ledger.now)
    assert [code for code, _ in reasons(ledger)] == ["paused"]


def test_a_retried_job_is_ready_since_its_retry(ledger: Any) -> None:
    """Not since it was created. The wait for a retry time does not count."""
    ledger.enqueue(plugin="echo", max_attempts=1)
    ledger.enqueue(plugin="other", max_attempts=2)
    failed, delayed = ledger.claim_one("echo"), ledger.claim_one("other")
    ledger.end(failed, Dead("broken"))
    ledger.end(delayed, Retried("broken", timedelta(hours=1)))
    ledger.advance(hours=1)
    ledger.claim(0)
    ledger.advance(seconds=-1)
    retried_at = ledger.now
    with transaction(ledger.db):
        job_actions.retry(ledger.db, failed.id, now=ledger.now)
    ledger.advance(seconds=1)
    ledger.enqueue()
    assert "ready_too_long" not in health(ledger).codes

    ledger.advance(minutes=6)
    (found,) = [one for one in health(ledger).reasons if one.reason.code == "ready_too_long"]
    assert (found.fix, found.reason.data["since"]) == (f"ductile job why {failed.id}", to_text(retried_at))


def test_an_attempt_that_does_not_follow_its_retry_time_needs_attention(ledger: Any) -> None:
    """Also a retry that is due while the dispatcher cannot claim, and one without a delay."""
    for retried in (Retried("broken", timedelta(hours=1)), Retried("broken", timedelta())):
        for wakes in (False, True):
            ledger.enqueue(max_attempts=2)
            job = ledger.claim_one()
            ledger.end(job, retried)
            ledger.advance(seconds=retried.delay.total_seconds() + 1)
            if wakes:
                ledger.claim(0)
            assert reasons(ledger) == [], retried
            ledger.advance(minutes=6)

            (found,) = health(ledger).reasons
            assert (found.reason.code, found.fix) == ("ready_too_long", f"ductile job why {job.id}"), retried
            ledger.end(ledger.claim_one())


def test_a_job_that_waited_for_a_breaker_is_ready_since_the_breaker_closed(ledger: Any) -> None:
    opened = Breaker(plugin="echo", command="poll", state=BreakerState.OPEN, failure_count=3)
    held = Held(ledger.now + timedelta(hours=1), "open")
    job_id = ledger.enqueue().job_id
    with transaction(ledger.db):
        breakers.put(ledger.db, BreakerChange(opened, "failures"), now=ledger.now)
        gates = {"echo": lambda *_: held}
        claim_next(ledger.db, now=ledger.now, run_id="run", free={"echo": 1}, limit=1, gates=gates)
    ledger.advance(minutes=30)
    with transaction(ledger.db):
        breakers.put(ledger.db, BreakerChange(evolve(opened, state=BreakerState.CLOSED), "reset"), now=ledger.now)
        blocked_jobs.unblock_command(ledger.db, "echo", "poll")
    ledger.advance(minutes=4)
    assert reasons(ledger) == []

    ledger.advance(minutes=2)
    assert reasons(ledger) == [("ready_too_long", f"ductile job why {job_id}")]


def test_failures_since_the_last_success_need_attention(ledger: Any) -> None:
    """They are counted for each loaded plugin; a success ends them."""
    for plugin in ("removed", "echo", "echo"):
        last = ledger.enqueue(plugin=plugin).job_id
        ledger.end(ledger.claim_one(plugin), Failed("no luck"))
    (found,) = health(ledger).reasons

    assert (found.reason.code, found.fix) == ("failing", f"ductile job diagnose {last}")
    assert found.reason.words.startswith("The last 2 jobs of plugin echo failed, the latest ")
    assert found.reason.words.endswith(": no luck")
    ledger.enqueue()
    ledger.end(ledger.claim_one())
    assert reasons(ledger) == []


def test_jobs_that_an_operator_ended_are_no_failures(ledger: Any) -> None:
    job_id, _ = ledger.enqueue().job_id, ledger.enqueue()
    with transaction(ledger.db):
        job_actions.cancel(ledger.db, job_id, "not needed", now=ledger.now)
        job_actions.purge(ledger.db, "echo", 99, "flood", now=ledger.now)
    ledger.enqueue(plugin="other")
    ledger.end(ledger.claim_one("other"), Dead("stopped", code=OutcomeCode.CANCELLED))

    assert health(ledger).verdict is HealthVerdict.HEALTHY


def test_a_service_that_was_killed_needs_attention(ledger: Any) -> None:
    """With the number of jobs that were running."""
    ledger.enqueue()
    ledger.claim_one()

    assert reasons(ledger) == []
    (found,) = health(ledger, is_running=False).reasons
    assert (found.verdict, found.fix) == (HealthVerdict.ATTENTION, "ductile system start")
    assert found.reason.words == "The service was killed or crashed. 1 job was running. The next start recovers it."


def test_a_stuck_ledger_fails_and_names_the_process(ledger: Any) -> None:
    holder = LockHolder(4711, "sqlite3")

    assert reasons(ledger, is_stuck=True) == [("stuck", "ductile system doctor")]
    (found,) = health(ledger, is_stuck=True, lock_holder=holder).reasons
    assert (found.verdict, found.reason.code) == (HealthVerdict.FAILED, "ledger_locked")
    assert found.reason.words == "Process 4711 (sqlite3) has locked the ledger, so nothing can be written."


def test_a_plugin_whose_files_have_changed_fails_and_its_jobs_are_not_ready(ledger: Any) -> None:
    """Unless no service runs: the next start checks all files."""
    names: dict[str, Any] = {"plugin": "echo", "code": "plugin_changed", "files": ["run"], "fingerprint": None}
    ledger.enqueue()
    with transaction(ledger.db):
        drifted_plugins.put(ledger.db, DriftedPlugin(**names, detected_at=ledger.now), blocks=True)
    ledger.advance(minutes=6)

    assert health(ledger).verdict is HealthVerdict.FAILED
    assert reasons(ledger) == [("plugin_changed", "ductile config check")]
    assert reasons(ledger, is_running=False) == []


def test_a_failed_init_fails_and_comes_first(ledger: Any) -> None:
    with transaction(ledger.db):
        pauses.pause(ledger.db, "*", "moving", now=ledger.now)
        failed = PluginInit(plugin="echo", fingerprint="print", error="no license")
        plugin_inits.put(ledger.db, failed, now=ledger.now, job_id="init")

    assert health(ledger).verdict is HealthVerdict.FAILED
    assert [code for code, _ in reasons(ledger)] == ["unhealthy", "queue_paused"]
    assert [code for code, _ in reasons(ledger, is_running=False)] == ["queue_paused"]
