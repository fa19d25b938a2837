"""`with:` values: any JSON, whose texts may refer to values of the run as `{payload.x}`.

A template is read once, at load; what holds no reference stays as it is. Rendering fails only when a path leads to
nothing: no value is ever made up for one that is missing.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attrs import frozen

from ductile.core.errors import Complaint
from ductile.core.formats import strict_json
from ductile.core.units import shown
from ductile.pipeline.language.paths import LanguageError, Path, PathAbsent, Scope, kind_of, parse_path

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class TemplateInvalid(LanguageError):
    """A template cannot be read."""


@frozen
class Fixed:
    """JSON without references."""

    value: Any


@frozen
class Reference:
    """`{payload.x}` alone: the value itself, with its type."""

    path: Path


@frozen
class Text:
    """Words and references mixed: always text."""

    parts: tuple[str | Path, ...]


@frozen
class Members:
    """An object with references somewhere in its values."""

    members: "tuple[tuple[str, Template], ...]"


@frozen
class Items:
    """A list with references somewhere in it."""

    items: "tuple[Template, ...]"


Template = Fixed | Reference | Text | Members | Items


def remap(templates: "Mapping[str, Template]", payload: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """`payload` with every key of `templates` added or replaced; all of them read `scope`, none sees another."""
    result = dict(payload)
    for key, template in templates.items():
        try:
            result[key] = render(template, scope)
        except PathAbsent as absent:
            raise PathAbsent(absent.path, f"with {shown(key)}: {absent}") from None
    return result


def render(template: Template, scope: Scope) -> Any:
    """The JSON value that `template` makes of `scope`; PathAbsent when it refers to nothing. Shares, never copies."""
    match template:
        case Fixed():
            return template.value
        case Reference():
            return scope.require(template.path)
        case Text():
            return "".join(part if isinstance(part, str) else _as_text(scope.require(part)) for part in template.parts)
        case Members():
            return {name: render(member, scope) for name, member in template.members}
        case Items():
            return [render(item, scope) for item in template.items]


def paths_of(template: Template) -> tuple[Path, ...]:
    """Every path that `template` refers to, in the order they are written."""
    return tuple(_paths(template))


def _as_text(value: Any) -> str:
    """How a value reads in the middle of words: text as it is, null as nothing, everything else as compact JSON."""
    if isinstance(value, str):
        return value
    return "" if value is None else strict_json.dumps(value)


def _paths(template: Template) -> Iterator[Path]:
    match template:
        case Fixed():
            return
        case Reference():
            yield template.path
        case Text():
            yield from (part for part in template.parts if isinstance(part, Path))
        case Members():
            for _, member in template.members:
                yield from _paths(member)
        case Items():
            for item in template.items:
                yield from _paths(item)


# --- reading what an author wrote -------------------------------------------------------------------------------------


def parse_with(raw: Any, *, roots: Collection[str]) -> dict[str, Template]:
    """The payload keys that `raw` (plain YAML data) sets; TemplateInvalid tells everything wrong with them."""
    if not isinstance(raw, dict):
        raise TemplateInvalid(Complaint(f"expected payload keys with their values, got {kind_of(raw)}"))
    _require_no_complaints(raw, roots)
    return {key: _read(value, roots) for key, value in raw.items()}


def parse_template(raw: Any, *, roots: Collection[str]) -> Template:
    """The template that `raw` (plain YAML data) spells out; TemplateInvalid tells everything wrong with it."""
    _require_no_complaints(raw, roots)
    return _read(raw, roots)


def _read(raw: Any, roots: Collection[str]) -> Template:
    """`raw` is known to be free of mistakes."""
    match raw:
        case str():
            return _read_text(raw, roots)
        case dict():
            return _folded(Members(tuple((name, _read(member, roots)) for name, member in raw.items())))
        case list():
            return _folded(Items(tuple(_read(item, roots) for item in raw)))
        case _:
            return Fixed(raw)


def _folded(template: Template) -> Template:
    """`template`, rendered already if it refers to nothing."""
    return template if any(_paths(template)) else Fixed(render(template, Scope({}, {})))


def _read_text(text: str, roots: Collection[str]) -> Template:
    parts: list[str | Path] = []
    end = 0
    for token in _TOKEN.finditer(text):
        _append(parts, text[end : token.start()])
        _append(parts, _meaning(token, roots))
        end = token.end()
    _append(parts, text[end:])
    match parts:
        case []:
            return Fixed("")
        case [str() as only]:
            return Fixed(only)
        case [Path() as path]:
            return Reference(path)
        case several:
            return Text(tuple(several))


def _meaning(token: re.Match[str], roots: Collection[str]) -> str | Path:
    # Told by its place: the text around it may have come from the environment and be secret.
    place = f"the brace at character {token.start() + 1}"
    match token[0]:
        case "{{" | "}}" as doubled:
            return doubled[0]
        case "{":
            raise _refused(f"{place} is never closed")
        case "}":
            raise _refused(f"{place} closes nothing")
        case "{}":
            raise _refused(f"{place} has no path in it")
    try:
        return parse_path(token[1], roots=roots, allow_whole=True)
    except LanguageError as error:
        raise _refused(str(error)) from None


def _refused(reason: str) -> TemplateInvalid:
    return TemplateInvalid(Complaint(f"{reason}; a brace that is meant as text is written twice"))


def _append(parts: list[str | Path], part: str | Path) -> None:
    """`part` is the last of `parts`, or of its last words."""
    if isinstance(part, str) and parts and isinstance(last := parts[-1], str):
        parts[-1] = last + part
    elif part:
        parts.append(part)


def _require_no_complaints(raw: Any, roots: Collection[str]) -> None:
    if complaints := tuple(_complaints(raw, "", roots)):
        raise TemplateInvalid(*complaints)


def _complaints(raw: Any, where: str, roots: Collection[str]) -> Iterator[Complaint]:
    match raw:
        case str():
            try:
                _read_text(raw, roots)
            except TemplateInvalid as error:
                yield from (complaint._replace(path=where) for complaint in error.complaints)
        case dict():
            for name, member in raw.items():
                yield from _complaints(member, f"{where}.{name}" if where else name, roots)
        case list():
            for index, item in enumerate(raw):
                yield from _complaints(item, f"{where}[{index}]", roots)
