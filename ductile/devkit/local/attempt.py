"""One attempt without a service and without a ledger, but for the run itself: what is sent, and what came of it.

Uses the service's own decisions. `local` runs the plugin in between.
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
from ductile.core.model import Completion, Job
from ductile.devkit.local import fault_injector
from ductile.engine.completion import ending_of
from ductile.engine.judge import Verdict, judge
from ductile.engine.preflight import Postpone, Ready, Refuse, preflight
from ductile.engine.process.run import Finished
from ductile.engine.process.start import SpawnFailed

Alter = Callable[[dict[str, Any]], dict[str, Any]]
"""Makes another request of the one that the service would send."""


@frozen(kw_only=True)
class LocalRun:
    """What was sent, what came back, and what a service would have made of it.

    `run` is None where the job could never be run; `ending` is what would be recorded: jobs, facts, state.
    """

    job: Job
    request: bytes = field(repr=False)
    run: Finished | SpawnFailed | None
    verdict: Verdict
    ending: Completion | None = None
    ready: Ready | None = field(default=None, repr=False)


@frozen
class Prepared:
    """An attempt whose plugin can be run now."""

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
    alter: Alter | None = None,
) -> Prepared | LocalRun:
    """Everything the process is given; or how the attempt has ended already, because there will be no process."""
    now = datetime.now(UTC)
    ready = preflight(snapshot, job, state_json=state_json, instance=instance, now=now)
    match ready:
        case Refuse(outcome):
            return LocalRun(job=job, request=b"", run=None, verdict=Verdict(outcome))
        case Postpone(error, policy):
            refused = SpawnFailed(error, errno.EACCES)
            verdict = judge(job, refused, policy, started_at=now, chance=0.0)
            return LocalRun(job=job, request=b"", run=refused, verdict=verdict)
    return Prepared(job, _adjusted(ready, deadline, grace, fault, alter, now), now)


def conclude(snapshot: Snapshot, attempt: Prepared, run: Finished | SpawnFailed) -> LocalRun:
    """The run, and what a service would have made of it."""
    job, ready = attempt.job, attempt.ready
    verdict = judge(job, run, ready.policy, started_at=attempt.at, chance=0.0)
    ending = ending_of(job, ready, verdict, snapshot, now=attempt.at)
    return LocalRun(
        job=job,
        request=ready.request,
        run=run,
        verdict=evolve(verdict, outcome=ending.outcome),
        ending=ending,
        ready=ready,
    )


def _adjusted(
    ready: Ready,
    deadline: timedelta | None,
    grace: timedelta | None,
    fault: str | None,
    alter: Alter | None,
    now: datetime,
) -> Ready:
    if deadline is not None:
        ready = evolve(ready, policy=evolve(ready.policy, timeout=deadline))
        ready = evolve(ready, request=_altered(ready.request, lambda request: _due(request, now + deadline)))
    if grace is not None:
        ready = evolve(ready, grace=grace)
    if alter is not None:
        ready = evolve(ready, request=_altered(ready.request, alter))
    if fault is not None:
        ready = evolve(ready, argv=(sys.executable, "-I", fault_injector.__file__, fault, *ready.argv))
    return ready


def _due(request: dict[str, Any], moment: datetime) -> dict[str, Any]:
    return {**request, "deadline_at": to_text(moment)}


def _altered(request: bytes, alter: Alter) -> bytes:
    return strict_json.dumps(alter(strict_json.loads(request))).encode() + b"\n"
