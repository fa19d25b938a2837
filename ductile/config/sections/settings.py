"""One frozen class per YAML section: every key with its default, its rule and its one-line description.

Defaults are defined only here. `load.structure` parses sections from YAML; `load.rules` and `checks.examine` contain
the rules that span several values.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from attrs import frozen

from ductile.config.sections.exchange import ExchangeSettings
from ductile.config.sections.monitoring import Heartbeat, Notify
from ductile.config.sections.schedule_values import (
    parse_at,
    parse_cron,
    parse_every,
    parse_weekday,
    parse_window,
    parse_zone,
)
from ductile.config.sections.value_rules import (
    BASE_URL,
    CLOCK_TIME,
    ENV_NAME,
    ENV_NAME_OR_ALL,
    LISTEN,
    NETWORK,
    NO_NUL,
    ONE_OR_TWO,
    URL_PATH,
    CommandName,
    Header,
    Size,
    default_workers,
)
from ductile.core.formats.yaml_fields import (
    NOT_NEGATIVE,
    Count,
    EventType,
    Name,
    Retention,
    SingleOrList,
    Slug,
    Span,
    Text,
    TextType,
    option,
)
from ductile.core.secret import Secret
from ductile.pipeline.language.dsl import Pipeline

Every = Annotated[timedelta, TextType(parse_every, {"type": "string"})]
Cron = Annotated[str, TextType(parse_cron, {"type": "string"})]
At = Annotated[datetime, TextType(parse_at, {"type": "string", "format": "date-time"})]
Zone = Annotated[str, TextType(parse_zone, {"type": "string"})]
Window = Annotated[
    str, TextType(parse_window, {"type": "string", "pattern": "^[0-9]{1,2}:[0-9]{2}-[0-9]{1,2}:[0-9]{2}$"})
]
Weekday = Annotated[int, TextType(parse_weekday, {"type": ["string", "integer"]})]
EnvName = Annotated[str, ENV_NAME]
EnvValue = Annotated[str, NO_NUL]
PassedName = Annotated[str, ENV_NAME_OR_ALL]


@frozen(kw_only=True)
class Admission:
    """`service.admission`: Conditions that a start or reload must meet. `strict_mode` enables all of them."""

    verify_integrity_on_boot: bool = option("refuse to start if a sealed file is missing or has changed", default=False)
    fail_on_drift: bool = option("also refuse to start if a file or plugin is not in the seal", default=False)
    validate_config_on_boot: bool = option("refuse to start if `config check` reports an error", default=False)
    require_api_auth: bool = option("refuse to start if no token can authenticate API requests", default=False)


@frozen(kw_only=True)
class ServiceLimits:
    """`service.limits`: Maximum output of one plugin run, and maximum jobs of one trigger and of one submitter."""

    stdout: Size = option(
        "maximum bytes of standard output; an attempt that writes more is terminated", default=10 << 20
    )
    stderr: Size = option("maximum bytes of standard error to store", default=64 << 10)
    state: Size = option("maximum bytes of a plugin's state and of one fact", default=1 << 20)
    context: Size = option("maximum bytes of a pipeline run's baggage", default=1 << 20)
    events: Count = option("maximum events in one response", default=1000)
    fan_out: Size = option("maximum bytes that the events of one response pass to follow-up jobs", default=64 << 20)
    dedupe_key: Count = option("maximum bytes of a dedupe key", default=512)
    logs: Count = option("maximum log entries stored per response", default=1000)
    hops: Count = option("maximum transitions from one pipeline run to another in one chain", default=20)
    tree_jobs: Count = option("maximum jobs that one trigger can create", default=10_000)
    queued_jobs: Count = option("maximum queued jobs of one token, local user or webhook", default=100_000)
    queued_bytes: Size = option("maximum bytes of their payloads", default=1 << 30)


@frozen(kw_only=True)
class Service:
    """`service`: Settings of the service process."""

    name: Text = option("name of this instance, which identifies it to peers", default="ductile")
    tick_interval: Annotated[timedelta, NOT_NEGATIVE] = option(
        "maximum interval between maintenance runs; does not delay schedules", default=timedelta(seconds=60)
    )
    log_level: Literal["debug", "info", "warn", "error"] = option("minimum level of log entries", default="info")
    log_format: Literal["json", "text"] = option("format of log lines; takes effect after a restart", default="json")
    dedupe_ttl: Retention = option(
        "how long a succeeded job blocks new jobs with the same dedupe key", default=timedelta(hours=24)
    )
    job_log_retention: Retention = option(
        "how long attempts are stored; 0 stores them forever", default=timedelta(hours=720)
    )
    job_queue_retention: Retention = option(
        "how long finished jobs stay in the queue table", default=timedelta(hours=24)
    )
    job_transitions_retention: Retention = option("how long job state changes are stored", default=timedelta(hours=720))
    job_attempts_retention: Retention = option(
        "same as `job_log_retention`; the shorter of the two applies", default=timedelta(hours=720)
    )
    breaker_transitions_retention: Retention = option(
        "how long circuit breaker state changes are stored", default=timedelta(hours=2160)
    )
    webhook_deliveries_retention: Retention = option(
        "how long webhook deliveries are stored, with their bodies; 0 stores them forever", default=timedelta(hours=168)
    )
    facts_retention: Retention = option("how long facts are stored; 0 stores them forever", default=timedelta())
    max_workers: Count = option(
        "maximum number of concurrent plugin processes; default: CPU cores - 1", factory=default_workers
    )
    drain_timeout: Retention = option(
        "how long running jobs may take to finish when the service stops", default=timedelta(seconds=10)
    )
    kill_grace: Retention = option("time between SIGTERM and SIGKILL", default=timedelta(seconds=5))
    strict_mode: bool = option("enables all `admission` conditions", default=False)
    admission: Admission = option("individual conditions of `strict_mode`", factory=Admission)
    allow_symlinks: bool = option("allow symbolic links in configuration and plugin paths", default=False)
    hook_max_depth: Count = option("maximum depth of hooks that are triggered by hooks", default=4)
    plugin_env_passthrough: tuple[PassedName, ...] = option(
        "environment variables that every plugin process inherits; `*` passes all", default=()
    )
    synchronous: Literal["full", "normal"] = option(
        "durability of acknowledged writes: `full` survives a power loss, `normal` a process crash; restart to apply",
        default="full",
    )
    limits: ServiceLimits = option("size and count limits", factory=ServiceLimits)


@frozen(kw_only=True)
class State:
    """`state`: Location of the ledger."""

    path: Path = option("path of the SQLite file", default=Path("data/state.db"))


@frozen(kw_only=True)
class EnvironmentVars:
    """`environment_vars`: `.env` files with values for `${NAME}`. They are not added to the process environment."""

    include: tuple[Path, ...] = option("files with NAME=value lines", default=())


@frozen(kw_only=True)
class ApiToken:
    """`api.auth.tokens[]`: A bearer token for the API, and its scopes."""

    token: Secret = option("the bearer token, preferably as ${NAME}")
    scopes: tuple[Text, ...] = option("permissions, such as plugin:rw or *; empty: discovery only", default=())
    name: str = option("name in logs and idempotency keys; empty: derived from the token", default="")
    expires_at: At | None = option("RFC 3339 time from which the token is rejected", default=None)


@frozen(kw_only=True)
class ApiAuth:
    """`api.auth`: Authentication of API requests."""

    tokens: tuple[ApiToken, ...] = option("bearer tokens", default=())


@frozen(kw_only=True)
class Api:
    """`api`: The HTTP API."""

    enabled: bool = option(
        "listen on the address in `listen`; the local Unix socket is always available", default=False
    )
    listen: Annotated[str, LISTEN] = option("address and port", default="127.0.0.1:8080")
    auth: ApiAuth = option("authentication", factory=ApiAuth)
    max_concurrent_sync: Count = option("maximum number of requests that wait for synchronous pipelines", default=10)
    max_sync_timeout: Span = option("maximum time that such a request waits", default=timedelta(minutes=5))
    max_concurrent_waits: Count = option(
        "maximum number of requests of one token that wait for a job (`?wait=`)", default=32
    )
    max_body_size: Size = option("maximum bytes of a request body", default=1 << 20)
    allowed_origins: tuple[Text, ...] = option("web origins from which browsers may call the API", default=())


@frozen(kw_only=True)
class PreferredWindow:
    """`schedules[].preferred_window`: The time of day in which the schedule fires."""

    start: Annotated[str, CLOCK_TIME] = option("start of the window (inclusive), such as 08:00")
    end: Annotated[str, CLOCK_TIME] = option("end of the window (exclusive), such as 10:30")


@frozen(kw_only=True)
class Expect:
    """`schedules[].expect`: Deadlines for a scheduled run.

    A missed deadline emits an event, which can start pipelines, routes and hooks.
    """

    start_within: Span | None = option(
        "maximum time from the slot to the start of its job; later: `schedule.late`", default=None
    )
    finish_within: Span | None = option(
        "maximum time from the slot to the end of its job; later: `job.overdue`", default=None
    )


@frozen(kw_only=True)
class Schedule:
    """`plugins.<name>.schedules[]`: A time-based trigger. Requires exactly one of `every`, `cron`, `at`, `after`."""

    id: Name = option("identifier, unique within the plugin", default="default")
    every: Every | None = option("interval: 5m, 2h, 1d, hourly, daily, weekly, monthly (30 days)", default=None)
    cron: Cron | None = option("cron expression with five fields: minute hour day month weekday", default=None)
    at: At | None = option("run once at this RFC 3339 time", default=None)
    after: Annotated[timedelta, NOT_NEGATIVE] | None = option(
        "run once, this long after each service start", default=None
    )
    command: CommandName = option("command to run; `handle` is not allowed", default="poll")
    payload: Mapping[str, Any] = option("payload of the job", factory=dict, private=True)
    jitter: Retention = option("random offset: up to half of this before or after the slot", default=timedelta())
    catch_up: Literal["skip", "run_once", "run_all"] = option(
        "policy for slots missed while the service was down (`every` only)", default="skip"
    )
    if_running: Literal["skip", "queue", "cancel"] = option(
        "policy for slots whose previous job has not finished", default="skip"
    )
    only_between: Window | None = option("time of day in which the schedule fires, such as 08:00-22:00", default=None)
    preferred_window: PreferredWindow | None = option("same as `only_between`, as `start` and `end`", default=None)
    timezone: Zone | None = option(
        "IANA time zone for cron and windows; default: the time zone of the host", default=None
    )
    not_on: tuple[Weekday, ...] = option(
        "weekdays on which the schedule does not fire: names, or 0 (Sunday) to 6", default=()
    )
    expect: Expect | None = option("deadlines for the start and the end of each run", default=None)


@frozen(kw_only=True)
class Retry:
    """`plugins.<name>.retry`: Retry policy for failed attempts."""

    max_attempts: Count = option("maximum number of attempts, including the first", default=4)
    backoff_base: Retention = option(
        "delay before the first retry; doubles with each retry, plus random jitter", default=timedelta(seconds=30)
    )


@frozen(kw_only=True)
class CircuitBreaker:
    """`plugins.<name>.circuit_breaker`: Suspension of jobs after repeated failures."""

    threshold: Count = option("consecutive failures that open the breaker", default=3)
    reset_after: Span = option(
        "how long the breaker stays open before it allows one probe", default=timedelta(minutes=30)
    )
    applies_to: Literal["scheduled", "all"] = option(
        "jobs that the breaker counts and blocks: jobs from schedules, or all jobs", default="scheduled"
    )


@frozen(kw_only=True)
class ProcessLimits:
    """`plugins.<name>.limits`: Operating system limits for the plugin's processes. Unset means no limit."""

    memory: Size | None = option("maximum address space in bytes", default=None)
    open_files: Count | None = option("maximum number of open files", default=None)
    processes: Count | None = option("maximum number of processes of the user", default=None)
    cpu: Span | None = option("maximum CPU time", default=None)
    file_size: Size | None = option("maximum bytes of a file that the process writes", default=None)


DEFAULT_TIMEOUTS: Mapping[str, timedelta] = {
    "poll": timedelta(seconds=60),
    "handle": timedelta(seconds=120),
    "health": timedelta(seconds=10),
    "init": timedelta(seconds=30),
}
DEFAULT_TIMEOUT = timedelta(seconds=60)


@frozen(kw_only=True)
class PluginEntry:
    """`plugins.<name>`: Settings of one plugin, or of an alias of a plugin."""

    enabled: bool = option("false: no job of this plugin starts", default=True)
    uses: Name | None = option("plugin that this entry is an alias of", default=None)
    config: Mapping[str, Any] = option(
        "plugin configuration, passed to the plugin unchanged", factory=dict, private=True
    )
    schedules: tuple[Schedule, ...] = option("time-based triggers", default=())
    retry: Retry = option("retry policy", factory=Retry)
    timeouts: Mapping[CommandName, Span] = option(
        "maximum run time per command; default: poll 60s, handle 120s, health 10s, init 30s, others 60s", factory=dict
    )
    circuit_breaker: CircuitBreaker = option("suspension of jobs after repeated failures", factory=CircuitBreaker)
    max_outstanding_polls: Count = option(
        "maximum number of running and queued jobs of a schedule with `if_running: queue`, which allows at least 2",
        default=1,
    )
    parallelism: Count | None = option(
        "maximum number of concurrent processes; default: max_workers, or 1 if the plugin is not concurrency-safe",
        default=None,
    )
    notify_on_complete: bool = option("completed root jobs trigger hook pipelines", default=False)
    ignore_exit_code: bool = option(
        "accept a valid response with status ok despite a non-zero exit code", default=False
    )
    env: Mapping[EnvName, EnvValue] = option(
        "environment variables of the plugin's processes", factory=dict, private=True
    )
    limits: ProcessLimits = option("operating system limits", factory=ProcessLimits)

    def timeout_for(self, command: str) -> timedelta:
        return self.timeouts.get(command, DEFAULT_TIMEOUTS.get(command, DEFAULT_TIMEOUT))


@frozen(kw_only=True)
class RouteEntry:
    """`routes[]`: A route. Events of one plugin create jobs of another."""

    source: Name = option("plugin that emits the event", name="from")
    event_type: Text = option("event type, matched exactly")
    to: Name = option("plugin whose `handle` command receives the event")


@frozen(kw_only=True)
class WebhookEndpoint:
    """`webhooks.endpoints[]`: A signed webhook endpoint. Requires exactly one of `plugin`, `pipeline`, `event`."""

    path: Annotated[str, URL_PATH] = option("URL path for deliveries")
    name: Name | None = option("name in events and commands; default: the last segment of the path", default=None)
    plugin: Name | None = option("plugin whose `handle` command receives each delivery", default=None)
    pipeline: Text | None = option("pipeline that each delivery starts", default=None)
    event: Text | None = option("event type that each delivery emits; may contain {header.X-Name}", default=None)
    scheme: Literal["hmac-sha256", "github", "stripe", "slack", "standard-webhooks"] = option(
        "signature scheme", default="hmac-sha256"
    )
    secret_ref: Annotated[tuple[Text, ...], SingleOrList(), ONE_OR_TWO] = option(
        "name of the signing token in tokens.yaml; two names during rotation"
    )
    signature_header: Header | None = option(
        "header that contains the signature; default: depends on the scheme", default=None
    )
    delivery_id_header: Header | None = option(
        "header that identifies a delivery if the scheme signs only the body; default: depends on the scheme",
        default=None,
    )
    once: Literal["id", "body"] = option(
        "what identifies a repeated delivery: its id, or its body if the scheme signs nothing else", default="id"
    )
    forward_headers: tuple[Header, ...] = option(
        "request headers that are passed to the plugin, in addition to those of the scheme", default=()
    )
    max_body_size: Size = option("maximum bytes of a delivery", default=1 << 20)
    body: Literal["json", "form"] = option("encoding of the request body", default="json")
    ping: Literal["answer", "deliver"] = option(
        "GitHub ping events: only acknowledge them, or deliver them like other events", default="answer"
    )


@frozen(kw_only=True)
class Webhooks:
    """`webhooks`: The listener for signed webhook deliveries."""

    listen: Annotated[str, LISTEN] = option("address and port", default="127.0.0.1:8081")
    public_health: bool = option("serve /healthz to all clients instead of this host only", default=False)
    trusted_proxies: tuple[Annotated[str, NETWORK], ...] = option(
        "reverse proxies: their `X-Forwarded-For` header is trusted, and they may open more connections", default=()
    )
    endpoints: tuple[WebhookEndpoint, ...] = option("webhook endpoints", default=())


@frozen(kw_only=True)
class Instance:
    """`instances[]`: Another Ductile instance that receives events from relay steps."""

    name: Slug = option("name for `relay: {to: …}`")
    enabled: bool = option("false: no events are sent", default=True)
    base_url: Annotated[str, BASE_URL] = option("base URL of the instance")
    ingress_path: Annotated[str, URL_PATH] = option("URL path of its ingress for this instance")
    secret_ref: Text = option("name of the signing token in tokens.yaml")
    key_id: Text | None = option(
        "key identifier, sent with each request so that the receiver can select the key", default=None
    )
    timeout: Span = option("request timeout", default=timedelta(seconds=10))
    allow: tuple[EventType, ...] = option("event types that may be sent; empty: all", default=())


@frozen(kw_only=True)
class PeerBaggage:
    """`remote_ingress.peers[].baggage`: Baggage that a peer may add to the context of a run."""

    allow: tuple[Text, ...] = option("top-level baggage names to accept", default=())


@frozen(kw_only=True)
class Peer:
    """`remote_ingress.peers[]`: Another Ductile instance that may send events to this one."""

    name: Slug = option("service name of the peer")
    enabled: bool = option("false: events from this peer are rejected", default=True)
    secret_ref: Text = option("name of the signing token in tokens.yaml")
    key_id: Text | None = option("key identifier that requests must contain", default=None)
    accept: tuple[EventType, ...] = option("event types to accept; empty: all", default=())
    baggage: PeerBaggage = option("baggage to accept", factory=PeerBaggage)


@frozen(kw_only=True)
class RemoteIngress:
    """`remote_ingress`: The endpoint for events from other instances."""

    listen_path: Annotated[str, URL_PATH] = option("URL path on the API listener", default="/ingest/peer")
    max_body_size: Size = option("maximum bytes of an event", default=1 << 20)
    allowed_clock_skew: Span = option(
        "maximum difference between the clocks of sender and receiver", default=timedelta(minutes=5)
    )
    require_key_id: bool = option("require a key_id for every peer", default=False)
    peers: tuple[Peer, ...] = option("peers that may send events", default=())


@frozen(kw_only=True)
class TokenEntry:
    """`tokens[]` in tokens.yaml: A named secret. With a scope file, it can also authenticate API requests."""

    name: Name = option("name to use in `secret_ref` and in keys that end in `_ref`")
    key: Secret = option("the secret, preferably as ${NAME}")
    scopes_file: Path | None = option("JSON file that contains the scopes", default=None)
    scopes_hash: str | None = option("blake3:<hex> of the scope file", default=None)
    created_at: str | None = option("creation time", default=None)
    expires_at: At | None = option("RFC 3339 time from which the API rejects the token", default=None)
    description: str = option("purpose of the token", default="")


@frozen(kw_only=True)
class Settings:
    """The complete configuration: config.yaml and all included files."""

    include: tuple[Path, ...] = option("files, or directories of *.yaml files, to merge after this file", default=())
    environment_vars: EnvironmentVars = option("sources of ${NAME} values", factory=EnvironmentVars)
    plugin_roots: tuple[Path, ...] = option(
        "plugin directories; if two contain the same plugin, the first is used", default=()
    )
    state: State = option("location of the ledger; `database` is an alias", factory=State)
    service: Service = option("service process", factory=Service)
    api: Api = option("HTTP API", factory=Api)
    plugins: Mapping[Name, PluginEntry] = option("plugins and aliases by name", factory=dict)
    routes: tuple[RouteEntry, ...] = option("routes from plugin to plugin", default=())
    pipelines: tuple[Pipeline, ...] = option("pipelines", default=(), private=True)
    webhooks: Webhooks = option("webhook listener and endpoints", factory=Webhooks)
    instances: tuple[Instance, ...] = option("relay targets", default=())
    remote_ingress: RemoteIngress | None = option("relay sources", default=None)
    exchange: ExchangeSettings = option("messages that other programs claim", factory=ExchangeSettings)
    notify: Notify | None = option("messages about problems", default=None)
    heartbeat: Heartbeat | None = option("requests to a monitor while the service is healthy", default=None)
    tokens: tuple[TokenEntry, ...] = option("named secrets; only allowed in a file named tokens.yaml", default=())
    tcc_paths: tuple[Path, ...] = option(
        "accepted for compatibility with macOS configurations; has no effect", default=()
    )
