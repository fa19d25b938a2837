"""What must be true of an installation, asked thoroughly and without changing anything, while it runs or not.

The ledger is read as one moment of it through a connection that cannot write. `system selfcheck` shows the answers.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from attrs import frozen

from ductile.core.errors import DuctileError
from ductile.ledger.reports import integrity
from ductile.ledger.storage.open_file import open_reader
from ductile.ledger.storage.path_checks import is_made


@frozen
class InvariantResult:
    """One invariant: its stable name, whether it holds, and what breaks it."""

    name: str
    ok: bool
    detail: str = ""


def check_ledger(path: Path, *, keep: timedelta | None, now: datetime) -> list[InvariantResult]:
    """Every invariant of the ledger at `path`; finished jobs are kept in the queue for `keep`."""
    verdicts: list[InvariantResult] = []
    try:
        if not is_made(path):
            return [InvariantResult("db_integrity", True, "there is no ledger yet: the first start makes it")]
        with open_reader(path) as db:
            verdicts.append(_verdict("db_integrity", (*integrity.pages_in_order(db), *integrity.references_kept(db))))
            if not verdicts[0].ok:
                return verdicts  # what a damaged file says of its rows means nothing
            verdicts.append(_verdict("db_schema", integrity.schema_as_made(db)))
            stale = integrity.stale_trees(db, keep=keep, now=now)
            verdicts.append(
                InvariantResult(
                    "queue_terminal_freshness", stale <= integrity.MOST_STALE, f"{stale} runs overdue to be forgotten"
                )
            )
            verdicts += [_verdict(name, rule(db)) for name, rule in integrity.rules().items()]
    except DuctileError as error:
        verdicts.append(InvariantResult("db_integrity", False, str(error)))
    return verdicts


def _verdict(name: str, breaches: Iterable[str]) -> InvariantResult:
    found = list(breaches)
    return InvariantResult(name, not found, "; ".join(found))
