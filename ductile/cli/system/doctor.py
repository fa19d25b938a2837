"""`ductile system doctor`: find problems with the installation and perform safe repairs."""

import os
from functools import partial
from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output

HEADLINES = {True: "Doctor: no problems found", False: "Doctor: problems found"}


@click.command("doctor")
@click.option("--fix", is_flag=True, help="Perform the safe repairs and report each one.")
@click.option("--no-health", is_flag=True, help="Do not run the `health` commands of plugins.")
@options.config
@options.dry_run
@options.as_json
def doctor(
    fix: bool, no_health: bool, dry_run: bool, config_path: Path | None, config_dir: Path | None, as_json: bool
) -> int:
    """Find problems with the installation and suggest repairs. Exit 1 while problems remain.

    --fix performs safe repairs only: file modes, interrupted edits, leftovers of crashes, and the log and free pages of
    the ledger (only while the service is stopped). With --dry-run it shows the repairs. It never seals files.

    Example: ductile system doctor --fix --dry-run
    """
    from datetime import UTC, datetime

    from ductile.config.files.sources import find_config
    from ductile.ops.checks.check import Installation
    from ductile.ops.checks.registry import diagnose
    from ductile.ops.checks.repair import RepairResult, repair

    root = find_config(options.selected_config(config_path, config_dir), os.environ).path
    installation = Installation(root, as_start=False)
    findings = diagnose(installation, with_health=not no_health)
    act = partial(repair, installation=installation, now=datetime.now(UTC), dry_run=dry_run) if fix else RepairResult
    results = [act(finding) for finding in findings]
    report = {
        "healthy": not any(result.is_open for result in results),
        "service_running": installation.is_running,
        "findings": [
            {
                "name": result.finding.name,
                "severity": result.finding.severity,
                "detail": result.finding.detail,
                "repair": result.finding.repair.name if result.finding.repair else None,
                "advice": result.finding.advice,
                "outcome": result.outcome,
                "reason": result.reason or None,
            }
            for result in results
        ],
        "dry_run": dry_run,
    }
    output.show(report, as_json=as_json, human=_lines)
    return 0 if report["healthy"] else 1


def _lines(report: dict[str, Any]) -> list[str]:
    lines = [HEADLINES[report["healthy"]]]
    for finding in report["findings"]:
        lines.append(f"  {finding['severity']}: {finding['name']}: {finding['detail']}")
        reason = f" ({finding['reason']})" if finding["reason"] else ""
        repair = f"{finding['repair']}: " if finding["repair"] else ""
        outcome = "" if finding["outcome"] == "found" else f"{finding['outcome'].replace('_', ' ')}{reason}: "
        lines.append(f"    {outcome}{repair}{finding['advice']}")
    return lines if report["findings"] else [*lines, "  no findings"]
