"""Requests to the exchange of a running service."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any
from urllib.request import Request, urlopen

from tests.e2e.service import TOKEN, Service


def publish(service: Service, topic: str = "review.request", body: str = "please", **fields: Any) -> dict[str, Any]:
    status, published = service.ask("POST", "/exchange/messages", {"topic": topic, "body": body, **fields})
    assert status == 201, published
    return dict(published)


def claim(service: Service, topic: str = "review.request", **fields: Any) -> list[dict[str, Any]]:
    status, answer = service.ask("POST", "/exchange/claims", {"topic": topic, "worker_group": "tests", **fields})
    assert status == 200, answer
    return list(answer["claims"])


def act(service: Service, claim_id: str, verb: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    return service.ask("POST", f"/exchange/claims/{claim_id}/{verb}", fields)


@contextmanager
def waiting_workers(service: Service, count: int, topic: str = "review.request") -> Iterator[list[Future[Any]]]:
    """Start workers that wait for a message, each over its own connection."""
    with ThreadPoolExecutor(count) as pool:
        yield [pool.submit(claim, service, topic, wait="30s") for _ in range(count)]


def metrics_of(service: Service) -> list[str]:
    """Return the lines of the metrics."""
    with closing(urlopen(Request(f"{service.url}/metrics", headers={"authorization": f"Bearer {TOKEN}"}))) as answer:
        return [line.decode().rstrip("\n") for line in answer]


def waiting_count(service: Service) -> int:
    """Return how many workers wait."""
    (line,) = [line for line in metrics_of(service) if line.startswith("ductile_exchange_waiting_workers ")]
    return int(line.split()[1])


def get(service: Service, path: str, **options: Any) -> Any:
    status, answer = service.ask("GET", f"/exchange/{path}", **options)
    assert status == 200, answer
    return answer
