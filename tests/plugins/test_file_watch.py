"""file_watch: a watched file is told about when, and only when, it is another one than before."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Home
from tests.plugins.bundled import Said, ask
from tests.plugins.serving import Start, events_of, serve


class Poller:
    """Polls one watch again and again: the state of an answer goes into the next request."""

    def __init__(self, path: Path, **watch: Any) -> None:
        self.watch = {"id": "w", "path": str(path), "emit_deleted": True, **watch}
        self.state: Mapping[str, Any] = {}
        self.jobs = 0

    def ask(self, **more: Any) -> Said:
        self.jobs += 1
        said = ask(
            "file_watch",
            "poll",
            config={"watches": [{**self.watch, **more}]},
            state=self.state,
            job_id=f"j-{self.jobs}",
        )
        self.state = said.answer.get("state_updates") or self.state
        return said

    def poll(self, **more: Any) -> list[str]:
        said = self.ask(**more)
        assert said.answer["status"] == "ok", said
        return [event["payload"]["change"] for event in said.answer["events"]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "watched.txt"


def test_a_change_is_told_once_through_the_service(home: Home, start: Start, file: Path) -> None:
    """With what is needed to act on it, and a fact for each change."""
    file.write_text("one")
    service = serve(
        home, start, "file_watch", {"watches": [{"id": "w", "path": str(file), "event_type": "notes.changed"}]}
    )

    assert events_of(service.run("file_watch")) == []
    file.write_text("three")
    told, quiet = service.run("file_watch"), service.run("file_watch")

    ((kind, payload),) = events_of(told)
    assert kind == "notes.changed"
    assert (payload["watch_id"], payload["path"], payload["filename"]) == ("w", str(file), "watched.txt")
    assert (payload["change"], payload["size"], len(payload["sha256"])) == ("modified", 5, 64)
    assert events_of(quiet) == []
    assert home.rows("SELECT fact_type FROM plugin_facts") == [{"fact_type": "file_watch.snapshot"}] * 2


@pytest.mark.parametrize("strategy", ["sha256", "mtime_size"])
def test_the_life_of_a_file(file: Path, strategy: str) -> None:
    """Absent, created, modified, replaced by a rename, deleted, created again."""
    watch = Poller(file, strategy=strategy)
    assert watch.poll() == []
    file.write_text("1")
    assert watch.poll() == ["created"]
    assert watch.poll() == []
    file.write_text("22")
    assert watch.poll() == ["modified"]
    other = file.with_name("other")
    other.write_text("333")
    other.rename(file)
    assert watch.poll() == ["modified"]
    file.unlink()
    assert watch.poll() == ["deleted"]
    file.write_text("333")
    assert watch.poll() == ["created"]


def test_what_is_not_asked_for_is_not_told_but_remembered(file: Path) -> None:
    """Deleted and initial are told on request only."""
    watch = Poller(file, emit_deleted=False)
    file.write_text("1")
    assert watch.poll() == []
    file.unlink()
    assert watch.poll() == []
    file.write_text("1")
    assert watch.poll() == ["created"]
    assert Poller(file, emit_initial=True).poll() == ["created"]


def test_strategies_differ_in_what_they_call_a_change(file: Path) -> None:
    """Touched: only for the time. Changed behind the same time and size: only for the content."""
    by_hash, by_time = Poller(file), Poller(file, strategy="mtime_size")
    file.write_text("1")
    os.utime(file, (5, 5))
    assert (by_hash.poll(), by_time.poll()) == ([], [])
    os.utime(file, (6, 6))
    assert (by_hash.poll(), by_time.poll()) == ([], ["modified"])
    file.write_text("2")
    os.utime(file, (6, 6))
    assert (by_hash.poll(), by_time.poll()) == (["modified"], [])


def test_a_file_that_is_still_written_waits(file: Path) -> None:
    """Whatever its time of modification was set to."""
    watch = Poller(file)
    watch.poll()
    file.write_text("half")
    os.utime(file, (0, 0))
    assert watch.poll(min_stable_age="1h") == []
    assert watch.poll() == ["created"]


@pytest.mark.parametrize("kind", ["fifo", "folder", "loop"])
def test_what_is_no_regular_file_is_not_read(file: Path, kind: str) -> None:
    """A fifo would block for ever; the poll goes on, says so, and keeps what it knew."""
    file.write_text("1")
    watch = Poller(file)
    watch.poll()
    file.unlink()
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to(file)
    said = watch.ask()
    assert (said.answer["status"], said.answer["events"], said.answer["logs"][0]["level"]) == ("ok", [], "warn")
    assert ask("file_watch", "health", config={"watches": [watch.watch]}).answer["status"] == "error"


def test_another_path_under_the_same_id_is_another_file(file: Path) -> None:
    watch = Poller(file)
    file.write_text("1")
    watch.poll()
    other = file.with_name("other")
    other.write_text("2")
    assert watch.poll(path=str(other)) == []


def test_a_file_that_comes_back_as_it_was_has_a_new_dedupe_key(file: Path) -> None:
    watch = Poller(file)
    watch.poll()
    keys = []
    for text in ("1", "2", "1"):
        file.write_text(text)
        keys.append(watch.ask().answer["events"][0]["dedupe_key"])
    assert len(set(keys)) == 3


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "watches is missing"),
        ({"watches": []}, "1 to 1000 entries"),
        ({"watches": {"path": "/tmp/x"}}, "watches must be a list"),
        ({"watches": [{"id": "x"}]}, "watches[0].path is missing"),
        ({"watches": [{"path": "/tmp/x", "strategy": "md5"}]}, "sha256 or mtime_size"),
        ({"watches": [{"path": "/tmp/x", "emit_intial": True}]}, "did you mean emit_initial"),
        ({"watches": [{"path": "/tmp/x", "emit_initial": "yes"}]}, "emit_initial must be"),
        ({"watches": [{"path": "/tmp/x", "min_stable_age": "3 apples"}]}, "duration such as 2s"),
        ({"watches": [{"path": "/tmp/x"}, {"path": "/tmp/x"}]}, "duplicate id"),
    ],
)
def test_a_wrong_configuration_is_final_and_says_what_is_wrong(config: Mapping[str, Any], words: str) -> None:
    """78: no attempt can help."""
    for command in ("poll", "health"):
        said = ask("file_watch", command, config=config)
        assert (said.code, said.answer["retry"]) == (78, False)
        assert words in said.answer["error"]
