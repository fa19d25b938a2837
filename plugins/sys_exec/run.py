#!/usr/bin/env python3
"""Run one configured command. See README.md."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from contextlib import suppress

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ductile_plugin import Failed, Final, Job, Misconfigured, only_known, run, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from typing import Any

KEYS = (
    *("command", "shell", "event_type", "timeout_seconds", "working_dir", "env"),
    *("retry_on_exit_codes", "success_exit_codes", "emit_event_on_exit_codes"),
    *("emit_event", "include_output_in_event", "stdout_max_bytes", "stderr_max_bytes"),
)
SHELL_CHARACTERS = re.compile(r"[|&;<>()$`*?\[\]#~\n]")
MAX_VARIABLE_BYTES = 100_000  # Linux limits a variable to 128 KiB
MAX_VARIABLES_BYTES = 1_000_000
MAX_WARNINGS = 20
GRACE_SECONDS = 2.0
STOP_SIGNALS = {signal.SIGTERM}


class Settings:
    """The configuration, validated."""

    def __init__(self, config: dict[str, Any]) -> None:
        only_known(config, KEYS)
        self.argv = argv_of(config)
        self.event_type = setting(config, "event_type", default="sys_exec.completed")
        self.timeout = setting(config, "timeout_seconds", float, 60.0, minimum=0.001)
        self.working_dir = setting(config, "working_dir", default=None)
        self.env = setting(config, "env", dict, {})
        for name, value in self.env.items():
            if not isinstance(value, (str, int, float)) or isinstance(value, bool) or "=" in name or not name:
                raise Misconfigured(f"env.{name} must be a string or a number")
        self.success = codes(config, "success_exit_codes") or {0}
        self.retryable = codes(config, "retry_on_exit_codes")
        self.reported = codes(config, "emit_event_on_exit_codes")
        self.emit_event = setting(config, "emit_event", bool, True)
        self.include_output = setting(config, "include_output_in_event", bool, True)
        self.caps = {
            "stdout": setting(config, "stdout_max_bytes", int, 16384),
            "stderr": setting(config, "stderr_max_bytes", int, 16384),
        }

    def environment(self, job: Job) -> dict[str, str]:
        """Return the environment of the command. The prefix keeps the payload from replacing other variables."""
        job_values = {
            "DUCTILE_JOB_ID": job.id,
            "DUCTILE_COMMAND": job.command,
            "DUCTILE_EVENT_TYPE": job.event.get("type", ""),
        }
        payload_values: dict[str, str] = {}
        remaining_bytes, warnings = MAX_VARIABLES_BYTES, []
        for key, value in job.payload.items():
            name = "DUCTILE_PAYLOAD_" + re.sub(r"[^A-Z0-9]", "_", key.upper())
            text = value if isinstance(value, str) else json.dumps(value)
            size = len(name) + len(text.encode("utf-8", "replace")) + 10  # plus the overhead of the system
            if name in payload_values:
                warnings.append(f"payload.{key[:100]} is not in the environment: {name[:100]} is already used")
            elif "\0" in text or size > min(remaining_bytes, MAX_VARIABLE_BYTES):
                warnings.append(f"payload.{key[:100]} is only on stdin: it is too long for a variable or contains NUL")
            else:
                payload_values[name] = text.encode("utf-8", "replace").decode()
                remaining_bytes -= size
        for line in warnings[:MAX_WARNINGS]:
            job.log("warn", line)
        if len(warnings) > MAX_WARNINGS:
            job.log("warn", f"{len(warnings) - MAX_WARNINGS} more warnings of this kind")
        return {**os.environ, **{name: str(value) for name, value in self.env.items()}, **job_values, **payload_values}


def execute(job: Job) -> str:
    settings = Settings(job.config)
    started_at = time.monotonic()
    left = job.seconds_left()
    timeout = min(settings.timeout, max(left / 2, left - GRACE_SECONDS - 1))
    # Block SIGTERM until its handler is installed.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    process = start(settings, job)
    signal.signal(signal.SIGTERM, lambda *_: stop(process))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    code, output, is_timed_out = communicate(process, json.dumps(job.payload).encode() + b"\n", timeout, settings.caps)
    if is_timed_out:
        raise Failed(f"the command timed out after {timeout:g} s{last_line(output)}")
    result: dict[str, Any] = {"exit_code": code, "duration_ms": round((time.monotonic() - started_at) * 1000)}
    if code < 0:
        result.update(exit_code=128 - code, signal=signal.Signals(-code).name)
        code = 128 - code
    if settings.emit_event and code in (settings.reported or settings.success):
        job.emit(settings.event_type, {**result, **(output if settings.include_output else {})})
    if code in settings.success:
        return f"the command exited with {code} after {result['duration_ms']} ms"
    kind = Failed if settings.retryable is None or code in settings.retryable else Final
    raise kind(f"the command exited with {result.get('signal', code)}{last_line(output)}")


def start(settings: Settings, job: Job) -> subprocess.Popen[bytes]:
    import subprocess

    pipe = subprocess.PIPE
    try:
        # Its own session, so that the command and its children can be killed together.
        return subprocess.Popen(
            settings.argv,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=settings.working_dir,
            env=settings.environment(job),
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS),
        )
    except (OSError, ValueError) as error:
        raise Misconfigured(f"{settings.argv[0]} cannot be started: {error}") from error


def communicate(
    process: subprocess.Popen[bytes], text: bytes, timeout: float, caps: dict[str, int]
) -> tuple[int, dict[str, Any], bool]:
    """Write stdin and read the output. Return the exit code, the capped output, and True if the command timed out."""
    import threading

    heads = {"stdout": bytearray(), "stderr": bytearray()}
    totals = dict.fromkeys(heads, 0)

    def feed() -> None:
        with suppress(OSError), process.stdin:  # type: ignore[union-attr] # it may close stdin
            process.stdin.write(text)  # type: ignore[union-attr]

    def drain(name: str) -> None:
        stream = getattr(process, name)
        while chunk := os.read(stream.fileno(), 65536):
            heads[name] += chunk[: max(0, caps[name] - totals[name])]
            totals[name] += len(chunk)

    threads = [threading.Thread(target=drain, args=(name,), daemon=True) for name in heads]
    threading.Thread(target=feed, daemon=True).start()
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout
    is_timed_out = not wait_for_exit(process, max(0.0, timeout))
    # Background processes may keep the pipes open; wait for their output for at most a second.
    for thread in threads:
        thread.join(0 if is_timed_out else max(0.0, min(1.0, deadline - time.monotonic())))
    kill_session(process)
    for thread in threads:
        thread.join(1.0)
    output: dict[str, Any] = {name: bytes(head).decode("utf-8", "replace") for name, head in heads.items()}
    output.update({f"{name}_truncated": totals[name] > caps[name] for name in heads})
    return process.returncode, output, is_timed_out


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """End all processes of the session: SIGTERM, a grace period, then SIGKILL."""
    if not wait_for_exit(process, 0):
        os.killpg(process.pid, signal.SIGTERM)
        wait_for_exit(process, GRACE_SECONDS)
    # Reap it afterwards, so that its pid cannot be reused before.
    with suppress(PermissionError):  # the process changed its user
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for_exit(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Return True if the process exits within `seconds`. Does not reap it."""
    import select

    pidfd = os.pidfd_open(process.pid)
    try:
        return bool(select.select([pidfd], [], [], seconds)[0])
    finally:
        os.close(pidfd)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Handle SIGTERM: kill the command, then exit."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    kill_session(process)
    sys.stderr.flush()
    os._exit(128 + signal.SIGTERM)


def last_line(output: dict[str, Any]) -> str:
    """Return the last line of output with a colon, for the error message; empty without output."""
    lines = (output["stderr"].strip() or output["stdout"].strip()).splitlines()
    return f": {lines[-1][:300]}" if lines else ""


def argv_of(config: dict[str, Any]) -> list[str]:
    """Return the argument list: a list as is, text split at spaces, or text for the shell with `shell: true`."""
    command = config.get("command")
    uses_shell = setting(config, "shell", bool, False)
    if isinstance(command, list):
        if uses_shell:
            raise Misconfigured("command must be a string if shell is true")
        if not command or not all(isinstance(word, (str, int, float)) for word in command) or not str(command[0]):
            raise Misconfigured("command must be a non-empty list of words")
        return [str(word) for word in command]
    line = setting(config, "command")
    if uses_shell:
        return ["/bin/sh", "-c", line]
    if SHELL_CHARACTERS.search(re.sub(r"'[^']*'", "", line)):
        raise Misconfigured("command contains shell characters; set shell: true or write it as a list")
    import shlex

    try:
        return shlex.split(line)
    except ValueError as error:
        raise Misconfigured(f"command cannot be split into words: {error}") from error


def codes(config: dict[str, Any], key: str) -> set[int] | None:
    entries = setting(config, key, list, None)
    if entries is not None and not all(type(code) is int and 0 <= code <= 255 for code in entries):
        raise Misconfigured(f"{key} must be a list of exit codes from 0 to 255")
    return None if entries is None else set(entries)


def health(job: Job) -> str:
    import shutil

    settings = Settings(job.config)
    if settings.working_dir and not os.path.isdir(settings.working_dir):
        raise Failed(f"working_dir {settings.working_dir} is not a folder")
    program = (
        os.path.join(settings.working_dir or "", settings.argv[0]) if "/" in settings.argv[0] else settings.argv[0]
    )
    if not shutil.which(program, path=str(settings.env.get("PATH", os.environ.get("PATH")))):
        raise Failed(f"{settings.argv[0]} is not executable or does not exist")
    return f"healthy ({settings.argv[0]})"


if __name__ == "__main__":
    run(poll=execute, handle=execute, health=health)
