"""The JSON Schema accepts and rejects the same configurations as the loader, as far as JSON Schema can express it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from jsonschema import Draft202012Validator

import ductile
from ductile.config import scaffold
from ductile.config.files.interpolate import interpolate
from ductile.config.load.structure import structure
from ductile.config.sections.settings import Settings
from ductile.config.views.schema import DIALECT, schema
from ductile.core.errors import ConfigInvalid
from ductile.core.formats import strict_yaml
from ductile.plugin.manifest import parse_manifest
from tests.config.conftest import yaml_at

PROJECT = Path(ductile.__file__).parent.parent
ENVIRONMENT = {"N": "4", "L": "info", "T": "5s", "S": "yes", "HOST": "localhost", "PORT": "80"}
VALIDATOR = Draft202012Validator(schema())


def is_valid(text: str) -> bool:
    return VALIDATOR.is_valid(strict_yaml.load(text.encode(), source="c").data() or {})


def is_accepted(text: str) -> bool:
    try:
        structure(interpolate(strict_yaml.load(text.encode(), source="c"), ENVIRONMENT).root)
    except ConfigInvalid:
        return False
    return True


def properties(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every key in the schema with its description."""
    if isinstance(node, dict):
        for name, described in node.get("properties", {}).items():
            yield f"{path}.{name}", described
        for name, definition in node.get("$defs", {}).items():
            yield from properties(definition, name)


def test_the_schema_is_valid_json_schema() -> None:
    Draft202012Validator.check_schema(schema())
    assert schema()["$schema"] == DIALECT
    assert json.loads(json.dumps(schema())) == schema()


def test_every_key_has_a_description() -> None:
    described = dict(properties(schema()))
    assert len(described) > 120
    assert [path for path, node in described.items() if "$ref" not in node and not node.get("description")] == []


def test_every_section_rejects_unknown_keys() -> None:
    sections = [schema(), *schema()["$defs"].values()]
    assert all(section["additionalProperties"] is False for section in sections)


def test_the_schema_does_not_depend_on_the_host() -> None:
    assert "default" not in schema()["$defs"]["Service"]["properties"]["max_workers"]


@pytest.mark.parametrize("demo", [False, True])
def test_the_files_of_a_new_configuration_are_valid(demo: bool) -> None:
    """They refer to the schema file next to them."""
    planned = scaffold.plan(demo=demo)
    for name in (name for name in planned.files if name.endswith(".yaml")):
        text = planned.files[name].decode()
        assert text.startswith("# yaml-language-server: $schema=ductile.schema.json\n")
        assert is_valid(text), name
    assert json.loads(planned.files[scaffold.SCHEMA_FILE]) == schema()


ACCEPTED = [
    "",
    "service:",
    "service: {max_workers: , log_level: , name: }",
    "service: {max_workers: '4', strict_mode: yes, allow_symlinks: OFF, name: 1.10}",
    "service: {max_workers: '${N}', log_level: '${L}', tick_interval: '${T}', strict_mode: '${S}'}",
    "service: {tick_interval: 1h30m, dedupe_ttl: 0, job_log_retention: 1.5d, facts_retention: 2w, drain_timeout: 9ms}",
    "service: {limits: {stdout: 1MB, stderr: 4096, events: 5}, plugin_env_passthrough: ['*', HOME]}",
    "api: {listen: ':8080', auth: {tokens: [{token: 12345, scopes: }]}, max_body_size: '2 GB', allowed_origins: [a]}",
    "api: {listen: '${HOST}:${PORT}', auth: }",
    "api: {listen: '[::1]:80'}",
    "plugins: {a: , b: {}, c: {uses: a, config: {anything: [1, {x: null}]}, env: {A: 1, B: true}}}",
    "plugins: {a: {schedules: [{every: 5m}, {cron: '0 0 * * *'}, {at: '2026-01-01T00:00:00Z'}, {after: 0}]}}",
    "plugins: {a: {schedules: [{every: daily, not_on: [0, sat], only_between: 8:00-22:00, timezone: UTC}]}}",
    "plugins: {a: {schedules: [{preferred_window: {start: '8:00', end: '22:00'}, jitter: 5s, catch_up: run_all}]}}",
    "plugins: {a: {timeouts: {poll: 5s, my-command: 1m}, retry: {max_attempts: 1}, limits: {memory: 1GB}}}",
    "routes: [{from: a, event_type: x.y, to: b}]",
    "pipelines: [{name: x, on: y, steps: [{uses: p}]}]",
    "pipelines: [{name: a b, on-hook: job.failed, max_depth: 0, timeout: 5s, steps: [{uses: p.poll, call: }]}]",
    "pipelines: [{name: x, on: y, if: {path: payload.a, op: exists}, steps: [{uses: p, if: {all: [{any: []}]}}]}]",
    "pipelines: [{name: x, on: y, steps: [{split: [{steps: [{call: z}]}], join: yes}, {call: z, foreach: payload.a}]}]",
    "pipelines: [{name: x, on: y, steps: [{uses: p, foreach: item, max_items: 5, join: on}]}]",
    "pipelines: [{name: x, on: y, steps: [{relay: {to: a, event: b.c, with: {a: 1}, baggage: {a: b}}, on_error: []}]}]",
    "pipelines: [{name: x, on: y, steps: [{uses: p, with: {a: [1, {b: null}]}, baggage: {from: payload}}]}]",
    "pipelines: [{name: x, on: y, steps: [{uses: p, on_error: [{uses: q}], continue: true}]}]",
    "webhooks: {endpoints: [{path: /a, plugin: p, secret_ref: t}, {path: /b, event: e, secret_ref: [a, b]}]}",
    "instances: [{name: a-b, base_url: 'https://x:1/y', ingress_path: /i, secret_ref: t, allow: [a.b], timeout: 5s}]",
    "remote_ingress: {peers: [{name: a, secret_ref: t, baggage: {allow: [x]}}], allowed_clock_skew: 1m}",
    "tokens: [{name: t, key: abc, scopes_file: s.json, scopes_hash: 'blake3:00', created_at: '2026', description: d}]",
    "include: [a.yaml, dir]\nenvironment_vars: {include: [.env]}\nplugin_roots: [~/x]\nstate: {path: x.db}",
    "tcc_paths: [/x]",
]
REJECTED = [
    "nonsense: 1",
    "service: 5",
    "service: []",
    "service: {max_workers: 0}",
    "service: {max_workers: 1.5}",
    "service: {max_workers: many}",
    "service: {strict_mode: maybe}",
    "service: {strict_mode: 1}",
    "service: {log_level: loud}",
    "service: {tick_interval: soon}",
    "service: {tick_interval: 5}",
    "service: {name: ''}",
    "service: {limits: {stdout: 0}}",
    "service: {plugin_env_passthrough: [a-b]}",
    "api: {listen: x}",
    "api: {listen: '::'}",
    "api: {auth: {tokens: [{scopes: []}]}}",
    "api: {auth: {tokens: abc}}",
    "plugins: []",
    "plugins: {'a b': {}}",
    "plugins: {a: []}",
    "plugins: {a: {enabld: true}}",
    "plugins: {a: {env: {A-B: 1}}}",
    "plugins: {a: {timeouts: {'1': 5s}}}",
    "plugins: {a: {uses: ../x}}",
    "plugins: {a: {schedules: {}}}",
    "plugins: {a: {schedules: [{only_between: always}]}}",
    "plugins: {a: {schedules: [{catch_up: all}]}}",
    "plugins: {a: {schedules: [{preferred_window: {start: '8:00'}}]}}",
    "routes: [{from: a, to: b}]",
    "pipelines: [text]",
    "pipelines: [{on: y, steps: [{uses: p}]}]",
    "pipelines: [{name: x, on: y}]",
    "pipelines: [{name: x, on: y, steps: []}]",
    "pipelines: [{name: x/y, on: y, steps: [{uses: p}]}]",
    "pipelines: [{name: x, on: y, max_depth: -1, steps: [{uses: p}]}]",
    "pipelines: [{name: x, on: y, execution_mode: sync, steps: [{uses: p}]}]",
    "pipelines: [{name: x, on-hook: job.started, steps: [{uses: p}]}]",
    "pipelines: [{name: x, on: y, if: true, steps: [{uses: p}]}]",
    "pipelines: [{name: x, on: y, steps: [{use: p}]}]",
    "pipelines: [{name: x, on: y, steps: [{split: []}]}]",
    "pipelines: [{name: x, on: y, steps: [{split: [{uses: p, id: ''}]}]}]",
    "pipelines: [{name: x, on: y, steps: [{uses: p, foreach: payload.a, max_items: 0}]}]",
    "pipelines: [{name: x, on: y, steps: [{uses: p, continue: maybe}]}]",
    "pipelines: [{name: x, on: y, steps: [{relay: {to: a}}]}]",
    "pipelines: [{name: x, on: y, steps: [{relay: {to: a, event: A B}}]}]",
    "webhooks: {endpoints: [{path: a, secret_ref: t}]}",
    "webhooks: {endpoints: [{path: /a}]}",
    "webhooks: {endpoints: [{path: /a, secret_ref: [a, b, c]}]}",
    "webhooks: {endpoints: [{path: /a, secret_ref: t, scheme: gitlab}]}",
    "instances: [{name: A_B, base_url: 'https://x', ingress_path: /i, secret_ref: t}]",
    "instances: [{name: a, base_url: 'ftp://x', ingress_path: /i, secret_ref: t}]",
    "remote_ingress: {peers: [{name: a}]}",
    "tokens: [{name: t}]",
    "include: a.yaml",
    "plugin_roots: [{}]",
]


def test_what_the_loader_accepts_is_valid() -> None:
    assert [text for text in ACCEPTED if not (is_accepted(text) and is_valid(text))] == []


def test_what_the_loader_rejects_is_invalid() -> None:
    assert [text for text in REJECTED if is_accepted(text) or is_valid(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "pipelines: [{name: x, steps: [{uses: p}]}]",
        "pipelines: [{name: x, on: y, on-hook: job.failed, steps: [{uses: p}]}]",
        "pipelines: [{name: x, on: y, steps: [{id: a}]}]",
        "pipelines: [{name: x, on: y, steps: [{uses: p, call: q}]}]",
        "pipelines: [{name: x, on: y, steps: [{uses: p, if: {path: payload.a, op: equals}}]}]",
        "pipelines: [{name: x, on: y, if: {all: [{pth: payload.a}]}, steps: [{uses: p}]}]",
    ],
)
def test_the_schema_rejects_pipelines_that_only_the_compiler_rejects(text: str) -> None:
    """Steps with no type or two types, pipelines without a trigger, invalid conditions."""
    assert not is_valid(text)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("database.path", "x.db"),
        ("log_level", "debug"),
        ("plugins.a.timeout", "5m"),
        ("plugins.a.max_attempts", "3"),
        ("plugins.a.description", "x"),
        ("x-anything", "[1]"),
    ],
)
def test_legacy_keys_are_valid(path: str, value: str) -> None:
    assert is_valid(yaml_at(path, value))


EXAMPLES = sorted(
    path
    for folder in ("docs", "plugins", "examples")
    for path in (PROJECT / folder).rglob("*.yaml")
    if path.name != "manifest.yaml"
)


def test_every_yaml_file_and_block_of_the_project_is_valid() -> None:
    """Configuration files, and configuration blocks in Markdown pages."""
    texts = {str(path): path.read_text() for path in EXAMPLES}
    for page in sorted(path for folder in ("docs", "plugins") for path in (PROJECT / folder).rglob("*.md")):
        blocks = page.read_text().split("```yaml\n")[1:]
        texts |= {f"{page} block {number}": block.partition("```")[0] for number, block in enumerate(blocks)}
    known = set(schema()["properties"])
    for name, text in texts.items():
        data = strict_yaml.load(text.encode(), source=name).data()
        if isinstance(data, dict) and set(data) & known - {"name", "description"} and "manifest_spec" not in data:
            assert [error.message for error in VALIDATOR.iter_errors(data)] == [], name


def test_every_key_of_the_loader_is_in_the_schema() -> None:
    assert {field.metadata.get("yaml", field.name) for field in attrs.fields(Settings)} <= set(schema()["properties"])


def yaml_examples() -> Iterator[tuple[str, str]]:
    """Yield every YAML block in the documentation and in the plugin READMEs."""
    pages = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md"), *(PROJECT / "plugins").rglob("*.md")]
    for page in sorted(pages):
        for number, block in enumerate(re.findall(r"^```ya?ml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)):
            if "cases:" not in block and "request:" not in block:  # fixtures of `pipeline test` and `plugin test`
                yield f"{page.relative_to(PROJECT)} {number}", block


MANIFEST_HEAD = """\
manifest_spec: ductile.plugin
manifest_version: 1
name: example
version: 1.0.0
protocol: 2
entrypoint: run
"""


def is_valid_example(text: str) -> bool:
    if text.startswith(("manifest_spec:", "commands:")):
        manifest = text if text.startswith("manifest_spec:") else MANIFEST_HEAD + text
        return parse_manifest(manifest.encode(), source="example").warnings == ()
    return is_valid(text) and is_accepted(text)


def test_every_example_in_the_documentation_is_valid() -> None:
    """Manifests have no warnings; configurations match the schema and the loader."""
    examples = list(yaml_examples())
    assert examples
    assert [name for name, text in examples if not is_valid_example(text)] == []


def test_the_manifests_of_the_bundled_plugins_have_no_warnings() -> None:
    manifests = list((PROJECT / "plugins").rglob("manifest.yaml"))
    assert manifests
    assert [path for path in manifests if parse_manifest(path.read_bytes(), source=str(path)).warnings] == []
