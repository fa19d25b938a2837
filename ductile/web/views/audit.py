"""The audit trail as a JSON object, for the API and the command line."""

from datetime import datetime
from typing import Annotated, Any, TypedDict

from ductile.core.clock import to_text
from ductile.core.formats.json_schema import Keywords, Omittable, Ordinal, Timestamp, without_none
from ductile.ledger.reports.filters import MAX_PAGE_SIZE, format_cursor
from ductile.ledger.reports.journal_list import list_acts
from ductile.ledger.storage.db import Db
from ductile.ledger.tables.journal import JournalEntry


class ActView(TypedDict):
    """An action or an event of the service, with its actor."""

    seq: Ordinal
    at: Timestamp
    actor: Annotated[str, "token:NAME, uid:1000(alice), signal:SIGTERM or service"]
    kind: Annotated[str, "The journal kind, such as queue.paused"]
    plugin: Omittable[str]
    job_id: Omittable[str]
    data: Annotated[dict[str, Any], "The fields of the journal entry"]


class AuditView(TypedDict):
    acts: Annotated[list[ActView], Keywords(maxItems=MAX_PAGE_SIZE)]
    next_cursor: Annotated[str, "Value for ?cursor= of the next page; null on the last page"] | None


def audit_view(db: Db, *, since: datetime | None, actor: str | None, before: int, limit: int) -> AuditView:
    """Return a page of the audit trail, newest first."""
    found = list_acts(db, since=since, actor=actor, before=before, limit=limit + 1)
    acts = found[:limit]
    cursor = format_cursor(acts[-1].seq) if len(found) > limit else None
    return AuditView(acts=[_act(entry) for entry in acts], next_cursor=cursor)


def _act(entry: JournalEntry) -> ActView:
    content: ActView = {
        "seq": entry.seq,
        "at": to_text(entry.at),
        "actor": entry.actor or "",
        "kind": entry.kind,
        "plugin": entry.plugin,
        "job_id": entry.job_id,
        "data": entry.data,
    }
    return without_none(content)
