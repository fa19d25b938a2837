"""`ductile system storage`: show the size and growth of the ledger, and compact it."""

from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.cli.base.click_base import DefaultActionGroup


@click.group("storage", cls=DefaultActionGroup, default="show")
def storage() -> None:
    """Show the size of the ledger, or compact it. Without an action, show the size."""


@storage.command("show")
@options.config
@options.as_json
def show(as_json: bool, **where: Any) -> None:
    """Show the size of each table, rows per day, a 30-day forecast, and the largest jobs.

    Reads every page once, also while the service runs. The forecast takes retention into account.

    Example: ductile system storage show --json
    """
    from datetime import UTC, datetime

    from ductile.cli.base.connect import ledger_for
    from ductile.ops.storage import report

    output.show(report(ledger_for(where), now=datetime.now(UTC)), as_json=as_json, human=_lines)


def _lines(report: dict[str, Any]) -> list[str]:
    from ductile.core.units import format_size

    size, free, log = (format_size(report[name]) for name in ("bytes", "free_bytes", "wal_bytes"))
    lines = [f"{report['path']}: {size}, of which {free} free; log {log}"]
    ahead = report["forecast"]
    full = ahead["days_until_disk_full"]
    disk = "the disk will not fill up" if full is None else f"the disk will be full in {full:.0f} days"
    lines.append(f"in {ahead['days']} days: {format_size(ahead['bytes'])}; {disk}")
    about = " (estimated: this SQLite has no dbstat)" if report["estimated"] else ""
    lines.append(f"rows per day over the last {report['measured_days']:g} days{about}")
    head = ("TABLE", "ROWS", "BYTES", "INDEXES", "PER DAY", "RETENTION")
    rows = [head, *(_row(table) for table in report["tables"] if table["rows"])]
    lines += [f"  {line}" for line in output.table(rows)]
    for job in report["largest_jobs"]:
        lines.append(f"  large job: {job['job_id']} ({job['plugin']}.{job['command']}), {format_size(job['bytes'])}")
    return lines


def _row(table: dict[str, Any]) -> tuple[str, ...]:
    from ductile.core.units import format_size

    per_day = "-" if table["rows_per_day"] is None else f"{table['rows_per_day']:g}"
    retention = "-" if table["kept_days"] is None else f"{table['kept_days']:g}d"
    sizes = format_size(table["bytes"]), format_size(table["index_bytes"])
    return table["name"], str(table["rows"]), *sizes, per_day, retention


@storage.command("compact")
@options.config
@options.dry_run
@options.as_json
def compact(dry_run: bool, as_json: bool, **where: Any) -> None:
    """Rewrite the ledger without free pages. Requires that the service is stopped.

    A running service frees pages by itself in small steps. Compacting needs free disk space for two copies of the
    ledger. A crash leaves the ledger unchanged.

    Example: ductile system storage compact --dry-run
    """
    from datetime import UTC, datetime

    from ductile.cli.base.connect import ledger_for
    from ductile.core.errors import NotFound
    from ductile.ops.storage import compact as compact_ledger

    path: Path = ledger_for(where)
    if not path.exists():
        raise NotFound(f"{path}: the ledger does not exist", hint="Start the service once to create it.")
    done = compact_ledger(path, now=datetime.now(UTC), dry_run=dry_run)
    result = {
        "path": str(done.path),
        "bytes_before": done.before,
        "bytes_after": done.after,
        "dry_run": dry_run,
    }
    output.show(result, as_json=as_json, human=_compact_lines)


def _compact_lines(result: dict[str, Any]) -> list[str]:
    from ductile.core.units import format_size

    verb = "would shrink to" if result["dry_run"] else "has"
    before, after = format_size(result["bytes_before"]), format_size(result["bytes_after"])
    return [f"{result['path']} {verb} {after}, was {before}"]
