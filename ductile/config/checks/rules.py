"""Rules between the values of one configuration, needing nothing but the settings themselves.

Every breach is an error at load. What depends on the plugins that are really there is the doctor's.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

from attrs import frozen

from ductile.config.scopes import Grant
from ductile.config.sections.relay import is_address
from ductile.config.sections.settings import PluginEntry, Schedule, Settings, WebhookEndpoint
from ductile.config.views.token_label import DERIVED, caller
from ductile.core.errors import did_you_mean
from ductile.core.formats.yaml_fields import SLUG
from ductile.pipeline.language.baggage import CONTROL
from ductile.pipeline.language.dsl import RelayStep, textual

LEAST_TICK = timedelta(milliseconds=100)
DAYS_IN_A_WEEK = 7


@frozen
class Breach:
    """A value that contradicts another."""

    path: str
    message: str
    category: str


def breaches(settings: Settings, grants: Mapping[str, Grant]) -> Iterator[Breach]:
    """Everything in `settings` that cannot be meant."""
    yield from _service(settings)
    yield from _api(settings, grants)
    for name, entry in settings.plugins.items():
        yield from _plugin(settings, name, entry)
    yield from _webhooks(settings)
    yield from _relay(settings)
    for index, pipeline in enumerate(settings.pipelines):
        for place, step in textual(pipeline.steps, f"pipelines[{index}].steps"):
            if step.relay is not None:
                yield from _relay_step(settings, step.relay, f"{place}.relay")
    yield from _tokens(settings)


def token_names(settings: Settings) -> frozenset[str]:
    return frozenset(token.name for token in settings.tokens)


def _service(settings: Settings) -> Iterator[Breach]:
    service = settings.service
    if timedelta() < service.job_queue_retention < service.dedupe_ttl:
        message = "is shorter than dedupe_ttl; a success must be known for as long as it blocks"
        yield Breach("service.job_queue_retention", message, "service")
    if service.tick_interval < LEAST_TICK:
        yield Breach("service.tick_interval", "must be 100ms or longer", "service")
    if (settings.instances or settings.remote_ingress) and not SLUG.allows(service.name):
        yield Breach("service.name", f"must be {SLUG.allowed}, because peers know this instance by it", "service")


def _api(settings: Settings, grants: Mapping[str, Grant]) -> Iterator[Breach]:
    usable = settings.api.auth.tokens or any(not grant.refused for grant in grants.values())
    wanted = settings.api.enabled or settings.service.strict_mode or settings.service.admission.require_api_auth
    if wanted and not usable:
        message = "has no token; add one with a scope, or set api.enabled: false"
        yield Breach("api.auth.tokens" if settings.api.auth.tokens else "api", message, "api")
    for index, origin in enumerate(settings.api.allowed_origins):
        if not re.fullmatch(_ORIGIN, origin):
            message = "is no origin: write it as a browser does, like https://dash.example:8443"
            yield Breach(f"api.allowed_origins[{index}]", message, "api")
    repeated = _repeated(token.token.fingerprint() for token in settings.api.auth.tokens)
    for index, token in enumerate(settings.api.auth.tokens):
        if token.token.fingerprint() in repeated:
            yield Breach(f"api.auth.tokens[{index}].token", "is the same as another token", "api")
    yield from _callers(settings)


def _callers(settings: Settings) -> Iterator[Breach]:
    """Whoever may call has a word of its own: what is kept for one token must not answer another."""
    named = {f"tokens[{i}].name": token.name for i, token in enumerate(settings.tokens) if token.scopes_file}
    named |= {f"api.auth.tokens[{i}].name": token.name for i, token in enumerate(settings.api.auth.tokens)}
    repeated = _repeated(name or None for name in named.values())
    for path, name in named.items():
        if DERIVED.fullmatch(name):
            yield Breach(path, f"{name!r} is how a token without a name is called; choose another", "api")
        elif name in repeated and not path.startswith("tokens["):
            yield Breach(path, "is used twice; logs and keys tell tokens by it", "api")
    unnamed = {i: caller(token) for i, token in enumerate(settings.api.auth.tokens) if not token.name}
    alike = _repeated(unnamed.values())
    for index, word in unnamed.items():
        if word in alike:
            yield Breach(
                f"api.auth.tokens[{index}]", f"would be called {word}, as another token: give it a name", "api"
            )


def _plugin(settings: Settings, name: str, entry: PluginEntry) -> Iterator[Breach]:
    path, workers = f"plugins.{name}", settings.service.max_workers
    if entry.parallelism is not None and entry.parallelism > workers:
        message = f"{entry.parallelism} is more than service.max_workers ({workers})"
        yield Breach(f"{path}.parallelism", message, "service")
    repeated = _repeated(schedule.id for schedule in entry.schedules)
    for index, schedule in enumerate(entry.schedules):
        where = f"{path}.schedules[{index}]"
        if schedule.id in repeated:
            yield Breach(f"{where}.id", f"{schedule.id!r} is used twice; give each schedule its own id", "schedule")
        yield from _schedule(schedule, where)
    for key, value in entry.config.items():
        if key.endswith("_ref") and not (isinstance(value, str) and value in token_names(settings)):
            yield Breach(f"{path}.config.{key}", _no_such_token(settings), "plugin_refs")


def _schedule(schedule: Schedule, path: str) -> Iterator[Breach]:
    modes = [mode for mode in ("every", "cron", "at", "after") if getattr(schedule, mode) is not None]
    if len(modes) != 1:
        found = f"has {' and '.join(modes)}" if modes else "has none of them"
        yield Breach(path, f"needs exactly one of every, cron, at, after; it {found}", "schedule")
    if schedule.command == "handle":
        yield Breach(f"{path}.command", "`handle` needs an event and cannot be scheduled", "schedule")
    if schedule.catch_up != "skip" and modes != ["every"]:
        yield Breach(f"{path}.catch_up", f"{schedule.catch_up} works with `every` only", "schedule")
    if schedule.jitter and modes not in (["every"], ["cron"]):
        yield Breach(f"{path}.jitter", "works with `every` and `cron` only", "schedule")
    if schedule.every and schedule.jitter > schedule.every:
        yield Breach(f"{path}.jitter", "is longer than the interval", "schedule")
    if len(set(schedule.not_on)) == DAYS_IN_A_WEEK:
        yield Breach(f"{path}.not_on", "names every day of the week, so it would never run", "schedule")
    window = schedule.preferred_window
    if window and window.start.zfill(5) == window.end.zfill(5):
        yield Breach(f"{path}.preferred_window", "begins and ends at the same time", "schedule")


def _webhooks(settings: Settings) -> Iterator[Breach]:
    endpoints = settings.webhooks.endpoints
    paths, names = (
        _repeated(endpoint.path for endpoint in endpoints),
        _repeated(endpoint.name for endpoint in endpoints),
    )
    pipelines = [pipeline.name for pipeline in settings.pipelines]
    for index, endpoint in enumerate(endpoints):
        path = f"webhooks.endpoints[{index}]"
        if endpoint.path in paths:
            yield Breach(f"{path}.path", f"{endpoint.path} is used twice", "webhooks")
        if endpoint.name in names:
            yield Breach(f"{path}.name", f"{endpoint.name!r} is used twice", "webhooks")
        if endpoint.pipeline and endpoint.pipeline not in pipelines:
            hint = did_you_mean(endpoint.pipeline, pipelines)
            yield Breach(f"{path}.pipeline", f"there is no pipeline {endpoint.pipeline!r}{hint}", "webhooks")
        yield from _endpoint(endpoint, path)
        yield from _secret_refs(settings, endpoint.secret_ref, f"{path}.secret_ref", "webhooks")
        yield from _base64_secrets(settings, endpoint, f"{path}.secret_ref")
    is_any_port = settings.webhooks.listen.endswith(":0")
    if endpoints and settings.api.enabled and settings.webhooks.listen == settings.api.listen and not is_any_port:
        yield Breach("webhooks.listen", f"{settings.webhooks.listen} is the API's address too", "webhooks")


def _endpoint(endpoint: WebhookEndpoint, path: str) -> Iterator[Breach]:
    targets = [target for target in ("plugin", "pipeline", "event") if getattr(endpoint, target)]
    if len(targets) != 1:
        found = f"has {' and '.join(targets)}" if targets else "has none of them"
        yield Breach(path, f"needs exactly one of plugin, pipeline, event; it {found}", "webhooks")
    if endpoint.scheme == "hmac-sha256" and endpoint.signature_header is None:
        yield Breach(f"{path}.signature_header", "is missing: scheme hmac-sha256 needs the header's name", "webhooks")
    for name in endpoint.forward_headers:
        if name.lower() in CREDENTIALS:
            yield Breach(f"{path}.forward_headers", f"{name} carries credentials and is never forwarded", "webhooks")
    if endpoint.path == "/healthz":
        yield Breach(f"{path}.path", "/healthz is taken by the health check", "webhooks")
    inner = endpoint.path[1:].removesuffix("/").split("/")
    if "%" in endpoint.path or any(part in ("", ".", "..") for part in inner):
        message = f"{endpoint.path!r} can never be asked for: leave out %, empty parts, `.` and `..`"
        yield Breach(f"{path}.path", message, "webhooks")
    if endpoint.event:
        yield from _event_type(endpoint.event, f"{path}.event")


def _base64_secrets(settings: Settings, endpoint: WebhookEndpoint, path: str) -> Iterator[Breach]:
    if endpoint.scheme != "standard-webhooks":
        return
    for token in settings.tokens:
        if token.name in endpoint.secret_ref and not re.fullmatch(_BASE64_SECRET, token.key.reveal()):
            yield Breach(
                path, f"{token.name}: scheme standard-webhooks needs a secret in base64, as it was given", "webhooks"
            )


_BASE64_SECRET = r"(?:whsec_)?(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2,3}={0,2})?"
CREDENTIALS = frozenset({"authorization", "proxy-authorization", "cookie"})
"""Headers that no plugin gets to see."""
_ORIGIN = r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?"
_OWN_PATHS = frozenset({"plugin", "plugins", "pipeline", "job", "relay", "schedule", "breaker", "queue", "system"})
_HEADER_PLACE = r"\{header\.[A-Za-z0-9-]+\}"


def _event_type(text: str, path: str) -> Iterator[Breach]:
    if any(brace in re.sub(_HEADER_PLACE, "", text) for brace in "{}"):
        yield Breach(path, f"{text!r}: braces are only for headers, such as {{header.X-GitHub-Event}}", "webhooks")
    if text.startswith("ductile."):
        yield Breach(path, f"{text!r}: types that begin with `ductile.` belong to the core", "webhooks")


def _relay(settings: Settings) -> Iterator[Breach]:
    repeated = _repeated(instance.name for instance in settings.instances)
    for index, instance in enumerate(settings.instances):
        path = f"instances[{index}]"
        if instance.name in repeated:
            yield Breach(f"{path}.name", f"{instance.name!r} is used twice", "relay")
        if not is_address(instance.base_url):
            yield Breach(f"{path}.base_url", f"{instance.base_url!r} is no address: write https://HOST:PORT", "relay")
        yield from _secret_refs(settings, (instance.secret_ref,), f"{path}.secret_ref", "relay")
        yield from _key_id(instance.key_id, f"{path}.key_id")
    ingress = settings.remote_ingress
    if ingress and ingress.listen_path.split("/")[1] in _OWN_PATHS:
        yield Breach("remote_ingress.listen_path", f"{ingress.listen_path} is a path of the API itself", "relay")
    if ingress and not re.fullmatch(_PLAIN_PATH, ingress.listen_path):
        message = "must be words joined by '/', without braces, %, `.`, `..` and a '/' at the end"
        yield Breach("remote_ingress.listen_path", message, "relay")
    repeated = _repeated(peer.name for peer in ingress.peers) if ingress else frozenset()
    for index, peer in enumerate(ingress.peers if ingress else ()):
        path = f"remote_ingress.peers[{index}]"
        if peer.name in repeated:
            yield Breach(f"{path}.name", f"{peer.name!r} is used twice", "relay")
        if ingress and ingress.require_key_id and not peer.key_id:
            yield Breach(f"{path}.key_id", "is missing: remote_ingress.require_key_id asks for it", "relay")
        yield from _secret_refs(settings, (peer.secret_ref,), f"{path}.secret_ref", "relay")
        yield from _key_id(peer.key_id, f"{path}.key_id")
        if CONTROL in peer.baggage.allow:
            yield Breach(f"{path}.baggage.allow", f"`{CONTROL}` belongs to the core and cannot be taken over", "relay")


_PLAIN_PATH = r"(?:/(?!\.{1,2}(?:/|$))[^{}/%?#]+)+"


def _key_id(key_id: str | None, path: str) -> Iterator[Breach]:
    if key_id is not None and not (key_id.isascii() and key_id == key_id.strip()):
        yield Breach(path, "must be plain ASCII without spaces around it: it is sent in a header", "relay")


def _relay_step(settings: Settings, relay: RelayStep, path: str) -> Iterator[Breach]:
    instances = {instance.name: instance for instance in settings.instances}
    if relay.to not in instances:
        known = did_you_mean(relay.to, instances) or f"; known: {', '.join(instances) or 'none'}"
        yield Breach(f"{path}.to", f"there is no instance {relay.to!r}{known}", "pipelines")
    elif (allowed := instances[relay.to].allow) and relay.event not in allowed:
        message = f"instance {relay.to} does not allow it; it allows {', '.join(allowed)}"
        yield Breach(f"{path}.event", message, "pipelines")


def _tokens(settings: Settings) -> Iterator[Breach]:
    repeated = _repeated(token.name for token in settings.tokens)
    for index, token in enumerate(settings.tokens):
        if token.name in repeated:
            yield Breach(f"tokens[{index}].name", f"{token.name!r} is used twice", "token_scopes")


def _secret_refs(settings: Settings, names: Iterable[str], path: str, category: str) -> Iterator[Breach]:
    for name in names:
        if name not in token_names(settings):
            yield Breach(path, _no_such_token(settings), category)


def _no_such_token(settings: Settings) -> str:
    """Does not quote the value: a secret that was written in the place of its name stays unsaid."""
    known = ", ".join(sorted(token_names(settings))) or "it names none"
    return f"has no source: it must be the name of a token in tokens.yaml ({known})"


def _repeated(values: Iterable[str | None]) -> frozenset[str | None]:
    return frozenset(value for value, count in Counter(values).items() if count > 1 and value is not None)
