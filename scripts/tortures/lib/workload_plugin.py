#!/usr/bin/env -S python3 -S
"""The plugin of the workload, for hosts without a C compiler. workload_plugin.c does the same and is faster.

WORKLOAD_EFFECTS_LOG       the effects log: one line at the start and one at a successful end, with the list item `part`
WORKLOAD_EMITS             type of the emitted events; WORKLOAD_EVENT_COUNT is their number
WORKLOAD_MAX_ITEMS         events carry a list of up to this many items and a flag `even`
WORKLOAD_FAILURE_PERCENT   percentage of attempts that fail, each in one of seven ways
WORKLOAD_SLEEP_MS          longest sleep before the end
WORKLOAD_LEAVES_DAEMON     leave a process in its own session behind
WORKLOAD_SIGTERM_DELAY_MS  on SIGTERM, wait this long, then log `stopped` and exit
WORKLOAD_LOCK_FILE         lock this file while running; log `overlap` if another process holds the lock
"""

import fcntl
import json
import os
import signal
import sys
import time

request = json.load(sys.stdin.buffer)
job, attempt = request["job_id"], str(request["attempt"])
event = (request.get("event") or {}).get("event_id", "-")
part = (request.get("event") or {}).get("payload", {}).get("part", "-")


def number(name: str) -> int:
    return int(os.environ.get(name, "0"))


def log_effect(what: str) -> None:
    line = f"{what} {job} {attempt} {event} {part} {os.getpid()} {time.monotonic_ns()}\n"
    file = os.open(os.environ["WORKLOAD_EFFECTS_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode())
    os.fsync(file)
    os.close(file)


def hash_attempt() -> int:
    value = 2166136261
    for byte in (job + attempt).encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value ^ (value >> 15)


def leave_daemon() -> None:
    if os.fork() == 0:
        os.setsid()
        for descriptor in range(3):
            os.close(descriptor)
        while True:
            signal.pause()


def fail(kind: int) -> None:
    if kind == 0:
        print(json.dumps({"status": "error", "error": "requested by the test"}))
    elif kind == 1:
        sys.exit(1)
    elif kind == 2:
        print("this is not JSON")
    elif kind == 3:
        while True:
            signal.pause()
    elif kind == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == 5:
        sys.exit(78)
    else:
        print(json.dumps({"status": "ok", "result": "exit code 3"}))
        sys.stdout.flush()
        sys.exit(3)


def succeed(random_bits: int) -> None:
    emits, count = os.environ.get("WORKLOAD_EMITS"), int(os.environ.get("WORKLOAD_EVENT_COUNT", "1"))
    events = [{"type": emits, "payload": {"n": n, **items(random_bits)}} for n in range(count)] if emits else []
    done = f"{job}-{attempt}"
    print(json.dumps({"status": "ok", "result": done, "state_updates": {"last": done}, "events": events}))


def items(random_bits: int) -> dict[str, object]:
    max_items = number("WORKLOAD_MAX_ITEMS")
    if not max_items:
        return {}
    count = random_bits // 4900 % (max_items + 1)
    return {"even": not random_bits >> 20 & 1, "items": [100 + item for item in range(count)]}


def lock(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        log_effect("overlap")


def stop(*_: object) -> None:
    time.sleep(number("WORKLOAD_SIGTERM_DELAY_MS") / 1000)
    log_effect("stopped")
    os._exit(0)


log_effect("start")
if number("WORKLOAD_SIGTERM_DELAY_MS"):
    signal.signal(signal.SIGTERM, stop)
if "WORKLOAD_LOCK_FILE" in os.environ:
    lock(os.environ["WORKLOAD_LOCK_FILE"])
if number("WORKLOAD_LEAVES_DAEMON"):
    leave_daemon()
random_bits = hash_attempt()
if number("WORKLOAD_SLEEP_MS"):
    time.sleep(random_bits // 700 % number("WORKLOAD_SLEEP_MS") / 1000)
if random_bits % 100 < number("WORKLOAD_FAILURE_PERCENT"):
    fail(random_bits // 100 % 7)
else:
    log_effect("end")
    succeed(random_bits)
