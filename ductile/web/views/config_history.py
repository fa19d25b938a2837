"""The configurations that the service has used as JSON data, for the API and the CLI: their list and differences."""

from datetime import datetime
from typing import Annotated, TypedDict

from ductile.config.views.changes import ReloadView
from ductile.core.clock import to_text
from ductile.core.errors import NotFound, UsageInvalid
from ductile.core.formats.json_schema import Keywords, Timestamp
from ductile.core.units import quote_text
from ductile.explain.changes import ConfigDiffView, compare_configurations
from ductile.ledger.admin import service_log
from ductile.ledger.reports.filters import MAX_PAGE_SIZE
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import snapshots
from ductile.ledger.tables.snapshots import StoredSnapshot

RUNNING = "the running service"
HINT = "`ductile config history` lists the configurations on record."


class ConfigPlanView(ReloadView):
    """The changes that a reload would make."""

    compared_with: str


class ChangedPathsView(TypedDict):
    """What differs from the configuration before. `GET /config/diff` has the values."""

    config: list[str]
    secrets: list[str]
    plugins: Annotated[list[str], "Plugins of both configurations whose files or paths differ"]


class ListedSnapshotView(TypedDict):
    """A configuration that the service has used."""

    snapshot_id: str
    loaded_at: Timestamp
    reason: Annotated[str, "startup or reload"]
    ductile_version: str | None
    source_path: str | None
    config_hash: Annotated[str, "Changes with every setting and secret"]
    actor: Annotated[str, "Who started or reloaded the service, if that is on record"] | None
    changed: Annotated[bool, "True if settings, secrets or plugin files differ from those of the configuration before"]
    changes: Annotated[ChangedPathsView, "null if nothing changed, or if the content of one is not on record"] | None


class ConfigHistoryView(TypedDict):
    snapshots: Annotated[list[ListedSnapshotView], Keywords(maxItems=MAX_PAGE_SIZE)]
    next_cursor: Annotated[str, "Value for ?cursor= of the next page; null on the last page"] | None


def history_view(db: Db, *, cursor: str | None, limit: int) -> ConfigHistoryView:
    """Return a page of the configurations on record, newest first. Raises UsageInvalid for an unknown cursor."""
    found = snapshots.latest(db, before=_position(db, cursor) if cursor else None, limit=limit + 1)
    rows, older = found[:limit], [*found[1:], None]
    actors = service_log.actors_of(db, rows)
    listed = [_listed(db, one, before, actors.get(one.id)) for one, before in zip(rows, older, strict=False)]
    return {"snapshots": listed, "next_cursor": rows[-1].id if len(found) > limit else None}


def _position(db: Db, cursor: str) -> datetime:
    last = snapshots.get(db, cursor)
    if last is None:
        hint = "Send the `next_cursor` of the previous page."
        raise UsageInvalid(f"cursor: {quote_text(cursor)} is not valid", hint=hint)
    return last.loaded_at


def _listed(db: Db, one: StoredSnapshot, before: StoredSnapshot | None, actor: str | None) -> ListedSnapshotView:
    content = (one.config_hash, one.plugin_fingerprints)
    is_changed = before is None or content != (before.config_hash, before.plugin_fingerprints)
    return {
        "snapshot_id": one.id,
        "loaded_at": to_text(one.loaded_at),
        "reason": one.reason,
        "ductile_version": one.ductile_version,
        "source_path": one.source_path,
        "config_hash": one.config_hash,
        "actor": actor,
        "changed": is_changed,
        "changes": _changed_paths(db, before.id, one.id) if before and is_changed else None,
    }


def _changed_paths(db: Db, old_id: str, new_id: str) -> ChangedPathsView | None:
    old, new = snapshots.get(db, old_id), snapshots.get(db, new_id)
    if old is None or new is None or None in (old.sanitized_config, new.sanitized_config):
        return None
    diff = compare_configurations(old, new)
    paths = [one["path"] for one in diff["config"]]
    plugins = [name for name, parts in diff["plugins"].items() if parts]
    return {"config": paths, "secrets": diff["secrets"], "plugins": plugins}


def diff_view(db: Db, old: str | None, new: str | None) -> ConfigDiffView:
    """Compare two configurations on record; by default the newest one with the one before. Raises NotFound."""
    after = require_snapshot(db, new)
    if old is not None:
        return compare_configurations(require_snapshot(db, old), after)
    earlier = snapshots.latest(db, before=after.loaded_at, limit=1)
    if not earlier:
        raise NotFound(f"no configuration is on record before {after.id}", hint=HINT)
    return compare_configurations(require_snapshot(db, earlier[0].id), after)


def require_snapshot(db: Db, snapshot_id: str | None) -> StoredSnapshot:
    """Return the configuration with this id, or a unique beginning of it; None means the newest. Raises NotFound."""
    if snapshot_id is None:
        found, what = snapshots.newest(db), "no configuration is on record"
    else:
        ids = snapshots.find_ids(db, snapshot_id)
        found = snapshots.get(db, ids[0]) if len(ids) == 1 else None
        what = f"{len(ids)} configurations begin" if ids else "no configuration begins"
        what = f"{what} with {quote_text(snapshot_id)}"
    if found is None or found.sanitized_config is None:
        raise NotFound(what if found is None else f"the content of {found.id} is not on record", hint=HINT)
    return found
