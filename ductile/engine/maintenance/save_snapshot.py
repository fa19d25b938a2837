"""Store the configuration in the ledger: sanitised, with fingerprints of plugins and secrets.

Done at start and at every reload, before a job is claimed under that configuration.
"""

import sys
from datetime import datetime
from typing import TYPE_CHECKING

import attrs

from ductile import __version__
from ductile.config.load.redaction import redact_settings, to_plain_data
from ductile.config.snapshot import Snapshot
from ductile.config.views.secret_uses import secret_uses
from ductile.core.formats import strict_json
from ductile.core.secret import Secret
from ductile.explain.changes import MAX_CHANGES, compare_configurations
from ductile.ledger.admin import service_log
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal, snapshots

if TYPE_CHECKING:
    from ductile.ledger.storage.async_ledger import Ledger


async def save_snapshot(
    ledger: "Ledger", snapshot: Snapshot, *, reason: str, now: datetime, reloaded_by: str | None = None
) -> None:
    """Store the configuration under the snapshot id that its jobs refer to.

    Journals an edit and a reload with their actors, and the tokens whose scope file cannot be used.
    """
    row, grants = snapshot_row(snapshot, reason=reason, now=now), snapshot.config.grants
    refused = {name: snapshot.config.mask(grant.refused) for name, grant in grants.items() if grant.refused}

    def work(db: Db) -> None:
        previous = snapshots.newest(db)
        if _is_edited(previous, row):
            service_log.journal_edit(db, row, _changed_names(previous, row))
        if reloaded_by is not None:
            service_log.journal_reload(db, row, actor=reloaded_by)
        snapshots.put(db, row)
        for token, why in refused.items():
            journal.append(db, "token.refused", now=now, data={"token": token, "reason": why})

    await ledger.write(work)


def _is_edited(previous: snapshots.StoredSnapshot | None, row: snapshots.StoredSnapshot) -> bool:
    """True if the seal has an actor and is not that of the configuration before."""
    before = (previous.sealed_at, previous.sealed_by) if previous is not None else None
    return row.sealed_by is not None and (row.sealed_at, row.sealed_by) != before


def _changed_names(previous: snapshots.StoredSnapshot | None, row: snapshots.StoredSnapshot) -> dict[str, list[str]]:
    """Return what differs: settings, secrets and plugins whose files changed. Without values."""
    if previous is None:
        return {"config": [], "secrets": [], "plugins": []}
    found = compare_configurations(previous, row)
    return {
        "config": [one["path"] for one in found["config"]][:MAX_CHANGES],
        "secrets": found["secrets"][:MAX_CHANGES],
        "plugins": list(found["plugins"])[:MAX_CHANGES],
    }


def snapshot_row(snapshot: Snapshot, *, reason: str, now: datetime) -> snapshots.StoredSnapshot:
    """Return the row to store for a configuration."""
    config = snapshot.config
    fingerprints = {name: attrs.asdict(configured.plugin.fingerprint) for name, configured in snapshot.plugins.items()}
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
        secret_fingerprints=strict_json.dumps(secret_uses(config.settings)),
        sealed_at=config.seal.generated_at if config.seal is not None else None,
        sealed_by=config.seal.sealed_by if config.seal is not None else None,
    )
