"""Parser for `PATH=VALUE` arguments of the command line."""

import re
from typing import Any

from ductile.config.edit.yaml_edit import YamlPath
from ductile.core.errors import Unreadable, UsageInvalid
from ductile.core.formats import strict_yaml


def parse_assignment(text: str, data: Any) -> tuple[YamlPath, Any]:
    """Parse `plugins.echo.enabled=false` to a path and a value. Raises UsageInvalid."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise UsageInvalid(f"{text!r} is not PATH=VALUE", hint="Example: plugins.echo.enabled=false")
    return parse_path(path.strip(), data), parse_value(value)


def parse_path(text: str, data: Any) -> YamlPath:
    """Parse names joined by dots. A known name may contain dots; list items are `[0]` or `.0`."""
    remaining = re.sub(r"\[([0-9]+)\]", r".\1", text).strip(".")
    path: list[str | int] = []
    while remaining:
        if isinstance(data, list):
            member, _, remaining = remaining.partition(".")
            if not member.isdigit() or not member.isascii() or int(member) >= len(data):
                raise UsageInvalid(
                    f"{text!r}: the list has no item [{member}]", hint=f"The list has {len(data)} items."
                )
            path.append(int(member))
            data = data[int(member)]
            continue
        known = (
            [key for key in data if remaining == key or remaining.startswith(f"{key}.")]
            if isinstance(data, dict)
            else []
        )
        key = max(known, key=len) if known else remaining.partition(".")[0]
        if not key:
            raise UsageInvalid(f"{text!r} contains an empty name", hint="Example: plugins.echo.enabled")
        path.append(key)
        data, remaining = data[key] if known else None, remaining[len(key) + 1 :]
    return tuple(path)


def parse_value(text: str) -> Any:
    """Parse a value as YAML 1.2: numbers, true, false, null, [lists], {mappings}, "quoted text". All else is text."""
    try:
        node = strict_yaml.load(text.encode(), source="value")
    except (Unreadable, UnicodeEncodeError) as error:
        if text.lstrip().startswith(("[", "{", '"', "'")):
            raise UsageInvalid(
                f"{text!r} is not a valid value: {error}", hint="Quote the value to pass it as text."
            ) from error
        return text
    if text.lstrip().startswith(("[", "{", '"', "'")) or (node.plain and node.text == text.strip()):
        return node.data()
    return text
