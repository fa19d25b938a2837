"""sys_exec: the configured command runs as told, within its limits, and nothing of it stays behind."""

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
from tests.plugins.bundled import PLUGINS, Said, ask
from tests.plugins.serving import Start, events_of, serve


def execute(command: Any, payload: Mapping[str, Any] | None = None, **config: Any) -> Said:
    return ask("sys_exec", "handle", payload=payload, config={"command": command, **config})


def told(said: Said) -> dict[str, Any]:
    assert said.answer["status"] == "ok", said
    ((payload,),) = [[event["payload"] for event in said.answer["events"]]]
    return dict(payload)


def test_a_command_runs_through_the_service(home: Home, start: Start) -> None:
    """Its output is the event, its exit code decides."""
    service = serve(home, start, "sys_exec", {"command": ["printenv", "DUCTILE_PAYLOAD_CITY"]})

    ((kind, payload),) = events_of(service.run("sys_exec", "handle", {"city": "Zürich"}))
    failed = service.run("sys_exec", "poll", {})

    assert (kind, payload["exit_code"], payload["stdout"]) == ("sys_exec.completed", 0, "Zürich\n")
    assert failed["status"] != "succeeded"


def test_a_job_that_is_ended_leaves_no_process(home: Home, start: Start, tmp_path: Path) -> None:
    """At the deadline of the job the whole family of the command ends, also what went into the background."""
    note = tmp_path / "pids"
    script = f"sleep 300 & echo $! > {note}.part; echo $$ >> {note}.part; mv {note}.part {note}; wait"
    config = {"command": script, "shell": True, "timeout_seconds": 300}
    service = serve(home, start, "sys_exec", config, timeouts={"poll": "3s"})
    assert service.run("sys_exec")["status"] != "succeeded"
    assert [pid for pid in note.read_text().split() if is_alive(int(pid))] == []


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_words_are_words(tmp_path: Path) -> None:
    """A list is run as it is, text is split without a shell, and shell signs are refused unless the shell is wanted."""
    assert told(execute(["printf", "%s|", "a b", "$HOME", ";"]))["stdout"] == "a b|$HOME|;|"
    assert told(execute("printf '%s|' 'a b' c"))["stdout"] == "a b|c|"
    assert execute(f"echo x > {tmp_path}/f").code == 78
    assert "shell: true" in execute("echo $HOME").answer["error"]
    assert told(execute("printf '%s' \"$((2 + 3))\"", shell=True))["stdout"] == "5"
    assert execute(["echo"], shell=True).code == 78


def test_a_payload_cannot_become_code_or_another_variable() -> None:
    """Values are values, names are prefixed, and the whole payload is on stdin."""
    payload = {"x": "$(touch /tmp/never); `id`", "ld preload": "evil.so", "n": 5, "o": {"a": [1]}, "nul": "a\0b"}
    said = execute(
        ["sh", "-c", 'echo "$DUCTILE_PAYLOAD_X"; echo "$DUCTILE_PAYLOAD_LD_PRELOAD$LD_PRELOAD"; cat'], payload
    )
    lines = told(said)["stdout"].splitlines()
    assert lines[:2] == [payload["x"], "evil.so"]
    assert json.loads(lines[2]) == payload
    assert "payload.nul is only on stdin" in said.answer["logs"][0]["message"]


def test_a_large_payload_is_on_stdin_alone() -> None:
    """The environment of a process has limits; a command that does not read is not disturbed."""
    said = execute(["sh", "-c", "wc -c"], {"big": "x" * 3_000_000, "small": "y"})
    assert int(told(said)["stdout"]) > 3_000_000
    assert told(execute(["true"], {"big": "x" * 3_000_000}))["exit_code"] == 0


def test_the_environment_says_what_it_is_about() -> None:
    """Ours, the operator's, the job's."""
    shown = told(execute(["env"], {"a-b": 1}, env={"OWN": "v", "PORT": 80}))["stdout"].splitlines()
    assert {"OWN=v", "PORT=80", "DUCTILE_JOB_ID=j-1", "DUCTILE_COMMAND=handle", "DUCTILE_EVENT_TYPE=test.event"} <= set(
        shown
    )
    assert "DUCTILE_PAYLOAD_A_B=1" in shown


def test_output_is_capped_and_says_so() -> None:
    """The first bytes are kept; the rest is read, so that the command can finish."""
    payload = told(execute(["sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x; echo e >&2"], stdout_max_bytes=10))
    assert (payload["stdout"], payload["stdout_truncated"]) == ("x" * 10, True)
    assert (payload["stderr"], payload["stderr_truncated"]) == ("e\n", False)
    assert told(execute(["printf", "\\377"]))["stdout"] == "\ufffd"
    assert "stdout" not in told(execute(["echo", "x"], include_output_in_event=False))


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
def test_exit_codes_decide(code: int, config: dict[str, Any], status: str, retry: bool | None, events: int) -> None:
    """What is success, what is tried again, what is told."""
    answer = execute(["sh", "-c", f"echo reason >&2; exit {code}"], **config).answer
    assert (answer["status"], answer.get("retry"), len(answer["events"])) == (status, retry, events)
    if status == "error":
        assert answer["error"].endswith("reason")


def test_a_command_that_dies_by_a_signal_says_which() -> None:
    answer = execute(["sh", "-c", "kill -9 $$"], emit_event_on_exit_codes=[137]).answer
    assert answer["events"][0]["payload"]["signal"] == "SIGKILL"
    assert "SIGKILL" in answer["error"]


def test_a_command_that_takes_too_long_is_ended_with_its_family(tmp_path: Path) -> None:
    """Also when it ignores SIGTERM."""
    note = tmp_path / "pid"
    said = execute(f"trap '' TERM; sleep 300 & echo $! > {note}; wait; wait", shell=True, timeout_seconds=0.5)
    assert (said.answer["status"], said.answer["retry"]) == ("error", True)
    assert "timed out after 0.5 s" in said.answer["error"]
    assert not is_alive(int(note.read_text()))


def test_a_background_process_cannot_hold_the_answer_back(tmp_path: Path) -> None:
    """It holds stdout open; a second later it is ended and the answer is given."""
    note = tmp_path / "pid"
    assert told(execute(f"sleep 300 & echo $! > {note}", shell=True))["exit_code"] == 0
    assert not is_alive(int(note.read_text()))


def test_sigterm_ends_the_command_first(tmp_path: Path) -> None:
    """When Ductile ends the plugin, nothing of its command survives."""
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
    ("config", "words"),
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
def test_a_wrong_configuration_is_final_and_says_what_is_wrong(config: Mapping[str, Any], words: str) -> None:
    said = ask("sys_exec", "poll", config=config)
    assert (said.code, said.answer["retry"]) == (78, False)
    assert words in said.answer["error"]


def test_health_finds_the_program_without_running_it(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    assert ask("sys_exec", "health", config={"command": ["touch", str(ran)]}).answer["status"] == "ok"
    assert ask("sys_exec", "health", config={"command": ["no-such-program"]}).answer["status"] == "error"
    assert not ran.exists()
