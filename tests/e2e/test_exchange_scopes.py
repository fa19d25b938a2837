"""Topic scopes over HTTP: each right permits exactly its requests, on its topics."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.exchange_client import act, claim, publish
from tests.e2e.service import Home, Service

SCOPES = {
    "reader": ["exchange:review.*:ro"],
    "publisher": ["exchange:review.request:publish"],
    "worker": ["exchange:review.*:claim", "exchange:review.done:publish"],
    "owner": ["exchange:review.*:rw"],
    "all": ["exchange:rw"],
    "viewer": ["exchange:ro"],
    "operator": ["exchange:rw", "system:rw"],
    "outsider": ["jobs:rw", "exchange:deploy.*:rw"],
}


def token_of(name: str) -> str:
    return f"{name}-token-0123456789abcdef"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    home = Home.make(Path(tmp_path_factory.mktemp("scopes")) / "ductile")
    tokens = "".join(
        f"      - {{name: {name}, token: {token_of(name)}, scopes: {scopes}}}\n" for name, scopes in SCOPES.items()
    )
    home.replace("    tokens:\n", f"    tokens:\n{tokens}")
    running = home.start()
    try:
        yield running
    finally:
        running.stop()


def permitted(service: Service, method: str, path: str, body: Any = None) -> set[str]:
    """Return the callers whose request is not refused for its scope."""
    statuses = {name: service.ask(method, f"/exchange/{path}", body, token=token_of(name))[0] for name in SCOPES}
    assert set(statuses.values()) <= {200, 201, 403, 404}, statuses
    return {name for name, status in statuses.items() if status != 403}


def test_each_right_permits_exactly_its_requests(service: Service) -> None:
    publishers = {"publisher", "owner", "all", "operator"}
    message = {"topic": "review.request", "body": "x"}
    assert permitted(service, "POST", "messages", message) == publishers
    assert permitted(service, "POST", "messages", {"messages": [message, {"topic": "review.x", "body": "x"}]}) == {
        "owner",
        "all",
        "operator",
    }
    claims = {"topic": "review.request", "worker_group": "w"}
    assert permitted(service, "POST", "claims", claims) == {"worker", "owner", "all", "operator"}
    both = {"topics": ["review.request", "deploy.request"], "worker_group": "w"}
    assert permitted(service, "POST", "claims", both) == {"all", "operator"}
    assert permitted(service, "POST", "topics/review.request/pause?dry_run=true", {}) == {"operator"}
    assert permitted(service, "POST", "topics/review.request/purge?dry_run=true") == {"operator"}


def test_readers_see_only_messages_of_their_topics(service: Service) -> None:
    """In lists, in conversations, one by one, and as the reply."""
    request = publish(service, "review.request", "see")
    secret = publish(service, "deploy.request", "secret", conversation_id=request["conversation_id"])
    path = f"messages?conversation={request['conversation_id']}"
    seen = {
        name: [each["topic"] for each in service.ask("GET", f"/exchange/{path}", token=token_of(name))[1]["messages"]]
        for name in ("reader", "outsider", "viewer")
    }
    assert seen == {
        "reader": ["review.request"],
        "outsider": ["deploy.request"],
        "viewer": ["review.request", "deploy.request"],
    }
    for suffix in ("", "/why"):
        status, refused = service.ask(
            "GET", f"/exchange/messages/{secret['message_id']}{suffix}", token=token_of("reader")
        )
        assert (status, refused["code"]) == (404, "message_unknown")
    publish(service, "deploy.to-production")
    claim(service, "deploy.to-production")
    misspelled = publish(service, "review.to-production")
    path = f"/exchange/messages/{misspelled['message_id']}/why"
    shown = [service.ask("GET", path, token=token_of(name))[1]["reasons"][0]["similar"] for name in ("viewer", "owner")]
    assert (shown[0], shown[1] == shown[0]) == ("deploy.to-production", False)
    topics = service.ask("GET", "/exchange/topics", token=token_of("outsider"))[1]["topics"]
    assert {topic["topic"].partition(".")[0] for topic in topics} == {"deploy"}
    page = service.ask("GET", "/exchange/topics?limit=1", token=token_of("reader"))[1]
    assert [page["topics"][0]["topic"], page["next"]] == ["review.request"] * 2
    path = f"/exchange/conversations/{request['conversation_id']}?success_topic=deploy.request&failure_topic=review.x"
    assert service.ask("GET", path, token=token_of("reader"))[0] == 403
    assert service.ask("GET", path, token=token_of("viewer"))[1]["reply"]["body"] == "secret"


def test_a_follow_up_needs_the_right_to_publish_on_its_topic(service: Service) -> None:
    """The default topic, a named one, and that of a handover."""
    publish(service, "review.check")
    claims = {"topic": "review.check", "worker_group": "w"}
    _, answer = service.ask("POST", "/exchange/claims", claims, token=token_of("worker"))
    path = f"/exchange/claims/{answer['claims'][0]['claim_id']}"
    refused = [
        ("complete", {"topic": "deploy.request", "body": "x"}),
        ("fail", {"topic": "review.failed", "body": "x"}),
        ("time_out", {"body": "x"}),
        ("release", {"to": "review.other"}),
    ]
    statuses = [service.ask("POST", f"{path}/{verb}", body, token=token_of("worker"))[0] for verb, body in refused]
    assert statuses == [403] * len(refused)
    done = {"topic": "review.done", "body": "x"}
    assert service.ask("POST", f"{path}/complete", done, token=token_of("worker"))[0] == 200


def test_a_claim_of_another_caller_does_not_show_its_topic(service: Service) -> None:
    publish(service, "deploy.plan")
    (claimed,) = claim(service, "deploy.plan")
    for verb, body in (("complete", {"body": "x"}), ("release", {"to": "review.done"}), ("extend", {})):
        path = f"/exchange/claims/{claimed['claim_id']}/{verb}"
        status, refused = service.ask("POST", path, body, token=token_of("worker"))
        assert (status, refused["code"], "deploy" in str(refused)) == (404, "claim_unknown", False)


def test_the_caller_is_recorded_apart_from_the_producer(service: Service) -> None:
    message = {"topic": "deploy.check", "body": "x", "producer": "a program"}
    _, published = service.ask("POST", "/exchange/messages", message, token=token_of("outsider"))
    _, shown = service.ask("GET", f"/exchange/messages/{published['message_id']}")
    assert (shown["producer"], shown["published_by"]) == ("a program", "token:outsider")
    (claimed,) = claim(service, "deploy.check")
    assert claimed["claimed_by"] == "token:e2e"
    assert act(service, claimed["claim_id"], "complete")[0] == 200
