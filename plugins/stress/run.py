#!/usr/bin/env python3
"""Create load, latency and failures on request. See README.md."""

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

# Name: default and maximum.
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
        # The file has no name, so nothing remains after a crash.
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
                raise Failed("the data read differs from the data written")
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
                    remaining = len(chunk)
                    while remaining:
                        remaining -= len(client.recv(remaining)) or raise_closed()
    return f"sent {rounds} times {size} bytes there and back"


def raise_closed() -> int:
    raise Failed("the connection was closed")


def state(job: Job) -> str:
    size = int(number(job, "bytes"))
    job.state = {"count": job.state.get("count", 0) + 1, "filler": "x" * size}
    return f"stored a state of {size} bytes, number {job.state['count']}"


def health(job: Job) -> str:
    only_known(job.config, ())
    return "healthy"


def with_effects(load: Callable[[Job], str]) -> Callable[[Job], str]:
    """Add the requested latency, failures and events to a load."""

    def command(job: Job) -> str:
        unknown = set(job.payload) - {*NUMBERS, "final"}
        if unknown:
            raise Final(f"unknown key payload.{min(unknown)}; known: {', '.join(NUMBERS)}, final")
        numbers = {key: number(job, key) for key in NUMBERS}
        started_at = time.monotonic()
        time.sleep(numbers["sleep_ms"] / 1000)
        # Derived from job and attempt: random across jobs, but repeatable.
        digest = hashlib.sha256(f"{job.id}:{job.attempt}".encode()).digest()
        if job.attempt <= numbers["fail_attempts"] or digest[0] / 256 < numbers["fail_rate"]:
            kind = Final if job.payload.get("final") is True else Failed
            raise kind(f"requested failure of attempt {job.attempt}")
        result = load(job)
        duration = round((time.monotonic() - started_at) * 1000)
        for index in range(int(numbers["events"])):
            job.emit("stress.done", {"command": job.command, "duration_ms": duration, "index": index})
        return result

    return command


def number(job: Job, key: str) -> float:
    default, maximum = NUMBERS[key]
    value: Any = job.payload.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= maximum:
        raise Final(f"payload.{key} must be a number from 0 to {maximum}, not {value!r:.80}")
    return value


if __name__ == "__main__":
    run(cpu=with_effects(cpu), io=with_effects(io), net=with_effects(net), state=with_effects(state), health=health)
