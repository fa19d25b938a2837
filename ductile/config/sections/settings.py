"""One frozen class per YAML section: every key, its default, its rule and its one-line explanation.

Defaults live here and nowhere else. Rules that span sections are the doctor's (`check`); how a section is read from
YAML is `structure`'s.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from attrs import frozen

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
    BYTES,
    CLOCK_TIME,
    ENV_NAME,
    ENV_NAME_OR_ALL,
    LISTEN,
    NETWORK,
    NO_NUL,
    ONE_OR_TWO,
    URL_PATH,
    Header,
    default_workers,
)
from ductile.core.formats.yaml_fields import (
    COMMAND,
    NOT_NEGATIVE,
    Count,
    EventType,
    Lone,
    Name,
    Retention,
    Slug,
    Span,
    Text,
    TextType,
    option,
)
from ductile.core.secret import Secret
from ductile.core.units import parse_size
from ductile.pipeline.language.dsl import Pipeline

Size = Annotated[int, TextType(parse_size, {"type": ["string", "integer"]}), BYTES]
Every = Annotated[timedelta, TextType(parse_every, {"type": "string"})]
Cron = Annotated[str, TextType(parse_cron, {"type": "string"})]
At = Annotated[datetime, TextType(parse_at, {"type": "string", "format": "date-time"})]
Zone = Annotated[str, TextType(parse_zone, {"type": "string"})]
Window = Annotated[
    str, TextType(parse_window, {"type": "string", "pattern": "^[0-9]{1,2}:[0-9]{2}-[0-9]{1,2}:[0-9]{2}$"})
]
Weekday = Annotated[int, TextType(parse_weekday, {"type": ["string", "integer"]})]
CommandName = Annotated[str, COMMAND]
EnvName = Annotated[str, ENV_NAME]
EnvValue = Annotated[str, NO_NUL]
PassedName = Annotated[str, ENV_NAME_OR_ALL]


@frozen(kw_only=True)
class Admission:
    """`service.admission`: what must hold before the service starts or reloads; `strict_mode` means all of them."""

    verify_integrity_on_boot: bool = option("refuse to start when a sealed file is missing or differs", default=False)
    fail_on_drift: bool = option("refuse also when a file or plugin is not in the seal at all", default=False)
    validate_config_on_boot: bool = option("refuse to start when the doctor finds an error", default=False)
    require_api_auth: bool = option("refuse to start when no token can use the API", default=False)


@frozen(kw_only=True)
class ServiceLimits:
    """`service.limits`: how much one plugin run may produce, and how far one trigger may spread."""

    stdout: Size = option("bytes of standard output; more ends the attempt", default=10 << 20)
    stderr: Size = option("bytes of standard error that are kept", default=64 << 10)
    state: Size = option("bytes of a plugin's state, and of one fact", default=1 << 20)
    context: Size = option("bytes of a pipeline run's baggage", default=1 << 20)
    events: Count = option("events in one response", default=1000)
    fan_out: Size = option("bytes that the events of one response may carry to the next jobs", default=64 << 20)
    dedupe_key: Count = option("bytes of a dedupe key", default=512)
    logs: Count = option("log entries kept from one response", default=1000)
    hops: Count = option("crossings from one run into another along one chain", default=20)
    tree_jobs: Count = option("jobs that one trigger may lead to", default=10_000)


@frozen(kw_only=True)
class Service:
    """`service`: the process itself."""

    name: Text = option("who this instance is: its identity towards peers", default="ductile")
    tick_interval: Annotated[timedelta, NOT_NEGATIVE] = option(
        "how often housekeeping runs at least; schedules do not wait for it", default=timedelta(seconds=60)
    )
    log_level: Literal["debug", "info", "warn", "error"] = option("the least level that is logged", default="info")
    log_format: Literal["json", "text"] = option("how log lines are written; changes with a restart", default="json")
    dedupe_ttl: Retention = option(
        "how long a success blocks another job with its dedupe key", default=timedelta(hours=24)
    )
    job_log_retention: Retention = option(
        "how long attempts are kept; 0 keeps them for ever", default=timedelta(hours=720)
    )
    job_queue_retention: Retention = option(
        "how long finished jobs stay in the queue table", default=timedelta(hours=24)
    )
    job_transitions_retention: Retention = option("how long the journal of jobs is kept", default=timedelta(hours=720))
    job_attempts_retention: Retention = option(
        "kept as `job_log_retention`; the shorter one counts", default=timedelta(hours=720)
    )
    breaker_transitions_retention: Retention = option(
        "how long breaker changes are kept", default=timedelta(hours=2160)
    )
    facts_retention: Retention = option("how long facts are kept; 0 keeps them for ever", default=timedelta())
    max_workers: Count = option("plugin processes at the same time; default: CPU cores - 1", factory=default_workers)
    drain_timeout: Retention = option(
        "how long running jobs may finish when the service stops", default=timedelta(seconds=10)
    )
    kill_grace: Retention = option(
        "how long a plugin may take to end after SIGTERM, before SIGKILL", default=timedelta(seconds=5)
    )
    strict_mode: bool = option("all switches of `admission`", default=False)
    admission: Admission = option("single switches of `strict_mode`", factory=Admission)
    allow_symlinks: bool = option("accept symbolic links in paths of configuration and plugins", default=False)
    hook_max_depth: Count = option("hooks that may follow on hooks", default=4)
    plugin_env_passthrough: tuple[PassedName, ...] = option(
        "environment variables every plugin gets; `*` gives it all", default=()
    )
    synchronous: Literal["full", "normal"] = option(
        "`full`: what is acknowledged survives power loss; `normal`: a crash of the process; changes with a restart",
        default="full",
    )
    limits: ServiceLimits = option("sizes and counts", factory=ServiceLimits)


@frozen(kw_only=True)
class State:
    """`state`: where the ledger is."""

    path: Path = option("the SQLite file", default=Path("data/state.db"))


@frozen(kw_only=True)
class EnvironmentVars:
    """`environment_vars`: `.env` files whose values `${NAME}` may use; they never reach the process environment."""

    include: tuple[Path, ...] = option("files of NAME=value lines", default=())


@frozen(kw_only=True)
class ApiToken:
    """`api.auth.tokens[]`: who may call the API, and for what."""

    token: Secret = option("the bearer token, best as ${NAME}")
    scopes: tuple[Text, ...] = option("what it may do, such as plugin:rw or *; empty: discovery only", default=())
    name: str = option("what logs and keys know it by; empty: a word that comes of the token", default="")
    expires_at: At | None = option("an RFC 3339 time from which on it is worth nothing", default=None)


@frozen(kw_only=True)
class ApiAuth:
    """`api.auth`: authentication of the API."""

    tokens: tuple[ApiToken, ...] = option("bearer tokens", default=())


@frozen(kw_only=True)
class Api:
    """`api`: the HTTP API."""

    enabled: bool = option("listen on `listen`; the local unix socket is always there", default=False)
    listen: Annotated[str, LISTEN] = option("address and port", default="127.0.0.1:8080")
    auth: ApiAuth = option("who may call", factory=ApiAuth)
    max_concurrent_sync: Count = option("callers that may wait for synchronous pipelines at once", default=10)
    max_sync_timeout: Span = option("the longest such wait", default=timedelta(minutes=5))
    max_body_size: Size = option("bytes of a request body", default=1 << 20)
    allowed_origins: tuple[Text, ...] = option("web origins that may call from a browser", default=())


@frozen(kw_only=True)
class PreferredWindow:
    """`schedules[].preferred_window`: the part of the day in which the schedule fires."""

    start: Annotated[str, CLOCK_TIME] = option("first minute, such as 08:00")
    end: Annotated[str, CLOCK_TIME] = option("first minute after it, such as 10:30")


@frozen(kw_only=True)
class Expect:
    """`schedules[].expect`: when silence is an alarm. The events can start pipelines, routes and hooks."""

    start_within: Span | None = option("no job of a slot runs so long after its time: `schedule.late`", default=None)
    finish_within: Span | None = option("it is not over so long after its time: `job.overdue`", default=None)


@frozen(kw_only=True)
class Schedule:
    """`plugins.<name>.schedules[]`: one reason to run at a time. Exactly one of every, cron, at, after."""

    id: Name = option("unique within the plugin", default="default")
    every: Every | None = option("an interval: 5m, 2h, 1d, hourly, daily, weekly, monthly (30 days)", default=None)
    cron: Cron | None = option("five fields: minute hour day month weekday", default=None)
    at: At | None = option("once, at an RFC 3339 time", default=None)
    after: Annotated[timedelta, NOT_NEGATIVE] | None = option("once, this long after each start", default=None)
    command: CommandName = option("the plugin's command; not `handle`", default="poll")
    payload: Mapping[str, Any] = option("the job's payload", factory=dict, private=True)
    jitter: Retention = option("spread around the slot: plus or minus half of it", default=timedelta())
    catch_up: Literal["skip", "run_once", "run_all"] = option("slots missed while down (`every` only)", default="skip")
    if_running: Literal["skip", "queue", "cancel"] = option("when the previous job is not finished", default="skip")
    only_between: Window | None = option("fires only in this part of the day, such as 08:00-22:00", default=None)
    preferred_window: PreferredWindow | None = option("the same as start and end", default=None)
    timezone: Zone | None = option("IANA name for cron and windows; default: the host's", default=None)
    not_on: tuple[Weekday, ...] = option("weekdays without a run: names, or 0 (Sunday) to 6", default=())
    expect: Expect | None = option("raise an alarm when a run is late or overdue", default=None)


@frozen(kw_only=True)
class Retry:
    """`plugins.<name>.retry`: when a failed attempt is tried again."""

    max_attempts: Count = option("attempts in all, the first included", default=4)
    backoff_base: Retention = option(
        "first delay; doubles each time, plus a random part of itself", default=timedelta(seconds=30)
    )


@frozen(kw_only=True)
class CircuitBreaker:
    """`plugins.<name>.circuit_breaker`: when a failing schedule is held."""

    threshold: Count = option("failures in a row that open it", default=3)
    reset_after: Span = option("how long it stays open before one probe", default=timedelta(minutes=30))
    applies_to: Literal["scheduled", "all"] = option(
        "whose failures count and who is held: jobs of schedules, or all jobs", default="scheduled"
    )


@frozen(kw_only=True)
class ProcessLimits:
    """`plugins.<name>.limits`: operating system limits for its processes; none by default."""

    memory: Size | None = option("address space in bytes", default=None)
    open_files: Count | None = option("open files", default=None)
    processes: Count | None = option("processes of the user", default=None)
    cpu: Span | None = option("processor time", default=None)
    file_size: Size | None = option("bytes of a file it writes", default=None)


DEFAULT_TIMEOUTS: Mapping[str, timedelta] = {
    "poll": timedelta(seconds=60),
    "handle": timedelta(seconds=120),
    "health": timedelta(seconds=10),
    "init": timedelta(seconds=30),
}
OTHER_TIMEOUT = timedelta(seconds=60)


@frozen(kw_only=True)
class PluginEntry:
    """`plugins.<name>`: how one plugin (or an alias of one) is used."""

    enabled: bool = option("false: nothing can start it", default=True)
    uses: Name | None = option("makes this entry an alias of that plugin", default=None)
    config: Mapping[str, Any] = option("passed to the plugin as it is", factory=dict, private=True)
    schedules: tuple[Schedule, ...] = option("when it runs by itself", default=())
    retry: Retry = option("what happens after a failure", factory=Retry)
    timeouts: Mapping[CommandName, Span] = option(
        "longest run per command; default: poll 60s, handle 120s, health 10s, init 30s, others 60s", factory=dict
    )
    circuit_breaker: CircuitBreaker = option("when schedules are held", factory=CircuitBreaker)
    max_outstanding_polls: Count = option("jobs that `if_running: queue` may queue", default=1)
    parallelism: Count | None = option(
        "its processes at the same time; default: max_workers, or 1 if not concurrency-safe", default=None
    )
    notify_on_complete: bool = option("its root jobs trigger hook pipelines", default=False)
    ignore_exit_code: bool = option("a valid ok response counts even with a non-zero exit code", default=False)
    env: Mapping[EnvName, EnvValue] = option("environment variables for its processes", factory=dict, private=True)
    limits: ProcessLimits = option("operating system limits", factory=ProcessLimits)

    def timeout_for(self, command: str) -> timedelta:
        return self.timeouts.get(command, DEFAULT_TIMEOUTS.get(command, OTHER_TIMEOUT))


@frozen(kw_only=True)
class RouteEntry:
    """`routes[]`: events of one plugin become jobs of another."""

    source: Name = option("the plugin that emits", name="from")
    event_type: Text = option("the event's type, matched exactly")
    to: Name = option("the plugin whose `handle` gets it")


@frozen(kw_only=True)
class WebhookEndpoint:
    """`webhooks.endpoints[]`: one signed address. Exactly one of plugin, pipeline, event."""

    path: Annotated[str, URL_PATH] = option("where senders post")
    name: Name | None = option("its name in events and commands; default: the last part of the path", default=None)
    plugin: Name | None = option("the plugin whose `handle` gets each delivery", default=None)
    pipeline: Text | None = option("the pipeline each delivery starts", default=None)
    event: Text | None = option("the event each delivery becomes; may contain {header.X-Name}", default=None)
    scheme: Literal["hmac-sha256", "github", "stripe", "slack", "standard-webhooks"] = option(
        "how deliveries are signed", default="hmac-sha256"
    )
    secret_ref: Annotated[tuple[Text, ...], Lone(), ONE_OR_TWO] = option(
        "the token in tokens.yaml that signs; two while one is being replaced"
    )
    signature_header: Header | None = option("header with the signature; default: by scheme", default=None)
    delivery_id_header: Header | None = option(
        "header whose value makes a delivery unique; default: by scheme", default=None
    )
    forward_headers: tuple[Header, ...] = option("headers the plugin gets to see", default=())
    max_body_size: Size = option("bytes of a delivery", default=1 << 20)
    body: Literal["json", "form"] = option("how the body is encoded", default="json")
    ping: Literal["answer", "deliver"] = option(
        "GitHub's ping: only answered, or delivered like any other event", default="answer"
    )


@frozen(kw_only=True)
class Webhooks:
    """`webhooks`: signed deliveries from outside."""

    listen: Annotated[str, LISTEN] = option("address and port", default="127.0.0.1:8081")
    public_health: bool = option("answer /healthz to everybody, not to this host only", default=False)
    trusted_proxies: tuple[Annotated[str, NETWORK], ...] = option(
        "proxies in front: `X-Forwarded-For` from them names the sender, and they may hold more connections", default=()
    )
    endpoints: tuple[WebhookEndpoint, ...] = option("the addresses", default=())


@frozen(kw_only=True)
class Instance:
    """`instances[]`: another Ductile that relay steps may send to."""

    name: Slug = option("its name in `relay: {to: …}`")
    enabled: bool = option("false: nothing is sent", default=True)
    base_url: Annotated[str, BASE_URL] = option("where it is")
    ingress_path: Annotated[str, URL_PATH] = option("its ingress for this instance")
    secret_ref: Text = option("the token in tokens.yaml that signs")
    key_id: Text | None = option("sent along so that the receiver can choose a key", default=None)
    timeout: Span = option("longest request", default=timedelta(seconds=10))
    allow: tuple[EventType, ...] = option("event types that may be sent; empty: all", default=())


@frozen(kw_only=True)
class PeerBaggage:
    """`remote_ingress.peers[].baggage`: what a peer may put into a run's context."""

    allow: tuple[Text, ...] = option("top-level names that are taken over", default=())


@frozen(kw_only=True)
class Peer:
    """`remote_ingress.peers[]`: another Ductile that may send events here."""

    name: Slug = option("its service name")
    enabled: bool = option("false: it is refused", default=True)
    secret_ref: Text = option("the token in tokens.yaml that signs")
    key_id: Text | None = option("the key it must name", default=None)
    accept: tuple[EventType, ...] = option("event types that are taken; empty: all", default=())
    baggage: PeerBaggage = option("what of its baggage is taken", factory=PeerBaggage)


@frozen(kw_only=True)
class RemoteIngress:
    """`remote_ingress`: events from other instances."""

    listen_path: Annotated[str, URL_PATH] = option("path on the API's address", default="/ingest/peer")
    max_body_size: Size = option("bytes of an event", default=1 << 20)
    allowed_clock_skew: Span = option("how far a sender's clock may be off", default=timedelta(minutes=5))
    require_key_id: bool = option("every peer must name its key", default=False)
    peers: tuple[Peer, ...] = option("who may send", default=())


@frozen(kw_only=True)
class TokenEntry:
    """`tokens[]` in tokens.yaml: a named secret, with scopes when it may call the API."""

    name: Name = option("what `secret_ref` and `_ref` keys name")
    key: Secret = option("the secret, best as ${NAME}")
    scopes_file: Path | None = option("JSON file with its scopes", default=None)
    scopes_hash: str | None = option("blake3:<hex> of that file", default=None)
    created_at: str | None = option("when it was made", default=None)
    expires_at: At | None = option("an RFC 3339 time from which on it opens nothing in the API", default=None)
    description: str = option("what it is for", default="")


@frozen(kw_only=True)
class Settings:
    """The whole configuration: config.yaml with everything it includes."""

    include: tuple[Path, ...] = option(
        "files, or directories of *.yaml files, that are merged in after this one", default=()
    )
    environment_vars: EnvironmentVars = option("where ${NAME} values may come from", factory=EnvironmentVars)
    plugin_roots: tuple[Path, ...] = option("directories with plugins; the first that has a name wins", default=())
    state: State = option("where the ledger is; `database` is another name for it", factory=State)
    service: Service = option("the process", factory=Service)
    api: Api = option("the HTTP API", factory=Api)
    plugins: Mapping[Name, PluginEntry] = option("plugins and aliases by name", factory=dict)
    routes: tuple[RouteEntry, ...] = option("events from plugin to plugin", default=())
    pipelines: tuple[Pipeline, ...] = option("workflows", default=(), private=True)
    webhooks: Webhooks = option("signed deliveries", factory=Webhooks)
    instances: tuple[Instance, ...] = option("relay targets", default=())
    remote_ingress: RemoteIngress | None = option("relay sources", default=None)
    tokens: tuple[TokenEntry, ...] = option("named secrets; only in a file called tokens.yaml", default=())
    tcc_paths: tuple[Path, ...] = option("accepted for configurations from macOS; has no effect", default=())
