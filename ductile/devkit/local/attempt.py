"""Prepare and conclude a local attempt, with the decisions of the service but without service or ledger.

`run` starts the plugin in between.
"""

import errno
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from attrs import evolve, field, frozen

from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text
from ductile.core.formats import strict_json
from ductile.core.model import Completion, Failed, Job, OutcomeCode
from ductile.devkit.local import fault_injector
from ductile.engine.completion import complete
from ductile.engine.judge import Verdict, judge
from ductile.engine.preflight import Block, Postpone, Ready, Refuse, preflight
from ductile.engine.process.run import Finished
from ductile.engine.process.start import SpawnFailed

Mutation = Callable[[dict[str, Any]], dict[str, Any]]
"""Changes the request that the service would send."""


@frozen(kw_only=True)
class LocalRun:
    """A local attempt: the request, the process result and the verdict of a service.

    `run` is None if the job cannot run at all. `completion` is what a service would record: jobs, facts, state.
    """

    job: Job
    request: bytes = field(repr=False)
    run: Finished | SpawnFailed | None
    verdict: Verdict
    completion: Completion | None = None
    ready: Ready | None = field(default=None, repr=False)


@frozen
class PreparedAttempt:
    """An attempt that is ready to run its plugin."""

    job: Job
    ready: Ready
    at: datetime


def prepare(
    snapshot: Snapshot,
    job: Job,
    *,
    state_json: str,
    instance: str,
    deadline: timedelta | None = None,
    grace: timedelta | None = None,
    fault: str | None = None,
    mutate: Mutation | None = None,
) -> PreparedAttempt | LocalRun:
    """Prepare an attempt; if no process can start, return the finished attempt instead."""
    now = datetime.now(UTC)
    ready = preflight(snapshot, job, state_json=state_json, instance=instance, now=now)
    match ready:
        case Refuse(outcome):
            return LocalRun(job=job, request=b"", run=None, verdict=Verdict(outcome))
        case Block():
            outcome = Failed(ready.error, code=OutcomeCode.REFUSED)
            return LocalRun(job=job, request=b"", run=None, verdict=Verdict(outcome))
        case Postpone(error, policy):
            refused = SpawnFailed(error, errno.EACCES)
            verdict = judge(job, refused, policy, started_at=now, jitter=0.0)
            return LocalRun(job=job, request=b"", run=refused, verdict=verdict)
    return PreparedAttempt(job, _apply_options(ready, deadline, grace, fault, mutate, now), now)


def conclude(snapshot: Snapshot, attempt: PreparedAttempt, run: Finished | SpawnFailed) -> LocalRun:
    """Judge the run as a service would."""
    job, ready = attempt.job, attempt.ready
    verdict = judge(job, run, ready.policy, started_at=attempt.at, jitter=0.0)
    completion = complete(job, ready, verdict, snapshot, now=attempt.at)
    return LocalRun(
        job=job,
        request=ready.request,
        run=run,
        verdict=evolve(verdict, outcome=completion.outcome),
        completion=completion,
        ready=ready,
    )


def _apply_options(
    ready: Ready,
    deadline: timedelta | None,
    grace: timedelta | None,
    fault: str | None,
    mutate: Mutation | None,
    now: datetime,
) -> Ready:
    if deadline is not None:
        ready = evolve(ready, policy=evolve(ready.policy, timeout=deadline))
        ready = evolve(ready, request=_mutate(ready.request, lambda request: _with_deadline(request, now + deadline)))
    if grace is not None:
        ready = evolve(ready, grace=grace)
    if mutate is not None:
        ready = evolve(ready, request=_mutate(ready.request, mutate))
    if fault is not None:
        ready = evolve(ready, argv=(sys.executable, "-I", fault_injector.__file__, fault, *ready.argv))
    return ready


def _with_deadline(request: dict[str, Any], deadline_at: datetime) -> dict[str, Any]:
    return {**request, "deadline_at": to_text(deadline_at)}


def _mutate(request: bytes, mutate: Mutation) -> bytes:
    return strict_json.dumps(mutate(strict_json.loads(request))).encode() + b"\n"
