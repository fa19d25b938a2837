"""Every reason code has one sentence, and the documentation has every code."""

import ast
import re
from pathlib import Path

import ductile
from ductile.calendar.reasons import SkipReason
from ductile.core.model import OutcomeCode
from ductile.explain.sentences import DECISIONS, MESSAGES, OUTCOMES, RUNNING, RUNS, SENTENCES, WAITING, sentence
from ductile.ledger.reports import event_lineage

PACKAGE = Path(ductile.__file__).parent
OPERATIONS = (PACKAGE.parent / "docs" / "operations.md").read_text()


def test_every_code_that_can_be_stored_has_a_sentence() -> None:
    assert set(OUTCOMES) == set(OutcomeCode)


def test_every_code_of_a_job_and_of_a_message_is_documented() -> None:
    """docs/operations.md has a table of what keeps a job, one of how a job ended, and one of messages."""
    codes = {*OUTCOMES, *RUNNING, *WAITING, *RUNS, *MESSAGES}
    assert sorted(str(code) for code in codes if f"`{code}`" not in OPERATIONS) == []


def test_every_reason_that_explain_creates_has_a_sentence() -> None:
    """Literal codes only: the others come from the ledger and are outcomes, or kinds of decisions about events."""
    created = {
        node.args[0].value
        for path in (PACKAGE / "explain").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("Reason", "_unknown")
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    assert {"ready", "running", "run_failed", "fired", "slot_forgotten", "event_matched", "ready_behind"} <= created
    assert sorted(str(code) for code in created - SENTENCES.keys()) == []


def test_every_decision_about_an_event_has_a_sentence() -> None:
    assert set(DECISIONS) == {*event_lineage.KINDS, "job.deduplicated", "event.withheld"}


def test_a_sentence_does_not_interpret_its_data() -> None:
    """Braces in an error are part of the error."""
    assert sentence("final", {"error": "{code} {0}"}).endswith(": {code} {0}")


def test_the_sentence_of_an_outcome_needs_no_data() -> None:
    """A row of another version may lack some."""
    assert [code for code in OUTCOMES if not sentence(code, {})] == []


def test_every_skip_reason_has_a_sentence() -> None:
    missing = [reason for reason in SkipReason if not sentence("slot_skipped", {"reason": reason})]
    assert missing == []


def test_no_module_parses_sentences() -> None:
    """Only the migration to schema 2 reads facts back from the text of an error, once for each old row."""
    openings = ("attempts used up", "deduplicated: ", "cancelled: ", "not joined: ", "core restart")
    parsing = re.compile(r"(?:re\.compile|startswith|removeprefix|fullmatch|re\.match|re\.search)\(.*")
    found = [
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "migrations"
        for line in path.read_text().splitlines()
        if (match := parsing.search(line)) and any(opening in match[0] for opening in openings)
    ]
    assert found == []


def test_explain_knows_no_terminal() -> None:
    """The layer test keeps it from `ductile.cli` and `ductile.web`; this one from click."""
    found = [
        path.name for path in (PACKAGE / "explain").rglob("*.py") if re.search(r"\bimport click\b", path.read_text())
    ]
    assert found == []
