"""Requests made beforehand, and the client in C that sends them and takes the time."""

import hashlib
import hmac
import http.client
import json
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import closing

from attrs import frozen

from scripts.benches.bench import Bench
from scripts.benches.homes import CONNECTIONS, SECRET, Running
from tests.e2e.service import TOKEN

BODY = json.dumps({"ref": "refs/heads/main", "filler": "x" * 210}).encode()
assert len(BODY) == 250


@frozen
class Load:
    """What the client measured; every request was answered with success."""

    per_second: float
    p50_ms: float
    p99_ms: float


def deliveries(count: int) -> list[bytes]:
    """Signed deliveries of 250 bytes, each with an id of its own."""
    signature = hmac.new(SECRET.encode(), BODY, hashlib.sha256).hexdigest()
    headers = f"X-GitHub-Event: push\r\nX-Hub-Signature-256: sha256={signature}\r\nX-GitHub-Delivery: "
    return [request("/hook", BODY, f"{headers}{uuid.uuid4()}\r\n") for _ in range(count)]


def pipeline(name: str, count: int) -> list[bytes]:
    """Calls of a synchronous pipeline."""
    body = json.dumps({"payload": {"filler": "x" * 100}}).encode()
    headers = f"Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    return [request(f"/pipeline/{name}", body, headers)] * count


def request(path: str, body: bytes, headers: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: bench\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def load(bench: Bench, port: int, requests: Sequence[bytes], connections: int = CONNECTIONS) -> Load:
    """All requests were sent, each connection one after the other."""
    with tempfile.NamedTemporaryFile(dir=bench.folder) as file:
        file.writelines(struct.pack("<I", len(each)) + each for each in requests)
        file.flush()
        command = [str(each) for each in (bench.folder / "client", port, connections, file.name)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    answered, seconds, p50, p99, _, good, _ = map(float, done.stdout.split())
    assert answered == good == len(requests), f"of {len(requests)} requests {good:.0f} succeeded"
    return Load(answered / seconds, p50 / 1000, p99 / 1000)


def check(service: Running, name: str, steps: int) -> None:
    """What the calls ask for really happens."""
    content = service.ask("POST", f"/pipeline/{name}", {"payload": {}})
    assert (content["status"], len(content["tree"])) == ("succeeded", steps), content


def reads(service: Running, path: str, count: int) -> list[float]:
    """Milliseconds of each of so many GETs on one connection."""
    found = []
    with closing(http.client.HTTPConnection("localhost", service.port, timeout=60)) as connection:
        for _ in range(count):
            began = time.perf_counter()
            connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
            answer = connection.getresponse()
            answer.read()
            found.append((time.perf_counter() - began) * 1000)
            assert answer.status == 200, (path, answer.status)
    return found
