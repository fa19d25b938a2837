"""plugin_facts: observations of plugins, append-only. plugin_state: the state that plugins read.

A mirrored fact replaces the state; state updates are merged into it key by key. Written in the transaction that records
a success. Size limits are checked before, with `size_error`.
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
from ductile.ledger.storage.sqlite_errors import is_row_fault
from ductile.ledger.tables import journal

MAX_DISCARDED_CHARACTERS = 200
"""Of a discarded state that is copied into the journal."""


@frozen(kw_only=True)
class Fact:
    """A stored observation."""

    id: int
    seq: int
    plugin_name: str
    fact_type: str
    job_id: str | None
    command: str | None
    fact_json: str
    created_at: datetime


def store(
    db: Db,
    plugin: str,
    command: str,
    job_id: str,
    new_facts: Sequence[NewFact],
    state_updates: str | None,
    *,
    now: datetime,
) -> None:
    """Append the facts and update the state. If the stored state was not a JSON object, journal it and discard it."""
    for fact in new_facts:
        _append(db, plugin, command, job_id, fact, now=now)
    next_state = _next_state(db, plugin, new_facts, state_updates)
    if next_state.discarded is not None:
        data = {
            "reason": "the stored state was not a JSON object",
            "state": next_state.discarded[:MAX_DISCARDED_CHARACTERS],
        }
        journal.append(db, "state.discarded", now=now, plugin=plugin, job_id=job_id, data=data)
    if next_state.state is not None:
        _put_state(db, plugin, next_state.state, now=now)


def size_error(
    db: Db, plugin: str, new_facts: Sequence[NewFact], state_updates: str | None, *, max_bytes: int
) -> str | None:
    """Return why these facts or the resulting state are too large to store; None if they are not."""
    new_state = _next_state(db, plugin, new_facts, state_updates).state
    largest = max(
        (len(text.encode()) for text in (*(fact.fact_json for fact in new_facts), new_state or "")), default=0
    )
    return f"{largest} bytes of state, more than the {max_bytes} allowed" if largest > max_bytes else None


@frozen
class _NextState:
    """The state to store, None if unchanged, and the old text if it was not an object to merge into."""

    state: str | None
    discarded: str | None = None


def _next_state(db: Db, plugin: str, new_facts: Sequence[NewFact], state_updates: str | None) -> _NextState:
    mirrored = next((fact.fact_json for fact in reversed(new_facts) if fact.mirrored), None)
    if state_updates is None:
        return _NextState(mirrored)
    old = mirrored or _read_state(db, plugin)
    keys = _parse_object(old)
    return _NextState(_merge(keys or {}, state_updates), old if keys is None else None)


def _merge(old: dict[str, Any], updates: str) -> str:
    """Merge the keys of `updates` into `old`, one level deep."""
    return json.dumps({**old, **json.loads(updates)}, ensure_ascii=False, separators=(",", ":"))


def _parse_object(text: str) -> dict[str, Any] | None:
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
    """Return the plugin's state as JSON text; an empty object if it has none or none that is an object."""
    text = _read_state(db, plugin)
    return text if text.lstrip().startswith("{") else "{}"


GET_BYTES = f"SELECT {as_bytes('state')} FROM plugin_state WHERE plugin_name = ?"


def _read_state(db: Db, plugin: str) -> str:
    try:
        row: tuple[str] | None = db.execute(GET_STATE, (plugin,)).fetchone()
    except sqlite3.Error as error:
        if not is_row_fault(error):
            raise
        # Text that is not UTF-8, which the original could store. It must not stop the service.
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
    """Return the plugin's facts, newest first."""
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
