"""The secrets that a configuration uses: where, from which source, and a fingerprint of each.

The format of the original. A fingerprint also depends on the place: equal secrets in two places have different ones.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen
from blake3 import blake3

from ductile.config.load.redaction import is_harmless, looks_secret
from ductile.config.sections.settings import Settings
from ductile.core.formats import strict_json
from ductile.core.formats.stored_json import load_stored
from ductile.core.secret import FINGERPRINT

_CONTEXT = "ductile config secret fingerprint v1"


@frozen
class SecretUse:
    """A secret in one place of the configuration. `ref` is the name of the token that it is taken from."""

    purpose: str
    source: str
    value: str | None
    ref: str | None = None

    def as_data(self) -> dict[str, Any]:
        value, is_present = self.value or "", bool(self.value and self.value.strip())
        use: dict[str, Any] = {"purpose": self.purpose, "source": self.source, "present": is_present}
        if self.ref is not None:
            use["ref"] = self.ref
        if is_present:
            content = "\0".join((_CONTEXT, self.purpose, value)).encode("utf-8", "surrogatepass")
            use["fingerprint"] = f"{FINGERPRINT}{blake3(content).hexdigest()}"
        return use


def secret_uses(settings: Settings) -> list[dict[str, Any]]:
    """Return every secret of the configuration, in the order of their places."""
    found = (*_tokens(settings), *_references(settings), *_plugin_secrets(settings))
    return [use.as_data() for use in sorted(found, key=lambda use: (use.purpose, use.ref or ""))]


def stored_fingerprints(text: str | None) -> dict[str, str]:
    """Return the fingerprint of each secret in a stored list, by its place; empty for a list that cannot be read."""
    uses = load_stored(text)
    if not isinstance(uses, list):
        return {}
    present = [use for use in uses if isinstance(use, dict) and isinstance(use.get("fingerprint"), str)]
    return {str(use.get("purpose")): use["fingerprint"] for use in present}


def _tokens(settings: Settings) -> Iterator[SecretUse]:
    for index, token in enumerate(settings.api.auth.tokens):
        yield SecretUse(f"api.auth.tokens[{index}].token", "config", token.token.reveal())
    for named in settings.tokens:
        yield SecretUse(f"tokens.{named.name}.key", "tokens.yaml", named.key.reveal(), named.name)


def _references(settings: Settings) -> Iterator[SecretUse]:
    keys = {token.name: token.key.reveal() for token in settings.tokens}
    for endpoint in settings.webhooks.endpoints:
        for ref in endpoint.secret_ref:
            purpose = f"webhooks.{endpoint.name or endpoint.path}.secret_ref"
            yield SecretUse(purpose, "tokens.yaml", keys.get(ref), ref)


def _plugin_secrets(settings: Settings) -> Iterator[SecretUse]:
    for name, entry in settings.plugins.items():
        at = f"plugins.{name}"
        yield from _secrets_in(entry.config, f"{at}.config", "plugin_config")
        yield from _secrets_in(entry.env, f"{at}.env", "plugin_env")
        for index, schedule in enumerate(entry.schedules):
            yield from _secrets_in(schedule.payload, f"{at}.schedules[{index}].payload", "schedule_payload")


def _secrets_in(data: Any, at: str, source: str) -> Iterator[SecretUse]:
    """Yield the values under secret-looking names, at any depth."""
    if isinstance(data, Mapping):
        for name, value in data.items():
            if looks_secret(name) and not is_harmless(value):
                text = value if isinstance(value, str) else strict_json.dumps(value)
                yield SecretUse(f"{at}.{name}", source, text)
            else:
                yield from _secrets_in(value, f"{at}.{name}", source)
    elif isinstance(data, list | tuple):
        for index, item in enumerate(data):
            yield from _secrets_in(item, f"{at}[{index}]", source)
