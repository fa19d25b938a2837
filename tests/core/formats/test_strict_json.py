"""JSON is decoded exactly and strictly, always storable, and encoded so that it can be decoded again."""

import inspect
import json
import math
import sqlite3
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ductile.core.errors import Unreadable
from ductile.core.formats.strict_json import Parsed, dumps, loads, parse

# Reading


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        ("true", True),
        ("false", False),
        ("0", 0),
        ("-0", 0),
        ("-0.0", -0.0),
        ("1e5", 100000.0),
        ("1E-2", 0.01),
        ("1e-999", 0.0),
        (str(2**53 + 1), 2**53 + 1),
        (str(2**63), 2**63),
        (str(-(2**64)), -(2**64)),
        ("9" * 400, 10**400 - 1),
        ('""', ""),
        ('"\\u0000"', "\0"),
        ('"\\ud83d\\ude00 \\/ \\u00e9"', "\N{GRINNING FACE} / é"),
        ('"\u2028\x7f\ufeff\uffff"', "\u2028\x7f\ufeff\uffff"),
        (" [ ] ", []),
        ('\r\n{"b": [1, {"a": null}], "a": {}}\n\n', {"b": [1, {"a": None}], "a": {}}),
        ('{"a": {"a": 1}, "A": 2}', {"a": {"a": 1}, "A": 2}),
    ],
)
def test_a_value_is_decoded_exactly(text: str, value: object) -> None:
    """Integers are exact at any size. Bytes and text are equivalent."""
    for content in (text, text.encode()):
        got = loads(content)
        assert got == value
        assert repr(got) == repr(value)


def test_keys_keep_their_order() -> None:
    assert list(loads(b'{"b": 1, "a": 2, "c": 3}')) == ["b", "a", "c"]


def test_a_lone_surrogate_becomes_the_replacement_character() -> None:
    """In values and keys, at any depth, and the replacements are counted."""
    text = r'{"\ud800": ["a\udc00b\ud800", "\ud83d\ude00"], "k": {"x": "\uDBFF\u0041"}}'
    expected = {"\ufffd": ["a\ufffdb\ufffd", "\N{GRINNING FACE}"], "k": {"x": "\ufffdA"}}
    assert parse(text.encode()) == Parsed(expected, replaced=4, text=text)
    assert loads(text) == expected


def test_an_escaped_backslash_is_not_a_surrogate() -> None:
    """`\\\\ud800` is a backslash and five letters."""
    assert parse(rb'"\\ud800"') == Parsed("\\ud800", replaced=0, text=r'"\\ud800"')


def test_text_with_raw_surrogates_is_made_storable() -> None:
    """Text from a file name can contain surrogates."""
    text = '{"a\udcff": "\udcff"}'
    assert parse(text) == Parsed({"a\ufffd": "\ufffd"}, replaced=2, text=text)


def test_a_replacement_that_makes_keys_equal_is_a_duplicate() -> None:
    with pytest.raises(Unreadable, match='duplicate key "\ufffd"'):
        loads(rb'{"\ud800": 1, "\ud801": 2}')


def test_a_decoded_value_can_be_stored() -> None:
    """SQLite stores and returns every decoded text unchanged."""
    value = loads(rb'["\ud800", "\u0000a", "\uffff"]')
    with sqlite3.connect(":memory:") as database:
        stored = database.execute("SELECT ?, ?, ?", value).fetchone()
    database.close()
    assert list(stored) == value


def test_an_error_has_source_position_and_reason() -> None:
    with pytest.raises(Unreadable, match=r'^stdout:3:4: duplicate key "a"$') as caught:
        loads(b'{\n  "a": 1,\n   "a": 2}', source="stdout")
    assert (caught.value.mark.line, caught.value.mark.column) == (3, 4)


def test_a_long_key_is_truncated_in_the_message() -> None:
    key = json.dumps("k" * 100_000)
    with pytest.raises(Unreadable) as caught:
        loads(f"{{{key}: 1, {key}: 2}}")
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("depth", [1, 3, 64, 200])
def test_the_caller_sets_the_maximum_depth(depth: int) -> None:
    """Exactly `max_depth` nested collections are allowed."""
    assert loads("[" * depth + "]" * depth, max_depth=depth) is not None
    with pytest.raises(Unreadable, match=f"nested deeper than {depth}"):
        loads("[" * (depth + 1) + "]" * (depth + 1), max_depth=depth)


def test_adjacent_brackets_and_brackets_in_strings_do_not_add_depth() -> None:
    assert len(loads("[" + "[]," * 200 + '"[[[[[["]', max_depth=2)) == 201


@pytest.mark.parametrize("frames_left", [30, 60, 100])
def test_a_nearly_full_stack_is_an_unreadable_text(frames_left: int) -> None:
    """The decoder never raises RecursionError."""

    def called_from(depth: int, text: str) -> str:
        if depth:
            return called_from(depth - 1, text)
        try:
            loads(text)
        except Unreadable as error:
            return error.reason
        return "a value"

    depth = sys.getrecursionlimit() - len(inspect.stack(0)) - frames_left
    assert called_from(depth, "[" * 20 + "]" * 20) in ("a value", "nested too deeply for the remaining stack")
    assert called_from(depth, "[" * 100_000) == "nested deeper than 64"


def test_exactly_the_maximum_number_of_values_is_decoded() -> None:
    """A million values, including the list itself. Commas in strings do not count."""
    assert len(loads("[" + "0," * 999_998 + "0]")) == 999_999
    assert loads('"' + "," * 1_000_001 + '"') == "," * 1_000_001
    with pytest.raises(Unreadable, match="more than 1,000,000 values"):
        loads("[" + "0," * 1_000_000 + "0]")


FRAGMENTS = [
    *("{", "}", "[", "]", ",", ":", '"a"', '"a":', '"', "\\", "\\u", "d800", "0", "-", "1e", "999", ".", "NaN"),
    *("Infinity", "true", "null", " ", "\n", "\t", "\x00", "é", "\ufeff", "//", "'"),
]
FRAGMENTED = st.lists(st.sampled_from(FRAGMENTS), max_size=20).map(lambda parts: "".join(parts).encode())


@settings(deadline=None)
@given(st.binary(max_size=40) | FRAGMENTED)
def test_any_input_is_decoded_or_refused(content: bytes) -> None:
    """The only error is `Unreadable`, with a position in or right after the text."""
    try:
        value = loads(content, source="f")
    except Unreadable as error:
        refused = error
    else:
        assert dumps(value) == dumps(json.loads(content))
        assert loads(dumps(value)) == value
        return
    assert 1 <= refused.mark.line <= content.count(b"\n") + 1
    assert 1 <= refused.mark.column <= len(content) + 1
    assert refused.reason


# Writing

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
SCALAR = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
DATA = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)


@settings(deadline=None)
@given(DATA)
def test_encoded_data_is_decoded_to_the_same_data(data: Any) -> None:
    text = dumps(data)
    assert repr(loads(text.encode())) == repr(data)


@settings(deadline=None)
@given(st.text() | st.lists(st.text(), max_size=3))
def test_encoded_text_has_no_lone_surrogates(data: Any) -> None:
    assert loads(dumps(data).encode()) is not None


def test_json_is_encoded_compactly_without_ascii_escapes() -> None:
    """Tuples become lists; big integers are exact."""
    assert dumps({"a": (1, 2.5, None), "é": "\N{GRINNING FACE}\n", "n": 2**70}) == (
        '{"a":[1,2.5,null],"é":"\N{GRINNING FACE}\\n","n":1180591620717411303424}'
    )


def test_a_lone_surrogate_is_replaced_when_encoding() -> None:
    """In values and keys. A replacement that makes two keys equal is refused."""
    assert dumps({"\ud800": ["a\udfff"]}) == '{"\ufffd":["a\ufffd"]}'
    with pytest.raises(ValueError, match="duplicate key"):
        dumps(dict.fromkeys(["\ud800", "\ud801"], 1))


@pytest.mark.parametrize(
    "data", [math.nan, [math.inf], {"a": -math.inf}, [10**4300]], ids=["nan", "inf", "-inf", "digits"]
)
def test_a_number_that_json_cannot_represent_is_not_encoded(data: Any) -> None:
    with pytest.raises(ValueError, match="is not JSON"):
        dumps(data)


@pytest.mark.parametrize("data", [object(), {"a": {1}}, [b"bytes"]])
def test_a_type_that_json_does_not_have_is_not_encoded(data: Any) -> None:
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        dumps(data)


@pytest.mark.parametrize("key", [1, None, True, 1.5])
def test_only_strings_can_be_keys(key: Any) -> None:
    """`{1: …}` would otherwise be decoded as `{"1": …}`."""
    with pytest.raises(TypeError, match="a key must be text"):
        dumps([{"a": ({key: 1},)}])


def test_a_value_that_contains_itself_is_not_encoded() -> None:
    around: list[Any] = []
    around.append(around)
    with pytest.raises(ValueError, match="contains itself"):
        dumps(around)
