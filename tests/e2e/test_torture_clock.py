"""A wall clock that jumps: a share of `scripts/torture clock`; schedules that stall, hurry or double are noticed."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from scripts.tortures.arena import Arena, build_actor
from scripts.tortures.shim import Unavailable
from scripts.tortures.wall_clock import NIGHTS, Jumps, Night, Options, faults_of
from tests.e2e.tortured import torture

LENIENT = "4"


@pytest.mark.timeout(120)
def test_a_clock_that_jumps_stops_nothing_and_doubles_nothing() -> None:
    """Schedules go on within an interval, deadlines keep their length, jobs end; on a real service."""
    done = torture("clock", "--jumps", "2", "--nights", "0", "--leniency", LENIENT)

    assert done.broken == {}, done.said
    assert done.summary["acknowledged"] > 0


@pytest.mark.timeout(60)
def test_a_night_with_another_number_of_jobs_is_noticed(tmp_path: Path) -> None:
    """In the night in which 02:30 is not there the job comes all the same; whoever expects none hears of it."""
    gap = NIGHTS[0]
    asks_for_none = Night(gap.name, gap.cron, gap.begins, ((gap.moments[0][0], 0),))
    try:
        (fault,) = faults_of([asks_for_none], tmp_path, build_actor(tmp_path))
    except Unavailable as reason:
        pytest.skip(str(reason))

    assert fault.startswith("gap: 1 jobs at ")


@pytest.mark.parametrize(
    ("ticks", "broken"),
    [
        ([0.3, 0.6, 0.9], []),
        ([], ["schedules go on"]),
        ([2.3], ["schedules go on"]),
        ([0.1 + number / 100 for number in range(40)], ["no slots are made up"]),
    ],
    ids=["regular", "none", "late", "a burst"],
)
def test_a_schedule_that_stalls_or_hurries_is_noticed(tmp_path: Path, ticks: list[float], broken: list[str]) -> None:
    """Two seconds and a half after a jump, seen from the true clock."""
    arena = Arena(tmp_path)
    arena.ledger.parent.mkdir()
    with closing(sqlite3.connect(arena.ledger)) as db, db:
        db.execute("CREATE TABLE job_queue (id, plugin)")
        db.executemany("INSERT INTO job_queue VALUES (?, 'tick')", [(f"t{n}",) for n in range(len(ticks))])
    arena.effects.write_text("".join(f"start t{n} 1 - - 7 {round(at * 1e9)}\n" for n, at in enumerate(ticks)))
    jumps = Jumps(arena, tmp_path / "clock", Options(1, 1))

    jumps._watch(3600.0, 0, round(2.4e9))

    assert list(jumps.violations) == broken
