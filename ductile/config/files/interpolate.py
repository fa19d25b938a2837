"""Interpolation of `${NAME}` in values, and the `.env` files that define names.

Works on parsed scalars, so a value cannot add a key. `.env` values are not added to the process environment. `$${` is a
literal `${`.
"""

import re
from collections.abc import Callable, Mapping

from attrs import frozen

from ductile.core.errors import Complaint, ConfigInvalid, Mark, Unreadable, did_you_mean
from ductile.core.formats.strict_yaml import YamlNode

MAX_ADDED_CHARACTERS = 16 << 20
SIMILAR_NAME = 0.8
"""Names in an environment often share a prefix, so only a likely typo is suggested."""
_REFERENCE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)", re.ASCII | re.DOTALL)


@frozen
class Interpolated:
    """A tree with resolved references, the values inserted into it, and the unset references."""

    root: YamlNode
    used: tuple[tuple[str, str], ...]
    """Path and value of each resolved reference."""
    unset: tuple[Complaint, ...]

    def __repr__(self) -> str:
        return f"Interpolated({len(self.used)} values)"


def interpolate(root: YamlNode, environment: Mapping[str, str]) -> Interpolated:
    """Replace every `${NAME}` in `root`. An unset reference stays as written and is reported in `unset`.

    The `text` of a node is not interpolated, so that an error message can quote it without revealing the value.
    """
    used: list[tuple[str, str]] = []
    unset: list[Complaint] = []

    remaining = MAX_ADDED_CHARACTERS

    def require_capacity(text: str, path: str, mark: Mark) -> None:
        nonlocal remaining
        remaining -= sum(len(environment.get(name, "")) for name in _REFERENCE.findall(text))
        if remaining < 0:
            message = f"the values of ${{NAME}} would add more than {MAX_ADDED_CHARACTERS:,} characters"
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
        require_capacity(node.value, path, node.mark)

        def missing(name: str) -> None:
            unset.append(Complaint(unusable_reason(name, environment), path, node.mark, "env_vars"))

        text = substitute(node.value, environment, used=lambda value: used.append((path, value)), missing=missing)
        return YamlNode(text, node.mark, text=node.text, plain=node.plain)

    return Interpolated(resolve(root, ""), tuple(used), tuple(unset))


def substitute(
    text: str, environment: Mapping[str, str], *, used: Callable[[str], object], missing: Callable[[str], object]
) -> str:
    """Replace every `${NAME}` in `text`; call `used` with each value and `missing` with each unset name."""

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return "${"
        value = environment.get(name)
        if value is None or not is_utf8(value):
            missing(name)
            return match[0]
        used(value)
        return value

    return _REFERENCE.sub(value_of, text)


def unusable_reason(name: str, environment: Mapping[str, str]) -> str:
    """Explain why `${NAME}` was not replaced."""
    if name in environment:
        return f"environment variable {name} is not UTF-8 text"
    hint = did_you_mean(name, environment, cutoff=SIMILAR_NAME)
    advice = "; set it in the environment or in a file of environment_vars.include"
    return f"environment variable {name} is not set{hint or advice}"


def is_utf8(text: str) -> bool:
    """False if the text contains bytes from the operating system that are not valid UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def parse_env_file(content: bytes, *, source: str) -> dict[str, str]:
    """Parse `NAME=value` lines with optional `export`, `#` comments and one pair of quotes around a value."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise Unreadable("is not UTF-8 text", Mark(source, line)) from error
    values = {}
    for number, raw_line in enumerate(text.splitlines(), start=1):
        stripped = raw_line.strip()
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
