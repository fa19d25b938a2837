"""`PATH=VALUE` as operators write it on the command line: which value is meant, and what it becomes."""

import re
from typing import Any

from ductile.config.edit.yaml_path import YamlPath
from ductile.core.errors import Unreadable, UsageInvalid
from ductile.core.formats import strict_yaml


def parse_assignment(text: str, data: Any) -> tuple[YamlPath, Any]:
    """`plugins.echo.enabled=false` → the way to the value, and the value."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise UsageInvalid(f"{text!r} is not PATH=VALUE", hint="for example plugins.echo.enabled=false")
    return parse_path(path.strip(), data), parse_value(value)


def parse_path(text: str, data: Any) -> YamlPath:
    """Names joined by dots (a known name may contain some), list members as `[0]` or `.0`."""
    rest = re.sub(r"\[([0-9]+)\]", r".\1", text).strip(".")
    way: list[str | int] = []
    while rest:
        if isinstance(data, list):
            member, _, rest = rest.partition(".")
            if not member.isdigit() or not member.isascii() or int(member) >= len(data):
                raise UsageInvalid(f"{text!r}: [{member}] is not in the list", hint=f"it has {len(data)} members")
            way.append(int(member))
            data = data[int(member)]
            continue
        known = [key for key in data if rest == key or rest.startswith(f"{key}.")] if isinstance(data, dict) else []
        key = max(known, key=len) if known else rest.partition(".")[0]
        if not key:
            raise UsageInvalid(f"{text!r} has an empty name in it", hint="for example plugins.echo.enabled")
        way.append(key)
        data, rest = data[key] if known else None, rest[len(key) + 1 :]
    return tuple(way)


def parse_value(text: str) -> Any:
    """What YAML 1.2 reads: numbers, true, false, null, [lists], {mappings} and "quoted text"; all else is text."""
    try:
        node = strict_yaml.load(text.encode(), source="value")
    except (Unreadable, UnicodeEncodeError) as error:
        if text.lstrip().startswith(("[", "{", '"', "'")):
            raise UsageInvalid(f"{text!r} is not a value: {error}", hint="text in quotes is always text") from error
        return text
    if text.lstrip().startswith(("[", "{", '"', "'")) or (node.plain and node.text == text.strip()):
        return node.data()
    return text
