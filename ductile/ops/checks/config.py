"""Checks of the configuration on disk: interrupted edits, errors and warnings, differences from the seal."""

from collections.abc import Iterator
from functools import partial

from ductile.config.files.atomic_write import PENDING_FILE, finish_interrupted
from ductile.core.errors import Complaint
from ductile.ops.checks.check import Finding, Installation, Repair, Severity


def check_pending_edit(installation: Installation) -> Iterator[Finding]:
    directory = installation.root.parent
    if installation.has_pending_edit and not installation.as_start:
        detail = f"{directory / PENDING_FILE}: an edit of the configuration was interrupted"
        repair = Repair("finish_edit", partial(finish_interrupted, directory))
        yield Finding("edit_unfinished", Severity.PROBLEM, detail, "Finish the edit.", repair)


def check_configuration(installation: Installation) -> Iterator[Finding]:
    """Yield the errors and warnings of `config check`. Open modes and the seal can have findings of their own."""
    report = installation.loaded.report
    for complaint in report.errors:
        yield _from_complaint("config_invalid", Severity.PROBLEM, complaint)
    for complaint in report.warnings:
        if installation.as_start or complaint.category not in ("permissions", "integrity"):
            yield _from_complaint("config_warning", Severity.WARNING, complaint)


def _from_complaint(name: str, severity: Severity, complaint: Complaint) -> Finding:
    advice = "Run `ductile config check`."
    return Finding(name, severity, str(complaint), advice, field=complaint.path, complaint=complaint)


def check_seal(installation: Installation) -> Iterator[Finding]:
    """Yield differences from the seal. Sealing is never a repair: only the operator can approve changes."""
    loaded = installation.loaded
    if installation.as_start or loaded.examination is None:
        return
    warnings = [warning for warning in loaded.report.warnings if warning.category == "integrity"]
    if drifted := loaded.seal_error.complaints if loaded.seal_error else warnings:
        is_sealed = loaded.examination.config.seal_path.exists()
        name = "seal_stale" if is_sealed else "seal_missing"
        detail = f"{len(drifted)} differences from the seal: {drifted[0]}" if is_sealed else str(drifted[0])
        advice = "Review the changes with `ductile config lock --dry-run`, then run `ductile config lock`."
        yield Finding(name, Severity.PROBLEM if loaded.seal_error else Severity.WARNING, detail, advice)
