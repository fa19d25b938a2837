"""The next runs that a reload reports are the ones that the scheduler fires."""

from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest

from ductile.engine.scheduling.next_runs import next_runs
from ductile.ledger.tables.schedules import EntryStatus, all_entries
from tests.engine.scheduler_service import HOUR, MINUTE, SchedulerService, StartService, scheduler_services
from tests.ledger.reading import read_now


@pytest.fixture
async def start_service(tmp_path: Path) -> AsyncIterator[StartService]:
    async with scheduler_services(tmp_path) as make:
        yield make


def format_time(moment: datetime | None) -> str | None:
    return f"{moment:%H:%M}" if moment else None


def reload_next_runs(service: SchedulerService, plugins: str) -> dict[str, tuple[str | None, str | None]]:
    """Reload with these plugins and return the reported next runs."""
    before = service.snapshot
    service.configure(plugins)
    runs = next_runs(before, service.snapshot, read_now(service.ledger, all_entries), now=service.clock.now())
    return {name: (format_time(run.before), format_time(run.after)) for name, run in runs.items()}


def plugins(schedules: str, more: str = "") -> str:
    return f"  echo: {{schedules: [{schedules}]{more}}}"


HOURLY = "{every: 1h}"


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (plugins(HOURLY), {}),
        (plugins(HOURLY, ", config: {a: 1}"), {}),
        (plugins("{every: 1h, payload: {a: 1}}"), {}),
        (plugins("{every: 3h}"), {"echo/default": ("13:00", "12:10")}),
        (plugins("{cron: '45 * * * *', timezone: UTC}"), {"echo/default": ("13:00", "12:45")}),
        (plugins("{every: 1h, only_between: '15:30-18:00', timezone: UTC}"), {"echo/default": ("13:00", "15:30")}),
        (plugins("{after: 5m}"), {"echo/default": ("13:00", "12:15")}),
        (plugins("{at: '2026-03-09T20:00:00Z'}"), {"echo/default": ("13:00", "20:00")}),
        (plugins(f"{HOURLY}, {{id: more, every: 2h}}"), {"echo/more": (None, "12:10")}),
        (plugins(""), {"echo/default": ("13:00", None)}),
        (plugins(HOURLY, ", enabled: false"), {"echo/default": ("13:00", None)}),
    ],
)
async def test_a_reload_reports_the_next_runs_of_changed_schedules(
    start_service: StartService, changed: str, expected: dict[str, tuple[str | None, str | None]]
) -> None:
    """Before and after, for added, removed and changed schedules. The scheduler fires them then."""
    service = await start_service(plugins(HOURLY))
    await service.advance_by(10 * MINUTE)
    assert reload_next_runs(service, changed) == expected
    fired_before = len(service.jobs())
    await service.advance_by(10 * HOUR)
    ran = [format_time(datetime.fromisoformat(at)) for at in service.jobs("created_at")[fired_before:]]
    for _, after in expected.values():
        assert (after in ran) if after else (ran == [])


async def test_a_paused_schedule_has_no_next_run(start_service: StartService) -> None:
    """Even if its definition changes."""
    service = await start_service(plugins(HOURLY))
    await service.tick()
    await service.set_status(EntryStatus.PAUSED_MANUAL)
    assert reload_next_runs(service, plugins("{every: 3h}")) == {"echo/default": (None, None)}
