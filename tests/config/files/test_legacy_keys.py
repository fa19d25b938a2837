"""Legacy keys: aliases work with a warning, keys without effect warn, unsupported features are errors."""

from datetime import timedelta

import pytest

from tests.config.conftest import ConfigDir, yaml_at


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        ("accounts", "{a: {uid: 1}}", "runs plugins as its own user"),
        ("secrets", "{vault_file: x}", "Ductile has no vault"),
        ("service.unconfined", "true", "runs plugins as its own user"),
        ("api.management_socket", "x.sock", "Ductile has no vault"),
        ("plugins.a.run_as", "nobody", "runs plugins as its own user"),
        ("plugins.a.requires_vault", "true", "Ductile has no vault"),
        ("plugins.a.schedule", "{every: 5m}", "use `schedules:` with a list"),
    ],
)
def test_an_unsupported_feature_is_an_error(config_dir: ConfigDir, path: str, value: str, reason: str) -> None:
    """A key without effect must not suggest protection."""
    (complaint,) = config_dir.complaints(yaml_at(path, value))
    assert (complaint.path, complaint.mark is not None) == (path, True)
    assert complaint.message.startswith("is not supported: ")
    assert reason in complaint.message


def test_top_level_log_keys_set_those_of_the_service(config_dir: ConfigDir) -> None:
    """The keys in `service` take precedence."""
    config = config_dir.load("log_level: debug\nlog_format: text\nservice: {log_format: json}")
    assert (config.settings.service.log_level, config.settings.service.log_format) == ("debug", "json")
    warnings = {warning.path: warning.message for warning in config.warnings if warning.path}
    assert warnings["log_level"] == "is deprecated; use service.log_level"


def test_timeout_and_max_attempts_of_a_plugin_are_translated(config_dir: ConfigDir) -> None:
    """The current keys take precedence."""
    text = "plugins: {a: {timeout: 5m, max_attempts: 2, description: x, timeouts: {handle: 7s}}}"
    config = config_dir.load(text)
    entry = config.settings.plugins["a"]
    assert (entry.timeout_for("poll"), entry.timeout_for("handle")) == (timedelta(minutes=5), timedelta(seconds=7))
    assert entry.retry.max_attempts == 2
    warnings = {warning.path for warning in config.warnings if warning.path}
    assert warnings == {"plugins.a.timeout", "plugins.a.max_attempts", "plugins.a.description"}


def test_an_invalid_value_of_a_legacy_key_is_reported_at_its_line(config_dir: ConfigDir) -> None:
    """The complaint contains the current key."""
    errors = config_dir.errors("plugins:\n  a:\n    timeout: soon\n    max_attempts: 0\nlog_level: loud\n")
    assert "config.yaml:3: plugins.a.timeouts.poll: 'soon' is not a duration" in errors
    assert "config.yaml:4: plugins.a.retry.max_attempts: '0' is not allowed here" in errors
    assert "config.yaml:5: service.log_level: 'loud' is not one of" in errors


def test_database_is_an_alias_of_state(config_dir: ConfigDir) -> None:
    """`state` takes precedence."""
    assert config_dir.load("database: {path: old.db}").settings.state.path == config_dir.path / "old.db"
    both = config_dir.load("database: {path: old.db}\nstate: {path: new.db}")
    assert both.settings.state.path == config_dir.path / "new.db"


def test_tcc_paths_are_accepted_without_effect(config_dir: ConfigDir) -> None:
    config = config_dir.load("tcc_paths: [/x]")
    assert [warning.message for warning in config.warnings if warning.path == "tcc_paths"] == ["has no effect"]


@pytest.mark.parametrize(
    "text", ["service: 5\nlog_level: debug", "database: 5", "plugins: {a: 5}", "plugins: 5", "accounts:"]
)
def test_an_invalid_section_with_legacy_keys_is_reported(config_dir: ConfigDir, text: str) -> None:
    assert config_dir.complaints(text)
