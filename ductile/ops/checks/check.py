"""The types of the check registry: a check, the installation that it inspects, and the findings that it yields.

A repair belongs to a finding and not to its check, because it applies to one path. The running service is inspected
with values that only its process has, so it is a part of the installation.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from attrs import define, frozen

from ductile.config.checks.examine import Examination, Report, examine
from ductile.config.files.atomic_write import PENDING_FILE
from ductile.config.files.ledger_path import find_ledger
from ductile.config.load.load import load
from ductile.config.snapshot import Snapshot, build_snapshot
from ductile.core.errors import Complaint, ConfigInvalid, DuctileError, IntegrityBroken
from ductile.core.instance.lock import LOCK_NAME, is_locked


class Where(StrEnum):
    """What a check inspects. `STATE` is the state directory; `LEDGER` reads every row; `PLUGINS` starts processes."""

    CONFIG = "config"
    STATE = "state"
    HOST = "host"
    PLUGINS = "plugins"
    LEDGER = "ledger"
    SERVICE = "service"


class Severity(StrEnum):
    """Problems break a function, warnings may become problems, notes are for information."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"
    SKIPPED = "skipped"
    OK = "ok"


@frozen
class Repair:
    """A safe, idempotent repair. `needs_stopped_service` means that it must not run while the service runs."""

    name: str
    run: Callable[[], object]
    needs_stopped_service: bool = False


@frozen
class Finding:
    """A result of a check, with a stable name. `advice` describes the repair, if there is one."""

    name: str
    severity: Severity
    detail: str = ""
    advice: str = ""
    repair: Repair | None = None
    field: str = ""
    """The configuration key of the finding."""
    complaint: Complaint | None = None
    """The error or warning of the configuration that the finding reports."""


@frozen
class LoadedConfig:
    """The result of loading the configuration. `examination` is None if that failed."""

    report: Report
    examination: Examination | None = None
    seal_error: IntegrityBroken | None = None


@frozen
class RunningService:
    """What checks can read from the running service."""

    snapshot: Snapshot
    ledger: Path
    stuck_seconds: float
    unhealthy: Mapping[str, str]


@define(slots=False, eq=False)
class Installation:
    """The installation that checks inspect. Everything is read once, when a check first needs it.

    With `as_start`, the configuration is loaded as a start would load it: an interrupted edit is finished, and a broken
    seal is an error. Otherwise both are findings, and nothing is changed.
    """

    root: Path
    as_start: bool = True
    running: RunningService | None = None

    @cached_property
    def ledger(self) -> Path:
        """The path of the ledger. Raises ConfigInvalid."""
        return find_ledger(self.root, os.environ)

    @cached_property
    def has_ledger(self) -> bool:
        """False if the path of the ledger cannot be read from the configuration."""
        try:
            return bool(self.ledger)
        except ConfigInvalid:
            return False

    @cached_property
    def is_running(self) -> bool:
        return self.has_ledger and is_locked(self.ledger.parent / LOCK_NAME)

    @property
    def has_pending_edit(self) -> bool:
        return os.path.lexists(self.root.parent / PENDING_FILE)

    @cached_property
    def loaded(self) -> LoadedConfig:
        """The configuration, checked against its plugins."""
        seal_error = None
        try:
            if not self.as_start:
                _ = self.ledger  # its errors replace those of a load
                if self.has_pending_edit:
                    return LoadedConfig(Report((), ()))
            try:
                config = load(self.root)
            except IntegrityBroken as error:
                if self.as_start:
                    raise
                seal_error, config = error, load(self.root, verify=False)
            examination = examine(config)
        except ConfigInvalid as error:
            return LoadedConfig(Report(error.complaints, ()))
        except DuctileError as error:
            return LoadedConfig(Report((Complaint(str(error)),), ()))
        return LoadedConfig(examination.report, examination, seal_error)

    @cached_property
    def snapshot(self) -> Snapshot | None:
        """The configuration with its usable plugins; None if it cannot be loaded."""
        examination = self.loaded.examination
        return build_snapshot(examination, os.environ) if examination else None

    @property
    def service(self) -> RunningService:
        """The state of the running service."""
        if self.running is None:
            raise ValueError("these checks run only in the process of the service")
        return self.running


@frozen
class Check:
    """A check: a function that yields findings and changes nothing."""

    name: str
    where: Where
    run: Callable[[Installation], Iterable[Finding]]
