"""What follows from one attempt: facts, state, events, the next jobs. Pure; `record` writes it.

`run_job` asks for it after every run; whoever tries a plugin without a service learns what one would have recorded.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from attrs import evolve

from ductile.config.snapshot import Snapshot
from ductile.core.model import (
    NOTHING_TOLD,
    BreakerRule,
    Completion,
    Dead,
    Failed,
    FollowUps,
    Interrupted,
    Job,
    NewFact,
    Note,
    Outcome,
    Retried,
    Skipped,
    Succeeded,
)
from ductile.engine.breaker import concerns
from ductile.engine.breaker import rule as breaker_rule
from ductile.engine.follow_up_rules import ended_of, rule_of
from ductile.engine.judge import Verdict
from ductile.engine.preflight import Ready
from ductile.pipeline.run.route import Event, TooManyFollowUps, after, event_id
from ductile.plugin.manifest import CompatibilityView
from ductile.plugin.protocol import PluginResponse


def ending_of(
    job: Job,
    ready: Ready,
    verdict: Verdict,
    snapshot: Snapshot,
    *,
    now: datetime,
    told: Mapping[str, Any] = NOTHING_TOLD,
) -> Completion:
    """The verdict with its facts, state and everything that follows; an attempt that is retried leaves only notes.
    `told` is what the journal tells of the run."""
    outcome, response = verdict.outcome, verdict.response
    if isinstance(outcome, Retried | Interrupted):
        return _ending(job, outcome, FollowUps(notes=_withheld(response)), snapshot, told=told)
    said = response.result if response else None
    try:
        following = after(job, ended_of(outcome, said), _events(job, verdict, now), snapshot.world, now=now)
    except TooManyFollowUps as error:
        failed = without_run(job, _too_much(outcome, str(error)), snapshot, now=now)
        return evolve(failed, tolerated=False, told=told)
    if isinstance(outcome, Succeeded) and response:
        return _ending(job, outcome, following, snapshot, *facts_of(job, ready, response), told=told)
    if response and response.ok and response.events:
        following = evolve(following, notes=(*following.notes, *_withheld(response)))
    return _ending(job, outcome, following, snapshot, told=told)


def _too_much(outcome: Outcome, error: str) -> Failed | Dead:
    """What an ending becomes that leads to more than it may; what was wrong before is told first."""
    match outcome:
        case Failed(before, evidence):
            return Failed(f"{before}; {error}", evidence)
        case Dead(before, evidence):
            return Dead(f"{before}; {error}", evidence)
    return Failed(error, None if isinstance(outcome, Skipped) else outcome.evidence)


def without_run(job: Job, outcome: Outcome, snapshot: Snapshot, *, now: datetime) -> Completion:
    """The ending of a job whose plugin said nothing that counts."""
    is_final = not isinstance(outcome, Retried | Interrupted)
    following = rule_of(snapshot)(job, outcome, now) if is_final else FollowUps()
    return _ending(job, outcome, following, snapshot)


def _ending(
    job: Job,
    outcome: Outcome,
    following: FollowUps,
    snapshot: Snapshot,
    facts: tuple[NewFact, ...] = (),
    state_updates: str | None = None,
    told: Mapping[str, Any] = NOTHING_TOLD,
) -> Completion:
    return Completion(
        job_id=job.id,
        attempt=job.attempt,
        outcome=outcome,
        facts=facts,
        state_updates=state_updates,
        state_limit=snapshot.config.settings.service.limits.state,
        contexts=following.contexts,
        children=following.children,
        arrivals=following.arrivals,
        notes=following.notes,
        breaker=_breaker(job, snapshot),
        rule=rule_of(snapshot),
        told=told,
        tolerated=following.tolerated,
    )


def _breaker(job: Job, snapshot: Snapshot) -> BreakerRule | None:
    """What the end of this job does to the breaker of its command, if it concerns it."""
    lane = snapshot.lanes.get(job.plugin)
    if lane is None or not concerns(lane.entry.circuit_breaker, job):
        return None
    return breaker_rule(lane.entry.circuit_breaker)


def facts_of(job: Job, ready: Ready, response: PluginResponse) -> tuple[tuple[NewFact, ...], str | None]:
    """State updates become facts where the manifest says so; otherwise they are merged into the state."""
    if response.state_json is None:
        return (), None
    rules = ready.lane.plugin.manifest.facts_of(job.command)
    facts = tuple(
        NewFact(
            fact_type=rule.fact_type,
            fact_json=response.state_json,
            mirrored=rule.compatibility_view is CompatibilityView.MIRROR_OBJECT,
        )
        for rule in rules
    )
    return facts, None if rules else response.state_json


def _events(job: Job, verdict: Verdict, now: datetime) -> tuple[Event, ...]:
    """The events that count: none if the plugin says ok but did not end well."""
    response = verdict.response
    if response is None or not response.events or (response.ok and not isinstance(verdict.outcome, Succeeded)):
        return ()
    return tuple(
        Event(
            id=event_id(job.id, job.attempt, index),
            type=event.type,
            payload=event.payload if "result" in event.payload else {**event.payload, "result": response.result},
            source=job.plugin,
            at=now,
            dedupe_key=event.dedupe_key,
        )
        for index, event in enumerate(response.events)
    )


def _withheld(response: PluginResponse | None) -> tuple[Note, ...]:
    """Events of an attempt that is not the last word are not routed, only noted."""
    if response is None or not response.events:
        return ()
    types = [event.type for event in response.events]
    return (Note(kind="event.withheld", data={"types": types[:20], "count": len(types)}),)
