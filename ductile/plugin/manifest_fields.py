"""Taking typed values out of YAML nodes by hand, without losing a mistake or its place.

For files that fast commands read, where a converter would cost more to import than the reading takes. Knows nothing of
what the values mean; `manifest` does.
"""

from collections.abc import Iterable, Mapping

from ductile.core.errors import Complaint, did_you_mean
from ductile.core.formats.strict_yaml import YamlNode
from ductile.core.units import shown

_TRUE = ("true", "y", "yes", "on")
_FALSE = ("false", "n", "no", "off")


class Reading:
    """Takes values out of nodes and collects what is wrong with them; a wrong value is read as an absent one."""

    def __init__(self) -> None:
        self.complaints: list[Complaint] = []
        self.warnings: list[Complaint] = []

    def refuse(self, node: YamlNode, path: str, message: str) -> None:
        self.complaints.append(Complaint(message, path, node.mark, "plugin_refs"))

    def warn(self, node: YamlNode, path: str, message: str) -> None:
        self.warnings.append(Complaint(message, path, node.mark, "plugin_refs"))

    def mapping(self, node: YamlNode | None, path: str) -> dict[str, YamlNode]:
        match node:
            case None | YamlNode(value=None):
                return {}
            case YamlNode(value=dict() as members):
                return members
        self.refuse(node, path, f"must be a mapping, not {kind_of(node)}")
        return {}

    def items(self, node: YamlNode | None, path: str) -> list[tuple[str, YamlNode]]:
        """The items of a list, each with its path."""
        match node:
            case None | YamlNode(value=None):
                return []
            case YamlNode(value=tuple() as items):
                return [(f"{path}[{index}]", item) for index, item in enumerate(items)]
        self.refuse(node, path, f"must be a list, not {kind_of(node)}")
        return []

    def text(self, node: YamlNode | None, path: str) -> str:
        """A scalar as it is written, so that the version 1.10 stays 1.10; empty when absent."""
        match node:
            case None | YamlNode(value=None):
                return ""
            case YamlNode(value=dict() | tuple()):
                self.refuse(node, path, f"must be text, not {kind_of(node)}")
                return ""
        return node.text

    def texts(self, node: YamlNode | None, path: str) -> tuple[str, ...]:
        found = []
        for item_path, item in self.items(node, path):
            text = self.text(item, item_path)
            if text.strip():
                found.append(text)
            elif not isinstance(item.value, dict | tuple):
                self.refuse(item, item_path, "must not be empty")
        return tuple(found)

    def flag(self, node: YamlNode | None, path: str, *, default: bool) -> bool:
        match node:
            case None | YamlNode(value=None):
                return default
            case YamlNode(value=bool() as value):
                return value
            case YamlNode(value=str(), plain=True, text=text) if text.lower() in _TRUE + _FALSE:
                return text.lower() in _TRUE
        self.refuse(node, path, f"must be true or false, not {kind_of(node)}")
        return default

    def required(self, parent: YamlNode, members: Mapping[str, YamlNode], key: str, path: str, allowed: str) -> str:
        """The text under `key`; absent or blank is a complaint that says what is allowed."""
        node = members.get(key)
        text = self.text(node, path)
        if not text.strip() and not (node and isinstance(node.value, dict | tuple)):
            self.refuse(node or parent, path, f"is missing; it must be {allowed}")
        return text

    def unknown(self, members: Mapping[str, YamlNode], known: Iterable[str], path: str) -> None:
        known = tuple(known)
        for key, node in members.items():
            if key not in known and not key.startswith("x-"):
                where = f"{path}.{key}" if path else key
                self.warn(node, where, f"is not a key of a manifest and is ignored{did_you_mean(key, known)}")


def kind_of(node: YamlNode) -> str:
    """What a value is, in words for a message."""
    match node.value:
        case None:
            return "null"
        case bool() | int() | float():
            return node.text
        case str() as text:
            return f"the text {shown(text)}"
        case tuple():
            return "a list"
    return "a mapping"
