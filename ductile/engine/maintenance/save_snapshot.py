"""Store the configuration in the ledger: sanitised, with fingerprints of plugins and secrets.

Done at start and at every reload, before a job is claimed under that configuration.
"""

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from ductile import __version__
from ductile.config.load.redaction import redact_settings, to_plain_data
from ductile.config.snapshot import Snapshot
from ductile.core.formats import strict_json
from ductile.core.secret import FINGERPRINT, Secret
from ductile.ledger.admin import service_log
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import snapshots

if TYPE_CHECKING:
    from ductile.ledger.storage.async_ledger import Ledger


async def save_snapshot(
    ledger: "Ledger", snapshot: Snapshot, *, reason: str, now: datetime, reloaded_by: str | None = None
) -> None:
    """Store the configuration under the snapshot id that its jobs refer to, and journal a reload with its actor."""
    await ledger.write(_put, snapshot_row(snapshot, reason=reason, now=now), reloaded_by)


def _put(db: Db, row: snapshots.StoredSnapshot, reloaded_by: str | None) -> None:
    if reloaded_by is not None:
        service_log.journal_reload(db, row, actor=reloaded_by)
    snapshots.put(db, row)


def snapshot_row(snapshot: Snapshot, *, reason: str, now: datetime) -> snapshots.StoredSnapshot:
    """Return the row to store for a configuration."""
    config = snapshot.config
    fingerprints = {name: attrs.asdict(configured.plugin.fingerprint) for name, configured in snapshot.plugins.items()}
    secrets = dict(_secrets(to_plain_data(config.settings, hide=Secret.fingerprint)))
    return snapshots.StoredSnapshot(
        id=snapshot.id,
        config_hash=config.digest,
        source_hash=config.source_digest,
        source_path=str(config.root),
        source="files",
        reason=reason,
        loaded_at=now,
        ductile_version=__version__,
        binary_path=sys.executable,
        semantics=strict_json.dumps({name: plan.fingerprint for name, plan in snapshot.plans.by_name.items()}),
        plugin_fingerprints=strict_json.dumps(to_plain_data(fingerprints, hide=Secret.fingerprint)),
        sanitized_config=strict_json.dumps(redact_settings(config.settings, config.mask)),
        secret_fingerprints=strict_json.dumps(secrets),
    )


def _secrets(data: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the fingerprint of every secret."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from _secrets(value, f"{at}.{name}" if at else str(name))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _secrets(value, f"{at}[{index}]")
    elif isinstance(data, str) and data.startswith(FINGERPRINT):
        yield at, data
