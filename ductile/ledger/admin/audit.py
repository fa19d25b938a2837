"""The audit trail: the journal entries with an actor, newest first. Read-only."""

from datetime import datetime

from ductile.core.clock import to_text
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using
from ductile.ledger.tables import journal
from ductile.ledger.tables.journal import NEWEST, JournalEntry

# `uid:1000` also selects `uid:1000(alice)`.
ACTS = f"""
    SELECT {journal.COLUMNS} FROM journal {using("journal_acts")}
     WHERE actor IS NOT NULL AND seq < :before AND (:since IS NULL OR at >= :since)
       AND (:actor IS NULL OR actor = :actor OR substr(actor, 1, length(:actor) + 1) = :actor || '(')
     ORDER BY seq DESC LIMIT :limit
"""


def list_acts(
    db: Db, *, since: datetime | None = None, actor: str | None = None, before: int = NEWEST, limit: int = 50
) -> list[JournalEntry]:
    """Return the newest acts before position `before`, of one actor or of all (None)."""
    values = {"before": before, "since": to_text(since) if since else None, "actor": actor, "limit": limit}
    return journal.entries(db.execute(ACTS, values))
