"""A simulated schedule does what the scheduler does, and tells it in order."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from ductile.config.snapshot import PluginUnavailable
from ductile.engine.scheduling.simulate import Question, Simulation, simulate
from tests.e2e.service import Home
from tests.engine.builders import snapshot_of
from tests.engine.stage import DAY, HOUR, MINUTE, NOON, open_stage


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home.make(tmp_path / "simulated")
    made.plugin("echo", "#!/bin/sh\n")
    return made


def question(home: Home, schedule: str, more: str = "", **values: Any) -> Question:
    """A day from NOON on, seen for the first time then, unless the test says otherwise."""
    home.add(f"plugins:\n  echo: {{schedules: [{{{schedule}}}]{', ' * bool(more)}{more}}}\n")
    snapshot = snapshot_of(home)
    defaults: dict[str, Any] = {"start": NOON, "end": NOON + DAY, "plugin": "echo"}
    (written,) = snapshot.config.settings.plugins["echo"].schedules
    return Question(snapshot=snapshot, schedule=written, **defaults | values)


def told(story: Simulation, form: str = "%H:%M") -> list[str]:
    """Every line in a few words."""
    lines = []
    for one in story.happenings:
        slot = f" {one.slot_at:{form}}" if one.slot_at and one.kind == "fired" and one.late else ""
        count = f" {one.count}" if one.kind == "skipped" else ""
        lines.append(f"{one.at:{form}} {one.kind}{slot}{count}{f' {one.reason}' if one.reason else ''}")
    return lines


@pytest.mark.parametrize(
    "schedule",
    [
        "every: 35m",
        "every: 35m, jitter: 20m",
        "every: 35m, only_between: '14:00-16:00', timezone: UTC",
        "cron: '*/20 13-17 * * mon', timezone: Europe/Berlin",
        "cron: '0 13 * * *', timezone: UTC, jitter: 30m",
        "at: '2026-03-09T15:00:00Z'",
        "after: 90m",
    ],
)
def test_what_is_simulated_is_what_the_scheduler_does(home: Home, tmp_path: Path, schedule: str) -> None:
    """The same slots at the same moments, to the microsecond."""
    (tmp_path / "real").mkdir()

    async def really() -> list[Any]:
        async with open_stage(tmp_path / "real", f"  echo: {{schedules: [{{{schedule}}}]}}") as stage:
            await stage.pass_for(6 * HOUR)
            return [tuple(map(datetime.fromisoformat, row)) for row in stage.jobs("slot_at, created_at")]

    story = simulate(question(home, schedule, end=NOON + 6 * HOUR + timedelta.resolution))

    fired = [(one.slot_at, one.at) for one in story.happenings if one.kind == "fired"]
    assert fired == trio.run(really)
    assert fired


@pytest.mark.parametrize(
    ("catch_up", "lines"),
    [
        ("skip", ["15:00 up", "15:00 skipped 2 missed", "15:00 fired"]),
        ("run_once", ["15:00 up", "15:00 skipped 2 missed", "15:00 fired"]),
        ("run_all", ["15:00 up", "15:00 fired 13:00", "15:00 fired 14:00", "15:00 fired"]),
    ],
)
def test_what_is_missed_while_the_service_is_down_is_caught_up_as_asked(
    home: Home, catch_up: str, lines: list[str]
) -> None:
    """Down and up are told, and so is what is skipped."""
    down = (NOON + 30 * MINUTE, NOON + 3 * HOUR)
    story = simulate(question(home, f"every: 1h, catch_up: {catch_up}", end=NOON + 4 * HOUR, down=(down,)))

    assert sorted(told(story)) == sorted(["12:00 fired", "12:30 down", *lines])


@pytest.mark.parametrize(
    ("day", "lines"),
    [
        ("2026-03-29", ["03-28 01:30 fired", "03-29 01:00 clocks", "03-29 01:00 fired", "03-30 00:30 fired"]),
        ("2026-10-25", ["10-24 00:30 fired", "10-25 00:30 fired", "10-25 01:00 clocks", "10-26 01:30 fired"]),
    ],
)
def test_changing_clocks_are_told(home: Home, day: str, lines: list[str]) -> None:
    """A fixed time in the gap fires right after it, one in the repeated hour once."""
    middle = datetime.fromisoformat(f"{day}T12:00:00+00:00")
    nightly = question(home, "cron: '30 2 * * *', timezone: Europe/Berlin", start=middle - 1.5 * DAY, end=middle + DAY)

    assert sorted(told(simulate(nightly), "%m-%d %H:%M")) == sorted(lines)


@pytest.mark.parametrize(
    ("if_running", "lines"),
    [
        ("skip", ["12:00 fired", "12:10 skipped 1 already_running", "12:20 skipped 1 already_running", "12:30 fired"]),
        ("queue", ["12:00 fired", "12:10 fired", "12:20 skipped 1 outstanding_limit", "12:30 fired"]),
        ("cancel", ["12:00 fired", "12:10 held already_running", "12:10 fired 12:10", "12:20 held already_running"]),
    ],
)
def test_jobs_take_as_long_as_one_says(home: Home, if_running: str, lines: list[str]) -> None:
    """Slots that come while a job is not finished go by the schedule's own rule."""
    story = simulate(
        question(home, f"every: 10m, if_running: {if_running}", "parallelism: 1", takes=25 * MINUTE, end=NOON + HOUR)
    )

    assert told(story)[:4] == lines


def test_a_job_that_the_stop_interrupts_runs_again(home: Home) -> None:
    """It is not finished when the service comes back, so the next slot is skipped."""
    down = (NOON + 10 * MINUTE, NOON + 45 * MINUTE)
    story = simulate(question(home, "every: 50m", takes=20 * MINUTE, down=(down,), end=NOON + 2 * HOUR))

    assert told(story) == ["12:00 fired", "12:10 down", "12:45 up", "12:50 skipped 1 already_running", "13:40 fired"]


def test_the_grid_of_an_interval_is_the_one_that_the_service_has(home: Home) -> None:
    """It begins where the schedule was first seen, and what came before the first moment counts as decided."""
    hourly = question(
        home, "every: 1h, catch_up: run_all", anchored_at=NOON - 30 * DAY + 7 * MINUTE, end=NOON + 3 * HOUR
    )

    assert told(simulate(hourly)) == ["12:07 fired", "13:07 fired", "14:07 fired"]


def test_a_delay_counts_from_each_start(home: Home) -> None:
    """Once after the first moment, and once after the service is up again."""
    down = (NOON + HOUR, NOON + 2 * HOUR)

    assert told(simulate(question(home, "after: 10m", down=(down,)))) == [
        "12:10 fired",
        "13:00 down",
        "14:00 up",
        "14:10 fired",
    ]


@pytest.mark.parametrize(("limit", "is_complete"), [(23, False), (24, True)])
def test_the_story_is_cut_where_one_says(home: Home, limit: int, is_complete: bool) -> None:
    """And says so only if something was cut off."""
    story = simulate(question(home, "every: 1h", most=limit))

    assert (len(story.happenings), story.is_complete) == (limit, is_complete)


def test_ten_years_of_a_short_interval_are_not_played_to_their_end(home: Home) -> None:
    """The bound is on what is told, so the time may be long."""
    story = simulate(question(home, "every: 1s", end=NOON + 3650 * DAY))

    assert (len(story.happenings), story.is_complete) == (200, False)


@pytest.mark.parametrize(
    ("down", "up"),
    [
        ((), [(12, 18)]),
        (((11, 13),), [(13, 18)]),
        (((13, 14), (13, 15), (16, 20), (21, 22)), [(12, 13), (15, 16)]),
        (((10, 20),), []),
    ],
)
def test_the_service_is_up_when_it_is_not_down(home: Home, down: tuple[Any, ...], up: list[Any]) -> None:
    """Spans may overlap, and reach beyond the time that is asked about."""

    def hours(spans: Any) -> tuple[tuple[datetime, datetime], ...]:
        return tuple((NOON.replace(hour=first), NOON.replace(hour=last)) for first, last in spans)

    asked = question(home, "every: 1h", end=NOON + 6 * HOUR, down=hours(down))
    assert tuple(asked.up()) == hours(up)


def test_a_plugin_that_cannot_run_cannot_be_simulated(home: Home) -> None:
    """The reason is the one that everybody gets."""
    disabled = question(home, "every: 1h", "enabled: false")
    with pytest.raises(PluginUnavailable, match="is disabled"):
        simulate(disabled)
