"""Lenient reading of JSON columns of the ledger, for display: invalid text is shown as it is."""

from typing import Any

from ductile.core.errors import Unreadable
from ductile.core.formats import strict_json


def load_stored(text: str | None) -> Any:
    """Decode a stored value; return the text itself if it is not JSON."""
    if not text:
        return None
    try:
        return strict_json.loads(text)
    except Unreadable:
        return text


def load_stored_object(text: str | None) -> dict[str, Any]:
    """Decode a stored object; return an empty one for anything else."""
    value = load_stored(text)
    return value if isinstance(value, dict) else {}
