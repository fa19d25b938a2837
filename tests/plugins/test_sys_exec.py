"""sys_exec runs the configured command within its limits and leaves no process."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.service import Home
from tests.plugins.bundled import PLUGINS, PluginRun, run_plugin
from tests.plugins.plugin_service import Start, events_of, start_with_plugin


def execute(command: Any, payload: Mapping[str, Any] | None = None, **config: Any) -> PluginRun:
    return run_plugin("sys_exec", "handle", payload=payload, config={"command": command, **config})


def event_payload(finished: PluginRun) -> dict[str, Any]:
    assert finished.response["status"] == "ok", finished
    ((payload,),) = [[event["payload"] for event in finished.response["events"]]]
    return dict(payload)


def test_the_output_is_emitted_and_the_exit_code_decides(home: Home, start: Start) -> None:
    service = start_with_plugin(home, start, "sys_exec", {"command": ["printenv", "DUCTILE_PAYLOAD_CITY"]})

    ((kind, payload),) = events_of(service.run("sys_exec", "handle", {"city": "Zürich"}))
    failed = service.run("sys_exec", "poll", {})

    assert (kind, payload["exit_code"], payload["stdout"]) == ("sys_exec.completed", 0, "Zürich\n")
    assert failed["status"] != "succeeded"


def test_a_timed_out_job_leaves_no_process(home: Home, start: Start, tmp_path: Path) -> None:
    """Background processes are killed too."""
    note = tmp_path / "pids"
    script = f"sleep 300 & echo $! > {note}.part; echo $$ >> {note}.part; mv {note}.part {note}; wait"
    config = {"command": script, "shell": True, "timeout_seconds": 300}
    service = start_with_plugin(home, start, "sys_exec", config, timeouts={"poll": "3s"})
    assert service.run("sys_exec")["status"] != "succeeded"
    assert [pid for pid in note.read_text().split() if is_alive(int(pid))] == []


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_text_is_split_without_a_shell(tmp_path: Path) -> None:
    """Shell characters are rejected unless `shell` is true."""
    assert event_payload(execute(["printf", "%s|", "a b", "$HOME", ";"]))["stdout"] == "a b|$HOME|;|"
    assert event_payload(execute("printf '%s|' 'a b' c"))["stdout"] == "a b|c|"
    assert execute(f"echo x > {tmp_path}/f").code == 78
    assert "shell: true" in execute("echo $HOME").response["error"]
    assert event_payload(execute("printf '%s' \"$((2 + 3))\"", shell=True))["stdout"] == "5"
    assert execute(["echo"], shell=True).code == 78


def test_a_payload_cannot_become_code_or_replace_variables() -> None:
    payload = {"x": "$(touch /tmp/never); `id`", "ld preload": "evil.so", "n": 5, "o": {"a": [1]}, "nul": "a\0b"}
    finished = execute(
        ["sh", "-c", 'echo "$DUCTILE_PAYLOAD_X"; echo "$DUCTILE_PAYLOAD_LD_PRELOAD$LD_PRELOAD"; cat'], payload
    )
    lines = event_payload(finished)["stdout"].splitlines()
    assert lines[:2] == [payload["x"], "evil.so"]
    assert json.loads(lines[2]) == payload
    assert "payload.nul is only on stdin" in finished.response["logs"][0]["message"]


def test_a_large_payload_is_only_on_stdin() -> None:
    """A command that does not read stdin still succeeds."""
    finished = execute(["sh", "-c", "wc -c"], {"big": "x" * 3_000_000, "small": "y"})
    assert int(event_payload(finished)["stdout"]) > 3_000_000
    assert event_payload(execute(["true"], {"big": "x" * 3_000_000}))["exit_code"] == 0


def test_the_environment_has_configured_and_job_variables() -> None:
    shown = event_payload(execute(["env"], {"a-b": 1}, env={"OWN": "v", "PORT": 80}))["stdout"].splitlines()
    assert {"OWN=v", "PORT=80", "DUCTILE_JOB_ID=j-1", "DUCTILE_COMMAND=handle", "DUCTILE_EVENT_TYPE=test.event"} <= set(
        shown
    )
    assert "DUCTILE_PAYLOAD_A_B=1" in shown


def test_output_is_truncated_and_marked() -> None:
    """The rest is read, so that the command can finish."""
    payload = event_payload(
        execute(["sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x; echo e >&2"], stdout_max_bytes=10)
    )
    assert (payload["stdout"], payload["stdout_truncated"]) == ("x" * 10, True)
    assert (payload["stderr"], payload["stderr_truncated"]) == ("e\n", False)
    assert event_payload(execute(["printf", "\\377"]))["stdout"] == "\ufffd"
    assert "stdout" not in event_payload(execute(["echo", "x"], include_output_in_event=False))


@pytest.mark.parametrize(
    ("code", "config", "status", "retry", "events"),
    [
        (0, {}, "ok", None, 1),
        (3, {}, "error", True, 0),
        (3, {"success_exit_codes": [0, 3]}, "ok", None, 1),
        (3, {"retry_on_exit_codes": [4]}, "error", False, 0),
        (4, {"retry_on_exit_codes": [4]}, "error", True, 0),
        (4, {"retry_on_exit_codes": []}, "error", False, 0),
        (3, {"emit_event_on_exit_codes": [3]}, "error", True, 1),
        (0, {"emit_event_on_exit_codes": [3]}, "ok", None, 0),
        (0, {"emit_event": False}, "ok", None, 0),
    ],
)
def test_exit_codes_decide_on_success_retry_and_event(
    code: int, config: dict[str, Any], status: str, retry: bool | None, events: int
) -> None:
    response = execute(["sh", "-c", f"echo reason >&2; exit {code}"], **config).response
    assert (response["status"], response.get("retry"), len(response["events"])) == (status, retry, events)
    if status == "error":
        assert response["error"].endswith("reason")


def test_the_error_names_the_signal_that_killed_the_command() -> None:
    response = execute(["sh", "-c", "kill -9 $$"], emit_event_on_exit_codes=[137]).response
    assert response["events"][0]["payload"]["signal"] == "SIGKILL"
    assert "SIGKILL" in response["error"]


def test_a_timed_out_command_is_killed_with_its_children(tmp_path: Path) -> None:
    """Also if it ignores SIGTERM."""
    note = tmp_path / "pid"
    finished = execute(f"trap '' TERM; sleep 300 & echo $! > {note}; wait; wait", shell=True, timeout_seconds=0.5)
    assert (finished.response["status"], finished.response["retry"]) == ("error", True)
    assert "timed out after 0.5 s" in finished.response["error"]
    assert not is_alive(int(note.read_text()))


def test_a_background_process_does_not_delay_the_response(tmp_path: Path) -> None:
    """It keeps stdout open and is killed after a second."""
    note = tmp_path / "pid"
    assert event_payload(execute(f"sleep 300 & echo $! > {note}", shell=True))["exit_code"] == 0
    assert not is_alive(int(note.read_text()))


def test_sigterm_kills_the_command_before_the_plugin_exits(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    config = {"command": f"echo $$ > {note}.part; mv {note}.part {note}; sleep 300", "shell": True}
    request = {"protocol": 2, "job_id": "j", "command": "poll", "config": config}
    with subprocess.Popen([PLUGINS / "sys_exec" / "run.py"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write(json.dumps(request).encode())
        process.stdin.close()
        give_up_at = time.monotonic() + 30
        while not note.exists():
            assert time.monotonic() < give_up_at
            os.sched_yield()
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
        assert process.stdout
        assert process.stdout.read() == b""
    assert not is_alive(int(note.read_text()))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "command is missing"),
        ({"command": ""}, "command must not be blank"),
        ({"command": []}, "list of words"),
        ({"command": [["a"]]}, "list of words"),
        ({"command": "echo 'open"}, "cannot be split"),
        ({"command": ["true"], "timeout": 5}, "did you mean timeout_seconds"),
        ({"command": ["true"], "timeout_seconds": "5"}, "must be a number"),
        ({"command": ["true"], "success_exit_codes": [256]}, "0 to 255"),
        ({"command": ["true"], "env": {"A": [1]}}, "env.A must be a string or a number"),
        ({"command": ["/no/such/program"]}, "cannot be started"),
        ({"command": ["true"], "working_dir": "/no/such/folder"}, "cannot be started"),
    ],
)
def test_an_invalid_configuration_is_final_with_a_reason(config: Mapping[str, Any], message: str) -> None:
    finished = run_plugin("sys_exec", "poll", config=config)
    assert (finished.code, finished.response["retry"]) == (78, False)
    assert message in finished.response["error"]


def test_health_checks_the_program_without_running_it(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    assert run_plugin("sys_exec", "health", config={"command": ["touch", str(ran)]}).response["status"] == "ok"
    assert run_plugin("sys_exec", "health", config={"command": ["no-such-program"]}).response["status"] == "error"
    assert not ran.exists()
