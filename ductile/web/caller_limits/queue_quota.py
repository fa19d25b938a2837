"""The limits of the queued jobs of one submitter: one that sends faster than its jobs run cannot fill the disk.

Apply to requests that submit jobs, not to schedules, hooks, and the steps of a run that was accepted.
"""

from collections.abc import Iterable
from math import inf

import trio
from attrs import define, field, frozen

from ductile.config.sections.settings import ServiceLimits
from ductile.core.errors import DuctileError
from ductile.core.model import FollowUps
from ductile.ledger.reports.queue_status import QueuedWork, sum_queued_work
from ductile.ledger.storage.async_ledger import Ledger

READ_INTERVAL, FULL_READ_INTERVAL = 1.0, 0.1
"""Seconds for which the queued jobs of an actor, as read from the ledger, are used: normally, and at the limit, where
jobs that were accepted may have run since."""


class QueueLimitReached(DuctileError):
    """The submitter has too many queued jobs."""

    code, exit_code, status = "queue_limit", 75, 429
    hint = "Send it again when queued jobs have run. `ductile queue list` shows why they wait."


@define
class _KnownWork:
    """The queued jobs of an actor: those in the ledger at the last read, and those accepted since."""

    read_at: float = -inf
    stored: QueuedWork = field(factory=QueuedWork)
    accepted: QueuedWork = field(factory=QueuedWork)

    @property
    def queued(self) -> QueuedWork:
        return self.stored + self.accepted


@define(eq=False)
class QueueQuota:
    """The queued jobs of each actor that submits requests. The configuration limits the number of actors."""

    _known: dict[str, _KnownWork] = field(factory=dict)

    async def reserve(self, ledger: Ledger, limits: ServiceLimits, actor: str, new: QueuedWork) -> None:
        """Count the new jobs of the actor. Raises QueueLimitReached if it has as many as the limits allow."""
        known = self._known.setdefault(actor, _KnownWork())
        interval = FULL_READ_INTERVAL if _reached_limit(known.queued, limits) else READ_INTERVAL
        if trio.current_time() - known.read_at >= interval:
            known.read_at, included = trio.current_time(), known.accepted
            known.stored = await ledger.read(sum_queued_work, actor)
            known.accepted -= included
        if reached := _reached_limit(known.queued, limits):
            raise reached.refusal(actor)
        known.accepted += new


def work_of(runs: Iterable[FollowUps]) -> QueuedWork:
    """Return the jobs that the runs add to the queue."""
    queued = [new for run in runs for new in run.children if new.prefinished is None]
    return QueuedWork(len(queued), sum(len((new.payload or "").encode()) for new in queued))


@frozen
class _ReachedLimit:
    key: str
    most: int
    queued: int
    unit: str

    def refusal(self, actor: str) -> QueueLimitReached:
        """Return the error. Its message does not have the count, so that refusals are counted together."""
        return QueueLimitReached(
            f"the queue has {self.most} or more {self.unit} of {actor} ({self.key})",
            context={"limit_key": self.key, "max": self.most, "queued": self.queued},
        )


def _reached_limit(queued: QueuedWork, limits: ServiceLimits) -> _ReachedLimit | None:
    if queued.jobs >= limits.queued_jobs:
        return _ReachedLimit("service.limits.queued_jobs", limits.queued_jobs, queued.jobs, "jobs")
    if queued.payload_bytes >= limits.queued_bytes:
        return _ReachedLimit(
            "service.limits.queued_bytes", limits.queued_bytes, queued.payload_bytes, "bytes of payload"
        )
    return None
