"""`ductile system plugin-facts` and `scheduler`: facts of plugins, and open jobs of schedules."""

from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output


@click.command("plugin-facts")
@click.argument("plugin")
@click.option("--fact-type", help="Only facts of this type.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Maximum number of facts.")
@options.config
@options.as_json
def plugin_facts(plugin: str, fact_type: str | None, limit: int, as_json: bool, **where: Any) -> None:
    """Show the facts of a plugin, newest first. Works while the service is stopped.

    Example: ductile system plugin-facts backup --limit 5
    """
    output.show(_facts(plugin, fact_type, limit, where), as_json=as_json, human=_fact_lines)


def _facts(plugin: str, fact_type: str | None, limit: int, where: dict[str, Any]) -> dict[str, Any]:
    from ductile.cli.base.connect import ledger_for
    from ductile.core.clock import to_text
    from ductile.core.formats.stored_json import load_stored
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
            "fact": load_stored(fact.fact_json),
            "created_at": to_text(fact.created_at),
        }
        for fact in found
    ]
    return {"plugin": plugin, **({"fact_type": fact_type} if fact_type else {}), "facts": content}


def _require_known(plugin: str, where: dict[str, Any]) -> None:
    """Raise NotFound for a plugin that is neither configured nor installed."""
    from ductile.cli.base.connect import load_snapshot
    from ductile.core.errors import NotFound, did_you_mean

    snapshot = load_snapshot(options.selected_config(where["config_path"], where["config_dir"]))
    known = {*snapshot.plugins, *snapshot.unavailable}
    if plugin not in known:
        raise NotFound(
            f"plugin {plugin!r} does not exist{did_you_mean(plugin, known)}", hint="Run `ductile plugin list`."
        )


def _fact_lines(view: dict[str, Any]) -> list[str]:
    import json

    from ductile.core.format_time import format_when

    rows = [
        (
            format_when(fact["created_at"]),
            fact["fact_type"],
            fact["job_id"] or "-",
            json.dumps(fact["fact"], ensure_ascii=False),
        )
        for fact in view["facts"]
    ]
    return output.table(rows) or [f"{view['plugin']}: no facts"]


@click.command("scheduler")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of jobs.")
@options.config
@options.as_json
def scheduler(limit: int, config_path: Path | None, config_dir: Path | None, as_json: bool) -> None:
    """Show the queued and running jobs of schedules. `ductile schedule list` shows the schedules.

    Reads the ledger, so it works while the service is stopped.

    Example: ductile system scheduler --json
    """
    import os

    from ductile.config.files.ledger_path import find_ledger, read_service_name
    from ductile.config.files.sources import find_config
    from ductile.ledger.reports import job_stats
    from ductile.ledger.storage.open_file import open_reader

    root = find_config(options.selected_config(config_path, config_dir), os.environ).path
    ledger, name = find_ledger(root, os.environ), read_service_name(root, os.environ)
    found: list[dict[str, Any]] = []
    if ledger.exists():
        with open_reader(ledger) as db:
            found = job_stats.active_polls(db, limit)
    output.show({"service_name": name, "count": len(found), "active_polls": found}, as_json=as_json, human=_poll_lines)


def _poll_lines(view: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import format_when

    rows = [
        (
            job["status"],
            f"{job['plugin']}.{job['command']}",
            job["schedule_id"],
            format_when(job["created_at"]),
            job["job_id"],
        )
        for job in view["active_polls"]
    ]
    return output.table(rows) or ["no queued or running jobs of schedules"]
