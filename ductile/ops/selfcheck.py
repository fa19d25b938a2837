"""Check the invariants of a ledger for `system selfcheck`, also while the service runs.

Reads one consistent snapshot through a read-only connection. `ledger.reports.integrity` has the rules.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from attrs import frozen

from ductile.core.errors import DuctileError
from ductile.ledger.storage import integrity
from ductile.ledger.storage.open_file import open_reader
from ductile.ledger.storage.path_checks import ledger_exists


@frozen
class InvariantResult:
    """The result of checking an invariant: its stable name and the violations."""

    name: str
    ok: bool
    detail: str = ""


def check_ledger(path: Path, *, retention: timedelta | None, now: datetime) -> list[InvariantResult]:
    """Check every invariant of the ledger at `path`. `retention` applies to finished jobs; None is unlimited."""
    results: list[InvariantResult] = []
    try:
        if not ledger_exists(path):
            return [InvariantResult("db_integrity", True, "the ledger does not exist yet; the first start creates it")]
        with open_reader(path) as db:
            results.append(_result("db_integrity", (*integrity.check_pages(db), *integrity.check_references(db))))
            if not results[0].ok:
                return results  # rows of a damaged file are not reliable
            results.append(_result("db_schema", integrity.check_schema(db)))
            stale = integrity.count_stale_trees(db, retention=retention, now=now)
            results.append(
                InvariantResult(
                    "queue_terminal_freshness",
                    stale <= integrity.MAX_STALE_TREES,
                    f"{stale} runs are past their retention",
                )
            )
            results += [_result(name, rule(db)) for name, rule in integrity.rules().items()]
    except DuctileError as error:
        results.append(InvariantResult("db_integrity", False, str(error)))
    return results


def _result(name: str, violations: Iterable[str]) -> InvariantResult:
    found = list(violations)
    return InvariantResult(name, not found, "; ".join(found))
