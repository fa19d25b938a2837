"""The secrets of a configuration as a snapshot stores them."""

import json

from ductile.config.views.secret_uses import secret_uses, stored_fingerprints
from tests.config.conftest import ConfigDir

CONFIG = """
include: [tokens.yaml]
plugin_roots: [plugins]
api: {auth: {tokens: [{token: 0123456789abcdefghij, scopes: ["*"]}]}}
webhooks: {listen: "127.0.0.1:0", endpoints: [{path: /in, name: in, plugin: echo, secret_ref: hook, scheme: github}]}
plugins:
  echo:
    config: {url: "http://x", nested: [{api_key: aaaaaaaa}], token: "{payload.t}"}
    env: {DB_PASSWORD: bbbbbbbb}
    schedules: [{every: 1h, payload: {password: cccccccc, plain: x}}]
"""


def test_every_secret_is_listed_with_its_place_and_source(config_dir: ConfigDir) -> None:
    """Sorted by place, without the values, and without templates."""
    config_dir.plugin("echo")
    config_dir.write("tokens.yaml", "tokens: [{name: hook, key: 0123456789012345678901234}]")
    config_dir.write("config.yaml", CONFIG)
    config_dir.seal()
    uses = secret_uses(config_dir.load().settings)
    assert [(use["purpose"], use["source"], use.get("ref")) for use in uses] == [
        ("api.auth.tokens[0].token", "config", None),
        ("plugins.echo.config.nested[0].api_key", "plugin_config", None),
        ("plugins.echo.env.DB_PASSWORD", "plugin_env", None),
        ("plugins.echo.schedules[0].payload.password", "schedule_payload", None),
        ("tokens.hook.key", "tokens.yaml", "hook"),
        ("webhooks.in.secret_ref", "tokens.yaml", "hook"),
    ]
    assert all(use["present"] and use["fingerprint"].startswith("secretfp_blake3:") for use in uses)
    assert len({use["fingerprint"] for use in uses}) == len(uses)
    stored = json.dumps(uses)
    assert not any(secret in stored for secret in ("0123456789", "aaaaaaaa", "bbbbbbbb", "cccccccc"))
    assert len(stored_fingerprints(stored)) == len(uses)


def test_a_stored_list_that_cannot_be_read_has_no_fingerprints() -> None:
    assert [stored_fingerprints(text) for text in (None, "{}", "x", '[1, {"purpose": "a"}]')] == [{}] * 4
