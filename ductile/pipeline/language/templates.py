"""`with:` templates: JSON whose strings may contain references such as `{payload.x}`.

Parsing happens once, at load. Rendering fails only if a referenced value is absent; there are no defaults.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from attrs import evolve, frozen

from ductile.core.errors import Complaint
from ductile.core.formats import strict_json
from ductile.core.units import quote_text
from ductile.pipeline.language.paths import LanguageError, Path, PathAbsent, Scope, describe_type, parse_path

_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class TemplateInvalid(LanguageError):
    """An invalid template."""


@frozen
class Fixed:
    """JSON without references."""

    value: Any


@frozen
class Reference:
    """A single reference such as `{payload.x}`: renders to the value itself, with its type."""

    path: Path


@frozen
class Text:
    """Literal text mixed with references: always renders to text."""

    parts: tuple[str | Path, ...]


@frozen
class Members:
    """An object that contains references."""

    members: "tuple[tuple[str, Template], ...]"


@frozen
class Items:
    """A list that contains references."""

    items: "tuple[Template, ...]"


Template = Fixed | Reference | Text | Members | Items


def remap(templates: "Mapping[str, Template]", payload: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """Return `payload` with every key of `templates` added or replaced.

    All templates read `scope`; none sees the result of another. Raises PathAbsent.
    """
    result = dict(payload)
    for key, template in templates.items():
        try:
            result[key] = render(template, scope)
        except PathAbsent as absent:
            raise PathAbsent(absent.path, f"with {quote_text(key)}: {absent}") from None
    return result


def render(template: Template, scope: Scope) -> Any:
    """Render `template` to a JSON value that shares data with `scope`. Raises PathAbsent."""
    match template:
        case Fixed():
            return template.value
        case Reference():
            return scope.require(template.path)
        case Text():
            return "".join(
                part if isinstance(part, str) else _format_value(scope.require(part)) for part in template.parts
            )
        case Members():
            return {name: render(member, scope) for name, member in template.members}
        case Items():
            return [render(item, scope) for item in template.items]


def paths_of(template: Template) -> tuple[Path, ...]:
    """Return every path in `template`, in the order of the configuration."""
    return tuple(_paths(template))


def _format_value(value: Any) -> str:
    """Format a value inside text: a string as it is, null as empty, everything else as compact JSON."""
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


# ── parsing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def parse_with(raw: Any, *, roots: Collection[str]) -> dict[str, Template]:
    """Parse the templates of a `with` mapping (plain YAML data). Raises TemplateInvalid with every error."""
    if not isinstance(raw, dict):
        raise TemplateInvalid(Complaint(f"expected a mapping of payload key to value, got {describe_type(raw)}"))
    _require_no_complaints(raw, roots)
    return {key: _build(value, roots) for key, value in raw.items()}


def parse_template(raw: Any, *, roots: Collection[str]) -> Template:
    """Parse plain YAML data into a template. Raises TemplateInvalid with every error."""
    _require_no_complaints(raw, roots)
    return _build(raw, roots)


def _build(raw: Any, roots: Collection[str]) -> Template:
    """Build the template from data without errors."""
    match raw:
        case str():
            return _parse_text(raw, roots)
        case dict():
            return _fold_constant(Members(tuple((name, _build(member, roots)) for name, member in raw.items())))
        case list():
            return _fold_constant(Items(tuple(_build(item, roots) for item in raw)))
        case _:
            return Fixed(raw)


def _fold_constant(template: Template) -> Template:
    """Render a template without references."""
    return template if any(_paths(template)) else Fixed(render(template, Scope({}, {})))


def _parse_text(text: str, roots: Collection[str]) -> Template:
    parts: list[str | Path] = []
    end = 0
    for token in _TOKEN.finditer(text):
        _append(parts, text[end : token.start()])
        _append(parts, _parse_token(token, roots))
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


def _parse_token(token: re.Match[str], roots: Collection[str]) -> str | Path:
    # Named by its position: the text around it may come from the environment and be secret.
    brace = f"the brace at character {token.start() + 1}"
    match token[0]:
        case "{{" | "}}" as doubled:
            return doubled[0]
        case "{":
            raise _refused(f"{brace} is not closed")
        case "}":
            raise _refused(f"{brace} has no opening brace")
        case "{}":
            raise _refused(f"{brace} is followed by no path")
    try:
        return parse_path(token[1], roots=roots, allow_whole=True)
    except LanguageError as error:
        raise _refused(str(error)) from None


def _refused(reason: str) -> TemplateInvalid:
    return TemplateInvalid(Complaint(f"{reason}; write a literal brace twice"))


def _append(parts: list[str | Path], part: str | Path) -> None:
    """Append `part`, merging adjacent literal text."""
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
                _parse_text(raw, roots)
            except TemplateInvalid as error:
                yield from (evolve(complaint, path=where) for complaint in error.complaints)
        case dict():
            for name, member in raw.items():
                yield from _complaints(member, f"{where}.{name}" if where else name, roots)
        case list():
            for index, item in enumerate(raw):
                yield from _complaints(item, f"{where}[{index}]", roots)
