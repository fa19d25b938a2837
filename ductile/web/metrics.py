"""`GET /metrics` in the Prometheus text format.

Gauges are read from the ledger on each request; counters come from the process. No metric has a job id as a label.
"""

import os
import resource
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import trio
from attrs import frozen

from ductile import __version__
from ductile.core.metrics import BUCKET_BOUNDS, Histogram, Metrics
from ductile.core.model import Breaker, BreakerState
from ductile.ledger.exchange.topics import OpenMessages, count_open_messages
from ductile.ledger.reports import queue_status
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import breakers
from ductile.ledger.tables.schedules import EntryStatus, all_entries
from ductile.web.context import AppContext
from ductile.web.messages import SAFE_HEADERS, Request, Response
from ductile.web.routing import AnyRoute, Route

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LAG_SAMPLES = 5
_BREAKER_STATES = {BreakerState.CLOSED: 0, BreakerState.HALF_OPEN: 1, BreakerState.OPEN: 2}

Labels = Mapping[str, str]
Sample = tuple[Labels, float]


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the route of the metrics."""
    yield Route(
        method="GET",
        path="/metrics",
        handler=partial(metrics, ctx),
        scope="system:ro",
        group="system",
        summary="Get metrics of queue, jobs, breakers, deliveries and process for Prometheus",
        media_type="text/plain",
        responses={200: Annotated[str, "Prometheus text format, version 0.0.4"]},
    )


async def metrics(ctx: AppContext, request: Request) -> Response:
    """Return the current metrics."""
    lag = await _loop_lag()
    gauges = await ctx.ledger.read(_read_gauges, ctx)
    lines = [*_queue_metrics(ctx, gauges), *_meter_metrics(ctx.metrics)]
    lines += [*_exchange_metrics(ctx, gauges.messages), *_process_metrics(ctx, lag)]
    return Response(headers=(("content-type", MEDIA_TYPE), *SAFE_HEADERS), body="".join(lines).encode())


@frozen(kw_only=True)
class _LedgerGauges:
    """The gauges that are read from the ledger."""

    queue: queue_status.QueueStatus
    oldest: float
    breakers: list[Breaker]
    schedules: dict[str, int]
    messages: OpenMessages


def _read_gauges(db: Db, ctx: AppContext) -> _LedgerGauges:
    now = ctx.clock.now()
    oldest = queue_status.oldest_ready_job(db, ctx.startable_plugins(db), now=now)
    counts = dict.fromkeys((status.value for status in EntryStatus), 0)
    for entry in all_entries(db):
        counts[entry.status] += 1
    return _LedgerGauges(
        queue=queue_status.queue(db),
        oldest=_age(ctx, oldest.ready_at if oldest else None),
        breakers=breakers.all_breakers(db),
        schedules=counts,
        messages=count_open_messages(db),
    )


def _age(ctx: AppContext, since: datetime | None) -> float:
    return max((ctx.clock.now() - since).total_seconds(), 0.0) if since else 0.0


async def _loop_lag() -> float:
    """Return the longest delay of a ready task in a few samples, in seconds."""
    longest = 0.0
    for _ in range(LAG_SAMPLES):
        before = trio.current_time()
        await trio.lowlevel.checkpoint()
        longest = max(longest, trio.current_time() - before)
    return longest


def _queue_metrics(ctx: AppContext, gauges: _LedgerGauges) -> Iterator[str]:
    queue = gauges.queue
    depth = {"queued": queue.queued - queue.delayed, "running": queue.running, "delayed": queue.delayed}
    yield from format_family("ductile_queue_jobs", "gauge", "Jobs that have not ended.", label_samples(depth, "status"))
    yield from format_gauge(
        "ductile_queue_oldest_claimable_seconds",
        "How long the oldest job that may start has been ready.",
        gauges.oldest,
    )
    yield from format_gauge("ductile_plugins", "Available plugins.", len(ctx.snapshot().plugins))
    yield from format_gauge("ductile_plugins_unhealthy", "Plugins whose init has failed.", len(ctx.unhealthy()))
    yield from format_gauge("ductile_plugins_paused", "Plugins paused by the operator.", len(ctx.pause_control.paused))
    states = {(each.plugin, each.command): _BREAKER_STATES[each.state] for each in gauges.breakers}
    failures = {(each.plugin, each.command): each.failure_count for each in gauges.breakers}
    names = ("plugin", "command")
    yield from format_family(
        "ductile_breaker_state", "gauge", "0 closed, 1 half-open, 2 open.", label_samples(states, *names)
    )
    yield from format_family(
        "ductile_breaker_failures", "gauge", "Consecutive failures.", label_samples(failures, *names)
    )
    yield from format_family(
        "ductile_schedules", "gauge", "Schedules by status.", label_samples(gauges.schedules, "status")
    )


def _meter_metrics(meters: Metrics) -> Iterator[str]:
    counted: tuple[tuple[str, str, Mapping[Any, float], tuple[str, ...]], ...] = (
        (
            "ductile_jobs_total",
            "Jobs that have ended.",
            meters.jobs,
            ("plugin", "command", "status", "outcome_code"),
        ),
        ("ductile_retries_total", "Attempts that were followed by a retry.", meters.retries, ("plugin",)),
        ("ductile_webhook_deliveries_total", "Webhook deliveries.", meters.deliveries, ("endpoint", "outcome")),
        ("ductile_http_requests_total", "HTTP requests.", meters.requests, ("method", "route", "status")),
    )
    for name, help_text, values, labels in counted:
        yield from format_family(name, "counter", help_text, label_samples(values, *labels))
    yield from format_histograms("ductile_job_run_seconds", "Duration of attempts.", label_by_plugin(meters.running))
    help_text = "Time from enqueue to the first attempt."
    yield from format_histograms("ductile_job_wait_seconds", help_text, label_by_plugin(meters.waiting))


def _exchange_metrics(ctx: AppContext, messages: OpenMessages) -> Iterator[str]:
    meters = ctx.exchange.metrics
    yield from format_gauge("ductile_exchange_ready", "Messages that wait for a worker.", messages.ready)
    yield from format_gauge("ductile_exchange_claimed", "Messages that a worker has claimed.", messages.claimed)
    yield from format_gauge(
        "ductile_exchange_oldest_ready_seconds",
        "Age of the oldest message that waits for a worker.",
        _age(ctx, messages.oldest_ready_at),
    )
    yield from format_family(
        "ductile_exchange_messages_total", "counter", "Published messages.", label_samples(meters.messages, "topic")
    )
    yield from format_family(
        "ductile_exchange_claims_total", "counter", "Ended claims.", label_samples(meters.claims, "topic", "end")
    )
    help_text = "Ends of claims that came after the claim had ended."
    yield from format_family("ductile_exchange_late_total", "counter", help_text, [({}, meters.late)])
    help_text = "Time from ready to claimed."
    yield from format_histograms("ductile_exchange_publish_to_claim_seconds", help_text, [({}, meters.claim_waits)])
    yield from format_gauge(
        "ductile_exchange_waiting_workers", "Requests that wait for a message.", len(ctx.exchange.waiters)
    )


def _process_metrics(ctx: AppContext, lag: float) -> Iterator[str]:
    help_text = "Time from a write request to its commit."
    yield from format_histograms("ductile_ledger_write_seconds", help_text, [({}, ctx.ledger.waited)])
    yield from format_family("ductile_ledger_commits_total", "counter", "Ledger commits.", [({}, ctx.ledger.commits)])
    yield from format_gauge(
        "ductile_ledger_stuck_seconds", "Time for which a writer has been waiting.", ctx.stuck_seconds()
    )
    yield from format_gauge("ductile_loop_lag_seconds", "Delay of a ready task in the event loop.", lag)
    yield from format_gauge(
        "ductile_uptime_seconds", "Time since the start of the service.", trio.current_time() - ctx.started
    )
    yield from format_family("ductile_info", "gauge", "Version of the service.", [({"version": __version__}, 1)])
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = used.ru_utime + used.ru_stime
    yield from format_family("process_cpu_seconds_total", "counter", "User and system CPU time.", [({}, cpu)])
    yield from format_gauge("process_resident_memory_bytes", "Resident memory.", _resident_bytes())
    yield from format_gauge("process_open_fds", "Open file descriptors.", len(os.listdir("/proc/self/fd")))


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


# ── text format ──────────────────────────────────────────────────────────────────────────────────────────────────────


def format_gauge(name: str, help_text: str, value: float) -> Iterator[str]:
    return format_family(name, "gauge", help_text, [({}, value)])


def label_samples(values: Mapping[Any, float], *names: str) -> list[Sample]:
    """Return a sample for each key. A key is one label value, or a tuple with a value for each name."""
    samples: list[Sample] = []
    for key, value in sorted(values.items()):
        texts = map(str, key if isinstance(key, tuple) else (key,))
        samples.append((dict(zip(names, texts, strict=True)), value))
    return samples


def label_by_plugin(values: Mapping[str, Histogram]) -> list[tuple[Labels, Histogram]]:
    return [({"plugin": name}, histogram) for name, histogram in sorted(values.items())]


def format_family(name: str, kind: str, help_text: str, samples: Iterable[Sample]) -> Iterator[str]:
    """Format a metric with its samples."""
    yield f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        yield f"{name}{_format_labels(labels)} {_format_number(value)}\n"


def format_histograms(name: str, help_text: str, samples: Iterable[tuple[Labels, Histogram]]) -> Iterator[str]:
    """Format a histogram metric with cumulative buckets."""
    yield f"# HELP {name} {help_text}\n# TYPE {name} histogram\n"
    for labels, histogram in samples:
        total = 0
        for bound, count in zip((*BUCKET_BOUNDS, None), histogram.buckets, strict=True):
            total += count
            end = "+Inf" if bound is None else _format_number(bound)
            yield f"{name}_bucket{_format_labels({**labels, 'le': end})} {total}\n"
        yield f"{name}_sum{_format_labels(labels)} {_format_number(histogram.total)}\n"
        yield f"{name}_count{_format_labels(labels)} {total}\n"


def _format_labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _format_number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
