"""The way to a value in plain data: names and positions, one after the other."""

from typing import Any

YamlPath = tuple[str | int, ...]


def spelled(path: YamlPath) -> str:
    """`api.auth.tokens[0].token`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def value_at(data: Any, path: YamlPath) -> Any:
    """What stands at `path` of plain data; None if nothing does."""
    for part in path:
        try:
            data = data[part]
        except (LookupError, TypeError):
            return None
    return data
