"""`pause` and `resume`, of a plugin or of the whole queue: asking the service, and telling what came of it."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote


def post_pause(
    act: str, plugin: str | None, where: Mapping[str, Any], *, dry_run: bool, reason: str | None = None
) -> dict[str, Any]:
    """What the service says; None as plugin is the whole queue."""
    from ductile.cli.base.connect import client_for

    path = f"/plugins/{quote(plugin, safe='')}/{act}" if plugin is not None else f"/queue/{act}"
    body = {"reason": reason} if reason else None
    return client_for(where).ask("POST", f"{path}?dry_run=true" if dry_run else path, body)


def pause_lines(answer: dict[str, Any]) -> list[str]:
    what = "the queue" if answer["plugin"] == "*" else f"plugin {answer['plugin']}"
    state = "paused" if answer["paused"] else "not paused"
    verb = "would be" if answer["dry_run"] else "is"
    return [f"{what} {verb} {state}{'' if answer['changed'] else ', as before'}"]
