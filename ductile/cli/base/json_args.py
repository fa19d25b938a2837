"""JSON that people give a command: on the command line, in a file, or on stdin."""

import sys
from pathlib import Path
from typing import Any

from ductile.core.errors import Unreadable, UsageInvalid

HINT = """write it like '{"message": "hi"}'"""


def read_payload(text: str | None, path: Path | None) -> dict[str, Any] | None:
    """The object of `--payload` or `--payload-file`; None if neither was given."""
    if text is not None and path is not None:
        raise UsageInvalid("--payload and --payload-file say the same thing; give one of them")
    if text is None and path is None:
        return None
    value = read_json_file(path) if path is not None else read_json(text or "", "--payload")
    if not isinstance(value, dict):
        raise UsageInvalid("the payload must be a JSON object", hint=HINT)
    return value


def read_json_file(path: Path) -> Any:
    """What is written in the file; - is stdin."""
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageInvalid(f"{path}: {error}") from error
    return read_json(text, str(path))


def read_json(text: str, source: str) -> Any:
    from ductile.core.formats import strict_json

    try:
        return strict_json.loads(text, source=source)
    except Unreadable as error:
        raise UsageInvalid(str(error), hint=HINT) from error
