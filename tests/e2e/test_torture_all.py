"""`scripts/torture failpoints` and `all`: a share of the one, and what the other makes of all results."""

import os
from pathlib import Path

import pytest
from attrs import evolve

from ductile.core.instance.failpoints import NAMES
from scripts.tortures import failpoints
from scripts.tortures.arena import build_actor
from scripts.tortures.everything import BEGIN, END, Result, keep, require_marks, table, tortured
from scripts.tortures.programs import PROGRAMS
from tests.e2e.tortured import torture

SOAK = next(program for program in PROGRAMS if program.name == "soak")
SUMMARY = {"torture": "soak", "runs": 1000, "growth_percent": 1.2, "violations": {"memory": 0}}


@pytest.mark.timeout(60)
def test_a_death_at_a_place_breaks_no_promise() -> None:
    """One of many; tests/e2e/test_failpoints.py goes through them all."""
    done = torture("failpoints", "--runs", "1", "--only", "record.after_facts")

    assert (done.code, done.broken) == (0, {}), done.said


def test_there_are_as_many_places_as_were_promised() -> None:
    """Places in the core, by name; each is a call in its source."""
    source = "".join(path.read_text() for path in Path(failpoints.__file__).parents[2].glob("ductile/**/*.py"))

    assert len(NAMES) >= 26
    assert [name for name in sorted(NAMES) if f'failpoint("{name}")' not in source] == []


@pytest.mark.timeout(60)
def test_a_place_that_is_never_reached_is_noticed(tmp_path: Path) -> None:
    """A death that did not happen there proves nothing."""
    found = failpoints.die(tmp_path, failpoints.Passage("nowhere.at_all"), build_actor(tmp_path))

    assert [rule for rule, violations in found.items() if violations] == [failpoints.NEVER_REACHED]


# ── all of them ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (Result(SOAK, 0, 9.0, SUMMARY), "0"),
        (Result(SOAK, 1, 9.0, {**SUMMARY, "violations": {"memory": 1, "log": 2}}), "3"),
        (Result(SOAK, os.EX_NOPERM, 0.1, said="needs root"), "not possible here: needs root"),
        (Result(SOAK, 2, 0.1, said="KeyError"), "broke: KeyError"),
    ],
)
def test_a_row_says_what_was_broken_or_why_that_is_not_known(result: Result, verdict: str) -> None:
    """Never a zero for something that did not run."""
    assert result.verdict == verdict
    assert f"| {verdict} |" in table([result], full=True, seed=1)


def test_a_torture_that_breaks_is_not_one_that_found_nothing() -> None:
    """Its exit code and its last words are the result."""
    result = tortured(evolve(SOAK, name="nonsense"), full=False, seed=1, leniency=1.0)

    assert result.code not in (0, os.EX_NOPERM)
    assert result.verdict.startswith("broke: ")


def test_the_table_is_kept_between_its_marks(tmp_path: Path) -> None:
    """The rest of the file stays; the next table replaces this one."""
    report = tmp_path / "report.md"
    report.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")

    for _ in range(2):
        keep(report, table([Result(SOAK, 0, 9.0, SUMMARY)], full=False, seed=7))

    text = report.read_text()
    assert text.startswith(f"before\n{BEGIN}\n`scripts/torture all --seed 7` on ")
    assert text.endswith(f"| `soak` | runs 1,000; growth percent 1.2 | 0 | 9 s |\n{END}\nafter\n")
    assert "old" not in text


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}\n{BEGIN}", f"{BEGIN}\n{BEGIN}\n{END}"])
def test_a_file_without_marks_is_refused_before_anything_is_done(tmp_path: Path, text: str) -> None:
    """Hours of work must have a place to go."""
    report = tmp_path / "report.md"
    report.write_text(text)

    with pytest.raises(SystemExit, match="the table goes between"):
        require_marks(report)


def test_the_document_has_the_place_for_the_table() -> None:
    """`--report docs/reliability.md` works."""
    require_marks(Path(failpoints.__file__).parents[2] / "docs" / "reliability.md")
