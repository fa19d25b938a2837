"""YAML is decoded with a position for every value, and encoded so that it can be decoded result."""

import math
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ductile.core.errors import Unreadable
from ductile.core.formats import strict_yaml
from ductile.core.formats.strict_yaml import YamlNode, dump, load


def loaded(text: str) -> Any:
    return load(text.encode(), source="text.yaml").data()


def refusal(text: str) -> str:
    with pytest.raises(Unreadable) as caught:
        load(text.encode(), source="text.yaml")
    return caught.value.reason


def members(node: YamlNode) -> dict[str, YamlNode]:
    assert isinstance(node.value, dict)
    return node.value


def positions(text: str) -> dict[str, tuple[int, int]]:
    """Return line and column by path."""
    return {path: (node.mark.line, node.mark.column) for path, node in load(text.encode(), source="text.yaml").walk()}


# Scalars


SCALARS: list[tuple[str, object]] = [
    ("", None),
    ("~", None),
    ("null", None),
    ("NULL", None),
    ("nUll", "nUll"),
    ("true", True),
    ("False", False),
    ("TRUE", True),
    ("tRue", "tRue"),
    ("yes", "yes"),
    ("no", "no"),
    ("on", "on"),
    ("off", "off"),
    ("y", "y"),
    ("12", 12),
    ("-7", -7),
    ("+7", 7),
    ("0700", 700),
    ("0o17", 15),
    ("0x1F", 31),
    ("-0x1f", "-0x1f"),
    ("0o8", "0o8"),
    ("1_000", "1_000"),
    ("1,000", "1,000"),
    ("12:30", "12:30"),
    ("1:30:00", "1:30:00"),
    ("1.5", 1.5),
    (".5", 0.5),
    ("5.", 5.0),
    ("-1e3", -1000.0),
    ("1e3", 1000.0),
    ("1E-2", 0.01),
    ("e3", "e3"),
    (".", "."),
    ("...x", "...x"),
    ("1.2.3", "1.2.3"),
    ("2026-01-01", "2026-01-01"),
    ("2026-01-01T10:00:00Z", "2026-01-01T10:00:00Z"),
    ("5m", "5m"),
    ("=", "="),
    ("<<", "<<"),
    ("inf", "inf"),
    ("nan", "nan"),
    ("-inf", "-inf"),
    ("'12'", "12"),
    ('"true"', "true"),
    ("''", ""),
    ('"\\0"', "\0"),
    ('"\\u00e9\\U0001F600\\e"', "é\N{GRINNING FACE}\x1b"),
    ("|-\n  12", "12"),
    (">-\n  a\n  b", "a b"),
    ("!!str 12", "12"),
    ("!!str ~", "~"),
    ('!!int "12"', 12),
    ("!!float 1", 1.0),
    ("!!float 0x10", 16.0),
    ('!!bool "true"', True),
    ("!!null ''", None),
    ("!!seq [1]", [1]),
    ("!!map {a: 1}", {"a": 1}),
]


def test_scalars_follow_yaml_1_2() -> None:
    """Numbers, true, false and null are typed; ambiguous_texts, times and dates are text."""
    failures = []
    for text, value in SCALARS:
        found = loaded(f"a: {text}\n")["a"]
        if found != value or type(found) is not type(value):
            failures.append(f"{text!r}: expected {value!r}, got {found!r}")
    assert failures == []


def test_an_integer_is_exact_up_to_4300_digits() -> None:
    """Python cannot print longer ones. The limit applies in any base."""
    assert loaded("-" + "9" * 4300) == 1 - 10**4300
    assert loaded(f"{10**4299:#x}") == 10**4299
    assert "4,300 digits" in refusal("9" * 4301)
    assert "4,300 digits" in refusal(f"{10**4300:#x}")
    assert "4,300 digits" in refusal(f"{10**4300:#o}")


def test_a_scalar_keeps_its_source_text() -> None:
    """A text field gets `1.10` and `0700` as written."""
    node = members(load(b"version: 1.10\nmode: 0700\nquoted: 'on'\nbare: on\nempty:\ntagged: !!str on", source="f"))
    assert {key: (member.text, member.plain) for key, member in node.items()} == {
        "version": ("1.10", True),
        "mode": ("0700", True),
        "quoted": ("on", False),
        "bare": ("on", True),
        "empty": ("", True),
        "tagged": ("on", False),
    }
    assert node["version"].value == 1.1


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "---\n...\n"])
def test_an_empty_document_is_null(text: str) -> None:
    """The caller decides whether an empty file is an error."""
    node = load(text.encode(), source="text.yaml")
    assert node.value is None
    assert node.mark.line >= 1


# Keys


@pytest.mark.parametrize(
    "key", ["on", "yes", "no", "true", "1", "0x1f", "1.10", "2026-01-01", "12:30", ".inf", "=", "9" * 900]
)
def test_a_key_is_its_source_text(key: str) -> None:
    """`on: push` has the key `on`; a key is never a number, a date or a boolean."""
    assert loaded(f"{key}: 1") == {key: 1}
    assert loaded(f"'{key}': 1") == {key: 1}
    assert loaded(f"{{{key}: 1}}") == {key: 1}


def test_a_key_that_is_null_needs_quotes() -> None:
    """A forgotten key is more likely than a key named null."""
    assert "quotes around a key" in refusal("null: 1")
    assert loaded("'null': 1\n'': 2\n!!str ~: 3") == {"null": 1, "": 2, "~": 3}


def test_a_duplicate_key_is_refused_with_both_lines() -> None:
    with pytest.raises(Unreadable, match=r"^conf\.yaml:4:3: duplicate key 'b', first on line 2$"):
        load(b"a:\n  b: 1\n  c: 2\n  'b': 3\n", source="conf.yaml")


def test_equal_keys_in_different_mappings_are_allowed() -> None:
    assert loaded("a: {a: {a: 1}}\nb: [{a: 1}, {a: 2}]") == {"a": {"a": {"a": 1}}, "b": [{"a": 1}, {"a": 2}]}


# Positions


def test_every_value_has_its_position() -> None:
    """A member has the position of its key, a list item its own. Lines and columns count from 1."""
    text = "# c\nname: x\nlist:\n  - a: 1\n    b:\n      - 2\n  - [3, {k: 4}]\n  -\n    c: 5\n? long\n: 6\n"
    assert positions(text) == {
        "": (2, 1),
        "name": (2, 1),
        "list": (3, 1),
        "list[0]": (4, 5),
        "list[0].a": (4, 5),
        "list[0].b": (5, 5),
        "list[0].b[0]": (6, 9),
        "list[1]": (7, 5),
        "list[1][0]": (7, 6),
        "list[1][1]": (7, 9),
        "list[1][1].k": (7, 10),
        "list[2]": (9, 5),
        "list[2].c": (9, 5),
        "long": (10, 3),
    }


def test_columns_count_characters() -> None:
    """Not bytes, so that they match the columns of an editor."""
    assert positions("{é\N{GRINNING FACE}: 1, b: 2}")["b"] == (1, 9)


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_lines_are_counted_with_any_line_ending(line_end: str) -> None:
    assert positions(line_end.join(["a: 1", "", "b: 2"]))["b"] == (3, 1)
    with pytest.raises(Unreadable) as caught:
        load(line_end.join(["a: 1", "b: \x00"]).encode(), source="f")
    assert (caught.value.mark.line, caught.value.mark.column) == (2, 4)


def test_walk_follows_the_order_of_the_text() -> None:
    node = load(b"b: [1, {z: 2, y: 3}]\na: 4", source="f")
    assert [path for path, _ in node.walk()] == ["", "b", "b[0]", "b[1]", "b[1].z", "b[1].y", "a"]


# Aliases and merges


def test_an_alias_is_the_anchored_value() -> None:
    """A member with an alias has the position of its own key."""
    text = "base: &base {x: [1]}\nword: &word 0700\ncopy: *base\nlist: [*word, *base]\n"
    assert loaded(text) == {"base": {"x": [1]}, "word": 700, "copy": {"x": [1]}, "list": [700, {"x": [1]}]}
    assert positions(text)["copy"] == (3, 1)
    assert positions(text)["copy.x"] == (1, 14)
    assert positions(text)["list[1]"] == (4, 15)


def test_an_anchor_can_be_redefined() -> None:
    """An alias refers to the nearest anchor above."""
    assert loaded("- &a 1\n- *a\n- &a 2\n- *a") == [1, 1, 2, 2]


def test_keys_can_be_anchored_and_aliased() -> None:
    assert loaded("&k 12: a\nb: *k\nc: {*k : d}") == {"12": "a", "b": 12, "c": {"12": "d"}}


def test_own_keys_take_precedence_over_merged_ones() -> None:
    """At any position of `<<`. Of several merged mappings, the first one wins."""
    text = "one: &one {a: 1, b: 1}\ntwo: &two {b: 2, c: 2}\n"
    assert loaded(text + "m: {<<: *one, a: 9}")["m"] == {"a": 9, "b": 1}
    assert loaded(text + "m: {a: 9, <<: *one}")["m"] == {"a": 9, "b": 1}
    assert loaded(text + "m: {<<: [*one, *two]}")["m"] == {"a": 1, "b": 1, "c": 2}
    assert loaded("m: {<<: {a: 1}, b: 2}")["m"] == {"a": 1, "b": 2}
    assert loaded("m: {<<: []}")["m"] == {}


def test_a_merged_member_has_the_position_of_its_source() -> None:
    text = "base: &base\n  a: 1\nuse:\n  <<: *base\n  b: 2\n"
    assert positions(text)["use.a"] == (2, 3)
    assert positions(text)["use.b"] == (5, 3)


def test_a_quoted_merge_key_is_an_ordinary_key() -> None:
    assert loaded("'<<': 1") == {"<<": 1}
    assert loaded("- <<") == ["<<"]


def test_an_alias_counts_as_many_nodes_as_its_target() -> None:
    """Neither `data` nor `walk` can produce more nodes than the limit."""
    thousand = "a: &a [" + "1, " * 989 + "]\n"
    within = load((thousand + "b: [" + "*a, " * 99 + "]\n").encode(), source="f")
    assert sum(1 for _ in within.walk()) < strict_yaml.MAX_NODES
    assert "more than 100,000 keys and values" in refusal("a: &a [" + "1, " * 1010 + "]\nb: [" + "*a, " * 99 + "]\n")


def test_exactly_the_maximum_number_of_nodes_is_read() -> None:
    """100,000 keys and values, including the list itself."""
    assert len(loaded("- a\n" * 99_999)) == 99_999
    assert "more than 100,000" in refusal("- a\n" * 100_000)


def test_exactly_the_maximum_size_is_read() -> None:
    """1 MiB."""
    assert loaded("a" * strict_yaml.MAX_BYTES) == "a" * strict_yaml.MAX_BYTES
    assert "larger than 1,048,576 bytes" in refusal("a" * (strict_yaml.MAX_BYTES + 1))


# Any input

FRAGMENTS = [
    *("a", "b: ", "- ", "\n", "\n  ", "\t", "[", "]", "{", "}", ", ", ": ", "'", '"', "\\u", "d800", "\\", "&x ", "*x"),
    *("<<: ", "!!str ", "!x ", "|\n", ">-\n", "#", "%TAG ! x\n", "---\n", "...\n", "? ", "\r", "0x", "1e", "~", "é"),
    *("\u2028", "\0", "@"),
]
FRAGMENTED = st.lists(st.sampled_from(FRAGMENTS), max_size=25).map(lambda parts: "".join(parts).encode())


@settings(deadline=None)
@given(st.binary(max_size=60) | FRAGMENTED)
def test_any_input_is_decoded_or_refused(content: bytes) -> None:
    """The only error is `Unreadable`, with a position in or right after the text."""
    try:
        data = load(content, source="f").data()
    except Unreadable as error:
        refused = error
    else:
        assert loaded(dump(data)) == data
        return
    lines = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n").count(b"\n") + 1
    assert 1 <= refused.mark.line <= lines + 1
    assert refused.mark.column >= 1
    assert refused.reason


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("on: {a: 0700, b: [x, *k]}\n", "refers to no anchor above"),
        ("a: &k [1, 2]\nb: *k\n", None),
        ("a: 1\na: 2\n", "duplicate key 'a', first on line 1"),
        ("[" * 40, "nested deeper than 32 levels"),
        ("a: [1\n", "f:2:1"),
        ("a:\n\tb: 1\n", "a tab cannot indent"),
        ("a: 'b\n", "this quote is never closed"),
        ("a: b: c\n", "f:1:5"),
    ],
)
def test_the_same_rules_apply_without_libyaml(text: str, expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict_yaml, "_PARSER", yaml.SafeLoader)
    if expected is None:
        assert load(text.encode(), source="f").data() == {"a": [1, 2], "b": [1, 2]}
    else:
        with pytest.raises(Unreadable, match=expected):
            load(text.encode(), source="f")


# Writing

AWKWARD = [
    *(
        "on",
        "yes",
        "1e3",
        "0x1f",
        "0o7",
        "0700",
        "+1",
        ".5",
        "1_000",
        "12:30",
        "2026-01-01",
        "null",
        "~",
        "",
        "<<",
        "=",
    ),
    *("- a", "a: b", "a #b", "#", "? a", " a", "a ", "\n", "a\n", "a\n\n", "a\n b\n", "\na", "a\n   ", "a\r\nb", "\ta"),
    *("a\tb", "---", "'", '"', "\\", "a:", ":a", "%a", "@a", "`a`", "!a", "&a", "*a", "[a", "{a", "|", ">", "x" * 5000),
    *("\x00", "\x85", "\ufeff", "\uffff"),
]
TEXT = st.sampled_from(AWKWARD) | st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
SCALAR = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
DATA = st.recursive(
    SCALAR, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)


@settings(deadline=None)
@given(DATA)
def test_encoded_data_is_decoded_to_the_same_data(data: Any) -> None:
    result = load(dump(data).encode(), source="f").data()
    assert result == data
    assert repr(result) == repr(data)


def test_a_dump_is_block_style_with_minimal_quoting() -> None:
    """Multi-line text as a block; keys in order."""
    data = {
        "on": "push",
        "every": "5m",
        "enabled": True,
        "answer": "yes",
        "version": "1.10",
        "listen": "127.0.0.1:8080",
        "steps": [{"uses": "fetch", "with": {"url": "https://example.org/a?b=c"}}, ["x", []], {}],
        "script": "set -e\n\n  echo hi\n",
    }
    assert dump(data) == (
        "on: push\n"
        "every: 5m\n"
        "enabled: true\n"
        'answer: "yes"\n'
        'version: "1.10"\n'
        'listen: "127.0.0.1:8080"\n'
        "steps:\n"
        "  - uses: fetch\n"
        "    with:\n"
        '      url: "https://example.org/a?b=c"\n'
        "  - - x\n"
        "    - []\n"
        "  - {}\n"
        "script: |\n"
        "  set -e\n"
        "\n"
        "    echo hi\n"
    )


def test_yaml_1_1_parsers_read_the_same_values_from_a_dump() -> None:
    """Text does not become booleans, numbers or dates."""
    ambiguous_texts = [
        "yes",
        "No",
        "on",
        "y",
        "12:30",
        "2026-01-01",
        "0700",
        "1_000",
        "0b1",
        "1e3",
        "~",
        "null",
        "=",
        "<<",
        ".inf",
    ]
    assert yaml.safe_load(dump(ambiguous_texts)) == ambiguous_texts


def test_a_lone_surrogate_is_replaced_when_encoding() -> None:
    assert loaded(dump({"a": "x\ud800y"})) == {"a": "x\ufffdy"}


@pytest.mark.parametrize(
    "data",
    [math.nan, math.inf, [-math.inf], [10**4300], {"a": -(10**4300)}],
    ids=["nan", "inf", "-inf", "digits", "-digits"],
)
def test_a_number_that_cannot_be_decoded_is_not_encoded(data: Any) -> None:
    with pytest.raises(ValueError, match="cannot be written as YAML"):
        dump(data)


@pytest.mark.parametrize("data", [object(), {"a": {1, 2}}, [b"bytes"]])
def test_a_type_that_yaml_does_not_have_is_not_encoded(data: Any) -> None:
    with pytest.raises(TypeError, match="cannot be written as YAML"):
        dump(data)


def test_only_strings_can_be_keys() -> None:
    with pytest.raises(TypeError, match="a key must be text, not int"):
        dump({1: "a"})


def test_data_that_is_nested_too_deeply_is_not_encoded() -> None:
    """32 levels are allowed. A value that contains itself is refused too."""
    deep: Any = 1
    for _ in range(32):
        deep = [deep]
    assert loaded(dump(deep)) == deep
    around: list[Any] = []
    around.append(around)
    for endless in ([deep], around):
        with pytest.raises(ValueError, match="nested deeper than 32 levels"):
            dump(endless)
