"""`manifest.yaml` as a typed value. Parsing reports all errors at once.

Knows nothing of folders, permissions or trust: `registry` checks whether the entrypoint exists. Schemas and
descriptions are passed through unchanged.
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
from ductile.core.units import quote_text
from ductile.plugin.manifest_fields import FieldReader, describe_value

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
    """`read` has no side effects; `write` may have some. Decides which tokens may run the command."""

    READ = "read"
    WRITE = "write"


class CompatibilityView(StrEnum):
    """How facts appear in `plugin_state`: as a copy of the newest one."""

    MIRROR_OBJECT = "mirror_object"


@frozen
class Emission:
    """An event that a command may emit, and its payload values. Documentation only, not enforced."""

    event: str
    values: tuple[str, ...] = ()


@frozen
class Values:
    """`commands[].values`: the payload values that a command reads and emits."""

    consume: tuple[str, ...] = ()
    emit: tuple[Emission, ...] = ()


@frozen(kw_only=True)
class Command:
    """`commands[]`: a command of a plugin. Schemas are unparsed: compact notation or JSON Schema."""

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
    """`fact_outputs[]`: the state updates of this command are stored as a fact of this type."""

    command: str
    fact_type: str
    compatibility_view: CompatibilityView = CompatibilityView.MIRROR_OBJECT


@frozen
class ConfigKeys:
    """`config_keys`: the configuration keys that the plugin requires and supports."""

    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()


@frozen(kw_only=True)
class Manifest:
    """A parsed manifest. `version` is the text as written. `warnings` do not reject the plugin."""

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
        """Return the required configuration keys that are absent or null in `config`."""
        return tuple(key for key in self.config_keys.required if config.get(key) is None)

    def facts_of(self, command: str) -> tuple[FactRule, ...]:
        """Return the fact rules of `command`."""
        return tuple(rule for rule in self.fact_outputs if rule.command == command)


def read_manifest(path: Path, *, follow_symlinks: bool = False) -> Manifest:
    """Read the manifest at `path`. Raises FileRefused, or PluginRejected with all errors."""
    opened = read_regular(path, max_bytes=strict_yaml.MAX_BYTES, follow_symlinks=follow_symlinks)
    return parse_manifest(opened.content, source=str(path))


def parse_manifest(content: bytes, *, source: str) -> Manifest:
    """Parse a manifest. Raises PluginRejected with all errors and their positions."""
    try:
        document = strict_yaml.load(content, source=source)
    except Unreadable as error:
        complaint = Complaint(error.reason, mark=error.mark, category="plugin_refs")
        raise _rejection([complaint]) from error
    reader = FieldReader()
    manifest = _manifest(reader, document)
    if reader.complaints or manifest is None:
        raise _rejection(reader.complaints)
    return manifest


def _rejection(complaints: Iterable[Complaint]) -> PluginRejected:
    lines = [str(complaint) for complaint in complaints]
    return PluginRejected("\n".join(lines), context={"complaints": lines})


def _manifest(reader: FieldReader, document: YamlNode) -> Manifest | None:
    members = reader.mapping(document, "")
    if not members:
        if not reader.complaints:
            reader.reject(document, "", f"is empty; a manifest starts with `manifest_spec: {SPEC}`")
        return None
    _constants(reader, document, members)
    reader.warn_unknown(members, _MANIFEST_KEYS, "")
    commands = _commands(reader, document, members.get("commands"))
    return Manifest(
        name=_name(reader, document, members),
        version=_version(reader, document, members),
        entrypoint=_entrypoint(reader, document, members),
        description=reader.text(members.get("description"), "description"),
        concurrency_safe=reader.flag(members.get("concurrency_safe"), "concurrency_safe", default=True),
        commands=commands,
        fact_outputs=_fact_rules(reader, members.get("fact_outputs"), commands),
        config_keys=_config_keys(reader, members.get("config_keys")),
        warnings=tuple(reader.warnings),
    )


def _constants(reader: FieldReader, document: YamlNode, members: Mapping[str, YamlNode]) -> None:
    """Check the three values that identify the format: spec, manifest version, protocol."""
    spec = reader.required(document, members, "manifest_spec", "manifest_spec", f"`{SPEC}`")
    if spec.strip() and spec != SPEC:
        reader.reject(members["manifest_spec"], "manifest_spec", f"must be `{SPEC}`, not {quote_text(spec)}")
    for key, wanted in (("manifest_version", MANIFEST_VERSION), ("protocol", PROTOCOL)):
        node = members.get(key)
        if node is None or node.value is None:
            reader.reject(node or document, key, f"is missing; it must be {wanted}")
        elif isinstance(node.value, bool | str | dict | tuple) or node.value != wanted:
            reader.reject(node, key, f"must be the number {wanted}, not {describe_value(node)}")


def _name(reader: FieldReader, document: YamlNode, members: Mapping[str, YamlNode]) -> str:
    name = reader.required(document, members, "name", "name", PLUGIN_NAME_HELP)
    if name.strip() and not PLUGIN_NAME.fullmatch(name):
        reader.reject(members["name"], "name", f"{quote_text(name)} is not a plugin name: {PLUGIN_NAME_HELP}")
    return name


def _version(reader: FieldReader, document: YamlNode, members: Mapping[str, YamlNode]) -> str:
    version = reader.text(members.get("version"), "version")
    if not version.strip():
        reader.warn(members.get("version", document), "version", "is missing; write for example `version: 0.1.0`")
    return version


def _entrypoint(reader: FieldReader, document: YamlNode, members: Mapping[str, YamlNode]) -> str:
    allowed = "the path of an executable file inside the plugin's folder"
    entrypoint = reader.required(document, members, "entrypoint", "entrypoint", allowed)
    if entrypoint.strip() and (problem := _entrypoint_problem(entrypoint)):
        reader.reject(members["entrypoint"], "entrypoint", f"{quote_text(entrypoint)} {problem}; it must be {allowed}")
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


def _commands(reader: FieldReader, document: YamlNode, node: YamlNode | None) -> dict[str, Command]:
    match node:
        case YamlNode(value=dict() as members):
            listed = [(f"commands.{name}", name, member) for name, member in members.items()]
        case YamlNode(value=tuple()):
            listed = [(path, _listed_name(reader, item, path), item) for path, item in reader.items(node, "commands")]
        case None | YamlNode(value=None):
            listed = []
        case _:
            reader.reject(node, "commands", f"must be a list or a mapping of commands, not {describe_value(node)}")
            return {}
    if not listed:
        reader.reject(node or document, "commands", "is missing; a plugin has at least one command, such as `poll`")
    commands: dict[str, Command] = {}
    for path, name, item in listed:
        if name is None:
            continue
        if name in commands:
            reader.warn(item, path, f"command {name!r} is declared twice; this declaration applies")
        commands[name] = _command(reader, item, name, path)
    return commands


def _listed_name(reader: FieldReader, item: YamlNode, path: str) -> str | None:
    """Return the name of a command in list form; None if the item is not a command."""
    match item:
        case YamlNode(value=dict() as members):
            return reader.required(item, members, "name", f"{path}.name", COMMAND_NAME_HELP)
        case YamlNode(value=str(), text=text):
            reader.reject(item, path, f"is only a name; write `- name: {text}` and `type: read` or `type: write`")
        case _:
            reader.reject(item, path, f"must be a mapping with `name` and `type`, not {describe_value(item)}")
    return None


def _command(reader: FieldReader, item: YamlNode, name: str, path: str) -> Command:
    if isinstance(item.value, str):
        reader.reject(item, path, f"must be a mapping; write `{name}: {{type: {item.text}}}`")
        return Command(name=name)
    members = reader.mapping(item, path)
    reader.warn_unknown(members, _COMMAND_KEYS, path)
    if name.strip() and not COMMAND_NAME.fullmatch(name):
        reader.reject(members.get("name", item), path, f"{quote_text(name)} is not a command name: {COMMAND_NAME_HELP}")
    if "name" in members and (written := reader.text(members["name"], f"{path}.name")) != name:
        reader.reject(members["name"], f"{path}.name", f"{quote_text(written)} differs from the key {name!r}")
    kind = _command_type(reader, members.get("type"), f"{path}.type")
    is_read = kind is CommandType.READ
    return Command(
        name=name,
        type=kind,
        description=reader.text(members.get("description"), f"{path}.description"),
        idempotent=reader.flag(members.get("idempotent"), f"{path}.idempotent", default=is_read),
        retry_safe=reader.flag(members.get("retry_safe"), f"{path}.retry_safe", default=is_read),
        input_schema=_schema(reader, members.get("input_schema"), f"{path}.input_schema"),
        output_schema=_schema(reader, members.get("output_schema"), f"{path}.output_schema"),
        values=_values(reader, members.get("values"), f"{path}.values"),
    )


def _command_type(reader: FieldReader, node: YamlNode | None, path: str) -> CommandType:
    if node is None or node.value is None:
        return CommandType.WRITE
    text = reader.text(node, path)
    if text in tuple(CommandType):
        return CommandType(text)
    if not isinstance(node.value, dict | tuple):
        reader.reject(node, path, f"must be `read` or `write`, not {quote_text(text)}")
    return CommandType.WRITE


def _schema(reader: FieldReader, node: YamlNode | None, path: str) -> Mapping[str, Any] | None:
    if node is None or node.value is None:
        return None
    return {key: member.data() for key, member in reader.mapping(node, path).items()}


def _values(reader: FieldReader, node: YamlNode | None, path: str) -> Values:
    members = reader.mapping(node, path)
    reader.warn_unknown(members, ("consume", "emit"), path)
    consume = reader.texts(members.get("consume"), f"{path}.consume")
    for name in consume:
        if not _CONSUMED.fullmatch(name):
            message = f"{quote_text(name)} is not `payload.<name>` or `payload.*`"
            reader.warn(members["consume"], f"{path}.consume", message)
    emit = []
    for item_path, item in reader.items(members.get("emit"), f"{path}.emit"):
        emitted = reader.mapping(item, item_path)
        reader.warn_unknown(emitted, ("event", "values"), item_path)
        event = reader.required(item, emitted, "event", f"{item_path}.event", "an event type")
        emit.append(Emission(event, reader.texts(emitted.get("values"), f"{item_path}.values")))
    return Values(consume, tuple(emit))


def _fact_rules(reader: FieldReader, node: YamlNode | None, commands: Mapping[str, Command]) -> tuple[FactRule, ...]:
    rules = (_fact_rule(reader, item, path, commands) for path, item in reader.items(node, "fact_outputs"))
    return tuple(rule for rule in rules if rule is not None)


def _fact_rule(reader: FieldReader, item: YamlNode, path: str, commands: Mapping[str, Command]) -> FactRule | None:
    members = reader.mapping(item, path)
    if not isinstance(item.value, dict):
        return None
    reader.warn_unknown(members, _FACT_KEYS, path)
    when = reader.mapping(members.get("when"), f"{path}.when")
    reader.warn_unknown(when, ("command",), f"{path}.when")
    command = reader.required(item, when, "command", f"{path}.when.command", "a declared command")
    if command.strip() and command not in commands:
        message = f"{quote_text(command)} is not a declared command{did_you_mean(command, commands)}"
        reader.reject(when["command"], f"{path}.when.command", message)
    origin = reader.required(item, members, "from", f"{path}.from", "`state_updates`")
    if origin.strip() and origin != "state_updates":
        reader.reject(members["from"], f"{path}.from", f"must be `state_updates`, not {quote_text(origin)}")
    fact_type = reader.required(item, members, "fact_type", f"{path}.fact_type", "a name such as `<plugin>.snapshot`")
    view = reader.text(members.get("compatibility_view"), f"{path}.compatibility_view")
    if view and view != CompatibilityView.MIRROR_OBJECT:
        message = f"must be `mirror_object` or absent, not {quote_text(view)}"
        reader.reject(members["compatibility_view"], f"{path}.compatibility_view", message)
    return FactRule(command=command, fact_type=fact_type)


def _config_keys(reader: FieldReader, node: YamlNode | None) -> ConfigKeys:
    members = reader.mapping(node, "config_keys")
    reader.warn_unknown(members, ("required", "optional"), "config_keys")
    required = reader.texts(members.get("required"), "config_keys.required")
    optional = reader.texts(members.get("optional"), "config_keys.optional")
    for key in sorted(set(required) & set(optional)):
        message = f"{quote_text(key)} is also required; `required` takes precedence"
        reader.warn(members["optional"], "config_keys.optional", message)
    return ConfigKeys(required, tuple(key for key in optional if key not in required))
