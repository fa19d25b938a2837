"""The effective value of every setting, tagged as configured or default."""

from typing import Any

from ductile.config.load.load import Config
from ductile.config.load.redaction import redact_settings

EXPLICIT, DEFAULT = "explicit", "default"


def tag_sources(config: Config) -> dict[str, Any]:
    """Return the effective settings without secrets; each value is `{value, source, at}` with its position."""
    tree: dict[str, Any] = _tagged(config, redact_settings(config.settings, config.mask), "")
    return tree


def flatten_tags(tree: Any, path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Return each tagged value with its dotted path."""
    if isinstance(tree, list):
        return [found for index, item in enumerate(tree) for found in flatten_tags(item, f"{path}[{index}]")]
    if is_tag(tree):
        return [(path, tree)]
    return [
        found for name, member in tree.items() for found in flatten_tags(member, f"{path}.{name}" if path else name)
    ]


def is_tag(tree: Any) -> bool:
    return isinstance(tree, dict) and tree.get("source") in (EXPLICIT, DEFAULT) and "value" in tree


def _tagged(config: Config, value: Any, path: str) -> Any:
    if isinstance(value, dict) and value:
        return {name: _tagged(config, member, f"{path}.{name}" if path else name) for name, member in value.items()}
    if isinstance(value, list) and value and f"{path}[0]" in config.places:
        return [_tagged(config, item, f"{path}[{index}]") for index, item in enumerate(value)]
    # Pipelines are expanded, so some of their paths do not occur in the file.
    mark = config.places.get(path) or (config.places.get(path.partition(".")[0]) if _is_pipeline(path) else None)
    if mark is None:
        return {"value": value, "source": DEFAULT}
    return {"value": value, "source": EXPLICIT, "at": str(mark)}


def _is_pipeline(path: str) -> bool:
    return path.startswith("pipelines[")
