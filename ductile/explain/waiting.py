"""Why a queued job does not start: every reason with the numbers that decide.

Reads the ledger alone (pauses, breakers, inits, the configuration that was loaded last), so it works without a service.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from ductile.core.clock import from_text, to_text
from ductile.core.errors import Unreadable
from ductile.core.formats import strict_yaml
from ductile.core.formats.stored_json import load_stored_object
from ductile.core.model import PROCESSLESS_SLOTS, Breaker, BreakerState, Job
from ductile.explain.orphaned import has_service
from ductile.explain.reason import Reason
from ductile.ledger.admin import drifted_plugins, pauses
from ductile.ledger.admin.drifted_plugins import DriftedPlugin
from ductile.ledger.admin.pauses import ALL_PLUGINS, Pause
from ductile.ledger.jobs import dedupe
from ductile.ledger.queue.claim import plugins_with_ready_jobs
from ductile.ledger.reports import wait_reasons
from ductile.ledger.reports.queue_status import running_by_plugin
from ductile.ledger.reports.wait_reasons import WaitingJob
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import breakers, plugin_inits, snapshots
from ductile.ledger.tables.blocked_jobs import BREAKER_OPEN

INIT = "init"


@frozen(kw_only=True)
class QueueConditions:
    """What decides whether jobs start, at one moment."""

    is_running: bool
    """True while a service has the ledger open."""
    paused: Mapping[str, Pause]
    running: Mapping[str, int]
    drifted: Mapping[str, DriftedPlugin]
    unhealthy: Mapping[str, str]
    breakers: Mapping[tuple[str, str], Breaker]
    initialising: frozenset[str]
    """Plugins with ready jobs whose `init` has not finished."""
    max_workers: int | None
    slots: Mapping[str, int | None]
    """How many jobs of a plugin may run at once; None if unknown."""


def read_queue_conditions(db: Db, ledger: Path) -> QueueConditions:
    """Read the conditions under the configuration that was loaded last."""
    last = snapshots.newest(db)
    config = load_stored_object(last.sanitized_config if last else None)
    prints = load_stored_object(last.plugin_fingerprints if last else None)
    workers, entries = config.get("service", {}).get("max_workers"), config.get("plugins", {})
    running, known = running_by_plugin(db), plugin_inits.all_inits(db)
    busy = {*plugins_with_ready_jobs(db), *running}
    manifests = {name: _manifest(prints.get(name)) for name in busy}
    return QueueConditions(
        is_running=has_service(ledger),
        paused={pause.plugin: pause for pause in pauses.all_pauses(db)},
        running=running,
        drifted=drifted_plugins.all_drifted(db),
        unhealthy={name: init.error for name, init in known.items() if init.error is not None},
        initialising=frozenset(name for name in busy - known.keys() if _declares_init(manifests[name])),
        breakers={(one.plugin, one.command): one for one in breakers.all_breakers(db)},
        max_workers=workers,
        slots={name: _slots(name, entries.get(name), manifests[name], workers) for name in busy},
    )


def orphaned_message(count: int) -> str:
    """Return how many jobs were running when the service died, as text."""
    return f"{count} {'was' if count == 1 else 'were'} running when the service died"


def _slots(
    plugin: str, entry: Mapping[str, Any] | None, manifest: Mapping[str, Any], workers: int | None
) -> int | None:
    if plugin in PROCESSLESS_SLOTS:
        return PROCESSLESS_SLOTS[plugin]
    if entry is None:
        return 1
    if (wanted := entry.get("parallelism")) is not None:
        return min(int(wanted), workers or int(wanted))
    if not manifest:
        return None
    return 1 if manifest.get("concurrency_safe") is False else workers


def _declares_init(manifest: Mapping[str, Any]) -> bool:
    commands = manifest.get("commands") or ()
    return INIT in commands or any(isinstance(one, dict) and one.get("name") == INIT for one in commands)


def _manifest(fingerprint: Any) -> dict[str, Any]:
    """Read the manifest where the plugin was found; empty if it cannot be read."""
    path = str(fingerprint.get("manifest_path", "")) if isinstance(fingerprint, dict) else ""
    try:
        content = strict_yaml.load(Path(path).read_bytes(), source=path).data()
    except (OSError, Unreadable):
        return {}
    return content if isinstance(content, dict) else {}


def waiting_reasons(
    db: Db, waiting: WaitingJob, queue: QueueConditions, *, now: datetime | None = None
) -> list[Reason]:
    """Return what keeps the job from starting, the strongest reason first; at least one."""
    moment = now or datetime.now(UTC)
    found = [
        *_service_reasons(queue),
        *_pause_reasons(waiting, queue),
        *_plugin_reasons(waiting, queue),
        *_job_reasons(db, waiting, queue, moment),
    ]
    if waiting.is_ready and not waiting.job.is_join:
        found += _capacity_reasons(db, waiting, queue, None if found else moment)
    return [evolve(reason, at=moment) for reason in found or [Reason("ready")]]


def _service_reasons(queue: QueueConditions) -> list[Reason]:
    return [] if queue.is_running else [Reason("service_down")]


def _pause_reasons(waiting: WaitingJob, queue: QueueConditions) -> list[Reason]:
    found = []
    for name, code in ((ALL_PLUGINS, "queue_paused"), (waiting.job.plugin, "paused")):
        if pause := queue.paused.get(name):
            data = {"plugin": name, "paused_at": to_text(pause.paused_at), "reason": pause.reason}
            found.append(Reason(code, data | ({"actor": pause.actor} if pause.actor else {})))
    return found


def _plugin_reasons(waiting: WaitingJob, queue: QueueConditions) -> list[Reason]:
    plugin, found = waiting.job.plugin, []
    if waiting.blocked_reason and waiting.blocked_reason != BREAKER_OPEN:
        found.append(Reason("blocked", {"plugin": plugin, "reason": waiting.blocked_reason}))
    if drifted := queue.drifted.get(plugin):
        found.append(Reason(drifted.code, drifted.data))
    if error := queue.unhealthy.get(plugin):
        found.append(Reason("unhealthy", {"plugin": plugin, "error": error}))
    if plugin in queue.initialising:
        found.append(Reason("initialising", {"plugin": plugin}))
    return found


def _job_reasons(db: Db, waiting: WaitingJob, queue: QueueConditions, now: datetime) -> list[Reason]:
    job = waiting.job
    if waiting.waits_for:
        members = [one.id for one in wait_reasons.open_members(db, job.id)]
        return [Reason("join", {"waits_for": waiting.waits_for, "members": members})]
    if waiting.waits_for_key:
        holder = dedupe.find_key_holder(db, job)
        return [Reason("held_key", {"dedupe_key": job.dedupe_key, "holder": holder})]
    if waiting.blocked_reason == BREAKER_OPEN:
        return [_breaker_reason(waiting, queue)]
    if job.next_retry_at is not None:
        data = {
            "next_retry_at": to_text(job.next_retry_at),
            "is_ahead": job.next_retry_at > now,
            "attempt": job.attempt,
            "max_attempts": job.max_attempts,
            "error": job.last_error,
        }
        return [Reason("retry_time", data)]
    return []


def _breaker_reason(waiting: WaitingJob, queue: QueueConditions) -> Reason:
    job = waiting.job
    breaker = queue.breakers.get((job.plugin, job.command))
    data = {
        "plugin": job.plugin,
        "command": job.command,
        "failure_count": breaker.failure_count if breaker else 0,
        "until": to_text(job.next_retry_at) if job.next_retry_at else None,
    }
    probe = breaker.probe_job_id if breaker and breaker.state is BreakerState.HALF_OPEN else None
    return Reason("breaker", data | ({"probe": probe} if probe else {}))


def _capacity_reasons(
    db: Db, waiting: WaitingJob, queue: QueueConditions, estimated_at: datetime | None
) -> list[Reason]:
    """Return which other jobs keep a ready job from starting, and its place among them; without a time no estimate."""
    job, found = waiting.job, []
    own, slots = queue.running.get(job.plugin, 0), queue.slots.get(job.plugin)
    total = sum(count for plugin, count in queue.running.items() if plugin not in PROCESSLESS_SLOTS)
    # A job without a process waits for no worker.
    if queue.max_workers and total >= queue.max_workers and job.plugin not in PROCESSLESS_SLOTS:
        found.append(Reason("workers_full", {"running": total, "max_workers": queue.max_workers}))
    elif slots is not None and own >= slots:
        found.append(Reason("plugin_full", {"plugin": job.plugin, "running": own, "slots": slots}))
    is_every_worker_busy = bool(found) and found[0].code == "workers_full"
    capacity = queue.max_workers if is_every_worker_busy else slots
    place = _place(db, job, queue, None if is_every_worker_busy else job.plugin)
    if not place["ahead"] and not (found and queue.is_running):
        return found
    average = wait_reasons.average_seconds(db, place["of_plugin"]) if estimated_at else None
    if average is not None and capacity and estimated_at and not _all_take_longer(place, average, estimated_at):
        place["estimate_seconds"] = round((place["ahead"] + 1) * average / capacity, 1)
    return [*found, Reason("behind", place)]


def _all_take_longer(place: Mapping[str, Any], average: float, now: datetime) -> bool:
    """True if the listed running jobs have all run for longer than the average, so that it says nothing about them."""
    starts = [one["started_at"] for one in place["running_now"]]
    return bool(starts) and all(
        start is not None and (now - from_text(start)).total_seconds() > average for start in starts
    )


def _place(db: Db, job: Job, queue: QueueConditions, of_plugin: str | None) -> dict[str, Any]:
    """Return which jobs start before this one and which run now, of its plugin or of all (None)."""
    plugins = (
        [of_plugin]
        if of_plugin is not None
        else [one for one in plugins_with_ready_jobs(db) if one not in PROCESSLESS_SLOTS]
    )
    counts = {plugin: wait_reasons.count_ahead(db, plugin, job.seq) for plugin in plugins if plugin not in queue.paused}
    ahead = {plugin: count for plugin, count in counts.items() if count}
    running = wait_reasons.running_now(db, of_plugin) if queue.is_running else []
    is_capped = wait_reasons.MAX_COUNTED in ahead.values()
    return {
        "ahead": sum(ahead.values()),
        "position": sum(ahead.values()) + 1,
        "ahead_by_plugin": ahead,
        "of_plugin": of_plugin,
        "running_now": [
            {
                "job_id": one.id,
                "plugin": one.plugin,
                "command": one.command,
                "started_at": to_text(one.started_at) if one.started_at else None,
            }
            for one in running
        ],
        **({"is_capped": True} if is_capped else {}),
    }
