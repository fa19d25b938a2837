"""One change to one YAML text: a value set, an item added to a list, an item taken away.

Every character that does not belong to the change stays: comments, order, blank lines, quotes. The result is read again
and must say exactly what was intended, or nothing comes out. Knows texts and paths, not files or sections.
"""

import copy
import json
from collections.abc import Callable
from typing import Any

from ductile.config.edit.text_edit import TextEdit
from ductile.config.edit.yaml_path import YamlPath, value_at
from ductile.core.errors import Unreadable
from ductile.core.formats import strict_yaml


def with_value(content: bytes, path: YamlPath, value: Any, *, source: str) -> bytes:
    """`content` with `value` at `path`. Sections on the way that are not there yet are made."""
    return _changed(content, path, source, lambda edit: edit.set(value), lambda _: value)


def with_item(content: bytes, path: YamlPath, item: Any, *, source: str) -> bytes:
    """`content` with `item` at the end of the list at `path`, which is made if it is not there."""
    return _changed(content, path, source, lambda edit: edit.append(item), lambda items: [*(items or []), item])


def without_item(content: bytes, path: YamlPath, index: int, *, source: str) -> bytes:
    """`content` without item `index` of the list at `path`."""

    def shorter(items: list[Any]) -> list[Any]:
        return [item for number, item in enumerate(items) if number != index]

    return _changed(content, path, source, lambda edit: edit.remove(index), shorter)


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types: 1 is not true and not 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _changed(
    content: bytes, path: YamlPath, source: str, change: Callable[[TextEdit], str], intended: Callable[[Any], Any]
) -> bytes:
    """The changed text, if it has the intended value at `path` and is otherwise what it was."""
    before = strict_yaml.load(content, source=source).data()
    edit = TextEdit.of(content.decode(), source, path)
    try:
        result = change(edit).encode()
        after = strict_yaml.load(result, source=source).data()
    except Unreadable as error:
        raise edit.refusal(f"cannot be changed here ({error.reason}); change it by hand") from error
    except ValueError as error:
        raise edit.refusal(f"cannot be written: {error}") from error
    if not same(after, _with(before, path, intended(value_at(before, path)))):
        raise edit.refusal("cannot be changed here without changing something else; change it by hand")
    return result


def _with(data: Any, path: YamlPath, value: Any) -> Any:
    if not path:
        return value
    changed = copy.copy(data) if data is not None else {}
    changed[path[0]] = _with(value_at(data, path[:1]), path[1:], value)
    return changed
