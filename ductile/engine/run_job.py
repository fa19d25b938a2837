"""One attempt of one job on one page: preflight, spawn, judge, and the ending that `record` will write.

Called by the dispatcher, which hands the ending to the ledger. What is `at_once` needs no task, and says so where it
would have to wait after all.
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
from ductile.engine.judge import Policy, Verdict, backoff, judge, stopped
from ductile.engine.launch import Launched, SpawnFailed, launch
from ductile.engine.preflight import Memory, Postpone, Ready, Refuse, preflight
from ductile.engine.running import Finished, Tail
from ductile.engine.spare_memory import SpareMemory
from ductile.engine.spawn import Run, Start, Stop, launch_at_once, launch_in_turn, run_plugin
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
    stop: Stop = field(factory=Stop)
    tail: Tail = field(factory=Tail)
    pid: int | None = None
    told_pid: int | None = None
    """The process it ran as, also after its end."""
    has_run: bool = False
    """Whether its plugin has come to an end: from then on nothing may have it run again by accident."""
    since: float = field(factory=trio.current_time)
    is_noted: bool = False

    @property
    def size(self) -> int:
        """How much there is to read before anything is said."""
        job = self.job
        return len(job.payload or "") + len(job.context or "")

    def note_start(self, pid: int) -> None:
        self.pid = self.told_pid = pid
        failpoint("spawn.after")

    def note_end(self, run: Finished | SpawnFailed) -> None:
        self.pid = None  # from now on it can mean another process
        self.has_run = isinstance(run, Finished)


@frozen(eq=False)
class Begun:
    """An attempt whose process has started."""

    attempt: Attempt
    ready: Ready
    started_at: datetime
    run: Run


async def run_job(around: Surroundings, attempt: Attempt) -> Ending:
    """Run one attempt; what it came to and everything that follows from it."""
    begun = await start_job(around, attempt)
    return begun if isinstance(begun, Ending) else await see_through(around, begun)


async def start_job(around: Surroundings, attempt: Attempt) -> Begun | Ending:
    """The attempt with its process, which the caller owns; or what it came to without one."""
    started_at = around.clock.now()
    if attempt.stop.reason is not None:
        return _never_started(around, attempt, attempt.stop.reason, started_at)
    ready = await _in_a_thread_if_large(partial(_ready, around, attempt, started_at), len(attempt.job.payload or ""))
    if not isinstance(ready, Ready):
        return _without_process(around, attempt, ready, started_at)
    _warn(around, attempt, ready)
    failpoint("spawn.before")
    launched = await launch_in_turn(_start(ready))
    if isinstance(launched, SpawnFailed):
        return await _ended(around, attempt, ready, launched, started_at)
    return _begun(attempt, ready, launched, started_at)


def start_at_once(around: Surroundings, attempt: Attempt) -> Begun | Ending | None:
    """`start_job` for who has asked whether it may be at once; None if there is something to wait for after all."""
    started_at = around.clock.now()
    ready = _ready(around, attempt, started_at)
    if not isinstance(ready, Ready):
        return _without_process(around, attempt, ready, started_at)
    _warn(around, attempt, ready)
    failpoint("spawn.before")
    launched = launch_at_once(_start(ready))
    if not isinstance(launched, SpawnFailed):
        return _begun(attempt, ready, launched, started_at)
    if launched.is_busy_file:
        return None
    return _tell(around, attempt, launched, *_decide(around, attempt, ready, launched, started_at))


def end_at_once(around: Surroundings, begun: Begun) -> Ending | None:
    """What the attempt came to, if its process has exited and nothing else is to be waited for."""
    attempt = begun.attempt
    run = begun.run.finish_at_once(LARGE - attempt.size)
    if run is None:
        return None
    attempt.note_end(run)
    failpoint("plugin.exited")
    return _tell(around, attempt, run, *_decide(around, attempt, begun.ready, run, begun.started_at))


async def see_through(around: Surroundings, begun: Begun) -> Ending:
    """What the attempt came to, however long that takes."""
    run = await begun.run.to_its_end()
    begun.attempt.note_end(run)
    return await _ended(around, begun.attempt, begun.ready, run, begun.started_at)


async def spawn(attempt: Attempt, ready: Ready) -> Finished | SpawnFailed:
    """The plugin has run to its end, and the attempt knew its process while it lived."""
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
        on_started=attempt.note_start,
    )
    attempt.note_end(run)
    return run


def _ready(around: Surroundings, attempt: Attempt, started_at: datetime) -> Ready | Refuse | Postpone:
    return preflight(
        attempt.snapshot,
        attempt.job,
        state_json=attempt.state,
        instance=around.instance,
        now=started_at,
        memory=around.memory,
    )


def _start(ready: Ready) -> Start:
    return partial(launch, ready.argv, ready.request, ready.environment, ready.limits)


def _begun(attempt: Attempt, ready: Ready, launched: Launched, started_at: datetime) -> Begun:
    attempt.tail.cap = ready.caps.stderr
    run = Run(
        launched,
        ready.argv[0],
        ready.environment,
        timeout=ready.policy.timeout.total_seconds(),
        grace=ready.grace.total_seconds(),
        caps=ready.caps,
        stop=attempt.stop,
        tail=attempt.tail,
    )
    attempt.note_start(launched.pid)
    return Begun(attempt, ready, started_at, run)


def _warn(around: Surroundings, attempt: Attempt, ready: Ready) -> None:
    for warning in ready.warnings:
        around.log.warn("preflight", warning, plugin=attempt.job.plugin, job_id=attempt.job.id)


def _never_started(around: Surroundings, attempt: Attempt, reason: str, now: datetime) -> Ending:
    """The ending of an attempt that was told to stop before it had a process."""
    outcome = stopped(reason)
    return _tell(around, attempt, None, Verdict(outcome), without_run(attempt.job, outcome, attempt.snapshot, now=now))


def _without_process(
    around: Surroundings, attempt: Attempt, refusal: Refuse | Postpone, started_at: datetime
) -> Ending:
    """The ending of an attempt that may not start."""
    job, run = attempt.job, None
    if isinstance(refusal, Refuse):
        verdict = Verdict(refusal.outcome)
    else:
        run = SpawnFailed(refusal.error, errno.EACCES)
        verdict = judge(job, run, refusal.policy, started_at=started_at, chance=random.random())
    ending = without_run(job, verdict.outcome, attempt.snapshot, now=started_at)
    return _tell(around, attempt, run, verdict, evolve(ending, told=REFUSED))


async def _ended(
    around: Surroundings, attempt: Attempt, ready: Ready, run: Finished | SpawnFailed, started_at: datetime
) -> Ending:
    """What follows from the run."""
    failpoint("plugin.exited")
    much = attempt.size + _said(run)
    if much > LARGE:
        around.spare_memory.need()
    verdict, ending = await _in_a_thread_if_large(partial(_decide, around, attempt, ready, run, started_at), much)
    return _tell(around, attempt, run, verdict, ending)


def _decide(
    around: Surroundings, attempt: Attempt, ready: Ready, run: Finished | SpawnFailed, started_at: datetime
) -> tuple[Verdict, Ending]:
    """What the run means, and the ending it leads to."""
    job = attempt.job
    verdict = judge(job, run, ready.policy, started_at=started_at, chance=random.random())
    told = _told(attempt, ready, verdict)
    ending = ending_of(job, ready, verdict, attempt.snapshot, now=around.clock.now(), told=told)
    if ending.outcome is not verdict.outcome:
        verdict = evolve(verdict, outcome=ending.outcome)
    return verdict, ending


async def judge_run(job: Job, run: Finished | SpawnFailed, policy: Policy, started_at: datetime) -> Verdict:
    """What the run means."""
    return await _in_a_thread_if_large(
        partial(judge, job, run, policy, started_at=started_at, chance=random.random()), _said(run)
    )


async def _in_a_thread_if_large(decide: Callable[[], T], much: int) -> T:
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


def _tell(
    around: Surroundings, attempt: Attempt, run: Finished | SpawnFailed | None, verdict: Verdict, ending: Ending
) -> Ending:
    """The ending, of which the log has been told."""
    _log(around.log, attempt.job, run, verdict)
    return ending


def _log(log: Log, job: Job, run: Finished | SpawnFailed | None, verdict: Verdict) -> None:
    """The log lines of one attempt: the plugin's own, its stderr, and how it ended."""
    about = {"plugin": job.plugin, "job_id": job.id}
    if verdict.response:
        for note in verdict.response.notes:
            log.warn("protocol", note, **about)
        for line in verdict.response.logs:
            log.write(str(line.level), "plugin", line.message, about)
    if isinstance(run, Finished):
        if run.stderr and log.enabled("warn"):
            log.warn("plugin", run.words(log.mask), **about, bytes=run.stderr_total)
        if run.swept or run.pipe_held or run.lost:
            log.warn("spawn", "the plugin left processes behind", **about, swept=run.swept, lost=run.lost)
    ended = type(verdict.outcome).__name__.lower()
    fields = {**about, "command": job.command, "attempt": job.attempt, "outcome": ended}
    if isinstance(run, Finished):
        fields["duration_ms"] = round(run.duration * 1000, 1)
    match verdict.outcome:
        case Succeeded():
            log.write("info", "dispatcher", "job succeeded", fields)
        case Retried(error, delay):
            log.warn("dispatcher", f"attempt failed: {error}", **fields, retry_in_seconds=delay.total_seconds())
        case Failed(error) | Dead(error):
            log.write("error", "dispatcher", f"job failed: {error}", fields)
        case _:
            log.write("info", "dispatcher", "attempt interrupted", fields)
