"""What the benches print, and the table of `scripts/bench compare`."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest

from scripts.benches import compare, report
from scripts.benches.all import PARTS, remaining, worded
from scripts.benches.bench import Bench, Line, is_optimised, machine, percentile, short
from scripts.benches.measures import MEASURES, measure_named
from scripts.benches.report import Row
from scripts.benches.usage import Spent, Used, cpu_seconds, pss_mb, used
from tests.scripts.test_help import ROOT, say

PAGE = ROOT / "docs" / "benchmarks.md"
B4 = next(one for one in compare.LINES if one.id == "B4")
BACKLOG = next(one for one in compare.LINES if one.id == "backlog")


def bench(**values: Any) -> Bench:
    defaults: dict[str, Any] = {"name": "sync", "folder": Path(), "rounds": 3, "modes": ("full",), "quick": False}
    return Bench(**defaults | {"rows": 9, "machine": machine()} | values)


def a_line(value: Any = 2.0, **more: Any) -> Line:
    return bench().line("B4", "three_steps_over_bare", value, **{"p50_ms": [5.0], **more})


# ── lines ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_measure_has_one_row() -> None:
    names = [(row.id, row.name) for row in MEASURES]

    assert len(set(names)) == len(names)
    with pytest.raises(ValueError, match="not enough values"):
        measure_named("B1", "unheard_of")


def test_a_line_begins_with_its_id_and_value_and_ends_with_the_machine() -> None:
    """Nothing in it says whose machine it is."""
    line = a_line(value=[3.0, 2.0, 9.0], p50_ms=[1.23456])

    assert list(line)[:3] == ["id", "value", "unit"]
    assert list(line)[-2:] == ["machine", "version"]
    assert (line["value"], line["rounds"], line["p50_ms"]) == (3.0, [3.0, 2.0, 9.0], [1.2346])
    assert set(line["machine"]) == {"cores", "kernel", "python", "python_is_optimised", "sqlite", "load_before"}
    assert json.loads(json.dumps(line)) == line


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


# ── comparisons ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_compared_line_is_a_measure_of_its_bench() -> None:
    """The issue's lines are among them, and --only accepts each id."""
    assert {one.measure for one in compare.LINES} <= {measure.name for measure in MEASURES}
    assert {one.id for one in compare.LINES} >= {*["B1", "B2f", "B3", "B4", "B6", "B9", "B10", "B11", "B16", "backlog"]}
    assert [one.id for one in compare.chosen("B11,B1")] == ["B1", "B11"]
    with pytest.raises(argparse.ArgumentTypeError, match="no line is called B99"):
        compare.chosen("B1,B99")


def test_the_median_of_the_rounds_counts_on_both_sides() -> None:
    before = [a_line(p50_ms=[number]) for number in (4.0, 9.0, 5.0)]
    after = [a_line(p50_ms=[number]) for number in (6.0, 5.5, 1.0)]
    (row,) = report.rows([B4], {"before": before, "after": after})

    assert row.cells == ("B4", "synchronous call, three steps, median", "5 ms", "5.5 ms", "1.10")


def test_a_share_of_bare_runs_stands_in_brackets() -> None:
    line = bench(name="run").line("run", "backlog_over_limit", 0.2554, jobs_per_second=[523.4])

    assert Row(BACKLOG, [line], [line]).cells[2:] == ("523/s (0.26)", "523/s (0.26)", "1.00")


def test_a_side_without_lines_is_not_measured_and_has_no_ratio() -> None:
    (row,) = report.rows([B4], {"before": [a_line()], "after": []})

    assert row.cells[2:] == ("5 ms", report.NOT_MEASURED, "")


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
    assert report.figure(value, unit) == text


def test_the_origin_names_both_commits_and_small_sizes() -> None:
    """Quick numbers are marked, so that they are not quoted."""
    commits = {"before": "aaa1111", "after": "bbb2222"}
    told = report.origin({"before": [], "after": [a_line()]}, commits, 3)
    quick = report.origin({"before": [], "after": [{**a_line(), "quick": True}]}, commits, 1)

    assert "before aaa1111, after bbb2222: 3 rounds in turns" in told
    assert "not how fast" not in told
    assert "not how fast" in quick


def test_text_around_the_marks_stays(tmp_path: Path) -> None:
    """Only what is between the marks is replaced, however often."""
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    head, tail = PAGE.read_text().partition(report.BEGIN)[0], PAGE.read_text().partition(report.END)[2]

    report.require_marks(page)
    for content in ("first", "second"):
        report.write(page, content)

    assert page.read_text() == f"{head}{report.BEGIN}\n\nsecond\n\n{report.END}{tail}"


def test_a_page_without_marks_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Mine\n{report.BEGIN}\n")
    done = say("bench", "compare", "--before", str(tmp_path), "--report", str(page))

    assert (done.returncode, done.stdout) == (1, "")
    assert report.END in done.stderr
    assert page.read_text() == f"# Mine\n{report.BEGIN}\n"


def test_a_directory_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    done = say("bench", "compare", "--before", str(tmp_path))

    assert (done.returncode, done.stdout) == (1, "")
    assert "is not a checkout of Ductile" in done.stderr


# ── progress and machine ────────────────────────────────────────────────────────────────────────────────────────────


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
        "with": "Python 3.11.2, built with profile-guided optimisation",
        "without": "Python 3.11.2, built without profile-guided optimisation",
        "unknown": "Python 3.11.2",
    }

    assert report.python_of(host) == words[told]
