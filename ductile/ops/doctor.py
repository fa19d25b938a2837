"""Run all checks of `system doctor` and perform the safe repairs.

Repairs are named and idempotent. Repairs that need a stopped service are not performed while it runs. `findings` and
`host` have the checks.
"""

import os
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from attrs import frozen

from ductile.config.checks.examine import Examination, examine
from ductile.config.files.ledger_path import find_ledger
from ductile.config.files.sources import find_config
from ductile.config.load.load import load
from ductile.config.snapshot import build_snapshot
from ductile.core.errors import ConfigInvalid, DuctileError, IntegrityBroken
from ductile.core.instance.lock import LOCK_NAME, instance_lock, is_locked, read_holder
from ductile.ops import findings, host
from ductile.ops.findings import Finding, Severity
from ductile.ops.health import check_plugins, read_plugin_states
from ductile.web.server.listeners import local_socket_path


class RepairOutcome(StrEnum):
    """The result of the repair of a finding."""

    FOUND = "found"
    WOULD_FIX = "would_fix"
    FIXED = "fixed"
    HELD = "held"
    FAILED = "failed"


@frozen
class RepairResult:
    """A finding and the outcome of its repair."""

    finding: Finding
    outcome: RepairOutcome
    reason: str = ""

    @property
    def is_open(self) -> bool:
        """True for a problem that is not fixed."""
        return self.finding.severity is Severity.PROBLEM and self.outcome is not RepairOutcome.FIXED


@frozen
class Diagnosis:
    """The findings, and the ledger that repairs apply to."""

    findings: tuple[Finding, ...]
    ledger: Path | None
    is_running: bool


def diagnose(explicit: Path | None, *, with_health: bool) -> Diagnosis:
    """Run every check of this installation. Changes nothing."""
    root = find_config(explicit, os.environ).path
    found = list(findings.check_pending_edit(root.parent))
    try:
        ledger = find_ledger(root, os.environ)
    except ConfigInvalid as error:
        return Diagnosis((*found, *_config_invalid(error), *host.check_clock(None)), None, False)
    lock = ledger.parent / LOCK_NAME
    is_running = is_locked(lock)
    examination, paths = None, [root]
    if not found:  # loading would finish the interrupted edit
        examination, config_findings = _examine(root)
        found += config_findings
        paths += [source.path for source in examination.config.files] if examination else []
    found += findings.check_modes(root.parent, paths, ledger)
    found += findings.check_ledger_file(ledger, is_running=is_running)
    found += findings.check_state_writable(ledger, is_running=is_running)
    found += findings.check_socket(local_socket_path(ledger.parent), is_running=is_running)
    found += findings.check_temporary_files(root.parent, ledger)
    found += findings.check_leftover_processes(ledger, is_running=is_running)
    found += host.check_disk(next(folder for folder in ledger.parents if folder.is_dir()))
    found += host.check_open_files(read_holder(lock)[0] if is_running else None)
    found += host.check_clock(examination)
    if examination is not None:
        found += _check_plugins(examination, ledger, with_health=with_health)
    return Diagnosis(tuple(found), ledger, is_running)


def _config_invalid(error: ConfigInvalid) -> Iterator[Finding]:
    for complaint in error.complaints:
        yield Finding(
            name="config_invalid",
            severity=Severity.PROBLEM,
            detail=str(complaint),
            advice="Run `ductile config check`.",
        )


def _examine(root: Path) -> tuple[Examination | None, list[Finding]]:
    """Load and check the configuration and its plugins. Returns None for a configuration that cannot be loaded."""
    seal_error = None
    try:
        try:
            config = load(root)
        except IntegrityBroken as error:
            seal_error, config = error, load(root, verify=False)
    except ConfigInvalid as error:
        return None, list(_config_invalid(error))
    examination = examine(config)
    return examination, [*findings.check_config(examination), *findings.check_seal(examination, seal_error)]


def _check_plugins(examination: Examination, ledger: Path, *, with_health: bool) -> Iterator[Finding]:
    """Yield the configured plugins that cannot be loaded and, with `with_health`, those that are unhealthy."""
    snapshot = build_snapshot(examination, os.environ)
    for name in sorted(snapshot.failed_to_load):
        yield Finding(
            name="plugin_unusable",
            severity=Severity.PROBLEM,
            detail=f"{name} {snapshot.unavailable[name]}",
            advice="Run `ductile plugin list`.",
        )
    if not with_health:
        return
    for health in check_plugins(snapshot, read_plugin_states(snapshot, ledger)):
        if not health.ok:
            yield Finding(
                name="plugin_unwell",
                severity=Severity.PROBLEM,
                detail=f"{health.plugin}: {health.detail}",
                advice=f"Run `ductile plugin run {health.plugin} health --wait`.",
            )


def repair(diagnosis: Diagnosis, *, now: datetime, dry_run: bool) -> list[RepairResult]:
    """Repair each finding that has a repair. A failed repair does not stop the others."""
    return [_repair(finding, diagnosis, now=now, dry_run=dry_run) for finding in diagnosis.findings]


def _repair(finding: Finding, diagnosis: Diagnosis, *, now: datetime, dry_run: bool) -> RepairResult:
    if finding.fix is None:
        return RepairResult(finding, RepairOutcome.FOUND)
    if finding.needs_stopped_service and diagnosis.is_running:
        return RepairResult(finding, RepairOutcome.HELD, "the service is running; stop it, then run this command again")
    if dry_run:
        return RepairResult(finding, RepairOutcome.WOULD_FIX)
    try:
        if finding.needs_stopped_service and diagnosis.ledger is not None:
            with instance_lock(diagnosis.ledger.parent, diagnosis.ledger, now=now):
                finding.fix()
        else:
            finding.fix()
    except DuctileError as error:
        return RepairResult(finding, RepairOutcome.FAILED, f"{error}. {error.hint}" if error.hint else str(error))
    except OSError as error:
        return RepairResult(finding, RepairOutcome.FAILED, str(error))
    return RepairResult(finding, RepairOutcome.FIXED)
