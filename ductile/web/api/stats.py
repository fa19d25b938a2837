"""Numbers about jobs, over HTTP: how many there are, what runs, how long things take.

Counted by the ledger; only put into words here.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text
from ductile.core.units import shown
from ductile.ledger.admin.pauses import EVERYTHING
from ductile.ledger.reports import job_stats, queue_status
from ductile.ledger.storage.db import Db
from ductile.pipeline.compile.plan import RELAY
from ductile.web.context import AppContext, BadRequest, flag_of, seated
from ductile.web.messages import Request, Response, json_response
from ductile.web.openapi.responses import QUEUE, STOPWATCH, SUMMARY, WINDOWS
from ductile.web.openapi.schemas import Argument, boolean, choice
from ductile.web.routes import AnyRoute, Route

SUMMARY_WINDOW = timedelta(hours=24)


def routes(desk: AppContext) -> Iterable[AnyRoute]:
    """What the API counts."""

    on = seated(desk)

    yield Route(
        method="GET",
        path="/analytics/summary",
        handler=on(summarise),
        scope="jobs:ro",
        summary="How many of the jobs of the last day have which status",
        group="jobs",
        gives={200: SUMMARY},
    )
    yield Route(
        method="GET",
        path="/analytics/queue",
        handler=on(show_queue),
        scope="jobs:ro",
        summary="What waits, runs and died, and the lane of each plugin",
        group="jobs",
        gives={200: QUEUE},
    )
    yield Route(
        method="GET",
        path="/stopwatch/{plugin}",
        handler=on(time_plugin),
        scope="jobs:ro",
        summary="How long the commands of a plugin take",
        group="jobs",
        asks=(
            Argument("window", choice(WINDOWS), "How far back to look; 1h if not given"),
            Argument("include_subs", boolean(), "Also for each step of a pipeline that uses the command"),
        ),
        gives={200: STOPWATCH},
        refuses=(409,),
    )


async def summarise(desk: AppContext, request: Request) -> Response:
    stats = await desk.ledger.read(job_stats.asked_since, desk.clock.now() - SUMMARY_WINDOW)
    return json_response({"window": "24h", "stats": stats})


async def show_queue(desk: AppContext, request: Request) -> Response:
    held = {*desk.unhealthy(), *desk.pausing.paused}
    claimable = set() if EVERYTHING in held else {*desk.snapshot().lanes, RELAY} - held

    def read(db: Db) -> dict[str, Any]:
        return _queue(queue_status.queue(db, claimable=claimable), job_stats.active_jobs(db), desk.snapshot())

    return json_response(await desk.ledger.read(read))


def _queue(queue: queue_status.Queue, active: list[job_stats.Active], snapshot: Snapshot) -> dict[str, Any]:
    return {
        "queue_depth": queue.queued + queue.running,
        "running_count": queue.running,
        "delayed_count": queue.delayed,
        "dead_count": queue.dead,
        "waiting_for_key_count": queue.waiting_for_key,
        "waiting_joins_count": queue.waiting_joins,
        "active_jobs": [
            {
                "job_id": job.job_id,
                "plugin": job.plugin,
                "command": job.command,
                "started_at": to_text(job.started_at),
                "timeout_seconds": _timeout(snapshot, job),
            }
            for job in active
        ],
        "plugin_lanes": [_lane(lane, queue.unclaimable) for lane in queue.lanes],
    }


def _timeout(snapshot: Snapshot, job: job_stats.Active) -> float | None:
    """How long it may run under the configuration in use; None where no plugin's process runs."""
    lane = snapshot.lanes.get(job.plugin)
    return lane.entry.timeout_for(job.command).total_seconds() if lane else None


def _lane(lane: queue_status.PluginQueue, unclaimable: list[str]) -> dict[str, Any]:
    return {
        "plugin": lane.plugin,
        "active_count": lane.running,
        "ready_count": lane.ready,
        "oldest_ready_at": to_text(lane.oldest_ready_at) if lane.oldest_ready_at else None,
        "is_claimable": lane.plugin not in unclaimable,
    }


async def time_plugin(desk: AppContext, request: Request) -> Response:
    """200 also for a plugin that is not there any more, as long as its attempts are."""
    plugin, text = request.params["plugin"], request.argument("window") or "1h"
    if text not in WINDOWS:
        raise BadRequest(f"window: there is no {shown(text)}", hint=f"one of {', '.join(WINDOWS)}")
    subs, now = flag_of(request, "include_subs"), desk.clock.now()
    taken = await desk.ledger.read(job_stats.samples, plugin, now - WINDOWS[text])
    if not taken:
        desk.snapshot().lane(plugin)  # says what is wrong with the name
    timed = partial(job_stats.timing, since=now - WINDOWS[text], window=WINDOWS[text])
    steps = [_step(command, found, timed, subs=subs) for command, found in sorted(job_stats.by_step(taken).items())]
    return json_response({"plugin": plugin, "window": text, "captured_at": to_text(now), "steps": steps})


def _step(
    command: str,
    places: Mapping[str | None, list[job_stats.Sample]],
    timed: Callable[[str, list[job_stats.Sample]], job_stats.Timing],
    *,
    subs: bool,
) -> dict[str, Any]:
    whole = _timing(timed(command, [sample for found in places.values() for sample in found]))
    if subs:
        named = sorted((place, found) for place, found in places.items() if place is not None)
        whole["subs"] = [_timing(timed(place, found)) for place, found in named]
    return whole


def _timing(timing: job_stats.Timing) -> dict[str, Any]:
    return {
        "step": timing.step,
        "sample_count": timing.count,
        "p50_ms": timing.p50,
        "p95_ms": timing.p95,
        "p99_ms": timing.p99,
        "trend_p95_ms": list(timing.trend_p95),
    }
