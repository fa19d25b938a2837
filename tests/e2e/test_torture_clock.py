"""`scripts/torture clock` at a small size; schedules that stop, catch up or run twice are detected."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scripts.tortures.clock import NIGHTS, ClockChange, ClockOptions, ClockTorture, wrong_nights
from scripts.tortures.lib.fault_library import UnsupportedHost
from scripts.tortures.lib.instance import Instance, build_plugin_program
from tests.e2e.torture_runs import run_torture

LENIENCY = "4"


@pytest.mark.timeout(120)
def test_a_clock_that_jumps_stops_nothing_and_repeats_nothing() -> None:
    """Schedules continue within an interval, deadlines keep their length, jobs end."""
    run = run_torture("clock", "--jumps", "2", "--nights", "0", "--leniency", LENIENCY)

    assert run.violations == {}, run.stderr
    assert run.summary["acknowledged"] > 0


@pytest.mark.timeout(60)
def test_a_night_with_another_number_of_jobs_is_detected(tmp_path: Path) -> None:
    """In the night without 02:30 the job runs; an expectation of none fails."""
    gap = NIGHTS[0]
    expects_none = ClockChange(gap.name, gap.cron, gap.begins, ((gap.moments[0][0], 0),))
    try:
        (violation,) = wrong_nights([expects_none], tmp_path, build_plugin_program(tmp_path))
    except UnsupportedHost as reason:
        pytest.skip(str(reason))

    assert violation.startswith("gap: 1 jobs at ")


@pytest.mark.parametrize(
    ("ticks", "violated"),
    [
        ([0.3, 0.6, 0.9], []),
        ([], ["schedules continue"]),
        ([2.3], ["schedules continue"]),
        ([0.1 + number / 100 for number in range(40)], ["schedules do not catch up"]),
    ],
    ids=["regular", "none", "late", "a burst"],
)
def test_a_schedule_that_stops_or_catches_up_is_detected(
    tmp_path: Path, ticks: list[float], violated: list[str]
) -> None:
    """In the 2.4 real seconds after a jump."""
    instance = Instance(tmp_path)
    instance.ledger.parent.mkdir()
    with closing(sqlite3.connect(instance.ledger)) as db, db:
        db.execute("CREATE TABLE job_queue (id, plugin)")
        db.executemany("INSERT INTO job_queue VALUES (?, 'tick')", [(f"t{n}",) for n in range(len(ticks))])
    instance.effects_log.write_text("".join(f"start t{n} 1 - - 7 {round(at * 1e9)}\n" for n, at in enumerate(ticks)))
    test = ClockTorture(instance, tmp_path / "clock", ClockOptions(1, 1))

    test.check_schedule(3600.0, 0, round(2.4e9))

    assert list(test.violations) == violated
