"""Migration: databases of the original are adopted, older ledgers are migrated, after a backup."""

import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ductile.core.errors import LedgerError, LedgerFull
from ductile.ledger.queue.claim import claim
from ductile.ledger.queue.recover import recover_orphans
from ductile.ledger.reports import job_details
from ductile.ledger.storage import migrate
from ductile.ledger.storage.connections import connect_writer, transaction
from ductile.ledger.storage.identify import APPLICATION_ID, identify
from ductile.ledger.storage.open_file import SCHEMA_VERSION, open_reader, open_writer, schema, tables

ORIGINAL = (Path(__file__).parent / "original.sql").read_text()
NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)


@pytest.fixture
def original(tmp_path: Path) -> Path:
    """Create a database as the original leaves it: WAL mode, no version, no application id."""
    path = tmp_path / "ductile.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode = WAL")
        db.executescript(ORIGINAL)
    return path


@pytest.fixture
def adopted(original: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_writer(original, synchronous="off")) as db:
        yield db


def schema_of(db: sqlite3.Connection) -> set[tuple[str, str]]:
    return set(db.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'"))


def test_an_adopted_database_has_the_schema_of_a_new_one(adopted: sqlite3.Connection, tmp_path: Path) -> None:
    """Tables, indexes, views and pragmas are the same."""
    with closing(open_writer(tmp_path / "new.db", synchronous="off")) as new:
        assert schema_of(adopted) == schema_of(new)
        for pragma in ("application_id", "user_version", "auto_vacuum", "journal_mode"):
            values = [db.execute(f"PRAGMA {pragma}").fetchone() for db in (adopted, new)]
            assert values[0] == values[1], pragma
    assert adopted.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


NOT_UTF8 = "CAST(x'7b2261223a22ff227d' AS TEXT)"
REPLACED = '{"a":"\ufffd"}'


def test_text_that_is_not_utf8_is_adopted_as_the_original_read_it(original: Path) -> None:
    """The original stored raw bytes and read U+FFFD. Such a job does not stop the others."""
    with closing(sqlite3.connect(original)) as db, db:
        db.execute(f"UPDATE job_queue SET payload = {NOT_UTF8}, last_error = {NOT_UTF8}")
        db.execute(f"UPDATE job_log SET result = {NOT_UTF8}, stderr = {NOT_UTF8}, last_error = {NOT_UTF8}")
        db.execute(f"UPDATE event_context SET accumulated_json = {NOT_UTF8}")
        db.execute(f"UPDATE plugin_facts SET fact_json = {NOT_UTF8}")
        db.execute(f"UPDATE plugin_state SET state = {NOT_UTF8}")
        db.execute(f"UPDATE job_transitions SET reason = {NOT_UTF8}")
    with closing(open_writer(original, synchronous="off")) as db:
        with transaction(db):
            recovered = recover_orphans(db, run_id="first", now=NOW)
            claimed = claim(db, now=NOW, run_id="first", free={"echo": 1, "next": 1, "last": 1}, limit=3)
        assert (len(recovered), len(claimed.jobs)) == (1, 3)
        assert {(job.payload, job.context) for job in claimed.jobs} == {(REPLACED, REPLACED), (REPLACED, None)}
        assert claimed.states["echo"] == REPLACED
        logged = db.execute(
            "SELECT result, stderr, last_error FROM job_log WHERE id IN ('root-1', 'late-4')"
        ).fetchall()
        assert logged == [(REPLACED,) * 3] * 2
        assert db.execute("SELECT DISTINCT fact_json FROM plugin_facts").fetchall() == [(REPLACED,)]


def test_adopted_jobs_keep_their_order_and_get_roots(adopted: sqlite3.Connection) -> None:
    """Ordered by created_at. A job with a missing parent becomes a root. The counters match."""
    statement = "SELECT id, status, root_job_id, open_jobs, tree_jobs FROM job_queue ORDER BY seq"
    assert adopted.execute(statement).fetchall() == [
        ("late", "failed", "late", 0, 1),
        ("root", "succeeded", "root", 2, 3),
        ("child", "queued", "root", None, None),
        ("grandchild", "running", "root", None, None),
        ("retrying", "queued", "retrying", 1, 1),
    ]


def test_adopted_times_get_the_stored_format(adopted: sqlite3.Connection) -> None:
    """Trimmed zeros, nanoseconds and offsets become 27 characters of UTC."""
    statement = "SELECT created_at, completed_at FROM job_queue WHERE id IN ('root', 'late') ORDER BY seq"
    assert adopted.execute(statement).fetchall() == [
        ("2025-12-31T23:00:01.000000Z", "2025-12-31T23:00:01.000000Z"),
        ("2026-01-01T00:00:05.000000Z", "2026-01-01T00:00:06.123456Z"),
    ]


def test_an_adoption_keeps_the_history(adopted: sqlite3.Connection) -> None:
    """Attempts, transitions, facts, state, contexts, breakers, schedules and snapshots."""
    late = job_details.attempts(adopted, "late")[0]
    assert (late.status, late.job_status) == ("timed_out", "failed"), "an attempt times out, a job does not"
    root = job_details.job(adopted, "root")
    assert (root.result, root.attempts[0].stderr, root.job.payload) == ('{"ok":1}', "warned", '{"x":1}')
    transitions = "SELECT from_status, to_status, reason FROM job_transitions WHERE job_id = 'root' ORDER BY id"
    assert adopted.execute(transitions).fetchall() == [(None, "queued", None), ("queued", "running", "claimed")]
    facts = "SELECT id, seq, fact_json FROM plugin_facts ORDER BY id"
    assert adopted.execute(facts).fetchall() == [(1, 3, '{"n":1}'), (2, 7, '{"n":2}')]
    assert adopted.execute("SELECT value FROM storage_sequences").fetchall() == [(7,)]
    assert adopted.execute("SELECT state FROM circuit_breakers").fetchall() == [("open",)]
    assert adopted.execute("SELECT next_run_at FROM schedule_entries").fetchone() == ("2026-01-01T01:00:01.000000Z",)
    assert adopted.execute("SELECT job_id FROM dedupe_receipts").fetchall() == [("root",)]
    assert adopted.execute("SELECT COUNT(*) FROM event_context").fetchone() == (2,)
    assert adopted.execute("SELECT config_hash FROM config_snapshots").fetchall() == [("abc",)]


def test_the_jobs_of_an_adopted_queue_continue(adopted: sqlite3.Connection) -> None:
    """The running job is an orphan. Queued jobs are claimed, the delayed one when it is due."""
    with transaction(adopted):
        (orphan,) = recover_orphans(adopted, run_id="first", now=NOW)
        free = dict.fromkeys(("echo", "next", "last"), 9)
        claimed = claim(adopted, now=NOW, run_id="first", free=free, limit=9)
    assert orphan.job_id == "grandchild"
    assert [(job.id, job.attempt) for job in claimed.jobs] == [("child", 1), ("grandchild", 3), ("retrying", 2)]


@pytest.mark.parametrize("stored", ["null", "[1]", "", "{not json"])
def test_a_state_that_is_not_an_object_is_adopted_as_an_empty_one(original: Path, stored: str) -> None:
    """Plugins get an object, and updates are merged into it."""
    with closing(sqlite3.connect(original)) as db, db:
        db.execute("INSERT INTO plugin_state VALUES ('odd', ?, '2026-01-01T00:00:06Z')", (stored,))
        db.execute("INSERT INTO plugin_state VALUES ('blob', CAST('{\"b\":1}' AS BLOB), '2026-01-01T00:00:06Z')")
    with closing(open_writer(original, synchronous="off")) as db:
        states = dict(db.execute("SELECT plugin_name, state FROM plugin_state"))
    assert states == {"echo": '{"n":2}', "odd": "{}", "blob": '{"b":1}'}


def test_an_original_without_some_tables_and_columns_is_adopted(tmp_path: Path) -> None:
    """Missing values become NULL or stay empty."""
    path = tmp_path / "old.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(ORIGINAL)
        for table in ("job_transitions", "job_attempts", "schedule_entries", "config_snapshots"):
            db.execute(f"DROP TABLE {table}")
        db.execute("ALTER TABLE job_queue DROP COLUMN enqueued_config_snapshot_id")
        db.execute("ALTER TABLE job_queue DROP COLUMN next_retry_at")
        db.commit()
    with closing(open_writer(path, synchronous="off")) as db:
        assert db.execute("SELECT COUNT(*) FROM job_queue").fetchone() == (5,)


def test_an_adoption_creates_a_backup(original: Path) -> None:
    """Complete, private, and still a database of the original."""
    open_writer(original, synchronous="off").close()
    (backup,) = original.parent.glob("ductile.db.backup-v0-*")
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    with closing(sqlite3.connect(backup)) as db:
        assert db.execute("SELECT COUNT(*) FROM job_queue WHERE status = 'timed_out'").fetchone() == (1,)
        assert db.execute("PRAGMA application_id").fetchone() == (0,)
    open_writer(original, synchronous="off").close()
    assert len(list(original.parent.glob("ductile.db.backup-*"))) == 1, "a ledger that is up to date is not backed up"


def test_a_reader_does_not_adopt(original: Path) -> None:
    """It changes nothing, and its error says what to do."""
    before = original.read_bytes()
    with pytest.raises(LedgerError, match="not yet a ledger"), open_reader(original):
        pass
    assert original.read_bytes() == before


KILLED = """
import os, signal, sqlite3, sys
from datetime import UTC, datetime
from pathlib import Path
from ductile.ledger.storage import migrate, open_file
from ductile.ledger.storage.connections import connect_writer
from ductile.ledger.storage.identify import identify
path, wanted = Path(sys.argv[1]), int(sys.argv[2])
seen = []
def on_step(part):
    seen.append(part)
    if len(seen) == wanted:
        os.kill(os.getpid(), signal.SIGKILL)
info = identify(path, newest=open_file.SCHEMA_VERSION, tables=open_file.tables())
db = connect_writer(path, "full")
migrate.migrate(
    db,
    path,
    info,
    newest=open_file.SCHEMA_VERSION,
    schema=open_file.schema(),
    now=datetime.now(UTC),
    on_step=on_step,
)
print(len(seen))
"""


@pytest.mark.process
def test_an_adoption_killed_at_any_step_is_complete_or_not_done(original: Path) -> None:
    """After SIGKILL at each step, the next start finds the old rows and adopts all of them."""
    image = original.read_bytes()
    parts, step = None, 0
    while parts is None:
        step += 1
        for leftover in original.parent.glob("ductile.db*"):
            leftover.unlink()
        original.write_bytes(image)
        done = subprocess.run([sys.executable, "-c", KILLED, original, str(step)], capture_output=True, check=False)
        if done.returncode == 0:
            parts = int(done.stdout)
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        with closing(sqlite3.connect(original)) as db:
            assert db.execute("PRAGMA application_id").fetchone() == (0,)
            assert db.execute("SELECT COUNT(*) FROM job_queue WHERE status = 'timed_out'").fetchone() == (1,)
        with closing(open_writer(original, synchronous="off")) as db:
            assert db.execute("SELECT COUNT(*) FROM job_queue").fetchone() == (5,)
            assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    assert parts == step - 1 >= 15


def test_a_failed_adoption_leaves_the_original_unchanged(original: Path) -> None:
    """A row that cannot be adopted is one clear error."""
    with closing(sqlite3.connect(original)) as db:
        db.execute(
            "INSERT INTO job_log (id, job_id, plugin, command, status, attempt, submitted_by, created_at,"
            " completed_at) VALUES (CAST(x'ff' AS TEXT), 'j', 'p', 'c', 'succeeded', 'many', 's', 'never', 'never')"
        )
        db.commit()
    with pytest.raises(LedgerError, match="ledger"):
        open_writer(original, synchronous="off")
    with closing(sqlite3.connect(original)) as db:
        assert db.execute("SELECT COUNT(*) FROM job_queue WHERE status = 'timed_out'").fetchone() == (1,)


NO_SPACE = """\
import resource, sqlite3, sys
from pathlib import Path
from ductile.ledger.storage import migrate
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
migrate.back_up(sqlite3.connect(sys.argv[1]), Path(sys.argv[1] + ".backup"))
"""


@pytest.mark.process
def test_a_failed_backup_leaves_no_file(original: Path) -> None:
    """Otherwise repeated starts would leave one incomplete copy each."""
    before = {path.name for path in original.parent.iterdir()}
    done = subprocess.run([sys.executable, "-c", NO_SPACE, original], capture_output=True, text=True, check=False)

    assert "LedgerError" in done.stderr
    assert {path.name for path in original.parent.iterdir()} - {"ductile.db-shm", "ductile.db-wal"} == before


def test_a_failed_adoption_leaves_no_backup(original: Path) -> None:
    """A row that cannot be adopted fails at every start."""
    columns = "id, job_id, plugin, command, status, attempt, submitted_by, created_at, completed_at"
    with closing(sqlite3.connect(original)) as db:
        values = "CAST(x'ff' AS TEXT), 'j', 'p', 'c', 'succeeded', 'many', 's', 'never', 'never'"
        db.execute(f"INSERT INTO job_log ({columns}) VALUES ({values})")
        db.commit()

    with pytest.raises(LedgerError):
        open_writer(original)

    assert list(original.parent.glob("*backup*")) == []


def test_an_adoption_on_a_full_disk_leaves_no_backup(original: Path) -> None:
    """Nothing has changed, and every retry would add another copy."""
    with closing(connect_writer(original, "off")) as db:
        info = identify(original, newest=SCHEMA_VERSION, tables=tables())
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {pages}")  # SQLite reports the same error as for a full disk
        with pytest.raises(LedgerFull):
            migrate.migrate(db, original, info, newest=SCHEMA_VERSION, schema=schema(), now=NOW)
        assert db.execute("SELECT COUNT(*) FROM job_queue").fetchone() == (5,)

    assert list(original.parent.glob("*backup*")) == []
    with closing(open_writer(original, synchronous="off")) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)


def test_every_schema_version_has_a_migration() -> None:
    """Otherwise the version could never be reached."""
    for number in range(1, SCHEMA_VERSION + 1):
        assert callable(migrate.load_migration(number))
    with pytest.raises(LedgerError, match="no migration"):
        migrate.load_migration(SCHEMA_VERSION + 1)
