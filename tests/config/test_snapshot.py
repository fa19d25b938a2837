"""Snapshots: plugins with their worker slots, environment and configuration."""

from collections.abc import Mapping

import pytest

from ductile.config.snapshot import PluginUnavailable, Snapshot, build_snapshot
from ductile.core.errors import NotFound
from tests.config.conftest import ConfigDir

ENVIRONMENT = {
    "PATH": "/bin",
    "HOME": "/home/me",
    "LC_ALL": "C",
    "XDG_RUNTIME_DIR": "/run",
    "HTTPS_PROXY": "http://proxy",
    "no_proxy": "localhost",
    "SSL_CERT_FILE": "/ca.pem",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "DUCTILE_API_TOKEN": "secret",
    "LD_PRELOAD": "evil.so",
    "PYTHONPATH": "/evil",
}


def snapshot_of(config_dir: ConfigDir, text: str, environ: Mapping[str, str] = ENVIRONMENT) -> Snapshot:
    for name in ("echo", "sink"):
        config_dir.plugin(name)
    return build_snapshot(config_dir.examine(f"plugin_roots: [plugins]\n{text}", environ), environ)


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("service: {max_workers: 4}", 1),
        ("service: {max_workers: 4}\nplugins: {echo: {}}", 4),
        ("service: {max_workers: 4}\nplugins: {echo: {parallelism: 2}}", 2),
    ],
)
def test_worker_slots_of_a_plugin(config_dir: ConfigDir, text: str, slots: int) -> None:
    """One without an entry; otherwise `parallelism`, or all workers."""
    assert snapshot_of(config_dir, text).slots["echo"] == slots


def test_the_environment_of_a_plugin_contains_only_default_and_own_variables(config_dir: ConfigDir) -> None:
    """It contains no secret of the service."""
    plugin = snapshot_of(config_dir, "plugins: {echo: {env: {MODE: fast, HOME: /elsewhere}}}").plugin("echo")
    assert set(plugin.environment) - {"MODE", "DUCTILE_PLUGIN", "DUCTILE_PLUGIN_DIR"} == {
        "PATH",
        "HOME",
        "LC_ALL",
        "XDG_RUNTIME_DIR",
        "HTTPS_PROXY",
        "no_proxy",
        "SSL_CERT_FILE",
        "PYTHONDONTWRITEBYTECODE",
    }
    assert (plugin.environment["MODE"], plugin.environment["HOME"]) == ("fast", "/elsewhere")
    assert plugin.environment["DUCTILE_PLUGIN_DIR"] == str(config_dir.path / "plugins/echo")


@pytest.mark.parametrize(("passed", "expected"), [("[PYTHONPATH]", {"PYTHONPATH"}), ("['*']", set(ENVIRONMENT))])
def test_plugin_env_passthrough_adds_variables(config_dir: ConfigDir, passed: str, expected: set[str]) -> None:
    snapshot = snapshot_of(config_dir, f"service: {{plugin_env_passthrough: {passed}}}")
    assert expected <= set(snapshot.plugin("echo").environment)


def test_values_of_env_files_are_not_passed_to_plugins(config_dir: ConfigDir) -> None:
    config_dir.write(".env", "FROM_FILE=secret")
    text = "environment_vars: {include: [.env]}\nservice: {plugin_env_passthrough: ['*']}"
    assert "FROM_FILE" not in snapshot_of(config_dir, text).plugin("echo").environment


def test_an_unavailable_plugin_has_a_reason(config_dir: ConfigDir) -> None:
    """Disabled, incomplete, rejected or not installed."""
    config_dir.plugin("mail", required="host")
    config_dir.plugin("open")
    (config_dir.path / "plugins/open").chmod(0o777)
    snapshot = snapshot_of(config_dir, "plugins: {echo: {enabled: false}, mail: {}}")
    for name, reason in {"echo": "is disabled", "mail": "lacks required config", "open": "is not usable"}.items():
        with pytest.raises(PluginUnavailable, match=reason):
            snapshot.plugin(name)
    with pytest.raises(NotFound, match="gone"):
        snapshot.plugin("gone")


def test_the_repr_of_a_snapshot_contains_no_secret(config_dir: ConfigDir) -> None:
    text = "plugins: {echo: {config: {api_key: canary-0123}, env: {A: canary-4567}}}"
    assert "canary" not in repr(snapshot_of(config_dir, text))
    assert "secret" not in repr(snapshot_of(config_dir, text).plugin("sink").entry)


def test_the_configuration_of_a_plugin_is_serialized_once(config_dir: ConfigDir) -> None:
    plugin = snapshot_of(
        config_dir, "plugins: {echo: {config: {n: 1.5, big: 123456789012345678901, on: [yes, null]}}}"
    ).plugin("echo")
    assert plugin.config_json == '{"n":1.5,"big":123456789012345678901,"on":["yes",null]}'
