"""`ductile exchange publish` and `reply`: write a message, also while no service runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from ductile.cli.base import output
from ductile.cli.base.options import selected_config
from ductile.cli.exchange import options
from ductile.cli.exchange.message_options import message_options, read_body, read_metadata, report_published


@click.command("publish")
@click.argument("topic")
@click.argument("body", required=False)
@click.option("--body-file", type=click.Path(path_type=Path), help="Read the body from this file; `-` is stdin.")
@click.option("--parent-id", help="The message that this one replies to.")
@message_options
@options.change
def publish(
    topic: str, body: str | None, body_file: Path | None, parent_id: str | None, as_json: bool, **flags: Any
) -> None:
    """Publish a message on TOPIC and print its id. BODY `-` reads stdin.

    The identifiers are printed to stderr, with --json as one JSON object; stdout has the message id alone. A message on
    X.request is tracked: `ductile exchange notify` reports its reply. While no service runs, the message is written to
    the ledger, and workers get it after the next start.

    Example: ductile exchange publish review.request "Please review main.py" --meta model=small
    """
    message = _message(topic, read_body(body, body_file), flags) | {"parent_id": parent_id}
    published = publish_message(message | {"track": _has_default_reply_topics(topic) or None}, flags)
    report_published(published, as_json=as_json)
    if not published["dry_run"]:
        click.echo(published["message_id"])


@click.command("reply")
@click.argument("message_id")
@click.argument("body", required=False)
@click.option("--body-file", type=click.Path(path_type=Path), help="Read the body from this file; `-` is stdin.")
@click.option("--topic", help="Topic of the reply. Default for a message on X.request: X.done.")
@message_options
@options.change
def reply(
    message_id: str, body: str | None, body_file: Path | None, topic: str | None, as_json: bool, **flags: Any
) -> None:
    """Answer a message in its conversation, without a claim. BODY `-` reads stdin.

    Use `complete` for a message that you have claimed.

    Example: ductile exchange reply 01a1e54a-444a-7666-8be9-75a067ae70f7 "looks good"
    """
    from ductile.cli.exchange.queries import message_details

    text = read_body(body, body_file)
    target = topic or _reply_topic(message_details(message_id, flags)["topic"])
    published = publish_message(_message(target, text, flags) | {"parent_id": message_id}, flags)
    output.show(published, as_json=as_json, human=_published_lines)


def _published_lines(published: Mapping[str, Any]) -> list[str]:
    if published["dry_run"]:
        return [f"would publish on {published['topic']}"]
    about = ("message_id", "conversation_id", "topic")
    return [f"published {' '.join(f'{name}={published[name]}' for name in about)}"]


def _reply_topic(topic: str) -> str:
    from ductile.core.message import TopicInvalid, default_reply_topics

    topics = default_reply_topics(topic)
    if topics is None:
        raise TopicInvalid(f"messages on {topic} have no default reply topic", hint="Add --topic TOPIC.")
    return topics.success


def _has_default_reply_topics(topic: str) -> bool:
    from ductile.core.message import default_reply_topics, is_topic

    return is_topic(topic) and default_reply_topics(topic) is not None


def _message(topic: str, body: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    metadata = read_metadata(flags["metadata_json"], flags["meta"])
    fields = {name: flags[name] for name in ("conversation_id", "producer", "ordering_key", "delay")}
    return {"topic": topic, "body": body, "metadata": metadata, **fields}


# ── publish ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def publish_message(message: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Publish through the service, or in the ledger while none runs. Raises AlreadyRunning if the ledger is in use."""
    from ductile.cli.base.connect import client_for, running_client

    given = {name: value for name, value in message.items() if value is not None}
    is_dry_run = flags["dry_run"]
    service = client_for(flags) if flags["api_url"] else running_client(_config(flags))
    if service is not None:
        query = "?dry_run=true" if is_dry_run else ""
        return service.request("POST", f"/exchange/messages{query}", given)
    return _publish_in_ledger(given, _config(flags), is_dry_run=is_dry_run)


def _config(flags: Mapping[str, Any]) -> Path | None:
    return selected_config(flags["config_path"], flags["config_dir"])


def _publish_in_ledger(message: Mapping[str, Any], config: Path | None, *, is_dry_run: bool) -> dict[str, Any]:
    """Write the message in one transaction, under the lock of the instance."""
    from ductile.cli.exchange.direct import publish_directly

    return publish_directly(message, config, is_dry_run=is_dry_run)
