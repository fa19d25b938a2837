"""Opening a ledger: what is created, what is rejected, and that a rejected file stays unchanged."""

import contextlib
import errno
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ductile.core.errors import LedgerBusy, LedgerError, NotFound
from ductile.core.model import NewJob
from ductile.ledger.jobs.enqueue import enqueue
from ductile.ledger.storage import open_file, path_checks
from ductile.ledger.storage.connections import connect_reader, connect_writer, enable_wal, transaction
from ductile.ledger.storage.identify import APPLICATION_ID
from ductile.ledger.storage.open_file import PAGE_BYTES, SCHEMA_VERSION, open_reader, open_writer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = NewJob(plugin="echo", command="poll", submitted_by="test")


def make_ledger(path: Path, jobs: int = 1) -> None:
    with closing(open_writer(path, synchronous="off")) as db, transaction(db):
        for _ in range(jobs):
            enqueue(db, JOB, now=NOW)


def snapshot_of(directory: Path) -> dict[str, tuple[str, int, bytes]]:
    """Return kind, mode and bytes of everything in a directory."""
    shown = {}
    for path in sorted(directory.rglob("*")):
        found = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(found.st_mode) else b""
        shown[str(path.relative_to(directory))] = (stat.filemode(found.st_mode), found.st_size, content)
    return shown


@pytest.mark.parametrize("umask", [0o000, 0o077, 0o277])
def test_a_new_ledger_is_private(path: Path, umask: int) -> None:
    """0600 in 0700, whatever the umask. Nothing else is left in the directory."""
    before = os.umask(umask)
    try:
        open_writer(path, synchronous="off").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_directories_created_for_a_ledger_are_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every directory with a new name is synced, not only that of the file."""
    fsync, synced = os.fsync, set()

    def record_sync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record_sync)
    path = tmp_path / "new" / "newer" / "state.db"

    open_writer(path).close()

    assert synced == {directory.stat().st_ino for directory in (tmp_path, path.parent.parent, path.parent)}


def test_a_directory_that_cannot_be_synced_is_rejected(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of the log could be lost in a power failure, and SQLite would not report it."""
    open_writer(path).close()
    names: list[set[str]] = []

    def fails(descriptor: int) -> None:
        names.append({entry.name for entry in os.scandir(descriptor)})
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fails)

    with pytest.raises(LedgerError, match="Input/output error"):
        open_writer(path)
    assert len(names) == 1
    assert f"{path.name}-wal" in names[0]


def test_a_database_that_cannot_use_wal_is_rejected() -> None:
    """SQLite answers with its old journal mode and no error."""
    with closing(sqlite3.connect("")) as db, pytest.raises(LedgerError, match="cannot use a write-ahead log"):
        enable_wal(db, "a file without a name")


def test_an_empty_file_is_a_new_ledger(path: Path) -> None:
    """For SQLite it is an empty database."""
    path.parent.mkdir()
    path.touch()
    make_ledger(path)
    with open_reader(path) as db:
        assert db.execute("SELECT COUNT(*) FROM job_queue").fetchone() == (1,)


def test_a_ledger_has_its_pragmas(path: Path) -> None:
    """Application id, schema version, incremental vacuum, page size, WAL."""
    make_ledger(path)
    with closing(sqlite3.connect(path)) as db:
        names = ("application_id", "user_version", "auto_vacuum", "page_size")
        marks = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in names]
        assert marks == [APPLICATION_ID, SCHEMA_VERSION, 2, PAGE_BYTES]
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize(("synchronous", "level"), [("full", 2), ("normal", 1)])
def test_durability_is_as_configured(path: Path, synchronous: str, level: int) -> None:
    """The pragma is verified, because a 202 response depends on it."""
    with closing(open_writer(path, synchronous=synchronous)) as db:  # type: ignore[arg-type]
        assert db.execute("PRAGMA synchronous").fetchone() == (level,)
        assert db.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)


def test_opening_a_current_ledger_changes_nothing(path: Path) -> None:
    """Its jobs are still there."""
    make_ledger(path, 3)
    make_ledger(path, 1)
    with open_reader(path) as db:
        assert db.execute("SELECT COUNT(*) FROM job_queue").fetchone() == (4,)


def a_directory(path: Path) -> None:
    path.mkdir(parents=True)


def a_fifo(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)


def a_fifo_for_a_journal(path: Path) -> None:
    make_ledger(path)
    os.mkfifo(path.with_name(path.name + "-journal"))


def a_fifo_for_the_log_of_a_new_one(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path.with_name(path.name + "-wal"))


def a_directory_for_shared_memory(path: Path) -> None:
    make_ledger(path)
    path.with_name(path.name + "-shm").mkdir()


def a_link_to_nothing(path: Path) -> None:
    path.parent.mkdir()
    path.symlink_to(path.parent / "missing.db")


def random_bytes(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(bytes(range(256)) * 64)


def truncated(path: Path) -> None:
    make_ledger(path, 200)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def only_a_header(path: Path) -> None:
    make_ledger(path)
    path.write_bytes(path.read_bytes()[:60])


def damaged_schema(path: Path) -> None:
    make_ledger(path)
    content = bytearray(path.read_bytes())
    content[100:400] = b"\xff" * 300
    path.write_bytes(content)


def damaged_pages(path: Path) -> None:
    make_ledger(path, 200)
    content = bytearray(path.read_bytes())
    for page in range(8, len(content) // 4096 - 1):
        content[page * 4096 : page * 4096 + 200] = b"\xfe" * 200
    path.write_bytes(content)


def another_program(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.executescript("PRAGMA application_id = 77; CREATE TABLE bookmarks (url TEXT);")


def unmarked_tables(path: Path) -> None:
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.executescript("CREATE TABLE job_queue (id TEXT); CREATE TABLE other (id TEXT);")


def newer_schema(path: Path) -> None:
    make_ledger(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")


def missing_table(path: Path) -> None:
    make_ledger(path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE receipts")


def log_without_a_file(path: Path) -> None:
    log_of_another_ledger(path)
    path.unlink()


def log_of_another_ledger(path: Path) -> None:
    """Create a ledger with the write-ahead log of another one, as after a wrong copy."""
    make_ledger(path, 300)
    other = path.with_name("other.db")
    make_ledger(other, 5)
    with closing(connect_writer(other, "off")) as db:
        with transaction(db):
            for _ in range(300):
                enqueue(db, JOB, now=NOW)
        shutil.copy(other.with_name("other.db-wal"), path.with_name(path.name + "-wal"))
    for leftover in path.parent.glob("other.db*"):
        leftover.unlink()


def log_with_other_pages(path: Path) -> None:
    make_ledger(path)
    path.with_name(path.name + "-wal").write_bytes(bytes.fromhex("377f0682002de21800000200") + bytes(500))


REJECTED: list[tuple[Callable[[Path], None], str]] = [
    (a_directory, "a directory"),
    (a_fifo, "not a regular file"),
    (a_fifo_for_a_journal, "ductile.db-journal: not a regular file"),
    (a_fifo_for_the_log_of_a_new_one, "ductile.db-wal: not a regular file"),
    (a_directory_for_shared_memory, "ductile.db-shm: not a regular file"),
    (a_link_to_nothing, "symbolic link"),
    (random_bytes, "not a SQLite database"),
    (only_a_header, "not a SQLite database"),
    (truncated, "truncated"),
    (damaged_schema, "damaged"),
    (damaged_pages, "damaged"),
    (another_program, "another program"),
    (unmarked_tables, "another program"),
    (newer_schema, "newer Ductile"),
    (missing_table, "damaged, missing tables: receipts"),
    (log_without_a_file, "its log ductile.db-wal has data"),
    (log_of_another_ledger, "the log of another ledger"),
    (log_with_other_pages, "not the log of this database"),
]


@pytest.mark.parametrize(("prepare", "message"), REJECTED, ids=[prepare.__name__ for prepare, _ in REJECTED])
def test_a_file_that_is_not_a_ledger_is_rejected_and_not_changed(
    path: Path, prepare: Callable[[Path], None], message: str
) -> None:
    """Exit code 78 and one line with the path. No byte, mode or name in the directory changes."""
    prepare(path)
    before = snapshot_of(path.parent)
    with pytest.raises(LedgerError, match=message) as rejected:
        open_writer(path)
    assert snapshot_of(path.parent) == before
    assert (rejected.value.exit_code, len(str(rejected.value).splitlines())) == (78, 1)
    assert str(path.parent) in str(rejected.value)
    assert rejected.value.hint


@pytest.mark.process
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to switch to another user")
@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_read_only_ledger_is_rejected(tmp_path: Path, what: str) -> None:
    """For a user without write access: exit code 78, and nothing changes."""
    home = Path("/tmp") / f"ductile-readonly-{os.getpid()}-{what}"
    home.mkdir(mode=0o755)
    try:
        path = home / "ductile.db"
        make_ledger(path)
        path.chmod(0o444)
        home.chmod(0o777 if what == "file" else 0o755)
        before = snapshot_of(home)
        code = (
            "import os, sys; sys.path[:] = sys.argv[2:]\n"
            "from pathlib import Path\n"
            "import sqlite3\n"
            "from ductile.core.errors import LedgerError\n"
            "from ductile.ledger.storage.open_file import open_writer\n"
            "os.setgid(65534); os.setuid(65534)\n"
            "try:\n    open_writer(Path(sys.argv[1]))\n"
            "except LedgerError as error:\n    print(error.exit_code, error)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(path), *sys.path], capture_output=True, text=True, check=False
        )
        assert done.stdout.startswith("78 "), done.stderr
        assert "written" in done.stdout
        assert snapshot_of(home) == before
    finally:
        shutil.rmtree(home)


MOUNTS = """\
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 27 0:40 / /mnt/share rw - nfs4 server:/export rw
31 27 0:41 / /mnt/with\\040space rw - cifs //server/x rw
32 30 254:1 / /mnt/share/local rw - xfs /dev/vdb rw
33 27 0:42 / /home/me/remote rw - fuse.sshfs me@host: rw
34 27 0:43 / /over rw - ext4 /dev/vdc rw
35 27 0:44 / /over rw - 9p share rw
"""


@pytest.mark.parametrize(
    ("directory", "kind"),
    [
        ("/var/lib", "ext4"),
        ("/mnt/share/x", "nfs4"),
        ("/mnt/shared", "ext4"),
        ("/mnt/with space", "cifs"),
        ("/mnt/share/local/x", "xfs"),
        ("/home/me/remote", "fuse.sshfs"),
        ("/over/x", "9p"),
    ],
)
def test_the_file_system_is_that_of_the_closest_mount_point(directory: str, kind: str) -> None:
    """Mount points are compared by path components. The later of two mounts on one point counts."""
    assert path_checks.file_system_of(Path(directory), MOUNTS) == kind


def test_a_network_file_system_is_rejected(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's locks are not reliable there."""
    monkeypatch.setattr(path_checks, "_mounts", lambda: f"27 1 0:1 / {path.parents[1]} rw - nfs4 server:/x rw\n")
    with pytest.raises(LedgerError, match=r"network file system \(nfs4\)"):
        open_writer(path)
    assert not path.parent.exists()


def test_a_second_writer_gets_a_busy_error(path: Path) -> None:
    """Exit code 75: try again."""
    make_ledger(path)
    with closing(connect_writer(path, "off")) as one, closing(connect_writer(path, "off")) as two:
        two.execute("PRAGMA busy_timeout = 50")
        with transaction(one):
            with pytest.raises(LedgerBusy) as busy, transaction(two):
                pass
            assert busy.value.exit_code == 75


def test_a_transaction_rolls_back_on_any_error(db: sqlite3.Connection) -> None:
    """It writes everything or nothing."""
    with pytest.raises(ZeroDivisionError), transaction(db):
        print(1 / (enqueue(db, JOB, now=NOW) is None))
    assert db.execute("SELECT COUNT(*) FROM job_queue").fetchone() == (0,)
    assert not db.in_transaction


def test_a_reader_sees_commits_that_are_only_in_the_log(path: Path) -> None:
    """Whether or not a service runs, also after it was killed."""
    make_ledger(path)
    with closing(connect_writer(path, "off")) as writer:
        with transaction(writer):
            enqueue(writer, JOB, now=NOW)
        with open_reader(path) as reader:
            assert reader.execute("SELECT COUNT(*) FROM job_queue").fetchone() == (2,)


def test_a_reader_sees_one_snapshot(path: Path) -> None:
    """A report with several queries is consistent."""
    make_ledger(path)
    with open_reader(path) as reader, closing(connect_writer(path, "off")) as writer:
        before = reader.execute("SELECT COUNT(*) FROM job_queue").fetchone()
        with transaction(writer):
            enqueue(writer, JOB, now=NOW)
        assert reader.execute("SELECT COUNT(*) FROM job_queue").fetchone() == before


def test_a_reader_can_neither_write_nor_checkpoint(path: Path) -> None:
    """Only the writing connection checkpoints the log."""
    make_ledger(path)
    with closing(connect_writer(path, "off")) as writer, closing(connect_reader(path)) as reader:
        with transaction(writer):
            enqueue(writer, JOB, now=NOW)
        content = path.read_bytes()
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.execute("DELETE FROM job_queue")
        with contextlib.suppress(sqlite3.OperationalError):
            reader.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        assert path.read_bytes() == content
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        assert path.read_bytes() != content


def test_reading_a_missing_ledger_is_an_error(path: Path) -> None:
    """A reader never creates a file."""
    with pytest.raises(NotFound, match="no ledger yet"), open_reader(path):
        pass
    assert not path.parent.exists()


def test_a_failed_creation_leaves_no_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is complete or missing."""
    monkeypatch.setattr(Path, "replace", lambda self, target: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(LedgerError, match="cannot be created: No space left"):
        open_writer(path)
    assert list(path.parent.iterdir()) == []


def test_one_large_response_stays_in_the_cache_until_its_commit_and_many_do_not(tmp_path: Path) -> None:
    """Writing pages before the commit costs more, but memory is limited."""
    path = tmp_path / "ledger.db"
    make_ledger(path)
    with closing(connect_writer(path, "normal")) as db:
        log = path.with_name(path.name + "-wal")
        db.execute("CREATE TABLE responses (response TEXT)")
        before = log.stat().st_size
        with transaction(db):
            db.execute("INSERT INTO responses VALUES (?)", ("x" * (10 << 20),))
            assert log.stat().st_size == before
            for _ in range(4):
                db.execute("INSERT INTO responses VALUES (?)", ("x" * (10 << 20),))
            assert log.stat().st_size > before + (20 << 20)


@pytest.mark.process
def test_reading_imports_no_trio() -> None:
    """The CLI reads a ledger with sqlite3 alone."""
    modules = "ductile.ledger.storage.open_file, ductile.ledger.reports.job_details, ductile.ledger.admin.job_actions"
    code = f"import sys, {modules}; print('trio' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_the_known_tables_are_those_of_the_schema() -> None:
    """Names are read from the text of the schema."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(open_file.schema())
        rows = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        assert open_file.tables() == {name for (name,) in rows}
