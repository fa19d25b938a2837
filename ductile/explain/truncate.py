"""Truncate the largest parts of a diagnosis until it fits a size limit, and report each cut. Pure."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from ductile.core.formats import strict_json

MIN_BYTES, DEFAULT_BYTES = 4_000, 64 << 10
PARTS = (
    "request",
    "response",
    "stderr",
    "attempts",
    "failures",
    "journal",
    "since_last_success",
    "similar_failures",
    "why",
    "next",
)
"""The members of a diagnosis that can be truncated."""
FROM_THE_END = ("stderr", "journal", "attempts")
"""Parts that keep their end; the others keep their beginning."""
MARK = "[cut]"


def json_size(bundle: Mapping[str, Any]) -> int:
    """Return the bytes of the bundle as the command line prints it."""
    return len(json.dumps(bundle, indent=2, ensure_ascii=False).encode("utf-8", "backslashreplace")) + 1


def truncate_to_fit(
    bundle: Mapping[str, Any], parts: tuple[str, ...], size: Callable[[dict[str, Any]], int], max_size: int
) -> dict[str, Any]:
    """Truncate `parts` until the bundle fits `max_size` or all are empty; its member `cut` lists each cut."""
    lengths: dict[str, int] = {}
    shown = _shown(bundle, lengths)
    while size(shown) > max_size:
        largest = max(parts, key=lambda name: len(_text(shown.get(name))) if lengths.get(name) != 0 else -1)
        if lengths.get(largest) == 0:
            return shown
        lengths[largest] = lengths.get(largest, _length(bundle[largest])) // 2
        shown = _shown(bundle, lengths)
    return shown


def _shown(bundle: Mapping[str, Any], lengths: Mapping[str, int]) -> dict[str, Any]:
    cut = {
        name: {
            "kept": count,
            "of": _length(bundle[name]),
            "unit": "items" if isinstance(bundle[name], list) else "characters",
        }
        for name, count in lengths.items()
    }
    parts = {name: _part(name, bundle[name], count) for name, count in lengths.items()}
    return {**bundle, **parts, "cut": cut}


def _part(name: str, whole: Any, count: int) -> Any:
    from_the_end = name in FROM_THE_END
    if isinstance(whole, list):
        return (whole[len(whole) - count :] if from_the_end else whole[:count]) if count else []
    text = _text(whole)
    if from_the_end:
        return MARK + (text[len(text) - count :] if count else "")
    return text[:count] + MARK


def _length(whole: Any) -> int:
    return len(whole) if isinstance(whole, list) else len(_text(whole))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else strict_json.dumps(value)
