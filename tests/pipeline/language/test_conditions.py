"""Conditions: every operator with every type of value, and every configuration error."""

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
from tests.pipeline.cases import check_all

ROOTS = frozenset({"payload", "context", "config", "item"})
TRIGGER_ROOTS = frozenset({"payload", "context"})
SHAPE = "a condition is `path`, `op` and `value`, or exactly one of `all`, `any` and `not`"
NAMES = "exists, eq, neq, in, gt, gte, lt, lte, contains, startswith, endswith, regex"


def parse(raw: Any, roots: frozenset[str] = ROOTS) -> Condition:
    return parse_condition(raw, roots=roots)


def evaluate(op: str, value: Any, found: Any) -> bool:
    """Evaluate one predicate on a payload with `found`, or nothing, at its path."""
    raw = {"path": "payload.x", "op": op} | ({} if op == "exists" else {"value": value})
    return holds(parse(raw), Scope({} if found is ABSENT else {"x": found}, {}))


def equals(value: Any, path: str = "payload.x") -> dict[str, Any]:
    return {"path": path, "op": "eq", "value": value}


YES, NO = {"path": "payload.yes", "op": "exists"}, {"path": "payload.no", "op": "exists"}


EXISTS: list[tuple[Any, ...]] = [
    (ABSENT, False),
    (None, True),
    (False, True),
    (0, True),
    ("", True),
    ([], True),
    ({}, True),
    ("text", True),
]


def test_exists_is_true_for_every_present_value() -> None:
    """Including null, false and empty values."""

    def check(found: Any, answer: bool) -> None:
        assert evaluate("exists", None, found) is answer

    check_all(EXISTS, check)


EQUALITY: list[tuple[Any, ...]] = [
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
]


def test_eq_and_neq_compare_by_type_and_value() -> None:
    """Numbers by value, everything else strictly and deeply, absent as null. `neq` is always the opposite."""

    def check(value: Any, found: Any, answer: bool) -> None:
        assert evaluate("eq", value, found) is answer
        assert evaluate("neq", value, found) is not answer

    check_all(EQUALITY, check)


MEMBERSHIP: list[tuple[Any, ...]] = [
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
]


def test_in_is_true_if_an_element_is_equal() -> None:
    """Elements compare as in `eq`. An absent value matches only a null in the list."""

    def check(value: list[Any], found: Any, answer: bool) -> None:
        assert evaluate("in", value, found) is answer

    check_all(MEMBERSHIP, check)


ORDER: list[tuple[Any, ...]] = [
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
]


def test_order_operators_compare_only_numbers() -> None:
    """For any other type, all four operators are false."""

    def check(value: Any, found: Any, order: str | None) -> None:
        answers = {op: evaluate(op, value, found) for op in ("gt", "gte", "lt", "lte")}
        assert answers == {
            "gt": order == ">",
            "gte": order in (">", "=") if order else False,
            "lt": order == "<",
            "lte": order in ("<", "=") if order else False,
        }

    check_all(ORDER, check)


TEXT_SEARCH: list[tuple[Any, ...]] = [
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
]


def test_text_operators_ignore_case() -> None:
    """In any script. For a value that is not text, all three operators are false."""

    def check(value: str, found: Any, contains: bool, starts: bool, ends: bool) -> None:
        assert (
            evaluate("contains", value, found),
            evaluate("startswith", value, found),
            evaluate("endswith", value, found),
        ) == (
            contains,
            starts,
            ends,
        )

    check_all(TEXT_SEARCH, check)


REGEX: list[tuple[Any, ...]] = [
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
]


def test_regex_matches_the_whole_text() -> None:
    """Case-sensitive by default. `.` is one Unicode character."""

    def check(pattern: str, found: Any, answer: bool) -> None:
        assert evaluate("regex", pattern, found) is answer

    check_all(REGEX, check)


def test_a_pattern_runs_in_linear_time() -> None:
    """A pattern that would backtrack exponentially finishes immediately."""
    assert evaluate("regex", "(a*)*b", "a" * 200_000) is False


COMBINATIONS: list[tuple[Any, ...]] = [
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
    (equals("v", "context.deep.er"), True),
    (equals("w", "context.deep.er"), False),
    (equals("blue", "config.colour"), True),
    (equals("red", "config.color"), False),
    (equals(7, "item.id"), True),
    ({"path": "item", "op": "exists"}, True),
    ({"path": "payload.yes.more", "op": "exists"}, False),
    ({"path": "payload.yes.more", "op": "neq", "value": 1}, True),
    ({"path": "payload.list.0", "op": "exists"}, False),
]


def test_conditions_combine_and_read_every_root() -> None:
    """`all`, `any` and `not` are logical operators. A path through a value that is not an object finds nothing."""

    def check(raw: Any, answer: bool) -> None:
        scope = Scope({"yes": "y", "list": [1]}, {"deep": {"er": "v"}}, {"colour": "blue"}, {"id": 7})
        assert holds(parse(raw), scope) is answer

    check_all(COMBINATIONS, check)


@pytest.mark.parametrize("item", ["a", 3, None, ["x"]])
def test_an_item_that_is_not_an_object_can_be_tested(item: Any) -> None:
    """Lists of plain values are common."""
    condition = parse({"path": "item", "op": "in", "value": [item]})
    assert holds(condition, Scope({}, {}, item=item))
    assert not holds(condition, Scope({}, {}, item="other"))


# ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def nested(levels: int) -> dict[str, Any]:
    return YES if levels == 1 else {"not": nested(levels - 1)}


INVALID_CONDITIONS: list[tuple[Any, ...]] = [
    (None, "", f"expected a condition, got null; {SHAPE}"),
    ("payload.x", "", f"expected a condition, got text; {SHAPE}"),
    (True, "", f"expected a condition, got true or false; {SHAPE}"),
    ([YES], "", f"expected a condition, got a list; {SHAPE}"),
    ({}, "", f"has no keys; {SHAPE}"),
    ({"all": [YES], "any": [YES]}, "", f"has all and any; {SHAPE}"),
    ({"not": YES, "path": "payload.x"}, "", f"has not and path; {SHAPE}"),
    (YES | {"all": [YES]}, "", f"has path and op and all; {SHAPE}"),
    ({"al": [YES]}, "al", f"unknown key (did you mean 'all'?); {SHAPE}"),
    (YES | {"vlaue": 1}, "vlaue", f"unknown key (did you mean 'value'?); {SHAPE}"),
    ({"and": [YES]}, "and", f"unknown key (did you mean 'all'?); {SHAPE}"),
    ({"or": [YES]}, "or", f"unknown key (did you mean 'any'?); {SHAPE}"),
    (YES | {"xyz": 1}, "xyz", f"unknown key; {SHAPE}"),
    ({"all": []}, "all", "requires a list of conditions, got an empty list"),
    ({"any": []}, "any", "requires a list of conditions, got an empty list"),
    ({"all": YES}, "all", "requires a list of conditions, got an object"),
    ({"any": None}, "any", "requires a list of conditions, got null"),
    ({"not": [YES]}, "not", "requires one condition, not a list; wrap the list in `all` or `any`"),
    ({"not": None}, "not", f"expected a condition, got null; {SHAPE}"),
    ({"all": [YES, "x"]}, "all[1]", f"expected a condition, got text; {SHAPE}"),
    ({"all": [YES, {"not": {"op": "exists"}}]}, "all[1].not", "`path` is missing: name the value to test, "
     "such as payload.status"),
    ({"op": "exists"}, "", "`path` is missing: name the value to test, such as payload.status"),
    ({"path": "payload.x"}, "", f"`op` is missing: one of {NAMES}"),
    ({"path": "payload.x", "op": "equals"}, "op", f"expected one of {NAMES}, got 'equals' (did you mean 'eq'?)"),
    ({"path": "payload.x", "op": "start_with"}, "op", f"expected one of {NAMES}, got 'start_with' (did you mean "
     "'startswith'?)"),
    ({"path": "payload.x", "op": "EQ"}, "op", f"expected one of {NAMES}, got 'EQ'"),
    ({"path": "payload.x", "op": "=="}, "op", f"expected one of {NAMES}, got '==' (did you mean 'eq'?)"),
    ({"path": "payload.x", "op": ">="}, "op", f"expected one of {NAMES}, got '>=' (did you mean 'gte'?)"),
    ({"path": "payload.x", "op": None}, "op", f"expected one of {NAMES}, got null"),
    ({"path": "payload.x", "op": ["eq"]}, "op", f"expected one of {NAMES}, got a list"),
    ({"path": "payload", "op": "exists"}, "path", "'payload' is the whole object; name a value inside it, such as "
     "payload.status"),
    ({"path": "status", "op": "exists"}, "path", "'status' is not a path: it must start with payload or context "
     "(did you mean 'payload.status'?)"),
    ({"path": "payload.a[0]", "op": "exists"}, "path", "'payload.a[0]' is not a path: lists cannot be indexed; use "
     "`foreach`, or select the element in the plugin"),
    ({"path": "item.x", "op": "exists"}, "path", "'item.x' is not available here: `item` exists only inside a step "
     "with `foreach`"),
    ({"path": "config.x", "op": "exists"}, "path", "'config.x' is not available here: `config` is available only in "
     "the `if` of a step"),
    ({"path": 3, "op": "exists"}, "path", "expected a path such as payload.status, got a number"),
    (YES | {"value": 1}, "value", "`exists` takes no `value`; remove it"),
    (YES | {"value": None}, "value", "`exists` takes no `value`; remove it"),
    (equals(None), "value", "`value` cannot be null; to test whether a value is present, use `exists`, alone or "
     "inside `not`"),
    ({"path": "payload.x", "op": "eq"}, "", "`value` is missing: `eq` compares with a value"),
    ({"path": "payload.x", "op": "in"}, "", "`value` is missing: `in` compares with a list"),
    ({"path": "payload.x", "op": "gt"}, "", "`value` is missing: `gt` compares with a number"),
    ({"path": "payload.x", "op": "regex"}, "", "`value` is missing: `regex` compares with text"),
    (equals("a") | {"op": "in"}, "value", "`in` compares with a list, got text"),
    (equals({"a": 1}) | {"op": "in"}, "value", "`in` compares with a list, got an object"),
    (equals("3") | {"op": "gt"}, "value", "`gt` compares with a number, got text"),
    (equals(True) | {"op": "gte"}, "value", "`gte` compares with a number, got true or false"),
    (equals([1]) | {"op": "lt"}, "value", "`lt` compares with a number, got a list"),
    (equals({}) | {"op": "lte"}, "value", "`lte` compares with a number, got an object"),
    (equals(3) | {"op": "contains"}, "value", "`contains` compares with text, got a number"),
    (equals(["a"]) | {"op": "startswith"}, "value", "`startswith` compares with text, got a list"),
    (equals(True) | {"op": "endswith"}, "value", "`endswith` compares with text, got true or false"),
    (equals(3) | {"op": "regex"}, "value", "`regex` compares with text, got a number"),
    (equals("(") | {"op": "regex"}, "value", "'(' is not a valid RE2 regular expression: missing ): ("),
    (equals("a**") | {"op": "regex"}, "value", "'a**' is not a valid RE2 regular expression: bad repetition "
     "operator: **"),
    (equals("(?<=a)b") | {"op": "regex"}, "value", "'(?<=a)b' is not a valid RE2 regular expression: invalid "
     "perl operator: (?<="),
    (equals(r"(a)\1") | {"op": "regex"}, "value", r"'(a)\\1' is not a valid RE2 regular expression: invalid "
     r"escape sequence: \1"),
    (equals("a{1001}") | {"op": "regex"}, "value", "'a{1001}' is not a valid RE2 regular expression: invalid "
     "repetition size: {1001}"),
    (nested(4), "not.not.not", "is nested more than 3 levels deep; flatten it, or move the decision into a plugin"),
    ({"all": [YES] * 20}, "", "has 21 parts, the limit is 20; move the decision into a plugin"),
    ({"any": [{"not": YES}] * 10}, "", "has 21 parts, the limit is 20; move the decision into a plugin"),
]  # fmt: skip


def test_invalid_conditions_are_rejected_with_path_and_message() -> None:
    """At load, before any run."""

    def check(raw: Any, location: str, message: str) -> None:
        with pytest.raises(ConditionInvalid) as error:
            parse(raw, TRIGGER_ROOTS)
        assert [(complaint.path, complaint.message) for complaint in error.value.complaints] == [(location, message)]

    check_all(INVALID_CONDITIONS, check)


def test_a_pattern_with_a_lone_surrogate_is_rejected() -> None:
    """With a message, not with a traceback."""
    with pytest.raises(ConditionInvalid, match=r"^value: '\\ud800' is not a valid RE2 regular expression"):
        parse(equals("\ud800") | {"op": "regex"})


def test_an_invalid_pattern_writes_nothing_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    """RE2 would log errors by default."""
    with pytest.raises(ConditionInvalid):
        parse(equals("(") | {"op": "regex"})
    assert capfd.readouterr() == ("", "")


def test_all_errors_are_reported_together_in_textual_order() -> None:
    """Not only the first one."""
    raw = {
        "all": [
            {"path": "payloads.x", "op": "is"},
            {"any": [equals(None), {"op": "gt", "value": "3"}]},
            {"nott": YES},
            "x",
        ]
    }
    with pytest.raises(ConditionInvalid) as error:
        parse(raw)
    paths = [complaint.path for complaint in error.value.complaints]
    assert paths == ["all[0].path", "all[0].op", "all[1].any[0].value", "all[1].any[1]", "all[1].any[1].value",
                      "all[2].nott", "all[3]"]  # fmt: skip
    assert str(error.value).count("\n") == 6


@pytest.mark.parametrize(
    "raw",
    [nested(3), {"all": [YES] * 19}, {"any": [{"not": YES}] * 9 + [NO]}, equals("x" * 10_000) | {"op": "contains"}],
)
def test_conditions_at_the_limits_are_accepted(raw: Any) -> None:
    """Three levels, twenty parts."""
    assert as_data(parse(raw)) == raw


# ── explanations ────────────────────────────────────────────────────────────────────────────────────────────────────

MIXED = {
    "all": [
        equals("video", "payload.kind"),
        {"any": [{"path": "context.size", "op": "gte", "value": 30}, {"path": "payload.gone", "op": "exists"}]},
        {"not": {"path": "config.token", "op": "startswith", "value": "sk"}},
    ]
}


def test_equal_conditions_compare_equal() -> None:
    """The prepared checks do not count."""
    assert parse(MIXED) == parse(MIXED)
    match parse(MIXED):
        case AllOf((Predicate(op="eq"), AnyOf((Predicate(), Predicate())), Not(Predicate()))):
            pass
        case other:
            pytest.fail(f"read as {other}")


def test_a_condition_converts_back_to_its_data() -> None:
    """For `show` and for fingerprints."""
    assert as_data(parse(MIXED)) == MIXED


def test_the_paths_of_a_condition_are_in_textual_order() -> None:
    """For the checks against plugin manifests."""
    expected = ["payload.kind", "context.size", "payload.gone", "config.token"]
    assert [str(path) for path in paths_of(parse(MIXED))] == expected


def test_an_explanation_has_every_predicate_with_its_value() -> None:
    """An absent value has no `found`, and configuration is never shown."""
    scope = Scope({"kind": "audio"}, {"size": None}, {"token": "sk-123456"})
    assert explain(parse(MIXED), scope) == [
        {"path": "payload.kind", "op": "eq", "value": "video", "found": "audio", "holds": False},
        {"path": "context.size", "op": "gte", "value": 30, "found": None, "holds": False},
        {"path": "payload.gone", "op": "exists", "holds": False},
        {"path": "config.token", "op": "startswith", "value": "sk", "found": "***", "holds": True},
    ]


PREVIEWS: list[tuple[Any, ...]] = [
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
]


def test_an_explanation_shortens_large_values() -> None:
    """The journal stores a preview."""

    def check(found: Any, shown: Any) -> None:
        (explained,) = explain(parse({"path": "payload.x", "op": "exists"}), Scope({"x": found}, {}))
        assert explained["found"] == shown

    check_all(PREVIEWS, check)


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
        {"path": some_paths, "op": st.just(op)} | ({} if op == "exists" else {"value": values[OPERATORS[op].operand]})
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
def test_every_condition_evaluates_in_every_scope(raw: dict[str, Any], scope: Scope) -> None:
    """Evaluation never fails, `not` inverts the result, and the explanation agrees with it."""
    condition = parse(raw)
    answer = holds(condition, scope)
    assert holds(Not(condition), scope) is not answer
    assert as_data(condition) == raw
    explained = [each["holds"] for each in explain(condition, scope)]
    if isinstance(condition, Predicate):
        assert explained == [answer]
    elif isinstance(condition, AllOf) and all(isinstance(member, Predicate) for member in condition.members):
        assert all(explained) is answer


almost_conditions = st.recursive(
    json_values | predicates,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["path", "op", "value", "all", "any", "not", "nto"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(almost_conditions)
def test_any_data_is_either_parsed_or_rejected(raw: Any) -> None:
    """No input causes another exception."""
    try:
        condition = parse(raw)
    except ConditionInvalid as error:
        condition, complaints = None, error.complaints
    if condition is None:
        assert complaints
    else:
        assert as_data(condition) == raw
