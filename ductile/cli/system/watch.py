"""`ductile system watch`: a live picture of the service in the terminal."""

import os
import sys
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.core.errors import UsageInvalid

SHORTEST_REFRESH_SECONDS = 0.1
PAST_EVENTS = 50
MOST_COLUMNS = 200
"""Where no terminal limits a line."""


@click.command("watch")
@click.option("--refresh", default="1s", show_default=True, help="How often to draw while nothing happens.")
@click.option("--once", is_flag=True, help="Print one picture as text and be done.")
@options.config
@options.service
@options.as_json
def watch(refresh: str, once: bool, as_json: bool, **where: Any) -> int:
    """Watch the service: queue, running jobs with their time, schedules, breakers, pauses, what happens.

    q or Ctrl-C leaves. While the service does not run, the last picture stays, in grey, until it is back.
    --once prints the picture once, also into a pipe; with --json as JSON. It fails if the service does not run.

    Example: ductile system watch --refresh 500ms
    """
    from ductile.cli.base.connect import client_for
    from ductile.cli.base.local_time import read_duration

    seconds = read_duration(refresh, "--refresh").total_seconds()
    if seconds < SHORTEST_REFRESH_SECONDS:
        raise UsageInvalid(f"--refresh: {refresh[:60]!r} is too short", hint="100ms or more")
    if once:
        _print_once(where, as_json=as_json)
        return 0
    if as_json or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        hint = "use --once, `ductile system status --json`, or `ductile logs --follow` with or without --json"
        raise UsageInvalid("system watch needs a terminal to draw on" + (", not --json" if as_json else ""), hint=hint)
    from functools import partial

    from ductile.cli.base.run_until_interrupted import run_until_signal
    from ductile.cli.logs.command import LogQuery, past_events
    from ductile.cli.system.watch_screen import watch as watch_on_screen

    past, place = past_events(where, LogQuery(), PAST_EVENTS, is_followed=True)
    code = run_until_signal(partial(watch_on_screen, client_for(where), past, place, seconds))
    return 0 if code == output.INTERRUPTED_EXIT else code


def _print_once(where: dict[str, Any], *, as_json: bool) -> None:
    from datetime import UTC, datetime

    from ductile.cli.base.connect import client_for
    from ductile.cli.system.watch_view import frame, look

    picture = look(client_for(where))
    if as_json:
        output.show(picture.as_data(), as_json=True, human=lambda _: [])
        return
    from rich.console import Console

    console = Console(file=sys.stdout)
    for line in frame(picture, (), now=datetime.now(UTC), width=console.width if console.is_terminal else MOST_COLUMNS):
        console.print(line, soft_wrap=True)
