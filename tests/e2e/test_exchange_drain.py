"""The exchange when the service drains or restarts, when a waiting worker disconnects, and when too many wait."""

import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from urllib.parse import urlsplit

from tests.e2e.exchange_client import act, claim, get, metrics_of, publish, waiting_count, waiting_workers
from tests.e2e.sample_plugins import BlockingPlugin
from tests.e2e.service import TOKEN, Home, Service, Start, poll_until

WAITING = {"topic": "review.request", "worker_group": "tests", "wait": "30s"}


def test_waiting_requests_end_empty_when_the_service_stops(start: Start) -> None:
    service = start()
    with ThreadPoolExecutor() as pool, waiting_workers(service, 2) as workers:
        reader = pool.submit(get, service, "messages?wait=60s")
        poll_until(lambda: waiting_count(service) == 2)
        before = monotonic()
        assert service.stop() == 0
        assert [worker.result() for worker in workers] == [[], []]
        assert reader.result()["messages"] == []
    assert monotonic() - before < 30, "shorter than the requests would wait"


def test_a_service_that_drains_takes_no_messages_but_ends_claims(start: Start, blocking: BlockingPlugin) -> None:
    """New work is 503 with Retry-After. The requests began before the drain; a job keeps the service running."""
    service = start()
    publish(service)
    (claimed,) = claim(service)
    service.post("blocking")
    blocking.wait_until_started()
    bodies = {
        "/exchange/messages": {"topic": "a.b", "body": "x"},
        "/exchange/claims": {"topic": "a.b", "worker_group": "tests"},
        f"/exchange/claims/{claimed['claim_id']}/complete": {"body": "done"},
    }
    requests = {path: open_request(service, path, json.dumps(body).encode()) for path, body in bodies.items()}
    service.signal(signal.SIGTERM)
    service.wait_for_log("draining")
    answers = {path: finish_request(*request) for path, request in requests.items()}
    assert [answer.split()[1] for answer in answers.values()] == [b"503", b"503", b"200"]
    assert b"retry-after" in answers["/exchange/messages"].lower()
    blocking.release()


def open_request(service: Service, path: str, body: bytes) -> tuple[socket.socket, bytes]:
    """Send a request without the last byte of its body, which is returned."""
    parts = urlsplit(service.url)
    connection = socket.create_connection((parts.hostname, parts.port or 0), timeout=30)
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body[:-1])
    return connection, body[-1:]


def finish_request(connection: socket.socket, rest: bytes) -> bytes:
    """Send the rest of a request and return its response."""
    with connection:
        connection.sendall(rest)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_live_claim_survives_a_restart_with_at_least_ten_seconds(start: Start) -> None:
    service = start()
    publish(service)
    publish(service, "a.b")
    (short,) = claim(service, lease=2)
    (long,) = claim(service, "a.b", lease="1h")
    service.kill()
    service = start()
    left = {
        each["claim_id"]: each["lease_seconds"]
        for topic in (short["message_id"], long["message_id"])
        for each in get(service, f"messages/{topic}")["claims"]
    }
    assert 2 < left[short["claim_id"]] <= 10
    assert left[long["claim_id"]] > 3500
    assert act(service, short["claim_id"], "complete", body="after the restart")[0] == 200
    assert act(service, long["claim_id"], "extend")[1]["lease_seconds"] > 3590


def test_a_worker_that_disconnects_while_it_waits_loses_no_message(start: Start) -> None:
    """The message is delivered to the next worker for the first time."""
    service = start()
    waiting = [open_request(service, "/exchange/claims", json.dumps(body).encode()) for body in [WAITING] * 3]
    for connection, rest in waiting:
        connection.sendall(rest)
    poll_until(lambda: waiting_count(service) == 3)
    with waiting_workers(service, 1) as (worker,):
        poll_until(lambda: waiting_count(service) == 4)
        for connection, _ in waiting:
            connection.close()
        published = publish(service)
        (claimed,) = worker.result()
    assert (claimed["message_id"], claimed["delivery"]) == (published["message_id"], 1)


def test_the_waiting_requests_of_a_token_are_limited(home: Home, start: Start) -> None:
    """Requests that do not wait are served, and those that wait are not disturbed."""
    home.replace("api:\n", "api:\n  max_concurrent_waits: 2\n")
    service = start()
    with waiting_workers(service, 2) as workers:
        poll_until(lambda: waiting_count(service) == 2)
        for method, path, body in (
            ("POST", "/exchange/claims", WAITING),
            ("GET", "/exchange/messages?wait=1s", None),
            ("GET", "/exchange/tracked?wait=1s", None),
        ):
            status, refused = service.ask(method, path, body)
            assert (status, refused["code"]) == (429, "too_many_waits")
        assert claim(service, "a.b") == []
        ids = {publish(service)["message_id"] for _ in range(2)}
        assert {worker.result()[0]["message_id"] for worker in workers} == ids


def test_the_metrics_count_messages_ends_and_late_results(start: Start) -> None:
    service = start()
    for _ in range(2):
        publish(service)
    (completed,) = claim(service)
    act(service, completed["claim_id"], "complete", body="x")
    act(service, completed["claim_id"], "fail")
    claim(service)
    lines = metrics_of(service)
    for line in (
        'ductile_exchange_messages_total{topic="review.request"} 2',
        'ductile_exchange_messages_total{topic="review.done"} 1',
        'ductile_exchange_claims_total{topic="review.request",end="completed"} 1',
        "ductile_exchange_late_total 1",
        "ductile_exchange_publish_to_claim_seconds_count 2",
        "ductile_exchange_ready 1",
        "ductile_exchange_claimed 1",
        "ductile_exchange_waiting_workers 0",
    ):
        assert line in lines
