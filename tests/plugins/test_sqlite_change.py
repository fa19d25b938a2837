"""sqlite_change reports changed results and never writes."""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Home
from tests.plugins.bundled import PluginRun, run_plugin
from tests.plugins.plugin_service import Start, events_of, start_with_plugin


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "it's 100% a?database#1.db"


@pytest.fixture
def db(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("CREATE TABLE bird (name TEXT, seen INTEGER)")
        connection.execute("INSERT INTO bird VALUES ('wren', 1)")
        yield connection


class Poller:
    """Poll one query repeatedly, with the state of the last response."""

    def __init__(self, path: Path, query: str, **config: Any) -> None:
        self.config = {"db_path": str(path), "query": query, "event_type": "birds.changed", **config}
        self.state: Mapping[str, Any] = {}
        self.jobs = 0

    def run(self) -> PluginRun:
        self.jobs += 1
        finished = run_plugin("sqlite_change", "poll", config=self.config, state=self.state, job_id=f"j-{self.jobs}")
        self.state = finished.response.get("state_updates") or self.state
        return finished

    def poll(self) -> list[dict[str, Any]]:
        finished = self.run()
        assert finished.response["status"] == "ok", finished
        return [event["payload"] for event in finished.response["events"]]


def test_a_changed_result_is_reported_and_stored_as_a_fact(
    home: Home, start: Start, path: Path, db: sqlite3.Connection
) -> None:
    config = {"db_path": str(path), "query": "SELECT count(*) AS birds FROM bird", "event_type": "birds.changed"}
    service = start_with_plugin(home, start, "sqlite_change", config)

    assert events_of(service.run("sqlite_change")) == []
    db.execute("INSERT INTO bird VALUES ('robin', 2)")
    reported, quiet = service.run("sqlite_change"), service.run("sqlite_change")

    ((kind, payload),) = events_of(reported)
    assert (kind, payload["value"], payload["previous_value"]) == ("birds.changed", 2, 1)
    assert (payload["columns"], payload["rows"], payload["row_count"]) == (["birds"], [{"birds": 2}], 1)
    assert events_of(quiet) == []
    assert home.rows("SELECT fact_type FROM plugin_facts") == [{"fact_type": "sqlite_change.snapshot"}] * 2


def test_every_difference_is_a_change(path: Path, db: sqlite3.Connection) -> None:
    """Values, types, order and the number of rows."""
    watch = Poller(path, "SELECT * FROM bird ORDER BY rowid")
    watch.poll()
    for statement in (
        "UPDATE bird SET seen = 2",
        "UPDATE bird SET name = NULL",
        "UPDATE bird SET name = 'None'",
        "INSERT INTO bird VALUES ('x', 1)",
        "DELETE FROM bird",
    ):
        db.execute(statement)
        assert len(watch.poll()) == 1, statement
        assert watch.poll() == []
    keys = set()
    for statement in ("INSERT INTO bird VALUES ('a', 1)", "DELETE FROM bird", "INSERT INTO bird VALUES ('a', 1)"):
        db.execute(statement)
        keys.add(watch.run().response["events"][0]["dedupe_key"])
    assert len(keys) == 3


def test_emit_initial_reports_the_first_result(path: Path, db: sqlite3.Connection) -> None:
    (payload,) = Poller(path, "SELECT * FROM bird", emit_initial=True).poll()
    assert payload["rows"] == [{"name": "wren", "seen": 1}]
    assert "previous_value" not in payload


def test_a_changed_query_starts_without_a_previous_result(path: Path, db: sqlite3.Connection) -> None:
    watch = Poller(path, "SELECT 1")
    watch.poll()
    watch.config["query"] = "SELECT 2"
    assert watch.poll() == []


def test_all_rows_are_compared_and_max_rows_are_emitted(path: Path, db: sqlite3.Connection) -> None:
    db.execute("BEGIN")
    db.executemany("INSERT INTO bird VALUES ('b', ?)", ((number,) for number in range(1, 20_001)))
    db.execute("COMMIT")
    watch = Poller(path, "SELECT * FROM bird ORDER BY seen", max_rows=2)
    watch.poll()
    db.execute("UPDATE bird SET name = 'last' WHERE seen = 20000")
    (payload,) = watch.poll()
    assert (len(payload["rows"]), payload["row_count"], payload["truncated"]) == (2, 20_001, True)


def test_values_that_json_does_not_support_are_converted(path: Path, db: sqlite3.Connection) -> None:
    """Bytes, infinities, invalid UTF-8 and large values."""
    query = (
        "SELECT x'ff00' AS b, 9e999 AS inf, CAST(x'ff41' AS TEXT) AS t, 9223372036854775807 AS n,"
        " hex(zeroblob(100000)) AS h"
    )
    (payload,) = Poller(path, query, emit_initial=True).poll()
    (row,) = payload["rows"]
    assert row["b"] == {"base64": "/wA=", "bytes": 2}
    assert (row["inf"], row["t"], row["n"], len(row["h"])) == ("inf", "\ufffdA", 2**63 - 1, 10_001)


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM bird",
        "INSERT INTO bird VALUES ('x', 1) RETURNING *",
        "DROP TABLE bird",
        "ATTACH DATABASE '{other}' AS o",
        "VACUUM INTO '{other}'",
        "PRAGMA user_version = 5",
        "PRAGMA journal_mode = WAL",
        "SELECT load_extension('x')",
        "SELECT 1; DELETE FROM bird",
        "CREATE TEMP TABLE t AS SELECT 1",
        "SELEC 1",
        "BEGIN",
    ],
)
def test_a_query_that_writes_is_rejected(path: Path, db: sqlite3.Connection, tmp_path: Path, query: str) -> None:
    """The database is unchanged."""
    before = path.read_bytes()
    finished = Poller(path, query.format(other=tmp_path / "other.db")).run()
    assert finished.response["status"] == "error", finished
    assert finished.code == 78, finished
    assert path.read_bytes() == before
    assert not (tmp_path / "other.db").exists()


def test_a_missing_database_is_retried_and_not_created(tmp_path: Path) -> None:
    finished = Poller(tmp_path / "none.db", "SELECT 1").run()
    assert (finished.response["status"], finished.response["retry"]) == ("error", True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["fifo", "folder", "text"])
def test_a_file_that_is_not_a_database_is_an_error(tmp_path: Path, kind: str) -> None:
    """A FIFO does not block."""
    path = tmp_path / "it"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text("not a database, but long enough to be looked at as if it were one" * 20)
    assert Poller(path, "SELECT * FROM sqlite_master").run().response["status"] == "error"


def test_a_locked_database_is_retried(path: Path, db: sqlite3.Connection) -> None:
    db.execute("BEGIN EXCLUSIVE")
    finished = Poller(path, "SELECT * FROM bird").run()
    assert (finished.response["status"], finished.response["retry"]) == ("error", True)
    assert "locked" in finished.response["error"]


def test_a_database_in_wal_mode_can_be_read_during_a_write(path: Path, db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    watch = Poller(path, "SELECT count(*) FROM bird")
    watch.poll()
    db.execute("INSERT INTO bird VALUES ('x', 1)")
    db.execute("BEGIN IMMEDIATE")
    (payload,) = watch.poll()
    assert payload["value"] == 2


def test_a_slow_query_fails_after_its_timeout(path: Path, db: sqlite3.Connection) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    finished = Poller(path, endless, timeout_seconds=0.2).run()
    assert (finished.response["retry"], "longer than 0.2 s" in finished.response["error"]) == (True, True)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "db_path is missing"),
        ({"db_path": "x"}, "query is missing"),
        ({"db_path": "x", "query": "SELECT 1"}, "event_type is missing"),
        ({"db_path": "x", "query": "SELECT 1", "event_type": "e", "max_row": 1}, "did you mean max_rows"),
        ({"db_path": "x", "query": 1, "event_type": "e"}, "query must be text"),
    ],
)
def test_an_invalid_configuration_is_final_with_a_reason(config: Mapping[str, Any], message: str) -> None:
    for command in ("poll", "health"):
        finished = run_plugin("sqlite_change", command, config=config)
        assert (finished.code, finished.response["retry"]) == (78, False)
        assert message in finished.response["error"]


def test_health_runs_the_query(path: Path, db: sqlite3.Connection) -> None:
    config = {"db_path": str(path), "query": "SELECT * FROM bird", "event_type": "e"}
    assert run_plugin("sqlite_change", "health", config=config).response["result"] == "the query returns 1 rows"
