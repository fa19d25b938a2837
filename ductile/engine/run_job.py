"""One attempt of one job on one page: preflight, spawn, judge, and the ending that `record` will write.

Called by the dispatcher, which owns the task and hands the ending to the ledger.
"""

import errno
import random
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import trio
from attrs import evolve

from ductile.clock import Clock
from ductile.config.snapshot import Snapshot
from ductile.engine.ending import ending_of, without_run
from ductile.engine.judge import Policy, Verdict, backoff, judge
from ductile.engine.preflight import Memory, Postpone, Ready, Refuse, preflight
from ductile.engine.spare_memory import SpareMemory
from ductile.engine.spawn import Finished, SpawnFailed, Stop, Tail, run_plugin
from ductile.failpoints import failpoint
from ductile.logs import Log
from ductile.model import (
    Dead,
    Ending,
    Failed,
    Job,
    Retried,
    Succeeded,
)
from ductile.values import define, field, frozen

LARGE = 512 << 10
REFUSED = {"preflight": "fail"}
MOST_DELAYS_TOLD = 20
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
    spare_memory: SpareMemory = field(factory=SpareMemory)


@define(eq=False)
class Attempt:
    """A running attempt as others see it: how to stop it, its live stderr, its process id."""

    job: Job
    snapshot: Snapshot
    state: str = "{}"
    """Its plugin's state when it was claimed, as JSON text."""
    comes_second: bool = False
    """Whether others were in the commit that claimed it: one of them may have asked for it."""
    stop: Stop = field(factory=Stop)
    tail: Tail = field(factory=Tail)
    pid: int | None = None
    told_pid: int | None = None
    """The process it ran as, also after its end."""
    has_run: bool = False
    """Whether its plugin has come to an end: from then on nothing may have it run again by accident."""
    since: float = field(factory=trio.current_time)
    is_noted: bool = False


async def run_job(around: Surroundings, attempt: Attempt) -> Ending:
    """Run one attempt; what it came to and everything that follows from it."""
    job, snapshot = attempt.job, attempt.snapshot
    started_at = around.clock.now()
    ready = await _aside(
        partial(
            preflight,
            snapshot,
            job,
            state_json=attempt.state,
            instance=around.instance,
            now=started_at,
            memory=around.memory,
        ),
        len(job.payload or ""),
    )
    match ready:
        case Refuse(outcome):
            _tell(around.log, job, None, Verdict(outcome))
            return evolve(without_run(job, outcome, snapshot, now=started_at), told=REFUSED)
        case Postpone(error, policy):
            run: Finished | SpawnFailed = SpawnFailed(error, errno.EACCES)
            verdict = await judge_run(job, run, policy, started_at)
            _tell(around.log, job, run, verdict)
            return evolve(without_run(job, verdict.outcome, snapshot, now=started_at), told=REFUSED)
    for warning in ready.warnings:
        around.log.warn("preflight", warning, plugin=job.plugin, job_id=job.id)
    failpoint("spawn.before")
    run = await spawn(attempt, ready)
    failpoint("plugin.exited")
    much = _said(run) + len(job.payload or "") + len(job.context or "")
    if much > LARGE:
        around.spare_memory.need()
    verdict = await judge_run(job, run, ready.policy, started_at)
    told = _told(attempt, ready, verdict)
    ending = await _aside(partial(ending_of, job, ready, verdict, snapshot, now=around.clock.now(), told=told), much)
    if ending.outcome is not verdict.outcome:
        verdict = evolve(verdict, outcome=ending.outcome)
    _tell(around.log, job, run, verdict)
    return ending


async def spawn(attempt: Attempt, ready: Ready) -> Finished | SpawnFailed:
    """The plugin has run to its end, and the attempt knew its process while it lived."""

    def note_pid(pid: int) -> None:
        attempt.pid = attempt.told_pid = pid
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
    attempt.has_run = isinstance(run, Finished)
    return run


async def judge_run(job: Job, run: Finished | SpawnFailed, policy: Policy, started_at: datetime) -> Verdict:
    """What the run means."""
    return await _aside(partial(judge, job, run, policy, started_at=started_at, chance=random.random()), _said(run))


async def _aside(decide: Callable[[], T], much: int) -> T:
    """What `decide` says; in a thread when there is much to read, so that it does not hold up the others."""
    return await trio.to_thread.run_sync(decide) if much > LARGE else decide()


def _said(run: Finished | SpawnFailed) -> int:
    return len(run.stdout) if isinstance(run, Finished) else 0


def _told(attempt: Attempt, ready: Ready, verdict: Verdict) -> dict[str, Any]:
    """What the journal tells of the run, unless it has told it while the process lived."""
    told: dict[str, Any] = {} if attempt.is_noted else {"preflight": "run"}
    if attempt.told_pid is not None and not attempt.is_noted:
        told["pid"] = attempt.told_pid
    if isinstance(verdict.outcome, Retried | Dead) and verdict.response and not verdict.response.ok:
        told["plugin_retry_field"] = verdict.response.retry
    if isinstance(verdict.outcome, Retried):
        base, most = ready.policy.backoff_base, min(attempt.job.max_attempts, MOST_DELAYS_TOLD + 1)
        told["backoff_schedule"] = [backoff(base, tries, 0.0) // timedelta(milliseconds=1) for tries in range(1, most)]
    return told


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
