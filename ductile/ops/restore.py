"""From an archive back to a service's files: unpacked beside their place, verified, then put there by one exchange.

Until the exchange nothing that is used is touched; after it everything is new, and what was there is kept beside. What
lay outside the directory of the configuration goes back to its absolute place first, each file by one rename.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from attrs import define, field

from ductile.config.checks.doctor import examine
from ductile.config.edit.atomic_write import PENDING_FILE, only_editor
from ductile.config.load.ledger_path import ledger_of
from ductile.config.load.load import load
from ductile.config.seal.checksums import SEAL_FILE, moved, read_seal, render
from ductile.config.seal.restore import STAGE_PREFIX
from ductile.core import files
from ductile.core.errors import ConfigInvalid, DuctileError, LedgerError, UsageInvalid, WrongState
from ductile.core.instance.lock import instance_lock, require_free
from ductile.ledger.storage.backup import beside, facts_of_copy, fold_log, make_its_own
from ductile.ledger.storage.path_checks import make_private_directory
from ductile.ops import archive, atomic_swap
from ductile.ops.archive import Tell
from ductile.ops.archive_manifest import LEDGER, PLUGIN, ArchivedFile, ArchiveManifest, ArchiveRefused, BackupScope

SPARE_BYTES = 16 << 20


class PlaceTaken(DuctileError):
    """Something is already where the archive would be restored to."""

    code, exit_code, status = "place_taken", 1, 409
    hint = "restore it into another directory with --config-dir"


@define
class RestoredInstance:
    """What was put where, or would be, and where what was there before is kept."""

    directory: Path
    manifest: ArchiveManifest
    ledger: Path | None = None
    outside: list[Path] = field(factory=list)
    kept: list[Path] = field(factory=list)
    warnings: list[str] = field(factory=list)
    dry_run: bool = False

    @property
    def is_whole(self) -> bool:
        """True if the archive has a configuration, and not only a ledger."""
        return any(entry.place == self.manifest.root for entry in self.manifest.files)

    def as_data(self) -> dict[str, Any]:
        return {
            "directory": str(self.directory),
            "made_at": self.manifest.made_at,
            "version": self.manifest.version,
            "source": self.manifest.source,
            "files": [entry.place for entry in self.manifest.files],
            "ledger": str(self.ledger) if self.ledger else None,
            "outside": [str(path) for path in self.outside],
            "kept": [str(path) for path in self.kept],
            "warnings": self.warnings,
            "dry_run": self.dry_run,
        }


def restore(
    source: Path,
    directory: Path,
    *,
    now: datetime,
    replace: bool = False,
    outside: bool = False,
    tell: Tell,
    dry_run: bool = False,
) -> RestoredInstance:
    """`directory` is as the archive has it, and so is what lay outside of it; or nothing has changed.

    Raises AlreadyRunning while a service uses what would be replaced, and PlaceTaken unless that is to be replaced.
    """
    directory = Path(os.path.abspath(directory.expanduser()))
    if directory.suffix == ".yaml" and not directory.is_dir():
        directory = directory.parent
    if directory == directory.parent:
        raise UsageInvalid(f"{directory} cannot be restored", hint="name the directory of a configuration")
    with _staged(source, directory, tell) as (stage, manifest):
        done = RestoredInstance(directory, manifest, dry_run=dry_run)
        done.ledger = _ledger_place(stage, done)
        _require_no_log(source, done)
        done.outside = _outside(done)
        for path in _ledgers(done):
            require_free(path.parent, path)
        _require_leave(done, replace=replace, outside=outside)
        if not dry_run:
            with _alone(done, now):
                _put(stage, done, now)
    if done.is_whole and not dry_run:
        done.warnings += _what_is_missing(done)
    return done


# ── before anything is touched ──────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _staged(source: Path, directory: Path, tell: Tell) -> Iterator[tuple[Path, ArchiveManifest]]:
    """The archive, unpacked beside `directory` and found whole: `inside/…` as it will be, `outside/…` by its place."""
    above = next(folder for folder in _real(directory).parents if folder.is_dir())
    try:
        stage = Path(os.path.realpath(tempfile.mkdtemp(prefix=STAGE_PREFIX, dir=above)))
    except OSError as error:
        raise files.FileRefused(above, os.strerror(error.errno or 0).lower()) from error
    try:
        (stage / "inside").mkdir(mode=0o700)

        def take(entry: ArchivedFile, chunks: Iterator[bytes]) -> None:
            if entry.place == PENDING_FILE:  # whoever finds one does what it says, anywhere
                raise ArchiveRefused(source, f"{PENDING_FILE} is nothing that a backup holds")
            _require_room(above, entry)
            _write(staged_path(stage, entry), chunks, mode=0o700 if entry.executable else 0o600)

        manifest = archive.read(source, take, tell)
        if entry := manifest.ledger:
            facts_of_copy(staged_path(stage, entry))
            make_its_own(staged_path(stage, entry))
        _move_seal(stage / "inside", Path(manifest.source), directory)
        yield stage, manifest
    except OSError as error:
        raise files.FileRefused(above, f"cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _real(directory: Path) -> Path:
    """Where a directory lies whose name may be a link: the link stays, what it leads to is exchanged."""
    return Path(os.path.realpath(directory))


def staged_path(stage: Path, entry: ArchivedFile) -> Path:
    """Where a file waits: the ledger apart, because the restored configuration says where it belongs."""
    if entry.kind == LEDGER:
        return stage / "ledger.db"
    return stage / (f"outside{entry.place}" if entry.is_outside else f"inside/{entry.place}")


def _require_room(folder: Path, entry: ArchivedFile) -> None:
    room = os.statvfs(folder)
    if entry.size + SPARE_BYTES > room.f_bavail * room.f_frsize:
        wanted = f"{entry.size} bytes with {SPARE_BYTES >> 20} MiB to spare"
        raise files.FileRefused(folder, f"has no room for {wanted}", hint="free some space")


def _write(path: Path, chunks: Iterator[bytes], *, mode: int) -> None:
    make_private_directory(path.parent)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        if error.errno is None:
            raise  # what gzip says of the archive
        raise files.FileRefused(path, f"cannot be written: {error.strerror}") from error


def _move_seal(inside: Path, old: Path, new: Path) -> None:
    """What was approved under its old path is approved under its new one, and nothing else is."""
    seal = read_seal(inside / SEAL_FILE)
    if seal is not None and old != new:
        files.write_private(inside / SEAL_FILE, render(moved(seal, old, new)))


def _ledger_place(stage: Path, done: RestoredInstance) -> Path | None:
    """Where the ledger goes: where the configuration says, the restored one or else the one that is there."""
    if done.manifest.ledger is None:
        return None
    inside = stage / "inside"
    folder = inside if done.is_whole else done.directory
    try:
        place = ledger_of(folder / done.manifest.root, os.environ)
    except ConfigInvalid:
        # What it includes may lie outside, or wait for its environment; then the ledger goes where it was.
        return done.directory / done.manifest.ledger.place
    return done.directory / place.relative_to(inside) if place.is_relative_to(inside) else place


def _require_no_log(source: Path, done: RestoredInstance) -> None:
    """Nothing in the archive would lie where the ledger's log does: it would be read as that."""
    logs = beside(done.ledger) if done.ledger else ()
    for entry in done.manifest.files:
        if done.directory / entry.place in logs:
            raise ArchiveRefused(source, f"{files.shown_path(entry.place)} is nothing that a backup holds")


def _outside(done: RestoredInstance) -> list[Path]:
    """What would be written outside `directory`. A file that is there already, byte by byte, need not be."""
    wanted = [
        Path(entry.place)
        for entry in done.manifest.files
        if entry.is_outside and entry.kind != LEDGER and not _is_there(Path(entry.place), entry)
    ]
    if done.ledger and not done.ledger.is_relative_to(done.directory):
        wanted.append(done.ledger)
    return wanted


def _is_there(path: Path, entry: ArchivedFile) -> bool:
    try:
        return archive.hash_of(path) == (entry.size, entry.blake3)
    except files.FileRefused:
        return False


def _require_leave(done: RestoredInstance, *, replace: bool, outside: bool) -> None:
    """Nothing would be written where the operator does not expect it."""
    if done.outside and not outside:
        some = ", ".join(str(path) for path in done.outside[:3])
        raise WrongState(
            f"{len(done.outside)} files of the archive belong outside {done.directory}: {some}",
            hint="put them there with --outside",
            context={"outside": [str(path) for path in done.outside]},
        )
    if done.is_whole and os.path.ismount(_real(done.directory)):
        hint = "restore into a directory below it"
        raise files.FileRefused(done.directory, "is a mount point, which cannot be replaced", hint=hint)
    is_taken = done.is_whole and done.directory.exists() and any(done.directory.iterdir())
    places = [*([done.directory] if is_taken else []), *done.outside, *([done.ledger] if done.ledger else [])]
    taken = [str(path) for path in dict.fromkeys(places) if os.path.lexists(path)]
    if taken and not replace:
        hint = "restore into another directory, or put it in its place with --replace; what is there is kept"
        raise PlaceTaken(f"{taken[0]} is there already", hint=hint, context={"taken": taken})
    if is_taken and done.manifest.scope != BackupScope.ALL:
        hint = "restore it into another directory and take from there what you need"
        raise PlaceTaken(f"an archive of scope {done.manifest.scope} has not all that {taken[0]} has", hint=hint)


@contextlib.contextmanager
def _alone(done: RestoredInstance, now: datetime) -> Iterator[None]:
    """No service uses what is replaced, and nobody edits it."""
    with contextlib.ExitStack() as held:
        for path in _ledgers(done):
            held.enter_context(instance_lock(path.parent, path, now=now))
        if done.directory.is_dir():
            held.enter_context(only_editor(done.directory))
        yield


def _ledgers(done: RestoredInstance) -> set[Path]:
    """Those that a service may be using: where the ledger goes, and the one of the configuration that is there."""
    try:
        present = ledger_of(done.directory / done.manifest.root, os.environ)
    except DuctileError:
        present = None
    return {path for path in (done.ledger, present) if path and path.parent.is_dir()}


# ── the change ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _put(stage: Path, done: RestoredInstance, now: datetime) -> None:
    """Everything is in its place: what lies outside first, the directory in the end and at once; or it is as it was."""
    stamp, inside, ledger = f"before-restore-{now:%Y%m%dT%H%M%S%f}", stage / "inside", stage / "ledger.db"
    with contextlib.ExitStack() as undo:
        for entry in done.manifest.files:
            path = Path(entry.place)
            if entry.kind != LEDGER and path in done.outside:
                # What a plugin has beside its files counts as its own, unless it is hidden: it would not be sealed.
                aside = path.with_name(f"{'.' if entry.kind == PLUGIN else ''}{path.name}.{stamp}")
                done.kept += atomic_swap.put_file(staged_path(stage, entry), path, aside)
                undo.callback(atomic_swap.take_back, path, aside)
        if done.ledger and done.is_whole and done.ledger not in done.outside:
            place = inside / done.ledger.relative_to(done.directory)
            make_private_directory(place.parent)
            ledger.rename(place)
        elif done.ledger:
            done.kept += _put_ledger(ledger, done.ledger, stamp, undo)
        if done.is_whole:
            place = _real(done.directory)
            atomic_swap.give(inside, place)
            done.kept += atomic_swap.put_directory(inside, place, stamp)
        undo.pop_all()


def _put_ledger(staged: Path, place: Path, stamp: str, undo: contextlib.ExitStack) -> list[Path]:
    """The log of the old ledger is folded into it, so that the new one never stands beside a strange log."""
    if place.exists():
        with contextlib.suppress(LedgerError):  # a damaged one is kept as it is
            fold_log(place)
    kept = []
    aside = place.with_name(f"{place.name}.{stamp}")
    for log, log_aside in zip(beside(place), beside(aside), strict=True):
        if moved := atomic_swap.set_aside(log, log_aside):
            undo.callback(atomic_swap.take_back, log, log_aside)
            kept += moved
    kept += atomic_swap.put_file(staged, place, aside)
    undo.callback(atomic_swap.take_back, place, aside)
    return kept


def _what_is_missing(done: RestoredInstance) -> list[str]:
    """Why a service could not start on it yet, and what still leads to where it came from."""
    try:
        config = load(done.directory / done.manifest.root)
        found = [f"not usable yet: {complaint}" for complaint in examine(config).report.errors]
    except ConfigInvalid as error:
        return [f"not usable yet: {complaint}" for complaint in error.complaints]
    except DuctileError as error:
        return [f"not usable yet: {error}"]
    old, new = Path(done.manifest.source), done.directory
    used = [config.settings.state.path, *config.settings.plugin_roots, *(source.path for source in config.files)]
    left = [path for path in used if path.is_relative_to(old) and not path.is_relative_to(new)]
    return found + [f"still in use, from where it was: {path}" for path in left]
