"""Checks of the state directory: file modes, the ledger file, leftovers of crashes, disk space and open files.

Reads no rows of jobs. Repairs are performed by `repair`.
"""

import os
import re
import resource
import shutil
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from ductile.core import files
from ductile.core.errors import DuctileError, LedgerError
from ductile.core.instance.lock import LOCK_NAME, lock_paths, read_holder
from ductile.core.units import format_size
from ductile.engine.process.procfs import find_marked, instance_of, kill_marked
from ductile.ledger.reports import disk_usage, search
from ductile.ledger.storage import path_checks
from ductile.ledger.storage.backup import checkpoint_and_truncate
from ductile.ledger.storage.connections import MAX_WAL_BYTES
from ductile.ledger.storage.open_file import open_reader
from ductile.ledger.tables import plugin_inits
from ductile.ops.backup.unpack import STAGE_PREFIX
from ductile.ops.check_health import check_health
from ductile.ops.checks.check import Finding, Installation, Repair, Severity
from ductile.ops.storage import compact_locked
from ductile.web.server.listeners import is_socket_left, local_socket_path

MIN_LEFTOVER_SECONDS = 3600.0
"""Age of leftovers. Newer temporary files may be in use."""
MIN_FREE_SHARE, MIN_FREE_BYTES = 0.25, 16 << 20
MIN_DISK_BYTES, LOW_DISK_BYTES, LOW_DISK_SHARE = 64 << 20, 1 << 30, 0.05
MIN_OPEN_FILES = 1024
_STATE_FILE = re.compile(r".+\.(?:db|sqlite3?)(?:[-.].+)?|ductile\.(?:lock|sock)|.+\.pid")
_TEMPORARY_FILE, _LEDGER_COPY = r"\..+\.[0-9a-f]{12}\.tmp", r"\..+\.[0-9a-f]{12}\.ledger"


def check_modes(installation: Installation) -> Iterator[Finding]:
    """Yield private files and directories that other users can read or write.

    A configuration can name files that other programs need. Only these are repaired: configuration files that resolve
    to a path in the configuration directory, a valid ledger, and its directory if it has no other files.
    """
    directory, ledger, examination = installation.root.parent, installation.ledger, installation.loaded.examination
    sources = examination.config.files if examination else ()
    paths = [installation.root, *(source.path for source in sources)]
    state, is_ledger, home = ledger.parent, _is_ledger(ledger), os.path.realpath(directory)
    for path in dict.fromkeys((directory, *paths, state, ledger)):
        if not path.exists():
            continue
        is_repairable = path == ledger and is_ledger
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
    severity = Severity.PROBLEM if found.is_refusal else Severity.WARNING
    repair = Repair("chmod", partial(path.chmod, wanted)) if is_repairable else None
    return Finding("permissions_open", severity, str(found), f"Run `chmod {wanted:o} {path}`.", repair)


# ── ledger ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_ledger_file(installation: Installation) -> Iterator[Finding]:
    """Yield an unusable ledger, a leftover log, free pages, the reasons of the verdict and a missing search index."""
    path = installation.ledger
    try:
        if not path_checks.ledger_exists(path):
            return
        with open_reader(path) as db:
            failed = {name: init.error for name, init in plugin_inits.all_inits(db).items() if init.error is not None}
            free, pages, page_bytes = disk_usage.free_pages(db)
            health = check_health(db, path, is_running=installation.is_running, now=datetime.now(UTC))
            has_search_index = search.is_available(db)
    except DuctileError as error:
        yield Finding("ledger_unusable", Severity.PROBLEM, str(error), error.hint or "Restore a backup.")
        return
    yield from _check_log(path, is_running=installation.is_running)
    if free * page_bytes >= MIN_FREE_BYTES and free >= MIN_FREE_SHARE * pages:
        detail = f"{path}: {format_size(free * page_bytes)} of {format_size(pages * page_bytes)} are free pages"
        advice = "Compact the file, as `ductile system storage compact` does."
        repair = Repair("compact", partial(compact_locked, path), needs_stopped_service=True)
        yield Finding("free_pages", Severity.NOTE, detail, advice, repair)
    for plugin, error_text in failed.items():
        advice = f"Fix the cause, then run `ductile system reload`. See `ductile plugin show {plugin}`."
        yield Finding("init_failed", Severity.PROBLEM, f"{plugin}: init failed: {error_text}", advice)
    for found in health.reasons:
        if found.reason.code != "unhealthy":  # a failed init, which is reported without a service too
            yield Finding(found.reason.code, Severity.PROBLEM, found.reason.words, f"Run `{found.fix}`.")
    if not has_search_index:
        detail = "SQLite has no FTS5 extension: log searches read every row"
        yield Finding("search_unindexed", Severity.NOTE, detail, "Install a Python whose SQLite has FTS5.")


def _check_log(path: Path, *, is_running: bool) -> Iterator[Finding]:
    size = disk_usage.file_bytes(path)[1]
    if size > 2 * MAX_WAL_BYTES or (size and not is_running):
        severity = Severity.WARNING if is_running else Severity.NOTE
        reason = "larger than expected" if is_running else "left by an unclean shutdown"
        advice = "Checkpoint the log into the ledger. The next start also does this."
        repair = Repair("fold_log", partial(checkpoint_and_truncate, path), needs_stopped_service=True)
        yield Finding("log_left", severity, f"{path}-wal: {format_size(size)}, {reason}", advice, repair)


def check_state_writable(installation: Installation) -> Iterator[Finding]:
    """Yield the files that a start writes but this user cannot: the ledger, its side files and the locks."""
    ledger = installation.ledger
    if installation.is_running:
        return
    try:
        path_checks.require_writable(ledger)
        locks = [path for path in lock_paths(ledger.parent, ledger) if os.path.lexists(path)]
        refused = [f"{path}: not writable by this user" for path in locks if not os.access(path, os.W_OK)]
    except LedgerError as error:
        refused = [str(error)]
    for detail in refused:
        advice = "Start the service as the owner of the file, or fix the owner, mode or mount."
        yield Finding("state_unwritable", Severity.PROBLEM, detail, advice)


# ── leftovers ───────────────────────────────────────────────────────────────────────────────────────────────────────


def check_socket(installation: Installation) -> Iterator[Finding]:
    path = local_socket_path(installation.ledger.parent)
    if not installation.is_running and is_socket_left(installation.ledger.parent):
        detail = f"{path}: socket left by an unclean shutdown"
        advice = "Remove the socket. The next start also does this."
        repair = Repair("remove_socket", partial(path.unlink, missing_ok=True), needs_stopped_service=True)
        yield Finding("socket_stale", Severity.PROBLEM, detail, advice, repair)


def check_temporary_files(installation: Installation) -> Iterator[Finding]:
    """Yield leftovers of interrupted writes, backups and restores. They have names that only Ductile uses."""
    directory, ledger = installation.root.parent, installation.ledger
    name, staging = re.escape(ledger.name), rf"{re.escape(STAGE_PREFIX)}\w+"
    places = [
        (directory.parent, staging),
        (directory, rf"{_TEMPORARY_FILE}|{_LEDGER_COPY}|{staging}|\.restore-\w+"),  # .restore-*: older versions
        (ledger.parent, rf"{_TEMPORARY_FILE}|{_LEDGER_COPY}|{name}\.new-[0-9]+|{name}\.backup-v.+\.partial"),
    ]  # directories may be the same
    left = [path for folder, pattern in places for path in _entries(folder) if re.fullmatch(pattern, path.name)]
    for path in dict.fromkeys(left):
        if _age_seconds(path) > MIN_LEFTOVER_SECONDS:
            detail = f"{path}: left by an interrupted write, backup or restore"
            repair = Repair("remove_temporary", partial(_remove, path))
            yield Finding("temporary_left", Severity.NOTE, detail, "Remove it.", repair)


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


def check_leftover_processes(installation: Installation) -> Iterator[Finding]:
    """Yield the plugin processes that a stopped service left running."""
    if installation.is_running or not installation.ledger.exists():
        return
    instance = instance_of(installation.ledger)
    if left := find_marked(instance):
        pids = ", ".join(str(process.pid) for process in left)
        detail = f"plugin processes left by an unclean shutdown: {pids}"
        advice = "Kill the processes. The next start also does this."
        repair = Repair("end_processes", partial(_end_processes, instance), needs_stopped_service=True)
        yield Finding("processes_left", Severity.PROBLEM, detail, advice, repair)


def _end_processes(instance: str) -> None:
    import trio  # slow to import; needed only for this repair

    if survivors := trio.run(kill_marked, instance).survivors:
        raise DuctileError(f"{len(survivors)} processes could not be killed")


# ── resources ───────────────────────────────────────────────────────────────────────────────────────────────────────


def check_disk(installation: Installation) -> Iterator[Finding]:
    folder = next(folder for folder in installation.ledger.parents if folder.is_dir())
    usage = os.statvfs(folder)
    free, total = usage.f_bavail * usage.f_frsize, usage.f_blocks * usage.f_frsize
    if free < max(MIN_DISK_BYTES, min(LOW_DISK_BYTES, LOW_DISK_SHARE * total)):
        detail = f"{folder}: {format_size(free)} of {format_size(total)} free"
        advice = "Free some disk space. `ductile system storage` shows the size of the ledger."
        yield Finding("disk_low", Severity.WARNING, detail, advice)


def check_open_files(installation: Installation) -> Iterator[Finding]:
    """Check the limit of the running service, otherwise that of the current process."""
    pid = read_holder(installation.ledger.parent / LOCK_NAME)[0] if installation.is_running else None
    limit = _read_limit(pid) or resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < MIN_OPEN_FILES:
        detail = f"limit of {limit} open files; each running job needs 4, each HTTP connection 1"
        advice = f"Raise the limit to at least {MIN_OPEN_FILES} (`ulimit -n`, or `LimitNOFILE=` in a systemd unit)."
        yield Finding("open_files_low", Severity.WARNING, detail, advice)


def _read_limit(pid: int | None) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines() if pid else []
    except OSError:
        return None
    soft = next((line.split()[3] for line in lines if line.startswith("Max open files")), "")
    return int(soft) if soft.isdigit() else None
