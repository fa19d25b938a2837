"""A ledger with a past for commands that only look: made by the ledger's own functions, without a service."""

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ductile.ledger.storage.connections import transaction
from ductile.ledger.storage.open_file import open_writer
from ductile.ledger.tables import snapshots
from tests.ledger.conftest import Driver


class Past(Driver):
    """Plays producer and dispatcher; what it remembers of configurations is what the service would."""

    def __init__(self, db: Any) -> None:
        super().__init__(db)
        self.now = datetime.now(UTC)

    def loads(self, snapshot_id: str, config: dict[str, Any], *, fingerprints: dict[str, Any] | None = None) -> None:
        """The service has loaded this configuration."""
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
    """The ledger of a demo configuration, open for writing as long as the block lasts."""
    with closing(open_writer(home / "data" / "state.db")) as db:
        yield Past(db)
