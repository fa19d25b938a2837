"""What keeps a waiting job from running, one reason after the other, with the numbers that decide.

Gathered from the ledger alone: pauses, breakers, inits, and the configuration as it was loaded last. So it is told the
same way whether or not the service runs.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from attrs import field, frozen

from ductile.core.clock import to_text
from ductile.core.errors import Unreadable
from ductile.core.format_time import told
from ductile.core.formats import strict_yaml
from ductile.core.formats.stored_json import kept_object
from ductile.core.model import RELAY, RELAY_SLOTS, Breaker, BreakerState
from ductile.explain.orphaned import has_service
from ductile.ledger.admin import pauses
from ductile.ledger.admin.pauses import EVERYTHING, Pause
from ductile.ledger.queue.breaker_holds import HELD
from ductile.ledger.queue.lanes import lanes_with_work
from ductile.ledger.reports import wait_reasons
from ductile.ledger.reports.queue_status import running_by_plugin
from ductile.ledger.reports.wait_reasons import WaitingJob
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import breakers, plugin_inits, snapshots

INIT = "init"


@frozen
class Reason:
    """One thing that keeps a job: a stable word, a sentence, and the facts in it."""

    code: str
    words: str
    facts: Mapping[str, Any] = field(factory=dict)

    def as_data(self) -> dict[str, Any]:
        return {"code": self.code, "words": self.words, **self.facts}


@frozen(kw_only=True)
class Circumstances:
    """All that decides about starting jobs, at one moment."""

    is_running: bool
    """Whether a service has the ledger."""
    paused: Mapping[str, Pause]
    running: Mapping[str, int]
    unhealthy: Mapping[str, str]
    breakers: Mapping[tuple[str, str], Breaker]
    initialising: frozenset[str]
    """Plugins with work whose `init` has not come to an end yet."""
    max_workers: int | None
    slots: Mapping[str, int | None]
    """How many jobs of a plugin with work run at once; None if that cannot be told."""


def circumstances(db: Db, ledger: Path) -> Circumstances:
    """What holds now, under the configuration that was loaded last."""
    last = snapshots.newest(db)
    config = kept_object(last.sanitized_config if last else None)
    prints = kept_object(last.plugin_fingerprints if last else None)
    workers, entries = config.get("service", {}).get("max_workers"), config.get("plugins", {})
    running, known = running_by_plugin(db), plugin_inits.all_inits(db)
    busy = {*lanes_with_work(db), *running}
    manifests = {name: _manifest(prints.get(name)) for name in busy}
    return Circumstances(
        is_running=has_service(ledger),
        paused={pause.plugin: pause for pause in pauses.all_pauses(db)},
        running=running,
        unhealthy={name: init.error for name, init in known.items() if init.error is not None},
        initialising=frozenset(name for name in busy - known.keys() if _declares_init(manifests[name])),
        breakers={(one.plugin, one.command): one for one in breakers.all_breakers(db)},
        max_workers=workers,
        slots={name: _slots(name, entries.get(name), manifests[name], workers) for name in busy},
    )


def orphaned_words(count: int) -> str:
    """So many jobs are running by the ledger, and nobody runs them."""
    return f"{count} {'was' if count == 1 else 'were'} running when the service died"


def _slots(
    plugin: str, entry: Mapping[str, Any] | None, manifest: Mapping[str, Any], workers: int | None
) -> int | None:
    if plugin == RELAY:
        return RELAY_SLOTS
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
    """What is written now where the plugin was found; nothing if it cannot be read."""
    path = str(fingerprint.get("manifest_path", "")) if isinstance(fingerprint, dict) else ""
    try:
        content = strict_yaml.load(Path(path).read_bytes(), source=path).data()
    except (OSError, Unreadable):
        return {}
    return content if isinstance(content, dict) else {}


def reasons(db: Db, waiting: WaitingJob, around: Circumstances, *, now: datetime | None = None) -> list[Reason]:
    """What keeps the job, the hardest first; at least one."""
    found = [
        *_nobody(around),
        *_held_by_the_operator(waiting, around),
        *_cannot_run(waiting, around),
        *_not_yet(db, waiting, around, now or datetime.now(UTC)),
    ]
    if waiting.is_ready and not waiting.job.is_join:
        found += _full(db, waiting, around)
    return found or [Reason("ready", "nothing keeps it: it starts with the next claim")]


def _nobody(around: Circumstances) -> list[Reason]:
    if around.is_running:
        return []
    return [Reason("service_down", "the service is not running; start it with `ductile system start`")]


def _held_by_the_operator(waiting: WaitingJob, around: Circumstances) -> list[Reason]:
    found = []
    for name, what in ((EVERYTHING, "the whole queue"), (waiting.job.plugin, f"plugin {waiting.job.plugin}")):
        if pause := around.paused.get(name):
            code, undo = ("queue_paused", "queue resume") if name == EVERYTHING else ("paused", f"plugin resume {name}")
            words = f"{what} was paused {told(to_text(pause.paused_at))}: {pause.reason}; `ductile {undo}` ends that"
            found.append(Reason(code, words, {"paused_at": to_text(pause.paused_at), "reason": pause.reason}))
    return found


def _cannot_run(waiting: WaitingJob, around: Circumstances) -> list[Reason]:
    job, found = waiting.job, []
    if waiting.blocked_reason and waiting.blocked_reason != HELD:
        words = f"plugin {job.plugin} cannot run: {waiting.blocked_reason}; put it right and reload"
        found.append(Reason("blocked", words, {"reason": waiting.blocked_reason}))
    if error := around.unhealthy.get(job.plugin):
        words = f"plugin {job.plugin} is unhealthy, its init failed: {error}; put it right and reload"
        found.append(Reason("unhealthy", words, {"error": error}))
    if job.plugin in around.initialising:
        found.append(Reason("initialising", f"the init of plugin {job.plugin} has not come to an end yet"))
    return found


def _not_yet(db: Db, waiting: WaitingJob, around: Circumstances, now: datetime) -> list[Reason]:
    job = waiting.job
    if waiting.waits_for:
        members = [one.id for one in wait_reasons.open_members(db, job.id)]
        words = f"it joins {waiting.waits_for} jobs that are not over, such as {', '.join(members)}"
        return [Reason("join", words, {"waits_for": waiting.waits_for, "members": members})]
    if waiting.waits_for_key:
        holder = wait_reasons.holder_of_key(db, job)
        words = f"job {holder} runs with the same dedupe key {job.dedupe_key!r}; two of a key never run together"
        return [Reason("held_key", words, {"dedupe_key": job.dedupe_key, "holder": holder})]
    if waiting.blocked_reason == HELD:
        return [_breaker(waiting, around)]
    if job.next_retry_at is not None:
        due = to_text(job.next_retry_at)
        verb = "is" if job.next_retry_at > now else "was"
        what = f"attempt {job.attempt} of {job.max_attempts}"
        words = f"{what} {verb} due {told(due, now)}; the one before failed: {job.last_error}"
        facts = {"next_retry_at": due, "attempt": job.attempt, "max_attempts": job.max_attempts}
        return [Reason("retry_time", words, facts)]
    return []


def _breaker(waiting: WaitingJob, around: Circumstances) -> Reason:
    job = waiting.job
    breaker = around.breakers.get((job.plugin, job.command))
    until = to_text(job.next_retry_at) if job.next_retry_at else None
    failures = breaker.failure_count if breaker else 0
    probe = breaker.probe_job_id if breaker and breaker.state is BreakerState.HALF_OPEN else None
    words = f"the circuit breaker of {job.plugin}.{job.command} is open after {failures} failures"
    words = f"{words}, and its probe, job {probe}, has not ended" if probe else words
    words += f"; it is asked again {told(until)}" if until else ""
    words += f"; `ductile system reset {job.plugin} {job.command}` closes it"
    return Reason("breaker", words, {"failure_count": failures, "until": until} | ({"probe": probe} if probe else {}))


def _full(db: Db, waiting: WaitingJob, around: Circumstances) -> list[Reason]:
    """It is ready; so only others keep it."""
    job, found = waiting.job, []
    own, slots = around.running.get(job.plugin, 0), around.slots.get(job.plugin)
    total = sum(count for plugin, count in around.running.items() if plugin != RELAY)
    # A relay has no process and waits for no worker.
    if around.max_workers and total >= around.max_workers and job.plugin != RELAY:
        busy = "the only worker is" if around.max_workers == 1 else f"all {around.max_workers} workers are"
        words = f"{busy} busy (service.max_workers)"
        found.append(Reason("workers_full", words, {"running": total, "max_workers": around.max_workers}))
    elif slots is not None and own >= slots:
        words = (
            f"{own} of its plugin's jobs run, and no more than {slots} may at once (plugins.{job.plugin}.parallelism)"
        )
        found.append(Reason("plugin_full", words, {"running": own, "slots": slots}))
    if ahead := wait_reasons.ahead_of(db, job):
        most = " or more" if ahead == wait_reasons.MOST_COUNTED else ""
        found.append(Reason("behind", f"{ahead}{most} older jobs of its plugin start before it", {"ahead": ahead}))
    return found
