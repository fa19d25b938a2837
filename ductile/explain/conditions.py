"""Conditions that said no, in words: each predicate with the value it found."""

from collections.abc import Iterable, Mapping
from typing import Any

from ductile.core.formats import strict_json

LONGEST = 80


def predicate_words(predicates: Iterable[Mapping[str, Any]]) -> str:
    """`payload.n eq 2: false, found 1; …` as the journal has kept it."""
    return "; ".join(_one(predicate) for predicate in predicates)


def _one(predicate: Mapping[str, Any]) -> str:
    wanted = f" {_short(predicate['value'])}" if "value" in predicate else ""
    found = f"found {_short(predicate['found'])}" if "found" in predicate else "it is absent"
    holds = "true" if predicate.get("holds") else "false"
    return f"{predicate.get('path')} {predicate.get('op')}{wanted} is {holds}: {found}"


def _short(value: Any) -> str:
    text = strict_json.dumps(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
