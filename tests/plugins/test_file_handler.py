"""file_handler: reads and writes below the allowed folders, and cannot be talked out of them."""

import base64
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Home
from tests.plugins.bundled import Said, ask
from tests.plugins.serving import Start, events_of, serve


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    folder = tmp_path / "allowed"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("secret")
    return folder


def handle(allowed: Path, payload: Mapping[str, Any], **config: Any) -> Said:
    paths = {"allowed_read_paths": [str(allowed)], "allowed_write_paths": [str(allowed)]}
    return ask("file_handler", "handle", payload=payload, config={**paths, **config})


def event(said: Said) -> tuple[str, dict[str, Any]]:
    assert said.answer["status"] == "ok", said
    (emitted,) = said.answer["events"]
    return emitted["type"], emitted["payload"]


def test_written_and_read_through_the_service(home: Home, start: Start, allowed: Path) -> None:
    """What was written is what is read, with the events of the original."""
    config = {"allowed_read_paths": [str(allowed)], "allowed_write_paths": [str(allowed)]}
    service = serve(home, start, "file_handler", config)
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
def test_there_is_no_way_out(allowed: Path, tmp_path: Path, action: str, path: str) -> None:
    """`..`, other roots, look-alike names, links to files, to folders and through folders: final, nothing touched."""
    (allowed / "link-to-file").symlink_to(tmp_path / "secret.txt")
    (allowed / "link-to-folder").symlink_to(tmp_path)
    (allowed / "hop").mkdir()
    (allowed / "hop" / "hop2").symlink_to("../..")
    path = path.format(allowed=allowed, outside=tmp_path)

    said = handle(allowed, {"action": action, "path": path, "text": "overwritten"})

    assert (said.answer["status"], said.answer["retry"], said.answer["events"]) == ("error", False, []), said
    assert "secret" not in said.answer["error"].replace("secret.txt", "")
    assert (tmp_path / "secret.txt").read_text() == "secret"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["allowed", "secret.txt"]


def test_no_moment_between_question_and_use(allowed: Path, tmp_path: Path) -> None:
    """A folder that turns into a link and back all the time never leads outside."""
    (allowed / "inside").mkdir()
    (allowed / "inside" / "secret.txt").write_text("harmless")
    (allowed / "trap").symlink_to(tmp_path)
    flip = "while :; do mv -T swap kept; mv -T trap swap; mv -T kept trap; done"
    (allowed / "inside").rename(allowed / "swap")
    flipping = subprocess.Popen(["sh", "-c", f"{flip} 2>/dev/null"], cwd=allowed)
    try:
        for _ in range(10):
            said = handle(allowed, {"action": "read", "path": "swap/secret.txt"})
            if said.answer["status"] == "ok":
                assert said.answer["events"][0]["payload"]["text"] == "harmless"
            handle(allowed, {"action": "write", "path": "swap/new.txt", "text": "x"})
    finally:
        flipping.kill()
        flipping.wait()
    assert not (tmp_path / "new.txt").exists()


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_only_regular_files_are_read_and_replaced(allowed: Path, kind: str) -> None:
    """A fifo does not block it."""
    os.mkfifo(allowed / "it") if kind == "fifo" else (allowed / "it").mkdir()
    for action, mode in (("read", None), ("write", "overwrite"), ("write", "create"), ("write", "append")):
        said = handle(allowed, {"action": action, "path": "it", "text": "x", "mode": mode})
        assert said.answer["status"] == "error", (action, mode)
    assert not (allowed / "it").is_file()


def test_devices_are_not_read() -> None:
    said = ask(
        "file_handler",
        "handle",
        payload={"action": "read", "path": "/dev/zero"},
        config={"allowed_read_paths": ["/dev"]},
    )
    assert "not a regular file" in said.answer["error"]


def test_a_hard_link_is_replaced_and_never_written_through(allowed: Path, tmp_path: Path) -> None:
    """Its other name keeps its content."""
    os.link(tmp_path / "secret.txt", allowed / "twin")
    assert handle(allowed, {"action": "write", "path": "twin", "text": "+", "mode": "append"}).answer["retry"] is False
    assert event(handle(allowed, {"action": "write", "path": "twin", "text": "new"}))[0] == "file.written"
    assert (tmp_path / "secret.txt").read_text() == "secret"


def test_modes_of_writing(allowed: Path) -> None:
    """Overwrite is the default; create refuses what is there; append adds. No draft stays behind."""
    path = allowed / "f"
    for payload, expected in (
        ({"text": "one"}, "one"),
        ({"text": "two"}, "two"),
        ({"text": "+", "mode": "append"}, "two+"),
        ({"content": base64.b64encode(b"three").decode(), "encoding": "base64"}, "three"),
    ):
        event(handle(allowed, {"action": "write", "path": "f", **payload}))
        assert path.read_text() == expected
    refused = handle(allowed, {"action": "write", "path": "f", "text": "x", "mode": "create"})
    assert "already exists" in refused.answer["error"]
    event(handle(allowed, {"action": "write", "path": "g", "text": "x", "mode": "create"}))
    assert sorted(os.listdir(allowed)) == ["f", "g"]


def test_what_a_killed_attempt_left_behind_is_cleared_away(allowed: Path, tmp_path: Path) -> None:
    """The draft is named after the job; a link in its place is not followed."""
    (allowed / ".j-1.ductile").symlink_to(tmp_path / "secret.txt")
    event(handle(allowed, {"action": "write", "path": "f", "text": "new"}))
    assert (os.listdir(allowed), (tmp_path / "secret.txt").read_text()) == (["f"], "secret")


def test_a_name_goes_to_the_default_folder(allowed: Path) -> None:
    """`filename` is a plain name; `output_dir` and `default_output_dir` must be allowed like everything else."""
    out = str(allowed / "out")
    event(handle(allowed, {"action": "write", "filename": "a.txt", "result": "x"}, default_output_dir=out))
    assert (allowed / "out" / "a.txt").read_text() == "x"
    for payload in ({"filename": "../a"}, {"filename": ".."}, {"filename": "a", "output_dir": "/tmp"}):
        said = handle(allowed, {"action": "write", "text": "x", **payload}, default_output_dir=out)
        assert (said.answer["status"], said.answer["retry"]) == ("error", False)


def test_what_is_read_is_capped_and_must_be_text(allowed: Path) -> None:
    """Too large is an error, never a silent cut; other bytes come as base64 when asked for."""
    (allowed / "large").write_bytes(b"x" * 11)
    (allowed / "binary").write_bytes(b"\xff\0")
    assert (
        "larger than max_bytes (10)"
        in handle(allowed, {"action": "read", "path": "large"}, max_bytes=10).answer["error"]
    )
    assert "encoding: base64" in handle(allowed, {"action": "read", "path": "binary"}).answer["error"]
    _, payload = event(handle(allowed, {"action": "read", "path": "binary", "encoding": "base64"}))
    assert base64.b64decode(payload["content_base64"]) == b"\xff\0"


def test_nothing_is_allowed_that_is_not_named(tmp_path: Path) -> None:
    """The default is no."""
    (tmp_path / "f").write_text("x")
    for action in ("read", "write"):
        said = ask("file_handler", "handle", payload={"action": action, "path": str(tmp_path / "f"), "text": "x"})
        assert said.code == 78
    assert ask("file_handler", "health").code == 78


@pytest.mark.parametrize(
    ("payload", "words"),
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
def test_a_wrong_payload_is_final_and_says_what_is_wrong(allowed: Path, payload: Mapping[str, Any], words: str) -> None:
    (allowed / "f").write_text("x")
    said = handle(allowed, payload)
    assert (said.answer["status"], said.answer["retry"]) == ("error", False)
    assert words in said.answer["error"]


def test_a_missing_file_may_be_there_at_the_next_attempt(allowed: Path) -> None:
    assert handle(allowed, {"action": "read", "path": "later"}).answer["retry"] is True


def test_an_unknown_key_of_the_configuration_is_refused(allowed: Path) -> None:
    said = handle(allowed, {"action": "read", "path": "f"}, allowed_reads=["/"])
    assert said.code == 78
    assert "allowed_reads is not a key" in said.answer["error"]
