"""`manifest.yaml` as a typed value: what a plugin says about itself, checked completely, every mistake at once.

Knows nothing of folders, permissions or trust: whether the entrypoint exists is the registry's question. Schemas and
descriptions are carried as written.
"""

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from attrs import field, frozen

from ductile.core.errors import Complaint, PluginRejected, Unreadable, did_you_mean
from ductile.core.files import read_regular
from ductile.core.formats import strict_yaml
from ductile.core.formats.strict_yaml import YamlNode
from ductile.core.units import shown
from ductile.plugin.manifest_fields import Reading, kind_of

FILE_NAME = "manifest.yaml"
SPEC = "ductile.plugin"
MANIFEST_VERSION = 1
PROTOCOL = 2
PLUGIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}", re.ASCII)
COMMAND_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,127}", re.ASCII)
PLUGIN_NAME_HELP = "letters, digits, `_` and `-`, at most 128"
COMMAND_NAME_HELP = "a letter, then letters, digits, `_` and `-`, at most 128"

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_CONSUMED = re.compile(r"payload\.(\*|[^.\s]+(\.[^.\s]+)*)")

_MANIFEST_KEYS = (
    "manifest_spec",
    "manifest_version",
    "name",
    "version",
    "protocol",
    "entrypoint",
    "description",
    "concurrency_safe",
    "commands",
    "fact_outputs",
    "config_keys",
)
_COMMAND_KEYS = (
    "name",
    "type",
    "description",
    "idempotent",
    "retry_safe",
    "input_schema",
    "output_schema",
    "values",
)
_FACT_KEYS = ("when", "from", "fact_type", "compatibility_view")


class CommandType(StrEnum):
    """`read` has no effect on the outside world; `write` may have one. It decides which tokens may run it."""

    READ = "read"
    WRITE = "write"


class CompatibilityView(StrEnum):
    """How a fact shows in `plugin_state`: as a copy of the newest one."""

    MIRROR_OBJECT = "mirror_object"


@frozen
class Emission:
    """An event that a command may emit and the payload values it carries; documentation, never enforced."""

    event: str
    values: tuple[str, ...] = ()


@frozen
class Values:
    """`commands[].values`: which payload values a command reads and which it emits."""

    consume: tuple[str, ...] = ()
    emit: tuple[Emission, ...] = ()


@frozen(kw_only=True)
class Command:
    """`commands[]`: something a plugin can be asked to do. Schemas are as written: compact or JSON Schema."""

    name: str
    type: CommandType = CommandType.WRITE
    description: str = ""
    idempotent: bool = False
    retry_safe: bool = False
    input_schema: Mapping[str, Any] | None = None
    output_schema: Mapping[str, Any] | None = None
    values: Values = Values()


@frozen(kw_only=True)
class FactRule:
    """`fact_outputs[]`: the state updates of this command are kept as a fact of this type."""

    command: str
    fact_type: str
    compatibility_view: CompatibilityView = CompatibilityView.MIRROR_OBJECT


@frozen
class ConfigKeys:
    """`config_keys`: what the operator must and may set for this plugin."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


@frozen(kw_only=True)
class Manifest:
    """What a plugin says about itself. `version` is the text as written; `warnings` never stop a plugin."""

    name: str
    version: str
    entrypoint: str
    commands: Mapping[str, Command]
    description: str = ""
    concurrency_safe: bool = True
    fact_outputs: tuple[FactRule, ...] = ()
    config_keys: ConfigKeys = ConfigKeys()
    protocol: int = PROTOCOL
    warnings: tuple[Complaint, ...] = field(default=(), eq=False, repr=False)

    def missing_keys(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """The required configuration keys that `config` does not have; null counts as not having it."""
        return tuple(key for key in self.config_keys.required if config.get(key) is None)

    def facts_of(self, command: str) -> tuple[FactRule, ...]:
        """The fact rules that a success of `command` follows."""
        return tuple(rule for rule in self.fact_outputs if rule.command == command)


def read_manifest(path: Path, *, follow_symlinks: bool = False) -> Manifest:
    """The manifest in the file at `path`. Raises FileRefused, or PluginRejected with everything that is wrong."""
    opened = read_regular(path, max_bytes=strict_yaml.MAX_BYTES, follow_symlinks=follow_symlinks)
    return parse_manifest(opened.content, source=str(path))


def parse_manifest(content: bytes, *, source: str) -> Manifest:
    """The manifest in `content`. Raises PluginRejected with everything that is wrong, each with its place."""
    try:
        document = strict_yaml.load(content, source=source)
    except Unreadable as error:
        complaint = Complaint(error.reason, mark=error.mark, category="plugin_refs")
        raise _rejection([complaint]) from error
    reading = Reading()
    manifest = _manifest(reading, document)
    if reading.complaints or manifest is None:
        raise _rejection(reading.complaints)
    return manifest


def _rejection(complaints: Iterable[Complaint]) -> PluginRejected:
    lines = [str(complaint) for complaint in complaints]
    return PluginRejected("\n".join(lines), context={"complaints": lines})


def _manifest(reading: Reading, document: YamlNode) -> Manifest | None:
    members = reading.mapping(document, "")
    if not members:
        if not reading.complaints:
            reading.refuse(document, "", f"is empty; a manifest starts with `manifest_spec: {SPEC}`")
        return None
    _constants(reading, document, members)
    reading.unknown(members, _MANIFEST_KEYS, "")
    commands = _commands(reading, document, members.get("commands"))
    return Manifest(
        name=_name(reading, document, members),
        version=_version(reading, document, members),
        entrypoint=_entrypoint(reading, document, members),
        description=reading.text(members.get("description"), "description"),
        concurrency_safe=reading.flag(members.get("concurrency_safe"), "concurrency_safe", default=True),
        commands=commands,
        fact_outputs=_fact_rules(reading, members.get("fact_outputs"), commands),
        config_keys=_config_keys(reading, members.get("config_keys")),
        warnings=tuple(reading.warnings),
    )


def _constants(reading: Reading, document: YamlNode, members: Mapping[str, YamlNode]) -> None:
    """The three values that say which contract this is."""
    spec = reading.required(document, members, "manifest_spec", "manifest_spec", f"`{SPEC}`")
    if spec.strip() and spec != SPEC:
        reading.refuse(members["manifest_spec"], "manifest_spec", f"must be `{SPEC}`, not {shown(spec)}")
    for key, wanted in (("manifest_version", MANIFEST_VERSION), ("protocol", PROTOCOL)):
        node = members.get(key)
        if node is None or node.value is None:
            reading.refuse(node or document, key, f"is missing; it must be {wanted}")
        elif isinstance(node.value, bool | str | dict | tuple) or node.value != wanted:
            reading.refuse(node, key, f"must be the number {wanted}, not {kind_of(node)}")


def _name(reading: Reading, document: YamlNode, members: Mapping[str, YamlNode]) -> str:
    name = reading.required(document, members, "name", "name", PLUGIN_NAME_HELP)
    if name.strip() and not PLUGIN_NAME.fullmatch(name):
        reading.refuse(members["name"], "name", f"{shown(name)} is not a plugin name: {PLUGIN_NAME_HELP}")
    return name


def _version(reading: Reading, document: YamlNode, members: Mapping[str, YamlNode]) -> str:
    version = reading.text(members.get("version"), "version")
    if not version.strip():
        reading.warn(members.get("version", document), "version", "is missing; write for example `version: 0.1.0`")
    return version


def _entrypoint(reading: Reading, document: YamlNode, members: Mapping[str, YamlNode]) -> str:
    allowed = "the path of an executable file inside the plugin's folder"
    entrypoint = reading.required(document, members, "entrypoint", "entrypoint", allowed)
    if entrypoint.strip() and (problem := _entrypoint_problem(entrypoint)):
        reading.refuse(members["entrypoint"], "entrypoint", f"{shown(entrypoint)} {problem}; it must be {allowed}")
    return entrypoint


def _entrypoint_problem(entrypoint: str) -> str | None:
    if _CONTROL.search(entrypoint):
        return "contains a control character"
    if entrypoint.startswith("/"):
        return "is an absolute path"
    parts = entrypoint.split("/")
    if ".." in parts:
        return "contains `..`"
    if parts[-1] in ("", "."):
        return "names a folder"
    return None


def _commands(reading: Reading, document: YamlNode, node: YamlNode | None) -> dict[str, Command]:
    match node:
        case YamlNode(value=dict() as members):
            listed = [(f"commands.{name}", name, member) for name, member in members.items()]
        case YamlNode(value=tuple()):
            listed = [(path, _listed_name(reading, item, path), item) for path, item in reading.items(node, "commands")]
        case None | YamlNode(value=None):
            listed = []
        case _:
            reading.refuse(node, "commands", f"must be a list or a mapping of commands, not {kind_of(node)}")
            return {}
    if not listed:
        reading.refuse(node or document, "commands", "is missing; a plugin has at least one command, such as `poll`")
    commands: dict[str, Command] = {}
    for path, name, item in listed:
        if name is None:
            continue
        if name in commands:
            reading.refuse(item, path, f"command {name!r} is declared twice")
        commands[name] = _command(reading, item, name, path)
    return commands


def _listed_name(reading: Reading, item: YamlNode, path: str) -> str | None:
    """The name of a command in list form; None when the item is not a command at all."""
    match item:
        case YamlNode(value=dict() as members):
            return reading.required(item, members, "name", f"{path}.name", COMMAND_NAME_HELP)
        case YamlNode(value=str(), text=text):
            reading.refuse(item, path, f"is only a name; write `- name: {text}` and `type: read` or `type: write`")
        case _:
            reading.refuse(item, path, f"must be a mapping with `name` and `type`, not {kind_of(item)}")
    return None


def _command(reading: Reading, item: YamlNode, name: str, path: str) -> Command:
    if isinstance(item.value, str):
        reading.refuse(item, path, f"must be a mapping; write `{name}: {{type: {item.text}}}`")
        return Command(name=name)
    members = reading.mapping(item, path)
    reading.unknown(members, _COMMAND_KEYS, path)
    if name.strip() and not COMMAND_NAME.fullmatch(name):
        reading.refuse(members.get("name", item), path, f"{shown(name)} is not a command name: {COMMAND_NAME_HELP}")
    if "name" in members and (written := reading.text(members["name"], f"{path}.name")) != name:
        reading.refuse(members["name"], f"{path}.name", f"{shown(written)} differs from the key {name!r}")
    kind = _command_type(reading, members.get("type"), f"{path}.type")
    is_read = kind is CommandType.READ
    return Command(
        name=name,
        type=kind,
        description=reading.text(members.get("description"), f"{path}.description"),
        idempotent=reading.flag(members.get("idempotent"), f"{path}.idempotent", default=is_read),
        retry_safe=reading.flag(members.get("retry_safe"), f"{path}.retry_safe", default=is_read),
        input_schema=_schema(reading, members.get("input_schema"), f"{path}.input_schema"),
        output_schema=_schema(reading, members.get("output_schema"), f"{path}.output_schema"),
        values=_values(reading, members.get("values"), f"{path}.values"),
    )


def _command_type(reading: Reading, node: YamlNode | None, path: str) -> CommandType:
    if node is None or node.value is None:
        return CommandType.WRITE
    text = reading.text(node, path)
    if text in tuple(CommandType):
        return CommandType(text)
    if not isinstance(node.value, dict | tuple):
        reading.refuse(node, path, f"must be `read` or `write`, not {shown(text)}")
    return CommandType.WRITE


def _schema(reading: Reading, node: YamlNode | None, path: str) -> Mapping[str, Any] | None:
    if node is None or node.value is None:
        return None
    return {key: member.data() for key, member in reading.mapping(node, path).items()}


def _values(reading: Reading, node: YamlNode | None, path: str) -> Values:
    members = reading.mapping(node, path)
    reading.unknown(members, ("consume", "emit"), path)
    consume = reading.texts(members.get("consume"), f"{path}.consume")
    for name in consume:
        if not _CONSUMED.fullmatch(name):
            reading.warn(members["consume"], f"{path}.consume", f"{shown(name)} is not `payload.<name>` or `payload.*`")
    emit = []
    for item_path, item in reading.items(members.get("emit"), f"{path}.emit"):
        emitted = reading.mapping(item, item_path)
        reading.unknown(emitted, ("event", "values"), item_path)
        event = reading.required(item, emitted, "event", f"{item_path}.event", "an event type")
        emit.append(Emission(event, reading.texts(emitted.get("values"), f"{item_path}.values")))
    return Values(consume, tuple(emit))


def _fact_rules(reading: Reading, node: YamlNode | None, commands: Mapping[str, Command]) -> tuple[FactRule, ...]:
    rules = (_fact_rule(reading, item, path, commands) for path, item in reading.items(node, "fact_outputs"))
    return tuple(rule for rule in rules if rule is not None)


def _fact_rule(reading: Reading, item: YamlNode, path: str, commands: Mapping[str, Command]) -> FactRule | None:
    members = reading.mapping(item, path)
    if not isinstance(item.value, dict):
        return None
    reading.unknown(members, _FACT_KEYS, path)
    when = reading.mapping(members.get("when"), f"{path}.when")
    reading.unknown(when, ("command",), f"{path}.when")
    command = reading.required(item, when, "command", f"{path}.when.command", "a declared command")
    if command.strip() and command not in commands:
        message = f"{shown(command)} is not a declared command{did_you_mean(command, commands)}"
        reading.refuse(when["command"], f"{path}.when.command", message)
    origin = reading.required(item, members, "from", f"{path}.from", "`state_updates`")
    if origin.strip() and origin != "state_updates":
        reading.refuse(members["from"], f"{path}.from", f"must be `state_updates`, not {shown(origin)}")
    fact_type = reading.required(item, members, "fact_type", f"{path}.fact_type", "a name such as `<plugin>.snapshot`")
    view = reading.text(members.get("compatibility_view"), f"{path}.compatibility_view")
    if view and view != CompatibilityView.MIRROR_OBJECT:
        message = f"must be `mirror_object` or absent, not {shown(view)}"
        reading.refuse(members["compatibility_view"], f"{path}.compatibility_view", message)
    return FactRule(command=command, fact_type=fact_type)


def _config_keys(reading: Reading, node: YamlNode | None) -> ConfigKeys:
    members = reading.mapping(node, "config_keys")
    reading.unknown(members, ("required", "optional"), "config_keys")
    required = reading.texts(members.get("required"), "config_keys.required")
    optional = reading.texts(members.get("optional"), "config_keys.optional")
    for key in sorted(set(required) & set(optional)):
        reading.warn(members["optional"], "config_keys.optional", f"{shown(key)} is required too; required wins")
    return ConfigKeys(required, tuple(key for key in optional if key not in required))
