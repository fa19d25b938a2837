"""How a value is written in YAML: on one line between brackets, or on lines of its own. Called by `tree_edit`."""

import json
import re
from typing import Any

from attrs import frozen

from ductile.core.formats import strict_yaml

LONGEST_LINE = 100
_PLAIN_IN_FLOW = re.compile(r"[A-Za-z_/][\w./-]*", re.ASCII)


@frozen
class Lines:
    """A value as text; `block` when it stands on lines of its own below its key."""

    text: str
    block: bool


def lines_of(value: Any, *, as_flow: bool) -> Lines:
    """A value as it may stand behind or below a key; what is short stays on one line."""
    if not isinstance(value, dict | list):
        return Lines(strict_yaml.dump(value).removesuffix("\n"), block=False)
    short = isinstance(value, list) and not any(isinstance(item, dict | list) for item in value)
    if not value or as_flow or (short and len(flow(value)) <= LONGEST_LINE):
        return Lines(flow(value), block=False)
    return Lines(strict_yaml.dump(value), block=True)


def member_text(name: str, value: Any) -> str:
    """`name: value`, on as many lines as it needs."""
    lines = lines_of(value, as_flow=False)
    if isinstance(value, list) and not lines.block:
        return strict_yaml.dump({name: None}).removesuffix("null\n") + lines.text + "\n"
    return strict_yaml.dump({name: value})


def flow(value: Any) -> str:
    """A value on one line, as it may stand between brackets."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(str(key))}: {flow(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(flow, value)) + "]"
    written = strict_yaml.dump(value).removesuffix("\n")
    if not isinstance(value, str) or written.startswith('"') or _PLAIN_IN_FLOW.fullmatch(written):
        return written
    return json.dumps(value, ensure_ascii=False)


def indented(text: str, column: int, *, first: bool = True) -> str:
    """Every line of `text` moved to the right, or all but the first."""
    pad = " " * column
    lines = enumerate(text.split("\n"))
    return "\n".join(pad + line if line and (first or number) else line for number, line in lines)
