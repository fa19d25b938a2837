"""Numbers about what jobs did: how many, how long they wait and how long they take.

Reads only, through an index, and a bounded number of rows where the rows themselves are needed. The API calls it.
"""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from attrs import frozen

from ductile.core.clock import from_text, to_text
from ductile.core.model import JobStatus
from ductile.ledger.reports import attempt_list, job_list
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.dialect import using

TREND_SLOTS = 60
MOST_SAMPLES = 20_000
MOST_ACTIVE = 200

COUNT_SINCE = f"SELECT COUNT(*) FROM job_queue {using('job_queue_by_status')} WHERE status = ? AND seq >= ?"


def asked_since(db: Db, since: datetime) -> dict[str, int]:
    """How many of the jobs that were asked for since then and are in the queue have each status."""
    first = job_list.first_since(db, since)
    counts = {str(status): db.execute(COUNT_SINCE, (status, first)).fetchone()[0] for status in JobStatus}
    return {status: count for status, count in counts.items() if count}


@frozen(kw_only=True)
class Active:
    """A job that runs."""

    job_id: str
    plugin: str
    command: str
    started_at: datetime


ACTIVE = "SELECT id, plugin, command, started_at FROM job_queue WHERE claimed_by > '' LIMIT ?"


def active_jobs(db: Db, *, limit: int = MOST_ACTIVE) -> list[Active]:
    """What runs now, longest first."""
    rows = db.execute(ACTIVE, (limit,)).fetchall()
    active = [Active(job_id=row[0], plugin=row[1], command=row[2], started_at=from_text(row[3])) for row in rows]
    return sorted(active, key=lambda job: job.started_at)


@frozen(kw_only=True)
class Sample:
    """One attempt that ran: which step it was, when it ended, how long it took."""

    command: str
    step: str | None
    """`pipeline/step` for a job of a pipeline."""
    completed_at: datetime
    milliseconds: int


SAMPLES = f"""
    SELECT command, pipeline, step_id, completed_at, duration_ms FROM job_log {using("job_log_by_plugin")}
     WHERE plugin = ? AND seq >= ? AND completed_at >= ? AND duration_ms IS NOT NULL
     ORDER BY seq DESC LIMIT ?
"""


def samples(db: Db, plugin: str, since: datetime, *, limit: int = MOST_SAMPLES) -> list[Sample]:
    """The plugin's newest attempts since then, newest first."""
    first = attempt_list.first_log_since(db, since)
    return [
        Sample(
            command=command,
            step=f"{pipeline}/{step_id}" if pipeline and step_id else None,
            completed_at=from_text(completed_at),
            milliseconds=milliseconds,
        )
        for command, pipeline, step_id, completed_at, milliseconds in db.execute(
            SAMPLES, (plugin, first, to_text(since), limit)
        )
    ]


@frozen(kw_only=True)
class Timing:
    """How long one step takes. `trend_p95` divides the window into equal parts; None where nothing ran."""

    step: str
    count: int
    p50: int
    p95: int
    p99: int
    trend_p95: tuple[int | None, ...]


def timing(step: str, taken: Sequence[Sample], *, since: datetime, window: timedelta) -> Timing:
    """What the samples of one step come to; there is at least one."""
    lengths = sorted(sample.milliseconds for sample in taken)
    slots: list[list[int]] = [[] for _ in range(TREND_SLOTS)]
    for sample in taken:
        slots[min(int((sample.completed_at - since) / window * TREND_SLOTS), TREND_SLOTS - 1)].append(
            sample.milliseconds
        )
    return Timing(
        step=step,
        count=len(lengths),
        p50=nearest_rank(lengths, 50),
        p95=nearest_rank(lengths, 95),
        p99=nearest_rank(lengths, 99),
        trend_p95=tuple(nearest_rank(sorted(slot), 95) if slot else None for slot in slots),
    )


def nearest_rank(ordered: Sequence[int], percent: int) -> int:
    """The smallest value that at least so many percent of the values do not exceed."""
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1]


def by_step(taken: Iterable[Sample]) -> dict[str, dict[str | None, list[Sample]]]:
    """The samples of each command, and of each place in a pipeline where it was used."""
    sorted_out: dict[str, dict[str | None, list[Sample]]] = {}
    for sample in taken:
        sorted_out.setdefault(sample.command, {}).setdefault(sample.step, []).append(sample)
    return sorted_out
