"""The fate of events in words: what they led to, what was decided against, and who waits for their type."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from ductile.cli.base.terminal import state
from ductile.core.clock import to_text
from ductile.core.errors import NotFound, did_you_mean
from ductile.core.formats.stored_json import kept_object
from ductile.core.model import Job
from ductile.explain.conditions import predicate_words
from ductile.explain.orphaned import shown_status
from ductile.ledger.queue.rows import get_job
from ductile.ledger.reports import event_lineage, job_details
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import snapshots
from ductile.ledger.tables.journal import JournalEntry
from ductile.pipeline.run.events import event_id as derived_event_id

HINT = "the journal is kept for service.job_transitions_retention; `ductile job inspect` shows the events of a job"
NOTHING = "it led to nothing: "


def fate(db: Db, event_id: str) -> dict[str, Any]:
    """What became of one event; NotFound if nothing on record speaks of it."""
    decided, jobs = event_lineage.decisions(db, event_id), event_lineage.led_to(db, event_id)
    is_gone = jobs or _is_duplicate(decided) or any(entry.kind == "event.unmatched" for entry in decided)
    arrived = None if is_gone else next((one for one in event_lineage.arrived(db) if _id_of(one) == event_id), None)
    if arrived is not None and (join := get_job(db, arrived.join_id)):
        jobs = [join]
    if not decided and not jobs:
        raise NotFound(f"{event_id[:80]}: there is no such event on record", hint=HINT)
    about = _envelope(db, event_id, jobs, decided) if arrived is None else _envelope_of(arrived)
    decisions = [_decision(entry) for entry in decided]
    return {
        "event_id": event_id,
        **about,
        "led_to": [_led_to(job) for job in jobs],
        "decisions": decisions,
        "verdict": "matched" if jobs else "duplicate" if _is_duplicate(decided) else "unmatched",
        "words": _words(jobs, decisions) if arrived is None else _joined_words(jobs),
    }


def fates(db: Db, event_type: str, *, limit: int) -> dict[str, Any]:
    """The newest events of a type, and who waits for it in the configuration that was loaded last."""
    waiting = _waiting(db, event_type)
    others = [*_emitted_ids(db, event_type), *islice(_joined_ids(db, event_type), limit)]
    events = [fate(db, one) for one in event_lineage.ids_of_type(db, event_type, limit=limit, others=others)]
    held = [_decision(entry) for entry in event_lineage.withheld(db, event_type, limit=limit)]
    if not events and not held and not waiting["pipelines"] and not waiting["routes"]:
        close = did_you_mean(event_type, [*event_lineage.known_types(db), *waiting["types"]])
        raise NotFound(f"no event of type {event_type[:80]!r} on record, and nobody waits for one{close}", hint=HINT)
    return {
        "type": event_type,
        "waiting": {"pipelines": waiting["pipelines"], "routes": waiting["routes"]},
        "events": events,
        "withheld": held,
    }


def _id_of(arrived: event_lineage.Arrived) -> str:
    return derived_event_id(arrived.job_id, arrived.attempt, arrived.index)


def _envelope_of(arrived: event_lineage.Arrived) -> dict[str, Any]:
    return {
        "type": arrived.type,
        "source": arrived.plugin,
        "at": arrived.at,
        "emitted_by": arrived.job_id,
    }


def _joined_ids(db: Db, event_type: str) -> Iterator[tuple[str, str]]:
    """Moment and id of events of this type that came to a join."""
    return ((one.at, _id_of(one)) for one in event_lineage.arrived(db) if one.type == event_type)


def _emitted_ids(db: Db, event_type: str) -> Iterator[tuple[str, str]]:
    """Moment and id of events of this type that a plugin emitted and that led to a job."""
    attempts = event_lineage.emitted(db, event_type)
    leading = event_lineage.leading(db) if attempts else frozenset()
    for at, job_id, attempt, result in attempts:
        events = kept_object(result).get("events")
        for index, event in enumerate(events if isinstance(events, list) else []):
            event_id = derived_event_id(job_id, attempt, index)
            if isinstance(event, dict) and event.get("type") == event_type and event_id in leading:
                yield at, event_id


def _envelope(db: Db, event_id: str, jobs: list[Job], decided: list[JournalEntry]) -> dict[str, Any]:
    """Type, source, moment and emitting job, from whoever still has them."""
    found: dict[str, Any] = {"type": None, "source": None, "at": None, "emitted_by": None}
    for job in jobs:
        content = kept_object((get_job(db, job.id) or job).payload)
        if content.get("event_id") == event_id:
            found |= {"type": content.get("type"), "source": content.get("source"), "at": content.get("timestamp")}
            break
    for entry in decided:
        found["type"] = found["type"] or entry.data.get("type")
        found["at"] = found["at"] or to_text(entry.at)
    ids = [job.parent_job_id for job in jobs] + [entry.job_id for entry in decided]
    for job_id in filter(None, dict.fromkeys(ids)):
        if emitted := _emitted(db, job_id, event_id):
            plugin, event_type = emitted
            known = {"type": found["type"] or event_type, "source": found["source"] or plugin}
            return found | known | {"emitted_by": job_id}
    return found


def _emitted(db: Db, job_id: str, event_id: str) -> tuple[str, str] | None:
    """The plugin that emitted the event in an attempt of the job, and under which type; None if it did not."""
    for attempt in job_details.attempts(db, job_id):
        events = kept_object(attempt.result).get("events")
        for index, event in enumerate(events if isinstance(events, list) else []):
            if isinstance(event, dict) and derived_event_id(job_id, attempt.attempt, index) == event_id:
                return attempt.plugin, str(event.get("type"))
    return None


def _led_to(job: Job) -> dict[str, Any]:
    via = f"pipeline {job.pipeline}" if job.pipeline else "route" if job.submitted_by == "route" else "plugin"
    content = {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "status": str(job.status),
        "via": via,
        "pipeline": job.pipeline,
        "step_id": job.step_id,
    }
    return {name: value for name, value in content.items() if value is not None}


def _decision(entry: JournalEntry) -> dict[str, Any]:
    data = entry.data
    kept: dict[str, Any] = {
        name: data[name] for name in ("pipeline", "step_id", "reason", "predicates", "winner") if name in data
    }
    head = {"at": to_text(entry.at), "kind": entry.kind, "job_id": entry.job_id}
    return {**head, **kept, "words": _decided(entry.kind, data)}


def _decided(kind: str, data: Mapping[str, Any]) -> str:
    said = f": {predicate_words(data['predicates'])}" if data.get("predicates") else ""
    match kind:
        case "pipeline.skipped":
            return f"pipeline {data.get('pipeline')} did not start, {data.get('reason')}{said}"
        case "step.bypassed":
            why = data.get("reason", "its `if` is false")
            return f"step {data.get('step_id')} of pipeline {data.get('pipeline')} did not run, {why}{said}"
        case "event.withheld":
            return "the attempt was tried again, so its events went nowhere"
        case "event.no_route":
            return "the other instance has nobody who waits for it"
        case "event.baggage_dropped":
            return "it came with baggage that a relay may not bring"
        case "job.deduplicated":
            return f"a job was not made: {data.get('winner')} stands for it ({data.get('reason')})"
    return "no route and no pipeline took it"


def _is_duplicate(decided: list[JournalEntry]) -> bool:
    return any(entry.kind == "job.deduplicated" for entry in decided)


def _words(jobs: list[Job], decisions: list[dict[str, Any]]) -> str:
    if jobs:
        ways = ", ".join(dict.fromkeys(_led_to(job)["via"] for job in jobs))
        return f"{_count_words(len(jobs))}: {ways}"
    telling = [one["words"] for one in decisions if one["kind"] != "event.unmatched"]
    return f"{NOTHING}{telling[0] if telling else 'no route and no pipeline waits for it'}"


def _joined_words(joins: list[Job]) -> str:
    return f"it is one of the results of join {', '.join(str(join.step_id) for join in joins)}"


def _count_words(jobs: int) -> str:
    return f"it led to {jobs} job{'' if jobs == 1 else 's'}"


def _waiting(db: Db, event_type: str) -> dict[str, Any]:
    """Who would take an event of this type, and which types there are."""
    last = snapshots.newest(db)
    config = kept_object(last.sanitized_config if last else None)
    pipelines, routes = config.get("pipelines") or [], config.get("routes") or []
    wanted = [one for one in pipelines if event_type in (one.get("on"), one.get("on-hook"))]
    return {
        "pipelines": [{name: one[name] for name in ("name", "from_plugin", "if") if one.get(name)} for one in wanted],
        "routes": [one for one in routes if one.get("event_type") == event_type],
        "types": [str(one["on"]) for one in pipelines if one.get("on")],
    }


# ── for people ──────────────────────────────────────────────────────────────────────────────────────────────────────


def fate_lines(view: Mapping[str, Any]) -> list[str]:
    source = f" from {view['source']}" if view["source"] else ""
    lines = [f"{view['event_id']}  {view['type'] or 'event'}{source}  {view['at'] or ''}".rstrip()]
    lines.append(f"  {_count_words(len(view['led_to']))}:" if view["led_to"] else f"  {view['words']}")
    for job in view["led_to"]:
        step = f", step {job['step_id']}" if "step_id" in job else ""
        lines.append(
            f"    {job['via']}{step}: job {job['job_id']}  {job['plugin']}.{job['command']}  {state(shown_status(job))}"
        )
    lines += [f"  {one['words']}" for one in view["decisions"] if not _is_told(one, view["words"])]
    return lines + ([f"  next: ductile job inspect {view['emitted_by']}"] if view["emitted_by"] else [])


def _is_told(decision: Mapping[str, Any], verdict: str) -> bool:
    """True if the verdict says as much already."""
    return verdict.startswith(NOTHING) and (decision["kind"] == "event.unmatched" or decision["words"] in verdict)


def type_lines(view: Mapping[str, Any]) -> list[str]:
    lines = [f"pipeline {one['name']} waits for {view['type']}" for one in view["waiting"]["pipelines"]]
    lines += [f"route from {one.get('from')} to {one.get('to')}" for one in view["waiting"]["routes"]]
    lines = lines or [f"nobody waits for {view['type']}"]
    for event in view["events"]:
        lines += fate_lines(event)
    lines += [f"{one['at']}  withheld by job {one['job_id']}: {one['words']}" for one in view["withheld"]]
    return lines if view["events"] or view["withheld"] else [*lines, "no such event on record"]
