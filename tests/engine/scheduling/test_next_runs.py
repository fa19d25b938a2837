"""What a reload says about the next runs of schedules, and that the scheduler then does just that."""

from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

import pytest

from ductile.engine.scheduling.next_runs import next_runs
from ductile.ledger.tables.schedules import EntryStatus, all_entries
from tests.engine.stage import HOUR, MINUTE, MakeStage, Stage, open_stages
from tests.ledger.reading import look


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[MakeStage]:
    async with open_stages(tmp_path) as make:
        yield make


def shown(moment: datetime | None) -> str | None:
    return f"{moment:%H:%M}" if moment else None


def told_of(one: Stage, plugins: str) -> dict[str, tuple[str | None, str | None]]:
    """What is told about a change to these plugins, which is then made."""
    before = one.snapshot
    one.configure(plugins)
    runs = next_runs(before, one.snapshot, look(one.ledger, all_entries), now=one.clock.now())
    return {name: (shown(run.before), shown(run.after)) for name, run in runs.items()}


def plugins(schedules: str, more: str = "") -> str:
    return f"  echo: {{schedules: [{schedules}]{more}}}"


HOURLY = "{every: 1h}"


@pytest.mark.parametrize(
    ("changed", "told"),
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
async def test_a_reload_says_when_changed_schedules_run_next(
    stage: MakeStage, changed: str, told: dict[str, tuple[str | None, str | None]]
) -> None:
    """Before and after, for those that came, went or changed; and the scheduler agrees."""
    one = await stage(plugins(HOURLY))
    await one.pass_for(10 * MINUTE)
    assert told_of(one, changed) == told
    fired_before = len(one.jobs())
    await one.pass_for(10 * HOUR)
    ran = [shown(datetime.fromisoformat(at)) for at in one.jobs("created_at")[fired_before:]]
    for _, after in told.values():
        assert (after in ran) if after else (ran == [])


async def test_a_paused_schedule_has_no_next_run(stage: MakeStage) -> None:
    """Whatever becomes of its definition."""
    one = await stage(plugins(HOURLY))
    await one.turn()
    await one.set_status(EntryStatus.PAUSED_MANUAL)
    assert told_of(one, plugins("{every: 3h}")) == {"echo/default": (None, None)}
