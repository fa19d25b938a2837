"""The one JSON decoder: strict UTF-8, no BOM, no NaN, no duplicate keys, bounded depth, size and digits.

Accepts a text or raises one `Unreadable`. What it returns can always be stored in SQLite and written as JSON again.
The C scanner of the standard library reads; only a text that breaks a rule is scanned a second time, to say where.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from ductile.core.errors import Mark, Unreadable
from ductile.core.units import shown

MAX_DEPTH = 64
MAX_NODES = 1_000_000
FEW = 200
MAX_DIGITS = 4300
"""Python neither reads nor prints longer integers."""
REPLACEMENT = "\ufffd"


class Parsed(NamedTuple):
    """A decoded value, how many lone surrogates in it had to be replaced, and the text that it was written as."""

    value: Any
    replaced: int
    text: str


def loads(content: bytes | str, *, source: str = "<json>", max_depth: int = MAX_DEPTH) -> Any:
    """The one JSON value in `content`; lone surrogates have become U+FFFD."""
    return parse(content, source=source, max_depth=max_depth).value


def parse(content: bytes | str, *, source: str = "<json>", max_depth: int = MAX_DEPTH) -> Parsed:
    """The one JSON value in `content`, and how much of it had to be replaced to be storable."""
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
    """Compact JSON text that `loads` reads back as the same data; ints exact, non-ASCII kept, no lone surrogates.

    Raises TypeError for a value or a key that JSON does not have, ValueError for what it has no notation for.
    """
    # A lone number is shown to people as it is: there the two ways to write its exponent would be seen.
    text = _dumped_fast(data) if isinstance(data, _COLLECTIONS) else None
    if text is not None:
        return text
    try:
        _check_keys(data)
        text = _ENCODER.encode(data)
    except RecursionError as error:
        raise ValueError("what is nested too deeply, or in itself, cannot be written as JSON") from error
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
    """`text.count(character)`, which looks at every character; leaping from one to the next is faster where few are."""
    at = -1
    for found in range(FEW):
        at = text.find(character, at + 1)
        if at < 0:
            return found
    return text.count(character)


def _node_count(text: str) -> int:
    """How many values a text of JSON has at most: the first of each collection, and one after each comma."""
    # A string that is never closed ends with the text: trying again inside it would take time squared.
    bare = re.sub(f"{_STRING}?", "", text, flags=re.DOTALL)
    return 1 + bare.count(",") + bare.count("[") + bare.count("{")


class _TooDeep(ValueError):
    """Nested deeper than the caller allows."""


class _DuplicateKey(ValueError):
    """Two keys of an object are equal."""

    def __init__(self, key: str) -> None:
        super().__init__(f"duplicate key {json.dumps(key[:60], ensure_ascii=False)}")
        self.key = key


class _NotANumber(ValueError):
    """JSON, or a float, has no such number."""

    def __init__(self, token: str) -> None:
        super().__init__(f"{token} is not JSON" if token in _CONSTANTS else f"{shown(token)} is too large for a number")
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
    """What `decode` returns or raises, without its search for blanks around a value that has none."""
    if not text.startswith(_OPENINGS):
        return _DECODER.decode(text)
    value, end = _DECODER.raw_decode(text)
    rest = text[end:].lstrip(_BLANKS)
    if rest:
        raise json.JSONDecodeError("Extra data", text, len(text) - len(rest))
    return value


def _is_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
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
    """The value with U+FFFD for each lone surrogate, and their number; ValueError when that makes two keys equal."""
    replaced = 0

    def fixed(node: Any) -> Any:
        nonlocal replaced
        if isinstance(node, str):
            text, count = re.subn(_SURROGATE, REPLACEMENT, node)
            replaced += count
            return text
        if isinstance(node, dict):
            return _object([(fixed(key), fixed(member)) for key, member in node.items()])
        return [fixed(member) for member in node] if isinstance(node, list | tuple) else node

    return fixed(value), replaced


# --- saying what is wrong ---------------------------------------------------------------------------------------------

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
    found = shown(rest.split("\n", 1)[0], 20)
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
        return "this is not how JSON writes a number"
    if rest[0] in '{["' or rest[0].isdigit():
        return "two JSON values, only one is allowed"
    return f"expected nothing after the JSON value, found {shown(rest.splitlines()[0], 20)}"


def _broken_rule(error: Exception, text: str, max_depth: int, source: str) -> Unreadable:
    """What `error` means, at the first place in `text` where that is so."""
    match error:
        case _DuplicateKey(key=key):
            reason, index = str(error), _repetition_of(key, text)
        case _NotANumber(token=token):
            reason, index = str(error), _place_of(re.escape(token), text)
        case _TooDeep() | RecursionError():
            index = _opening_below(max_depth, text)
            reason = f"nested deeper than {max_depth}" if index else "nested too deeply for the stack that is left"
        case _:
            reason = f"a number of more than {MAX_DIGITS:,} digits"
            index = _place_of(f"[-+.eE0-9]{{{MAX_DIGITS + 1},}}", text)
    return Unreadable(reason, _mark(text, index, source))


def _place_of(pattern: str, text: str) -> int:
    """Where the first word or number outside of strings begins that is all `pattern`."""
    before = rf'(?:{_STRING}|[^"\w.+-]++|(?!(?:{pattern})(?![\w.+-]))[\w.+-]++)*+'
    found = re.match(before, text, re.DOTALL)
    return found.end() if found else 0


def _opening_below(depth: int, text: str) -> int:
    """Where the first bracket opens that is nested deeper than `depth`."""
    open_brackets = 0
    for found in _each(_BRACKET, text):
        open_brackets += 1 if found[1] in "[{" else -1
        if open_brackets > depth:
            return found.start(1)
    return 0


def _repetition_of(key: str, text: str) -> int:
    """Where an object first has `key` for the second time."""
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
    """Matches without a gap: after the first failure, trying every other place would take time squared."""
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


def _dumped_fast(data: Any) -> str | None:
    """What orjson makes of it in a tenth of the time; None where it refuses, or would be more generous than we are."""
    import orjson  # whoever only reads JSON does not load it

    try:
        written = orjson.dumps(data, option=orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS)
    except TypeError:  # also for a lone surrogate and for an integer of more than 64 bits
        return None
    # NaN and the infinities become null as well.
    return None if b"null" in written else written.decode()


def _check_keys(value: Any) -> None:
    """The encoder would turn other keys into text, and so make them equal to keys that are."""
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
