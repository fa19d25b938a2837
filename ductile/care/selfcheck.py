"""What must be true of an installation, asked thoroughly and without changing anything, while it runs or not.

The ledger is read as one moment of it through a connection that cannot write. `system selfcheck` shows the answers.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

from attrs import frozen

from ductile.errors import DuctileError
from ductile.ledger import soundness
from ductile.ledger.location import is_made
from ductile.ledger.store import open_reader


@frozen
class Verdict:
    """One invariant: its stable name, whether it holds, and what breaks it."""

    name: str
    ok: bool
    detail: str = ""


def check_ledger(path: Path, *, keep: timedelta | None, now: datetime) -> list[Verdict]:
    """Every invariant of the ledger at `path`; finished jobs are kept in the queue for `keep`."""
    verdicts: list[Verdict] = []
    try:
        if not is_made(path):
            return [Verdict("db_integrity", True, "there is no ledger yet: the first start makes it")]
        with open_reader(path) as db:
            verdicts.append(_verdict("db_integrity", (*soundness.pages_in_order(db), *soundness.references_kept(db))))
            if not verdicts[0].ok:
                return verdicts  # what a damaged file says of its rows means nothing
            verdicts.append(_verdict("db_schema", soundness.schema_as_made(db)))
            stale = soundness.stale_trees(db, keep=keep, now=now)
            verdicts.append(
                Verdict(
                    "queue_terminal_freshness", stale <= soundness.MOST_STALE, f"{stale} runs overdue to be forgotten"
                )
            )
            verdicts += [_verdict(name, rule(db)) for name, rule in soundness.rules().items()]
    except DuctileError as error:
        verdicts.append(Verdict("db_integrity", False, str(error)))
    return verdicts


def _verdict(name: str, breaches: Iterable[str]) -> Verdict:
    found = list(breaches)
    return Verdict(name, not found, "; ".join(found))
