"""Whatever is written, a load ends in a configuration or in complaints: no crash, no hang, no secret told."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ductile.config.checks.doctor import examine
from ductile.config.load.load import load
from ductile.config.sections.settings import Settings
from ductile.config.views.show import redacted
from ductile.core.errors import ConfigInvalid
from ductile.core.formats import strict_json, strict_yaml
from ductile.core.formats.yaml_fields import YAML_NAME
from tests.config.conftest import Home

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
    "routes[0].from",
    "routes[0].to",
}
"""What these stand for is no secret, and has to be said."""


def keys(kind: Any, path: str = "") -> list[str]:
    """The dotted path of every single value in the settings; list members as `[0]`, mapping members as `name`."""
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
    """`value` at `path`, as data."""
    for part in reversed(path.replace("[0]", ".[0]").split(".")):
        value = [value] if part == "[0]" else {part: value}
    return value


def survives(home: Home, data: Any) -> str:
    """What is told about `data`, refused or accepted; what is accepted can be shown."""
    content = strict_yaml.dump(data).encode() if isinstance(data, dict) else data
    home.write("config.yaml", content)
    try:
        config = load(home.root, environ={"CANARY": CANARY})
    except ConfigInvalid as refused:
        return str(refused)
    assert strict_json.dumps(redacted(config.settings, config.mask))
    return "\n".join(str(complaint) for complaint in (*examine(config).report.errors, *config.warnings))


ALL_KEYS = keys(Settings)


def test_the_attack_reaches_every_key() -> None:
    """The list of keys is made from the sections, so a new key is attacked too."""
    assert len(ALL_KEYS) > 110
    assert {
        "service.max_workers",
        "plugins.name.schedules[0].cron",
        "tokens[0].key",
        "plugins.name.timeouts.name",
    } <= set(ALL_KEYS)


@pytest.mark.parametrize("path", ALL_KEYS)
def test_no_hostile_value_in_any_key_is_more_than_refused(home: Home, path: str) -> None:
    """No crash, no escape sequence for the terminal, no value of the environment in what is told."""
    values: list[Any] = [*HOSTILE, 10**4000, -(10**30), 1.5, True, None, [], {}, [[[]]], {"": {"": ""}}]
    for value in values:
        told = survives(home, nested(path, value))
        assert "\x1b" not in told
        assert CANARY not in told or path in NAMES


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
    """Data with the keys of `kind` and, mostly, the wrong values."""
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
def arena(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """One directory for many examples."""
    folder = tmp_path_factory.mktemp("arena")
    folder.chmod(0o700)
    return Home(folder)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.deferred(lambda: trees(Settings)))
def test_no_tree_makes_a_load_do_more_than_complain(arena: Home, data: Any) -> None:
    """Real keys, wrong types, any depth."""
    if isinstance(data, dict):
        survives(arena, data)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(content=st.binary(max_size=200) | st.text(" \n:-[]{}&*!|>'\"%@`#abc0~,?", max_size=60).map(str.encode))
def test_no_bytes_make_a_load_do_more_than_complain(arena: Home, content: bytes) -> None:
    """Whatever the file holds."""
    survives(arena, content)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.deferred(lambda: ANYTHING))
def test_no_seal_makes_a_load_do_more_than_complain(arena: Home, data: Any) -> None:
    """A forged seal is refused or does not fit."""
    try:
        arena.write(".checksums", strict_yaml.dump({"version": 2, "hashes": {"/a": data}, "plugin_fingerprints": data}))
        survives(arena, {})
    finally:
        (arena.folder / ".checksums").unlink(missing_ok=True)


def test_every_complaint_can_be_printed_on_one_line(home: Home) -> None:
    """Also for an operator who greps."""
    complaints = home.complaints('service: {name: "a\\nb", log_level: "x\\ny"}\n"k\\nl": 1\nplugins: {"p\\nq": {}}')
    assert [str(complaint) for complaint in complaints if "\n" in str(complaint)] == []


# The cost of a large configuration

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


def large_configuration(home: Home, plugins: int) -> None:
    """Some 25 lines and a real folder for each plugin."""
    for number in range(plugins):
        folder = home.plugin(f"plugin-{number}")
        (folder / "helper.py").write_text("x = 1\n" * 100)
        os.chmod(folder / "helper.py", 0o600)
    home.write("plugins.yaml", "plugins:\n" + "".join(PLUGIN.format(number) for number in range(plugins)))
    routes = "".join(f"  - {{from: plugin-{n}, event_type: x, to: plugin-{n + 1}}}\n" for n in range(plugins - 1))
    home.write("config.yaml", f"include: [plugins.yaml]\nplugin_roots: [plugins]\nroutes:\n{routes}")


def test_five_thousand_lines_with_two_hundred_plugins_take_less_than_two_seconds(home: Home, tmp_path: Path) -> None:
    """`config check` answers at once, on a small machine too."""
    large_configuration(home, 200)
    lines = sum(len((home.folder / name).read_text().splitlines()) for name in ("config.yaml", "plugins.yaml"))
    assert lines >= 5000
    before = time.process_time()
    report = examine(load(home.root, environ={"API_KEY": CANARY})).report
    spent = time.process_time() - before
    assert report.errors == ()
    assert spent < 2.0
