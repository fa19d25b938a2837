"""Compute the completion of an attempt: facts, state, events and follow-up jobs. Pure; `record` writes it.

`run_job` and the developer kit use it, so that a local run shows what a service would record.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from attrs import evolve

from ductile.config.snapshot import Snapshot
from ductile.core.model import (
    NO_JOURNAL_DATA,
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
    OutcomeCode,
    Retried,
    Skipped,
    Succeeded,
    with_problem,
)
from ductile.engine.breaker import applies_to_job
from ductile.engine.breaker import completion_rule as breaker_rule
from ductile.engine.follow_up_rules import ended_of, follow_up_rule_of
from ductile.engine.judge import Verdict
from ductile.engine.preflight import Ready
from ductile.pipeline.run.route import Event, TooManyFollowUps, compute_follow_ups, event_id
from ductile.plugin.manifest import CompatibilityView
from ductile.plugin.protocol import PluginResponse


def complete(
    job: Job,
    ready: Ready,
    verdict: Verdict,
    snapshot: Snapshot,
    *,
    now: datetime,
    journal_data: Mapping[str, Any] = NO_JOURNAL_DATA,
) -> Completion:
    """Return the completion of a judged attempt with its facts, state and follow-up jobs.

    An attempt that is retried leaves only notes. `journal_data` is added to the journal row of the attempt.
    """
    outcome, response = verdict.outcome, verdict.response
    if isinstance(outcome, Retried | Interrupted):
        return _completion(
            job, outcome, FollowUps(notes=_withheld_events(response)), snapshot, journal_data=journal_data
        )
    result = response.result if response else None
    try:
        follow_ups = compute_follow_ups(
            job, ended_of(outcome, result), _events(job, verdict, now), snapshot.routing, now=now
        )
    except TooManyFollowUps as error:
        failed = complete_without_run(job, _fail_over_budget(outcome, str(error)), snapshot, now=now)
        return evolve(failed, tolerated=False, journal_data=journal_data)
    if isinstance(outcome, Succeeded) and response:
        return _completion(
            job, outcome, follow_ups, snapshot, *facts_of(job, ready, response), journal_data=journal_data
        )
    if response and response.ok and response.events:
        follow_ups = evolve(follow_ups, notes=(*follow_ups.notes, *_withheld_events(response)))
    return _completion(job, outcome, follow_ups, snapshot, journal_data=journal_data)


def _fail_over_budget(outcome: Outcome, error: str) -> Failed | Dead:
    """Return the failure of an attempt with too many follow-up jobs. An earlier error comes first."""
    if isinstance(outcome, Failed):
        return with_problem(outcome, error)
    if isinstance(outcome, Dead):
        return with_problem(outcome, error)
    evidence = None if isinstance(outcome, Skipped) else outcome.evidence
    return Failed(error, evidence, OutcomeCode.TOO_MANY_FOLLOW_UPS)


def complete_without_run(job: Job, outcome: Outcome, snapshot: Snapshot, *, now: datetime) -> Completion:
    """Return the completion of a job without a valid response."""
    is_final = not isinstance(outcome, Retried | Interrupted)
    follow_ups = follow_up_rule_of(snapshot)(job, outcome, now) if is_final else FollowUps()
    return _completion(job, outcome, follow_ups, snapshot)


def complete_with_event(job: Job, outcome: Succeeded, event: Event, snapshot: Snapshot, *, now: datetime) -> Completion:
    """Return the completion of a job that succeeded without a plugin and leads to this event."""
    ended = ended_of(outcome, str(event.payload.get("result")))
    try:
        follow_ups = compute_follow_ups(job, ended, [event], snapshot.routing, now=now)
    except TooManyFollowUps as error:
        failed = Failed(str(error), outcome.evidence, OutcomeCode.TOO_MANY_FOLLOW_UPS)
        return complete_without_run(job, failed, snapshot, now=now)
    return _completion(job, outcome, follow_ups, snapshot)


def _completion(
    job: Job,
    outcome: Outcome,
    follow_ups: FollowUps,
    snapshot: Snapshot,
    facts: tuple[NewFact, ...] = (),
    state_updates: str | None = None,
    journal_data: Mapping[str, Any] = NO_JOURNAL_DATA,
) -> Completion:
    return Completion(
        job_id=job.id,
        attempt=job.attempt,
        outcome=outcome,
        facts=facts,
        state_updates=state_updates,
        state_limit=snapshot.config.settings.service.limits.state,
        contexts=follow_ups.contexts,
        children=follow_ups.children,
        arrivals=follow_ups.arrivals,
        notes=follow_ups.notes,
        breaker=_breaker_rule(job, snapshot),
        rule=follow_up_rule_of(snapshot),
        journal_data=journal_data,
        tolerated=follow_ups.tolerated,
    )


def _breaker_rule(job: Job, snapshot: Snapshot) -> BreakerRule | None:
    """Return how this job changes the breaker of its command; None if the breaker ignores it."""
    configured = snapshot.plugins.get(job.plugin)
    if configured is None or not applies_to_job(configured.entry.circuit_breaker, job):
        return None
    return breaker_rule(configured.entry.circuit_breaker)


def facts_of(job: Job, ready: Ready, response: PluginResponse) -> tuple[tuple[NewFact, ...], str | None]:
    """Return the facts that the manifest derives from state updates, or the updates to merge into the state."""
    if response.state_json is None:
        return (), None
    rules = ready.configured.plugin.manifest.facts_of(job.command)
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
    """Return the events to route: none if the response reports success but the attempt failed."""
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


def _withheld_events(response: PluginResponse | None) -> tuple[Note, ...]:
    """Return a note about the events of an attempt that are not routed."""
    if response is None or not response.events:
        return ()
    types = [event.type for event in response.events]
    return (Note(kind="event.withheld", data={"types": types[:20], "count": len(types)}),)
