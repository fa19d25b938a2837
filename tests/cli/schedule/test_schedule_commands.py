"""`ductile schedule` and `system breaker` without a service."""

import json
import re
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from ductile.calendar.due import Evaluation
from ductile.core.clock import to_text
from ductile.core.model import Breaker, BreakerChange, BreakerState, Dead
from ductile.engine.scheduling import tick
from ductile.engine.scheduling.simulate import VirtualClock
from ductile.ledger.admin import service_log
from ductile.ledger.admin.retention import RetentionPolicy, prune
from ductile.ledger.storage.connections import transaction
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.open_file import open_writer
from ductile.ledger.tables import breakers, schedules, snapshots
from ductile.ledger.tables.schedules import EntryStatus
from tests.cli.conftest import Run, imported_by
from tests.e2e.service import Home
from tests.engine.scheduler_service import MINUTE, SchedulerService, open_scheduler_service

SCHEDULES = """\
  echo:
    schedules:
      - {id: often, every: 10m, payload: {n: 1}}
      - {id: nightly, cron: "30 2 * * *", timezone: Europe/Berlin}
      - {id: office, every: 1h, only_between: "08:00-18:00", timezone: UTC}
      - {id: once, at: "2026-03-09T12:30:00Z"}
      - {id: soon, after: 10m}
      - {id: weekend, cron: "0 13 * * *", not_on: [mon, tue, wed, thu, fri], timezone: UTC}
  other: {enabled: false, schedules: [{every: 1h}]}
  third: {schedules: [{every: 1h}]}
"""
MIDNIGHT = datetime(2026, 3, 9, tzinfo=UTC)
"""A Monday."""
NOON = MIDNIGHT + timedelta(hours=12)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A configuration with schedules; nothing has run."""
    made = Home.make(tmp_path / "ductile")
    for name in ("echo", "other", "third"):
        made.plugin(name, "#!/bin/sh\n")
    made.add(f"plugins:\n{SCHEDULES}")
    return made


RunScheduler = Callable[..., Home]


@pytest.fixture
def run_scheduler(tmp_path: Path) -> RunScheduler:
    """Run the scheduler of this configuration from NOON on, and return the configuration with its ledger."""

    def run_scenario(scenario: Callable[[SchedulerService], Any]) -> Home:
        async def run_all() -> Home:
            async with open_scheduler_service(tmp_path, SCHEDULES) as service:
                service.home.plugin("third", "#!/bin/sh\n")
                service.configure(SCHEDULES.rstrip("\n"))
                service.clock = VirtualClock(NOON)
                service.start()
                await scenario(service)
                path = service.ledger.path
                text = (service.home.path / "config.yaml").read_text()
                service.home.write("config.yaml", text.replace("data/state.db", str(path)))
                return service.home

        return trio.run(run_all)

    return run_scenario


def why(run: Run, home: Home, schedule_id: str, at: str) -> Any:
    answer = run("schedule", "why", "echo", schedule_id, "--at", at, "--config", home.path, "--json")
    assert answer.exit_code == 0, answer
    return answer.json


# ── list and next ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_schedule_list_needs_no_ledger(run: Run, home: Home) -> None:
    """In the order of the configuration, with the reason for plugins that cannot run."""
    listed = run("schedule", "list", "--config", home.path, "--json").json["jobs"]

    assert [(one["plugin"], one["schedule_id"], one["mode"], one["status"]) for one in listed] == [
        ("echo", "often", "every", "scheduled"),
        ("echo", "nightly", "cron", "scheduled"),
        ("echo", "office", "every", "scheduled"),
        ("echo", "once", "at", "scheduled"),
        ("echo", "soon", "after", "scheduled"),
        ("echo", "weekend", "cron", "scheduled"),
        ("other", "default", "every", "invalid"),
        ("third", "default", "every", "scheduled"),
    ]
    assert listed[0]["reason"] == "not loaded by a service yet"
    assert listed[6]["reason"] == "plugin other is disabled (enabled: false)"


def test_schedule_list_shows_last_and_next_run(run: Run, run_scheduler: RunScheduler) -> None:
    """In local time and UTC, with pauses and their reasons."""

    async def scenario(service: SchedulerService) -> None:
        await service.advance_by(31 * MINUTE)
        await service.set_status(EntryStatus.PAUSED_MANUAL, schedule_id="office")

    home = run_scheduler(scenario)
    listed = {one["schedule_id"]: one for one in run("schedule", "list", "--config", home.path, "--json").json["jobs"]}

    often, nightly = listed["often"], listed["nightly"]
    assert (often["last_slot_at"], often["next_run_at"]) == (
        "2026-03-09T12:30:00.000000Z",
        "2026-03-09T12:40:00.000000Z",
    )
    assert often["last_success_job_id"] == often["last_job_id"]
    assert (nightly["next_run_at"], nightly["next_run_local"]) == (
        "2026-03-10T01:30:00.000000Z",
        "2026-03-10T02:30:00+01:00",
    )
    assert (listed["once"]["status"], listed["once"]["reason"]) == ("exhausted", "one_shot_exhausted")
    assert listed["office"]["status"] == "paused"
    assert "next_run_at" not in listed["office"]
    text = run("schedule", "list", "--config", home.path).stdout
    assert re.search(r"2026-03-10T02:30:00\+01:00  \w+ ago \(2026-03-10 01:30:00Z\)", text)


def test_an_edited_schedule_does_not_show_old_times(run: Run, run_scheduler: RunScheduler) -> None:
    home = run_scheduler(lambda service: service.advance_by(MINUTE))
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("every: 10m", "every: 11m"))

    often = run("schedule", "list", "--config", home.path, "--json").json["jobs"][0]

    assert (often["reason"], "next_run_at" in often) == ("changed since a service last loaded it", False)


def test_a_pause_keeps_its_reason_when_the_schedule_is_edited(run: Run, run_scheduler: RunScheduler) -> None:
    async def scenario(service: SchedulerService) -> None:
        await service.tick()
        paused = ("echo", "often", EntryStatus.PAUSED_MANUAL)
        await service.ledger.write(
            schedules.set_status, *paused, now=service.clock.now(), reason="the disk is replaced"
        )
        service.configure(SCHEDULES.replace("every: 10m", "every: 11m").rstrip("\n"))
        await service.advance_by(30 * MINUTE)

    home = run_scheduler(scenario)

    often = run("schedule", "list", "--config", home.path, "--json").json["jobs"][0]
    assert (often["status"], often["reason"]) == ("paused", "the disk is replaced")
    explanation = why(run, home, "often", "2026-03-09T12:25:00Z")
    assert (explanation["verdict"], "the disk is replaced" in explanation["words"]) == ("paused", True)


def test_schedule_list_imports_no_event_loop(home: Home) -> None:
    loaded = imported_by("schedule", "list", "--config", str(home.path))
    assert loaded.isdisjoint({"trio", "quart", "hypercorn"})


def test_schedule_next_matches_the_scheduler(run: Run, home: Home) -> None:
    """In local time and UTC; a slot outside its window moves to the opening."""
    answer = run("schedule", "next", "echo", "nightly", "--count", "400", "--config", home.path, "--json").json
    runs = answer["runs"]

    assert len(runs) == 400
    assert {run["fires_local"][11:] for run in runs if "T03:00" not in run["fires_local"]} == {
        "02:30:00+01:00",
        "02:30:00+02:00",
    }
    assert any(run["fires_local"].endswith("T03:00:00+02:00") for run in runs), "the night in which 02:30 is left out"
    text = run("schedule", "next", "echo", "office", "--config", home.path).stdout
    assert len(text.splitlines()) == 12


FOR_EVER = """\
plugins:
  echo:
    schedules:
      - {id: never, at: "9999-12-31T23:59:59Z", timezone: Pacific/Kiritimati}
      - {id: zero, at: "0001-01-01T00:00:00Z", timezone: America/Los_Angeles}
      - {id: seldom, every: 36500d}
      - {id: yearly, cron: "0 0 1 1 *"}
"""


def test_times_at_the_limits_of_the_calendar_are_shown(run: Run, tmp_path: Path) -> None:
    home = Home.make(tmp_path / "ductile")
    home.plugin("echo", "#!/bin/sh\n")
    home.add(FOR_EVER)
    where = ("--config", home.path, "--json")
    never = run("schedule", "next", "echo", "never", *where).json
    assert (never["status"], [one["fires_local"] for one in never["runs"]]) == (
        "scheduled",
        ["9000-01-01T14:00:00+14:00"],
    )
    assert run("schedule", "next", "echo", "zero", *where).json["runs"] == []
    for schedule_id in ("never", "zero", "seldom", "yearly"):
        for args in (
            ("next",),
            ("why",),
            ("simulate", "--from", "1970-01-01T00:00:00Z"),
            ("simulate", "--from", "8999-12-31T23:00:00Z"),
        ):
            answer = run("schedule", args[0], "echo", schedule_id, *args[1:], *where)
            assert answer.exit_code == 0, answer


def test_schedule_next_uses_the_ledger(run: Run, run_scheduler: RunScheduler) -> None:
    """A past one-time schedule has no runs; a delay counts from a start of the service."""
    home = run_scheduler(lambda service: service.advance_by(61 * MINUTE))

    once = run("schedule", "next", "echo", "once", "--config", home.path, "--json").json
    soon = run("schedule", "next", "echo", "soon", "--config", home.path, "--json").json

    assert (once["status"], once["runs"]) == ("exhausted", [])
    assert (soon["runs"], soon["reason"]) == ([], "relative to each start of the service")


def test_the_schedule_id_is_optional_for_a_single_schedule(run: Run, home: Home) -> None:
    assert run("schedule", "next", "third", "--config", home.path).exit_code == 0
    answer = run("schedule", "next", "echo", "--config", home.path)
    assert answer.exit_code == 2
    assert "Select one of: often, nightly, office, once, soon, weekend." in answer.stderr


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("next", "ecko"), 1, "plugin 'ecko' does not exist"),
        (("next", "echo", "nightli"), 1, "did you mean 'nightly'?"),
        (("next", "echo", "often", "--count", "0"), 2, "--count"),
        (("why", "echo", "often", "--at", "yesterday"), 2, "is not a time"),
        (("why", "echo", "often", "--at", "2026-02-30T10:00"), 2, "is not a time"),
        (("why", "echo", "often", "--at", "9999-12-31T23:59:59-23:00"), 2, "is not a time"),
        (("why", "echo", "nightly", "--at", "0001-01-01"), 2, "is not a time between 1970-01-01 and 9000-01-01"),
        (("why", "echo", "nightly", "--at", "9999-12-31"), 2, "is not a time between 1970-01-01 and 9000-01-01"),
        (("simulate", "echo", "often", "--from", "0001-01-01", "--to", "0001-01-03"), 2, "--from: '0001-01-01' is not"),
        (("simulate", "echo", "often", "--from", "9999-12-30", "--to", "9999-12-31"), 2, "--from: '9999-12-30' is not"),
        (("simulate", "echo", "often", "--down", "0001-01-01..0001-01-02"), 2, "--down: '0001-01-01' is not"),
        (("simulate", "echo", "often", "--from", "2026-03-10", "--to", "2026-03-09"), 2, "--to must be after --from"),
        (("simulate", "echo", "often", "--to", "2400-01-01"), 2, "by at most ten years"),
        (("simulate", "echo", "often", "--down", "02:00"), 2, "is not FROM..TO"),
        (("simulate", "echo", "often", "--down", "02:00..2026-03-09T05:00"), 2, "both ends must be times of day"),
        (("simulate", "echo", "often", "--down", "2026-03-09..2026-03-08"), 2, "ends before it starts"),
        (("simulate", "echo", "often", "--takes", "-1s"), 2, "is negative"),
        (("simulate", "echo", "often", "--takes", "long"), 2, "--takes"),
        (("simulate", "other"), 1, "is disabled"),
        (("pause", "echo", "often"), 69, "ductile system start"),
        (("run", "echo", "often", "--dry-run"), 69, "ductile system start"),
        (("run", "echo", "often", "--timeout", "soon"), 2, "--timeout"),
    ],
)
def test_invalid_options_of_schedule_commands_are_errors(
    run: Run, home: Home, args: tuple[str, ...], code: int, words: str
) -> None:
    answer = run("schedule", *args, "--config", home.path)
    assert (answer.exit_code, words in answer.stderr) == (code, True), answer


# ── why ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_why_names_the_job_of_a_fired_slot(run: Run, run_scheduler: RunScheduler) -> None:
    """For any time until the next slot; also after the job has left the queue."""
    job_ids: list[str] = []

    async def scenario(service: SchedulerService) -> None:
        await service.advance_by(31 * MINUTE)
        job_ids.extend(service.jobs("id", "schedule_id = 'often'"))
        await service.ledger.write(lambda db: db.execute(f"DELETE FROM job_queue WHERE id = '{job_ids[2]}'").rowcount)

    home = run_scheduler(scenario)

    for number, at in enumerate(("12:05:00Z", "12:10:00Z", "12:29:59Z")):
        explanation = why(run, home, "often", f"2026-03-09T{at}")
        assert (explanation["verdict"], explanation["job"]["job_id"], explanation["job"]["status"]) == (
            "fired",
            job_ids[number],
            "succeeded",
        )


def test_a_job_names_the_slot_that_created_it(run: Run, run_scheduler: RunScheduler) -> None:
    job_ids: list[str] = []

    async def scenario(service: SchedulerService) -> None:
        await service.advance_by(11 * MINUTE)
        job_ids.extend(service.jobs("id", "schedule_id = 'often'"))

    home = run_scheduler(scenario)

    shown = run("job", "inspect", job_ids[1], "--config", home.path).stdout
    assert "schedule_id: often" in shown
    assert "slot_at: 2026-03-09T12:10:00.000000Z" in shown


def test_why_names_the_rule_that_skipped_a_slot(run: Run, run_scheduler: RunScheduler) -> None:
    """An unfinished earlier job, or downtime of the service."""

    async def scenario(service: SchedulerService) -> None:
        await service.advance_by(11 * MINUTE, outcome=None)
        await service.run_jobs()
        service.clock.jump(35 * MINUTE)
        service.start()
        await service.advance_by(5 * MINUTE)

    home = run_scheduler(scenario)

    (first, *_) = why(run, home, "often", "2026-03-09T12:00:00Z")["next"]
    explanation = why(run, home, "often", "2026-03-09T12:10:00Z")
    assert explanation["reason"] == "already_running"
    assert explanation["next"] == [first.replace("job inspect", "job why")]
    assert explanation["next"][0].split()[-1] in explanation["words"]
    for minute in (20, 30, 40):
        explanation = why(run, home, "often", f"2026-03-09T12:{minute}:00Z")
        assert (explanation["verdict"], explanation["reason"]) == ("skipped", "missed")
    assert why(run, home, "often", "2026-03-09T12:50:00Z")["verdict"] == "fired"


def test_why_names_the_downtime_of_the_service_that_missed_a_slot(run: Run, run_scheduler: RunScheduler) -> None:
    """Also while it has not started again."""

    async def scenario(service: SchedulerService) -> None:
        starts = partial(service_log.journal_start, version="1", pid=1, config_hash="x", actor="service")
        stops = partial(service_log.journal_stop, reason="SIGTERM", actor="service")
        write = service.ledger.write
        await write(starts, run_id="a", now=service.clock.now())
        await service.advance_by(11 * MINUTE)
        await write(stops, run_id="a", now=service.clock.now())
        service.clock.jump(35 * MINUTE)
        await write(starts, run_id="b", now=service.clock.now())
        service.start()
        await service.advance_by(5 * MINUTE)
        await write(stops, run_id="b", now=service.clock.now())

    home = run_scheduler(scenario)

    missed = why(run, home, "often", "2026-03-09T12:20:00Z")
    assert (missed["verdict"], missed["reason"], missed["code"]) == ("skipped", "missed", "slot_service_down")
    assert "stopped (SIGTERM), from 2026-03-09T12:11:00.000000Z until 2026-03-09T12:46:00.000000Z" in missed["words"]
    waiting = why(run, home, "often", "2026-03-09T13:00:00Z")
    assert (waiting["verdict"], waiting["code"]) == ("undecided", "slot_service_down")
    assert waiting["words"].endswith("It has not started since.")


def test_why_names_the_disabled_plugin_of_a_missed_slot(run: Run, run_scheduler: RunScheduler) -> None:
    """From the configuration that the service used at that time, unless retention has deleted it."""

    async def scenario(service: SchedulerService) -> None:
        await service.advance_by(11 * MINUTE)
        for number, enabled in enumerate((False, True)):
            config = json.dumps({"plugins": {"echo": {"enabled": enabled}}})
            loaded = snapshots.StoredSnapshot(
                id=f"c{number}",
                config_hash=f"hash {number}",
                loaded_at=service.clock.now(),
                reason="reload",
                sanitized_config=config,
            )
            await service.ledger.write(service_log.journal_reload, loaded, actor="service")
            await service.ledger.write(snapshots.put, loaded)
            service.clock.jump(35 * MINUTE)
        service.start()
        await service.advance_by(5 * MINUTE)

    home = run_scheduler(scenario)

    missed = why(run, home, "often", "2026-03-09T12:20:00Z")
    assert (missed["verdict"], missed["code"]) == ("skipped", "slot_plugin_disabled")
    assert "plugin echo was disabled" in missed["words"]
    assert why(run, home, "often", "2026-03-09T13:00:00Z")["code"] == "slot_skipped"


def test_schedule_commands_accept_names_and_times_as_they_are_printed(run: Run, run_scheduler: RunScheduler) -> None:
    """`plugin/id`, and local times with and without an offset, to the second or the fraction."""
    home = run_scheduler(lambda service: service.advance_by(31 * MINUTE))
    times = ("12:10:00", "2026-03-09 12:10:00.5", "2026-03-09 12:10:00 +00:00", "2026-03-09T13:10:00+01:00")

    slots = {
        run("schedule", "why", "echo/often", "--at", at, "--config", home.path, "--json").json["slot_at"][14:]
        for at in times[1:]
    }

    assert slots == {"10:00.000000Z"}
    assert run("schedule", "why", "echo/often", "--at", times[0], "--config", home.path).exit_code == 0
    assert run("schedule", "next", "echo/nightly", "--config", home.path).exit_code == 0
    assert run("schedule", "simulate", "echo/nightly", "--config", home.path).exit_code == 0
    assert "no schedule 'nothing'" in run("schedule", "why", "echo/nothing", "--config", home.path).stderr
    assert run("schedule", "pause", "echo", "--config", home.path).exit_code == 2


def test_why_names_what_a_slot_waits_for(run: Run, run_scheduler: RunScheduler) -> None:
    """The end of a time window is known, that of an unhealthy plugin is not."""

    async def scenario(service: SchedulerService) -> None:
        service.unhealthy.add("echo")
        await service.advance_to(MIDNIGHT + timedelta(hours=18, minutes=30))

    home = run_scheduler(scenario)

    explanation = why(run, home, "office", "2026-03-09T18:30:00Z")
    assert (explanation["verdict"], explanation["reason"], explanation["until"]) == (
        "held",
        "outside_time_window",
        "2026-03-10T08:00:00.000000Z",
    )
    explanation = why(run, home, "often", "2026-03-09T18:30:00Z")
    assert (explanation["verdict"], explanation["reason"]) == ("held", "plugin_unhealthy")
    assert [row["reason"] for row in explanation["journal"]] == ["plugin_unhealthy"]


def test_why_names_the_excluded_weekday_of_a_cron_line(run: Run, run_scheduler: RunScheduler) -> None:
    """Monday at 13:00 is no slot; the next one is at 13:00 on Saturday."""
    home = run_scheduler(lambda service: service.advance_by(2 * MINUTE * 60))

    explanation = why(run, home, "weekend", "2026-03-09T14:00:00Z")
    assert (explanation["verdict"], explanation["reason"]) == ("skipped", "outside_day_constraint")
    assert explanation["code"] == "slot_excluded"
    assert (explanation["slot_at"], explanation["until"]) == (
        "2026-03-09T13:00:00.000000Z",
        "2026-03-14T13:00:00.000000Z",
    )
    assert "not on Monday" in explanation["words"]


def test_why_reports_slots_during_a_pause_as_paused(run: Run, run_scheduler: RunScheduler) -> None:
    async def scenario(service: SchedulerService) -> None:
        await service.advance_by(5 * MINUTE)
        await service.set_status(
            EntryStatus.PAUSED_MANUAL, schedule_id="often", reason="the disk is moved", actor="token:ci"
        )
        await service.advance_by(20 * MINUTE)
        await service.set_status(EntryStatus.ACTIVE, schedule_id="often")
        await service.advance_by(20 * MINUTE)
        await service.set_status(EntryStatus.PAUSED_MANUAL, schedule_id="office")
        await service.advance_by(60 * MINUTE)

    home = run_scheduler(scenario)

    verdicts = [why(run, home, "often", f"2026-03-09T12:{minute}:00Z")["verdict"] for minute in ("00", 10, 20, 30, 40)]
    assert verdicts == ["fired", "paused", "paused", "fired", "fired"]
    explanation = why(run, home, "often", "2026-03-09T12:10:00Z")
    assert "paused by token:ci" in explanation["words"]
    assert "the disk is moved" in explanation["words"]
    assert explanation["next"] == []
    assert why(run, home, "office", "2026-03-09T13:40:00Z")["next"] == ["ductile schedule resume echo office"]


async def remove_and_add_again(service: SchedulerService) -> None:
    """Remove the schedule `often` from the configuration and add it again five minutes later."""
    service.configure(SCHEDULES.replace("      - {id: often, every: 10m, payload: {n: 1}}\n", "").rstrip("\n"))
    await service.advance_by(5 * MINUTE)
    service.configure(SCHEDULES.rstrip("\n"))


def test_a_pause_ends_when_its_schedule_is_removed(run: Run, run_scheduler: RunScheduler) -> None:
    """A later schedule of the same name was never paused."""

    async def scenario(service: SchedulerService) -> None:
        await service.advance_by(5 * MINUTE)
        await service.set_status(EntryStatus.PAUSED_MANUAL, schedule_id="often")
        await service.advance_by(5 * MINUTE)
        await remove_and_add_again(service)
        await service.advance_by(12 * MINUTE, outcome=None)

    home = run_scheduler(scenario)

    explanation = why(run, home, "often", "2026-03-09T12:25:00Z")
    assert (explanation["verdict"], explanation["reason"]) == ("skipped", "already_running")


def test_a_pause_is_known_after_its_journal_entry_is_pruned(run: Run, run_scheduler: RunScheduler) -> None:
    async def scenario(service: SchedulerService) -> None:
        await service.advance_by(5 * MINUTE)
        for schedule_id in ("often", "nightly"):
            await service.set_status(EntryStatus.PAUSED_MANUAL, schedule_id=schedule_id)
        await service.advance_by(20 * MINUTE)
        await service.ledger.write(prune, RetentionPolicy(journal=timedelta()), now=service.clock.now() + MINUTE)
        await service.set_status(EntryStatus.ACTIVE, schedule_id="nightly")

    home = run_scheduler(scenario)

    for minute in (10, 20, 40):
        explanation = why(run, home, "often", f"2026-03-09T12:{minute}:00Z")
        assert (explanation["verdict"], explanation["reason"]) == ("paused", "schedule_paused_manual")
    assert why(run, home, "nightly", "2026-03-10T12:00:00Z")["verdict"] == "undecided", "it was resumed before that"


@pytest.mark.parametrize(("minutes", "verdict"), [(2, "undecided"), (9, "fired")])
def test_a_reset_breaker_blocks_no_later_slot(
    run: Run, run_scheduler: RunScheduler, minutes: int, verdict: str
) -> None:
    async def scenario(service: SchedulerService) -> None:
        await service.advance_by(11 * MINUTE, outcome=Dead("broken"))
        await service.advance_by(11 * MINUTE)
        await service.reset()
        await service.advance_by(minutes * MINUTE)

    home = run_scheduler(scenario)

    waited = why(run, home, "often", "2026-03-09T12:20:00Z")
    assert (waited["verdict"], [row["reason"] for row in waited["journal"]]) == ("fired", ["circuit_open"])
    later = why(run, home, "often", "2026-03-09T12:30:00Z")
    assert (later["verdict"], later["journal"]) == (verdict, [])


@pytest.mark.parametrize(
    ("keeps", "verdict", "reason"),
    [("pause", "paused", "schedule_paused_manual"), ("illness", "held", "plugin_unhealthy")],
)
def test_why_names_what_a_one_time_schedule_waits_for(
    run: Run, run_scheduler: RunScheduler, keeps: str, verdict: str, reason: str
) -> None:
    async def scenario(service: SchedulerService) -> None:
        await service.tick()
        if keeps == "illness":
            service.unhealthy.add("echo")
        else:
            await service.set_status(EntryStatus.PAUSED_MANUAL, schedule_id="once")
            await service.set_status(EntryStatus.PAUSED_MANUAL, schedule_id="soon")
        await service.advance_by(45 * MINUTE)

    home = run_scheduler(scenario)

    for schedule_id, slot in (("once", "12:30"), ("soon", "12:10")):
        explanation = why(run, home, schedule_id, "2026-03-09T12:45:00Z")
        assert (explanation["verdict"], explanation["reason"]) == (verdict, reason)
        assert explanation["slot_at"] == f"2026-03-09T{slot}:00.000000Z"
        assert why(run, home, schedule_id, "2026-03-09T12:09:00Z")["verdict"] == "not_due"


def test_slots_of_a_disabled_plugin_are_undecided(run: Run, run_scheduler: RunScheduler) -> None:
    async def scenario(service: SchedulerService) -> None:
        await service.advance_by(5 * MINUTE)
        service.configure(SCHEDULES.replace("  echo:\n", "  echo:\n    enabled: false\n").rstrip("\n"))
        await service.advance_by(20 * MINUTE)

    home = run_scheduler(scenario)

    assert why(run, home, "often", "2026-03-09T12:00:00Z")["verdict"] == "fired"
    explanation = why(run, home, "often", "2026-03-09T12:20:00Z")
    assert (explanation["verdict"], explanation["words"]) == (
        "undecided",
        "The scheduler does not evaluate this slot: plugin echo is disabled (enabled: false).",
    )


def test_a_clock_jump_hides_no_later_reason(run: Run, run_scheduler: RunScheduler) -> None:
    async def scenario(service: SchedulerService) -> None:
        await service.advance_by(5 * MINUTE)
        service.clock.jump(timedelta(days=3650))
        await service.advance_by(5 * MINUTE)
        service.clock.jump(timedelta(days=-3650))
        await service.advance_by(21 * MINUTE, outcome=None)

    home = run_scheduler(scenario)

    assert why(run, home, "often", "2026-03-09T12:20:00Z")["verdict"] == "fired"
    assert why(run, home, "often", "2026-03-09T12:30:00Z")["reason"] == "already_running"


def test_why_explains_undecided_slots(run: Run, run_scheduler: RunScheduler) -> None:
    """Not due yet, service stopped, or schedule not defined yet."""
    home = run_scheduler(lambda service: service.advance_by(5 * MINUTE))
    later = to_text(datetime.now(UTC) + timedelta(days=1))

    assert why(run, home, "often", "2026-03-09T13:00:00Z")["verdict"] == "undecided"
    assert why(run, home, "often", "2026-03-09T11:00:00Z")["verdict"] == "unknown"
    coming = why(run, home, "nightly", later)
    assert (coming["verdict"], "is in the future" in coming["words"]) == ("not_due", True)
    assert why(run, home, "once", "2026-03-09T12:20:00Z")["verdict"] == "not_due"
    assert why(run, home, "soon", "2026-03-09T12:05:00Z")["verdict"] == "not_due"


def test_why_reports_a_fault_of_the_scheduler(
    run: Run, run_scheduler: RunScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the error and the time of the next attempt."""

    def fail(*_: object) -> Evaluation:
        raise OverflowError("date value out of range")

    async def scenario(service: SchedulerService) -> None:
        await service.advance_by(MINUTE)
        monkeypatch.setattr(tick, "evaluate", fail)
        await service.refresh()

    home = run_scheduler(scenario)
    found = why(run, home, "often", "2026-03-09T12:01:00Z")
    assert (found["verdict"], found["reason"]) == ("held", "schedule_fault")
    assert "OverflowError('date value out of range')" in found["words"]
    assert found["until"] == "2026-03-09T12:01:30.000000Z"
    assert why(run, home, "often", "2026-03-09T12:00:30Z")["verdict"] == "fired"
    people = run("schedule", "why", "echo", "often", "--at", "2026-03-09T12:01:00Z", "--config", home.path)
    assert people.stdout.splitlines()[0] == "echo often, no slot: held"


def test_why_without_at_is_about_the_last_slot(run: Run, run_scheduler: RunScheduler) -> None:
    home = run_scheduler(lambda service: service.advance_by(5 * MINUTE))
    explanation = run("schedule", "why", "echo", "often", "--config", home.path, "--json").json
    assert datetime.now(UTC) - datetime.fromisoformat(explanation["slot_at"]) < timedelta(minutes=20)


def test_a_time_of_day_is_its_last_occurrence_in_the_zone_of_the_schedule(
    run: Run, run_scheduler: RunScheduler
) -> None:
    home = run_scheduler(lambda service: service.advance_by(5 * MINUTE))
    soon = (datetime.now(UTC) + timedelta(minutes=2)).strftime("%H:%M")
    explanation = why(run, home, "often", soon)
    assert explanation["verdict"] in ("undecided", "unknown")
    assert datetime.fromisoformat(explanation["slot_at"]) <= datetime.now(UTC) - timedelta(hours=23)


def test_why_prints_slot_verdict_reason_and_next_command(run: Run, run_scheduler: RunScheduler) -> None:
    home = run_scheduler(lambda service: service.advance_by(5 * MINUTE))
    answer = run("schedule", "why", "echo", "often", "--at", "2026-03-09T12:00:00Z", "--config", home.path)
    first, second, last = answer.stdout.splitlines()
    assert first == "echo often, slot 2026-03-09T12:00:00+00:00 (2026-03-09T12:00:00Z): fired"
    assert second == "  The slot fired 0.0 s after its time. The status of its job is succeeded."
    assert last.startswith("  next: ductile job inspect ")


def test_why_without_a_ledger_is_no_error(run: Run, home: Home) -> None:
    assert why(run, home, "often", "02:00")["words"] == "There is no ledger yet."


# ── simulate ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def simulated(run: Run, home: Home, *args: str) -> Any:
    answer = run("schedule", "simulate", *args, "--config", home.path, "--json")
    assert answer.exit_code == 0, answer
    return answer.json


def test_a_simulation_uses_the_time_zone_of_the_schedule(run: Run, home: Home) -> None:
    down = "2026-03-30T02:00..2026-03-30T02:45"
    args = ("echo", "nightly", "--from", "2026-03-28", "--to", "2026-03-31", "--down", down)
    scenario = simulated(run, home, *args)

    assert (scenario["from"], scenario["skipped"], scenario["complete"]) == ("2026-03-27T23:00:00.000000Z", 1, True)
    fired = [event["local"] for event in scenario["events"] if event["event"] == "fired"]
    assert fired == ["2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00"]
    (clocks,) = [event for event in scenario["events"] if event["event"] == "clocks"]
    assert clocks["utc_offsets"] == ["+01:00", "+02:00"]
    text = run("schedule", "simulate", *args, "--config", home.path).stdout
    assert "clock change: +01:00 → +02:00" in text
    assert text.splitlines()[-1] == "2 runs, 1 slot skipped"


@pytest.mark.parametrize(
    ("down", "fired"), [("02:00..03:00", 0), ("23:00..02:30", 3), ("23:00..02:31", 3), ("23:00..02:32", 0)]
)
def test_downtime_by_time_of_day_applies_to_every_day(run: Run, home: Home, down: str, fired: int) -> None:
    """It may cross midnight. A slot up to a minute before the end is on time."""
    scenario = simulated(run, home, "echo", "nightly", "--from", "2026-04-01", "--to", "2026-04-04", "--down", down)
    assert (scenario["fired"], scenario["skipped"]) == (fired, 3 - fired)


def test_a_simulation_stops_at_its_limit(run: Run, home: Home) -> None:
    args = ("simulate", "echo", "often", "--from", "2026-03-09T00:00", "--to", "2027-03-09", "--limit", "5")
    answer = run("schedule", *args, "--config", home.path)
    assert "incomplete" in answer.stdout.splitlines()[-1]
    assert len(answer.stdout.splitlines()) == 8


def test_a_simulation_uses_the_interval_grid_of_the_ledger(run: Run, run_scheduler: RunScheduler) -> None:
    home = run_scheduler(lambda service: service.advance_by(5 * MINUTE))
    scenario = simulated(run, home, "echo", "often", "--from", "2026-04-01T00:03", "--to", "2026-04-01T00:25")
    assert [event["slot_at"][11:16] for event in scenario["events"]] == ["00:10", "00:20"]


def test_a_simulation_does_not_change_the_ledger(run: Run, run_scheduler: RunScheduler) -> None:
    home = run_scheduler(lambda service: service.advance_by(5 * MINUTE))
    ledger = Path(home.path.parent / "ledger" / "state.db")
    before = ledger.read_bytes()
    simulated(run, home, "echo", "often")
    assert ledger.read_bytes() == before


# ── breakers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def open_one(db: Db) -> None:
    at = datetime(2026, 3, 9, 12, tzinfo=UTC)
    opened = Breaker(plugin="echo", command="poll", state=BreakerState.OPEN, failure_count=3, opened_at=at)
    breakers.put(db, BreakerChange(opened, "failure_threshold"), now=at, job_id="a-job")


def test_system_breaker_shows_state_and_transitions(run: Run, home: Home) -> None:
    with closing(open_writer(home.ledger)) as db, transaction(db):
        open_one(db)

    (shown,) = run("system", "breaker", "echo", "--config", home.path, "--json").json["breakers"]

    assert (shown["command"], shown["state"], shown["failure_count"]) == ("poll", "open", 3)
    assert (shown["opened_at"], shown["probe_from"]) == ("2026-03-09T12:00:00.000000Z", "2026-03-09T12:30:00.000000Z")
    (change,) = shown["transitions"]
    assert change["actor"] is None
    assert (change["from_state"], change["to_state"], change["reason"], change["job_id"]) == (
        "closed",
        "open",
        "failure_threshold",
        "a-job",
    )
    text = run("system", "breaker", "echo", "--config", home.path).stdout
    assert text.startswith("echo.poll: open, failures 3\n")
    assert "closed → open  failure_threshold" in text


def test_system_breaker_names_who_reset_it(run: Run, home: Home) -> None:
    with closing(open_writer(home.ledger)) as db, transaction(db):
        open_one(db)
        closed = BreakerChange(Breaker(plugin="echo", command="poll"), "manual_reset")
        breakers.put(db, closed, now=datetime(2026, 3, 9, 13, tzinfo=UTC), actor="token:ci")

    assert "manual_reset by token:ci" in run("system", "breaker", "echo", "--config", home.path).stdout


def test_an_unused_breaker_is_closed(run: Run, home: Home) -> None:
    """One per scheduled command; none without a ledger."""
    assert run("system", "breaker", "echo", "--config", home.path, "--json").json == {"plugin": "echo", "breakers": []}
    open_writer(home.ledger).close()
    (shown,) = run("system", "breaker", "echo", "--config", home.path, "--json").json["breakers"]
    assert (shown["state"], shown["failure_count"], shown["transitions"]) == ("closed", 0, [])


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("breaker", "ecko"), 1, "plugin 'ecko' does not exist"),
        (("breaker", "echo", "--command", "polish"), 1, "has no command 'polish'"),
        (("breaker", "echo", "--limit", "0"), 2, "--limit"),
        (("reset", "echo"), 69, "ductile system start"),
    ],
)
def test_invalid_options_of_breaker_commands_are_errors(
    run: Run, home: Home, args: tuple[str, ...], code: int, words: str
) -> None:
    open_writer(home.ledger).close()
    answer = run("system", *args, "--config", home.path)
    assert (answer.exit_code, words in answer.stderr) == (code, True), answer
