"""Checks of the invariants of the ledger, also while the service runs. Each also reports what passed.

Reads one consistent snapshot through a read-only connection. `ledger.storage.integrity` has the rules.
"""

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from ductile.core.errors import DuctileError
from ductile.ledger.storage import integrity
from ductile.ledger.storage.open_file import open_reader
from ductile.ledger.storage.path_checks import ledger_exists
from ductile.ops.checks.check import Finding, Installation, Severity


def check_invariants(installation: Installation) -> Iterator[Finding]:
    """Check every invariant. Stops at a damaged file, because its rows are not reliable."""
    examination = installation.loaded.examination
    retention = examination.config.settings.service.job_queue_retention if examination else None
    try:
        if not ledger_exists(installation.ledger):
            missing = "the ledger does not exist yet; the first start creates it"
            yield Finding("db_integrity", Severity.OK, missing)
            return
        with open_reader(installation.ledger) as db:
            damage = [*integrity.check_pages(db), *integrity.check_references(db)]
            yield _invariant("db_integrity", damage)
            if damage:
                return
            yield _invariant("db_schema", integrity.check_schema(db))
            stale = integrity.count_stale_trees(db, retention=retention or None, now=datetime.now(UTC))
            severity = Severity.OK if stale <= integrity.MAX_STALE_TREES else Severity.PROBLEM
            yield Finding("queue_terminal_freshness", severity, f"{stale} runs are past their retention")
            for name, rule in integrity.rules().items():
                yield _invariant(name, rule(db))
    except DuctileError as error:
        yield Finding("db_integrity", Severity.PROBLEM, str(error))


def _invariant(name: str, violations: Iterable[str]) -> Finding:
    found = list(violations)
    return Finding(name, Severity.PROBLEM if found else Severity.OK, "; ".join(found))
