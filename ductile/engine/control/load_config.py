"""Load the configuration for a start or a reload, and log what its checks found."""

import os
from pathlib import Path

from ductile.config.checks.examine import NO_HANDLE, Report, examine
from ductile.config.checksums import INTEGRITY
from ductile.config.load.load import load
from ductile.config.scopes import TOKEN_SCOPES
from ductile.config.snapshot import Snapshot, build_snapshot
from ductile.core.errors import ConfigInvalid
from ductile.core.logs import Log

MAX_LOGGED_FINDINGS = 50


def load_snapshot(root: Path) -> Snapshot:
    """Load and check the configuration. Raises ConfigInvalid with every error that forbids its use."""
    config = load(root)
    examination = examine(config)
    service = config.settings.service
    fatal = [
        error
        for error in examination.report.errors
        if error.category in (INTEGRITY, NO_HANDLE) or service.strict_mode or service.admission.validate_config_on_boot
    ]
    if fatal:
        raise ConfigInvalid(fatal)
    return build_snapshot(examination, os.environ)


def log_findings(log: Log, report: Report) -> None:
    """Log each error and each warning about the seal or a token, and the number of all other warnings."""
    severe = [*report.errors, *(one for one in report.warnings if one.category in (INTEGRITY, TOKEN_SCOPES))]
    for finding in severe[:MAX_LOGGED_FINDINGS]:
        fields = finding.as_data()
        log.warn("config", str(finding), **{name: fields.get(name) for name in ("category", "field", "file", "line")})
    if rest := len(report.errors) + len(report.warnings) - len(severe[:MAX_LOGGED_FINDINGS]):
        write = log.info if len(severe) <= MAX_LOGGED_FINDINGS else log.warn
        write("config", f"{rest} more findings; run `ductile config check` to list them")
