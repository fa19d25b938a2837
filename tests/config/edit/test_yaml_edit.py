"""YAML edits: the intended characters change, all others stay."""

import difflib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ductile.config.edit.yaml_edit import render_flow, value_at, with_item, with_value, without_item
from ductile.core.errors import ConfigInvalid
from ductile.core.formats import strict_yaml

TEXT = """\
# head
service:   # the process
  name: "lab"   # who
  tick_interval: 60s

  # sizes
  limits: {stdout: 1MB, stderr: 1KB}   # small
api:
    enabled: false
    tokens:
    - token: ${A}   # first
      scopes: [a, b]
    # between
    - token: ${B}
      scopes:
        - x
        - y  # why
    # after
plugins:
  echo: {}
  other:
  text:
    config:
      body: |
        one
        two

      # after the text
      tail: 1
routes: []
#  - from: x
nothing: ~
last: 'q'
# the end
"""
NEW = {"from": "a", "to": "b"}


def diff_lines(before: str, after: str) -> tuple[list[str], list[str]]:
    """Return the removed and the added lines."""
    diff = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    return [line[2:] for line in diff if line[0] == "-"], [line[2:] for line in diff if line[0] == "+"]


SET: list[tuple[tuple[str | int, ...], Any, list[str], list[str]]] = [
    (("service", "name"), "lab: two", ['  name: "lab"   # who'], ['  name: "lab: two"   # who']),
    (("service", "name"), "a\nb", ['  name: "lab"   # who'], ['  name: "a\\nb"   # who']),
    (("service", "tick_interval"), "5s", ["  tick_interval: 60s"], ["  tick_interval: 5s"]),
    (("service", "new"), True, [], ["  new: true"]),
    (
        ("service", "limits", "stderr"),
        5,
        ["  limits: {stdout: 1MB, stderr: 1KB}   # small"],
        ["  limits: {stdout: 1MB, stderr: 5}   # small"],
    ),
    (
        ("service", "limits", "events"),
        "a,b",
        ["  limits: {stdout: 1MB, stderr: 1KB}   # small"],
        ['  limits: {stdout: 1MB, stderr: 1KB, events: "a,b"}   # small'],
    ),
    (("plugins", "echo", "enabled"), False, ["  echo: {}"], ["  echo:", "    enabled: false"]),
    (("plugins", "other", "retry", "max_attempts"), 2, [], ["    retry:", "      max_attempts: 2"]),
    (("plugins", "new", "uses"), "echo", [], ["  new:", "    uses: echo"]),
    (
        ("plugins", "text", "config", "body"),
        "x",
        ["      body: |", "        one", "        two"],
        ["      body: x"],
    ),
    (("plugins", "text", "config", "body"), "one\nsix\n", ["        two"], ["        six"]),
    (("plugins", "text", "config", "more"), [1, "b"], [], ["      more: [1, b]"]),
    (("plugins", "text", "config", "more"), [{"a": 1}], [], ["      more:", "        - a: 1"]),
    (("api", "tokens", 0, "scopes"), ["z"], ["      scopes: [a, b]"], ["      scopes: [z]"]),
    (
        ("api", "tokens", 1, "scopes"),
        ["z"],
        ["      scopes:", "        - x", "        - y  # why"],
        ["      scopes: [z]"],
    ),
    (("api", "tokens", 1, "scopes", 1), "w", ["        - y  # why"], ["        - w  # why"]),
    (("nothing",), 1.5, ["nothing: ~"], ["nothing: 1.5"]),
    (("nothing", "deep"), "v", ["nothing: ~"], ["nothing:", "  deep: v"]),
    (("fresh",), "yes", [], ['fresh: "yes"']),
    (("fresh", "deep"), "v", [], ["", "fresh:", "  deep: v"]),
]
APPENDED: list[tuple[tuple[str | int, ...], Any, list[str], list[str]]] = [
    (("routes",), NEW, ["routes: []"], ["routes:", "  - from: a", "    to: b"]),
    (("api", "tokens"), {"token": "c"}, [], ["    - token: c"]),
    (("api", "tokens", 0, "scopes"), "c", ["      scopes: [a, b]"], ["      scopes: [a, b, c]"]),
    (("api", "tokens", 1, "scopes"), "c", [], ["        - c"]),
    (("plugins", "other", "schedules"), {"every": "5m"}, [], ["    schedules:", "      - every: 5m"]),
]
REMOVED: list[tuple[tuple[str | int, ...], int, list[str], list[str]]] = [
    (("api", "tokens"), 0, ["    - token: ${A}   # first", "      scopes: [a, b]"], []),
    (
        ("api", "tokens"),
        1,
        ["    - token: ${B}", "      scopes:", "        - x", "        - y  # why"],
        [],
    ),
    (("api", "tokens", 0, "scopes"), 0, ["      scopes: [a, b]"], ["      scopes: [b]"]),
    (("api", "tokens", 0, "scopes"), 1, ["      scopes: [a, b]"], ["      scopes: [a]"]),
    (("api", "tokens", 1, "scopes"), 1, ["        - y  # why"], []),
]


@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_setting_a_value_changes_only_its_lines(ending: str) -> None:
    """The line endings of the file are preserved."""
    text, failures = TEXT.replace("\n", ending), []
    for path, value, removed, added in SET:
        after = with_value(text.encode(), path, value, source="t").decode()
        diff = diff_lines(text, after)
        has_endings = after.count("\r\n") == (after.count("\n") if ending == "\r\n" else 0)
        is_set = value_at(strict_yaml.load(after.encode(), source="t").data(), path) == value
        if diff != (removed, added) or not has_endings or not is_set:
            failures.append((path, value, diff, has_endings, is_set))
    assert failures == []


def test_an_item_is_appended_in_the_style_of_its_list() -> None:
    """Block lists get a new line, flow lists a new element."""
    diffs = [diff_lines(TEXT, with_item(TEXT.encode(), path, item, source="t").decode()) for path, item, *_ in APPENDED]
    expected = [(removed, added) for *_, removed, added in APPENDED]
    assert [pair for pair in zip(diffs, expected, strict=True) if pair[0] != pair[1]] == []


def test_removing_an_item_keeps_the_comments_around_it() -> None:
    diffs = [
        diff_lines(TEXT, without_item(TEXT.encode(), path, index, source="t").decode()) for path, index, *_ in REMOVED
    ]
    expected = [(removed, added) for *_, removed, added in REMOVED]
    assert [pair for pair in zip(diffs, expected, strict=True) if pair[0] != pair[1]] == []


def test_removing_the_only_item_leaves_an_empty_list() -> None:
    text = "routes:  # ways\n  - from: a\n    to: b\nlast: 1\n"

    assert without_item(text.encode(), ("routes",), 0, source="t") == b"routes: []  # ways\nlast: 1\n"


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (b"", b"a:\n  b: 1\n"),
        (b"# only a comment", b"# only a comment\na:\n  b: 1\n"),
        (b"x: 1", b"x: 1\na:\n  b: 1\n"),
        (b"a:", b"a:\n  b: 1\n"),
        (b"a: {b: 2}", b"a: {b: 1}"),
        (b"{a: {}, c: 1}\n", b"{a: {b: 1}, c: 1}\n"),
        (b"a: &x {b: 2}\n", b"a: &x {b: 1}\n"),
        (b"base: &x {b: 2}\na:\n  <<: *x\n", b"base: &x {b: 2}\na:\n  <<: *x\n  b: 1\n"),
    ],
)
def test_a_value_is_set_in_a_text_of_any_form(text: bytes, after: bytes) -> None:
    """Empty files, files without a final newline, flow mappings, merged members."""
    assert with_value(text, ("a", "b"), 1, source="t") == after


@pytest.mark.parametrize(
    ("text", "path", "reason"),
    [
        ("a: &x {b: 1}\nc: *x\n", ("c", "b"), "t:2: c.b: is an alias"),
        ("a: &x 1\nc: *x\n", ("a",), "t:1: a: cannot be changed here"),
        ("a: 1\n", ("a", "b"), "t:1: a.b: is a single value here, not a section"),
        ("a: [1]\n", ("a", "b"), "t:1: a.b: is a list here, not a section"),
        ("a: [1]\n", ("a", 3), "t:1: a[3]: the list has no such item"),
    ],
)
def test_a_change_that_would_affect_another_value_is_refused(text: str, path: Any, reason: str) -> None:
    """Aliases and anchors share a value. The error contains its position."""
    with pytest.raises(ConfigInvalid) as caught:
        with_value(text.encode(), path, 2, source="t")

    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("path", "value"), [(("a",) * 40, 1), (("a",), "\udcff"), (("\udcff",), 1), (("a",), 10**5000)], ids=lambda _: ""
)
def test_a_value_that_yaml_cannot_represent_is_refused(path: Any, value: Any) -> None:
    """Too deep, too long, or not valid text."""
    with pytest.raises(ConfigInvalid, match="cannot be"):
        with_value(b"b: 1\n", path, value, source="t")


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from(
        ["a", "b c", "1", "true", "x: y", "# no", "- d", "", "é", "[q", "two\nlines", " lead", "a,b", "${X}"]
    ),
)
NAMES = st.sampled_from("abcdef")
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


def paths_of(data: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path for name, member in pairs for path in ((*at, name), *paths_of(member, (*at, name)))]


@settings(max_examples=300, deadline=None)
@given(
    data=st.dictionaries(NAMES, VALUES, min_size=1, max_size=4),
    value=VALUES,
    choice=st.integers(0),
    as_flow=st.booleans(),
)
def test_any_value_can_replace_any_other_value(data: Any, value: Any, choice: int, as_flow: bool) -> None:
    """The rest of the data stays the same."""
    text = render_flow(data) if as_flow else strict_yaml.dump(data)
    paths = paths_of(data)
    path = paths[choice % len(paths)]

    after = strict_yaml.load(with_value(text.encode(), path, value, source="t"), source="t").data()

    holder = value_at(data, path[:-1])
    holder[path[-1]] = value
    assert json.dumps(after, sort_keys=True) == json.dumps(data, sort_keys=True)
