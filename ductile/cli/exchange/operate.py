"""`ductile exchange requeue`, `purge`, `pause` and `resume`: actions of operators."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from ductile.cli.base import output
from ductile.cli.exchange import options


@click.command("requeue")
@click.argument("message_id")
@options.change
def requeue(message_id: str, as_json: bool, **flags: Any) -> None:
    """Make a failed, timed-out or dead message ready again, at the front of its topic.

    Its deliveries are counted from 0 again.

    Example: ductile exchange requeue 01a1e54a-444a-7666-8be9-75a067ae70f7
    """
    answer = _post(f"/exchange/messages/{quote(message_id, safe='')}/requeue", {}, flags)
    output.show(answer, as_json=as_json, human=_requeue_lines)


def _requeue_lines(answer: Mapping[str, Any]) -> list[str]:
    verb = "would be" if answer["dry_run"] else "is"
    return [f"message {answer['message_id']} {verb} {answer['state']}"]


@click.command("pause")
@click.argument("topic")
@click.option("--reason", help="Reason to record and show.")
@options.change
def pause(topic: str, reason: str | None, as_json: bool, **flags: Any) -> None:
    """Deliver no messages of TOPIC. New messages are accepted, and claims continue. The pause survives restarts.

    Example: ductile exchange pause review.request --reason "the model is being replaced"
    """
    answer = _post(f"/exchange/topics/{quote(topic, safe='')}/pause", {"reason": reason} if reason else {}, flags)
    output.show(answer, as_json=as_json, human=_pause_lines)


@click.command("resume")
@click.argument("topic")
@options.change
def resume(topic: str, as_json: bool, **flags: Any) -> None:
    """Deliver the messages of TOPIC again.

    Example: ductile exchange resume review.request
    """
    answer = _post(f"/exchange/topics/{quote(topic, safe='')}/resume", {}, flags)
    output.show(answer, as_json=as_json, human=_pause_lines)


def _pause_lines(answer: Mapping[str, Any]) -> list[str]:
    topic, word = answer["topic"], "paused" if answer["paused"] else "resumed"
    if not answer["changed"]:
        return [f"no change: {topic} is {'already' if answer['paused'] else 'not'} paused"]
    return [f"{topic} {'would be' if answer['dry_run'] else 'is'} {word}"]


@click.command("purge")
@click.argument("topic")
@options.change
def purge(topic: str, as_json: bool, **flags: Any) -> None:
    """Make every message of TOPIC that no worker has claimed dead. They stay readable.

    Example: ductile exchange purge review.request --dry-run
    """
    path = f"/exchange/topics/{quote(topic, safe='')}/purge"
    answer = _post(path, {}, flags)
    purged = answer["purged"]
    while answer["remaining"] and answer["purged"]:
        answer = _post(path, {}, flags)
        purged += answer["purged"]
    output.show({**answer, "purged": purged}, as_json=as_json, human=_purge_lines)


def _purge_lines(answer: Mapping[str, Any]) -> list[str]:
    if answer["dry_run"]:
        return [f"{output.format_count(answer['remaining'], 'message')} of {answer['topic']} would be purged"]
    return [f"{output.format_count(answer['purged'], 'message')} of {answer['topic']} purged"]


def _post(path: str, body: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    from ductile.cli.base.connect import client_for

    query = "?dry_run=true" if flags["dry_run"] else ""
    return client_for(flags).request("POST", f"{path}{query}", dict(body))
