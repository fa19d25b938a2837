"""The JSON codec: strict UTF-8, no BOM, no NaN, no duplicate keys, limits on depth, size and digits.

Decoding returns a value or raises one `Unreadable`. Every decoded value can be stored in SQLite and encoded again.
The standard library's C scanner decodes; only an invalid text is scanned a second time, to find the position.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from attrs import frozen

from ductile.core.errors import Mark, Unreadable
from ductile.core.units import quote_text

MAX_DEPTH = 64
MAX_NODES = 1_000_000
MAX_FIND_CALLS = 200
MAX_DIGITS = 4300
"""Python neither reads nor prints longer integers."""
REPLACEMENT = "\ufffd"


@frozen
class Parsed:
    """A decoded value, the number of lone surrogates that were replaced in it, and its source text."""

    value: Any
    replaced: int
    text: str


def loads(content: bytes | str, *, source: str = "<json>", max_depth: int = MAX_DEPTH) -> Any:
    """Decode the JSON value in `content`. Lone surrogates become U+FFFD."""
    return parse(content, source=source, max_depth=max_depth).value


def parse(content: bytes | str, *, source: str = "<json>", max_depth: int = MAX_DEPTH) -> Parsed:
    """Decode the JSON value in `content` and count the replaced surrogates."""
    text = content if isinstance(content, str) else _decoded(content, source)
    opened = _count(text, "[") + _count(text, "{")
    if len(text) >= MAX_NODES and opened + _count(text, ",") >= MAX_NODES and _node_count(text) > MAX_NODES:
        raise Unreadable(f"more than {MAX_NODES:,} values", Mark(source, 1))
    try:
        value = _value_of(text)
        if opened > max_depth and _is_deeper(value, max_depth):
            raise _TooDeep
        return Parsed(*_storable(value), text) if _may_hold_surrogates(text) else Parsed(value, 0, text)
    except json.JSONDecodeError as error:
        raise Unreadable(_syntax_reason(error), _mark(text, error.pos, source)) from error
    except (ValueError, RecursionError) as error:
        raise _broken_rule(error, text, max_depth, source) from error


def dumps(data: Any) -> str:
    """Encode as compact JSON that `loads` decodes to the same data: exact integers, raw non-ASCII, no lone surrogates.

    Raises TypeError for types that JSON does not have, ValueError for numbers and nesting that it cannot represent.
    """
    # Not for a bare number: it is displayed as encoded, and the two encoders format exponents differently.
    text = _dumps_fast(data) if isinstance(data, _COLLECTIONS) else None
    if text is not None:
        return text
    try:
        _check_keys(data)
        text = _ENCODER.encode(data)
    except RecursionError as error:
        raise ValueError("data that is nested too deeply or contains itself cannot be written as JSON") from error
    except ValueError as error:
        raise ValueError(f"a number that is infinite, NaN or over {MAX_DIGITS:,} digits is not JSON") from error
    return text if text.isascii() or not re.search(_SURROGATE, text) else _ENCODER.encode(_storable(data)[0])


# --- reading ----------------------------------------------------------------------------------------------------------

_CONSTANTS = ("NaN", "Infinity", "-Infinity")
_SURROGATE = "[\ud800-\udfff]"
_SURROGATE_ESCAPE = r"\\u[dD][89a-fA-F]"
_OPENINGS = ("{", "[")
_BLANKS = " \t\n\r"
_STRING = r'"(?:[^"\\]++|\\.)*+"'


def _decoded(content: bytes, source: str) -> str:
    if content.startswith(b"\xef\xbb\xbf"):
        raise Unreadable("starts with a byte order mark, expected plain UTF-8", Mark(source, 1))
    if content.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\x00" in content[:4]:
        raise Unreadable("looks like UTF-16 or UTF-32, expected UTF-8", Mark(source, 1))
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        reason = f"byte 0x{content[error.start]:02x} is not UTF-8"
        raise Unreadable(reason, _mark(before, len(before), source)) from error


def _count(text: str, character: str) -> int:
    """Count like `str.count`, but faster for rare characters: `find` skips ahead, `count` visits every character."""
    at = -1
    for found in range(MAX_FIND_CALLS):
        at = text.find(character, at + 1)
        if at < 0:
            return found
    return text.count(character)


def _node_count(text: str) -> int:
    """Return an upper bound of the number of values: the first of each collection, and one after each comma."""
    # The pattern lets an unclosed string run to the end of the text: rescanning it would take quadratic time.
    bare = re.sub(f"{_STRING}?", "", text, flags=re.DOTALL)
    return 1 + bare.count(",") + bare.count("[") + bare.count("{")


class _TooDeep(ValueError):
    """Nested deeper than the caller allows."""


class _DuplicateKey(ValueError):
    """An object has two equal keys."""

    def __init__(self, key: str) -> None:
        super().__init__(f"duplicate key {json.dumps(key[:60], ensure_ascii=False)}")
        self.key = key


class _NotANumber(ValueError):
    """A number that JSON or a float cannot represent."""

    def __init__(self, token: str) -> None:
        super().__init__(
            f"{token} is not JSON" if token in _CONSTANTS else f"{quote_text(token)} is too large for a number"
        )
        self.token = token


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _DuplicateKey(_first_repeated(pairs))
    return members


def _first_repeated(pairs: list[tuple[str, Any]]) -> str:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError("no key is repeated")


def _finite(token: str) -> float:
    if len(token) > MAX_DIGITS:
        raise ValueError("too many digits")
    number = float(token)
    if math.isinf(number):
        raise _NotANumber(token)
    return number


def _no_constant(name: str) -> NoReturn:
    raise _NotANumber(name)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_no_constant)


def _value_of(text: str) -> Any:
    """Decode like `JSONDecoder.decode`, without its regular expressions for surrounding whitespace."""
    if not text.startswith(_OPENINGS):
        return _DECODER.decode(text)
    value, end = _DECODER.raw_decode(text)
    rest = text[end:].lstrip(_BLANKS)
    if rest:
        raise json.JSONDecodeError("Extra data", text, len(text) - len(rest))
    return value


def _is_deeper(value: Any, max_depth: int) -> bool:
    level = [value]
    for _ in range(max_depth):
        level = [
            member
            for each in level
            for member in (each.values() if type(each) is dict else each)
            if type(member) is dict or type(member) is list
        ]
        if not level:
            return False
    return True


def _may_hold_surrogates(text: str) -> bool:
    escaped = "\\" in text and "\\u" in text and re.search(_SURROGATE_ESCAPE, text) is not None
    return escaped or (not text.isascii() and re.search(_SURROGATE, text) is not None)


def _storable(value: Any) -> tuple[Any, int]:
    """Replace lone surrogates by U+FFFD and count them. Raises ValueError if that makes two keys equal."""
    replaced = 0

    def replace(node: Any) -> Any:
        nonlocal replaced
        if isinstance(node, str):
            text, count = re.subn(_SURROGATE, REPLACEMENT, node)
            replaced += count
            return text
        if isinstance(node, dict):
            return _object([(replace(key), replace(member)) for key, member in node.items()])
        return [replace(member) for member in node] if isinstance(node, list | tuple) else node

    return replace(value), replaced


# --- error messages ---------------------------------------------------------------------------------------------------

_BRACKET = rf'(?:[^"\[\]{{}}]++|{_STRING})*+([\[\]{{}}])'
_KEY_OR_BRACKET = rf'(?:[^"\[\]{{}}]++|{_STRING}(?!\s*+:))*+([\[\]{{}}]|{_STRING})'
_REASONS = {
    "Expecting property name enclosed in double quotes": "expected a key in double quotes here",
    "Expecting ':' delimiter": "expected ':' after this key",
    "Expecting ',' delimiter": "expected ',' or the closing bracket here",
    "Illegal trailing comma before end of array": "a comma before the closing bracket is not JSON",
    "Illegal trailing comma before end of object": "a comma before the closing bracket is not JSON",
    "Unterminated string starting at": "this string is never closed",
    "Invalid control character at": "a control character in a string; write it as an escape",
    "Invalid \\escape": "an unknown escape in a string",
    "Invalid \\uXXXX escape": "\\u takes four hexadecimal digits",
}


def _mark(text: str, index: int, source: str) -> Mark:
    return Mark(source, text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index))


def _syntax_reason(error: json.JSONDecodeError) -> str:
    rest = error.doc[error.pos :].strip(" \t\n\r")
    found = quote_text(rest.split("\n", 1)[0], 20)
    if not error.doc.strip(" \t\n\r"):
        return "empty, expected one JSON value"
    if error.msg == "Extra data":
        return _extra_reason(error.doc[error.pos - 1], rest)
    if error.doc.startswith("\ufeff"):
        return "starts with a byte order mark"
    if not rest and error.msg.startswith("Expecting"):
        return "ends in the middle of a JSON value"
    return _REASONS.get(error.msg.rstrip(": "), f"expected a JSON value here, found {found}")


def _extra_reason(last: str, rest: str) -> str:
    if last.isdigit() and rest[0] in ".eExX_0123456789":
        return "not a valid JSON number"
    if rest[0] in '{["' or rest[0].isdigit():
        return "two JSON values, only one is allowed"
    return f"expected nothing after the JSON value, found {quote_text(rest.splitlines()[0], 20)}"


def _broken_rule(error: Exception, text: str, max_depth: int, source: str) -> Unreadable:
    """Translate `error`, with the position of its first cause in `text`."""
    match error:
        case _DuplicateKey(key=key):
            reason, index = str(error), _repetition_of(key, text)
        case _NotANumber(token=token):
            reason, index = str(error), _find_token(re.escape(token), text)
        case _TooDeep() | RecursionError():
            index = _opening_below(max_depth, text)
            reason = f"nested deeper than {max_depth}" if index else "nested too deeply for the remaining stack"
        case _:
            reason = f"a number of more than {MAX_DIGITS:,} digits"
            index = _find_token(f"[-+.eE0-9]{{{MAX_DIGITS + 1},}}", text)
    return Unreadable(reason, _mark(text, index, source))


def _find_token(pattern: str, text: str) -> int:
    """Return the index of the first word or number outside of strings that matches `pattern` entirely."""
    before = rf'(?:{_STRING}|[^"\w.+-]++|(?!(?:{pattern})(?![\w.+-]))[\w.+-]++)*+'
    found = re.match(before, text, re.DOTALL)
    return found.end() if found else 0


def _opening_below(depth: int, text: str) -> int:
    """Return the index of the first opening bracket that is nested deeper than `depth`."""
    open_brackets = 0
    for found in _each(_BRACKET, text):
        open_brackets += 1 if found[1] in "[{" else -1
        if open_brackets > depth:
            return found.start(1)
    return 0


def _repetition_of(key: str, text: str) -> int:
    """Return the index at which an object first repeats `key`."""
    has_key = [False]
    for found in _each(_KEY_OR_BRACKET, text):
        token = found[1]
        if token in "[{":
            has_key.append(False)
        elif token in "]}":
            has_key.pop()
        elif _name(token) == key:
            if has_key[-1]:
                return found.start(1)
            has_key[-1] = True
    return 0


def _each(pattern: str, text: str) -> Iterator[re.Match[str]]:
    """Yield adjacent matches. Stops at the first failure: searching from every later index would be quadratic."""
    compiled = re.compile(pattern, re.DOTALL)
    found = compiled.match(text)
    while found:
        yield found
        found = compiled.match(text, found.end())


def _name(string: str) -> str:
    if string.isascii() and "\\" not in string:
        return string[1:-1]
    return re.sub(_SURROGATE, REPLACEMENT, json.loads(string))


# --- writing ----------------------------------------------------------------------------------------------------------

_COLLECTIONS = (dict, list, tuple)


def _dumps_fast(data: Any) -> str | None:
    """Encode with orjson, ten times faster; None if it refuses, or accepts what the strict encoder would not."""
    import orjson  # not needed for reading

    try:
        written = orjson.dumps(data, option=orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS)
    except TypeError:  # also for a lone surrogate and for an integer of more than 64 bits
        return None
    # orjson also encodes NaN and the infinities as null.
    return None if b"null" in written else written.decode()


def _check_keys(value: Any) -> None:
    """Raise TypeError for a key that is not a string: the encoder would convert it, possibly into a duplicate."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"a key must be text, not {type(key).__name__}")
        value = value.values()
    elif not isinstance(value, _COLLECTIONS):
        return
    for member in value:
        if isinstance(member, _COLLECTIONS):
            _check_keys(member)


def _no_json(value: Any) -> NoReturn:
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":"), default=_no_json
)
