"""Ledgers with past jobs, built with the functions of the ledger, without a service."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ductile.ledger.storage.connections import transaction
from ductile.ledger.storage.open_file import open_writer
from ductile.ledger.tables import snapshots
from tests.ledger.conftest import LedgerDriver


class Past(LedgerDriver):
    """Enqueues, claims and ends jobs, and stores configuration snapshots."""

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.now = datetime.now(UTC)

    def loads(self, snapshot_id: str, config: dict[str, Any], *, fingerprints: dict[str, Any] | None = None) -> None:
        """Store a configuration snapshot, as a start of the service does."""
        row = snapshots.StoredSnapshot(
            id=snapshot_id,
            config_hash=snapshot_id,
            loaded_at=self.now,
            reason="start",
            sanitized_config=json.dumps(config),
            plugin_fingerprints=json.dumps(fingerprints or {}),
            secret_fingerprints="{}",
        )
        with transaction(self.db):
            snapshots.put(self.db, row)


@contextmanager
def past_of(home: Path) -> Iterator[Past]:
    """Open the ledger of a demo configuration for writing."""
    with closing(open_writer(home / "data" / "state.db")) as db:
        yield Past(db)
