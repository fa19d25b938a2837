"""Prepared HTTP requests, and the C client that sends them and measures the responses."""

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

from scripts.benches.lib.bench import Bench
from scripts.benches.lib.instance import CONNECTIONS, SECRET, TOKEN
from scripts.benches.lib.service import Service

BODY = json.dumps({"ref": "refs/heads/main", "filler": "x" * 210}).encode()
assert len(BODY) == 250


@frozen
class Load:
    """The measurements of the client. Every request had a 2xx response."""

    per_second: float
    p50_ms: float
    p99_ms: float


def delivery_requests(count: int) -> list[bytes]:
    """Return signed deliveries of 250 bytes, each with its own delivery id."""
    signature = hmac.new(SECRET.encode(), BODY, hashlib.sha256).hexdigest()
    headers = f"X-GitHub-Event: push\r\nX-Hub-Signature-256: sha256={signature}\r\nX-GitHub-Delivery: "
    return [post_request("/hook", BODY, f"{headers}{uuid.uuid4()}\r\n") for _ in range(count)]


def pipeline_requests(name: str, count: int) -> list[bytes]:
    """Return calls of a synchronous pipeline."""
    body = json.dumps({"payload": {"filler": "x" * 100}}).encode()
    headers = f"Authorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    return [post_request(f"/pipeline/{name}", body, headers)] * count


def post_request(path: str, body: bytes, headers: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: bench\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def send_requests(bench: Bench, port: int, requests: Sequence[bytes], connections: int = CONNECTIONS) -> Load:
    """Send all requests. Each connection sends its next request after the response to the one before."""
    with tempfile.NamedTemporaryFile(dir=bench.folder) as file:
        file.writelines(struct.pack("<I", len(request)) + request for request in requests)
        file.flush()
        command = [str(argument) for argument in (bench.folder / "http_client", port, connections, file.name)]
        finished = subprocess.run(command, capture_output=True, text=True, check=True)
    responses, seconds, p50_us, p99_us, _, successes, _ = map(float, finished.stdout.split())
    assert responses == successes == len(requests), f"{successes:.0f} of {len(requests)} requests succeeded"
    return Load(responses / seconds, p50_us / 1000, p99_us / 1000)


def check_pipeline(service: Service, name: str, steps: int) -> None:
    """Call a pipeline once and check that every step ran."""
    content = service.request("POST", f"/pipeline/{name}", {"payload": {}})
    assert (content["status"], len(content["tree"])) == ("succeeded", steps), content


def time_reads(service: Service, path: str, count: int) -> list[float]:
    """Send `count` GET requests over one connection and return the milliseconds of each."""
    times = []
    with closing(http.client.HTTPConnection("localhost", service.port, timeout=60)) as connection:
        for _ in range(count):
            begin = time.perf_counter()
            connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
            response = connection.getresponse()
            response.read()
            times.append((time.perf_counter() - begin) * 1000)
            assert response.status == 200, (path, response.status)
    return times
