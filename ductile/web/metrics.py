"""`/metrics`: what the service has counted and what it is doing now, in Prometheus' text format.

Gauges are read from the ledger when somebody asks, counters come from the process. Nothing here names a job.
"""

import os
import resource
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import trio
from attrs import frozen

from ductile import __version__
from ductile.core.metrics import BOUNDS, Histogram, Meters
from ductile.core.model import Breaker, BreakerState
from ductile.ledger.reports import queue_status
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import breakers
from ductile.ledger.tables.schedules import EntryStatus, all_entries
from ductile.web.context import AppContext
from ductile.web.messages import SAFE_HEADERS, Request, Response
from ductile.web.openapi.schemas import text
from ductile.web.routes import AnyRoute, Route

MEDIA = "text/plain; version=0.0.4; charset=utf-8"
LAG_SAMPLES = 5
_STATES = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


def routes(desk: AppContext) -> Iterable[AnyRoute]:
    """What the API answers to whoever collects numbers."""

    async def show(request: Request) -> Response:
        return await metrics(desk, request)

    yield Route(
        method="GET",
        path="/metrics",
        handler=show,
        scope="system:ro",
        group="system",
        summary="Numbers about queue, jobs, breakers, deliveries and the process, for Prometheus",
        media="text/plain",
        gives={200: text("Prometheus' text format, version 0.0.4")},
    )


async def metrics(desk: AppContext, request: Request) -> Response:
    """The numbers of this moment."""
    lag = await _loop_lag()
    now = await desk.ledger.read(_look, desk)
    lines = [*_of_queue(desk, now), *_of_meters(desk.meters), *_of_process(desk, lag)]
    return Response(headers=(("content-type", MEDIA), *SAFE_HEADERS), body="".join(lines).encode())


@frozen(kw_only=True)
class _Now:
    """What the ledger says."""

    queue: queue_status.Queue
    oldest: float
    breakers: list[Breaker]
    schedules: dict[str, int]


def _look(db: Db, desk: AppContext) -> _Now:
    oldest = queue_status.oldest_claimable(db, desk.snapshot().slots)
    counts = dict.fromkeys((status.value for status in EntryStatus), 0)
    for entry in all_entries(db):
        counts[entry.status] += 1
    return _Now(
        queue=queue_status.queue(db),
        oldest=max((desk.clock.now() - oldest).total_seconds(), 0.0) if oldest else 0.0,
        breakers=breakers.all_breakers(db),
        schedules=counts,
    )


async def _loop_lag() -> float:
    """How long a task that could run has to wait for its turn: the longest of a few tries, in seconds."""
    longest = 0.0
    for _ in range(LAG_SAMPLES):
        before = trio.current_time()
        await trio.lowlevel.checkpoint()
        longest = max(longest, trio.current_time() - before)
    return longest


def _of_queue(desk: AppContext, now: _Now) -> Iterator[str]:
    queue = now.queue
    depth = {"queued": queue.queued - queue.delayed, "running": queue.running, "delayed": queue.delayed}
    yield from family("ductile_queue_jobs", "gauge", "Jobs that are not over.", labelled(depth, "status"))
    yield from gauge("ductile_queue_oldest_claimable_seconds", "Age of the oldest job that could start.", now.oldest)
    yield from gauge("ductile_plugins", "Plugins that can run.", len(desk.snapshot().lanes))
    yield from gauge("ductile_plugins_unhealthy", "Plugins whose init has failed.", len(desk.unhealthy()))
    yield from gauge("ductile_plugins_paused", "Plugins paused by the operator.", len(desk.pausing.paused))
    states = {(each.plugin, each.command): _STATES[each.state] for each in now.breakers}
    failures = {(each.plugin, each.command): each.failure_count for each in now.breakers}
    names = ("plugin", "command")
    yield from family("ductile_breaker_state", "gauge", "0 closed, 1 half-open, 2 open.", labelled(states, *names))
    yield from family("ductile_breaker_failures", "gauge", "Failures in a row.", labelled(failures, *names))
    yield from family("ductile_schedules", "gauge", "Schedules by status.", labelled(now.schedules, "status"))


def _of_meters(meters: Meters) -> Iterator[str]:
    counted: tuple[tuple[str, str, Mapping[Any, float], tuple[str, ...]], ...] = (
        ("ductile_jobs_total", "Jobs that have ended.", meters.jobs, ("plugin", "command", "status")),
        ("ductile_retries_total", "Attempts that are tried again.", meters.retries, ("plugin",)),
        ("ductile_webhook_deliveries_total", "Deliveries.", meters.deliveries, ("endpoint", "outcome")),
        ("ductile_http_requests_total", "Requests answered.", meters.requests, ("method", "route", "status")),
    )
    for name, words, values, labels in counted:
        yield from family(name, "counter", words, labelled(values, *labels))
    yield from histograms("ductile_job_run_seconds", "How long attempts took.", by_plugin(meters.running))
    words = "How long jobs waited for their first attempt."
    yield from histograms("ductile_job_wait_seconds", words, by_plugin(meters.waiting))


def _of_process(desk: AppContext, lag: float) -> Iterator[str]:
    words = "From the wish to write to its commit."
    yield from histograms("ductile_ledger_write_seconds", words, [({}, desk.ledger.waited)])
    yield from family("ductile_ledger_commits_total", "counter", "Commits.", [({}, desk.ledger.commits)])
    yield from gauge("ductile_ledger_stuck_seconds", "For how long a writer has waited.", desk.stuck_seconds())
    yield from gauge("ductile_loop_lag_seconds", "How late a ready task came to its turn just now.", lag)
    yield from gauge("ductile_uptime_seconds", "Since the start.", trio.current_time() - desk.started)
    yield from family("ductile_info", "gauge", "The version.", [({"version": __version__}, 1)])
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = used.ru_utime + used.ru_stime
    yield from family("process_cpu_seconds_total", "counter", "Processor time.", [({}, cpu)])
    yield from gauge("process_resident_memory_bytes", "Memory.", _resident_bytes())
    yield from gauge("process_open_fds", "Open files.", len(os.listdir("/proc/self/fd")))


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


# ── the format ──────────────────────────────────────────────────────────────────────────────────────────────────────


def gauge(name: str, words: str, value: float) -> Iterator[str]:
    return family(name, "gauge", words, [({}, value)])


def labelled(values: Mapping[Any, float], *names: str) -> list[Sample]:
    """A sample for each key, which is one label or as many as there are names."""
    samples: list[Sample] = []
    for key, value in sorted(values.items()):
        texts = map(str, key if isinstance(key, tuple) else (key,))
        samples.append((dict(zip(names, texts, strict=True)), value))
    return samples


def by_plugin(values: Mapping[str, Histogram]) -> list[tuple[Labels, Histogram]]:
    return [({"plugin": name}, histogram) for name, histogram in sorted(values.items())]


def family(name: str, kind: str, words: str, samples: Iterable[Sample]) -> Iterator[str]:
    """One metric with its samples."""
    yield f"# HELP {name} {words}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        yield f"{name}{_labels(labels)} {_number(value)}\n"


def histograms(name: str, words: str, samples: Iterable[tuple[Labels, Histogram]]) -> Iterator[str]:
    """One metric whose samples are buckets that count everything up to their end."""
    yield f"# HELP {name} {words}\n# TYPE {name} histogram\n"
    for labels, histogram in samples:
        seen = 0
        for bound, count in zip((*BOUNDS, None), histogram.buckets, strict=True):
            seen += count
            end = "+Inf" if bound is None else _number(bound)
            yield f"{name}_bucket{_labels({**labels, 'le': end})} {seen}\n"
        yield f"{name}_sum{_labels(labels)} {_number(histogram.total)}\n{name}_count{_labels(labels)} {seen}\n"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
