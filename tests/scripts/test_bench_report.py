"""The JSON lines of the benches, and the table of `scripts/bench compare`."""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import pytest

from scripts.benches import compare
from scripts.benches.all import BENCHES, format_seconds, remaining_seconds
from scripts.benches.lib import report
from scripts.benches.lib.bench import Bench, Line, percentile, rounded
from scripts.benches.lib.checkout import THIS_CHECKOUT, Checkout
from scripts.benches.lib.machine import is_optimised, machine
from scripts.benches.lib.measures import MEASURES, find_measure
from scripts.benches.lib.report import Row
from scripts.benches.lib.usage import Usage, UsageDifference, cpu_seconds, pss_mb, read_usage
from tests.scripts.scripts import ROOT, run_script

PAGE = ROOT / "docs" / "benchmarks.md"
B4 = next(row for row in compare.ROWS if row.id == "B4")
BACKLOG = next(row for row in compare.ROWS if row.id == "backlog")


def bench(**values: Any) -> Bench:
    defaults: dict[str, Any] = {"name": "sync", "folder": Path(), "rounds": 3, "modes": ("full",), "quick": False}
    return Bench(**defaults | {"rows": 9, "machine": machine()} | values)


def make_line(value: Any = 2.0, **details: Any) -> Line:
    return bench().line("B4", "three_steps_over_bare", value, **{"p50_ms": [5.0], **details})


# ── lines ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_measure_is_defined_once() -> None:
    names = [(row.id, row.name) for row in MEASURES]

    assert len(set(names)) == len(names)
    with pytest.raises(ValueError, match="not enough values"):
        find_measure("B1", "unknown")


def test_a_line_begins_with_its_id_and_value_and_ends_with_the_machine() -> None:
    """The machine has only these fields: nothing identifies its owner."""
    line = make_line(value=[3.0, 2.0, 9.0], p50_ms=[1.23456])

    assert list(line)[:3] == ["id", "value", "unit"]
    assert list(line)[-2:] == ["machine", "version"]
    assert (line["value"], line["rounds"], line["p50_ms"]) == (3.0, [3.0, 2.0, 9.0], [1.2346])
    assert set(line["machine"]) == {"cores", "kernel", "python", "python_is_optimised", "sqlite", "load_before"}
    assert json.loads(json.dumps(line)) == line


def test_percentiles_are_measured_values() -> None:
    """They are not interpolated."""
    values = [float(number) for number in range(100, 0, -1)]

    assert [percentile(values, at) for at in (0, 50, 99, 100)] == [1.0, 51.0, 100.0, 100.0]
    assert percentile([7.0], 99) == 7.0
    assert rounded({"a": [(1, 0.123456)]}) == {"a": [[1, 0.1235]]}


def test_a_thread_that_ends_does_not_reduce_the_count_of_wakeups() -> None:
    """Its own count disappears with it."""
    before = Usage(1.0, {"1": 100, "2": 5_000})
    after = Usage(1.5, {"1": 103, "3": 4})

    assert after.since(before) == UsageDifference(0.5, 3 + 4 + 1)


def test_usage_is_read_from_a_process() -> None:
    first = read_usage(os.getpid())
    sum(range(200_000))
    difference = read_usage(os.getpid()).since(first)

    assert difference.cpu_seconds > 0
    assert difference.wakeups >= 0
    assert cpu_seconds(os.getpid()) >= first.cpu_seconds
    assert pss_mb(os.getpid()) > 1


# ── comparisons ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_compared_row_is_a_measure_and_can_be_chosen_with_only() -> None:
    assert {row.measure for row in compare.ROWS} <= {measure.name for measure in MEASURES}
    assert {row.id for row in compare.ROWS} >= {*["B1", "B2f", "B3", "B4", "B6", "B9", "B10", "B11", "B16", "backlog"]}
    assert [row.id for row in compare.rows_named("B11,B1")] == ["B1", "B11"]
    with pytest.raises(argparse.ArgumentTypeError, match="unknown: B99"):
        compare.rows_named("B1,B99")


def test_the_table_shows_the_median_of_the_rounds() -> None:
    before = [make_line(p50_ms=[number]) for number in (4.0, 9.0, 5.0)]
    after = [make_line(p50_ms=[number]) for number in (6.0, 5.5, 1.0)]
    (row,) = report.table_rows([B4], {"before": before, "after": after})

    assert row.cells == ("B4", "synchronous call, three steps, median", "5 ms", "5.5 ms", "1.10")


def test_a_share_of_bare_runs_is_shown_in_brackets() -> None:
    line = bench(name="run").line("run", "backlog_over_limit", 0.2554, jobs_per_second=[523.4])

    assert Row(BACKLOG, [line], [line]).cells[2:] == ("523/s (0.26)", "523/s (0.26)", "1.00")


def test_a_checkout_without_lines_is_not_measured_and_has_no_ratio() -> None:
    (row,) = report.table_rows([B4], {"before": [make_line()], "after": []})

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
def test_numbers_have_three_significant_digits_and_a_unit(value: float, unit: str, text: str) -> None:
    assert report.format_number(value, unit) == text


def test_the_description_names_both_commits_and_marks_small_sizes() -> None:
    commits = {"before": "aaa1111", "after": "bbb2222"}
    full = report.describe_run({"before": [], "after": [make_line()]}, commits, 3)
    quick = report.describe_run({"before": [], "after": [{**make_line(), "quick": True}]}, commits, 1)

    assert "before aaa1111, after bbb2222: 3 rounds, alternating" in full
    assert "Do not quote" not in full
    assert "Do not quote" in quick


def test_only_the_text_between_the_markers_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    head, tail = PAGE.read_text().partition(report.BEGIN)[0], PAGE.read_text().partition(report.END)[2]

    report.require_markers(page)
    for content in ("first", "second"):
        report.write_section(page, content)

    assert page.read_text() == f"{head}{report.BEGIN}\n\nsecond\n\n{report.END}{tail}"


def test_a_page_without_markers_is_refused_before_the_first_measure(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n{report.BEGIN}\n")
    result = run_script("bench", "compare", "--before", str(tmp_path), "--report", str(page))

    assert (result.returncode, result.stdout) == (1, "")
    assert report.END in result.stderr
    assert page.read_text() == f"# Page\n{report.BEGIN}\n"


def test_a_directory_that_is_not_a_checkout_is_refused(tmp_path: Path) -> None:
    result = run_script("bench", "compare", "--before", str(tmp_path))

    assert (result.returncode, result.stdout) == (1, "")
    assert "is not a checkout of Ductile" in result.stderr


def test_checkouts_of_both_layouts_have_a_module_that_builds_the_programs(tmp_path: Path) -> None:
    """`scripts/bench compare` runs older checkouts, whose benches have no `lib` folder."""
    (tmp_path / "scripts" / "benches").mkdir(parents=True)
    (tmp_path / "scripts" / "benches" / "bench.py").touch()

    assert Checkout(tmp_path).build_module == "scripts.benches.bench"
    assert THIS_CHECKOUT.build_module == "scripts.benches.lib.programs"


# ── progress and machine ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_remaining_time_is_scaled_by_the_run_time_so_far() -> None:
    """Before the first bench it is the sum of the estimates."""
    assert remaining_seconds([10, 20, 30], []) == 60
    assert remaining_seconds([10, 20, 30], [20]) == 100
    assert remaining_seconds([10, 20, 30], [20, 40, 60]) == 0
    assert (format_seconds(45), format_seconds(600)) == ("45 s", "10 min")


def test_the_estimates_stay_within_four_and_twenty_five_minutes() -> None:
    assert sum(bench.quick_seconds for bench in BENCHES) <= 4 * 60
    assert sum(bench.seconds for bench in BENCHES) <= 25 * 60


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        ({"CONFIG_ARGS": "'--enable-optimizations' '--with-lto'", "PGO_PROF_USE_FLAG": "-fprofile-use"}, "with"),
        ({"CONFIG_ARGS": "'--enable-optimizations=yes'"}, "with"),
        ({"CONFIG_ARGS": "'CFLAGS=-O3 -fprofile-use'", "PY_CORE_CFLAGS": "-O3 -fprofile-use"}, "with"),
        ({"CONFIG_ARGS": "'--prefix=/opt'", "PGO_PROF_USE_FLAG": "-fprofile-use -fprofile-correction"}, "without"),
        ({"CONFIG_ARGS": "'--disable-optimizations'", "PGO_PROF_USE_FLAG": "-fprofile-use"}, "without"),
        ({"CONFIG_ARGS": "'--prefix=/usr' '--enable-shared'", "PGO_PROF_USE_FLAG": ""}, "unknown"),
        ({}, "unknown"),
    ],
    ids=["option", "option with value", "compiler flags", "default", "disabled", "distribution", "no variables"],
)
def test_a_python_is_described_by_its_build_variables(build: dict[str, str], expected: str) -> None:
    """Debian optimises its Python and removes the flags, so the result is unknown there."""
    host = machine() | {"python": "3.11.2", "python_is_optimised": is_optimised(build)}
    descriptions = {
        "with": "Python 3.11.2, built with profile-guided optimisation",
        "without": "Python 3.11.2, built without profile-guided optimisation",
        "unknown": "Python 3.11.2",
    }

    assert report.describe_python(host) == descriptions[expected]
