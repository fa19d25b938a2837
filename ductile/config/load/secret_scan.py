"""The secrets that a configuration holds, found without reading what the rest of it means.

For commands that only look and must not show one. Hides rather more than the mask that a whole load makes.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ductile.config.load.interpolate import interpolate
from ductile.config.load.legacy_keys import translate
from ductile.config.load.sources import read_sources
from ductile.config.views.show import is_reference, looks_secret
from ductile.core.formats.strict_yaml import YamlNode
from ductile.core.secret import Mask

_HANDED_ON = re.compile(r"^(?:plugins\..*?\.(?:config|env|payload)|pipelines\[.*?\.with)\.(.*)$", re.DOTALL)


def mask_of(root: Path, environ: Mapping[str, str]) -> Mask:
    """Hides what the environment put into the configuration, and what stands there under telling names."""
    sources = read_sources(root, environ)
    resolved = interpolate(translate(sources.root).root, sources.environment)
    return Mask({*(value for _, value in resolved.used), *_telling(resolved.root)})


def _telling(root: YamlNode) -> Iterator[str]:
    for path, node in root.walk():
        is_value = isinstance(node.value, str | int) and not isinstance(node.value, bool)
        if is_value and _is_telling(path) and not is_reference(node.value):
            yield str(node.value)


def _is_telling(path: str) -> bool:
    """True if the last name is, or, in what is handed to plugins, any name on the way to it."""
    handed_on = _HANDED_ON.match(path)
    names = handed_on[1].split(".") if handed_on else [path.rpartition(".")[2]]
    return any(looks_secret(name) for name in names)
