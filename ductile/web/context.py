"""The dependencies of HTTP handlers, and functions that read parts of a request.

Does not know routes. The runtime builds one `AppContext`; every handler receives it as its first argument.
"""

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, Protocol, TypedDict, TypeVar

import trio
from attrs import define, field, frozen

from ductile.config.snapshot import PluginUnavailable, Snapshot
from ductile.config.views.changes import ReloadResult
from ductile.core.clock import Clock
from ductile.core.errors import DuctileError, LedgerBusy, Unreadable
from ductile.core.formats import strict_json
from ductile.core.hub import Hub
from ductile.core.metrics import Metrics
from ductile.core.model import PROCESSLESS_SLOTS, FollowUps, is_small_write
from ductile.core.units import parse_duration
from ductile.exchange.service import MessageExchange
from ductile.ledger.admin.drifted_plugins import all_drifted
from ductile.ledger.admin.pauses import ALL_PLUGINS, Pause
from ductile.ledger.storage.async_ledger import Ledger
from ductile.ledger.storage.db import Db
from ductile.web.caller_limits.held_connections import HeldConnections
from ductile.web.caller_limits.queue_quota import QueueQuota, work_of
from ductile.web.messages import Request
from ductile.web.routing import Argument

T = TypeVar("T")
SUBMIT_TIMEOUT = 90.0
RECHECK_INTERVAL = 5.0
"""Seconds after which a waiting handler reads the ledger again, because a hub hint can be lost."""


WAIT = Argument("wait", str, "Time to wait for the end, such as 10s; at most api.max_sync_timeout")
DRY_RUN = Argument("dry_run", bool, "Report what would change without changing it")


class PayloadBody(TypedDict, total=False):
    payload: Annotated[dict[str, Any], "Input of the plugin or of the first step"] | None


class BadRequest(DuctileError):
    """The request is invalid."""

    code, exit_code, status = "bad_request", 2, 400
    hint = "See `/openapi.json` for the arguments and body of each request."


class TooManyCallers(DuctileError):
    """The limit of callers that wait for a run is reached."""

    code, exit_code, status = "too_many_callers", 75, 503
    hint = "Try again later."


class RunRefused(DuctileError):
    """The pipeline run cannot start with this payload."""

    code, exit_code, status = "run_refused", 1, 422
    hint = "`ductile pipeline show` shows the input of its first step; `ductile config check` finds errors in it."


@define(eq=False)
class WaitingCallers:
    """The number of callers that wait for the run they started."""

    waiting: int = 0

    def slot(self, limit: int) -> "WaitingCallers":
        """Return a context manager that counts one caller. Raises TooManyCallers if `limit` callers are waiting."""
        if self.waiting >= limit:
            raise TooManyCallers(
                f"{self.waiting} callers are already waiting for a run (api.max_concurrent_sync)",
                hint="No run was started. Try again later, or send ?async=true and read the job tree.",
            )
        return self

    def __enter__(self) -> None:
        self.waiting += 1

    def __exit__(self, *_: object) -> None:
        self.waiting -= 1


class PauseControl(Protocol):
    """The control that pauses and resumes plugins. The name `*` stands for the whole queue."""

    @property
    def paused(self) -> Mapping[str, Pause]: ...

    async def pause(self, plugin: str, reason: str, *, actor: str) -> bool: ...

    async def resume(self, plugin: str, *, actor: str) -> bool: ...


class Reload(Protocol):
    def __call__(self, *, actor: str, dry_run: bool = False) -> Awaitable[ReloadResult]: ...


@frozen(kw_only=True, eq=False)
class AppContext:
    """The dependencies of every HTTP handler."""

    ledger: Ledger
    hub: Hub
    clock: Clock
    snapshot: Callable[[], Snapshot]
    live_stderr: Callable[[str], str | None]
    """Return the stderr of a running job so far; None if the job is not running."""
    stuck_seconds: Callable[[], float]
    """Return the seconds for which the dispatcher or the scheduler has waited for the ledger."""
    is_stopping: Callable[[], bool] = lambda: False
    unhealthy: Callable[[], Mapping[str, str]] = dict
    """Return the plugins that cannot start now, each with its reason."""
    reload: Reload
    """Load the configuration from disk, or report what a reload would change."""
    cancel: Callable[[str, str, str], Awaitable[bool]]
    """Cancel a job, given its id, a reason and the actor. Returns True if it is dead, False while its process ends."""
    purge: Callable[[str | None, int, str, str], Awaitable[int]]
    """Cancel a batch of queued jobs and return its size.

    Arguments: plugin (None: all), last queue position, reason, actor.
    """
    pause_control: PauseControl
    exchange: MessageExchange
    metrics: Metrics = field(factory=Metrics)
    callers: WaitingCallers = field(factory=WaitingCallers)
    held: HeldConnections = field(factory=HeldConnections)
    queue_quota: QueueQuota = field(factory=QueueQuota)
    started: float = field(factory=trio.current_time)

    def startable_plugins(self, db: Db) -> set[str]:
        """Return the plugins whose jobs may start: those that are not paused, unhealthy or changed on disk."""
        blocked = {*self.unhealthy(), *self.pause_control.paused, *all_drifted(db)}
        return set() if ALL_PLUGINS in blocked else {*self.snapshot().plugins, *PROCESSLESS_SLOTS} - blocked


async def submit(ctx: AppContext, work: Callable[[Db], T], runs: Sequence[FollowUps], *, actor: str) -> T:
    """Run the transaction that starts the runs of an actor, and return its result when their jobs are durable.

    Jobs can be claimed from the commit on. Shielded from cancellation: a client that disconnects after sending its
    request still gets its jobs. Raises QueueLimitReached, and LedgerBusy after SUBMIT_TIMEOUT.
    """
    with trio.move_on_after(SUBMIT_TIMEOUT, shield=True):
        if (new := work_of(runs)).jobs:
            limits = ctx.snapshot().config.settings.service.limits
            await ctx.queue_quota.reserve(ctx.ledger, limits, actor, new)
        result = await ctx.ledger.transact(work, wait=False, in_thread=not is_small_write(*runs))
        ctx.hub.announce_work()
        await ctx.ledger.until_durable()
        return result
    raise LedgerBusy(f"the ledger was busy for {SUBMIT_TIMEOUT:.0f} seconds", hint="Try again later.")


def require_healthy(ctx: AppContext, plugin: str) -> None:
    """Raise PluginUnavailable if the `init` of the plugin has failed."""
    reason = ctx.unhealthy().get(plugin)
    if reason is not None:
        raise PluginUnavailable(f"plugin {plugin} {reason}", hint="Fix the plugin, then reload the configuration.")


def get_submitter(request: Request) -> str:
    """Return the `submitted_by` value of jobs that this request creates."""
    return "cli" if request.principal.is_local else "api"


def read_object(request: Request, *, hint: str, max_depth: int = strict_json.MAX_DEPTH) -> dict[str, Any]:
    """Return the body as a JSON object. Raises BadRequest with the hint if it is not one."""
    try:
        body = strict_json.loads(request.body, source="body", max_depth=max_depth)
    except Unreadable as error:
        raise BadRequest(f"the body is not JSON: {error.reason}", hint=hint) from error
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", hint=hint)
    return body


def read_payload(request: Request) -> dict[str, Any] | None:
    """Return the `payload` member of the body; None without a body or payload."""
    if not request.body.strip():
        return None
    body = read_object(request, hint='Send {"payload": {…}}.')
    unknown = sorted(body.keys() - {"payload"})
    if unknown:
        raise BadRequest(f"unknown key {unknown[0]!r}", hint="Put the plugin's input into payload.")
    payload = body.get("payload")
    if payload is not None and not isinstance(payload, dict):
        raise BadRequest("payload must be a JSON object")
    return payload


def read_job_id(request: Request) -> str:
    """Return the job id in the path. Raises BadRequest if it is not a lower-case UUID."""
    text = request.params["id"]
    try:
        canonical: str | None = str(uuid.UUID(text))
    except ValueError:
        canonical = None
    if text != canonical:
        raise BadRequest(f"{text[:80]!r} is not a job id", hint="A job id is a lower-case UUID.")
    return text


def read_wait_seconds(request: Request, snapshot: Snapshot) -> float:
    """Return the seconds of `?wait=`, at most `api.max_sync_timeout`; 0 if it is absent."""
    text = request.argument("wait")
    if text is None:
        return 0.0
    try:
        wait = parse_duration(text)
    except ValueError as error:
        raise BadRequest(f"wait: {error}") from error
    return max(0.0, min(wait, snapshot.config.settings.api.max_sync_timeout).total_seconds())


def wait_slot(ctx: AppContext, request: Request, wait_seconds: float) -> AbstractContextManager[None]:
    """Return a context manager that counts a request that waits. Entering it raises TooManyWaits at the limit."""
    if not wait_seconds:
        return nullcontext()
    return ctx.held.wait(request, ctx.snapshot().config.settings.api.max_concurrent_waits)


def read_flag(request: Request, name: str) -> bool:
    """Return True for `?name=true`. Raises BadRequest for anything but true and false."""
    text = request.argument(name)
    if text not in (None, "true", "false"):
        raise BadRequest(f"{name}: expected true or false, got {text[:80]!r}")
    return text == "true"


def read_number(request: Request, name: str, default: int, *, least: int, most: int) -> int:
    """Return the number of a query argument. Raises BadRequest unless it is between `least` and `most`."""
    text = request.argument(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise BadRequest(f"{name}: expected {least} to {most}, got {text[:80]!r}")
    return int(text)
