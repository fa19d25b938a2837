"""`init`: a plugin that declares it is prepared once for each manifest and configuration, before its jobs start.

While it runs, the plugin's jobs wait; if it fails, the plugin is unhealthy until a start or a reload tries again. It
is no job: nobody asked for it, nothing follows from it, and the journal tells of it.
"""

import uuid
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import trio
from attrs import define, field
from blake3 import blake3

from ductile.config.snapshot import ConfiguredPlugin, Snapshot
from ductile.core.errors import LedgerBusy, LedgerFull
from ductile.core.hub import SCHEDULES
from ductile.core.model import Dead, Failed, Job, JobStatus, NewFact, Retried, Succeeded
from ductile.engine.completion import facts_of
from ductile.engine.job_context import JobContext
from ductile.engine.preflight import Ready, preflight
from ductile.engine.process.run import run_process
from ductile.engine.run_job import judge_run
from ductile.engine.running_jobs import Attempt
from ductile.ledger.storage.db import Db
from ductile.ledger.storage.writer import Ledger
from ductile.ledger.tables import facts
from ductile.ledger.tables.plugin_inits import Init, all_inits, forget, put

INIT = "init"
LEDGER_RETRY_SECONDS = 1.0


@define(eq=False)
class PluginHealth:
    """Which plugins must not start now, and why. The dispatcher holds their jobs, the web refuses new ones."""

    unhealthy: dict[str, str] = field(factory=dict)
    initialising: dict[str, str] = field(factory=dict)
    """Plugin → the fingerprint that it has to be prepared for."""
    at_work: set[tuple[str, str]] = field(factory=set)

    def held(self) -> frozenset[str]:
        return frozenset((*self.unhealthy, *self.initialising))


async def mark_pending(ledger: Ledger, snapshot: Snapshot, health: PluginHealth) -> None:
    """From now on the plugins wait that `initialise` will prepare; those that need it no longer do not."""
    known, wanted = await ledger.read(all_inits), {}
    for name, lane in snapshot.lanes.items():
        if not _declares(lane):
            continue
        fingerprint, last = fingerprint_of(lane), known.get(name)
        if last is None or last.error is not None or last.fingerprint != fingerprint:
            wanted[name] = fingerprint
    health.unhealthy = {name: why for name, why in health.unhealthy.items() if name in wanted}
    health.initialising = wanted


async def initialise(snapshot: Snapshot, health: PluginHealth, ctx: JobContext, stopping: trio.Event) -> None:
    """Run `init` for every pending plugin. Each of them is prepared or unhealthy afterwards."""
    known = await ctx.ledger.read(all_inits)
    held = health.held()  # asked after the read: an `init` that failed meanwhile stays on record
    outdated = [name for name, last in known.items() if last.error is not None and name not in held]
    async with trio.open_nursery() as nursery:
        for name, fingerprint in health.initialising.items():
            if (name, fingerprint) not in health.at_work:
                nursery.start_soon(_prepare, snapshot, health, ctx, name, fingerprint, stopping, name=f"init {name}")
        if outdated:
            nursery.start_soon(_write_patiently, ctx, partial(forget, plugins=outdated))


def _declares(lane: ConfiguredPlugin) -> bool:
    return INIT in lane.plugin.manifest.commands


def fingerprint_of(lane: ConfiguredPlugin) -> str:
    """Changes with the manifest or the configuration of the plugin."""
    return blake3(f"{lane.plugin.fingerprint.manifest_hash}\0{lane.config_json}".encode()).hexdigest()


async def _prepare(
    snapshot: Snapshot,
    health: PluginHealth,
    ctx: JobContext,
    name: str,
    fingerprint: str,
    stopping: trio.Event,
) -> None:
    job = _as_job(name, snapshot, now=ctx.clock.now())
    ctx.log.info("init", "initialising", plugin=name)
    health.at_work.add((name, fingerprint))
    try:
        error: str | None = None
        last = (await ctx.ledger.read(all_inits)).get(name)
        # A run that ended after `mark_pending` had read the ledger may have prepared it already.
        is_prepared = last is not None and last.error is None and last.fingerprint == fingerprint
        if last is not None and not is_prepared:
            await _write_patiently(ctx, partial(forget, plugins=(name,)))
        if not is_prepared:
            error, new_facts, state = await _run(job, snapshot, ctx, stopping)
        if stopping.is_set() and error is not None:
            return  # cut short: the next start tries again
        if not is_prepared and health.initialising.get(name) == fingerprint:
            done = Init(plugin=name, fingerprint=fingerprint, error=error)
            known: dict[str, Any] = {"job_id": job.id, "new_facts": new_facts, "state_updates": state}
            await _write_patiently(ctx, lambda db: put(db, done, now=ctx.clock.now(), **known))
    finally:
        health.at_work.discard((name, fingerprint))
    # Asked when all is written: a reload may want another one meanwhile, or none.
    if health.initialising.get(name) != fingerprint:
        return
    del health.initialising[name]
    if error is None:
        health.unhealthy.pop(name, None)
        ctx.log.info("init", "initialised", plugin=name)
    else:
        health.unhealthy[name] = f"is unhealthy: init failed: {error}"
        ctx.log.error("init", f"init failed: {error}", plugin=name)
    ctx.hub.announce_work()
    ctx.hub.announce(SCHEDULES)


async def _run(
    job: Job, snapshot: Snapshot, ctx: JobContext, stopping: trio.Event
) -> tuple[str | None, tuple[NewFact, ...], str | None]:
    """Run `init`. Return the error or None, and the facts and the state to store. An internal error is an error too."""
    try:
        result = await _run_plugin(job, snapshot, ctx, stopping)
    except* Exception as errors:
        result = snapshot.config.mask(f"internal error: {errors.exceptions[0]!r}"), (), None
    return result


async def _run_plugin(
    job: Job, snapshot: Snapshot, ctx: JobContext, stopping: trio.Event
) -> tuple[str | None, tuple[NewFact, ...], str | None]:
    attempt, began = Attempt(job, snapshot), ctx.clock.now()
    ready = preflight(
        snapshot,
        job,
        state_json=await ctx.ledger.read(facts.state, job.plugin),
        instance=ctx.instance,
        now=began,
        memory=ctx.preflight_cache,
    )
    if not isinstance(ready, Ready):
        return ready.error, (), None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_with, attempt, stopping, name="stop")
        run = await run_process(ready.spec, attempt.control, ctx.processes)
        nursery.cancel_scope.cancel()
    verdict = await judge_run(job, run, ready.policy, began)
    match verdict.outcome:
        case Succeeded():
            new_facts, state = facts_of(job, ready, verdict.response) if verdict.response else ((), None)
            return None, new_facts, state
        case Failed(error) | Dead(error) | Retried(error):
            return error, (), None
        case other:
            return other.reason, (), None


async def _write_patiently(ctx: JobContext, function: Callable[[Db], None]) -> None:
    """Write in one transaction, and wait for the disk however long that takes."""
    while True:
        try:
            await ctx.ledger.transact(function, wait=False)
            return await ctx.ledger.until_durable()
        except (LedgerFull, LedgerBusy) as error:
            ctx.log.error("init", f"{error}; trying again")
            await trio.sleep(LEDGER_RETRY_SECONDS)


async def _stop_with(attempt: Attempt, stopping: trio.Event) -> None:
    await stopping.wait()
    attempt.control.stop.request("the service stops")


def _as_job(plugin: str, snapshot: Snapshot, *, now: datetime) -> Job:
    return Job(
        id=str(uuid.uuid4()),
        plugin=plugin,
        command=INIT,
        status=JobStatus.RUNNING,
        attempt=1,
        max_attempts=2,  # the next start or reload is another one
        submitted_by="core",
        created_at=now,
        enqueued_snapshot_id=snapshot.id,
        started_snapshot_id=snapshot.id,
    )
