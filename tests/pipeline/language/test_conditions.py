"""Conditions: the answer of every operator for every kind of value, and every mistake an author can make."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.pipeline.language.conditions import (
    AllOf,
    AnyOf,
    Condition,
    ConditionInvalid,
    Not,
    Predicate,
    as_data,
    explain,
    holds,
    parse_condition,
    paths_of,
)
from ductile.pipeline.language.operators import OPERATORS
from ductile.pipeline.language.paths import ABSENT, Scope

ROOTS = frozenset({"payload", "context", "config", "item"})
TRIGGER_ROOTS = frozenset({"payload", "context"})
SHAPE = "a condition is `path`, `op` and `value`, or exactly one of `all`, `any` and `not`"
NAMES = "exists, eq, neq, in, gt, gte, lt, lte, contains, startswith, endswith, regex"


def read(raw: Any, roots: frozenset[str] = ROOTS) -> Condition:
    return parse_condition(raw, roots=roots)


def ask(op: str, value: Any, found: Any) -> bool:
    """The answer of one predicate about a payload that has `found`, or nothing, at its path."""
    raw = {"path": "payload.x", "op": op} | ({} if op == "exists" else {"value": value})
    return holds(read(raw), Scope({} if found is ABSENT else {"x": found}, {}))


def is_(value: Any, path: str = "payload.x") -> dict[str, Any]:
    return {"path": path, "op": "eq", "value": value}


YES, NO = {"path": "payload.yes", "op": "exists"}, {"path": "payload.no", "op": "exists"}


@pytest.mark.parametrize(
    ("found", "answer"),
    [
        (ABSENT, False),
        (None, True),
        (False, True),
        (0, True),
        ("", True),
        ([], True),
        ({}, True),
        ("text", True),
    ],
)
def test_exists_asks_whether_something_is_there(found: Any, answer: bool) -> None:
    """Null, false and emptiness are there."""
    assert ask("exists", None, found) is answer


@pytest.mark.parametrize(
    ("value", "found", "answer"),
    [
        ("a", "a", True),
        ("a", "A", False),
        ("a", "ab", False),
        ("", "", True),
        ("", ABSENT, False),
        ("", None, False),
        ("ä", "ä", True),
        ("é", "e\u0301", False),
        ("3", 3, False),
        (3, "3", False),
        (3, 3, True),
        (3, 3.0, True),
        (3.0, 3, True),
        (3, 3.5, False),
        (0, -0.0, True),
        (0, None, False),
        (0, ABSENT, False),
        (0, False, False),
        (0, "", False),
        (1, True, False),
        (1.0, True, False),
        (2**53 + 1, 2**53 + 1, True),
        (2**53 + 1, float(2**53), False),
        (10**30, 10**30, True),
        (1e30, 10**30, False),
        (True, True, True),
        (True, False, False),
        (True, 1, False),
        (True, "true", False),
        (False, False, True),
        (False, 0, False),
        (False, None, False),
        (False, ABSENT, False),
        ([1, 2], [1, 2.0], True),
        ([1, 2], [2, 1], False),
        ([1], [True], False),
        ([1], 1, False),
        ([], [], True),
        ([], ABSENT, False),
        ({"a": 1}, {"a": 1.0}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": None}, {"a": None}, True),
        ({"a": None}, {}, False),
        ({}, {}, True),
        ({}, [], False),
    ],
)
def test_eq_and_neq_compare_by_type_and_value(value: Any, found: Any, answer: bool) -> None:
    """Numbers by value, everything else strictly and deeply, absent as null; `neq` is always the contrary."""
    assert ask("eq", value, found) is answer
    assert ask("neq", value, found) is not answer


@pytest.mark.parametrize(
    ("value", "found", "answer"),
    [
        (["a", "b"], "b", True),
        (["a", "b"], "B", False),
        (["ab"], "a", False),
        ([1, 2], 2, True),
        ([1, 2], 2.0, True),
        ([1.0], 1, True),
        ([1], True, False),
        ([True], 1, False),
        ([True], True, True),
        (["1"], 1, False),
        ([1], "1", False),
        ([[1], [2]], [2.0], True),
        ([[1]], 1, False),
        ([{"a": 1}], {"a": 1}, True),
        ([{"a": 1}], {"a": True}, False),
        (["a"], ["a"], False),
        (["a"], None, False),
        (["a"], ABSENT, False),
        ([None], None, True),
        ([None], ABSENT, True),
        ([0, "", False], ABSENT, False),
        ([], "a", False),
        ([], ABSENT, False),
    ],
)
def test_in_asks_whether_one_of_the_list_is_the_same(value: list[Any], found: Any, answer: bool) -> None:
    """Each compared as `eq` does; absent is null here too, so only a null in the list takes it."""
    assert ask("in", value, found) is answer


@pytest.mark.parametrize(
    ("value", "found", "order"),
    [
        (30, 29, "<"),
        (30, 30, "="),
        (30, 31, ">"),
        (30, 30.0, "="),
        (30.0, 30, "="),
        (0.5, 0.25, "<"),
        (-1, -2, "<"),
        (0, -0.0, "="),
        (2**53, 2**53 + 1, ">"),
        (float(2**53), 2**53 + 1, ">"),
        (1e308, 10**400, ">"),
        (0, True, None),
        (0, "1", None),
        (0, "", None),
        (0, None, None),
        (-1, None, None),
        (-1, ABSENT, None),
        (0, [1], None),
        (0, {"a": 1}, None),
    ],
)
def test_order_is_between_numbers_only(value: Any, found: Any, order: str | None) -> None:
    """What is no number is neither more nor less nor equal: all four operators say no."""
    answers = {op: ask(op, value, found) for op in ("gt", "gte", "lt", "lte")}
    assert answers == {
        "gt": order == ">",
        "gte": order in (">", "=") if order else False,
        "lt": order == "<",
        "lte": order in ("<", "=") if order else False,
    }


@pytest.mark.parametrize(
    ("value", "found", "contains", "starts", "ends"),
    [
        ("error", "an error here", True, False, False),
        ("error", "error here", True, True, False),
        ("error", "an error", True, False, True),
        ("error", "error", True, True, True),
        ("ERROR", "An Error!", True, False, False),
        ("error", "AN ERROR", True, False, True),
        ("error", "eror", False, False, False),
        ("error longer", "error", False, False, False),
        ("", "anything", True, True, True),
        ("", "", True, True, True),
        ("a", "", False, False, False),
        ("É", "caféteria", True, False, False),
        ("straße", "STRASSE 1", True, True, False),
        ("ΣΑΣ", "σας", True, True, True),
        ("🙂", "hi 🙂", True, False, True),
        ("é", "e\u0301", False, False, False),
        (".", "abc", False, False, False),
        ("a\nb", "A\nB\n", True, True, False),
        ("", None, False, False, False),
        ("", ABSENT, False, False, False),
        ("a", ["a"], False, False, False),
        ("a", {"a": "a"}, False, False, False),
        ("1", 1, False, False, False),
        ("true", True, False, False, False),
    ],
)
def test_text_is_searched_without_regard_to_case(
    value: str, found: Any, contains: bool, starts: bool, ends: bool
) -> None:
    """In any alphabet; what is no text contains nothing, not even nothing."""
    assert (ask("contains", value, found), ask("startswith", value, found), ask("endswith", value, found)) == (
        contains,
        starts,
        ends,
    )


@pytest.mark.parametrize(
    ("pattern", "found", "answer"),
    [
        ("abc", "abc", True),
        ("abc", "abcd", False),
        ("abc", "xabc", False),
        (".*abc.*", "xxabcxx", True),
        ("ABC", "abc", False),
        ("(?i)ABC", "abc", True),
        ("(?i)É", "é", True),
        ("a|ab", "ab", True),
        ("a|ab", "abc", False),
        ("a.c", "a\nc", False),
        ("(?s)a.c", "a\nc", True),
        ("abc", "abc\n", False),
        ("^abc$", "abc", True),
        (".", "é", True),
        (".", "🙂", True),
        ("..", "e\u0301", True),
        (r"\d+", "42", True),
        (r"\d+", "٤٢", False),
        (r"\p{Greek}+", "λόγος", True),
        ("[[:alpha:]]+", "abc", True),
        ("(?P<year>[0-9]{4})-(?:0[1-9]|1[0-2])", "2026-02", True),
        ("", "", True),
        ("", "x", False),
        ("a\x00b", "a\x00b", True),
        (".*", None, False),
        (".*", ABSENT, False),
        (".*", 42, False),
        (".*", True, False),
        (".*", ["a"], False),
        (".*", {}, False),
        (".", "\ud800", True),
    ],
)
def test_regex_matches_all_of_a_text(pattern: str, found: Any, answer: bool) -> None:
    """Case counts unless the pattern says otherwise, and `.` is one character, whatever it takes to write it."""
    assert ask("regex", pattern, found) is answer


def test_a_pattern_takes_time_in_proportion_to_the_text() -> None:
    """What takes a backtracking engine for ever is answered at once."""
    assert ask("regex", "(a*)*b", "a" * 200_000) is False


@pytest.mark.parametrize(
    ("raw", "answer"),
    [
        ({"all": [YES]}, True),
        ({"all": [YES, YES]}, True),
        ({"all": [YES, NO]}, False),
        ({"all": [NO, NO]}, False),
        ({"any": [NO]}, False),
        ({"any": [NO, YES]}, True),
        ({"any": [NO, NO]}, False),
        ({"not": YES}, False),
        ({"not": NO}, True),
        ({"not": {"not": YES}}, True),
        ({"not": {"all": [YES, NO]}}, True),
        ({"not": {"any": [YES, NO]}}, False),
        ({"all": [{"any": [NO, YES]}, {"not": NO}]}, True),
        ({"any": [{"all": [YES, NO]}, {"all": [YES, YES]}]}, True),
        ({"any": [{"all": [YES, NO]}, {"not": YES}, NO]}, False),
        (is_("v", "context.deep.er"), True),
        (is_("w", "context.deep.er"), False),
        (is_("blue", "config.colour"), True),
        (is_("red", "config.color"), False),
        (is_(7, "item.id"), True),
        ({"path": "item", "op": "exists"}, True),
        ({"path": "payload.yes.more", "op": "exists"}, False),
        ({"path": "payload.yes.more", "op": "neq", "value": 1}, True),
        ({"path": "payload.list.0", "op": "exists"}, False),
    ],
)
def test_conditions_combine_and_read_every_root(raw: Any, answer: bool) -> None:
    """`all` wants every member, `any` at least one, `not` the contrary; a path through no object finds nothing."""
    scope = Scope({"yes": "y", "list": [1]}, {"deep": {"er": "v"}}, {"colour": "blue"}, {"id": 7})
    assert holds(read(raw), scope) is answer


@pytest.mark.parametrize("item", ["a", 3, None, ["x"]])
def test_an_item_that_is_no_object_can_be_asked_about_as_a_whole(item: Any) -> None:
    """A list of plain texts is the most common list."""
    condition = read({"path": "item", "op": "in", "value": [item]})
    assert holds(condition, Scope({}, {}, item=item))
    assert not holds(condition, Scope({}, {}, item="other"))


# ── mistakes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def nested(levels: int) -> dict[str, Any]:
    return YES if levels == 1 else {"not": nested(levels - 1)}


@pytest.mark.parametrize(
    ("raw", "where", "message"),
    [
        (None, "", f"expected a condition, got null; {SHAPE}"),
        ("payload.x", "", f"expected a condition, got text; {SHAPE}"),
        (True, "", f"expected a condition, got true or false; {SHAPE}"),
        ([YES], "", f"expected a condition, got a list; {SHAPE}"),
        ({}, "", f"has nothing to ask; {SHAPE}"),
        ({"all": [YES], "any": [YES]}, "", f"has all and any; {SHAPE}"),
        ({"not": YES, "path": "payload.x"}, "", f"has not and path; {SHAPE}"),
        (YES | {"all": [YES]}, "", f"has path and op and all; {SHAPE}"),
        ({"al": [YES]}, "al", f"unknown key (did you mean 'all'?); {SHAPE}"),
        (YES | {"vlaue": 1}, "vlaue", f"unknown key (did you mean 'value'?); {SHAPE}"),
        ({"and": [YES]}, "and", f"unknown key (did you mean 'all'?); {SHAPE}"),
        ({"or": [YES]}, "or", f"unknown key (did you mean 'any'?); {SHAPE}"),
        (YES | {"xyz": 1}, "xyz", f"unknown key; {SHAPE}"),
        ({"all": []}, "all", "takes a list of conditions, got an empty one"),
        ({"any": []}, "any", "takes a list of conditions, got an empty one"),
        ({"all": YES}, "all", "takes a list of conditions, got an object"),
        ({"any": None}, "any", "takes a list of conditions, got null"),
        ({"not": [YES]}, "not", "takes one condition, not a list; put `all` or `any` around the list"),
        ({"not": None}, "not", f"expected a condition, got null; {SHAPE}"),
        ({"all": [YES, "x"]}, "all[1]", f"expected a condition, got text; {SHAPE}"),
        ({"all": [YES, {"not": {"op": "exists"}}]}, "all[1].not", "`path` is missing: name the value to look at, "
         "such as payload.status"),
        ({"op": "exists"}, "", "`path` is missing: name the value to look at, such as payload.status"),
        ({"path": "payload.x"}, "", f"`op` is missing: one of {NAMES}"),
        ({"path": "payload.x", "op": "equals"}, "op", f"expected one of {NAMES}, got 'equals'"),
        ({"path": "payload.x", "op": "start_with"}, "op", f"expected one of {NAMES}, got 'start_with' (did you mean "
         "'startswith'?)"),
        ({"path": "payload.x", "op": "EQ"}, "op", f"expected one of {NAMES}, got 'EQ'"),
        ({"path": "payload.x", "op": "=="}, "op", f"expected one of {NAMES}, got '==' (did you mean 'eq'?)"),
        ({"path": "payload.x", "op": ">="}, "op", f"expected one of {NAMES}, got '>=' (did you mean 'gte'?)"),
        ({"path": "payload.x", "op": None}, "op", f"expected one of {NAMES}, got null"),
        ({"path": "payload.x", "op": ["eq"]}, "op", f"expected one of {NAMES}, got a list"),
        ({"path": "payload", "op": "exists"}, "path", "'payload' is all of it; name a value in it, such as "
         "payload.status"),
        ({"path": "status", "op": "exists"}, "path", "'status' is not a path: it must begin with payload or context "
         "(did you mean 'payload.status'?)"),
        ({"path": "payload.a[0]", "op": "exists"}, "path", "'payload.a[0]' is not a path: lists cannot be indexed; use "
         "`foreach`, or let the plugin choose"),
        ({"path": "item.x", "op": "exists"}, "path", "'item.x' cannot be read here: `item` exists only inside a step "
         "with `foreach`"),
        ({"path": "config.x", "op": "exists"}, "path", "'config.x' cannot be read here: `config` can be read only in "
         "the `if` of a step"),
        ({"path": 3, "op": "exists"}, "path", "expected a path such as payload.status, got a number"),
        (YES | {"value": 1}, "value", "`exists` asks only whether the path is there; leave `value` out"),
        (YES | {"value": None}, "value", "`exists` asks only whether the path is there; leave `value` out"),
        (is_(None), "value", "nothing can be compared with null; `exists`, or `not` around it, tells whether a value "
         "is there"),
        ({"path": "payload.x", "op": "eq"}, "", "`value` is missing: `eq` compares with a value"),
        ({"path": "payload.x", "op": "in"}, "", "`value` is missing: `in` compares with a list"),
        ({"path": "payload.x", "op": "gt"}, "", "`value` is missing: `gt` compares with a number"),
        ({"path": "payload.x", "op": "regex"}, "", "`value` is missing: `regex` compares with text"),
        (is_("a") | {"op": "in"}, "value", "`in` compares with a list, got text"),
        (is_({"a": 1}) | {"op": "in"}, "value", "`in` compares with a list, got an object"),
        (is_("3") | {"op": "gt"}, "value", "`gt` compares with a number, got text"),
        (is_(True) | {"op": "gte"}, "value", "`gte` compares with a number, got true or false"),
        (is_([1]) | {"op": "lt"}, "value", "`lt` compares with a number, got a list"),
        (is_({}) | {"op": "lte"}, "value", "`lte` compares with a number, got an object"),
        (is_(3) | {"op": "contains"}, "value", "`contains` compares with text, got a number"),
        (is_(["a"]) | {"op": "startswith"}, "value", "`startswith` compares with text, got a list"),
        (is_(True) | {"op": "endswith"}, "value", "`endswith` compares with text, got true or false"),
        (is_(3) | {"op": "regex"}, "value", "`regex` compares with text, got a number"),
        (is_("(") | {"op": "regex"}, "value", "'(' is not a regular expression in RE2's notation: missing ): ("),
        (is_("a**") | {"op": "regex"}, "value", "'a**' is not a regular expression in RE2's notation: bad repetition "
         "operator: **"),
        (is_("(?<=a)b") | {"op": "regex"}, "value", "'(?<=a)b' is not a regular expression in RE2's notation: invalid "
         "perl operator: (?<="),
        (is_(r"(a)\1") | {"op": "regex"}, "value", r"'(a)\\1' is not a regular expression in RE2's notation: invalid "
         r"escape sequence: \1"),
        (is_("a{1001}") | {"op": "regex"}, "value", "'a{1001}' is not a regular expression in RE2's notation: invalid "
         "repetition size: {1001}"),
        (nested(4), "not.not.not", "is nested more than 3 deep; flatten it, or let a plugin decide"),
        ({"all": [YES] * 20}, "", "has 21 parts, at most 20 are allowed; let a plugin decide"),
        ({"any": [{"not": YES}] * 10}, "", "has 21 parts, at most 20 are allowed; let a plugin decide"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place_and_what_is_allowed(raw: Any, where: str, message: str) -> None:
    """At load, so that no run ever meets it."""
    with pytest.raises(ConditionInvalid) as refused:
        read(raw, TRIGGER_ROOTS)
    assert [(complaint.path, complaint.message) for complaint in refused.value.complaints] == [(where, message)]


def test_a_pattern_that_is_no_unicode_text_is_refused_like_any_other() -> None:
    """Bad input gives a message, never a traceback."""
    with pytest.raises(ConditionInvalid, match=r"^value: '\\ud800' is not a regular expression"):
        read(is_("\ud800") | {"op": "regex"})


def test_a_bad_pattern_is_told_to_the_author_only(capfd: pytest.CaptureFixture[str]) -> None:
    """The engine writes nothing of its own to stderr."""
    with pytest.raises(ConditionInvalid):
        read(is_("(") | {"op": "regex"})
    assert capfd.readouterr() == ("", "")


def test_every_mistake_is_told_at_once_in_the_order_of_the_text() -> None:
    """One round of repairs, not five."""
    raw = {
        "all": [
            {"path": "payloads.x", "op": "is"},
            {"any": [is_(None), {"op": "gt", "value": "3"}]},
            {"nott": YES},
            "x",
        ]
    }
    with pytest.raises(ConditionInvalid) as refused:
        read(raw)
    places = [complaint.path for complaint in refused.value.complaints]
    assert places == ["all[0].path", "all[0].op", "all[1].any[0].value", "all[1].any[1]", "all[1].any[1].value",
                      "all[2].nott", "all[3]"]  # fmt: skip
    assert str(refused.value).count("\n") == 6


@pytest.mark.parametrize(
    "raw", [nested(3), {"all": [YES] * 19}, {"any": [{"not": YES}] * 9 + [NO]}, is_("x" * 10_000) | {"op": "contains"}]
)
def test_up_to_the_limits_everything_is_allowed(raw: Any) -> None:
    """Three levels, twenty parts."""
    assert as_data(read(raw)) == raw


# ── showing ─────────────────────────────────────────────────────────────────────────────────────────────────────────

MIXED = {
    "all": [
        is_("video", "payload.kind"),
        {"any": [{"path": "context.size", "op": "gte", "value": 30}, {"path": "payload.gone", "op": "exists"}]},
        {"not": {"path": "config.token", "op": "startswith", "value": "sk"}},
    ]
}


def test_a_condition_is_a_value() -> None:
    """Two that are written alike are equal, whatever was prepared for them."""
    assert read(MIXED) == read(MIXED)
    match read(MIXED):
        case AllOf((Predicate(op="eq"), AnyOf((Predicate(), Predicate())), Not(Predicate()))):
            pass
        case other:
            pytest.fail(f"read as {other}")


def test_a_condition_gives_back_what_it_was_read_from() -> None:
    """For `show` and for fingerprints."""
    assert as_data(read(MIXED)) == MIXED


def test_the_paths_of_a_condition_are_told_in_the_order_of_the_text() -> None:
    """For those who check them against what plugins emit."""
    expected = ["payload.kind", "context.size", "payload.gone", "config.token"]
    assert [str(path) for path in paths_of(read(MIXED))] == expected


def test_an_explanation_has_every_predicate_with_what_it_found() -> None:
    """Also those that did not decide; what is absent has no `found`, and configuration is never shown."""
    scope = Scope({"kind": "audio"}, {"size": None}, {"token": "sk-123456"})
    assert explain(read(MIXED), scope) == [
        {"path": "payload.kind", "op": "eq", "value": "video", "found": "audio", "holds": False},
        {"path": "context.size", "op": "gte", "value": 30, "found": None, "holds": False},
        {"path": "payload.gone", "op": "exists", "holds": False},
        {"path": "config.token", "op": "startswith", "value": "sk", "found": "***", "holds": True},
    ]


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (3, 3),
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 200 + "…"),
        ([1, "a", None], [1, "a", None]),
        ([[1, 2], {"a": 1}], ["… (2 members)", "… (1 members)"]),
        ({"a": "y" * 300, "b": {"c": 1}, "d": []}, {"a": "y" * 200 + "…", "b": "… (1 members)", "d": []}),
        ({"k" * 300: 1}, {"k" * 200 + "…": 1}),
        (list(range(20)), list(range(20))),
        (list(range(21)), "… (21 members)"),
        ({str(number): number for number in range(1000)}, "… (1000 members)"),
    ],
)
def test_an_explanation_stays_small_whatever_was_found(found: Any, shown: Any) -> None:
    """The journal keeps enough to recognise a value, not the value."""
    (told,) = explain(read({"path": "payload.x", "op": "exists"}), Scope({"x": found}, {}))
    assert told["found"] == shown


# ── for all values ──────────────────────────────────────────────────────────────────────────────────────────────────

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(["a", "A", "aa", 0, 1, 1.0, True]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=8,
)
values = {
    "a value": json_values.filter(lambda value: value is not None),
    "a list": st.lists(json_values, max_size=3),
    "a number": st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    "text": st.sampled_from(["", "a", "A", "(a|b)*", ".", "é"]),
}
some_paths = st.sampled_from(["payload.x", "payload.x.y", "context.z", "config.x", "item", "item.x"])
predicates = st.sampled_from(sorted(OPERATORS)).flatmap(
    lambda op: st.fixed_dictionaries(
        {"path": some_paths, "op": st.just(op)} | ({} if op == "exists" else {"value": values[OPERATORS[op].wants]})
    )
)
members = predicates | st.builds(lambda one: {"not": one}, predicates)
conditions = (
    members
    | st.builds(lambda several: {"all": several}, st.lists(members, min_size=1, max_size=4))
    | st.builds(lambda several: {"any": several}, st.lists(members, min_size=1, max_size=4))
)
objects = st.dictionaries(st.sampled_from("xyz"), json_values, max_size=3)
scopes = st.builds(Scope, objects, objects, objects, json_values | st.just(ABSENT))


@given(conditions, scopes)
def test_every_condition_has_an_answer_for_every_scope(raw: dict[str, Any], scope: Scope) -> None:
    """It never fails, and the contrary of its contrary is itself; its explanation agrees with it."""
    condition = read(raw)
    answer = holds(condition, scope)
    assert holds(Not(condition), scope) is not answer
    assert as_data(condition) == raw
    told = [each["holds"] for each in explain(condition, scope)]
    if isinstance(condition, Predicate):
        assert told == [answer]
    elif isinstance(condition, AllOf) and all(isinstance(member, Predicate) for member in condition.members):
        assert all(told) is answer


almost_conditions = st.recursive(
    json_values | predicates,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["path", "op", "value", "all", "any", "not", "nto"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(almost_conditions)
def test_whatever_is_written_as_a_condition_is_read_or_refused(raw: Any) -> None:
    """Nothing an author writes gives anything but a condition or complaints."""
    try:
        condition = read(raw)
    except ConditionInvalid as refused:
        condition, complaints = None, refused.complaints
    if condition is None:
        assert complaints
    else:
        assert as_data(condition) == raw
