"""The page of `scripts/bench all`: what it says of numbers, and of numbers that nobody has."""

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from scripts.benches import plots, report
from scripts.benches.all import PARTS, remaining, worded
from scripts.benches.bench import Bench, Line, is_optimised, machine, percentile, short
from scripts.benches.targets import MORE, SUITE, at_least, at_most, target
from scripts.benches.usage import Spent, Used, cpu_seconds, pss_mb, used

BOTH = ("full", "normal")
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def bench(**values: Any) -> Bench:
    defaults: dict[str, Any] = {"name": "run", "folder": Path(), "rounds": 3, "modes": BOTH, "quick": False, "rows": 9}
    return Bench(**defaults | {"machine": machine()} | values)


def a_line(key: str = "B4", measure: str = "three_steps_over_bare", value: Any = 2.0, **more: Any) -> Line:
    return bench().line(key, measure, value, **more)


def row_of(
    lines: list[Line], key: str, measure: str, mode: str | None = None, modes: tuple[str, ...] = BOTH
) -> report.Row:
    (found,) = (
        row
        for row in report.rows((*SUITE, *MORE), lines, modes)
        if (row.target.id, row.target.measure, row.mode) == (key, measure, mode)
    )
    return found


# ── targets and lines ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_suite_is_b1_to_b16_without_a_gap() -> None:
    """Every id of the suite has a row, and no row stands twice."""
    ids = {row.id for row in SUITE}

    assert ids >= {f"B{number}" for number in range(1, 17)} | {"B1b", "B2f", "B3b", "B5b", "B6b", "B7b", "B7c"}
    names = [(row.id, row.measure) for row in (*SUITE, *MORE)]
    assert len(set(names)) == len(names)
    assert all(row.goal for row in SUITE)


@pytest.mark.parametrize(
    ("goal", "value", "must", "aim"),
    [
        (at_least(0.3, 0.36), 0.36, True, True),
        (at_least(0.3, 0.36), 0.3, True, False),
        (at_least(0.3, 0.36), 0.299, False, False),
        (at_most(3, 1.5), 1.5, True, True),
        (at_most(3, 1.5), 3, True, False),
        (at_most(3, 1.5), 3.001, False, False),
        (at_most(0, 0), 1, False, False),
        (at_least(3), 5, True, None),
    ],
)
def test_a_goal_is_reached_at_its_number_and_on_its_side(goal: Any, value: float, must: bool, aim: bool | None) -> None:
    """The bound itself is good; an aim that does not exist is neither reached nor missed."""
    assert goal.reached(value, goal.must) is must
    assert goal.reached(value, goal.aim) is aim


def test_a_line_begins_with_its_id_and_value_and_ends_with_the_machine() -> None:
    """Ratio first, what was asked, absolutes, then where; nothing says whose machine it is."""
    line = a_line(value=[3.0, 2.0, 9.0], p50_ms=[1.23456])

    assert list(line)[:5] == ["id", "value", "must", "aim", "ok"]
    assert list(line)[-2:] == ["machine", "version"]
    assert (line["value"], line["rounds"], line["p50_ms"]) == (3.0, [3.0, 2.0, 9.0], [1.2346])
    assert (line["must"], line["aim"], line["ok"]) == ({"at_most": 4}, {"at_most": 2.5}, True)
    assert set(line["machine"]) == {
        "cores",
        "kernel",
        "python",
        "python_is_optimised",
        "sqlite",
        "load_before",
    }
    assert json.loads(json.dumps(line)) == line


def test_the_goal_of_a_line_is_that_of_its_mode() -> None:
    """The same number can be enough with `full` and too little with `normal`."""
    assert a_line(value=3.5, mode="full")["ok"] is True
    assert a_line(value=3.5, mode="normal")["ok"] is False


def test_a_measure_that_is_not_in_the_table_cannot_be_told() -> None:
    """A line without a row in the report would be lost silently."""
    with pytest.raises(ValueError, match="not enough values"):
        target("B1", "unheard_of")


def test_percentiles_are_values_that_occurred() -> None:
    """Of a hundred values the 99th percentile is the largest, and nothing is made up between two."""
    values = [float(number) for number in range(100, 0, -1)]

    assert [percentile(values, at) for at in (0, 50, 99, 100)] == [1.0, 51.0, 100.0, 100.0]
    assert percentile([7.0], 99) == 7.0
    assert short({"a": [(1, 0.123456)]}) == {"a": [[1, 0.1235]]}


def test_threads_that_come_and_go_do_not_turn_the_count_of_wakeups_around() -> None:
    """A thread that ended takes its count with it; that is no negative number of wake-ups."""
    before = Used(1.0, {"1": 100, "2": 5_000})
    after = Used(1.5, {"1": 103, "3": 4})

    assert after.since(before) == Spent(0.5, 3 + 4 + 1)


def test_usage_is_read_from_a_process() -> None:
    """Of ourselves, for example: time that went by, threads that waited, memory that is there."""
    first = used(os.getpid())
    sum(range(200_000))
    spent = used(os.getpid()).since(first)

    assert spent.cpu_seconds > 0
    assert spent.wakeups >= 0
    assert cpu_seconds(os.getpid()) >= first.cpu_seconds
    assert pss_mb(os.getpid()) > 1


# ── the table ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_not_measured_is_said_and_never_a_success() -> None:
    """Without lines no row holds, and each says that it was not measured."""
    found = report.rows((*SUITE, *MORE), [], BOTH)

    assert {row.cells[2] for row in found} == {report.NOT_MEASURED}
    assert {row.verdict for row in found} == {"–", ""}
    assert not any(row.holds for row in found)
    assert report.summary(found).startswith("0 of ")
    assert f"{len(found)} not measured" in report.summary(found)


def test_one_mode_does_not_stand_for_the_other() -> None:
    """A row for each mode that was asked for; the one without a line is not measured."""
    lines = [a_line(value=2.0, mode="normal")]

    assert row_of(lines, "B4", "three_steps_over_bare", "normal").verdict == "✓✓"
    assert row_of(lines, "B4", "three_steps_over_bare", "full").verdict == "–"
    assert len([row for row in report.rows(SUITE, lines, ("normal",)) if row.target.id == "B4"]) == 1


def test_a_measure_of_one_mode_is_only_asked_for_in_it() -> None:
    """B2 is `normal`, B2f is `full`."""
    ids = [row.target.id for row in report.rows(SUITE, [], ("full",))]

    assert "B2f" in ids
    assert "B2" not in ids


@pytest.mark.parametrize(("value", "verdict"), [(2.4, "✓✓"), (2.6, "✓"), (4.1, "✗")])
def test_the_verdict_tells_aim_must_and_miss_apart(value: float, verdict: str) -> None:
    """Two marks for the aim, one for the must, a cross below it."""
    row = row_of([a_line(value=value, mode="full")], "B4", "three_steps_over_bare", "full")

    assert row.verdict == verdict
    assert row.cells[2:] == (f"{value}×", "≤ 4×", "≤ 2.5×", verdict)


def test_of_two_lines_the_last_counts() -> None:
    """Who measures again means the second."""
    lines = [a_line(value=9.0, mode="full"), a_line(value=2.0, mode="full")]

    assert row_of(lines, "B4", "three_steps_over_bare", "full").verdict == "✓✓"


def test_the_number_behind_a_ratio_stands_beside_it() -> None:
    """A rate or a time, its median if there are rounds; a curve does not."""
    assert report.absolute(a_line(jobs_per_second=[300.0, 100.0, 200.0])) == " (200/s)"
    assert report.absolute(a_line(p50_ms=1.5)) == " (1.5 ms)"
    assert report.absolute(a_line("scale", "drain_by_history", 1.0, jobs_per_second=[(0, 10.0), (9, 9.0)])) == ""


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.3114, "×", "0.311×"),
        (2000, "/s", "2,000/s"),
        (12345.6, "/s", "12,346/s"),
        (1.5, "ms", "1.5 ms"),
        (11, "", "11"),
    ],
)
def test_figures_have_three_digits_and_a_unit(value: float, unit: str, text: str) -> None:
    """Nobody reads the fourth."""
    assert report.figure(value, unit) == text


def test_small_sizes_are_named_so_that_nobody_quotes_them() -> None:
    """The line above the table says when, on what, and that it was quick."""
    told = report.origin([bench(quick=True).line("B4", "three_steps_over_bare", 2.0, rows=20_000)])

    assert "`scripts/bench all --quick` on 2" in told
    assert "20,000 finished jobs" in told
    assert "not how fast" in told
    assert "not how fast" not in report.origin([a_line()])


def test_another_run_stands_beside_the_first() -> None:
    """Two more columns, with its own verdict, and where it comes from; what it did not measure is said."""
    found = report.regions([a_line(value=9.0, mode="full")], BOTH, [], [a_line(value=2.0, mode="full")])

    assert "| 9× | ≤ 4× | ≤ 2.5× | ✗ | 2× | ✓✓ |" in found["suite"]
    assert "| not measured | – |" in found["suite"]
    assert "Beside it, 1 of " in found["suite"]
    assert "Beside it: `scripts/bench all` on 2" in found["run"]
    assert "beside" not in report.regions([a_line(value=9.0, mode="full")], BOTH, [])["suite"].lower()


def test_text_around_the_marks_stays(tmp_path: Path) -> None:
    """Only what is between a mark and its end is replaced, as often as one likes."""
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    by_hand = PAGE.read_text().partition("## What stands beside what")[2]

    report.require_marks(page)
    for value in (9.0, 2.0):
        report.keep(page, report.regions([a_line(value=value, mode="full")], BOTH, []))

    text = page.read_text()
    assert text.partition("## What stands beside what")[2] == by_hand
    assert text.startswith(PAGE.read_text().partition("<!--")[0])
    assert "| 2× | ≤ 4× |" in text
    assert "| 9× |" not in text


def test_a_page_without_marks_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    """Half an hour of work needs a place to go."""
    page = tmp_path / "page.md"
    page.write_text("# Mine\n<!-- bench all: run -->\n")

    with pytest.raises(SystemExit, match="bench all"):
        report.require_marks(page)
    assert page.read_text() == "# Mine\n<!-- bench all: run -->\n"


# ── plots and progress ──────────────────────────────────────────────────────────────────────────────────────────────


def drawn_lines() -> list[Line]:
    percentiles = {
        "enqueue_to_spawn": {"p50": 1.0, "p99": 3.0, "max": 90.0},
        "spawn_to_done": {"p50": 2.0, "p99": 4.0, "max": 9.0},
    }
    return [
        a_line("run", "c_1", 0.3, plugin="C <static>", workers=1, jobs_per_second=600.0),
        a_line("run", "python_2", 1.02, plugin="Python", workers=2, jobs_per_second=98.0),
        a_line("run", "enqueue_to_done_ms", 3.0, percentiles_ms=percentiles),
        a_line("scale", "drain_by_history", 0.97, jobs=3000, jobs_per_second=[(0, 700.0), (1_000_000, 680.0)]),
        a_line("B5b", "growth_mb", 2.0, memory_mb=[(0, 48.0), (25_000, 49.5), (50_000, 50.0)]),
    ]


def test_every_plot_is_well_formed_and_has_its_numbers() -> None:
    """Valid XML with a title, colours for dark pages, and bars whose heights follow the values."""
    found = plots.pictures(drawn_lines())

    assert list(found) == ["jobs.svg", "latency.svg", "history.svg", "memory.svg"]
    for title, picture in found.values():
        root = ET.fromstring(picture)
        assert root[0].text == title
        assert "prefers-color-scheme: dark" in picture
    jobs = ET.fromstring(found["jobs.svg"][1])
    heights = [float(one.attrib["height"]) for one in jobs.iter("{http://www.w3.org/2000/svg}rect")][1:]
    assert heights[1] / heights[0] == pytest.approx(1.02 / 0.3, rel=0.01)
    assert "600/s" in found["jobs.svg"][1]
    assert "1,000,000" in found["history.svg"][1]


def test_what_was_not_measured_is_not_drawn() -> None:
    """No lines, no picture; and the page links to none."""
    assert plots.pictures([]) == {}
    assert list(plots.pictures(drawn_lines()[:1])) == ["jobs.svg"]
    assert "](" not in report.regions([], BOTH, [])["plots"]


@pytest.mark.parametrize(("value", "top"), [(0, 1), (0.97, 1), (1.02, 1.2), (50.2, 60), (1234, 1600), (9000, 10000)])
def test_the_top_of_an_axis_is_round_and_near(value: float, top: float) -> None:
    """Nothing sticks out, and little room is wasted."""
    assert plots.ceiling(value) == pytest.approx(top)


def test_the_time_left_follows_the_pace_so_far() -> None:
    """Estimates first; then twice as slow so far means twice as long to go."""
    assert remaining([10, 20, 30], []) == 60
    assert remaining([10, 20, 30], [20]) == 100
    assert remaining([10, 20, 30], [20, 40, 60]) == 0
    assert (worded(45), worded(600)) == ("45 s", "10 min")


def test_all_of_it_fits_its_time() -> None:
    """A coffee for the quick one, half a lesson for the other."""
    assert sum(part.quick_seconds for part in PARTS) <= 4 * 60
    assert sum(part.seconds for part in PARTS) <= 25 * 60


@pytest.mark.parametrize(
    ("build", "told"),
    [
        ({"CONFIG_ARGS": "'--enable-optimizations' '--with-lto'", "PGO_PROF_USE_FLAG": "-fprofile-use"}, "with"),
        ({"CONFIG_ARGS": "'--enable-optimizations=yes'"}, "with"),
        ({"CONFIG_ARGS": "'CFLAGS=-O3 -fprofile-use'", "PY_CORE_CFLAGS": "-O3 -fprofile-use"}, "with"),
        ({"CONFIG_ARGS": "'--prefix=/opt'", "PGO_PROF_USE_FLAG": "-fprofile-use -fprofile-correction"}, "without"),
        ({"CONFIG_ARGS": "'--disable-optimizations'", "PGO_PROF_USE_FLAG": "-fprofile-use"}, "without"),
        ({"CONFIG_ARGS": "'--prefix=/usr' '--enable-shared'", "PGO_PROF_USE_FLAG": ""}, "unknown"),
        ({}, "unknown"),
    ],
    ids=["asked for", "asked for in full", "by hand", "plain", "refused", "cleaned by a distribution", "silent"],
)
def test_a_python_is_called_optimised_only_if_its_build_says_so(build: dict[str, str], told: str) -> None:
    """Debian optimises every Python and leaves no trace of it in what Python knows of its build."""
    host = machine() | {"python": "3.11.2", "python_is_optimised": is_optimised(build)}
    words = {
        "with": "Python 3.11.2 (built with profile-guided optimisation)",
        "without": "Python 3.11.2 (built without profile-guided optimisation)",
        "unknown": "Python 3.11.2 (whether built with profile-guided optimisation, its build does not say)",
    }

    assert report.python_of([{"machine": host}]) == words[told]
