"""Pages of the journal."""

from datetime import timedelta

from ductile.ledger.reports.journal_list import list_journal
from ductile.ledger.storage.connections import transaction
from ductile.ledger.tables import journal
from tests.ledger.conftest import LedgerDriver


def fill(ledger: LedgerDriver) -> None:
    """Append a row each minute, alternately of two jobs and kinds."""
    for number in range(6):
        kind, job_id = ("job.held", "a") if number % 2 else ("queue.paused", "b")
        with transaction(ledger.db):
            journal.append(ledger.db, kind, now=ledger.now, data={"n": number}, plugin="echo", job_id=job_id)
        ledger.advance(minutes=1)


def test_rows_are_filtered_by_kind_job_plugin_and_time(ledger: LedgerDriver) -> None:
    """A `*` at the end of a kind is a wildcard. The newest row is first."""
    start = ledger.now
    fill(ledger)

    def found(**wanted: object) -> list[int]:
        return [row.data["n"] for row in list_journal(ledger.db, **wanted).items]  # type: ignore[arg-type]

    assert found() == [5, 4, 3, 2, 1, 0]
    assert found(kinds=("job.held",)) == found(kinds=("job.*",)) == found(job_id="a") == [5, 3, 1]
    assert found(kinds=("job.held", "queue.*")) == found(plugin="echo") == [5, 4, 3, 2, 1, 0]
    assert found(plugin="other") == found(kinds=("schedule.late",)) == []
    assert found(since=start + timedelta(minutes=2), until=start + timedelta(minutes=4)) == [3, 2]


def test_pages_have_every_row_once(ledger: LedgerDriver) -> None:
    fill(ledger)
    first = list_journal(ledger.db, limit=4)
    second = list_journal(ledger.db, limit=4, before=first.next_before or 0)
    assert [row.data["n"] for row in (*first.items, *second.items)] == [5, 4, 3, 2, 1, 0]
    assert (first.total, second.next_before) == (6, None)
