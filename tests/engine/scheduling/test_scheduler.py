"""The scheduler on a clock that the test moves, with the real ledger: what fires, what waits, what is told."""

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
from ductile.calendar.due import Look, look
from ductile.core.errors import LedgerError, LedgerLost
from ductile.core.hub import SCHEDULES
from ductile.core.model import BreakerState, Dead, Interrupted, Job, Outcome
from ductile.engine.scheduling import tick
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.writer import Ledger
from ductile.ledger.tables import schedules
from ductile.ledger.tables.schedules import EntryStatus
from tests.engine.stage import BROKEN, DAY, HOUR, MINUTE, NOON, OK, SECOND, Counted, MakeStage, Stage, open_stages

EVERY_5M = "  echo: {schedules: [{every: 5m}]}"
PAUSED, ACTIVE, EXHAUSTED = EntryStatus.PAUSED_MANUAL, EntryStatus.ACTIVE, EntryStatus.EXHAUSTED
CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[MakeStage]:
    """Opens a stage for these plugins; it is NOON there."""
    async with open_stages(tmp_path, EVERY_5M) as make:
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
async def test_a_schedule_fires_at_its_moments(stage: MakeStage, schedule: str, slots: list[str]) -> None:
    """And at no other, whatever its kind; a slot outside its window fires at the opening."""
    one = await stage(echo(schedule))
    await one.pass_for(4 * HOUR)
    assert one.slots() == slots


async def test_the_job_says_which_slot_of_which_schedule_it_is(stage: MakeStage) -> None:
    """It has the schedule's payload and the plugin's attempts, and was asked for by the scheduler."""
    one = await stage(echo("id: nightly, every: 1h, command: sync, payload: {n: 1}", "retry: {max_attempts: 2}"))
    await one.turn()
    columns = "plugin, command, schedule_id, slot_at, payload, submitted_by, max_attempts"
    assert one.jobs(columns) == [
        ("echo", "sync", "nightly", "2026-03-09T12:00:00.000000Z", '{"n":1}', "scheduler", 2),
    ]


async def test_job_slot_and_next_run_are_written_together(stage: MakeStage) -> None:
    """The entry points at the job, its slot and the next one; its last success comes with the job's end."""
    one = await stage()
    assert await one.turn() == NOON + 5 * MINUTE
    fired = one.entry()
    (job_id,) = one.jobs("id")
    assert (fired.last_job_id, fired.last_slot_at, fired.last_fired_at) == (job_id, NOON, NOON)
    assert fired.next_run_at == NOON + 5 * MINUTE
    await one.work()
    assert one.entry().last_success_job_id == job_id


async def test_a_failure_does_not_fire_again_before_the_next_slot(stage: MakeStage) -> None:
    """A slot is used up when it has fired."""
    one = await stage(echo("every: 5m", "circuit_breaker: {threshold: 100}"))
    await one.pass_for(10 * MINUTE, then=BROKEN)
    assert one.slots() == ["12:00", "12:05", "12:10"]


async def test_two_schedules_of_one_command_do_not_disturb_each_other(stage: MakeStage) -> None:
    """Each has its own slots, its own outstanding jobs and its own success."""
    one = await stage("  echo: {schedules: [{id: a, every: 10m}, {id: b, every: 15m}]}")
    await one.pass_for(30 * MINUTE, then=None)
    assert one.jobs("schedule_id") == ["a", "b"], "each skips while its own first job waits"
    await one.work()
    await one.pass_for(MINUTE)
    assert (one.entry(schedule_id="a").last_success_job_id, one.entry(schedule_id="b").last_success_job_id) == tuple(
        one.jobs("id")
    )


async def test_a_thousand_schedules_of_one_moment_need_few_transactions(stage: MakeStage) -> None:
    """They are decided in portions, not one by one."""
    listed = ", ".join(f"{{id: s{number}, every: 1h}}" for number in range(1000))
    one = await stage(f"  echo: {{schedules: [{listed}]}}")
    counted = one.scheduler.ledger = Counted(one.ledger)  # type: ignore[assignment]
    await one.turn()
    assert len(one.jobs()) == 1000
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
async def test_missed_slots_are_caught_up_as_asked(
    stage: MakeStage, catch_up: str, made: list[str], skipped: list[tuple[str, int]], how: str
) -> None:
    """After a stop of the service as after a sleep of the host: what does not run is told, with its number."""
    one = await stage(echo(f"every: 5m, catch_up: {catch_up}"))
    await one.pass_for(SECOND)
    one.clock.jump(18 * MINUTE)
    if how == "stop":
        one.start()
    await one.turn()
    assert one.slots()[1:] == made
    assert one.skips() == skipped
    assert one.entry().next_run_at == NOON + 20 * MINUTE


async def test_ten_thousand_missed_slots_are_capped_and_the_cap_is_told(stage: MakeStage) -> None:
    """The latest hundred run; the journal and the log say how many do not, and why."""
    one = await stage(echo("every: 5m, catch_up: run_all"))
    await one.pass_for(SECOND)
    one.clock.jump(10_000 * 5 * MINUTE + 2 * MINUTE)
    one.start()
    await one.turn()
    assert len(one.jobs()) == 101
    assert one.skips() == [("catch_up_capped", 9_900)]
    assert any("more slots were missed than are made up for" in line for line in one.said())


async def test_missed_slots_are_made_up_for_although_an_earlier_job_is_not_finished(stage: MakeStage) -> None:
    """`if_running` is about the slot that is on time; a job that a crash interrupted does not cost the missed ones."""
    one = await stage(echo("every: 1m, catch_up: run_all, if_running: skip"))
    await one.turn()
    await one.claim()
    one.clock.jump(3 * MINUTE + 10 * SECOND)
    await one.crash()
    await one.turn()
    assert one.slots() == ["12:00", "12:01", "12:02"]
    assert one.skips() == [("already_running", 1)]


async def test_a_moment_missed_while_down_fires_once_at_the_start(stage: MakeStage) -> None:
    """And never again, however often the service starts."""
    one = await stage(echo("at: '2026-03-09T13:00:00Z'"))
    await one.pass_for(MINUTE)
    one.clock.jump(3 * DAY)
    for _ in range(3):
        one.start()
        await one.pass_for(MINUTE)
    assert one.slots() == ["13:00"]
    assert (one.entry().status, one.entry().next_run_at) == (EXHAUSTED, None)


async def test_a_delay_counts_from_each_start(stage: MakeStage) -> None:
    """Once per start; a reload is not one, and waiting for the clock does not help."""
    one = await stage(echo("after: 10m"))
    await one.pass_for(20 * MINUTE)
    one.snapshot = evolve(one.snapshot)
    await one.pass_for(20 * MINUTE)
    assert one.slots() == ["12:10"]
    one.start()
    await one.pass_for(9 * MINUTE)
    assert one.slots() == ["12:10"]
    await one.pass_for(MINUTE)
    assert one.slots() == ["12:10", "12:50"]


# ── if_running ──────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_skip_passes_over_slots_while_a_job_is_not_finished(stage: MakeStage) -> None:
    """One row for each slot that did not run, and the next one on time after the end."""
    one = await stage()
    await one.pass_for(12 * MINUTE, then=None)
    assert one.skips() == [("already_running", 1), ("already_running", 1)]
    await one.work()
    await one.pass_for(5 * MINUTE)
    assert one.slots() == ["12:00", "12:15"]


@pytest.mark.parametrize(("most", "queued"), [(1, 1), (3, 3)])
async def test_queue_queues_up_to_the_limit(stage: MakeStage, most: int, queued: int) -> None:
    """That many wait behind the first; the others are passed over."""
    one = await stage(echo("every: 5m, if_running: queue", f"max_outstanding_polls: {most}"))
    await one.turn()
    await one.claim(limit=1)
    await one.pass_for(30 * MINUTE, then=None)
    assert len(one.jobs(where="status = 'queued'")) == queued
    assert one.skips() == [("outstanding_limit", 1)] * (6 - queued)


async def test_cancel_ends_jobs_that_wait_and_fires_at_once(stage: MakeStage) -> None:
    """Nothing has to be stopped, so the new job is made in the same transaction, and waiters are told."""
    one = await stage(echo("every: 5m, if_running: cancel"))
    await one.turn()
    (first,) = one.jobs("id")
    with one.hub.watch(f"job {first}") as told:
        await one.pass_for(5 * MINUTE, then=None)
        told.receive_nowait()
    assert one.jobs("slot_at, status")[1:] == [("2026-03-09T12:05:00.000000Z", "queued")]
    assert one.jobs("status, last_error")[0] == ("dead", "cancelled: another run of its schedule is due")


async def test_cancel_fires_only_when_the_process_is_gone(stage: MakeStage) -> None:
    """The running job is stopped, the slot waits and is told once; it runs although it is late by then."""
    one = await stage(echo("every: 5m, if_running: cancel"))
    await one.turn()
    (running,) = await one.claim()
    await one.pass_for(5 * MINUTE + 90 * SECOND, then=None)
    assert set(one.stopped) == {running.id}
    assert one.slots() == ["12:00"]
    assert one.skips() == [("already_running", None)]
    await one.end(running, Dead("cancelled"))
    await one.pass_for(SECOND, then=None)
    assert one.slots() == ["12:00", "12:05"]


async def test_a_cancelled_job_has_the_consequences_of_any_job_that_dies(stage: MakeStage) -> None:
    """Hooks fire for it, too."""
    one = await stage(echo("every: 5m, if_running: cancel", "notify_on_complete: true"))
    hook = "pipelines:\n  - {name: on-death, on-hook: job.dead, steps: [{id: tell, uses: other}]}\n"
    one.home.add(hook)
    one.configure(echo("every: 5m, if_running: cancel", "notify_on_complete: true") + "\n  other: {}\n" + hook)
    await one.pass_for(5 * MINUTE, then=None)
    assert "other" in one.jobs("plugin")


# ── pause, resume, other definitions ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("catch_up", ["skip", "run_once", "run_all"])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_slots_of_a_pause_never_run(stage: MakeStage, catch_up: str, is_restarted: bool) -> None:
    """Not when it is over either, whatever `catch_up` says: the operator did not miss them."""
    one = await stage(echo(f"every: 5m, catch_up: {catch_up}"))
    await one.pass_for(SECOND)
    await one.set_status(PAUSED)
    await one.pass_for(17 * MINUTE)
    if is_restarted:
        one.clock.jump(HOUR)
        one.start()
        await one.pass_for(SECOND)
    resumed_at = one.clock.now()
    await one.set_status(ACTIVE)
    await one.pass_for(10 * MINUTE)
    assert [datetime.fromisoformat(slot) > resumed_at for slot in one.jobs()[1:]] == [True, True]
    assert one.skips() == []


async def test_a_single_moment_waits_for_the_end_of_a_pause(stage: MakeStage) -> None:
    """It has no other slot to run instead."""
    one = await stage("  echo: {schedules: [{at: '2026-03-09T13:00:00Z'}, {id: later, after: 30m}]}")
    await one.turn()
    await one.set_status(PAUSED)
    await one.set_status(PAUSED, schedule_id="later")
    await one.pass_for(2 * HOUR)
    assert one.slots() == []
    await one.set_status(ACTIVE)
    await one.set_status(ACTIVE, schedule_id="later")
    assert sorted(one.slots()) == ["12:30", "13:00"]


async def test_another_definition_starts_anew(stage: MakeStage) -> None:
    """Its grid begins with the reload; what only limits or spreads the slots does not."""
    one = await stage()
    await one.pass_for(7 * MINUTE)
    one.configure(echo("every: 5m, only_between: '00:00-23:00', timezone: UTC, if_running: queue"))
    await one.pass_for(3 * MINUTE)
    one.configure(echo("every: 3m"))
    await one.pass_for(3 * MINUTE)
    assert one.slots() == ["12:00", "12:05", "12:10", "12:10", "12:13"]


async def test_an_edited_moment_fires_again(stage: MakeStage) -> None:
    """What is exhausted is that moment, not the schedule."""
    one = await stage(echo("at: '2026-03-09T12:30:00Z'"))
    await one.pass_for(HOUR)
    one.configure(echo("at: '2026-03-09T14:30:00Z'"))
    await one.pass_for(2 * HOUR)
    assert one.slots() == ["12:30", "14:30"]


async def test_a_schedule_that_is_no_longer_written_is_forgotten(stage: MakeStage) -> None:
    """It fires no more, and its entry is gone."""
    one = await stage("  echo: {schedules: [{id: a, every: 5m}, {id: b, every: 5m}]}")
    await one.turn()
    one.configure("  echo: {schedules: [{id: b, every: 5m}]}")
    await one.pass_for(5 * MINUTE)
    assert one.rows("SELECT schedule_id FROM schedule_entries") == [("b",)]
    assert one.jobs("schedule_id") == ["a", "b", "b"]


@pytest.mark.parametrize("how", ["disabled", "not there"])
async def test_a_plugin_that_is_away_for_a_while_keeps_what_is_known_of_its_schedules(
    stage: MakeStage, how: str
) -> None:
    """A moment that has fired does not fire again when the plugin is back, and what was paused stays paused."""
    written = "at: '2026-03-09T12:30:00Z'}, {id: b, every: 5m"
    one = await stage(echo(written))
    await one.pass_for(HOUR)
    await one.set_status(PAUSED, schedule_id="b")
    made = len(one.jobs())
    folder = one.home.path / "plugins" / "echo"
    if how == "not there":
        folder.rename(one.home.path / "away")
    one.configure(echo(written, f"enabled: {'false' if how == 'disabled' else 'true'}"))
    await one.pass_for(HOUR)
    if how == "not there":
        (one.home.path / "away").rename(folder)
    one.configure(echo(written))
    await one.pass_for(HOUR)
    assert len(one.jobs()) == made
    assert (one.entry().status, one.entry(schedule_id="b").status) == (EXHAUSTED, PAUSED)


# ── plugins that cannot run ─────────────────────────────────────────────────────────────────────────────────────────


async def test_an_unhealthy_plugin_holds_its_schedules(stage: MakeStage) -> None:
    """Told once for each slot, however often it is looked at; the latest slot runs when the plugin is well."""
    one = await stage(echo("every: 1h"))
    one.unhealthy.add("echo")
    await one.pass_for(90 * MINUTE)
    assert one.slots() == []
    assert one.skips() == [("plugin_unhealthy", None)] * 2
    assert one.entry().held_reason == "plugin_unhealthy"
    one.unhealthy.clear()
    await one.pass_for(2 * MINUTE)
    assert (one.slots(), one.entry().held_reason) == (["13:00"], None)
    assert one.skips()[2:] == [("plugin_unhealthy", 1)]


async def test_closed_hours_are_told_once(stage: MakeStage) -> None:
    """Not with every look, hint or start."""
    one = await stage(echo("every: 1h, only_between: '14:30-20:00', timezone: UTC"))
    await one.pass_for(MINUTE)
    await one.look_again()
    one.start()
    await one.pass_for(HOUR)
    assert one.skips() == [("outside_time_window", None)]
    await one.pass_to(NOON + 2.5 * HOUR)
    assert one.slots() == ["14:00"]
    assert one.skips()[1:] == [("superseded", 2)]


async def test_a_schedule_that_cannot_be_written_does_not_stop_the_others(stage: MakeStage) -> None:
    """It is logged with its name and tried again; nothing of it is half there."""
    one = await stage("  echo: {schedules: [{every: 5m}]}\n  other: {schedules: [{every: 5m}]}")

    def refuse(db: Db) -> None:
        db.execute("CREATE TRIGGER broken BEFORE INSERT ON job_queue WHEN NEW.plugin = 'echo' "
                   "BEGIN SELECT RAISE(ABORT, 'no room'); END")  # fmt: skip

    await one.ledger.write(refuse)
    await one.pass_for(10 * SECOND)
    assert (one.jobs("plugin"), one.entry().last_slot_at) == (["other"], None)
    await one.ledger.write(lambda db: db.execute("DROP TRIGGER broken").fetchall())
    await one.pass_for(30 * SECOND)
    assert one.jobs("plugin") == ["other", "echo"]
    assert any(line.startswith("not fired: ") for line in one.said())


async def test_a_next_run_that_cannot_be_written_does_not_stop_the_others(stage: MakeStage) -> None:
    """Next runs are written together; the one that is refused is logged alone, and the others have theirs."""
    yearly = "{schedules: [{cron: '0 3 1 1 *'}]}"
    one = await stage(f"  echo: {yearly}\n  other: {yearly}")

    def refuse(db: Db) -> None:
        db.execute("UPDATE schedule_entries SET next_run_at = NULL")
        db.execute("CREATE TRIGGER broken BEFORE UPDATE ON schedule_entries WHEN NEW.plugin = 'echo' "
                   "BEGIN SELECT RAISE(ABORT, 'no room'); END")  # fmt: skip

    await one.ledger.write(refuse)
    one.scheduler._stale = True
    await one.scheduler.turn()
    known = {entry.plugin: entry.next_run_at is not None for entry in await one.ledger.read(schedules.all_entries)}
    assert known == {"echo": False, "other": True}
    assert [line.startswith("not fired: ") for line in one.said()] == [True]


AT_THE_ENDS = [
    "at: '0001-01-01T00:00:00Z'",
    "at: '9999-12-31T23:59:59Z', not_on: [fri, sat], timezone: UTC",
    "at: '9999-12-31T23:59:59Z', only_between: '08:00-09:00', timezone: Pacific/Kiritimati, expect: {start_within: 2h}",
    "at: '0001-01-02T03:00:00Z', timezone: America/Los_Angeles, only_between: '08:00-09:00'",
    "at: '9999-12-31T23:59:59Z', expect: {finish_within: 36500d}",
]


@pytest.mark.parametrize("schedule", AT_THE_ENDS)
async def test_a_moment_at_the_end_of_the_calendar_is_one_like_any_other(stage: MakeStage, schedule: str) -> None:
    """It fires or waits, and the schedules beside it fire."""
    one = await stage(f"  other: {{schedules: [{{{schedule}}}]}}\n{EVERY_5M}")
    await one.pass_for(10 * MINUTE)
    assert one.jobs("slot_at", "plugin = 'echo'") == [
        f"2026-03-09T12:{minute}:00.000000Z" for minute in ("00", "05", "10")
    ]
    assert one.said() == []
    assert one.entry("other").next_run_at or one.jobs("slot_at", "plugin = 'other'") == ["1970-01-01T00:00:00.000000Z"]


def fail_at(monkeypatch: pytest.MonkeyPatch, plugin: str) -> set[str]:
    """Whoever looks at schedules of the plugins in the set fails."""
    broken = {plugin}

    def fragile(definition: Definition, history: History, now: datetime) -> Look:
        if definition.plugin in broken:
            raise OverflowError("date value out of range")
        return look(definition, history, now)

    monkeypatch.setattr(tick, "look", fragile)
    return broken


async def test_a_schedule_that_cannot_be_decided_does_not_stop_the_others(
    stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged with its name, on record once with the reason, and looked at again until it can be."""
    broken = fail_at(monkeypatch, "echo")
    one = await stage("  echo: {schedules: [{every: 1m, catch_up: skip}]}\n  other: {schedules: [{every: 1m}]}")
    await one.pass_for(90 * SECOND)
    assert one.jobs("plugin") == ["other", "other"]
    assert (one.entry().held_reason, one.entry().next_run_at) == ("schedule_fault", NOON + 2 * MINUTE)
    assert one.skips() == [("schedule_fault", None)]
    complaint = "cannot be decided: internal error: OverflowError('date value out of range'); looking again in 30 s"
    assert {*one.said()} == {complaint}

    broken.clear()
    await one.pass_for(2 * MINUTE)
    assert one.jobs("slot_at", "plugin = 'echo'") == [
        "2026-03-09T12:02:00.000000Z",
        "2026-03-09T12:03:00.000000Z",
    ]
    assert (one.entry().held_reason, one.skips()[1:]) == (None, [("schedule_fault", 2)])


async def test_a_schedule_that_can_be_decided_again_is_not_held_although_nothing_is_due(
    stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = fail_at(monkeypatch, "echo")
    one = await stage(echo("cron: '0 3 * * *', timezone: UTC"))
    await one.turn()
    assert one.entry().held_reason == "schedule_fault"
    broken.clear()
    await one.pass_for(MINUTE)
    assert (one.entry().held_reason, one.entry().next_run_at) == (None, NOON + 15 * HOUR)


@pytest.mark.parametrize("column", ["last_fired_at", "last_slot_at", "next_run_at", "anchored_at", "status"])
async def test_an_entry_that_cannot_be_read_starts_anew_and_does_not_stop_the_others(
    stage: MakeStage, column: str
) -> None:
    """One row with a value that is none is one schedule's misfortune; it is told, and goes on from here."""
    one = await stage("  echo: {schedules: [{every: 1m}]}\n  other: {schedules: [{every: 1m}]}")
    await one.pass_for(90 * SECOND)

    def spoil(db: Db) -> None:
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(f"UPDATE schedule_entries SET {column} = 'x' WHERE plugin = 'echo'")

    await one.ledger.write(spoil)
    one.start()
    await one.pass_for(2 * MINUTE)
    later = "slot_at > '2026-03-09T12:01:30'"
    assert len(one.jobs("id", f"plugin = 'other' AND {later}")) == 2
    assert len(one.jobs("id", f"plugin = 'echo' AND {later}")) >= 2
    assert "its entry cannot be read and starts anew" in one.said()


async def test_a_scheduler_that_keeps_failing_is_late(
    stage: MakeStage, nursery: trio.Nursery, mock_clock: trio.testing.MockClock
) -> None:
    """From the first turn that went wrong to the next one that does not, also while it waits in between."""
    one = await stage()

    class Fragile(Counted):
        is_broken = True

        async def transact(self, work: Callable[[Db], Any], **options: Any) -> Any:
            if self.is_broken:
                raise RuntimeError("broken")
            return await super().transact(work, **options)

    ledger = one.scheduler.ledger = Fragile(one.ledger)  # type: ignore[assignment]
    await nursery.start(one.scheduler.run)
    for seconds in (20, 40, 60, 80):
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(20)
        assert one.scheduler.late_seconds() == pytest.approx(seconds)

    ledger.is_broken = False
    one.hub.announce(SCHEDULES)
    await one.hub.work_waiting(at_most=30)
    await trio.testing.wait_all_tasks_blocked()
    assert one.scheduler.late_seconds() == 0
    nursery.cancel_scope.cancel()


# ── breaker ─────────────────────────────────────────────────────────────────────────────────────────────────────────

FRAGILE = echo("every: 5m", "circuit_breaker: {threshold: 3, reset_after: 30m}")


async def open_breaker(one: Stage) -> None:
    """Three failures in a row, at 12:00, 12:05 and 12:10."""
    await one.pass_for(10 * MINUTE, then=BROKEN)
    assert one.breaker().state is OPEN


async def test_a_failing_schedule_is_held_until_one_probe_succeeds(stage: MakeStage) -> None:
    """Held from the third failure on and told once; the probe runs when the time is over, not a slot later."""
    one = await stage(FRAGILE)
    await open_breaker(one)
    await one.pass_for(29 * MINUTE)
    assert one.slots() == ["12:00", "12:05", "12:10"]
    assert one.skips() == [("circuit_open", None)]
    await one.pass_to(NOON + 50 * MINUTE)
    assert one.slots()[3:] == ["12:40", "12:45", "12:50"]
    assert one.skips()[1:] == [("circuit_open", 5)]
    assert (one.breaker().state, one.breaker().failure_count) == (CLOSED, 0)
    states = one.rows("SELECT from_state, to_state, reason FROM circuit_breaker_transitions ORDER BY created_at")
    assert states == [
        ("closed", "open", "failure_threshold"),
        ("open", "half_open", "cooldown_elapsed"),
        ("half_open", "closed", "success"),
    ]


async def test_a_probe_that_fails_opens_the_breaker_again(stage: MakeStage) -> None:
    """For the whole time, from the probe's end."""
    one = await stage(FRAGILE)
    await open_breaker(one)
    await one.pass_to(NOON + 100 * MINUTE, then=BROKEN)
    assert one.slots()[3:] == ["12:40", "13:10", "13:40"]
    assert (one.breaker().state, one.breaker().failure_count) == (OPEN, 6)


async def test_every_failure_between_two_looks_counts_once(stage: MakeStage) -> None:
    """Two failures and a success are not three failures; three failures are, also when nobody looked in between."""
    one = await stage(echo("every: 5m, catch_up: run_all", "circuit_breaker: {threshold: 3, reset_after: 30m}"))
    await one.pass_for(SECOND)
    one.clock.jump(15 * MINUTE)
    await one.turn()
    first, second, third = await one.claim()
    for job, outcome, failures in ((first, BROKEN, 1), (second, BROKEN, 2), (third, OK, 0)):
        await one.end(job, outcome)
        assert one.breaker().failure_count == failures
    one.clock.jump(15 * MINUTE)
    await one.turn()
    await one.work(BROKEN)
    assert (one.breaker().state, one.breaker().failure_count) == (OPEN, 3)


async def test_of_several_schedules_of_a_command_one_probes(stage: MakeStage) -> None:
    """The others wait for its end, also when all are due in the same transaction."""
    one = await stage(echo("id: a, every: 5m}, {id: b, every: 5m", "circuit_breaker: {threshold: 2, reset_after: 30m}"))
    await one.turn()
    await one.work(BROKEN)
    await one.pass_for(30 * MINUTE, then=None)
    assert len(one.jobs(where="status = 'queued'")) == 1
    assert (one.breaker().state, one.breaker().probe_job_id) == (HALF_OPEN, one.jobs("id")[-1])
    await one.work(OK)
    await one.pass_for(MINUTE)
    assert sorted(one.jobs("schedule_id")[2:]) == ["a", "b"]


async def test_slots_that_a_probe_stands_for_are_told(stage: MakeStage) -> None:
    """After a stop with run_all: one job finds out, and the journal has the number of those that it replaces."""
    one = await stage(echo("every: 5m, catch_up: run_all", "circuit_breaker: {threshold: 1, reset_after: 30m}"))
    await one.pass_for(SECOND, then=BROKEN)
    one.clock.jump(HOUR)
    one.start()
    await one.turn()
    assert one.slots() == ["12:00", "13:00"]
    assert one.skips() == [("circuit_open", 11)]


@pytest.mark.parametrize("attempts", [1, 4])
async def test_a_crash_while_the_probe_runs_leaves_one_probe(stage: MakeStage, attempts: int) -> None:
    """The same job again, or a new one where its attempts are used up; never two, never half-open for ever."""
    breaker = "circuit_breaker: {threshold: 1, reset_after: 30m}"
    one = await stage(echo("every: 5m", f"{breaker}, retry: {{max_attempts: {attempts}}}"))
    await one.pass_for(SECOND, then=BROKEN)
    await one.pass_for(30 * MINUTE, then=None)
    await one.claim()
    await one.crash()
    await one.pass_for(10 * MINUTE, then=None)
    assert len(one.jobs(where="status IN ('queued', 'running')")) == 1
    assert one.breaker().state is HALF_OPEN
    await one.work(OK)
    assert one.breaker().state is CLOSED


@pytest.mark.parametrize("is_running", [False, True])
async def test_a_probe_that_is_cancelled_makes_room_for_another(stage: MakeStage, is_running: bool) -> None:
    """It says nothing about the command: the breaker stays half-open until a probe has an ending."""
    one = await stage(FRAGILE)
    await open_breaker(one)
    await one.pass_for(30 * MINUTE, then=None)
    first = one.breaker().probe_job_id
    assert first is not None
    if is_running:
        (job,) = await one.claim()
        await one.cancel(job.id)
        await one.end(job, Interrupted("stopped"))
    else:
        await one.cancel(first)
    assert one.breaker().state is HALF_OPEN
    await one.pass_for(5 * MINUTE, then=None)
    assert one.breaker().probe_job_id not in (first, None)
    await one.work(OK)
    assert one.breaker().state is CLOSED


@pytest.mark.parametrize(("ends", "failures"), [(OK, 0), (BROKEN, 1)])
async def test_a_manual_reset_while_the_probe_runs_makes_it_an_ordinary_job(
    stage: MakeStage, ends: object, failures: int
) -> None:
    """Its failure counts as the first one; it does not open the breaker that the operator has closed."""
    one = await stage(FRAGILE)
    await open_breaker(one)
    await one.pass_for(30 * MINUTE, then=None)
    (probe,) = await one.claim()
    await one.reset()
    await one.end(probe, ends)  # type: ignore[arg-type]
    assert (one.breaker().state, one.breaker().failure_count) == (CLOSED, failures)


async def test_a_manual_reset_fires_what_the_breaker_held(stage: MakeStage) -> None:
    """At once, not when the time would have been over."""
    one = await stage(FRAGILE)
    await open_breaker(one)
    await one.pass_for(17 * MINUTE)
    await one.reset()
    assert one.slots()[3:] == ["12:25"]


WALKS = int(os.environ.get("DUCTILE_WALKS", "15"))


@pytest.mark.parametrize("seed", range(WALKS))
async def test_whatever_happens_a_breaker_counts_right_and_never_gets_stuck(stage: MakeStage, seed: int) -> None:
    """Failures, successes, cancellations, crashes and resets in any order: every ending counts once, at most one probe
    is under way, only a success or the operator closes, and when all is well again it closes."""
    chance = random.Random(seed)
    breaker = "circuit_breaker: {threshold: 3, reset_after: 30m}, retry: {max_attempts: 2, backoff_base: 1s}"
    one = await stage(echo("id: a, every: 5m}, {id: b, every: 7m, catch_up: run_all", breaker))
    failures, running = 0, list[Job]()

    for _ in range(60):
        match chance.choice(["pass", "pass", "pass", "claim", "end", "end", "cancel", "crash", "reset"]):
            case "pass":
                await one.pass_for(chance.choice([1, 4, 11, 40]) * MINUTE, then=None)
            case "claim":
                running += await one.claim(limit=chance.randint(1, 3))
            case "end" if running:
                job = running.pop(chance.randrange(len(running)))
                outcome: Outcome = OK if chance.random() < 0.25 else BROKEN
                is_cancelled = one.jobs("cancel_requested_at", f"id = '{job.id}'") != [None]
                await one.end(job, outcome)
                failures = 0 if outcome is OK else failures + (not is_cancelled)
            case "cancel" if waiting := one.jobs("id", "status IN ('queued', 'running')"):
                await one.cancel(chance.choice(waiting))
            case "crash":
                running.clear()
                await one.crash()
            case "reset" if chance.random() < 0.3:
                await one.reset()
                failures = 0
        state = one.breaker()
        assert state.failure_count == failures
        if state.state is HALF_OPEN:
            since = "(SELECT MAX(created_at) FROM circuit_breaker_transitions)"
            assert len(one.jobs(where=f"status IN ('queued', 'running') AND created_at >= {since}")) <= 1
        else:
            assert state.probe_job_id is None

    closed = one.rows("SELECT reason FROM circuit_breaker_transitions WHERE to_state = 'closed'")
    assert {reason for (reason,) in closed} <= {"success", "manual_reset"}
    for job in running:
        await one.end(job, BROKEN)
    await one.pass_for(2 * HOUR)
    assert (one.breaker().state, one.jobs("id", "status IN ('queued', 'running')")) == (CLOSED, [])
    assert len(set(one.jobs("schedule_id, slot_at"))) == len(one.jobs())


# ── clocks ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "jump", [-HOUR, HOUR, -DAY, DAY, -3652 * DAY, 3652 * DAY, datetime(1970, 1, 2, tzinfo=UTC) - NOON]
)
@pytest.mark.parametrize("schedule", ["every: 5m", "cron: '*/5 * * * *', timezone: UTC"])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_clock_that_jumps_costs_one_interval_at_most_and_doubles_nothing(
    stage: MakeStage, jump: timedelta, schedule: str, is_restarted: bool
) -> None:
    """However far, in either direction: one run for each interval that really passes."""
    one = await stage(echo(schedule))
    await one.pass_for(82 * MINUTE)
    before = len(one.jobs())
    one.clock.jump(jump)
    if is_restarted:
        one.start()
    await one.pass_for(30 * MINUTE)
    assert 5 <= len(one.jobs()) - before <= 7
    since = one.jobs("slot_at")[before:]
    assert sorted(since) == since
    assert len(set(one.jobs("slot_at"))) == len(one.jobs())


@pytest.mark.parametrize("jump", [HOUR, DAY, 3652 * DAY])
async def test_a_clock_that_was_wrong_for_a_while_does_not_stop_the_schedule(stage: MakeStage, jump: timedelta) -> None:
    """Ahead and back again: what had fired before the first jump does not fire again."""
    one = await stage()
    await one.pass_for(12 * MINUTE)
    one.clock.jump(jump)
    await one.pass_for(2 * MINUTE)
    one.clock.jump(-jump)
    await one.pass_for(6 * MINUTE)
    assert [slot for slot in one.slots() if slot < "12:30"][:3] == ["12:00", "12:05", "12:10"]
    assert one.jobs()[-1] in ("2026-03-09T12:15:00.000000Z", "2026-03-09T12:20:00.000000Z")
    assert len(set(one.jobs())) == len(one.jobs())


async def test_a_clock_that_is_set_back_is_on_record(stage: MakeStage) -> None:
    """In the journal for the schedule, in the log for the operator."""
    one = await stage()
    await one.pass_for(2 * HOUR)
    one.clock.jump(-HOUR)
    await one.turn()
    assert one.skips() == [("clock_set_back", 0)]
    assert any("the clock jumped" in line for line in one.said())


async def test_a_clock_that_is_set_back_in_the_middle_of_a_turn_does_not_hold_the_next_one(stage: MakeStage) -> None:
    """How long to wait for the next slot is measured on the clock that made it: not an hour, nor a whole tick."""
    one = await stage(echo("every: 50ms"))
    decided_again = trio.Event()

    class SetsTheClockBack(Counted):
        async def transact(self, work: Callable[[Db], Any], **options: Any) -> Any:
            written = await super().transact(work, **options)
            if one.clock.now() < NOON:
                decided_again.set()
            elif one.jobs():
                one.clock.jump(-HOUR)
            return written

    one.scheduler.ledger = SetsTheClockBack(one.ledger)  # type: ignore[assignment]
    async with trio.open_nursery() as nursery:
        await nursery.start(one.scheduler.run)
        with trio.fail_after(20):
            await decided_again.wait()
        nursery.cancel_scope.cancel()
    assert one.skips() == [("clock_set_back", 0)]


async def test_a_small_correction_of_the_clock_is_no_jump(stage: MakeStage) -> None:
    """Half a second of NTP repeats nothing, skips nothing and is not worth a word."""
    one = await stage()
    for _ in range(10):
        await one.pass_for(MINUTE)
        one.clock.jump(timedelta(seconds=-0.5))
    await one.pass_for(MINUTE)
    assert one.slots() == ["12:00", "12:05", "12:10"]
    assert (one.skips(), one.said()) == ([], [])


# ── the loop around the turns ───────────────────────────────────────────────────────────────────────────────────────


async def test_the_first_slot_is_not_late_by_what_loading_took(stage: MakeStage) -> None:
    """While thousands of schedules are taken up, time goes by: the wait for the next one begins where it is then."""
    one = await stage(echo("at: '2026-03-09T12:10:00Z'"))

    class TakesLong(Counted):
        async def transact(self, work: Callable[[Db], Any], **options: Any) -> Any:
            one.clock.pass_to(one.clock.now() + MINUTE)
            return await super().transact(work, **options)

    one.scheduler.ledger = TakesLong(one.ledger)  # type: ignore[assignment]
    await one.turn()
    assert one.clock.now() > NOON
    assert one.scheduler._now() == one.clock.now()


async def test_a_full_disk_is_waited_out(stage: MakeStage, nursery: trio.Nursery) -> None:
    """The scheduler goes on and fires what was due when there is room again; nobody else notices."""
    one = await stage(echo(f"every: 5m, payload: {{text: {'x' * 100_000}}}"))
    await one.ledger.write(limit_pages, grow=0)
    await nursery.start(one.scheduler.run)
    while not one.lines.stat().st_size:  # it has complained
        await trio.lowlevel.checkpoint()
    assert one.jobs() == []

    await one.ledger.write(limit_pages, grow=10_000)
    one.hub.announce(SCHEDULES)
    with trio.fail_after(30):
        await one.hub.work_waiting(at_most=30)

    assert one.slots() == ["12:00"]
    assert "no space left on the disk; looking again in 30 s" in one.said()[0]
    nursery.cancel_scope.cancel()


async def test_a_ledger_that_is_lost_ends_the_scheduler_for_that_reason(stage: MakeStage) -> None:
    """A start afterwards may help, so the exit code is not that of a configuration that cannot be used."""
    one = await stage()

    def lose(db: Db) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

    with pytest.raises(LedgerError):
        await one.ledger.write(lose)
    with pytest.raises(LedgerLost):
        await one.scheduler.run()


async def test_an_announced_change_is_looked_at_at_once(stage: MakeStage, nursery: trio.Nursery) -> None:
    """Whoever changes something by hand does not wait for the next tick."""
    one = await stage(echo("at: '2026-03-09T11:00:00Z', not_on: [monday], timezone: UTC"))
    await nursery.start(one.scheduler.run)
    await trio.testing.wait_all_tasks_blocked()
    assert one.jobs() == []

    one.configure(echo("at: '2026-03-09T11:00:00Z'"))
    one.hub.announce(SCHEDULES)
    with trio.fail_after(30):
        await one.hub.work_waiting(at_most=30)

    assert one.slots() == ["11:00"]
    nursery.cancel_scope.cancel()


def limit_pages(db: Db, *, grow: int) -> None:
    """The file may grow by that many pages."""
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    db.execute(f"PRAGMA max_page_count = {pages + grow}").fetchall()


@define(eq=False)
class UnconfirmedLedger(Counted):
    """A ledger whose disk confirms nothing for so long that its callers get an error. Their commits are made."""

    async def transact(self, work: Callable[[Db], Any], **options: Any) -> Any:
        result = await self.ledger.transact(work, **options)
        if options.get("wait", True):
            raise LedgerError("the disk has not confirmed a write")
        return result


async def test_a_slot_that_the_disk_confirms_late_fires_once(stage: MakeStage) -> None:
    """The job is committed, whatever its caller is told."""
    one = await stage(echo("after: 10m"))
    await one.turn()
    one.clock.pass_to(NOON + 10 * MINUTE)
    one.scheduler.ledger = cast(Ledger, UnconfirmedLedger(one.ledger))
    with suppress(LedgerError):
        await one.turn()
    one.scheduler.ledger = one.ledger
    one.clock.pass_to(NOON + 20 * MINUTE)
    one.clock.jump(SECOND / 1000)  # as every real clock does
    await one.look_again()
    assert one.jobs("count(*)") == [1]
