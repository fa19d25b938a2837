"""`ductile config history` and `config diff`: the configurations that the service has used, and what differs."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output

if TYPE_CHECKING:
    from ductile.explain.changes import ConfigDiffView

DISK = "disk"
MAX_PLACES = 4


@click.command("history")
@options.page("configurations")
@options.config
@options.as_json
def history(limit: int, cursor: str | None, as_json: bool, **where: Any) -> None:
    """List the configurations that the service has used, newest first: one for each start and each reload.

    Each has its actor and what changed; `ductile config diff` shows the values. Reads the ledger, so it works while the
    service is stopped.

    Example: ductile config history --limit 10
    """
    from ductile.cli.base.connect import ledger_for
    from ductile.ledger.storage.open_file import open_reader
    from ductile.web.views.config_history import history_view

    with open_reader(ledger_for(where)) as db:
        view = history_view(db, cursor=cursor, limit=limit)
    output.show(view, as_json=as_json, human=_history_lines)


def _history_lines(view: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import format_when

    head = ("SNAPSHOT", "LOADED", "REASON", "ACTOR", "VERSION", "CHANGED")
    rows = [
        (
            one["snapshot_id"],
            format_when(one["loaded_at"]),
            one["reason"],
            one["actor"] or "-",
            one["ductile_version"] or "",
            _changed(one),
        )
        for one in view["snapshots"]
    ]
    lines = output.table([head, *rows]) if rows else ["no service has used this ledger yet"]
    return lines + ([f"continue with --cursor {view['next_cursor']}"] if view["next_cursor"] else [])


def _changed(one: dict[str, Any]) -> str:
    """Return the first places that changed, and the number of the others."""
    if not one["changed"]:
        return ""
    if (changes := one["changes"]) is None:
        return "(no earlier configuration on record)"
    places = [*changes["config"], *changes["secrets"], *(f"files of {name}" for name in changes["plugins"])]
    more = [f"{len(places) - MAX_PLACES} more"] if len(places) > MAX_PLACES else []
    return ", ".join([*places[:MAX_PLACES], *more]) or "changed"


@click.command("diff")
@click.argument("old", metavar="[FROM]", required=False)
@click.argument("new", metavar="[TO]", required=False)
@options.config
@options.as_json
def diff(old: str | None, new: str | None, as_json: bool, **where: Any) -> None:
    """Show what differs between two configurations. Secrets are masked.

    FROM and TO are snapshot ids of `config history`, or unique prefixes of them; TO may also be `disk`, the current
    files. Default: from the newest configuration that the service has used to the files on disk. With FROM only, TO is
    `disk`.

    Example: ductile config diff cfg_3f0c9a52 disk
    """
    from ductile.cli.base.connect import ledger_for
    from ductile.ledger.storage.open_file import open_reader
    from ductile.web.views.config_history import diff_view

    if new in (None, DISK):
        view = _diff_to_disk(options.selected_config(where["config_path"], where["config_dir"]), old)
    else:
        with open_reader(ledger_for(where)) as db:
            view = diff_view(db, old, new)
    output.show(view, as_json=as_json, human=_diff_lines)


def _diff_to_disk(explicit: Path | None, old: str | None) -> "ConfigDiffView":
    from datetime import UTC, datetime

    from ductile.cli.base.connect import load_snapshot
    from ductile.engine.maintenance.save_snapshot import snapshot_row
    from ductile.explain.changes import compare_configurations
    from ductile.ledger.storage.open_file import open_reader
    from ductile.web.views.config_history import require_snapshot

    snapshot = load_snapshot(explicit)
    with open_reader(snapshot.config.settings.state.path) as db:
        before = require_snapshot(db, old)
    on_disk = snapshot_row(snapshot, reason="diff", now=datetime.now(UTC))
    return compare_configurations(before, on_disk, new_is_on_disk=True)


def _diff_lines(view: dict[str, Any]) -> list[str]:
    from ductile.cli.job.diagnosis import config_lines
    from ductile.core.format_time import format_when

    def side(one: dict[str, Any]) -> str:
        return f"{one['snapshot_id']}, {format_when(one['loaded_at'])}" if one["snapshot_id"] else "the files on disk"

    changes = config_lines(view["config"])
    changes += [f"config: {view['config_cut']} more"] if view["config_cut"] else []
    changes += [f"secret {path}: another value" for path in view["secrets"]]
    changes += [f"plugin {name}: {', '.join(paths) or 'added or removed'}" for name, paths in view["plugins"].items()]
    return [f"from {side(view['from'])}", f"to   {side(view['to'])}", *(f"  {line}" for line in changes or ["nothing"])]
