"""Options and arguments of commands that publish: the body, metadata, and the line that reports a published message."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from ductile.cli.base import output

Command = TypeVar("Command", bound=Callable[..., Any])
FROM_STDIN = "-"


def message_options(command: Command) -> Command:
    """Add the options that describe a message, as Plugboard has them."""
    for option in (
        click.option("--delay", help="Time until workers can claim the message, such as 10m."),
        click.option("--ordering-key", help="Messages of a topic with the same key are handled one after the other."),
        click.option("--meta", multiple=True, metavar="KEY=VALUE", help="Add to the metadata `meta`. Repeatable."),
        click.option("--metadata-json", help="Metadata of the message, a JSON object."),
        click.option("--producer", help="Name of the sender."),
        click.option("--conversation-id", help="Conversation. Default: that of the parent, else a new one."),
    ):
        command = option(command)
    return command


def read_body(text: str | None, path: Path | None = None) -> str:
    """Return the body of the command line, of the file, or of stdin if it is `-`.

    Raises BodyMissing, BodyTooLarge or BodyNotText.
    """
    from ductile.core.errors import UsageInvalid
    from ductile.core.message import MAX_BODY_BYTES, BodyMissing, checked_body

    if text is not None and path is not None:
        raise UsageInvalid("a body and --body-file are mutually exclusive")
    if text is not None and text != FROM_STDIN:
        return checked_body(text, max_body_size=MAX_BODY_BYTES)
    if text is None and path is None:
        raise BodyMissing("a body is required", hint="Add BODY, --body-file FILE, or `-` for stdin.")
    try:
        if text == FROM_STDIN or str(path) == FROM_STDIN:
            content = sys.stdin.buffer.read(MAX_BODY_BYTES + 1)
        else:
            with open(str(path), "rb") as file:
                content = file.read(MAX_BODY_BYTES + 1)
    except OSError as error:
        raise UsageInvalid(f"{path or 'stdin'}: {error.strerror or error}") from error
    return checked_body(content, max_body_size=MAX_BODY_BYTES)


def read_metadata(text: str | None, pairs: Sequence[str]) -> dict[str, Any] | None:
    """Return the metadata of `--metadata-json` with the values of `--meta` below `meta`. Raises MetadataInvalid."""
    from ductile.core.formats import strict_json
    from ductile.core.message import MetadataInvalid, checked_metadata

    if text is None and not pairs:
        return None
    metadata = strict_json.loads(checked_metadata(text) or "{}", source="metadata")
    if not pairs:
        return dict(metadata)
    meta = metadata.setdefault("meta", {})
    if not isinstance(meta, dict):
        raise MetadataInvalid("metadata: `meta` must be an object when --meta is given")
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise MetadataInvalid(f"--meta {pair[:80]!r}: expected KEY=VALUE", hint="Write --meta model=small.")
        meta[key] = _json_or_text(value)
    return dict(metadata)


def _json_or_text(text: str) -> Any:
    from ductile.core.errors import Unreadable
    from ductile.core.formats import strict_json

    try:
        return strict_json.loads(text)
    except Unreadable:
        return text


def report_published(published: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the line of a published message to stderr, as Plugboard does; for a dry run, what it would do."""
    names = ("message_id", "conversation_id", "topic")
    about = {name: published[name] for name in names}
    if published["dry_run"] and not as_json:
        output.note(f"would publish on {published['topic']}")
    elif as_json:
        click.echo(json.dumps({"event": "published", **about}, ensure_ascii=False), err=True)
    else:
        output.note(f"[{now_text()}] published {' '.join(f'{name}={value}' for name, value in about.items())}")


def now_text() -> str:
    """Return the current time, for the lines that have one."""
    from ductile.core.clock import Clock, to_text

    return to_text(Clock().now())


def write_body(body: str | None) -> None:
    """Print the body of a reply as it is. A terminal gets control characters escaped."""
    if body is None:
        return
    if sys.stdout.isatty():
        for line in body.splitlines():
            output.print_line(line)
        return
    sys.stdout.write(body if body.endswith("\n") or not body else f"{body}{os.linesep}")
