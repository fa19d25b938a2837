"""Run the `init` command of plugins: once per manifest and configuration, before their jobs start.

The plugin's jobs wait while `init` runs. If it fails, the plugin is unhealthy until a start or a reload runs it again.
An `init` is not a job of the queue and has no follow-up jobs; the journal records it.
"""

import random
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
from ductile.core.instance.threads import run_in_thread_if_large
from ductile.core.model import Dead, Failed, Job, JobStatus, NewFact, Retried, Succeeded
from ductile.engine.completion import facts_of
from ductile.engine.job_context import JobContext
from ductile.engine.judge import judge
from ductile.engine.preflight import Ready, preflight
from ductile.engine.process.run import run_process
from ductile.engine.running_jobs import Attempt
from ductile.ledger.storage.async_ledger import Ledger
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import facts
from ductile.ledger.tables.plugin_inits import PluginInit, all_inits, delete_inits, put

INIT = "init"
LEDGER_RETRY_INTERVAL = 1.0


@define(eq=False)
class PluginHealth:
    """The plugins whose jobs must not start because of `init`."""

    unhealthy: dict[str, str] = field(factory=dict)
    """Plugin → why its `init` failed."""
    initialising: dict[str, str] = field(factory=dict)
    """Plugin → the fingerprint that `init` has to run for."""
    running: set[tuple[str, str]] = field(factory=set)
    """The plugin and fingerprint of each `init` that runs now."""

    def blocked(self) -> dict[str, str]:
        """Return the plugins whose jobs must not start, each with the code of the reason."""
        return dict.fromkeys(self.unhealthy, "unhealthy") | dict.fromkeys(self.initialising, "initialising")


async def mark_pending(ledger: Ledger, snapshot: Snapshot, health: PluginHealth) -> None:
    """Block the plugins that need `init` under this configuration and unblock all others."""
    known, pending = await ledger.read(all_inits), {}
    for name, configured in snapshot.plugins.items():
        if not _has_init(configured):
            continue
        fingerprint, last = fingerprint_of(configured), known.get(name)
        if last is None or last.error is not None or last.fingerprint != fingerprint:
            pending[name] = fingerprint
    health.unhealthy = {name: error for name, error in health.unhealthy.items() if name in pending}
    health.initialising = pending


async def initialise_plugins(snapshot: Snapshot, health: PluginHealth, ctx: JobContext, stopping: trio.Event) -> None:
    """Run `init` for every pending plugin. Afterwards each of them is initialised or unhealthy."""
    known = await ctx.ledger.read(all_inits)
    blocked = health.blocked()  # after the read, so that the record of an `init` that failed meanwhile is not deleted
    outdated = [name for name, last in known.items() if last.error is not None and name not in blocked]
    async with trio.open_nursery() as nursery:
        for name, fingerprint in health.initialising.items():
            if (name, fingerprint) not in health.running:
                nursery.start_soon(_initialise, snapshot, health, ctx, name, fingerprint, stopping, name=f"init {name}")
        if outdated:
            nursery.start_soon(_write_with_retry, ctx, partial(delete_inits, plugins=outdated))


def _has_init(configured: ConfiguredPlugin) -> bool:
    return INIT in configured.plugin.manifest.commands


def fingerprint_of(configured: ConfiguredPlugin) -> str:
    """Return a hash of the manifest and the configuration of the plugin."""
    return blake3(f"{configured.plugin.fingerprint.manifest_hash}\0{configured.config_json}".encode()).hexdigest()


async def _initialise(
    snapshot: Snapshot,
    health: PluginHealth,
    ctx: JobContext,
    name: str,
    fingerprint: str,
    stopping: trio.Event,
) -> None:
    job = _init_job(name, snapshot, now=ctx.clock.now())
    ctx.log.info("init", "initialising", plugin=name)
    health.running.add((name, fingerprint))
    try:
        error: str | None = None
        last = (await ctx.ledger.read(all_inits)).get(name)
        # Another `init` can have succeeded after `mark_pending` read the ledger.
        is_initialised = last is not None and last.error is None and last.fingerprint == fingerprint
        if last is not None and not is_initialised:
            await _write_with_retry(ctx, partial(delete_inits, plugins=(name,)))
        if not is_initialised:
            error, new_facts, state = await _run(job, snapshot, ctx, stopping)
        if stopping.is_set() and error is not None:
            return  # stopped: the next start tries again
        if not is_initialised and health.initialising.get(name) == fingerprint:
            done = PluginInit(plugin=name, fingerprint=fingerprint, error=error)
            fields: dict[str, Any] = {"job_id": job.id, "new_facts": new_facts, "state_updates": state}
            await _write_with_retry(ctx, lambda db: put(db, done, now=ctx.clock.now(), **fields))
    finally:
        health.running.discard((name, fingerprint))
    # Checked after the write: a reload can require another `init` meanwhile, or none.
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
    """Run `init`. Return its error or None, and the facts and the state to store. Never raises an internal error."""
    try:
        result = await _run_plugin(job, snapshot, ctx, stopping)
    except* Exception as errors:
        result = snapshot.config.mask(f"internal error: {errors.exceptions[0]!r}"), (), None
    return result


async def _run_plugin(
    job: Job, snapshot: Snapshot, ctx: JobContext, stopping: trio.Event
) -> tuple[str | None, tuple[NewFact, ...], str | None]:
    attempt, started_at = Attempt(job, snapshot), ctx.clock.now()
    ready = preflight(
        snapshot,
        job,
        state_json=await ctx.ledger.read(facts.state, job.plugin),
        instance=ctx.instance,
        now=started_at,
        cache=ctx.preflight_cache,
    )
    if not isinstance(ready, Ready):
        return ready.error, (), None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_when_draining, attempt, stopping, name="stop")
        run = await run_process(ready.spec, attempt.control, ctx.processes)
        nursery.cancel_scope.cancel()
    decide = partial(judge, job, run, ready.policy, started_at=started_at, jitter=random.random())
    verdict = await run_in_thread_if_large(decide, len(run.stdout))
    match verdict.outcome:
        case Succeeded():
            new_facts, state = facts_of(job, ready, verdict.response) if verdict.response else ((), None)
            return None, new_facts, state
        case Failed(error) | Dead(error) | Retried(error):
            return error, (), None
        case other:
            return other.reason, (), None


async def _write_with_retry(ctx: JobContext, function: Callable[[Db], None]) -> None:
    """Write in one transaction and wait until it is durable. Retries while the disk is full or the ledger is busy."""
    while True:
        try:
            await ctx.ledger.transact(function, wait=False)
            return await ctx.ledger.until_durable()
        except (LedgerFull, LedgerBusy) as error:
            ctx.log.error("init", f"{error}; trying again")
            await trio.sleep(LEDGER_RETRY_INTERVAL)


async def _stop_when_draining(attempt: Attempt, stopping: trio.Event) -> None:
    await stopping.wait()
    attempt.control.stop.request("the service stops")


def _init_job(plugin: str, snapshot: Snapshot, *, now: datetime) -> Job:
    return Job(
        id=str(uuid.uuid4()),
        plugin=plugin,
        command=INIT,
        status=JobStatus.RUNNING,
        attempt=1,
        max_attempts=2,  # not the last attempt: the next start or reload tries again
        submitted_by="core",
        created_at=now,
        enqueued_snapshot_id=snapshot.id,
        started_snapshot_id=snapshot.id,
    )
