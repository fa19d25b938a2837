"""`${NAME}` in values: a value stays a value, whatever is in it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.config.load.interpolate import interpolate, read_env_file
from ductile.core.errors import ConfigInvalid
from ductile.core.formats import strict_yaml
from tests.config.conftest import Home


def resolved(text: str, **environment: str) -> Any:
    return interpolate(strict_yaml.load(text.encode(), source="c"), environment).root.data()


@pytest.mark.parametrize(
    "value",
    [
        "two\nlines",
        "a: b",
        "\nadmin: true",
        "'",
        '"',
        "'\"'",
        "- item",
        "# comment",
        "{}",
        "[",
        "*alias",
        "&anchor",
        "!tag",
        "%",
        "|",
        ">",
        "null",
        "true",
        "1.10",
        "0700",
        "",
        " ",
        "\t",
        "${OTHER}",
        "$${OTHER}",
        "$V",
        "\\",
        "\u2028",
        "\x1b[31m",
        "ключ: значение",
    ],
)
def test_a_value_is_put_in_as_it_is(value: str) -> None:
    """It cannot add keys, change types, or be resolved a second time."""
    expected = {"a": value, "b": f"<{value}>", "c": [value]}
    assert resolved("{a: '${V}', b: '<${V}>', c: ['${V}']}", V=value, OTHER="never") == expected


@given(st.text(), st.text())
def test_no_value_ever_changes_the_shape(one: str, two: str) -> None:
    """Whatever the environment holds, the tree keeps its keys."""
    assert set(resolved("{a: '${ONE}', b: {c: '${TWO}'}}", ONE=one, TWO=two)) == {"a", "b"}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("$${V}", "${V}"),
        ("$$${V}", "$${V}"),
        ("${V}${V}", "xx"),
        ("$V", "$V"),
        ("${}", "${}"),
        ("${V", "${V"),
        ("${V-default}", "${V-default}"),
        ("${ V }", "${ V }"),
        ("${1V}", "${1V}"),
        ("${É}", "${É}"),
        ("$${V} ${V}", "${V} x"),
    ],
)
def test_only_a_name_in_braces_is_a_reference(written: str, expected: str) -> None:
    """`$${` is a literal `${`; there are no defaults and no other forms."""
    assert resolved(f"a: '{written}'", V="x") == {"a": expected}


def test_keys_are_never_resolved(home: Home) -> None:
    """The environment gives values, not structure."""
    assert resolved("{'${V}': 1}", V="x") == {"${V}": 1}
    assert "plugins.${V}" in home.refusal("plugins: {'${V}': {}}", {"V": "x"})


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ("service: {max_workers: '${V}'}", "service.max_workers", "3"),
        ("service:\n  max_workers: ${V}", "service.max_workers", "3"),
        ("api:\n  max_body_size: ${V}", "api.max_body_size", "3"),
        ("service: {strict_mode: no, name: '${V}'}", "service.name", "3"),
        ("service: {limits: {events: '${V}'}}", "service.limits.events", "3"),
        ("api: {listen: 'localhost:${V}'}", "api.listen", "localhost:3"),
        ("service: {drain_timeout: '${V}s'}", "service.drain_timeout", "0:00:03"),
    ],
)
def test_typed_keys_take_a_value_from_the_environment(home: Home, text: str, path: str, expected: str) -> None:
    """A number is a number wherever it comes from."""
    value: Any = home.load(text, {"V": "3"}).settings
    for name in path.split("."):
        value = getattr(value, name)
    assert str(value) == expected


UNSET_ERRORS = [
    "api: {auth: {tokens: [{token: '${GONE}'}]}}",
    "plugins: {a: {config: {k: '${GONE}'}}}",
    "plugins: {a: {config: {deep: [{k: 'x ${GONE}'}]}}}",
    "plugins: {a: {env: {A: '${GONE}'}}}",
]
UNSET_WARNINGS = [
    "service: {name: '${GONE}'}",
    "plugins: {a: {enabled: false, config: {k: '${GONE}'}}}",
    "pipelines: [{name: '${GONE}', on: e, steps: [{uses: p}]}]",
    "plugins: {a: {schedules: [{every: 5m, payload: {k: '${GONE}'}}]}}",
]


@pytest.mark.parametrize("text", UNSET_ERRORS)
def test_an_unset_variable_is_an_error_where_something_waits_for_it(home: Home, text: str) -> None:
    """Tokens, secrets, and the configuration of enabled plugins, lists included."""
    (told,) = home.complaints(text)
    assert (told.message, told.category) == ("environment variable GONE is not set", "env_vars")
    assert told.mark is not None


@pytest.mark.parametrize("text", UNSET_WARNINGS)
def test_an_unset_variable_elsewhere_stays_literal_with_a_warning(home: Home, text: str) -> None:
    """As in the original, but said."""
    told = [warning for warning in home.load(text).warnings if warning.category == "env_vars"]
    assert [warning.message for warning in told] == ["environment variable GONE is not set"]


def test_an_unset_variable_in_tokens_yaml_is_an_error(home: Home) -> None:
    """A secret without a source is none."""
    home.write("tokens.yaml", "tokens: [{name: t, key: '${GONE}'}]")
    home.write("config.yaml", "include: [tokens.yaml]")
    with pytest.raises(ConfigInvalid, match="environment variable GONE is not set"):
        home.lock()


def test_a_typed_key_with_an_unset_variable_says_both(home: Home) -> None:
    """What is wrong is the variable, not the number."""
    told = home.refusal("service: {max_workers: '${GONE}'}")
    assert "service.max_workers: '${GONE}' is not a whole number" in told
    assert "service.max_workers: environment variable GONE is not set" in told


def test_an_empty_variable_is_set(home: Home) -> None:
    """But an empty secret is refused."""
    assert home.load("plugins: {a: {config: {k: '${V}'}}}", {"V": ""}).settings.plugins["a"].config == {"k": ""}
    assert "a secret must have a value" in home.refusal("api: {auth: {tokens: [{token: '${V}'}]}}", {"V": ""})


def test_values_cannot_fill_the_memory(home: Home) -> None:
    """A large value that is used a hundred thousand times is refused before it is put in."""
    text = f"a: ['{'${V}' * 10_000}']"
    told = home.refusal(f"plugins: {{p: {{config: {{{text}}}}}}}", {"V": "v" * 100_000})
    assert "plugins.p.config.a[0]: the values of ${NAME} would add more than 16,777,216 characters" in told


def test_a_variable_that_is_not_text_is_told(home: Home) -> None:
    """Bytes that are not UTF-8 can neither be stored nor sent."""
    told = home.refusal("plugins: {a: {config: {k: '${V}'}}}", {"V": "\udcff"})
    assert "environment variable V is not UTF-8 text" in told


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("A=b", "b"),
        ("export A=b", "b"),
        ("  A = b  ", "b"),
        ("A='b c'", "b c"),
        ('A="b c"', "b c"),
        ('A="it\'s"', "it's"),
        ("A='", "'"),
        ("A=''", ""),
        ("A=", ""),
        ("A=b # kept", "b # kept"),
        ("A=b=c", "b=c"),
        ("A=${B}", "${B}"),
        ("A='b\"", "'b\""),
        ("A=é", "é"),
        ("A=b\r", "b"),
    ],
)
def test_an_env_line_is_name_and_value(line: str, expected: str) -> None:
    """Optional export, one pair of quotes; nothing is expanded."""
    assert read_env_file(f"# first\n\n{line}\n".encode(), source="e") == {"A": expected}
