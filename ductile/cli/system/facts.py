"""`ductile system plugin-facts` and `scheduler`: what plugins observed, and what schedules keep busy."""

from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output


@click.command("plugin-facts")
@click.argument("plugin")
@click.option("--fact-type", help="Only facts of this type.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many, newest first.")
@options.config
@options.as_json
def plugin_facts(plugin: str, fact_type: str | None, limit: int, as_json: bool, **where: Any) -> None:
    """Show what a plugin observed, newest first. Reads the ledger, so it works while the service does not run.

    Example: ductile system plugin-facts backup --limit 5
    """
    output.show(_facts(plugin, fact_type, limit, where), as_json=as_json, human=_fact_lines)


def _facts(plugin: str, fact_type: str | None, limit: int, where: dict[str, Any]) -> dict[str, Any]:
    from ductile.cli.base.connect import ledger_for
    from ductile.core.clock import to_text
    from ductile.core.formats.stored_json import kept_value
    from ductile.ledger.storage.open_file import open_reader
    from ductile.ledger.tables import facts

    ledger = ledger_for(where)
    found = []
    if ledger.exists():
        with open_reader(ledger) as db:
            found = facts.newest(db, plugin, fact_type=fact_type, limit=limit)
    if not found:
        _require_known(plugin, where)
    content = [
        {
            "id": fact.id,
            "plugin": fact.plugin_name,
            "fact_type": fact.fact_type,
            "job_id": fact.job_id,
            "command": fact.command,
            "fact": kept_value(fact.fact_json),
            "created_at": to_text(fact.created_at),
        }
        for fact in found
    ]
    return {"plugin": plugin, **({"fact_type": fact_type} if fact_type else {}), "facts": content}


def _require_known(plugin: str, where: dict[str, Any]) -> None:
    """NotFound for a plugin that is neither configured nor found; one that only has no facts is no mistake."""
    from ductile.cli.schedule.facts import snapshot_of
    from ductile.core.errors import NotFound, did_you_mean

    snapshot = snapshot_of(options.chosen(where["config_path"], where["config_dir"]))
    known = {*snapshot.lanes, *snapshot.unavailable}
    if plugin not in known:
        raise NotFound(f"there is no plugin {plugin!r}{did_you_mean(plugin, known)}", hint="see `ductile plugin list`")


def _fact_lines(view: dict[str, Any]) -> list[str]:
    import json

    from ductile.core.format_time import told

    rows = [
        (
            told(fact["created_at"]),
            fact["fact_type"],
            fact["job_id"] or "-",
            json.dumps(fact["fact"], ensure_ascii=False),
        )
        for fact in view["facts"]
    ]
    return output.table(rows) or [f"{view['plugin']}: no facts"]


@click.command("scheduler")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many.")
@options.config
@options.as_json
def scheduler(limit: int, config_path: Path | None, config_dir: Path | None, as_json: bool) -> None:
    """Show the jobs that schedules asked for and that still wait or run. `ductile schedule list` has the schedules.

    Reads the ledger, so it works while the service does not run.

    Example: ductile system scheduler --json
    """
    import os

    from ductile.config.load.ledger_path import ledger_of, service_name
    from ductile.config.load.sources import find
    from ductile.ledger.reports import recent
    from ductile.ledger.storage.open_file import open_reader

    root = find(options.chosen(config_path, config_dir), os.environ).path
    ledger, name = ledger_of(root, os.environ), service_name(root, os.environ)
    found: list[dict[str, Any]] = []
    if ledger.exists():
        with open_reader(ledger) as db:
            found = recent.active_polls(db, limit)
    output.show({"service_name": name, "count": len(found), "active_polls": found}, as_json=as_json, human=_poll_lines)


def _poll_lines(view: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import told

    rows = [
        (one["status"], f"{one['plugin']}.{one['command']}", one["schedule_id"], told(one["created_at"]), one["job_id"])
        for one in view["active_polls"]
    ]
    return output.table(rows) or ["no job of a schedule waits or runs"]
