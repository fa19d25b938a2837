"""file_handler reads and writes in the allowed folders only."""

import base64
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Home
from tests.plugins.bundled import PluginRun, run_plugin
from tests.plugins.plugin_service import Start, events_of, start_with_plugin


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    folder = tmp_path / "allowed"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    return folder


def handle(allowed: Path, payload: Mapping[str, Any], **config: Any) -> PluginRun:
    paths = {"allowed_read_paths": [str(allowed)], "allowed_write_paths": [str(allowed)]}
    return run_plugin("file_handler", "handle", payload=payload, config={**paths, **config})


def event(finished: PluginRun) -> tuple[str, dict[str, Any]]:
    assert finished.response["status"] == "ok", finished
    (emitted,) = finished.response["events"]
    return emitted["type"], emitted["payload"]


def test_a_written_file_can_be_read_again(home: Home, start: Start, allowed: Path) -> None:
    config = {"allowed_read_paths": [str(allowed)], "allowed_write_paths": [str(allowed)]}
    service = start_with_plugin(home, start, "file_handler", config)
    path = str(allowed / "sub" / "note.txt")

    ((kind, written),) = events_of(
        service.run("file_handler", "handle", {"action": "write", "path": path, "text": "zoë"})
    )
    assert (kind, written) == ("file.written", {"path": path, "filename": "note.txt", "size": 4})

    ((kind, read),) = events_of(service.run("file_handler", "poll", {"action": "read", "path": path}))
    assert (kind, read["text"], read["size"], read["source_type"]) == ("file.read", "zoë", 4, "file")


@pytest.mark.parametrize("action", ["read", "write"])
@pytest.mark.parametrize(
    "path",
    [
        "{allowed}/../secret.txt",
        "../secret.txt",
        "sub/../../secret.txt",
        "{outside}/secret.txt",
        "{allowed}-neighbour/x",
        "{allowed}",
        "{allowed}/",
        ".",
        "link-to-file",
        "link-to-folder/secret.txt",
        "hop/hop2/secret.txt",
        "a\0b",
    ],
)
def test_a_path_outside_the_allowed_folders_is_rejected(allowed: Path, tmp_path: Path, action: str, path: str) -> None:
    """With `..`, other roots, similar names, and links to files, to folders and in the path."""
    (allowed / "link-to-file").symlink_to(tmp_path / "secret.txt")
    (allowed / "link-to-folder").symlink_to(tmp_path)
    (allowed / "hop").mkdir()
    (allowed / "hop" / "hop2").symlink_to("../..")
    path = path.format(allowed=allowed, outside=tmp_path)

    finished = handle(allowed, {"action": action, "path": path, "text": "overwritten"})

    assert (finished.response["status"], finished.response["retry"], finished.response["events"]) == (
        "error",
        False,
        [],
    ), finished
    assert "secret" not in finished.response["error"].replace("secret.txt", "")
    assert (tmp_path / "secret.txt").read_text() == "secret"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["allowed", "secret.txt"]


def test_a_folder_that_is_replaced_by_a_link_is_not_followed(allowed: Path, tmp_path: Path) -> None:
    """The check and the use of a path cannot race."""
    (allowed / "inside").mkdir()
    (allowed / "inside" / "secret.txt").write_text("harmless")
    (allowed / "trap").symlink_to(tmp_path)
    flip = "while :; do mv -T swap kept; mv -T trap swap; mv -T kept trap; done"
    (allowed / "inside").rename(allowed / "swap")
    flipping = subprocess.Popen(["sh", "-c", f"{flip} 2>/dev/null"], cwd=allowed)
    try:
        for _ in range(10):
            finished = handle(allowed, {"action": "read", "path": "swap/secret.txt"})
            if finished.response["status"] == "ok":
                assert finished.response["events"][0]["payload"]["text"] == "harmless"
            handle(allowed, {"action": "write", "path": "swap/new.txt", "text": "x"})
    finally:
        flipping.kill()
        flipping.wait()
    assert not (tmp_path / "new.txt").exists()


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_only_regular_files_are_read_and_replaced(allowed: Path, kind: str) -> None:
    """A FIFO does not block."""
    os.mkfifo(allowed / "it") if kind == "fifo" else (allowed / "it").mkdir()
    for action, mode in (("read", None), ("write", "overwrite"), ("write", "create"), ("write", "append")):
        finished = handle(allowed, {"action": action, "path": "it", "text": "x", "mode": mode})
        assert finished.response["status"] == "error", (action, mode)
    assert not (allowed / "it").is_file()


def test_devices_are_not_read() -> None:
    finished = run_plugin(
        "file_handler",
        "handle",
        payload={"action": "read", "path": "/dev/zero"},
        config={"allowed_read_paths": ["/dev"]},
    )
    assert "not a regular file" in finished.response["error"]


def test_a_hard_link_is_replaced_instead_of_written_through(allowed: Path, tmp_path: Path) -> None:
    os.link(tmp_path / "secret.txt", allowed / "twin")
    assert (
        handle(allowed, {"action": "write", "path": "twin", "text": "+", "mode": "append"}).response["retry"] is False
    )
    assert event(handle(allowed, {"action": "write", "path": "twin", "text": "new"}))[0] == "file.written"
    assert (tmp_path / "secret.txt").read_text() == "secret"


def test_mode_overwrites_creates_or_appends(allowed: Path) -> None:
    """No temporary file remains."""
    path = allowed / "f"
    for payload, expected in (
        ({"text": "one"}, "one"),
        ({"text": "two"}, "two"),
        ({"text": "+", "mode": "append"}, "two+"),
        ({"content": base64.b64encode(b"three").decode(), "encoding": "base64"}, "three"),
    ):
        event(handle(allowed, {"action": "write", "path": "f", **payload}))
        assert path.read_text() == expected
    rejected = handle(allowed, {"action": "write", "path": "f", "text": "x", "mode": "create"})
    assert "already exists" in rejected.response["error"]
    event(handle(allowed, {"action": "write", "path": "g", "text": "x", "mode": "create"}))
    assert sorted(os.listdir(allowed)) == ["f", "g"]


def test_the_temporary_file_of_a_killed_attempt_is_replaced(allowed: Path, tmp_path: Path) -> None:
    """A link in its place is not followed."""
    (allowed / ".j-1.ductile").symlink_to(tmp_path / "secret.txt")
    event(handle(allowed, {"action": "write", "path": "f", "text": "new"}))
    assert (os.listdir(allowed), (tmp_path / "secret.txt").read_text()) == (["f"], "secret")


def test_a_filename_is_written_to_the_default_folder(allowed: Path) -> None:
    """`output_dir` and `default_output_dir` must be allowed."""
    out = str(allowed / "out")
    event(handle(allowed, {"action": "write", "filename": "a.txt", "result": "x"}, default_output_dir=out))
    assert (allowed / "out" / "a.txt").read_text() == "x"
    for payload in ({"filename": "../a"}, {"filename": ".."}, {"filename": "a", "output_dir": "/tmp"}):
        finished = handle(allowed, {"action": "write", "text": "x", **payload}, default_output_dir=out)
        assert (finished.response["status"], finished.response["retry"]) == ("error", False)


def test_a_file_that_is_too_large_or_not_text_is_an_error(allowed: Path) -> None:
    (allowed / "large").write_bytes(b"x" * 11)
    (allowed / "binary").write_bytes(b"\xff\0")
    assert (
        "larger than max_bytes (10)"
        in handle(allowed, {"action": "read", "path": "large"}, max_bytes=10).response["error"]
    )
    assert "encoding: base64" in handle(allowed, {"action": "read", "path": "binary"}).response["error"]
    _, payload = event(handle(allowed, {"action": "read", "path": "binary", "encoding": "base64"}))
    assert base64.b64decode(payload["content_base64"]) == b"\xff\0"


def test_no_folder_is_allowed_by_default(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    for action in ("read", "write"):
        finished = run_plugin(
            "file_handler", "handle", payload={"action": action, "path": str(tmp_path / "f"), "text": "x"}
        )
        assert finished.code == 78
    assert run_plugin("file_handler", "health").code == 78


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, "action is missing"),
        ({"action": "delete", "path": "f"}, "read or write"),
        ({"action": "read"}, "path is missing"),
        ({"action": "read", "path": 5}, "must be text"),
        ({"action": "read", "path": "f", "encoding": "latin-1"}, "utf-8 or base64"),
        ({"action": "write", "path": "f"}, "nothing to write"),
        ({"action": "write", "path": "f", "text": {"a": 1}}, "must be text"),
        ({"action": "write", "path": "f", "text": "x", "mode": "prepend"}, "overwrite, append or create"),
        ({"action": "write", "path": "f", "content": "%", "encoding": "base64"}, "not base64"),
        ({"action": "write", "text": "x"}, "filename is missing"),
    ],
)
def test_an_invalid_payload_is_final_with_a_reason(allowed: Path, payload: Mapping[str, Any], message: str) -> None:
    (allowed / "f").write_text("x")
    finished = handle(allowed, payload)
    assert (finished.response["status"], finished.response["retry"]) == ("error", False)
    assert message in finished.response["error"]


def test_a_missing_file_is_retried(allowed: Path) -> None:
    assert handle(allowed, {"action": "read", "path": "later"}).response["retry"] is True


def test_an_unknown_configuration_key_is_rejected(allowed: Path) -> None:
    finished = handle(allowed, {"action": "read", "path": "f"}, allowed_reads=["/"])
    assert finished.code == 78
    assert "allowed_reads is not a key" in finished.response["error"]
