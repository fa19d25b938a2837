#!/usr/bin/env python3
"""Makes load, latency and failures on request. See README.md."""

from __future__ import annotations

import hashlib
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ductile_plugin import Failed, Final, Job, only_known, run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Each with its default and its most.
NUMBERS = {
    "seconds": (0.1, 300),
    "sleep_ms": (0, 300_000),
    "bytes": (65_536, 256 << 20),
    "files": (1, 10_000),
    "rounds": (1, 100_000),
    "fail_attempts": (0, 1_000_000),
    "fail_rate": (0, 1),
    "events": (0, 1_000),
}
CHUNK = bytes(range(256)) * 256


def cpu(job: Job) -> str:
    end_at = time.process_time() + number(job, "seconds")
    rounds = 0
    while time.process_time() < end_at:
        hashlib.sha256(CHUNK).digest()
        rounds += 1
    return f"hashed {rounds} times 64 KiB"


def io(job: Job) -> str:
    from tempfile import TemporaryFile

    size, files = int(number(job, "bytes")), int(number(job, "files"))
    for _ in range(files):
        # It has no name: whatever happens, nothing is left behind.
        with TemporaryFile(prefix="ductile-stress-") as file:
            written = hashlib.sha256()
            for start in range(0, size, len(CHUNK)):
                chunk = CHUNK[: size - start]
                file.write(chunk)
                written.update(chunk)
            file.flush()
            os.fsync(file.fileno())
            file.seek(0)
            read = hashlib.sha256()
            while chunk := file.read(len(CHUNK)):
                read.update(chunk)
            if read.digest() != written.digest():
                raise Failed("what was read is not what was written")
    return f"wrote, synced and read {files} files of {size} bytes"


def net(job: Job) -> str:
    import socket
    import threading

    size, rounds = int(number(job, "bytes")), int(number(job, "rounds"))
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                while data := connection.recv(65536):
                    connection.sendall(data)

        threading.Thread(target=serve, daemon=True).start()
        with socket.create_connection(server.getsockname(), timeout=60) as client:
            for _ in range(rounds):
                for start in range(0, size, len(CHUNK)):
                    chunk = CHUNK[: size - start]
                    client.sendall(chunk)
                    left = len(chunk)
                    while left:
                        left -= len(client.recv(left)) or left_hanging()
    return f"sent {rounds} times {size} bytes there and back"


def left_hanging() -> int:
    raise Failed("the connection was closed")


def state(job: Job) -> str:
    size = int(number(job, "bytes"))
    job.state = {"count": job.state.get("count", 0) + 1, "filler": "x" * size}
    return f"kept a state of {size} bytes, number {job.state['count']}"


def health(job: Job) -> str:
    only_known(job.config, ())
    return "stress is well"


def loaded(load: Callable[[Job], str]) -> Callable[[Job], str]:
    """The load, with the latency, the failures and the events that were asked for."""

    def command(job: Job) -> str:
        unknown = set(job.payload) - {*NUMBERS, "final"}
        if unknown:
            raise Final(f"payload.{min(unknown)} is not known; known: {', '.join(NUMBERS)}, final")
        numbers = {key: number(job, key) for key in NUMBERS}
        began = time.monotonic()
        time.sleep(numbers["sleep_ms"] / 1000)
        # Drawn from the job and the attempt: random over many jobs, but the same whenever it is repeated.
        drawn = hashlib.sha256(f"{job.id}:{job.attempt}".encode()).digest()
        if job.attempt <= numbers["fail_attempts"] or drawn[0] / 256 < numbers["fail_rate"]:
            kind = Final if job.payload.get("final") is True else Failed
            raise kind(f"stress failed attempt {job.attempt}, as asked")
        result = load(job)
        duration = round((time.monotonic() - began) * 1000)
        for index in range(int(numbers["events"])):
            job.emit("stress.done", {"command": job.command, "duration_ms": duration, "index": index})
        return result

    return command


def number(job: Job, key: str) -> float:
    default, most = NUMBERS[key]
    value: Any = job.payload.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        raise Final(f"payload.{key} must be a number from 0 to {most}, not {value!r:.80}")
    return value


if __name__ == "__main__":
    run(cpu=loaded(cpu), io=loaded(io), net=loaded(net), state=loaded(state), health=health)
