"""JSON arguments: on the command line, in a file, or on stdin."""

import sys
from pathlib import Path
from typing import Any

from ductile.core.errors import Unreadable, UsageInvalid

HINT = """Write it as a JSON object: '{"message": "hi"}'."""


def read_payload(text: str | None, path: Path | None) -> dict[str, Any] | None:
    """Return the object of `--payload` or `--payload-file`; None if neither is given."""
    if text is not None and path is not None:
        raise UsageInvalid("--payload and --payload-file are mutually exclusive")
    if text is None and path is None:
        return None
    value = read_json_file(path) if path is not None else read_json(text or "", "--payload")
    if not isinstance(value, dict):
        raise UsageInvalid("the payload must be a JSON object", hint=HINT)
    return value


def read_json_file(path: Path) -> Any:
    """Parse the file as JSON; `-` is stdin."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageInvalid(f"{path}: {error}") from error
    return read_json(text, str(path))


def read_json(text: str, source: str) -> Any:
    """Parse the text as JSON; errors name `source`."""
    from ductile.core.formats import strict_json

    try:
        return strict_json.loads(text, source=source)
    except Unreadable as error:
        raise UsageInvalid(str(error), hint=HINT) from error
