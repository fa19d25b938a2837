"""Where the ledger of a configuration is, without reading the rest of it.

For commands that only look: they start in a fraction of the time that a whole load takes, and still work while
something else in the configuration is wrong. Whoever acts on a configuration calls `load`.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from ductile.config.load.interpolate import substitute, unusable
from ductile.config.load.legacy_keys import translate
from ductile.config.load.sources import Sources, read_sources
from ductile.core.errors import Complaint, ConfigInvalid, Mark
from ductile.core.formats.strict_yaml import YamlNode


def ledger_of(root: Path, environ: Mapping[str, str]) -> Path:
    """The same path that `load(root)` finds; ConfigInvalid if a file cannot be read or the path is none."""
    sources = read_sources(root, environ)
    if sources.errors:
        raise ConfigInvalid(sources.errors)
    written = _written(translate(sources.root).root, "state", "path")
    path = _usual() if written is None else _path(written, sources)
    return Path(os.path.realpath(root.parent / path))


def service_name(root: Path, environ: Mapping[str, str]) -> str:
    """What the service calls itself, as it is written."""
    sources = read_sources(root, environ)
    name = _written(translate(sources.root).root, "service", "name")
    return name.text if name is not None else _USUAL_NAME


_USUAL_NAME = "ductile"


def _usual() -> Path:
    from ductile.config.sections.settings import State  # every section with it, and most configurations say where

    return State().path


def _written(root: YamlNode, section: str, key: str) -> YamlNode | None:
    found = root.value.get(section) if isinstance(root.value, dict) else None
    members = found.value if found is not None and isinstance(found.value, dict) else {}
    node: YamlNode | None = members.get(key)
    return node if node is not None and node.value is not None else None


def _path(node: YamlNode, sources: Sources) -> Path:
    """As it is written: `${NAME}`, `~/`, relative to the file that names it."""
    unset: list[str] = []
    written = node.value if isinstance(node.value, str) else node.text
    text = substitute(written, sources.environment, used=lambda _: None, missing=unset.append)
    if unset:
        raise _invalid(unusable(unset[0], sources.environment), node.mark)
    if not text.strip() or "\0" in text:
        raise _invalid("expected a path", node.mark)
    is_home = text == "~" or text.startswith("~/")
    return Path.home() / text[2:] if is_home else Path(node.mark.source).parent / text


def _invalid(message: str, mark: Mark) -> ConfigInvalid:
    return ConfigInvalid([Complaint(message, "state.path", mark)])
