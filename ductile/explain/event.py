"""What an event led to, and why to nothing more: its jobs, and what was decided against.

Reads the ledger alone. An explanation is a value; its JSON view is `as_data`.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict, cast

from attrs import frozen

from ductile.core.clock import to_text
from ductile.core.errors import NotFound, did_you_mean
from ductile.core.formats.json_schema import OPEN, Omittable, Timestamp, without_none
from ductile.core.formats.stored_json import load_stored_object
from ductile.core.model import Job, JobStatus
from ductile.explain.orphaned import mark_orphans
from ductile.explain.reason import Reason
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.reports import event_lineage, job_details
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import snapshots
from ductile.ledger.tables.journal import JournalEntry
from ductile.pipeline.run.events import event_id as derived_event_id
from ductile.pipeline.run.route import SIGNALS

HINT = "The journal is kept for service.job_transitions_retention. `ductile job inspect` shows the events of a job."
MAX_EVENTS, DEFAULT_EVENTS = 100, 5
"""Events of one type that one response explains."""
UNMATCHED, DEDUPLICATED = "event.unmatched", "job.deduplicated"
DECISION_FIELDS = ("pipeline", "step_id", "reason", "predicates", "winner")
EventVerdict = Literal["matched", "duplicate", "unmatched"]


class EventJobView(TypedDict):
    """A job that an event led to."""

    job_id: str
    plugin: str
    command: str
    status: JobStatus
    via: Annotated[str, "The pipeline, route or plugin that created it"]
    pipeline: Omittable[str]
    step_id: Omittable[str]
    outcome_code: Omittable[Annotated[str, "Why the job ended"]]
    orphaned: NotRequired[Annotated[bool, "True if no service runs the job"]]


class DecisionView(TypedDict):
    """A decision about an event. Its other members are the data of the kind."""

    at: Timestamp
    kind: Annotated[str, "Kind of the journal row"]
    job_id: str | None
    words: Omittable[Annotated[str, "The decision as a sentence"]]


class EventWhyView(TypedDict):
    """What an event led to, and why to nothing more. Texts require the scope events:payload:ro."""

    event_id: str
    type: NotRequired[str | None]
    source: NotRequired[Annotated[str, "The plugin that emitted it"] | None]
    at: Timestamp | None
    emitted_by: Annotated[str, "The job that emitted it"] | None
    led_to: list[EventJobView]
    decisions: list[Annotated[DecisionView, OPEN]]
    verdict: EventVerdict
    code: Annotated[str, "Code of the reason for the verdict"]
    decision: Annotated[str, "Kind of the decision that kept it from leading to a job"] | None
    words: Omittable[Annotated[str, "The reason as a sentence"]]


class EventTypeWhyView(TypedDict):
    """The newest events of a type, and what handles it in the configuration that was loaded last."""

    type: str
    waiting: Annotated[dict[str, list[dict[str, Any]]], "Pipelines and routes that handle the type"]
    emitters: Omittable[Annotated[list[str], "Of a hook of jobs: the plugins with notify_on_complete, which it needs"]]
    events: list[EventWhyView]
    withheld: Annotated[list[Annotated[DecisionView, OPEN]], "Events of retried attempts"]


@frozen(kw_only=True)
class Decision:
    """A decision about an event, as the journal has it. The code of its reason is the kind of the row."""

    at: str
    job_id: str | None
    reason: Reason

    def as_data(self) -> DecisionView:
        reason = self.reason
        view = {"at": self.at, "kind": reason.code, "job_id": self.job_id, **reason.data, "words": reason.words}
        return cast(DecisionView, view)


@frozen(kw_only=True)
class EventExplanation:
    """What one event led to. `verdict` is `matched`, `duplicate` or `unmatched`."""

    event_id: str
    type: str | None
    source: str | None
    at: str | None
    emitted_by: str | None
    jobs: tuple[Job, ...]
    decisions: tuple[Decision, ...]
    verdict: EventVerdict
    reason: Reason

    def as_data(self) -> EventWhyView:
        """Return the JSON view of `ductile event why` and `GET /event/{id}/why`."""
        return {
            "event_id": self.event_id,
            "type": self.type,
            "source": self.source,
            "at": self.at,
            "emitted_by": self.emitted_by,
            "led_to": [_job_view(job) for job in self.jobs],
            "decisions": [decision.as_data() for decision in self.decisions],
            "verdict": self.verdict,
            "code": self.reason.code,
            "decision": self.reason.data.get("decision"),
            "words": self.reason.words,
        }


def explain_event(db: Db, event_id: str) -> EventExplanation:
    """Explain one event. Raises NotFound if the ledger has nothing about it."""
    rows, jobs = event_lineage.decisions(db, event_id), event_lineage.jobs_of_event(db, event_id)
    has_ended = jobs or any(row.kind in (UNMATCHED, DEDUPLICATED) for row in rows)
    joined = (
        None if has_ended else next((one for one in event_lineage.join_events(db) if _id_of(one) == event_id), None)
    )
    if joined is not None and (join := get_job(db, joined.join_id)):
        jobs = [join]
    if not rows and not jobs:
        raise NotFound(f"event {event_id[:80]} does not exist", hint=HINT)
    about = _envelope(db, event_id, jobs, rows) if joined is None else _join_envelope(joined)
    decisions = tuple(map(_decision, rows))
    is_duplicate = any(row.kind == DEDUPLICATED for row in rows)
    return EventExplanation(
        event_id=event_id,
        **about,
        jobs=tuple(jobs),
        decisions=decisions,
        verdict="matched" if jobs else "duplicate" if is_duplicate else "unmatched",
        reason=_event_reason(jobs, decisions, is_joined=joined is not None),
    )


def event_why(db: Db, ledger: Path, event_id: str) -> EventWhyView:
    """Explain one event as JSON data. Raises NotFound if the ledger has nothing about it."""
    return _with_orphans(explain_event(db, event_id), ledger)


def event_type_why(db: Db, ledger: Path, event_type: str, *, limit: int) -> EventTypeWhyView:
    """Explain the newest events of a type as JSON data. Raises NotFound for a type that nothing knows."""
    handlers = _handlers(db, event_type)
    others = [*_emitted_ids(db, event_type), *islice(_joined_ids(db, event_type), limit)]
    events = [explain_event(db, one) for one in event_lineage.ids_of_type(db, event_type, limit=limit, others=others)]
    withheld = [_decision(row).as_data() for row in event_lineage.withheld(db, event_type, limit=limit)]
    if not events and not withheld and not handlers["pipelines"] and not handlers["routes"]:
        close = did_you_mean(event_type, [*event_lineage.known_types(db), *handlers["types"]])
        raise NotFound(
            f"no event of type {event_type[:80]!r} is recorded, and no pipeline or route handles it{close}", hint=HINT
        )
    view: EventTypeWhyView = {
        "type": event_type,
        "waiting": {"pipelines": handlers["pipelines"], "routes": handlers["routes"]},
        "emitters": handlers["notifying"] if event_type in SIGNALS else None,
        "events": [_with_orphans(event, ledger) for event in events],
        "withheld": withheld,
    }
    return without_none(view)


def _with_orphans(found: EventExplanation, ledger: Path) -> EventWhyView:
    view = found.as_data()
    return {**view, "led_to": mark_orphans(view["led_to"], ledger)}


def _event_reason(jobs: list[Job], decisions: tuple[Decision, ...], *, is_joined: bool) -> Reason:
    if is_joined:
        return Reason("event_joined", {"joins": [str(join.step_id) for join in jobs]})
    if jobs:
        return Reason("event_matched", {"jobs": len(jobs), "via": list(dict.fromkeys(map(_via, jobs)))})
    decisive = next((one.reason for one in decisions if one.reason.code != UNMATCHED), None)
    return Reason("event_unmatched", {"decision": decisive.code, **decisive.data} if decisive else {})


def _decision(row: JournalEntry) -> Decision:
    data = {name: row.data[name] for name in DECISION_FIELDS if name in row.data}
    return Decision(at=to_text(row.at), job_id=row.job_id, reason=Reason(row.kind, data))


def _via(job: Job) -> str:
    return f"pipeline {job.pipeline}" if job.pipeline else "route" if job.submitted_by == "route" else "plugin"


def _job_view(job: Job) -> EventJobView:
    view: EventJobView = {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "status": job.status,
        "via": _via(job),
        "pipeline": job.pipeline,
        "step_id": job.step_id,
        "outcome_code": job.outcome_code,
    }
    return without_none(view)


# ── finding ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _id_of(joined: event_lineage.JoinEvent) -> str:
    return derived_event_id(joined.job_id, joined.attempt, joined.index)


def _join_envelope(joined: event_lineage.JoinEvent) -> dict[str, Any]:
    return {"type": joined.type, "source": joined.plugin, "at": joined.at, "emitted_by": joined.job_id}


def _joined_ids(db: Db, event_type: str) -> Iterator[tuple[str, str]]:
    """Yield moment and id of the events of this type that are results of a join."""
    return ((one.at, _id_of(one)) for one in event_lineage.join_events(db) if one.type == event_type)


def _emitted_ids(db: Db, event_type: str) -> Iterator[tuple[str, str]]:
    """Yield moment and id of the events of this type that a plugin emitted and that led to a job or a duplicate."""
    attempts = event_lineage.attempts_emitting(db, event_type)
    with_effect = event_lineage.event_ids_with_effect(db) if attempts else frozenset()
    for at, job_id, attempt, result in attempts:
        for index, event in _events_in(result):
            event_id = derived_event_id(job_id, attempt, index)
            if event.get("type") == event_type and event_id in with_effect:
                yield at, event_id


def _events_in(result: str | None) -> Iterator[tuple[int, dict[str, Any]]]:
    events = load_stored_object(result).get("events")
    for index, event in enumerate(events if isinstance(events, list) else []):
        if isinstance(event, dict):
            yield index, event


def _envelope(db: Db, event_id: str, jobs: list[Job], rows: list[JournalEntry]) -> dict[str, Any]:
    """Return type, source, moment and emitting job, from the jobs and the journal that still have them."""
    found: dict[str, Any] = {"type": None, "source": None, "at": None, "emitted_by": None}
    for job in jobs:
        content = load_stored_object((get_job(db, job.id) or job).payload)
        if content.get("event_id") == event_id:
            found |= {"type": content.get("type"), "source": content.get("source"), "at": content.get("timestamp")}
            break
    for row in rows:
        found["type"] = found["type"] or row.data.get("type")
        found["at"] = found["at"] or to_text(row.at)
        found["source"] = found["source"] or row.data.get("source")
    ids = [job.parent_job_id for job in jobs] + [row.job_id for row in rows]
    for job_id in filter(None, dict.fromkeys(ids)):
        if emitted := _emitted(db, job_id, event_id):
            plugin, event_type = emitted
            known = {"type": found["type"] or event_type, "source": found["source"] or plugin}
            return found | known | {"emitted_by": job_id}
    return found


def _emitted(db: Db, job_id: str, event_id: str) -> tuple[str, str] | None:
    """Return plugin and type of the event if an attempt of the job emitted it."""
    for attempt in job_details.attempts(db, job_id):
        for index, event in _events_in(attempt.result):
            if derived_event_id(job_id, attempt.attempt, index) == event_id:
                return attempt.plugin, str(event.get("type"))
    return None


def _handlers(db: Db, event_type: str) -> dict[str, Any]:
    """Return the pipelines and routes that handle the type, and the types that pipelines handle."""
    last = snapshots.newest(db)
    config = load_stored_object(last.sanitized_config if last else None)
    pipelines, routes, plugins = config.get("pipelines") or [], config.get("routes") or [], config.get("plugins") or {}
    wanted = [one for one in pipelines if event_type in (one.get("on"), one.get("on-hook"))]
    return {
        "pipelines": [{name: one[name] for name in ("name", "from_plugin", "if") if one.get(name)} for one in wanted],
        "routes": [one for one in routes if one.get("event_type") == event_type],
        "types": [str(one["on"]) for one in pipelines if one.get("on")],
        "notifying": sorted(name for name, entry in plugins.items() if entry.get("notify_on_complete")),
    }
