"""`ductile system watch`: a live dashboard of the service in the terminal."""

import os
import sys
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.core.errors import UsageInvalid

MIN_REFRESH_SECONDS = 0.1
PAST_EVENTS = 50
MAX_COLUMNS = 200
"""Width of the output without a terminal."""


@click.command("watch")
@click.option("--refresh", default="1s", show_default=True, help="Redraw interval while nothing changes.")
@click.option("--once", is_flag=True, help="Print the dashboard once and exit.")
@options.config
@options.service
@options.as_json
def watch(refresh: str, once: bool, as_json: bool, **where: Any) -> int:
    """Show a live dashboard of the queue, running jobs, schedules, topics, circuit breakers, pauses and events.

    Press q or Ctrl-C to quit. While the service is stopped, the last state stays on the screen, dimmed. --once prints
    the dashboard once, also to a pipe and with --json as JSON; it fails if the service is not running.

    Example: ductile system watch --refresh 500ms
    """
    from ductile.cli.base.connect import client_for
    from ductile.cli.base.local_time import parse_duration_option

    seconds = parse_duration_option(refresh, "--refresh").total_seconds()
    if seconds < MIN_REFRESH_SECONDS:
        raise UsageInvalid(f"--refresh: {refresh[:60]!r} is too short", hint="Use 100ms or more.")
    if once:
        _print_once(where, as_json=as_json)
        return 0
    if as_json or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        hint = "Use --once, `ductile system status --json`, or `ductile logs --follow`."
        raise UsageInvalid(
            "system watch needs a terminal" + (" and does not support --json without --once" if as_json else ""),
            hint=hint,
        )
    from functools import partial

    from ductile.cli.base.run_until_interrupted import run_until_signal
    from ductile.cli.logs.command import LogQuery, past_events
    from ductile.cli.system.watch_screen import watch as watch_on_screen

    events, position = past_events(where, LogQuery(), PAST_EVENTS, is_followed=True)
    code = run_until_signal(partial(watch_on_screen, client_for(where), events, position, seconds))
    return 0 if code == output.INTERRUPTED_EXIT else code


def _print_once(where: dict[str, Any], *, as_json: bool) -> None:
    from datetime import UTC, datetime

    from ductile.cli.base.connect import client_for
    from ductile.cli.system.watch_view import fetch_state, frame

    state = fetch_state(client_for(where))
    if as_json:
        output.show(state.as_data(), as_json=True, human=lambda _: [])
        return
    from rich.console import Console

    console = Console(file=sys.stdout)
    for line in frame(state, (), now=datetime.now(UTC), width=console.width if console.is_terminal else MAX_COLUMNS):
        console.print(line, soft_wrap=True)
