"""`ductile exchange read` and `check`: messages of a topic or conversation, and the reply to a request."""

import json
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from ductile.cli.base import output
from ductile.cli.exchange import options
from ductile.cli.exchange.message_options import now_text, write_body
from ductile.core.errors import UsageInvalid

STATES = ("ready", "delayed", "waiting", "claimed", "completed", "failed", "timed_out", "dead")
FAILURE_EXIT, PENDING_EXIT = 1, 75


@click.command("read")
@click.option("--topic", help="Only this topic, or a pattern such as review.*.")
@click.option("--conversation", "--conversation-id", "conversation", help="Only this conversation.")
@click.option("--state", type=click.Choice(STATES), help="Only messages in this state.")
@click.option("--after", type=click.IntRange(min=0), default=0, help="Only messages after this position (`next`).")
@click.option("--limit", type=click.IntRange(1, 1000), help="Maximum number of messages. Default: no limit.")
@click.option("--wait", help="If there is no message yet, wait this long for one.")
@options.service
def read(
    topic: str | None,
    conversation: str | None,
    state: str | None,
    after: int,
    limit: int | None,
    wait: str | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Print messages, oldest first: time, topic and body, separated by tabs. Tabs and line breaks in them are escaped.

    Reads the ledger, so it works while the service is stopped; --wait needs the service. With --json it prints one page
    of at most 1000 messages; continue with --after and the `next` of the page.

    Example: ductile exchange read --topic review.done --after 17 --wait 30s
    """
    from ductile.cli.exchange.queries import PAGE_SIZE, message_page

    if topic is not None and conversation is not None:
        raise UsageInvalid("--topic and --conversation are mutually exclusive")
    find = partial(message_page, flags, topic=topic, conversation=conversation, state=state)
    page = find(after=after, limit=limit or PAGE_SIZE, wait=wait)
    if as_json:
        click.echo(output.format_json(page))
        return
    left = limit or math.inf
    while True:
        for message in page["messages"]:
            output.print_line("\t".join(_escape(message[name]) for name in ("created_at", "topic", "body")))
        left -= len(page["messages"])
        if left <= 0 or not page["has_more"]:
            return
        page = find(after=page["next"], limit=int(min(left, PAGE_SIZE)))


def _escape(text: str) -> str:
    """Escape what would end the field or the line."""
    for character, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        text = text.replace(character, escaped)
    return text


@click.command("check")
@click.option("--conversation-id", "--conversation", "conversation_id", required=True, help="The conversation.")
@click.option(
    "--success-topic", help="Topic of successful replies. Default for a conversation that began on X.request: X.done."
)
@click.option("--failure-topic", help="Topic of failed replies. Default, likewise: X.failed.")
@click.option("--timeout-topic", help="Topic of replies that report a timeout. Default, likewise: X.request.timed_out.")
@click.option("--wait", help="If there is no reply yet, wait this long for one.")
@click.option("--exit-code", is_flag=True, help="Exit with 75 if there is no reply yet.")
@options.service
def check(
    conversation_id: str,
    success_topic: str | None,
    failure_topic: str | None,
    timeout_topic: str | None,
    wait: str | None,
    exit_code: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Show whether a conversation has a reply: success, failure, timed_out, dead or pending.

    Prints the last reply. Exit codes: 0 for success and for pending, 1 for failure, timed_out and dead. Reads the
    ledger, so it works while the service is stopped; --wait needs the service.

    Example: ductile exchange check --conversation-id 01a1e54a-444a-7666-8be9-75a067ae70f7 --wait 30s
    """
    from ductile.cli.base.long_poll import parse_timeout, poll_until
    from ductile.cli.exchange.queries import conversation

    topics = {"success": success_topic, "failure": failure_topic, "timeout": timeout_topic}
    if wait:
        found = poll_until(
            lambda seconds: conversation(conversation_id, topics, flags, wait=seconds),
            lambda one: one["state"] != "pending",
            parse_timeout(wait),
        )
    else:
        found = conversation(conversation_id, topics, flags)
    shown = {"state": found["state"], "conversation_id": conversation_id}
    if reply := found["reply"]:
        shown |= {name: reply[name] for name in ("message_id", "topic", "body")}
    if as_json:
        click.echo(json.dumps(shown, ensure_ascii=False))
    else:
        output.print_line(_check_line(shown))
        write_body(shown.get("body"))
    if found["state"] == "pending":
        return PENDING_EXIT if exit_code else 0
    return 0 if found["state"] == "success" else FAILURE_EXIT


def _check_line(found: Mapping[str, Any]) -> str:
    names = ("conversation_id", "message_id", "topic")
    about = " ".join(f"{name}={found[name]}" for name in names if name in found)
    return f"[{now_text()}] {found['state']} {about}"
