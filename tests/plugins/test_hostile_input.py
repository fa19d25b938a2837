"""Hostile events, pages and files do not stop or mislead a plugin."""

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

from tests.plugins.bundled import PLUGINS, run_plugin, run_raw
from tests.plugins.local_http import ReceivedRequest, Reply, start_http_server

LOCAL = {"allowed_networks": ["127.0.0.0/8"]}
PYTHON = sorted(path.parent.name for path in PLUGINS.glob("*/run.py"))


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


@pytest.mark.parametrize("name", PYTHON)
def test_a_plugin_finds_its_modules_in_isolated_mode(name: str) -> None:
    request = {"protocol": 2, "job_id": "j", "command": "none"}
    response = run_raw(name, json.dumps(request).encode(), options=("-I", "-S")).response
    assert "unknown command 'none'" in response["error"]


@pytest.mark.parametrize("name", PYTHON)
def test_a_plugin_uses_the_syntax_of_python_3_9(name: str) -> None:
    import ast

    for path in (PLUGINS / name).glob("*.py"):
        ast.parse(path.read_text(), feature_version=(3, 9))


# fetch


def sent_requests(headers: dict[str, str], /, **config: Any) -> tuple[dict[str, Any], list[ReceivedRequest]]:
    with start_http_server() as server:
        server.pages["/"] = Reply(b"{}")
        payload = {"url": server.url(), "headers": headers}
        return run_plugin("fetch", "handle", config={**LOCAL, **config}, payload=payload).response, server.requests


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
def test_an_ambiguous_header_is_rejected(headers: dict[str, str]) -> None:
    """A name is a token, and a value is one line."""
    response, request = sent_requests(headers)

    assert (response["status"], response["retry"], request) == ("error", False, [])
    assert "header" in response["error"]


def test_an_event_cannot_replace_a_configured_header() -> None:
    """In any case of letters."""
    _, (request,) = sent_requests(
        {"X-Role": "a", "x-role": "admin"}, headers={"X-Role": "reader"}, allowed_hosts=["127.0.0.1"]
    )
    assert request.headers["x-role"] == "reader"


def test_a_redirected_body_keeps_its_content_type() -> None:
    """307 to another origin sends the body without secrets."""
    with start_http_server() as server:
        server.pages["/"] = Reply(b"{}")
        server.pages["/old"] = Reply(status=307, headers={"Location": f"http://localhost:{server.port}/"})
        payload = {"url": server.url("/old"), "method": "POST", "body": {"a": 1}, "headers": {"Authorization": "s"}}
        run_plugin("fetch", "handle", config=LOCAL, payload=payload)
        request = server.requests[-1]

    assert (request.body, request.headers["content-type"], "authorization" in request.headers) == (
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
def test_metadata_services_are_not_public(address: str, is_public: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In every notation of the address. Nothing is sent."""
    monkeypatch.syspath_prepend(PLUGINS / "lib" / "python")
    guard: Any = importlib.import_module("ductile_guard")
    assert guard.Guard().allows(address) is is_public


# file_handler


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("old")
    (tmp_path / "key").chmod(0o600)
    config = {"allowed_write_paths": [str(tmp_path)]}
    run_plugin("file_handler", "handle", config=config, payload={"action": "write", "path": "key", "content": "new"})

    assert ((tmp_path / "key").read_text(), (tmp_path / "key").stat().st_mode & 0o777) == ("new", 0o600)


@pytest.mark.parametrize("path", ["a" * 300, "a\ud800b", "b/" * 600], ids=lambda path: ascii(path)[:9])
def test_an_invalid_path_is_final(tmp_path: Path, path: str) -> None:
    config = {"allowed_write_paths": [str(tmp_path)]}
    response = run_plugin(
        "file_handler", "handle", config=config, payload={"action": "write", "path": path, "content": ""}
    ).response
    assert (response["status"], response["retry"]) == ("error", False)


@pytest.mark.parametrize("encoding", ["utf-8", "base64"])
def test_a_file_that_is_too_large_for_a_response_is_final(tmp_path: Path, encoding: str) -> None:
    """Regardless of max_bytes."""
    (tmp_path / "big").write_bytes(b"\1" * 8_000_000)
    config = {"allowed_read_paths": [str(tmp_path)], "max_bytes": 100_000_000}
    payload = {"action": "read", "path": "big", "encoding": encoding}
    response = run_plugin("file_handler", "handle", config=config, payload=payload).response

    assert (response["retry"], response["events"]) == (False, [])
    assert "max_bytes" in response["error"]


# sys_exec and notify: programs


@pytest.mark.parametrize(
    "payload", [{f"k{number}": "v" for number in range(100_000)}, {"k" * 200_000: "v"}], ids=["many keys", "a long key"]
)
def test_a_payload_that_is_too_large_for_the_environment_is_on_stdin(payload: dict[str, str]) -> None:
    response = run_plugin("sys_exec", "handle", config={"command": ["wc", "-c"]}, payload=payload).response

    assert response["status"] == "ok"
    assert int(response["events"][0]["payload"]["stdout"]) == len(json.dumps(payload)) + 1
    assert 0 < len(response["logs"]) <= 21


def test_sigterm_at_any_time_leaves_no_process(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\necho $$ > {tmp_path}/number\nkill -TERM "$PPID"\nexec sleep 600\n')
    program.chmod(0o700)
    request = {"protocol": 2, "job_id": "j", "command": "poll", "config": {"command": [str(program)]}}
    # Delay after fork, to widen the race window.
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


def test_a_long_message_is_complete_on_stdin() -> None:
    """DUCTILE_TEXT is truncated."""
    config = {"channel": "command", "command": ["sh", "-c", "wc -c >&2"], "max_chars": 200_000}
    done = run_plugin("notify", "handle", config=config, payload={"text": "é" * 150_000})
    assert (done.response["status"], done.stderr.strip()) == ("ok", "300000")


@pytest.mark.parametrize(
    "wrong",
    [{"to": ["a@example.com, b@example.com"]}, {"to": [" "]}, {"to": ["<>"]}, {"to": ["a@"]}, {"from": "me"}],
    ids=str,
)
def test_an_invalid_mail_address_is_an_invalid_configuration(wrong: dict[str, Any]) -> None:
    """No server is contacted."""
    config = {"channel": "smtp", "host": "127.0.0.1", "port": 9, "security": "none", "from": "d@example.com"}
    finished = run_plugin(
        "notify", "handle", config={**config, "to": ["a@example.com"], **wrong}, payload={"text": "x"}
    )

    assert (finished.code, finished.response["error"]) == (
        78,
        "from and each entry of to must be a single mail address",
    )


# switch


@pytest.mark.parametrize(("regex", "text"), [("(a+)+$", "a" * 40 + "b"), (r"\s*\n", " " * 300_000)])
def test_a_slow_regex_fails_after_its_time_limit(regex: str, text: str) -> None:
    began = time.monotonic()
    config = {"field": "t", "checks": [{"regex": regex, "emit": "x.y"}]}
    response = run_plugin("switch", "handle", config=config, payload={"t": text}).response

    assert (response["status"], response["retry"]) == ("error", False)
    assert "took longer than 2 s" in response["error"]
    assert time.monotonic() - began < 30


# Nested payloads


def test_a_payload_with_too_many_levels_is_final() -> None:
    """61 levels fit in a response of 64."""
    config = {"field": "a", "checks": [{"default": True, "emit": "x.y"}]}
    fits, deep = (run_plugin("switch", "handle", config=config, payload=nested(levels)).response for levels in (61, 62))

    assert (fits["status"], deep["status"], deep["retry"], deep["events"]) == ("ok", "error", False, [])
    assert "61 levels" in deep["error"]


@pytest.mark.parametrize(("levels", "has_body"), [(60, True), (61, False)])
def test_a_delivery_with_too_many_levels_is_emitted_without_its_body(levels: int, has_body: bool) -> None:
    event = {"type": "webhook.received", "payload": nested(levels), "headers": {"x-github-event": "push"}}
    response = run_plugin("github_events", "handle", event=event).response

    assert ("body" in response["events"][0]["payload"], bool(response["logs"])) == (has_body, not has_body)


# sqlite_change


@pytest.mark.parametrize(
    "query",
    ["SELECT value FROM json_each('[1]')", "SELECT * FROM message WHERE message MATCH 'hello'"],
    ids=["json", "fts"],
)
def test_a_query_can_read_virtual_tables(tmp_path: Path, query: str) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE VIRTUAL TABLE message USING fts5(word)")
        database.execute("INSERT INTO message VALUES ('hello')")
    response = run_plugin(
        "sqlite_change", "poll", config={"db_path": str(path), "query": query, "event_type": "e"}
    ).response
    assert response["result"] == "first result: 1 rows, 0 events"


def test_a_query_cannot_change_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("CREATE TABLE t (a)")
    before = path.read_bytes()
    query = "UPDATE sqlite_master SET sql = 'x' RETURNING name"
    finished = run_plugin("sqlite_change", "poll", config={"db_path": str(path), "query": query, "event_type": "e"})
    assert (finished.response["status"], path.read_bytes()) == ("error", before)
