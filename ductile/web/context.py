"""What every handler works with, and how a handler reads its request.

Knows the rooms below the web (ledger, hub, clock, configuration) and none of the paths. The runtime furnishes the desk;
the handlers in the rooms beside this one sit at it.
"""

import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import trio
from attrs import define, field, frozen

from ductile.config.snapshot import PluginUnavailable, Snapshot
from ductile.config.views.changes import Reloaded
from ductile.core.clock import Clock
from ductile.core.errors import DuctileError, LedgerBusy, Unreadable
from ductile.core.formats import strict_json
from ductile.core.hub import Hub
from ductile.core.metrics import Meters
from ductile.core.units import parse_duration
from ductile.ledger.admin.pauses import Pause
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.writer import Ledger
from ductile.web.auth.auth import OPERATOR
from ductile.web.messages import Request, Response
from ductile.web.routes import Handler

T = TypeVar("T")
SUBMIT_TIMEOUT = 90.0
RECHECK_SECONDS = 5.0
"""After how long a waiter looks into the ledger again: a hint can be lost."""


class BadRequest(DuctileError):
    """The request cannot be understood."""

    code, exit_code, status = "bad_request", 2, 400
    hint = "`/openapi.json` describes what each request takes"


class TooManyCallers(DuctileError):
    """As many callers as may wait for a run are waiting already."""

    code, exit_code, status = "too_many_callers", 75, 503
    hint = "try again later"


@define(eq=False)
class Callers:
    """Those who wait for a run they have started."""

    waiting: int = 0

    def one_more(self, most: int) -> "Callers":
        """Counts one caller for as long as the block behind it lasts; TooManyCallers if `most` are waiting."""
        if self.waiting >= most:
            raise TooManyCallers(
                f"{self.waiting} callers wait for a run already (api.max_concurrent_sync)",
                hint="try again later, or send ?async=true and ask for the tree of the job; nothing was started",
            )
        return self

    def __enter__(self) -> None:
        self.waiting += 1

    def __exit__(self, *_: object) -> None:
        self.waiting -= 1


class PauseControl(Protocol):
    """Whoever keeps plugins from starting; `*` is the whole queue."""

    @property
    def paused(self) -> Mapping[str, Pause]: ...

    async def pause(self, plugin: str, reason: str) -> bool: ...

    async def resume(self, plugin: str) -> bool: ...


class Reload(Protocol):
    def __call__(self, *, dry_run: bool = False) -> Awaitable[Reloaded]: ...


@frozen(kw_only=True, eq=False)
class AppContext:
    """What the handlers work with."""

    ledger: Ledger
    hub: Hub
    clock: Clock
    snapshot: Callable[[], Snapshot]
    live_stderr: Callable[[str], str | None]
    """What a running job has written to stderr so far; None when it does not run here."""
    stuck_seconds: Callable[[], float]
    """How long the ledger has kept the dispatcher or the scheduler waiting."""
    is_stopping: Callable[[], bool] = lambda: False
    unhealthy: Callable[[], Mapping[str, str]] = dict
    """Plugins that cannot be started now, with the reason."""
    reload: Reload
    """Use the configuration as it is on disk now, or say what that would change."""
    cancel: Callable[[str, str], Awaitable[bool]]
    """End a job, for a reason; True if it is dead now, False if its process is ending."""
    purge: Callable[[str | None, int, str], Awaitable[int]]
    """End a portion of what waits, of one plugin or of all, up to a place in the queue; how many jobs that were."""
    pausing: PauseControl
    meters: Meters = field(factory=Meters)
    callers: Callers = field(factory=Callers)
    started: float = field(factory=trio.current_time)


def seated(desk: AppContext) -> Callable[..., Handler]:
    """Makes a route's handler of a function that works at this desk; `more` goes to the function as it is."""

    def on(handler: Callable[..., Awaitable[Response]], **more: Any) -> Handler:
        return lambda request: handler(desk, request, **more)

    return on


async def submit(desk: AppContext, work: Callable[[Db], T], *, is_large: bool = False) -> T:
    """Write what creates jobs. They are durable when this returns, and can be claimed from their commit on.

    Shielded: a client that has sent its request and hung up has asked for the jobs all the same.
    """
    with trio.move_on_after(SUBMIT_TIMEOUT, shield=True):
        result = await desk.ledger.transact(work, wait=False, in_thread=is_large)
        desk.hub.announce_work()
        await desk.ledger.until_durable()
        return result
    raise LedgerBusy(f"the ledger was not free within {SUBMIT_TIMEOUT:.0f} seconds", hint="try again later")


def require_healthy(desk: AppContext, plugin: str) -> None:
    """Raises PluginUnavailable for a plugin whose `init` has failed."""
    reason = desk.unhealthy().get(plugin)
    if reason is not None:
        raise PluginUnavailable(f"plugin {plugin} {reason}", hint="put it right and reload the configuration")


def submitter_of(request: Request) -> str:
    """Who asks, as jobs remember it."""
    return "cli" if request.principal is OPERATOR else "api"


def object_of(request: Request, *, hint: str, max_depth: int = strict_json.MAX_DEPTH) -> dict[str, Any]:
    """The body, which is a JSON object; BadRequest with the hint if it is none."""
    try:
        body = strict_json.loads(request.body, source="body", max_depth=max_depth)
    except Unreadable as error:
        raise BadRequest(f"the body is not JSON: {error.reason}", hint=hint) from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", hint=hint)
    return body


def payload_of(request: Request) -> dict[str, Any] | None:
    """The `payload` of the body; None if there is no body or no payload in it."""
    if not request.body.strip():
        return None
    body = object_of(request, hint='send {"payload": {…}}')
    unknown = sorted(body.keys() - {"payload"})
    if unknown:
        raise BadRequest(f"unknown key {unknown[0]!r}", hint="what the plugin is to get belongs into payload")
    payload = body.get("payload")
    if payload is not None and not isinstance(payload, dict):
        raise BadRequest("payload must be a JSON object")
    return payload


def job_id_of(request: Request) -> str:
    """The `{id}` of the path."""
    text = request.params["id"]
    try:
        canonical: str | None = str(uuid.UUID(text))
    except ValueError:
        canonical = None
    if text != canonical:
        raise BadRequest(f"{text[:80]!r} is not a job id", hint="a job id is a UUID in lower case")
    return text


def wait_of(request: Request, snapshot: Snapshot) -> float:
    """How many seconds the caller is ready to wait, within what the operator allows; 0 if it did not say."""
    text = request.argument("wait")
    if text is None:
        return 0.0
    try:
        wanted = parse_duration(text)
    except ValueError as error:
        raise BadRequest(f"wait: {error}") from error
    return max(0.0, min(wanted, snapshot.config.settings.api.max_sync_timeout).total_seconds())


def flag_of(request: Request, name: str) -> bool:
    """Whether `?name=true` was given."""
    text = request.argument(name)
    if text not in (None, "true", "false"):
        raise BadRequest(f"{name}: expected true or false, got {text[:80]!r}")
    return text == "true"
