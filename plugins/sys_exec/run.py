#!/usr/bin/env python3
"""Runs one configured command. See README.md."""

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
SHELL_SIGNS = re.compile(r"[|&;<>()$`*?\[\]#~\n]")
MAX_VARIABLE_BYTES = 100_000  # the system's own limit is little more
MAX_VARIABLES_BYTES = 1_000_000
MAX_WARNINGS = 20
GRACE_SECONDS = 2.0
ENDING = {signal.SIGTERM}


class Order:
    """The configuration, checked."""

    def __init__(self, config: dict[str, Any]) -> None:
        only_known(config, KEYS)
        self.argv = argv_of(config)
        self.event_type = setting(config, "event_type", default="sys_exec.completed")
        self.timeout = setting(config, "timeout_seconds", float, 60.0, least=0.001)
        self.working_dir = setting(config, "working_dir", default=None)
        self.env = setting(config, "env", dict, {})
        for name, value in self.env.items():
            if not isinstance(value, (str, int, float)) or isinstance(value, bool) or "=" in name or not name:
                raise Misconfigured(f"env.{name} must be text")
        self.success = codes(config, "success_exit_codes") or {0}
        self.retried = codes(config, "retry_on_exit_codes")
        self.told = codes(config, "emit_event_on_exit_codes")
        self.emit_event = setting(config, "emit_event", bool, True)
        self.include_output = setting(config, "include_output_in_event", bool, True)
        self.caps = {
            "stdout": setting(config, "stdout_max_bytes", int, 16384),
            "stderr": setting(config, "stderr_max_bytes", int, 16384),
        }

    def environment(self, job: Job) -> dict[str, str]:
        """Ours, the operator's, and the payload, of which nothing can take the name of another variable."""
        own = {
            "DUCTILE_JOB_ID": job.id,
            "DUCTILE_COMMAND": job.command,
            "DUCTILE_EVENT_TYPE": job.event.get("type", ""),
        }
        told: dict[str, str] = {}
        room, left_out = MAX_VARIABLES_BYTES, []
        for key, value in job.payload.items():
            name = "DUCTILE_PAYLOAD_" + re.sub(r"[^A-Z0-9]", "_", key.upper())
            text = value if isinstance(value, str) else json.dumps(value)
            size = len(name) + len(text.encode("utf-8", "replace")) + 10  # and what the system keeps of each
            if name in told:
                left_out.append(f"payload.{key[:100]} is not in the environment: {name[:100]} is taken already")
            elif "\0" in text or size > min(room, MAX_VARIABLE_BYTES):
                left_out.append(
                    f"payload.{key[:100]} is not in the environment: too long, or with a NUL; it is on stdin"
                )
            else:
                told[name] = text.encode("utf-8", "replace").decode()
                room -= size
        for line in left_out[:MAX_WARNINGS]:
            job.log("warn", line)
        if len(left_out) > MAX_WARNINGS:
            job.log("warn", f"and {len(left_out) - MAX_WARNINGS} more of this kind")
        return {**os.environ, **{name: str(value) for name, value in self.env.items()}, **own, **told}


def work(job: Job) -> str:
    order = Order(job.config)
    began = time.monotonic()
    left = job.seconds_left()
    timeout = min(order.timeout, max(left / 2, left - GRACE_SECONDS - 1))
    # SIGTERM waits until there is something to end.
    signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    process = started(order, job)
    signal.signal(signal.SIGTERM, lambda *_: stopped(process))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
    code, output, is_late = attend(process, json.dumps(job.payload).encode() + b"\n", timeout, order.caps)
    if is_late:
        raise Failed(f"the command ran longer than {timeout:g} s and was ended{said(output)}")
    ending: dict[str, Any] = {"exit_code": code, "duration_ms": round((time.monotonic() - began) * 1000)}
    if code < 0:
        ending.update(exit_code=128 - code, signal=signal.Signals(-code).name)
        code = 128 - code
    if order.emit_event and code in (order.told or order.success):
        job.emit(order.event_type, {**ending, **(output if order.include_output else {})})
    if code in order.success:
        return f"the command ended with {code} after {ending['duration_ms']} ms"
    kind = Failed if order.retried is None or code in order.retried else Final
    raise kind(f"the command ended with {ending.get('signal', code)}{said(output)}")


def started(order: Order, job: Job) -> subprocess.Popen[bytes]:
    import subprocess

    pipe = subprocess.PIPE
    try:
        # A session of its own, so that the command and everything it started can be ended together.
        return subprocess.Popen(
            order.argv,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=order.working_dir,
            env=order.environment(job),
            start_new_session=True,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING),
        )
    except (OSError, ValueError) as error:
        raise Misconfigured(f"{order.argv[0]} cannot be started: {error}") from error


def attend(
    process: subprocess.Popen[bytes], text: bytes, timeout: float, caps: dict[str, int]
) -> tuple[int, dict[str, Any], bool]:
    """Feeds the command and reads it to its end: exit code, capped output, and whether it had to be ended."""
    import threading

    heads = {"stdout": bytearray(), "stderr": bytearray()}
    totals = dict.fromkeys(heads, 0)

    def feed() -> None:
        with suppress(OSError), process.stdin:  # type: ignore[union-attr] # it need not hear it
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
    give_up_at = time.monotonic() + timeout
    is_late = not ended(process, max(0.0, timeout))
    # Whatever it has left in the background may still say something, but not for ever.
    for thread in threads:
        thread.join(0 if is_late else max(0.0, min(1.0, give_up_at - time.monotonic())))
    end(process)
    for thread in threads:
        thread.join(1.0)
    output: dict[str, Any] = {name: bytes(head).decode("utf-8", "replace") for name, head in heads.items()}
    output.update({f"{name}_truncated": totals[name] > caps[name] for name in heads})
    return process.returncode, output, is_late


def end(process: subprocess.Popen[bytes]) -> None:
    """Nothing of the command's session runs: asked first, then killed."""
    if not ended(process, 0):
        os.killpg(process.pid, signal.SIGTERM)
        ended(process, GRACE_SECONDS)
    # It is not reaped before: until then no other process can get its number.
    with suppress(PermissionError):  # the work of another user now
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether it ends within `seconds`; it stays to be reaped."""
    import select

    watch = os.pidfd_open(process.pid)
    try:
        return bool(select.select([watch], [], [], seconds)[0])
    finally:
        os.close(watch)


def stopped(process: subprocess.Popen[bytes]) -> None:
    """Ductile ends us: the command goes first."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end(process)
    sys.stderr.flush()
    os._exit(128 + signal.SIGTERM)


def said(output: dict[str, Any]) -> str:
    """The last thing it said, for the error message."""
    lines = (output["stderr"].strip() or output["stdout"].strip()).splitlines()
    return f": {lines[-1][:300]}" if lines else ""


def argv_of(config: dict[str, Any]) -> list[str]:
    """A list is run as it is; text is split at blanks, or given to the shell if the operator says so."""
    command = config.get("command")
    in_shell = setting(config, "shell", bool, False)
    if isinstance(command, list):
        if in_shell:
            raise Misconfigured("command must be text when shell is true")
        if not command or not all(isinstance(word, (str, int, float)) for word in command) or not str(command[0]):
            raise Misconfigured("command must be a list of words, the first one the program")
        return [str(word) for word in command]
    line = setting(config, "command")
    if in_shell:
        return ["/bin/sh", "-c", line]
    if SHELL_SIGNS.search(re.sub(r"'[^']*'", "", line)):
        raise Misconfigured("command uses signs of the shell; set shell: true, or write it as a list of words")
    import shlex

    try:
        return shlex.split(line)
    except ValueError as error:
        raise Misconfigured(f"command cannot be split into words: {error}") from error


def codes(config: dict[str, Any], key: str) -> set[int] | None:
    listed = setting(config, key, list, None)
    if listed is not None and not all(type(code) is int and 0 <= code <= 255 for code in listed):
        raise Misconfigured(f"{key} must be a list of exit codes from 0 to 255")
    return None if listed is None else set(listed)


def health(job: Job) -> str:
    import shutil

    order = Order(job.config)
    if order.working_dir and not os.path.isdir(order.working_dir):
        raise Failed(f"working_dir {order.working_dir} is not a folder")
    program = os.path.join(order.working_dir or "", order.argv[0]) if "/" in order.argv[0] else order.argv[0]
    if not shutil.which(program, path=str(order.env.get("PATH", os.environ.get("PATH")))):
        raise Failed(f"{order.argv[0]} is not an executable program")
    return f"{order.argv[0]} can be run"


if __name__ == "__main__":
    run(poll=work, handle=work, health=health)
