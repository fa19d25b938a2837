"""Paths: what an author may write, what is found, and which JSON values are the same."""

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
    kind_of,
    parse_path,
    same,
)

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


@pytest.mark.parametrize(
    ("text", "path"),
    [
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
    ],
)
def test_a_path_is_a_root_and_names_joined_by_dots(text: str, path: Path) -> None:
    """Any name without blanks, dots and the signs of an expression; a path is written back as it was read."""
    assert parse_path(text, roots=ROOTS) == path
    assert str(path) == text


@pytest.mark.parametrize("root", ["payload", "context", "config", "item"])
def test_a_root_may_stand_alone_where_all_of_it_is_meant(root: str) -> None:
    """`{payload}` in a template is the payload."""
    assert parse_path(root, roots=ROOTS, allow_whole=True) == Path(root)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not a path: a name is missing"),
        ("payload", "'payload' is all of it; name a value in it, such as payload.status"),
        ("context", "'context' is all of it; name a value in it, such as context.status"),
        ("payload.", "'payload.' is not a path: a name is missing beside a dot"),
        (".payload", "'.payload' is not a path: a name is missing beside a dot"),
        ("payload..x", "'payload..x' is not a path: a name is missing beside a dot"),
        ("payload.x.", "'payload.x.' is not a path: a name is missing beside a dot"),
        (
            "status",
            "'status' is not a path: it must begin with payload or context (did you mean 'payload.status'?)",
        ),
        ("env.HOME", "'env.HOME' is not a path: it must begin with payload or context"),
        ("payloads.x", "'payloads.x' is not a path: it must begin with payload or context (did you mean 'payload'?)"),
        ("Payload.x", "'Payload.x' is not a path: it must begin with payload or context (did you mean 'payload'?)"),
        ("item", "'item' cannot be read here: `item` exists only inside a step with `foreach`"),
        ("item.url", "'item.url' cannot be read here: `item` exists only inside a step with `foreach`"),
        ("config.x", "'config.x' cannot be read here: `config` can be read only in the `if` of a step"),
        ("{payload.x}", "expected a path without braces, got '{payload.x}'"),
        (" payload.x", "' payload.x' is not a path: a blank cannot be part of a name"),
        ("payload.x ", "'payload.x ' is not a path: a blank cannot be part of a name"),
        ("payload.a b", "'payload.a b' is not a path: a blank cannot be part of a name"),
        ("payload.a\n", r"'payload.a\n' is not a path: a blank cannot be part of a name"),
        ("payload.a\x1b", r"'payload.a\x1b' is not a path: '\x1b' cannot be part of a name"),
        ("payload.*", "'payload.*' is not a path: '*' cannot be part of a name"),
        ("payload.x|upper", "'payload.x|upper' is not a path: '|' cannot be part of a name"),
        ("payload.x?.y", "'payload.x?.y' is not a path: '?' cannot be part of a name"),
        ("payload.f(x)", "'payload.f(x)' is not a path: '(' cannot be part of a name"),
        ("payload.x==3", "'payload.x==3' is not a path: '=' cannot be part of a name"),
        ("payload.'x'", """"payload.'x'" is not a path: "'" cannot be part of a name"""),
        (
            "payload.items[0]",
            "'payload.items[0]' is not a path: lists cannot be indexed; use `foreach`, or let the plugin choose",
        ),
        (
            "payload[0]",
            "'payload[0]' is not a path: lists cannot be indexed; use `foreach`, or let the plugin choose",
        ),
        ("payload." + ".".join("x" * 33), f"'payload.{'.'.join('x' * 26)}.…' has more than 32 names"),
        (None, "expected a path such as payload.status, got null"),
        (3, "expected a path such as payload.status, got a number"),
        (True, "expected a path such as payload.status, got true or false"),
        (["payload.x"], "expected a path such as payload.status, got a list"),
        ({"payload": "x"}, "expected a path such as payload.status, got an object"),
    ],
)
def test_what_is_no_path_is_refused_with_the_reason(text: Any, message: str) -> None:
    """An author learns at load what would otherwise never be found."""
    with pytest.raises(PathInvalid) as refused:
        parse_path(text, roots=DATA)
    assert str(refused.value) == message
    assert [complaint.message for complaint in refused.value.complaints] == [message]


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


@pytest.mark.parametrize(
    ("text", "found"),
    [
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
    ],
)
def test_a_path_finds_the_value_or_that_nothing_is_there(text: str, found: Any) -> None:
    """A present null is a value; a list has no names; nothing of Python shows through."""
    value = SCOPE.look_up(parse_path(text, roots=ROOTS))
    assert (type(value), value) == (type(found), found)


def test_a_path_finds_values_in_any_mapping_and_does_not_copy_them() -> None:
    """What holds the configuration need not be a dict, and a big value costs nothing to find."""
    big = {"x": [1]}
    scope = Scope(MappingProxyType({"a": MappingProxyType({"b": big})}), {})
    assert scope.look_up(Path("payload", ("a", "b"))) is big


def test_outside_of_foreach_there_is_no_item() -> None:
    """Not even as null."""
    assert Scope({}, {}).look_up(Path("item")) is ABSENT
    assert Scope({}, {}).look_up(Path("item", ("x",))) is ABSENT
    assert Scope({}, {}, item=None).look_up(Path("item")) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
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
    ],
)
def test_a_required_value_that_is_absent_is_told_with_how_far_the_path_leads(text: str, reason: str) -> None:
    """The operator sees which name is wrong, and never the values."""
    path = parse_path(text, roots=ROOTS)
    with pytest.raises(PathAbsent) as absent:
        SCOPE.require(path)
    assert str(absent.value) == f"{text} is absent: {reason}"
    assert absent.value.path == path


def test_a_required_item_outside_of_foreach_says_so() -> None:
    """It is not the author's data that is missing."""
    with pytest.raises(PathAbsent, match=r"^item is absent: `item` exists only inside a step with `foreach`$"):
        Scope({}, {}).require(Path("item"))


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
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
    ],
)
def test_values_are_the_same_by_type_and_value_and_numbers_by_value(one: Any, other: Any, are_same: bool) -> None:
    """3 is 3.0, true is not 1, and so on all the way down; whichever is named first."""
    assert same(one, other) is are_same
    assert same(other, one) is are_same


@given(json_values)
def test_a_value_is_the_same_as_itself_after_it_was_stored(value: Any) -> None:
    """A value that went through the ledger still equals itself."""
    assert same(value, strict_json.loads(strict_json.dumps(value)))


def tagged(value: Any) -> Any:
    """A value that Python finds equal to another only if JSON does."""
    if isinstance(value, list):
        return [tagged(member) for member in value]
    if isinstance(value, dict):
        return {name: tagged(member) for name, member in value.items()}
    return kind_of(value), value


@given(few_values, few_values)
def test_sameness_never_crosses_from_one_kind_to_another(one: Any, other: Any) -> None:
    """Wherever in the two values it would have to happen."""
    assert same(one, other) == (tagged(one) == tagged(other))
