"""What a fixture's expectation takes for the same."""

from typing import Any

import pytest

from ductile.authoring.matching import mismatches


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ({"a": 1}, {"a": 1, "b": 2}),
        ({"a": {"b": []}}, {"a": {"b": [], "c": 1}}),
        ([1, {"a": 1}], [1, {"a": 1, "b": 1}]),
        ({"a": "${any}"}, {"a": None}),
        ({"a": "${text}"}, {"a": ""}),
        ({"a": "${number}"}, {"a": 1.5}),
        ({"a": "${absent}"}, {}),
        ("${contains:disk}", "the disk is full"),
        ("$${any}", "${any}"),
        (1, 1.0),
        ({}, {"a": 1}),
    ],
)
def test_what_is_written_holds(expected: Any, found: Any) -> None:
    """Members that are not written are not asked for; patterns stand for what they say."""
    assert list(mismatches(expected, found)) == []


@pytest.mark.parametrize(
    ("expected", "found", "told"),
    [
        ({"a": 1}, {}, "a: expected 1, but it is absent"),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, "a.b: expected 1, found 2"),
        ({"a": [1]}, {"a": [1, 2]}, "a: expected 1 items, found 2: [1,2]"),
        ({"a": [{"b": 1}]}, {"a": [{"b": True}]}, "a[0].b: expected 1, found true"),
        ({"a": None}, {"a": 0}, "a: expected null, found 0"),
        ({"a": "${text}"}, {"a": 1}, "a: expected ${text}, found 1"),
        ({"a": "${number}"}, {"a": True}, "a: expected ${number}, found true"),
        ({"a": "${absent}"}, {"a": None}, "a: expected to be absent, found null"),
        ({"a": "${contains:x}"}, {"a": ["x"]}, 'a: expected ${contains:x}, found ["x"]'),
        ({"a": {}}, {"a": []}, "a: expected {}, found []"),
    ],
)
def test_what_differs_is_told_with_its_place(expected: Any, found: Any, told: str) -> None:
    """One line for each difference: where, what was expected, what was found."""
    assert list(mismatches(expected, found)) == [told]


def test_an_exact_match_allows_no_more_members() -> None:
    """At every depth."""
    found = {"a": {"b": 1, "c": 2}, "d": 3}

    assert list(mismatches({"a": {"b": 1}}, found, exact=True, at="x")) == [
        "x.a.c: not expected, found 2",
        "x.d: not expected, found 3",
    ]
