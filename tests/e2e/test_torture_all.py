"""`scripts/torture failpoints` at a small size, and the table of `scripts/torture all`."""

import os
from pathlib import Path

import pytest
from attrs import evolve

from ductile.core.instance.failpoints import NAMES
from scripts.tortures import failpoints
from scripts.tortures.all import (
    BEGIN,
    END,
    ProgramResult,
    markdown_table,
    require_markers,
    run_program,
    write_between_markers,
)
from scripts.tortures.lib.instance import build_plugin_program
from scripts.tortures.programs import BY_NAME
from tests.e2e.torture_runs import run_torture

ROOT = Path(failpoints.__file__).parents[2]
SOAK = BY_NAME["soak"]
SUMMARY = {"torture": "soak", "runs": 1000, "growth_percent": 1.2, "violations": {"memory": 0}}


@pytest.mark.timeout(60)
def test_a_death_at_a_failpoint_violates_no_invariant() -> None:
    """test_torture_failpoints.py covers every failpoint."""
    run = run_torture("failpoints", "--runs", "1", "--only", "record.after_facts")

    assert (run.exit_code, run.violations) == (0, {}), run.stderr


def test_every_failpoint_is_called_in_the_source() -> None:
    """A name without a call could never be reached."""
    source = "".join(path.read_text() for path in ROOT.glob("ductile/**/*.py"))

    assert len(NAMES) >= 26
    assert [name for name in sorted(NAMES) if f'failpoint("{name}")' not in source] == []


@pytest.mark.timeout(60)
def test_a_failpoint_that_is_never_reached_is_a_violation(tmp_path: Path) -> None:
    """A death that did not happen proves nothing."""
    found = failpoints.die(tmp_path, failpoints.Passage("nowhere.at_all"), build_plugin_program(tmp_path))

    assert [rule for rule, violations in found.items() if violations] == [failpoints.NEVER_REACHED]


# ── the table ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (ProgramResult(SOAK, 0, 9.0, SUMMARY), "0"),
        (ProgramResult(SOAK, 1, 9.0, {**SUMMARY, "violations": {"memory": 1, "log": 2}}), "3"),
        (ProgramResult(SOAK, os.EX_NOPERM, 0.1, last_line="needs root"), "not possible here: needs root"),
        (ProgramResult(SOAK, 2, 0.1, last_line="KeyError"), "failed: KeyError"),
    ],
)
def test_a_row_has_the_number_of_violations_or_the_reason_why_there_is_none(
    result: ProgramResult, verdict: str
) -> None:
    """A test that did not run never has a zero."""
    assert result.verdict == verdict
    assert f"| {verdict} |" in markdown_table([result], full=True, seed=1)


def test_a_test_that_fails_to_run_does_not_count_as_passed() -> None:
    """Its exit code and its last line are the result."""
    result = run_program(evolve(SOAK, name="nonsense"), full=False, seed=1, leniency=1.0)

    assert result.code not in (0, os.EX_NOPERM)
    assert result.verdict.startswith("failed: ")


def test_the_table_replaces_what_is_between_the_markers(tmp_path: Path) -> None:
    """The rest of the file is unchanged."""
    report = tmp_path / "report.md"
    report.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")

    for _ in range(2):
        write_between_markers(report, markdown_table([ProgramResult(SOAK, 0, 9.0, SUMMARY)], full=False, seed=7))

    text = report.read_text()
    assert text.startswith(f"before\n{BEGIN}\n`scripts/torture all --seed 7` on ")
    assert text.endswith(f"| `soak` | runs 1,000; growth percent 1.2 | 0 | 9 s |\n{END}\nafter\n")
    assert "old" not in text


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}\n{BEGIN}", f"{BEGIN}\n{BEGIN}\n{END}"])
def test_a_report_without_markers_is_refused_before_any_test_runs(tmp_path: Path, text: str) -> None:
    """Otherwise hours of work could not be stored."""
    report = tmp_path / "report.md"
    report.write_text(text)

    with pytest.raises(SystemExit, match="the table goes between"):
        require_markers(report)


def test_the_reliability_page_has_the_markers() -> None:
    """`--report docs/reliability.md` works."""
    require_markers(ROOT / "docs" / "reliability.md")


def test_an_alias_selects_the_same_test() -> None:
    """`eio` is `io`."""
    assert BY_NAME["eio"] is BY_NAME["io"]
