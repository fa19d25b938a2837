"""echo in a service, and with unusual payloads."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Home
from tests.plugins.bundled import run_plugin
from tests.plugins.plugin_service import Start, events_of, service_with_aliases, start_with_plugin


def test_echo_returns_the_message_and_stores_its_state(home: Home, start: Start) -> None:
    service = start_with_plugin(home, start, "echo", {"message": "Grüße"})

    polled, handled = service.run("echo"), service.run("echo", "handle", {"message": "m", "n": 2**70})

    assert (polled["result"]["result"], polled["result"]["logs"][0]["message"]) == (
        "echo: Grüße",
        f"echoed job {polled['job_id']}",
    )
    assert events_of(handled) == [("echo.handle", {"message": "m", "n": 2**70, "command": "handle"})]
    ((state,),) = [row.values() for row in home.rows("SELECT state FROM plugin_state")]
    assert list(json.loads(state)) == ["last_run"]
    assert service.run("echo", "health")["status"] == "succeeded"


def test_the_mode_decides_how_echo_fails(tmp_path: Path) -> None:
    """A retryable failure is dead after its only attempt; an invalid mode fails without retry."""
    modes = {mode: {"config": {"mode": mode}} for mode in ("error", "protocol_error", "loud")}
    with service_with_aliases(tmp_path, "echo", modes) as service:
        ends = {mode: service.run(mode)["status"] for mode in modes}
    assert ends == {"error": "dead", "protocol_error": "dead", "loud": "failed"}


@pytest.mark.parametrize(
    "payload",
    [
        {"command": "mine", "message": "m"},
        {"mess\\age": '"', "a.b": {"message": 1}, "": []},
        {"message": "line\nbreak\n\n", "x": '\\\\"\\'},
        {"x": "$(id) `id` ${HOME} %s \\n *", "message": "-n"},
        {f"key {number}": [number, {"deep": "x" * 50}] for number in range(2_000)},
    ],
    ids=["own names", "odd keys", "escapes", "shell signs", "large"],
)
def test_echo_emits_any_payload_unchanged(payload: dict[str, Any]) -> None:
    """Only `message` and `command` are added."""
    (event,) = run_plugin("echo", "poll", payload=payload).response["events"]
    message = payload.get("message", "hello from echo")
    assert event["payload"] == {**payload, "message": message, "command": "poll"}
