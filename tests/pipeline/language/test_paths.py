"""Paths: syntax, lookup, and equality of JSON values."""

from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.core.formats import strict_json
from ductile.pipeline.language.paths import (
    ABSENT,
    Path,
    PathAbsent,
    PathInvalid,
    Scope,
    describe_type,
    json_equal,
    parse_path,
)
from tests.pipeline.cases import check_all

ROOTS = frozenset({"payload", "context", "config", "item"})
DATA = frozenset({"payload", "context"})

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
few_values = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 0.0, 1.0, "", "1"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


VALID_PATHS: list[tuple[Any, ...]] = [
    ("payload.x", Path("payload", ("x",))),
    ("payload.x.y.z", Path("payload", ("x", "y", "z"))),
    ("context.origin_id", Path("context", ("origin_id",))),
    ("config.limits.max", Path("config", ("limits", "max"))),
    ("item.url", Path("item", ("url",))),
    ("item", Path("item")),
    ("payload.content-type", Path("payload", ("content-type",))),
    ("payload.@type", Path("payload", ("@type",))),
    ("payload.$ref", Path("payload", ("$ref",))),
    ("payload.dc:title", Path("payload", ("dc:title",))),
    ("payload.a/b", Path("payload", ("a/b",))),
    ("payload.cpu%", Path("payload", ("cpu%",))),
    ("payload.0", Path("payload", ("0",))),
    ("payload.größe", Path("payload", ("größe",))),
    ("payload.🙂", Path("payload", ("🙂",))),
    ("payload.payload", Path("payload", ("payload",))),
    ("payload." + ".".join("x" * 32), Path("payload", ("x",) * 32)),
]


def test_a_path_is_a_root_and_names_separated_by_dots() -> None:
    """Names may contain anything but whitespace, dots and expression characters. `str` returns the original text."""

    def check(text: str, path: Path) -> None:
        assert parse_path(text, roots=ROOTS) == path
        assert str(path) == text

    check_all(VALID_PATHS, check)


@pytest.mark.parametrize("root", ["payload", "context", "config", "item"])
def test_allow_whole_accepts_a_root_without_names(root: str) -> None:
    """`{payload}` in a template is the whole payload."""
    assert parse_path(root, roots=ROOTS, allow_whole=True) == Path(root)


INVALID_PATHS: list[tuple[Any, ...]] = [
    ("", "'' is not a path: a name is missing"),
    ("payload", "'payload' is the whole object; name a value inside it, such as payload.status"),
    ("context", "'context' is the whole object; name a value inside it, such as context.status"),
    ("payload.", "'payload.' is not a path: a name is missing next to a dot"),
    (".payload", "'.payload' is not a path: a name is missing next to a dot"),
    ("payload..x", "'payload..x' is not a path: a name is missing next to a dot"),
    ("payload.x.", "'payload.x.' is not a path: a name is missing next to a dot"),
    (
        "status",
        "'status' is not a path: it must start with payload or context (did you mean 'payload.status'?)",
    ),
    ("env.HOME", "'env.HOME' is not a path: it must start with payload or context"),
    ("payloads.x", "'payloads.x' is not a path: it must start with payload or context (did you mean 'payload'?)"),
    ("Payload.x", "'Payload.x' is not a path: it must start with payload or context (did you mean 'payload'?)"),
    ("item", "'item' is not available here: `item` exists only inside a step with `foreach`"),
    ("item.url", "'item.url' is not available here: `item` exists only inside a step with `foreach`"),
    ("config.x", "'config.x' is not available here: `config` is available only in the `if` of a step"),
    ("{payload.x}", "expected a path without braces, got '{payload.x}'"),
    (" payload.x", "' payload.x' is not a path: names cannot contain whitespace"),
    ("payload.x ", "'payload.x ' is not a path: names cannot contain whitespace"),
    ("payload.a b", "'payload.a b' is not a path: names cannot contain whitespace"),
    ("payload.a\n", r"'payload.a\n' is not a path: names cannot contain whitespace"),
    ("payload.a\x1b", r"'payload.a\x1b' is not a path: names cannot contain '\x1b'"),
    ("payload.*", "'payload.*' is not a path: names cannot contain '*'"),
    ("payload.x|upper", "'payload.x|upper' is not a path: names cannot contain '|'"),
    ("payload.x?.y", "'payload.x?.y' is not a path: names cannot contain '?'"),
    ("payload.f(x)", "'payload.f(x)' is not a path: names cannot contain '('"),
    ("payload.x==3", "'payload.x==3' is not a path: names cannot contain '='"),
    ("payload.'x'", '"payload.\'x\'" is not a path: names cannot contain "\'"'),
    (
        "payload.items[0]",
        "'payload.items[0]' is not a path: lists cannot be indexed; use `foreach`, or select the element in the plugin",
    ),
    (
        "payload[0]",
        "'payload[0]' is not a path: lists cannot be indexed; use `foreach`, or select the element in the plugin",
    ),
    ("payload." + ".".join("x" * 33), f"'payload.{'.'.join('x' * 26)}.…' has more than 32 names"),
    (None, "expected a path such as payload.status, got null"),
    (3, "expected a path such as payload.status, got a number"),
    (True, "expected a path such as payload.status, got true or false"),
    (["payload.x"], "expected a path such as payload.status, got a list"),
    ({"payload": "x"}, "expected a path such as payload.status, got an object"),
]


def test_invalid_paths_are_rejected_with_a_message() -> None:
    """At load, because such a path would never match."""

    def check(text: Any, message: str) -> None:
        with pytest.raises(PathInvalid) as error:
            parse_path(text, roots=DATA)
        assert str(error.value) == message
        assert [complaint.message for complaint in error.value.complaints] == [message]

    check_all(INVALID_PATHS, check)


SCOPE = Scope(
    payload={
        "text": "t",
        "null": None,
        "no": False,
        "zero": 0,
        "list": [{"x": 1}],
        "deep": {"er": {"est": 1}, "0": "zero"},
        "a.b": "dotted",
    },
    context={"web": {"url": "u"}},
    config={"token": "secret"},
    item={"id": 7},
)


LOOKUPS: list[tuple[Any, ...]] = [
    ("payload.text", "t"),
    ("payload.null", None),
    ("payload.no", False),
    ("payload.zero", 0),
    ("payload.list", [{"x": 1}]),
    ("payload.deep.er.est", 1),
    ("payload.deep.0", "zero"),
    ("context.web.url", "u"),
    ("config.token", "secret"),
    ("item.id", 7),
    ("item", {"id": 7}),
    ("payload.nothing", ABSENT),
    ("payload.deep.nothing.more", ABSENT),
    ("payload.list.0", ABSENT),
    ("payload.list.x", ABSENT),
    ("payload.list.0.x", ABSENT),
    ("payload.text.x", ABSENT),
    ("payload.text.0", ABSENT),
    ("payload.null.x", ABSENT),
    ("payload.zero.real", ABSENT),
    ("payload.a.b", ABSENT),
    ("context.text", ABSENT),
    ("item.id.x", ABSENT),
]


def test_a_lookup_returns_the_value_or_absent() -> None:
    """A present null is a value. Lists have no names. Python attributes are not visible."""

    def check(text: str, found: Any) -> None:
        value = SCOPE.look_up(parse_path(text, roots=ROOTS))
        assert (type(value), value) == (type(found), found)

    check_all(LOOKUPS, check)


def test_a_lookup_accepts_any_mapping_and_does_not_copy() -> None:
    """Configuration is not always a dict."""
    big = {"x": [1]}
    scope = Scope(MappingProxyType({"a": MappingProxyType({"b": big})}), {})
    assert scope.look_up(Path("payload", ("a", "b"))) is big


def test_there_is_no_item_outside_of_foreach() -> None:
    """It is absent, not null."""
    assert Scope({}, {}).look_up(Path("item")) is ABSENT
    assert Scope({}, {}).look_up(Path("item", ("x",))) is ABSENT
    assert Scope({}, {}, item=None).look_up(Path("item")) is None


ABSENCES: list[tuple[Any, ...]] = [
    ("payload.txet", "payload has no 'txet' (did you mean 'text'?)"),
    ("payload.unheard_of", "payload has no 'unheard_of'"),
    ("payload.deep.err.est", "payload.deep has no 'err' (did you mean 'er'?)"),
    ("payload.list.x", "payload.list is a list, not an object"),
    ("payload.text.x.y", "payload.text is text, not an object"),
    ("payload.null.x", "payload.null is null, not an object"),
    ("payload.no.x", "payload.no is true or false, not an object"),
    ("payload.zero.x", "payload.zero is a number, not an object"),
    ("context.web.uri", "context.web has no 'uri' (did you mean 'url'?)"),
    ("item.url", "item has no 'url'"),
]


def test_an_absent_required_value_names_the_first_missing_part() -> None:
    """The message never shows values."""

    def check(text: str, reason: str) -> None:
        path = parse_path(text, roots=ROOTS)
        with pytest.raises(PathAbsent) as absent:
            SCOPE.require(path)
        assert str(absent.value) == f"{text} is absent: {reason}"
        assert absent.value.path == path

    check_all(ABSENCES, check)


def test_a_required_item_outside_of_foreach_names_the_cause() -> None:
    """The message mentions `foreach`, not the payload."""
    with pytest.raises(PathAbsent, match=r"^item is absent: `item` exists only inside a step with `foreach`$"):
        Scope({}, {}).require(Path("item"))


EQUALITY: list[tuple[Any, ...]] = [
    (3, 3, True),
    (3, 3.0, True),
    (0, -0.0, True),
    (1e3, 1000, True),
    (2**53 + 1, float(2**53), False),
    (10**400, 1e308, False),
    (0.1 + 0.2, 0.3, False),
    (True, True, True),
    (True, False, False),
    (True, 1, False),
    (1.0, True, False),
    (False, 0, False),
    (0, False, False),
    (None, None, True),
    (None, False, False),
    (None, 0, False),
    (None, "", False),
    ("a", "a", True),
    ("a", "A", False),
    ("3", 3, False),
    ("", [], False),
    ("é", "e\u0301", False),
    ([], [], True),
    ([], {}, False),
    ([1, 2], [1.0, 2.0], True),
    ([1, 2], [2, 1], False),
    ([1], [1, 1], False),
    ([1], [True], False),
    ([[0]], [[False]], False),
    ({}, {}, True),
    ({"a": 1, "b": 2}, {"b": 2.0, "a": 1.0}, True),
    ({"a": 1}, {"a": True}, False),
    ({"a": {"b": [1]}}, {"a": {"b": [True]}}, False),
    ({"a": None}, {}, False),
    ({"a": 1}, {"a": 1, "b": 1}, False),
    (["a"], "a", False),
]


def test_json_equality_is_by_type_and_value_and_by_value_for_numbers() -> None:
    """3 equals 3.0, true does not equal 1, at any depth and in both directions."""

    def check(one: Any, other: Any, are_same: bool) -> None:
        assert json_equal(one, other) is are_same
        assert json_equal(other, one) is are_same

    check_all(EQUALITY, check)


@given(json_values)
def test_a_value_equals_itself_after_serialisation(value: Any) -> None:
    """For all JSON values."""
    assert json_equal(value, strict_json.loads(strict_json.dumps(value)))


def tagged(value: Any) -> Any:
    """Add types to a value, so that Python equality is JSON equality."""
    if isinstance(value, list):
        return [tagged(member) for member in value]
    if isinstance(value, dict):
        return {name: tagged(member) for name, member in value.items()}
    return describe_type(value), value


@given(few_values, few_values)
def test_json_equality_never_crosses_types(one: Any, other: Any) -> None:
    """At any depth."""
    assert json_equal(one, other) == (tagged(one) == tagged(other))
