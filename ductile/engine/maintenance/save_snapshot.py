"""The configuration a service runs under, kept beside the jobs that ran under it: sanitised, with fingerprints.

Written at start and after every reload, before the first job is claimed under it.
"""

import sys
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from ductile import __version__
from ductile.config.snapshot import Snapshot
from ductile.config.views.show import plain, redacted
from ductile.core.formats import strict_json
from ductile.core.secret import FINGERPRINT, Secret
from ductile.ledger.tables import snapshots

if TYPE_CHECKING:
    from ductile.ledger.storage.writer import Ledger


async def remember(ledger: "Ledger", snapshot: Snapshot, *, reason: str, now: datetime) -> None:
    """The ledger knows this configuration by the id that jobs carry."""
    await ledger.write(snapshots.put, described(snapshot, reason=reason, now=now))


def described(snapshot: Snapshot, *, reason: str, now: datetime) -> snapshots.StoredSnapshot:
    """The row of one configuration."""
    config = snapshot.config
    fingerprints = {name: attrs.asdict(lane.plugin.fingerprint) for name, lane in snapshot.lanes.items()}
    secrets = dict(_secrets(plain(config.settings, hide=Secret.fingerprint)))
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
        plugin_fingerprints=strict_json.dumps(plain(fingerprints, hide=Secret.fingerprint)),
        sanitized_config=strict_json.dumps(redacted(config.settings, config.mask)),
        secret_fingerprints=strict_json.dumps(secrets),
    )


def _secrets(data: Any, at: str = "") -> Iterator[tuple[str, str]]:
    """Where secrets are, each with its fingerprint."""
    if isinstance(data, dict):
        for name, value in data.items():
            yield from _secrets(value, f"{at}.{name}" if at else str(name))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _secrets(value, f"{at}[{index}]")
    elif isinstance(data, str) and data.startswith(FINGERPRINT):
        yield at, data
