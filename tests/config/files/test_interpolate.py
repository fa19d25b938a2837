"""Interpolation of `${NAME}`: a value stays a value, whatever it contains."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ductile.config.files.interpolate import interpolate, parse_env_file
from ductile.core.errors import ConfigInvalid
from ductile.core.formats import strict_yaml
from tests.config.conftest import UNSET, ConfigDir


def resolve(text: str, **environment: str) -> Any:
    return interpolate(strict_yaml.load(text.encode(), source="c"), environment).root.data()


VALUES = [
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
]


def test_a_value_is_inserted_unchanged() -> None:
    """It cannot add keys, change types or be interpolated again."""
    text = "{a: '${V}', b: '<${V}>', c: ['${V}']}"
    results = [(value, resolve(text, V=value, OTHER="never")) for value in VALUES]
    assert [pair for pair in results if pair[1] != {"a": pair[0], "b": f"<{pair[0]}>", "c": [pair[0]]}] == []


@given(st.text(), st.text())
def test_no_value_changes_the_keys(first: str, second: str) -> None:
    assert set(resolve("{a: '${ONE}', b: {c: '${TWO}'}}", ONE=first, TWO=second)) == {"a", "b"}


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
    """`$${` is a literal `${`. There are no defaults."""
    assert resolve(f"a: '{written}'", V="x") == {"a": expected}


def test_keys_are_not_interpolated(config_dir: ConfigDir) -> None:
    assert resolve("{'${V}': 1}", V="x") == {"${V}": 1}
    assert "plugins.${V}" in config_dir.errors("plugins: {'${V}': {}}", {"V": "x"})


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
def test_typed_keys_accept_values_from_the_environment(
    config_dir: ConfigDir, text: str, path: str, expected: str
) -> None:
    value: Any = config_dir.load(text, {"V": "3"}).settings
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
def test_an_unset_variable_is_an_error_in_secrets_and_enabled_plugins(config_dir: ConfigDir, text: str) -> None:
    (complaint,) = config_dir.complaints(text)
    assert (complaint.message, complaint.category) == (UNSET, "env_vars")
    assert complaint.mark is not None


@pytest.mark.parametrize("text", UNSET_WARNINGS)
def test_an_unset_variable_elsewhere_stays_literal_with_a_warning(config_dir: ConfigDir, text: str) -> None:
    warnings = [warning for warning in config_dir.load(text).warnings if warning.category == "env_vars"]
    assert [warning.message for warning in warnings] == [UNSET]


def test_an_unset_variable_in_tokens_yaml_is_an_error(config_dir: ConfigDir) -> None:
    config_dir.write("tokens.yaml", "tokens: [{name: t, key: '${GONE}'}]")
    config_dir.write("config.yaml", "include: [tokens.yaml]")
    with pytest.raises(ConfigInvalid, match="environment variable GONE is not set"):
        config_dir.seal()


def test_an_unset_variable_in_a_typed_key_is_reported_with_the_type_error(config_dir: ConfigDir) -> None:
    errors = config_dir.errors("service: {max_workers: '${GONE}'}")
    assert "service.max_workers: '${GONE}' is not a whole number" in errors
    assert "service.max_workers: environment variable GONE is not set" in errors


def test_an_empty_variable_is_set_but_not_a_valid_secret(config_dir: ConfigDir) -> None:
    assert config_dir.load("plugins: {a: {config: {k: '${V}'}}}", {"V": ""}).settings.plugins["a"].config == {"k": ""}
    assert "a secret must have a value" in config_dir.errors("api: {auth: {tokens: [{token: '${V}'}]}}", {"V": ""})


def test_the_size_of_interpolated_values_is_limited(config_dir: ConfigDir) -> None:
    """A large value with many references is refused before it is inserted."""
    text = f"a: ['{'${V}' * 10_000}']"
    errors = config_dir.errors(f"plugins: {{p: {{config: {{{text}}}}}}}", {"V": "v" * 100_000})
    assert "plugins.p.config.a[0]: the values of ${NAME} would add more than 16,777,216 characters" in errors


def test_a_variable_that_is_not_utf8_is_an_error(config_dir: ConfigDir) -> None:
    errors = config_dir.errors("plugins: {a: {config: {k: '${V}'}}}", {"V": "\udcff"})
    assert "environment variable V is not UTF-8 text" in errors


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
        ("A=b # text", "b # text"),
        ("A=b=c", "b=c"),
        ("A=${B}", "${B}"),
        ("A='b\"", "'b\""),
        ("A=é", "é"),
        ("A=b\r", "b"),
    ],
)
def test_env_file_lines(line: str, expected: str) -> None:
    """Optional `export`, one pair of quotes; nothing is expanded."""
    assert parse_env_file(f"# first\n\n{line}\n".encode(), source="e") == {"A": expected}
