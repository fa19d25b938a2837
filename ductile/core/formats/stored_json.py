"""JSON that the ledger has kept, for people who look at it: what cannot be read is no reason to show nothing."""

from typing import Any

from ductile.core.errors import Unreadable
from ductile.core.formats import strict_json


def kept_value(text: str | None) -> Any:
    """The value that was kept; the text itself if it is not JSON."""
    if not text:
        return None
    try:
        return strict_json.loads(text)
    except Unreadable:
        return text


def kept_object(text: str | None) -> dict[str, Any]:
    """The object that was kept; an empty one if it is something else."""
    value = kept_value(text)
    return value if isinstance(value, dict) else {}
