"""The doctor: checks of the configuration against the installed plugins."""

import time

import pytest

from ductile.config.checks.examine import Examination
from ductile.config.scopes import SCOPES, TOPIC_RIGHTS, is_known_scope, suggest_scope
from ductile.core.errors import Complaint
from tests.config.conftest import UNSET, ConfigDir

ROOTS = "plugin_roots: [plugins]\n"


def by_path(complaints: tuple[Complaint, ...], category: str) -> dict[str, str]:
    """Map paths to messages for one category."""
    return {complaint.path: complaint.message for complaint in complaints if complaint.category == category}


def errors(examination: Examination, category: str) -> dict[str, str]:
    return by_path(examination.report.errors, category)


def warnings(examination: Examination, category: str) -> dict[str, str]:
    return by_path(examination.report.warnings, category)


@pytest.fixture
def base_config(config_dir: ConfigDir) -> ConfigDir:
    """A sealed configuration with two plugins and one token."""
    config_dir.plugin("echo")
    config_dir.plugin("sink", commands="handle")
    config_dir.write("tokens.yaml", "tokens: [{name: t, key: 0123456789012345678901234}]")
    config_dir.write("config.yaml", "include: [tokens.yaml]\nplugin_roots: [plugins]")
    config_dir.seal()
    return config_dir


def test_a_valid_configuration_has_no_errors(base_config: ConfigDir) -> None:
    found = base_config.examine(
        ROOTS + "plugins: {echo: {schedules: [{every: 5m}]}}\nroutes: [{from: echo, event_type: x, to: sink}]"
    )
    assert found.report.errors == ()
    assert found.report.is_valid
    assert set(found.plugins) == {"echo", "sink"}


# plugin_refs


def test_a_missing_plugin_is_an_error_with_a_suggestion(base_config: ConfigDir) -> None:
    found = base_config.examine(ROOTS + "plugins: {ecko: {}}")
    assert errors(found, "plugin_refs") == {"plugins.ecko": "is in none of the plugin_roots (did you mean 'echo'?)"}


def test_a_disabled_entry_without_a_plugin_is_a_warning(base_config: ConfigDir) -> None:
    """Also for an alias."""
    found = base_config.examine(ROOTS + "plugins: {gone: {enabled: false}, alias: {enabled: false, uses: nothing}}")
    assert found.report.errors == ()
    assert set(warnings(found, "plugin_refs")) == {"plugins.gone", "plugins.alias"}


def test_missing_required_config_makes_only_that_entry_unusable(base_config: ConfigDir) -> None:
    base_config.plugin("mail", required="host user")
    found = base_config.examine(
        ROOTS + "plugins: {mail: {config: {host: h}}, work: {uses: mail, config: {host: h, user: u}}}"
    )
    assert errors(found, "plugin_refs") == {"plugins.mail": "lacks required config: user"}
    assert set(found.plugins) == {"echo", "sink", "work"}


def test_a_plugin_without_an_entry_is_unusable_if_it_requires_config(base_config: ConfigDir) -> None:
    base_config.plugin("mail", required="host")
    found = base_config.examine(ROOTS + "routes: [{from: echo, event_type: x, to: mail}]")
    assert "mail" not in found.plugins
    assert "lacks required config: host" in warnings(found, "unused")["plugins.mail"]
    assert "lacks required config: host" in errors(found, "routes")["routes[0].to"]


def test_an_invalid_plugin_does_not_affect_the_others(base_config: ConfigDir) -> None:
    base_config.write("plugins/broken/manifest.yaml", "nonsense: [")
    base_config.plugin("unsafe")
    (base_config.path / "plugins/unsafe").chmod(0o777)
    found = base_config.examine(ROOTS + "plugins: {echo: {}, unsafe: {}}")
    assert set(found.plugins) == {"echo", "sink"}
    assert "world-writable" in errors(found, "plugin_refs")["plugins.unsafe"]
    assert any("plugin broken is not usable" in warning.message for warning in found.report.warnings)


def test_a_schedule_of_an_unknown_command_is_an_error(base_config: ConfigDir) -> None:
    found = base_config.examine(ROOTS + "plugins: {sink: {schedules: [{every: 5m}]}}")
    path = "plugins.sink.schedules[0].command"
    assert errors(found, "plugin_refs") == {path: "plugin sink has no command 'poll'; it has handle"}


def test_a_timeout_for_an_unknown_command_is_a_warning(base_config: ConfigDir) -> None:
    """Except for the four commands with default timeouts."""
    found = base_config.examine(ROOTS + "plugins: {sink: {timeouts: {pol: 5s, poll: 5s}}}")
    assert set(warnings(found, "plugin_refs")) == {"plugins.sink.timeouts.pol"}


def test_a_configuration_without_plugin_roots_is_an_error(base_config: ConfigDir) -> None:
    assert "contains no directory" in errors(base_config.examine(""), "plugin_refs")["plugin_roots"]


def test_a_missing_plugin_root_is_an_error_at_its_line(base_config: ConfigDir) -> None:
    (error,) = base_config.examine("plugin_roots:\n  - plugins\n  - elsewhere\n").report.errors
    assert str(error).startswith(
        f"{base_config.root}:3: plugin_roots[1]: {base_config.path}/elsewhere: plugin root cannot be searched"
    )


# Aliases


def test_an_alias_may_refer_to_an_alias_in_any_order(base_config: ConfigDir) -> None:
    found = base_config.examine(ROOTS + "plugins: {c: {uses: b}, b: {uses: a}, a: {uses: echo}}")
    assert found.report.errors == ()
    assert {name: plugin.base for name, plugin in found.plugins.items() if name in "abc"} == dict.fromkeys(
        "abc", "echo"
    )


def test_an_alias_cycle_is_reported_once_for_each_alias(base_config: ConfigDir) -> None:
    found = base_config.examine(ROOTS + "plugins: {a: {uses: b}, b: {uses: c}, c: {uses: a}}")
    assert {path: message.partition(": ")[0] for path, message in errors(found, "plugin_refs").items()} == {
        f"plugins.{name}.uses": "aliases form a cycle" for name in "abc"
    }
    assert len(found.report.errors) == 3


def test_an_alias_of_an_unknown_plugin_is_reported_once_for_each_alias(base_config: ConfigDir) -> None:
    found = base_config.examine(ROOTS + "plugins: {a: {uses: b}, b: {uses: ecko}}")
    assert sorted(error.path for error in found.report.errors) == ["plugins.a.uses", "plugins.b.uses"]
    assert "did you mean 'echo'?" in errors(found, "plugin_refs")["plugins.b.uses"]


def test_an_alias_cannot_have_the_name_of_a_plugin(base_config: ConfigDir) -> None:
    found = base_config.examine(ROOTS + "plugins: {sink: {uses: echo}}")
    assert "already the name of the plugin" in errors(found, "plugin_refs")["plugins.sink.uses"]


def test_a_long_chain_of_aliases_is_resolved(base_config: ConfigDir) -> None:
    chain = ", ".join(f"a{number}: {{uses: a{number + 1}}}" for number in range(600))
    found = base_config.examine(ROOTS + f"plugins: {{{chain}, a600: {{uses: echo}}}}")
    assert found.report.errors == ()


# routes


def test_routes_need_installed_enabled_plugins_with_a_handle_command(base_config: ConfigDir) -> None:
    base_config.plugin("poller", commands="poll")
    text = "routes: [{from: gone, event_type: x, to: poller}, {from: echo, event_type: x, to: off}]\n"
    found = base_config.examine(ROOTS + text + "plugins: {off: {uses: echo, enabled: false}}")
    assert errors(found, "routes") == {
        "routes[0].from": "plugin gone is in none of the plugin_roots",
        "routes[0].to": "plugin poller has no command 'handle'; it has poll",
        "routes[1].to": "plugin off is disabled",
    }


@pytest.mark.parametrize(
    ("routes", "cycles"),
    [
        ("a→a", ["a → a"]),
        ("a→b b→a", ["a → b → a"]),
        ("a→b b→c c→b", ["b → c → b"]),
        ("a→b b→a a→b b→a", ["a → b → a"]),
        ("a→b a→c b→d c→d", []),
        ("a→b b→c c→d", []),
        ("a→b b→a c→d d→c", ["a → b → a", "c → d → c"]),
    ],
)
def test_route_cycles_are_reported_once(base_config: ConfigDir, routes: str, cycles: list[str]) -> None:
    """Two paths to the same plugin are not a cycle."""
    pairs = [route.split("→") for route in routes.split()]
    entries = ", ".join(
        f"{{from: {source}, event_type: x{n}, to: {target}}}" for n, (source, target) in enumerate(pairs)
    )
    found = base_config.examine(
        ROOTS + f"plugins: {{{', '.join(f'{x}: {{uses: echo}}' for x in 'abcd')}}}\nroutes: [{entries}]"
    )
    messages = [error.message for error in found.report.errors if error.category == "routes"]
    assert messages == [f"routes form a cycle: {cycle}" for cycle in cycles]


def test_a_cycle_of_thousands_of_routes_is_found(base_config: ConfigDir) -> None:
    routes = ", ".join(f"{{from: p{n}, event_type: x, to: p{(n + 1) % 3000}}}" for n in range(3000))
    plugins = ", ".join(f"p{n}: {{uses: echo}}" for n in range(3000))
    found = base_config.examine(ROOTS + f"plugins: {{{plugins}}}\nroutes: [{routes}]")
    assert len(found.report.errors) == 1


# webhooks, api, tokens


def test_a_webhook_needs_a_plugin_with_a_handle_command(base_config: ConfigDir) -> None:
    base_config.plugin("poller", commands="poll")
    targets = {"/a": "gone", "/b": "poller"}
    endpoints = [f"{{path: {path}, plugin: {to}, secret_ref: t, scheme: github}}" for path, to in targets.items()]
    found = base_config.examine(f"include: [tokens.yaml]\n{ROOTS}webhooks: {{endpoints: [{', '.join(endpoints)}]}}")
    assert set(errors(found, "webhooks")) == {"webhooks.endpoints[0].plugin"}
    assert errors(found, "webhook_handle") == {
        "webhooks.endpoints[1].plugin": "plugin poller has no command 'handle'; it has poll"
    }


@pytest.mark.parametrize(
    ("listen", "is_open"), [("0.0.0.0:80", True), ("':80'", True), ("127.0.0.1:80", False), ("'[::1]:80'", False)]
)
def test_a_listen_address_reachable_from_other_hosts_is_a_warning(
    base_config: ConfigDir, listen: str, is_open: bool
) -> None:
    found = base_config.examine(
        f"{ROOTS}api: {{enabled: yes, listen: {listen}, auth: {{tokens: [{{token: 0123456789abcdef}}]}}}}"
    )
    assert ("api.listen" in warnings(found, "api")) is is_open


def test_short_tokens_and_secrets_are_warnings_without_their_values(base_config: ConfigDir) -> None:
    base_config.write("tokens.yaml", "tokens: [{name: t, key: shortkey}]")
    base_config.write(
        "config.yaml", f"include: [tokens.yaml]\n{ROOTS}api: {{auth: {{tokens: [{{token: shorttoken}}]}}}}"
    )
    base_config.seal()
    found = base_config.examine()
    assert "16 characters" in warnings(found, "api")["api.auth.tokens[0].token"]
    assert "24 characters" in warnings(found, "token_scopes")["tokens[0].key"]
    assert "shortkey" not in str(found.report)
    assert "shorttoken" not in str(found.report)


def test_an_unknown_scope_is_a_warning_with_a_suggestion(base_config: ConfigDir) -> None:
    text = ROOTS + "api: {auth: {tokens: [{token: 0123456789abcdef, scopes: [plugins:rw, 'plugin:echo:rw']}]}}"
    message = warnings(base_config.examine(text), "token_scopes")["api.auth.tokens[0].scopes"]
    assert message.startswith("scope 'plugins:rw' does not exist (did you mean 'plugin:rw'?)")


def test_fixed_scopes_and_scopes_of_one_plugin_or_of_topics_are_known() -> None:
    named = ["plugin:echo:ro", "plugin:my-plugin:rw", "exchange:*:publish"]
    topics = [f"exchange:{topic}:{right}" for topic in ("review.request", "a.*") for right in (*TOPIC_RIGHTS, "rw")]
    assert [scope for scope in (*SCOPES, *named, *topics) if not is_known_scope(scope)] == []


UNKNOWN_SCOPES = {
    "": "",
    "**": "*",
    "job:ro": "jobs:ro",
    "plugin": "plugin:rw",
    "plugin:": "plugin:rw",
    "plugin::ro": "plugin:ro",
    "plugin:echo:admin": "plugin:echo:rw",
    "plugin:echo:read": "plugin:echo:ro",
    "exchanges:read": "exchange:ro",
    "exchange:publish": "exchange:*:publish",
    "exchange:review.request": "exchange:review.request:ro",
    "exchange:review.*:publsh": "exchange:review.*:publish",
    "exchange:review.*:consume": "exchange:review.*:claim",
    "exhange:Review.Request:write": "exchange:review.request:rw",
    "exchange:review..request:ro": "",
    "exchange:*.request:ro": "",
    "exchange::ro": "exchange:ro",
}
"""Unknown scope → the suggestion. A scope for all topics is never suggested instead of one for a topic."""


def test_an_unknown_scope_is_reported_with_the_most_likely_one() -> None:
    found = {scope: suggest_scope(scope) for scope in UNKNOWN_SCOPES if not is_known_scope(scope)}
    assert found == {scope: f" (did you mean {name!r}?)" if name else "" for scope, name in UNKNOWN_SCOPES.items()}


# exchange


def test_a_consumer_of_an_unusable_plugin_is_an_error(base_config: ConfigDir) -> None:
    base_config.plugin("mail", required="host")
    consumers = "[{topic: a, plugin: ecko}, {topic: b, plugin: sink, command: poll}, {topic: c, plugin: mail}]"
    plugins = "plugins: {echo: {enabled: false}}\n"
    found = base_config.examine(ROOTS + plugins + f"exchange: {{consumers: {consumers}}}")
    assert errors(found, "exchange") == {
        "exchange.consumers[0].plugin": "plugin ecko is in none of the plugin_roots (did you mean 'echo'?)",
        "exchange.consumers[1].command": "plugin sink has no command 'poll'; it has handle",
        "exchange.consumers[2].plugin": "plugin mail has no entry, and lacks required config: host",
    }


def test_a_plugin_of_a_consumer_is_used(base_config: ConfigDir) -> None:
    found = base_config.examine(
        ROOTS + "plugins: {sink: {}, echo: {}}\nexchange: {consumers: [{topic: a, plugin: sink}]}"
    )
    assert set(warnings(found, "unused")) == {"plugins.echo"}


def test_consumers_of_a_disabled_exchange_are_a_warning(base_config: ConfigDir) -> None:
    text = ROOTS + "exchange: {enabled: false, consumers: [{topic: a, plugin: sink}]}"
    assert warnings(base_config.examine(text), "exchange") == {
        "exchange.consumers": "have no effect: exchange.enabled is false"
    }


# service, schedule, unused, env_vars


def test_risky_service_settings_are_warnings(base_config: ConfigDir) -> None:
    found = base_config.examine(ROOTS + "service: {tick_interval: 500ms, plugin_env_passthrough: ['*']}")
    assert set(warnings(found, "service")) == {"service.tick_interval", "service.plugin_env_passthrough"}


def test_an_interval_below_one_minute_is_a_warning(base_config: ConfigDir) -> None:
    text = "[{id: a, every: 59s}, {id: b, every: 60s}, {id: c, after: 1s}, {id: d, at: '2026-03-01T08:00:00Z'}]"
    found = base_config.examine(ROOTS + f"plugins: {{echo: {{schedules: {text}}}}}")
    assert set(warnings(found, "schedule")) == {"plugins.echo.schedules[0].every"}
    assert found.report.errors == ()


@pytest.mark.parametrize(("host", "is_reported"), [("UTC", False), ("Europe/Berlin", True)])
def test_a_local_time_without_a_time_zone_is_a_warning_unless_the_host_uses_utc(
    base_config: ConfigDir, monkeypatch: pytest.MonkeyPatch, host: str, is_reported: bool
) -> None:
    monkeypatch.setenv("TZ", host)
    time.tzset()
    try:
        text = "[{id: a, cron: '0 8 * * *'}, {id: b, cron: '0 8 * * *', timezone: UTC}, {id: c, every: 5m}]"
        found = base_config.examine(ROOTS + f"plugins: {{echo: {{schedules: {text}}}}}")
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert set(warnings(found, "schedule")) == ({"plugins.echo.schedules[0]"} if is_reported else set())


def test_unused_plugins_and_entries_are_warnings(base_config: ConfigDir) -> None:
    """A plugin without an entry, and an entry without a trigger."""
    found = base_config.examine(ROOTS + "plugins: {echo: {}}")
    assert set(warnings(found, "unused")) == {"plugins.echo", "plugins.sink"}


def test_warnings_of_the_load_are_part_of_the_report(base_config: ConfigDir) -> None:
    assert warnings(base_config.examine(ROOTS + "service: {name: '${GONE}'}"), "env_vars") == {"service.name": UNSET}


def test_no_complaint_is_reported_twice(base_config: ConfigDir) -> None:
    base_config.plugin("broken")
    base_config.write("plugins/broken/manifest.yaml", "x: 1")
    plugins = "plugins: {a: {uses: broken}, b: {uses: a}, gone: {}, echo: {enabled: no}}\n"
    report = base_config.examine(ROOTS + plugins + "routes: [{from: a, event_type: x, to: echo}]").report
    assert len(set(report.errors)) == len(report.errors)
    assert len(set(report.warnings)) == len(report.warnings)
    assert not set(report.errors) & set(report.warnings)
