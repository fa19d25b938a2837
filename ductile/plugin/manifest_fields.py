"""Read typed values from YAML nodes and collect all errors with their positions.

Manifests do not use the cattrs converter of `config`: unknown keys are warnings, commands have two notations, and one
pass reports wrong types together with wrong references. The rules of each key are in `manifest`.
"""

from collections.abc import Iterable, Mapping

from ductile.core.errors import Complaint, did_you_mean
from ductile.core.formats.strict_yaml import YamlNode
from ductile.core.units import quote_text

_TRUE = ("true", "y", "yes", "on")
_FALSE = ("false", "n", "no", "off")


class FieldReader:
    """A reader of typed values that collects errors and warnings. An invalid value is read as absent."""

    def __init__(self) -> None:
        self.complaints: list[Complaint] = []
        self.warnings: list[Complaint] = []

    def reject(self, node: YamlNode, path: str, message: str) -> None:
        self.complaints.append(Complaint(message, path, node.mark, "plugin_refs"))

    def warn(self, node: YamlNode, path: str, message: str) -> None:
        self.warnings.append(Complaint(message, path, node.mark, "plugin_refs"))

    def mapping(self, node: YamlNode | None, path: str) -> dict[str, YamlNode]:
        match node:
            case None | YamlNode(value=None):
                return {}
            case YamlNode(value=dict() as members):
                return members
        self.reject(node, path, f"must be a mapping, not {describe_value(node)}")
        return {}

    def items(self, node: YamlNode | None, path: str) -> list[tuple[str, YamlNode]]:
        """Return the items of a list, each with its path."""
        match node:
            case None | YamlNode(value=None):
                return []
            case YamlNode(value=tuple() as items):
                return [(f"{path}[{index}]", item) for index, item in enumerate(items)]
        self.reject(node, path, f"must be a list, not {describe_value(node)}")
        return []

    def text(self, node: YamlNode | None, path: str) -> str:
        """Return a scalar as written, so that the version 1.10 stays 1.10; empty if absent."""
        match node:
            case None | YamlNode(value=None):
                return ""
            case YamlNode(value=dict() | tuple()):
                self.reject(node, path, f"must be text, not {describe_value(node)}")
                return ""
        return node.text

    def texts(self, node: YamlNode | None, path: str) -> tuple[str, ...]:
        found = []
        for item_path, item in self.items(node, path):
            text = self.text(item, item_path)
            if text.strip():
                found.append(text)
            elif not isinstance(item.value, dict | tuple):
                self.reject(item, item_path, "must not be empty")
        return tuple(found)

    def flag(self, node: YamlNode | None, path: str, *, default: bool) -> bool:
        match node:
            case None | YamlNode(value=None):
                return default
            case YamlNode(value=bool() as value):
                return value
            case YamlNode(value=str(), plain=True, text=text) if text.lower() in _TRUE + _FALSE:
                return text.lower() in _TRUE
        self.reject(node, path, f"must be true or false, not {describe_value(node)}")
        return default

    def required(self, parent: YamlNode, members: Mapping[str, YamlNode], key: str, path: str, allowed: str) -> str:
        """Return the text under `key`. An absent or blank value is an error that names what is allowed."""
        node = members.get(key)
        text = self.text(node, path)
        if not text.strip() and not (node and isinstance(node.value, dict | tuple)):
            self.reject(node or parent, path, f"is missing; it must be {allowed}")
        return text

    def warn_unknown(self, members: Mapping[str, YamlNode], known: Iterable[str], path: str) -> None:
        known = tuple(known)
        for key, node in members.items():
            if key not in known and not key.startswith("x-"):
                where = f"{path}.{key}" if path else key
                self.warn(node, where, f"is an unknown manifest key and is ignored{did_you_mean(key, known)}")


def describe_value(node: YamlNode) -> str:
    """Describe a value for a message: its type, or a short scalar itself."""
    match node.value:
        case None:
            return "null"
        case bool() | int() | float():
            return node.text
        case str() as text:
            return f"the text {quote_text(text)}"
        case tuple():
            return "a list"
    return "a mapping"
