"""`ductile exchange claim`, `extend`, `complete`, `fail` and `release`: handle a message without a worker host."""

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import click

from ductile.cli.base import output
from ductile.cli.exchange import options
from ductile.cli.exchange.message_options import read_body, read_metadata
from ductile.core.errors import UsageInvalid

Command = TypeVar("Command", bound=Callable[..., Any])
NOTHING_READY_EXIT = 75
DEFAULT_GROUP = "manual"


@click.command("claim")
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC…")
@click.option("--lease", help="Time to handle the message, 1s to 12h. Default: the lease of the topic.")
@click.option("--wait", help="Wait this long for a message. Default: do not wait.")
@click.option("--max", "maximum", type=click.IntRange(1, 100), default=1, show_default=True, help="Number of messages.")
@click.option("--group", "worker_group", default=DEFAULT_GROUP, show_default=True, help="Name of this kind of worker.")
@click.option("--instance", "worker_instance_id", help="Name of this worker. Default: host and user.")
@options.service
def claim(
    topics: tuple[str, ...],
    lease: str | None,
    wait: str | None,
    maximum: int,
    worker_group: str,
    worker_instance_id: str | None,
    as_json: bool,
    **where: Any,
) -> int:
    """Claim the oldest ready message of TOPIC for the time of the lease. Exit code 75 if none is ready.

    Then `extend` the lease while you work, and end the claim with `complete`, `fail` or `release`. When the lease is
    over, the message is delivered again.

    Example: ductile exchange claim review.request --wait 30s --lease 10m
    """
    from ductile.cli.base.connect import client_for
    from ductile.cli.base.long_poll import parse_timeout, poll_until

    body = {
        "topics": list(topics),
        "worker_group": worker_group,
        "worker_instance_id": worker_instance_id or f"{socket.gethostname()[:100]}-{os.getuid()}",
        "max": maximum,
    } | ({"lease": lease} if lease is not None else {})
    service = client_for(where)
    answer = poll_until(
        lambda seconds: service.request("POST", "/exchange/claims", body | {"wait": seconds}),
        lambda found: bool(found["claims"]),
        parse_timeout(wait) if wait else 0.0,
    )
    output.show(answer, as_json=as_json, human=_claim_lines)
    return 0 if answer["claims"] else NOTHING_READY_EXIT


def _claim_lines(answer: Mapping[str, Any]) -> list[str]:
    if not answer["claims"]:
        return ["no message is ready"]
    lines = []
    for one in answer["claims"]:
        message = one["message"]
        lines += [
            f"claim {one['claim_id']} message_id={one['message_id']} topic={one['topic']} delivery={one['delivery']}",
            f"conversation_id={message['conversation_id']} lease_until={one['lease_until']}",
            message["body"],
        ]
    return lines


@click.command("extend")
@click.argument("claim_id")
@click.option("--lease", help="Length of the lease from now. Default: as before.")
@options.service
def extend(claim_id: str, lease: str | None, as_json: bool, **where: Any) -> None:
    """Begin the lease of a claim again.

    Example: ductile exchange extend 01a1e54a-444a-7666-8be9-75a067ae70f7 --lease 10m
    """
    claim = _act(claim_id, "extend", {"lease": lease}, where)
    output.show(claim, as_json=as_json, human=lambda shown: [f"lease until {shown['lease_until']}"])


def end_options(command: Command) -> Command:
    """Add the arguments of commands that end a claim with a follow-up."""
    for option in (
        options.service,
        click.option("--reason", help="Reason to record with the claim."),
        click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Add to the metadata `meta`. Repeatable."),
        click.option("--metadata-json", help="Metadata of the follow-up, a JSON object."),
        click.option("--body-file", type=click.Path(path_type=Path), help="Read BODY from this file; `-` is stdin."),
        click.argument("body", required=False),
        click.argument("claim_id"),
    ):
        command = option(command)
    return command


@click.command("complete")
@end_options
@click.option("--topic", help="Topic of the reply. Default for a message on X.request: X.done.")
def complete(claim_id: str, as_json: bool, **flags: Any) -> None:
    """End a claim: the message is completed, and BODY is published as its reply. BODY `-` reads stdin.

    Without BODY no reply is published.

    Example: ductile exchange complete 01a1e54a-444a-7666-8be9-75a067ae70f7 "looks good"
    """
    output.show(_act(claim_id, "complete", _follow_up(flags), flags), as_json=as_json, human=_end_lines)


@click.command("fail")
@end_options
@click.option("--topic", help="Topic of the reply. Default for a message on X.request: X.failed.")
def fail(claim_id: str, as_json: bool, **flags: Any) -> None:
    """End a claim: the message is failed and not delivered again, and BODY is published as its reply.

    Without BODY no reply is published. `ductile exchange requeue` makes a failed message ready again.

    Example: ductile exchange fail 01a1e54a-444a-7666-8be9-75a067ae70f7 "the file does not exist"
    """
    output.show(_act(claim_id, "fail", _follow_up(flags), flags), as_json=as_json, human=_end_lines)


@click.command("release")
@click.argument("claim_id")
@click.option("--delay", help="Time until the message is ready again.")
@click.option("--reason", help="Reason to record with the claim.")
@click.option("--uncounted", is_flag=True, help="Do not count this delivery.")
@click.option("--to", "to", metavar="TOPIC", help="Hand over: publish the message on TOPIC, in its conversation.")
@options.service
def release(
    claim_id: str, delay: str | None, reason: str | None, uncounted: bool, to: str | None, as_json: bool, **where: Any
) -> None:
    """End a claim and return its message to the front of its topic, or hand it over to another topic.

    After the last delivery (`exchange.max_deliveries`) the message is dead instead.

    Example: ductile exchange release 01a1e54a-444a-7666-8be9-75a067ae70f7 --delay 5m --reason "no GPU"
    """
    if to is not None and (delay is not None or uncounted):
        raise UsageInvalid("--to excludes --delay and --uncounted")
    body = {"delay": delay, "reason": reason, "uncounted": uncounted or None, "to": to}
    output.show(_act(claim_id, "release", body, where), as_json=as_json, human=_end_lines)


def _follow_up(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that ends a claim. Without a body there is no follow-up."""
    text, path = flags["body"], flags["body_file"]
    body = None if text is None and path is None else read_body(text, path)
    metadata = read_metadata(flags["metadata_json"], flags["meta"])
    return {"topic": flags["topic"], "body": body, "metadata": metadata, "reason": flags["reason"]}


def _act(claim_id: str, verb: str, body: Mapping[str, Any], where: Mapping[str, Any]) -> dict[str, Any]:
    from ductile.cli.base.connect import client_for

    given = {name: value for name, value in body.items() if value is not None}
    return client_for(where).request("POST", f"/exchange/claims/{quote(claim_id, safe='')}/{verb}", given)


def _end_lines(ended: Mapping[str, Any]) -> list[str]:
    claim, follow_up = ended["claim"], ended["follow_up"]
    lines = [f"claim {claim['claim_id']} is {claim['status']}; message {claim['message_id']} is {ended['state']}"]
    if follow_up:
        lines.append(f"  published message_id={follow_up['message_id']} topic={follow_up['topic']}")
    if ended["refused"]:
        lines.append(f"  no follow-up was published: {ended['refused']}")
    return lines
