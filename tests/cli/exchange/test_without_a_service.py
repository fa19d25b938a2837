"""`ductile exchange …` while no service runs: what reads, what writes under the lock, and what needs the service."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ductile.core.instance.lock import instance_lock
from ductile.ledger.storage.open_file import open_writer
from tests.cli.conftest import Run

CONFIG = "state: {path: state.db}\nplugin_roots: []\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "instance"
    folder.mkdir(mode=0o700)
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "config.yaml").chmod(0o600)
    return folder


@pytest.fixture
def locked(home: Path) -> Iterator[Path]:
    """An instance whose lock another owner holds."""
    with instance_lock(home, home / "state.db", now=datetime.now(UTC)):
        yield home


def count_messages(home: Path) -> int:
    with closing(open_writer(home / "state.db")) as db:
        return int(db.execute("SELECT COUNT(*) FROM messages").fetchone()[0])


def test_messages_are_published_and_read(run: Run, home: Path) -> None:
    """The first message creates the ledger."""
    where = ("--config", home)
    first = run("exchange", "publish", "review.request", "hello", "--meta", "a=1", *where)
    message_id = first.stdout.strip()
    assert (first.exit_code, f"message_id={message_id}" in first.stderr) == (0, True)
    reply = run("exchange", "reply", message_id, "yes", "--json", *where).json
    assert (reply["topic"], reply["conversation_id"]) == ("review.done", message_id)
    lines = run("exchange", "read", "--conversation", message_id, *where).stdout.splitlines()
    assert [line.split("\t")[1:] for line in lines] == [["review.request", "hello"], ["review.done", "yes"]]
    check = run("exchange", "check", "--conversation-id", message_id, "--json", *where).json
    assert (check["state"], check["body"]) == ("success", "yes")
    details = run("exchange", "inspect", "--message", message_id, "--json", *where).json
    assert (details["state"], details["metadata"]) == ("ready", {"meta": {"a": 1}})
    topics = run("exchange", "topics", "--json", *where).json["topics"]
    assert [(topic["topic"], topic["ready"]) for topic in topics] == [("review.done", 1), ("review.request", 1)]
    assert run("exchange", "why", message_id, *where).exit_code == 0


def test_a_dry_run_checks_the_message_and_writes_nothing(run: Run, home: Path) -> None:
    assert run("exchange", "publish", "a.b", "x", "--dry-run", "--config", home).exit_code == 0
    assert run("exchange", "publish", "A", "x", "--dry-run", "--config", home).exit_code == 2
    assert not (home / "state.db").exists()


def test_bad_input_is_refused_and_nothing_is_stored(run: Run, home: Path) -> None:
    cases = {
        ("Topic", "x"): "topic_invalid",
        ("a.b",): "body_missing",
        ("a.b", "x", "--parent-id", "nothing"): "parent_unknown",
        ("a.b", "x", "--delay", "-1s"): "delay_invalid",
        ("a.b", "x" * ((1 << 20) + 1)): "body_too_large",
    }
    answers = {args: run("exchange", "publish", *args, "--json", "--config", home).json for args in cases}
    assert {args: answer["code"] for args, answer in answers.items()} == cases
    assert all(answer["hint"] for answer in answers.values())
    assert count_messages(home) == 0


def test_publish_exits_with_75_while_another_process_has_the_ledger(run: Run, locked: Path) -> None:
    answer = run("exchange", "publish", "a.b", "x", "--json", "--config", locked)
    assert (answer.exit_code, answer.json["code"]) == (75, "already_running")


@pytest.mark.parametrize(
    "line",
    [
        ("request", "a.request", "--body", "x"),
        ("run", "--topic", "a.request", "--", "cat"),
        ("claim", "a.request"),
        ("complete", "some-claim", "done"),
        ("notify", "--once"),
        ("read", "--wait", "1s"),
        ("pause", "a.request"),
    ],
    ids=lambda line: line[0],
)
def test_what_needs_the_service_exits_with_69(run: Run, home: Path, line: tuple[str, ...]) -> None:
    run("exchange", "publish", "a.b", "x", "--config", home)
    end = line.index("--") if "--" in line else len(line)
    answer = run("exchange", *line[:end], "--json", "--config", home, *line[end:])
    assert (answer.exit_code, answer.json["code"]) == (69, "unreachable")
    assert "ductile system start" in answer.json["hint"]


def test_a_disabled_exchange_publishes_nothing(run: Run, home: Path) -> None:
    (home / "config.yaml").write_text(f"{CONFIG}exchange: {{enabled: false}}\n")
    answer = run("exchange", "publish", "a.b", "x", "--json", "--config", home)
    assert (answer.exit_code, answer.json["code"]) == (1, "exchange_disabled")


def test_the_folder_of_serve_is_used_in_its_directory(
    run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An explicit configuration and $DUCTILE_CONFIG_DIR come first."""
    served = tmp_path / "served"
    served.mkdir()
    home.rename(served / ".ductile")
    monkeypatch.chdir(served)
    assert run("exchange", "publish", "a.b", "here").exit_code == 0
    assert count_messages(served / ".ductile") == 1
    monkeypatch.setenv("DUCTILE_CONFIG_DIR", str(tmp_path))
    assert run("exchange", "read").exit_code == 78
