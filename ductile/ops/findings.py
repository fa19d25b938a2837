"""What can be wrong around a service, one function for each kind of thing: each gives its findings.

A finding has a stable name, says what is and where, and, where that is safe, how it is put right. Nothing is changed by
looking. `doctor` makes the round and performs the repairs.
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

from ductile.config.checks.doctor import Examination
from ductile.config.edit.atomic_write import PENDING_FILE, finish_interrupted
from ductile.config.seal.restore import STAGE_PREFIX
from ductile.core import files
from ductile.core.errors import Complaint, DuctileError, IntegrityBroken, LedgerError
from ductile.core.instance.lock import lock_paths
from ductile.core.units import format_size
from ductile.engine.process.procfs import find_marked, instance_of, kill_marked
from ductile.ledger.reports import disk_usage, search
from ductile.ledger.storage import path_checks
from ductile.ledger.storage.backup import fold_log
from ductile.ledger.storage.connections import WAL_LIMIT_BYTES
from ductile.ledger.storage.open_file import open_reader
from ductile.ledger.tables import plugin_inits
from ductile.ops.storage import rewrite

LEFT_SECONDS = 3600.0
"""Younger temporary files may belong to somebody who is at work."""
FREE_SHARE, FREE_BYTES = 0.25, 16 << 20
_OF_THE_LEDGER = re.compile(r".+\.(?:db|sqlite3?)(?:[-.].+)?|ductile\.(?:lock|sock)|.+\.pid")
_WRITING, _BACKING_UP = r"\..+\.[0-9a-f]{12}\.tmp", r"\..+\.[0-9a-f]{12}\.ledger"


class Severity(StrEnum):
    """A problem keeps something from working, a warning may become one, a note is good to know."""

    PROBLEM = "problem"
    WARNING = "warning"
    NOTE = "note"


@frozen(kw_only=True)
class Finding:
    """One thing that was found: what it is called, what it is, and what to do about it.

    With a `fix`, `repair` is its name and `advice` says what it does; `needs_rest` is one that must not be done while
    the service runs.
    """

    name: str
    severity: Severity
    detail: str
    advice: str
    repair: str | None = None
    fix: Callable[[], None] | None = None
    needs_rest: bool = False


# ── the configuration ───────────────────────────────────────────────────────────────────────────────────────────────


def unfinished_edit(directory: Path) -> Iterator[Finding]:
    if os.path.lexists(directory / PENDING_FILE):
        yield Finding(
            name="edit_unfinished",
            severity=Severity.PROBLEM,
            detail=f"{directory / PENDING_FILE}: an edit of the configuration was interrupted",
            advice="finish it",
            repair="finish_edit",
            fix=partial(finish_interrupted, directory),
        )


def complaints(examination: Examination) -> Iterator[Finding]:
    """What `config check` says; modes and seals have findings of their own."""
    report = examination.report
    for complaint in report.errors:
        yield _from_check("config_invalid", Severity.PROBLEM, str(complaint))
    for complaint in report.warnings:
        if complaint.category not in ("permissions", "integrity"):
            yield _from_check("config_warning", Severity.WARNING, str(complaint))


def _from_check(name: str, severity: Severity, detail: str) -> Finding:
    return Finding(name=name, severity=severity, detail=detail, advice="see `ductile config check`")


def seal(examination: Examination, refused: IntegrityBroken | None) -> Iterator[Finding]:
    """Nobody but the operator can approve what is there, so sealing is never done as a repair."""
    config = examination.config
    drifted = refused.complaints if refused else _drifted(examination)
    if not drifted:
        return
    is_there = config.seal_path.exists()
    yield Finding(
        name="seal_stale" if is_there else "seal_missing",
        severity=Severity.PROBLEM if refused else Severity.WARNING,
        detail=f"{len(drifted)} differences from the seal: {drifted[0]}" if is_there else str(drifted[0]),
        advice="look at `ductile config lock --dry-run`; if it is as you want it, run `ductile config lock`",
    )


def _drifted(examination: Examination) -> tuple[Complaint, ...]:
    return tuple(one for one in examination.report.warnings if one.category == "integrity")


def modes(directory: Path, paths: Collection[Path], ledger_path: Path) -> Iterator[Finding]:
    """Files with secrets, and their folders, that others can read or write.

    Only what is certainly ours is repaired: files of the configuration that lie in its directory, not behind a link
    that leads out of it; the ledger if it is one, and its folder if nothing else is in it. A configuration may name a
    file or a folder that the host needs as it is.
    """
    state, is_ledger, home = ledger_path.parent, _is_ledger(ledger_path), os.path.realpath(directory)
    for path in dict.fromkeys((directory, *paths, state, ledger_path)):
        if not path.exists():
            continue
        is_ours = path == ledger_path and is_ledger
        if path in paths:
            is_ours = Path(os.path.realpath(path)).is_relative_to(home)
        elif path == state:
            is_ours = is_ledger and _is_only_ours(state)
        is_ours = is_ours and path.stat().st_uid == os.geteuid()
        for found in files.permission_findings(path, private=True):
            yield _open_to_others(path, found, is_ours=is_ours)


def _is_ledger(path: Path) -> bool:
    try:
        with open_reader(path):
            return True
    except DuctileError:
        return False


def _is_only_ours(state: Path) -> bool:
    """True for a folder that holds a ledger, what belongs to it, and nothing else."""
    return all(_OF_THE_LEDGER.fullmatch(path.name) for path in _entries(state))


def _open_to_others(path: Path, found: files.FileFinding, *, is_ours: bool) -> Finding:
    status = path.stat()
    wanted = 0o700 if stat.S_ISDIR(status.st_mode) or status.st_mode & 0o100 else 0o600
    return Finding(
        name="permissions_open",
        severity=Severity.PROBLEM if found.is_refusal else Severity.WARNING,
        detail=str(found),
        advice=f"chmod {wanted:o} {path}",
        repair="chmod" if is_ours else None,
        fix=partial(path.chmod, wanted) if is_ours else None,
    )


# ── the ledger ──────────────────────────────────────────────────────────────────────────────────────────────────────


def ledger(path: Path, *, is_running: bool) -> Iterator[Finding]:
    """Whether it can be read, how its log and its free pages are, and what it tells of plugins."""
    try:
        if not path_checks.is_made(path):
            return
        with open_reader(path) as db:
            free, pages, page_bytes = disk_usage.free_pages(db)
            failed = {name: init.error for name, init in plugin_inits.all_inits(db).items() if init.error is not None}
            has_words = search.is_available(db)
    except DuctileError as error:
        advice = error.hint or "restore a backup"
        yield Finding(name="ledger_unusable", severity=Severity.PROBLEM, detail=str(error), advice=advice)
        return
    yield from _log(path, is_running=is_running)
    if free * page_bytes >= FREE_BYTES and free >= FREE_SHARE * pages:
        yield Finding(
            name="free_pages",
            severity=Severity.NOTE,
            detail=f"{path}: {format_size(free * page_bytes)} of {format_size(pages * page_bytes)} are free pages",
            advice="rewrite it without them, as `ductile system storage compact` does",
            repair="compact",
            fix=partial(rewrite, path),
            needs_rest=True,
        )
    for plugin, why in failed.items():
        advice = "put the reason right and reload; see `ductile plugin show`"
        detail = f"{plugin}: its init failed: {why}"
        yield Finding(name="init_failed", severity=Severity.PROBLEM, detail=detail, advice=advice)
    if not has_words:
        detail = "this SQLite has no FTS5: searches in logs read row by row"
        advice = "install a Python whose SQLite has it"
        yield Finding(name="search_unindexed", severity=Severity.NOTE, detail=detail, advice=advice)


def state(ledger_path: Path, *, is_running: bool) -> Iterator[Finding]:
    """What a start writes first: the ledger, files beside it, and its locks. Whoever runs has done so already."""
    if is_running:
        return
    try:
        path_checks.check_access(ledger_path)
        locks = [path for path in lock_paths(ledger_path.parent, ledger_path) if os.path.lexists(path)]
        refused = [f"{path}: cannot be written by this user" for path in locks if not os.access(path, os.W_OK)]
    except LedgerError as error:
        refused = [str(error)]
    for detail in refused:
        advice = "start the service as the user that owns it, or put its owner, mode or mount right"
        yield Finding(name="state_unwritable", severity=Severity.PROBLEM, detail=detail, advice=advice)


def _log(path: Path, *, is_running: bool) -> Iterator[Finding]:
    size = disk_usage.file_bytes(path)[1]
    if size > 2 * WAL_LIMIT_BYTES or (size and not is_running):
        reason = "is larger than it should get" if is_running else "was left by a service that did not end well"
        yield Finding(
            name="log_left",
            severity=Severity.WARNING if is_running else Severity.NOTE,
            detail=f"{path}-wal: {format_size(size)}: it {reason}",
            advice="fold it into the ledger; the next start does it too",
            repair="fold_log",
            fix=partial(fold_log, path),
            needs_rest=True,
        )


# ── what lies around ────────────────────────────────────────────────────────────────────────────────────────────────


def stale_socket(path: Path, *, is_running: bool) -> Iterator[Finding]:
    if not is_running and os.path.lexists(path) and stat.S_ISSOCK(path.lstat().st_mode):
        yield Finding(
            name="socket_stale",
            severity=Severity.NOTE,
            detail=f"{path}: the socket of a service that did not end well",
            advice="remove it; the next start does it too",
            repair="remove_socket",
            fix=partial(path.unlink, missing_ok=True),
            needs_rest=True,
        )


def temporary_files(directory: Path, ledger_path: Path) -> Iterator[Finding]:
    """What a write, a backup or a restore that was cut short has left, by the names that only we give."""
    name, stage = re.escape(ledger_path.name), rf"{re.escape(STAGE_PREFIX)}\w+"
    places = [
        (directory.parent, stage),
        (directory, rf"{_WRITING}|{_BACKING_UP}|{stage}|\.restore-\w+"),  # the last is how it was called once
        (ledger_path.parent, rf"{_WRITING}|{_BACKING_UP}|{name}\.new-[0-9]+|{name}\.backup-v.+\.partial"),
    ]  # two of them may be the same folder
    left = [path for folder, pattern in places for path in _entries(folder) if re.fullmatch(pattern, path.name)]
    for path in dict.fromkeys(left):
        if _age(path) > LEFT_SECONDS:
            yield Finding(
                name="temporary_left",
                severity=Severity.NOTE,
                detail=f"{path}: left by something that was cut short",
                advice="remove it",
                repair="remove_temporary",
                fix=partial(_remove, path),
            )


def _entries(folder: Path) -> list[Path]:
    """What is in a folder; nothing in one that this user cannot look into."""
    try:
        return [Path(entry.path) for entry in files.entries_of(folder)]
    except files.FileRefused:
        return []


def _age(path: Path) -> float:
    """In seconds; none for what is gone meanwhile."""
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def leftover_processes(ledger_path: Path, *, is_running: bool) -> Iterator[Finding]:
    """Plugin processes of a service that is dead."""
    if is_running or not ledger_path.exists():
        return
    instance = instance_of(ledger_path)
    left = find_marked(instance)
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        yield Finding(
            name="processes_left",
            severity=Severity.PROBLEM,
            detail=f"plugin processes of a service that is gone: {pids}",
            advice="end them; the next start does it too",
            repair="end_processes",
            fix=lambda: _require_none_left(trio.run(kill_marked, instance).survivors),
            needs_rest=True,
        )


def _require_none_left(survivors: tuple[object, ...]) -> None:
    if survivors:
        raise DuctileError(f"{len(survivors)} processes cannot be ended")
