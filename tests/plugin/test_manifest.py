"""Which manifests are valid, and the message for each error."""

import os
import textwrap
from pathlib import Path

import pytest

from ductile.core.errors import PluginRejected
from ductile.core.files import FileMissing, FileRefused
from ductile.plugin.manifest import (
    Command,
    CommandType,
    CompatibilityView,
    ConfigKeys,
    Emission,
    FactRule,
    Manifest,
    Values,
    parse_manifest,
    read_manifest,
)

HEAD = """\
manifest_spec: ductile.plugin
manifest_version: 1
name: sample
version: 0.1.0
protocol: 2
entrypoint: run.py
"""
COMMANDS = """\
commands:
  - name: poll
    type: read
"""


def parse(text: str) -> Manifest:
    return parse_manifest(textwrap.dedent(text).encode(), source="manifest.yaml")


def complaints(text: str) -> list[str]:
    with pytest.raises(PluginRejected) as rejected:
        parse(text)
    assert str(rejected.value) == "\n".join(rejected.value.context["complaints"])
    assert rejected.value.exit_code == 78
    lines: list[str] = rejected.value.context["complaints"]
    return lines


def without(key: str) -> str:
    return "".join(line for line in (HEAD + COMMANDS).splitlines(keepends=True) if not line.startswith(f"{key}:"))


def changed(key: str, value: str) -> str:
    return without(key) + f"{key}: {value}\n"


def test_the_smallest_manifest_has_the_documented_defaults() -> None:
    manifest = parse(HEAD + "commands: [{name: poll}]")
    assert manifest == Manifest(
        name="sample",
        version="0.1.0",
        entrypoint="run.py",
        commands={"poll": Command(name="poll")},
    )
    assert (manifest.protocol, manifest.concurrency_safe, manifest.description) == (2, True, "")
    assert (manifest.fact_outputs, manifest.config_keys, manifest.warnings) == ((), ConfigKeys(), ())


def test_every_documented_key_is_read() -> None:
    manifest = parse(
        HEAD
        + """\
description: Fetches things
concurrency_safe: false
commands:
  - name: poll
    type: read
    description: Fetch
    idempotent: false
    retry_safe: true
    input_schema: {city: string}
    output_schema:
      type: object
      properties: {grade: {type: number, minimum: -1.5}}
    values:
      consume: [payload.city, payload.*]
      emit:
        - event: sample.fetched
          values: [payload.grade]
        - event: <configured event_type>
  - name: sync_all-2
    type: write
fact_outputs:
  - when: {command: poll}
    from: state_updates
    fact_type: sample.snapshot
    compatibility_view: mirror_object
config_keys:
  required: [url, token]
  optional: [timeout]
"""
    )
    poll = manifest.commands["poll"]
    assert (manifest.description, manifest.concurrency_safe) == ("Fetches things", False)
    assert list(manifest.commands) == ["poll", "sync_all-2"]
    assert (poll.type, poll.description, poll.idempotent, poll.retry_safe) == (CommandType.READ, "Fetch", False, True)
    assert poll.input_schema == {"city": "string"}
    assert poll.output_schema == {"type": "object", "properties": {"grade": {"type": "number", "minimum": -1.5}}}
    emissions = (Emission("sample.fetched", ("payload.grade",)), Emission("<configured event_type>"))
    assert poll.values == Values(("payload.city", "payload.*"), emissions)
    assert manifest.fact_outputs == (FactRule(command="poll", fact_type="sample.snapshot"),)
    assert manifest.config_keys == ConfigKeys(("url", "token"), ("timeout",))
    assert manifest.warnings == ()


def test_commands_may_be_a_mapping() -> None:
    """Lists and mappings of commands are equivalent."""
    listed = parse(HEAD + "commands: [{name: poll, type: read}, {name: sync, type: write}, {name: go}]")
    mapped = parse(HEAD + "commands: {poll: {type: read}, sync: {type: write, name: sync}, go: }")
    assert mapped == listed


def test_a_command_without_a_type_is_a_write_command() -> None:
    """The type decides who may run it, so the default is the stricter one."""
    manifest = parse(HEAD + "commands: {go: {description: Go}, stay: {type: }}")
    assert {command.type for command in manifest.commands.values()} == {CommandType.WRITE}


@pytest.mark.parametrize(("kind", "safe"), [("read", True), ("write", False)])
def test_only_read_commands_are_safe_to_retry_by_default(kind: str, safe: bool) -> None:
    command = parse(HEAD + f"commands: {{go: {{type: {kind}}}}}").commands["go"]
    assert (command.idempotent, command.retry_safe) == (safe, safe)


@pytest.mark.parametrize("version", ["1.10", "1.0", "007", "2026-02-08", "1e3", "true", "'1.10'", "v1"])
def test_a_version_keeps_its_source_text(version: str) -> None:
    """1.10 is not 1.1."""
    assert parse(changed("version", version)).version == version.strip("'")


@pytest.mark.parametrize("word", ["false", "no", "off", "No", "n", "OFF"])
def test_a_flag_may_be_an_unquoted_word(word: str) -> None:
    """As in the original."""
    assert parse(HEAD + COMMANDS + f"concurrency_safe: {word}").concurrency_safe is False


def test_a_fact_rule_without_a_view_mirrors() -> None:
    rules = parse(
        HEAD
        + COMMANDS
        + """\
fact_outputs:
  - {when: {command: poll}, from: state_updates, fact_type: a}
  - {when: {command: poll}, from: state_updates, fact_type: b, compatibility_view: ""}
"""
    )
    assert {rule.compatibility_view for rule in rules.fact_outputs} == {CompatibilityView.MIRROR_OBJECT}
    assert [rule.fact_type for rule in rules.facts_of("poll")] == ["a", "b"]
    assert rules.facts_of("other") == ()


def test_missing_keys_are_the_required_ones_without_a_value() -> None:
    """An empty text or false is a value; null is not."""
    manifest = parse(HEAD + COMMANDS + "config_keys: {required: [a, b, c, d]}")
    assert manifest.missing_keys({"a": "", "b": None, "c": False}) == ("b", "d")


ERRORS = [
    ("", "is empty; a manifest starts with `manifest_spec: ductile.plugin`"),
    ("# nothing\n", "is empty"),
    ("- a\n- b\n", "must be a mapping, not a list"),
    ("just text\n", "must be a mapping, not the text 'just text'"),
    ("{}", "is empty"),
    ("name: [unclosed\n", "manifest.yaml:"),
    ("name: a\nname: b\n", "manifest.yaml:2"),
    ("a: 1\n---\nb: 2\n", "manifest.yaml:"),
    (without("manifest_spec"), "manifest_spec: is missing; it must be `ductile.plugin`"),
    (changed("manifest_spec", "other"), "manifest_spec: must be `ductile.plugin`, not 'other'"),
    (changed("manifest_spec", "[a]"), "manifest_spec: must be text, not a list"),
    (without("manifest_version"), "manifest_version: is missing; it must be 1"),
    (changed("manifest_version", "2"), "manifest_version: must be the number 1, not 2"),
    (changed("manifest_version", "'1'"), "manifest_version: must be the number 1, not the text '1'"),
    (changed("manifest_version", "true"), "manifest_version: must be the number 1, not true"),
    (without("protocol"), "protocol: is missing; it must be 2"),
    (changed("protocol", "1"), "protocol: must be the number 2, not 1"),
    (changed("protocol", "3"), "protocol: must be the number 2, not 3"),
    (changed("protocol", "[2]"), "protocol: must be the number 2, not a list"),
    (changed("protocol", ""), "protocol: is missing; it must be 2"),
    (without("name"), "name: is missing; it must be letters"),
    (changed("name", "''"), "name: is missing"),
    (changed("name", "a.b"), "name: 'a.b' is not a plugin name"),
    (changed("name", "'a b'"), "name: 'a b' is not a plugin name"),
    (changed("name", "-a"), "name: '-a' is not a plugin name"),
    (changed("name", "ä"), "name: 'ä' is not a plugin name"),
    (changed("name", "a/b"), "name: 'a/b' is not a plugin name"),
    (changed("name", '"a\\n"'), "name: 'a\\n' is not a plugin name"),
    (changed("name", "x" * 129), "is not a plugin name"),
    (changed("name", "{a: b}"), "name: must be text, not a mapping"),
    (changed("version", "[1]"), "version: must be text, not a list"),
    (without("entrypoint"), "entrypoint: is missing; it must be the path of an executable file"),
    (changed("entrypoint", "/bin/sh"), "entrypoint: '/bin/sh' is an absolute path"),
    (changed("entrypoint", "../run.py"), "entrypoint: '../run.py' contains `..`"),
    (changed("entrypoint", "bin/../../run.py"), "contains `..`"),
    (changed("entrypoint", "bin/"), "entrypoint: 'bin/' names a folder"),
    (changed("entrypoint", "."), "entrypoint: '.' names a folder"),
    (changed("entrypoint", '"run\\0.py"'), "contains a control character"),
    (changed("entrypoint", '"run\\n.py"'), "contains a control character"),
    (changed("entrypoint", '"run\\x1b.py"'), "contains a control character"),
    (changed("description", "{a: b}"), "description: must be text, not a mapping"),
    (changed("concurrency_safe", "'false'"), "concurrency_safe: must be true or false, not the text 'false'"),
    (changed("concurrency_safe", "0"), "concurrency_safe: must be true or false, not 0"),
    (changed("concurrency_safe", "maybe"), "concurrency_safe: must be true or false"),
    (HEAD, "commands: is missing; a plugin has at least one command"),
    (HEAD + "commands: []", "commands: is missing"),
    (HEAD + "commands: {}", "commands: is missing"),
    (HEAD + "commands: poll", "commands: must be a list or a mapping of commands, not the text 'poll'"),
    (HEAD + "commands: [poll, handle]", "commands[0]: is only a name; write `- name: poll` and `type: read`"),
    (HEAD + "commands: [[a]]", "commands[0]: must be a mapping with `name` and `type`, not a list"),
    (HEAD + "commands: [null]", "commands[0]: must be a mapping with `name` and `type`, not null"),
    (HEAD + "commands: [7]", "commands[0]: must be a mapping with `name` and `type`, not 7"),
    (HEAD + "commands: [{type: read}]", "commands[0].name: is missing; it must be a letter"),
    (HEAD + "commands: [{name: 2go}]", "commands[0]: '2go' is not a command name"),
    (HEAD + "commands: {a.b: {type: read}}", "commands.a.b: 'a.b' is not a command name"),
    (HEAD + "commands: {poll: read}", "commands.poll: must be a mapping; write `poll: {type: read}`"),
    (HEAD + "commands: {poll: [read]}", "commands.poll: must be a mapping, not a list"),
    (HEAD + "commands: {poll: {name: pull}}", "commands.poll.name: 'pull' differs from the key 'poll'"),
    (HEAD + "commands: {poll: {type: Read}}", "commands.poll.type: must be `read` or `write`, not 'Read'"),
    (HEAD + "commands: {poll: {type: admin}}", "must be `read` or `write`, not 'admin'"),
    (HEAD + "commands: {poll: {type: ''}}", "must be `read` or `write`, not ''"),
    (HEAD + "commands: {poll: {type: [read]}}", "commands.poll.type: must be text, not a list"),
    (HEAD + "commands: {poll: {idempotent: 1}}", "commands.poll.idempotent: must be true or false, not 1"),
    (HEAD + "commands: {poll: {retry_safe: []}}", "commands.poll.retry_safe: must be true or false, not a list"),
    (HEAD + "commands: {poll: {input_schema: text}}", "input_schema: must be a mapping, not the text 'text'"),
    (HEAD + "commands: {poll: {output_schema: [1]}}", "output_schema: must be a mapping, not a list"),
    (HEAD + "commands: {poll: {values: [a]}}", "commands.poll.values: must be a mapping, not a list"),
    (HEAD + "commands: {poll: {values: {consume: a}}}", "values.consume: must be a list, not the text 'a'"),
    (HEAD + "commands: {poll: {values: {consume: [[a]]}}}", "values.consume[0]: must be text, not a list"),
    (HEAD + "commands: {poll: {values: {emit: [a]}}}", "values.emit[0]: must be a mapping, not the text 'a'"),
    (HEAD + "commands: {poll: {values: {emit: [{}]}}}", "values.emit[0].event: is missing"),
    (HEAD + COMMANDS + "fact_outputs: {}", "fact_outputs: must be a list, not a mapping"),
    (HEAD + COMMANDS + "fact_outputs: [poll]", "fact_outputs[0]: must be a mapping, not the text 'poll'"),
    (HEAD + COMMANDS + "fact_outputs: [{}]", "fact_outputs[0].when.command: is missing"),
    (
        HEAD + COMMANDS + "fact_outputs: [{when: {command: pol}, from: state_updates, fact_type: a}]",
        "fact_outputs[0].when.command: 'pol' is not a declared command (did you mean 'poll'?)",
    ),
    (
        HEAD + COMMANDS + "fact_outputs: [{when: poll, from: state_updates, fact_type: a}]",
        "fact_outputs[0].when: must be a mapping, not the text 'poll'",
    ),
    (
        HEAD + COMMANDS + "fact_outputs: [{when: {command: poll}, from: events, fact_type: a}]",
        "fact_outputs[0].from: must be `state_updates`, not 'events'",
    ),
    (
        HEAD + COMMANDS + "fact_outputs: [{when: {command: poll}, fact_type: a}]",
        "fact_outputs[0].from: is missing; it must be `state_updates`",
    ),
    (
        HEAD + COMMANDS + "fact_outputs: [{when: {command: poll}, from: state_updates}]",
        "fact_outputs[0].fact_type: is missing",
    ),
    (
        HEAD
        + COMMANDS
        + "fact_outputs: [{when: {command: poll}, from: state_updates, fact_type: a, compatibility_view: merge}]",
        "fact_outputs[0].compatibility_view: must be `mirror_object` or absent, not 'merge'",
    ),
    (HEAD + COMMANDS + "config_keys: [a]", "config_keys: must be a mapping, not a list"),
    (HEAD + COMMANDS + "config_keys: {required: a}", "config_keys.required: must be a list, not the text 'a'"),
    (HEAD + COMMANDS + "config_keys: {required: [{a: b}]}", "config_keys.required[0]: must be text"),
    (HEAD + COMMANDS + "config_keys: {optional: ['']}", "config_keys.optional[0]: must not be empty"),
    (HEAD + COMMANDS + "config_keys: {optional: [null]}", "config_keys.optional[0]: must not be empty"),
]


def test_each_error_has_its_position_and_the_allowed_values() -> None:
    failures = []
    for text, expected in ERRORS:
        found = complaints(text)
        if not any(expected in line for line in found) or not all(line.startswith("manifest.yaml:") for line in found):
            failures.append(f"{text!r}: expected {expected!r}, got {found}")
    assert failures == []


def test_each_error_is_reported_once() -> None:
    """A wrong value is not also reported as missing."""
    for text in (
        changed("name", "[a]"),
        changed("entrypoint", "{a: b}"),
        HEAD + "commands: [poll]",
        HEAD + "commands: {poll: {type: [a]}}",
        HEAD + COMMANDS + "fact_outputs: [7]",
        HEAD + COMMANDS + "config_keys: {required: [[a]]}",
    ):
        assert len(complaints(text)) == 1, text


def test_all_errors_are_reported_at_once() -> None:
    """Each with its line."""
    found = complaints(
        """\
        manifest_spec: ductile.plugin
        manifest_version: 3
        name: bad name
        version: 1
        protocol: 1
        entrypoint: ../x
        commands:
          - poll
          - name: go
            type: run
        """
    )
    assert [line.split(": ")[0] for line in found] == [f"manifest.yaml:{line}" for line in (2, 5, 8, 10, 3, 6)]


def test_unknown_keys_are_warnings() -> None:
    """A plugin for a newer version still loads, and a typing error is visible."""
    manifest = parse(
        HEAD
        + """\
fact_output: []
x-mine: 1
commands:
  - name: poll
    typ: read
    values: {emits: []}
config_keys: {require: [a]}
"""
    )
    assert [(str(warning.mark), warning.path) for warning in manifest.warnings] == [
        ("manifest.yaml:7", "fact_output"),
        ("manifest.yaml:11", "commands[0].typ"),
        ("manifest.yaml:12", "commands[0].values.emits"),
        ("manifest.yaml:13", "config_keys.require"),
    ]
    assert [warning.message.partition("did you mean ")[2] for warning in manifest.warnings] == [
        "'fact_outputs'?)",
        "'type'?)",
        "'emit'?)",
        "'required'?)",
    ]


def test_of_a_command_that_is_declared_twice_the_last_declaration_applies() -> None:
    """With a warning."""
    manifest = parse_manifest(
        f"{HEAD}commands: [{{name: a, type: write}}, {{name: a, type: read}}]".encode(), source="m"
    )
    assert [(name, command.type) for name, command in manifest.commands.items()] == [("a", CommandType.READ)]
    assert [warning.message for warning in manifest.warnings] == [
        "command 'a' is declared twice; this declaration applies"
    ]


def test_unusual_values_are_warnings() -> None:
    """No version, a value that is not a payload path, a key that is both required and optional."""
    manifest = parse(
        without("version").replace("type: read", "values: {consume: [city]}")
        + "config_keys: {required: [a], optional: [a, b]}"
    )
    assert {warning.path for warning in manifest.warnings} == {
        "version",
        "commands[0].values.consume",
        "config_keys.optional",
    }
    assert (manifest.version, manifest.config_keys) == ("", ConfigKeys(("a",), ("b",)))


def test_a_manifest_must_be_a_regular_file(tmp_path: Path) -> None:
    """A symlink is allowed only if symlinks are followed."""
    path = tmp_path / "manifest.yaml"
    with pytest.raises(FileMissing):
        read_manifest(path)
    os.mkfifo(path)
    with pytest.raises(FileRefused, match="is a FIFO"):
        read_manifest(path)
    path.unlink()
    (tmp_path / "real.yaml").write_text(HEAD + COMMANDS)
    path.symlink_to("real.yaml")
    with pytest.raises(FileRefused, match="is a symlink"):
        read_manifest(path)
    assert read_manifest(path, follow_symlinks=True).name == "sample"


def test_a_manifest_that_is_not_utf8_or_too_large_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "manifest.yaml"
    path.write_bytes(b"name: \xff\n")
    with pytest.raises(PluginRejected, match=r"manifest\.yaml:1"):
        read_manifest(path)
    path.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(FileRefused, match="larger than"):
        read_manifest(path)
