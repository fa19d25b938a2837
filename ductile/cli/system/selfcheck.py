"""`ductile system selfcheck`: does everything hold that must always hold?"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output


@click.command("selfcheck")
@options.config
@options.as_json
def selfcheck(config_path: Path | None, config_dir: Path | None, as_json: bool) -> int:
    """Check the invariants of the configuration and of the ledger, row by row. Exit 1 if one is broken.

    Changes nothing and disturbs no running service. Reads the whole ledger, so it takes as long as that is large.

    Example: ductile system selfcheck
    """
    report = _report(options.chosen(config_path, config_dir))
    output.show(report, as_json=as_json, human=_lines)
    return 0 if report["healthy"] else 1


def _report(explicit: Path | None) -> dict[str, Any]:
    from ductile.cli.system.status import Checks, check_lock, find_config, find_ledger, load_config
    from ductile.ops.selfcheck import check_ledger

    checks = Checks()
    if (root := find_config(checks, explicit)) and (ledger := find_ledger(checks, root)):
        snapshot = load_config(checks, root)
        check_lock(checks, ledger)
        keep = snapshot.config.settings.service.job_queue_retention if snapshot else None
        for verdict in check_ledger(ledger, keep=keep or None, now=datetime.now(UTC)):
            checks.note(verdict.name, verdict.ok, verdict.detail)
    return {"healthy": checks.are_well, "checks": checks.made}


def _lines(report: dict[str, Any]) -> list[str]:
    from ductile.cli.system.status import check_lines

    return check_lines(f"Selfcheck: {'PASS' if report['healthy'] else 'FAIL'}", report["checks"])
