"""`scripts/torture exchange` at a small size; violations of its rules are detected."""

import sqlite3
from contextlib import closing
from pathlib import Path
from shutil import copy
from typing import Any

import pytest
from attrs import frozen

from scripts.tortures.exchange.lib.checker import RULES, ExchangeHistory, check, read_ledger
from scripts.tortures.exchange.lib.clients import Acknowledged, EndedByHand
from scripts.tortures.exchange.lib.instance import HAND, REQUESTS, STEPS, WORK, CommandEffect
from tests.e2e.torture_runs import TortureRun, run_torture


@frozen
class ExchangeRun:
    """A run with ten cycles, and its ledger."""

    result: TortureRun
    path: Path

    @property
    def ledger(self) -> Path:
        return self.path / "data" / "state.db"


@pytest.fixture(scope="module")
def exchange_run(tmp_path_factory: pytest.TempPathFactory) -> ExchangeRun:
    path = tmp_path_factory.mktemp("exchange")
    return ExchangeRun(run_torture("exchange", "--cycles", "10", "--seed", "4", "--keep", str(path)), path)


@pytest.mark.timeout(300)
def test_kills_stops_and_a_changed_clock_lose_no_message_and_complete_none_twice(exchange_run: ExchangeRun) -> None:
    """Every acknowledged message has one follow-up, late results are journalled and discarded."""
    summary = exchange_run.result.summary
    disturbances = summary["disturbances"]
    assert exchange_run.result.violations == {}, exchange_run.result.stderr
    assert min(summary[name] for name in ("acknowledged", "runs", "ended_by_hand", "refused_late")) > 0
    assert min(disturbances[name] for name in ("worker deaths", "stopped workers", "clock jumps", "service deaths")) > 0


def changed(run: ExchangeRun, path: Path, statement: str) -> ExchangeHistory:
    """Return the history of a run whose ledger was changed afterwards. Its records are those of the real run."""
    real, ledger = read_ledger(run.ledger), path / "changed.db"
    copy(run.ledger, ledger)
    with closing(sqlite3.connect(ledger)) as db, db:
        for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
            db.execute(f"DROP TRIGGER {name}")
        assert db.execute(statement).rowcount > 0
    claims = [claim for claim in real["claims"].values() if claim["topic"] in (WORK, STEPS)]
    commands = [CommandEffect(what, one["id"], one["message_id"]) for one in claims for what in ("start", "end")]
    records: dict[str, Any] = {
        "acknowledged": [
            Acknowledged(one["id"], one["topic"], one["body"])
            for one in real["messages"].values()
            if one["topic"] in REQUESTS
        ],
        "ended_by_hand": [
            EndedByHand(one["id"], one["status"], one["follow_up_id"])
            for one in real["claims"].values()
            if one["topic"] == HAND and one["status"] == "completed"
        ],
        "refused_late": [data["claim_id"] for kind, _, data in real["journal"] if kind == "message.late"],
    }
    return ExchangeHistory(**records, **read_ledger(ledger), started=commands, commands=commands, faults=())


COMPLETED = f"SELECT id FROM claims WHERE status = 'completed' AND topic = '{WORK}' LIMIT 1"
HANDLED = f"SELECT message_id FROM claims WHERE status = 'completed' AND topic = '{WORK}' LIMIT 1"
FOLLOWED = f"""
    SELECT message_id FROM journal
     WHERE kind = 'message.completed' AND message_id IN (
               SELECT first.id FROM messages AS first JOIN messages AS next
                   ON next.ordering_key = first.ordering_key AND next.seq > first.seq WHERE first.topic = '{STEPS}')
     LIMIT 1
"""
VIOLATIONS = (
    ("E1", f"DELETE FROM messages WHERE id = ({HANDLED})"),
    (
        "E2",
        f"INSERT INTO deliveries (seq, message_id, topic, lane, ready_at)"
        f" SELECT seq, id, topic, topic, created_at FROM messages WHERE id = ({HANDLED})",
    ),
    ("E3", f"DELETE FROM messages WHERE parent_id = ({HANDLED})"),
    ("E3", f"UPDATE messages SET topic = 'work.failed' WHERE parent_id = ({HANDLED})"),
    ("E4", "DELETE FROM journal WHERE kind = 'message.late'"),
    ("E5", f"UPDATE claims SET status = 'failed' WHERE topic = '{HAND}' AND status = 'completed'"),
    ("E6", f"DELETE FROM claims WHERE id = ({COMPLETED})"),
    ("E7", f"DELETE FROM journal WHERE kind = 'message.completed' AND message_id = ({FOLLOWED})"),
    ("E8", f"DELETE FROM journal WHERE kind = 'message.claimed' AND message_id = ({HANDLED})"),
    ("E9", "UPDATE claims SET job_id = NULL WHERE job_id IS NOT NULL"),
    ("E10", f"UPDATE claims SET status = 'active', completed_at = NULL WHERE id = ({COMPLETED})"),
)


@pytest.mark.parametrize(
    ("rule", "statement"), VIOLATIONS, ids=[f"{rule}-{n}" for n, (rule, _) in enumerate(VIOLATIONS)]
)
def test_a_violation_is_detected(exchange_run: ExchangeRun, tmp_path: Path, rule: str, statement: str) -> None:
    """A change of the ledger is reported by the rule that it violates."""
    found = check(changed(exchange_run, tmp_path, statement))

    assert rule in [name.split()[0] for name, violations in found.items() if violations]


def test_an_unchanged_ledger_violates_nothing(exchange_run: ExchangeRun, tmp_path: Path) -> None:
    found = check(changed(exchange_run, tmp_path, "UPDATE journal SET actor = actor"))

    assert found == {name: [] for name in RULES}
