"""A bundle that must not be larger than so many bytes: the largest parts are cut until it fits, and each cut is told.

Pure. Knows nothing of what the parts mean, but for those of which the end matters more than the beginning.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ductile.core.formats import strict_json

FROM_THE_END = ("stderr", "journal", "attempts")
"""Parts of which the end is kept; of the others the beginning."""
MARK = "[cut]"


def fit(
    bundle: Mapping[str, Any], parts: tuple[str, ...], size: Callable[[dict[str, Any]], int], most: int
) -> dict[str, Any]:
    """The bundle with a member `cut` that tells what of `parts` is left; its size is at most `most` if that can be."""
    kept: dict[str, int] = {}
    shown = _shown(bundle, kept)
    while size(shown) > most:
        largest = max(parts, key=lambda name: len(_text(shown.get(name))) if kept.get(name) != 0 else -1)
        if kept.get(largest) == 0:
            return shown
        kept[largest] = kept.get(largest, _length(bundle[largest])) // 2
        shown = _shown(bundle, kept)
    return shown


def _shown(bundle: Mapping[str, Any], kept: Mapping[str, int]) -> dict[str, Any]:
    cut = {
        name: {
            "kept": count,
            "of": _length(bundle[name]),
            "unit": "items" if isinstance(bundle[name], list) else "characters",
        }
        for name, count in kept.items()
    }
    parts = {name: _part(name, bundle[name], count) for name, count in kept.items()}
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
