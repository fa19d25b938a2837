"""The http_watch plugin: it tells what has changed, once, and keeps watching whatever a server does."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.e2e.service import Home
from tests.plugins.bundled import Said, ask, said
from tests.plugins.local_http import Reply, Seen, Site, sending, serving
from tests.plugins.serving import Start, events_of, serve


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        yield running


def poll(*watches: dict[str, Any], state: dict[str, Any] | None = None, **config: Any) -> Said:
    return ask("http_watch", "poll", config={"watches": list(watches), **config}, state=state)


def polls(site: Site, watch: dict[str, Any], *pages: Reply) -> list[list[dict[str, Any]]]:
    """The events of one poll after the other, the state carried on; each finds another page."""
    state: dict[str, Any] = {}
    events = []
    for page in pages:
        site.pages["/"] = page
        answer = poll({"id": "w", "url": site.url(), **watch}, state=state).answer
        assert answer["status"] == "ok", answer
        state = answer.get("state_updates", state)
        events.append(answer["events"])
    return events


# Through the service


def test_a_change_is_an_event_and_no_change_is_none(home: Home, start: Start, site: Site) -> None:
    """The first look is remembered, a change is told once, and what was seen is a fact."""
    site.pages["/"] = Reply(b"one")
    service = serve(home, start, "http_watch", {"watches": [{"id": "front", "url": site.url(), "include_text": True}]})

    first = events_of(service.run("http_watch"))
    same = events_of(service.run("http_watch"))
    site.pages["/"] = Reply(b"two")
    changed = events_of(service.run("http_watch"))
    after = events_of(service.run("http_watch"))

    assert (first, same, after) == ([], [], [])
    ((kind, payload),) = changed
    assert (kind, payload["watch_id"], payload["url"], payload["text"]) == (
        "http_watch.changed",
        "front",
        site.url(),
        "two",
    )
    assert payload["fingerprint"] != payload["previous_fingerprint"]
    facts = home.rows("SELECT fact_type, fact_json FROM plugin_facts ORDER BY seq")
    assert [fact["fact_type"] for fact in facts] == ["http_watch.snapshot"] * 2
    assert json.loads(facts[-1]["fact_json"])["watches"]["front"]["fingerprint"] == payload["fingerprint"]


def test_a_server_that_is_down_is_asked_again(home: Home, start: Start, site: Site) -> None:
    """When nothing could be watched the attempt has failed, and the next one finds the change."""
    answers = iter([Reply(b"one"), Reply(status=500, headers={"Retry-After": "0"}), Reply(b"two")])
    site.pages["/"] = lambda _: next(answers)
    watches = [{"id": "w", "url": site.url()}]
    service = serve(home, start, "http_watch", {"watches": watches}, retry={"max_attempts": 2})

    service.run("http_watch")
    job = service.run("http_watch")

    assert [kind for kind, _ in events_of(job)] == ["http_watch.changed"]
    assert [row["status"] for row in home.rows("SELECT status FROM job_log ORDER BY completed_at")][-2:] == [
        "failed",
        "succeeded",
    ]


def test_a_watch_without_a_url_is_told_and_not_tried_again(home: Home, start: Start) -> None:
    """The place in the configuration is named."""
    service = serve(home, start, "http_watch", {"watches": [{"id": "w"}]}, retry={"max_attempts": 4})

    job = service.run("http_watch")

    assert (job["status"], job["last_error"]) == ("failed", "exit code 78: watches[0].url is missing; it must be text")


# What counts as a change


def test_validators_spare_the_transfer(site: Site) -> None:
    """ETag and Last-Modified of the last answer are sent, and 304 is no change."""

    def page(seen: Seen) -> Reply:
        if seen.headers.get("if-none-match") == '"v1"':
            return Reply(status=304)
        return Reply(b"one", headers={"ETag": '"v1"', "Last-Modified": "Mon, 02 Feb 2026 10:00:00 GMT"})

    site.pages["/"] = page
    first = poll({"id": "w", "url": site.url()}).answer
    second = poll({"id": "w", "url": site.url()}, state=first["state_updates"]).answer

    assert site.seen[1].headers["if-modified-since"] == "Mon, 02 Feb 2026 10:00:00 GMT"
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
def test_the_strategy_decides_what_a_change_is(
    site: Site, watch: dict[str, Any], pages: list[Reply], changes: list[int]
) -> None:
    """The body, a header, or the value at a path of JSON."""
    assert [len(events) for events in polls(site, watch, *pages)] == changes


def test_a_value_is_told_with_the_one_before(site: Site) -> None:
    """Under the type that the operator gave it."""
    watch = {"json_path": "tag", "event_type": "release.new"}

    _, ((event),) = polls(site, watch, Reply(b'{"tag": "v1"}'), Reply(b'{"tag": "v2"}'))

    assert event["type"] == "release.new"
    assert (event["payload"]["previous_value"], event["payload"]["value"]) == ("v1", "v2")


def test_a_page_that_returns_to_what_it_was_is_two_changes(site: Site) -> None:
    """Their keys differ, or the second would be taken for a repetition of the first."""
    events = polls(site, {}, Reply(b"a"), Reply(b"b"), Reply(b"a"), Reply(b"b"))
    keys = [event["dedupe_key"] for each in events for event in each]

    assert len(keys) == len(set(keys)) == 3


def test_another_question_starts_anew(site: Site) -> None:
    """A watch that now means another URL has nothing to compare with."""
    site.pages |= {"/a": Reply(b"a"), "/b": Reply(b"b")}
    first = poll({"id": "w", "url": site.url("/a")}).answer
    second = poll({"id": "w", "url": site.url("/b")}, state=first["state_updates"]).answer

    assert second["events"] == []


# Several, and what goes wrong


def test_one_that_fails_does_not_hide_the_others(site: Site) -> None:
    """Its failure is told once, until it has recovered; its last fingerprint is not forgotten."""
    site.pages |= {"/a": Reply(b"1"), "/b": Reply(b"1")}
    watches = [{"id": "a", "url": site.url("/a")}, {"id": "b", "url": site.url("/b")}]
    state = poll(*watches).answer["state_updates"]
    site.pages |= {"/a": Reply(b"2"), "/b": Reply(status=500)}
    failing = poll(*watches, state=state).answer
    still = poll(*watches, state=failing["state_updates"]).answer
    site.pages["/b"] = Reply(b"2")
    recovered = poll(*watches, state=failing["state_updates"]).answer

    assert [event["type"] for event in failing["events"]] == ["http_watch.changed", "http_watch.failed"]
    assert failing["events"][1]["payload"]["text"] == "cannot check b: 127.0.0.1 responded with status 500"
    assert failing["result"] == "2 checked, 1 changed, 1 failed"
    assert still["events"] == []
    assert [event["payload"]["watch_id"] for event in recovered["events"]] == ["b"]
    assert "error" not in recovered["state_updates"]["watches"]["b"]


def test_when_all_fail_one_that_may_pass_is_enough_to_try_again(site: Site) -> None:
    """A page that is gone does not decide for a server that is busy."""
    site.pages["/busy"] = Reply(status=503)
    answer = poll({"id": "gone", "url": site.url("/gone")}, {"id": "busy", "url": site.url("/busy")}).answer

    assert (answer["error"], answer["retry"]) == ("127.0.0.1 responded with status 503", True)


def test_what_there_is_no_time_for_comes_first_in_the_next_poll(site: Site) -> None:
    """A poll ends before its deadline, and nobody is left out for ever."""
    site.pages |= {f"/{name}": Reply(b"x") for name in "abc"}
    watches = [{"id": name, "url": site.url(f"/{name}")} for name in "abc"]
    deadline = (datetime.now(UTC) + timedelta(seconds=3)).isoformat().replace("+00:00", "Z")
    config = {"watches": watches, "timeout_seconds": 10}

    first = ask("http_watch", "poll", config=config, deadline_at=deadline).answer
    second = ask("http_watch", "poll", config=config, state=first["state_updates"], deadline_at=deadline).answer

    assert [seen.path for seen in site.seen] == ["/a", "/b"]
    assert (first["state_updates"]["next"], second["state_updates"]["next"]) == ("b", "c")


def test_a_watch_that_is_gone_is_forgotten(site: Site) -> None:
    """The state has what is configured and no more."""
    site.pages["/"] = Reply(b"1")
    state = poll({"id": "old", "url": site.url()}).answer["state_updates"]

    assert set(poll({"id": "new", "url": site.url()}, state=state).answer["state_updates"]["watches"]) == {"new"}


def test_a_configured_url_may_be_private_but_where_it_leads_may_not(site: Site) -> None:
    """The operator knows the own network; a server does not choose targets in it."""
    with serving() as other:
        site.pages["/"] = Reply(status=302, headers={"Location": other.url()})
        answer = poll({"id": "w", "url": site.url()}).answer

        assert "which is not public" in answer["error"]
        assert answer["retry"] is False
        assert other.seen == []


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
def test_an_answer_that_says_nothing_about_a_change_is_a_failure(
    site: Site, watch: dict[str, Any], reply: Reply, error: str
) -> None:
    """Never a change."""
    site.pages["/"] = reply

    answer = poll(
        {"id": "w", "url": site.url(), **watch}, max_response_bytes=1000 if b"xx" in reply.body else 1 << 20
    ).answer

    assert error in answer["error"]


def test_a_value_that_is_too_large_is_told_by_its_fingerprint(site: Site) -> None:
    """Neither the state nor the answer grows with what a server sends."""
    pages = [Reply(b'{"a": "' + letter * 50_000 + b'"}') for letter in (b"x", b"y")]

    _, ((first),), ((second),) = polls(site, {"json_path": "a"}, Reply(b"{}"), *pages)

    assert (first["payload"]["value"], second["payload"]["value"]) == (None, None)
    assert first["payload"]["fingerprint"] != second["payload"]["fingerprint"]


def test_texts_that_do_not_fit_into_an_answer_are_left_out(site: Site) -> None:
    """The changes are told all the same."""
    site.pages["/"] = Reply(b"\x01" * 500_000, headers={"Content-Type": "text/plain"})
    watches = [{"id": f"w{n}", "url": site.url(), "include_text": True, "emit_initial": True} for n in range(3)]

    answer = poll(*watches).answer

    assert ["text" in event["payload"] for event in answer["events"]] == [True, False, False]
    assert [line["message"] for line in answer["logs"]] == [
        f"w{n}: its text does not fit in this response" for n in (1, 2)
    ]


def test_a_slow_server_costs_its_time_and_no_more(site: Site) -> None:
    """The others are watched."""
    site.pages["/"] = Reply(b"1")
    with sending(lambda over: [b""] if over.wait() else []) as slow:
        answer = poll({"id": "slow", "url": slow}, {"id": "w", "url": site.url()}, timeout_seconds=0.5).answer

    assert answer["result"] == "2 checked, 0 changed, 1 failed"
    assert "w" in answer["state_updates"]["watches"]


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
def test_a_configuration_that_cannot_be_meant_ends_with_78(config: dict[str, Any], error: str) -> None:
    """`health` finds it without asking anybody."""
    outcome = ask("http_watch", "health", config=config)

    assert outcome.code == 78
    assert error in outcome.answer["error"]


@pytest.mark.parametrize("options", [("-S",), ("-I",)])
def test_it_runs_with_nothing_but_the_standard_library(options: tuple[str, ...]) -> None:
    """Isolated, and without site-packages."""
    config = {"watches": [{"id": "a", "url": "http://x/"}]}
    request = {"protocol": 2, "job_id": "j", "command": "health", "config": config, "state": {}}

    assert said("http_watch", json.dumps(request).encode(), options=options).answer["result"] == "healthy (1 URLs)"
