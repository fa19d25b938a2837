"""The YAML codec: YAML 1.2 scalars, a position for every value, limits on depth, size, aliases and nodes.

Loading returns a document or raises one `Unreadable` with file, line, column and reason. Knows nothing of
configuration. It consumes parser events with an explicit stack: PyYAML's loaders recurse, and deep input would crash.
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import yaml
from attrs import evolve, frozen

from ductile.core.errors import Mark, Unreadable
from ductile.core.units import quote_text

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 100_000
MAX_ALIASES = 100
MAX_DIGITS = 4300
"""Python neither reads nor prints longer integers."""

Scalar = None | bool | int | float | str

# The fallback in Python accepts the same texts and is about ten times slower.
_PARSER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


@frozen
class YamlNode:
    """A value of a document and its position.

    `mark` is the position of the key for a member of a mapping, and of the item for a member of a list. `text` is a
    scalar as written, without quotes; string fields use it instead of the parsed value. `plain` means unquoted.
    """

    value: "Scalar | tuple[YamlNode, ...] | dict[str, YamlNode]"
    mark: Mark
    text: str = ""
    plain: bool = False

    def data(self) -> Any:
        """Convert to plain Python data: None, bool, int, float, str, list, dict."""
        if isinstance(self.value, dict):
            return {key: member.data() for key, member in self.value.items()}
        if isinstance(self.value, tuple):
            return [item.data() for item in self.value]
        return self.value

    def walk(self) -> "Iterator[tuple[str, YamlNode]]":
        """Yield this value and all values below it with their paths (`api.auth.tokens[0].token`), in text order."""
        stack = [("", self)]
        while stack:
            path, node = stack.pop()
            yield path, node
            stack.extend(reversed(list(node._members(path))))

    def _members(self, path: str) -> "Iterator[tuple[str, YamlNode]]":
        if isinstance(self.value, dict):
            for key, member in self.value.items():
                yield f"{path}.{key}" if path else key, member
        elif isinstance(self.value, tuple):
            for index, item in enumerate(self.value):
                yield f"{path}[{index}]", item


def load(content: bytes, *, source: str) -> YamlNode:
    """Load the single document in `content`. An empty document is a node with the value None."""
    text = _readable_text(content, source)
    try:
        return _Composer(source).read(_PARSER(content))
    except yaml.MarkedYAMLError as error:
        from ductile.core.formats.yaml_errors import explain_error

        raise explain_error(error, text, source) from error
    except yaml.YAMLError as error:
        raise Unreadable(f"not YAML: {error}", Mark(source, 1)) from error


# --- before parsing ---------------------------------------------------------------------------------------------------

_BYTE_ORDER_MARKS = {
    b"\xef\xbb\xbf": "starts with a byte order mark; save it as UTF-8 without one",
    b"\xff\xfe": "is UTF-16 or UTF-32; save it as UTF-8",
    b"\xfe\xff": "is UTF-16; save it as UTF-8",
    b"\x00\x00\xfe\xff": "is UTF-32; save it as UTF-8",
}
# Characters that YAML does not allow, and the three that parsers treat as line breaks and editors do not.
_CONTROLS, _SIGNS = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f", "\u2028\u2029\ufffe\uffff"
_CONTROL = re.compile(f"[{_CONTROLS}]")
_FORBIDDEN = f"[{_CONTROLS}{_SIGNS}\ud800-\udfff]"
# Rejected before parsing: libyaml compares every %TAG with all previous ones before it reports anything.
_DIRECTIVE = "^%(?:YAML|TAG)[ \t]"


def _readable_text(content: bytes, source: str) -> str:
    """Decode `content` and reject what is not safe to pass to the parser."""
    if len(content) > MAX_BYTES:
        raise Unreadable(f"is larger than {MAX_BYTES:,} bytes; split it", Mark(source, 1))
    for prefix, reason in _BYTE_ORDER_MARKS.items():
        if content.startswith(prefix):
            raise Unreadable(reason, Mark(source, 1))
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        mark = _mark_after(content[: error.start].decode(), source)
        raise Unreadable(f"byte 0x{content[error.start]:02x} is not UTF-8; save the file as UTF-8", mark) from error
    if found := _forbidden_in(text):
        code = f"\\u{ord(found[0]):04x}"
        reason = f'the raw character {code} is not allowed; in double quotes it can be written as "{code}"'
        raise Unreadable(reason, _mark_after(text[: found.start()], source))
    if "%" in text and (found := re.search(_DIRECTIVE, text.replace("\r", "\n"), re.MULTILINE)):
        from ductile.core.formats.yaml_errors import NO_DIRECTIVES

        raise Unreadable(NO_DIRECTIVES, _mark_after(text[: found.start()], source))
    return text


def _forbidden_in(text: str) -> re.Match[str] | None:
    # The full pattern is slow to compile and rarely matches. Decoded UTF-8 has no surrogates.
    is_clean = not _CONTROL.search(text) and not any(sign in text for sign in _SIGNS)
    return None if is_clean else re.search(_FORBIDDEN, text)


def _mark_after(before: str, source: str) -> Mark:
    before = before.replace("\r\n", "\n").replace("\r", "\n")
    return Mark(source, before.count("\n") + 1, len(before) - before.rfind("\n"))


# --- composing --------------------------------------------------------------------------------------------------------


class _OpenList:
    """A list whose end event has not been read."""

    def __init__(self, mark: Mark, anchor: str | None, counted_before: int) -> None:
        self.mark, self.anchor, self.counted_before = mark, anchor, counted_before
        self.height = 1
        self.items: list[YamlNode] = []

    def expects_key(self) -> bool:
        return False

    def member_mark(self, own: Mark) -> Mark:
        return own

    def add(self, node: YamlNode, height: int) -> None:
        self.items.append(node)
        self.height = max(self.height, height + 1)

    def build(self) -> YamlNode:
        return YamlNode(tuple(self.items), self.mark)


class _OpenMapping:
    """A mapping whose end event has not been read. Receives keys and values alternately."""

    def __init__(self, mark: Mark, anchor: str | None, counted_before: int) -> None:
        self.mark, self.anchor, self.counted_before = mark, anchor, counted_before
        self.height = 1
        self.members: dict[str, YamlNode] = {}
        self.inherited: dict[str, YamlNode] = {}
        self.merged_at: Mark | None = None
        self.key: YamlNode | None = None

    def expects_key(self) -> bool:
        return self.key is None

    def member_mark(self, own: Mark) -> Mark:
        return self.key.mark if self.key else own

    def add(self, node: YamlNode, height: int) -> None:
        if self.key is None:
            self.key = self._new_key(node)
            return
        if _is_merge(self.key):
            self._inherit(node)
            height -= 2 if isinstance(node.value, tuple) else 1
        else:
            self.members[self.key.text] = node
        self.height = max(self.height, height + 1)
        self.key = None

    def _new_key(self, key: YamlNode) -> YamlNode:
        if isinstance(key.value, tuple | dict):
            reason = "a key must be text, not a list or a mapping; put quotes around text with braces"
            raise Unreadable(reason, key.mark)
        if key.value is None or (key.plain and _KEYWORDS.get(key.text, key.text) is None):
            raise Unreadable("a key must be text; put quotes around a key that is empty, ~ or null", key.mark)
        if _is_merge(key):
            if self.merged_at:
                reason = f"duplicate key '<<', first on line {self.merged_at.line}; merge several with <<: [*a, *b]"
                raise Unreadable(reason, key.mark)
            self.merged_at = key.mark
        elif key.text in self.members:
            first = self.members[key.text].mark.line
            raise Unreadable(f"duplicate key {quote_text(key.text)}, first on line {first}", key.mark)
        return key

    def _inherit(self, node: YamlNode) -> None:
        for origin in node.value if isinstance(node.value, tuple) else (node,):
            if not isinstance(origin.value, dict):
                raise Unreadable(
                    "<< takes a mapping or a list of mappings; quote it if it is meant as a key", node.mark
                )
            for key, member in origin.value.items():
                self.inherited.setdefault(key, member)

    def build(self) -> YamlNode:
        return YamlNode(self.inherited | self.members, self.mark)


def _is_merge(key: YamlNode) -> bool:
    return key.plain and key.text == "<<"


@frozen
class _Anchored:
    node: YamlNode
    size: int
    height: int


class _Composer:
    """The builder of the document node from parser events. Stops at the first exceeded limit."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._open: list[_OpenList | _OpenMapping] = []
        self._anchors: dict[str, _Anchored | None] = {}
        self._root: YamlNode | None = None
        self._documents = self._nodes = self._aliases = 0

    def read(self, parser: Any) -> YamlNode:
        steps: dict[type, Callable[[Any], None]] = {
            yaml.DocumentStartEvent: self._begin_document,
            yaml.ScalarEvent: self._scalar,
            yaml.SequenceStartEvent: self._begin,
            yaml.SequenceEndEvent: self._end,
            yaml.MappingStartEvent: self._begin,
            yaml.MappingEndEvent: self._end,
            yaml.AliasEvent: self._alias,
        }
        while type(event := parser.get_event()) is not yaml.StreamEndEvent:
            if step := steps.get(type(event)):
                step(event)
        return self._root or YamlNode(None, Mark(self._source, 1), plain=True)

    def _begin_document(self, event: yaml.DocumentStartEvent) -> None:
        self._documents += 1
        if self._documents > 1:
            raise Unreadable("a second document begins here; only one is allowed", self._mark(event))

    def _scalar(self, event: yaml.ScalarEvent) -> None:
        own, text, plain = self._mark(event), event.value, event.implicit[0] and event.tag is None
        self._count(1, own)
        inside = self._open[-1] if self._open else None
        if inside and plain and event.anchor is None and inside.expects_key():
            inside.add(YamlNode(text, own, text, plain), 0)
            return
        value = _resolved(text, own) if plain else _tagged(text, event.tag, own)
        self._put(YamlNode(value, self._member_mark(own), text, plain), event.anchor, size=1, height=0)

    def _begin(self, event: yaml.CollectionStartEvent) -> None:
        own = self._mark(event)
        kind, opening = ("seq", _OpenList) if isinstance(event, yaml.SequenceStartEvent) else ("map", _OpenMapping)
        if event.tag and event.tag != _CORE_TAG + kind:
            raise _unsupported(event.tag, own)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        self._check_depth(1, own)
        self._open.append(opening(self._member_mark(own), event.anchor, self._nodes))
        self._count(1, own)

    def _end(self, _: yaml.CollectionEndEvent) -> None:
        done = self._open.pop()
        self._put(done.build(), done.anchor, size=self._nodes - done.counted_before, height=done.height)

    def _alias(self, event: yaml.AliasEvent) -> None:
        own, name = self._mark(event), quote_text(f"*{event.anchor}")
        self._aliases += 1
        if self._aliases > MAX_ALIASES:
            raise Unreadable(f"more than {MAX_ALIASES} aliases", own)
        if event.anchor not in self._anchors:
            raise Unreadable(f"{name} refers to no anchor above; quote it if it is meant as text", own)
        target = self._anchors[event.anchor]
        if target is None:
            raise Unreadable(f"{name} contains itself", own)
        self._check_depth(target.height, own)
        self._count(target.size, own)
        self._put(evolve(target.node, mark=self._member_mark(own)), None, size=target.size, height=target.height)

    def _mark(self, event: yaml.Event) -> Mark:
        start: Any = event.start_mark
        return Mark(self._source, start.line + 1, start.column + 1)

    def _member_mark(self, own: Mark) -> Mark:
        return self._open[-1].member_mark(own) if self._open else own

    def _check_depth(self, more: int, mark: Mark) -> None:
        if len(self._open) + more > MAX_DEPTH:
            raise Unreadable(f"nested deeper than {MAX_DEPTH} levels", mark)

    def _count(self, nodes: int, mark: Mark) -> None:
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise Unreadable(f"more than {MAX_NODES:,} keys and values, counting aliases with their content", mark)

    def _put(self, node: YamlNode, anchor: str | None, *, size: int, height: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = _Anchored(node, size, height)
        if self._open:
            self._open[-1].add(node, height)
        else:
            self._root = node


# --- scalars ----------------------------------------------------------------------------------------------------------

_KEYWORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile("[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
_BASES = {"0o": 8, "0x": 16}
_TOO_LARGE = 10**MAX_DIGITS
_CORE_TAG = "tag:yaml.org,2002:"
_TAGGED = {"null": type(None), "bool": bool, "int": int, "float": float, "str": str}


def _resolved(text: str, mark: Mark) -> Scalar:
    """Return the value of an unquoted scalar in YAML 1.2."""
    if text in _KEYWORDS:
        return _KEYWORDS[text]
    if text[0] not in "-+.0123456789":
        return text
    if _INTEGER.fullmatch(text):
        return _integer(text, mark)
    if _FLOAT.fullmatch(text):
        return _float(text, mark)
    if re.fullmatch(_NOT_FINITE, text):
        raise Unreadable(f"{text} is not a number that can be stored; quote it if it is meant as text", mark)
    return text


def _integer(text: str, mark: Mark) -> int:
    number = int(text, _BASES.get(text[:2], 10)) if len(text.lstrip("+-")) <= MAX_DIGITS else _TOO_LARGE
    if abs(number) >= _TOO_LARGE:
        raise Unreadable(f"a number of more than {MAX_DIGITS:,} digits; quote it if it is meant as text", mark)
    return number


def _float(text: str, mark: Mark) -> float:
    number = float(text) if len(text) <= MAX_DIGITS else math.inf
    if math.isinf(number):
        raise Unreadable(f"{quote_text(text)} is too large for a number; quote it if it is meant as text", mark)
    return number


def _tagged(text: str, tag: str | None, mark: Mark) -> Scalar:
    """Return the value of a scalar that is quoted or has a core tag."""
    if tag is None:
        return text
    kind = tag.removeprefix(_CORE_TAG)
    if tag == kind or kind not in _TAGGED:
        raise _unsupported(tag, mark)
    value = text if kind == "str" else _resolved(text, mark)
    if kind == "float" and type(value) is int:
        return _float(str(value), mark)
    if type(value) is not _TAGGED[kind]:
        raise Unreadable(f"{quote_text(text)} does not match its tag !!{kind}", mark)
    return value


def _unsupported(tag: str, mark: Mark) -> Unreadable:
    written = f"!!{tag.removeprefix(_CORE_TAG)}" if tag.startswith(_CORE_TAG) else tag
    return Unreadable(f"the tag {quote_text(written)} is not supported here; quote text that begins with '!'", mark)


# --- writing ----------------------------------------------------------------------------------------------------------

# Text that every YAML parser, 1.1 or 1.2, reads as a string.
_PLAIN = r"(?:[^\W\d]|/)(?:[\w ./@%+,=~()$!*&;<>|-]|:(?=[\w/]))*(?<! )|(?:[0-9]+(?:ms|[smhdw]|[KMG]B))+"
_OLD_BOOLEANS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))
_SURROGATE = "[\ud800-\udfff]"
_MAX_SIMPLE_KEY = 1000


def dump(data: Any) -> str:
    """Encode as block-style YAML that `load` decodes to the same data."""
    return "\n".join(_lines(data, 0)) + "\n"


def _lines(value: Any, depth: int) -> list[str]:
    if not _is_block(value):
        return _scalar_lines(value)
    if depth == MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels, which could not be read back")
    if isinstance(value, dict):
        return [line for key, member in value.items() for line in _member_lines(key, member, depth)]
    return [line for item in value for line in _item_lines(item, depth)]


def _is_block(value: Any) -> bool:
    return isinstance(value, dict | list | tuple) and bool(value)


def _member_lines(key: Any, member: Any, depth: int) -> list[str]:
    if not isinstance(key, str):
        raise TypeError(f"a key must be text, not {type(key).__name__}")
    name = key if re.fullmatch(_PLAIN, key) and key not in _KEYWORDS else _quoted(key)
    head = f"{name}:" if len(name) < _MAX_SIMPLE_KEY else f"? {name}\n:"
    lines = _lines(member, depth + 1)
    if _is_block(member):
        return [*head.split("\n"), *("  " + line for line in lines)]
    return [*f"{head} {lines[0]}".split("\n"), *lines[1:]]


def _item_lines(item: Any, depth: int) -> list[str]:
    first, *more = _lines(item, depth + 1)
    return ["- " + first, *("  " + line for line in more)] if _is_block(item) else ["- " + first, *more]


def _scalar_lines(value: Any) -> list[str]:
    match value:
        case str():
            return _text_lines(value)
        case None:
            return ["null"]
        case bool():
            return ["true" if value else "false"]
        case int() if abs(value) < _TOO_LARGE:
            return [str(int(value))]
        case float() if math.isfinite(value):
            return [repr(float(value))]
        case int() | float():
            raise ValueError("a number that is not finite or has too many digits cannot be written as YAML")
        case dict() | list() | tuple():
            return ["{}" if isinstance(value, dict) else "[]"]
    raise TypeError(f"{type(value).__name__} cannot be written as YAML")


def _text_lines(text: str) -> list[str]:
    """Encode text plain if that is safe, as a block if it has several lines, otherwise in double quotes."""
    if re.fullmatch(_PLAIN, text) and text.lower() not in _OLD_BOOLEANS:
        return [text]
    if "\n" not in text or text[0].isspace() or "\r" in text or re.search(_FORBIDDEN, text):
        return [_quoted(text)]
    body = text.removesuffix("\n")
    header = "|-" if body == text else "|+" if body.endswith("\n") else "|"
    return [header, *("  " + line if line else "" for line in body.split("\n"))]


def _quoted(text: str) -> str:
    escaped = json.dumps(re.sub(_SURROGATE, "\ufffd", text), ensure_ascii=False)
    return re.sub(_FORBIDDEN, lambda found: f"\\u{ord(found[0]):04x}", escaped)
