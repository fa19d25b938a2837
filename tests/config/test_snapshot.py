"""What the running service works with: lanes with their slots, environment and configuration."""

from collections.abc import Mapping

import pytest

from ductile.config.snapshot import PluginUnavailable, Snapshot, take_snapshot
from ductile.core.errors import NotFound
from tests.config.conftest import Home

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


def taken(home: Home, text: str, environ: Mapping[str, str] = ENVIRONMENT) -> Snapshot:
    for name in ("echo", "sink"):
        home.plugin(name)
    return take_snapshot(home.examine(f"plugin_roots: [plugins]\n{text}", environ), environ)


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("service: {max_workers: 4}", 1),
        ("service: {max_workers: 4}\nplugins: {echo: {}}", 4),
        ("service: {max_workers: 4}\nplugins: {echo: {parallelism: 2}}", 2),
    ],
)
def test_a_plugin_has_the_slots_the_operator_gives_it(home: Home, text: str, slots: int) -> None:
    """One without an entry; all workers unless something else is said."""
    assert taken(home, text).slots["echo"] == slots


def test_a_plugin_process_gets_an_environment_built_from_nothing(home: Home) -> None:
    """Ordinary variables and its own; no secret of the service."""
    lane = taken(home, "plugins: {echo: {env: {MODE: fast, HOME: /elsewhere}}}").lane("echo")
    assert set(lane.environment) - {"MODE", "DUCTILE_PLUGIN", "DUCTILE_PLUGIN_DIR"} == {
        "PATH",
        "HOME",
        "LC_ALL",
        "XDG_RUNTIME_DIR",
        "HTTPS_PROXY",
        "no_proxy",
        "SSL_CERT_FILE",
    }
    assert (lane.environment["MODE"], lane.environment["HOME"]) == ("fast", "/elsewhere")
    assert lane.environment["DUCTILE_PLUGIN_DIR"] == str(home.folder / "plugins/echo")


@pytest.mark.parametrize(("passed", "expected"), [("[PYTHONPATH]", {"PYTHONPATH"}), ("['*']", set(ENVIRONMENT))])
def test_the_operator_may_pass_more(home: Home, passed: str, expected: set[str]) -> None:
    """Named variables, or all."""
    snapshot = taken(home, f"service: {{plugin_env_passthrough: {passed}}}")
    assert expected <= set(snapshot.lane("echo").environment)


def test_values_of_env_files_do_not_reach_plugins(home: Home) -> None:
    """They feed `${NAME}` and nothing else."""
    home.write(".env", "FROM_FILE=secret")
    text = "environment_vars: {include: [.env]}\nservice: {plugin_env_passthrough: ['*']}"
    assert "FROM_FILE" not in taken(home, text).lane("echo").environment


def test_a_plugin_that_must_not_start_says_why(home: Home) -> None:
    """Disabled, incomplete, rejected, or not there at all."""
    home.plugin("mail", required="host")
    home.plugin("open")
    (home.folder / "plugins/open").chmod(0o777)
    snapshot = taken(home, "plugins: {echo: {enabled: false}, mail: {}}")
    for name, reason in {"echo": "is disabled", "mail": "lacks required config", "open": "is not usable"}.items():
        with pytest.raises(PluginUnavailable, match=reason):
            snapshot.lane(name)
    with pytest.raises(NotFound, match="gone"):
        snapshot.lane("gone")


def test_a_snapshot_prints_no_secret(home: Home) -> None:
    """It holds all of them."""
    text = "plugins: {echo: {config: {api_key: canary-0123}, env: {A: canary-4567}}}"
    assert "canary" not in repr(taken(home, text))
    assert "secret" not in repr(taken(home, text).lane("sink").entry)


def test_the_configuration_of_a_plugin_is_ready_as_json(home: Home) -> None:
    """Written once, exactly as YAML has it."""
    lane = taken(home, "plugins: {echo: {config: {n: 1.5, big: 123456789012345678901, on: [yes, null]}}}").lane("echo")
    assert lane.config_json == '{"n":1.5,"big":123456789012345678901,"on":["yes",null]}'
