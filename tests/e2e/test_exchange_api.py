"""The exchange of a running service over HTTP: publish, claim, end, wait, read, operate."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.commands import ductile_json
from tests.e2e.exchange_client import act, claim, get, publish, waiting_count, waiting_workers
from tests.e2e.service import Home, Service, Start, poll_until

OTHER = "another-token-0123456789abcdef"
OTHER_TOKEN = f'      - {{name: other, token: {OTHER}, scopes: ["exchange:rw"]}}\n'


@pytest.fixture
def service(start: Start) -> Service:
    return start()


def test_a_message_is_published_claimed_and_completed_with_a_follow_up(service: Service, home: Home) -> None:
    published = publish(service, metadata={"urgent": True}, producer="me")
    (claimed,) = claim(service)
    assert claimed["message"]["message_id"] == published["message_id"] == published["conversation_id"]
    assert (claimed["delivery"], claimed["message"]["metadata"]) == (1, {"urgent": True})
    assert 80 < claimed["lease_seconds"] <= 90
    status, ended = act(service, claimed["claim_id"], "complete", body="looks good")
    assert (status, ended["state"], ended["follow_up"]["topic"]) == (200, "completed", "review.done")
    assert ended["follow_up"]["conversation_id"] == published["conversation_id"]
    assert (ended["follow_up"]["body"], ended["follow_up"]["parent_id"]) == (None, published["message_id"])
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
    (claimed,) = claim(service, lease=3)
    status, extended = act(service, claimed["claim_id"], "extend", lease="1h")
    assert (status, extended["extensions"]) == (200, 1)
    assert claim(service, wait="3500ms") == []


def test_a_claim_can_be_extended_by_a_shorter_lease(service: Service) -> None:
    publish(service)
    (claimed,) = claim(service, lease="1h")
    with waiting_workers(service, 1) as (worker,):
        poll_until(lambda: waiting_count(service) == 1)
        act(service, claimed["claim_id"], "extend", lease=1)
        assert worker.result(timeout=10)[0]["message_id"] == claimed["message_id"]


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


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_list_selects_and_pages_messages_in_the_order_of_publishing(service: Service) -> None:
    for topic in ("review.request", "review.done", "deploy.request"):
        publish(service, topic, f"of {topic}")
    assert [each["body"] for each in get(service, "messages?topic=review.*")["messages"]] == [
        "of review.request",
        "of review.done",
    ]
    page = get(service, "messages?limit=1&body=false")
    assert (page["messages"][0]["body"], page["has_more"]) == (None, True)
    assert [each["topic"] for each in get(service, f"messages?after={page['next']}")["messages"]] == [
        "review.done",
        "deploy.request",
    ]
    newest = get(service, "messages?order=desc&limit=1")
    assert newest["messages"][0]["topic"] == "deploy.request"
    assert get(service, f"messages?order=desc&limit=1&after={newest['next']}")["messages"][0]["topic"] == "review.done"
    claim(service)
    assert [each["topic"] for each in get(service, "messages?state=claimed")["messages"]] == ["review.request"]


def test_a_list_waits_for_the_next_message(service: Service) -> None:
    position = publish(service)["seq"]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(get, service, f"messages?topic=review.*&after={position}&wait=30s")
        second = publish(service)
        assert [each["message_id"] for each in waiting.result()["messages"]] == [second["message_id"]]


def test_a_message_is_shown_with_its_claims_and_replies(service: Service) -> None:
    message_id = publish(service)["message_id"]
    (claimed,) = claim(service)
    shown = get(service, f"messages/{message_id}")
    assert (shown["state"], shown["deliveries"], len(shown["claims"])) == ("claimed", 1, 1)
    assert shown["claims"][0]["lease_seconds"] > 80
    act(service, claimed["claim_id"], "fail", body="no")
    shown = get(service, f"messages/{message_id}")
    assert (shown["state"], shown["claims"][0]["status"]) == ("failed", "failed")
    assert [(each["topic"], each["body"]) for each in shown["replies"]] == [("review.failed", None)]
    assert get(service, f"messages/{message_id}/why")["state"] == "failed"
    assert service.ask("GET", "/exchange/messages/nothing")[1]["code"] == "message_unknown"


def without_words(explanation: dict[str, Any]) -> dict[str, Any]:
    """Return the explanation without its sentences, which say how long ago something happened."""
    reasons = [{name: value for name, value in each.items() if name != "words"} for each in explanation["reasons"]]
    return {name: value for name, value in explanation.items() if name != "words"} | {"reasons": reasons}


def test_the_explanation_is_that_of_the_command(service: Service, home: Home) -> None:
    wrong = []
    ready, claimed, failed = (publish(service)["message_id"] for _ in range(3))
    act(service, claim(service, max=3)[2]["claim_id"], "fail", reason="cannot")
    act(service, get(service, f"messages/{ready}")["claims"][0]["claim_id"], "release")
    for message_id in (claimed, failed, ready):
        by_http = without_words(get(service, f"messages/{message_id}/why"))
        by_command = without_words(ductile_json(home, "exchange", "why", message_id))
        if by_http != by_command:
            wrong.append((by_http, by_command))
    assert wrong == []


def test_a_conversation_waits_for_its_reply(service: Service) -> None:
    """Success, failure, timeout and the end without a reply all end the wait."""
    ends = {"complete": "success", "fail": "failure", "time_out": "timed_out"}
    for verb, state in ends.items():
        for body in ({"body": "an answer"}, {}):
            request = publish(service)
            path = f"conversations/{request['conversation_id']}"
            assert get(service, path)["state"] == "pending"
            with ThreadPoolExecutor() as pool:
                waiting = pool.submit(get, service, f"{path}?wait=30s&reply=first&request={request['message_id']}")
                act(service, claim(service)[0]["claim_id"], verb, **body)
                found = waiting.result()
            assert found["state"] == state
            assert (found["reply"] is not None) is bool(body)


def test_a_dead_message_is_a_reply(service: Service) -> None:
    request = publish(service)
    for _ in range(5):
        act(service, claim(service)[0]["claim_id"], "release", reason="cannot")
    found = get(service, f"conversations/{request['conversation_id']}")
    assert (found["state"], found["reply"]["topic"], found["reply"]["body"]) == (
        "dead",
        "review.request.dead",
        "please",
    )


def test_a_tracked_conversation_is_listed_until_its_sender_was_notified(service: Service) -> None:
    request = publish(service, track=True)
    assert [each["state"] for each in get(service, "tracked")["tracked"]] == ["pending"]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(get, service, "tracked?wait=30s")
        act(service, claim(service)[0]["claim_id"], "complete", body="fine")
        (tracked,) = waiting.result()["tracked"]
    assert (tracked["state"], tracked["reply"]["body"]) == ("success", "fine")
    path = f"/exchange/tracked/{request['conversation_id']}/notified"
    assert [service.ask("POST", path)[1]["changed"] for _ in range(2)] == [True, False]
    assert get(service, "tracked")["tracked"] == []


# ── operators ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_paused_topic_delivers_nothing_until_it_is_resumed(service: Service) -> None:
    status, paused = service.ask("POST", "/exchange/topics/review.request/pause", {"reason": "maintenance"})
    assert (status, paused["changed"]) == (200, True)
    publish(service)
    (topic,) = get(service, "topics")["topics"]
    assert (topic["ready"], topic["paused"], topic["pause_reason"]) == (1, True, "maintenance")
    with waiting_workers(service, 1) as (worker,):
        poll_until(lambda: waiting_count(service) == 1)
        assert service.ask("POST", "/exchange/topics/review.request/resume?dry_run=true")[1]["changed"] is True
        assert waiting_count(service) == 1
        assert service.ask("POST", "/exchange/topics/review.request/resume")[1]["changed"] is True
        assert len(worker.result()) == 1


def test_a_failed_message_can_be_requeued(service: Service) -> None:
    message_id = publish(service)["message_id"]
    path = f"/exchange/messages/{message_id}/requeue"
    assert service.ask("POST", path)[0] == 409
    act(service, claim(service)[0]["claim_id"], "fail")
    assert service.ask("POST", f"{path}?dry_run=true")[1]["state"] == "ready"
    assert claim(service) == []
    with waiting_workers(service, 1) as (worker,):
        poll_until(lambda: waiting_count(service) == 1)
        assert service.ask("POST", path)[1]["state"] == "ready"
        assert worker.result()[0]["message_id"] == message_id


def test_a_purge_ends_the_messages_that_no_worker_has_claimed(service: Service) -> None:
    first = publish(service)["message_id"]
    claim(service)
    publish(service)
    assert service.ask("POST", "/exchange/topics/review.request/purge?dry_run=true")[1]["remaining"] == 1
    assert service.ask("POST", "/exchange/topics/review.request/purge")[1]["purged"] == 1
    states = {each["message_id"]: each["state"] for each in get(service, "messages")["messages"]}
    assert states.pop(first) == "claimed"
    assert list(states.values()) == ["dead"]
