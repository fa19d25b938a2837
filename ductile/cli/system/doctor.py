"""`ductile system doctor`: what is wrong around the service, and putting right what is safe to put right."""

from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output

HEADLINES = {True: "Doctor: nothing keeps the service from working", False: "Doctor: there are problems"}


@click.command("doctor")
@click.option("--fix", is_flag=True, help="Perform the repairs that are named; each one is told.")
@click.option("--no-health", is_flag=True, help="Do not run the plugins' `health` commands.")
@options.config
@options.dry_run
@options.as_json
def doctor(
    fix: bool, no_health: bool, dry_run: bool, config_path: Path | None, config_dir: Path | None, as_json: bool
) -> int:
    """Look at everything around the service and name what is wrong and its repair. Exit 1 while there is a problem.

    --fix performs only safe repairs: modes, interrupted edits, leftovers of crashes, the ledger's log and free pages;
    those on the ledger while the service does not run. With --dry-run it says what it would do. It never seals.

    Example: ductile system doctor --fix --dry-run
    """
    from datetime import UTC, datetime

    from ductile.ops.doctor import Outcome, Treated, look, treat

    seen = look(options.chosen(config_path, config_dir), with_health=not no_health)
    if fix:
        treated = treat(seen, now=datetime.now(UTC), dry_run=dry_run)
    else:
        treated = [Treated(finding, Outcome.FOUND) for finding in seen.found]
    report = {
        "healthy": not any(one.is_open for one in treated),
        "service_running": seen.is_running,
        "findings": [
            {
                "name": one.finding.name,
                "severity": one.finding.severity,
                "detail": one.finding.detail,
                "repair": one.finding.repair,
                "advice": one.finding.advice,
                "outcome": one.outcome,
                "reason": one.reason or None,
            }
            for one in treated
        ],
        "dry_run": dry_run,
    }
    output.show(report, as_json=as_json, human=_lines)
    return 0 if report["healthy"] else 1


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [HEADLINES[report["healthy"]]]
    for one in report["findings"]:
        lines.append(f"  {one['severity']}: {one['name']}: {one['detail']}")
        reason = f" ({one['reason']})" if one["reason"] else ""
        repair = f"{one['repair']}: " if one["repair"] else ""
        outcome = "" if one["outcome"] == "found" else f"{one['outcome'].replace('_', ' ')}{reason}: "
        lines.append(f"    {outcome}{repair}{one['advice']}")
    return lines if report["findings"] else [*lines, "  nothing found"]
