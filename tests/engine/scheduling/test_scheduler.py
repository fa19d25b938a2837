"""The scheduler with a virtual clock and a real ledger: slots that fire, are held or are skipped."""

import os
import random
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from attrs import define, evolve

from ductile.calendar.definition import Definition, History
from ductile.calendar.due import Evaluation, evaluate
from ductile.core.errors import LedgerBusy, LedgerError, LedgerLost
from ductile.core.hub import SCHEDULES
from ductile.core.model import BreakerState, Dead, Interrupted, Job, Outcome
from ductile.engine.scheduling import tick
from ductile.ledger.storage.async_ledger import Ledger
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import schedules
from ductile.ledger.tables.schedules import EntryStatus
from tests.engine.scheduler_service import (
    DAY,
    FAILED,
    HOUR,
    MINUTE,
    NOON,
    OK,
    SECOND,
    CountingLedger,
    SchedulerService,
    StartService,
    scheduler_services,
)

EVERY_5M = "  echo: {schedules: [{every: 5m}]}"
PAUSED, ACTIVE, EXHAUSTED = EntryStatus.PAUSED_MANUAL, EntryStatus.ACTIVE, EntryStatus.EXHAUSTED
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


@pytest.fixture
async def start_service(tmp_path: Path) -> AsyncIterator[StartService]:
    """Start a service with these plugins at NOON."""
    async with scheduler_services(tmp_path, EVERY_5M) as make:
        yield make


def echo(schedule: str, more: str = "") -> str:
    return f"  echo: {{schedules: [{{{schedule}}}]{', ' * bool(more)}{more}}}"


# ── on time ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("schedule", "slots"),
    [
        ("every: 2h", ["12:00", "14:00", "16:00"]),
        ("cron: '30 13,15 * * *', timezone: UTC", ["13:30", "15:30"]),
        ("cron: '30 14 * * *', timezone: Europe/Berlin", ["13:30"]),
        ("at: '2026-03-09T13:00:00+00:00'", ["13:00"]),
        ("after: 90m", ["13:30"]),
        ("every: 2h, only_between: '13:00-15:00', timezone: UTC", ["12:00", "14:00"]),
        ("every: 2h, not_on: [monday], timezone: UTC", []),
    ],
)
async def test_a_schedule_fires_at_its_slots(start_service: StartService, schedule: str, slots: list[str]) -> None:
    """At no other time, whatever its kind. A slot outside its window fires when the window opens."""
    service = await start_service(echo(schedule))
    await service.advance_by(4 * HOUR)
    assert service.slots() == slots


async def test_a_job_has_its_schedule_and_slot(start_service: StartService) -> None:
    """It has the payload of the schedule and the max attempts of the plugin, and is submitted by the scheduler."""
    service = await start_service(
        echo("id: nightly, every: 1h, command: sync, payload: {n: 1}", "retry: {max_attempts: 2}")
    )
    await service.tick()
    columns = "plugin, command, schedule_id, slot_at, payload, submitted_by, max_attempts"
    assert service.jobs(columns) == [
        ("echo", "sync", "nightly", "2026-03-09T12:00:00.000000Z", '{"n":1}', "scheduler", 2),
    ]


async def test_job_slot_and_next_run_are_written_together(start_service: StartService) -> None:
    """The entry has the job, its slot and the next run. The completion of the job sets the last success."""
    service = await start_service()
    assert await service.tick() == NOON + 5 * MINUTE
    fired = service.entry()
    (job_id,) = service.jobs("id")
    assert (fired.last_job_id, fired.last_slot_at, fired.last_fired_at) == (job_id, NOON, NOON)
    assert fired.next_run_at == NOON + 5 * MINUTE
    await service.run_jobs()
    assert service.entry().last_success_job_id == job_id


async def test_a_failure_does_not_fire_again_before_the_next_slot(start_service: StartService) -> None:
    """A slot fires once."""
    service = await start_service(echo("every: 5m", "circuit_breaker: {threshold: 100}"))
    await service.advance_by(10 * MINUTE, outcome=FAILED)
    assert service.slots() == ["12:00", "12:05", "12:10"]


async def test_two_schedules_of_one_command_are_independent(start_service: StartService) -> None:
    """Each has its own slots, open jobs and last success."""
    service = await start_service("  echo: {schedules: [{id: a, every: 10m}, {id: b, every: 15m}]}")
    await service.advance_by(30 * MINUTE, outcome=None)
    assert service.jobs("schedule_id") == ["a", "b"], "each skips while its own first job waits"
    await service.run_jobs()
    await service.advance_by(MINUTE)
    assert (
        service.entry(schedule_id="a").last_success_job_id,
        service.entry(schedule_id="b").last_success_job_id,
    ) == tuple(service.jobs("id"))


async def test_a_thousand_schedules_with_the_same_slot_need_few_transactions(start_service: StartService) -> None:
    """They are decided in batches."""
    listed = ", ".join(f"{{id: s{number}, every: 1h}}" for number in range(1000))
    service = await start_service(f"  echo: {{schedules: [{listed}]}}")
    counted = service.scheduler.ledger = CountingLedger(service.ledger)  # type: ignore[assignment]
    await service.tick()
    assert len(service.jobs()) == 1000
    assert counted.writes <= 20


# ── missed slots ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("catch_up", "made", "skipped"),
    [
        ("skip", [], [("missed", 3)]),
        ("run_once", ["12:15"], [("missed", 2)]),
        ("run_all", ["12:05", "12:10", "12:15"], []),
    ],
)
@pytest.mark.parametrize("how", ["stop", "sleep"])
async def test_missed_slots_are_caught_up_as_configured(
    start_service: StartService, catch_up: str, made: list[str], skipped: list[tuple[str, int]], how: str
) -> None:
    """After a stop of the service and after a suspension of the host. The journal has the number of skipped slots."""
    service = await start_service(echo(f"every: 5m, catch_up: {catch_up}"))
    await service.advance_by(SECOND)
    service.clock.jump(18 * MINUTE)
    if how == "stop":
        service.start()
    await service.tick()
    assert service.slots()[1:] == made
    assert service.skips() == skipped
    assert service.entry().next_run_at == NOON + 20 * MINUTE


async def test_ten_thousand_missed_slots_are_capped_and_the_cap_is_logged(start_service: StartService) -> None:
    """The latest hundred run. The journal and the log have the number of the others and the reason."""
    service = await start_service(echo("every: 5m, catch_up: run_all"))
    await service.advance_by(SECOND)
    service.clock.jump(10_000 * 5 * MINUTE + 2 * MINUTE)
    service.start()
    await service.tick()
    assert len(service.jobs()) == 101
    assert service.skips() == [("catch_up_capped", 9_900)]
    assert any("too many slots were missed" in line for line in service.log_messages())


async def test_missed_slots_are_caught_up_while_an_earlier_job_is_open(
    start_service: StartService,
) -> None:
    """`if_running` applies to the slot that is on time only."""
    service = await start_service(echo("every: 1m, catch_up: run_all, if_running: skip"))
    await service.tick()
    await service.claim()
    service.clock.jump(3 * MINUTE + 10 * SECOND)
    await service.crash()
    await service.tick()
    assert service.slots() == ["12:00", "12:01", "12:02"]
    assert service.skips() == [("already_running", 1)]


async def test_an_at_schedule_missed_while_down_fires_once_after_the_start(start_service: StartService) -> None:
    """It does not fire again after later starts."""
    service = await start_service(echo("at: '2026-03-09T13:00:00Z'"))
    await service.advance_by(MINUTE)
    service.clock.jump(3 * DAY)
    for _ in range(3):
        service.start()
        await service.advance_by(MINUTE)
    assert service.slots() == ["13:00"]
    assert (service.entry().status, service.entry().next_run_at) == (EXHAUSTED, None)


async def test_an_after_schedule_fires_once_per_start(start_service: StartService) -> None:
    """A reload is not a start."""
    service = await start_service(echo("after: 10m"))
    await service.advance_by(20 * MINUTE)
    service.snapshot = evolve(service.snapshot)
    await service.advance_by(20 * MINUTE)
    assert service.slots() == ["12:10"]
    service.start()
    await service.advance_by(9 * MINUTE)
    assert service.slots() == ["12:10"]
    await service.advance_by(MINUTE)
    assert service.slots() == ["12:10", "12:50"]


# ── if_running ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_if_running_skip_skips_slots_while_a_job_is_open(start_service: StartService) -> None:
    """The journal has one row per skipped slot. The next slot after the end fires on time."""
    service = await start_service()
    await service.advance_by(12 * MINUTE, outcome=None)
    assert service.skips() == [("already_running", 1), ("already_running", 1)]
    await service.run_jobs()
    await service.advance_by(5 * MINUTE)
    assert service.slots() == ["12:00", "12:15"]


@pytest.mark.parametrize(("most", "queued"), [(1, 1), (2, 1), (3, 2)])
async def test_if_running_queue_queues_up_to_the_limit(start_service: StartService, most: int, queued: int) -> None:
    """The running job counts; one job may always wait behind it. Slots beyond the limit are skipped."""
    service = await start_service(echo("every: 5m, if_running: queue", f"max_outstanding_polls: {most}"))
    await service.tick()
    await service.claim(limit=1)
    await service.advance_by(30 * MINUTE, outcome=None)
    assert len(service.jobs(where="status = 'queued'")) == queued
    assert service.skips() == [("outstanding_limit", 1)] * (6 - queued)


async def test_if_running_cancel_ends_queued_jobs_and_fires_immediately(start_service: StartService) -> None:
    """The new job is created in the same transaction, and callers of the old one are woken."""
    service = await start_service(echo("every: 5m, if_running: cancel"))
    await service.tick()
    (first,) = service.jobs("id")
    with service.hub.watch(f"job {first}") as hints:
        await service.advance_by(5 * MINUTE, outcome=None)
        hints.receive_nowait()
    assert service.jobs("slot_at, status")[1:] == [("2026-03-09T12:05:00.000000Z", "queued")]
    assert service.jobs("status, last_error")[0] == ("dead", "cancelled: another run of its schedule is due")


async def test_if_running_cancel_fires_when_the_process_has_exited(start_service: StartService) -> None:
    """The running job is stopped. The slot is held with one journal row and fires although it is late by then."""
    service = await start_service(echo("every: 5m, if_running: cancel"))
    await service.tick()
    (running,) = await service.claim()
    await service.advance_by(5 * MINUTE + 90 * SECOND, outcome=None)
    assert set(service.stopped) == {running.id}
    assert service.slots() == ["12:00"]
    assert service.skips() == [("already_running", None)]
    await service.complete(running, Dead("cancelled"))
    await service.advance_by(SECOND, outcome=None)
    assert service.slots() == ["12:00", "12:05"]


async def test_a_job_that_a_schedule_cancels_starts_hooks(start_service: StartService) -> None:
    """Like any other dead job."""
    service = await start_service(echo("every: 5m, if_running: cancel", "notify_on_complete: true"))
    hook = "pipelines:\n  - {name: on-death, on-hook: job.dead, steps: [{id: tell, uses: other}]}\n"
    service.home.add(hook)
    service.configure(echo("every: 5m, if_running: cancel", "notify_on_complete: true") + "\n  other: {}\n" + hook)
    await service.advance_by(5 * MINUTE, outcome=None)
    assert "other" in service.jobs("plugin")


# ── pause, resume and changed definitions ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("catch_up", ["skip", "run_once", "run_all"])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_slots_during_a_pause_never_fire(start_service: StartService, catch_up: str, is_restarted: bool) -> None:
    """They are not caught up after the resume, whatever `catch_up` is."""
    service = await start_service(echo(f"every: 5m, catch_up: {catch_up}"))
    await service.advance_by(SECOND)
    await service.set_status(PAUSED)
    await service.advance_by(17 * MINUTE)
    if is_restarted:
        service.clock.jump(HOUR)
        service.start()
        await service.advance_by(SECOND)
    resumed_at = service.clock.now()
    await service.set_status(ACTIVE)
    await service.advance_by(10 * MINUTE)
    assert [datetime.fromisoformat(slot) > resumed_at for slot in service.jobs()[1:]] == [True, True]
    assert service.skips() == []


async def test_the_only_slot_of_a_schedule_waits_for_the_resume(start_service: StartService) -> None:
    """`at` and `after` schedules have no later slot."""
    service = await start_service("  echo: {schedules: [{at: '2026-03-09T13:00:00Z'}, {id: later, after: 30m}]}")
    await service.tick()
    await service.set_status(PAUSED)
    await service.set_status(PAUSED, schedule_id="later")
    await service.advance_by(2 * HOUR)
    assert service.slots() == []
    await service.set_status(ACTIVE)
    await service.set_status(ACTIVE, schedule_id="later")
    assert sorted(service.slots()) == ["12:30", "13:00"]


async def test_a_changed_definition_starts_new_intervals(start_service: StartService) -> None:
    """They begin at the reload. A change of limits or windows does not affect them."""
    service = await start_service()
    await service.advance_by(7 * MINUTE)
    service.configure(echo("every: 5m, only_between: '00:00-23:00', timezone: UTC, if_running: queue"))
    await service.advance_by(3 * MINUTE)
    service.configure(echo("every: 3m"))
    await service.advance_by(3 * MINUTE)
    assert service.slots() == ["12:00", "12:05", "12:10", "12:10", "12:13"]


async def test_a_changed_at_schedule_fires_again(start_service: StartService) -> None:
    """Only its old time is exhausted."""
    service = await start_service(echo("at: '2026-03-09T12:30:00Z'"))
    await service.advance_by(HOUR)
    service.configure(echo("at: '2026-03-09T14:30:00Z'"))
    await service.advance_by(2 * HOUR)
    assert service.slots() == ["12:30", "14:30"]


async def test_a_removed_schedule_is_deleted(start_service: StartService) -> None:
    """It does not fire, and its entry is deleted."""
    service = await start_service("  echo: {schedules: [{id: a, every: 5m}, {id: b, every: 5m}]}")
    await service.tick()
    service.configure("  echo: {schedules: [{id: b, every: 5m}]}")
    await service.advance_by(5 * MINUTE)
    assert service.rows("SELECT schedule_id FROM schedule_entries") == [("b",)]
    assert service.jobs("schedule_id") == ["a", "b", "b"]


@pytest.mark.parametrize("how", ["disabled", "not there"])
async def test_a_plugin_that_cannot_run_for_a_while_keeps_its_schedule_entries(
    start_service: StartService, how: str
) -> None:
    """An `at` schedule that has fired does not fire again, and a paused schedule stays paused."""
    written = "at: '2026-03-09T12:30:00Z'}, {id: b, every: 5m"
    service = await start_service(echo(written))
    await service.advance_by(HOUR)
    await service.set_status(PAUSED, schedule_id="b")
    made = len(service.jobs())
    folder = service.home.path / "plugins" / "echo"
    if how == "not there":
        folder.rename(service.home.path / "away")
    service.configure(echo(written, f"enabled: {'false' if how == 'disabled' else 'true'}"))
    await service.advance_by(HOUR)
    if how == "not there":
        (service.home.path / "away").rename(folder)
    service.configure(echo(written))
    await service.advance_by(HOUR)
    assert len(service.jobs()) == made
    assert (service.entry().status, service.entry(schedule_id="b").status) == (EXHAUSTED, PAUSED)


# ── plugins that cannot run ─────────────────────────────────────────────────────────────────────────────────────────


async def test_an_unhealthy_plugin_holds_its_schedules(start_service: StartService) -> None:
    """One journal row per slot, not one per evaluation. The latest slot fires when the plugin is healthy."""
    service = await start_service(echo("every: 1h"))
    service.unhealthy.add("echo")
    await service.advance_by(90 * MINUTE)
    assert service.slots() == []
    assert service.skips() == [("plugin_unhealthy", None)] * 2
    assert service.entry().held_reason == "plugin_unhealthy"
    service.unhealthy.clear()
    await service.advance_by(2 * MINUTE)
    assert (service.slots(), service.entry().held_reason) == (["13:00"], None)
    assert service.skips()[2:] == [("plugin_unhealthy", 1)]


async def test_a_slot_outside_its_window_is_journalled_once(start_service: StartService) -> None:
    """Not with every evaluation, announcement or start."""
    service = await start_service(echo("every: 1h, only_between: '14:30-20:00', timezone: UTC"))
    await service.advance_by(MINUTE)
    await service.refresh()
    service.start()
    await service.advance_by(HOUR)
    assert service.skips() == [("outside_time_window", None)]
    await service.advance_to(NOON + 2.5 * HOUR)
    assert service.slots() == ["14:00"]
    assert service.skips()[1:] == [("superseded", 2)]


async def test_a_schedule_that_cannot_be_written_does_not_stop_the_others(start_service: StartService) -> None:
    """It is logged with its name and retried. No partial write remains."""
    service = await start_service("  echo: {schedules: [{every: 5m}]}\n  other: {schedules: [{every: 5m}]}")

    def refuse(db: Db) -> None:
        db.execute("CREATE TRIGGER broken BEFORE INSERT ON job_queue WHEN NEW.plugin = 'echo' "
                   "BEGIN SELECT RAISE(ABORT, 'rejected'); END")  # fmt: skip

    await service.ledger.write(refuse)
    await service.advance_by(10 * SECOND)
    assert (service.jobs("plugin"), service.entry().last_slot_at) == (["other"], None)
    await service.ledger.write(lambda db: db.execute("DROP TRIGGER broken").fetchall())
    await service.advance_by(30 * SECOND)
    assert service.jobs("plugin") == ["other", "echo"]
    assert any(line.startswith("not fired: ") for line in service.log_messages())


async def test_a_next_run_that_cannot_be_written_does_not_stop_the_others(start_service: StartService) -> None:
    """Next runs are written in one batch. Only the rejected one is logged."""
    yearly = "{schedules: [{cron: '0 3 1 1 *'}]}"
    service = await start_service(f"  echo: {yearly}\n  other: {yearly}")

    def refuse(db: Db) -> None:
        db.execute("UPDATE schedule_entries SET next_run_at = NULL")
        db.execute("CREATE TRIGGER broken BEFORE UPDATE ON schedule_entries WHEN NEW.plugin = 'echo' "
                   "BEGIN SELECT RAISE(ABORT, 'rejected'); END")  # fmt: skip

    await service.ledger.write(refuse)
    service.scheduler._is_stale = True
    await service.scheduler.tick()
    known = {entry.plugin: entry.next_run_at is not None for entry in await service.ledger.read(schedules.all_entries)}
    assert known == {"echo": False, "other": True}
    assert [line.startswith("not fired: ") for line in service.log_messages()] == [True]


EXTREME_TIMES = [
    "at: '0001-01-01T00:00:00Z'",
    "at: '9999-12-31T23:59:59Z', not_on: [fri, sat], timezone: UTC",
    "at: '9999-12-31T23:59:59Z', only_between: '08:00-09:00', timezone: Pacific/Kiritimati, expect: {start_within: 2h}",
    "at: '0001-01-02T03:00:00Z', timezone: America/Los_Angeles, only_between: '08:00-09:00'",
    "at: '9999-12-31T23:59:59Z', expect: {finish_within: 36500d}",
]


@pytest.mark.parametrize("schedule", EXTREME_TIMES)
async def test_an_at_schedule_can_have_an_extreme_time(start_service: StartService, schedule: str) -> None:
    """It fires or waits, and other schedules fire."""
    service = await start_service(f"  other: {{schedules: [{{{schedule}}}]}}\n{EVERY_5M}")
    await service.advance_by(10 * MINUTE)
    assert service.jobs("slot_at", "plugin = 'echo'") == [
        f"2026-03-09T12:{minute}:00.000000Z" for minute in ("00", "05", "10")
    ]
    assert service.log_messages() == []
    assert service.entry("other").next_run_at or service.jobs("slot_at", "plugin = 'other'") == [
        "1970-01-01T00:00:00.000000Z"
    ]


def break_evaluation(monkeypatch: pytest.MonkeyPatch, plugin: str) -> set[str]:
    """Make the evaluation of schedules fail for the plugins in the returned set."""
    broken = {plugin}

    def failing_evaluate(definition: Definition, history: History, now: datetime) -> Evaluation:
        if definition.plugin in broken:
            raise OverflowError("date value out of range")
        return evaluate(definition, history, now)

    monkeypatch.setattr(tick, "evaluate", failing_evaluate)
    return broken


async def test_a_schedule_that_cannot_be_decided_does_not_stop_the_others(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged with its name, journalled once with the reason, and retried."""
    broken = break_evaluation(monkeypatch, "echo")
    service = await start_service(
        "  echo: {schedules: [{every: 1m, catch_up: skip}]}\n  other: {schedules: [{every: 1m}]}"
    )
    await service.advance_by(90 * SECOND)
    assert service.jobs("plugin") == ["other", "other"]
    assert (service.entry().held_reason, service.entry().next_run_at) == ("schedule_fault", NOON + 2 * MINUTE)
    assert service.skips() == [("schedule_fault", None)]
    message = "cannot be decided: internal error: OverflowError('date value out of range'); trying again in 30 s"
    assert {*service.log_messages()} == {message}

    broken.clear()
    await service.advance_by(2 * MINUTE)
    assert service.jobs("slot_at", "plugin = 'echo'") == [
        "2026-03-09T12:02:00.000000Z",
        "2026-03-09T12:03:00.000000Z",
    ]
    assert (service.entry().held_reason, service.skips()[1:]) == (None, [("schedule_fault", 2)])


async def test_a_schedule_that_can_be_decided_again_is_released_even_if_nothing_is_due(
    start_service: StartService, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = break_evaluation(monkeypatch, "echo")
    service = await start_service(echo("cron: '0 3 * * *', timezone: UTC"))
    await service.tick()
    assert service.entry().held_reason == "schedule_fault"
    broken.clear()
    await service.advance_by(MINUTE)
    assert (service.entry().held_reason, service.entry().next_run_at) == (None, NOON + 15 * HOUR)


@pytest.mark.parametrize("column", ["last_fired_at", "last_slot_at", "next_run_at", "anchored_at", "status"])
async def test_an_entry_that_cannot_be_read_is_reset_and_does_not_stop_the_others(
    start_service: StartService, column: str
) -> None:
    """The reset is logged, and the schedule continues."""
    service = await start_service("  echo: {schedules: [{every: 1m}]}\n  other: {schedules: [{every: 1m}]}")
    await service.advance_by(90 * SECOND)

    def spoil(db: Db) -> None:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(f"UPDATE schedule_entries SET {column} = 'x' WHERE plugin = 'echo'")

    await service.ledger.write(spoil)
    service.start()
    await service.advance_by(2 * MINUTE)
    later = "slot_at > '2026-03-09T12:01:30'"
    assert len(service.jobs("id", f"plugin = 'other' AND {later}")) == 2
    assert len(service.jobs("id", f"plugin = 'echo' AND {later}")) >= 2
    assert "entry was unreadable and has been reset" in service.log_messages()


async def test_a_scheduler_that_keeps_failing_has_a_lag(
    start_service: StartService, nursery: trio.Nursery, mock_clock: trio.testing.MockClock
) -> None:
    """From the first failed tick to the next successful one, including the waits in between."""
    service = await start_service()

    class FailingLedger(CountingLedger):
        is_broken = True

        async def transact(self, work: Callable[[Db], Any], **options: Any) -> Any:
            if self.is_broken:
                raise RuntimeError("broken")
            return await super().transact(work, **options)

    ledger = service.scheduler.ledger = FailingLedger(service.ledger)  # type: ignore[assignment]
    await nursery.start(service.scheduler.run)
    for seconds in (20, 40, 60, 80):
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(20)
        assert service.scheduler.lag_seconds() == pytest.approx(seconds)

    ledger.is_broken = False
    service.hub.announce(SCHEDULES)
    await service.hub.wait_for_work(max_seconds=30)
    await trio.testing.wait_all_tasks_blocked()
    assert service.scheduler.lag_seconds() == 0
    nursery.cancel_scope.cancel()


# ── breaker ─────────────────────────────────────────────────────────────────────────────────────────────────────────

WITH_BREAKER = echo("every: 5m", "circuit_breaker: {threshold: 3, reset_after: 30m}")


async def open_breaker(service: SchedulerService) -> None:
    """Let three jobs in a row fail, at 12:00, 12:05 and 12:10."""
    await service.advance_by(10 * MINUTE, outcome=FAILED)
    assert service.breaker().state is OPEN


async def test_a_failing_schedule_is_held_until_one_probe_succeeds(start_service: StartService) -> None:
    """It is held from the third failure on, with one journal row. The probe runs at the end of the cooldown."""
    service = await start_service(WITH_BREAKER)
    await open_breaker(service)
    await service.advance_by(29 * MINUTE)
    assert service.slots() == ["12:00", "12:05", "12:10"]
    assert service.skips() == [("circuit_open", None)]
    await service.advance_to(NOON + 50 * MINUTE)
    assert service.slots()[3:] == ["12:40", "12:45", "12:50"]
    assert service.skips()[1:] == [("circuit_open", 5)]
    assert (service.breaker().state, service.breaker().failure_count) == (CLOSED, 0)
    states = service.rows("SELECT from_state, to_state, reason FROM circuit_breaker_transitions ORDER BY created_at")
    assert states == [
        ("closed", "open", "failure_threshold"),
        ("open", "half_open", "cooldown_elapsed"),
        ("half_open", "closed", "success"),
    ]


async def test_a_probe_that_fails_opens_the_breaker_again(start_service: StartService) -> None:
    """For a full cooldown from the end of the probe."""
    service = await start_service(WITH_BREAKER)
    await open_breaker(service)
    await service.advance_to(NOON + 100 * MINUTE, outcome=FAILED)
    assert service.slots()[3:] == ["12:40", "13:10", "13:40"]
    assert (service.breaker().state, service.breaker().failure_count) == (OPEN, 6)


async def test_every_failure_between_two_ticks_counts_once(start_service: StartService) -> None:
    """Two failures and a success do not open the breaker. Three failures without a tick in between do."""
    service = await start_service(
        echo("every: 5m, catch_up: run_all", "circuit_breaker: {threshold: 3, reset_after: 30m}")
    )
    await service.advance_by(SECOND)
    service.clock.jump(15 * MINUTE)
    await service.tick()
    first, second, third = await service.claim()
    for job, outcome, failures in ((first, FAILED, 1), (second, FAILED, 2), (third, OK, 0)):
        await service.complete(job, outcome)
        assert service.breaker().failure_count == failures
    service.clock.jump(15 * MINUTE)
    await service.tick()
    await service.run_jobs(FAILED)
    assert (service.breaker().state, service.breaker().failure_count) == (OPEN, 3)


async def test_only_one_of_several_schedules_of_a_command_starts_the_probe(start_service: StartService) -> None:
    """The others wait for its end, even if all are due in the same transaction."""
    service = await start_service(
        echo("id: a, every: 5m}, {id: b, every: 5m", "circuit_breaker: {threshold: 2, reset_after: 30m}")
    )
    await service.tick()
    await service.run_jobs(FAILED)
    await service.advance_by(30 * MINUTE, outcome=None)
    assert len(service.jobs(where="status = 'queued'")) == 1
    assert (service.breaker().state, service.breaker().probe_job_id) == (HALF_OPEN, service.jobs("id")[-1])
    await service.run_jobs(OK)
    await service.advance_by(MINUTE)
    assert sorted(service.jobs("schedule_id")[2:]) == ["a", "b"]


async def test_slots_that_a_probe_replaces_are_journalled(start_service: StartService) -> None:
    """After a stop with `run_all`, one probe runs, and the journal has the number of the other slots."""
    service = await start_service(
        echo("every: 5m, catch_up: run_all", "circuit_breaker: {threshold: 1, reset_after: 30m}")
    )
    await service.advance_by(SECOND, outcome=FAILED)
    service.clock.jump(HOUR)
    service.start()
    await service.tick()
    assert service.slots() == ["12:00", "13:00"]
    assert service.skips() == [("circuit_open", 11)]


@pytest.mark.parametrize("attempts", [1, 4])
async def test_a_crash_while_the_probe_runs_leaves_one_probe(start_service: StartService, attempts: int) -> None:
    """The same job, or a new one if its attempts are used up. The breaker does not stay half-open."""
    breaker = "circuit_breaker: {threshold: 1, reset_after: 30m}"
    service = await start_service(echo("every: 5m", f"{breaker}, retry: {{max_attempts: {attempts}}}"))
    await service.advance_by(SECOND, outcome=FAILED)
    await service.advance_by(30 * MINUTE, outcome=None)
    await service.claim()
    await service.crash()
    await service.advance_by(10 * MINUTE, outcome=None)
    assert len(service.jobs(where="status IN ('queued', 'running')")) == 1
    assert service.breaker().state is HALF_OPEN
    await service.run_jobs(OK)
    assert service.breaker().state is CLOSED


@pytest.mark.parametrize("is_running", [False, True])
async def test_a_cancelled_probe_is_replaced_by_another(start_service: StartService, is_running: bool) -> None:
    """The breaker stays half-open until a probe succeeds or fails."""
    service = await start_service(WITH_BREAKER)
    await open_breaker(service)
    await service.advance_by(30 * MINUTE, outcome=None)
    first = service.breaker().probe_job_id
    assert first is not None
    if is_running:
        (job,) = await service.claim()
        await service.cancel(job.id)
        await service.complete(job, Interrupted("stopped"))
    else:
        await service.cancel(first)
    assert service.breaker().state is HALF_OPEN
    await service.advance_by(5 * MINUTE, outcome=None)
    assert service.breaker().probe_job_id not in (first, None)
    await service.run_jobs(OK)
    assert service.breaker().state is CLOSED


@pytest.mark.parametrize(("ends", "failures"), [(OK, 0), (FAILED, 1)])
async def test_a_manual_reset_while_the_probe_runs_makes_it_an_ordinary_job(
    start_service: StartService, ends: object, failures: int
) -> None:
    """Its failure counts as the first and does not open the breaker."""
    service = await start_service(WITH_BREAKER)
    await open_breaker(service)
    await service.advance_by(30 * MINUTE, outcome=None)
    (probe,) = await service.claim()
    await service.reset()
    await service.complete(probe, ends)  # type: ignore[arg-type]
    assert (service.breaker().state, service.breaker().failure_count) == (CLOSED, failures)


async def test_a_manual_reset_fires_held_slots(start_service: StartService) -> None:
    """Immediately, not at the end of the cooldown."""
    service = await start_service(WITH_BREAKER)
    await open_breaker(service)
    await service.advance_by(17 * MINUTE)
    await service.reset()
    assert service.slots()[3:] == ["12:25"]


SEQUENCES = int(os.environ.get("DUCTILE_WALKS", "15"))


@pytest.mark.parametrize("seed", range(SEQUENCES))
async def test_a_breaker_counts_correctly_and_is_never_stuck_in_random_sequences(
    start_service: StartService, seed: int
) -> None:
    """With failures, successes, cancellations, crashes and resets in any order, every completion counts once, at most
    one probe runs, only a success or an operator closes the breaker, and it closes when jobs succeed again."""
    rng = random.Random(seed)
    breaker = "circuit_breaker: {threshold: 3, reset_after: 30m}, retry: {max_attempts: 2, backoff_base: 1s}"
    service = await start_service(echo("id: a, every: 5m}, {id: b, every: 7m, catch_up: run_all", breaker))
    failures, running = 0, list[Job]()

    for _ in range(60):
        match rng.choice(["pass", "pass", "pass", "claim", "end", "end", "cancel", "crash", "reset"]):
            case "pass":
                await service.advance_by(rng.choice([1, 4, 11, 40]) * MINUTE, outcome=None)
            case "claim":
                running += await service.claim(limit=rng.randint(1, 3))
            case "end" if running:
                job = running.pop(rng.randrange(len(running)))
                outcome: Outcome = OK if rng.random() < 0.25 else FAILED
                is_cancelled = service.jobs("cancel_requested_at", f"id = '{job.id}'") != [None]
                await service.complete(job, outcome)
                failures = 0 if outcome is OK else failures + (not is_cancelled)
            case "cancel" if waiting := service.jobs("id", "status IN ('queued', 'running')"):
                await service.cancel(rng.choice(waiting))
            case "crash":
                running.clear()
                await service.crash()
            case "reset" if rng.random() < 0.3:
                await service.reset()
                failures = 0
        state = service.breaker()
        assert state.failure_count == failures
        if state.state is HALF_OPEN:
            since = "(SELECT MAX(created_at) FROM circuit_breaker_transitions)"
            assert len(service.jobs(where=f"status IN ('queued', 'running') AND created_at >= {since}")) <= 1
        else:
            assert state.probe_job_id is None

    closed = service.rows("SELECT reason FROM circuit_breaker_transitions WHERE to_state = 'closed'")
    assert {reason for (reason,) in closed} <= {"success", "manual_reset"}
    for job in running:
        await service.complete(job, FAILED)
    await service.advance_by(2 * HOUR)
    assert (service.breaker().state, service.jobs("id", "status IN ('queued', 'running')")) == (CLOSED, [])
    assert len(set(service.jobs("schedule_id, slot_at"))) == len(service.jobs())


# ── clocks ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "jump", [-HOUR, HOUR, -DAY, DAY, -3652 * DAY, 3652 * DAY, datetime(1970, 1, 2, tzinfo=UTC) - NOON]
)
@pytest.mark.parametrize("schedule", ["every: 5m", "cron: '*/5 * * * *', timezone: UTC"])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_clock_jump_costs_at_most_one_interval_and_repeats_no_slot(
    start_service: StartService, jump: timedelta, schedule: str, is_restarted: bool
) -> None:
    """In either direction and by any amount: one run per interval of real time."""
    service = await start_service(echo(schedule))
    await service.advance_by(82 * MINUTE)
    before = len(service.jobs())
    service.clock.jump(jump)
    if is_restarted:
        service.start()
    await service.advance_by(30 * MINUTE)
    assert 5 <= len(service.jobs()) - before <= 7
    since = service.jobs("slot_at")[before:]
    assert sorted(since) == since
    assert len(set(service.jobs("slot_at"))) == len(service.jobs())


@pytest.mark.parametrize("jump", [HOUR, DAY, 3652 * DAY])
async def test_a_clock_that_was_wrong_for_a_while_does_not_stop_the_schedule(
    start_service: StartService, jump: timedelta
) -> None:
    """Ahead and back again. Slots from before the first jump do not fire again."""
    service = await start_service()
    await service.advance_by(12 * MINUTE)
    service.clock.jump(jump)
    await service.advance_by(2 * MINUTE)
    service.clock.jump(-jump)
    await service.advance_by(6 * MINUTE)
    assert [slot for slot in service.slots() if slot < "12:30"][:3] == ["12:00", "12:05", "12:10"]
    assert service.jobs()[-1] in ("2026-03-09T12:15:00.000000Z", "2026-03-09T12:20:00.000000Z")
    assert len(set(service.jobs())) == len(service.jobs())


async def test_a_clock_that_is_set_back_is_journalled_and_logged(start_service: StartService) -> None:
    """The journal row belongs to the schedule."""
    service = await start_service()
    await service.advance_by(2 * HOUR)
    service.clock.jump(-HOUR)
    await service.tick()
    assert service.skips() == [("clock_set_back", 0)]
    assert any("the clock jumped" in line for line in service.log_messages())


async def test_a_clock_that_is_set_back_during_a_tick_does_not_delay_the_next_one(
    start_service: StartService,
) -> None:
    """The wait is measured by the clock that the tick has read."""
    service = await start_service(echo("every: 50ms"))
    decided_again = trio.Event()

    class ClockSettingLedger(CountingLedger):
        async def transact(self, work: Callable[[Db], Any], **options: Any) -> Any:
            written = await super().transact(work, **options)
            if service.clock.now() < NOON:
                decided_again.set()
            elif service.jobs():
                service.clock.jump(-HOUR)
            return written

    service.scheduler.ledger = ClockSettingLedger(service.ledger)  # type: ignore[assignment]
    async with trio.open_nursery() as nursery:
        await nursery.start(service.scheduler.run)
        with trio.fail_after(20):
            await decided_again.wait()
        nursery.cancel_scope.cancel()
    assert service.skips() == [("clock_set_back", 0)]


async def test_a_small_correction_of_the_clock_is_no_jump(start_service: StartService) -> None:
    """Half a second repeats no slot, skips no slot and is not logged."""
    service = await start_service()
    for _ in range(10):
        await service.advance_by(MINUTE)
        service.clock.jump(timedelta(seconds=-0.5))
    await service.advance_by(MINUTE)
    assert service.slots() == ["12:00", "12:05", "12:10"]
    assert (service.skips(), service.log_messages()) == ([], [])


# ── the loop ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_time_to_load_schedules_does_not_delay_the_first_slot(start_service: StartService) -> None:
    """The wait for the next slot begins after the load."""
    service = await start_service(echo("at: '2026-03-09T12:10:00Z'"))

    class SlowLedger(CountingLedger):
        async def transact(self, work: Callable[[Db], Any], **options: Any) -> Any:
            service.clock.advance_to(service.clock.now() + MINUTE)
            return await super().transact(work, **options)

    service.scheduler.ledger = SlowLedger(service.ledger)  # type: ignore[assignment]
    await service.tick()
    assert service.clock.now() > NOON
    assert service.scheduler._now() == service.clock.now()


async def test_the_scheduler_continues_a_second_after_a_busy_ledger(start_service: StartService) -> None:
    """Not after the interval for faults, because schedules would be late after every long write of another process."""
    service = await start_service()
    has_ticked = trio.Event()

    class BusyLedger(CountingLedger):
        async def transact(self, work: Callable[[Db], Any], **options: Any) -> Any:
            if not self.writes:
                self.writes += 1
                raise LedgerBusy("process 1 is writing")
            written = await super().transact(work, **options)
            has_ticked.set()
            return written

    service.scheduler.ledger = BusyLedger(service.ledger)  # type: ignore[assignment]
    async with trio.open_nursery() as nursery:
        await nursery.start(service.scheduler.run)
        with trio.fail_after(10):
            await has_ticked.wait()
        nursery.cancel_scope.cancel()
    assert service.log_messages() == ["process 1 is writing; trying again in 1 s"]


async def test_the_scheduler_waits_for_space_on_a_full_disk(start_service: StartService, nursery: trio.Nursery) -> None:
    """It fires the due slot when there is space again."""
    service = await start_service(echo(f"every: 5m, payload: {{text: {'x' * 100_000}}}"))
    await service.ledger.write(limit_pages, grow=0)
    await nursery.start(service.scheduler.run)
    while not service.lines.stat().st_size:  # until it has logged the error
        await trio.lowlevel.checkpoint()
    assert service.jobs() == []

    await service.ledger.write(limit_pages, grow=10_000)
    service.hub.announce(SCHEDULES)
    with trio.fail_after(30):
        await service.hub.wait_for_work(max_seconds=30)

    assert service.slots() == ["12:00"]
    assert "no space left on the disk; trying again in 30 s" in service.log_messages()[0]
    nursery.cancel_scope.cancel()


async def test_a_broken_ledger_ends_the_scheduler_with_ledger_lost(start_service: StartService) -> None:
    """A restart may help, so the exit code must not be that of an invalid configuration."""
    service = await start_service()

    def lose(db: Db) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

    with pytest.raises(LedgerError):
        await service.ledger.write(lose)
    with pytest.raises(LedgerLost):
        await service.scheduler.run()


async def test_an_announced_change_causes_a_tick_immediately(
    start_service: StartService, nursery: trio.Nursery
) -> None:
    """A change by an operator does not wait for the next tick."""
    service = await start_service(echo("at: '2026-03-09T11:00:00Z', not_on: [monday], timezone: UTC"))
    await nursery.start(service.scheduler.run)
    await trio.testing.wait_all_tasks_blocked()
    assert service.jobs() == []

    service.configure(echo("at: '2026-03-09T11:00:00Z'"))
    service.hub.announce(SCHEDULES)
    with trio.fail_after(30):
        await service.hub.wait_for_work(max_seconds=30)

    assert service.slots() == ["11:00"]
    nursery.cancel_scope.cancel()


def limit_pages(db: Db, *, grow: int) -> None:
    """Limit the growth of the database file to this many pages."""
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count = {pages + grow}").fetchall()


@define(eq=False)
class UnconfirmedLedger(CountingLedger):
    """A ledger whose commits succeed, but whose callers get an error because the disk is slow."""

    async def transact(self, work: Callable[[Db], Any], **options: Any) -> Any:
        result = await self.ledger.transact(work, **options)
        if options.get("wait", True):
            raise LedgerError("the disk has not confirmed a write")
        return result


async def test_a_slot_that_the_disk_confirms_late_fires_once(start_service: StartService) -> None:
    """The job is committed, although its caller gets an error."""
    service = await start_service(echo("after: 10m"))
    await service.tick()
    service.clock.advance_to(NOON + 10 * MINUTE)
    service.scheduler.ledger = cast(Ledger, UnconfirmedLedger(service.ledger))
    with suppress(LedgerError):
        await service.tick()
    service.scheduler.ledger = service.ledger
    service.clock.advance_to(NOON + 20 * MINUTE)
    service.clock.jump(SECOND / 1000)  # a real clock is never exact
    await service.refresh()
    assert service.jobs("count(*)") == [1]
