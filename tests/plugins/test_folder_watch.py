"""folder_watch: whatever happens in a folder is told once, and nothing that happens there is lost."""

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
from tests.plugins.bundled import PLUGINS, Said, ask
from tests.plugins.serving import Start, events_of, serve


class Poller:
    """Polls one watch again and again, as the service does: the state of an answer goes into the next request."""

    def __init__(self, root: Path, **watch: Any) -> None:
        self.watch = {"id": "w", "root": str(root), "emit_mode": "per_file", "emit_deleted": True, **watch}
        self.state: Mapping[str, Any] = {}
        self.jobs = 0

    def ask(self, **more: Any) -> Said:
        self.jobs += 1
        said = ask(
            "folder_watch",
            "poll",
            config={"watches": [{**self.watch, **more}]},
            state=self.state,
            job_id=f"j-{self.jobs}",
        )
        if said.answer["status"] == "ok":
            self.state = said.answer.get("state_updates") or self.state
        return said

    def poll(self, **more: Any) -> list[tuple[str, str]]:
        said = self.ask(**more)
        assert said.answer["status"] == "ok", said
        payloads = [event["payload"] for event in said.answer["events"]]
        return [(payload["change"], payload["relative_path"]) for payload in payloads]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "inbox"
    folder.mkdir()
    return folder


def test_changes_reach_a_pipeline_through_the_service(home: Home, start: Start, root: Path) -> None:
    """Baseline first; then what is new is told once, kept as a fact, and starts what listens to it."""
    (root / "old.txt").write_text("old")
    home.plugin("sink", '#!/bin/sh\ncat > /dev/null\necho \'{"status": "ok", "result": "done"}\'\n')
    home.add("pipelines:\n  - {name: take, on: inbox.changed, steps: [{uses: sink}]}\n")
    service = serve(
        home, start, "folder_watch", {"watches": [{"id": "in", "root": str(root), "event_type": "inbox.changed"}]}
    )

    assert events_of(service.run("folder_watch")) == []
    (root / "new.txt").write_text("new")
    (root / "sub").mkdir()
    (root / "sub" / "deep.txt").write_text("deep")
    told = service.run("folder_watch")
    quiet = service.run("folder_watch")

    ((kind, payload),) = events_of(told)
    assert (kind, payload["created"], payload["modified"]) == ("inbox.changed", 2, 0)
    assert [file["relative_path"] for file in payload["files"]] == ["new.txt", "sub/deep.txt"]
    assert payload["files"][0]["path"] == str(root / "new.txt")
    assert events_of(quiet) == []
    assert home.rows("SELECT count(*) AS n FROM plugin_facts WHERE fact_type = 'folder_watch.snapshot'") == [{"n": 2}]
    (job,) = home.rows("SELECT id FROM job_queue WHERE plugin = 'sink'")
    assert service.job(job["id"], wait="30s")["status"] == "succeeded"


def test_created_modified_renamed_and_deleted_are_told_once(root: Path) -> None:
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


def test_what_was_there_before_is_told_on_request(root: Path) -> None:
    """`emit_initial`."""
    (root / "a").write_text("1")
    assert Poller(root, emit_initial=True).poll() == [("created", "a")]


@pytest.mark.parametrize("cap", [1, 7, 500])
def test_what_does_not_fit_comes_with_the_next_poll(root: Path, cap: int) -> None:
    """However small the cap, each of the files is told exactly once."""
    watch = Poller(root, max_events=cap)
    watch.poll()
    for number in range(20):
        (root / f"{number:02}").write_text("x")
    told: list[tuple[str, str]] = []
    polls = 0
    while more := watch.poll():
        assert len(more) <= cap
        told += more
        polls += 1
    assert sorted(told) == [("created", f"{number:02}") for number in range(20)]
    assert polls == -(-20 // cap)


def test_nothing_is_lost_while_others_write(root: Path) -> None:
    """Files are made and renamed into place during the polls; in the end each was told once, under its last name."""
    watch = Poller(root, max_events=40)
    watch.poll()
    names = [f"{number:03}.txt" for number in range(300)]

    def write() -> None:
        for name in names:
            (root / f".{name}").write_text(name)
            (root / f".{name}").rename(root / name)

    writer = threading.Thread(target=write)
    writer.start()
    told: list[list[tuple[str, str]]] = []
    while writer.is_alive() or not told or told[-1]:
        told.append(watch.poll())
    writer.join()
    assert sorted(item for poll in told for item in poll) == [("created", name) for name in names]


def test_a_busy_file_does_not_keep_the_others_waiting(root: Path) -> None:
    """The next answer goes on where the last one ended."""
    watch = Poller(root, max_events=1)
    for name in "abc":
        (root / name).write_text("1")
    watch.poll()
    told = set()
    for turn in range(3):
        for name in "abc":
            (root / name).write_text("x" * (turn + 2))
        told |= set(watch.poll())
    assert told == {("modified", name) for name in "abc"}


def test_aggregates_are_capped_too(root: Path) -> None:
    """One event of at most `max_events` files, the rest in the next."""
    watch = Poller(root, max_events=3, emit_mode="aggregate", emit_initial=True)
    for number in range(5):
        (root / str(number)).write_text("x")
    sizes = [len(watch.ask().answer["events"][0]["payload"]["files"]) for _ in range(2)]
    assert sizes == [3, 2]


def test_ten_thousand_files_fit_and_more_wait_for_room(root: Path) -> None:
    """Within one answer's limits; beyond `max_files` a warning says who waits, and they are told when there is room."""
    for number in range(10_000):
        os.close(os.open(root / f"file-number-{number:05}.txt", os.O_CREAT | os.O_WRONLY))
    watch = Poller(root, max_files=9_990)
    said = watch.ask()
    assert said.answer["status"] == "ok"
    assert len(str(said.answer["state_updates"])) < 1 << 20
    assert "10 over the limit" in said.answer["result"]
    assert any("10 new files ignored" in line["message"] for line in said.answer["logs"])
    for number in range(10):
        (root / f"file-number-{number:05}.txt").unlink()
    told = watch.poll()
    assert [change for change, _ in told].count("deleted") == 10
    assert [path for change, path in told if change == "created"] == [
        f"file-number-{n:05}.txt" for n in range(9_990, 10_000)
    ]


def test_the_state_never_grows_beyond_what_is_kept(root: Path) -> None:
    """Long names fill the state before `max_files` does; the files wait, the poll does not fail."""
    for number in range(5_000):
        os.close(os.open(root / f"{number:05}{'n' * 240}", os.O_CREAT | os.O_WRONLY))
    said = Poller(root).ask()
    assert said.answer["status"] == "ok"
    assert "over the limit" in said.answer["result"]
    assert len(str(said.answer["state_updates"])) < 1 << 20


def test_a_file_that_is_still_written_waits(root: Path) -> None:
    """`min_stable_age` asks when the inode changed; setting back the time of modification does not help."""
    watch = Poller(root)
    watch.poll()
    (root / "part").write_text("ha")
    os.utime(root / "part", (0, 0))
    assert watch.poll(min_stable_age="1h") == []
    assert watch.poll(min_stable_age="0s") == [("created", "part")]
    (root / "part").write_text("half")
    assert watch.poll(min_stable_age=3600) == []
    assert watch.poll() == [("modified", "part")]


def test_an_unsettled_file_that_goes_away_was_never_there(root: Path) -> None:
    watch = Poller(root, min_stable_age="1h")
    watch.poll()
    (root / "temporary").write_text("x")
    watch.poll()
    (root / "temporary").unlink()
    assert watch.poll() == []


def test_links_fifos_and_devices_are_left_alone(root: Path, tmp_path: Path) -> None:
    """Nothing outside the folder is seen, nothing blocks, circles end."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("x")
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "self").symlink_to(root)
    (root / "file").symlink_to(tmp_path / "outside" / "secret")
    (root / "broken").symlink_to("nowhere")
    os.mkfifo(root / "fifo")
    (root / "real").write_text("x")
    assert Poller(root, emit_initial=True, strategy="sha256").poll() == [("created", "real")]


def test_a_folder_that_becomes_a_link_takes_its_files_away(root: Path, tmp_path: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub" / "a").write_text("x")
    watch = Poller(root)
    watch.poll()
    (root / "sub").rename(tmp_path / "elsewhere")
    (root / "sub").symlink_to(tmp_path / "elsewhere")
    assert watch.poll() == [("deleted", "sub/a")]


def test_names_that_are_not_utf8_are_told_and_can_be_opened(root: Path) -> None:
    """Shown with a replacement, exact in `path_base64`; told once, and told apart."""
    watch = Poller(root)
    watch.poll()
    for name in (b"caf\xe9", b"caf\xe8"):
        (root / os.fsdecode(name)).write_text("x")
    (root / "new\nline \u2028 \u00fc").write_text("x")
    events = watch.ask().answer["events"]
    paths = {base64.b64decode(event["payload"]["path_base64"]) for event in events if "path_base64" in event["payload"]}
    assert paths == {os.fsencode(root) + b"/caf\xe9", os.fsencode(root) + b"/caf\xe8"}
    assert len(events) == 3
    assert watch.poll() == []
    (root / os.fsdecode(b"caf\xe9")).unlink()
    assert watch.poll() == [("deleted", "caf\ufffd")]


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that another user may enter, with the plugin in it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(PLUGINS / "folder_watch", folder / "plugin")
        (folder / "root" / "sub").mkdir(parents=True)
        yield folder


def test_a_folder_that_cannot_be_read_does_not_count_as_emptied(public: Path) -> None:
    """What is below it stays as it was told; a warning says so."""
    (public / "root" / "sub" / "a").write_text("x")
    nobody = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}

    def poll(state: Mapping[str, Any]) -> dict[str, Any]:
        config = {"watches": [{"root": str(public / "root"), "emit_deleted": True}]}
        request = json.dumps({"protocol": 2, "job_id": "j", "command": "poll", "config": config, "state": state})
        run = [str(public / "plugin" / "run.py")]
        done = subprocess.run(run, input=request.encode(), capture_output=True, check=True, **nobody)  # type: ignore[call-overload]
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    state = poll({})["state_updates"]
    (public / "root" / "sub").chmod(0)
    answer = poll(state)
    (public / "root" / "sub").chmod(0o755)

    assert (answer["status"], answer["events"]) == ("ok", [])
    assert "cannot be read" in answer["logs"][0]["message"]
    assert "state_updates" not in answer


def test_a_missing_root_is_a_failure_not_a_deletion(root: Path) -> None:
    """An unmounted disk must not look like everything was deleted."""
    (root / "a").write_text("x")
    watch = Poller(root)
    watch.poll()
    root.rename(root.with_name("away"))
    said = watch.ask()
    assert (said.answer["status"], said.answer["retry"], said.answer["events"]) == ("error", True, [])
    root.with_name("away").rename(root)
    assert watch.poll() == []


def test_one_missing_root_does_not_stop_the_other(root: Path) -> None:
    watches = [{"id": "gone", "root": "/nowhere/at/all"}, {"id": "here", "root": str(root), "emit_initial": True}]
    (root / "a").write_text("x")
    said = ask("folder_watch", "poll", config={"watches": watches})
    assert [event["payload"]["watch_id"] for event in said.answer["events"]] == ["here"]
    assert "/nowhere/at/all cannot be listed" in said.answer["logs"][0]["message"]


def test_a_deep_tree_is_searched_to_its_end(root: Path) -> None:
    """Deeper than a recursion would go, up to what a path can name."""
    folder = root
    for _ in range(1_500):
        folder = folder / "d"
        folder.mkdir()
    (folder / "leaf").write_text("x")
    try:
        assert Poller(root, emit_initial=True).poll() == [("created", "d/" * 1_500 + "leaf")]
    finally:
        subprocess.run(["rm", "-rf", root], check=True)  # pytest's own clearing up recurses


def test_globs_choose_by_name_and_by_path(root: Path) -> None:
    """Without a slash: the name; with one: the path; `**` crosses folders."""
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


def test_files_that_are_no_longer_watched_are_not_called_deleted(root: Path) -> None:
    """A narrower configuration is no deletion."""
    (root / "a.txt").write_text("x")
    watch = Poller(root)
    watch.poll()
    assert watch.poll(exclude_globs=["*.txt"]) == []


def test_a_file_that_comes_back_as_it_was_has_a_new_dedupe_key(root: Path) -> None:
    """Otherwise the second arrival would be dropped as a double of the first."""
    watch = Poller(root)
    watch.poll()
    (root / "a").write_text("x")
    keys = [watch.ask().answer["events"][0]["dedupe_key"]]
    (root / "a").rename(root.with_name("aside"))
    watch.poll()
    root.with_name("aside").rename(root / "a")
    keys.append(watch.ask().answer["events"][0]["dedupe_key"])
    assert len(set(keys)) == 2
    assert all(len(key) < 512 for key in keys)


def test_content_decides_with_sha256(root: Path) -> None:
    """Touched is not changed; changed behind the same time and size is."""
    watch = Poller(root, strategy="sha256")
    (root / "a").write_text("1")
    watch.poll()
    os.utime(root / "a", (5, 5))
    assert watch.poll() == []
    (root / "a").write_text("2")
    os.utime(root / "a", (5, 5))
    assert watch.poll() == [("modified", "a")]


@pytest.mark.parametrize(
    ("config", "words"),
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
def test_a_wrong_configuration_is_final_and_says_what_is_wrong(config: Mapping[str, Any], words: str) -> None:
    """78: no attempt can help."""
    for command in ("poll", "health"):
        said = ask("folder_watch", command, config=config)
        assert (said.code, said.answer["retry"]) == (78, False)
        assert words in said.answer["error"]


def test_health_says_whether_the_folders_are_there(root: Path) -> None:
    good = ask("folder_watch", "health", config={"watches": [{"root": str(root)}]})
    bad = ask("folder_watch", "health", config={"watches": [{"root": str(root / "no")}]})
    assert (good.answer["status"], bad.answer["status"]) == ("ok", "error")
