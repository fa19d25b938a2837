"""sqlite_change: tells when the rows of a query are others than before, and never writes."""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Home
from tests.plugins.bundled import Said, ask
from tests.plugins.serving import Start, events_of, serve


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
    """Polls one query again and again: the state of an answer goes into the next request."""

    def __init__(self, path: Path, query: str, **config: Any) -> None:
        self.config = {"db_path": str(path), "query": query, "event_type": "birds.changed", **config}
        self.state: Mapping[str, Any] = {}
        self.jobs = 0

    def ask(self) -> Said:
        self.jobs += 1
        said = ask("sqlite_change", "poll", config=self.config, state=self.state, job_id=f"j-{self.jobs}")
        self.state = said.answer.get("state_updates") or self.state
        return said

    def poll(self) -> list[dict[str, Any]]:
        said = self.ask()
        assert said.answer["status"] == "ok", said
        return [event["payload"] for event in said.answer["events"]]


def test_a_changed_result_is_told_through_the_service(
    home: Home, start: Start, path: Path, db: sqlite3.Connection
) -> None:
    """Baseline, change, quiet; a fact for each new result."""
    config = {"db_path": str(path), "query": "SELECT count(*) AS birds FROM bird", "event_type": "birds.changed"}
    service = serve(home, start, "sqlite_change", config)

    assert events_of(service.run("sqlite_change")) == []
    db.execute("INSERT INTO bird VALUES ('robin', 2)")
    told, quiet = service.run("sqlite_change"), service.run("sqlite_change")

    ((kind, payload),) = events_of(told)
    assert (kind, payload["value"], payload["previous_value"]) == ("birds.changed", 2, 1)
    assert (payload["columns"], payload["rows"], payload["row_count"]) == (["birds"], [{"birds": 2}], 1)
    assert events_of(quiet) == []
    assert home.rows("SELECT fact_type FROM plugin_facts") == [{"fact_type": "sqlite_change.snapshot"}] * 2


def test_every_difference_counts(path: Path, db: sqlite3.Connection) -> None:
    """Values, types, order, a row more, a row less; a result that comes back has a new dedupe key."""
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
        keys.add(watch.ask().answer["events"][0]["dedupe_key"])
    assert len(keys) == 3


def test_the_first_look_is_told_on_request(path: Path, db: sqlite3.Connection) -> None:
    (payload,) = Poller(path, "SELECT * FROM bird", emit_initial=True).poll()
    assert payload["rows"] == [{"name": "wren", "seen": 1}]
    assert "previous_value" not in payload


def test_another_query_starts_anew(path: Path, db: sqlite3.Connection) -> None:
    """What was compared before was something else."""
    watch = Poller(path, "SELECT 1")
    watch.poll()
    watch.config["query"] = "SELECT 2"
    assert watch.poll() == []


def test_large_results_are_compared_whole_and_told_in_part(path: Path, db: sqlite3.Connection) -> None:
    """A change behind the last row that is told is a change."""
    db.execute("BEGIN")
    db.executemany("INSERT INTO bird VALUES ('b', ?)", ((number,) for number in range(1, 20_001)))
    db.execute("COMMIT")
    watch = Poller(path, "SELECT * FROM bird ORDER BY seen", max_rows=2)
    watch.poll()
    db.execute("UPDATE bird SET name = 'last' WHERE seen = 20000")
    (payload,) = watch.poll()
    assert (len(payload["rows"]), payload["row_count"], payload["truncated"]) == (2, 20_001, True)


def test_values_that_json_does_not_know_can_be_told(path: Path, db: sqlite3.Connection) -> None:
    """Bytes, infinities, text that is not UTF-8, huge values."""
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
def test_a_query_can_only_read(path: Path, db: sqlite3.Connection, tmp_path: Path, query: str) -> None:
    """Anything else is a mistake in the configuration, and the database stays as it is."""
    before = path.read_bytes()
    said = Poller(path, query.format(other=tmp_path / "other.db")).ask()
    assert said.answer["status"] == "error", said
    assert said.code == 78, said
    assert path.read_bytes() == before
    assert not (tmp_path / "other.db").exists()


def test_a_missing_database_is_not_made(tmp_path: Path) -> None:
    """It may come later."""
    said = Poller(tmp_path / "none.db", "SELECT 1").ask()
    assert (said.answer["status"], said.answer["retry"]) == ("error", True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["fifo", "folder", "text"])
def test_what_is_no_database_is_an_error(tmp_path: Path, kind: str) -> None:
    """A fifo does not block it."""
    path = tmp_path / "it"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.write_text("not a database, but long enough to be looked at as if it were one" * 20)
    assert Poller(path, "SELECT * FROM sqlite_master").ask().answer["status"] == "error"


def test_a_locked_database_is_tried_again(path: Path, db: sqlite3.Connection) -> None:
    db.execute("BEGIN EXCLUSIVE")
    said = Poller(path, "SELECT * FROM bird").ask()
    assert (said.answer["status"], said.answer["retry"]) == ("error", True)
    assert "locked" in said.answer["error"]


def test_a_database_in_wal_mode_can_be_read_while_it_is_written(path: Path, db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    watch = Poller(path, "SELECT count(*) FROM bird")
    watch.poll()
    db.execute("INSERT INTO bird VALUES ('x', 1)")
    db.execute("BEGIN IMMEDIATE")
    (payload,) = watch.poll()
    assert payload["value"] == 2


def test_a_query_that_takes_too_long_is_given_up(path: Path, db: sqlite3.Connection) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    said = Poller(path, endless, timeout_seconds=0.2).ask()
    assert (said.answer["retry"], "longer than 0.2 s" in said.answer["error"]) == (True, True)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "db_path is missing"),
        ({"db_path": "x"}, "query is missing"),
        ({"db_path": "x", "query": "SELECT 1"}, "event_type is missing"),
        ({"db_path": "x", "query": "SELECT 1", "event_type": "e", "max_row": 1}, "did you mean max_rows"),
        ({"db_path": "x", "query": 1, "event_type": "e"}, "query must be text"),
    ],
)
def test_a_wrong_configuration_is_final_and_says_what_is_wrong(config: Mapping[str, Any], words: str) -> None:
    for command in ("poll", "health"):
        said = ask("sqlite_change", command, config=config)
        assert (said.code, said.answer["retry"]) == (78, False)
        assert words in said.answer["error"]


def test_health_runs_the_query(path: Path, db: sqlite3.Connection) -> None:
    config = {"db_path": str(path), "query": "SELECT * FROM bird", "event_type": "e"}
    assert ask("sqlite_change", "health", config=config).answer["result"] == "the query returns 1 rows"
