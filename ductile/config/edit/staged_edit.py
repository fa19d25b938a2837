"""A draft: the files of a configuration, some with new contents that are not written yet.

Selects the file for a change: the file that contains the value, otherwise the file that contains the section, otherwise
the root. Knows trees and files; `edit` checks whether the result is valid.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from ductile.config.edit import yaml_edit
from ductile.config.edit.yaml_edit import YamlPath, format_path, is_same_data, value_at
from ductile.config.files.sources import NO_REPLACEMENTS, Sources, read_sources
from ductile.core import files
from ductile.core.errors import Complaint, ConfigInvalid, Mark, NotFound
from ductile.core.formats import strict_yaml
from ductile.core.formats.strict_yaml import YamlNode


@frozen
class Draft:
    """The files of a configuration and the new contents of some of them."""

    root: Path
    environ: Mapping[str, str] = field(repr=False)
    sources: Sources = field(repr=False)
    replaced: Mapping[Path, bytes] = field(default=NO_REPLACEMENTS, repr=False)

    @classmethod
    def of(cls, root: Path, environ: Mapping[str, str]) -> "Draft":
        """Return a draft without changes."""
        return cls(root, environ, read_sources(root, environ))

    @property
    def data(self) -> Any:
        """All files merged, without interpolation of `${NAME}`."""
        return self.sources.root.data()

    def content(self, path: Path) -> bytes:
        """Return the content of `path` in this draft."""
        if path in self.replaced:
            return self.replaced[path]
        for source in self.sources.files:
            if source.path == path:
                return source.content
        return files.read_regular(path, max_bytes=strict_yaml.MAX_BYTES).content

    def with_file(self, path: Path, content: bytes) -> "Draft":
        """Return the draft with new content for one existing or new file."""
        replaced = {**self.replaced, path: content}
        sources = read_sources(self.root, self.environ, replaced=replaced)
        return evolve(self, replaced=replaced, sources=sources)

    def with_environment(self, name: str, value: str) -> "Draft":
        """Return the draft with one more environment variable."""
        return evolve(self, environ={**self.environ, name: value})

    def with_value(self, path: YamlPath, value: Any) -> "Draft":
        """Return the draft with `value` at `path`.

        Raises ConfigInvalid if another file overrides or extends the value.
        """
        location = self._locate(path)
        source = str(location.path)
        content = yaml_edit.with_value(self.content(location.path), location.inner_path, value, source=source)
        changed = self.with_file(location.path, content)
        if not is_same_data(value_at(changed.data, path), value):
            mark = _mark_at(changed.sources.root, path) or Mark(source, 1)
            message = f"is set in more than one file and cannot be changed in {source} alone; edit the files manually"
            raise ConfigInvalid([Complaint(message, format_path(path), mark, "edit")])
        return changed

    def with_item(self, path: YamlPath, item: Any) -> "Draft":
        """Return the draft with `item` appended to the list at `path`, in the file that contains the list."""
        location = self._locate(path)
        content = yaml_edit.with_item(self.content(location.path), location.inner_path, item, source=str(location.path))
        return self.with_file(location.path, content)

    def without_item(self, path: YamlPath, index: int) -> "Draft":
        """Return the draft without item `index` of the merged list at `path`."""
        location = self._locate((*path, index))
        if not location.is_written:
            raise NotFound(f"{format_path((*path, index))} does not exist")
        *parent, position = location.inner_path
        content = yaml_edit.without_item(
            self.content(location.path), tuple(parent), int(position), source=str(location.path)
        )
        return self.with_file(location.path, content)

    def file_of(self, path: YamlPath) -> Path:
        """Return the file that a change of `path` applies to."""
        return self._locate(path).path

    def _locate(self, path: YamlPath) -> "_FilePosition":
        locations = list(_file_positions(self.sources.documents, path))
        if not locations:
            return _FilePosition(self.root, path, 0, is_written=False)
        written = [location for location in locations if location.is_written]
        if written:
            # The later file overrides the earlier one, unless its value is null.
            return next((location for location in reversed(written) if not location.is_null), written[-1])
        deepest = max(location.depth for location in locations)
        if not deepest:
            return next((location for location in locations if location.path.stem == path[0]), locations[0])
        nearest = [location for location in locations if location.depth == deepest]
        return next((location for location in reversed(nearest) if not location.is_null), nearest[-1])


@frozen
class _FilePosition:
    """A file and the position of a path in it; the first `depth` parts of the path exist."""

    path: Path
    inner_path: YamlPath
    depth: int
    is_written: bool
    is_null: bool = False


def _file_positions(documents: tuple[tuple[Path, YamlNode], ...], path: YamlPath) -> Iterator[_FilePosition]:
    """Yield one location per file. Lists are merged by appending, so indexes continue from file to file."""
    items_before: dict[YamlPath, int] = {}
    for file, node in documents:
        found_path: list[str | int] = []
        for depth, part in enumerate(path):
            found = _step(node, part, items_before.get(path[:depth], 0))
            if isinstance(node.value, tuple):
                items_before[path[:depth]] = items_before.get(path[:depth], 0) + len(node.value)
            if found is None:
                break
            name, node = found
            found_path.append(name)
        is_written = len(found_path) == len(path)
        yield _FilePosition(
            file, (*found_path, *path[len(found_path) :]), len(found_path), is_written, is_null=node.value is None
        )


def _step(node: YamlNode, part: str | int, items_before: int) -> tuple[str | int, YamlNode] | None:
    if isinstance(node.value, dict) and isinstance(part, str) and part in node.value:
        return part, node.value[part]
    if isinstance(node.value, tuple) and isinstance(part, int) and 0 <= part - items_before < len(node.value):
        return part - items_before, node.value[part - items_before]
    return None


def _mark_at(node: YamlNode, path: YamlPath) -> Mark | None:
    for part in path:
        found = _step(node, part, 0)
        if found is None:
            break
        node = found[1]
    return node.mark
