"""`ductile webhook` without a service: what is on record."""

from pathlib import Path

from tests.cli.conftest import Run
from tests.cli.history import past_of


def test_no_refusal_on_record_does_not_mean_that_there_was_none(run: Run, demo: Path) -> None:
    """They are written together, up to a minute later; who looks for one must not stop here."""
    with past_of(demo):
        pass
    told = run("webhook", "receipts", "github", "--refused", "--config", demo)

    assert told.exit_code == 0
    assert "up to a minute later" in told.stdout
