"""`ductile system storage`, `plugin-facts` and `scheduler`."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ductile.core.clock import to_text
from ductile.core.instance.lock import instance_lock
from ductile.ledger.reports import disk_usage
from ductile.ops.checks.state import MIN_FREE_BYTES
from tests.cli.conftest import Run
from tests.cli.system.conftest import A_JOB, change, leave_free_pages, ledger_of

# ── storage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_storage_shows_size_growth_and_largest_jobs(run: Run, installed: Path) -> None:
    now = datetime.now(UTC)
    with closing(sqlite3.connect(ledger_of(installed))) as db, db:
        for number in range(100):
            at = to_text(now - timedelta(days=2, minutes=number))
            db.execute(
                "INSERT INTO job_log (id, job_id, plugin, command, status, result, attempt, submitted_by, created_at,"
                " completed_at, root_job_id, job_status, max_attempts) VALUES (?, ?, 'echo', 'poll', 'succeeded', ?, 1,"
                " 't', ?, ?, ?, 'succeeded', 4)",
                (f"{number}-1", str(number), "x" * 1000 * number, at, at, str(number)),
            )

    report = run("system", "storage", "--config", installed, "--json").json

    assert report["tables"][0]["name"] == "job_log"
    assert report["tables"][0]["rows"] == 100
    assert report["tables"][0]["bytes"] > 4_000_000
    assert 30 < report["tables"][0]["rows_per_day"] < 60
    assert [job["job_id"] for job in report["largest_jobs"]] == ["99", "98", "97", "96", "95"]
    assert report["forecast"]["bytes"] > report["bytes"]
    assert "job_log" in run("system", "storage", "--config", installed).stdout


def test_the_growth_of_a_table_is_measured_over_its_retention(run: Run, installed: Path) -> None:
    now = datetime.now(UTC)
    journal = "INSERT INTO journal (at, kind) VALUES (?, 'x')"
    exchange = {"retention": "5d", "topics": {"a": {"retention": "9d"}, "b": {"ordered": True}}}
    job = A_JOB.replace("'j'", "?").replace("?, 'echo'", "?1, 'echo'").replace("?, 1, 1", "?1, 1, 1")
    with closing(sqlite3.connect(ledger_of(installed))) as db, db:
        db.execute(journal, (to_text(now - timedelta(days=6)),))
        db.execute(
            "INSERT INTO config_snapshots (id, config_hash, reason, loaded_at, sanitized_config) VALUES"
            " ('c', 'h', 'start', ?, ?)",
            (to_text(now), json.dumps({"service": {"job_queue_retention": "1d"}, "exchange": exchange})),
        )
        for number in range(240):
            db.execute(job, (f"job-{number}",))

    report = run("system", "storage", "--config", installed, "--json").json

    (queue,) = [table for table in report["tables"] if table["name"] == "job_queue"]
    assert (queue["rows_per_day"], queue["kept_days"]) == (240.0, 1.0)
    kept = {table["name"]: table["kept_days"] for table in report["tables"]}
    assert (kept["messages"], kept["claims"]) == (9.0, 9.0)
    assert report["forecast"]["bytes"] < report["bytes"] * 1.05


def test_storage_estimates_sizes_without_dbstat(run: Run, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(installed, A_JOB)
    monkeypatch.setattr(disk_usage, "PAGE_USAGE", "SELECT * FROM no_such_module")

    report = run("system", "storage", "--config", installed, "--json").json

    assert report["estimated"]
    assert sum(table["bytes"] for table in report["tables"]) <= report["bytes"]
    assert "estimated" in run("system", "storage", "--config", installed).stdout


def test_compact_frees_pages_and_reports_the_size(run: Run, installed: Path) -> None:
    leave_free_pages(installed)
    size = ledger_of(installed).stat().st_size

    planned = run("system", "storage", "compact", "--dry-run", "--config", installed, "--json").json
    assert ledger_of(installed).stat().st_size == size
    done = run("system", "storage", "compact", "--config", installed, "--json").json

    assert done["bytes_before"] == planned["bytes_before"] == size
    assert done["bytes_after"] == ledger_of(installed).stat().st_size < size - MIN_FREE_BYTES
    assert run("system", "selfcheck", "--config", installed).exit_code == 0


def test_compact_refuses_a_ledger_in_use(run: Run, installed: Path) -> None:
    with instance_lock(installed / "data", ledger_of(installed), now=datetime.now(UTC)):
        answer = run("system", "storage", "compact", "--config", installed, "--json")

    assert (answer.exit_code, answer.json["code"]) == (75, "already_running")


# ── facts and schedules ───────────────────────────────────────────────────────────────────────────────────────────────


def test_facts_are_shown_newest_first_and_by_type(run: Run, installed: Path) -> None:
    fact = "INSERT INTO plugin_facts (seq, plugin_name, fact_type, job_id, command, fact_json, created_at) VALUES "
    change(
        installed,
        fact + "(1, 'echo', 'seen', 'j1', 'poll', '{\"n\": 1}', '2026-01-01T00:00:00.000000Z')",
        fact + "(2, 'echo', 'lost', 'j2', 'poll', '{\"n\": 2}', '2026-01-02T00:00:00.000000Z')",
    )

    every = run("system", "plugin-facts", "echo", "--config", installed, "--json").json
    lost = run("system", "plugin-facts", "echo", "--fact-type", "lost", "--config", installed, "--json").json

    assert [one["fact"] for one in every["facts"]] == [{"n": 2}, {"n": 1}]
    assert [one["id"] for one in lost["facts"]] == [2]


def test_facts_of_an_unknown_plugin_are_not_found(run: Run, installed: Path) -> None:
    """A known plugin without facts is no error."""
    answer = run("system", "plugin-facts", "ecko", "--config", installed, "--json")

    assert (answer.exit_code, answer.json["code"]) == (1, "not_found")
    assert run("system", "plugin-facts", "echo", "--config", installed, "--json").json["facts"] == []


def test_system_scheduler_shows_open_jobs_of_schedules(run: Run, installed: Path) -> None:
    change(installed, A_JOB, "UPDATE job_queue SET schedule_id = 'hourly'", A_JOB.replace("'j'", "'k'"))

    view = run("system", "scheduler", "--config", installed, "--json").json

    assert (view["service_name"], view["count"]) == ("ductile", 1)
    assert view["active_polls"][0]["job_id"] == "j"
