"""The helper libraries of plugins: copies are identical, and the functions behave as documented."""

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from tests.e2e.service import Home
from tests.plugins.bundled import PLUGINS
from tests.plugins.local_http import HttpServer, Reply, start_http_server
from tests.plugins.plugin_service import Start

LIB = PLUGINS / "lib" / "python"
COPIES = [path for original in LIB.glob("*.py") for path in PLUGINS.glob(f"*/{original.name}")]


@pytest.mark.parametrize("copy", COPIES, ids=lambda path: str(path.relative_to(PLUGINS)))
def test_every_copy_equals_the_library_file(copy: Path) -> None:
    assert copy.read_bytes() == (LIB / copy.name).read_bytes()


def test_the_python_helper_stays_short() -> None:
    assert len((LIB / "ductile_plugin.py").read_text().splitlines()) < 170


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("fetch", {}),
        ("github_events", {}),
        ("http_watch", {"watches": [{"id": "a", "url": "http://x/"}]}),
        ("notify", {"channel": "command", "command": ["true"]}),
    ],
)
def test_a_plugin_does_not_import_slow_modules_at_start(name: str, config: dict[str, Any]) -> None:
    """Every job starts a process, so the import time counts."""
    request = {"protocol": 2, "job_id": "j", "command": "health", "config": config}
    command = [sys.executable, "-S", "-X", "importtime", str(PLUGINS / name / "run.py")]
    done = subprocess.run(command, input=json.dumps(request).encode(), capture_output=True, check=False, timeout=60)
    imported = {line.rpartition(b"|")[2].strip().decode() for line in done.stderr.splitlines()}

    assert json.loads(done.stdout)["status"] == "ok"
    assert (
        imported & {"http.client", "ssl", "smtplib", "email", "subprocess", "html.parser", "typing", "datetime"}
        == set()
    )


# ductile_plugin

GREETER = """\
import os, sys
sys.path.insert(0, {lib!r})
from ductile_plugin import Failed, Final, Misconfigured, only_known, run, setting

def greet(job):
    print("noise on stdout")
    os.system("echo more noise")
    job.log("info", "greeting")
    job.emit("greeted", job.payload, dedupe_key="g")
    job.state["count"] = job.state.get("count", 0) + 1
    return "hello " + setting(job.config, "name")

def same(job):
    return "nothing new"

def fail(job):
    job.state["lost"] = True
    job.emit("sorry", {{}})
    raise Failed("not now", retry_after=7)

def final(job):
    raise Final("never")

def crash(job):
    return 1 / 0

def odd(job):
    job.emit("odd", {{"half": "\\ud800", "e": "é"}})
    return "odd"

def left(job):
    return str(round(job.seconds_left()))

run(greet=greet, same=same, fail=fail, final=final, crash=crash, odd=odd, left=left)
"""


def run(request: Any, *options: str) -> "subprocess.CompletedProcess[bytes]":
    stdin = request if isinstance(request, bytes) else json.dumps({"protocol": 2, "job_id": "j", **request}).encode()
    command = [sys.executable, *options, "-c", GREETER.format(lib=str(LIB))]
    return subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=60)


def respond(**request: Any) -> dict[str, Any]:
    finished: dict[str, Any] = json.loads(run(request).stdout)
    return finished


def test_stdout_contains_only_the_response() -> None:
    """The output of print and of child processes goes to stderr."""
    request = {"command": "greet", "config": {"name": "you"}, "state": {"count": 1}, "payload": {"a": 1}}
    done = run(request, "-S", "-I")

    assert json.loads(done.stdout) == {
        "status": "ok",
        "result": "hello you",
        "state_updates": {"count": 2},
        "events": [{"type": "greeted", "payload": {"a": 1}, "dedupe_key": "g"}],
        "logs": [{"level": "info", "message": "greeting"}],
    }
    assert set(done.stderr.decode().splitlines()) == {"noise on stdout", "more noise"}
    assert done.returncode == 0


def test_the_payload_of_handle_is_the_payload_of_the_event() -> None:
    event = {"type": "t", "payload": {"b": 2}}

    assert respond(command="greet", config={"name": "x"}, payload=event, event=event)["events"][0]["payload"] == {
        "b": 2
    }


def test_an_unchanged_state_is_not_returned() -> None:
    """A plugin with facts stores none without changes."""
    assert "state_updates" not in respond(command="same", state={"a": 1})


def test_a_failure_returns_its_events_but_no_state() -> None:
    finished = respond(command="fail")

    assert (finished["status"], finished["error"], finished["retry"], finished["retry_after"]) == (
        "error",
        "not now",
        True,
        7,
    )
    assert [event["type"] for event in finished["events"]] == ["sorry"]
    assert "state_updates" not in finished


@pytest.mark.parametrize(
    ("command", "error", "retry"),
    [
        ("final", "never", False),
        ("nothing", "unknown command 'nothing'", False),
        ("crash", "ZeroDivisionError", None),
    ],
)
def test_every_error_is_a_response(command: str, error: str, retry: bool | None) -> None:
    """An unexpected exception too, with its traceback on stderr."""
    done = run({"command": command})
    finished = json.loads(done.stdout)

    assert error in finished["error"]
    assert finished.get("retry") is retry
    assert (b"Traceback" in done.stderr) is (command == "crash")


def test_a_lone_surrogate_is_returned_as_an_escape() -> None:
    assert b'"half": "\\ud800", "e": "\xc3\xa9"' in run({"command": "odd"}).stdout


def test_seconds_left_uses_the_deadline() -> None:
    """The default is one hour."""
    soon = time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(time.time() + 100))

    assert int(respond(command="left", deadline_at=soon)["result"]) in range(80, 102)
    assert respond(command="left")["result"] == "3600"


@pytest.mark.parametrize("stdin", [b"", b"{", b"[]", b"null", b"{}", b'{"protocol": 3}', b"\xff"])
def test_an_unsupported_protocol_exits_with_78(stdin: bytes) -> None:
    """The message is on stderr, and stdout is empty."""
    done = run(stdin)

    assert (done.returncode, done.stdout) == (78, b"")
    assert b"supports protocol 2" in done.stderr


# ductile_oauth


@pytest.fixture
def oauth(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(LIB))
    return importlib.import_module("ductile_oauth")


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with start_http_server() as running:
        yield running


def job_of(oauth: Any, server: HttpServer, state: dict[str, Any] | None = None, **config: Any) -> Any:
    config = {"token_url": server.url("/token"), "client_id": "me:1", "client_secret": "s&cret", **config}
    return oauth.Job({"config": config, "state": state or {}})


def token(**members: Any) -> Reply:
    return Reply(json.dumps({"access_token": "t-1", "token_type": "Bearer", "expires_in": 3600, **members}).encode())


def test_an_access_token_is_requested_once_and_stored(oauth: Any, server: HttpServer) -> None:
    """With client credentials, until a minute before it expires."""
    server.pages["/token"] = token()
    job = job_of(oauth, server, scope="read")
    first, second = oauth.access_token(job), oauth.access_token(job)

    assert (first, second, len(server.requests)) == ("t-1", "t-1", 1)
    assert parse_qs(server.requests[0].body.decode()) == {"grant_type": ["client_credentials"], "scope": ["read"]}
    assert server.requests[0].headers["authorization"] == "Basic bWUlM0ExOnMlMjZjcmV0"
    later = job_of(oauth, server, {"oauth": {**job.state["oauth"], "token_expiry": time.time() + 30}})
    assert (oauth.access_token(later), len(server.requests)) == ("t-1", 2)


def test_a_replaced_refresh_token_is_used_for_the_next_request(oauth: Any, server: HttpServer) -> None:
    """A new token in the configuration takes precedence."""
    server.pages["/token"] = token(refresh_token="r-2", expires_in="0")
    job = job_of(oauth, server, refresh_token="r-1", client_auth="body")
    oauth.access_token(job)
    oauth.access_token(job)
    anew = job_of(oauth, server, job.state, refresh_token="r-9", client_auth="body")
    oauth.access_token(anew)

    forms = [parse_qs(request.body.decode()) for request in server.requests]
    assert [form["refresh_token"] for form in forms] == [["r-1"], ["r-2"], ["r-9"]]
    assert forms[0]["client_secret"] == ["s&cret"]


def test_a_rejected_access_token_is_requested_again(oauth: Any, server: HttpServer) -> None:
    server.pages["/token"] = token()
    job = job_of(oauth, server)
    oauth.access_token(job)
    oauth.forget(job)
    oauth.access_token(job)

    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        (Reply(b'{"error": "invalid_grant"}', 400), "Final", "authorize the application again"),
        (Reply(b'{"error": "invalid_client"}', 401), "Misconfigured", "client_id or client_secret"),
        (Reply(b'{"error": "odd"}', 400), "Final", "rejected the request: odd"),
        (Reply(b"busy", 503), "Failed", "status 503"),
        (Reply(b"<html>", 200), "Failed", "did not return a bearer token"),
        (Reply(b'{"access_token": 7}', 200), "Failed", "did not return a bearer token"),
        (Reply(b'{"access_token": "t", "token_type": "mac"}', 200), "Failed", "did not return a bearer token"),
        (Reply(status=302, headers={"Location": "http://10.0.0.1/"}), "Final", "status 302"),
    ],
)
def test_token_errors_are_final_and_server_errors_are_retried(
    oauth: Any, server: HttpServer, reply: Reply, kind: str, message: str
) -> None:
    """The message contains no secret."""
    server.pages["/token"] = reply

    with pytest.raises(oauth.Failed, match=message) as caught:
        oauth.access_token(job_of(oauth, server))

    assert type(caught.value).__name__ == kind
    assert "s&cret" not in str(caught.value)


OAUTH_PLUGIN = """#!/usr/bin/env python3
import os, sys
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from ductile_oauth import access_token
from ductile_plugin import run
run(poll=lambda job: "token of %d characters" % len(access_token(job)))
"""


def test_an_access_token_is_stored_in_the_state(home: Home, start: Start, server: HttpServer) -> None:
    """Two jobs send one request to the token server."""
    server.pages["/token"] = token()
    home.plugin("api", OAUTH_PLUGIN)
    for name in ("ductile_plugin.py", "ductile_guard.py", "ductile_http.py", "ductile_oauth.py"):
        (home.path / "plugins" / "api" / name).write_bytes((LIB / name).read_bytes())
    config = {"token_url": server.url("/token"), "client_id": "me", "client_secret": "secret"}
    home.add(f"plugins: {{api: {{config: {json.dumps(config)}}}}}\n")
    service = start()

    results = [service.run("api")["result"]["result"] for _ in range(2)]

    assert results == ["token of 3 characters"] * 2
    assert len(server.requests) == 1
