"""Conversion of YAML to settings: accepted values, rejected values, and error messages."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

from ductile.config.load.structure import MAX_COMPLAINTS, structure
from ductile.config.sections.settings import Settings
from ductile.core.errors import ConfigInvalid
from ductile.core.formats import strict_yaml
from tests.config.conftest import ConfigDir, yaml_at

DURATION = "a duration such as"
INVALID_VALUES: list[tuple[str, str, str]] = [
    # wrong node types
    ("service", "5", "expected a mapping of keys to values, got a single value"),
    ("service", "[]", "expected a mapping of keys to values, got a list"),
    ("api", "text", "expected a mapping"),
    ("api.auth", "[]", "expected a mapping"),
    ("api.auth.tokens", "{}", "expected a list, got a mapping"),
    ("api.auth.tokens", "abc", "expected a list, got a single value"),
    ("api.auth.tokens[0]", "abc", "expected a mapping"),
    ("include", "plugins.yaml", "expected a list"),
    ("include[0]", "{}", "expected a single value, got a mapping"),
    ("include[0]", "[]", "expected a single value, got a list"),
    ("include[0]", "~", "expected a single value, got nothing"),
    ("environment_vars", "[.env]", "expected a mapping"),
    ("environment_vars.include", ".env", "expected a list"),
    ("plugin_roots", "plugins", "expected a list"),
    ("plugin_roots[0]", "~", "got nothing"),
    ("plugin_roots[0]", "''", "is not a path"),
    ("plugin_roots[0]", "'  '", "is not a path"),
    ("plugin_roots[0]", '"a\\0b"', "is not a path"),
    ("state.path", "[]", "expected a single value"),
    ("state.path", "''", "is not a path"),
    ("plugins", "[]", "expected a mapping"),
    ("plugins.a", "[]", "expected a mapping"),
    ("plugins.a", "yes", "expected a mapping"),
    ("plugins.a.config", "text", "expected a mapping"),
    ("plugins.a.config", "[]", "expected a mapping"),
    ("plugins.a.schedules", "{every: 5m}", "expected a list, got a mapping"),
    ("plugins.a.env", "[A=b]", "expected a mapping"),
    ("routes", "{}", "expected a list"),
    ("pipelines", "{}", "expected a list"),
    ("pipelines[0]", "text", "expected a mapping"),
    ("webhooks", "[]", "expected a mapping"),
    ("webhooks.endpoints", "{}", "expected a list"),
    ("instances", "{}", "expected a list"),
    ("remote_ingress", "[]", "expected a mapping"),
    # booleans
    ("service.strict_mode", "1", "is not true or false"),
    ("service.allow_symlinks", "maybe", "is not true or false"),
    ("service.admission.fail_on_drift", "[]", "expected a single value"),
    ("api.enabled", "enabled", "is not true or false"),
    ("plugins.a.enabled", "'0'", "is not true or false"),
    # numbers
    ("service.max_workers", "0", "1 or more"),
    ("service.max_workers", "-1", "1 or more"),
    ("service.max_workers", "many", "is not a whole number"),
    ("service.max_workers", "1.5", "is not a whole number"),
    ("service.max_workers", "true", "is not a whole number"),
    ("service.max_workers", "1e3", "is not a whole number"),
    ("service.max_workers", "9" * 30, "at most 18 digits"),
    ("service.hook_max_depth", "0", "1 or more"),
    ("service.limits.events", "0", "1 or more"),
    ("service.limits.tree_jobs", "-5", "1 or more"),
    ("api.max_concurrent_sync", "0", "1 or more"),
    ("plugins.a.retry.max_attempts", "0", "1 or more"),
    ("plugins.a.circuit_breaker.threshold", "0", "1 or more"),
    ("plugins.a.max_outstanding_polls", "0", "1 or more"),
    ("plugins.a.parallelism", "0", "1 or more"),
    ("plugins.a.limits.open_files", "none", "is not a whole number"),
    # durations
    ("service.tick_interval", "soon", DURATION),
    ("service.tick_interval", "-1s", "zero or longer"),
    ("service.dedupe_ttl", "24", "has no unit"),
    ("service.dedupe_ttl", "1.5", "has no unit"),
    ("service.dedupe_ttl", "24 hours", DURATION),
    ("service.dedupe_ttl", "-24h", "zero or longer"),
    ("service.job_log_retention", "1y", DURATION),
    ("service.job_log_retention", "'99999999999d'", "longer than"),
    ("service.drain_timeout", "''", DURATION),
    ("api.max_sync_timeout", "0", "longer than zero"),
    ("api.max_sync_timeout", "[5m]", "expected a single value"),
    ("plugins.a.retry.backoff_base", "-30s", "zero or longer"),
    ("plugins.a.timeouts.poll", "0s", "longer than zero"),
    ("plugins.a.timeouts.poll", "60", "has no unit"),
    ("plugins.a.circuit_breaker.reset_after", "0", "longer than zero"),
    ("plugins.a.limits.cpu", "0s", "longer than zero"),
    ("instances[0].timeout", "-1s", "longer than zero"),
    ("remote_ingress.allowed_clock_skew", "0s", "longer than zero"),
    # sizes
    ("api.max_body_size", "0", "1 byte or more"),
    ("api.max_body_size", "-1", "a size in bytes such as"),
    ("api.max_body_size", "1.5MB", "a size in bytes such as"),
    ("api.max_body_size", "1TB", "a size in bytes such as"),
    ("api.max_body_size", "'999999999999999999GB'", "is larger than"),
    ("service.limits.stdout", "big", "a size in bytes such as"),
    ("plugins.a.limits.memory", "0", "1 byte or more"),
    # choices
    ("service.log_level", "warning", "debug, info, warn, error"),
    ("service.log_level", "inf", "did you mean 'info'?"),
    ("service.log_format", "xml", "json, text"),
    ("service.synchronous", "off", "full, normal"),
    ("plugins.a.schedules[0].catch_up", "all", "skip, run_once, run_all"),
    ("plugins.a.schedules[0].if_running", "wait", "skip, queue, cancel"),
    ("webhooks.endpoints[0].scheme", "gitlab", "hmac-sha256, github"),
    ("webhooks.endpoints[0].body", "xml", "json, form"),
    # names and addresses
    ("service.name", "''", "not blank"),
    ("service.name", '"a\\nb"', "no control characters"),
    ("api.listen", "8080", "host:port"),
    ("api.listen", "'::'", "host:port"),
    ("api.listen", "'::1:80'", "host:port"),
    ("api.listen", "'[::1:80'", "host:port"),
    ("api.listen", "localhost:99999", "host:port"),
    ("api.listen", "http://localhost:80", "host:port"),
    ("api.listen", "'a b:80'", "host:port"),
    ("webhooks.listen", "localhost", "host:port"),
    ("api.allowed_origins[0]", '"https://a\\r\\nX: y"', "no control characters"),
    ("plugins.a.uses", "../b", "letters, digits"),
    ("plugins.a.schedules[0].id", "a b", "letters, digits"),
    ("plugins.a.schedules[0].command", "rm -rf", "a command name"),
    ("plugins.a.env.A", '"a\\0b"', "without NUL"),
    ("service.plugin_env_passthrough[0]", "A-B", "the name of an environment variable, or '*'"),
    ("routes[0].from", "a/b", "letters, digits"),
    ("webhooks.endpoints[0].path", "hook", "starts with '/'"),
    ("webhooks.endpoints[0].path", "/a b", "starts with '/'"),
    ("webhooks.endpoints[0].path", "/a?b", "starts with '/'"),
    ("webhooks.endpoints[0].signature_header", "'X Y'", "an HTTP header name"),
    ("webhooks.endpoints[0].forward_headers[0]", "'X:'", "an HTTP header name"),
    ("webhooks.endpoints[0].secret_ref", "[a, b, c]", "one name, or two"),
    ("webhooks.endpoints[0].secret_ref", "[]", "one name, or two"),
    ("instances[0].name", "Home_Lab", "lower-case words joined by '-'"),
    ("instances[0].base_url", "ftp://x", "http:// or https://"),
    ("instances[0].base_url", "https://me:pw@x", "without a user name"),
    ("instances[0].ingress_path", "ingest", "starts with '/'"),
    ("instances[0].key_id", '"a\\r\\nb"', "no control characters"),
    ("instances[0].allow[0]", "Backup Ready", "lower-case words"),
    ("remote_ingress.peers[0].accept[0]", "a..b", "lower-case words"),
    ("remote_ingress.listen_path", "x", "starts with '/'"),
    # secrets
    ("api.auth.tokens[0].token", "''", "a secret must have a value"),
    ("api.auth.tokens[0].token", "[]", "expected a single value"),
    # times
    ("plugins.a.schedules[0].every", "0s", "longer than zero"),
    ("plugins.a.schedules[0].every", "fortnightly", DURATION),
    ("plugins.a.schedules[0].cron", "'* * * *'", "five fields"),
    ("plugins.a.schedules[0].at", "tomorrow", "RFC 3339"),
    ("plugins.a.schedules[0].after", "-5m", "zero or longer"),
    ("plugins.a.schedules[0].jitter", "-5m", "zero or longer"),
    ("plugins.a.schedules[0].only_between", "8-22", "a window such as"),
    ("plugins.a.schedules[0].timezone", "Mars/Olympus", "IANA"),
    ("plugins.a.schedules[0].not_on[0]", "funday", "a weekday"),
    ("plugins.a.schedules[0].preferred_window.start", "'25:00'", "a time of day"),
    ("plugins.a.schedules[0].payload", "[]", "expected a mapping"),
]


def test_an_invalid_value_is_reported_with_its_line_its_path_and_what_is_allowed(config_dir: ConfigDir) -> None:
    failures = []
    for path, value, reason in INVALID_VALUES:
        text = yaml_at(path, value)
        complaints = [complaint for complaint in config_dir.complaints(text) if complaint.path == path]
        position = f"{config_dir.root}:{text.count(chr(10))}: {path}: "
        if [str(complaint).startswith(position) and reason in complaint.message for complaint in complaints] != [True]:
            failures.append((path, value, reason, complaints))
    assert failures == []


def test_all_errors_are_reported_at_once(config_dir: ConfigDir) -> None:
    text = "\n".join(
        ["service:", "  max_workers: 0", "  log_level: loud", "api:", "  listen: x", "plugins:", "  a:", "    retry: 5"]
    )
    assert [
        (complaint.path, complaint.mark and complaint.mark.line)
        for complaint in config_dir.complaints(text + "\nnonsense: 1\n")
    ] == [
        ("service.log_level", 3),
        ("service.max_workers", 2),
        ("api.listen", 5),
        ("plugins.a.retry", 8),
        ("nonsense", 9),
    ]


UNKNOWN_KEYS = [
    ("plugin", "plugins"),
    ("service.max_worker", "max_workers"),
    ("service.admission.fail_on_drifts", "fail_on_drift"),
    ("service.limits.stdouts", "stdout"),
    ("state.paht", "path"),
    ("api.listne", "listen"),
    ("api.auth.token", "api.auth.tokens[].token"),
    ("api.auth.tokens[0].scope", "scopes"),
    ("plugins.a.enabld", "enabled"),
    ("plugins.a.schedules[0].timezon", "timezone"),
    ("plugins.a.schedules[0].preferred_window.strat", "start"),
    ("plugins.a.retry.max_attempt", "max_attempts"),
    ("plugins.a.circuit_breaker.treshold", "threshold"),
    ("plugins.a.limits.memroy", "memory"),
    ("routes[0].event_typ", "event_type"),
    ("webhooks.endpoint", "endpoints"),
    ("webhooks.endpoints[0].secret_refs", "secret_ref"),
    ("instances[0].base_uri", "base_url"),
    ("remote_ingress.peer", "peers"),
    ("remote_ingress.peers[0].baggage.alow", "allow"),
    ("environment_vars.includes", "include"),
]


def test_an_unknown_key_is_an_error_at_every_level_with_a_suggestion(config_dir: ConfigDir) -> None:
    failures = []
    for path, known in UNKNOWN_KEYS:
        messages = {complaint.path: complaint.message for complaint in config_dir.complaints(yaml_at(path, "1"))}
        if messages.get(path) != f"unknown key (did you mean {known!r}?)":
            failures.append((path, messages))
    assert failures == []


def test_an_unknown_key_without_a_suggestion_lists_the_known_keys(config_dir: ConfigDir) -> None:
    assert "zzz: unknown key; known here: api, environment_vars, exchange, heartbeat" in config_dir.errors("zzz: 1")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("routes[0]", "{}"),
        ("webhooks.endpoints[0]", "{}"),
        ("instances[0]", "{}"),
        ("api.auth.tokens[0]", "{}"),
        ("api.auth.tokens[0].token", ""),
        ("plugins.a.schedules[0].preferred_window", "{start: '08:00'}"),
    ],
)
def test_a_missing_key_is_reported_with_its_description(config_dir: ConfigDir, path: str, value: str) -> None:
    assert any("is missing: " in complaint.message for complaint in config_dir.complaints(yaml_at(path, value)))


# Defaults

DEFAULTS: dict[str, Any] = {
    "include": (),
    "environment_vars.include": (),
    "plugin_roots": (),
    "plugins": {},
    "routes": (),
    "pipelines": (),
    "instances": (),
    "remote_ingress": None,
    "tokens": (),
    "tcc_paths": (),
    "webhooks.listen": "127.0.0.1:8081",
    "webhooks.public_health": False,
    "webhooks.trusted_proxies": (),
    "webhooks.endpoints": (),
    "service.name": "ductile",
    "service.tick_interval": timedelta(seconds=60),
    "service.log_level": "info",
    "service.log_format": "json",
    "service.dedupe_ttl": timedelta(hours=24),
    "service.job_log_retention": timedelta(hours=720),
    "service.job_queue_retention": timedelta(hours=24),
    "service.job_transitions_retention": timedelta(hours=720),
    "service.job_attempts_retention": timedelta(hours=720),
    "service.breaker_transitions_retention": timedelta(hours=2160),
    "service.facts_retention": timedelta(0),
    "service.drain_timeout": timedelta(seconds=10),
    "service.kill_grace": timedelta(seconds=5),
    "service.strict_mode": False,
    "service.allow_symlinks": False,
    "service.hook_max_depth": 4,
    "service.plugin_env_passthrough": (),
    "service.synchronous": "full",
    "service.admission.verify_integrity_on_boot": False,
    "service.admission.fail_on_drift": False,
    "service.admission.validate_config_on_boot": False,
    "service.admission.require_api_auth": False,
    "service.limits.stdout": 10 << 20,
    "service.limits.stderr": 64 << 10,
    "service.limits.state": 1 << 20,
    "service.limits.events": 1000,
    "service.limits.dedupe_key": 512,
    "service.limits.hops": 20,
    "service.limits.tree_jobs": 10_000,
    "api.enabled": False,
    "api.listen": "127.0.0.1:8080",
    "api.auth.tokens": (),
    "api.max_concurrent_sync": 10,
    "api.max_sync_timeout": timedelta(minutes=5),
    "api.max_body_size": 1 << 20,
    "api.allowed_origins": (),
}
PLUGIN_DEFAULTS: dict[str, Any] = {
    "enabled": True,
    "uses": None,
    "config": {},
    "schedules": (),
    "retry.max_attempts": 4,
    "retry.backoff_base": timedelta(seconds=30),
    "timeouts": {},
    "circuit_breaker.threshold": 3,
    "circuit_breaker.reset_after": timedelta(minutes=30),
    "max_outstanding_polls": 1,
    "parallelism": None,
    "notify_on_complete": False,
    "ignore_exit_code": False,
    "env": {},
}


def value_at(settings: Any, path: str) -> Any:
    for name in path.split("."):
        settings = getattr(settings, name)
    return settings


@pytest.mark.parametrize(
    "text", ["", "{}", "# nothing\n", "service:\napi:\nwebhooks:\nplugins:\nstate:\n", "service: ~"]
)
def test_absent_keys_have_their_documented_defaults(config_dir: ConfigDir, text: str) -> None:
    """Also keys of an absent or empty section."""
    settings = config_dir.load(text).settings
    assert {path: value_at(settings, path) for path in DEFAULTS} == DEFAULTS
    assert settings.state.path == config_dir.path / "data/state.db"
    assert settings.service.max_workers >= 1


def test_an_empty_plugin_entry_is_enabled_with_the_documented_defaults(config_dir: ConfigDir) -> None:
    entry = config_dir.load("plugins:\n  a:\n").settings.plugins["a"]
    assert {path: value_at(entry, path) for path in PLUGIN_DEFAULTS} == PLUGIN_DEFAULTS
    expected = {"poll": 60, "handle": 120, "health": 10, "init": 30, "sync": 60}
    assert {name: entry.timeout_for(name).total_seconds() for name in expected} == expected


def test_schedules_endpoints_and_relay_have_their_documented_defaults(config_dir: ConfigDir) -> None:
    config_dir.write("tokens.yaml", "tokens: [{name: t, key: 0123456789012345678901234}]")
    config_dir.write("config.yaml", RELAY)
    config_dir.seal()
    settings = config_dir.load().settings
    schedule, endpoint = settings.plugins["a"].schedules[0], settings.webhooks.endpoints[0]
    assert attrs.evolve(schedule, every=None) == type(schedule)()
    assert (schedule.id, schedule.command, schedule.catch_up, schedule.if_running) == (
        "default",
        "poll",
        "skip",
        "skip",
    )
    assert (endpoint.max_body_size, endpoint.body, endpoint.secret_ref) == (1 << 20, "json", ("t",))
    instance, ingress = settings.instances[0], settings.remote_ingress
    assert (instance.enabled, instance.timeout, instance.allow) == (True, timedelta(seconds=10), ())
    assert ingress is not None
    assert (ingress.listen_path, ingress.max_body_size) == ("/ingest/peer", 1 << 20)
    assert (ingress.allowed_clock_skew, ingress.require_key_id) == (timedelta(minutes=5), False)
    assert (ingress.peers[0].enabled, ingress.peers[0].baggage.allow) == (True, ())


RELAY = """\
include: [tokens.yaml]
plugins:
  a:
    enabled: false
    schedules: [{every: 5m}]
webhooks:
  endpoints: [{path: /h, plugin: a, secret_ref: t, signature_header: X-Sig}]
instances: [{name: peer-1, base_url: "https://x.example", ingress_path: /ingest/peer, secret_ref: t}]
remote_ingress: {peers: [{name: peer-1, secret_ref: t}]}
"""


# Notations


@pytest.mark.parametrize("word", ["true", "True", "TRUE", "yes", "Yes", "on", "ON", "y", "'true'", '"yes"'])
def test_a_boolean_is_true_in_every_spelling(config_dir: ConfigDir, word: str) -> None:
    """YAML 1.2 reads `yes` as text; booleans still accept it."""
    assert config_dir.load(f"webhooks: {{public_health: {word}}}").settings.webhooks.public_health is True


@pytest.mark.parametrize("word", ["false", "False", "no", "off", "n", "'false'"])
def test_a_boolean_is_false_in_every_spelling(config_dir: ConfigDir, word: str) -> None:
    assert config_dir.load(f"plugins: {{a: {{enabled: {word}}}}}").settings.plugins["a"].enabled is False


@pytest.mark.parametrize("text", ["1.10", "0700", "1e3", "yes", "0x1F", "2026-02-08", "12:30", "-0", "1_000"])
def test_text_fields_keep_numbers_as_written(config_dir: ConfigDir, text: str) -> None:
    """A version 1.10 does not become 1.1."""
    assert config_dir.load(f"service: {{name: {text}}}").settings.service.name == text
    assert config_dir.load(f"plugins: {{a: {{env: {{V: {text}}}}}}}").settings.plugins["a"].env == {"V": text}


def test_plugin_configuration_keeps_its_types(config_dir: ConfigDir) -> None:
    text = "plugins: {a: {config: {n: 1.5, i: 7, b: true, s: 'true', z: null, l: [1, {k: v}], on: off}}}"
    config = config_dir.load(text).settings.plugins["a"].config
    assert config == {"n": 1.5, "i": 7, "b": True, "s": "true", "z": None, "l": [1, {"k": "v"}], "on": "off"}


def test_keys_that_start_with_x_are_ignored_at_the_top_level_only(config_dir: ConfigDir) -> None:
    """They can hold anchors and notes."""
    config_dir.load("x-defaults: &d {retry: {max_attempts: 2}}\nplugins: {a: *d, b: {<<: *d, enabled: no}}")
    assert config_dir.load().settings.plugins["b"].retry.max_attempts == 2
    assert "service.x-note: unknown key" in config_dir.errors("service: {x-note: 1}")


def test_secret_ref_is_one_name_or_a_list(config_dir: ConfigDir) -> None:
    settings = structure_text("webhooks: {endpoints: [{path: /a, secret_ref: a}, {path: /b, secret_ref: [a, b]}]}")
    assert [endpoint.secret_ref for endpoint in settings.webhooks.endpoints] == [("a",), ("a", "b")]


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("service.dedupe_ttl", "7d", timedelta(days=7)),
        ("service.job_log_retention", "2w", timedelta(weeks=2)),
        ("service.job_log_retention", "0", timedelta(0)),
        ("service.drain_timeout", "1h30m", timedelta(minutes=90)),
        ("service.limits.stdout", "2MB", 2 << 20),
        ("service.limits.stdout", "4096", 4096),
        ("service.max_workers", "'3'", 3),
        ("api.listen", ":8080", ":8080"),
        ("api.listen", "'[::1]:0'", "[::1]:0"),
        ("api.listen", "my-host.example:65535", "my-host.example:65535"),
        ("service.plugin_env_passthrough", "['*']", ("*",)),
        ("service.name", "Küche 1", "Küche 1"),
    ],
)
def test_every_documented_notation_is_accepted(path: str, value: str, expected: object) -> None:
    """Durations with days and weeks, sizes with units, quoted numbers."""
    assert value_at(structure_text(yaml_at(path, value)), path) == expected


def structure_text(text: str) -> Settings:
    return structure(strict_yaml.load(text.encode(), source="config.yaml"))


# Hostile input


def test_a_key_with_control_characters_is_escaped_in_errors(config_dir: ConfigDir) -> None:
    """A configuration cannot write escape sequences to the terminal."""
    errors = config_dir.errors('"\\e[31mred\\n": 1\nplugins: {"a\\nb": {}}')
    assert "\x1b" not in errors
    assert "'\\x1b[31mred\\n': unknown key" in errors


def test_a_very_long_key_is_truncated_in_errors(config_dir: ConfigDir) -> None:
    assert len(str(config_dir.complaints(f"? {'k' * 100_000}\n: 1")[0])) < 1000


def test_the_number_of_reported_errors_is_limited() -> None:
    """Suggestions for 40,000 unknown keys would take half a minute."""
    text = "".join(f"sevrice{number}: 1\n" for number in range(40_000))
    with pytest.raises(ConfigInvalid) as caught:
        structure_text(text)
    assert len(caught.value.complaints) == MAX_COMPLAINTS + 1
    assert str(caught.value.complaints[-1]) == "config.yaml:1: only the first 500 errors are shown"


def test_errors_of_sections_and_lists_are_reported_together(tmp_path: Path) -> None:
    text = "service: {max_workers: 0}\nroutes: [{from: a, to: b}, {from: a, event_type: x, to: '!'}]"
    with pytest.raises(ConfigInvalid) as caught:
        structure_text(text)
    paths = [complaint.path for complaint in caught.value.complaints]
    assert paths == ["service.max_workers", "routes[0].event_type", "routes[1].to"]


def test_a_trusted_proxy_is_an_address_or_a_network(config_dir: ConfigDir) -> None:
    """A host name is refused, because DNS is not trusted."""
    assert config_dir.load("webhooks: {trusted_proxies: [10.0.0.0/8, '::1']}").settings.webhooks.trusted_proxies
    with pytest.raises(ConfigInvalid, match="an address or network"):
        config_dir.load("webhooks: {trusted_proxies: [proxy.example]}")
