"""`baggage:` claims: the values that a run carries from step to step, immutable once set.

Computes the context of a step from the inherited one and writes nothing. Contexts share unchanged parts.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attrs import frozen

from ductile.core.errors import Complaint
from ductile.core.formats import strict_json
from ductile.core.units import quote_text
from ductile.pipeline.language.paths import (
    ABSENT,
    MAX_SEGMENTS,
    LanguageError,
    Path,
    PathAbsent,
    Scope,
    describe_type,
    json_equal,
    parse_path,
)

MAX_CONTEXT_BYTES = 1 << 20
CONTROL = "ductile"
"""The reserved key in every context; claims cannot write to it."""
_NAME = "[A-Za-z_][A-Za-z0-9_]*"
_BULK_KEYS = ("from", "namespace")


class ClaimsInvalid(LanguageError):
    """An invalid `baggage` mapping."""


class BaggageRefused(Exception):
    """A claim that failed; the message is the reason."""


@frozen
class BaggageClaim:
    """A value to copy from `source` to the baggage path `target`; in bulk, all members of an object."""

    target: tuple[str, ...]
    source: Path
    in_bulk: bool = False

    def __str__(self) -> str:
        return ".".join(self.target)


@frozen
class Claims:
    """All claims of one step."""

    claims: tuple[BaggageClaim, ...] = ()

    def paths(self) -> tuple[Path, ...]:
        """Return every source path, in the order of the configuration."""
        return tuple(claim.source for claim in self.claims)


@frozen
class Accumulated:
    """The context of a step: its values and the JSON text to store."""

    values: dict[str, Any]
    text: str


def apply_claims(
    claims: Claims,
    scope: Scope,
    inherited: Mapping[str, Any],
    *,
    control: Mapping[str, Any] | None = None,
    max_bytes: int = MAX_CONTEXT_BYTES,
) -> Accumulated:
    """Add the claimed values to `inherited`.

    All claims read `scope` as it is; none sees the result of another. `control` replaces the reserved key. Raises
    BaggageRefused if a claim fails or the context exceeds a limit.
    """
    claimed: dict[str, Any] = {}
    for claim in claims.claims:
        claimed = _merged(claimed, _nested(claim.target, _source_value(claim, scope)), _TWICE)
    values = _merged(inherited, claimed, _IMMUTABLE)
    if control is not None:
        claimed[CONTROL] = values[CONTROL] = dict(control)
    text = strict_json.dumps(values)
    _require_size(text, max_bytes)
    _require_readable(text, claimed)
    return Accumulated(values, text)


_IMMUTABLE = "baggage path {path} is immutable: it already holds {old}, and this step claims {new}"
_TWICE = "baggage path {path} is claimed twice by this step, as {old} and as {new}"


def _merged(
    inherited: Mapping[str, Any], claimed: Mapping[str, Any], refusal: str, at: tuple[str, ...] = ()
) -> dict[str, Any]:
    merged = dict(inherited)
    for name, value in claimed.items():
        known = merged.get(name, ABSENT)
        if known is ABSENT:
            merged[name] = value
        elif isinstance(known, dict) and isinstance(value, dict):
            merged[name] = _merged(known, value, refusal, (*at, name))
        elif not json_equal(known, value):
            old, new = describe_type(known), describe_type(value)
            path = quote_text(".".join((*at, name)))
            raise BaggageRefused(refusal.format(path=path, old=old, new=new if new != old else "a different value"))
    return merged


def _nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return value  # type: ignore[no-any-return]


def _source_value(claim: BaggageClaim, scope: Scope) -> Any:
    try:
        value = scope.require(claim.source)
    except PathAbsent as absent:
        raise BaggageRefused(f"baggage {claim}: {absent}") from None
    if claim.in_bulk and not isinstance(value, dict):
        raise BaggageRefused(
            f"baggage {claim}: `from` requires an object, but {claim.source} is {describe_type(value)}"
        )
    return value


def _require_size(text: str, max_bytes: int) -> None:
    size = len(text) if text.isascii() else len(text.encode())
    if size > max_bytes:
        advice = "claim less data, or the name of a file that contains it"
        raise BaggageRefused(f"the context would be {size:,} bytes of JSON, the limit is {max_bytes:,}; {advice}")


def _require_readable(text: str, added: Mapping[str, Any]) -> None:
    # The inherited part has been parsed before, so only `added` can be nested too deeply for the next step.
    limit = strict_json.MAX_DEPTH
    if text.count("{") + text.count("[") > limit and nesting_depth(added) > limit:
        raise BaggageRefused(f"the context would be nested deeper than {limit}; claim the inner values instead")


def nesting_depth(value: Any) -> int:
    """Return the nesting depth of a JSON value: 1 for an object of plain values."""
    members = value.values() if isinstance(value, Mapping) else value
    return 1 + max((nesting_depth(member) for member in members if isinstance(member, dict | list)), default=0)


# ── parsing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def parse_claims(raw: Any, *, roots: Collection[str]) -> Claims:
    """Parse plain YAML data into claims. Raises ClaimsInvalid with every error."""
    if not isinstance(raw, dict):
        raise ClaimsInvalid(Complaint(f"expected a mapping of baggage path to source, got {describe_type(raw)}"))
    if complaints := tuple(_complaints(raw, roots)):
        raise ClaimsInvalid(*complaints)
    single = [
        BaggageClaim(_target(key), _source(source, roots)) for key, source in raw.items() if key not in _BULK_KEYS
    ]
    bulk = (
        [BaggageClaim(_target(raw["namespace"]), _bulk_source(raw["from"], roots), in_bulk=True)]
        if "from" in raw
        else []
    )
    return Claims((*single, *bulk))


def _complaints(raw: Mapping[str, Any], roots: Collection[str]) -> Iterator[Complaint]:
    if "from" in raw and "namespace" not in raw:
        yield Complaint("`namespace` is missing: name the baggage path to import into", "from")
    if "namespace" in raw and "from" not in raw:
        yield Complaint("`from` is missing: name the object to import, such as payload.metadata", "namespace")
    for key, value in raw.items():
        try:
            match key:
                case "from":
                    _bulk_source(value, roots)
                case "namespace":
                    _target(value)
                case _:
                    _target(key)
                    _source(value, roots)
        except LanguageError as error:
            yield Complaint(str(error), key)


def _target(text: Any) -> tuple[str, ...]:
    if not isinstance(text, str):
        raise _refused(f"expected a baggage path such as web.url, got {describe_type(text)}")
    names = tuple(text.split("."))
    if not all(re.fullmatch(_NAME, name) for name in names):
        rule = "use names of letters, digits and _ that do not start with a digit, separated by dots"
        raise _refused(f"{quote_text(text)} is not a baggage path: {rule}")
    if names[0] == CONTROL:
        raise _refused(f"{quote_text(text)} cannot be claimed: `{CONTROL}` is reserved; choose another first name")
    if len(names) > MAX_SEGMENTS:
        raise _refused(f"{quote_text(text)} has more than {MAX_SEGMENTS} names")
    return names


def _source(text: Any, roots: Collection[str]) -> Path:
    path = parse_path(text, roots=roots, allow_whole=True)
    # A whole payload must not become baggage by accident, so a single claim names a value inside it.
    if not path.segments and path.root != "item":
        raise _refused(
            f"{quote_text(text)} is the whole object; name a value inside it, or use `from` with `namespace`"
        )
    return path


def _bulk_source(text: Any, roots: Collection[str]) -> Path:
    path = parse_path(text, roots=roots, allow_whole=True)
    if path.root == "context":
        raise _refused(f"{quote_text(text)} is already baggage; `from` accepts payload or item")
    return path


def _refused(message: str) -> ClaimsInvalid:
    return ClaimsInvalid(Complaint(message))
