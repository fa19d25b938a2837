"""Alarms of schedules with a virtual clock and a real ledger: late starts and overdue jobs."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ductile.ledger.tables.schedules import EntryStatus
from tests.engine.scheduler_service import FAILED, HOUR, MINUTE, OK, SchedulerService, StartService, scheduler_services

LATE, OVERDUE = "schedule.late", "job.overdue"
WATCHED = "  echo: {schedules: [{every: 1h, expect: {start_within: 5m, finish_within: 20m}}]}"


@pytest.fixture
async def start_service(tmp_path: Path) -> AsyncIterator[StartService]:
    """Start a service with these plugins at NOON."""
    async with scheduler_services(tmp_path, WATCHED) as make:
        yield make


def alarms(service: SchedulerService) -> list[tuple[str, str]]:
    """Return kind and slot of every alarm in the journal."""
    rows = service.rows(f"SELECT kind, data FROM journal WHERE kind IN ('{LATE}', '{OVERDUE}') ORDER BY seq")
    return [(kind, json.loads(data)["slot_at"][11:16]) for kind, data in rows]


def last_alarm(service: SchedulerService) -> dict[str, Any]:
    """Return the data of the last alarm."""
    data: dict[str, Any] = json.loads(
        service.rows(f"SELECT data FROM journal WHERE kind IN ('{LATE}', '{OVERDUE}') ORDER BY seq DESC LIMIT 1")[0][0]
    )
    return data


async def test_a_schedule_that_meets_its_expectations_raises_no_alarm(start_service: StartService) -> None:
    """No expectation stays open."""
    service = await start_service()
    await service.advance_by(3 * HOUR - MINUTE)
    assert alarms(service) == []
    assert service.rows("SELECT COUNT(*) FROM expectations WHERE taken_at IS NULL") == [(0,)]


async def test_a_job_that_waits_too_long_is_late_and_then_overdue(start_service: StartService) -> None:
    """Each slot raises each alarm once."""
    service = await start_service()
    await service.advance_by(4 * MINUTE, outcome=None)
    assert alarms(service) == []
    await service.advance_by(MINUTE, outcome=None)
    assert alarms(service) == [(LATE, "12:00")]
    assert last_alarm(service)["status"] == "queued"
    assert "has not started" in last_alarm(service)["message"]
    await service.advance_by(50 * MINUTE, outcome=None)
    assert alarms(service) == [(LATE, "12:00"), (OVERDUE, "12:00")]


async def test_a_job_that_runs_in_time_but_does_not_end_is_only_overdue(start_service: StartService) -> None:
    service = await start_service()
    await service.tick()
    (job,) = await service.claim()
    await service.advance_by(30 * MINUTE, outcome=None)
    assert alarms(service) == [(OVERDUE, "12:00")]
    assert last_alarm(service)["job_id"] == job.id


async def test_a_failure_in_time_raises_no_alarm(start_service: StartService) -> None:
    """Breakers and hooks report failures; alarms report missing runs."""
    service = await start_service()
    await service.advance_by(40 * MINUTE, outcome=FAILED)
    assert alarms(service) == []


async def test_an_open_breaker_makes_a_schedule_late(start_service: StartService) -> None:
    """The alarm has the reason. The late run raises no further alarm."""
    breaker = "circuit_breaker: {threshold: 1, reset_after: 90m}"
    service = await start_service(f"  echo: {{schedules: [{{every: 1h, expect: {{start_within: 5m}}}}], {breaker}}}")
    await service.advance_by(HOUR + 10 * MINUTE, outcome=FAILED)
    assert alarms(service) == [(LATE, "13:00")]
    assert last_alarm(service)["reason"].startswith("the circuit breaker is open")
    assert last_alarm(service)["job_id"] is None
    await service.advance_by(40 * MINUTE)
    assert alarms(service) == [(LATE, "13:00")]


async def test_a_slot_that_was_missed_while_down_is_late(start_service: StartService) -> None:
    """One alarm after the start, whatever the number of missed slots."""
    service = await start_service()
    await service.advance_by(10 * MINUTE)
    service.clock.advance_to(service.clock.now() + 5 * HOUR)
    service.start()
    await service.advance_by(MINUTE)
    assert alarms(service) == [(LATE, "17:00")]
    await service.advance_by(20 * MINUTE)
    assert alarms(service) == [(LATE, "17:00"), (OVERDUE, "17:00")]


async def test_a_paused_schedule_has_no_expectations(start_service: StartService) -> None:
    service = await start_service()
    await service.advance_by(10 * MINUTE)
    await service.set_status(EntryStatus.PAUSED_MANUAL)
    await service.advance_by(5 * HOUR)
    assert alarms(service) == []


async def test_a_run_outside_its_window_is_expected_after_the_opening(start_service: StartService) -> None:
    service = await start_service(
        "  echo: {schedules: [{every: 4h, only_between: '13:00-15:00', timezone: UTC, expect: {start_within: 5m}}]}"
    )
    await service.advance_by(HOUR, outcome=None)
    assert alarms(service) == []
    await service.advance_by(5 * MINUTE, outcome=None)
    assert alarms(service) == [(LATE, "12:00")]


async def test_a_slot_that_if_running_skips_raises_no_alarm(start_service: StartService) -> None:
    """Only the job that still runs is overdue."""
    service = await start_service()
    await service.tick()
    await service.claim()
    await service.advance_by(3 * HOUR, outcome=None)
    assert alarms(service) == [(OVERDUE, "12:00")]


async def test_a_crash_between_the_slot_and_its_alarm_loses_no_alarm(start_service: StartService) -> None:
    service = await start_service()
    await service.tick()
    await service.claim()
    service.clock.advance_to(service.clock.now() + 25 * MINUTE)
    service.start()  # a service that died and came back; its job is still marked as running
    await service.tick()
    assert alarms(service) == [(OVERDUE, "12:00")]


async def test_a_removed_expectation_raises_no_alarm(start_service: StartService) -> None:
    service = await start_service()
    await service.advance_by(MINUTE, outcome=None)
    service.configure("  echo: {schedules: [{every: 1h}]}")
    await service.advance_by(30 * MINUTE, outcome=None)
    assert alarms(service) == []
    assert service.rows("SELECT COUNT(*) FROM expectations WHERE taken_at IS NULL") == [(0,)]


async def test_an_alarm_starts_pipelines_hooks_and_routes(start_service: StartService) -> None:
    """Each once, with the data of the alarm. Those for other plugins do not start."""
    service = await start_service()
    service.configure(
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
    await service.advance_by(6 * MINUTE, outcome=None)
    rows = service.jobs("pipeline, submitted_by, payload", "plugin = 'other'")
    assert sorted(str(pipeline) for pipeline, _, _ in rows) == ["None", "by-event", "by-hook"]
    for _, submitted_by, payload in rows:
        event = json.loads(payload)
        assert submitted_by == "scheduler"
        assert (event["type"], event["source"]) == (LATE, "echo")
        assert event["payload"]["schedule_id"] == "default"


async def test_alarms_are_in_the_log(start_service: StartService) -> None:
    service = await start_service()
    await service.advance_by(6 * MINUTE, outcome=None)
    assert [line for line in service.log_messages() if "has not started" in line]


async def test_a_run_that_ends_before_the_check_raises_no_alarm(start_service: StartService) -> None:
    """The state at the time of the check counts."""
    service = await start_service()
    await service.tick()
    service.clock.advance_to(service.clock.now() + 4 * MINUTE)
    await service.run_jobs(OK)
    await service.advance_by(30 * MINUTE)
    assert alarms(service) == []


async def test_slots_that_are_caught_up_together_raise_one_alarm(start_service: StartService) -> None:
    """Whatever the number of missed slots."""
    service = await start_service("  echo: {schedules: [{every: 1m, catch_up: run_all, expect: {start_within: 5m}}]}")
    await service.tick()
    await service.run_jobs()
    service.clock.advance_to(service.clock.now() + 3 * HOUR)
    service.start()
    await service.advance_by(6 * MINUTE, outcome=None)
    assert alarms(service) == [(LATE, "15:00")]


async def test_an_expectation_that_cannot_be_checked_does_not_affect_the_others(start_service: StartService) -> None:
    """It is logged once. Other expectations are checked, and schedules continue."""
    service = await start_service(WATCHED + "\n  other: {schedules: [{every: 1h, expect: {start_within: 5m}}]}")
    await service.tick()
    await service.ledger.write(lambda db: db.execute("UPDATE job_queue SET created_at = 'x' WHERE plugin = 'echo'"))
    await service.advance_by(10 * MINUTE, outcome=None)
    assert alarms(service) == [(LATE, "12:00")]
    assert service.rows("SELECT plugin FROM journal WHERE kind = 'schedule.late'") == [("other",)]
    assert [line for line in service.log_messages() if "cannot be checked" in line]
