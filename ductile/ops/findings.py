"""The checks of `system doctor` for the configuration, the ledger and leftovers of crashes.

Each function yields findings and changes nothing. A finding has a stable name and, where it is safe, a repair, which
`doctor` performs.
"""

import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterator
from enum import StrEnum
from functools import partial
from pathlib import Path

import trio
from attrs import frozen

from ductile.config.checks.examine import Examination
from ductile.config.files.atomic_write import PENDING_FILE, finish_interrupted
from ductile.core import files
from ductile.core.errors import Complaint, DuctileError, IntegrityBroken, LedgerError
from ductile.core.instance.lock import lock_paths
from ductile.core.units import format_size
from ductile.engine.process.procfs import find_marked, instance_of, kill_marked
from ductile.ledger.reports import disk_usage, search
from ductile.ledger.storage import path_checks
from ductile.ledger.storage.backup import checkpoint_and_truncate
from ductile.ledger.storage.connections import MAX_WAL_BYTES
from ductile.ledger.storage.open_file import open_reader
from ductile.ledger.tables import plugin_inits
from ductile.ops.backup.unpack import STAGE_PREFIX
from ductile.ops.storage import compact_locked

MIN_LEFTOVER_SECONDS = 3600.0
"""Age of leftovers. Newer temporary files may be in use."""
MIN_FREE_SHARE, MIN_FREE_BYTES = 0.25, 16 << 20
_STATE_FILE = re.compile(r".+\.(?:db|sqlite3?)(?:[-.].+)?|ductile\.(?:lock|sock)|.+\.pid")
_TEMPORARY_FILE, _LEDGER_COPY = r"\..+\.[0-9a-f]{12}\.tmp", r"\..+\.[0-9a-f]{12}\.ledger"


class Severity(StrEnum):
    """Problems break a function, warnings may become problems, notes are for information."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"


@frozen(kw_only=True)
class Finding:
    """A problem, warning or note with its advice.

    `repair` is the name of `fix`, and `advice` then describes it. `needs_stopped_service` means that `fix` must not be
    called while the service runs.
    """

    name: str
    severity: Severity
    detail: str
    advice: str
    repair: str | None = None
    fix: Callable[[], None] | None = None
    needs_stopped_service: bool = False


# ── configuration ───────────────────────────────────────────────────────────────────────────────────────────────────


def check_pending_edit(directory: Path) -> Iterator[Finding]:
    if os.path.lexists(directory / PENDING_FILE):
        yield Finding(
            name="edit_unfinished",
            severity=Severity.PROBLEM,
            detail=f"{directory / PENDING_FILE}: an edit of the configuration was interrupted",
            advice="Finish the edit.",
            repair="finish_edit",
            fix=partial(finish_interrupted, directory),
        )


def check_config(examination: Examination) -> Iterator[Finding]:
    """Yield the errors and warnings of `config check`, except modes and seals, which have their own findings."""
    report = examination.report
    for complaint in report.errors:
        yield _from_check("config_invalid", Severity.PROBLEM, str(complaint))
    for complaint in report.warnings:
        if complaint.category not in ("permissions", "integrity"):
            yield _from_check("config_warning", Severity.WARNING, str(complaint))


def _from_check(name: str, severity: Severity, detail: str) -> Finding:
    return Finding(name=name, severity=severity, detail=detail, advice="Run `ductile config check`.")


def check_seal(examination: Examination, seal_error: IntegrityBroken | None) -> Iterator[Finding]:
    """Yield differences from the seal. Sealing is never a repair: only the operator can approve changes."""
    config = examination.config
    drifted = seal_error.complaints if seal_error else _drifted(examination)
    if not drifted:
        return
    is_sealed = config.seal_path.exists()
    yield Finding(
        name="seal_stale" if is_sealed else "seal_missing",
        severity=Severity.PROBLEM if seal_error else Severity.WARNING,
        detail=f"{len(drifted)} differences from the seal: {drifted[0]}" if is_sealed else str(drifted[0]),
        advice="Review the changes with `ductile config lock --dry-run`, then run `ductile config lock`.",
    )


def _drifted(examination: Examination) -> tuple[Complaint, ...]:
    return tuple(warning for warning in examination.report.warnings if warning.category == "integrity")


def check_modes(directory: Path, paths: Collection[Path], ledger_path: Path) -> Iterator[Finding]:
    """Yield private files and directories that other users can read or write.

    A configuration can name files that other programs need. Only these are repaired: configuration files that resolve
    to a path in the configuration directory, a valid ledger, and its directory if it has no other files.
    """
    state, is_ledger, home = ledger_path.parent, _is_ledger(ledger_path), os.path.realpath(directory)
    for path in dict.fromkeys((directory, *paths, state, ledger_path)):
        if not path.exists():
            continue
        is_repairable = path == ledger_path and is_ledger
        if path in paths:
            is_repairable = Path(os.path.realpath(path)).is_relative_to(home)
        elif path == state:
            is_repairable = is_ledger and _is_state_directory(state)
        is_repairable = is_repairable and path.stat().st_uid == os.geteuid()
        for found in files.check_permissions(path, private=True):
            yield _permissions_open(path, found, is_repairable=is_repairable)


def _is_ledger(path: Path) -> bool:
    try:
        with open_reader(path):
            return True
    except DuctileError:
        return False


def _is_state_directory(state: Path) -> bool:
    """True for a directory that has only a ledger and its related files."""
    return all(_STATE_FILE.fullmatch(path.name) for path in _entries(state))


def _permissions_open(path: Path, found: files.FileFinding, *, is_repairable: bool) -> Finding:
    status = path.stat()
    wanted = 0o700 if stat.S_ISDIR(status.st_mode) or status.st_mode & 0o100 else 0o600
    return Finding(
        name="permissions_open",
        severity=Severity.PROBLEM if found.is_refusal else Severity.WARNING,
        detail=str(found),
        advice=f"Run `chmod {wanted:o} {path}`.",
        repair="chmod" if is_repairable else None,
        fix=partial(path.chmod, wanted) if is_repairable else None,
    )


# ── ledger ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_ledger_file(path: Path, *, is_running: bool) -> Iterator[Finding]:
    """Yield a ledger that cannot be read, a leftover log, free pages, failed inits and a missing search index."""
    try:
        if not path_checks.ledger_exists(path):
            return
        with open_reader(path) as db:
            free, pages, page_bytes = disk_usage.free_pages(db)
            failed = {name: init.error for name, init in plugin_inits.all_inits(db).items() if init.error is not None}
            has_search_index = search.is_available(db)
    except DuctileError as error:
        advice = error.hint or "Restore a backup."
        yield Finding(name="ledger_unusable", severity=Severity.PROBLEM, detail=str(error), advice=advice)
        return
    yield from _check_log(path, is_running=is_running)
    if free * page_bytes >= MIN_FREE_BYTES and free >= MIN_FREE_SHARE * pages:
        yield Finding(
            name="free_pages",
            severity=Severity.NOTE,
            detail=f"{path}: {format_size(free * page_bytes)} of {format_size(pages * page_bytes)} are free pages",
            advice="Compact the file, as `ductile system storage compact` does.",
            repair="compact",
            fix=partial(compact_locked, path),
            needs_stopped_service=True,
        )
    for plugin, error_text in failed.items():
        advice = f"Fix the cause, then run `ductile system reload`. See `ductile plugin show {plugin}`."
        detail = f"{plugin}: init failed: {error_text}"
        yield Finding(name="init_failed", severity=Severity.PROBLEM, detail=detail, advice=advice)
    if not has_search_index:
        detail = "SQLite has no FTS5 extension: log searches read every row"
        advice = "Install a Python whose SQLite has FTS5."
        yield Finding(name="search_unindexed", severity=Severity.NOTE, detail=detail, advice=advice)


def check_state_writable(ledger_path: Path, *, is_running: bool) -> Iterator[Finding]:
    """Yield the files that a start writes but this user cannot: the ledger, its side files and the locks."""
    if is_running:
        return
    try:
        path_checks.require_writable(ledger_path)
        locks = [path for path in lock_paths(ledger_path.parent, ledger_path) if os.path.lexists(path)]
        refused = [f"{path}: not writable by this user" for path in locks if not os.access(path, os.W_OK)]
    except LedgerError as error:
        refused = [str(error)]
    for detail in refused:
        advice = "Start the service as the owner of the file, or fix the owner, mode or mount."
        yield Finding(name="state_unwritable", severity=Severity.PROBLEM, detail=detail, advice=advice)


def _check_log(path: Path, *, is_running: bool) -> Iterator[Finding]:
    size = disk_usage.file_bytes(path)[1]
    if size > 2 * MAX_WAL_BYTES or (size and not is_running):
        reason = "larger than expected" if is_running else "left by an unclean shutdown"
        yield Finding(
            name="log_left",
            severity=Severity.WARNING if is_running else Severity.NOTE,
            detail=f"{path}-wal: {format_size(size)}, {reason}",
            advice="Checkpoint the log into the ledger. The next start also does this.",
            repair="fold_log",
            fix=partial(checkpoint_and_truncate, path),
            needs_stopped_service=True,
        )


# ── leftovers ───────────────────────────────────────────────────────────────────────────────────────────────────────


def check_socket(path: Path, *, is_running: bool) -> Iterator[Finding]:
    if not is_running and os.path.lexists(path) and stat.S_ISSOCK(path.lstat().st_mode):
        yield Finding(
            name="socket_stale",
            severity=Severity.NOTE,
            detail=f"{path}: socket left by an unclean shutdown",
            advice="Remove the socket. The next start also does this.",
            repair="remove_socket",
            fix=partial(path.unlink, missing_ok=True),
            needs_stopped_service=True,
        )


def check_temporary_files(directory: Path, ledger_path: Path) -> Iterator[Finding]:
    """Yield leftovers of interrupted writes, backups and restores. They have names that only Ductile uses."""
    name, staging = re.escape(ledger_path.name), rf"{re.escape(STAGE_PREFIX)}\w+"
    places = [
        (directory.parent, staging),
        (directory, rf"{_TEMPORARY_FILE}|{_LEDGER_COPY}|{staging}|\.restore-\w+"),  # .restore-*: older versions
        (ledger_path.parent, rf"{_TEMPORARY_FILE}|{_LEDGER_COPY}|{name}\.new-[0-9]+|{name}\.backup-v.+\.partial"),
    ]  # directories may be the same
    left = [path for folder, pattern in places for path in _entries(folder) if re.fullmatch(pattern, path.name)]
    for path in dict.fromkeys(left):
        if _age_seconds(path) > MIN_LEFTOVER_SECONDS:
            yield Finding(
                name="temporary_left",
                severity=Severity.NOTE,
                detail=f"{path}: left by an interrupted write, backup or restore",
                advice="Remove it.",
                repair="remove_temporary",
                fix=partial(_remove, path),
            )


def _entries(folder: Path) -> list[Path]:
    """List a directory. Returns an empty list if this user cannot read it."""
    try:
        return [Path(entry.path) for entry in files.list_entries(folder)]
    except files.FileRefused:
        return []


def _age_seconds(path: Path) -> float:
    """Return the age of a file; 0 if it no longer exists."""
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_leftover_processes(ledger_path: Path, *, is_running: bool) -> Iterator[Finding]:
    """Yield the plugin processes that a stopped service left running."""
    if is_running or not ledger_path.exists():
        return
    instance = instance_of(ledger_path)
    left = find_marked(instance)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        yield Finding(
            name="processes_left",
            severity=Severity.PROBLEM,
            detail=f"plugin processes left by an unclean shutdown: {pids}",
            advice="Kill the processes. The next start also does this.",
            repair="end_processes",
            fix=lambda: _require_no_survivors(trio.run(kill_marked, instance).survivors),
            needs_stopped_service=True,
        )


def _require_no_survivors(survivors: tuple[object, ...]) -> None:
    if survivors:
        raise DuctileError(f"{len(survivors)} processes could not be killed")
