"""Routes for job statistics: counts by status, the queue, durations.

The ledger computes the numbers; this module formats them.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Annotated, TypedDict

from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text
from ductile.core.formats.json_schema import Count, Keywords, Omittable, Timestamp, without_none
from ductile.core.units import quote_text
from ductile.ledger.reports import job_stats, queue_status
from ductile.ledger.storage.db import Db
from ductile.web.context import AppContext, BadRequest, read_flag
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Argument, Route

SUMMARY_WINDOW = timedelta(hours=24)
WINDOWS = {
    "5m": timedelta(minutes=5),
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
Window = Annotated[str, Keywords(enum=list(WINDOWS))]


class SummaryView(TypedDict):
    window: str
    stats: Annotated[dict[str, Count], "Number of jobs by status"]
    cancelled: Annotated[Count, "The dead jobs among them that an operator cancelled or purged"]


class ActiveJobView(TypedDict):
    job_id: str
    plugin: str
    command: str
    started_at: Timestamp
    timeout_seconds: Annotated[float, "Timeout of the attempt; null if it has none"] | None


class PluginLaneView(TypedDict):
    """The queue of one plugin."""

    plugin: str
    active_count: Count
    ready_count: Count
    oldest_ready_at: Timestamp | None
    is_claimable: Annotated[bool, "False if its jobs cannot start now"]


class QueueView(TypedDict):
    queue_depth: Count
    running_count: Count
    delayed_count: Count
    dead_count: Count
    cancelled_count: Annotated[Count, "The dead jobs that an operator cancelled or purged"]
    waiting_for_key_count: Count
    waiting_joins_count: Count
    active_jobs: list[ActiveJobView]
    plugin_lanes: list[PluginLaneView]


class TimingView(TypedDict):
    step: Annotated[str, "The command, or pipeline/step"]
    sample_count: Count
    p50_ms: Count
    p95_ms: Count
    p99_ms: Count
    trend_p95_ms: Annotated[
        list[Count | None],
        "The 95th percentile in equal parts of the window",
        Keywords(minItems=job_stats.TREND_SLOTS, maxItems=job_stats.TREND_SLOTS),
    ]


class CommandTimingView(TimingView):
    """The durations of one command, optionally by pipeline step."""

    subs: Omittable[list[TimingView]]


class StopwatchView(TypedDict):
    plugin: str
    window: Window
    captured_at: Timestamp
    steps: list[CommandTimingView]


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the routes for statistics."""
    yield Route(
        method="GET",
        path="/analytics/summary",
        handler=partial(show_summary, ctx),
        scope="jobs:ro",
        summary="Count the jobs of the last 24 hours by status",
        group="jobs",
        responses={200: SummaryView},
    )
    yield Route(
        method="GET",
        path="/analytics/queue",
        handler=partial(show_queue, ctx),
        scope="jobs:ro",
        summary="Get queue depth, running jobs, and the lane of each plugin",
        group="jobs",
        responses={200: QueueView},
    )
    yield Route(
        method="GET",
        path="/stopwatch/{plugin}",
        handler=partial(show_stopwatch, ctx),
        scope="jobs:ro",
        summary="Get the durations of a plugin's commands",
        group="jobs",
        query=(
            Argument("window", Window, "Time window; default 1h"),
            Argument("include_subs", bool, "Add durations for each pipeline step that uses the command"),
        ),
        responses={200: StopwatchView},
        error_statuses=(409,),
    )


async def show_summary(ctx: AppContext, request: Request) -> Response:
    since = ctx.clock.now() - SUMMARY_WINDOW

    def read(db: Db) -> SummaryView:
        stats, cancelled = job_stats.count_since(db, since), job_stats.count_cancelled_since(db, since)
        return SummaryView(window="24h", stats=stats, cancelled=cancelled)

    return json_response(await ctx.ledger.read(read))


async def show_queue(ctx: AppContext, request: Request) -> Response:
    def read(db: Db) -> QueueView:
        queue = queue_status.queue(db, claimable=ctx.startable_plugins(db))
        return _queue_view(queue, job_stats.active_jobs(db), ctx.snapshot())

    return json_response(await ctx.ledger.read(read))


def _queue_view(queue: queue_status.QueueStatus, active: list[job_stats.ActiveJob], snapshot: Snapshot) -> QueueView:
    return {
        "queue_depth": queue.queued + queue.running,
        "running_count": queue.running,
        "delayed_count": queue.delayed,
        "dead_count": queue.dead,
        "cancelled_count": queue.cancelled,
        "waiting_for_key_count": queue.waiting_for_key,
        "waiting_joins_count": queue.waiting_joins,
        "active_jobs": [
            {
                "job_id": job.job_id,
                "plugin": job.plugin,
                "command": job.command,
                "started_at": to_text(job.started_at),
                "timeout_seconds": _timeout_seconds(snapshot, job),
            }
            for job in active
        ],
        "plugin_lanes": [_lane_view(lane, queue.unclaimable) for lane in queue.plugins],
    }


def _timeout_seconds(snapshot: Snapshot, job: job_stats.ActiveJob) -> float | None:
    """Return the timeout of a job in the current configuration; None for jobs without a plugin process."""
    configured = snapshot.plugins.get(job.plugin)
    return configured.entry.timeout_for(job.command).total_seconds() if configured else None


def _lane_view(lane: queue_status.PluginQueue, unclaimable: list[str]) -> PluginLaneView:
    return {
        "plugin": lane.plugin,
        "active_count": lane.running,
        "ready_count": lane.ready,
        "oldest_ready_at": to_text(lane.oldest_ready_at) if lane.oldest_ready_at else None,
        "is_claimable": lane.plugin not in unclaimable,
    }


async def show_stopwatch(ctx: AppContext, request: Request) -> Response:
    """Return 200 also for a removed plugin whose attempts are still recorded."""
    plugin, window = request.params["plugin"], request.argument("window") or "1h"
    if window not in WINDOWS:
        raise BadRequest(f"window: {quote_text(window)} is not a window", hint=f"Use one of {', '.join(WINDOWS)}.")
    subs, now = read_flag(request, "include_subs"), ctx.clock.now()
    samples = await ctx.ledger.read(job_stats.samples, plugin, now - WINDOWS[window])
    if not samples:
        ctx.snapshot().plugin(plugin)  # raises the error for an unknown name
    timed = partial(job_stats.timing, since=now - WINDOWS[window], window=WINDOWS[window])
    steps = [
        _step_view(command, found, timed, subs=subs)
        for command, found in sorted(job_stats.group_by_step(samples).items())
    ]
    return json_response(StopwatchView(plugin=plugin, window=window, captured_at=to_text(now), steps=steps))


def _step_view(
    command: str,
    samples_by_step: Mapping[str | None, list[job_stats.Sample]],
    timed: Callable[[str, list[job_stats.Sample]], job_stats.Timing],
    *,
    subs: bool,
) -> CommandTimingView:
    timing = timed(command, [sample for samples in samples_by_step.values() for sample in samples])
    steps = sorted((step, samples) for step, samples in samples_by_step.items() if step is not None)
    by_step = [_timing_view(timed(step, samples)) for step, samples in steps] if subs else None
    view: CommandTimingView = {**_timing_view(timing), "subs": by_step}
    return without_none(view)


def _timing_view(timing: job_stats.Timing) -> TimingView:
    return {
        "step": timing.step,
        "sample_count": timing.count,
        "p50_ms": timing.p50,
        "p95_ms": timing.p95,
        "p99_ms": timing.p99,
        "trend_p95_ms": list(timing.trend_p95),
    }
