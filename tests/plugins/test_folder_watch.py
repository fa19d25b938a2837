"""folder_watch reports every change exactly once."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Home
from tests.plugins.bundled import PLUGINS, PluginRun, run_plugin
from tests.plugins.plugin_service import Start, events_of, start_with_plugin


class Poller:
    """Poll one watch repeatedly, with the state of the last response."""

    def __init__(self, root: Path, **watch: Any) -> None:
        self.watch = {"id": "w", "root": str(root), "emit_mode": "per_file", "emit_deleted": True, **watch}
        self.state: Mapping[str, Any] = {}
        self.jobs = 0

    def run(self, **more: Any) -> PluginRun:
        self.jobs += 1
        finished = run_plugin(
            "folder_watch",
            "poll",
            config={"watches": [{**self.watch, **more}]},
            state=self.state,
            job_id=f"j-{self.jobs}",
        )
        if finished.response["status"] == "ok":
            self.state = finished.response.get("state_updates") or self.state
        return finished

    def poll(self, **more: Any) -> list[tuple[str, str]]:
        finished = self.run(**more)
        assert finished.response["status"] == "ok", finished
        payloads = [event["payload"] for event in finished.response["events"]]
        return [(payload["change"], payload["relative_path"]) for payload in payloads]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


def test_a_change_starts_a_pipeline_and_is_stored_as_a_fact(home: Home, start: Start, root: Path) -> None:
    (root / "old.txt").write_text("old")
    home.plugin("sink", '#!/bin/sh\ncat > /dev/null\necho \'{"status": "ok", "result": "done"}\'\n')
    home.add("pipelines:\n  - {name: import, on: inbox.changed, steps: [{uses: sink}]}\n")
    service = start_with_plugin(
        home, start, "folder_watch", {"watches": [{"id": "in", "root": str(root), "event_type": "inbox.changed"}]}
    )

    assert events_of(service.run("folder_watch")) == []
    (root / "new.txt").write_text("new")
    (root / "sub").mkdir()
    (root / "sub" / "deep.txt").write_text("deep")
    reported = service.run("folder_watch")
    quiet = service.run("folder_watch")

    ((kind, payload),) = events_of(reported)
    assert (kind, payload["created"], payload["modified"]) == ("inbox.changed", 2, 0)
    assert [file["relative_path"] for file in payload["files"]] == ["new.txt", "sub/deep.txt"]
    assert payload["files"][0]["path"] == str(root / "new.txt")
    assert events_of(quiet) == []
    assert home.rows("SELECT count(*) AS n FROM plugin_facts WHERE fact_type = 'folder_watch.snapshot'") == [{"n": 2}]
    (job,) = home.rows("SELECT id FROM job_queue WHERE plugin = 'sink'")
    assert service.job(job["id"], wait="30s")["status"] == "succeeded"


def test_each_change_is_reported_once(root: Path) -> None:
    """A rename is a deletion and a creation."""
    watch = Poller(root)
    (root / "a").write_text("1")
    assert watch.poll() == []
    (root / "a").write_text("22")
    (root / "b").write_text("1")
    assert watch.poll() == [("modified", "a"), ("created", "b")]
    (root / "b").rename(root / "c")
    assert watch.poll() == [("deleted", "b"), ("created", "c")]
    (root / "a").unlink()
    assert watch.poll() == [("deleted", "a")]
    assert watch.poll() == []


def test_emit_initial_reports_existing_files(root: Path) -> None:
    (root / "a").write_text("1")
    assert Poller(root, emit_initial=True).poll() == [("created", "a")]


@pytest.mark.parametrize("cap", [1, 7, 500])
def test_changes_over_the_limit_are_reported_by_the_next_poll(root: Path, cap: int) -> None:
    """Each file is reported exactly once."""
    watch = Poller(root, max_events=cap)
    watch.poll()
    for number in range(20):
        (root / f"{number:02}").write_text("x")
    reported: list[tuple[str, str]] = []
    polls = 0
    while more := watch.poll():
        assert len(more) <= cap
        reported += more
        polls += 1
    assert sorted(reported) == [("created", f"{number:02}") for number in range(20)]
    assert polls == -(-20 // cap)


def test_no_file_is_lost_during_concurrent_writes(root: Path) -> None:
    """Each file is reported once under its last name."""
    watch = Poller(root, max_events=40)
    watch.poll()
    names = [f"{number:03}.txt" for number in range(300)]

    def write() -> None:
        for name in names:
            (root / f".{name}").write_text(name)
            (root / f".{name}").rename(root / name)

    writer = threading.Thread(target=write)
    writer.start()
    reported: list[list[tuple[str, str]]] = []
    while writer.is_alive() or not reported or reported[-1]:
        reported.append(watch.poll())
    writer.join()
    assert sorted(item for poll in reported for item in poll) == [("created", name) for name in names]


def test_a_file_that_changes_constantly_does_not_starve_others(root: Path) -> None:
    watch = Poller(root, max_events=1)
    for name in "abc":
        (root / name).write_text("1")
    watch.poll()
    reported = set()
    for turn in range(3):
        for name in "abc":
            (root / name).write_text("x" * (turn + 2))
        reported |= set(watch.poll())
    assert reported == {("modified", name) for name in "abc"}


def test_an_aggregate_has_at_most_max_events_files(root: Path) -> None:
    watch = Poller(root, max_events=3, emit_mode="aggregate", emit_initial=True)
    for number in range(5):
        (root / str(number)).write_text("x")
    sizes = [len(watch.run().response["events"][0]["payload"]["files"]) for _ in range(2)]
    assert sizes == [3, 2]


def test_new_files_over_max_files_are_ignored_with_a_warning(root: Path) -> None:
    """They are reported when other files are deleted."""
    for number in range(10_000):
        os.close(os.open(root / f"file-number-{number:05}.txt", os.O_CREAT | os.O_WRONLY))
    watch = Poller(root, max_files=9_990)
    finished = watch.run()
    assert finished.response["status"] == "ok"
    assert len(str(finished.response["state_updates"])) < 1 << 20
    assert "10 over the limit" in finished.response["result"]
    assert any("10 new files ignored" in line["message"] for line in finished.response["logs"])
    for number in range(10):
        (root / f"file-number-{number:05}.txt").unlink()
    reported = watch.poll()
    assert [change for change, _ in reported].count("deleted") == 10
    assert [path for change, path in reported if change == "created"] == [
        f"file-number-{n:05}.txt" for n in range(9_990, 10_000)
    ]


def test_the_state_stays_within_its_limit(root: Path) -> None:
    """Long names fill the state before `max_files`; the poll still succeeds."""
    for number in range(5_000):
        os.close(os.open(root / f"{number:05}{'n' * 240}", os.O_CREAT | os.O_WRONLY))
    finished = Poller(root).run()
    assert finished.response["status"] == "ok"
    assert "over the limit" in finished.response["result"]
    assert len(str(finished.response["state_updates"])) < 1 << 20


def test_a_recently_changed_file_is_not_reported(root: Path) -> None:
    """The time of the inode counts, because programs can set mtime."""
    watch = Poller(root)
    watch.poll()
    (root / "part").write_text("ha")
    os.utime(root / "part", (0, 0))
    assert watch.poll(min_stable_age="1h") == []
    assert watch.poll(min_stable_age="0s") == [("created", "part")]
    (root / "part").write_text("half")
    assert watch.poll(min_stable_age=3600) == []
    assert watch.poll() == [("modified", "part")]


def test_an_unstable_file_that_is_deleted_is_not_reported(root: Path) -> None:
    watch = Poller(root, min_stable_age="1h")
    watch.poll()
    (root / "temporary").write_text("x")
    watch.poll()
    (root / "temporary").unlink()
    assert watch.poll() == []


def test_links_fifos_and_devices_are_ignored(root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("x")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "self").symlink_to(root)
    (root / "file").symlink_to(tmp_path / "outside" / "secret")
    (root / "broken").symlink_to("nowhere")
    os.mkfifo(root / "fifo")
    (root / "real").write_text("x")
    assert Poller(root, emit_initial=True, strategy="sha256").poll() == [("created", "real")]


def test_files_of_a_folder_that_becomes_a_link_are_deleted(root: Path, tmp_path: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "a").write_text("x")
    watch = Poller(root)
    watch.poll()
    (root / "sub").rename(tmp_path / "elsewhere")
    (root / "sub").symlink_to(tmp_path / "elsewhere")
    assert watch.poll() == [("deleted", "sub/a")]


def test_names_that_are_not_utf8_are_reported_with_their_bytes(root: Path) -> None:
    watch = Poller(root)
    watch.poll()
    for name in (b"caf\xe9", b"caf\xe8"):
        (root / os.fsdecode(name)).write_text("x")
    (root / "new\nline \u2028 \u00fc").write_text("x")
    events = watch.run().response["events"]
    paths = {base64.b64decode(event["payload"]["path_base64"]) for event in events if "path_base64" in event["payload"]}
    assert paths == {os.fsencode(root) + b"/caf\xe9", os.fsencode(root) + b"/caf\xe8"}
    assert len(events) == 3
    assert watch.poll() == []
    (root / os.fsdecode(b"caf\xe9")).unlink()
    assert watch.poll() == [("deleted", "caf\ufffd")]


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users can read, with a copy of the plugin."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(PLUGINS / "folder_watch", folder / "plugin")
        (folder / "root" / "sub").mkdir(parents=True)
        yield folder


def test_files_of_an_unreadable_folder_are_not_reported_as_deleted(public: Path) -> None:
    """The job logs a warning."""
    (public / "root" / "sub" / "a").write_text("x")
    unprivileged = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}

    def poll(state: Mapping[str, Any]) -> dict[str, Any]:
        config = {"watches": [{"root": str(public / "root"), "emit_deleted": True}]}
        request = json.dumps({"protocol": 2, "job_id": "j", "command": "poll", "config": config, "state": state})
        run = [str(public / "plugin" / "run.py")]
        done = subprocess.run(run, input=request.encode(), capture_output=True, check=True, **unprivileged)  # type: ignore[call-overload]
        response: dict[str, Any] = json.loads(done.stdout)
        return response

    state = poll({})["state_updates"]
    (public / "root" / "sub").chmod(0)
    response = poll(state)
    (public / "root" / "sub").chmod(0o755)

    assert (response["status"], response["events"]) == ("ok", [])
    assert "cannot be read" in response["logs"][0]["message"]
    assert "state_updates" not in response


def test_a_missing_root_is_a_failure_instead_of_deletions(root: Path) -> None:
    """An unmounted disk must not look like deleted files."""
    (root / "a").write_text("x")
    watch = Poller(root)
    watch.poll()
    root.rename(root.with_name("away"))
    finished = watch.run()
    assert (finished.response["status"], finished.response["retry"], finished.response["events"]) == ("error", True, [])
    root.with_name("away").rename(root)
    assert watch.poll() == []


def test_a_missing_root_does_not_affect_other_watches(root: Path) -> None:
    watches = [{"id": "gone", "root": "/nowhere/at/all"}, {"id": "here", "root": str(root), "emit_initial": True}]
    (root / "a").write_text("x")
    finished = run_plugin("folder_watch", "poll", config={"watches": watches})
    assert [event["payload"]["watch_id"] for event in finished.response["events"]] == ["here"]
    assert "/nowhere/at/all cannot be listed" in finished.response["logs"][0]["message"]


def test_a_deep_tree_is_searched_completely(root: Path) -> None:
    """Deeper than the recursion limit."""
    folder = root
    for _ in range(1_500):
        folder = folder / "d"
        folder.mkdir()
    (folder / "leaf").write_text("x")
    try:
        assert Poller(root, emit_initial=True).poll() == [("created", "d/" * 1_500 + "leaf")]
    finally:
        subprocess.run(["rm", "-rf", root], check=True)  # the cleanup of pytest recurses


def test_globs_match_names_and_paths(root: Path) -> None:
    """A glob without a slash matches the name; `**` matches several folders."""
    for name in ("a.csv", "a.tmp", "sub/b.csv", "sub/deep/c.csv", "node_modules/d.csv", ".hidden/e.csv", ".f.csv"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")

    def chosen(**watch: Any) -> list[str]:
        return [path for _, path in Poller(root, emit_initial=True, **watch).poll()]

    assert chosen(include_globs=["*.csv"], exclude_globs=["node_modules"]) == ["a.csv", "sub/b.csv", "sub/deep/c.csv"]
    assert chosen(include_globs=["sub/*.csv"]) == ["sub/b.csv"]
    assert chosen(include_globs=["sub/**"]) == ["sub/b.csv", "sub/deep/c.csv"]
    assert chosen(recursive=False) == ["a.csv", "a.tmp"]
    assert ".f.csv" in chosen(ignore_hidden=False)
    assert chosen(include_globs=["[ab].csv"]) == []


def test_files_excluded_by_a_new_configuration_are_not_reported(root: Path) -> None:
    (root / "a.txt").write_text("x")
    watch = Poller(root)
    watch.poll()
    assert watch.poll(exclude_globs=["*.txt"]) == []


def test_a_file_that_returns_to_earlier_content_has_a_new_dedupe_key(root: Path) -> None:
    watch = Poller(root)
    watch.poll()
    (root / "a").write_text("x")
    keys = [watch.run().response["events"][0]["dedupe_key"]]
    (root / "a").rename(root.with_name("aside"))
    watch.poll()
    root.with_name("aside").rename(root / "a")
    keys.append(watch.run().response["events"][0]["dedupe_key"])
    assert len(set(keys)) == 2
    assert all(len(key) < 512 for key in keys)


def test_sha256_compares_content(root: Path) -> None:
    """A new time alone is no change; new content with the same time and size is one."""
    watch = Poller(root, strategy="sha256")
    (root / "a").write_text("1")
    watch.poll()
    os.utime(root / "a", (5, 5))
    assert watch.poll() == []
    (root / "a").write_text("2")
    os.utime(root / "a", (5, 5))
    assert watch.poll() == [("modified", "a")]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "watches is missing"),
        ({"watches": []}, "watches is empty"),
        ({"watches": ["/tmp"]}, "watches[0] must be a mapping"),
        ({"watches": [{}]}, "watches[0].root is missing"),
        ({"watches": [{"root": "/tmp", "recursiv": True}]}, "did you mean recursive"),
        ({"watches": [{"root": "/tmp", "emit_mode": "both"}]}, "aggregate or per_file"),
        ({"watches": [{"root": "/tmp", "min_stable_age": "soon"}]}, "duration such as 2s"),
        ({"watches": [{"root": "/tmp", "include_globs": [5]}]}, "list of patterns"),
        ({"watches": [{"root": "/tmp", "max_events": 0}]}, "at least 1"),
        ({"watches": [{"root": "/tmp"}, {"root": "/tmp"}]}, "duplicate id"),
        ({"watches": [{"root": "/tmp"}], "extra": 1}, "extra is not a key"),
    ],
)
def test_an_invalid_configuration_is_final_with_a_reason(config: Mapping[str, Any], message: str) -> None:
    for command in ("poll", "health"):
        finished = run_plugin("folder_watch", command, config=config)
        assert (finished.code, finished.response["retry"]) == (78, False)
        assert message in finished.response["error"]


def test_health_checks_that_the_folders_exist(root: Path) -> None:
    good = run_plugin("folder_watch", "health", config={"watches": [{"root": str(root)}]})
    bad = run_plugin("folder_watch", "health", config={"watches": [{"root": str(root / "no")}]})
    assert (good.response["status"], bad.response["status"]) == ("ok", "error")
