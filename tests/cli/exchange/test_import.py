"""`ductile exchange import`: take over a database of Plugboard."""

from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.plugboard import make_plugboard

CONFIG = "state: {path: state.db}\nplugin_roots: []\n"
PARENT, DONE, OPEN, LOST, REPLY = "parent", "done", "open", "lost", "reply"
MESSAGES = (
    {"id": DONE, "topic": "a.request", "body": "first", "created_at": "2026-02-08T09:30:58.1Z", "producer": "me"},
    {"id": REPLY, "topic": "a.done", "body": "answer", "parent_id": DONE, "conversation_id": DONE},
    {"id": OPEN, "topic": "a.request", "body": "second", "created_at": "2026-02-08T09:30:58Z"},
    {"id": LOST, "topic": "a.request", "body": "third", "metadata_json": '{"meta": {"k": 1}}'},
)
CLAIMS = (
    {"message_id": DONE, "status": "completed", "completed_at": "2026-02-08T09:31:02.25Z"},
    {"message_id": LOST, "status": "active"},
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "instance"
    folder.mkdir(mode=0o700)
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "config.yaml").chmod(0o600)
    return folder


@pytest.fixture
def plugboard(tmp_path: Path) -> Path:
    return make_plugboard(tmp_path / "plugboard.db", *MESSAGES, claims=CLAIMS)


def test_messages_keep_ids_order_conversations_and_states(run: Run, home: Path, plugboard: Path) -> None:
    """The order is that of publishing, whatever number of digits the times have."""
    counts = run("exchange", "import", plugboard, "--json", "--config", home).json
    assert {name: counts[name] for name in ("messages", "claims", "ready", "known", "skipped")} == {
        "messages": 4,
        "claims": 1,
        "ready": 3,
        "known": 0,
        "skipped": 0,
    }
    messages = run("exchange", "read", "--json", "--config", home).json["messages"]
    assert [(one["message_id"], one["body"], one["state"]) for one in messages] == [
        (DONE, "first", "completed"),
        (REPLY, "answer", "ready"),
        (OPEN, "second", "ready"),
        (LOST, "third", "ready"),
    ]
    assert messages[0]["created_at"] == "2026-02-08T09:30:58.100000Z"
    assert (messages[1]["parent_id"], messages[1]["conversation_id"], messages[1]["hops"]) == (DONE, DONE, 1)
    assert messages[3]["metadata"] == {"meta": {"k": 1}}
    (claim,) = run("exchange", "inspect", "--message", DONE, "--json", "--config", home).json["claims"]
    assert (claim["status"], claim["worker_group"], claim["completed_at"]) == (
        "completed",
        "reviewer",
        "2026-02-08T09:31:02.250000Z",
    )
    check = run("exchange", "check", "--conversation-id", DONE, "--json", "--config", home).json
    assert (check["state"], check["body"]) == ("success", "answer")


def test_an_import_is_in_the_audit_trail_and_leaves_a_sound_ledger(run: Run, home: Path, plugboard: Path) -> None:
    run("exchange", "import", plugboard, "--config", home)
    (act,) = run("system", "audit", "--json", "--config", home).json["acts"]
    assert (act["kind"], act["data"]["messages"], act["data"]["file"]) == ("messages.imported", 4, str(plugboard))
    checked = run("system", "selfcheck", "--json", "--config", home).json
    assert [check for check in checked["checks"] if check["name"].startswith("ledger") and not check["ok"]] == []


def test_a_repeated_import_writes_only_what_is_new(run: Run, home: Path, plugboard: Path, tmp_path: Path) -> None:
    run("exchange", "import", plugboard, "--config", home)
    more = ({"id": "later", "topic": "a.request", "body": "fourth"},)
    grown = make_plugboard(tmp_path / "grown.db", *MESSAGES, *more, claims=CLAIMS)
    counts = run("exchange", "import", grown, "--json", "--config", home).json
    assert (counts["messages"], counts["known"]) == (1, 4)
    assert len(run("exchange", "read", "--json", "--config", home).json["messages"]) == 5


def test_a_dry_run_writes_nothing(run: Run, home: Path, plugboard: Path) -> None:
    assert "would import 4 messages" in run("exchange", "import", plugboard, "--dry-run", "--config", home).stdout
    assert not (home / "state.db").exists()


def test_what_the_exchange_cannot_store_is_skipped_and_named(run: Run, home: Path, tmp_path: Path) -> None:
    database = make_plugboard(
        tmp_path / "plugboard.db",
        {"id": "bad-topic", "topic": "Not A Topic", "body": "x"},
        {"id": "bad-metadata", "topic": "a.b", "body": "x", "metadata_json": "no JSON"},
        {"id": "bad-time", "topic": "a.b", "body": "x", "created_at": "yesterday"},
    )
    counts = run("exchange", "import", database, "--json", "--config", home).json
    assert (counts["messages"], counts["skipped"]) == (1, 2)
    assert counts["first_problem"].startswith("message bad-topic: topic 'Not A Topic'")
    (message,) = run("exchange", "read", "--json", "--config", home).json["messages"]
    assert message["metadata"] == {"plugboard_metadata": "no JSON"}


def test_another_file_is_refused(run: Run, home: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, but long enough to be read as one" * 100)
    empty = make_plugboard(tmp_path / "empty.db")
    assert (
        run("exchange", "import", empty, "--config", home).stdout
        == "no messages imported, 0 of them ready, with no claims\n"
    )
    for file in (tmp_path / "text", home / "config.yaml", home / "state.db"):
        answer = run("exchange", "import", file, "--json", "--config", home)
        assert (answer.exit_code, answer.json["code"]) == (78, "not_plugboard"), file
