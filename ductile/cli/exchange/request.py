"""`ductile exchange request`: publish a request and wait for its first reply."""

import math
from typing import Any
from urllib.parse import quote, urlencode

import click

from ductile.cli.base import output
from ductile.cli.exchange import options
from ductile.cli.exchange.message_options import (
    FROM_STDIN,
    message_options,
    read_body,
    read_metadata,
    report_published,
    write_body,
)
from ductile.core.errors import DuctileError

FAILURE_EXIT = 1


class NoReply(DuctileError):
    """The request has no reply yet."""

    code, exit_code, status = "no_reply", 75, 504


@click.command("request")
@click.argument("topic")
@click.option("--success-topic", help="Topic of successful replies. Default for X.request: X.done.")
@click.option("--failure-topic", help="Topic of failed replies. Default for X.request: X.failed.")
@click.option("--timeout-topic", help="Topic of replies that report a timeout. Default: TOPIC with `.timed_out` added.")
@click.option("--body", default=FROM_STDIN, help="Body of the request. Default: stdin.")
@message_options
@click.option("--timeout", help="Exit with 75 if there is no reply within this time. Default: no limit.")
@click.option("--wait-timeout-ms", type=int, help="Accepted for Plugboard; has no effect.")
@click.option("--recheck-ms", type=int, help="Accepted for Plugboard; has no effect.")
@options.change
def request(topic: str, body: str, timeout: str | None, as_json: bool, **flags: Any) -> int:
    """Publish a request on TOPIC, wait for its first reply and print the body of the reply.

    Exit codes: 0 for a reply on the success topic; 1 for a failure, a timeout or a dead request; 75 if --timeout passes
    without a reply. The identifiers are printed to stderr, with --json as one JSON object.

    Example: ductile exchange request review.request --body "Please review main.py" --timeout 5m
    """
    from ductile.cli.base.connect import client_for
    from ductile.cli.base.long_poll import parse_timeout, poll_until

    seconds = math.inf if timeout is None else parse_timeout(timeout)
    topics = _reply_topics(topic, flags)
    message = {
        "topic": topic,
        "body": read_body(body),
        "metadata": read_metadata(flags["metadata_json"], flags["meta"]),
        **{name: flags[name] for name in ("conversation_id", "producer", "ordering_key", "delay")},
    }
    service = client_for(flags)
    given = {name: value for name, value in message.items() if value is not None}
    query = "?dry_run=true" if flags["dry_run"] else ""
    published = service.request("POST", f"/exchange/messages{query}", given)
    report_published(published, as_json=as_json)
    if flags["dry_run"]:
        return 0
    conversation = published["conversation_id"]
    arguments = urlencode({**topics, "request": published["message_id"], "reply": "first"})

    def poll(wait: str) -> dict[str, Any]:
        return service.request("GET", f"/exchange/conversations/{quote(conversation, safe='')}?{arguments}&wait={wait}")

    try:
        reply = poll_until(poll, lambda found: found["state"] != "pending", seconds)
    except DuctileError as error:
        raise _naming(error, conversation, topics) from error
    except KeyboardInterrupt:
        output.note(f"no reply yet: conversation_id={conversation}")
        raise
    if reply["state"] == "pending":
        raise _naming(NoReply(f"no reply within {timeout}: conversation_id={conversation}"), conversation, topics)
    write_body(reply["reply"] and reply["reply"]["body"])
    return 0 if reply["state"] == "success" else FAILURE_EXIT


def _reply_topics(topic: str, flags: dict[str, Any]) -> dict[str, str]:
    """Return the topics of replies as query arguments. Raises TopicInvalid if one is missing or invalid."""
    from ductile.core.message import TIMEOUT_SUFFIX, TopicInvalid, checked_topic, default_reply_topics

    defaults = default_reply_topics(checked_topic(topic))
    success = flags["success_topic"] or (defaults and defaults.success)
    failure = flags["failure_topic"] or (defaults and defaults.failure)
    if success is None or failure is None:
        hint = "Add --success-topic TOPIC and --failure-topic TOPIC."
        raise TopicInvalid(f"topic {topic} has no default reply topics", hint=hint)
    timeout = flags["timeout_topic"] or f"{topic}{TIMEOUT_SUFFIX}"
    topics = {"success_topic": success, "failure_topic": failure, "timeout_topic": timeout}
    return {name: checked_topic(value) for name, value in topics.items()}


def _naming(error: DuctileError, conversation: str, topics: dict[str, str]) -> DuctileError:
    """Add the conversation to the error: repeating the command would publish a second request."""
    check = (
        f"ductile exchange check --conversation-id {conversation} --success-topic {topics['success_topic']}"
        f" --failure-topic {topics['failure_topic']}"
    )
    error.context = {**error.context, "conversation_id": conversation}
    error.hint = f"The request is stored. Look for its reply with `{check}`."
    return error
