"""echo in the whole service, and what a plugin in sh has to stand."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Home
from tests.plugins.bundled import ask
from tests.plugins.serving import Start, events_of, serve, serving_all


def test_echo_runs_through_the_service(home: Home, start: Start) -> None:
    """Payload, configuration and state as its README says."""
    service = serve(home, start, "echo", {"message": "Grüße"})

    polled, handled = service.run("echo"), service.run("echo", "handle", {"message": "m", "n": 2**70})

    assert (polled["result"]["result"], polled["result"]["logs"][0]["message"]) == (
        "echo: Grüße",
        f"echoed job {polled['job_id']}",
    )
    assert events_of(handled) == [("echo.handle", {"message": "m", "n": 2**70, "command": "handle"})]
    ((state,),) = [row.values() for row in home.rows("SELECT state FROM plugin_state")]
    assert list(json.loads(state)) == ["last_run"]
    assert service.run("echo", "health")["status"] == "succeeded"


def test_echo_fails_in_the_service_as_configured(tmp_path: Path) -> None:
    """What can be tried again has used up its one attempt; what cannot has failed."""
    modes = {mode: {"config": {"mode": mode}} for mode in ("error", "protocol_error", "loud")}
    with serving_all(tmp_path, "echo", modes) as service:
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
def test_echo_passes_any_payload_on_exactly(payload: dict[str, Any]) -> None:
    """Only `message` and `command` are its own."""
    (event,) = ask("echo", "poll", payload=payload).answer["events"]
    message = payload.get("message", "hello from echo")
    assert event["payload"] == {**payload, "message": message, "command": "poll"}
