"""The dashboard of `system watch`: the state of the service as lines that fit a terminal of any size.

Pure except for `fetch_state`. Knows nothing of the terminal or of when to poll and draw.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from attrs import asdict, frozen
from rich.text import Text

from ductile.cli.base.client import Client
from ductile.cli.logs.event_format import details, level_of, plain, subject
from ductile.core.clock import from_text
from ductile.core.errors import NotAllowed, NotFound
from ductile.core.format_time import format_span

VERDICT_COLOURS = {"healthy": "green", "attention": "yellow", "failed": "red"}
COLOURS = {"debug": "dim", "info": "", "warn": "yellow", "error": "red"}
MIN_SECTION_LINES = 2
"""A heading and one row: a smaller section is not shown."""


@frozen(kw_only=True)
class ServiceState:
    """The responses of the service at one time."""

    health: Mapping[str, Any]
    queue: Mapping[str, Any]
    schedules: Sequence[Mapping[str, Any]]
    breakers: Sequence[Mapping[str, Any]]
    pauses: Sequence[Mapping[str, Any]]
    topics: Sequence[Mapping[str, Any]] = ()
    """The topics of the exchange; empty if it is disabled or the token may not read it."""

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


@frozen
class Section:
    """A heading with rows. `is_tail`: the last rows have priority if not all fit."""

    heading: str
    rows: Sequence[Text]
    is_tail: bool = False


def fetch_state(service: Client) -> ServiceState:
    """Request the current state of the service."""
    return ServiceState(
        health=service.health(),
        queue=service.request("GET", "/analytics/queue"),
        schedules=service.request("GET", "/scheduler/jobs")["jobs"],
        breakers=service.request("GET", "/breakers")["breakers"],
        pauses=service.request("GET", "/queue/pauses")["pauses"],
        topics=_fetch_topics(service),
    )


def _fetch_topics(service: Client) -> Sequence[Mapping[str, Any]]:
    try:
        topics: Sequence[Mapping[str, Any]] = service.request("GET", "/exchange/topics")["topics"]
    except (NotAllowed, NotFound):
        return ()
    return topics


def frame(
    state: ServiceState | None,
    events: Sequence[Mapping[str, Any]],
    *,
    now: datetime,
    lost: str | None = None,
    width: int,
    height: int | None = None,
) -> list[Text]:
    """Return the lines of the screen, at most `height` of `width` columns. `lost`: why the state is outdated."""
    lines = [_service_line(state, lost)]
    if state is not None:
        lines += [_queue_line(state), *_pause_lines(state)]
        sections = [
            _running(state, now, width),
            _schedules(state, now),
            _topics(state, now),
            _breakers(state, now),
            _events(events),
        ]
    else:
        sections = [_events(events)]
    shown = [section for section in sections if section.rows]
    shares = _shares([len(section.rows) + 1 for section in shown], None if height is None else height - len(lines))
    for section, share in zip(shown, shares, strict=True):
        lines += _fitted(section, share)
    lines = lines[:height]
    for line in lines[1:] if lost is not None else ():
        line.stylize("dim")
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


# ── header ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _service_line(state: ServiceState | None, lost: str | None) -> Text:
    if lost is not None:
        return Text.assemble(("not running, waiting…", "bold red"), f"  {plain(lost)}")
    if state is None:
        return Text("connecting…", style="bold")
    health, verdict = state.health, state.health["verdict"]
    reasons = f" ({', '.join(health['reasons'])})" if health["reasons"] else ""
    facts = [
        f"ductile {health['version']}",
        f"up {format_span(timedelta(seconds=health['uptime_seconds']))}",
        f"plugins {health['plugins_loaded']}",
    ]
    style = f"bold {VERDICT_COLOURS.get(verdict, 'red')}"
    return Text.assemble((plain(verdict + reasons), style), "  ", plain("  ".join(facts)))


def _queue_line(state: ServiceState) -> Text:
    queue = state.queue
    waiting = queue["queue_depth"] - queue["running_count"]
    counts = {
        "waiting": waiting,
        "running": queue["running_count"],
        "delayed": queue["delayed_count"],
        "dead": queue["dead_count"] - queue["cancelled_count"],
    }
    if queue["cancelled_count"]:
        counts["cancelled"] = queue["cancelled_count"]
    line = Text.assemble(("queue", "bold"))
    for name, count in counts.items():
        line.append(f"  {name} {count}", style="red" if name == "dead" and count else "")
    if oldest := state.health.get("oldest_claimable_seconds"):
        line.append(f"  oldest ready {format_span(timedelta(seconds=oldest))}", style="yellow")
    closed = sum(breaker["state"] == "closed" for breaker in state.breakers)
    line.append(f"  breakers {closed} of {len(state.breakers)} closed" if state.breakers else "")
    return line


def _pause_lines(state: ServiceState) -> list[Text]:
    if not state.pauses:
        return []
    pauses = [
        f"{'everything' if pause['plugin'] == '*' else pause['plugin']} ({pause['reason']})" for pause in state.pauses
    ]
    return [Text.assemble(("paused", "bold yellow"), f"  {plain(', '.join(pauses))}")]


# ── sections ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _running(state: ServiceState, now: datetime, width: int) -> Section:
    jobs = state.queue["active_jobs"]
    name_width = max((len(subject(job)) for job in jobs), default=0)
    rows = [_running_row(job, now, min(name_width, width // 3), max(4, min(30, width // 4))) for job in jobs]
    return Section(f"RUNNING {state.queue['running_count']}", rows or [Text("  no running jobs", style="dim")])


def _running_row(job: Mapping[str, Any], now: datetime, name_width: int, bar_width: int) -> Text:
    elapsed, most = max(timedelta(), now - from_text(job["started_at"])), job.get("timeout_seconds")
    row = Text(f"  {subject(job)[:name_width].ljust(name_width)}  ")
    if most:
        part = min(1.0, elapsed.total_seconds() / most)
        colour = "red" if part >= 1 else "yellow" if part >= 0.75 else "green"
        full = round(part * bar_width)
        row.append("█" * full, style=colour).append("░" * (bar_width - full), style="dim").append("  ")
    row.append(clock(elapsed) + (f" of {clock(timedelta(seconds=most))}" if most else ""))
    return row.append(f"  {plain(job['job_id'])}", style="dim")


def _schedules(state: ServiceState, now: datetime) -> Section:
    coming = sorted(state.schedules, key=lambda schedule: schedule.get("next_run_at", "~"))
    return Section(f"SCHEDULES {len(coming)}", [_schedule_row(schedule, now) for schedule in coming])


def _schedule_row(schedule: Mapping[str, Any], now: datetime) -> Text:
    row = Text(f"  {plain(schedule['plugin'])}/{plain(schedule['schedule_id'])}  {plain(schedule['when'])}  ")
    if "next_run_at" in schedule:
        left = max(timedelta(), from_text(schedule["next_run_at"]) - now)
        row.append(f"in {clock(left)}", style="bold")
        return row.append(
            f"  held: {plain(schedule['held_reason'])}" if "held_reason" in schedule else "", style="yellow"
        )
    return row.append(f"{schedule['status']} {plain(schedule.get('reason', ''))}", style="yellow")


def _topics(state: ServiceState, now: datetime) -> Section:
    """Return the topics with open messages or workers. Topics that programs only read are left out."""
    shown = [topic for topic in state.topics if topic["last_claimed_at"] or topic["waiting_workers"] or topic["paused"]]
    return Section(f"TOPICS {len(shown)}", [_topic_row(topic, now) for topic in shown])


def _topic_row(topic: Mapping[str, Any], now: datetime) -> Text:
    row = Text(f"  {plain(topic['topic'])}")
    for name in ("ready", "delayed", "waiting", "claimed", "dead"):
        if count := topic[name]:
            row.append(f"  {name} {count}", style="red" if name == "dead" else "")
    if topic["ready"] and topic["oldest_ready_at"]:
        row.append(f"  oldest {clock(max(timedelta(), now - from_text(topic['oldest_ready_at'])))}")
    row.append(f"  workers waiting {topic['waiting_workers'] or 0}")
    return row.append(f"  paused ({plain(str(topic['pause_reason']))})" if topic["paused"] else "", style="yellow")


def _breakers(state: ServiceState, now: datetime) -> Section:
    open_ones = [breaker for breaker in state.breakers if breaker["state"] != "closed"]
    rows = []
    for breaker in open_ones:
        row = Text(f"  {subject(breaker)}  ")
        row.append(breaker["state"], style="red" if breaker["state"] == "open" else "yellow")
        row.append(f"  failures {breaker['failure_count']}")
        if "probe_from" in breaker:
            row.append(f"  next probe in {clock(max(timedelta(), from_text(breaker['probe_from']) - now))}")
        rows.append(row)
    return Section(f"BREAKERS {len(open_ones)} of {len(state.breakers)} not closed", rows)


def _events(events: Sequence[Mapping[str, Any]]) -> Section:
    return Section("EVENTS", [_event_row(event) for event in events], is_tail=True)


def _event_row(event: Mapping[str, Any]) -> Text:
    name, data = str(event["event"]), event["data"]
    text = f"  {event['at'][11:19]}  {plain(name)}  {subject(data)}  {details(data)}"
    return Text(text.rstrip(), style=COLOURS[level_of(name)])


def clock(span: timedelta) -> str:
    """Format a duration in two units: `12s`, `3m05s`, `2h03m`, `4d02h`."""
    seconds = int(span.total_seconds())
    for unit, size, smaller, step in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // step:02d}{smaller}"
    return f"{seconds}s"


# ── layout ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _shares(sizes: Sequence[int], available: int | None) -> list[int]:
    """Return the number of lines of each section: all that it needs if they fit, otherwise equal shares."""
    if available is None or sum(sizes) <= available:
        return list(sizes)
    shares = [0] * len(sizes)
    for index in range(-1, len(sizes) - 1):  # the last section first: events have priority
        if available >= MIN_SECTION_LINES:
            shares[index], available = MIN_SECTION_LINES, available - MIN_SECTION_LINES
    while available > 0 and any(0 < share < size for share, size in zip(shares, sizes, strict=True)):
        for index, size in enumerate(sizes):
            if available > 0 and 0 < shares[index] < size:
                shares[index], available = shares[index] + 1, available - 1
    return shares


def _fitted(section: Section, share: int) -> list[Text]:
    """Return the heading and as many rows as fit `share` lines."""
    if share < MIN_SECTION_LINES:
        return []
    heading, rows, available = Text(section.heading, style="bold"), section.rows, share - 1
    if len(rows) <= available:
        return [heading, *rows]
    if section.is_tail:
        return [heading, *rows[-available:]]
    if available == 1:
        return [heading.append(f" ({len(rows) - 1} not shown)", style="dim"), rows[0]]
    return [heading, *rows[: available - 1], Text(f"  … and {len(rows) - available + 1} more", style="dim")]
