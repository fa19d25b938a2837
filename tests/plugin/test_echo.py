"""The bundled `echo` plugin, run as a process."""

import os
import signal
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ductile.plugin.manifest import CommandType
from ductile.plugin.protocol import InvalidResponse, PluginResponse, RequestEvent, decode_response, encode_request
from ductile.plugin.registry import Plugin, discover

pytestmark = pytest.mark.process

NOW = datetime(2026, 2, 8, tzinfo=UTC)


@pytest.fixture(scope="module")
def echo() -> Plugin:
    return discover([Path(__file__).parents[2] / "plugins"]).plugins["echo"]


def run_echo(echo: Plugin, command: str = "poll", **fields: Any) -> PluginResponse | InvalidResponse:
    request = encode_request(job_id="j", command=command, deadline_at=NOW, attempt=1, max_attempts=4, **fields)
    # The most limited locale: the output must not depend on it.
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONUTF8": "0"}
    run = subprocess.run([echo.entrypoint], input=request, capture_output=True, check=True, env=environment)
    assert run.stderr == b""
    return decode_response(run.stdout)


def test_echo_declares_two_write_commands_and_a_read_command(echo: Plugin) -> None:
    assert {name: command.type for name, command in echo.manifest.commands.items()} == {
        "poll": CommandType.WRITE,
        "handle": CommandType.WRITE,
        "health": CommandType.READ,
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"payload": {"message": "from the payload"}, "config": {"message": "c"}}, "from the payload"),
        ({"config": {"message": "from the configuration"}}, "from the configuration"),
        ({}, "hello from echo"),
    ],
)
def test_echo_prefers_the_message_of_the_payload(echo: Plugin, fields: dict[str, Any], message: str) -> None:
    """Then that of the configuration, then its default."""
    response = run_echo(echo, **fields)
    assert isinstance(response, PluginResponse)
    assert (response.ok, response.result) == (True, f"echo: {message}")
    assert [(event.type, event.payload["message"]) for event in response.events] == [("echo.poll", message)]
    assert response.state_updates is not None
    assert list(response.state_updates) == ["last_run"]


@pytest.mark.parametrize("message", ["", "ü\u2028\0\x1b[31m\"\\'", 10**30, None, {"deep": [1.5, True]}])
def test_echo_returns_any_message_unchanged(echo: Plugin, message: Any) -> None:
    """Quotes, control characters and numbers."""
    response = run_echo(echo, payload={"message": message, "other": message})
    assert isinstance(response, PluginResponse)
    assert response.events[0].payload == {"message": message, "other": message, "command": "poll"}


def test_echo_forwards_the_payload_of_an_event(echo: Plugin) -> None:
    event = RequestEvent(type="a", event_id="e", source="s", timestamp=NOW, payload={"x": 1, "message": "m"})
    response = run_echo(echo, "handle", event=event, payload={"ignored": True})
    assert isinstance(response, PluginResponse)
    assert (response.events[0].type, response.events[0].payload) == (
        "echo.handle",
        {"x": 1, "message": "m", "command": "handle"},
    )


def test_echo_fails_on_request(echo: Plugin) -> None:
    """`mode: error` may be retried, an unknown mode may not."""
    failed, wrong = run_echo(echo, config={"mode": "error"}), run_echo(echo, config={"mode": "loud"})
    assert isinstance(failed, PluginResponse)
    assert isinstance(wrong, PluginResponse)
    assert [(failed.ok, failed.retry), (wrong.ok, wrong.retry)] == [(False, True), (False, False)]


def test_echo_breaks_the_protocol_on_request(echo: Plugin) -> None:
    """`mode: protocol_error`."""
    assert isinstance(run_echo(echo, config={"mode": "protocol_error"}), InvalidResponse)


def test_echo_hangs_on_request_until_it_is_terminated(echo: Plugin) -> None:
    """`mode: hang`."""
    request = encode_request(
        job_id="j", command="poll", deadline_at=NOW, attempt=1, max_attempts=1, config={"mode": "hang"}
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([echo.entrypoint], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin
        assert process.stderr
        process.stdin.write(request)
        process.stdin.close()
        assert process.stderr.readline() == b"configured to hang (mode: hang)\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM
        assert process.stdout
        assert process.stdout.read() == b""


def test_echo_is_healthy_in_every_mode(echo: Plugin) -> None:
    """Health checks the configuration, not whether jobs succeed."""
    for mode in ("ok", "error", "hang", "protocol_error"):
        response = run_echo(echo, "health", config={"mode": mode})
        assert isinstance(response, PluginResponse)
        assert (response.ok, response.events, response.state_updates) == (True, (), None)


def test_echo_refuses_another_protocol(echo: Plugin) -> None:
    """Exit code 78 prevents retries."""
    run = subprocess.run([echo.entrypoint], input=b'{"protocol": 3}', capture_output=True, check=False)
    assert (run.returncode, run.stdout, b"protocol 2" in run.stderr) == (78, b"", True)
