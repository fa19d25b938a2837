"""file_watch reports a file if and only if it changed."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Home
from tests.plugins.bundled import PluginRun, run_plugin
from tests.plugins.plugin_service import Start, events_of, start_with_plugin


class Poller:
    """Poll one watch repeatedly, with the state of the last response."""

    def __init__(self, path: Path, **watch: Any) -> None:
        self.watch = {"id": "w", "path": str(path), "emit_deleted": True, **watch}
        self.state: Mapping[str, Any] = {}
        self.jobs = 0

    def run(self, **more: Any) -> PluginRun:
        self.jobs += 1
        finished = run_plugin(
            "file_watch",
            "poll",
            config={"watches": [{**self.watch, **more}]},
            state=self.state,
            job_id=f"j-{self.jobs}",
        )
        self.state = finished.response.get("state_updates") or self.state
        return finished

    def poll(self, **more: Any) -> list[str]:
        finished = self.run(**more)
        assert finished.response["status"] == "ok", finished
        return [event["payload"]["change"] for event in finished.response["events"]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "watched.txt"


def test_a_change_is_reported_once_and_stored_as_a_fact(home: Home, start: Start, file: Path) -> None:
    file.write_text("one")
    service = start_with_plugin(
        home, start, "file_watch", {"watches": [{"id": "w", "path": str(file), "event_type": "notes.changed"}]}
    )

    assert events_of(service.run("file_watch")) == []
    file.write_text("three")
    reported, quiet = service.run("file_watch"), service.run("file_watch")

    ((kind, payload),) = events_of(reported)
    assert kind == "notes.changed"
    assert (payload["watch_id"], payload["path"], payload["filename"]) == ("w", str(file), "watched.txt")
    assert (payload["change"], payload["size"], len(payload["sha256"])) == ("modified", 5, 64)
    assert events_of(quiet) == []
    assert home.rows("SELECT fact_type FROM plugin_facts") == [{"fact_type": "file_watch.snapshot"}] * 2


@pytest.mark.parametrize("strategy", ["sha256", "mtime_size"])
def test_creation_modification_and_deletion_are_reported(file: Path, strategy: str) -> None:
    """Also a replacement by rename, and a file that is created again."""
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


def test_initial_files_and_deletions_are_reported_only_if_configured(file: Path) -> None:
    """They still update the state."""
    watch = Poller(file, emit_deleted=False)
    file.write_text("1")
    assert watch.poll() == []
    file.unlink()
    assert watch.poll() == []
    file.write_text("1")
    assert watch.poll() == ["created"]
    assert Poller(file, emit_initial=True).poll() == ["created"]


def test_the_strategy_decides_what_counts_as_a_change(file: Path) -> None:
    """A new time counts for mtime_size only; new content with the same time and size for sha256 only."""
    by_hash, by_time = Poller(file), Poller(file, strategy="mtime_size")
    file.write_text("1")
    os.utime(file, (5, 5))
    assert (by_hash.poll(), by_time.poll()) == ([], [])
    os.utime(file, (6, 6))
    assert (by_hash.poll(), by_time.poll()) == ([], ["modified"])
    file.write_text("2")
    os.utime(file, (6, 6))
    assert (by_hash.poll(), by_time.poll()) == (["modified"], [])


def test_a_recently_changed_file_is_not_reported(file: Path) -> None:
    """The time of the inode counts, because programs can set mtime."""
    watch = Poller(file)
    watch.poll()
    file.write_text("half")
    os.utime(file, (0, 0))
    assert watch.poll(min_stable_age="1h") == []
    assert watch.poll() == ["created"]


@pytest.mark.parametrize("kind", ["fifo", "folder", "loop"])
def test_only_regular_files_are_read(file: Path, kind: str) -> None:
    """A FIFO does not block; the job logs a warning and keeps the last state."""
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
    finished = watch.run()
    assert (finished.response["status"], finished.response["events"], finished.response["logs"][0]["level"]) == (
        "ok",
        [],
        "warn",
    )
    assert run_plugin("file_watch", "health", config={"watches": [watch.watch]}).response["status"] == "error"


def test_a_changed_path_with_the_same_id_is_a_new_file(file: Path) -> None:
    watch = Poller(file)
    file.write_text("1")
    watch.poll()
    other = file.with_name("other")
    other.write_text("2")
    assert watch.poll(path=str(other)) == []


def test_a_file_that_returns_to_earlier_content_has_a_new_dedupe_key(file: Path) -> None:
    watch = Poller(file)
    watch.poll()
    keys = []
    for text in ("1", "2", "1"):
        file.write_text(text)
        keys.append(watch.run().response["events"][0]["dedupe_key"])
    assert len(set(keys)) == 3


@pytest.mark.parametrize(
    ("config", "message"),
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
def test_an_invalid_configuration_is_final_with_a_reason(config: Mapping[str, Any], message: str) -> None:
    for command in ("poll", "health"):
        finished = run_plugin("file_watch", command, config=config)
        assert (finished.code, finished.response["retry"]) == (78, False)
        assert message in finished.response["error"]
