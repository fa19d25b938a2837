"""A simulation has the same events as the scheduler, in order."""

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from ductile.config.snapshot import PluginUnavailable
from ductile.engine.scheduling.simulate import Simulation, SimulationRequest, simulate
from tests.e2e.service import Home
from tests.engine.builders import snapshot_of
from tests.engine.scheduler_service import DAY, HOUR, MINUTE, NOON, open_scheduler_service


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home.make(tmp_path / "simulated")
    made.plugin("echo", "#!/bin/sh\n")
    return made


def make_request(home: Home, schedule: str, more: str = "", **values: Any) -> SimulationRequest:
    """Return a request for one day from NOON, when the schedule is first loaded, with `values` replaced."""
    home.add(f"plugins:\n  echo: {{schedules: [{{{schedule}}}]{', ' * bool(more)}{more}}}\n")
    snapshot = snapshot_of(home)
    defaults: dict[str, Any] = {"start": NOON, "end": NOON + DAY, "plugin": "echo"}
    (written,) = snapshot.config.settings.plugins["echo"].schedules
    return SimulationRequest(snapshot=snapshot, schedule=written, **defaults | values)


def lines_of(simulation: Simulation, form: str = "%H:%M") -> list[str]:
    """Return a short line for each event."""
    lines = []
    for event in simulation.events:
        slot = f" {event.slot_at:{form}}" if event.slot_at and event.kind == "fired" and event.delay else ""
        count = f" {event.count}" if event.kind == "skipped" else ""
        reason = f" {event.reason}" if event.reason else ""
        lines.append(f"{event.at:{form}} {event.kind}{slot}{count}{reason}")
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
def test_a_simulation_fires_like_the_scheduler(home: Home, tmp_path: Path, schedule: str) -> None:
    """The same slots at the same times, to the microsecond."""
    (tmp_path / "real").mkdir()

    async def run_service() -> list[Any]:
        async with open_scheduler_service(tmp_path / "real", f"  echo: {{schedules: [{{{schedule}}}]}}") as service:
            await service.advance_by(6 * HOUR)
            return [tuple(map(datetime.fromisoformat, row)) for row in service.jobs("slot_at, created_at")]

    simulation = simulate(make_request(home, schedule, end=NOON + 6 * HOUR + timedelta.resolution))

    fired = [(event.slot_at, event.at) for event in simulation.events if event.kind == "fired"]
    assert fired == trio.run(run_service)
    assert fired


@pytest.mark.parametrize(
    ("catch_up", "lines"),
    [
        ("skip", ["15:00 up", "15:00 skipped 2 missed", "15:00 fired"]),
        ("run_once", ["15:00 up", "15:00 skipped 2 missed", "15:00 fired"]),
        ("run_all", ["15:00 up", "15:00 fired 13:00", "15:00 fired 14:00", "15:00 fired"]),
    ],
)
def test_slots_missed_while_the_service_is_down_are_caught_up_as_configured(
    home: Home, catch_up: str, lines: list[str]
) -> None:
    """The events include down, up and skipped slots."""
    down = (NOON + 30 * MINUTE, NOON + 3 * HOUR)
    simulation = simulate(make_request(home, f"every: 1h, catch_up: {catch_up}", end=NOON + 4 * HOUR, down=(down,)))

    assert sorted(lines_of(simulation)) == sorted(["12:00 fired", "12:30 down", *lines])


@pytest.mark.parametrize(
    ("day", "lines"),
    [
        ("2026-03-29", ["03-28 01:30 fired", "03-29 01:00 clocks", "03-29 01:00 fired", "03-30 00:30 fired"]),
        ("2026-10-25", ["10-24 00:30 fired", "10-25 00:30 fired", "10-25 01:00 clocks", "10-26 01:30 fired"]),
    ],
)
def test_changes_of_the_utc_offset_are_events(home: Home, day: str, lines: list[str]) -> None:
    """A local time in the gap fires right after it. One in the repeated hour fires once."""
    middle = datetime.fromisoformat(f"{day}T12:00:00+00:00")
    nightly = make_request(
        home, "cron: '30 2 * * *', timezone: Europe/Berlin", start=middle - 1.5 * DAY, end=middle + DAY
    )

    assert sorted(lines_of(simulate(nightly), "%m-%d %H:%M")) == sorted(lines)


@pytest.mark.parametrize(
    ("if_running", "lines"),
    [
        ("skip", ["12:00 fired", "12:10 skipped 1 already_running", "12:20 skipped 1 already_running", "12:30 fired"]),
        ("queue", ["12:00 fired", "12:10 fired", "12:20 skipped 1 outstanding_limit", "12:30 fired"]),
        ("cancel", ["12:00 fired", "12:10 held already_running", "12:10 fired 12:10", "12:20 held already_running"]),
    ],
)
def test_jobs_run_for_the_given_duration(home: Home, if_running: str, lines: list[str]) -> None:
    """`if_running` applies to slots while a job runs."""
    simulation = simulate(
        make_request(
            home, f"every: 10m, if_running: {if_running}", "parallelism: 1", job_duration=25 * MINUTE, end=NOON + HOUR
        )
    )

    assert lines_of(simulation)[:4] == lines


def test_a_job_that_a_stop_interrupts_runs_again(home: Home) -> None:
    """It runs when the service is back, so the next slot is skipped."""
    down = (NOON + 10 * MINUTE, NOON + 45 * MINUTE)
    simulation = simulate(make_request(home, "every: 50m", job_duration=20 * MINUTE, down=(down,), end=NOON + 2 * HOUR))

    assert lines_of(simulation) == [
        "12:00 fired",
        "12:10 down",
        "12:45 up",
        "12:50 skipped 1 already_running",
        "13:40 fired",
    ]


def test_intervals_begin_at_the_anchor_of_the_service(home: Home) -> None:
    """Slots before the start count as decided."""
    hourly = make_request(
        home, "every: 1h, catch_up: run_all", anchored_at=NOON - 30 * DAY + 7 * MINUTE, end=NOON + 3 * HOUR
    )

    assert lines_of(simulate(hourly)) == ["12:07 fired", "13:07 fired", "14:07 fired"]


def test_a_delay_counts_from_each_start(home: Home) -> None:
    """It fires after the start and after the service is up again."""
    down = (NOON + HOUR, NOON + 2 * HOUR)

    assert lines_of(simulate(make_request(home, "after: 10m", down=(down,)))) == [
        "12:10 fired",
        "13:00 down",
        "14:00 up",
        "14:10 fired",
    ]


@pytest.mark.parametrize(("limit", "is_complete"), [(23, False), (24, True)])
def test_a_simulation_stops_after_max_events(home: Home, limit: int, is_complete: bool) -> None:
    """It is incomplete only if there were more."""
    simulation = simulate(make_request(home, "every: 1h", max_events=limit))

    assert (len(simulation.events), simulation.is_complete) == (limit, is_complete)


def test_a_long_simulation_of_a_short_interval_stops_at_the_default_limit(home: Home) -> None:
    """The number of events is limited, not the period."""
    simulation = simulate(make_request(home, "every: 1s", end=NOON + 3650 * DAY))

    assert (len(simulation.events), simulation.is_complete) == (200, False)


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
    """Periods can overlap and extend beyond the simulation."""

    def hours(spans: Any) -> tuple[tuple[datetime, datetime], ...]:
        return tuple((NOON.replace(hour=first), NOON.replace(hour=last)) for first, last in spans)

    request = make_request(home, "every: 1h", end=NOON + 6 * HOUR, down=hours(down))
    assert tuple(request.up()) == hours(up)


def test_a_plugin_that_cannot_run_cannot_be_simulated(home: Home) -> None:
    """The error has the usual reason."""
    disabled = make_request(home, "every: 1h", "enabled: false")
    with pytest.raises(PluginUnavailable, match="is disabled"):
        simulate(disabled)
