"""Rules that relate the values of one configuration to each other.

A violation is an error at load. Rules that depend on the installed plugins are in `checks.examine`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

from attrs import frozen

from ductile.config.load.token_label import DERIVED_LABEL, token_label
from ductile.config.scopes import Grant
from ductile.config.sections.exchange import Consumer
from ductile.config.sections.monitoring import is_request_url
from ductile.config.sections.relay import is_valid_url
from ductile.config.sections.settings import PluginEntry, Schedule, Settings, WebhookEndpoint
from ductile.core.errors import did_you_mean
from ductile.core.formats.yaml_fields import SLUG
from ductile.core.model import HANDLE
from ductile.pipeline.language.baggage import CONTROL
from ductile.pipeline.language.dsl import RelayStep, iter_steps

MIN_TICK_INTERVAL = timedelta(milliseconds=100)
DAYS_IN_A_WEEK = 7


@frozen
class RuleViolation:
    """A value that contradicts another value."""

    path: str
    message: str
    category: str


def find_violations(settings: Settings, grants: Mapping[str, Grant]) -> Iterator[RuleViolation]:
    """Yield every rule violation in `settings`."""
    yield from _service(settings)
    yield from _api(settings, grants)
    for name, entry in settings.plugins.items():
        yield from _plugin(settings, name, entry)
    yield from _webhooks(settings)
    yield from _relay(settings)
    yield from _exchange(settings)
    for index, pipeline in enumerate(settings.pipelines):
        for path, step in iter_steps(pipeline.steps, f"pipelines[{index}].steps"):
            if step.relay is not None:
                yield from _relay_step(settings, step.relay, f"{path}.relay")
    yield from _tokens(settings)
    yield from _heartbeat(settings)


def _heartbeat(settings: Settings) -> Iterator[RuleViolation]:
    """The message does not contain the URL, which is a secret."""
    heartbeat = settings.heartbeat
    if heartbeat is not None and not is_request_url(heartbeat.url.reveal()):
        message = "is not a URL that can be requested; use https://HOST/PATH, without a user name and a fragment"
        yield RuleViolation("heartbeat.url", message, "service")


def token_names(settings: Settings) -> frozenset[str]:
    return frozenset(token.name for token in settings.tokens)


def _service(settings: Settings) -> Iterator[RuleViolation]:
    service = settings.service
    if timedelta() < service.job_queue_retention < service.dedupe_ttl:
        message = "must not be shorter than dedupe_ttl, because deduplication needs the succeeded job"
        yield RuleViolation("service.job_queue_retention", message, "service")
    if service.tick_interval < MIN_TICK_INTERVAL:
        yield RuleViolation("service.tick_interval", "must be 100ms or longer", "service")
    if (settings.instances or settings.remote_ingress) and not SLUG.allows(service.name):
        yield RuleViolation(
            "service.name", f"must be {SLUG.allowed}, because it identifies this instance to peers", "service"
        )


def _api(settings: Settings, grants: Mapping[str, Grant]) -> Iterator[RuleViolation]:
    usable = settings.api.auth.tokens or any(not grant.refused for grant in grants.values())
    required = settings.api.enabled or settings.service.strict_mode or settings.service.admission.require_api_auth
    if required and not usable:
        message = "has no usable token; add a token with a scope, or set api.enabled: false"
        yield RuleViolation("api.auth.tokens" if settings.api.auth.tokens else "api", message, "api")
    for index, origin in enumerate(settings.api.allowed_origins):
        if not re.fullmatch(_ORIGIN, origin):
            message = "is not an origin; use the form that browsers send, such as https://dash.example:8443"
            yield RuleViolation(f"api.allowed_origins[{index}]", message, "api")
    repeated = _repeated(token.token.fingerprint() for token in settings.api.auth.tokens)
    for index, token in enumerate(settings.api.auth.tokens):
        if token.token.fingerprint() in repeated:
            yield RuleViolation(f"api.auth.tokens[{index}].token", "is the same as another token", "api")
    yield from _token_labels(settings)


def _token_labels(settings: Settings) -> Iterator[RuleViolation]:
    """Labels must be unique, because data stored for one token must not be returned to another."""
    named = {f"tokens[{i}].name": token.name for i, token in enumerate(settings.tokens) if token.scopes_file}
    named |= {f"api.auth.tokens[{i}].name": token.name for i, token in enumerate(settings.api.auth.tokens)}
    repeated = _repeated(name or None for name in named.values())
    for path, name in named.items():
        if DERIVED_LABEL.fullmatch(name):
            yield RuleViolation(path, f"{name!r} is reserved for tokens without a name; choose another name", "api")
        elif name in repeated and not path.startswith("tokens["):
            yield RuleViolation(path, "is used twice; logs and keys identify tokens by name", "api")
    derived = {i: token_label(token) for i, token in enumerate(settings.api.auth.tokens) if not token.name}
    duplicates = _repeated(derived.values())
    for index, label in derived.items():
        if label in duplicates:
            yield RuleViolation(
                f"api.auth.tokens[{index}]", f"has the same derived name {label} as another token; set `name`", "api"
            )


def _plugin(settings: Settings, name: str, entry: PluginEntry) -> Iterator[RuleViolation]:
    path, workers = f"plugins.{name}", settings.service.max_workers
    if entry.parallelism is not None and entry.parallelism > workers:
        message = f"{entry.parallelism} is more than service.max_workers ({workers})"
        yield RuleViolation(f"{path}.parallelism", message, "service")
    repeated = _repeated(schedule.id for schedule in entry.schedules)
    for index, schedule in enumerate(entry.schedules):
        where = f"{path}.schedules[{index}]"
        if schedule.id in repeated:
            yield RuleViolation(
                f"{where}.id", f"{schedule.id!r} is used twice; give each schedule its own id", "schedule"
            )
        yield from _schedule(schedule, where)
    for key, value in entry.config.items():
        if key.endswith("_ref") and not (isinstance(value, str) and value in token_names(settings)):
            yield RuleViolation(f"{path}.config.{key}", _no_such_token(settings, value), "plugin_refs")


def _schedule(schedule: Schedule, path: str) -> Iterator[RuleViolation]:
    modes = [mode for mode in ("every", "cron", "at", "after") if getattr(schedule, mode) is not None]
    if len(modes) != 1:
        found = f"has {' and '.join(modes)}" if modes else "has none of them"
        yield RuleViolation(path, f"needs exactly one of every, cron, at, after; it {found}", "schedule")
    if schedule.command == "handle":
        yield RuleViolation(f"{path}.command", "`handle` needs an event and cannot be scheduled", "schedule")
    if schedule.catch_up != "skip" and modes != ["every"]:
        yield RuleViolation(f"{path}.catch_up", f"{schedule.catch_up} requires `every`", "schedule")
    if schedule.jitter and modes not in (["every"], ["cron"]):
        yield RuleViolation(f"{path}.jitter", "requires `every` or `cron`", "schedule")
    if schedule.every and schedule.jitter > schedule.every:
        yield RuleViolation(f"{path}.jitter", "is longer than the interval", "schedule")
    if len(set(schedule.not_on)) == DAYS_IN_A_WEEK:
        yield RuleViolation(f"{path}.not_on", "contains every day of the week, so the schedule never fires", "schedule")
    elif schedule.cron and schedule.not_on and not _has_slots(schedule.cron, schedule.not_on):
        message = f"contains every weekday of `cron: {schedule.cron}`, so the schedule never fires"
        yield RuleViolation(f"{path}.not_on", message, "schedule")
    window = schedule.preferred_window
    if window and window.start.zfill(5) == window.end.zfill(5):
        yield RuleViolation(f"{path}.preferred_window", "starts and ends at the same time", "schedule")


def _has_slots(cron: str, not_on: Iterable[int]) -> bool:
    from ductile.calendar.cron import ANY_TIME, parse_line  # not needed without such schedules

    return parse_line(cron).without(frozenset(not_on)).first(ANY_TIME) is not None


def _webhooks(settings: Settings) -> Iterator[RuleViolation]:
    endpoints = settings.webhooks.endpoints
    paths, names = (
        _repeated(endpoint.path for endpoint in endpoints),
        _repeated(endpoint.name for endpoint in endpoints),
    )
    pipelines = [pipeline.name for pipeline in settings.pipelines]
    for index, endpoint in enumerate(endpoints):
        path = f"webhooks.endpoints[{index}]"
        if endpoint.path in paths:
            yield RuleViolation(f"{path}.path", f"{endpoint.path} is used twice", "webhooks")
        if endpoint.name in names:
            yield RuleViolation(f"{path}.name", f"{endpoint.name!r} is used twice", "webhooks")
        if endpoint.pipeline and endpoint.pipeline not in pipelines:
            hint = did_you_mean(endpoint.pipeline, pipelines)
            yield RuleViolation(f"{path}.pipeline", f"pipeline {endpoint.pipeline!r} does not exist{hint}", "webhooks")
        yield from _endpoint(endpoint, path)
        yield from _secret_refs(settings, endpoint.secret_ref, f"{path}.secret_ref", "webhooks")
        yield from _base64_secrets(settings, endpoint, f"{path}.secret_ref")
    is_any_port = settings.webhooks.listen.endswith(":0")
    if endpoints and settings.api.enabled and settings.webhooks.listen == settings.api.listen and not is_any_port:
        yield RuleViolation("webhooks.listen", f"{settings.webhooks.listen} is also the address of the API", "webhooks")


def _endpoint(endpoint: WebhookEndpoint, path: str) -> Iterator[RuleViolation]:
    targets = [target for target in ("plugin", "pipeline", "event") if getattr(endpoint, target)]
    if len(targets) != 1:
        found = f"has {' and '.join(targets)}" if targets else "has none of them"
        yield RuleViolation(path, f"needs exactly one of plugin, pipeline, event; it {found}", "webhooks")
    if endpoint.scheme == "hmac-sha256" and endpoint.signature_header is None:
        yield RuleViolation(f"{path}.signature_header", "is missing: scheme hmac-sha256 requires it", "webhooks")
    if endpoint.once == "body":
        yield from _once_body(endpoint, f"{path}.once")
    for name in endpoint.forward_headers:
        if name.lower() in CREDENTIAL_HEADERS:
            yield RuleViolation(
                f"{path}.forward_headers", f"{name} contains credentials and cannot be forwarded", "webhooks"
            )
    if endpoint.path == "/healthz":
        yield RuleViolation(f"{path}.path", "/healthz is reserved for the health check", "webhooks")
    inner = endpoint.path[1:].removesuffix("/").split("/")
    if "%" in endpoint.path or any(part in ("", ".", "..") for part in inner):
        message = f"{endpoint.path!r} cannot be requested: remove %, empty segments, `.` and `..`"
        yield RuleViolation(f"{path}.path", message, "webhooks")
    if endpoint.event:
        yield from _event_type(endpoint.event, f"{path}.event")


def _once_body(endpoint: WebhookEndpoint, path: str) -> Iterator[RuleViolation]:
    if endpoint.scheme not in BODY_ONLY_SCHEMES:
        message = f"scheme {endpoint.scheme} signs a timestamp, which identifies a delivery; remove `once: body`"
        yield RuleViolation(path, message, "webhooks")
    if endpoint.delivery_id_header is not None:
        yield RuleViolation(path, "delivery_id_header is not used with `once: body`; remove one of the two", "webhooks")


def _base64_secrets(settings: Settings, endpoint: WebhookEndpoint, path: str) -> Iterator[RuleViolation]:
    if endpoint.scheme != "standard-webhooks":
        return
    for token in settings.tokens:
        if token.name in endpoint.secret_ref and not re.fullmatch(_BASE64_SECRET, token.key.reveal()):
            yield RuleViolation(
                path, f"{token.name}: scheme standard-webhooks requires a base64-encoded secret", "webhooks"
            )


BODY_ONLY_SCHEMES = frozenset({"hmac-sha256", "github"})
"""Signature schemes that sign only the body."""
_BASE64_SECRET = r"(?:whsec_)?(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2,3}={0,2})?"
CREDENTIAL_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie"})
"""Headers that are never forwarded to plugins."""
_ORIGIN = r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:]+\])(?::[0-9]{1,5})?"
_OWN_PATHS = frozenset({"plugin", "plugins", "pipeline", "job", "relay", "schedule", "breaker", "queue", "system"})
_HEADER_PLACE = r"\{header\.[A-Za-z0-9-]+\}"


def _event_type(text: str, path: str) -> Iterator[RuleViolation]:
    if any(brace in re.sub(_HEADER_PLACE, "", text) for brace in "{}"):
        yield RuleViolation(
            path, f"{text!r}: braces are only allowed for headers, such as {{header.X-GitHub-Event}}", "webhooks"
        )
    if text.startswith("ductile."):
        yield RuleViolation(path, f"{text!r}: event types that start with `ductile.` are reserved", "webhooks")


def _relay(settings: Settings) -> Iterator[RuleViolation]:
    repeated = _repeated(instance.name for instance in settings.instances)
    for index, instance in enumerate(settings.instances):
        path = f"instances[{index}]"
        if instance.name in repeated:
            yield RuleViolation(f"{path}.name", f"{instance.name!r} is used twice", "relay")
        if not is_valid_url(instance.base_url):
            yield RuleViolation(
                f"{path}.base_url", f"{instance.base_url!r} is not a valid URL; use https://HOST:PORT", "relay"
            )
        yield from _secret_refs(settings, (instance.secret_ref,), f"{path}.secret_ref", "relay")
        yield from _key_id(instance.key_id, f"{path}.key_id")
    ingress = settings.remote_ingress
    if ingress and ingress.listen_path.split("/")[1] in _OWN_PATHS:
        yield RuleViolation("remote_ingress.listen_path", f"{ingress.listen_path} is reserved by the API", "relay")
    if ingress and not re.fullmatch(_PLAIN_PATH, ingress.listen_path):
        message = "must consist of segments joined by '/', without braces, %, `.`, `..` or a trailing '/'"
        yield RuleViolation("remote_ingress.listen_path", message, "relay")
    repeated = _repeated(peer.name for peer in ingress.peers) if ingress else frozenset()
    for index, peer in enumerate(ingress.peers if ingress else ()):
        path = f"remote_ingress.peers[{index}]"
        if peer.name in repeated:
            yield RuleViolation(f"{path}.name", f"{peer.name!r} is used twice", "relay")
        if ingress and ingress.require_key_id and not peer.key_id:
            yield RuleViolation(f"{path}.key_id", "is missing: remote_ingress.require_key_id requires it", "relay")
        yield from _secret_refs(settings, (peer.secret_ref,), f"{path}.secret_ref", "relay")
        yield from _key_id(peer.key_id, f"{path}.key_id")
        if CONTROL in peer.baggage.allow:
            yield RuleViolation(f"{path}.baggage.allow", f"`{CONTROL}` is reserved and cannot be accepted", "relay")


_PLAIN_PATH = r"(?:/(?!\.{1,2}(?:/|$))[^{}/%?#]+)+"


def _key_id(key_id: str | None, path: str) -> Iterator[RuleViolation]:
    if key_id is not None and not (key_id.isascii() and key_id == key_id.strip()):
        yield RuleViolation(
            path, "must be ASCII without leading or trailing spaces, because it is sent in a header", "relay"
        )


def _relay_step(settings: Settings, relay: RelayStep, path: str) -> Iterator[RuleViolation]:
    instances = {instance.name: instance for instance in settings.instances}
    if relay.to not in instances:
        known = did_you_mean(relay.to, instances) or f"; known: {', '.join(instances) or 'none'}"
        yield RuleViolation(f"{path}.to", f"instance {relay.to!r} does not exist{known}", "pipelines")
    elif (allowed := instances[relay.to].allow) and relay.event not in allowed:
        message = f"instance {relay.to} does not allow it; allowed: {', '.join(allowed)}"
        yield RuleViolation(f"{path}.event", message, "pipelines")


def _exchange(settings: Settings) -> Iterator[RuleViolation]:
    exchange = settings.exchange
    for topic, own in exchange.topics.items():
        if own.dead_letter == topic:
            message = "is the topic itself; use another topic for its dead letters"
            yield RuleViolation(f"exchange.topics.{topic}.dead_letter", message, "exchange")
    repeated = _repeated(consumer.topic for consumer in exchange.consumers)
    pipelines = [pipeline.name for pipeline in settings.pipelines]
    for index, consumer in enumerate(exchange.consumers):
        path = f"exchange.consumers[{index}]"
        if consumer.topic in repeated:
            yield RuleViolation(
                f"{path}.topic", f"{consumer.topic} is used twice; a message has one consumer", "exchange"
            )
        if consumer.pipeline and consumer.pipeline not in pipelines:
            hint = did_you_mean(consumer.pipeline, pipelines) or f"; known: {', '.join(pipelines) or 'none'}"
            yield RuleViolation(f"{path}.pipeline", f"pipeline {consumer.pipeline!r} does not exist{hint}", "exchange")
        yield from _consumer(consumer, path)


def _consumer(consumer: Consumer, path: str) -> Iterator[RuleViolation]:
    targets = [target for target in Consumer.EXACTLY_ONE if getattr(consumer, target)]
    if len(targets) != 1:
        found = f"has {' and '.join(targets)}" if targets else "has none of them"
        message = f"needs exactly one of {', '.join(Consumer.EXACTLY_ONE)}; it {found}"
        yield RuleViolation(path, message, "exchange")
    if consumer.command != HANDLE and consumer.plugin is None:
        yield RuleViolation(f"{path}.command", "requires `plugin`", "exchange")
    if consumer.event and consumer.event.startswith("ductile."):
        message = f"{consumer.event!r}: event types that start with `ductile.` are reserved"
        yield RuleViolation(f"{path}.event", message, "exchange")
    for key in ("success_topic", "failure_topic", "timeout_topic"):
        if getattr(consumer, key) == consumer.topic:
            message = "is the topic of the consumer, so every reply would start another run"
            yield RuleViolation(f"{path}.{key}", message, "exchange")


def _tokens(settings: Settings) -> Iterator[RuleViolation]:
    repeated = _repeated(token.name for token in settings.tokens)
    for index, token in enumerate(settings.tokens):
        if token.name in repeated:
            yield RuleViolation(f"tokens[{index}].name", f"{token.name!r} is used twice", "token_scopes")


def _secret_refs(settings: Settings, names: Iterable[str], path: str, category: str) -> Iterator[RuleViolation]:
    for name in names:
        if name not in token_names(settings):
            yield RuleViolation(path, _no_such_token(settings, name), category)


def _no_such_token(settings: Settings, value: object) -> str:
    """Return an error without the value, which may be a secret instead of a name."""
    names = sorted(token_names(settings))
    hint = did_you_mean(value, names) if isinstance(value, str) else ""
    return f"must be the name of a token in tokens.yaml{hint} (known: {', '.join(names) or 'none'})"


def _repeated(values: Iterable[str | None]) -> frozenset[str | None]:
    return frozenset(value for value, count in Counter(values).items() if count > 1 and value is not None)
