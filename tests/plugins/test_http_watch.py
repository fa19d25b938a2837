"""http_watch reports each change once, and misbehaving servers do not stop it."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.e2e.service import Home
from tests.plugins.bundled import PluginRun, run_plugin, run_raw
from tests.plugins.local_http import HttpServer, ReceivedRequest, Reply, start_http_server, start_raw_server
from tests.plugins.plugin_service import Start, events_of, start_with_plugin


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with start_http_server() as running:
        yield running


def poll(*watches: dict[str, Any], state: dict[str, Any] | None = None, **config: Any) -> PluginRun:
    return run_plugin("http_watch", "poll", config={"watches": list(watches), **config}, state=state)


def poll_each(server: HttpServer, watch: dict[str, Any], *pages: Reply) -> list[list[dict[str, Any]]]:
    """Poll once per page, with the state of the last response, and return the events of each poll."""
    state: dict[str, Any] = {}
    events = []
    for page in pages:
        server.pages["/"] = page
        response = poll({"id": "w", "url": server.url(), **watch}, state=state).response
        assert response["status"] == "ok", response
        state = response.get("state_updates", state)
        events.append(response["events"])
    return events


# In a service


def test_each_change_emits_one_event_and_stores_a_fact(home: Home, start: Start, server: HttpServer) -> None:
    server.pages["/"] = Reply(b"one")
    service = start_with_plugin(
        home, start, "http_watch", {"watches": [{"id": "front", "url": server.url(), "include_text": True}]}
    )

    first = events_of(service.run("http_watch"))
    same = events_of(service.run("http_watch"))
    server.pages["/"] = Reply(b"two")
    changed = events_of(service.run("http_watch"))
    after = events_of(service.run("http_watch"))

    assert (first, same, after) == ([], [], [])
    ((kind, payload),) = changed
    assert (kind, payload["watch_id"], payload["url"], payload["text"]) == (
        "http_watch.changed",
        "front",
        server.url(),
        "two",
    )
    assert payload["fingerprint"] != payload["previous_fingerprint"]
    facts = home.rows("SELECT fact_type, fact_json FROM plugin_facts ORDER BY seq")
    assert [fact["fact_type"] for fact in facts] == ["http_watch.snapshot"] * 2
    assert json.loads(facts[-1]["fact_json"])["watches"]["front"]["fingerprint"] == payload["fingerprint"]


def test_an_unreachable_server_is_retried(home: Home, start: Start, server: HttpServer) -> None:
    replies = iter([Reply(b"one"), Reply(status=500, headers={"Retry-After": "0"}), Reply(b"two")])
    server.pages["/"] = lambda _: next(replies)
    watches = [{"id": "w", "url": server.url()}]
    service = start_with_plugin(home, start, "http_watch", {"watches": watches}, retry={"max_attempts": 2})

    service.run("http_watch")
    job = service.run("http_watch")

    assert [kind for kind, _ in events_of(job)] == ["http_watch.changed"]
    assert [row["status"] for row in home.rows("SELECT status FROM job_log ORDER BY completed_at")][-2:] == [
        "failed",
        "succeeded",
    ]


def test_a_watch_without_a_url_is_an_error_without_retry(home: Home, start: Start) -> None:
    service = start_with_plugin(home, start, "http_watch", {"watches": [{"id": "w"}]}, retry={"max_attempts": 4})

    job = service.run("http_watch")

    assert (job["status"], job["last_error"]) == ("failed", "exit code 78: watches[0].url is missing; it must be text")


# Changes


def test_validators_are_sent_and_304_is_no_change(server: HttpServer) -> None:
    def page(request: ReceivedRequest) -> Reply:
        if request.headers.get("if-none-match") == '"v1"':
            return Reply(status=304)
        return Reply(b"one", headers={"ETag": '"v1"', "Last-Modified": "Mon, 02 Feb 2026 10:00:00 GMT"})

    server.pages["/"] = page
    first = poll({"id": "w", "url": server.url()}).response
    second = poll({"id": "w", "url": server.url()}, state=first["state_updates"]).response

    assert server.requests[1].headers["if-modified-since"] == "Mon, 02 Feb 2026 10:00:00 GMT"
    assert (second["status"], second["events"]) == ("ok", [])
    assert "state_updates" not in second


def tagged(body: bytes, tag: str) -> Reply:
    return Reply(body, headers={"ETag": tag, "Last-Modified": tag})


@pytest.mark.parametrize(
    ("watch", "pages", "changes"),
    [
        ({}, [Reply(b"a"), Reply(b"a"), Reply(b"b"), Reply(b"a")], [0, 0, 1, 1]),
        ({"emit_initial": True}, [Reply(b"a"), Reply(b"a")], [1, 0]),
        ({"strategy": "hash"}, [tagged(b"a", "1"), tagged(b"a", "2")], [0, 0]),
        ({"strategy": "etag"}, [tagged(b"a", "1"), tagged(b"b", "1"), tagged(b"b", "2")], [0, 0, 1]),
        ({"strategy": "last_modified"}, [tagged(b"a", "1"), tagged(b"a", "2")], [0, 1]),
        ({"json_path": "a.0.b"}, [Reply(b'{"a": [{"b": 1}], "c": 1}'), Reply(b'{"a": [{"b": 1}], "c": 2}')], [0, 0]),
        ({"json_path": "a.0.b"}, [Reply(b'{"a": [{"b": 1}]}'), Reply(b'{"a": [{"b": 2}]}')], [0, 1]),
        ({"json_path": "a"}, [Reply(b'{"a": {"x": 1, "y": 2}}'), Reply(b'{"a": {"y": 2, "x": 1}}')], [0, 0]),
        ({"json_path": "a"}, [Reply(b"{}"), Reply(b'{"a": null}'), Reply(b'{"a": 0}'), Reply(b"[]")], [0, 0, 1, 1]),
    ],
)
def test_the_strategy_decides_what_is_compared(
    server: HttpServer, watch: dict[str, Any], pages: list[Reply], changes: list[int]
) -> None:
    assert [len(events) for events in poll_each(server, watch, *pages)] == changes


def test_a_change_has_the_new_and_the_previous_value(server: HttpServer) -> None:
    watch = {"json_path": "tag", "event_type": "release.new"}

    _, ((event),) = poll_each(server, watch, Reply(b'{"tag": "v1"}'), Reply(b'{"tag": "v2"}'))

    assert event["type"] == "release.new"
    assert (event["payload"]["previous_value"], event["payload"]["value"]) == ("v1", "v2")


def test_a_page_that_returns_to_earlier_content_has_a_new_dedupe_key(server: HttpServer) -> None:
    events = poll_each(server, {}, Reply(b"a"), Reply(b"b"), Reply(b"a"), Reply(b"b"))
    keys = [event["dedupe_key"] for each in events for event in each]

    assert len(keys) == len(set(keys)) == 3


def test_a_changed_url_starts_without_a_previous_value(server: HttpServer) -> None:
    server.pages |= {"/a": Reply(b"a"), "/b": Reply(b"b")}
    first = poll({"id": "w", "url": server.url("/a")}).response
    second = poll({"id": "w", "url": server.url("/b")}, state=first["state_updates"]).response

    assert second["events"] == []


# Several watches, and failures


def test_a_failed_watch_does_not_affect_the_others(server: HttpServer) -> None:
    """Its failure is reported once until it recovers, and it keeps its fingerprint."""
    server.pages |= {"/a": Reply(b"1"), "/b": Reply(b"1")}
    watches = [{"id": "a", "url": server.url("/a")}, {"id": "b", "url": server.url("/b")}]
    state = poll(*watches).response["state_updates"]
    server.pages |= {"/a": Reply(b"2"), "/b": Reply(status=500)}
    failing = poll(*watches, state=state).response
    still = poll(*watches, state=failing["state_updates"]).response
    server.pages["/b"] = Reply(b"2")
    recovered = poll(*watches, state=failing["state_updates"]).response

    assert [event["type"] for event in failing["events"]] == ["http_watch.changed", "http_watch.failed"]
    assert failing["events"][1]["payload"]["text"] == "cannot check b: 127.0.0.1 responded with status 500"
    assert failing["result"] == "2 checked, 1 changed, 1 failed"
    assert still["events"] == []
    assert [event["payload"]["watch_id"] for event in recovered["events"]] == ["b"]
    assert "error" not in recovered["state_updates"]["watches"]["b"]


def test_if_all_watches_fail_one_temporary_failure_allows_a_retry(server: HttpServer) -> None:
    server.pages["/busy"] = Reply(status=503)
    response = poll({"id": "gone", "url": server.url("/gone")}, {"id": "busy", "url": server.url("/busy")}).response

    assert (response["error"], response["retry"]) == ("127.0.0.1 responded with status 503", True)


def test_watches_skipped_for_lack_of_time_come_first_in_the_next_poll(server: HttpServer) -> None:
    server.pages |= {f"/{name}": Reply(b"x") for name in "abc"}
    watches = [{"id": name, "url": server.url(f"/{name}")} for name in "abc"]
    deadline = (datetime.now(UTC) + timedelta(seconds=3)).isoformat().replace("+00:00", "Z")
    config = {"watches": watches, "timeout_seconds": 10}

    first = run_plugin("http_watch", "poll", config=config, deadline_at=deadline).response
    second = run_plugin(
        "http_watch", "poll", config=config, state=first["state_updates"], deadline_at=deadline
    ).response

    assert [request.path for request in server.requests] == ["/a", "/b"]
    assert (first["state_updates"]["next"], second["state_updates"]["next"]) == ("b", "c")


def test_a_removed_watch_is_removed_from_the_state(server: HttpServer) -> None:
    server.pages["/"] = Reply(b"1")
    state = poll({"id": "old", "url": server.url()}).response["state_updates"]

    assert set(poll({"id": "new", "url": server.url()}, state=state).response["state_updates"]["watches"]) == {"new"}


def test_a_configured_url_may_be_private_but_its_redirects_may_not(server: HttpServer) -> None:
    with start_http_server() as other:
        server.pages["/"] = Reply(status=302, headers={"Location": other.url()})
        response = poll({"id": "w", "url": server.url()}).response

        assert "which is not public" in response["error"]
        assert response["retry"] is False
        assert other.requests == []


@pytest.mark.parametrize(
    ("watch", "reply", "error"),
    [
        ({"json_path": "a"}, Reply(b"{nonsense"), "the response is not JSON"),
        ({"json_path": "a"}, Reply(b'{"a": NaN}'), "the response is not JSON"),
        ({"json_path": "a"}, Reply(b'{"a": -1e999}'), "the response is not JSON"),
        ({"json_path": "a"}, Reply(b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}"), "more than 50 levels"),
        ({"json_path": "a"}, Reply(b"[" * 100_000), "the response is not JSON"),
        ({"strategy": "etag"}, Reply(b"x"), "the response has no ETag header; use strategy hash"),
        ({}, Reply(b"x" * 2000), "sent more than 1000 bytes"),
        ({}, Reply(status=304), "unconditional request"),
        ({}, Reply(status=404), "responded with status 404"),
    ],
)
def test_an_unusable_response_is_a_failure_and_no_change(
    server: HttpServer, watch: dict[str, Any], reply: Reply, error: str
) -> None:
    server.pages["/"] = reply

    response = poll(
        {"id": "w", "url": server.url(), **watch}, max_response_bytes=1000 if b"xx" in reply.body else 1 << 20
    ).response

    assert error in response["error"]


def test_a_large_value_is_reported_by_its_fingerprint(server: HttpServer) -> None:
    pages = [Reply(b'{"a": "' + letter * 50_000 + b'"}') for letter in (b"x", b"y")]

    _, ((first),), ((second),) = poll_each(server, {"json_path": "a"}, Reply(b"{}"), *pages)

    assert (first["payload"]["value"], second["payload"]["value"]) == (None, None)
    assert first["payload"]["fingerprint"] != second["payload"]["fingerprint"]


def test_texts_that_exceed_the_response_are_omitted(server: HttpServer) -> None:
    """The changes are still reported."""
    server.pages["/"] = Reply(b"\x01" * 500_000, headers={"Content-Type": "text/plain"})
    watches = [{"id": f"w{n}", "url": server.url(), "include_text": True, "emit_initial": True} for n in range(3)]

    response = poll(*watches).response

    assert ["text" in event["payload"] for event in response["events"]] == [True, False, False]
    assert [line["message"] for line in response["logs"]] == [
        f"w{n}: its text does not fit in this response" for n in (1, 2)
    ]


def test_a_slow_server_does_not_affect_other_watches(server: HttpServer) -> None:
    server.pages["/"] = Reply(b"1")
    with start_raw_server(lambda over: [b""] if over.wait() else []) as slow:
        response = poll({"id": "slow", "url": slow}, {"id": "w", "url": server.url()}, timeout_seconds=0.5).response

    assert response["result"] == "2 checked, 0 changed, 1 failed"
    assert "w" in response["state_updates"]["watches"]


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({}, "watches is missing"),
        ({"watches": []}, "watches must have 1 to 100 entries"),
        ({"watches": ["http://x"]}, "watches[0] must be a mapping"),
        ({"watches": [{"id": "a", "url": "ftp://x/"}]}, "begin with http"),
        ({"watches": [{"id": "a" * 65, "url": "http://x/"}]}, "id must have at most 64 characters"),
        ({"watches": [{"id": "a", "url": "http://x/", "stategy": "hash"}]}, "did you mean strategy?"),
        ({"watches": [{"id": "a", "url": "http://x/", "strategy": "guess"}]}, "strategy must be one of"),
        ({"watches": [{"id": "a", "url": "http://x/", "strategy": "json"}]}, "requires strategy json"),
        ({"watches": [{"id": "a", "url": "http://x/"}] * 2}, "duplicate id 'a'"),
        ({"watches": [{"id": "a", "url": "http://x/", "headers": {"a": 1}}]}, "headers must map names to strings"),
        ({"watches": [{"id": "a", "url": "http://x/"}], "timeout": 3}, "did you mean timeout_seconds?"),
    ],
)
def test_an_invalid_configuration_exits_with_78(config: dict[str, Any], error: str) -> None:
    outcome = run_plugin("http_watch", "health", config=config)

    assert outcome.code == 78
    assert error in outcome.response["error"]


@pytest.mark.parametrize("options", [("-S",), ("-I",)])
def test_the_plugin_runs_in_isolated_mode(options: tuple[str, ...]) -> None:
    """With `-I`, and without site-packages."""
    config = {"watches": [{"id": "a", "url": "http://x/"}]}
    request = {"protocol": 2, "job_id": "j", "command": "health", "config": config, "state": {}}

    assert run_raw("http_watch", json.dumps(request).encode(), options=options).response["result"] == "healthy (1 URLs)"
