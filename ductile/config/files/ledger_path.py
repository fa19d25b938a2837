"""The ledger path and the service name of a configuration, read without a full load.

For read-only commands. They start faster than a full load and work while another part of the configuration is invalid.
Commands that act on a configuration call `load`.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from ductile.config.files.interpolate import substitute, unusable_reason
from ductile.config.files.legacy_keys import translate
from ductile.config.files.sources import Sources, read_sources
from ductile.core.errors import Complaint, ConfigInvalid, Mark
from ductile.core.formats.strict_yaml import YamlNode

_DEFAULT_NAME = "ductile"


def find_ledger(root: Path, environ: Mapping[str, str]) -> Path:
    """Return the ledger path that `load(root)` would return.

    Raises ConfigInvalid if a file cannot be read or the path is invalid.
    """
    sources = read_sources(root, environ)
    if sources.errors:
        raise ConfigInvalid(sources.errors)
    node = _find(translate(sources.root).root, "state", "path")
    path = _default_path() if node is None else _resolve_path(node, sources)
    return Path(os.path.realpath(root.parent / path))


def read_service_name(root: Path, environ: Mapping[str, str]) -> str:
    """Return `service.name` without interpolation."""
    sources = read_sources(root, environ)
    name = _find(translate(sources.root).root, "service", "name")
    return name.text if name is not None else _DEFAULT_NAME


def _default_path() -> Path:
    from ductile.config.sections.settings import State  # imports every section; most configurations set the path

    return State().path


def _find(root: YamlNode, section: str, key: str) -> YamlNode | None:
    found = root.value.get(section) if isinstance(root.value, dict) else None
    members = found.value if found is not None and isinstance(found.value, dict) else {}
    node: YamlNode | None = members.get(key)
    return node if node is not None and node.value is not None else None


def _resolve_path(node: YamlNode, sources: Sources) -> Path:
    """Resolve `${NAME}`, `~/` and paths relative to the file that contains them."""
    unset: list[str] = []
    written = node.value if isinstance(node.value, str) else node.text
    text = substitute(written, sources.environment, used=lambda _: None, missing=unset.append)
    if unset:
        raise _invalid(unusable_reason(unset[0], sources.environment), node.mark)
    if not text.strip() or "\0" in text:
        raise _invalid("expected a path", node.mark)
    is_home = text == "~" or text.startswith("~/")
    return Path.home() / text[2:] if is_home else Path(node.mark.source).parent / text


def _invalid(message: str, mark: Mark) -> ConfigInvalid:
    return ConfigInvalid([Complaint(message, "state.path", mark)])
