"""plugin_facts: what plugins observed, appended for good; plugin_state: the view of it that plugins read.

Facts marked as mirrored replace the state; updates without a fact are merged into it key by key. What may be kept is
decided before anything is written. Called by `record` inside the transaction of a success.
"""

import json
import sqlite3
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.core.model import NewFact
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import as_bytes
from ductile.ledger.storage.sqlite_errors import is_of_one_row
from ductile.ledger.tables import journal

MOST_TOLD = 200
"""How many characters of a discarded state the journal repeats."""


@frozen(kw_only=True)
class Fact:
    """One stored observation."""

    id: int
    seq: int
    plugin_name: str
    fact_type: str
    job_id: str | None
    command: str | None
    fact_json: str
    created_at: datetime


def keep(
    db: Db,
    plugin: str,
    command: str,
    job_id: str,
    news: Sequence[NewFact],
    state_updates: str | None,
    *,
    now: datetime,
) -> None:
    """The facts are appended and the state follows them; the journal tells of a stored state that was no object."""
    for fact in news:
        _append(db, plugin, command, job_id, fact, now=now)
    after = _state_after(db, plugin, news, state_updates)
    if after.discarded is not None:
        data = {"reason": "the stored state was not a JSON object", "state": after.discarded[:MOST_TOLD]}
        journal.append(db, "state.discarded", now=now, plugin=plugin, job_id=job_id, data=data)
    if after.state is not None:
        _put_state(db, plugin, after.state, now=now)


def too_large(
    db: Db, plugin: str, news: Sequence[NewFact], state_updates: str | None, *, most_bytes: int
) -> str | None:
    """Why these facts or the state they lead to cannot be kept; None if they can."""
    new_state = _state_after(db, plugin, news, state_updates).state
    largest = max((len(text.encode()) for text in (*(fact.fact_json for fact in news), new_state or "")), default=0)
    return f"{largest} bytes of state, more than the {most_bytes} allowed" if largest > most_bytes else None


@frozen
class _After:
    """The state to be stored, if it changes, and the old text where that was no object to merge into."""

    state: str | None
    discarded: str | None = None


def _state_after(db: Db, plugin: str, news: Sequence[NewFact], state_updates: str | None) -> _After:
    mirrored = next((fact.fact_json for fact in reversed(news) if fact.mirrored), None)
    if state_updates is None:
        return _After(mirrored)
    old = mirrored or _stored(db, plugin)
    keys = _object(old)
    return _After(_merged(keys or {}, state_updates), old if keys is None else None)


def _merged(old: dict[str, Any], updates: str) -> str:
    """The keys of `updates` over those of `old`, one level deep."""
    return json.dumps({**old, **json.loads(updates)}, ensure_ascii=False, separators=(",", ":"))


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


NEXT_SEQ = "UPDATE storage_sequences SET value = value + 1 WHERE name = 'plugin_facts' RETURNING value"
APPEND = """
    INSERT INTO plugin_facts (seq, plugin_name, fact_type, job_id, command, fact_json, created_at)
    VALUES (?, ?, ?, ?, ?, ?, ?)
"""


def _append(db: Db, plugin: str, command: str, job_id: str, fact: NewFact, *, now: datetime) -> None:
    ((seq,),) = db.execute(NEXT_SEQ).fetchall()
    db.execute(APPEND, (seq, plugin, fact.fact_type, job_id, command, fact.fact_json, to_text(now)))


PUT_STATE = """
    INSERT INTO plugin_state (plugin_name, state, updated_at) VALUES (?, ?, ?)
    ON CONFLICT (plugin_name) DO UPDATE SET state = excluded.state, updated_at = excluded.updated_at
"""


def _put_state(db: Db, plugin: str, text: str, *, now: datetime) -> None:
    db.execute(PUT_STATE, (plugin, text, to_text(now)))


GET_STATE = "SELECT state FROM plugin_state WHERE plugin_name = ?"


def state(db: Db, plugin: str) -> str:
    """The plugin's state as JSON text; an empty object if it has none, or has something else than an object."""
    text = _stored(db, plugin)
    return text if text.lstrip().startswith("{") else "{}"


GET_BYTES = f"SELECT {as_bytes('state')} FROM plugin_state WHERE plugin_name = ?"


def _stored(db: Db, plugin: str) -> str:
    try:
        row: tuple[str] | None = db.execute(GET_STATE, (plugin,)).fetchone()
    except sqlite3.Error as error:
        if not is_of_one_row(error):
            raise
        # Text that is not UTF-8, as the original could store it: a job of the plugin is no reason to end the service.
        stored: bytes = db.execute(GET_BYTES, (plugin,)).fetchone()[0]
        return stored.decode("utf-8", "replace")
    return row[0] if row else "{}"


NEWEST = """
    SELECT id, seq, plugin_name, fact_type, job_id, command, fact_json, created_at FROM plugin_facts
     WHERE plugin_name = ? AND seq < ? ORDER BY seq DESC LIMIT ?
"""
NEWEST_OF_TYPE = """
    SELECT id, seq, plugin_name, fact_type, job_id, command, fact_json, created_at FROM plugin_facts
     WHERE plugin_name = ? AND fact_type = ? AND seq < ? ORDER BY seq DESC LIMIT ?
"""


def newest(db: Db, plugin: str, *, fact_type: str | None = None, before: int = 1 << 62, limit: int = 50) -> list[Fact]:
    """A plugin's facts, newest first."""
    if fact_type is None:
        rows = db.execute(NEWEST, (plugin, before, limit))
    else:
        rows = db.execute(NEWEST_OF_TYPE, (plugin, fact_type, before, limit))
    return [
        Fact(
            id=row[0],
            seq=row[1],
            plugin_name=row[2],
            fact_type=row[3],
            job_id=row[4],
            command=row[5],
            fact_json=row[6],
            created_at=from_text(row[7]),
        )
        for row in rows
    ]
