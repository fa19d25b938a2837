"""`ductile schedule` and `system breaker` without a service: what they read, reckon and refuse."""

import re
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from ductile.calendar.due import Look
from ductile.core.clock import to_text
from ductile.core.model import Breaker, BreakerChange, BreakerState, Dead
from ductile.engine.scheduling import tick
from ductile.engine.scheduling.simulate import VirtualClock
from ductile.ledger.admin.retention import RetentionPolicy, prune
from ductile.ledger.storage.connections import transaction
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.open_file import open_writer
from ductile.ledger.tables import breakers, schedules
from ductile.ledger.tables.schedules import EntryStatus
from tests.cli.conftest import Run
from tests.cli.test_start_up import imported_by
from tests.e2e.service import Home
from tests.engine.stage import MINUTE, Stage, open_stage

SCHEDULES = """\
  echo:
    schedules:
      - {id: often, every: 10m, payload: {n: 1}}
      - {id: nightly, cron: "30 2 * * *", timezone: Europe/Berlin}
      - {id: office, every: 1h, only_between: "08:00-18:00", timezone: UTC}
      - {id: once, at: "2026-03-09T12:30:00Z"}
      - {id: soon, after: 10m}
  other: {enabled: false, schedules: [{every: 1h}]}
  third: {schedules: [{every: 1h}]}
"""
MIDNIGHT = datetime(2026, 3, 9, tzinfo=UTC)
"""A Monday."""
NOON = MIDNIGHT + timedelta(hours=12)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A configuration with schedules; nothing has ever run."""
    made = Home.make(tmp_path / "ductile")
    for name in ("echo", "other", "third"):
        made.plugin(name, "#!/bin/sh\n")
    made.add(f"plugins:\n{SCHEDULES}")
    return made


Past = Callable[..., Home]


@pytest.fixture
def past(tmp_path: Path) -> Past:
    """Plays a service of this configuration from NOON on; what it did is in the ledger that commands will read."""

    def play(story: Callable[[Stage], Any]) -> Home:
        async def service() -> Home:
            async with open_stage(tmp_path, SCHEDULES) as stage:
                stage.home.plugin("third", "#!/bin/sh\n")
                stage.configure(SCHEDULES.rstrip("\n"))
                stage.clock = VirtualClock(NOON)
                stage.start()
                await story(stage)
                path = stage.ledger.path
                text = (stage.home.path / "config.yaml").read_text()
                stage.home.write("config.yaml", text.replace("data/state.db", str(path)))
                return stage.home

        return trio.run(service)

    return play


def why(run: Run, home: Home, schedule_id: str, at: str) -> Any:
    answer = run("schedule", "why", "echo", schedule_id, "--at", at, "--config", home.path, "--json")
    assert answer.exit_code == 0, answer
    return answer.json


# ── list and next ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_schedules_are_listed_before_a_service_has_seen_them(run: Run, home: Home) -> None:
    """In the order of the configuration, also those of plugins that cannot run, with the reason."""
    listed = run("schedule", "list", "--config", home.path, "--json").json["jobs"]

    assert [(one["plugin"], one["schedule_id"], one["mode"], one["status"]) for one in listed] == [
        ("echo", "often", "every", "scheduled"),
        ("echo", "nightly", "cron", "scheduled"),
        ("echo", "office", "every", "scheduled"),
        ("echo", "once", "at", "scheduled"),
        ("echo", "soon", "after", "scheduled"),
        ("other", "default", "every", "invalid"),
        ("third", "default", "every", "scheduled"),
    ]
    assert listed[0]["reason"] == "no service has seen it yet"
    assert listed[5]["reason"] == "plugin other is disabled (enabled: false)"


def test_the_list_has_what_the_ledger_knows(run: Run, past: Past) -> None:
    """Last and next run, in the schedule's own time and in UTC; what holds it; a pause with its reason."""

    async def story(stage: Stage) -> None:
        await stage.pass_for(31 * MINUTE)
        await stage.set_status(EntryStatus.PAUSED_MANUAL, schedule_id="office")

    home = past(story)
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


def test_an_edited_schedule_does_not_show_the_times_of_the_old_one(run: Run, past: Past) -> None:
    """Until a service has taken it up."""
    home = past(lambda stage: stage.pass_for(MINUTE))
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("every: 10m", "every: 11m"))

    often = run("schedule", "list", "--config", home.path, "--json").json["jobs"][0]

    assert (often["reason"], "next_run_at" in often) == ("edited since a service last saw it", False)


def test_a_pause_keeps_its_reason_when_the_schedule_is_edited(run: Run, past: Past) -> None:
    """The pause survives, so does what the operator said about it."""

    async def story(stage: Stage) -> None:
        await stage.turn()
        paused = ("echo", "often", EntryStatus.PAUSED_MANUAL)
        await stage.ledger.write(schedules.set_status, *paused, now=stage.clock.now(), reason="the disk is replaced")
        stage.configure(SCHEDULES.replace("every: 10m", "every: 11m").rstrip("\n"))
        await stage.pass_for(30 * MINUTE)

    home = past(story)

    often = run("schedule", "list", "--config", home.path, "--json").json["jobs"][0]
    assert (often["status"], often["reason"]) == ("paused", "the disk is replaced")
    told = why(run, home, "often", "2026-03-09T12:25:00Z")
    assert (told["verdict"], told["words"]) == ("paused", "the disk is replaced")


def test_listing_needs_no_event_loop(home: Home) -> None:
    """It is read from files."""
    loaded = imported_by("schedule", "list", "--config", str(home.path))
    assert loaded.isdisjoint({"trio", "quart", "hypercorn"})


def test_coming_runs_are_those_of_the_scheduler(run: Run, home: Home) -> None:
    """As many as asked for, on the clocks of the schedule and in UTC; a slot outside its window at the opening."""
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


def test_moments_at_the_ends_of_the_calendar_can_be_told(run: Run, tmp_path: Path) -> None:
    """One that is as good as never is shown as the end of the calendar, and no command fails at it."""
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


def test_coming_runs_go_by_the_ledger(run: Run, past: Past) -> None:
    """A moment that has passed does not come again, and a delay counts from a start that is only known there."""
    home = past(lambda stage: stage.pass_for(61 * MINUTE))

    once = run("schedule", "next", "echo", "once", "--config", home.path, "--json").json
    soon = run("schedule", "next", "echo", "soon", "--config", home.path, "--json").json

    assert (once["status"], once["runs"]) == ("exhausted", [])
    assert (soon["runs"], soon["reason"]) == ([], "counts from each start of the service")


def test_the_only_schedule_of_a_plugin_need_not_be_named(run: Run, home: Home) -> None:
    """Of several, one must be."""
    assert run("schedule", "next", "third", "--config", home.path).exit_code == 0
    answer = run("schedule", "next", "echo", "--config", home.path)
    assert answer.exit_code == 2
    assert "name one of them: often, nightly, office, once, soon" in answer.stderr


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("next", "ecko"), 1, "there is no plugin 'ecko'"),
        (("next", "echo", "nightli"), 1, "did you mean 'nightly'?"),
        (("next", "echo", "often", "--count", "0"), 2, "--count"),
        (("why", "echo", "often", "--at", "yesterday"), 2, "is not a moment"),
        (("why", "echo", "often", "--at", "2026-02-30T10:00"), 2, "is not a moment"),
        (("why", "echo", "often", "--at", "9999-12-31T23:59:59-23:00"), 2, "is not a moment"),
        (("why", "echo", "nightly", "--at", "0001-01-01"), 2, "is not a moment between 1970-01-01 and 9000-01-01"),
        (("why", "echo", "nightly", "--at", "9999-12-31"), 2, "is not a moment between 1970-01-01 and 9000-01-01"),
        (("simulate", "echo", "often", "--from", "0001-01-01", "--to", "0001-01-03"), 2, "--from: '0001-01-01' is not"),
        (("simulate", "echo", "often", "--from", "9999-12-30", "--to", "9999-12-31"), 2, "--from: '9999-12-30' is not"),
        (("simulate", "echo", "often", "--down", "0001-01-01..0001-01-02"), 2, "--down: '0001-01-01' is not"),
        (("simulate", "echo", "often", "--from", "2026-03-10", "--to", "2026-03-09"), 2, "--to must come after --from"),
        (("simulate", "echo", "often", "--to", "2400-01-01"), 2, "not more than ten years"),
        (("simulate", "echo", "often", "--down", "02:00"), 2, "is not FROM..TO"),
        (("simulate", "echo", "often", "--down", "02:00..2026-03-09T05:00"), 2, "a time of day goes with another"),
        (("simulate", "echo", "often", "--down", "2026-03-09..2026-03-08"), 2, "ends before it begins"),
        (("simulate", "echo", "often", "--takes", "-1s"), 2, "less than zero"),
        (("simulate", "echo", "often", "--takes", "long"), 2, "--takes"),
        (("simulate", "other"), 1, "is disabled"),
        (("pause", "echo", "often"), 69, "ductile system start"),
        (("run", "echo", "often", "--dry-run"), 69, "ductile system start"),
        (("run", "echo", "often", "--timeout", "soon"), 2, "--timeout"),
    ],
)
def test_what_cannot_be_done_is_told(run: Run, home: Home, args: tuple[str, ...], code: int, words: str) -> None:
    """With the exit code that says whose fault it is; never a traceback."""
    answer = run("schedule", *args, "--config", home.path)
    assert (answer.exit_code, words in answer.stderr) == (code, True), answer


# ── why ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_slot_that_fired_names_its_job(run: Run, past: Past) -> None:
    """Whatever moment until the next slot is asked about; also after the job has left the queue."""
    kept: list[str] = []

    async def story(stage: Stage) -> None:
        await stage.pass_for(31 * MINUTE)
        kept.extend(stage.jobs("id", "schedule_id = 'often'"))
        await stage.ledger.write(lambda db: db.execute(f"DELETE FROM job_queue WHERE id = '{kept[2]}'").rowcount)

    home = past(story)

    for number, at in enumerate(("12:05:00Z", "12:10:00Z", "12:29:59Z")):
        told = why(run, home, "often", f"2026-03-09T{at}")
        assert (told["verdict"], told["job"]["job_id"], told["job"]["status"]) == ("fired", kept[number], "succeeded")


def test_a_slot_that_was_skipped_names_the_rule(run: Run, past: Past) -> None:
    """An earlier job that was not finished; a stop of the service, for each of the slots it cost."""

    async def story(stage: Stage) -> None:
        await stage.pass_for(11 * MINUTE, then=None)
        await stage.work()
        stage.clock.jump(35 * MINUTE)
        stage.start()
        await stage.pass_for(5 * MINUTE)

    home = past(story)

    assert why(run, home, "often", "2026-03-09T12:10:00Z")["reason"] == "already_running"
    for minute in (20, 30, 40):
        told = why(run, home, "often", f"2026-03-09T12:{minute}:00Z")
        assert (told["verdict"], told["reason"]) == ("skipped", "missed")
    assert why(run, home, "often", "2026-03-09T12:50:00Z")["verdict"] == "fired"


def test_a_slot_that_waits_says_for_what_and_how_long(run: Run, past: Past) -> None:
    """Closed hours are known beforehand, a plugin that is unwell is not."""

    async def story(stage: Stage) -> None:
        stage.unhealthy.add("echo")
        await stage.pass_to(MIDNIGHT + timedelta(hours=18, minutes=30))

    home = past(story)

    told = why(run, home, "office", "2026-03-09T18:30:00Z")
    assert (told["verdict"], told["reason"], told["until"]) == (
        "held",
        "outside_time_window",
        "2026-03-10T08:00:00.000000Z",
    )
    told = why(run, home, "often", "2026-03-09T18:30:00Z")
    assert (told["verdict"], told["reason"]) == ("held", "plugin_unhealthy")
    assert [row["reason"] for row in told["story"]] == ["plugin_unhealthy"]


def test_a_slot_of_a_pause_says_who_paused(run: Run, past: Past) -> None:
    """Those before and after it do not."""

    async def story(stage: Stage) -> None:
        await stage.pass_for(5 * MINUTE)
        await stage.set_status(EntryStatus.PAUSED_MANUAL, schedule_id="often")
        await stage.pass_for(20 * MINUTE)
        await stage.set_status(EntryStatus.ACTIVE, schedule_id="often")
        await stage.pass_for(20 * MINUTE)

    home = past(story)

    verdicts = [why(run, home, "often", f"2026-03-09T12:{minute}:00Z")["verdict"] for minute in ("00", 10, 20, 30, 40)]
    assert verdicts == ["fired", "paused", "paused", "fired", "fired"]


async def forget_and_write_again(stage: Stage) -> None:
    """The schedule `often` is taken out of the configuration, and comes back five minutes later."""
    stage.configure(SCHEDULES.replace("      - {id: often, every: 10m, payload: {n: 1}}\n", "").rstrip("\n"))
    await stage.pass_for(5 * MINUTE)
    stage.configure(SCHEDULES.rstrip("\n"))


def test_a_pause_ends_with_the_schedule_it_was_for(run: Run, past: Past) -> None:
    """One of the same name that is written later was never paused: its slots have reasons of their own."""

    async def story(stage: Stage) -> None:
        await stage.pass_for(5 * MINUTE)
        await stage.set_status(EntryStatus.PAUSED_MANUAL, schedule_id="often")
        await stage.pass_for(5 * MINUTE)
        await forget_and_write_again(stage)
        await stage.pass_for(12 * MINUTE, then=None)

    home = past(story)

    told = why(run, home, "often", "2026-03-09T12:25:00Z")
    assert (told["verdict"], told["reason"]) == ("skipped", "already_running")


def test_a_pause_is_known_for_as_long_as_it_lasts(run: Run, past: Past) -> None:
    """Also when the journal has long forgotten its beginning, while the service runs and when it does not."""

    async def story(stage: Stage) -> None:
        await stage.pass_for(5 * MINUTE)
        for schedule_id in ("often", "nightly"):
            await stage.set_status(EntryStatus.PAUSED_MANUAL, schedule_id=schedule_id)
        await stage.pass_for(20 * MINUTE)
        await stage.ledger.write(prune, RetentionPolicy(journal=timedelta()), now=stage.clock.now() + MINUTE)
        await stage.set_status(EntryStatus.ACTIVE, schedule_id="nightly")

    home = past(story)

    for minute in (10, 20, 40):
        told = why(run, home, "often", f"2026-03-09T12:{minute}:00Z")
        assert (told["verdict"], told["reason"]) == ("paused", "schedule_paused_manual")
    assert why(run, home, "nightly", "2026-03-10T12:00:00Z")["verdict"] == "undecided", "it was resumed before that"


@pytest.mark.parametrize(("minutes", "verdict"), [(2, "undecided"), (9, "fired")])
def test_a_breaker_that_was_reset_holds_no_later_slot(run: Run, past: Past, minutes: int, verdict: str) -> None:
    """However long it would have stayed open; nor is it in the story of one that fired on time."""

    async def story(stage: Stage) -> None:
        await stage.pass_for(11 * MINUTE, then=Dead("broken"))
        await stage.pass_for(11 * MINUTE)
        await stage.reset()
        await stage.pass_for(minutes * MINUTE)

    home = past(story)

    waited = why(run, home, "often", "2026-03-09T12:20:00Z")
    assert (waited["verdict"], [row["reason"] for row in waited["story"]]) == ("fired", ["circuit_open"])
    later = why(run, home, "often", "2026-03-09T12:30:00Z")
    assert (later["verdict"], later["story"]) == (verdict, [])


@pytest.mark.parametrize(
    ("keeps", "verdict", "reason"),
    [("pause", "paused", "schedule_paused_manual"), ("illness", "held", "plugin_unhealthy")],
)
def test_a_single_moment_that_waits_says_for_what(run: Run, past: Past, keeps: str, verdict: str, reason: str) -> None:
    """Its time has come, whether it was written as a moment or as a delay from the start."""

    async def story(stage: Stage) -> None:
        await stage.turn()
        if keeps == "illness":
            stage.unhealthy.add("echo")
        else:
            await stage.set_status(EntryStatus.PAUSED_MANUAL, schedule_id="once")
            await stage.set_status(EntryStatus.PAUSED_MANUAL, schedule_id="soon")
        await stage.pass_for(45 * MINUTE)

    home = past(story)

    for schedule_id, slot in (("once", "12:30"), ("soon", "12:10")):
        told = why(run, home, schedule_id, "2026-03-09T12:45:00Z")
        assert (told["verdict"], told["reason"]) == (verdict, reason)
        assert told["slot_at"] == f"2026-03-09T{slot}:00.000000Z"
        assert why(run, home, schedule_id, "2026-03-09T12:09:00Z")["verdict"] == "not_due"


def test_slots_of_a_plugin_that_cannot_run_say_so(run: Run, past: Past) -> None:
    """Nobody looks at them, and starting the service would not help."""

    async def story(stage: Stage) -> None:
        await stage.pass_for(5 * MINUTE)
        stage.configure(SCHEDULES.replace("  echo:\n", "  echo:\n    enabled: false\n").rstrip("\n"))
        await stage.pass_for(20 * MINUTE)

    home = past(story)

    assert why(run, home, "often", "2026-03-09T12:00:00Z")["verdict"] == "fired"
    told = why(run, home, "often", "2026-03-09T12:20:00Z")
    assert (told["verdict"], told["words"]) == (
        "undecided",
        "nobody looks at it: plugin echo is disabled (enabled: false)",
    )


def test_what_a_wrong_clock_passed_over_hides_no_later_reason(run: Run, past: Past) -> None:
    """Ten years ahead and back again, every slot in between counted as missed; now each is decided anew."""

    async def story(stage: Stage) -> None:
        await stage.pass_for(5 * MINUTE)
        stage.clock.jump(timedelta(days=3650))
        await stage.pass_for(5 * MINUTE)
        stage.clock.jump(timedelta(days=-3650))
        await stage.pass_for(21 * MINUTE, then=None)

    home = past(story)

    assert why(run, home, "often", "2026-03-09T12:20:00Z")["verdict"] == "fired"
    assert why(run, home, "often", "2026-03-09T12:30:00Z")["reason"] == "already_running"


def test_a_slot_that_nobody_has_decided_is_no_mystery(run: Run, past: Past) -> None:
    """The time has not come, the service does not run, or the schedule was not there yet."""
    home = past(lambda stage: stage.pass_for(5 * MINUTE))
    later = to_text(datetime.now(UTC) + timedelta(days=1))

    assert why(run, home, "often", "2026-03-09T13:00:00Z")["verdict"] == "undecided"
    assert why(run, home, "often", "2026-03-09T11:00:00Z")["verdict"] == "unknown"
    coming = why(run, home, "nightly", later)
    assert (coming["verdict"], "has not come yet" in coming["words"]) == ("not_due", True)
    assert why(run, home, "once", "2026-03-09T12:20:00Z")["verdict"] == "not_due"
    assert why(run, home, "soon", "2026-03-09T12:05:00Z")["verdict"] == "not_due"


def test_a_schedule_that_cannot_be_decided_says_so(run: Run, past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the error, and when it is tried again; what happened before is told as ever."""

    def fail(*_: object) -> Look:
        raise OverflowError("date value out of range")

    async def story(stage: Stage) -> None:
        await stage.pass_for(MINUTE)
        monkeypatch.setattr(tick, "look", fail)
        await stage.look_again()

    home = past(story)
    found = why(run, home, "often", "2026-03-09T12:01:00Z")
    assert (found["verdict"], found["reason"]) == ("held", "schedule_fault")
    assert "OverflowError('date value out of range')" in found["words"]
    assert found["until"] == "2026-03-09T12:01:30.000000Z"
    assert why(run, home, "often", "2026-03-09T12:00:30Z")["verdict"] == "fired"
    people = run("schedule", "why", "echo", "often", "--at", "2026-03-09T12:01:00Z", "--config", home.path)
    assert people.stdout.splitlines()[0] == "echo often, no slot: held"


def test_without_a_moment_it_is_about_the_last_slot(run: Run, past: Past) -> None:
    """The question is nearly always why it did not run just now."""
    home = past(lambda stage: stage.pass_for(5 * MINUTE))
    told = run("schedule", "why", "echo", "often", "--config", home.path, "--json").json
    assert datetime.now(UTC) - datetime.fromisoformat(told["slot_at"]) < timedelta(minutes=20)


def test_a_time_of_day_is_the_last_one_on_the_clocks_of_the_schedule(run: Run, past: Past) -> None:
    """Nobody asks about the future with it."""
    home = past(lambda stage: stage.pass_for(5 * MINUTE))
    soon = (datetime.now(UTC) + timedelta(minutes=2)).strftime("%H:%M")
    told = why(run, home, "often", soon)
    assert told["verdict"] in ("undecided", "unknown")
    assert datetime.fromisoformat(told["slot_at"]) <= datetime.now(UTC) - timedelta(hours=23)


def test_the_answer_is_a_few_lines_for_people(run: Run, past: Past) -> None:
    """The slot in both times, the verdict, the words, and what to do next."""
    home = past(lambda stage: stage.pass_for(5 * MINUTE))
    answer = run("schedule", "why", "echo", "often", "--at", "2026-03-09T12:00:00Z", "--config", home.path)
    first, second, last = answer.stdout.splitlines()
    assert first == "echo often, slot 2026-03-09T12:00:00+00:00 (2026-03-09T12:00:00Z): fired"
    assert second == "  fired 0.0 s after its time; the job is succeeded"
    assert last.startswith("  next: ductile job inspect ")


def test_without_a_ledger_nothing_is_known(run: Run, home: Home) -> None:
    """That is an answer, not an error."""
    assert why(run, home, "often", "02:00")["words"] == "there is no ledger yet"


# ── simulate ────────────────────────────────────────────────────────────────────────────────────────────────────────


def simulated(run: Run, home: Home, *args: str) -> Any:
    answer = run("schedule", "simulate", *args, "--config", home.path, "--json")
    assert answer.exit_code == 0, answer
    return answer.json


def test_a_simulation_is_told_in_the_time_of_the_schedule(run: Run, home: Home) -> None:
    """Moments without an offset are on its clocks, and so is the time without service."""
    down = "2026-03-30T02:00..2026-03-30T02:45"
    args = ("echo", "nightly", "--from", "2026-03-28", "--to", "2026-03-31", "--down", down)
    story = simulated(run, home, *args)

    assert (story["from"], story["skipped"], story["complete"]) == ("2026-03-27T23:00:00.000000Z", 1, True)
    fired = [event["local"] for event in story["events"] if event["event"] == "fired"]
    assert fired == ["2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00"]
    (clocks,) = [event for event in story["events"] if event["event"] == "clocks"]
    assert clocks["utc_offsets"] == ["+01:00", "+02:00"]
    text = run("schedule", "simulate", *args, "--config", home.path).stdout
    assert "clocks change: +01:00 → +02:00" in text
    assert text.splitlines()[-1] == "2 runs, 1 slots skipped"


@pytest.mark.parametrize(
    ("down", "fired"), [("02:00..03:00", 0), ("23:00..02:30", 3), ("23:00..02:31", 3), ("23:00..02:32", 0)]
)
def test_times_of_day_without_service_are_those_of_every_day(run: Run, home: Home, down: str, fired: int) -> None:
    """They may cross midnight; up again within a minute of the slot is in time."""
    story = simulated(run, home, "echo", "nightly", "--from", "2026-04-01", "--to", "2026-04-04", "--down", down)
    assert (story["fired"], story["skipped"]) == (fired, 3 - fired)


def test_a_simulation_is_bounded(run: Run, home: Home) -> None:
    """As many slots as one wants to read, and a word about the rest."""
    args = ("simulate", "echo", "often", "--from", "2026-03-09T00:00", "--to", "2027-03-09", "--limit", "5")
    answer = run("schedule", *args, "--config", home.path)
    assert "cut short" in answer.stdout.splitlines()[-1]
    assert len(answer.stdout.splitlines()) == 8


def test_a_simulation_goes_on_where_the_service_is(run: Run, past: Past) -> None:
    """The grid of an interval is that of the ledger."""
    home = past(lambda stage: stage.pass_for(5 * MINUTE))
    story = simulated(run, home, "echo", "often", "--from", "2026-04-01T00:03", "--to", "2026-04-01T00:25")
    assert [event["slot_at"][11:16] for event in story["events"]] == ["00:10", "00:20"]


def test_a_simulation_leaves_the_ledger_alone(run: Run, past: Past) -> None:
    """Not a byte of it changes."""
    home = past(lambda stage: stage.pass_for(5 * MINUTE))
    ledger = Path(home.path.parent / "ledger" / "state.db")
    before = ledger.read_bytes()
    simulated(run, home, "echo", "often")
    assert ledger.read_bytes() == before


# ── breakers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def open_one(db: Db) -> None:
    at = datetime(2026, 3, 9, 12, tzinfo=UTC)
    opened = Breaker(plugin="echo", command="poll", state=BreakerState.OPEN, failure_count=3, opened_at=at)
    breakers.put(db, BreakerChange(opened, "failure_threshold"), now=at, job_id="a-job")


def test_a_breaker_is_shown_with_its_history(run: Run, home: Home) -> None:
    """State, count, since when, from when on it is tried again, and every change."""
    with closing(open_writer(home.ledger)) as db, transaction(db):
        open_one(db)

    (shown,) = run("system", "breaker", "echo", "--config", home.path, "--json").json["breakers"]

    assert (shown["command"], shown["state"], shown["failure_count"]) == ("poll", "open", 3)
    assert (shown["opened_at"], shown["probe_from"]) == ("2026-03-09T12:00:00.000000Z", "2026-03-09T12:30:00.000000Z")
    (change,) = shown["transitions"]
    assert (change["from_state"], change["to_state"], change["reason"], change["job_id"]) == (
        "closed",
        "open",
        "failure_threshold",
        "a-job",
    )
    text = run("system", "breaker", "echo", "--config", home.path).stdout
    assert text.startswith("echo.poll: open, failures 3\n")
    assert "closed → open  failure_threshold" in text


def test_a_breaker_that_nobody_touched_is_closed(run: Run, home: Home) -> None:
    """One for each scheduled command; none before there is a ledger."""
    assert run("system", "breaker", "echo", "--config", home.path, "--json").json == {"plugin": "echo", "breakers": []}
    open_writer(home.ledger).close()
    (shown,) = run("system", "breaker", "echo", "--config", home.path, "--json").json["breakers"]
    assert (shown["state"], shown["failure_count"], shown["transitions"]) == ("closed", 0, [])


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("breaker", "ecko"), 1, "there is no plugin 'ecko'"),
        (("breaker", "echo", "--command", "polish"), 1, "has no command 'polish'"),
        (("breaker", "echo", "--limit", "0"), 2, "--limit"),
        (("reset", "echo"), 69, "ductile system start"),
    ],
)
def test_what_cannot_be_told_about_breakers_is_an_error(
    run: Run, home: Home, args: tuple[str, ...], code: int, words: str
) -> None:
    """With the name that is wrong, or with what to do."""
    open_writer(home.ledger).close()
    answer = run("system", *args, "--config", home.path)
    assert (answer.exit_code, words in answer.stderr) == (code, True), answer
