"""The secrets of a configuration, found without a full load.

For read-only commands that must not print a secret. Separate from `files.ledger_path`, because it imports every
section.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ductile.config.files.interpolate import interpolate
from ductile.config.files.legacy_keys import translate
from ductile.config.files.sources import read_sources
from ductile.config.load.redaction import HEARTBEAT_URL, is_reference, looks_secret
from ductile.core.formats.strict_yaml import YamlNode
from ductile.core.secret import Mask

_PLUGIN_DATA = re.compile(r"^(?:plugins\..*?\.(?:config|env|payload)|pipelines\[.*?\.with)\.(.*)$", re.DOTALL)


def build_mask(root: Path, environ: Mapping[str, str]) -> Mask:
    """Return a mask for all values from the environment and all values under secret-looking names.

    It hides at least what the mask of a full load hides.
    """
    sources = read_sources(root, environ)
    resolved = interpolate(translate(sources.root).root, sources.environment)
    return Mask({*(value for _, value in resolved.used), *_named_secrets(resolved.root)})


def _named_secrets(root: YamlNode) -> Iterator[str]:
    for path, node in root.walk():
        is_value = isinstance(node.value, str | int) and not isinstance(node.value, bool)
        if is_value and _is_secret_path(path) and not is_reference(node.value):
            yield str(node.value)


def _is_secret_path(path: str) -> bool:
    """True if the last name looks secret. In data for plugins, every name on the path counts."""
    plugin_data = _PLUGIN_DATA.match(path)
    names = plugin_data[1].split(".") if plugin_data else [path.rpartition(".")[2]]
    return path == HEARTBEAT_URL or any(looks_secret(name) for name in names)
