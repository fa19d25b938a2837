"""A configuration with changes that are not written yet: every file as it is, some with other bytes.

Decides which file a change belongs into: the one that says the value now, else the one that has the section, else the
root. Knows trees and files; whether the result is a good configuration is for `edit` to find out.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from ductile.config.edit import yaml_change
from ductile.config.edit.yaml_change import same
from ductile.config.edit.yaml_path import YamlPath, spelled, value_at
from ductile.config.load.sources import NOTHING_REPLACED, Sources, read_sources
from ductile.core import files
from ductile.core.errors import Complaint, ConfigInvalid, Mark, NotFound
from ductile.core.formats import strict_yaml
from ductile.core.formats.strict_yaml import YamlNode


@frozen
class Draft:
    """The files of a configuration, and what some of them would hold."""

    root: Path
    environ: Mapping[str, str] = field(repr=False)
    sources: Sources = field(repr=False)
    replaced: Mapping[Path, bytes] = field(default=NOTHING_REPLACED, repr=False)

    @classmethod
    def of(cls, root: Path, environ: Mapping[str, str]) -> "Draft":
        """The configuration as it is."""
        return cls(root, environ, read_sources(root, environ))

    @property
    def data(self) -> Any:
        """All files merged, as they are written: `${NAME}` is not replaced."""
        return self.sources.root.data()

    def content(self, path: Path) -> bytes:
        """What `path` holds in this draft."""
        if path in self.replaced:
            return self.replaced[path]
        for source in self.sources.files:
            if source.path == path:
                return source.content
        return files.read_regular(path, max_bytes=strict_yaml.MAX_BYTES).content

    def with_file(self, path: Path, content: bytes) -> "Draft":
        """The same with other bytes in one file, which may be a new one."""
        replaced = {**self.replaced, path: content}
        sources = read_sources(self.root, self.environ, replaced=replaced)
        return evolve(self, replaced=replaced, sources=sources)

    def with_environment(self, name: str, value: str) -> "Draft":
        """The same for a service that has one more environment variable."""
        return evolve(self, environ={**self.environ, name: value})

    def with_value(self, path: YamlPath, value: Any) -> "Draft":
        """The same with `value` at `path`; whoever asks for it finds it there."""
        place = self._place(path)
        source = str(place.path)
        content = yaml_change.with_value(self.content(place.path), place.way, value, source=source)
        changed = self.with_file(place.path, content)
        if not same(value_at(changed.data, path), value):
            mark = _mark_at(changed.sources.root, path) or Mark(source, 1)
            message = f"is said in more than one file; {source} alone cannot decide it. Change it by hand"
            raise ConfigInvalid([Complaint(message, spelled(path), mark, "edit")])
        return changed

    def with_item(self, path: YamlPath, item: Any) -> "Draft":
        """The same with one more item in the list at `path`, in the file that has that list."""
        place = self._place(path)
        content = yaml_change.with_item(self.content(place.path), place.way, item, source=str(place.path))
        return self.with_file(place.path, content)

    def without_item(self, path: YamlPath, index: int) -> "Draft":
        """The same without one item of the merged list at `path`."""
        place = self._place((*path, index))
        if not place.is_written:
            raise NotFound(f"there is no {spelled((*path, index))}")
        *way, number = place.way
        content = yaml_change.without_item(self.content(place.path), tuple(way), int(number), source=str(place.path))
        return self.with_file(place.path, content)

    def file_of(self, path: YamlPath) -> Path:
        """The file that a change of `path` goes into."""
        return self._place(path).path

    def _place(self, path: YamlPath) -> "_Place":
        places = list(_places(self.sources.documents, path))
        if not places:
            return _Place(self.root, path, 0, is_written=False)
        written = [place for place in places if place.is_written]
        if written:
            # Of two files that say the same thing the later one wins, unless it says nothing.
            return next((place for place in reversed(written) if not place.is_null), written[-1])
        deepest = max(place.depth for place in places)
        if not deepest:
            return next((place for place in places if place.path.stem == path[0]), places[0])
        nearest = [place for place in places if place.depth == deepest]
        return next((place for place in reversed(nearest) if not place.is_null), nearest[-1])


@frozen
class _Place:
    """A file, and what the path is called inside it; `depth` parts of it are there already."""

    path: Path
    way: YamlPath
    depth: int
    is_written: bool
    is_null: bool = False


def _places(documents: tuple[tuple[Path, YamlNode], ...], path: YamlPath) -> Iterator[_Place]:
    """One for each file. Lists are merged by appending, so positions count on from file to file."""
    items_before: dict[YamlPath, int] = {}
    for file, node in documents:
        way: list[str | int] = []
        for depth, part in enumerate(path):
            found = _step(node, part, items_before.get(path[:depth], 0))
            if isinstance(node.value, tuple):
                items_before[path[:depth]] = items_before.get(path[:depth], 0) + len(node.value)
            if found is None:
                break
            name, node = found
            way.append(name)
        is_written = len(way) == len(path)
        yield _Place(file, (*way, *path[len(way) :]), len(way), is_written, is_null=node.value is None)


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
