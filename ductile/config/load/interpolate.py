"""`${NAME}` in values: where the values come from, and what an unset name means.

Works on parsed scalars, so a value can never add a key. `.env` files feed this room only; nothing is put into the
environment of the process. `$${` is a literal `${`.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ductile.core.errors import Complaint, ConfigInvalid, Mark, Unreadable
from ductile.core.formats.strict_yaml import YamlNode

MAX_ADDED = 16 << 20
_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)", re.ASCII | re.DOTALL)


class Interpolated(NamedTuple):
    """A tree with its references resolved, which values that put into it, and what stayed unset."""

    root: YamlNode
    used: tuple[tuple[str, str], ...]
    """Path and value of each reference that was resolved."""
    unset: tuple[Complaint, ...]

    def __repr__(self) -> str:
        return f"Interpolated({len(self.used)} values)"


def interpolate(root: YamlNode, environment: Mapping[str, str]) -> Interpolated:
    """`root` with every `${NAME}` replaced; an unset name stays as it is and is told.

    The `text` of a node stays as written, so that a complaint can quote it without giving the value away.
    """
    used: list[tuple[str, str]] = []
    unset: list[Complaint] = []

    room = MAX_ADDED

    def require_room(text: str, path: str, mark: Mark) -> None:
        nonlocal room
        room -= sum(len(environment.get(name, "")) for name in _REFERENCE.findall(text))
        if room < 0:
            message = f"the values of ${{NAME}} would add more than {MAX_ADDED:,} characters"
            raise ConfigInvalid([Complaint(message, path, mark, "env_vars")])

    def resolve(node: YamlNode, path: str) -> YamlNode:
        if isinstance(node.value, dict):
            members = {name: resolve(member, f"{path}.{name}" if path else name) for name, member in node.value.items()}
            return YamlNode(members, node.mark)
        if isinstance(node.value, tuple):
            return YamlNode(
                tuple(resolve(item, f"{path}[{index}]") for index, item in enumerate(node.value)), node.mark
            )
        if not isinstance(node.value, str) or "${" not in node.value:
            return node
        require_room(node.value, path, node.mark)

        def missing(name: str) -> None:
            unset.append(Complaint(unusable(name, environment), path, node.mark, "env_vars"))

        text = substitute(node.value, environment, used=lambda value: used.append((path, value)), missing=missing)
        return YamlNode(text, node.mark, text=node.text, plain=node.plain)

    return Interpolated(resolve(root, ""), tuple(used), tuple(unset))


def substitute(
    text: str, environment: Mapping[str, str], *, used: Callable[[str], object], missing: Callable[[str], object]
) -> str:
    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return "${"
        value = environment.get(name)
        if value is None or not is_unicode(value):
            missing(name)
            return match[0]
        used(value)
        return value

    return _REFERENCE.sub(value_of, text)


def unusable(name: str, environment: Mapping[str, str]) -> str:
    """Why `${NAME}` stays as it is."""
    return f"environment variable {name} is {'not UTF-8 text' if name in environment else 'not set'}"


def is_unicode(text: str) -> bool:
    """False for what the operating system gave us as bytes that are not UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_env_file(content: bytes, *, source: str) -> dict[str, str]:
    """`NAME=value` lines: optional `export`, `#` comments, one pair of quotes around a value is taken off."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise Unreadable("is not UTF-8 text", Mark(source, line)) from error
    values = {}
    for number, written in enumerate(text.splitlines(), start=1):
        stripped = written.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _ASSIGNMENT.fullmatch(stripped)
        if match is None or "\0" in stripped:
            raise Unreadable("is not a NAME=value line", Mark(source, number))
        values[match[1]] = _unquoted(match[2])
    return values


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value
