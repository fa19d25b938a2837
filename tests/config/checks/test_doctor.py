"""The doctor: the configuration against the plugins that are really there."""

import time

import pytest

from ductile.config.checks.doctor import Examination
from ductile.config.scopes import SCOPES, is_scope
from ductile.core.errors import Complaint
from tests.config.conftest import Home

ROOTS = "plugin_roots: [plugins]\n"


def told(complaints: tuple[Complaint, ...], category: str) -> dict[str, str]:
    """Path → message, for one category."""
    return {complaint.path: complaint.message for complaint in complaints if complaint.category == category}


def errors(examination: Examination, category: str) -> dict[str, str]:
    return told(examination.report.errors, category)


def warnings(examination: Examination, category: str) -> dict[str, str]:
    return told(examination.report.warnings, category)


@pytest.fixture
def base(home: Home) -> Home:
    """Two plugins, and a sealed token."""
    home.plugin("echo")
    home.plugin("sink", commands="handle")
    home.write("tokens.yaml", "tokens: [{name: t, key: 0123456789012345678901234}]")
    home.write("config.yaml", "include: [tokens.yaml]\nplugin_roots: [plugins]")
    home.lock()
    return home


def test_a_healthy_configuration_has_no_errors(base: Home) -> None:
    """And knows the plugins it can use."""
    found = base.examine(
        ROOTS + "plugins: {echo: {schedules: [{every: 5m}]}}\nroutes: [{from: echo, event_type: x, to: sink}]"
    )
    assert found.report.errors == ()
    assert found.report.is_valid
    assert set(found.plugins) == {"echo", "sink"}


# plugin_refs


def test_a_plugin_that_is_not_there_is_an_error_with_a_guess(base: Home) -> None:
    """An entry that nothing can run."""
    found = base.examine(ROOTS + "plugins: {ecko: {}}")
    assert errors(found, "plugin_refs") == {"plugins.ecko": "is in none of the plugin_roots (did you mean 'echo'?)"}


def test_a_disabled_entry_without_its_plugin_is_a_warning(base: Home) -> None:
    """Nothing would start it anyway; the same for an alias."""
    found = base.examine(ROOTS + "plugins: {gone: {enabled: false}, alias: {enabled: false, uses: nothing}}")
    assert found.report.errors == ()
    assert set(warnings(found, "plugin_refs")) == {"plugins.gone", "plugins.alias"}


def test_missing_required_config_makes_that_entry_unusable_and_no_other(base: Home) -> None:
    """The rest goes on."""
    base.plugin("mail", required="host user")
    found = base.examine(ROOTS + "plugins: {mail: {config: {host: h}}, work: {uses: mail, config: {host: h, user: u}}}")
    assert errors(found, "plugin_refs") == {"plugins.mail": "lacks required config: user"}
    assert set(found.plugins) == {"echo", "sink", "work"}


def test_a_plugin_without_an_entry_cannot_be_used_when_it_requires_config(base: Home) -> None:
    """Nothing can give it what it needs; it is worth a word, not an error."""
    base.plugin("mail", required="host")
    found = base.examine(ROOTS + "routes: [{from: echo, event_type: x, to: mail}]")
    assert "mail" not in found.plugins
    assert "lacks required config: host" in warnings(found, "unused")["plugins.mail"]
    assert "lacks required config: host" in errors(found, "routes")["routes[0].to"]


def test_one_bad_plugin_never_hides_the_others(base: Home) -> None:
    """It is rejected with its reason; those beside it are found."""
    base.write("plugins/broken/manifest.yaml", "nonsense: [")
    base.plugin("unsafe")
    (base.folder / "plugins/unsafe").chmod(0o777)
    found = base.examine(ROOTS + "plugins: {echo: {}, unsafe: {}}")
    assert set(found.plugins) == {"echo", "sink"}
    assert "world-writable" in errors(found, "plugin_refs")["plugins.unsafe"]
    assert any("plugin broken is not usable" in warning.message for warning in found.report.warnings)


def test_a_schedule_of_an_unknown_command_is_an_error(base: Home) -> None:
    """It could never run; what the plugin has is said."""
    found = base.examine(ROOTS + "plugins: {sink: {schedules: [{every: 5m}]}}")
    path = "plugins.sink.schedules[0].command"
    assert errors(found, "plugin_refs") == {path: "plugin sink has no command 'poll'; it has handle"}


def test_a_timeout_for_an_unknown_command_is_a_warning(base: Home) -> None:
    """Except for the four names that have defaults."""
    found = base.examine(ROOTS + "plugins: {sink: {timeouts: {pol: 5s, poll: 5s}}}")
    assert set(warnings(found, "plugin_refs")) == {"plugins.sink.timeouts.pol"}


def test_no_plugin_roots_is_an_error(base: Home) -> None:
    """There would be nothing to run."""
    assert "names no directory" in errors(base.examine(""), "plugin_refs")["plugin_roots"]


def test_a_missing_plugin_root_is_an_error_at_its_line(base: Home) -> None:
    """With the line that names it."""
    (error,) = base.examine("plugin_roots:\n  - plugins\n  - elsewhere\n").report.errors
    assert str(error).startswith(
        f"{base.root}:3: plugin_roots[1]: {base.folder}/elsewhere: plugin root cannot be searched"
    )


# Aliases


def test_an_alias_may_be_of_an_alias_in_any_order(base: Home) -> None:
    """Each is a plugin of its own name."""
    found = base.examine(ROOTS + "plugins: {c: {uses: b}, b: {uses: a}, a: {uses: echo}}")
    assert found.report.errors == ()
    assert {name: plugin.base for name, plugin in found.plugins.items() if name in "abc"} == dict.fromkeys(
        "abc", "echo"
    )


def test_a_circle_of_aliases_is_named_once_for_each_alias(base: Home) -> None:
    """Never a hang, never the same complaint twice."""
    found = base.examine(ROOTS + "plugins: {a: {uses: b}, b: {uses: c}, c: {uses: a}}")
    assert {path: message.partition(": ")[0] for path, message in errors(found, "plugin_refs").items()} == {
        f"plugins.{name}.uses": "aliases go in a circle" for name in "abc"
    }
    assert len(found.report.errors) == 3


def test_an_alias_of_nothing_is_told_once_for_each_alias_of_the_chain(base: Home) -> None:
    """Where it is written, not twice."""
    found = base.examine(ROOTS + "plugins: {a: {uses: b}, b: {uses: ecko}}")
    assert sorted(error.path for error in found.report.errors) == ["plugins.a.uses", "plugins.b.uses"]
    assert "did you mean 'echo'?" in errors(found, "plugin_refs")["plugins.b.uses"]


def test_an_alias_cannot_take_the_name_of_a_plugin(base: Home) -> None:
    """Two things under one name."""
    found = base.examine(ROOTS + "plugins: {sink: {uses: echo}}")
    assert "already the name of the plugin" in errors(found, "plugin_refs")["plugins.sink.uses"]


def test_a_long_chain_of_aliases_is_followed(base: Home) -> None:
    """Length cannot hurt."""
    chain = ", ".join(f"a{number}: {{uses: a{number + 1}}}" for number in range(600))
    found = base.examine(ROOTS + f"plugins: {{{chain}, a600: {{uses: echo}}}}")
    assert found.report.errors == ()


# routes


def test_routes_need_plugins_that_are_there_enabled_and_have_handle(base: Home) -> None:
    """Each end is checked."""
    base.plugin("poller", commands="poll")
    text = "routes: [{from: gone, event_type: x, to: poller}, {from: echo, event_type: x, to: off}]\n"
    found = base.examine(ROOTS + text + "plugins: {off: {uses: echo, enabled: false}}")
    assert errors(found, "routes") == {
        "routes[0].from": "plugin gone is in none of the plugin_roots",
        "routes[0].to": "plugin poller has no command 'handle'; it has poll",
        "routes[1].to": "plugin off is disabled",
    }


@pytest.mark.parametrize(
    ("routes", "circles"),
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
def test_circles_of_routes_are_named(base: Home, routes: str, circles: list[str]) -> None:
    """Once each; two ways to one place are no circle."""
    pairs = [route.split("→") for route in routes.split()]
    entries = ", ".join(f"{{from: {one}, event_type: x{n}, to: {two}}}" for n, (one, two) in enumerate(pairs))
    found = base.examine(
        ROOTS + f"plugins: {{{', '.join(f'{x}: {{uses: echo}}' for x in 'abcd')}}}\nroutes: [{entries}]"
    )
    messages = [error.message for error in found.report.errors if error.category == "routes"]
    assert messages == [f"routes go in a circle: {circle}" for circle in circles]


def test_a_long_line_of_routes_is_followed_to_its_end(base: Home) -> None:
    """Thousands of steps, and the circle at the end is found."""
    routes = ", ".join(f"{{from: p{n}, event_type: x, to: p{(n + 1) % 3000}}}" for n in range(3000))
    plugins = ", ".join(f"p{n}: {{uses: echo}}" for n in range(3000))
    found = base.examine(ROOTS + f"plugins: {{{plugins}}}\nroutes: [{routes}]")
    assert len(found.report.errors) == 1


# webhooks, api, tokens


def test_a_webhook_needs_a_plugin_with_handle(base: Home) -> None:
    """A delivery must have somebody who takes it."""
    base.plugin("poller", commands="poll")
    targets = {"/a": "gone", "/b": "poller"}
    endpoints = [f"{{path: {path}, plugin: {to}, secret_ref: t, scheme: github}}" for path, to in targets.items()]
    found = base.examine(f"include: [tokens.yaml]\n{ROOTS}webhooks: {{endpoints: [{', '.join(endpoints)}]}}")
    assert set(errors(found, "webhooks")) == {"webhooks.endpoints[0].plugin", "webhooks.endpoints[1].plugin"}


@pytest.mark.parametrize(
    ("listen", "is_open"), [("0.0.0.0:80", True), ("':80'", True), ("127.0.0.1:80", False), ("'[::1]:80'", False)]
)
def test_an_address_that_others_can_reach_is_worth_a_word(base: Home, listen: str, is_open: bool) -> None:
    """TLS is somebody else's work."""
    found = base.examine(
        f"{ROOTS}api: {{enabled: yes, listen: {listen}, auth: {{tokens: [{{token: 0123456789abcdef}}]}}}}"
    )
    assert ("api.listen" in warnings(found, "api")) is is_open


def test_short_tokens_and_secrets_are_warned_about_without_showing_them(base: Home) -> None:
    """One signed message is enough to try them all."""
    base.write("tokens.yaml", "tokens: [{name: t, key: shortkey}]")
    base.write("config.yaml", f"include: [tokens.yaml]\n{ROOTS}api: {{auth: {{tokens: [{{token: shorttoken}}]}}}}")
    base.lock()
    found = base.examine()
    assert "16 characters" in warnings(found, "api")["api.auth.tokens[0].token"]
    assert "24 characters" in warnings(found, "token_scopes")["tokens[0].key"]
    assert "shortkey" not in str(found.report)
    assert "shorttoken" not in str(found.report)


def test_a_scope_that_grants_nothing_is_warned_about_with_a_guess(base: Home) -> None:
    """A typing mistake in a scope is a closed door, and a puzzle."""
    text = ROOTS + "api: {auth: {tokens: [{token: 0123456789abcdef, scopes: [plugins:rw, 'plugin:echo:rw']}]}}"
    message = warnings(base.examine(text), "token_scopes")["api.auth.tokens[0].scopes"]
    assert message.startswith("scope 'plugins:rw' grants nothing (did you mean 'plugin:rw'?)")


@pytest.mark.parametrize("scope", [*sorted(SCOPES), "plugin:echo:ro", "plugin:my-plugin:rw"])
def test_scopes_that_are_enforced_are_known(scope: str) -> None:
    """The fixed ones, and one plugin's."""
    assert is_scope(scope)


@pytest.mark.parametrize(
    "scope", ["", "plugin", "plugin:", "plugin::ro", "plugin:echo", "plugin:echo:admin", "job:ro", "**"]
)
def test_scopes_that_are_not_enforced_are_not_known(scope: str) -> None:
    """Everything else grants nothing."""
    assert not is_scope(scope)


# service, schedule, unused, env_vars


def test_risky_service_settings_are_worth_a_word(base: Home) -> None:
    """A tick below a second, the whole environment for every plugin."""
    found = base.examine(ROOTS + "service: {tick_interval: 500ms, plugin_env_passthrough: ['*']}")
    assert set(warnings(found, "service")) == {"service.tick_interval", "service.plugin_env_passthrough"}


def test_a_schedule_more_often_than_once_a_minute_is_worth_a_word(base: Home) -> None:
    """`at` and `after` are not intervals."""
    text = "[{id: a, every: 59s}, {id: b, every: 60s}, {id: c, after: 1s}, {id: d, at: '2026-03-01T08:00:00Z'}]"
    found = base.examine(ROOTS + f"plugins: {{echo: {{schedules: {text}}}}}")
    assert set(warnings(found, "schedule")) == {"plugins.echo.schedules[0].every"}
    assert found.report.errors == ()


@pytest.mark.parametrize(("host", "is_told"), [("UTC", False), ("Europe/Berlin", True)])
def test_a_local_time_without_a_zone_is_noted_where_the_host_has_another(
    base: Home, monkeypatch: pytest.MonkeyPatch, host: str, is_told: bool
) -> None:
    """The host's zone counts, for cron and windows alike."""
    monkeypatch.setenv("TZ", host)
    time.tzset()
    try:
        text = "[{id: a, cron: '0 8 * * *'}, {id: b, cron: '0 8 * * *', timezone: UTC}, {id: c, every: 5m}]"
        found = base.examine(ROOTS + f"plugins: {{echo: {{schedules: {text}}}}}")
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert set(warnings(found, "schedule")) == ({"plugins.echo.schedules[0]"} if is_told else set())


def test_what_is_configured_or_installed_but_not_used_is_worth_a_word(base: Home) -> None:
    """A plugin without an entry, an entry without a reason to run."""
    found = base.examine(ROOTS + "plugins: {echo: {}}")
    assert set(warnings(found, "unused")) == {"plugins.echo", "plugins.sink"}


def test_unset_variables_reach_the_report(base: Home) -> None:
    """Warnings of the load are part of what the doctor says."""
    assert warnings(base.examine(ROOTS + "service: {name: '${GONE}'}"), "env_vars") == {
        "service.name": "environment variable GONE is not set"
    }


def test_no_complaint_is_told_twice(base: Home) -> None:
    """A report can be read."""
    base.plugin("broken")
    base.write("plugins/broken/manifest.yaml", "x: 1")
    plugins = "plugins: {a: {uses: broken}, b: {uses: a}, gone: {}, echo: {enabled: no}}\n"
    report = base.examine(ROOTS + plugins + "routes: [{from: a, event_type: x, to: echo}]").report
    assert len(set(report.errors)) == len(report.errors)
    assert len(set(report.warnings)) == len(report.warnings)
    assert not set(report.errors) & set(report.warnings)
