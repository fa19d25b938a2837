"""Settings as plain data: redacted for output, and with fingerprints in place of secrets for the digest."""

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
from ductile.pipeline.language.dsl import Pipeline, to_yaml_data

_SECRET_WORDS = ("secret", "key", "token", "pass", "pwd", "credential", "auth", "cookie", "bearer")
HEARTBEAT_URL = "heartbeat.url"
"""The only secret whose name does not look like one."""
_REFERENCE = r"\{(?:payload|context|item)(?:\.[^{}]*)?\}"
_URL_PASSWORD = r"(://[^\s/:@]*:)[^\s/@]+@"


def looks_secret(name: str) -> bool:
    """True for names such as `api_key` or `password`. Names that end in `_ref` only refer to a secret."""
    lowered = name.lower()
    return not lowered.endswith("_ref") and any(word in lowered for word in _SECRET_WORDS)


def is_reference(value: Any) -> bool:
    """True for a template such as `{payload.x}`, which contains no value."""
    return isinstance(value, str) and re.fullmatch(_REFERENCE, value) is not None


def redact_settings(settings: Settings, mask: Mask) -> dict[str, Any]:
    """Return the effective settings as plain data without secrets."""
    shown: dict[str, Any] = to_plain_data(settings, hide=lambda _: HIDDEN)
    for entry in shown["plugins"].values():
        entry["config"] = redact(entry["config"], mask)
        entry["env"] = redact(entry["env"], mask)
        for schedule in entry["schedules"]:
            schedule["payload"] = redact(schedule["payload"], mask)
    shown["pipelines"] = _redact_with(shown["pipelines"], mask)
    return shown


def _redact_with(data: Any, mask: Mask) -> Any:
    """Redact `with` in pipelines. Other keys, such as `dedupe_key`, are not secrets."""
    if isinstance(data, dict):
        return {
            name: redact(value, mask) if name == "with" else _redact_with(value, mask) for name, value in data.items()
        }
    if isinstance(data, list):
        return [_redact_with(item, mask) for item in data]
    return redact(data, mask)


def redact(data: Any, mask: Mask) -> Any:
    """Redact values under secret-looking keys and mask known secrets in plugin data, at any depth."""
    if isinstance(data, dict):
        return {
            name: HIDDEN if looks_secret(name) and not is_harmless(value) else redact(value, mask)
            for name, value in data.items()
        }
    if isinstance(data, list | tuple):
        return [redact(item, mask) for item in data]
    return re.sub(_URL_PASSWORD, rf"\1{HIDDEN}@", mask(data)) if isinstance(data, str) else data


def is_harmless(value: Any) -> bool:
    """True for a value that is no secret whatever its name is: nothing, or a template."""
    return value in (None, "", [], {}) or is_reference(value)


def digest(settings: Settings) -> str:
    """Return a hash that changes with every setting, including secrets. It does not reveal them."""
    content = to_plain_data(settings, hide=Secret.fingerprint)
    return blake3(strict_json.dumps(content).encode()).hexdigest()


def to_plain_data(value: Any, *, hide: Callable[[Secret], str]) -> Any:
    """Convert a value to JSON-like data with YAML keys; durations, paths and times become text."""
    if isinstance(value, Pipeline):
        return to_yaml_data(value)
    if has(type(value)):
        keys = fields(type(value))
        return {
            key.metadata.get(YAML_NAME, key.name): to_plain_data(getattr(value, key.name), hide=hide) for key in keys
        }
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
            return {name: to_plain_data(member, hide=hide) for name, member in value.items()}
        case list() | tuple():
            return [to_plain_data(item, hide=hide) for item in value]
    return value
