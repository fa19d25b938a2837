"""The agenda of all schedules, from a scheduler on a virtual clock."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import trio

from ductile.core.clock import from_text, to_text
from ductile.core.errors import UsageInvalid
from ductile.core.model import Dead
from ductile.engine.scheduling.simulate import VirtualClock
from ductile.web.views.agenda import AgendaRange, agenda_view, schedule_why
from tests.engine.scheduler_service import MINUTE, NOON, SchedulerService, open_scheduler_service

SCHEDULES = """\
  echo:
    schedules:
      - {id: often, every: 10m}
      - {id: office, every: 1h, only_between: "08:00-18:00", timezone: UTC}
      - {id: soon, after: 10m}
  other: {enabled: false, schedules: [{every: 1h}]}
"""
HOUR = 60 * MINUTE


def agenda_after(tmp_path: Path, scenario: Any, *, start: timedelta, end: timedelta, **more: Any) -> Any:
    """Run the scenario from NOON on, and return the agenda from NOON + `start` to NOON + `end`."""

    async def run_all() -> Any:
        async with open_scheduler_service(tmp_path, SCHEDULES) as service:
            service.clock = VirtualClock(NOON)
            service.start()
            await scenario(service)
            span = AgendaRange(start=NOON + start, end=NOON + end, now=service.clock.now(), **more)
            return await service.ledger.read(agenda_view, service.snapshot, span)

    return trio.run(run_all)


def outcomes(agenda: Any, schedule_id: str) -> list[tuple[str, str, str | None]]:
    """Return minute, verdict and reason of the slots of one schedule of echo."""
    return [
        (slot["slot_at"][11:16], slot["verdict"], slot["reason"])
        for slot in agenda["slots"]
        if (slot["plugin"], slot["schedule_id"]) == ("echo", schedule_id)
    ]


async def one_hour_with_downtime(service: SchedulerService) -> None:
    """The job of 12:00 runs until 12:24; the service is down from 12:25 to 12:46."""
    await service.advance_by(24 * MINUTE, outcome=None)
    await service.run_jobs()
    service.clock.jump(22 * MINUTE)
    service.start()
    await service.advance_by(5 * MINUTE)


def test_an_agenda_has_what_fired_was_skipped_was_missed_and_comes(tmp_path: Path) -> None:
    agenda = agenda_after(tmp_path, one_hour_with_downtime, start=0 * MINUTE, end=75 * MINUTE)

    assert outcomes(agenda, "often") == [
        ("12:00", "fired", None),
        ("12:10", "skipped", "already_running"),
        ("12:20", "skipped", "already_running"),
        ("12:30", "skipped", "missed"),
        ("12:40", "skipped", "missed"),
        ("12:50", "fired", None),
        ("13:00", "planned", None),
        ("13:10", "planned", None),
    ]
    assert [slot["slot_at"] for slot in agenda["slots"]] == sorted(slot["slot_at"] for slot in agenda["slots"])


def test_an_agenda_says_which_schedules_do_not_run(tmp_path: Path) -> None:
    agenda = agenda_after(tmp_path, one_hour_with_downtime, start=0 * MINUTE, end=HOUR)

    heads = {(one["plugin"], one["schedule_id"]): one for one in agenda["schedules"]}
    (other,) = (one for (plugin, _), one in heads.items() if plugin == "other")
    assert (heads["echo", "often"]["status"], "reason" in heads["echo", "often"]) == ("scheduled", False)
    assert (other["status"], other["past"], "disabled" in other["reason"]) == ("invalid", 0, True)


def test_a_one_time_schedule_is_in_the_agenda_before_and_after_it_fires(tmp_path: Path) -> None:
    async def short(service: SchedulerService) -> None:
        await service.advance_by(1 * MINUTE)

    async def long(service: SchedulerService) -> None:
        await service.advance_by(11 * MINUTE)

    before = agenda_after(tmp_path / "before", short, start=0 * MINUTE, end=HOUR)
    after = agenda_after(tmp_path / "after", long, start=0 * MINUTE, end=HOUR)
    assert [verdict for _, verdict, _ in outcomes(before, "soon")] == ["planned"]
    assert [verdict for _, verdict, _ in outcomes(after, "soon")] == ["fired"]


def test_a_slot_outside_its_hours_is_held_until_they_open(tmp_path: Path) -> None:
    async def evening(service: SchedulerService) -> None:
        await service.advance_to(NOON + timedelta(hours=7, minutes=5))

    agenda = agenda_after(tmp_path, evening, start=6 * HOUR, end=22 * HOUR)
    found = [slot for slot in agenda["slots"] if slot["schedule_id"] == "office"]
    held = [slot for slot in found if slot["verdict"] == "held"]
    assert (held[-1]["reason"], held[-1]["until"]) == ("outside_time_window", to_text(NOON + timedelta(hours=20)))


def test_coming_slots_of_an_open_breaker_are_held_until_it_allows_a_probe(tmp_path: Path) -> None:
    """Only the slots after that are planned."""

    async def failing(service: SchedulerService) -> None:
        await service.advance_by(21 * MINUTE, outcome=Dead("no luck"))

    agenda = agenda_after(tmp_path, failing, start=20 * MINUTE, end=75 * MINUTE)
    assert outcomes(agenda, "often") == [
        ("12:20", "held", "circuit_open"),
        ("12:30", "held", "circuit_open"),
        ("12:40", "planned", None),
        ("12:50", "planned", None),
        ("13:00", "planned", None),
        ("13:10", "planned", None),
    ]


def test_older_slots_over_the_limit_are_counted(tmp_path: Path) -> None:
    """The latest ones before now and the first ones after now are shown."""
    agenda = agenda_after(tmp_path, one_hour_with_downtime, start=0 * MINUTE, end=5 * HOUR, limit=2)

    head = next(one for one in agenda["schedules"] if one["schedule_id"] == "often")
    assert [verdict for _, verdict, _ in outcomes(agenda, "often")] == ["skipped", "fired", "planned", "planned"]
    assert head["past"] == head["left_out"] + 2


def test_every_past_slot_of_an_agenda_is_explained_as_schedule_why_does(tmp_path: Path) -> None:
    async def run_all() -> None:
        async with open_scheduler_service(tmp_path, SCHEDULES) as service:
            service.clock = VirtualClock(NOON)
            service.start()
            await one_hour_with_downtime(service)
            now = service.clock.now()
            span = AgendaRange(start=NOON, end=now, now=now)
            agenda = await service.ledger.read(agenda_view, service.snapshot, span)
            for slot in agenda["slots"]:
                at, name = slot["slot_at"], slot["schedule_id"]
                why = await service.ledger.read(schedule_why, service.snapshot, "echo", name, at=_moment(at), now=now)
                assert {key: why[key] for key in slot if key in why} == {key: slot[key] for key in slot if key in why}  # type: ignore[literal-required]

    trio.run(run_all)


def _moment(text: str | None) -> Any:

    return from_text(text or "")


def test_a_range_that_ends_before_it_starts_is_refused() -> None:
    for start, end in ((NOON, NOON), (NOON, NOON - HOUR), (NOON, NOON + timedelta(days=400))):
        with pytest.raises(UsageInvalid):
            AgendaRange.of(start, end, now=NOON, limit=5)
    assert AgendaRange.of(None, None, now=NOON, limit=5).end == NOON + timedelta(days=1)
