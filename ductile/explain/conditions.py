"""Conditions that were false, as text: each predicate with the value it found."""

from collections.abc import Iterable, Mapping
from typing import Any

from ductile.core.formats import strict_json

MAX_VALUE_CHARS = 80


def format_predicates(predicates: Iterable[Mapping[str, Any]]) -> str:
    """Return `payload.n eq 2 is false: found 1; …` for predicates as the journal stores them."""
    return "; ".join(_format(predicate) for predicate in predicates)


def _format(predicate: Mapping[str, Any]) -> str:
    expected = f" {_short(predicate['value'])}" if "value" in predicate else ""
    found = f"found {_short(predicate['found'])}" if "found" in predicate else "it is absent"
    holds = "true" if predicate.get("holds") else "false"
    return f"{predicate.get('path')} {predicate.get('op')}{expected} is {holds}: {found}"


def _short(value: Any) -> str:
    text = strict_json.dumps(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"
