"""Ledgers with many finished jobs, written with SQL only: a million jobs take a minute instead of an hour."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ductile.ledger.storage.connections import transaction
from ductile.ledger.storage.open_file import open_writer
from scripts.benches.lib.bench import show_progress

INSERTS = (
    """
    WITH RECURSIVE number (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :rows),
         job (id, n) AS MATERIALIZED (SELECT lower(hex(randomblob(16))), n FROM number)
    INSERT INTO job_queue (id, plugin, command, payload, status, submitted_by, created_at, started_at, completed_at,
                           root_job_id, open_jobs, tree_jobs, tree_completed_at, asked_at)
    SELECT id, 'plugin-' || (n % 20), 'poll', '{"message":"a payload of ordinary size"}', 'succeeded', 'bench',
           :now, :now, :now, id, 0, 1, :now, :now FROM job
    """,
    """
    INSERT INTO job_log (id, job_id, plugin, command, status, result, attempt, submitted_by, created_at, completed_at,
                         root_job_id, job_status, started_at, duration_ms, exit_code, max_attempts)
    SELECT id || '-1', id, plugin, command, 'succeeded', '{"status":"ok","result":"done"}', 1, submitted_by, :now, :now,
           id, 'succeeded', :now, 12, 0, 4 FROM job_queue WHERE :rows > 0
    """,
    """
    INSERT INTO journal (at, kind, plugin, job_id, root_job_id, data)
    SELECT :now, 'job.completed', plugin, id, id, '{"from":"running","to":"succeeded"}' FROM job_queue WHERE :rows > 0
    """,
)


def shared_history(folder: Path, rows: int) -> Path:
    """Return a ledger with `rows` finished jobs. It is made once per folder; callers copy it and do not change it."""
    path = folder / f"history-{rows}.db"
    if not path.exists():
        unfinished = folder / f"unfinished-{rows}.db"
        unfinished.unlink(missing_ok=True)
        fill(unfinished, rows)
        unfinished.rename(path)
    return path


def fill(path: Path, rows: int) -> None:
    """Write a ledger with `rows` finished jobs, their attempts and their journal rows."""
    show_progress(f"filling {path.name} with {rows:,} finished jobs")
    now = (datetime.now(UTC) - timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    with closing(open_writer(path, synchronous="off")) as db:
        db.execute("PRAGMA cache_size = -400000")
        for statement in INSERTS:
            with transaction(db):
                db.execute(statement, {"rows": rows, "now": now})
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    show_progress(f"  {path.stat().st_size / 1e6:,.0f} MB")
