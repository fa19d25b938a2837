"""Configurations of the original: its other names work, its idle keys warn, features that are not here are refused."""

from datetime import timedelta

import pytest

from tests.config.conftest import Home, spelled


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("accounts", "{a: {uid: 1}}", "runs plugins as its own user"),
        ("secrets", "{vault_file: x}", "there is no vault"),
        ("service.unconfined", "true", "runs plugins as its own user"),
        ("api.management_socket", "x.sock", "there is no vault"),
        ("plugins.a.run_as", "nobody", "runs plugins as its own user"),
        ("plugins.a.requires_vault", "true", "there is no vault"),
        ("plugins.a.schedule", "{every: 5m}", "write `schedules:` with a list"),
    ],
)
def test_a_feature_that_is_not_here_is_refused_with_that_reason(home: Home, path: str, value: str, reason: str) -> None:
    """Nobody believes to be protected by a key that has no effect."""
    (told,) = home.complaints(spelled(path, value))
    assert (told.path, told.mark is not None) == (path, True)
    assert told.message.startswith("is not supported: ")
    assert reason in told.message


def test_top_level_log_keys_mean_those_of_the_service(home: Home) -> None:
    """The examples of the original carry them; what `service` says itself wins."""
    config = home.load("log_level: debug\nlog_format: text\nservice: {log_format: json}")
    assert (config.settings.service.log_level, config.settings.service.log_format) == ("debug", "json")
    told = {warning.path: warning.message for warning in config.warnings if warning.path}
    assert told["log_level"] == "belongs under `service:`; read as service.log_level"


def test_a_timeout_and_max_attempts_of_a_plugin_get_their_obvious_meaning(home: Home) -> None:
    """With a warning; the proper keys win."""
    text = "plugins: {a: {timeout: 5m, max_attempts: 2, description: x, timeouts: {handle: 7s}}}"
    config = home.load(text)
    entry = config.settings.plugins["a"]
    assert (entry.timeout_for("poll"), entry.timeout_for("handle")) == (timedelta(minutes=5), timedelta(seconds=7))
    assert entry.retry.max_attempts == 2
    told = {warning.path for warning in config.warnings if warning.path}
    assert told == {"plugins.a.timeout", "plugins.a.max_attempts", "plugins.a.description"}


def test_a_bad_value_under_an_old_name_is_told_at_its_line(home: Home) -> None:
    """The complaint names the key it was read as."""
    told = home.refusal("plugins:\n  a:\n    timeout: soon\n    max_attempts: 0\nlog_level: loud\n")
    assert "config.yaml:3: plugins.a.timeouts.poll: 'soon' is not a duration" in told
    assert "config.yaml:4: plugins.a.retry.max_attempts: '0' is not allowed here" in told
    assert "config.yaml:5: service.log_level: 'loud' is not one of" in told


def test_database_is_another_name_for_state(home: Home) -> None:
    """`state` wins."""
    assert home.load("database: {path: old.db}").settings.state.path == home.folder / "old.db"
    both = home.load("database: {path: old.db}\nstate: {path: new.db}")
    assert both.settings.state.path == home.folder / "new.db"


def test_tcc_paths_are_accepted_without_effect(home: Home) -> None:
    """Configurations from macOS load."""
    config = home.load("tcc_paths: [/x]")
    assert [warning.message for warning in config.warnings if warning.path == "tcc_paths"] == ["has no effect here"]


@pytest.mark.parametrize(
    "text", ["service: 5\nlog_level: debug", "database: 5", "plugins: {a: 5}", "plugins: 5", "accounts:"]
)
def test_a_broken_section_under_an_old_name_is_still_only_a_complaint(home: Home, text: str) -> None:
    """Translation does not trip over what is wrong anyway."""
    assert home.complaints(text)
