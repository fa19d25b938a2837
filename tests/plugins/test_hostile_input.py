"""What an event, a page or a file can be made of must not stop a plugin, mislead it or be tried again in vain."""

import importlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.bundled import PLUGINS, ask, said
from tests.plugins.local_http import Reply, Seen, serving

LOCAL = {"allowed_networks": ["127.0.0.0/8"]}
PYTHON = sorted(path.parent.name for path in PLUGINS.glob("*/run.py"))


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize("name", PYTHON)
def test_a_plugin_finds_its_own_files_however_python_is_started(name: str) -> None:
    """Isolated, without site, without anything of the environment."""
    request = {"protocol": 2, "job_id": "j", "command": "none"}
    answer = said(name, json.dumps(request).encode(), options=("-I", "-S")).answer
    assert "unknown command 'none'" in answer["error"]


@pytest.mark.parametrize("name", PYTHON)
def test_a_plugin_is_written_for_python_3_9(name: str) -> None:
    """No syntax of later versions; the rest is tried where such an interpreter is installed."""
    import ast

    for path in (PLUGINS / name).glob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 9))


# fetch


def heard(headers: dict[str, str], /, **config: Any) -> tuple[dict[str, Any], list[Seen]]:
    with serving() as site:
        site.pages["/"] = Reply(b"{}")
        payload = {"url": site.url(), "headers": headers}
        return ask("fetch", "handle", config={**LOCAL, **config}, payload=payload).answer, site.seen


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Length ": "3"},
        {"Transfer-Encoding\t": "chunked"},
        {"X-A": "a\0b"},
        {"X-A": "a\x0bb"},
        {"X A": "b"},
        {"X-A": "☃"},
        {"": "x"},
        {"X-A": "a\r\nX-B: b"},
    ],
    ids=ascii,
)
def test_a_header_that_servers_read_in_two_ways_is_not_sent(headers: dict[str, str]) -> None:
    """A name is a token and a value is one line: nothing is smuggled past a proxy."""
    answer, seen = heard(headers)

    assert (answer["status"], answer["retry"], seen) == ("error", False, [])
    assert "header" in answer["error"]


def test_an_event_cannot_replace_a_header_of_the_operator() -> None:
    """In whatever case it is written, and however often."""
    _, (seen,) = heard({"X-Role": "a", "x-role": "admin"}, headers={"X-Role": "reader"}, allowed_hosts=["127.0.0.1"])
    assert seen.headers["x-role"] == "reader"


def test_a_body_that_is_sent_on_is_sent_on_with_its_type() -> None:
    """307 to another origin: the body and what it is; not what is secret."""
    with serving() as site:
        site.pages["/"] = Reply(b"{}")
        site.pages["/old"] = Reply(status=307, headers={"Location": f"http://localhost:{site.port}/"})
        payload = {"url": site.url("/old"), "method": "POST", "body": {"a": 1}, "headers": {"Authorization": "s"}}
        ask("fetch", "handle", config=LOCAL, payload=payload)
        seen = site.seen[-1]

    assert (seen.body, seen.headers["content-type"], "authorization" in seen.headers) == (
        b'{"a": 1}',
        "application/json",
        False,
    )


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        ("168.63.129.16", False),
        ("169.254.169.254", False),
        ("100.100.100.200", False),
        ("192.0.0.192", False),
        ("fd00:ec2::254", False),
        ("::ffff:169.254.169.254", False),
        ("64:ff9b::a9fe:a9fe", False),
        ("2002:a9fe:a9fe::", False),
        ("::ffff:8.8.8.8", True),
        ("168.63.129.17", True),
        ("2606:4700::1111", True),
    ],
)
def test_what_serves_the_host_itself_is_not_public(
    address: str, is_public: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata and agents of clouds, however the address is written. It is judged only; nothing is sent."""
    monkeypatch.syspath_prepend(PLUGINS / "lib" / "python")
    guard: Any = importlib.import_module("ductile_guard")
    assert guard.Guard().allows(address) is is_public


# file_handler


def test_a_file_that_is_replaced_keeps_its_permissions(tmp_path: Path) -> None:
    """What was private stays private."""
    (tmp_path / "key").write_text("old")
    (tmp_path / "key").chmod(0o600)
    config = {"allowed_write_paths": [str(tmp_path)]}
    ask("file_handler", "handle", config=config, payload={"action": "write", "path": "key", "content": "new"})

    assert ((tmp_path / "key").read_text(), (tmp_path / "key").stat().st_mode & 0o777) == ("new", 0o600)


@pytest.mark.parametrize("path", ["a" * 300, "a\ud800b", "b/" * 600], ids=lambda path: ascii(path)[:9])
def test_a_path_that_cannot_be_is_final(tmp_path: Path, path: str) -> None:
    """No other attempt makes it shorter, or text."""
    config = {"allowed_write_paths": [str(tmp_path)]}
    answer = ask(
        "file_handler", "handle", config=config, payload={"action": "write", "path": path, "content": ""}
    ).answer
    assert (answer["status"], answer["retry"]) == ("error", False)


@pytest.mark.parametrize("encoding", ["utf-8", "base64"])
def test_a_file_that_does_not_fit_into_an_answer_is_final(tmp_path: Path, encoding: str) -> None:
    """However high max_bytes is: an answer that is too large would be thrown away and asked for again."""
    (tmp_path / "big").write_bytes(b"\1" * 8_000_000)
    config = {"allowed_read_paths": [str(tmp_path)], "max_bytes": 100_000_000}
    payload = {"action": "read", "path": "big", "encoding": encoding}
    answer = ask("file_handler", "handle", config=config, payload=payload).answer

    assert (answer["retry"], answer["events"]) == (False, [])
    assert "max_bytes" in answer["error"]


# sys_exec and notify: programs


@pytest.mark.parametrize(
    "payload", [{f"k{number}": "v" for number in range(100_000)}, {"k" * 200_000: "v"}], ids=["many keys", "a long key"]
)
def test_a_payload_cannot_be_too_much_for_the_environment(payload: dict[str, str]) -> None:
    """What does not fit is left out with few words; all of it is on stdin."""
    answer = ask("sys_exec", "handle", config={"command": ["wc", "-c"]}, payload=payload).answer

    assert answer["status"] == "ok"
    assert int(answer["events"][0]["payload"]["stdout"]) == len(json.dumps(payload)) + 1
    assert 0 < len(answer["logs"]) <= 21


def test_sigterm_in_any_moment_leaves_no_command_behind(tmp_path: Path) -> None:
    """Also before the plugin knows that its command runs."""
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho $$ > {tmp_path}/number\nkill -TERM "$PPID"\nexec sleep 600\n')
    program.chmod(0o700)
    request = {"protocol": 2, "job_id": "j", "command": "poll", "config": {"command": [str(program)]}}
    # One moment after fork: the widest that the window can be.
    slow = (
        "import os, runpy, subprocess, time\n"
        "popen = subprocess.Popen\n"
        "class Slow(popen):\n"
        "    def __init__(self, *a, **k):\n"
        "        super().__init__(*a, **k)\n"
        "        time.sleep(0.3)\n"
        "subprocess.Popen = Slow\n"
        f"runpy.run_path({str(PLUGINS / 'sys_exec' / 'run.py')!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", slow],
        input=json.dumps(request).encode(),
        capture_output=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "number").read_text()), signal.SIGKILL)


def test_a_message_can_be_longer_than_a_variable() -> None:
    """It is whole on stdin, and cut in DUCTILE_TEXT."""
    config = {"channel": "command", "command": ["sh", "-c", "wc -c >&2"], "max_chars": 200_000}
    done = ask("notify", "handle", config=config, payload={"text": "é" * 150_000})
    assert (done.answer["status"], done.stderr.strip()) == ("ok", "300000")


@pytest.mark.parametrize(
    "wrong",
    [{"to": ["a@example.com, b@example.com"]}, {"to": [" "]}, {"to": ["<>"]}, {"to": ["a@"]}, {"from": "me"}],
    ids=str,
)
def test_an_entry_that_is_not_one_mail_address_is_told(wrong: dict[str, Any]) -> None:
    """Before a server is asked, which might take the mail and lose it."""
    config = {"channel": "smtp", "host": "127.0.0.1", "port": 9, "security": "none", "from": "d@example.com"}
    said = ask("notify", "handle", config={**config, "to": ["a@example.com"], **wrong}, payload={"text": "x"})

    assert (said.code, said.answer["error"]) == (78, "from and each entry of to must be a single mail address")


# switch


@pytest.mark.parametrize(("regex", "text"), [("(a+)+$", "a" * 40 + "b"), (r"\s*\n", " " * 300_000)])
def test_no_regex_holds_the_lane(regex: str, text: str) -> None:
    """Neither one that takes ever more steps nor one whose steps are long."""
    began = time.monotonic()
    config = {"field": "t", "checks": [{"regex": regex, "emit": "x.y"}]}
    answer = ask("switch", "handle", config=config, payload={"t": text}).answer

    assert (answer["status"], answer["retry"]) == ("error", False)
    assert "took longer than 2 s" in answer["error"]
    assert time.monotonic() - began < 30


# depth


def test_a_payload_that_is_too_deep_to_be_passed_on_is_final() -> None:
    """61 levels fit into an answer of 64."""
    config = {"field": "a", "checks": [{"default": True, "emit": "x.y"}]}
    fits, deep = (ask("switch", "handle", config=config, payload=nested(levels)).answer for levels in (61, 62))

    assert (fits["status"], deep["status"], deep["retry"], deep["events"]) == ("ok", "error", False, [])
    assert "61 levels" in deep["error"]


@pytest.mark.parametrize(("levels", "kept"), [(60, True), (61, False)])
def test_a_delivery_that_is_too_deep_becomes_an_event_without_its_body(levels: int, kept: bool) -> None:
    event = {"type": "webhook.received", "payload": nested(levels), "headers": {"x-github-event": "push"}}
    answer = ask("github_events", "handle", event=event).answer

    assert ("body" in answer["events"][0]["payload"], bool(answer["logs"])) == (kept, not kept)


# sqlite_change


@pytest.mark.parametrize(
    "query",
    ["SELECT value FROM json_each('[1]')", "SELECT * FROM words WHERE words MATCH 'hello'"],
    ids=["json", "fts"],
)
def test_a_query_may_read_virtual_tables(tmp_path: Path, query: str) -> None:
    """Opening one asks for more than reading, and changes nothing."""
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE VIRTUAL TABLE words USING fts5(word)")
        database.execute("INSERT INTO words VALUES ('hello')")
    answer = ask("sqlite_change", "poll", config={"db_path": str(path), "query": query, "event_type": "e"}).answer
    assert answer["result"] == "first result: 1 rows, 0 events"


def test_a_query_cannot_change_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE t (a)")
    before = path.read_bytes()
    query = "UPDATE sqlite_master SET sql = 'x' RETURNING name"
    said = ask("sqlite_change", "poll", config={"db_path": str(path), "query": query, "event_type": "e"})
    assert (said.answer["status"], path.read_bytes()) == ("error", before)
