"""config_snapshots: the configurations that jobs ran under, without secrets."""

from datetime import datetime

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.ledger.storage.db import Db


@frozen(kw_only=True)
class StoredSnapshot:
    """A loaded configuration. Texts are JSON without secrets."""

    id: str
    config_hash: str
    loaded_at: datetime
    reason: str
    source_hash: str | None = None
    source_path: str | None = None
    source: str | None = None
    ductile_version: str | None = None
    binary_path: str | None = None
    snapshot_format: int = 1
    semantics: str | None = None
    plugin_fingerprints: str | None = None
    sanitized_config: str | None = None
    secret_fingerprints: str | None = None
    sealed_at: str | None = None
    sealed_by: str | None = None
    """When and by whom the files were sealed; None without a seal, or if the seal has no actor."""


_COLUMNS = """id, config_hash, loaded_at, reason, source_hash, source_path, source, ductile_version, binary_path,
    snapshot_format, semantics, plugin_fingerprints, sanitized_config, secret_fingerprints, sealed_at,
    sealed_by"""
PUT = f"INSERT INTO config_snapshots ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


def put(db: Db, new: StoredSnapshot) -> None:
    """Store the snapshot. Retention keeps it while a job refers to it and while it is the newest."""
    db.execute(
        PUT,
        (
            new.id,
            new.config_hash,
            to_text(new.loaded_at),
            new.reason,
            new.source_hash,
            new.source_path,
            new.source,
            new.ductile_version,
            new.binary_path,
            new.snapshot_format,
            new.semantics,
            new.plugin_fingerprints,
            new.sanitized_config,
            new.secret_fingerprints,
            new.sealed_at,
            new.sealed_by,
        ),
    )


GET = f"SELECT {_COLUMNS} FROM config_snapshots WHERE id = ?"
NEWEST = f"SELECT {_COLUMNS} FROM config_snapshots ORDER BY loaded_at DESC LIMIT 1"

LOADED_BEFORE = f"SELECT {_COLUMNS} FROM config_snapshots WHERE loaded_at <= ? ORDER BY loaded_at DESC LIMIT 1"


def get(db: Db, snapshot_id: str) -> StoredSnapshot | None:
    return _snapshot(db.execute(GET, (snapshot_id,)).fetchone())


def newest(db: Db) -> StoredSnapshot | None:
    """Return the configuration that was loaded last."""
    return _snapshot(db.execute(NEWEST).fetchone())


def loaded_before(db: Db, at: datetime) -> StoredSnapshot | None:
    """Return the last configuration that was loaded until `at`."""
    return _snapshot(db.execute(LOADED_BEFORE, (to_text(at),)).fetchone())


LATEST = """
    SELECT id, config_hash, loaded_at, reason, source_path, ductile_version, plugin_fingerprints FROM config_snapshots
     WHERE loaded_at < ? ORDER BY loaded_at DESC LIMIT ?
"""


def latest(db: Db, *, before: datetime | None, limit: int) -> list[StoredSnapshot]:
    """Return the newest snapshots that were loaded before a time, newest first, without their settings."""
    rows = db.execute(LATEST, (to_text(before) if before else _END_OF_TIME, limit))
    return [
        StoredSnapshot(
            id=row[0],
            config_hash=row[1],
            loaded_at=from_text(row[2]),
            reason=row[3],
            source_path=row[4],
            ductile_version=row[5],
            plugin_fingerprints=row[6],
        )
        for row in rows
    ]


_END_OF_TIME = "A"
"""Later than every timestamp."""
FIND = "SELECT id FROM config_snapshots WHERE substr(id, 1, length(?1)) = ?1 ORDER BY loaded_at DESC LIMIT 2"


def find_ids(db: Db, prefix: str) -> list[str]:
    """Return the ids that begin with the prefix, at most two."""
    return [snapshot_id for (snapshot_id,) in db.execute(FIND, (prefix,))]


def _snapshot(row: tuple[str, ...] | None) -> StoredSnapshot | None:
    if row is None:
        return None
    return StoredSnapshot(
        id=row[0],
        config_hash=row[1],
        loaded_at=from_text(row[2]),
        reason=row[3],
        source_hash=row[4],
        source_path=row[5],
        source=row[6],
        ductile_version=row[7],
        binary_path=row[8],
        snapshot_format=int(row[9]),
        semantics=row[10],
        plugin_fingerprints=row[11],
        sanitized_config=row[12],
        secret_fingerprints=row[13],
        sealed_at=row[14],
        sealed_by=row[15],
    )
