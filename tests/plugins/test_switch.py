"""switch: the first check that fits names the event; the payload goes on as it came."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.e2e.service import Home
from tests.plugins.bundled import ask
from tests.plugins.serving import Start, events_of, serve

CHECKS: list[dict[str, Any]] = [
    {"contains": "youtube.com", "emit": "link.video"},
    {"startswith": "ftp:", "emit": "link.file"},
    {"endswith": ".pdf", "emit": "link.document"},
    {"equals": "about:blank", "emit": "link.nothing"},
    {"regex": r"^https?://\d+\.", "emit": "link.address"},
    {"default": True, "emit": "link.other"},
]


def test_events_are_sorted_through_the_service(home: Home, start: Start) -> None:
    """A pipeline that listens to one branch runs for that branch alone."""
    home.plugin("sink", '#!/bin/sh\ncat > /dev/null\necho \'{"status": "ok", "result": "done"}\'\n')
    home.add("pipelines:\n  - {name: videos, on: link.video, steps: [{uses: sink}]}\n")
    service = serve(home, start, "switch", {"field": "url", "checks": CHECKS})

    video = service.run("switch", "handle", {"url": "https://youtube.com/x", "n": 1})
    other = service.run("switch", "handle", {"url": "https://example.org"})

    assert events_of(video) == [("link.video", {"url": "https://youtube.com/x", "n": 1})]
    assert events_of(other) == [("link.other", {"url": "https://example.org"})]
    assert home.rows("SELECT count(*) AS n FROM job_queue WHERE plugin = 'sink'") == [{"n": 1}]


def emitted(value: Any, checks: list[dict[str, Any]], field: str = "f", **event: Any) -> list[tuple[str, str | None]]:
    source = {"type": "t", "payload": {"f": value}, **event}
    said = ask("switch", "handle", config={"field": field, "checks": checks}, event=source)
    assert said.answer["status"] == "ok", said
    return [(event["type"], event["dedupe_key"]) for event in said.answer["events"]]


@pytest.mark.parametrize(
    ("value", "event"),
    [
        ("see youtube.com/x.pdf", "link.video"),
        ("ftp://a.pdf", "link.file"),
        ("a.pdf", "link.document"),
        ("about:blank", "link.nothing"),
        ("http://10.0.0.1/", "link.address"),
        ("", "link.other"),
        (None, "link.other"),
        (["a", "youtube.com"], "link.video"),
        (["a youtube.com"], "link.other"),
    ],
)
def test_the_first_check_that_fits_wins(value: Any, event: str) -> None:
    assert emitted(value, CHECKS) == [(event, None)]


@pytest.mark.parametrize(
    ("value", "check", "fits"),
    [
        (5, {"equals": 5}, True),
        (5, {"equals": "5"}, True),
        (True, {"equals": 1}, False),
        (True, {"equals": True}, True),
        (None, {"equals": None}, True),
        ({"a": 1, "b": 2}, {"equals": {"b": 2, "a": 1}}, True),
        (150, {"startswith": "15"}, True),
        ("Ü", {"equals": "ü"}, False),
    ],
)
def test_values_that_are_no_text_compare_as_their_json(value: Any, check: dict[str, Any], fits: bool) -> None:
    assert bool(emitted(value, [{**check, "emit": "e"}])) is fits


def test_no_check_that_fits_is_no_failure() -> None:
    """Nothing is emitted; the job succeeds."""
    assert emitted("x", [{"equals": "y", "emit": "e"}]) == []


@pytest.mark.parametrize("field", ["a.b.0.c", "payload.a.b.0.c", "dotted.key"])
def test_a_field_is_a_path(field: str) -> None:
    """Into objects and lists; a key that has dots itself is found too."""
    payload = {"a": {"b": [{"c": "hit"}]}, "dotted.key": "hit"}
    config = {"field": field, "checks": [{"equals": "hit", "emit": "e"}]}
    assert len(ask("switch", "handle", config=config, payload=payload).answer["events"]) == 1
    config["field"] = "a.b.7.c.d"
    assert ask("switch", "handle", config=config, payload=payload).answer["events"] == []


def test_branches_have_dedupe_keys_of_their_own() -> None:
    """Two outcomes of one event are never taken for each other."""
    keys = [emitted(value, CHECKS, dedupe_key="k")[0][1] for value in ("ftp:", "x.pdf")]
    assert keys == ["k:link.file", "k:link.document"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "field is missing"),
        ({"field": "f"}, "checks is missing"),
        ({"field": "f", "checks": []}, "checks is empty"),
        ({"field": "f", "checks": ["x"]}, "checks[0] must be a mapping"),
        ({"field": "f", "checks": [{"emit": "e"}]}, "exactly one of"),
        ({"field": "f", "checks": [{"contains": "a", "regex": "b", "emit": "e"}]}, "exactly one of"),
        ({"field": "f", "checks": [{"contains": "a"}]}, "checks[0].emit is missing"),
        ({"field": "f", "checks": [{"contain": "a", "emit": "e"}]}, "did you mean contains"),
        ({"field": "f", "checks": [{"regex": "(", "emit": "e"}]}, "not a valid regular expression"),
        ({"field": "f", "checks": [{"default": False, "emit": "e"}]}, "default must be true"),
        ({"field": "f", "checks": [{"contains": 5, "emit": "e"}]}, "must be text"),
    ],
)
def test_a_wrong_configuration_is_final_and_says_what_is_wrong(config: Mapping[str, Any], words: str) -> None:
    for command in ("handle", "health"):
        said = ask("switch", command, config=config)
        assert (said.code, said.answer["retry"]) == (78, False)
        assert words in said.answer["error"]
