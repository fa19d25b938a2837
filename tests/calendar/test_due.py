"""A look at a schedule: what is due, held, missed and next, from a definition, a history and the time."""

from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from attrs import evolve

from ductile.calendar.cron import parse_line
from ductile.calendar.definition import After, At, CatchUp, Definition, Every, History
from ductile.calendar.due import Look, look, slots_between
from ductile.calendar.firing import GRACE, timetable
from ductile.calendar.reasons import SkipReason
from ductile.calendar.windows import Window

SECOND, MINUTE, HOUR, DAY = (timedelta(**{unit: 1}) for unit in ("seconds", "minutes", "hours", "days"))
NOON = datetime(2026, 3, 9, 12, tzinfo=UTC)
"""A Monday."""
WORKING = (Window(time(8), time(22)),)


def every(interval: timedelta = 5 * MINUTE, **more: Any) -> Definition:
    return Definition(plugin="echo", schedule_id="default", when=Every(interval), **more)


def cron(line: str, **more: Any) -> Definition:
    return Definition(plugin="echo", schedule_id="default", when=parse_line(line), **more)


def since(anchored_at: datetime = NOON, **more: Any) -> History:
    return History(anchored_at=anchored_at, **more)


def fired(slot_at: datetime, at: datetime | None = None, **more: Any) -> History:
    """A schedule that has run its slots from the day before on, the last one on time."""
    return History(**{"anchored_at": NOON - DAY, "last_slot_at": slot_at, "last_fired_at": at or slot_at} | more)


def ats(seen: Look) -> list[str]:
    return [f"{slot.at:%H:%M}" for slot in seen.due]


# Every


def test_an_interval_begins_with_the_moment_it_was_first_seen() -> None:
    """It fires at once, then on the grid from there."""
    seen = look(every(), since(), NOON + SECOND)
    assert [slot.at for slot in seen.due] == [NOON]
    assert seen.next_at == NOON + 5 * MINUTE


def test_nothing_is_due_between_two_slots() -> None:
    """However often one looks, and whether or not the job failed: a slot is used up when it has fired."""
    for second in (1, 60, 299):
        seen = look(every(), fired(NOON), NOON + second * SECOND)
        assert seen == Look(next_at=NOON + 5 * MINUTE)


def test_an_interval_does_not_drift() -> None:
    """A slot that fires late does not move the next one."""
    seen = look(every(), fired(NOON, at=NOON + 40 * SECOND), NOON + 5 * MINUTE)
    assert (ats(seen), seen.next_at) == (["12:05"], NOON + 10 * MINUTE)


# Jitter


def test_jitter_is_drawn_once_for_each_slot() -> None:
    """A restart, another look or another history does not draw again; another schedule does."""
    table = timetable(every(jitter=4 * MINUTE), since())
    drawn = [table.planned(NOON + number * 5 * MINUTE) for number in range(50)]
    assert drawn == [
        timetable(every(jitter=4 * MINUTE), fired(NOON, anchored_at=NOON)).planned(NOON + number * 5 * MINUTE)
        for number in range(50)
    ]
    other = timetable(evolve(every(jitter=4 * MINUTE), schedule_id="other"), since())
    assert drawn != [other.planned(NOON + number * 5 * MINUTE) for number in range(50)]


def test_jitter_spreads_evenly_to_both_sides() -> None:
    """Plus or minus half of it."""
    table = timetable(every(jitter=4 * MINUTE), since())
    offsets = [table.planned(at) - at for at in (NOON + number * 5 * MINUTE for number in range(1000))]
    assert -2 * MINUTE <= min(offsets) < -110 * SECOND
    assert 110 * SECOND < max(offsets) < 2 * MINUTE
    assert abs(sum(offsets, timedelta()) / 1000) < 10 * SECOND


def test_jitter_never_overtakes_the_neighbouring_slot() -> None:
    """A jitter longer than the distance between slots is cut to it."""
    table = timetable(cron("* * * * *", jitter=HOUR), since())
    planned = [table.planned(NOON + number * MINUTE) for number in range(200)]
    assert planned == sorted(set(planned))


def test_jitter_never_pushes_a_slot_out_of_its_hours() -> None:
    """A slot at the edge of its window stays where it is rather than wait for tomorrow."""
    at_the_edges = cron("0 8 * * *", windows=WORKING, jitter=HOUR), cron("59 21 * * *", windows=WORKING, jitter=HOUR)
    for definition in at_the_edges:
        for slot in slots_between(definition, since(), NOON, NOON + 60 * DAY):
            assert time(8) <= slot.fire_at.time() < time(22)
            assert slot.fire_at.date() == slot.at.date()


def test_a_slot_that_fires_early_does_not_fire_again_at_its_own_time() -> None:
    """Jitter may put a firing before its slot; the slot is decided then."""
    definition = every(HOUR, jitter=HOUR)
    early = next(slot for slot in slots_between(definition, since(), NOON, NOON + DAY) if slot.fire_at < slot.at)
    before = fired(early.at - HOUR, anchored_at=NOON)
    assert [slot.at for slot in look(definition, before, early.fire_at).due] == [early.at]
    after = fired(early.at, at=early.fire_at, anchored_at=NOON)
    assert look(definition, after, early.at + SECOND).due == ()


@pytest.mark.parametrize("when", [every(DAY), cron("1 12 * * *"), cron("20 12 * * *")], ids=["every", "soon", "later"])
def test_jitter_never_reaches_behind_the_moment_a_schedule_was_first_seen(when: Definition) -> None:
    """Nobody could have looked then: the first slot fires, at once at the earliest, and is not called missed."""
    for name in map(str, range(50)):
        definition = evolve(when, schedule_id=name, jitter=HOUR)
        (first,) = slots_between(definition, since(), NOON, NOON + 3 * HOUR)
        seen = look(definition, since(), first.fire_at + SECOND)

        assert first.fire_at >= NOON
        assert ([slot.at for slot in seen.due], seen.skipped) == ([first.at], 0)


# Missed slots


@pytest.mark.parametrize(
    ("catch_up", "due", "skipped"),
    [(CatchUp.SKIP, [], 3), (CatchUp.RUN_ONCE, ["12:15"], 2), (CatchUp.RUN_ALL, ["12:05", "12:10", "12:15"], 0)],
)
@pytest.mark.parametrize("definition", [every(), cron("*/5 * * * *")])
def test_three_missed_slots_are_caught_up_as_asked(
    definition: Definition, catch_up: CatchUp, due: list[str], skipped: int
) -> None:
    """skip: none; run_once: one for all of them; run_all: each. For intervals and cron lines alike."""
    seen = look(evolve(definition, catch_up=catch_up), fired(NOON), NOON + 18 * MINUTE)
    assert (ats(seen), seen.skipped, seen.capped) == (due, skipped, False)
    assert all(slot.is_catch_up for slot in seen.due)
    assert seen.skip_reason is (SkipReason.MISSED if skipped else None)
    assert seen.decided_to == NOON + 15 * MINUTE
    assert seen.next_at == NOON + 20 * MINUTE


@pytest.mark.parametrize(
    ("catch_up", "due", "skipped"),
    [(CatchUp.SKIP, 0, 10_000), (CatchUp.RUN_ONCE, 1, 9_999), (CatchUp.RUN_ALL, 100, 9_900)],
)
@pytest.mark.parametrize("definition", [every(), cron("*/5 * * * *")])
def test_ten_thousand_missed_slots_are_counted_and_capped(
    definition: Definition, catch_up: CatchUp, due: int, skipped: int
) -> None:
    """run_all makes up for the latest hundred, and says that there were more."""
    now = NOON + 10_000 * 5 * MINUTE + 2 * MINUTE
    seen = look(evolve(definition, catch_up=catch_up), fired(NOON), now)
    assert (len(seen.due), seen.skipped, seen.capped) == (due, skipped, catch_up is CatchUp.RUN_ALL)
    assert [slot.at for slot in seen.due] == [NOON + number * 5 * MINUTE for number in range(10_001 - due, 10_001)]


def test_a_hundred_missed_slots_are_not_capped() -> None:
    """The cap is reported when it cut something off."""
    seen = look(every(catch_up=CatchUp.RUN_ALL), fired(NOON), NOON + 502 * MINUTE)
    assert (len(seen.due), seen.capped, seen.skipped) == (100, False, 0)


@pytest.mark.parametrize("catch_up", CatchUp)
def test_a_slot_up_to_a_minute_late_is_on_time(catch_up: CatchUp) -> None:
    """A restart across a slot, or a busy moment, does not cost the run."""
    nightly = cron("0 2 * * *", catch_up=catch_up)
    two = NOON.replace(hour=2)
    for late in (timedelta(), GRACE):
        (slot,) = look(nightly, fired(two - DAY), two + late).due
        assert not slot.is_catch_up
    seen = look(nightly, fired(two - DAY), two + GRACE + timedelta.resolution)
    assert [slot.is_catch_up for slot in seen.due] == ([] if catch_up is CatchUp.SKIP else [True])


def test_short_intervals_run_their_latest_slot_after_a_pause() -> None:
    """Several slots within the minute: the latest runs, the others are superseded; run_all runs each."""
    now = NOON + 35 * SECOND
    seen = look(every(10 * SECOND), fired(NOON), now)
    assert [slot.at for slot in seen.due] == [NOON + 30 * SECOND]
    assert (seen.skipped, seen.skip_reason) == (2, SkipReason.SUPERSEDED)
    assert len(look(every(10 * SECOND, catch_up=CatchUp.RUN_ALL), fired(NOON), now).due) == 3


def test_a_host_that_slept_eight_hours_catches_up_as_after_a_stop() -> None:
    """Waking up and starting again are the same to a schedule."""
    now = NOON + 8 * HOUR + 2 * MINUTE
    assert look(every(), fired(NOON), now).skipped == 96
    assert ats(look(every(catch_up=CatchUp.RUN_ONCE), fired(NOON), now)) == ["20:00"]
    assert len(look(every(catch_up=CatchUp.RUN_ALL), fired(NOON), now).due) == 96


# Closed hours


def test_a_slot_outside_its_window_waits_and_fires_at_the_opening() -> None:
    """Held with reason, words and time; then it is on time, whatever `catch_up` says."""
    nightly = cron("0 2 * * *", windows=WORKING)
    two = NOON.replace(hour=2)
    seen = look(nightly, fired(two - DAY, at=two - 18 * HOUR), two + SECOND)
    assert seen.due == ()
    assert seen.held is not None
    assert (seen.held.slot_at, seen.held.reason, seen.held.until) == (
        two,
        SkipReason.OUTSIDE_TIME_WINDOW,
        NOON.replace(hour=8),
    )
    assert seen.held.words == "only 08:00-22:00, and there it is 02:00; opens 2026-03-09 08:00"
    assert seen.next_at == NOON.replace(hour=8)
    (slot,) = look(nightly, fired(two - DAY, at=two - 18 * HOUR), NOON.replace(hour=8)).due
    assert (slot.at, slot.fire_at, slot.is_catch_up) == (two, NOON.replace(hour=8), False)


@pytest.mark.parametrize("catch_up", CatchUp)
def test_slots_that_wait_for_one_opening_fire_once_the_latest(catch_up: CatchUp) -> None:
    """Eleven hourly slots of the night are one run in the morning, also with run_all: nobody missed them."""
    hourly = cron("0 * * * *", windows=WORKING, catch_up=catch_up)
    seen = look(hourly, fired(NOON.replace(hour=21) - DAY), NOON.replace(hour=8))
    assert ats(seen) == ["08:00"]
    assert (seen.skipped, seen.skip_reason) == (10, SkipReason.SUPERSEDED)
    assert seen.next_at == NOON.replace(hour=9)


def test_a_day_without_runs_is_waited_out() -> None:
    """`not_on` is decided in the schedule's zone: Sunday begins in Auckland while it is Saturday in London."""
    hourly = cron("0 * * * *", not_on=frozenset({0}), zone=ZoneInfo("Pacific/Auckland"))
    saturday = NOON - 2 * DAY
    seen = look(hourly, fired(saturday - 2 * HOUR), saturday + SECOND)
    assert seen.held is not None
    assert seen.held.reason is SkipReason.OUTSIDE_DAY_CONSTRAINT
    assert seen.held.until == datetime(2026, 3, 8, 11, tzinfo=UTC), "midnight there"


def test_a_look_that_comes_just_after_closing_keeps_the_slot() -> None:
    """Nothing fires outside the window, not even late; the slot is on time at the next opening."""
    last = cron("59 21 * * *", windows=WORKING)
    slot_at = NOON.replace(hour=21, minute=59)
    history = fired(slot_at - DAY)
    seen = look(last, history, slot_at + GRACE)
    assert seen.held is not None
    assert seen.held.until == NOON.replace(hour=8) + DAY
    (slot,) = look(last, history, NOON.replace(hour=8) + DAY).due
    assert (slot.at, slot.is_catch_up) == (slot_at, False)


def test_slots_missed_in_open_hours_wait_for_open_hours() -> None:
    """A core that comes back at night catches up in the morning; with skip it does not wait for anything."""
    history, night = fired(NOON), NOON.replace(hour=23) + MINUTE
    assert look(cron("0 13 * * *", windows=WORKING), history, night).skipped == 1
    once = cron("0 13 * * *", windows=WORKING, catch_up=CatchUp.RUN_ONCE)
    seen = look(once, history, night)
    assert seen.held is not None
    assert (seen.due, seen.held.until) == ((), NOON.replace(hour=8) + DAY)
    assert [slot.is_catch_up for slot in look(once, history, NOON.replace(hour=8) + DAY).due] == [True]


def test_windows_that_never_open_hold_for_ever() -> None:
    """And say so."""
    never = every(windows=(Window(time(8), time(9)), Window(time(9), time(10))))
    seen = look(never, since(), NOON)
    assert seen.held is not None
    assert seen.held.words.endswith("never opens")
    assert (seen.held.until, seen.next_at) == (None, None)


# Once


def test_a_moment_fires_once() -> None:
    """Not before, not twice, and not again when the clock is set back."""
    at = Definition(plugin="echo", schedule_id="x", when=At(NOON))
    assert look(at, since(NOON - DAY), NOON - SECOND) == Look(next_at=NOON)
    assert [slot.at for slot in look(at, since(NOON - DAY), NOON).due] == [NOON]
    for over in (since(NOON - DAY, exhausted=True), fired(NOON)):
        for now in (NOON - DAY, NOON, NOON + DAY):
            seen = look(at, over, now)
            assert (seen.due, seen.clock_set_back) == ((), False)


def test_a_moment_that_passed_unseen_fires_as_soon_as_possible() -> None:
    """Missed while down, or in the past when it was written: once, at start, whatever `catch_up` says."""
    at = Definition(plugin="echo", schedule_id="x", when=At(NOON - 30 * DAY))
    (slot,) = look(at, since(), NOON).due
    assert (slot.at, slot.is_catch_up) == (NOON - 30 * DAY, True)
    held = look(evolve(at, not_on=frozenset({1})), since(), NOON).held
    assert held is not None
    assert held.until == NOON.replace(hour=0) + DAY


def test_a_delay_counts_from_each_start() -> None:
    """It fires once per start of the service, whenever the schedule was written."""
    after = Definition(plugin="echo", schedule_id="x", when=After(5 * MINUTE))
    history = fired(NOON - DAY, started_at=NOON)
    assert look(after, history, NOON + MINUTE).next_at == NOON + 5 * MINUTE
    assert [slot.at for slot in look(after, history, NOON + 5 * MINUTE).due] == [NOON + 5 * MINUTE]
    assert look(after, evolve(history, exhausted=True), NOON + DAY) == Look()
    assert look(after, evolve(history, started_at=NOON + DAY), NOON + DAY + 6 * MINUTE).due


# Clocks that jump


SLOTTED = [every(), cron("*/5 * * * *"), cron("*/5 * * * *", zone=ZoneInfo("Europe/Berlin"), jitter=MINUTE)]


@pytest.mark.parametrize("back", [HOUR, DAY, 3652 * DAY, 20_000 * DAY])
@pytest.mark.parametrize("definition", SLOTTED)
def test_a_clock_that_is_set_back_costs_one_interval_at_most(definition: Definition, back: timedelta) -> None:
    """The look says so, nothing fires at once, and the next slot is the next one on the clock."""
    now = NOON + 3 * MINUTE - back
    seen = look(definition, fired(NOON), now)
    assert seen.clock_set_back
    assert (seen.due, seen.decided_to) == ((), now)
    assert seen.next_at is not None
    assert now < seen.next_at <= now + 6 * MINUTE
    going_on = evolve(fired(NOON), last_slot_at=seen.decided_to)
    assert look(definition, going_on, now + SECOND) == Look(next_at=seen.next_at)
    assert len(look(definition, going_on, seen.next_at).due) == 1


@pytest.mark.parametrize("back", [timedelta(milliseconds=1), SECOND, 4 * MINUTE])
@pytest.mark.parametrize("definition", SLOTTED[:2])
def test_a_clock_that_is_set_back_a_little_does_not_repeat_the_slot(definition: Definition, back: timedelta) -> None:
    """Less than an interval is waited for."""
    seen = look(definition, fired(NOON, at=NOON + SECOND), NOON + SECOND - back)
    assert seen == Look(next_at=NOON + 5 * MINUTE)


@pytest.mark.parametrize("ahead", [HOUR, DAY, 3652 * DAY])
@pytest.mark.parametrize("definition", SLOTTED[:2])
def test_a_clock_that_jumps_ahead_is_a_time_that_was_missed(definition: Definition, ahead: timedelta) -> None:
    """`catch_up` decides, and the next slot is the next one on the clock."""
    now = NOON + 3 * MINUTE + ahead
    seen = look(definition, fired(NOON), now)
    assert (seen.due, seen.skipped) == ((), ahead // (5 * MINUTE))
    assert seen.next_at == now + 2 * MINUTE


@pytest.mark.parametrize("definition", SLOTTED[:2])
def test_a_boot_in_1970_does_not_fire_the_last_slot_again(definition: Definition) -> None:
    """A host without a battery: the schedule goes on in 1970, and when the time is right again nothing is repeated."""
    history, wrong = fired(NOON, at=NOON + SECOND), datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
    seen = look(definition, history, wrong)
    assert seen.clock_set_back
    history = evolve(history, last_slot_at=seen.decided_to)
    assert look(definition, history, NOON + 30 * SECOND) == Look(next_at=NOON + 5 * MINUTE)


def test_a_schedule_that_was_first_seen_in_the_future_does_not_wait_for_it() -> None:
    """Written while the clock was wrong, and never fired."""
    seen = look(cron("*/5 * * * *"), since(NOON + 3652 * DAY), NOON + SECOND)
    assert (seen.clock_set_back, seen.next_at) == (True, NOON + 5 * MINUTE)


# When next


def test_coming_slots_are_those_that_will_fire() -> None:
    """From the held one on, with the time at which each goes off; `limit` ends the list."""
    hourly = cron("30 */2 * * *", windows=WORKING)
    coming = slots_between(hourly, fired(NOON.replace(hour=20, minute=30) - DAY), NOON.replace(hour=3), NOON + DAY, 3)
    assert [(f"{slot.at:%H:%M}", f"{slot.fire_at:%H:%M}") for slot in coming] == [
        ("06:30", "08:00"),
        ("08:30", "08:30"),
        ("10:30", "10:30"),
    ]


def test_coming_slots_leave_out_what_has_fired() -> None:
    """A slot that went off early is over; a single moment comes once."""
    assert [slot.at for slot in slots_between(every(), fired(NOON), NOON, NOON + 11 * MINUTE)] == [
        NOON + 5 * MINUTE,
        NOON + 10 * MINUTE,
    ]
    at = Definition(plugin="echo", schedule_id="x", when=At(NOON))
    assert len(list(slots_between(at, since(NOON - DAY), NOON - DAY, NOON + DAY))) == 1
    assert not list(slots_between(at, since(NOON - DAY, exhausted=True), NOON - DAY, NOON + DAY))
    back = NOON - 365 * DAY
    assert next(slots_between(every(), fired(NOON), back + SECOND, NOON)).at == back + 5 * MINUTE


CODES = """
    not_due schedule_paused_manual schedule_exhausted invalid_schedule_config scheduled_handle_disallowed
    command_not_supported outside_day_constraint outside_time_window circuit_open already_running outstanding_limit
"""


def test_every_reason_has_words() -> None:
    """Codes for programs, words for people; the codes of the original are all there."""
    assert all(reason.words for reason in SkipReason)
    assert {*CODES.split()} <= {*SkipReason}
