"""Which slots are due, held, missed and next, from a definition, a history and the time."""

from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from attrs import evolve

from ductile.calendar.cron import parse_line
from ductile.calendar.definition import After, At, CatchUp, Definition, Every, History
from ductile.calendar.due import Evaluation, evaluate, slots_between
from ductile.calendar.firing import GRACE, build_timetable
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
    """Return the history of a schedule that ran all slots since the day before."""
    return History(**{"anchored_at": NOON - DAY, "last_slot_at": slot_at, "last_fired_at": at or slot_at} | more)


def slot_times(result: Evaluation) -> list[str]:
    return [f"{slot.at:%H:%M}" for slot in result.due]


# Every


def test_an_interval_starts_when_it_was_first_seen() -> None:
    """It fires immediately, then every interval."""
    result = evaluate(every(), since(), NOON + SECOND)
    assert [slot.at for slot in result.due] == [NOON]
    assert result.next_at == NOON + 5 * MINUTE


def test_nothing_is_due_between_two_slots() -> None:
    """Repeated evaluation changes nothing."""
    for second in (1, 60, 299):
        result = evaluate(every(), fired(NOON), NOON + second * SECOND)
        assert result == Evaluation(next_at=NOON + 5 * MINUTE)


def test_an_interval_does_not_drift() -> None:
    """A slot that fires late does not move the next one."""
    result = evaluate(every(), fired(NOON, at=NOON + 40 * SECOND), NOON + 5 * MINUTE)
    assert (slot_times(result), result.next_at) == (["12:05"], NOON + 10 * MINUTE)


# Jitter


def test_the_jitter_of_a_slot_is_constant() -> None:
    """It does not depend on the history, but on the schedule."""
    table = build_timetable(every(jitter=4 * MINUTE), since())
    drawn = [table.planned(NOON + number * 5 * MINUTE) for number in range(50)]
    assert drawn == [
        build_timetable(every(jitter=4 * MINUTE), fired(NOON, anchored_at=NOON)).planned(NOON + number * 5 * MINUTE)
        for number in range(50)
    ]
    other = build_timetable(evolve(every(jitter=4 * MINUTE), schedule_id="other"), since())
    assert drawn != [other.planned(NOON + number * 5 * MINUTE) for number in range(50)]


def test_jitter_spreads_evenly_to_both_sides() -> None:
    """By plus or minus half of its value."""
    table = build_timetable(every(jitter=4 * MINUTE), since())
    offsets = [table.planned(at) - at for at in (NOON + number * 5 * MINUTE for number in range(1000))]
    assert -2 * MINUTE <= min(offsets) < -110 * SECOND
    assert 110 * SECOND < max(offsets) < 2 * MINUTE
    assert abs(sum(offsets, timedelta()) / 1000) < 10 * SECOND


def test_jitter_keeps_the_order_of_slots() -> None:
    """A jitter longer than the distance between slots is reduced to it."""
    table = build_timetable(cron("* * * * *", jitter=HOUR), since())
    planned = [table.planned(NOON + number * MINUTE) for number in range(200)]
    assert planned == sorted(set(planned))


def test_jitter_never_moves_a_slot_out_of_its_hours() -> None:
    at_the_edges = cron("0 8 * * *", windows=WORKING, jitter=HOUR), cron("59 21 * * *", windows=WORKING, jitter=HOUR)
    for definition in at_the_edges:
        for slot in slots_between(definition, since(), NOON, NOON + 60 * DAY):
            assert time(8) <= slot.fire_at.time() < time(22)
            assert slot.fire_at.date() == slot.at.date()


def test_a_slot_that_fires_early_does_not_fire_again_at_its_own_time() -> None:
    """Jitter may move a firing before its slot."""
    definition = every(HOUR, jitter=HOUR)
    early = next(slot for slot in slots_between(definition, since(), NOON, NOON + DAY) if slot.fire_at < slot.at)
    before = fired(early.at - HOUR, anchored_at=NOON)
    assert [slot.at for slot in evaluate(definition, before, early.fire_at).due] == [early.at]
    after = fired(early.at, at=early.fire_at, anchored_at=NOON)
    assert evaluate(definition, after, early.at + SECOND).due == ()


@pytest.mark.parametrize("when", [every(DAY), cron("1 12 * * *"), cron("20 12 * * *")], ids=["every", "soon", "later"])
def test_jitter_never_moves_a_slot_before_the_schedule_was_first_seen(when: Definition) -> None:
    """The first slot is not missed."""
    for name in map(str, range(50)):
        definition = evolve(when, schedule_id=name, jitter=HOUR)
        (first,) = slots_between(definition, since(), NOON, NOON + 3 * HOUR)
        result = evaluate(definition, since(), first.fire_at + SECOND)

        assert first.fire_at >= NOON
        assert ([slot.at for slot in result.due], result.skipped) == ([first.at], 0)


# Missed slots


@pytest.mark.parametrize(
    ("catch_up", "due", "skipped"),
    [(CatchUp.SKIP, [], 3), (CatchUp.RUN_ONCE, ["12:15"], 2), (CatchUp.RUN_ALL, ["12:05", "12:10", "12:15"], 0)],
)
@pytest.mark.parametrize("definition", [every(), cron("*/5 * * * *")])
def test_missed_slots_are_handled_by_the_catch_up_policy(
    definition: Definition, catch_up: CatchUp, due: list[str], skipped: int
) -> None:
    """skip: no run; run_once: one run for all; run_all: one run each."""
    result = evaluate(evolve(definition, catch_up=catch_up), fired(NOON), NOON + 18 * MINUTE)
    assert (slot_times(result), result.skipped, result.capped) == (due, skipped, False)
    assert all(slot.is_catch_up for slot in result.due)
    assert result.skip_reason is (SkipReason.MISSED if skipped else None)
    assert result.decided_to == NOON + 15 * MINUTE
    assert result.next_at == NOON + 20 * MINUTE


@pytest.mark.parametrize(
    ("catch_up", "due", "skipped"),
    [(CatchUp.SKIP, 0, 10_000), (CatchUp.RUN_ONCE, 1, 9_999), (CatchUp.RUN_ALL, 100, 9_900)],
)
@pytest.mark.parametrize("definition", [every(), cron("*/5 * * * *")])
def test_ten_thousand_missed_slots_are_counted_and_capped(
    definition: Definition, catch_up: CatchUp, due: int, skipped: int
) -> None:
    """run_all runs the latest hundred and reports that there were more."""
    now = NOON + 10_000 * 5 * MINUTE + 2 * MINUTE
    result = evaluate(evolve(definition, catch_up=catch_up), fired(NOON), now)
    assert (len(result.due), result.skipped, result.capped) == (due, skipped, catch_up is CatchUp.RUN_ALL)
    assert [slot.at for slot in result.due] == [NOON + number * 5 * MINUTE for number in range(10_001 - due, 10_001)]


def test_a_hundred_missed_slots_are_not_capped() -> None:
    result = evaluate(every(catch_up=CatchUp.RUN_ALL), fired(NOON), NOON + 502 * MINUTE)
    assert (len(result.due), result.capped, result.skipped) == (100, False, 0)


@pytest.mark.parametrize("catch_up", CatchUp)
def test_a_slot_up_to_a_minute_late_is_on_time(catch_up: CatchUp) -> None:
    """A restart across a slot does not skip the run."""
    nightly = cron("0 2 * * *", catch_up=catch_up)
    two = NOON.replace(hour=2)
    for late in (timedelta(), GRACE):
        (slot,) = evaluate(nightly, fired(two - DAY), two + late).due
        assert not slot.is_catch_up
    result = evaluate(nightly, fired(two - DAY), two + GRACE + timedelta.resolution)
    assert [slot.is_catch_up for slot in result.due] == ([] if catch_up is CatchUp.SKIP else [True])


def test_short_intervals_run_their_latest_slot_after_a_pause() -> None:
    """The others are superseded; run_all runs each."""
    now = NOON + 35 * SECOND
    result = evaluate(every(10 * SECOND), fired(NOON), now)
    assert [slot.at for slot in result.due] == [NOON + 30 * SECOND]
    assert (result.skipped, result.skip_reason) == (2, SkipReason.SUPERSEDED)
    assert len(evaluate(every(10 * SECOND, catch_up=CatchUp.RUN_ALL), fired(NOON), now).due) == 3


def test_a_suspended_host_catches_up_like_a_stopped_service() -> None:
    now = NOON + 8 * HOUR + 2 * MINUTE
    assert evaluate(every(), fired(NOON), now).skipped == 96
    assert slot_times(evaluate(every(catch_up=CatchUp.RUN_ONCE), fired(NOON), now)) == ["20:00"]
    assert len(evaluate(every(catch_up=CatchUp.RUN_ALL), fired(NOON), now).due) == 96


# Closed hours


def test_a_slot_outside_its_window_waits_and_fires_at_the_opening() -> None:
    """There it is on time for every `catch_up` policy."""
    nightly = cron("0 2 * * *", windows=WORKING)
    two = NOON.replace(hour=2)
    result = evaluate(nightly, fired(two - DAY, at=two - 18 * HOUR), two + SECOND)
    assert result.due == ()
    assert result.held is not None
    assert (result.held.slot_at, result.held.reason, result.held.until) == (
        two,
        SkipReason.OUTSIDE_TIME_WINDOW,
        NOON.replace(hour=8),
    )
    assert result.held.message == "only 08:00-22:00; local time is 02:00; opens 2026-03-09 08:00"
    assert result.next_at == NOON.replace(hour=8)
    (slot,) = evaluate(nightly, fired(two - DAY, at=two - 18 * HOUR), NOON.replace(hour=8)).due
    assert (slot.at, slot.fire_at, slot.is_catch_up) == (two, NOON.replace(hour=8), False)


@pytest.mark.parametrize("catch_up", CatchUp)
def test_slots_that_wait_for_one_opening_are_one_run(catch_up: CatchUp) -> None:
    """That of the latest slot, even with run_all: none was missed."""
    hourly = cron("0 * * * *", windows=WORKING, catch_up=catch_up)
    result = evaluate(hourly, fired(NOON.replace(hour=21) - DAY), NOON.replace(hour=8))
    assert slot_times(result) == ["08:00"]
    assert (result.skipped, result.skip_reason) == (10, SkipReason.SUPERSEDED)
    assert result.next_at == NOON.replace(hour=9)


def test_an_interval_slot_on_an_excluded_weekday_waits() -> None:
    """`not_on` applies in the schedule's zone: Sunday begins in Auckland while it is Saturday in London."""
    hourly = every(HOUR, not_on=frozenset({0}), zone=ZoneInfo("Pacific/Auckland"))
    saturday = NOON - 2 * DAY
    result = evaluate(hourly, fired(saturday - 2 * HOUR), saturday + SECOND)
    assert result.held is not None
    assert result.held.reason is SkipReason.OUTSIDE_DAY_CONSTRAINT
    assert result.held.until == datetime(2026, 3, 8, 11, tzinfo=UTC), "midnight there"


def test_a_cron_line_has_no_slots_on_excluded_weekdays() -> None:
    """04:00 on other days, not the first moment of the next allowed day; in the schedule's zone."""
    berlin = ZoneInfo("Europe/Berlin")
    weekend = cron("0 4 * * *", not_on=frozenset({1, 2, 3, 4, 5}), zone=berlin)
    friday, saturday = datetime(2026, 3, 13, 3, tzinfo=UTC), datetime(2026, 3, 14, 3, tzinfo=UTC)
    history = fired(friday - 5 * DAY)
    assert evaluate(weekend, history, friday + SECOND) == Evaluation(next_at=saturday)
    assert evaluate(weekend, history, saturday - SECOND) == Evaluation(next_at=saturday)
    (slot,) = evaluate(weekend, history, saturday).due
    assert (slot.at, slot.fire_at) == (saturday, saturday)


def test_a_slot_evaluated_just_after_closing_waits() -> None:
    """It is on time at the next opening."""
    last = cron("59 21 * * *", windows=WORKING)
    slot_at = NOON.replace(hour=21, minute=59)
    history = fired(slot_at - DAY)
    result = evaluate(last, history, slot_at + GRACE)
    assert result.held is not None
    assert result.held.until == NOON.replace(hour=8) + DAY
    (slot,) = evaluate(last, history, NOON.replace(hour=8) + DAY).due
    assert (slot.at, slot.is_catch_up) == (slot_at, False)


def test_a_catch_up_run_waits_for_open_hours() -> None:
    """With skip nothing waits."""
    history, night = fired(NOON), NOON.replace(hour=23) + MINUTE
    assert evaluate(cron("0 13 * * *", windows=WORKING), history, night).skipped == 1
    once = cron("0 13 * * *", windows=WORKING, catch_up=CatchUp.RUN_ONCE)
    result = evaluate(once, history, night)
    assert result.held is not None
    assert (result.due, result.held.until) == ((), NOON.replace(hour=8) + DAY)
    assert [slot.is_catch_up for slot in evaluate(once, history, NOON.replace(hour=8) + DAY).due] == [True]


def test_windows_that_never_open_hold_the_slot_forever() -> None:
    never = every(windows=(Window(time(8), time(9)), Window(time(9), time(10))))
    result = evaluate(never, since(), NOON)
    assert result.held is not None
    assert result.held.message.endswith("never opens")
    assert (result.held.until, result.next_at) == (None, None)


# At and after


def test_an_at_schedule_fires_once() -> None:
    """Not earlier, and not again when the clock is set back."""
    at = Definition(plugin="echo", schedule_id="x", when=At(NOON))
    assert evaluate(at, since(NOON - DAY), NOON - SECOND) == Evaluation(next_at=NOON)
    assert [slot.at for slot in evaluate(at, since(NOON - DAY), NOON).due] == [NOON]
    for over in (since(NOON - DAY, exhausted=True), fired(NOON)):
        for now in (NOON - DAY, NOON, NOON + DAY):
            result = evaluate(at, over, now)
            assert (result.due, result.clock_set_back) == ((), False)


def test_a_missed_at_schedule_fires_as_soon_as_possible() -> None:
    """Once, for every `catch_up` policy, even if the time was in the past when it was configured."""
    at = Definition(plugin="echo", schedule_id="x", when=At(NOON - 30 * DAY))
    (slot,) = evaluate(at, since(), NOON).due
    assert (slot.at, slot.is_catch_up) == (NOON - 30 * DAY, True)
    held = evaluate(evolve(at, not_on=frozenset({1})), since(), NOON).held
    assert held is not None
    assert held.until == NOON.replace(hour=0) + DAY


def test_an_after_schedule_fires_once_per_start() -> None:
    after = Definition(plugin="echo", schedule_id="x", when=After(5 * MINUTE))
    history = fired(NOON - DAY, started_at=NOON)
    assert evaluate(after, history, NOON + MINUTE).next_at == NOON + 5 * MINUTE
    assert [slot.at for slot in evaluate(after, history, NOON + 5 * MINUTE).due] == [NOON + 5 * MINUTE]
    assert evaluate(after, evolve(history, exhausted=True), NOON + DAY) == Evaluation()
    assert evaluate(after, evolve(history, started_at=NOON + DAY), NOON + DAY + 6 * MINUTE).due


# Clock jumps


SLOTTED = [every(), cron("*/5 * * * *"), cron("*/5 * * * *", zone=ZoneInfo("Europe/Berlin"), jitter=MINUTE)]


@pytest.mark.parametrize("back", [HOUR, DAY, 3652 * DAY, 20_000 * DAY])
@pytest.mark.parametrize("definition", SLOTTED)
def test_a_clock_that_is_set_back_delays_by_at_most_one_interval(definition: Definition, back: timedelta) -> None:
    """Nothing fires immediately, and the next slot is the next one on the clock."""
    now = NOON + 3 * MINUTE - back
    result = evaluate(definition, fired(NOON), now)
    assert result.clock_set_back
    assert (result.due, result.decided_to) == ((), now)
    assert result.next_at is not None
    assert now < result.next_at <= now + 6 * MINUTE
    continued = evolve(fired(NOON), last_slot_at=result.decided_to)
    assert evaluate(definition, continued, now + SECOND) == Evaluation(next_at=result.next_at)
    assert len(evaluate(definition, continued, result.next_at).due) == 1


@pytest.mark.parametrize("back", [timedelta(milliseconds=1), SECOND, 4 * MINUTE])
@pytest.mark.parametrize("definition", SLOTTED[:2])
def test_a_small_set_back_does_not_repeat_the_slot(definition: Definition, back: timedelta) -> None:
    """Less than an interval is waited out."""
    result = evaluate(definition, fired(NOON, at=NOON + SECOND), NOON + SECOND - back)
    assert result == Evaluation(next_at=NOON + 5 * MINUTE)


@pytest.mark.parametrize("ahead", [HOUR, DAY, 3652 * DAY])
@pytest.mark.parametrize("definition", SLOTTED[:2])
def test_slots_that_the_clock_jumped_over_are_missed(definition: Definition, ahead: timedelta) -> None:
    """The next slot is the next one on the clock."""
    now = NOON + 3 * MINUTE + ahead
    result = evaluate(definition, fired(NOON), now)
    assert (result.due, result.skipped) == ((), ahead // (5 * MINUTE))
    assert result.next_at == now + 2 * MINUTE


@pytest.mark.parametrize("definition", SLOTTED[:2])
def test_a_boot_in_1970_does_not_repeat_the_last_slot(definition: Definition) -> None:
    """A host without a battery: the schedule continues in 1970, and nothing repeats after the clock is corrected."""
    history, wrong = fired(NOON, at=NOON + SECOND), datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
    result = evaluate(definition, history, wrong)
    assert result.clock_set_back
    history = evolve(history, last_slot_at=result.decided_to)
    assert evaluate(definition, history, NOON + 30 * SECOND) == Evaluation(next_at=NOON + 5 * MINUTE)


def test_a_schedule_that_was_first_seen_in_the_future_does_not_wait_for_it() -> None:
    """It was configured while the clock was wrong."""
    result = evaluate(cron("*/5 * * * *"), since(NOON + 3652 * DAY), NOON + SECOND)
    assert (result.clock_set_back, result.next_at) == (True, NOON + 5 * MINUTE)


# Upcoming slots


def test_upcoming_slots_are_those_that_will_fire() -> None:
    """Including a held one, each with its firing time, up to `limit`."""
    hourly = cron("30 */2 * * *", windows=WORKING)
    upcoming = slots_between(hourly, fired(NOON.replace(hour=20, minute=30) - DAY), NOON.replace(hour=3), NOON + DAY, 3)
    assert [(f"{slot.at:%H:%M}", f"{slot.fire_at:%H:%M}") for slot in upcoming] == [
        ("06:30", "08:00"),
        ("08:30", "08:30"),
        ("10:30", "10:30"),
    ]


def test_upcoming_slots_exclude_fired_ones() -> None:
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


def test_every_reason_has_a_message() -> None:
    """All codes of the original exist."""
    assert all(reason.message for reason in SkipReason)
    assert {*CODES.split()} <= {*SkipReason}
