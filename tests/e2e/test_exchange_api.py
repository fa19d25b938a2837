"""The exchange of a running service over HTTP: publish, claim, end, wait, drain, restart, scopes."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.e2e.service import TOKEN, Home, Service, Start, poll_until

OTHER = "another-token-0123456789abcdef"
OTHER_TOKEN = f'      - {{name: other, token: {OTHER}, scopes: ["exchange:rw"]}}\n'


@pytest.fixture
def service(start: Start) -> Service:
    return start()


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


def test_a_message_is_published_claimed_and_completed_with_a_follow_up(service: Service, home: Home) -> None:
    published = publish(service, metadata={"urgent": True}, producer="me")
    (claimed,) = claim(service)
    assert claimed["message"]["message_id"] == published["message_id"] == published["conversation_id"]
    assert (claimed["delivery"], claimed["message"]["metadata"]) == (1, {"urgent": True})
    assert 80 < claimed["lease_seconds"] <= 90
    status, ended = act(service, claimed["claim_id"], "complete", body="looks good")
    assert (status, ended["state"], ended["follow_up"]["topic"]) == (200, "completed", "review.done")
    assert ended["follow_up"]["conversation_id"] == published["conversation_id"]
    assert act(service, claimed["claim_id"], "complete", body="looks good")[1]["repeated"] is True
    kinds = [row["kind"] for row in home.rows("SELECT kind FROM journal WHERE message_id IS NOT NULL ORDER BY seq")]
    assert kinds == ["message.published", "message.claimed", "message.published", "message.completed"]


def test_two_workers_get_different_messages(service: Service) -> None:
    ids = [publish(service)["message_id"] for _ in range(2)]
    assert [claim(service)[0]["message_id"] for _ in range(3 - 1)] == ids
    assert claim(service) == []


def test_a_waiting_claim_ends_when_a_message_is_published(service: Service) -> None:
    """Two publishes wake two of three workers, each with its own message."""
    with waiting_workers(service, 3) as workers:
        poll_until(lambda: waiting_count(service) == 3)
        ids = {publish(service)["message_id"] for _ in range(2)}
        poll_until(lambda: sum(worker.done() for worker in workers) == 2)
        assert {worker.result()[0]["message_id"] for worker in workers if worker.done()} == ids
        last = publish(service)["message_id"]
        assert last in {worker.result()[0]["message_id"] for worker in workers}


def waiting_count(service: Service) -> int:
    """Return how many workers wait, as the metrics report it."""
    with closing(urlopen(Request(f"{service.url}/metrics", headers={"authorization": f"Bearer {TOKEN}"}))) as answer:
        (line,) = [line for line in answer if line.startswith(b"ductile_exchange_waiting_workers ")]
    return int(line.split()[1])


def test_an_end_after_the_lease_is_refused_and_journalled(service: Service, home: Home) -> None:
    publish(service)
    (first,) = claim(service, lease=1)
    (second,) = claim(service, wait="30s")
    assert (second["message_id"], second["delivery"]) == (first["message_id"], 2)
    status, refused = act(service, first["claim_id"], "complete", body="too late")
    assert (status, refused["code"], refused["context"]["claim_status"]) == (409, "claim_lost", "expired")
    (late,) = home.rows("SELECT data FROM journal WHERE kind = 'message.late'")
    assert "too late" not in late["data"]
    assert act(service, second["claim_id"], "complete", body="in time")[0] == 200


def test_an_extended_claim_does_not_expire(service: Service) -> None:
    publish(service)
    (claimed,) = claim(service, lease=1)
    status, extended = act(service, claimed["claim_id"], "extend", lease="1h")
    assert (status, extended["extensions"]) == (200, 1)
    assert claim(service, wait="1500ms") == []


def test_a_released_message_comes_back_first_and_uncounted_if_requested(service: Service) -> None:
    first, _ = publish(service), publish(service)
    (claimed,) = claim(service)
    status, released = act(service, claimed["claim_id"], "release", uncounted=True, reason="stopping")
    assert (status, released["state"]) == (200, "ready")
    (again,) = claim(service)
    assert (again["message_id"], again["delivery"]) == (first["message_id"], 1)


def test_a_delayed_message_wakes_a_waiting_worker_when_it_is_due(service: Service) -> None:
    delayed = publish(service, delay="500ms")
    assert delayed["state"] == "delayed"
    (claimed,) = claim(service, wait="30s")
    assert claimed["message_id"] == delayed["message_id"]


def test_a_claim_of_another_caller_is_unknown(home: Home, start: Start) -> None:
    home.replace("    tokens:\n", f"    tokens:\n{OTHER_TOKEN}")
    service = start()
    publish(service)
    (claimed,) = claim(service)
    status, refused = service.ask("POST", f"/exchange/claims/{claimed['claim_id']}/complete", {}, token=OTHER)
    assert (status, refused["code"]) == (404, "claim_unknown")


def test_a_list_is_stored_as_a_whole_or_not_at_all(service: Service, home: Home) -> None:
    good, bad = {"topic": "a.b", "body": "x"}, {"topic": "a b", "body": "x"}
    status, refused = service.ask("POST", "/exchange/messages", {"messages": [good, bad]})
    assert (status, refused["code"]) == (400, "topic_invalid")
    assert refused["error"].startswith("messages[1]: ")
    status, published = service.ask("POST", "/exchange/messages", {"messages": [good] * 1000})
    assert (status, len(published["messages"])) == (201, 1000)
    assert home.rows("SELECT COUNT(*) AS stored FROM messages") == [{"stored": 1000}]


def test_a_repeated_idempotency_key_publishes_once(service: Service, home: Home) -> None:
    headers = {"idempotency-key": "once"}
    message = {"topic": "a.b", "body": "x"}
    first, second = (service.ask("POST", "/exchange/messages", message, headers=headers) for _ in range(2))
    assert first == second
    assert first[0] == 201
    assert home.rows("SELECT COUNT(*) AS stored FROM messages") == [{"stored": 1}]


def test_a_dry_run_reports_errors_and_stores_nothing(service: Service, home: Home) -> None:
    status, planned = service.ask("POST", "/exchange/messages?dry_run=true", {"topic": "a.b", "body": "x"})
    assert (status, planned["state"], planned["message_id"], planned["dry_run"]) == (200, "ready", None, True)
    unknown = {"topic": "a.b", "body": "x", "parent_id": "nothing"}
    assert service.ask("POST", "/exchange/messages?dry_run=true", unknown)[1]["code"] == "parent_unknown"
    assert home.rows("SELECT id FROM messages") == []
