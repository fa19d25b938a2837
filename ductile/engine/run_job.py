"""One attempt of one job on one page: preflight, spawn, judge, and the ending that `record` will write.

Called by the dispatcher, which owns the task and hands the ending to the ledger.
"""

import errno
import random
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import TypeVar

import trio
from attrs import define, evolve, field, frozen

from ductile.clock import Clock
from ductile.config.snapshot import Snapshot
from ductile.engine.judge import Policy, Verdict, judge
from ductile.engine.preflight import Memory, Postpone, Ready, Refuse, preflight
from ductile.engine.spawn import Finished, SpawnFailed, Stop, Tail, run_plugin
from ductile.failpoints import failpoint
from ductile.logs import Log
from ductile.model import Dead, Ending, Failed, Interrupted, Job, NewFact, Note, Retried, Skipped, Succeeded
from ductile.pipeline.route import Event, FollowUps, Target, event_id, follow_ups
from ductile.plugin.manifest import CompatibilityView
from ductile.plugin.protocol import Response

LARGE_OUTPUT = 512 << 10
T = TypeVar("T")


@frozen(kw_only=True, eq=False)
class Surroundings:
    """What every attempt of one service shares."""

    log: Log
    clock: Clock
    instance: str
    state_of: Callable[[str], str]
    """A plugin's state as JSON text."""
    memory: Memory = field(factory=Memory)


@define(eq=False)
class Attempt:
    """A running attempt as others see it: how to stop it, its live stderr, its process id."""

    job: Job
    snapshot: Snapshot
    stop: Stop = field(factory=Stop)
    tail: Tail = field(factory=Tail)
    pid: int | None = None
    since: float = field(factory=trio.current_time)
    is_noted: bool = False


async def run_job(around: Surroundings, attempt: Attempt) -> Ending:
    """Run one attempt; what it came to and everything that follows from it."""
    job, snapshot = attempt.job, attempt.snapshot
    started_at = around.clock.now()
    ready = preflight(
        snapshot,
        job,
        state_json=around.state_of(job.plugin),
        instance=around.instance,
        now=started_at,
        memory=around.memory,
    )
    match ready:
        case Refuse(error):
            verdict = Verdict(Dead(error))
            _tell(around.log, job, None, verdict)
            return Ending(job_id=job.id, attempt=job.attempt, outcome=verdict.outcome)
        case Postpone(error, policy):
            run: Finished | SpawnFailed = SpawnFailed(error, errno.EACCES)
            verdict = await _judge(job, run, policy, started_at)
            _tell(around.log, job, run, verdict)
            return Ending(job_id=job.id, attempt=job.attempt, outcome=verdict.outcome)
    for warning in ready.warnings:
        around.log.warn("preflight", warning, plugin=job.plugin, job_id=job.id)
    failpoint("spawn.before")
    run = await _spawn(attempt, ready)
    failpoint("plugin.exited")
    verdict = await _judge(job, run, ready.policy, started_at)
    ending = await _aside(partial(ending_of, job, ready, verdict, snapshot, now=around.clock.now()), run)
    _tell(around.log, job, run, evolve(verdict, outcome=ending.outcome))
    return ending


async def _spawn(attempt: Attempt, ready: Ready) -> Finished | SpawnFailed:
    def note_pid(pid: int) -> None:
        attempt.pid = pid
        failpoint("spawn.after")

    attempt.tail.cap = ready.caps.stderr
    run = await run_plugin(
        ready.argv,
        ready.request,
        timeout=ready.policy.timeout.total_seconds(),
        env=ready.environment,
        grace=ready.grace.total_seconds(),
        caps=ready.caps,
        limits=ready.limits,
        stop=attempt.stop,
        tail=attempt.tail,
        on_started=note_pid,
    )
    attempt.pid = None  # from now on it can mean another process
    return run


async def _judge(job: Job, run: Finished | SpawnFailed, policy: Policy, started_at: datetime) -> Verdict:
    return await _aside(partial(judge, job, run, policy, started_at=started_at, chance=random.random()), run)


async def _aside(decide: Callable[[], T], run: Finished | SpawnFailed) -> T:
    """What `decide` says; in a thread when there is much to read, so that it does not hold up the others."""
    if isinstance(run, Finished) and len(run.stdout) > LARGE_OUTPUT:
        return await trio.to_thread.run_sync(decide)
    return decide()


def ending_of(job: Job, ready: Ready, verdict: Verdict, snapshot: Snapshot, *, now: datetime) -> Ending:
    """The verdict with its facts, state and children; a failed attempt that is retried leaves only notes."""
    outcome, response = verdict.outcome, verdict.response
    following = _follow_ups(job, verdict, snapshot, now)
    if following.refused is not None:
        evidence = None if isinstance(outcome, Skipped) else outcome.evidence
        return Ending(job_id=job.id, attempt=job.attempt, outcome=Failed(following.refused, evidence))
    facts, state = _facts(job, ready, response) if isinstance(outcome, Succeeded) and response else ((), None)
    return Ending(
        job_id=job.id,
        attempt=job.attempt,
        outcome=outcome,
        facts=facts,
        state_updates=state,
        state_limit=snapshot.config.settings.service.limits.state,
        children=following.children,
        notes=following.notes,
    )


def _facts(job: Job, ready: Ready, response: Response) -> tuple[tuple[NewFact, ...], str | None]:
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


def _follow_ups(job: Job, verdict: Verdict, snapshot: Snapshot, now: datetime) -> FollowUps:
    """Events are routed when the attempt is the last word on what they tell: not when it is retried, and not when it
    says ok but did not end well. Those are only noted."""
    response = verdict.response
    if response is None or not response.events or isinstance(verdict.outcome, Interrupted):
        return FollowUps()
    if isinstance(verdict.outcome, Retried) or (response.ok and not isinstance(verdict.outcome, Succeeded)):
        types = [event.type for event in response.events]
        return FollowUps(notes=(Note(kind="event.withheld", data={"types": types[:20], "count": len(types)}),))
    events = (
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

    def target(plugin: str) -> Target:
        lane = snapshot.lanes.get(plugin)
        if lane is not None:
            return Target(lane.entry.retry.max_attempts)
        # One that failed to load may be put right; its jobs wait for that.
        return Target() if plugin in snapshot.failed_to_load else Target(refused=snapshot.why_unavailable(plugin))

    most = snapshot.config.settings.service.limits.fan_out
    return follow_ups(job, events, snapshot.routes, target=target, most_bytes=most)


def _tell(log: Log, job: Job, run: Finished | SpawnFailed | None, verdict: Verdict) -> None:
    """The log lines of one attempt: the plugin's own, its stderr, and how it ended."""
    about = {"plugin": job.plugin, "job_id": job.id}
    if verdict.response:
        for note in verdict.response.notes:
            log.warn("protocol", note, **about)
        for line in verdict.response.logs:
            log.write(str(line.level), "plugin", line.message, about)
    if isinstance(run, Finished):
        if run.stderr and log.enabled("warn"):
            log.warn("plugin", run.stderr.decode("utf-8", "backslashreplace"), **about, bytes=run.stderr_total)
        if run.swept or run.pipe_held or run.lost:
            log.warn("spawn", "the plugin left processes behind", **about, swept=run.swept, lost=run.lost)
    ended = type(verdict.outcome).__name__.lower()
    fields = {**about, "command": job.command, "attempt": job.attempt, "outcome": ended}
    if isinstance(run, Finished):
        fields["duration_ms"] = round(run.duration * 1000, 1)
    match verdict.outcome:
        case Succeeded():
            log.info("dispatcher", "job succeeded", **fields)
        case Retried(error, delay):
            log.warn("dispatcher", f"attempt failed: {error}", **fields, retry_in_seconds=delay.total_seconds())
        case Failed(error) | Dead(error):
            log.error("dispatcher", f"job failed: {error}", **fields)
        case _:
            log.info("dispatcher", "attempt interrupted", **fields)
