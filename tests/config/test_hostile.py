"""Hostile input: a load returns a configuration or complaints. It never crashes, blocks or reveals a secret."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ductile.config.checks.examine import examine
from ductile.config.load.load import load
from ductile.config.load.redaction import redact_settings
from ductile.config.sections.settings import Settings
from ductile.core.errors import ConfigInvalid
from ductile.core.formats import strict_json, strict_yaml
from ductile.core.formats.yaml_fields import YAML_NAME
from tests.config.conftest import ConfigDir

CANARY = "canary-51d0a77e"
HOSTILE = [
    "x" * 100_000,
    "a\0b",
    "\x1b[31m\r\n",
    "\u202e\u2066\ufeff",
    "😀" * 1000,
    "../" * 200 + "etc/passwd",
    "${" * 1000,
    "${CANARY}" * 100,
    "$${CANARY}",
    "-1",
    "9" * 400,
    "-" + "9" * 400,
    "1e400",
    "0x" + "f" * 400,
    "-1s",
    "1" * 400 + "h",
    "::",
    "[::]:" + "9" * 400,
    "\\" * 1000,
    "%s%n{}{0.__class__}",
    "' OR 1=1 --",
    "null",
    "~",
    "~root/x",
    "*",
    "/dev/zero",
    "/proc/self/mem",
]


NAMES = {
    "include[0]",
    "environment_vars.include[0]",
    "plugin_roots[0]",
    "plugins.name.uses",
    "notify.to",
    "routes[0].from",
    "routes[0].to",
}
"""Keys whose values are names and appear in messages."""


def keys(kind: Any, path: str = "") -> list[str]:
    """Return the dotted path of every scalar setting; list items as `[0]`, mapping members as `name`."""
    origin, args = get_origin(kind), get_args(kind)
    if attrs.has(kind):
        hints = get_type_hints(kind)
        fields = [(field.metadata.get(YAML_NAME, field.name), hints[field.name]) for field in attrs.fields(kind)]
        return [found for name, inner in fields for found in keys(inner, f"{path}.{name}" if path else name)]
    if origin is tuple:
        return keys(args[0], f"{path}[0]")
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return keys(args[1], f"{path}.name")
    optional = [option for option in args if attrs.has(option)]
    return keys(optional[0], path) if optional else [path]


def nested(path: str, value: Any) -> Any:
    """Return data with `value` at `path`."""
    for part in reversed(path.replace("[0]", ".[0]").split(".")):
        value = [value] if part == "[0]" else {part: value}
    return value


def load_messages(config_dir: ConfigDir, data: Any) -> str:
    """Load `data` and return all errors and warnings. An accepted configuration must be serializable."""
    content = strict_yaml.dump(data).encode() if isinstance(data, dict) else data
    config_dir.write("config.yaml", content)
    try:
        config = load(config_dir.root, environ={"CANARY": CANARY})
    except ConfigInvalid as invalid:
        return str(invalid)
    assert strict_json.dumps(redact_settings(config.settings, config.mask))
    return "\n".join(str(complaint) for complaint in (*examine(config).report.errors, *config.warnings))


ALL_KEYS = keys(Settings)


def test_every_key_is_tested() -> None:
    """The keys are derived from the sections, so new keys are included."""
    assert len(ALL_KEYS) > 110
    assert {
        "service.max_workers",
        "plugins.name.schedules[0].cron",
        "tokens[0].key",
        "plugins.name.timeouts.name",
    } <= set(ALL_KEYS)


@pytest.mark.slow
def test_no_hostile_value_in_any_key_does_more_than_raise_complaints(config_dir: ConfigDir) -> None:
    """Messages contain no terminal escape sequences and no values from the environment."""
    values: list[Any] = [*HOSTILE, 10**4000, -(10**30), 1.5, True, None, [], {}, [[[]]], {"": {"": ""}}]
    failures = []
    for path in ALL_KEYS:
        for value in values:
            messages = load_messages(config_dir, nested(path, value))
            if "\x1b" in messages or (CANARY in messages and path not in NAMES):
                failures.append((path, str(value)[:80], messages))
    assert failures == []


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["5m", "1MB", "info", "a", "/a", "http://x", "localhost:1", "0 0 * * *", "plugins", "yes", "t"])
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def trees(kind: Any) -> st.SearchStrategy[Any]:
    """Generate data with the keys of `kind` and mostly invalid values."""
    origin, args = get_origin(kind), get_args(kind)
    if attrs.has(kind):
        hints = get_type_hints(kind)
        members = {field.metadata.get(YAML_NAME, field.name): trees(hints[field.name]) for field in attrs.fields(kind)}
        return st.fixed_dictionaries({}, optional=members) | ANYTHING
    if origin is tuple:
        return st.lists(trees(args[0]), max_size=2) | ANYTHING
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return st.dictionaries(st.sampled_from(["a", "echo", "b c", ""]), trees(args[1]), max_size=2) | ANYTHING
    optional = [option for option in args if attrs.has(option)]
    return trees(optional[0]) if optional else ANYTHING


@pytest.fixture(scope="module")
def shared_dir(tmp_path_factory: pytest.TempPathFactory) -> ConfigDir:
    """One directory for many examples."""
    folder = tmp_path_factory.mktemp("shared")
    folder.chmod(0o700)
    return ConfigDir(folder)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.deferred(lambda: trees(Settings)))
def test_no_tree_does_more_than_raise_complaints(shared_dir: ConfigDir, data: Any) -> None:
    """Known keys with invalid types at any depth."""
    if isinstance(data, dict):
        load_messages(shared_dir, data)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=200) | st.text(" \n:-[]{}&*!|>'\"%@`#abc0~,?", max_size=60).map(str.encode))
def test_no_bytes_do_more_than_raise_complaints(shared_dir: ConfigDir, content: bytes) -> None:
    load_messages(shared_dir, content)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.deferred(lambda: ANYTHING))
def test_no_seal_does_more_than_raise_complaints(shared_dir: ConfigDir, data: Any) -> None:
    try:
        shared_dir.write(
            ".checksums", strict_yaml.dump({"version": 2, "hashes": {"/a": data}, "plugin_fingerprints": data})
        )
        load_messages(shared_dir, {})
    finally:
        (shared_dir.path / ".checksums").unlink(missing_ok=True)


def test_every_complaint_fits_on_one_line(config_dir: ConfigDir) -> None:
    complaints = config_dir.complaints(
        'service: {name: "a\\nb", log_level: "x\\ny"}\n"k\\nl": 1\nplugins: {"p\\nq": {}}'
    )
    assert [str(complaint) for complaint in complaints if "\n" in str(complaint)] == []


# Performance

PLUGIN = """\
  plugin-{0}:
    enabled: true
    config:
      endpoint: https://service-{0}.example/api
      api_key: ${{API_KEY}}
      labels:
        team: team-{0}
        tier: production
      retries: 3
    schedules:
      - id: regular
        every: 15m
        jitter: 30s
        only_between: 06:00-22:00
        timezone: Europe/Berlin
      - id: nightly
        cron: "30 2 * * mon-fri"
        timezone: Europe/Berlin
    retry:
      max_attempts: 3
      backoff_base: 10s
    timeouts:
      poll: 2m
      handle: 30s
"""


def large_configuration(config_dir: ConfigDir, plugins: int) -> None:
    """Write about 25 lines and a plugin directory for each plugin."""
    for number in range(plugins):
        folder = config_dir.plugin(f"plugin-{number}")
        (folder / "helper.py").write_text("x = 1\n" * 100)
        os.chmod(folder / "helper.py", 0o600)
    config_dir.write("plugins.yaml", "plugins:\n" + "".join(PLUGIN.format(number) for number in range(plugins)))
    routes = "".join(f"  - {{from: plugin-{n}, event_type: x, to: plugin-{n + 1}}}\n" for n in range(plugins - 1))
    config_dir.write("config.yaml", f"include: [plugins.yaml]\nplugin_roots: [plugins]\nroutes:\n{routes}")


def test_a_configuration_of_five_thousand_lines_loads_within_two_seconds(config_dir: ConfigDir, tmp_path: Path) -> None:
    """With two hundred plugins, including the doctor's checks."""
    large_configuration(config_dir, 200)
    lines = sum(len((config_dir.path / name).read_text().splitlines()) for name in ("config.yaml", "plugins.yaml"))
    assert lines >= 5000
    before = time.process_time()
    report = examine(load(config_dir.root, environ={"API_KEY": CANARY})).report
    spent = time.process_time() - before
    assert report.errors == ()
    assert spent < 2.0
