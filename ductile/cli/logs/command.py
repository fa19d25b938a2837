"""`ductile logs`: past events from the ledger, and with --follow new events from the event stream.

Past events can be read while the service is stopped.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from attrs import frozen

from ductile.cli.base import options, output
from ductile.cli.logs.event_format import LEVELS, event_line, is_at_least, level_of, plain
from ductile.core.errors import NotFound, ServiceUnreachable, UsageInvalid, did_you_mean

if TYPE_CHECKING:
    import re
    from datetime import datetime

MAX_LINES = 10_000
PAGE_ROWS = 1000
ANY_OF = ".*"
"""The end of a kind that stands for all events with this prefix."""
FAILED_ATTEMPTS = frozenset({"job.failed", "job.timed_out", "job.retry_scheduled"})
GAP = "gap"
"""Shown regardless of filters: events are missing."""


@click.command("logs")
@click.argument("plugin", required=False)
@click.option("-f", "--follow", is_flag=True, help="Stream new events until Ctrl-C.")
@click.option("--level", type=click.Choice(LEVELS), help="Minimum level. Default: info.")
@click.option("--job-id", help="Only events of this job.")
@click.option("--since", help="Only events from this time on: 1h (ago), 02:30, 2026-03-29T02:30:00Z.")
@click.option("--until", help="Only events before this time.")
@click.option("--kind", "kinds", multiple=True, help="Only events with this name, such as job.failed or 'job.*'.")
@click.option("--grep", "pattern", help="Only events whose JSON matches this regular expression.")
@click.option(
    "--limit", type=click.IntRange(0, MAX_LINES), default=50, show_default=True, help="Number of past events to show."
)
@click.option(
    "--stderr",
    "stderr_lines",
    type=click.IntRange(0, MAX_LINES),
    default=0,
    help="Show the last N lines of stderr of each failed attempt.",
)
@options.config
@options.service
@options.as_json
def command(plugin: str | None, level: str | None, limit: int, **params: Any) -> int:
    """Show recent events, oldest first; with --follow, stream new ones. PLUGIN selects the events of one plugin.

    The level depends on the event: `error` for failed jobs, `warn` for retries, blocked jobs and refused deliveries,
    `debug` for details of other events. --json prints one object per line.

    --follow survives restarts of the service and shows each event once; Ctrl-C exits with code 130. --api-url searches
    the latest 100,000 journal rows of a remote service. `ductile job tail` shows the stderr of a running job.

    --kind can be repeated and shows events of every level unless --level is given.

    Example: ductile logs --since 2h --kind 'job.*' --grep 'timed out|refused'
    """
    query = _parse_query(plugin, level, params)
    events, position = past_events(params, query, limit, is_followed=params["follow"])
    for event in events:
        _print(event, params)
    return _follow(params, query, position) if params["follow"] else 0


@frozen
class LogQuery:
    """The filters of `ductile logs`."""

    plugin: str | None = None
    level: str = "info"
    job_id: str | None = None
    since: "datetime | None" = None
    until: "datetime | None" = None
    kinds: tuple[str, ...] = ()
    pattern: "re.Pattern[str] | None" = None

    def matches(self, event: Mapping[str, Any]) -> bool:
        data = event["data"]
        filters = ((self.plugin, data.get("plugin")), (self.job_id, data.get("job_id")))
        if not all(wanted in (None, value) for wanted, value in filters):
            return False
        return self.has_name(event["event"]) and self._is_in_time(event) and self._has_text(event)

    def has_name(self, name: str) -> bool:
        """True if events with this name are of a wanted kind and level."""
        return is_at_least(name, self.level) and (not self.kinds or any(_is_kind(name, kind) for kind in self.kinds))

    def _is_in_time(self, event: Mapping[str, Any]) -> bool:
        if self.since is None and self.until is None:
            return True
        from ductile.core.clock import from_text

        at = from_text(event["at"])
        return (self.since is None or at >= self.since) and (self.until is None or at < self.until)

    def _has_text(self, event: Mapping[str, Any]) -> bool:
        if self.pattern is None:
            return True
        import json

        text = json.dumps({"event": event["event"], **event["data"]}, ensure_ascii=False)
        return self.pattern.search(text) is not None


def _is_kind(name: str, kind: str) -> bool:
    return name == kind or (kind.endswith(ANY_OF) and name.startswith(kind.removesuffix("*")))


def _parse_query(plugin: str | None, level: str | None, params: Mapping[str, Any]) -> LogQuery:
    from ductile.cli.base.local_time import parse_past

    if params["follow"] and params["until"]:
        raise UsageInvalid(
            "--until cannot be used with --follow", hint="--follow streams new events. Use --since alone."
        )
    for kind in params["kinds"]:
        _require_kind(kind)
    since = parse_past(params["since"], "--since") if params["since"] else None
    until = parse_past(params["until"], "--until") if params["until"] else None
    if since and until and until <= since:
        message = f"--until: {params['until']} is not after --since {params['since']}"
        raise UsageInvalid(message, hint="Both are times; 2h is two hours ago: --since 2h --until 1h.")
    return LogQuery(
        plugin=plugin,
        level=level or ("debug" if params["kinds"] else "info"),
        job_id=params["job_id"],
        since=since,
        until=until,
        kinds=params["kinds"],
        pattern=_compile_pattern(params["pattern"]) if params["pattern"] else None,
    )


def _require_kind(kind: str) -> None:
    """Raise UsageInvalid for a name that no event has."""
    from ductile.web.stream.event_types import NAMES

    if not any(_is_kind(name, kind) for name in NAMES):
        hint = "`ductile logs --help` has examples; docs/events.md lists all names."
        raise UsageInvalid(f"--kind: no event is named {kind[:80]!r}{did_you_mean(kind, NAMES)}", hint=hint)


def _compile_pattern(text: str) -> "re.Pattern[str]":
    import re

    try:
        return re.compile(text)
    except re.error as error:
        raise UsageInvalid(
            f"--grep: not a regular expression: {error}", hint="Escape special characters: 'a\\.b' finds a.b."
        ) from error


def _print(event: Mapping[str, Any], params: Mapping[str, Any]) -> None:
    stderr = _stderr_tail(params, event, params["stderr_lines"]) if params["stderr_lines"] else []
    if params["as_json"]:
        import json

        more = {"stderr": "\n".join(stderr)} if stderr else {}
        click.echo(json.dumps({**event, "level": level_of(event["event"]), **more}))
    else:
        for line in (event_line(event), *(f"    | {plain(line)}" for line in stderr)):
            output.print_line(line)


# ── stderr of failed attempts ─────────────────────────────────────────────────────────────────────────────────────────


def _stderr_tail(where: Mapping[str, Any], event: Mapping[str, Any], lines: int) -> list[str]:
    """Return the last lines of stderr of the attempt that the event ended; empty for other events."""
    job_id, attempt = event["data"].get("job_id"), event["data"].get("attempt")
    if event["event"] not in FAILED_ATTEMPTS or job_id is None:
        return []
    by_attempt = _stderr_from_service(where, job_id) if where["api_url"] else _stderr_from_ledger(where, job_id)
    return (by_attempt.get(attempt) or "").splitlines()[-lines:]


def _stderr_from_ledger(where: Mapping[str, Any], job_id: str) -> dict[int, str | None]:
    from ductile.cli.base.connect import ledger_for
    from ductile.ledger.reports.job_details import attempts
    from ductile.ledger.storage.open_file import open_reader

    with open_reader(ledger_for(where)) as db:
        return {attempt.attempt: attempt.stderr for attempt in attempts(db, job_id)}


def _stderr_from_service(where: Mapping[str, Any], job_id: str) -> dict[int, str | None]:
    from urllib.parse import quote

    from ductile.cli.base.connect import client_for

    try:
        page = client_for(where).request("GET", f"/job-logs?job_id={quote(job_id, safe='')}&limit=200")
    except ServiceUnreachable:
        return {}  # the event itself is still worth printing
    return {row["attempt"]: row.get("stderr") for row in page["logs"]}


# ── past events ───────────────────────────────────────────────────────────────────────────────────────────────────────


def past_events(
    where: Mapping[str, Any], query: LogQuery, limit: int, *, is_followed: bool
) -> tuple[list[dict[str, Any]], int | None]:
    """Return the latest matching events, oldest first, and the journal position after them; None if it is unknown."""
    from ductile.cli.base.connect import client_for, ledger_for

    if where["api_url"]:
        from ductile.cli.logs.stream_history import read_history

        try:
            return read_history(client_for(where), limit, query.matches)
        except ServiceUnreachable:
            if is_followed:
                return [], None  # --follow waits for the service
            raise
    from ductile.ledger.storage.open_file import open_reader
    from ductile.ledger.tables import journal

    ledger = ledger_for(where)
    if is_followed and not ledger.exists():
        return [], 0  # the service has never run
    with open_reader(ledger) as db:
        found = _search_journal(db, query, limit)
        if query.plugin is not None and not found and limit:
            _require_known(db, query.plugin)
        return found, journal.position(db)


def _search_journal(db: Any, query: LogQuery, limit: int) -> list[dict[str, Any]]:
    """Return the newest matching events, oldest first. Reads the journal backwards, in pages."""
    from ductile.ledger.tables import journal

    found: list[dict[str, Any]] = []
    read_page = partial(
        journal.latest,
        db,
        plugin=query.plugin,
        job_id=query.job_id,
        exclude=_other_kinds(query),
        since=query.since,
        until=query.until,
    )
    before, size = journal.NEWEST, limit
    while len(found) < limit:
        entries = read_page(before=before, limit=size)
        found = [*filter(query.matches, _events(entries)), *found]
        if len(entries) < size:
            break
        before, size = entries[0].seq, PAGE_ROWS
    return found[-limit:] if limit else []


def _other_kinds(query: LogQuery) -> list[str]:
    """Return the journal kinds that have no event of a wanted name and level."""
    from ductile.web.stream.event_types import MAPPED, UNCHANGED

    rows = {**{kind: (kind,) for kind in UNCHANGED}, **MAPPED}
    return [kind for kind, names in rows.items() if not any(map(query.has_name, names))]


def _events(entries: Iterable[Any]) -> list[dict[str, Any]]:
    """Convert journal rows to stream events."""
    from ductile.core.clock import to_text
    from ductile.web.stream.event_types import events_of

    found = []
    for entry in entries:
        *others, last = events_of(entry)
        # Only the last event of a row carries its sequence number.
        for seq, event in (*((entry.seq - 1, other) for other in others), (entry.seq, last)):
            found.append({"seq": seq, "at": to_text(entry.at), "event": event.name, "data": dict(event.data)})
    return found


def _require_known(db: Any, plugin: str) -> None:
    """Raise NotFound for a plugin that is neither in the journal nor in the configuration."""
    from ductile.core.formats.stored_json import load_stored_object
    from ductile.ledger.tables import journal, snapshots

    last = snapshots.newest(db)
    known = load_stored_object(last.sanitized_config if last else None).get("plugins", {})
    if plugin not in known and not journal.latest(db, plugin=plugin, limit=1):
        close = did_you_mean(plugin, known)
        raise NotFound(f"plugin {plugin[:80]!r} does not exist{close}", hint="Run `ductile plugin list`.")


# ── new events ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _follow(params: Mapping[str, Any], query: LogQuery, position: int | None) -> int:
    import trio

    from ductile.cli.base.connect import client_for
    from ductile.cli.base.run_until_interrupted import connection_notes, run_until_signal
    from ductile.cli.base.stream_client import Follower

    async def on_row(row: list[dict[str, Any]]) -> None:
        for event in row:
            if event["event"] == GAP or query.matches(event):
                await trio.to_thread.run_sync(_print, event, params)

    follower = Follower(
        service=client_for(params),
        on_row=on_row,
        on_connection=connection_notes(),
        position=position,
        filters={"plugin": query.plugin} if query.plugin else {},
    )
    return run_until_signal(follower.follow)
