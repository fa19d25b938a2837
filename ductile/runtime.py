"""The root nursery: start order, signals, reload, drain. Introduces the rooms below to each other.

Lock → ledger → recovery → servers bound → dispatcher → ready. The nesting is the shutdown order: nobody comes in,
running jobs finish or are put back, what is known is written, the lock is released.
"""

import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import define, field

from ductile import __version__
from ductile.config.checks.doctor import Report, examine
from ductile.config.load.load import Config, load
from ductile.config.seal.checksums import CATEGORY
from ductile.config.snapshot import Snapshot, take_snapshot
from ductile.config.views.changes import Reloaded, changes_between
from ductile.core.clock import Clock
from ductile.core.errors import ConfigInvalid, DuctileError, LedgerError, LedgerLost
from ductile.core.files import FileRefused
from ductile.core.hub import JOURNAL, Hub
from ductile.core.instance.failpoints import failpoint
from ductile.core.instance.lock import instance_lock, require_free
from ductile.core.instance.signals import heard
from ductile.core.instance.systemd import Notifier
from ductile.core.logs import Log
from ductile.core.metrics import Meters
from ductile.core.threads import run_in_thread
from ductile.engine import breaker
from ductile.engine.control.cancel import Cancelling
from ductile.engine.control.pause import PausedPlugins
from ductile.engine.control.reload_requests import ReloadQueue, ReloadRequest
from ductile.engine.dispatcher import dispatch
from ductile.engine.job_context import JobContext
from ductile.engine.maintenance.maintenance import keep_house
from ductile.engine.maintenance.plugin_init import PluginHealth, initialise, mark_pending
from ductile.engine.maintenance.recover import recover
from ductile.engine.maintenance.retention_clock import RetentionClock
from ductile.engine.maintenance.save_snapshot import remember
from ductile.engine.maintenance.unrunnable_jobs import settle_under, would_end
from ductile.engine.process.procfs import harden_self, instance_of
from ductile.engine.scheduling.next_runs import next_runs
from ductile.engine.scheduling.scheduler import Scheduler
from ductile.ledger.storage.open_file import open_reader
from ductile.ledger.storage.path_checks import make_private_directory
from ductile.ledger.storage.writer import Ledger, open_ledger
from ductile.ledger.tables.schedules import all_entries
from ductile.relay.routes import relay_routes
from ductile.relay.send import send_job
from ductile.web.api.system import ROOT_TASK
from ductile.web.api_routes import api_table
from ductile.web.auth.auth import Keyring, authorizer
from ductile.web.auth.tokens import TokenUses
from ductile.web.context import AppContext
from ductile.web.server.listeners import (
    Listener,
    open_listeners,
    open_webhook_listener,
    require_free_listeners,
    require_same_places,
)
from ductile.web.server.server import serve
from ductile.web.site import Served, Site
from ductile.web.webhooks.rejections import RejectionCounter

MOST_TOLD = 50
"""How many findings of the doctor the log has a line for."""
LAST_WORDS_SECONDS = 15.0
"""How long the end may take after the drain and the last grace, before what still goes on is cut short."""


@define(eq=False)
class Runtime:
    """What lives as long as the process. A reload replaces the snapshot, it never edits one."""

    snapshot: Snapshot
    log: Log
    notifier: Notifier
    clock: Clock = field(factory=Clock)
    hub: Hub = field(factory=Hub)
    run_id: str = field(factory=lambda: str(uuid.uuid4()))
    stopping: trio.Event = field(factory=trio.Event)
    wishes: ReloadQueue = field(factory=ReloadQueue)
    health: PluginHealth = field(factory=PluginHealth)
    meters: Meters = field(factory=Meters)
    kill_all: Callable[[], None] = lambda: None
    """Ends every plugin process at once; nothing runs before the dispatcher does."""
    scheduler_late: Callable[[], float] = lambda: 0.0
    """For how many seconds what is due has waited; nothing is due before there is a scheduler."""

    @property
    def config(self) -> Config:
        return self.snapshot.config

    def stop(self) -> None:
        self.stopping.set()
        self.hub.announce_everyone()


def run(root: Path, *, origin: str, announce: Callable[[str], None], log_format: str | None = None) -> None:
    """Run the service in the foreground until it is told to stop; `announce` tells whoever started it.

    `log_format` is used in place of the configured one.
    """
    snapshot = _prepare(root)
    service = snapshot.config.settings.service
    log = Log(level=service.log_level, style=log_format or service.log_format, mask=snapshot.config.mask)
    try:
        for refused in harden_self():
            log.warn("runtime", f"not allowed by the host: {refused}")
        _enter(snapshot.config.directory)
        ledger = snapshot.config.settings.state.path
        make_private_directory(ledger.parent)
        rt = Runtime(snapshot, log, Notifier.from_environment(os.environ))
        with instance_lock(ledger.parent, ledger, now=rt.clock.now()):
            trio.run(_main, rt, origin, announce, strict_exception_groups=True)
    finally:
        log.close()


def rehearse(root: Path) -> dict[str, Any]:
    """What a start would work with; raises what would keep it from starting. Changes nothing."""
    snapshot = _prepare(root)
    ledger = snapshot.config.settings.state.path
    require_free(ledger.parent, ledger)
    if ledger.exists():
        with open_reader(ledger):
            pass
    require_free_listeners(snapshot.config)
    plan = {"config": str(root), "ledger": str(ledger), "plugins": len(snapshot.lanes), "dry_run": True}
    return plan | snapshot.report.as_data()


def _prepare(root: Path) -> Snapshot:
    """The configuration, or every reason why the service must not start with it."""
    config = load(root)
    examination = examine(config)
    service = config.settings.service
    fatal = [
        complaint
        for complaint in examination.report.errors
        if complaint.category == CATEGORY or service.strict_mode or service.admission.validate_config_on_boot
    ]
    if fatal:
        raise ConfigInvalid(fatal)
    return take_snapshot(examination, os.environ)


def _tell_findings(log: Log, report: Report) -> None:
    """What the service does without, and what differs from the seal, are told one by one; the rest is counted."""
    drifts = [warning for warning in report.warnings if warning.category == CATEGORY]
    grave = [*report.errors, *drifts]
    for complaint in grave[:MOST_TOLD]:
        about = complaint.as_data()
        log.warn("config", str(complaint), **{name: about.get(name) for name in ("category", "field", "file", "line")})
    if rest := len(report.errors) + len(report.warnings) - len(grave[:MOST_TOLD]):
        write = log.info if len(grave) <= MOST_TOLD else log.warn
        write("config", f"more to look at: {rest}; `ductile config check` tells it all")


def _enter(directory: Path) -> None:
    """Relative paths of plugins start at the configuration."""
    try:
        os.chdir(directory)
    except OSError as error:
        raise FileRefused(directory, f"cannot be entered: {error.strerror}") from error


async def _main(rt: Runtime, origin: str, announce: Callable[[str], None]) -> None:
    trio.lowlevel.current_task().name = ROOT_TASK
    # Before anything else: a signal that nobody receives ends the process, in the middle of whatever it does.
    with heard(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        async with trio.open_nursery() as watching:
            watching.start_soon(_watch_signals, rt, signals, name="signals")
            settings = rt.config.settings
            about = {"version": __version__, "config": str(rt.config.root), "origin": origin, "pid": os.getpid()}
            rt.log.info("runtime", "starting", **about)
            _tell_findings(rt.log, rt.snapshot.report)
            tell = partial(rt.hub.announce, JOURNAL)
            async with open_ledger(
                settings.state.path,
                synchronous=settings.service.synchronous,
                on_commit=tell,
            ) as ledger:
                await _start(rt, ledger, announce)
            watching.cancel_scope.cancel()
    rt.log.info("runtime", "stopped")


async def _start(rt: Runtime, ledger: Ledger, announce: Callable[[str], None]) -> None:
    """What an earlier run left behind is put right, the addresses are bound, and work begins."""
    instance, past = instance_of(ledger.path), await RetentionClock.of(ledger, rt.clock)
    await recover(ledger, rt.snapshot, rt.log, instance=instance, run_id=rt.run_id, now=rt.clock.now())
    await remember(ledger, rt.snapshot, reason="startup", now=rt.clock.now())
    await settle_under(ledger, lambda: rt.snapshot, rt.log, now=rt.clock.now())
    with open_listeners(rt.config) as listeners, open_webhook_listener(rt.config) as webhook_listeners:
        await _work(rt, ledger, instance, past, listeners, webhook_listeners, announce)


async def _work(
    rt: Runtime,
    ledger: Ledger,
    instance: str,
    past: RetentionClock,
    listeners: Sequence[Listener],
    webhook_listeners: Sequence[Listener],
    announce: Callable[[str], None],
) -> None:
    """The service from ready to drained."""
    pausing = await PausedPlugins.load(ledger, rt.hub, rt.clock)
    ctx = JobContext(
        send_relay=send_job,
        ledger=ledger,
        hub=rt.hub,
        log=rt.log,
        clock=rt.clock,
        instance=instance,
        run_id=rt.run_id,
        snapshot=lambda: rt.snapshot,
        held=lambda: rt.health.held().union(pausing.paused),
        meters=rt.meters,
    )
    rt.kill_all = ctx.processes.kill_all
    async with trio.open_nursery() as root:
        root.start_soon(_watch_ledger, ctx, name="ledger watch")
        root.start_soon(_reload_when_asked, rt, ctx, name="reload")
        root.start_soon(keep_house, ledger, lambda: rt.snapshot, rt.log, rt.clock, past, name="maintenance")
        root.start_soon(rt.notifier.keep_alive, ledger.stuck_seconds, name="watchdog")
        async with trio.open_nursery() as serving:
            await mark_pending(ledger, rt.snapshot, rt.health)
            serving.start_soon(initialise, rt.snapshot, rt.health, ctx, rt.stopping, name="plugin init")
            desk = _desk(rt, ctx, pausing)
            addresses = await serving.start(_serve_api, rt, desk, listeners, name="API server")
            if webhook_listeners:
                more = await serving.start(_serve_webhooks, rt, desk, webhook_listeners, name="webhook server")
                addresses = (*addresses[:-1], *more, addresses[-1])
            await serving.start(dispatch, ctx, rt.stopping, name="dispatcher")
            await serving.start(_schedule, rt, ctx, name="scheduler")
            rt.log.info("runtime", "ready", listening=list(addresses), plugins=len(rt.snapshot.lanes))
            rt.notifier.send("READY=1")
            announce(f"ductile {__version__} is ready: {', '.join(addresses)}")
            await rt.stopping.wait()
            rt.notifier.send("STOPPING=1")
            service = rt.config.settings.service
            patience = (service.drain_timeout + service.kill_grace).total_seconds() + LAST_WORDS_SECONDS
            serving.cancel_scope.deadline = trio.current_time() + patience
        root.cancel_scope.cancel()


def _desk(rt: Runtime, ctx: JobContext, pausing: PausedPlugins) -> AppContext:
    cancelling = Cancelling(ctx.ledger, rt.hub, rt.clock, lambda: rt.snapshot, ctx.running.stop_job)
    return AppContext(
        ledger=ctx.ledger,
        hub=rt.hub,
        clock=rt.clock,
        snapshot=lambda: rt.snapshot,
        live_stderr=ctx.running.live_stderr,
        stuck_seconds=lambda: max(ctx.ledger.stuck_seconds(), rt.scheduler_late()),
        is_stopping=rt.stopping.is_set,
        unhealthy=lambda: rt.health.unhealthy,
        reload=rt.wishes.ask,
        cancel=cancelling.cancel,
        purge=cancelling.purge,
        pausing=pausing,
        meters=rt.meters,
    )


async def _schedule(
    rt: Runtime,
    ctx: JobContext,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Schedules make jobs until the service stops taking work."""
    scheduler = Scheduler(
        ctx.ledger,
        rt.hub,
        rt.clock,
        rt.log,
        lambda: rt.snapshot,
        lambda: rt.health.unhealthy,
        ctx.running.stop_job,
    )
    rt.scheduler_late = scheduler.late_seconds
    async with trio.open_nursery() as nursery:
        await nursery.start(scheduler.run, name="ticks")
        task_status.started()
        await rt.stopping.wait()
        nursery.cancel_scope.cancel()


async def _serve_api(
    rt: Runtime,
    desk: AppContext,
    listeners: Sequence[Listener],
    *,
    task_status: trio.TaskStatus[tuple[str, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    uses = TokenUses(desk.ledger, partial(rt.log.warn, "api"))
    authorize = authorizer(_Keys(rt), rt.clock, uses.note)
    refusals = RejectionCounter(desk.ledger, rt.clock, partial(rt.log.warn, "relay"))
    site = Site(
        table=api_table(desk, authorize, breaker.reset, uses, relay_routes(desk, refusals)),
        authorize=authorize,
        origins=lambda: rt.config.settings.api.allowed_origins,
        on_request=partial(_note_request, rt, "api"),
        on_fault=lambda error, where: rt.log.error("api", f"{where}: {error!r}"),
    )
    async with trio.open_nursery() as counting:
        counting.start_soon(refusals.keep, name="refusals")
        counting.start_soon(uses.keep, name="token uses")
        await serve(site, listeners, stopping=rt.stopping, task_status=task_status)
        counting.cancel_scope.cancel()


async def _serve_webhooks(
    rt: Runtime,
    desk: AppContext,
    listeners: Sequence[Listener],
    *,
    task_status: trio.TaskStatus[tuple[str, ...]] = trio.TASK_STATUS_IGNORED,
) -> None:
    from ductile.web.webhooks import receiver  # only a service that has endpoints pays for it

    tally = RejectionCounter(desk.ledger, rt.clock, partial(rt.log.warn, "webhooks"))
    site = receiver.site(
        desk,
        tally,
        on_request=partial(_note_request, rt, "webhooks"),
        on_fault=lambda error, where: rt.log.error("webhooks", f"{where}: {error!r}"),
    )
    async with trio.open_nursery() as counting:
        counting.start_soon(tally.keep, name="refusals")
        await serve(site, listeners, stopping=rt.stopping, task_status=task_status)
        counting.cancel_scope.cancel()


@define(eq=False)
class _Keys:
    """The keyring of the configuration of the moment, made once for each."""

    rt: Runtime
    _made: tuple[Config, Keyring] | None = None

    def __call__(self) -> Keyring:
        if self._made is None or self._made[0] is not self.rt.config:
            self._made = (self.rt.config, Keyring.of(self.rt.config))
        return self._made[1]


def _note_request(rt: Runtime, component: str, served: Served) -> None:
    route = served.route.path if served.route is not None else "none"
    rt.meters.requests[served.method if served.route is not None else "any", route, served.status] += 1
    if rt.log.enabled("debug"):
        rt.log.debug(
            component,
            f"{served.method} {served.path} {served.status}",
            peer=served.peer,
            duration_ms=round(served.duration_seconds * 1000, 1),
            principal=getattr(served.principal, "name", None),
        )


async def _watch_signals(rt: Runtime, signals: AsyncIterator[int]) -> None:
    async for number in signals:
        name = signal.Signals(number).name
        if number == signal.SIGHUP:
            rt.wishes.make(ReloadRequest())
        elif not rt.stopping.is_set():
            rt.log.info("runtime", f"{name}: draining; once more ends at once")
            rt.stop()
        else:
            rt.log.warn("runtime", f"{name} again: ending now; what was running is run again after the next start")
            rt.kill_all()
            rt.log.close()
            os._exit(128 + number)


async def _watch_ledger(ctx: JobContext) -> None:
    """End the service at once when the ledger cannot be written any more; the next start recovers."""
    await ctx.ledger.broken.wait()
    ctx.processes.kill_all()
    raise LedgerLost(f"{ctx.ledger.path}: writing failed; ending, so that a new start can recover")


async def _reload_when_asked(rt: Runtime, ctx: JobContext) -> None:
    """One after the other, whoever asks; a caller that leaves does not stop what it began."""
    async with trio.open_nursery() as initialising:
        async for wish in rt.wishes.taken:
            if not wish.dry_run:
                rt.notifier.send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            before = rt.snapshot
            wish.answer = await _granted(rt, ctx.ledger, wish)
            if rt.snapshot is not before:
                initialising.start_soon(initialise, rt.snapshot, rt.health, ctx, rt.stopping, name="plugin init")
            if not wish.dry_run:
                rt.notifier.send("READY=1")
            wish.done.set()


async def _granted(rt: Runtime, ledger: Ledger, wish: ReloadRequest) -> Reloaded | DuctileError:
    try:
        return await _reload(rt, ledger, dry_run=wish.dry_run)
    except DuctileError as error:
        if not wish.dry_run:
            rt.log.error("runtime", f"not reloaded, the old configuration stays: {error}")
        return error
    except Exception as error:  # a fault of ours is no reason to end what runs
        rt.log.error("runtime", f"the reload went wrong: internal error: {error!r}")
        return DuctileError(f"internal error: {error!r}")


async def _reload(rt: Runtime, ledger: Ledger, *, dry_run: bool) -> Reloaded:
    """New jobs use the configuration as it is on disk now; one that cannot be used changes nothing and is raised."""
    snapshot = await run_in_thread(partial(_prepare, rt.config.root))
    require_same_places(rt.config, snapshot.config)
    changes = changes_between(rt.snapshot, snapshot)
    now = rt.clock.now()
    runs = next_runs(rt.snapshot, snapshot, await ledger.read(all_entries), now=now)
    if dry_run:
        ended = await would_end(ledger, snapshot)
        return Reloaded(at=now, changes=changes, ended_jobs=ended, next_runs=runs, report=snapshot.report, dry_run=True)
    failpoint("reload.before_commit")
    await remember(ledger, snapshot, reason="reload", now=now)
    await mark_pending(ledger, snapshot, rt.health)
    rt.snapshot = snapshot
    failpoint("reload.after_swap")
    rt.log.mask = snapshot.config.mask
    rt.log.set_level(snapshot.config.settings.service.log_level)
    ended = {}
    try:
        ended = await settle_under(ledger, lambda: rt.snapshot, rt.log, now=now)
    except LedgerError as error:  # it is in use all the same; housekeeping tries again
        rt.log.warn("runtime", f"jobs of plugins that are gone were not ended: {error}")
    rt.hub.announce_everyone()
    rt.log.info("runtime", "reloaded", config_hash=snapshot.config.digest, plugins=len(snapshot.lanes))
    _tell_findings(rt.log, snapshot.report)
    return Reloaded(at=now, changes=changes, ended_jobs=ended, next_runs=runs, report=snapshot.report)
