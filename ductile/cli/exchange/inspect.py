"""`ductile exchange inspect`, `topics` and `why`: what is stored about messages and topics, and why nothing happens."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import click

from ductile.cli.base import output
from ductile.cli.base.terminal import state
from ductile.cli.exchange import options
from ductile.core.errors import UsageInvalid


@click.command("inspect")
@click.option("--message", "message_id", help="This message, with its claims.")
@click.option("--conversation", "--conversation-id", "conversation", help="The messages of this conversation.")
@options.service
def inspect(message_id: str | None, conversation: str | None, as_json: bool, **flags: Any) -> None:
    """Show everything that is stored about messages: one message with its claims, a conversation, or all.

    Reads the ledger, so it works while the service is stopped.

    Example: ductile exchange inspect --message 01a1e54a-444a-7666-8be9-75a067ae70f7
    """
    from ductile.cli.exchange.queries import message_details, message_page

    if message_id is not None and conversation is not None:
        raise UsageInvalid("--message and --conversation are mutually exclusive")
    if message_id is not None:
        details = message_details(message_id, flags)
        output.show(details, as_json=as_json, human=_details_lines)
        return
    page = message_page(flags, conversation=conversation)
    if as_json:
        click.echo(output.format_json(page))
        return
    while True:
        for message in page["messages"]:
            for line in _message_lines(message):
                output.print_line(line)
        if not page["has_more"]:
            return
        page = message_page(flags, conversation=conversation, after=page["next"])


def _message_lines(message: Mapping[str, Any]) -> Iterator[str]:
    names = {"topic": "topic", "conversation": "conversation_id", "parent": "parent_id", "producer": "producer"}
    about = {name: message[key] for name, key in names.items()}
    about |= {"state": message["state"], "published_by": message["published_by"]}
    yield f"message {message['message_id']} {_fields(about)}"
    yield f"created_at={message['created_at']}"
    yield f"body={message['body']}"
    metadata = message["metadata"]
    yield f"metadata_json={'-' if metadata is None else json.dumps(metadata, ensure_ascii=False)}"


def _details_lines(message: Mapping[str, Any]) -> Iterator[str]:
    yield from _message_lines(message)
    for claim in message["claims"]:
        names = ("message_id", "state", "status", "worker_group", "worker_instance_id", "claimed_at", "lease_until")
        more = ("completed_at", "delivery", "extensions", "reason", "follow_up_id", "job_id")
        about = {**claim, "state": _claim_state(claim)}
        yield f"claim {claim['claim_id']} {_fields({name: about[name] for name in (*names, *more)})}"


def _fields(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={'-' if value is None else value}" for name, value in values.items())


def _claim_state(claim: Mapping[str, Any]) -> str:
    """Return the word that Plugboard has for the claim."""
    from ductile.core.clock import Clock, from_text

    if claim["status"] != "active":
        return "terminal"
    if claim["lease_until"] is None:
        return "unknown_lease"
    return "live_active" if from_text(claim["lease_until"]) > Clock().now() else "expired_active"


@click.command("topics")
@options.service
def topics(as_json: bool, **flags: Any) -> None:
    """List the topics that have messages, with what waits on them.

    Reads the ledger while the service is stopped.

    Example: ductile exchange topics
    """
    from ductile.cli.exchange.queries import topic_list

    output.show(topic_list(flags), as_json=as_json, human=_topic_lines)


def _topic_lines(view: Mapping[str, Any]) -> list[str]:
    from ductile.core.format_time import format_when

    if not view["topics"]:
        return ["no messages"]
    counts = ("ready", "delayed", "waiting", "claimed", "dead")
    rows = [("TOPIC", *(name.upper() for name in counts), "OLDEST READY", "WORKERS", "")]
    for one in view["topics"]:
        workers = one.get("waiting_workers")
        rows.append(
            (
                one["topic"],
                *(str(one[name]) for name in counts),
                format_when(one["oldest_ready_at"]) if one["oldest_ready_at"] else "-",
                "-" if workers is None else str(workers),
                state("paused") if one["paused"] else "",
            )
        )
    return output.table(rows)


@click.command("why")
@click.argument("message_id")
@options.service
def why(message_id: str, as_json: bool, **flags: Any) -> None:
    """Explain why a message is handled or not: who has it, what it waits for, and how its deliveries ended.

    Reads the ledger while the service is stopped.

    Example: ductile exchange why 01a1e54a-444a-7666-8be9-75a067ae70f7
    """
    from ductile.cli.exchange.queries import message_why

    output.show(message_why(message_id, flags), as_json=as_json, human=_why_lines)


def _why_lines(view: Mapping[str, Any]) -> Iterator[str]:
    from ductile.core.format_time import format_when

    yield f"{view['message_id']}  {view['topic'] or '-'}  {state(view['state']) if view['state'] else 'deleted'}"
    for reason in view["reasons"]:
        yield f"  {reason['words']}"
    for claim in view["claims"]:
        ended = f" {format_when(claim['ended_at'])}" if claim["ended_at"] else ""
        why = f": {claim['reason']}" if claim["reason"] else ""
        who = f"{claim['worker_group']} ({claim['worker_instance_id']})"
        yield f"    delivery {claim['delivery']}  {who}  {state(claim['status'])}{ended}{why}"
    for command in view["next"]:
        yield f"  next: {command}"
