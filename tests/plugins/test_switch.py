"""switch emits the payload with the event type of the first matching check."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.e2e.service import Home
from tests.plugins.bundled import run_plugin
from tests.plugins.plugin_service import Start, events_of, start_with_plugin

CHECKS: list[dict[str, Any]] = [
    {"contains": "youtube.com", "emit": "link.video"},
    {"startswith": "ftp:", "emit": "link.file"},
    {"endswith": ".pdf", "emit": "link.document"},
    {"equals": "about:blank", "emit": "link.nothing"},
    {"regex": r"^https?://\d+\.", "emit": "link.address"},
    {"default": True, "emit": "link.other"},
]


def test_an_event_starts_the_pipeline_of_its_check_only(home: Home, start: Start) -> None:
    home.plugin("sink", '#!/bin/sh\ncat > /dev/null\necho \'{"status": "ok", "result": "done"}\'\n')
    home.add("pipelines:\n  - {name: videos, on: link.video, steps: [{uses: sink}]}\n")
    service = start_with_plugin(home, start, "switch", {"field": "url", "checks": CHECKS})

    video = service.run("switch", "handle", {"url": "https://youtube.com/x", "n": 1})
    other = service.run("switch", "handle", {"url": "https://example.org"})

    assert events_of(video) == [("link.video", {"url": "https://youtube.com/x", "n": 1})]
    assert events_of(other) == [("link.other", {"url": "https://example.org"})]
    assert home.rows("SELECT count(*) AS n FROM job_queue WHERE plugin = 'sink'") == [{"n": 1}]


def emitted(value: Any, checks: list[dict[str, Any]], field: str = "f", **event: Any) -> list[tuple[str, str | None]]:
    source = {"type": "t", "payload": {"f": value}, **event}
    finished = run_plugin("switch", "handle", config={"field": field, "checks": checks}, event=source)
    assert finished.response["status"] == "ok", finished
    return [(event["type"], event["dedupe_key"]) for event in finished.response["events"]]


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
def test_the_first_matching_check_decides(value: Any, event: str) -> None:
    assert emitted(value, CHECKS) == [(event, None)]


@pytest.mark.parametrize(
    ("value", "check", "matches"),
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
def test_values_other_than_text_are_compared_as_json(value: Any, check: dict[str, Any], matches: bool) -> None:
    assert bool(emitted(value, [{**check, "emit": "e"}])) is matches


def test_without_a_matching_check_the_job_succeeds_without_events() -> None:
    assert emitted("x", [{"equals": "y", "emit": "e"}]) == []


@pytest.mark.parametrize("field", ["a.b.0.c", "payload.a.b.0.c", "dotted.key"])
def test_a_field_is_a_path_into_objects_and_lists(field: str) -> None:
    """A key that contains dots is found too."""
    payload = {"a": {"b": [{"c": "hit"}]}, "dotted.key": "hit"}
    config = {"field": field, "checks": [{"equals": "hit", "emit": "e"}]}
    assert len(run_plugin("switch", "handle", config=config, payload=payload).response["events"]) == 1
    config["field"] = "a.b.7.c.d"
    assert run_plugin("switch", "handle", config=config, payload=payload).response["events"] == []


def test_each_event_type_has_its_own_dedupe_key() -> None:
    keys = [emitted(value, CHECKS, dedupe_key="k")[0][1] for value in ("ftp:", "x.pdf")]
    assert keys == ["k:link.file", "k:link.document"]


@pytest.mark.parametrize(
    ("config", "message"),
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
def test_an_invalid_configuration_is_final_with_a_reason(config: Mapping[str, Any], message: str) -> None:
    for command in ("handle", "health"):
        finished = run_plugin("switch", command, config=config)
        assert (finished.code, finished.response["retry"]) == (78, False)
        assert message in finished.response["error"]
