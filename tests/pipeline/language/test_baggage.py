"""Baggage claims: valid claims, their effect, and the immutability of inherited values."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.core.formats import strict_json
from ductile.pipeline.language.baggage import (
    MAX_CONTEXT_BYTES,
    Accumulated,
    BaggageRefused,
    Claims,
    ClaimsInvalid,
    apply_claims,
    parse_claims,
)
from ductile.pipeline.language.paths import Scope, json_equal
from tests.pipeline.cases import check_all

ROOTS = frozenset({"payload", "context", "item"})
BULK = {"from": "payload.m", "namespace": "w"}
RESERVED = "cannot be claimed: `ductile` is reserved; choose another first name"
STARTS_WITH = "is not a path: it must start with payload, context or item"
INVALID_PATH = (
    "is not a baggage path: use names of letters, digits and _ that do not start with a digit, separated by dots"
)


def claimed(
    raw: dict[str, Any],
    payload: dict[str, Any],
    inherited: dict[str, Any] | None = None,
    *,
    item: Any = None,
    **more: Any,
) -> Accumulated:
    """Return the context of a step with these claims."""
    inherited = inherited or {}
    return apply_claims(parse_claims(raw, roots=ROOTS), Scope(payload, inherited, item=item), inherited, **more)


CLAIMS: list[tuple[Any, ...]] = [
    ({}, {"x": 1}, {}, {}),
    ({}, {"x": 1}, {"a": 1}, {"a": 1}),
    ({"a": "payload.x"}, {"x": 1}, {}, {"a": 1}),
    ({"a.b.c": "payload.x"}, {"x": 1}, {}, {"a": {"b": {"c": 1}}}),
    ({"_a9.B_": "payload.x"}, {"x": 1}, {}, {"_a9": {"B_": 1}}),
    ({"a": "payload.x.y"}, {"x": {"y": "deep"}}, {}, {"a": "deep"}),
    ({"a": "payload.content-type"}, {"content-type": "t"}, {}, {"a": "t"}),
    ({"a": "payload.x"}, {"x": None}, {}, {"a": None}),
    ({"a": "payload.x"}, {"x": False}, {}, {"a": False}),
    ({"a": "payload.x"}, {"x": ""}, {}, {"a": ""}),
    ({"a": "payload.x"}, {"x": [1, {"b": 2}]}, {}, {"a": [1, {"b": 2}]}),
    ({"a": "payload.x"}, {"x": {"b": {"c": 1}}}, {}, {"a": {"b": {"c": 1}}}),
    ({"a": "payload.x"}, {"x": {}}, {}, {"a": {}}),
    ({"a": "payload.x"}, {"x": 10**30}, {}, {"a": 10**30}),
    ({"a": "payload.x", "b": "payload.y"}, {"x": 1, "y": 2}, {}, {"a": 1, "b": 2}),
    ({"a.b": "payload.x", "a.c": "payload.y"}, {"x": 1, "y": 2}, {}, {"a": {"b": 1, "c": 2}}),
    ({"a": "context.b"}, {}, {"b": 1}, {"b": 1, "a": 1}),
    ({"a.c": "context.a.b"}, {}, {"a": {"b": 1}}, {"a": {"b": 1, "c": 1}}),
    ({"a": "item.x"}, {}, {}, {"a": "from the item"}),
    ({"a": "payload.x"}, {"x": 1}, {"b": 2}, {"b": 2, "a": 1}),
    ({"a.c": "payload.x"}, {"x": 1}, {"a": {"b": 2}}, {"a": {"b": 2, "c": 1}}),
    ({"a": "payload.x"}, {"x": {"c": 1}}, {"a": {"b": 2}}, {"a": {"b": 2, "c": 1}}),
    ({"a": "payload.x"}, {"x": {"b": {"d": 1}}}, {"a": {"b": {"c": 2}}}, {"a": {"b": {"c": 2, "d": 1}}}),
    ({"a": "payload.x"}, {"x": {}}, {"a": {"b": 2}}, {"a": {"b": 2}}),
    ({"a.b": "payload.x"}, {"x": 1}, {"a": {}}, {"a": {"b": 1}}),
    ({"a": "payload.x", "a.c": "payload.y"}, {"x": {"b": 1}, "y": 2}, {}, {"a": {"b": 1, "c": 2}}),
    ({"a.c": "payload.y", "a": "payload.x"}, {"x": {"b": 1}, "y": 2}, {}, {"a": {"c": 2, "b": 1}}),
    ({"a": "payload.x", "a.b": "payload.x.b"}, {"x": {"b": 1}}, {}, {"a": {"b": 1}}),
    ({"from.x": "payload.x"}, {"x": 1}, {}, {"from": {"x": 1}}),
    ({"x.ductile": "payload.x"}, {"x": 1}, {}, {"x": {"ductile": 1}}),
    ({"ductile_x": "payload.x"}, {"x": 1}, {}, {"ductile_x": 1}),
]


def test_a_claim_adds_a_value_to_the_inherited_context() -> None:
    """Any JSON value, at any depth. Objects are merged."""

    def check(raw: dict[str, Any], payload: dict[str, Any], inherited: dict[str, Any], context: dict[str, Any]) -> None:
        result = claimed(raw, payload, inherited, item={"x": "from the item"})
        assert result.values == context
        assert result.text == strict_json.dumps(context)

    check_all(CLAIMS, check)


BULK_CLAIMS: list[tuple[Any, ...]] = [
    (BULK, {"m": {"a": 1, "b": 2}}, {}, {"w": {"a": 1, "b": 2}}),
    ({"from": "payload.m", "namespace": "w.v"}, {"m": {"a": 1}}, {}, {"w": {"v": {"a": 1}}}),
    ({"from": "payload", "namespace": "w"}, {"a": 1, "b": {"c": 2}}, {}, {"w": {"a": 1, "b": {"c": 2}}}),
    ({"namespace": "w", "from": "payload"}, {"a": 1}, {}, {"w": {"a": 1}}),
    ({"from": "item", "namespace": "w"}, {}, {}, {"w": {"id": 7, "more": {"x": 1}}}),
    ({"from": "item.more", "namespace": "w"}, {}, {}, {"w": {"x": 1}}),
    (BULK, {"m": {}}, {}, {"w": {}}),
    (BULK, {"m": {"a.b": 1, "ductile": 2}}, {}, {"w": {"a.b": 1, "ductile": 2}}),
    (BULK, {"m": {"b": 2}}, {"w": {"a": 1}}, {"w": {"a": 1, "b": 2}}),
    (BULK, {"m": {"a": 1.0}}, {"w": {"a": 1}}, {"w": {"a": 1}}),
    (BULK | {"a": "payload.x"}, {"m": {"b": 2}, "x": 1}, {}, {"a": 1, "w": {"b": 2}}),
    (BULK | {"w.x": "payload.x"}, {"m": {"b": 2}, "x": 1}, {}, {"w": {"x": 1, "b": 2}}),
]  # fmt: skip


def test_a_bulk_claim_copies_all_members_of_an_object() -> None:
    """`from` and `namespace`, alone or with single claims."""

    def check(raw: dict[str, Any], payload: dict[str, Any], inherited: dict[str, Any], context: dict[str, Any]) -> None:
        assert claimed(raw, payload, inherited, item={"id": 7, "more": {"x": 1}}).values == context

    check_all(BULK_CLAIMS, check)


EQUAL_VALUES: list[tuple[Any, ...]] = [
    (1, 1),
    (3, 3.0),
    (3.0, 3),
    (None, None),
    (True, True),
    ("text", "text"),
    ([1, 2], [1.0, 2]),
    ([], []),
    ({"a": [1]}, {"a": [1.0]}),
    ({"a": 1, "b": 2}, {"a": 1}),
]


def test_an_inherited_value_can_be_claimed_again_if_it_is_equal() -> None:
    """Numbers compare by value. The inherited value keeps its form."""

    def check(known: Any, again: Any) -> None:
        assert strict_json.dumps(claimed({"a": "payload.x"}, {"x": again}, {"a": known}).values) == strict_json.dumps(
            {"a": known}
        )

    check_all(EQUAL_VALUES, check)


CHANGED_VALUES: list[tuple[Any, ...]] = [
    (1, 2, "a", "a number", "a different value"),
    (1, True, "a", "a number", "true or false"),
    (False, 0, "a", "true or false", "a number"),
    (1, "1", "a", "a number", "text"),
    ("a", "A", "a", "text", "a different value"),
    (None, 0, "a", "null", "a number"),
    (0, None, "a", "a number", "null"),
    ([1], [1, 2], "a", "a list", "a different value"),
    ([1], [True], "a", "a list", "a different value"),
    ([{"b": 1}], [{"b": 1, "c": 2}], "a", "a list", "a different value"),
    ({"b": 1}, {"b": 2}, "a.b", "a number", "a different value"),
    ({"b": {"c": 1}}, {"b": {"c": 1, "d": 1, "e": 1} | {"c": 2}}, "a.b.c", "a number", "a different value"),
    ({"b": 1}, 1, "a", "an object", "a number"),
    ({}, None, "a", "an object", "null"),
    ({}, [], "a", "an object", "a list"),
    (1, {"b": 1}, "a", "a number", "an object"),
    ({"b": 1}, {"b": {"c": 1}}, "a.b", "a number", "an object"),
    ({"b": {"c": 1}}, {"b": 1}, "a.b", "an object", "a number"),
]


def test_an_inherited_value_is_immutable() -> None:
    """Neither value nor type changes, at any depth. The error names the path and shows no value."""

    def check(known: Any, again: Any, path: str, old: str, new: str) -> None:
        with pytest.raises(BaggageRefused) as error:
            claimed({"a": "payload.x"}, {"x": again}, {"a": known})
        assert str(error.value) == (
            f"baggage path '{path}' is immutable: it already holds {old}, and this step claims {new}"
        )

    check_all(CHANGED_VALUES, check)


FAILING_CLAIMS: list[tuple[Any, ...]] = [
    ({"a": "payload.x"}, {}, {}, "baggage a: payload.x is absent: payload has no 'x'"),
    ({"a.b": "payload.titel"}, {"title": 1}, {},
     "baggage a.b: payload.titel is absent: payload has no 'titel' (did you mean 'title'?)"),
    ({"a": "payload.x.y"}, {"x": [1]}, {}, "baggage a: payload.x.y is absent: payload.x is a list, not an object"),
    ({"a": "context.b"}, {"b": 1}, {}, "baggage a: context.b is absent: context has no 'b'"),
    ({"b": "payload.x", "a": "context.b"}, {"x": 1}, {}, "baggage a: context.b is absent: context has no 'b'"),
    ({"a": "item.x"}, {}, {}, "baggage a: item.x is absent: item is null, not an object"),
    ({"from": "payload.m", "namespace": "w.v"}, {}, {}, "baggage w.v: payload.m is absent: payload has no 'm'"),
    (BULK, {"m": [1]}, {}, "baggage w: `from` requires an object, but payload.m is a list"),
    (BULK, {"m": None}, {}, "baggage w: `from` requires an object, but payload.m is null"),
    (BULK, {"m": "text"}, {}, "baggage w: `from` requires an object, but payload.m is text"),
    ({"from": "item", "namespace": "w"}, {}, {}, "baggage w: `from` requires an object, but item is null"),
    ({"a.b": "payload.x"}, {"x": 1}, {"a": 1},
     "baggage path 'a' is immutable: it already holds a number, and this step claims an object"),
    (BULK, {"m": {"a": 2, "b": 2}}, {"w": {"a": 1}},
     "baggage path 'w.a' is immutable: it already holds a number, and this step claims a different value"),
    ({"a": "payload.x", "a.b": "payload.y"}, {"x": 1, "y": 2}, {},
     "baggage path 'a' is claimed twice by this step, as a number and as an object"),
    ({"a": "payload.x", "a.b": "payload.y"}, {"x": {"b": 1}, "y": 2}, {},
     "baggage path 'a.b' is claimed twice by this step, as a number and as a different value"),
    (BULK | {"w.a": "payload.x"}, {"m": {"a": 1}, "x": "1"}, {},
     "baggage path 'w.a' is claimed twice by this step, as text and as a number"),
]  # fmt: skip


def test_a_claim_that_fails_names_the_reason() -> None:
    """No value is defaulted, skipped or overwritten."""

    def check(raw: dict[str, Any], payload: dict[str, Any], inherited: dict[str, Any], reason: str) -> None:
        with pytest.raises(BaggageRefused) as error:
            claimed(raw, payload, inherited)
        assert str(error.value) == reason

    check_all(FAILING_CLAIMS, check)


INVALID_CLAIMS: list[tuple[Any, ...]] = [
    (None, "", "expected a mapping of baggage path to source, got null"),
    ("payload", "", "expected a mapping of baggage path to source, got text"),
    (["payload.x"], "", "expected a mapping of baggage path to source, got a list"),
    ({"": "payload.x"}, "", f"'' {INVALID_PATH}"),
    ({"a..b": "payload.x"}, "a..b", f"'a..b' {INVALID_PATH}"),
    ({".a": "payload.x"}, ".a", f"'.a' {INVALID_PATH}"),
    ({"a.": "payload.x"}, "a.", f"'a.' {INVALID_PATH}"),
    ({"a-b": "payload.x"}, "a-b", f"'a-b' {INVALID_PATH}"),
    ({"a b": "payload.x"}, "a b", f"'a b' {INVALID_PATH}"),
    ({"a\n": "payload.x"}, "a\n", rf"'a\n' {INVALID_PATH}"),
    ({"1a": "payload.x"}, "1a", f"'1a' {INVALID_PATH}"),
    ({"a.1": "payload.x"}, "a.1", f"'a.1' {INVALID_PATH}"),
    ({"größe": "payload.x"}, "größe", f"'größe' {INVALID_PATH}"),
    ({"a[0]": "payload.x"}, "a[0]", f"'a[0]' {INVALID_PATH}"),
    ({"ductile": "payload.x"}, "ductile", f"'ductile' {RESERVED}"),
    ({"ductile.route_depth": "payload.x"}, "ductile.route_depth", f"'ductile.route_depth' {RESERVED}"),
    ({".".join("a" * 33): "payload.x"}, ".".join("a" * 33), f"'{'.'.join('a' * 30)}.…' has more than 32 names"),
    ({"a": "payload"}, "a", "'payload' is the whole object; name a value inside it, or use `from` with `namespace`"),
    ({"a": "context"}, "a", "'context' is the whole object; name a value inside it, or use `from` with `namespace`"),
    ({"a": "{payload.x}"}, "a", "expected a path without braces, got '{payload.x}'"),
    ({"a": "literal"}, "a", f"'literal' {STARTS_WITH} (did you mean 'payload.literal'?)"),
    ({"a": "config.x"}, "a", "'config.x' is not available here: `config` is available only in the `if` of a step"),
    ({"a": "payload.x[0]"}, "a", "'payload.x[0]' is not a path: lists cannot be indexed; use `foreach`, or select "
     "the element in the plugin"),
    ({"a": ""}, "a", "'' is not a path: a name is missing"),
    ({"a": None}, "a", "expected a path such as payload.status, got null"),
    ({"a": 3}, "a", "expected a path such as payload.status, got a number"),
    ({"a": True}, "a", "expected a path such as payload.status, got true or false"),
    ({"a": {"b": "payload.x"}}, "a", "expected a path such as payload.status, got an object"),
    ({"from": "payload"}, "from", "`namespace` is missing: name the baggage path to import into"),
    ({"namespace": "w"}, "namespace", "`from` is missing: name the object to import, such as payload.metadata"),
    ({"from": "metadata", "namespace": "w"}, "from",
     f"'metadata' {STARTS_WITH} (did you mean 'payload.metadata'?)"),
    ({"from": None, "namespace": "w"}, "from", "expected a path such as payload.status, got null"),
    ({"from": "context", "namespace": "w"}, "from", "'context' is already baggage; `from` accepts payload or item"),
    ({"from": "context.x", "namespace": "w"}, "from",
     "'context.x' is already baggage; `from` accepts payload or item"),
    ({"from": "payload", "namespace": ""}, "namespace", f"'' {INVALID_PATH}"),
    ({"from": "payload", "namespace": None}, "namespace", "expected a baggage path such as web.url, got null"),
    ({"from": "payload", "namespace": "w-x"}, "namespace", f"'w-x' {INVALID_PATH}"),
    ({"from": "payload", "namespace": "ductile.x"}, "namespace", f"'ductile.x' {RESERVED}"),
]  # fmt: skip


def test_invalid_claims_are_rejected_with_path_and_message() -> None:
    """At load, before any run."""

    def check(raw: Any, where: str, message: str) -> None:
        with pytest.raises(ClaimsInvalid) as error:
            parse_claims(raw, roots=ROOTS)
        assert [(complaint.path, complaint.message) for complaint in error.value.complaints] == [(where, message)]

    check_all(INVALID_CLAIMS, check)


def test_all_errors_are_reported_together() -> None:
    """Not only the first one."""
    with pytest.raises(ClaimsInvalid) as error:
        parse_claims({"a": "payload.x", "b-c": "payload.x", "d": "x.y", "namespace": "ductile"}, roots=ROOTS)
    paths = [complaint.path for complaint in error.value.complaints]
    assert sorted(paths) == ["b-c", "d", "namespace", "namespace"]


def test_an_item_cannot_be_claimed_outside_of_foreach() -> None:
    """The caller passes the available roots."""
    with pytest.raises(ClaimsInvalid, match="`item` exists only inside a step with `foreach`"):
        parse_claims({"a": "item.x"}, roots=frozenset({"payload", "context"}))


def test_the_paths_of_claims_are_in_textual_order() -> None:
    """The bulk claim comes last."""
    claims = parse_claims({"from": "payload.m", "namespace": "w", "a": "payload.x", "b": "context.y"}, roots=ROOTS)
    assert [str(path) for path in claims.paths()] == ["payload.x", "context.y", "payload.m"]


def test_claims_do_not_see_each_other() -> None:
    """All claims of a step read the inherited context."""
    with pytest.raises(BaggageRefused, match=r"^baggage b: context\.a is absent"):
        claimed({"a": "payload.x", "b": "context.a"}, {"x": 1})


def test_the_reserved_key_is_replaced_as_a_whole() -> None:
    """It counts against the size limit, and stays unchanged if no new value is given."""
    inherited = {"a": 1, "ductile": {"route_depth": 1, "items": [1]}}
    result = claimed({"b": "payload.x"}, {"x": 2}, inherited, control={"route_depth": 2})
    assert strict_json.loads(result.text) == result.values == {"a": 1, "b": 2, "ductile": {"route_depth": 2}}
    assert claimed({}, {}, inherited).values == inherited
    with pytest.raises(BaggageRefused, match="the limit is 20;"):
        claimed({}, {}, {}, control={"items": ["long enough"]}, max_bytes=20)


def test_the_inherited_context_is_shared_and_not_modified() -> None:
    """Other branches of the run use the same context."""
    inherited = {"big": {"rows": [1, 2, 3]}, "web": {"url": "u"}}
    before = copy.deepcopy(inherited)
    payload = {"x": {"y": [1]}}
    result = claimed({"web.title": "payload.x", "z": "payload.x"}, payload, inherited, control={"route_depth": 1})
    assert inherited == before
    assert result.values["big"] is inherited["big"]
    assert result.values["z"] is payload["x"]
    assert payload == {"x": {"y": [1]}}


@pytest.mark.parametrize("text", ["x", "é", "🙂"])
def test_a_context_is_limited_to_one_mebibyte_of_json(text: str) -> None:
    """Counted in stored bytes, including the inherited part. One more byte is rejected."""
    available = MAX_CONTEXT_BYTES - len(b'{"a":"","b":"x"}')
    fits = text * (available // len(text.encode())) + "x" * (available % len(text.encode()))
    result = claimed({"b": "payload.x"}, {"x": "x"}, {"a": fits})
    assert len(result.text.encode()) == MAX_CONTEXT_BYTES == 1 << 20
    with pytest.raises(BaggageRefused) as error:
        claimed({"b": "payload.x"}, {"x": "xx"}, {"a": fits})
    assert str(error.value) == (
        "the context would be 1,048,577 bytes of JSON, the limit is 1,048,576; "
        "claim less data, or the name of a file that contains it"
    )


def deep(levels: int) -> Any:
    value: Any = "bottom"
    for level in range(levels):
        value = [value] if level % 2 else {"x": value}
    return value


def test_a_context_never_exceeds_the_json_depth_limit() -> None:
    """The baggage path adds to the depth of the value."""
    fits = claimed({"a.b": "payload.x"}, {"x": deep(62)})
    assert strict_json.loads(fits.text) == fits.values
    for raw, payload, control in [
        ({"a.b": "payload.x"}, {"x": deep(63)}, None),
        ({"from": "payload", "namespace": "a.b"}, {"x": deep(62)}, None),
        ({}, {}, {"items": [deep(62)]}),
    ]:
        with pytest.raises(
            BaggageRefused, match=r"^the context would be nested deeper than 64; claim the inner values"
        ):
            claimed(raw, payload, control=control)


def test_many_values_do_not_count_as_depth() -> None:
    """A list of 1000 objects is accepted."""
    wide = {"x": [{"n": number} for number in range(1000)]}
    assert claimed({"a": "payload.x"}, wide).values == {"a": wide["x"]}


def test_a_step_without_claims_gets_a_copy_of_the_context() -> None:
    """Equal to the inherited context, but not the same object."""
    inherited = {"a": 1}
    result = apply_claims(Claims(), Scope({}, inherited), inherited)
    assert result == Accumulated({"a": 1}, '{"a":1}')
    assert result.values is not inherited


# ── for all values ──────────────────────────────────────────────────────────────────────────────────────────────────

names = st.sampled_from("abc")
json_values = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 1.0, "", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(names, json_values, max_size=3)


def claim_at(path: list[str], value: Any, inherited: dict[str, Any]) -> dict[str, Any]:
    """Claim one value at a baggage path."""
    return claimed({".".join(path): "payload.x"}, {"x": value}, inherited).values


def leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Return every path in `value` that ends at a plain value, a list or an empty object."""
    if isinstance(value, dict) and value:
        return [leaf for name, member in value.items() for leaf in leaves(member, (*path, name))]
    return [(path, value)]


def at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value[name]
    return value


@given(objects, st.lists(st.tuples(st.lists(names, min_size=1, max_size=3), json_values), max_size=4))
def test_no_claim_changes_an_inherited_path(inherited: dict[str, Any], claims: list[tuple[list[str], Any]]) -> None:
    """An empty object may get members. Every other value stays the same, and the claimed value is present."""
    before, context = copy.deepcopy(inherited), inherited
    for path, value in claims:
        try:
            context = claim_at(path, value, context)
        except BaggageRefused:
            continue
        for below, leaf in leaves(value):
            assert json_equal(at(context, (*path, *below)), leaf) or leaf == {}
    assert inherited == before
    for known, leaf in leaves(before) if before else []:
        now = at(context, known)
        assert json_equal(now, leaf) or (leaf == {} and isinstance(now, dict))


@given(objects, st.lists(names, min_size=1, max_size=3), json_values)
def test_repeating_a_claim_gives_the_same_context(inherited: dict[str, Any], path: list[str], value: Any) -> None:
    """Entering a step twice with the same values is idempotent."""
    try:
        once = claim_at(path, value, inherited)
    except BaggageRefused:
        return
    assert claim_at(path, value, once) == once
