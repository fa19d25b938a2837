"""Warnings about `with` values in which the braces of a reference are missing quotes, or are doubled."""

import re
from collections.abc import Iterator
from typing import Any

from ductile.config.load.load import Config
from ductile.core.errors import Complaint
from ductile.pipeline.language.dsl import Step, iter_steps

_REFERENCE = re.compile(r"(?:payload|context|item)(?:\.[\w-]+)*", re.ASCII)
_DOUBLED = re.compile(r"\{\{\s*([A-Za-z_][\w-]*(?:\.[\w-]+)*)\s*\}\}", re.ASCII)


def find_wrong_braces(config: Config) -> Iterator[Complaint]:
    """Yield a warning for each value that is probably meant as a reference."""
    for index, pipeline in enumerate(config.settings.pipelines):
        for path, step in iter_steps(pipeline.steps, f"pipelines[{index}].steps"):
            for key, value in _templates(step):
                for where, message in _wrong_braces(value, f"{path}.{key}"):
                    yield config.complaint(message, where, "pipelines")


def _templates(step: Step) -> Iterator[tuple[str, Any]]:
    yield "with", step.with_
    if step.relay is not None:
        yield "relay.with", step.relay.with_


def _wrong_braces(value: Any, where: str) -> Iterator[tuple[str, str]]:
    match value:
        case dict() if len(value) == 1 and _is_bare_reference(*value.items()):
            name, key = where.rpartition(".")[2], next(iter(value))
            yield where, f'is a mapping with the key {key}; put quotes around a reference: {name}: "{{{key}}}"'
        case dict():
            for name, member in value.items():
                yield from _wrong_braces(member, f"{where}.{name}")
        case list():
            for index, item in enumerate(value):
                yield from _wrong_braces(item, f"{where}[{index}]")
        case str() if found := _DOUBLED.search(value):
            yield where, f"has double braces, which are literal text; {_with_single_braces(found[1])}"


def _is_bare_reference(member: tuple[str, Any]) -> bool:
    """True for the only member of `{payload.text}`, which YAML reads as a mapping with a key and no value."""
    name, value = member
    return value is None and _REFERENCE.fullmatch(name) is not None


def _with_single_braces(path: str) -> str:
    """Return the advice. Quotes only a path, because other text may come from the environment and be secret."""
    example = path if _REFERENCE.fullmatch(path) else "payload.text"
    return f'write a reference with single braces, such as "{{{example}}}"'
