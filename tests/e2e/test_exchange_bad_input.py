"""Bad input to the exchange over HTTP: refused with a code and a hint, and nothing is stored."""

import json
from typing import Any

import pytest

from tests.e2e.exchange_client import act, claim, get, publish
from tests.e2e.service import Home, Service, Start

Members = dict[str, Any]


def messages(*changes: Members) -> list[Members]:
    """Return a good message with each of the changes."""
    return [{"topic": "a.b", "body": "x", **change} for change in changes]


def with_values(name: str, *values: Any) -> list[Members]:
    """Return an object for each value of one member."""
    return [{name: value} for value in values]


DEEP: Any = {}
for _ in range(65):
    DEEP = {"x": DEEP}
BAD_TOPICS: tuple[Any, ...] = (
    None,
    "",
    " ",
    "A.b",
    "a..b",
    ".a",
    "a.",
    "a b",
    "a/b",
    "a.*",
    "*",
    "ä",
    "a" * 201,
    "a\n",
    1,
    [],
)
BAD_MESSAGES: dict[str, list[Members]] = {
    "topic_invalid": messages(*with_values("topic", *BAD_TOPICS)),
    "body_missing": [{"topic": "a.b"}, {"topic": "a.b", "body": None}],
    "body_not_text": messages(*with_values("body", 1, True, {}, [], "\ud800"), {"metadata": {"x": "\ud800"}}),
    "body_too_large": messages(*with_values("body", "x" * 1025, "é" * 513)),
    "metadata_invalid": messages(*with_values("metadata", [], 1, "text", {"x": "y" * (64 << 10)}, DEEP)),
    "delay_invalid": messages(*with_values("delay", -1, "-1s", "soon", 10**12, [])),
    "message_invalid": messages(
        *with_values("producer", "x" * 201, "", 1, "a\nb"),
        {"conversation_id": " "},
        {"parent_id": ""},
        {"ordering_key": []},
        {"track": True},
        {"track": "yes"},
        {"reply_topics": {"success": "a", "failure": "b"}},
        {"track": True, "reply_topics": {"success": "a"}},
    ),
    "parent_unknown": messages({"parent_id": "01a1e562-123b-77ef-ae5a-e7ab69f96846"}),
    "bad_request": [
        *messages({"metadat": {}}),
        *with_values("messages", [], {}, messages({}) * 1001, ["text"]),
        {"messages": messages({}), "topic": "a.b"},
    ],
}
CLAIM: Members = {"topic": "a.b", "worker_group": "w"}
BAD_CLAIMS: dict[str, list[Members]] = {
    "topic_invalid": [
        {"worker_group": "w"},
        {"worker_group": "w", "topics": []},
        {"worker_group": "w", "topics": ["a"] * 21},
        {**CLAIM, "topics": ["a"]},
        {**CLAIM, "topic": "a.*"},
    ],
    "lease_invalid": [
        CLAIM | lease for lease in with_values("lease", 0, "0s", -1, 0.5, "12h1s", "soon", True, [], 1e300)
    ],
    "message_invalid": [{"topic": "a.b"}, {**CLAIM, "worker_group": ""}, {**CLAIM, "worker_instance_id": 1}],
    "bad_request": [
        *(CLAIM | each for each in with_values("max", 0, 101, True)),
        *(CLAIM | each for each in with_values("wait", -1, "soon", [])),
        {**CLAIM, "leas": 1},
    ],
}


@pytest.fixture
def service(start: Start) -> Service:
    return start()


def test_bad_messages_and_claims_are_refused_and_not_stored(home: Home, start: Start) -> None:
    """Each has its code, a status of 4xx and a hint."""
    home.add("exchange: {max_body_size: 1KiB}\n")
    service, wrong = start(), []
    for path, table in (("/exchange/messages", BAD_MESSAGES), ("/exchange/claims", BAD_CLAIMS)):
        for code, bodies in table.items():
            for body in bodies:
                status, refused = service.ask("POST", path, body)
                if refused.get("code") != code or not 400 <= status < 500 or not refused["hint"]:
                    wrong.append((path, code, str(body)[:100], status, str(refused)[:200]))
    assert wrong == []
    assert home.rows("SELECT id FROM messages UNION ALL SELECT id FROM claims") == []


def test_bodies_that_are_not_json_objects_are_refused(service: Service, home: Home) -> None:
    wrong = []
    for body in (
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\xff",
        b'{"topic": "a.b", "body": "\xff"}',
        b'{"topic": "a", "topic": "b"}',
    ):
        status, refused = service.ask("POST", "/exchange/messages", body)
        if not 400 <= status < 500 or not refused["hint"]:
            wrong.append((body, status, refused))
    assert wrong == []
    assert home.rows("SELECT id FROM messages") == []


def test_bad_ends_of_a_claim_are_refused_and_leave_it_active(service: Service) -> None:
    """Among them: follow-ups without a body or a topic, and a pattern as topic."""
    publish(service, "a.b")
    claim_id = claim(service, "a.b")[0]["claim_id"]
    refusals: list[tuple[str, Members, str]] = [
        ("complete", {"body": "x"}, "topic_invalid"),
        ("complete", {"topic": "a.c"}, "body_missing"),
        ("complete", {"topic": "a.*", "body": "x"}, "topic_invalid"),
        ("complete", {"topic": "a.c", "body": "x", "metadata": []}, "metadata_invalid"),
        ("fail", {"topic": "a.c", "body": 1}, "body_not_text"),
        ("fail", {"reason": "x" * 201}, "message_invalid"),
        ("time_out", {"status": "done"}, "bad_request"),
        ("extend", {"lease": 0}, "lease_invalid"),
        ("extend", {"lease": "13h"}, "lease_invalid"),
        ("release", {"delay": -1}, "delay_invalid"),
        ("release", {"uncounted": "yes"}, "message_invalid"),
        ("release", {"to": "A"}, "topic_invalid"),
        ("release", {"to": "a.c", "delay": 1}, "message_invalid"),
    ]
    wrong = []
    for verb, fields, code in refusals:
        status, refused = act(service, claim_id, verb, **fields)
        if refused.get("code") != code or not 400 <= status < 500:
            wrong.append((verb, fields, status, refused))
    assert wrong == []
    assert get(service, "messages?state=claimed")["messages"][0]["topic"] == "a.b"


def test_unknown_claim_ids_are_404(service: Service) -> None:
    wrong = []
    for verb in ("extend", "complete", "fail", "time_out", "release"):
        for unknown in ("01a1e562-123b-77ef-ae5a-e7ab69f96846", "nothing"):
            status, refused = act(service, unknown, verb)
            if (status, refused["code"]) != (404, "claim_unknown"):
                wrong.append((verb, unknown, status, refused))
    assert wrong == []


def test_bad_queries_are_refused(service: Service) -> None:
    wrong = []
    for path in (
        "messages?topic=A",
        "messages?state=lost",
        "messages?after=-1",
        "messages?after=9999999999999999999",
        "messages?after=99999999999999999999999",
        "messages?limit=0",
        "messages?limit=1001",
        "messages?order=up",
        "messages?body=no",
        "messages?wait=-1s",
        "messages?unknown=1",
        "topics?topic=.",
        "conversations/none?reply=second",
        "conversations/none?success_topic=A&failure_topic=b",
        "follow?topic=A",
        "follow?since=x",
    ):
        status, refused = service.ask("GET", f"/exchange/{path}")
        if status != 400 or not refused["hint"]:
            wrong.append((path, status, refused))
    assert wrong == []


def test_a_full_topic_refuses_messages_and_journals_it_once(home: Home, start: Start) -> None:
    """Follow-ups are never refused for this reason."""
    home.add("exchange: {max_ready: 1}\n")
    service = start()
    publish(service)
    (claimed,) = claim(service)
    publish(service, "review.done")
    publish(service)
    for _ in range(3):
        status, refused = service.ask("POST", "/exchange/messages", {"topic": "review.request", "body": "x"})
        assert (status, refused["code"], refused["context"]["topic"]) == (429, "topic_full", "review.request")
    assert home.rows("SELECT COUNT(*) AS n FROM journal WHERE kind = 'message.refused'") == [{"n": 1}]
    assert act(service, claimed["claim_id"], "complete", body="x")[0] == 200


def test_the_largest_body_is_accepted_however_its_characters_are_escaped(service: Service) -> None:
    body = "\x01" * (1 << 20)
    publish(service, "a.b", body)
    assert claim(service, "a.b")[0]["message"]["body"] == body


def test_a_message_that_is_too_large_is_journalled_without_its_body(home: Home, start: Start) -> None:
    home.add("exchange: {max_body_size: 1KiB}\n")
    service = start()
    assert service.ask("POST", "/exchange/messages", {"topic": "a.b", "body": "x" * 2000})[0] == 413
    (row,) = home.rows("SELECT data, actor FROM journal WHERE kind = 'message.refused'")
    assert json.loads(row["data"]) == {"code": "body_too_large", "size": 2000, "max_size": 1024}
    assert row["actor"] == "token:e2e"


def test_a_disabled_exchange_is_404_with_its_reason(home: Home, start: Start) -> None:
    home.add("exchange: {enabled: false}\n")
    service = start()
    for method, path in (("POST", "messages"), ("GET", "topics"), ("POST", "claims"), ("GET", "follow")):
        status, refused = service.ask(method, f"/exchange/{path}", {} if method == "POST" else None)
        assert (status, refused["code"]) == (404, "exchange_disabled")
