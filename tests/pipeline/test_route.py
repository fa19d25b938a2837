"""Rules for routes: exact match, every match, in the order they are written; the same attempt never makes twins."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from ductile.model import Job, JobStatus, Settled
from ductile.pipeline.route import Event, FollowUps, Routes, Target, event_id, follow_ups

NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)


def a_job(**values: Any) -> Job:
    defaults: dict[str, Any] = {
        "id": "job-1",
        "plugin": "emits",
        "command": "poll",
        "status": JobStatus.RUNNING,
        "attempt": 1,
        "max_attempts": 4,
        "submitted_by": "test",
        "created_at": NOW,
    }
    return Job(**defaults | values)


def an_event(kind: str = "made", **values: Any) -> Event:
    defaults: dict[str, Any] = {"id": "event-1", "type": kind, "payload": {"n": 1}, "source": "emits", "at": NOW}
    return Event(**defaults | values)


def follow(*events: Event, routes: list[tuple[str, str, str]], job: Job | None = None, **more: Any) -> FollowUps:
    attempts = {"a": Target(2), "b": Target(9), "off": Target(refused="is disabled")}
    return follow_ups(job or a_job(), events, Routes.of(routes), target=attempts.__getitem__, **more)


def test_a_job_for_a_plugin_that_cannot_run_is_dead_from_the_start_and_says_why() -> None:
    """An event on its way to a disabled plugin is neither lost nor waiting for ever."""
    (child,) = follow(an_event(), routes=[("emits", "made", "off")]).children
    assert child.settled == Settled(status=JobStatus.DEAD, error="plugin off is disabled")


def test_more_payload_than_allowed_is_refused_as_a_whole() -> None:
    """One answer cannot be multiplied without limit: every route counts."""
    routes = [("emits", "made", "a")] * 3
    size = len(an_event().envelope())
    assert len(follow(an_event(), routes=routes, most_bytes=3 * size).children) == 3
    refused = follow(an_event(), routes=routes, most_bytes=3 * size - 1)
    assert (refused.children, refused.refused) == (
        (),
        f"its events carry more than {3 * size - 1} bytes to the next jobs",
    )


def test_every_matching_route_is_a_job_in_the_order_of_the_configuration() -> None:
    """Fan-out: the same target twice is two jobs, told apart by their place."""
    routes = [("emits", "made", "b"), ("emits", "made", "a"), ("emits", "made", "b"), ("other", "made", "a")]
    children = follow(an_event(), routes=routes).children
    assert [child.plugin for child in children] == ["b", "a", "b"]
    assert [child.child_key for child in children] == [f"event-1/route/{index}" for index in (0, 1, 2)]


def test_events_are_followed_in_the_order_they_were_emitted() -> None:
    """Event by event, and the routes of each in their order."""
    routes = [("emits", "made", "a"), ("emits", "seen", "b"), ("emits", "made", "b")]
    children = follow(an_event("seen", id="e1"), an_event("made", id="e2"), routes=routes).children
    assert [(child.source_event_id, child.plugin) for child in children] == [("e1", "b"), ("e2", "a"), ("e2", "b")]


@pytest.mark.parametrize("kind", ["Made", "made.", "made.more", " made", "*"])
def test_a_type_matches_exactly_or_not_at_all(kind: str) -> None:
    """No prefix, no case folding, no wildcard; and nothing is lost without a note."""
    followed = follow(an_event(kind), routes=[("emits", "made", "a")])
    assert followed.children == ()
    assert [(note.kind, note.data) for note in followed.notes] == [
        ("event.unmatched", {"event_id": "event-1", "type": kind})
    ]


def test_a_route_listens_to_one_plugin() -> None:
    """The source is who ran, not what the event says."""
    assert follow(an_event(source="other"), routes=[("other", "made", "a")]).children == ()


def test_a_child_knows_where_it_comes_from_and_how_to_be_tried() -> None:
    """Parent, event, one more hop, the receiver's attempts, the event's dedupe key, the snapshot."""
    event = an_event(dedupe_key="once")
    (child,) = follow(event, routes=[("emits", "made", "b")], job=a_job(hops=6), snapshot_id="s-1").children
    assert (child.plugin, child.command, child.submitted_by) == ("b", "handle", "route")
    assert (child.parent_job_id, child.source_event_id, child.hops) == ("job-1", "event-1", 7)
    assert (child.max_attempts, child.dedupe_key, child.snapshot_id) == (9, "once", "s-1")
    assert child.payload == event.envelope()


def test_the_envelope_is_the_event_and_leaves_out_what_it_has_not() -> None:
    """Dedupe key and headers are there only where there are some; integers stay exact."""
    plain = json.loads(an_event(payload={"n": 2**64, "text": "é\0"}).envelope())
    assert plain == {
        "type": "made",
        "payload": {"n": 2**64, "text": "é\0"},
        "source": "emits",
        "timestamp": "2026-02-08T09:30:00.000000Z",
        "event_id": "event-1",
    }
    rich = json.loads(an_event(dedupe_key="k", headers={"X-A": "1"}).envelope())
    assert (rich["dedupe_key"], rich["headers"]) == ("k", {"X-A": "1"})


def test_an_events_id_depends_on_job_attempt_and_place_and_on_nothing_else() -> None:
    """A commit that is replayed makes the same ids; another attempt, place or job makes others."""
    ids = [event_id(job, attempt, index) for job in ("a", "b") for attempt in (1, 2) for index in (0, 1)]
    assert len(set(ids)) == 8
    assert ids[0] == event_id("a", 1, 0)


def test_without_events_nothing_follows() -> None:
    """Neither jobs nor notes."""
    assert follow(routes=[("emits", "made", "a")]) == FollowUps()
