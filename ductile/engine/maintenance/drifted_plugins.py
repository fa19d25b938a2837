"""Plugins whose files differ from the loaded ones: report each change once, and block them under `strict_mode`.

A plugin whose files differ is checked again every second. Its jobs start when its files are restored, or when a reload
has loaded the new ones.
"""

from collections.abc import Callable
from functools import partial

import trio

from ductile.core.errors import LedgerBusy, LedgerFull
from ductile.core.model import Job, Outcome, cancelled
from ductile.engine.job_context import LEDGER_RETRY_INTERVAL, JobContext
from ductile.ledger.admin import drifted_plugins
from ductile.ledger.admin.drifted_plugins import DriftedPlugin
from ductile.ledger.jobs.rows import get_job
from ductile.ledger.queue.outbox import postpone
from ductile.ledger.storage.db import Db
from ductile.plugin.checked_files import CheckedFiles

CHECK_INTERVAL = 1.0
"""Minimum seconds between two checks, because a check reads the state of every file of a plugin."""
NOT_REPORTED = CheckedFiles(None)
"""In place of files whose report could not be written. The next check reports them."""


async def note_files(ctx: JobContext, plugin: str, files: CheckedFiles) -> None:
    """Journal and log that the files of a plugin have changed, or are restored. Does nothing if that is known."""
    known = ctx.drifted.files.get(plugin)
    if files == known or (known is None and not files.has_drifted):
        return
    ctx.drifted.files[plugin] = files  # before the write, so that attempts that start meanwhile do not report the same
    try:
        await ctx.ledger.transact(_note(ctx, plugin, files), wait=False)
    except (LedgerFull, LedgerBusy) as error:
        ctx.drifted.files[plugin] = NOT_REPORTED
        ctx.log.error("preflight", f"plugin {plugin}: {files.message}, not journalled: {error}", plugin=plugin)
        return
    if files.has_drifted:
        ctx.log.warn("preflight", f"plugin {plugin}: {files.message}", plugin=plugin, blocked=ctx.is_strict)
        return
    ctx.log.info("preflight", f"plugin {plugin}: its files are the loaded ones again", plugin=plugin)
    if ctx.drifted.files.get(plugin) is files:
        del ctx.drifted.files[plugin]


def _note(ctx: JobContext, plugin: str, files: CheckedFiles) -> Callable[[Db], None]:
    now = ctx.clock.now()
    if not files.has_drifted:
        return partial(drifted_plugins.delete, plugin=plugin, now=now)
    drifted = DriftedPlugin(
        plugin=plugin, code=files.code, files=files.names, fingerprint=files.fingerprint, detected_at=now
    )
    return partial(drifted_plugins.put, drifted=drifted, blocks=ctx.is_strict)


async def postpone_for_drift(ctx: JobContext, job: Job, files: CheckedFiles) -> Outcome | None:
    """Block the plugin and queue its claimed job again, with the same attempt.

    Return the outcome of a job that was cancelled instead.
    """
    await note_files(ctx, job.plugin, files)

    def work(db: Db) -> Outcome | None:
        if postpone(db, job.id, job.attempt, files.code, run_id=ctx.run_id, until=None, now=ctx.clock.now()):
            return None
        stored = get_job(db, job.id)  # the attempt may not have the reason yet
        return cancelled(stored.cancel_reason if stored else None)

    while True:
        try:
            return await ctx.ledger.transact(work, wait=False)
        except (LedgerFull, LedgerBusy) as error:  # the attempt must not count
            ctx.log.error("preflight", f"{error}; trying again", job_id=job.id)
            await trio.sleep(LEDGER_RETRY_INTERVAL)


async def release_restored_plugins(ctx: JobContext) -> None:
    """Check the plugins whose files differ again, under the current configuration, at most once per interval.

    Also without `strict_mode`, which a reload can have switched off while a plugin was blocked.
    """
    now = trio.current_time()
    if not ctx.drifted.files or now < ctx.drifted.checked_at + CHECK_INTERVAL:
        return
    ctx.drifted.checked_at = now
    for plugin in tuple(ctx.drifted.files):
        configured = ctx.snapshot().plugins.get(plugin)
        files = ctx.preflight_cache.files.check(configured.plugin) if configured else NOT_REPORTED
        await note_files(ctx, plugin, files)
