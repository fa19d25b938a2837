"""`ductile logs`: what happened, as events of the journal with a level each; with --follow also what happens.

The past is read from the ledger, whether or not the service runs; what happens comes over the event stream.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import click

from ductile.cli.base import options, output
from ductile.cli.logs.event_format import LEVELS, event_line, is_at_least, level_of, plain
from ductile.core.errors import NotFound, ServiceUnreachable, did_you_mean

MOST_LINES = 10_000
GAP = "gap"
"""Told whatever is asked for: something is missing."""


@click.command("logs")
@click.argument("plugin", required=False)
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until Ctrl-C.")
@click.option(
    "--level", type=click.Choice(LEVELS), default="info", show_default=True, help="Only events that matter so much."
)
@click.option("--job-id", help="Only events of this job.")
@click.option(
    "--limit", type=click.IntRange(0, MOST_LINES), default=50, show_default=True, help="How many of the latest to show."
)
@click.option(
    "--stderr",
    "stderr_lines",
    type=click.IntRange(0, MOST_LINES),
    default=0,
    help="Also the last so many lines that a failed attempt wrote to stderr.",
)
@options.config
@options.service
@options.as_json
def command(plugin: str | None, follow: bool, level: str, job_id: str | None, limit: int, **given: Any) -> int:
    """Show the latest events, of all plugins or of PLUGIN, oldest first; with --follow also those that happen.

    The level follows from the name of an event: `error` for jobs that are over without success, `warn` for what was
    tried again, held or refused, `debug` for what other events say already. --json prints one object per line.

    --follow goes on over restarts of the service: every event is shown once. Ctrl-C ends it with exit code 130.
    --api-url asks another service, among its latest 100,000 rows. `ductile job tail` shows stderr of a running job.

    Example: ductile logs backup --level warn --follow
    """
    asked = LogQuery(plugin=plugin, level=level, job_id=job_id)
    past, place = past_events(given, asked, limit, is_followed=follow)
    for event in past:
        _print(event, given)
    return _follow(given, asked, place) if follow else 0


class LogQuery(NamedTuple):
    """Which events are asked for."""

    plugin: str | None = None
    level: str = "info"
    job_id: str | None = None

    def fits(self, event: Mapping[str, Any]) -> bool:
        data = event["data"]
        wishes = ((self.plugin, data.get("plugin")), (self.job_id, data.get("job_id")))
        return is_at_least(event["event"], self.level) and all(wish in (None, told) for wish, told in wishes)


def _print(event: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    said: list[str] = []
    if given["stderr_lines"]:
        from ductile.cli.logs.failed_stderr import last_words

        said = last_words(given, event, given["stderr_lines"])
    if given["as_json"]:
        import json

        more = {"stderr": "\n".join(said)} if said else {}
        click.echo(json.dumps({**event, "level": level_of(event["event"]), **more}))
    else:
        for line in (event_line(event), *(f"    | {plain(line)}" for line in said)):
            output.tell(line)


# ── the past ────────────────────────────────────────────────────────────────────────────────────────────────────────


def past_events(
    where: Mapping[str, Any], asked: LogQuery, limit: int, *, is_followed: bool
) -> tuple[list[dict[str, Any]], int | None]:
    """The latest events that are asked for, oldest first, and the position after them; None if nobody knows it."""
    from ductile.cli.base.connect import client_for, ledger_for

    if where["api_url"]:
        from ductile.cli.logs.stream_history import recall

        try:
            return recall(client_for(where), limit, asked.fits)
        except ServiceUnreachable:
            if is_followed:
                return [], None  # who follows waits until it is there
            raise
    from ductile.ledger.storage.open_file import open_reader
    from ductile.ledger.tables import journal

    ledger = ledger_for(where)
    if is_followed and not ledger.exists():
        return [], 0  # the first start is still to come
    with open_reader(ledger) as db:
        wish = {"plugin": asked.plugin, "job_id": asked.job_id}
        entries = journal.latest(db, **wish, but=_kinds_below(asked.level), limit=limit)
        if asked.plugin is not None and not entries and limit:
            _require_known(db, asked.plugin)
        return list(filter(asked.fits, _events(entries)))[-limit:], journal.position(db)


def _kinds_below(level: str) -> list[str]:
    """The kinds of rows that have no event of that level."""
    from ductile.web.stream.event_types import AS_THEY_ARE, MAPPED

    rows = {**{kind: (kind,) for kind in AS_THEY_ARE}, **MAPPED}
    return [kind for kind, names in rows.items() if not any(is_at_least(name, level) for name in names)]


def _events(entries: Iterable[Any]) -> list[dict[str, Any]]:
    """The rows as the event stream tells them."""
    from ductile.core.clock import to_text
    from ductile.web.stream.event_types import events_of

    found = []
    for entry in entries:
        *others, last = events_of(entry)
        # Only the last event of a row has it as its position.
        for place, event in (*((entry.seq - 1, other) for other in others), (entry.seq, last)):
            found.append({"seq": place, "at": to_text(entry.at), "event": event.name, "data": dict(event.data)})
    return found


def _require_known(db: Any, plugin: str) -> None:
    """NotFound for a name that neither the journal nor the configuration has."""
    from ductile.core.formats.stored_json import kept_object
    from ductile.ledger.tables import journal, snapshots

    last = snapshots.newest(db)
    known = kept_object(last.sanitized_config if last else None).get("plugins", {})
    if plugin not in known and not journal.latest(db, plugin=plugin, job_id=None, but=(), limit=1):
        close = did_you_mean(plugin, known)
        raise NotFound(f"{plugin[:80]}: there is no such plugin{close}", hint="see `ductile plugin list`")


# ── what happens ────────────────────────────────────────────────────────────────────────────────────────────────────


def _follow(given: Mapping[str, Any], asked: LogQuery, place: int | None) -> int:
    import trio

    from ductile.cli.base.connect import client_for
    from ductile.cli.base.run_until_interrupted import run_until_signal, tell_breaks
    from ductile.cli.base.stream_client import Follower

    async def hear(row: list[dict[str, Any]]) -> None:
        for event in row:
            if event["event"] == GAP or asked.fits(event):
                await trio.to_thread.run_sync(_print, event, given)

    wanted = {"plugin": asked.plugin} if asked.plugin else {}
    follower = Follower(service=client_for(given), hear=hear, notice=tell_breaks(), place=place, wanted=wanted)
    return run_until_signal(follower.follow)
