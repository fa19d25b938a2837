"""Settings as plain data: for people with every secret hidden, for the hash with fingerprints in their place."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from attrs import fields, has
from blake3 import blake3

from ductile.config.sections.settings import Settings
from ductile.core.clock import to_text
from ductile.core.formats import strict_json
from ductile.core.formats.yaml_fields import YAML_NAME
from ductile.core.secret import HIDDEN, Mask, Secret
from ductile.core.units import format_duration
from ductile.pipeline.language.dsl import Pipeline, written

_SECRET_WORDS = ("secret", "key", "token", "pass", "pwd", "credential", "auth", "cookie", "bearer")
_REFERENCE = r"\{(?:payload|context|item)(?:\.[^{}]*)?\}"
_URL_PASSWORD = r"(://[^\s/:@]*:)[^\s/@]+@"


def looks_secret(name: str) -> bool:
    """True for names such as `api_key` or `password`; `token_ref` only names a secret."""
    lowered = name.lower()
    return not lowered.endswith("_ref") and any(word in lowered for word in _SECRET_WORDS)


def is_reference(value: Any) -> bool:
    """True for `{payload.x}`: it says where a value comes from, not what it is."""
    return isinstance(value, str) and re.fullmatch(_REFERENCE, value) is not None


def redacted(settings: Settings, mask: Mask) -> dict[str, Any]:
    """The effective settings as plain data without any secret."""
    shown: dict[str, Any] = plain(settings, hide=lambda _: HIDDEN)
    for entry in shown["plugins"].values():
        entry["config"] = without_secrets(entry["config"], mask)
        entry["env"] = without_secrets(entry["env"], mask)
        for schedule in entry["schedules"]:
            schedule["payload"] = without_secrets(schedule["payload"], mask)
    shown["pipelines"] = _remaps_without_secrets(shown["pipelines"], mask)
    return shown


def _remaps_without_secrets(data: Any, mask: Mask) -> Any:
    """In a pipeline only `with` holds data that others own; elsewhere `dedupe_key` and the like are no secrets."""
    if isinstance(data, dict):
        return {
            name: without_secrets(value, mask) if name == "with" else _remaps_without_secrets(value, mask)
            for name, value in data.items()
        }
    if isinstance(data, list):
        return [_remaps_without_secrets(item, mask) for item in data]
    return without_secrets(data, mask)


def without_secrets(data: Any, mask: Mask) -> Any:
    """Plugin-owned data with secret-looking keys hidden and known secret values masked, at any depth."""
    if isinstance(data, dict):
        return {
            name: HIDDEN if looks_secret(name) and not _is_harmless(value) else without_secrets(value, mask)
            for name, value in data.items()
        }
    if isinstance(data, list | tuple):
        return [without_secrets(item, mask) for item in data]
    return re.sub(_URL_PASSWORD, rf"\1{HIDDEN}@", mask(data)) if isinstance(data, str) else data


def _is_harmless(value: Any) -> bool:
    return value in (None, "", [], {}) or is_reference(value)


def digest(settings: Settings) -> str:
    """Changes whenever any setting changes, a secret included; gives none away."""
    content = plain(settings, hide=Secret.fingerprint)
    return blake3(strict_json.dumps(content).encode()).hexdigest()


def plain(value: Any, *, hide: Callable[[Secret], str]) -> Any:
    """JSON-like data under the names YAML uses; durations, paths and moments as text."""
    if isinstance(value, Pipeline):
        return written(value)
    if has(type(value)):
        keys = fields(type(value))
        return {key.metadata.get(YAML_NAME, key.name): plain(getattr(value, key.name), hide=hide) for key in keys}
    match value:
        case Secret():
            return hide(value)
        case timedelta():
            return format_duration(value)
        case datetime():
            return to_text(value)
        case Path():
            return str(value)
        case Mapping():
            return {name: plain(member, hide=hide) for name, member in value.items()}
        case list() | tuple():
            return [plain(item, hide=hide) for item in value]
    return value
