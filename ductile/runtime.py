"""The root nursery: start order, signals, reload, drain. Connects the engine, the ledger and the HTTP servers.

Start: lock, ledger, recovery, bound addresses, servers, dispatcher, scheduler, ready. The nesting is the shutdown
order: no new requests, jobs drained or requeued, ledger closed, lock released.
"""

import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import define, field

from ductile import __version__
from ductile.config.load.load import Config
from ductile.config.snapshot import Snapshot
from ductile.config.views.changes import ReloadResult, compare_snapshots
from ductile.core.clock import Clock
from ductile.core.errors import DuctileError, LedgerError, LedgerLost
from ductile.core.files import FileRefused
from ductile.core.hub import JOURNAL, Hub
from ductile.core.instance.actors import SERVICE, process_actor, signal_actor
from ductile.core.instance.failpoints import failpoint
from ductile.core.instance.lock import instance_lock, require_unlocked
from ductile.core.instance.signals import receive_signals
from ductile.core.instance.systemd import MAX_STUCK_SECONDS, Notifier
from ductile.core.instance.threads import run_in_thread
from ductile.core.logs import Log
from ductile.core.metrics import Metrics
from ductile.core.model import PUBLISH, RELAY
from ductile.engine import breaker
from ductile.engine.control.cancel import JobCanceller
from ductile.engine.control.load_config import load_snapshot, log_findings
from ductile.engine.control.pause import PausedPlugins
from ductile.engine.control.reload_requests import ReloadQueue, ReloadRequest
from ductile.engine.dispatcher import dispatch
from ductile.engine.job_context import JobContext
from ductile.engine.maintenance.notification_sender import NotificationSender
from ductile.engine.maintenance.periodic import run_maintenance
from ductile.engine.maintenance.plugin_init import PluginHealth, initialise_plugins, mark_pending
from ductile.engine.maintenance.recover import recover
from ductile.engine.maintenance.retention_clock import RetentionClock
from ductile.engine.maintenance.save_snapshot import save_snapshot
from ductile.engine.maintenance.unrunnable_jobs import count_jobs_to_end, update_unrunnable_jobs
from ductile.engine.process.procfs import harden_self, instance_of
from ductile.engine.scheduling.next_runs import next_runs
from ductile.engine.scheduling.scheduler import Scheduler
from ductile.exchange.consumers import Consumers
from ductile.exchange.publish_step import run_publish_step
from ductile.exchange.service import MessageExchange
from ductile.exchange.timers import ExchangeTimers
from ductile.ledger.admin import drifted_plugins, service_log
from ductile.ledger.admin.pauses import ALL_PLUGINS
from ductile.ledger.queue.waits import SERVICE_DOWN, Hold
from ductile.ledger.storage.async_ledger import Ledger, open_ledger
from ductile.ledger.storage.open_file import open_reader
from ductile.ledger.storage.path_checks import make_private_directory
from ductile.ledger.tables.schedules import all_entries
from ductile.ops.heartbeat import HeartbeatSender
from ductile.ops.routes import check_routes
from ductile.relay.routes import relay_routes
from ductile.relay.send import send_job
from ductile.web.api.system import ROOT_TASK
from ductile.web.api.tokens import TokenUses
from ductile.web.api_routes import build_api_table
from ductile.web.auth.auth import Keyring, Principal, make_authorizer
from ductile.web.context import AppContext
from ductile.web.server.listeners import (
    Listener,
    open_listeners,
    open_webhook_listener,
    require_free_listeners,
    require_reloadable,
)
from ductile.web.server.server import serve
from ductile.web.server.site import AccessLogEntry, Site
from ductile.web.webhooks import receiver
from ductile.web.webhooks.rejections import AUTH_LIMITED, AUTH_REFUSED, RejectionCounter

SHUTDOWN_MARGIN_SECONDS = 15.0
"""Time for shutdown after the drain timeout and the kill grace. Tasks that still run then are cancelled."""
STOP_WRITE_TIMEOUT = 5.0
"""Seconds to journal the stop."""


@define(eq=False)
class Runtime:
    """The state of one service process. A reload replaces the snapshot and never modifies it."""

    snapshot: Snapshot
    log: Log
    notifier: Notifier
    clock: Clock = field(factory=Clock)
    hub: Hub = field(factory=Hub)
    run_id: str = field(factory=lambda: str(uuid.uuid4()))
    stopping: trio.Event = field(factory=trio.Event)
    reloads: ReloadQueue = field(factory=ReloadQueue)
    health: PluginHealth = field(factory=PluginHealth)
    stopped_by: str | None = None
    """The actor of the stop; None while nothing has requested one."""
    metrics: Metrics = field(factory=Metrics)
    kill_all: Callable[[], None] = lambda: None
    """Kills every plugin process. Set once the dispatcher exists."""
    scheduler_lag: Callable[[], float] = lambda: 0.0
    """Returns for how many seconds due schedules have waited. Set once the scheduler exists."""

    @property
    def config(self) -> Config:
        return self.snapshot.config

    def stop(self, *, actor: str) -> None:
        """Start the drain and wake every task that waits."""
        self.stopped_by = actor
        self.stopping.set()
        self.hub.announce_all()


def run(root: Path, *, origin: str, announce: Callable[[str], None], log_format: str | None = None) -> None:
    """Run the service in the foreground until SIGTERM or SIGINT.

    `announce` is called with one line when the service is ready. `log_format` overrides the configured format.
    """
    snapshot = load_snapshot(root)
    service = snapshot.config.settings.service
    log = Log(level=service.log_level, style=log_format or service.log_format, mask=snapshot.config.mask)
    try:
        for refused in harden_self():
            log.warn("runtime", f"the host does not allow it: {refused}")
        _change_directory(snapshot.config.directory)
        ledger = snapshot.config.settings.state.path
        make_private_directory(ledger.parent)
        rt = Runtime(snapshot, log, Notifier.from_environment(os.environ))
        with instance_lock(ledger.parent, ledger, now=rt.clock.now()):
            trio.run(_main, rt, origin, announce, strict_exception_groups=True)
    finally:
        log.close()


def check_start(root: Path) -> dict[str, Any]:
    """Return what a start would use, without changing anything. Raises the error that a start would raise."""
    snapshot = load_snapshot(root)
    ledger = snapshot.config.settings.state.path
    require_unlocked(ledger.parent, ledger)
    if ledger.exists():
        with open_reader(ledger):
            pass
    require_free_listeners(snapshot.config)
    plan = {"config": str(root), "ledger": str(ledger), "plugins": len(snapshot.plugins), "dry_run": True}
    return plan | snapshot.report.as_data()


def _change_directory(directory: Path) -> None:
    """Change to the directory of the configuration, where relative paths of plugins start."""
    try:
        os.chdir(directory)
    except OSError as error:
        raise FileRefused(directory, f"cannot change to this directory: {error.strerror}") from error


async def _main(rt: Runtime, origin: str, announce: Callable[[str], None]) -> None:
    """Receive signals, open the ledger and run the service until it has stopped."""
    trio.lowlevel.current_task().name = ROOT_TASK
    # First: a signal without a receiver would kill the process at any point of the start.
    with receive_signals(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with trio.open_nursery() as watching:
            watching.start_soon(_watch_signals, rt, signals, name="signals")
            settings = rt.config.settings
            about = {"version": __version__, "config": str(rt.config.root), "origin": origin, "pid": os.getpid()}
            rt.log.info("runtime", "starting", **about)
            log_findings(rt.log, rt.snapshot.report)
            async with open_ledger(
                settings.state.path,
                synchronous=settings.service.synchronous,
                on_commit=partial(rt.hub.announce, JOURNAL),
            ) as ledger:
                await _start(rt, ledger, announce)
            watching.cancel_scope.cancel()
    rt.log.info("runtime", "stopped")


async def _start(rt: Runtime, ledger: Ledger, announce: Callable[[str], None]) -> None:
    """Recover from an earlier run, bind the addresses, then run the service."""
    instance, retention_clock = instance_of(ledger.path), await RetentionClock.load(ledger, rt.clock)
    await recover(ledger, rt.snapshot, rt.log, instance=instance, run_id=rt.run_id, now=rt.clock.now())
    await save_snapshot(ledger, rt.snapshot, reason="startup", now=rt.clock.now())
    await ledger.write(drifted_plugins.delete_all)
    await update_unrunnable_jobs(ledger, lambda: rt.snapshot, rt.log, now=rt.clock.now())
    with open_listeners(rt.config) as listeners, open_webhook_listener(rt.config) as webhook_listeners:
        async with _journalled_run(rt, ledger):
            await _run_until_drained(rt, ledger, instance, retention_clock, listeners, webhook_listeners, announce)


@asynccontextmanager
async def _journalled_run(rt: Runtime, ledger: Ledger) -> AsyncIterator[None]:
    """Journal the start, and the stop with its reason. A stop that cannot be written is found by the next start."""
    await ledger.write(
        service_log.journal_start,
        run_id=rt.run_id,
        version=__version__,
        pid=os.getpid(),
        config_hash=rt.config.digest,
        actor=process_actor(),
        now=rt.clock.now(),
    )
    reason, actor = "error", SERVICE
    try:
        yield
        reason, actor = "signal", rt.stopped_by or SERVICE
    finally:
        with trio.move_on_after(STOP_WRITE_TIMEOUT, shield=True), suppress(LedgerError):
            await ledger.write(
                service_log.journal_stop, run_id=rt.run_id, reason=reason, actor=actor, now=rt.clock.now()
            )


async def _run_until_drained(
    rt: Runtime,
    ledger: Ledger,
    instance: str,
    retention_clock: RetentionClock,
    listeners: Sequence[Listener],
    webhook_listeners: Sequence[Listener],
    announce: Callable[[str], None],
) -> None:
    """Start all tasks, report ready, wait for the stop and drain."""
    pause_control = await PausedPlugins.load(ledger, rt.hub, rt.clock)
    exchange = await _load_exchange(rt, ledger)
    ctx = JobContext(
        processless={RELAY: send_job, PUBLISH: partial(run_publish_step, exchange)},
        ledger=ledger,
        hub=rt.hub,
        log=rt.log,
        clock=rt.clock,
        instance=instance,
        run_id=rt.run_id,
        snapshot=lambda: rt.snapshot,
        blocked_plugins=lambda: rt.health.blocked() | pause_control.codes(),
        holds={ALL_PLUGINS: Hold(SERVICE_DOWN, rt.clock.now())},
        metrics=rt.metrics,
    )
    rt.kill_all = ctx.processes.kill_all
    async with trio.open_nursery() as root:
        root.start_soon(_watch_ledger, ctx, name="ledger watch")
        root.start_soon(_serve_reload_requests, rt, ctx, name="reload")
        root.start_soon(
            run_maintenance, ledger, lambda: rt.snapshot, rt.log, rt.clock, retention_clock, name="maintenance"
        )
        notifications = NotificationSender(ledger, rt.hub, rt.clock, rt.log, lambda: rt.snapshot)
        root.start_soon(notifications.run, name="notifications")
        root.start_soon(ExchangeTimers(exchange, rt.log).run, rt.stopping, name="exchange")
        root.start_soon(Consumers(exchange=exchange, ctx=ctx).run, name="consumers")
        heartbeat = HeartbeatSender(
            lambda: rt.config.settings.heartbeat, partial(_is_healthy, rt, ledger), rt.hub, rt.log
        )
        root.start_soon(heartbeat.run, name="heartbeat")
        root.start_soon(rt.notifier.run_watchdog, ledger.stuck_seconds, name="watchdog")
        async with trio.open_nursery() as serving:
            await mark_pending(ledger, rt.snapshot, rt.health)
            serving.start_soon(initialise_plugins, rt.snapshot, rt.health, ctx, rt.stopping, name="plugin init")
            app_ctx = _app_context(rt, ctx, pause_control, exchange)
            addresses = await serving.start(_serve_api, rt, app_ctx, listeners, name="API server")
            if webhook_listeners:
                more = await serving.start(_serve_webhooks, rt, app_ctx, webhook_listeners, name="webhook server")
                addresses = (*addresses[:-1], *more, addresses[-1])
            await serving.start(dispatch, ctx, rt.stopping, name="dispatcher")
            await serving.start(_schedule, rt, ctx, name="scheduler")
            rt.log.info("runtime", "ready", listening=list(addresses), plugins=len(rt.snapshot.plugins))
            rt.notifier.send("READY=1")
            announce(f"ductile {__version__} is ready: {', '.join(addresses)}")
            await rt.stopping.wait()
            rt.notifier.send("STOPPING=1")
            service = rt.config.settings.service
            timeout = (service.drain_timeout + service.kill_grace).total_seconds() + SHUTDOWN_MARGIN_SECONDS
            serving.cancel_scope.deadline = trio.current_time() + timeout
        root.cancel_scope.cancel()


async def _watch_signals(rt: Runtime, signals: AsyncIterator[int]) -> None:
    """SIGHUP reloads, the first SIGTERM or SIGINT drains, the second one kills."""
    async for number in signals:
        name = signal.Signals(number).name
        if number == signal.SIGHUP:
            rt.reloads.submit(ReloadRequest(signal_actor(number)))
        elif not rt.stopping.is_set():
            rt.log.info("runtime", f"{name}: draining; send it again to stop immediately")
            rt.stop(actor=signal_actor(number))
        else:
            rt.log.warn("runtime", f"{name} again: stopping immediately; running jobs are retried after the next start")
            rt.kill_all()
            rt.log.close()
            os._exit(128 + number)


def _is_healthy(rt: Runtime, ledger: Ledger) -> bool:
    """Return True while `/healthz` returns 200 and the service accepts work."""
    stuck_seconds = max(ledger.unwritable_seconds(), rt.scheduler_lag())
    return not (ledger.broken.is_set() or rt.stopping.is_set()) and stuck_seconds < MAX_STUCK_SECONDS


async def _watch_ledger(ctx: JobContext) -> None:
    """Kill all plugin processes and raise LedgerLost when the ledger cannot be written. The next start recovers."""
    await ctx.ledger.broken.wait()
    ctx.processes.kill_all()
    raise LedgerLost("write failed; the service stops, and the next start recovers", path=ctx.ledger.path)


# ── reload ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def _serve_reload_requests(rt: Runtime, ctx: JobContext) -> None:
    """Handle reload requests one at a time. A caller that disconnects does not cancel its reload."""
    async with trio.open_nursery() as initialising:
        async for request in rt.reloads.requests:
            if not request.dry_run:
                rt.notifier.send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            before = rt.snapshot
            request.result = await _try_to_reload(rt, ctx.ledger, request)
            if rt.snapshot is not before:
                initialising.start_soon(
                    initialise_plugins, rt.snapshot, rt.health, ctx, rt.stopping, name="plugin init"
                )
            if not request.dry_run:
                rt.notifier.send("READY=1")
            request.done.set()


async def _try_to_reload(rt: Runtime, ledger: Ledger, request: ReloadRequest) -> ReloadResult | DuctileError:
    try:
        return await _reload(rt, ledger, request.actor, dry_run=request.dry_run)
    except DuctileError as error:
        if not request.dry_run:
            rt.log.error("runtime", f"not reloaded, the old configuration stays in use: {error}")
            await _journal_refused_reload(rt, ledger, request.actor, error)
        return error
    except Exception as error:  # a bug in the reload must not stop the service
        rt.log.error("runtime", f"not reloaded: internal error: {error!r}")
        return DuctileError(f"internal error: {error!r}")


async def _journal_refused_reload(rt: Runtime, ledger: Ledger, actor: str, error: DuctileError) -> None:
    with suppress(LedgerError):  # the refusal is in the log
        await ledger.write(
            service_log.journal_refused_reload, code=error.code, error=str(error), actor=actor, now=rt.clock.now()
        )


async def _reload(rt: Runtime, ledger: Ledger, actor: str, *, dry_run: bool) -> ReloadResult:
    """Use the configuration on disk for new jobs. Raises DuctileError and changes nothing if it is invalid."""
    snapshot = await run_in_thread(partial(load_snapshot, rt.config.root))
    require_reloadable(rt.config, snapshot.config)
    changes = compare_snapshots(rt.snapshot, snapshot)
    now = rt.clock.now()
    runs = next_runs(rt.snapshot, snapshot, await ledger.read(all_entries), now=now)
    if dry_run:
        ended = await count_jobs_to_end(ledger, snapshot)
        return ReloadResult(
            at=now, changes=changes, ended_jobs=ended, next_runs=runs, report=snapshot.report, dry_run=True
        )
    failpoint("reload.before_commit")
    await save_snapshot(ledger, snapshot, reason="reload", now=now, reloaded_by=actor)
    await mark_pending(ledger, snapshot, rt.health)
    rt.snapshot = snapshot
    failpoint("reload.after_swap")
    rt.log.mask = snapshot.config.mask
    rt.log.set_level(snapshot.config.settings.service.log_level)
    ended = {}
    try:
        ended = await update_unrunnable_jobs(ledger, lambda: rt.snapshot, rt.log, now=now)
    except LedgerError as error:  # the new configuration is in use; maintenance tries again
        rt.log.warn("runtime", f"jobs of removed plugins were not ended: {error}")
    rt.hub.announce_all()
    rt.log.info("runtime", "reloaded", config_hash=snapshot.config.digest, plugins=len(snapshot.plugins))
    log_findings(rt.log, snapshot.report)
    return ReloadResult(at=now, changes=changes, ended_jobs=ended, next_runs=runs, report=snapshot.report)


# ── scheduler and HTTP servers ────────────────────────────────────────────────────────────────────────────────────────


async def _schedule(
    rt: Runtime,
    ctx: JobContext,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run the scheduler until the drain starts."""
    scheduler = Scheduler(
        ctx.ledger,
        rt.hub,
        rt.clock,
        rt.log,
        lambda: rt.snapshot,
        lambda: rt.health.unhealthy,
        ctx.running.stop_job,
    )
    rt.scheduler_lag = scheduler.lag_seconds
    async with trio.open_nursery() as nursery:
        await nursery.start(scheduler.run, name="ticks")
        task_status.started()
        await rt.stopping.wait()
        nursery.cancel_scope.cancel()


async def _load_exchange(rt: Runtime, ledger: Ledger) -> MessageExchange:
    """Return the exchange with the claims of an earlier run."""
    exchange = MessageExchange(
        ledger=ledger,
        hub=rt.hub,
        clock=rt.clock,
        settings=lambda: rt.config.settings.exchange,
        is_stopping=rt.stopping.is_set,
    )
    await exchange.load()
    return exchange


def _app_context(rt: Runtime, ctx: JobContext, pause_control: PausedPlugins, exchange: MessageExchange) -> AppContext:
    """Return what request handlers can use of the engine."""
    canceller = JobCanceller(ctx.ledger, rt.hub, rt.clock, lambda: rt.snapshot, ctx.running.stop_job, ctx.metrics)
    return AppContext(
        ledger=ctx.ledger,
        hub=rt.hub,
        clock=rt.clock,
        snapshot=lambda: rt.snapshot,
        live_stderr=ctx.running.live_stderr,
        stuck_seconds=lambda: max(ctx.ledger.unwritable_seconds(), rt.scheduler_lag()),
        is_stopping=rt.stopping.is_set,
        unhealthy=lambda: rt.health.unhealthy,
        reload=rt.reloads.reload,
        cancel=canceller.cancel,
        purge=canceller.purge,
        pause_control=pause_control,
        exchange=exchange,
        metrics=rt.metrics,
    )


async def _serve_api(
    rt: Runtime,
    app_ctx: AppContext,
    listeners: Sequence[Listener],
    *,
    task_status: trio.TaskStatus[tuple[str, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the API with the routes of the relay and of checks. Reports its addresses as `started`."""
    uses = TokenUses(app_ctx.ledger, partial(rt.log.warn, "api"))
    refusals = RejectionCounter(app_ctx.ledger, rt.clock, partial(rt.log.warn, "api"))
    authorize = make_authorizer(_CurrentKeyring(rt), rt.clock, uses.record, refusals.count_refusal)
    rejections = RejectionCounter(app_ctx.ledger, rt.clock, partial(rt.log.warn, "relay"))
    others = (*relay_routes(app_ctx, rejections), *check_routes(app_ctx))
    site = Site(
        table=build_api_table(app_ctx, authorize, breaker.reset, uses, others),
        authorize=authorize,
        origins=lambda: rt.config.settings.api.allowed_origins,
        on_request=partial(_count_api_request, rt, refusals),
        on_fault=lambda error, where: rt.log.error("api", f"{where}: {error!r}"),
    )
    async with trio.open_nursery() as counters:
        counters.start_soon(rejections.run, name="refusals")
        counters.start_soon(refusals.run, name="refused callers")
        counters.start_soon(uses.run, name="token uses")
        await serve(site, listeners, stopping=rt.stopping, task_status=task_status)
        counters.cancel_scope.cancel()


async def _serve_webhooks(
    rt: Runtime,
    app_ctx: AppContext,
    listeners: Sequence[Listener],
    *,
    task_status: trio.TaskStatus[tuple[str, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the webhook endpoints. Reports its addresses as `started`."""
    rejections = RejectionCounter(app_ctx.ledger, rt.clock, partial(rt.log.warn, "webhooks"))
    site = receiver.build_site(
        app_ctx,
        rejections,
        on_request=partial(_count_request, rt, "webhooks"),
        on_fault=lambda error, where: rt.log.error("webhooks", f"{where}: {error!r}"),
    )
    async with trio.open_nursery() as counters:
        counters.start_soon(rejections.run, name="refusals")
        await serve(site, listeners, stopping=rt.stopping, task_status=task_status)
        counters.cancel_scope.cancel()


@define(eq=False)
class _CurrentKeyring:
    """The keyring of the current configuration, built once per configuration."""

    rt: Runtime
    _cached: tuple[Config, Keyring] | None = None

    def __call__(self) -> Keyring:
        if self._cached is None or self._cached[0] is not self.rt.config:
            self._cached = (self.rt.config, Keyring.from_config(self.rt.config))
        return self._cached[1]


def _count_api_request(rt: Runtime, refusals: RejectionCounter, served: AccessLogEntry) -> None:
    """Count the request, and the refusal of an authenticated caller."""
    _count_request(rt, "api", served)
    if isinstance(served.principal, Principal) and served.route is not None and served.status in (403, 429):
        kind = AUTH_LIMITED if served.status == 429 else AUTH_REFUSED
        refusals.count_refusal(served.principal.actor, f"{served.method} {served.route.path}", kind=kind)


def _count_request(rt: Runtime, component: str, served: AccessLogEntry) -> None:
    """Count the request in the metrics and log it at level debug."""
    route = served.route.path if served.route is not None else "none"
    rt.metrics.requests[served.method if served.route is not None else "any", route, served.status] += 1
    if rt.log.enabled("debug"):
        rt.log.debug(
            component,
            f"{served.method} {served.path} {served.status}",
            peer=served.peer,
            duration_ms=round(served.duration_seconds * 1000, 1),
            principal=getattr(served.principal, "name", None),
        )
