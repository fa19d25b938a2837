"""What `system watch` shows: what the service said last, and how that fits a terminal of any size.

Pure but for `look`, which asks the service. Knows nothing of the terminal, nor of when to look or to draw.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from attrs import asdict, frozen
from rich.text import Text

from ductile.cli.base.client import Busy, Client
from ductile.cli.logs.event_format import level_of, plain, what, words
from ductile.core.clock import from_text
from ductile.core.format_time import rounded

COLOURS = {"debug": "dim", "info": "", "warn": "yellow", "error": "red"}
FEWEST_LINES = 2
"""A heading and one row: less of a part is not worth showing."""


@frozen(kw_only=True)
class Picture:
    """The answers of the service, taken at one time."""

    health: Mapping[str, Any]
    queue: Mapping[str, Any]
    schedules: Sequence[Mapping[str, Any]]
    breakers: Sequence[Mapping[str, Any]]
    pauses: Sequence[Mapping[str, Any]]

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


@frozen
class Part:
    """A heading, what stands below it, and whether the last rows matter most when there is no room for all."""

    heading: str
    rows: Sequence[Text]
    is_tail: bool = False


def look(service: Client) -> Picture:
    """How everything is now."""
    try:
        health = service.ask("GET", "/healthz")
    except Busy:
        health = {"status": "degraded: the ledger takes no writes"}
    return Picture(
        health=health,
        queue=service.ask("GET", "/analytics/queue"),
        schedules=service.ask("GET", "/scheduler/jobs")["jobs"],
        breakers=service.ask("GET", "/breakers")["breakers"],
        pauses=service.ask("GET", "/queue/pauses")["pauses"],
    )


def frame(
    picture: Picture | None,
    events: Sequence[Mapping[str, Any]],
    *,
    now: datetime,
    lost: str | None = None,
    width: int,
    height: int | None = None,
) -> list[Text]:
    """The lines of the screen: at most `height` of at most `width` columns. `lost`: why the picture is an old one."""
    lines = [_service_line(picture, lost)]
    if picture is not None:
        lines += [_queue_line(picture), *_pause_lines(picture)]
        parts = [_running(picture, now, width), _schedules(picture, now), _breakers(picture, now), _events(events)]
    else:
        parts = [_events(events)]
    shown = [part for part in parts if part.rows]
    shares = _shares([len(part.rows) + 1 for part in shown], None if height is None else height - len(lines))
    for part, share in zip(shown, shares, strict=True):
        lines += _fitted(part, share)
    lines = lines[:height]
    for line in lines[1:] if lost is not None else ():
        line.stylize("dim")
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


# ── the head ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _service_line(picture: Picture | None, lost: str | None) -> Text:
    if lost is not None:
        return Text.assemble(("not running, waiting…", "bold red"), f"  {plain(lost)}")
    if picture is None:
        return Text("connecting…", style="bold")
    health = picture.health
    status = plain(str(health.get("status")))
    facts = [f"ductile {health.get('version', '?')}"]
    if "uptime_seconds" in health:
        facts += [f"up {rounded(timedelta(seconds=health['uptime_seconds']))}", f"plugins {health['plugins_loaded']}"]
    return Text.assemble((status, "bold green" if status == "ok" else "bold red"), "  ", plain("  ".join(facts)))


def _queue_line(picture: Picture) -> Text:
    queue = picture.queue
    waiting = queue["queue_depth"] - queue["running_count"]
    counts = {
        "waiting": waiting,
        "running": queue["running_count"],
        "delayed": queue["delayed_count"],
        "dead": queue["dead_count"],
    }
    line = Text.assemble(("queue", "bold"))
    for name, count in counts.items():
        line.append(f"  {name} {count}", style="red" if name == "dead" and count else "")
    if oldest := picture.health.get("oldest_claimable_seconds"):
        line.append(f"  oldest ready {rounded(timedelta(seconds=oldest))}", style="yellow")
    closed = sum(one["state"] == "closed" for one in picture.breakers)
    line.append(f"  breakers {closed} of {len(picture.breakers)} closed" if picture.breakers else "")
    return line


def _pause_lines(picture: Picture) -> list[Text]:
    if not picture.pauses:
        return []
    told = [f"{'everything' if one['plugin'] == '*' else one['plugin']} ({one['reason']})" for one in picture.pauses]
    return [Text.assemble(("paused", "bold yellow"), f"  {plain(', '.join(told))}")]


# ── the parts ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _running(picture: Picture, now: datetime, width: int) -> Part:
    jobs = picture.queue["active_jobs"]
    name_width = max((len(what(job)) for job in jobs), default=0)
    rows = [_running_row(job, now, min(name_width, width // 3), max(4, min(30, width // 4))) for job in jobs]
    return Part(f"RUNNING {picture.queue['running_count']}", rows or [Text("  nothing runs", style="dim")])


def _running_row(job: Mapping[str, Any], now: datetime, name_width: int, bar_width: int) -> Text:
    elapsed, most = max(timedelta(), now - from_text(job["started_at"])), job.get("timeout_seconds")
    row = Text(f"  {what(job)[:name_width].ljust(name_width)}  ")
    if most:
        part = min(1.0, elapsed.total_seconds() / most)
        colour = "red" if part >= 1 else "yellow" if part >= 0.75 else "green"
        full = round(part * bar_width)
        row.append("█" * full, style=colour).append("░" * (bar_width - full), style="dim").append("  ")
    row.append(clock(elapsed) + (f" of {clock(timedelta(seconds=most))}" if most else ""))
    return row.append(f"  {plain(job['job_id'])}", style="dim")


def _schedules(picture: Picture, now: datetime) -> Part:
    coming = sorted(picture.schedules, key=lambda one: one.get("next_run_at", "~"))
    return Part(f"SCHEDULES {len(coming)}", [_schedule_row(one, now) for one in coming])


def _schedule_row(one: Mapping[str, Any], now: datetime) -> Text:
    row = Text(f"  {plain(one['plugin'])}/{plain(one['schedule_id'])}  {plain(one['when'])}  ")
    if "next_run_at" in one:
        left = max(timedelta(), from_text(one["next_run_at"]) - now)
        row.append(f"in {clock(left)}", style="bold")
        return row.append(f"  held: {plain(one['held_reason'])}" if "held_reason" in one else "", style="yellow")
    return row.append(f"{one['status']} {plain(one.get('reason', ''))}", style="yellow")


def _breakers(picture: Picture, now: datetime) -> Part:
    open_ones = [one for one in picture.breakers if one["state"] != "closed"]
    rows = []
    for one in open_ones:
        row = Text(f"  {what(one)}  ")
        row.append(one["state"], style="red" if one["state"] == "open" else "yellow")
        row.append(f"  failures {one['failure_count']}")
        if "probe_from" in one:
            row.append(f"  asked again in {clock(max(timedelta(), from_text(one['probe_from']) - now))}")
        rows.append(row)
    return Part(f"BREAKERS {len(open_ones)} of {len(picture.breakers)} not closed", rows)


def _events(events: Sequence[Mapping[str, Any]]) -> Part:
    return Part("EVENTS", [_event_row(event) for event in events], is_tail=True)


def _event_row(event: Mapping[str, Any]) -> Text:
    name, data = str(event["event"]), event["data"]
    text = f"  {event['at'][11:19]}  {plain(name)}  {what(data)}  {words(data)}"
    return Text(text.rstrip(), style=COLOURS[level_of(name)])


def clock(span: timedelta) -> str:
    """`12s`, `3m05s`, `2h03m`, `4d02h`: to the second as long as that is read."""
    seconds = int(span.total_seconds())
    for unit, size, smaller, step in (("d", 86_400, "h", 3_600), ("h", 3_600, "m", 60), ("m", 60, "s", 1)):
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // step:02d}{smaller}"
    return f"{seconds}s"


# ── the room ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _shares(wants: Sequence[int], room: int | None) -> list[int]:
    """How many lines each part gets: what it wants if there is room for all, else as equal as can be."""
    if room is None or sum(wants) <= room:
        return list(wants)
    shares = [0] * len(wants)
    for index in range(-1, len(wants) - 1):  # the last part first: what happens matters most
        if room >= FEWEST_LINES:
            shares[index], room = FEWEST_LINES, room - FEWEST_LINES
    while room > 0 and any(0 < share < want for share, want in zip(shares, wants, strict=True)):
        for index, want in enumerate(wants):
            if room > 0 and 0 < shares[index] < want:
                shares[index], room = shares[index] + 1, room - 1
    return shares


def _fitted(part: Part, share: int) -> list[Text]:
    """The heading and as many rows as the share has lines for."""
    if share < FEWEST_LINES:
        return []
    heading, rows, room = Text(part.heading, style="bold"), part.rows, share - 1
    if len(rows) <= room:
        return [heading, *rows]
    if part.is_tail:
        return [heading, *rows[-room:]]
    if room == 1:
        return [heading.append(f" ({len(rows) - 1} not shown)", style="dim"), rows[0]]
    return [heading, *rows[: room - 1], Text(f"  … and {len(rows) - room + 1} more", style="dim")]
