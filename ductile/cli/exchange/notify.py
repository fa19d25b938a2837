"""`ductile exchange notify`: report the replies to tracked requests."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from ductile.cli.base import output
from ductile.cli.exchange import options

BACKEND_VARIABLES = ("DUCTILE_NOTIFY_BACKEND", "PLUGBOARD_NOTIFY_BACKEND")
MAX_PREVIEW_CHARS = 80
NOTIFY_SEND_TIMEOUT = 10.0


@click.command("notify")
@click.option("--once", is_flag=True, help="Report the replies that are there, then exit.")
@click.option("--poll-seconds", type=click.FloatRange(min=0), help="Accepted for Plugboard; has no effect.")
@options.service
def notify(once: bool, poll_seconds: float | None, as_json: bool, **flags: Any) -> None:
    """Report replies to the requests that you have published, each once, until Ctrl-C.

    Requests are those of `publish` on X.request; `request` waits for its reply itself. $DUCTILE_NOTIFY_BACKEND selects
    how: `stderr` or `bell`. Default: notify-send if it is installed, else both.

    Example: ductile exchange notify --once
    """
    from ductile.cli.base.connect import client_for

    service, reported = client_for(flags), []
    while True:
        wait = "" if once else "?wait=60s"
        tracked = service.request("GET", f"/exchange/tracked{wait}")["tracked"]
        for one in tracked:
            if one["state"] == "pending":
                continue
            notice = make_notice(one)
            _report(notice, is_quiet=as_json)
            service.request("POST", f"/exchange/tracked/{quote(one['conversation_id'], safe='')}/notified", {})
            reported.append(notice)
            if as_json and not once:
                click.echo(output.format_json(notice))
        if once:
            break
    output.show({"notified": reported}, as_json=as_json, human=_lines)


def _lines(shown: Mapping[str, Any]) -> list[str]:
    return [] if shown["notified"] else ["no new replies"]


def make_notice(tracked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the texts of a notification."""
    reply = tracked["reply"] or {}
    is_failed = tracked["state"] != "success"
    title = "Ollama reply ready" if tracked["success_topic"] == "ollama.done" else "Reply ready"
    lines = (reply.get("body") or "").strip().splitlines() or [""]
    check = (
        f"ductile exchange check --conversation-id {tracked['conversation_id']}"
        f" --success-topic {tracked['success_topic']} --failure-topic {tracked['failure_topic']}"
    )
    return {
        "title": f"{title} (failed)" if is_failed else title,
        "conversation_id": tracked["conversation_id"],
        "state": tracked["state"],
        "preview": lines[0][:MAX_PREVIEW_CHARS],
        "check": check,
    }


def _report(notice: Mapping[str, Any], *, is_quiet: bool) -> None:
    backend = next((os.environ[name] for name in BACKEND_VARIABLES if os.environ.get(name)), None)
    if backend is None and _send(notice):
        return
    if backend in (None, "bell"):
        click.echo("\a", nl=False, err=True)
    if backend in (None, "stderr") and not is_quiet:
        for line in (
            notice["title"],
            f"conversation_id={notice['conversation_id']}",
            notice["preview"],
            notice["check"],
        ):
            output.note(line)


def _send(notice: Mapping[str, Any]) -> bool:
    """Show the notification on the desktop. False if that is not possible."""
    program = shutil.which("notify-send")
    if program is None:
        return False
    text = f"conversation_id={notice['conversation_id']}\n{notice['preview']}\n{notice['check']}"
    try:
        done = subprocess.run(
            [program, "--", notice["title"], text], check=False, timeout=NOTIFY_SEND_TIMEOUT, capture_output=True
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
