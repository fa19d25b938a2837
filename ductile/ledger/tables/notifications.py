"""notification_groups: when the last message about a signal was sent, and how many are held since. One row per group.

The position in the journal up to which signals were handled is in storage_sequences. Both change in the transaction
that creates the job of a message, so that a restart sends nothing twice.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text, from_text_or_none, to_text
from ductile.core.formats import strict_json
from ductile.ledger.storage.db import Db


@frozen(kw_only=True)
class NotificationGroup:
    """The messages about one signal of one subject. `last` is the payload of the latest held signal."""

    signal: str
    subject: str
    sent_at: datetime
    held: int = 0
    last: Mapping[str, Any]


GET = "SELECT signal, subject, sent_at, held, last FROM notification_groups WHERE signal = ? AND subject = ?"


def get(db: Db, signal: str, subject: str) -> NotificationGroup | None:
    row = db.execute(GET, (signal, subject)).fetchone()
    return _group(row) if row else None


PUT = """
    INSERT INTO notification_groups (signal, subject, sent_at, held, last) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (signal, subject) DO UPDATE
       SET sent_at = excluded.sent_at, held = excluded.held, last = excluded.last
"""


def put(db: Db, group: NotificationGroup) -> None:
    """Store the group, or replace it."""
    text = strict_json.dumps(dict(group.last))
    db.execute(PUT, (group.signal, group.subject, to_text(group.sent_at), group.held, text))


# A message in the future was sent before the clock was set back. Its interval is over.
_INTERVAL_IS_OVER = "(sent_at <= ? OR sent_at > ?)"
DUE = f"""
    SELECT signal, subject, sent_at, held, last FROM notification_groups
     WHERE held > 0 AND {_INTERVAL_IS_OVER} ORDER BY sent_at, signal, subject
"""


def due_groups(db: Db, *, now: datetime, every: timedelta) -> list[NotificationGroup]:
    """Return the groups that hold signals and whose last message is an interval old, oldest first."""
    return [_group(row) for row in db.execute(DUE, (to_text(now - every), to_text(now))).fetchall()]


OLDEST_WITH_HELD = "SELECT MIN(sent_at) FROM notification_groups WHERE held > 0"


def oldest_with_held(db: Db) -> datetime | None:
    """Return the time of the oldest message whose group holds signals."""
    return from_text_or_none(db.execute(OLDEST_WITH_HELD).fetchone()[0])


DELETE_OLD = f"DELETE FROM notification_groups WHERE held = 0 AND {_INTERVAL_IS_OVER}"


def delete_old(db: Db, *, now: datetime, every: timedelta) -> None:
    """Delete the groups without held signals whose last message is an interval old."""
    db.execute(DELETE_OLD, (to_text(now - every), to_text(now)))


GET_POSITION = "SELECT value FROM storage_sequences WHERE name = 'notifications'"


def position(db: Db) -> int | None:
    """Return the position in the journal up to which signals were handled; None without notifications."""
    row = db.execute(GET_POSITION).fetchone()
    return row[0] if row else None


SET_POSITION = """
    INSERT INTO storage_sequences (name, value) VALUES ('notifications', ?)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""


def set_position(db: Db, seq: int) -> None:
    db.execute(SET_POSITION, (seq,))


DELETE_GROUPS = "DELETE FROM notification_groups"
DELETE_POSITION = "DELETE FROM storage_sequences WHERE name = 'notifications'"


def forget(db: Db) -> None:
    """Delete groups and position, so that notifications that are configured later begin with new signals."""
    db.execute(DELETE_GROUPS)
    db.execute(DELETE_POSITION)


def _group(row: tuple[Any, ...]) -> NotificationGroup:
    return NotificationGroup(
        signal=row[0], subject=row[1], sent_at=from_text(row[2]), held=row[3], last=json.loads(row[4])
    )
