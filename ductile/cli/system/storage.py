"""`ductile system storage`: how much room the ledger takes, why, how it grows, and giving room back."""

from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.cli.base.click_base import DefaultActionGroup


@click.group("storage", cls=DefaultActionGroup, usual="show")
def storage() -> None:
    """See how much room the ledger takes and where that leads, and give room back; without an action: show."""


@storage.command("show")
@options.config
@options.as_json
def show(as_json: bool, **where: Any) -> None:
    """Show bytes by table, rows a day, the size in 30 days, when the disk is full, and the heaviest jobs.

    Reads every page once, also while the service runs. The forecast heeds how long rows are kept.

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
    disk = "the disk does not fill up" if full is None else f"the disk is full in {full:.0f} days"
    lines.append(f"in {ahead['days']} days: {format_size(ahead['bytes'])}; {disk}")
    about = " (estimated: this SQLite has no dbstat)" if report["estimated"] else ""
    lines.append(f"rows a day over the last {report['measured_days']:g} days{about}")
    head = ("TABLE", "ROWS", "BYTES", "INDEXES", "A DAY", "KEPT")
    rows = [head, *(_row(table) for table in report["tables"] if table["rows"])]
    lines += [f"  {line}" for line in output.table(rows)]
    for job in report["largest_jobs"]:
        lines.append(f"  heavy: {job['job_id']} ({job['plugin']}.{job['command']}), {format_size(job['bytes'])}")
    return lines


def _row(table: dict[str, Any]) -> tuple[str, ...]:
    from ductile.core.units import format_size

    a_day = "-" if table["rows_per_day"] is None else f"{table['rows_per_day']:g}"
    kept = "-" if table["kept_days"] is None else f"{table['kept_days']:g}d"
    sizes = format_size(table["bytes"]), format_size(table["index_bytes"])
    return table["name"], str(table["rows"]), *sizes, a_day, kept


@storage.command("compact")
@options.config
@options.dry_run
@options.as_json
def compact(dry_run: bool, as_json: bool, **where: Any) -> None:
    """Rewrite the ledger without its free pages, while the service does not run.

    A running one gives room back by itself, in small steps. Needs as much free room on the disk as two copies take. A
    crash in the middle leaves the ledger as it was.

    Example: ductile system storage compact --dry-run
    """
    from datetime import UTC, datetime

    from ductile.cli.base.connect import ledger_for
    from ductile.core.errors import NotFound
    from ductile.ops.storage import compact as compact_ledger

    path: Path = ledger_for(where)
    if not path.exists():
        raise NotFound(f"{path}: there is no ledger yet", hint="start the service once; it makes the file")
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

    verb = "would become" if result["dry_run"] else "is now"
    before, after = format_size(result["bytes_before"]), format_size(result["bytes_after"])
    return [f"{result['path']} {verb} {after}, was {before}"]
