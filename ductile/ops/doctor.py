"""The round of the doctor: look at everything, name what is found, and put right what is safe to put right.

Every repair is named, does one thing, and does nothing the second time. What must not be done while a service runs is
held back and said so. `system doctor` calls it.
"""

import os
from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from attrs import frozen

from ductile.config.checks.doctor import Examination, examine
from ductile.config.load.ledger_path import ledger_of
from ductile.config.load.load import load
from ductile.config.load.sources import find
from ductile.config.snapshot import take_snapshot
from ductile.core.errors import ConfigInvalid, DuctileError, IntegrityBroken
from ductile.core.instance.lock import LOCK_NAME, holder, instance_lock, is_held
from ductile.ops import findings, host
from ductile.ops.findings import Finding, Severity
from ductile.ops.health import ask_plugins, remembered
from ductile.web.server.listeners import local_socket_path


class Outcome(StrEnum):
    """What became of a finding."""

    FOUND = "found"
    WOULD_FIX = "would_fix"
    FIXED = "fixed"
    HELD = "held"
    FAILED = "failed"


@frozen
class Treated:
    """A finding and what was done about it."""

    finding: Finding
    outcome: Outcome
    reason: str = ""

    @property
    def is_open(self) -> bool:
        """True for a problem that is still there."""
        return self.finding.severity is Severity.PROBLEM and self.outcome is not Outcome.FIXED


@frozen
class Round:
    """Everything that was found, and the ledger that repairs would be about."""

    found: tuple[Finding, ...]
    ledger: Path | None
    is_running: bool


def look(explicit: Path | None, *, with_health: bool) -> Round:
    """Everything that can be said about this installation; nothing is changed."""
    root = find(explicit, os.environ).path
    found = list(findings.unfinished_edit(root.parent))
    try:
        ledger = ledger_of(root, os.environ)
    except ConfigInvalid as error:
        return Round((*found, *_invalid(error), *host.clock(None)), None, False)
    lock = ledger.parent / LOCK_NAME
    is_running = is_held(lock)
    examination, paths = None, [root]
    if not found:  # a load would finish the interrupted edit; looking must not
        examination, complained = _examined(root)
        found += complained
        paths += [source.path for source in examination.config.files] if examination else []
    found += findings.modes(root.parent, paths, ledger)
    found += findings.ledger(ledger, is_running=is_running)
    found += findings.state(ledger, is_running=is_running)
    found += findings.stale_socket(local_socket_path(ledger.parent), is_running=is_running)
    found += findings.temporary_files(root.parent, ledger)
    found += findings.leftover_processes(ledger, is_running=is_running)
    found += host.disk(next(folder for folder in ledger.parents if folder.is_dir()))
    found += host.open_files(holder(lock)[0] if is_running else None)
    found += host.clock(examination)
    if examination is not None:
        found += _plugins(examination, ledger, with_health=with_health)
    return Round(tuple(found), ledger, is_running)


def _invalid(error: ConfigInvalid) -> Iterator[Finding]:
    for complaint in error.complaints:
        yield Finding(
            name="config_invalid",
            severity=Severity.PROBLEM,
            detail=str(complaint),
            advice="see `ductile config check`",
        )


def _examined(root: Path) -> tuple[Examination | None, list[Finding]]:
    """The configuration with its plugins, as far as it can be read, and what is wrong with it."""
    refused = None
    try:
        try:
            config = load(root)
        except IntegrityBroken as error:
            refused, config = error, load(root, verify=False)
    except ConfigInvalid as error:
        return None, list(_invalid(error))
    examination = examine(config)
    return examination, [*findings.complaints(examination), *findings.seal(examination, refused)]


def _plugins(examination: Examination, ledger: Path, *, with_health: bool) -> Iterator[Finding]:
    """Those that are wanted and cannot be used, and those that say that they are not well."""
    snapshot = take_snapshot(examination, os.environ)
    for name in sorted(snapshot.failed_to_load):
        yield Finding(
            name="plugin_unusable",
            severity=Severity.PROBLEM,
            detail=f"{name} {snapshot.unavailable[name]}",
            advice="see `ductile plugin list`",
        )
    if not with_health:
        return
    for health in ask_plugins(snapshot, remembered(snapshot, ledger)):
        if not health.ok:
            yield Finding(
                name="plugin_unwell",
                severity=Severity.PROBLEM,
                detail=f"{health.plugin}: {health.detail}",
                advice=f"try it: `ductile plugin run {health.plugin} health --wait`",
            )


def treat(seen: Round, *, now: datetime, dry_run: bool) -> list[Treated]:
    """Every finding that has a repair is put right, or would be; each on its own."""
    return [_treated(finding, seen, now=now, dry_run=dry_run) for finding in seen.found]


def _treated(finding: Finding, seen: Round, *, now: datetime, dry_run: bool) -> Treated:
    if finding.fix is None:
        return Treated(finding, Outcome.FOUND)
    if finding.needs_rest and seen.is_running:
        return Treated(finding, Outcome.HELD, "the service runs; stop it, then run this again")
    if dry_run:
        return Treated(finding, Outcome.WOULD_FIX)
    try:
        if finding.needs_rest and seen.ledger is not None:
            with instance_lock(seen.ledger.parent, seen.ledger, now=now):
                finding.fix()
        else:
            finding.fix()
    except DuctileError as error:
        return Treated(finding, Outcome.FAILED, f"{error}; {error.hint}" if error.hint else str(error))
    except OSError as error:
        return Treated(finding, Outcome.FAILED, str(error))
    return Treated(finding, Outcome.FIXED)
