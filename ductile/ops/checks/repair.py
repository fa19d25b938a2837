"""Perform the repairs of findings, for `system doctor --fix`."""

from contextlib import nullcontext
from datetime import datetime
from enum import StrEnum

from attrs import frozen

from ductile.core.errors import DuctileError
from ductile.core.instance.lock import instance_lock
from ductile.ops.checks.check import Finding, Installation, Severity


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
    outcome: RepairOutcome = RepairOutcome.FOUND
    reason: str = ""

    @property
    def is_open(self) -> bool:
        """True for a problem that is not fixed."""
        return self.finding.severity is Severity.PROBLEM and self.outcome is not RepairOutcome.FIXED


def repair(finding: Finding, installation: Installation, *, now: datetime, dry_run: bool) -> RepairResult:
    """Perform the repair of a finding, if it has one. Errors of the repair are a result."""
    chosen = finding.repair
    if chosen is None:
        return RepairResult(finding)
    if chosen.needs_stopped_service and installation.is_running:
        return RepairResult(finding, RepairOutcome.HELD, "the service is running; stop it, then run this command again")
    if dry_run:
        return RepairResult(finding, RepairOutcome.WOULD_FIX)
    try:
        ledger = installation.ledger if chosen.needs_stopped_service else None
        with instance_lock(ledger.parent, ledger, now=now) if ledger else nullcontext():
            chosen.run()
    except DuctileError as error:
        return RepairResult(finding, RepairOutcome.FAILED, f"{error}. {error.hint}" if error.hint else str(error))
    except OSError as error:
        return RepairResult(finding, RepairOutcome.FAILED, str(error))
    return RepairResult(finding, RepairOutcome.FIXED)
