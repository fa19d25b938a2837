"""Take over the database of Plugboard: messages in the order in which they were stored, and how they were handled.

A message keeps its id, so an import can be repeated: what is there already is not written again.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from attrs import asdict, define, field, frozen

from ductile.core.clock import from_text, to_text, to_text_or_none
from ductile.core.errors import DuctileError
from ductile.core.message import (
    MAX_BODY_BYTES,
    MAX_HOPS,
    ClaimStatus,
    Message,
    MessageInvalid,
    MetadataInvalid,
    NewMessage,
    checked_message,
    checked_metadata,
)
from ductile.ledger.exchange.publish import INSERT_MESSAGE, insert_delivery
from ductile.ledger.exchange.rows import find_message, require_message
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal

BATCH = 500
"""Messages in one transaction."""
DECIDED = tuple(status.value for status in ClaimStatus if status.decides)
UNREADABLE_METADATA = "plugboard_metadata"
"""Holds the text of metadata that is no JSON object within the limits, cut to MAX_METADATA_CHARS."""
MAX_METADATA_CHARS = 8_192


class NotPlugboard(DuctileError):
    """The file is not a database of Plugboard."""

    code, exit_code, status = "not_plugboard", 78, 422
    hint = "Name the file of `plugboard --database`, usually .plugboard/plugboard.db."


@frozen
class SourceMessage:
    """A message of Plugboard with its claims, as the columns of its database."""

    fields: dict[str, Any] = field(repr=False)
    claims: tuple[dict[str, Any], ...] = field(repr=False)


@define
class ImportCounts:
    """The result of an import, so far."""

    messages: int = 0
    claims: int = 0
    ready: int = 0
    known: int = 0
    """Messages that an earlier import has written."""
    skipped: int = 0
    """Messages that the exchange cannot store."""
    first_problem: str | None = None


# ── the database of Plugboard ────────────────────────────────────────────────────────────────────────────────────────


def read_plugboard(path: Path) -> Iterator[list[SourceMessage]]:
    """Yield its messages in batches, in the order in which they were stored. Raises NotPlugboard."""
    try:
        with closing(_open(path)) as db:
            rows = db.execute("SELECT * FROM messages ORDER BY rowid")
            while batch := rows.fetchmany(BATCH):
                yield [SourceMessage(dict(row), _claims_of(db, row["id"])) for row in batch]
    except sqlite3.Error as error:
        raise NotPlugboard(f"{path}: {error}") from error


def count_plugboard(path: Path) -> int:
    """Return the number of its messages. Raises NotPlugboard."""
    try:
        with closing(_open(path)) as db:
            return int(db.execute("SELECT COUNT(*) FROM messages").fetchone()[0])
    except sqlite3.Error as error:
        raise NotPlugboard(f"{path}: {error}") from error


def _open(path: Path) -> sqlite3.Connection:
    """Open the database for reading. Raises NotPlugboard if its tables are others."""
    db = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True)
    try:
        db.row_factory = sqlite3.Row
        for table, name in (("messages", "id"), ("claims", "message_id")):
            columns = _columns(db, table)
            if name not in columns or "seq" in columns:  # a ledger of Ductile has the same tables with more columns
                raise NotPlugboard(f"{path}: there is no table {table} as Plugboard has it")
    except BaseException:
        db.close()
        raise
    return db


def _columns(db: sqlite3.Connection, table: str) -> set[str]:
    return {row["name"] for row in db.execute(f"PRAGMA table_info({table})")}


def _claims_of(db: sqlite3.Connection, message_id: str) -> tuple[dict[str, Any], ...]:
    rows = db.execute("SELECT * FROM claims WHERE message_id = ? ORDER BY rowid", (message_id,))
    return tuple(dict(row) for row in rows)


# ── the ledger ───────────────────────────────────────────────────────────────────────────────────────────────────────


def import_messages(db: Db, batch: list[SourceMessage], counts: ImportCounts, *, now: datetime, actor: str) -> None:
    """Write the messages of a batch that are not in the ledger yet, and count them."""
    for source in batch:
        if find_message(db, str(source.fields.get("id"))) is not None:
            counts.known += 1
            continue
        try:
            message, created_at = _checked(source.fields), from_text(str(source.fields.get("created_at")))
        except (MessageInvalid, ValueError) as error:
            counts.skipped += 1
            counts.first_problem = counts.first_problem or f"message {source.fields.get('id')}: {error}"
            continue
        _insert(db, source, message, created_at, counts, now=now, actor=actor)


def journal_import(db: Db, path: Path, counts: ImportCounts, *, now: datetime, actor: str) -> None:
    """Journal a complete import."""
    data = {"file": str(path), **asdict(counts)}
    journal.append(db, "messages.imported", now=now, data=data, actor=actor)


def _checked(fields: dict[str, Any]) -> NewMessage:
    """Return the message. Raises MessageInvalid for what the exchange cannot store."""
    return checked_message(
        topic=fields.get("topic"),
        body=fields.get("body"),
        conversation_id=fields.get("conversation_id"),
        parent_id=fields.get("parent_id"),
        producer=fields.get("producer"),
        metadata=_metadata(fields.get("metadata_json")),
        max_body_size=MAX_BODY_BYTES,
    )


def _metadata(text: Any) -> Any:
    try:
        return checked_metadata(text)
    except MetadataInvalid:
        return {UNREADABLE_METADATA: str(text)[:MAX_METADATA_CHARS]}


def _insert(
    db: Db,
    source: SourceMessage,
    new: NewMessage,
    created_at: datetime,
    counts: ImportCounts,
    *,
    now: datetime,
    actor: str,
) -> None:
    message_id = str(source.fields["id"])
    content = (message_id, new.topic, new.body, to_text(created_at), new.parent_id, new.conversation_id or message_id)
    about = (new.producer, new.metadata_json, None, _hops(db, new.parent_id), None, actor, False)
    db.execute(INSERT_MESSAGE, (*content, *about))
    message = require_message(db, message_id)
    decided = [claim for claim in source.claims if claim.get("status") in DECIDED]
    for delivery, claim in enumerate(decided, start=1):
        _insert_claim(db, message, claim, delivery, actor)
    if not decided:
        insert_delivery(db, message, now=now)
    counts.messages += 1
    counts.claims += len(decided)
    counts.ready += not decided


def _hops(db: Db, parent_id: str | None) -> int:
    parent = find_message(db, parent_id) if parent_id else None
    return 0 if parent is None else min(parent.hops + 1, MAX_HOPS)


INSERT_CLAIM = """
    INSERT INTO claims (id, message_id, topic, worker_group, worker_instance_id, claimed_at, lease_until, status,
                        completed_at, delivery, claimed_by)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


def _insert_claim(db: Db, message: Message, claim: dict[str, Any], delivery: int, actor: str) -> None:
    group = str(claim.get("worker_group") or claim.get("runner_name") or "plugboard")
    claimed_at = _moment(claim.get("claimed_at")) or message.created_at
    ended_at = _moment(claim.get("completed_at")) or claimed_at
    worker = (group, str(claim.get("worker_instance_id") or group))
    lease_until = to_text_or_none(_moment(claim.get("lease_until")))
    ended = (claim["status"], to_text(ended_at), delivery, actor)
    db.execute(
        INSERT_CLAIM, (str(claim["id"]), message.id, message.topic, *worker, to_text(claimed_at), lease_until, *ended)
    )


def _moment(text: Any) -> datetime | None:
    try:
        return from_text(str(text)) if text else None
    except ValueError:
        return None
