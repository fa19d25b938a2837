"""Secrets never appear in views, reprs, complaints or warnings."""

import base64
import json

import pytest

from ductile.config.load.load import Config
from ductile.config.load.redaction import looks_secret, redact_settings
from ductile.core.errors import ConfigInvalid
from tests.config.conftest import ConfigDir

CANARY = "canary-7f3a9c"
ENV = {f"SECRET_{number}": f"{CANARY}-env-{number}" for number in range(9)}
TEXT = f"""\
include: [tokens.yaml]
environment_vars: {{include: [.env]}}
plugin_roots: [plugins]
api:
  auth:
    tokens:
      - {{token: '{CANARY}-inline', scopes: [plugin:ro]}}
      - {{token: '${{SECRET_0}}', name: second}}
      - {{token: '${{FROM_FILE}}'}}
plugins:
  echo:
    config:
      api_key: {CANARY}-key
      password: {CANARY}-password
      passphrase: {CANARY}-passphrase
      Authorization: {CANARY}-header
      nested: {{deeper: {{client_secret: {CANARY}-nested}}}}
      list: [{{token: {CANARY}-list}}, [{{auth: [{CANARY}-deep]}}]]
      secrets: {{one: {CANARY}-under, two: [{CANARY}-under-list]}}
      session_cookie: {CANARY}-cookie
      plain: '${{SECRET_1}}'
      inside: 'Bearer ${{SECRET_2}} and more'
      database_url: postgres://user:{CANARY}-url@host/db
      harmless: visible-value
      token_ref: hook
    env:
      SOME_PASSWORD: {CANARY}-env-literal
      PLAIN: '${{SECRET_3}}'
    schedules:
      - every: 5m
        payload: {{api_key: {CANARY}-payload, plain: '${{SECRET_4}}'}}
pipelines:
  - name: p
    on: e
    steps:
      - {{id: s, uses: echo, with: {{plain: '${{SECRET_5}}', auth: {CANARY}-with, token: "{{payload.token}}"}}}}
      - {{uses: echo, if: {{path: payload.x, op: eq, value: '${{SECRET_5}}'}}, baggage: {{auth.user: payload.user}}}}
"""


@pytest.fixture
def config(config_dir: ConfigDir) -> Config:
    """A configuration with a canary in every position that may contain a secret."""
    config_dir.plugin("echo")
    config_dir.write(".env", f"FROM_FILE={CANARY}-file\nUNUSED={CANARY}-unused")
    config_dir.write(
        "tokens.yaml", f"tokens: [{{name: hook, key: {CANARY}-hook}}, {{name: env, key: '{CANARY}-literal'}}]"
    )
    config_dir.write("config.yaml", TEXT)
    for name, value in ENV.items():
        config_dir.write(".env", (config_dir.path / ".env").read_text() + f"\n{name}={value}")
    config_dir.seal()
    return config_dir.load(None, ENV)


def test_redacted_settings_contain_no_secret(config: Config) -> None:
    """Tokens, keys, nested plugin configuration, environment, payloads, pipelines, URLs."""
    shown = redact_settings(config.settings, config.mask)
    text = json.dumps(shown)
    assert CANARY not in text
    assert base64.b64encode(CANARY.encode()).decode()[:16] not in text


def test_redacted_settings_contain_all_other_values(config: Config) -> None:
    shown = redact_settings(config.settings, config.mask)
    assert shown["plugins"]["echo"]["config"]["harmless"] == "visible-value"
    assert shown["plugins"]["echo"]["config"]["token_ref"] == "hook"
    assert shown["plugins"]["echo"]["config"]["inside"] == "Bearer *** and more"
    assert shown["plugins"]["echo"]["config"]["database_url"] == "postgres://user:***@host/db"
    assert shown["api"]["auth"]["tokens"][0] == {
        "token": "***",
        "scopes": ["plugin:ro"],
        "name": "",
        "expires_at": None,
    }
    assert shown["tokens"][0]["name"] == "hook"
    assert shown["pipelines"][0]["name"] == "p"
    first, second = shown["pipelines"][0]["steps"]
    assert first["with"] == {"plain": "***", "auth": "***", "token": "{payload.token}"}
    assert second["baggage"] == {"auth.user": "payload.user"}


@pytest.mark.parametrize("printed", [repr, str])
def test_the_repr_of_every_part_contains_no_secret(config: Config, printed: type[str]) -> None:
    """A repr may be logged accidentally."""
    parts = [
        config,
        config.settings,
        config.settings.api,
        config.settings.plugins,
        config.settings.tokens,
        config.files,
    ]
    parts += [
        config.settings.pipelines[0].steps[0],
        *config.plans.by_name["p"].nodes.values(),
        config.grants,
        config.seal,
        config.drifts,
        config.warnings,
        config.mask,
    ]
    parts += list(config.settings.plugins.values()) + list(config.settings.tokens) + list(config.files)
    assert not [part for part in parts if CANARY in printed(part)]


def test_the_mask_hides_every_known_secret_in_a_text(config: Config) -> None:
    """Tokens, keys, and data for plugins."""
    names = ("inline", "hook", "literal", "key", "password", "nested", "list", "deep", "under", "under-list", "payload")
    secrets = [f"{CANARY}-{name}" for name in names] + [ENV[f"SECRET_{number}"] for number in range(6)]
    assert config.mask(" ".join(secrets)).replace("***", "").strip() == ""


def test_the_digest_changes_when_only_a_secret_changes(config_dir: ConfigDir) -> None:
    text = "api: {auth: {tokens: [{token: '${T}'}]}}\nplugins: {a: {config: {k: '${K}'}}}"
    digests = {config_dir.load(text, {"T": t, "K": k}).digest for t in ("one", "two") for k in ("one", "two")}
    assert len(digests) == 4
    assert config_dir.load(text, {"T": "one", "K": "one"}).digest in digests


INVALID = [
    f"api: {{auth: {{tokens: [{CANARY}]}}}}",
    f"api: {{auth: {{tokens: {CANARY}}}}}",
    f"api: {{auth: {CANARY}}}",
    f"api: {{auth: {{tokens: [{{token: [{CANARY}]}}]}}}}",
    f"api: {{auth: {{tokens: [{{token: {{v: {CANARY}}}}}]}}}}",
    f"plugins: {{a: {{config: {CANARY}}}}}",
    f"plugins: {{a: {{config: [{CANARY}]}}}}",
    f"plugins: {{a: {{env: {CANARY}}}}}",
    f"plugins: {{a: {{env: {{'A-B': {CANARY}}}}}}}",
    f"plugins: {{a: {{config: {{key_ref: {CANARY}}}}}}}",
    f"webhooks: {{endpoints: [{{path: /a, plugin: p, scheme: github, secret_ref: {CANARY}}}]}}",
    f"instances: [{{name: a, base_url: 'http://x', ingress_path: /p, secret_ref: {CANARY}}}]",
    "service: {max_workers: '${SECRET}'}",
    "service: {log_level: '${SECRET}'}",
    "service: {tick_interval: '${SECRET}'}",
    "service: {strict_mode: '${SECRET}'}",
    "service: {limits: {stdout: '${SECRET}'}}",
    "api: {listen: '${SECRET}'}",
    "plugins: {a: {uses: '${SECRET}!'}}",
    "plugins: {a: {schedules: [{cron: '${SECRET}'}]}}",
    "plugins: {a: {schedules: [{cron: '${SECRET} * * * *'}]}}",
    "plugins: {a: {schedules: [{at: '${SECRET}'}]}}",
    "plugins: {a: {schedules: [{every: '${SECRET}'}]}}",
    "plugins: {a: {schedules: [{timezone: '${SECRET}'}]}}",
    "plugins: {a: {schedules: [{only_between: '${SECRET}'}]}}",
    "plugins: {a: {schedules: [{not_on: ['${SECRET}']}]}}",
]


@pytest.mark.parametrize("secret", [CANARY, CANARY * 10, f"{CANARY}\n'\"{CANARY}"])
def test_no_complaint_contains_a_secret(config_dir: ConfigDir, secret: str) -> None:
    """Neither a secret in the wrong position nor the value of a variable."""
    leaks = []
    for text in INVALID:
        with pytest.raises(ConfigInvalid) as caught:
            config_dir.load(text, {"SECRET": secret})
        if CANARY in str(caught.value) or CANARY in repr(caught.value):
            leaks.append(text)
    assert leaks == []


@pytest.mark.parametrize(
    "name", ["api_key", "API-KEY", "clientSecret", "password", "passwd", "pwd", "auth", "set_cookie"]
)
def test_secret_looking_names(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["token_ref", "secret_ref", "url", "message", "interval"])
def test_names_that_do_not_look_secret(name: str) -> None:
    """A name that ends in `_ref` only refers to a secret."""
    assert not looks_secret(name)
