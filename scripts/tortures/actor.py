#!/usr/bin/env -S python3 -S
"""The plugin under torture where there is no C compiler; actor.c does the same, faster.

ACTOR_EFFECTS  the effect ledger: one line when it begins, one when it ends well, with the `part` it was told
ACTOR_EMITS    the type of the events it emits, ACTOR_COUNT how many
ACTOR_ITEMS    its events carry a list of up to so many items, and whether they are `even`
ACTOR_TROUBLE  how many of a hundred attempts go wrong, each in one of seven ways
ACTOR_NAP_MS   it sleeps up to this long
ACTOR_DAEMON   it leaves a process of its own session behind
ACTOR_LINGERS_MS  asked to end, it takes this long and says so
ACTOR_ALONE    a file that it locks while it lives; it says so if another process has
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


def testify(what: str) -> None:
    line = f"{what} {job} {attempt} {event} {part} {os.getpid()} {time.monotonic_ns()}\n"
    file = os.open(os.environ["ACTOR_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode())
    os.fsync(file)
    os.close(file)


def chance() -> int:
    value = 2166136261
    for byte in (job + attempt).encode():
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value ^ (value >> 15)


def leave_a_daemon() -> None:
    if os.fork() == 0:
        os.setsid()
        for descriptor in range(3):
            os.close(descriptor)
        while True:
            signal.pause()


def misbehave(kind: int) -> None:
    if kind == 0:
        print(json.dumps({"status": "error", "error": "as asked"}))
    elif kind == 1:
        sys.exit(1)
    elif kind == 2:
        print("this is no JSON")
    elif kind == 3:
        while True:
            signal.pause()
    elif kind == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == 5:
        sys.exit(78)
    else:
        print(json.dumps({"status": "ok", "result": "but"}))
        sys.stdout.flush()
        sys.exit(3)


def succeed(luck: int) -> None:
    emits, count = os.environ.get("ACTOR_EMITS"), int(os.environ.get("ACTOR_COUNT", "1"))
    events = [{"type": emits, "payload": {"n": n, **itemized(luck)}} for n in range(count)] if emits else []
    done = f"{job}-{attempt}"
    print(json.dumps({"status": "ok", "result": done, "state_updates": {"last": done}, "events": events}))


def itemized(luck: int) -> dict[str, object]:
    most = number("ACTOR_ITEMS")
    if not most:
        return {}
    return {"even": not luck >> 20 & 1, "items": [100 + item for item in range(luck // 4900 % (most + 1))]}


def be_alone(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        testify("crowd")


def leave(*_: object) -> None:
    time.sleep(number("ACTOR_LINGERS_MS") / 1000)
    testify("gone")
    os._exit(0)


testify("start")
if number("ACTOR_LINGERS_MS"):
    signal.signal(signal.SIGTERM, leave)
if "ACTOR_ALONE" in os.environ:
    be_alone(os.environ["ACTOR_ALONE"])
if number("ACTOR_DAEMON"):
    leave_a_daemon()
luck = chance()
if number("ACTOR_NAP_MS"):
    time.sleep(luck // 700 % number("ACTOR_NAP_MS") / 1000)
if luck % 100 < number("ACTOR_TROUBLE"):
    misbehave(luck // 100 % 7)
else:
    testify("end")
    succeed(luck)
