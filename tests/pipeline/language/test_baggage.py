"""Baggage: what a step may claim, what becomes of it, and that nothing durable ever changes."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.core.formats import strict_json
from ductile.pipeline.language.baggage import (
    MOST_BYTES,
    Accumulated,
    BaggageRefused,
    Claims,
    ClaimsInvalid,
    accrete,
    claim,
    parse_claims,
)
from ductile.pipeline.language.paths import Scope, same

ROOTS = frozenset({"payload", "context", "item"})
BULK = {"from": "payload.m", "namespace": "w"}
OURS = "cannot be claimed: `ductile` belongs to the core; choose another first name"
BEGINS = "is not a path: it must begin with payload, context or item"
NO_PATH = (
    "is not a durable path: it must be names of letters, digits and _, joined by dots, none beginning with a digit"
)


def claimed(
    raw: dict[str, Any],
    payload: dict[str, Any],
    inherited: dict[str, Any] | None = None,
    *,
    item: Any = None,
    **more: Any,
) -> Accumulated:
    """The context after a step with `raw` as its baggage was entered."""
    inherited = inherited or {}
    return claim(parse_claims(raw, roots=ROOTS), Scope(payload, inherited, item=item), inherited, **more)


@pytest.mark.parametrize(
    ("raw", "payload", "inherited", "context"),
    [
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
    ],
)
def test_a_claim_makes_a_value_durable_beside_what_was_inherited(
    raw: dict[str, Any], payload: dict[str, Any], inherited: dict[str, Any], context: dict[str, Any]
) -> None:
    """Any JSON value, at any depth; objects grow together."""
    result = claimed(raw, payload, inherited, item={"x": "from the item"})
    assert result.values == context
    assert result.text == strict_json.dumps(context)


@pytest.mark.parametrize(
    ("raw", "payload", "inherited", "context"),
    [
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
    ],
)  # fmt: skip
def test_in_bulk_the_members_of_an_object_become_durable_under_a_name(
    raw: dict[str, Any], payload: dict[str, Any], inherited: dict[str, Any], context: dict[str, Any]
) -> None:
    """`from` and `namespace`, alone or beside single claims."""
    assert claimed(raw, payload, inherited, item={"id": 7, "more": {"x": 1}}).values == context


@pytest.mark.parametrize(
    ("known", "again"),
    [
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
    ],
)
def test_an_inherited_value_may_be_claimed_again_if_it_is_the_same(known: Any, again: Any) -> None:
    """Numbers by value; what was there first stays as it was written."""
    assert strict_json.dumps(claimed({"a": "payload.x"}, {"x": again}, {"a": known}).values) == strict_json.dumps(
        {"a": known}
    )


@pytest.mark.parametrize(
    ("known", "again", "path", "old", "new"),
    [
        (1, 2, "a", "a number", "another one"),
        (1, True, "a", "a number", "true or false"),
        (False, 0, "a", "true or false", "a number"),
        (1, "1", "a", "a number", "text"),
        ("a", "A", "a", "text", "another one"),
        (None, 0, "a", "null", "a number"),
        (0, None, "a", "a number", "null"),
        ([1], [1, 2], "a", "a list", "another one"),
        ([1], [True], "a", "a list", "another one"),
        ([{"b": 1}], [{"b": 1, "c": 2}], "a", "a list", "another one"),
        ({"b": 1}, {"b": 2}, "a.b", "a number", "another one"),
        ({"b": {"c": 1}}, {"b": {"c": 1, "d": 1, "e": 1} | {"c": 2}}, "a.b.c", "a number", "another one"),
        ({"b": 1}, 1, "a", "an object", "a number"),
        ({}, None, "a", "an object", "null"),
        ({}, [], "a", "an object", "a list"),
        (1, {"b": 1}, "a", "a number", "an object"),
        ({"b": 1}, {"b": {"c": 1}}, "a.b", "a number", "an object"),
        ({"b": {"c": 1}}, {"b": 1}, "a.b", "an object", "a number"),
    ],
)
def test_an_inherited_value_is_never_changed(known: Any, again: Any, path: str, old: str, new: str) -> None:
    """Neither its value nor its kind, at any depth; the refusal names the path and shows no value."""
    with pytest.raises(BaggageRefused) as refused:
        claimed({"a": "payload.x"}, {"x": again}, {"a": known})
    assert str(refused.value) == (
        f"baggage path '{path}' is immutable: it came here as {old}, and this step claims {new}"
    )


@pytest.mark.parametrize(
    ("raw", "payload", "inherited", "reason"),
    [
        ({"a": "payload.x"}, {}, {}, "baggage a: payload.x is absent: payload has no 'x'"),
        ({"a.b": "payload.titel"}, {"title": 1}, {},
         "baggage a.b: payload.titel is absent: payload has no 'titel' (did you mean 'title'?)"),
        ({"a": "payload.x.y"}, {"x": [1]}, {}, "baggage a: payload.x.y is absent: payload.x is a list, not an object"),
        ({"a": "context.b"}, {"b": 1}, {}, "baggage a: context.b is absent: context has no 'b'"),
        ({"b": "payload.x", "a": "context.b"}, {"x": 1}, {}, "baggage a: context.b is absent: context has no 'b'"),
        ({"a": "item.x"}, {}, {}, "baggage a: item.x is absent: item is null, not an object"),
        ({"from": "payload.m", "namespace": "w.v"}, {}, {}, "baggage w.v: payload.m is absent: payload has no 'm'"),
        (BULK, {"m": [1]}, {}, "baggage w: `from` takes an object, and payload.m is a list"),
        (BULK, {"m": None}, {}, "baggage w: `from` takes an object, and payload.m is null"),
        (BULK, {"m": "text"}, {}, "baggage w: `from` takes an object, and payload.m is text"),
        ({"from": "item", "namespace": "w"}, {}, {}, "baggage w: `from` takes an object, and item is null"),
        ({"a.b": "payload.x"}, {"x": 1}, {"a": 1},
         "baggage path 'a' is immutable: it came here as a number, and this step claims an object"),
        (BULK, {"m": {"a": 2, "b": 2}}, {"w": {"a": 1}},
         "baggage path 'w.a' is immutable: it came here as a number, and this step claims another one"),
        ({"a": "payload.x", "a.b": "payload.y"}, {"x": 1, "y": 2}, {},
         "baggage path 'a' is claimed twice by this step, as a number and as an object"),
        ({"a": "payload.x", "a.b": "payload.y"}, {"x": {"b": 1}, "y": 2}, {},
         "baggage path 'a.b' is claimed twice by this step, as a number and as another one"),
        (BULK | {"w.a": "payload.x"}, {"m": {"a": 1}, "x": "1"}, {},
         "baggage path 'w.a' is claimed twice by this step, as text and as a number"),
    ],
)  # fmt: skip
def test_a_claim_that_cannot_be_met_is_refused_with_the_reason(
    raw: dict[str, Any], payload: dict[str, Any], inherited: dict[str, Any], reason: str
) -> None:
    """No value is made up, skipped or overwritten."""
    with pytest.raises(BaggageRefused) as refused:
        claimed(raw, payload, inherited)
    assert str(refused.value) == reason


@pytest.mark.parametrize(
    ("raw", "where", "message"),
    [
        (None, "", "expected durable paths with their sources, got null"),
        ("payload", "", "expected durable paths with their sources, got text"),
        (["payload.x"], "", "expected durable paths with their sources, got a list"),
        ({"": "payload.x"}, "", f"'' {NO_PATH}"),
        ({"a..b": "payload.x"}, "a..b", f"'a..b' {NO_PATH}"),
        ({".a": "payload.x"}, ".a", f"'.a' {NO_PATH}"),
        ({"a.": "payload.x"}, "a.", f"'a.' {NO_PATH}"),
        ({"a-b": "payload.x"}, "a-b", f"'a-b' {NO_PATH}"),
        ({"a b": "payload.x"}, "a b", f"'a b' {NO_PATH}"),
        ({"a\n": "payload.x"}, "a\n", rf"'a\n' {NO_PATH}"),
        ({"1a": "payload.x"}, "1a", f"'1a' {NO_PATH}"),
        ({"a.1": "payload.x"}, "a.1", f"'a.1' {NO_PATH}"),
        ({"größe": "payload.x"}, "größe", f"'größe' {NO_PATH}"),
        ({"a[0]": "payload.x"}, "a[0]", f"'a[0]' {NO_PATH}"),
        ({"ductile": "payload.x"}, "ductile", f"'ductile' {OURS}"),
        ({"ductile.route_depth": "payload.x"}, "ductile.route_depth", f"'ductile.route_depth' {OURS}"),
        ({".".join("a" * 33): "payload.x"}, ".".join("a" * 33), f"'{'.'.join('a' * 30)}.…' has more than 32 names"),
        ({"a": "payload"}, "a", "'payload' is all of it; name a value in it, or use `from` with `namespace`"),
        ({"a": "context"}, "a", "'context' is all of it; name a value in it, or use `from` with `namespace`"),
        ({"a": "{payload.x}"}, "a", "expected a path without braces, got '{payload.x}'"),
        ({"a": "literal"}, "a", f"'literal' {BEGINS} (did you mean 'payload.literal'?)"),
        ({"a": "config.x"}, "a", "'config.x' cannot be read here: `config` can be read only in the `if` of a step"),
        ({"a": "payload.x[0]"}, "a", "'payload.x[0]' is not a path: lists cannot be indexed; use `foreach`, or let "
         "the plugin choose"),
        ({"a": ""}, "a", "'' is not a path: a name is missing"),
        ({"a": None}, "a", "expected a path such as payload.status, got null"),
        ({"a": 3}, "a", "expected a path such as payload.status, got a number"),
        ({"a": True}, "a", "expected a path such as payload.status, got true or false"),
        ({"a": {"b": "payload.x"}}, "a", "expected a path such as payload.status, got an object"),
        ({"from": "payload"}, "from", "`namespace` is missing: name the durable path that takes what `from` brings"),
        ({"namespace": "w"}, "namespace", "`from` is missing: name the object to import, such as payload.metadata"),
        ({"from": "metadata", "namespace": "w"}, "from",
         f"'metadata' {BEGINS} (did you mean 'payload.metadata'?)"),
        ({"from": None, "namespace": "w"}, "from", "expected a path such as payload.status, got null"),
        ({"from": "context", "namespace": "w"}, "from", "'context' is durable already; `from` takes payload or item"),
        ({"from": "context.x", "namespace": "w"}, "from",
         "'context.x' is durable already; `from` takes payload or item"),
        ({"from": "payload", "namespace": ""}, "namespace", f"'' {NO_PATH}"),
        ({"from": "payload", "namespace": None}, "namespace", "expected a durable path such as web.url, got null"),
        ({"from": "payload", "namespace": "w-x"}, "namespace", f"'w-x' {NO_PATH}"),
        ({"from": "payload", "namespace": "ductile.x"}, "namespace", f"'ductile.x' {OURS}"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place_and_what_is_allowed(raw: Any, where: str, message: str) -> None:
    """At load, so that no run ever meets it."""
    with pytest.raises(ClaimsInvalid) as refused:
        parse_claims(raw, roots=ROOTS)
    assert [(complaint.path, complaint.message) for complaint in refused.value.complaints] == [(where, message)]


def test_every_mistake_is_told_at_once() -> None:
    """One round of repairs, not three."""
    with pytest.raises(ClaimsInvalid) as refused:
        parse_claims({"a": "payload.x", "b-c": "payload.x", "d": "x.y", "namespace": "ductile"}, roots=ROOTS)
    places = [complaint.path for complaint in refused.value.complaints]
    assert sorted(places) == ["b-c", "d", "namespace", "namespace"]


def test_outside_of_foreach_an_item_cannot_be_claimed() -> None:
    """The roots that are in reach are the caller's to say."""
    with pytest.raises(ClaimsInvalid, match="`item` exists only inside a step with `foreach`"):
        parse_claims({"a": "item.x"}, roots=frozenset({"payload", "context"}))


def test_the_paths_of_claims_are_told_in_the_order_of_the_text() -> None:
    """For those who check them against what plugins emit; what is imported in bulk comes last."""
    claims = parse_claims({"from": "payload.m", "namespace": "w", "a": "payload.x", "b": "context.y"}, roots=ROOTS)
    assert [str(path) for path in claims.paths()] == ["payload.x", "context.y", "payload.m"]


def test_all_claims_of_a_step_read_what_was_there_when_it_was_entered() -> None:
    """No claim sees another one."""
    with pytest.raises(BaggageRefused, match=r"^baggage b: context\.a is absent"):
        claimed({"a": "payload.x", "b": "context.a"}, {"x": 1})


def test_the_core_keeps_its_own_values_in_every_context() -> None:
    """They are replaced as a whole, counted with the rest, and left alone when none are given."""
    inherited = {"a": 1, "ductile": {"route_depth": 1, "items": [1]}}
    result = claimed({"b": "payload.x"}, {"x": 2}, inherited, control={"route_depth": 2})
    assert strict_json.loads(result.text) == result.values == {"a": 1, "b": 2, "ductile": {"route_depth": 2}}
    assert claimed({}, {}, inherited).values == inherited
    with pytest.raises(BaggageRefused, match="at most 20 fit"):
        claimed({}, {}, {}, control={"items": ["long enough"]}, most_bytes=20)


def test_what_was_inherited_is_shared_and_never_touched() -> None:
    """Other branches of the run hold the same context."""
    inherited = {"big": {"rows": [1, 2, 3]}, "web": {"url": "u"}}
    before = copy.deepcopy(inherited)
    payload = {"x": {"y": [1]}}
    result = claimed({"web.title": "payload.x", "z": "payload.x"}, payload, inherited, control={"route_depth": 1})
    assert inherited == before
    assert result.values["big"] is inherited["big"]
    assert result.values["z"] is payload["x"]
    assert payload == {"x": {"y": [1]}}


@pytest.mark.parametrize("text", ["x", "é", "🙂"])
def test_a_context_has_at_most_a_mebibyte_of_json(text: str) -> None:
    """Counted in bytes as they are stored, with all that was inherited; one byte more is refused."""
    room = MOST_BYTES - len(b'{"a":"","b":"x"}')
    fits = text * (room // len(text.encode())) + "x" * (room % len(text.encode()))
    result = claimed({"b": "payload.x"}, {"x": "x"}, {"a": fits})
    assert len(result.text.encode()) == MOST_BYTES == 1 << 20
    with pytest.raises(BaggageRefused) as refused:
        claimed({"b": "payload.x"}, {"x": "xx"}, {"a": fits})
    assert str(refused.value) == (
        "the context would have 1,048,577 bytes of JSON, at most 1,048,576 fit; "
        "claim less of it, or the name of a file that holds it"
    )


def deep(levels: int) -> Any:
    value: Any = "bottom"
    for level in range(levels):
        value = [value] if level % 2 else {"x": value}
    return value


def test_a_context_is_never_nested_too_deeply_to_be_read_again() -> None:
    """A payload may be as deep as JSON is read, and its durable path adds to that."""
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


def test_a_wide_context_is_not_a_deep_one() -> None:
    """Many values beside each other are fine."""
    wide = {"x": [{"n": number} for number in range(1000)]}
    assert claimed({"a": "payload.x"}, wide).values == {"a": wide["x"]}


def test_a_step_without_claims_has_a_context_of_its_own() -> None:
    """Equal to the inherited one, and not the same object."""
    inherited = {"a": 1}
    result = claim(Claims(), Scope({}, inherited), inherited)
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


def leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every path in `value` that ends at something else than an object with members."""
    if isinstance(value, dict) and value:
        return [leaf for name, member in value.items() for leaf in leaves(member, (*path, name))]
    return [(path, value)]


def at(value: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        value = value[name]
    return value


@given(objects, st.lists(st.tuples(st.lists(names, min_size=1, max_size=3), json_values), max_size=4))
def test_whatever_is_claimed_no_inherited_path_changes(
    inherited: dict[str, Any], claims: list[tuple[list[str], Any]]
) -> None:
    """An empty object may grow; everything else is the same before and after, and what was claimed is there."""
    before, context = copy.deepcopy(inherited), inherited
    for path, value in claims:
        try:
            context = accrete(context, tuple(path), value)
        except BaggageRefused:
            continue
        for below, leaf in leaves(value):
            assert same(at(context, (*path, *below)), leaf) or leaf == {}
    assert inherited == before
    for known, leaf in leaves(before) if before else []:
        now = at(context, known)
        assert same(now, leaf) or (leaf == {} and isinstance(now, dict))


@given(objects, st.lists(names, min_size=1, max_size=3), json_values)
def test_what_is_there_already_can_always_be_claimed_again(
    inherited: dict[str, Any], path: list[str], value: Any
) -> None:
    """Entering a step a second time with the same values gives the same context."""
    try:
        once = accrete(inherited, tuple(path), value)
    except BaggageRefused:
        return
    assert accrete(once, tuple(path), value) == once
