"""Rules between values: contradictions are errors at load."""

import pytest

from ductile.core.errors import ConfigInvalid
from tests.config.conftest import ConfigDir

ENDPOINT = "plugin: p, secret_ref: t, signature_header: X-Sig"
VIOLATIONS: list[tuple[str, str, str]] = [
    (
        "service: {job_queue_retention: 1h, dedupe_ttl: 2h}",
        "service.job_queue_retention",
        "must not be shorter than dedupe_ttl",
    ),
    ("service: {tick_interval: 99ms}", "service.tick_interval", "100ms or longer"),
    ("service: {tick_interval: 0}", "service.tick_interval", "100ms or longer"),
    ("service: {name: Küche}\nremote_ingress: {peers: []}", "service.name", "lower-case words joined by '-'"),
    ("api: {enabled: true}", "api", "has no usable token"),
    (
        "api:\n  auth: {tokens: [{token: aaaaaaaaaaaaaaaa}, {token: aaaaaaaaaaaaaaaa}]}",
        "api.auth.tokens[1].token",
        "the same",
    ),
    ("service: {admission: {require_api_auth: true}}", "api", "has no usable token"),
    (
        "api: {auth: {tokens: [{name: a, token: aaaaaaaaaaaaaaaa}, {name: a, token: bbbbbbbbbbbbbbbb}]}}",
        "api.auth.tokens[1].name",
        "used twice",
    ),
    (
        "api: {auth: {tokens: [{name: token-3fa9c1, token: aaaaaaaaaaaaaaaa}]}}",
        "api.auth.tokens[0].name",
        "'token-3fa9c1' is reserved for tokens without a name",
    ),
    ("api: {allowed_origins: ['*']}", "api.allowed_origins[0]", "is not an origin"),
    ("api: {allowed_origins: ['https://a.example/']}", "api.allowed_origins[0]", "is not an origin"),
    ("remote_ingress: {listen_path: /relay}", "remote_ingress.listen_path", "is reserved by the API"),
    (
        "service: {max_workers: 2}\nplugins: {p: {parallelism: 3}}",
        "plugins.p.parallelism",
        "more than service.max_workers (2)",
    ),
    ("plugins: {p: {schedules: [{every: 5m}, {every: 6m}]}}", "plugins.p.schedules[1].id", "is used twice"),
    ("plugins: {p: {schedules: [{}]}}", "plugins.p.schedules[0]", "exactly one of every, cron, at, after; it has none"),
    ("plugins: {p: {schedules: [{every: 5m, after: 5m}]}}", "plugins.p.schedules[0]", "it has every and after"),
    (
        "plugins: {p: {schedules: [{every: 5m, command: handle}]}}",
        "plugins.p.schedules[0].command",
        "cannot be scheduled",
    ),
    (
        "plugins: {p: {schedules: [{after: 5m, catch_up: run_all}]}}",
        "plugins.p.schedules[0].catch_up",
        "requires `every`",
    ),
    (
        "plugins: {p: {schedules: [{cron: '0 0 * * *', catch_up: run_once}]}}",
        "plugins.p.schedules[0].catch_up",
        "requires `every`",
    ),
    (
        "plugins: {p: {schedules: [{after: 5m, jitter: 1s}]}}",
        "plugins.p.schedules[0].jitter",
        "requires `every` or `cron`",
    ),
    (
        "plugins: {p: {schedules: [{every: 5m, jitter: 6m}]}}",
        "plugins.p.schedules[0].jitter",
        "longer than the interval",
    ),
    (
        "plugins: {p: {schedules: [{every: 5m, preferred_window: {start: '8:00', end: '08:00'}}]}}",
        "plugins.p.schedules[0].preferred_window",
        "starts and ends at the same time",
    ),
    (
        "plugins: {p: {schedules: [{cron: 0 4 * * mon, not_on: [mon, tue]}]}}",
        "plugins.p.schedules[0].not_on",
        "contains every weekday of `cron: 0 4 * * mon`, so the schedule never fires",
    ),
    (
        "plugins: {p: {schedules: [{every: 5m, not_on: [0, 1, 2, 3, 4, 5, sat, 7]}]}}",
        "plugins.p.schedules[0].not_on",
        "never fires",
    ),
    (
        "plugins: {p: {config: {key_ref: other}}}",
        "plugins.p.config.key_ref",
        "the name of a token in tokens.yaml (known: t)",
    ),
    ("plugins: {p: {config: {key_ref: 5}}}", "plugins.p.config.key_ref", "the name of a token"),
    ("plugins: {p: {config: {key_ref: [t]}}}", "plugins.p.config.key_ref", "the name of a token"),
    (
        f"webhooks: {{endpoints: [{{path: /a, {ENDPOINT}}}, {{path: /a, {ENDPOINT}}}]}}",
        "webhooks.endpoints[1].path",
        "used twice",
    ),
    (
        f"webhooks: {{endpoints: [{{path: /a, name: n, {ENDPOINT}}}, {{path: /b, name: n, {ENDPOINT}}}]}}",
        "webhooks.endpoints[1].name",
        "used twice",
    ),
    (
        "webhooks: {endpoints: [{path: /a, secret_ref: t, scheme: github}]}",
        "webhooks.endpoints[0]",
        "it has none of them",
    ),
    (
        "webhooks: {endpoints: [{path: /a, plugin: p, event: e, secret_ref: t, scheme: github}]}",
        "webhooks.endpoints[0]",
        "it has plugin and event",
    ),
    (
        "webhooks: {endpoints: [{path: /a, pipeline: gone, secret_ref: t, scheme: github}]}",
        "webhooks.endpoints[0].pipeline",
        "pipeline 'gone' does not exist",
    ),
    (
        "webhooks: {endpoints: [{path: /a, plugin: p, secret_ref: t}]}",
        "webhooks.endpoints[0].signature_header",
        "is missing",
    ),
    (
        "webhooks: {endpoints: [{path: /a, plugin: p, secret_ref: t, scheme: standard-webhooks}]}",
        "webhooks.endpoints[0].secret_ref",
        "a base64-encoded secret",
    ),
    (
        "webhooks: {endpoints: [{path: /a, plugin: p, secret_ref: t, scheme: stripe, once: body}]}",
        "webhooks.endpoints[0].once",
        "scheme stripe signs a timestamp",
    ),
    (
        f"webhooks: {{endpoints: [{{path: /a, {ENDPOINT}, once: body, delivery_id_header: X-Id}}]}}",
        "webhooks.endpoints[0].once",
        "delivery_id_header is not used",
    ),
    (
        f"webhooks: {{endpoints: [{{path: /a, {ENDPOINT}, forward_headers: [X-A, Cookie]}}]}}",
        "webhooks.endpoints[0].forward_headers",
        "Cookie contains credentials",
    ),
    (
        f"webhooks: {{endpoints: [{{path: /healthz, {ENDPOINT}}}]}}",
        "webhooks.endpoints[0].path",
        "reserved for the health check",
    ),
    (
        f"webhooks: {{endpoints: [{{path: /a/../b, {ENDPOINT}}}]}}",
        "webhooks.endpoints[0].path",
        "'/a/../b' cannot be requested: remove %, empty segments, `.` and `..`",
    ),
    (
        f"webhooks: {{endpoints: [{{path: /a%20b, {ENDPOINT}}}]}}",
        "webhooks.endpoints[0].path",
        "'/a%20b' cannot be requested: remove %, empty segments, `.` and `..`",
    ),
    (
        "webhooks: {endpoints: [{path: /a, event: 'x.{kind}', secret_ref: t, scheme: github}]}",
        "webhooks.endpoints[0].event",
        "'x.{kind}': braces are only allowed for headers, such as {header.X-GitHub-Event}",
    ),
    (
        "webhooks: {endpoints: [{path: /a, event: 'ductile.step.failed', secret_ref: t, scheme: github}]}",
        "webhooks.endpoints[0].event",
        "'ductile.step.failed': event types that start with `ductile.` are reserved",
    ),
    (
        "webhooks: {endpoints: [{path: /a, plugin: p, secret_ref: [t, u], scheme: github}]}",
        "webhooks.endpoints[0].secret_ref",
        "must be the name of a token",
    ),
    (
        f"api: {{enabled: true, listen: 'x:1', auth: {{tokens: [{{token: a}}]}}}}\n"
        f"webhooks: {{listen: 'x:1', endpoints: [{{path: /a, {ENDPOINT}}}]}}",
        "webhooks.listen",
        "also the address of the API",
    ),
    (
        "instances: [{name: a, base_url: 'http://x', ingress_path: /p, secret_ref: u}]",
        "instances[0].secret_ref",
        "must be the name of a token",
    ),
    (
        "instances: [{name: a, base_url: 'http://x', ingress_path: /p, secret_ref: t},"
        " {name: a, base_url: 'http://y', ingress_path: /p, secret_ref: t}]",
        "instances[1].name",
        "used twice",
    ),
    (
        "remote_ingress: {peers: [{name: a, secret_ref: u}]}",
        "remote_ingress.peers[0].secret_ref",
        "must be the name of a token",
    ),
    (
        "remote_ingress: {peers: [{name: a, secret_ref: t}, {name: a, secret_ref: t}]}",
        "remote_ingress.peers[0].name",
        "used twice",
    ),
    (
        "remote_ingress: {require_key_id: true, peers: [{name: a, secret_ref: t}]}",
        "remote_ingress.peers[0].key_id",
        "require_key_id requires it",
    ),
    (
        "exchange: {consumers: [{topic: a.request}]}",
        "exchange.consumers[0]",
        "needs exactly one of plugin, pipeline, event; it has none of them",
    ),
    (
        "exchange: {consumers: [{topic: a.request, plugin: p, event: e}]}",
        "exchange.consumers[0]",
        "it has plugin and event",
    ),
    (
        "exchange: {consumers: [{topic: a.request, plugin: p}, {topic: a.request, event: e}]}",
        "exchange.consumers[1].topic",
        "a.request is used twice",
    ),
    (
        "exchange: {consumers: [{topic: a.request, event: e, command: poll}]}",
        "exchange.consumers[0].command",
        "requires `plugin`",
    ),
    (
        "pipelines: [{name: deploy, on: e, steps: [{uses: p}]}]\n"
        "exchange: {consumers: [{topic: a.request, pipeline: deplo}]}",
        "exchange.consumers[0].pipeline",
        "pipeline 'deplo' does not exist (did you mean 'deploy'?)",
    ),
    (
        "exchange: {consumers: [{topic: a.request, event: ductile.step.failed}]}",
        "exchange.consumers[0].event",
        "event types that start with `ductile.` are reserved",
    ),
    (
        "exchange: {consumers: [{topic: a.request, plugin: p, failure_topic: a.request}]}",
        "exchange.consumers[0].failure_topic",
        "every reply would start another run",
    ),
    (
        "exchange: {topics: {a.request: {dead_letter: a.request}}}",
        "exchange.topics.a.request.dead_letter",
        "is the topic itself",
    ),
]


@pytest.fixture
def base_config(config_dir: ConfigDir) -> ConfigDir:
    """A sealed configuration with one token."""
    config_dir.write("tokens.yaml", "tokens: [{name: t, key: 0123456789012345678901234}]")
    config_dir.write("config.yaml", "include: [tokens.yaml]")
    config_dir.seal()
    return config_dir


def test_values_that_contradict_each_other_are_refused(base_config: ConfigDir) -> None:
    """At the value to change, with the reason."""
    failures = []
    for text, path, reason in VIOLATIONS:
        complaints = {found.path: found for found in base_config.complaints(f"include: [tokens.yaml]\n{text}")}
        found = complaints.get(path)
        if found is None or reason not in found.message or found.mark is None or found.category == "config":
            failures.append((text, path, reason, complaints))
    assert failures == []


def test_two_api_tokens_must_not_have_the_same_name(config_dir: ConfigDir) -> None:
    """In either file. A named secret without scopes may have the name of an API token."""
    config_dir.write("scopes.json", '{"scopes": ["jobs:ro"]}')
    tokens = (
        "tokens: [{name: t, key: 0123456789012345678901234, scopes_file: scopes.json}, {name: s, key: abcdefghijk}]"
    )
    config_dir.write("tokens.yaml", tokens)
    text = "include: [tokens.yaml]\napi: {auth: {tokens: [{name: s, token: aaaaaaaaaaaaaaaa}, %s]}}"
    config_dir.write("config.yaml", text % "{name: t, token: bbbbbbbbbbbbbbbb}")
    with pytest.raises(ConfigInvalid, match=r"config.yaml:2: api.auth.tokens\[1\].name: is used twice") as caught:
        config_dir.seal()
    assert len(caught.value.complaints) == 1
    config_dir.write("config.yaml", text % "{name: u, token: bbbbbbbbbbbbbbbb}")
    config_dir.seal()


def test_two_named_secrets_must_not_have_the_same_name(config_dir: ConfigDir) -> None:
    config_dir.write("tokens.yaml", "tokens: [{name: t, key: a}, {name: t, key: b}]")
    config_dir.write("config.yaml", "include: [tokens.yaml]")
    with pytest.raises(ConfigInvalid, match=r"tokens\[1\]\.name: 't' is used twice"):
        config_dir.seal()


@pytest.mark.parametrize(
    "text",
    [
        "service: {job_queue_retention: 2h, dedupe_ttl: 2h}",
        "service: {job_queue_retention: 0, dedupe_ttl: 2h}",
        "service: {name: Küche}",
        "service: {tick_interval: 100ms}",
        "plugins: {p: {schedules: [{id: a, every: 5m}, {id: b, every: 5m, jitter: 5m}]}, q: {}}",
        "plugins: {p: {config: {key_ref: t}}}",
        "plugins: {p: {schedules: [{at: '2026-03-01T08:00:00Z'}]}}",
        "plugins: {p: {schedules: [{after: 0}]}}",
        "plugins: {p: {schedules: [{cron: '0 0 * * *', jitter: 1h}]}}",
        "webhooks: {endpoints: [{path: /a, event: 'x.{header.X-Kind}', secret_ref: [t], scheme: stripe}]}",
        "pipelines: [{name: n, on: e, steps: [{uses: p}]}]\n"
        "webhooks: {endpoints: [{path: /a, pipeline: n, secret_ref: t, scheme: slack}]}",
        "remote_ingress: {require_key_id: true, peers: [{name: a, key_id: k, secret_ref: t}]}",
        "exchange: {consumers: [{topic: a, plugin: p, command: poll, success_topic: b}, {topic: b, event: e}]}",
        "exchange: {topics: {a.*: {dead_letter: a.dead}}}",
    ],
)
def test_values_that_do_not_contradict_each_other_are_accepted(base_config: ConfigDir, text: str) -> None:
    assert base_config.load(f"include: [tokens.yaml]\n{text}").digest


def test_violations_unset_variables_and_scope_file_permissions_are_reported_together(base_config: ConfigDir) -> None:
    base_config.write("tokens.yaml", "tokens: [{name: t, key: 0123456789012345678901234, scopes_file: open.json}]")
    base_config.write("open.json", "{}").chmod(0o666)
    base_config.write(
        "config.yaml", "include: [tokens.yaml]\nservice: {tick_interval: 1ms}\nplugins: {p: {env: {A: '${GONE}'}}}"
    )
    with pytest.raises(ConfigInvalid, match="tick_interval") as caught:
        base_config.seal()
    assert "environment variable GONE is not set" in str(caught.value)
    assert "is world-writable" in str(caught.value)
