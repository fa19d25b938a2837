"""Silence alarms on a clock that the test moves, with the real ledger: what is late, what is overdue, who is told."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ductile.ledger.tables.schedules import EntryStatus
from tests.engine.stage import BROKEN, HOUR, MINUTE, OK, MakeStage, Stage, open_stages

LATE, OVERDUE = "schedule.late", "job.overdue"
WATCHED = "  echo: {schedules: [{every: 1h, expect: {start_within: 5m, finish_within: 20m}}]}"


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[MakeStage]:
    """Opens a stage for these plugins; it is NOON there."""
    async with open_stages(tmp_path, WATCHED) as make:
        yield make


def alarms(one: Stage) -> list[tuple[str, str]]:
    """Kind and slot of every alarm that is on record."""
    rows = one.rows(f"SELECT kind, data FROM journal WHERE kind IN ('{LATE}', '{OVERDUE}') ORDER BY seq")
    return [(kind, json.loads(data)["slot_at"][11:16]) for kind, data in rows]


def told(one: Stage) -> dict[str, Any]:
    """What the last alarm says."""
    data: dict[str, Any] = json.loads(
        one.rows(f"SELECT data FROM journal WHERE kind IN ('{LATE}', '{OVERDUE}') ORDER BY seq DESC LIMIT 1")[0][0]
    )
    return data


async def test_a_schedule_that_keeps_its_promises_raises_no_alarm(stage: MakeStage) -> None:
    """And nothing is left of what was expected."""
    one = await stage()
    await one.pass_for(3 * HOUR - MINUTE)
    assert alarms(one) == []
    assert one.rows("SELECT COUNT(*) FROM expectations WHERE taken_at IS NULL") == [(0,)]


async def test_a_job_that_waits_too_long_is_late_and_then_overdue(stage: MakeStage) -> None:
    """Each slot raises each alarm once, at its own moment."""
    one = await stage()
    await one.pass_for(4 * MINUTE, then=None)
    assert alarms(one) == []
    await one.pass_for(MINUTE, then=None)
    assert alarms(one) == [(LATE, "12:00")]
    assert told(one)["status"] == "queued"
    assert "has not started" in told(one)["message"]
    await one.pass_for(50 * MINUTE, then=None)
    assert alarms(one) == [(LATE, "12:00"), (OVERDUE, "12:00")]


async def test_a_job_that_runs_in_time_but_does_not_end_is_only_overdue(stage: MakeStage) -> None:
    one = await stage()
    await one.turn()
    (job,) = await one.claim()
    await one.pass_for(30 * MINUTE, then=None)
    assert alarms(one) == [(OVERDUE, "12:00")]
    assert told(one)["job_id"] == job.id


async def test_a_failure_in_time_is_no_silence(stage: MakeStage) -> None:
    """Breakers and hooks speak of failures; an alarm speaks of nothing happening."""
    one = await stage()
    await one.pass_for(40 * MINUTE, then=BROKEN)
    assert alarms(one) == []


async def test_an_open_breaker_makes_a_schedule_late(stage: MakeStage) -> None:
    """The alarm says what holds the run, while the schedule is held; what it held then runs late but quietly."""
    breaker = "circuit_breaker: {threshold: 1, reset_after: 90m}"
    one = await stage(f"  echo: {{schedules: [{{every: 1h, expect: {{start_within: 5m}}}}], {breaker}}}")
    await one.pass_for(HOUR + 10 * MINUTE, then=BROKEN)
    assert alarms(one) == [(LATE, "13:00")]
    assert told(one)["reason"].startswith("the circuit breaker is open")
    assert told(one)["job_id"] is None
    await one.pass_for(40 * MINUTE)
    assert alarms(one) == [(LATE, "13:00")]


async def test_a_slot_that_nobody_saw_is_late(stage: MakeStage) -> None:
    """A service that was down tells so as soon as it is back, once however many slots passed."""
    one = await stage()
    await one.pass_for(10 * MINUTE)
    one.clock.pass_to(one.clock.now() + 5 * HOUR)
    one.start()
    await one.pass_for(MINUTE)
    assert alarms(one) == [(LATE, "17:00")]
    await one.pass_for(20 * MINUTE)
    assert alarms(one) == [(LATE, "17:00"), (OVERDUE, "17:00")]


async def test_the_operator_who_pauses_a_schedule_expects_nothing(stage: MakeStage) -> None:
    one = await stage()
    await one.pass_for(10 * MINUTE)
    await one.set_status(EntryStatus.PAUSED_MANUAL)
    await one.pass_for(5 * HOUR)
    assert alarms(one) == []


async def test_a_run_that_waits_for_its_window_is_expected_after_the_opening(stage: MakeStage) -> None:
    one = await stage(
        "  echo: {schedules: [{every: 4h, only_between: '13:00-15:00', timezone: UTC, expect: {start_within: 5m}}]}"
    )
    await one.pass_for(HOUR, then=None)
    assert alarms(one) == []
    await one.pass_for(5 * MINUTE, then=None)
    assert alarms(one) == [(LATE, "12:00")]


async def test_a_run_that_is_left_out_beside_another_is_not_missed(stage: MakeStage) -> None:
    """`if_running: skip` is what the operator wants; the run that goes on is overdue, and that is told."""
    one = await stage()
    await one.turn()
    await one.claim()
    await one.pass_for(3 * HOUR, then=None)
    assert alarms(one) == [(OVERDUE, "12:00")]


async def test_a_crash_between_the_slot_and_its_alarm_loses_nothing(stage: MakeStage) -> None:
    one = await stage()
    await one.turn()
    await one.claim()
    one.clock.pass_to(one.clock.now() + 25 * MINUTE)
    one.start()  # a service that died and came back; its job is still marked as running
    await one.turn()
    assert alarms(one) == [(OVERDUE, "12:00")]


async def test_what_is_no_longer_configured_is_no_longer_expected(stage: MakeStage) -> None:
    one = await stage()
    await one.pass_for(MINUTE, then=None)
    one.configure("  echo: {schedules: [{every: 1h}]}")
    await one.pass_for(30 * MINUTE, then=None)
    assert alarms(one) == []
    assert one.rows("SELECT COUNT(*) FROM expectations WHERE taken_at IS NULL") == [(0,)]


async def test_an_alarm_starts_pipelines_hooks_and_routes(stage: MakeStage) -> None:
    """Each once, with what the alarm says; those for other plugins stay quiet."""
    one = await stage()
    one.configure(
        WATCHED
        + """
  other: {}
pipelines:
  - {name: by-event, on: schedule.late, from_plugin: echo, steps: [{uses: other}]}
  - {name: by-hook, on-hook: schedule.late, steps: [{uses: other}]}
  - {name: not-mine, on: schedule.late, from_plugin: other, steps: [{uses: other}]}
routes: [{from: echo, event_type: schedule.late, to: other}]
"""
    )
    await one.pass_for(6 * MINUTE, then=None)
    rows = one.jobs("pipeline, submitted_by, payload", "plugin = 'other'")
    assert sorted(str(pipeline) for pipeline, _, _ in rows) == ["None", "by-event", "by-hook"]
    for _, submitted_by, payload in rows:
        event = json.loads(payload)
        assert submitted_by == "scheduler"
        assert (event["type"], event["source"]) == (LATE, "echo")
        assert event["payload"]["schedule_id"] == "default"


async def test_alarms_are_in_the_log(stage: MakeStage) -> None:
    one = await stage()
    await one.pass_for(6 * MINUTE, then=None)
    assert [line for line in one.said() if "has not started" in line]


async def test_a_run_that_ends_before_anybody_looks_is_fine(stage: MakeStage) -> None:
    """The moment of the alarm is what counts, and what is true then."""
    one = await stage()
    await one.turn()
    one.clock.pass_to(one.clock.now() + 4 * MINUTE)
    await one.work(OK)
    await one.pass_for(30 * MINUTE)
    assert alarms(one) == []


async def test_slots_that_are_made_up_for_together_raise_one_alarm(stage: MakeStage) -> None:
    """However many were missed."""
    one = await stage("  echo: {schedules: [{every: 1m, catch_up: run_all, expect: {start_within: 5m}}]}")
    await one.turn()
    await one.work()
    one.clock.pass_to(one.clock.now() + 3 * HOUR)
    one.start()
    await one.pass_for(6 * MINUTE, then=None)
    assert alarms(one) == [(LATE, "15:00")]


async def test_an_expectation_that_cannot_be_looked_at_stops_nothing(stage: MakeStage) -> None:
    """It is told once, the others are looked at, and schedules go on."""
    one = await stage(WATCHED + "\n  other: {schedules: [{every: 1h, expect: {start_within: 5m}}]}")
    await one.turn()
    await one.ledger.write(lambda db: db.execute("UPDATE job_queue SET created_at = 'x' WHERE plugin = 'echo'"))
    await one.pass_for(10 * MINUTE, then=None)
    assert alarms(one) == [(LATE, "12:00")]
    assert one.rows("SELECT plugin FROM journal WHERE kind = 'schedule.late'") == [("other",)]
    assert [line for line in one.said() if "cannot be looked at" in line]
