"""The sentence of every reason code: one table, from code and data to text.

Pure. Knows neither the ledger nor how a reason was found. A sentence that ends with an error ends without a period.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from ductile.calendar.reasons import SkipReason
from ductile.core.format_time import format_when
from ductile.core.formats import strict_json
from ductile.core.model import OutcomeCode
from ductile.core.statuses import ENDED_BY_OPERATOR
from ductile.core.units import format_duration
from ductile.pipeline.language.parse import SWITCH_SUFFIX

Data = Mapping[str, Any]
Sentence = str | Callable[[Data], str]
"""A format string, or a function where the sentence depends on the data."""
NO_ERROR = "no error on record"
MAX_VALUE_CHARS = 80
NOW = "now"
"""The member of the data that holds the moment relative times count from."""


class _Values(dict[str, Any]):
    """The data of a reason; a member that an older version did not store is unknown."""

    def __missing__(self, name: str) -> str:
        return "(unknown)"


def sentence(code: str, data: Data, *, now: datetime | None = None) -> str:
    """Return the sentence of a reason. An unknown code is returned unchanged."""
    template = SENTENCES.get(code, "{code}: {error}" if data.get("error") else "{code}")
    values = _Values({"code": code, **data, "error": data.get("error") or NO_ERROR, NOW: now})
    text = template.format_map(values) if isinstance(template, str) else template(values)
    if data.get("problem"):
        text = f"{text}; {data['problem']}"
    return _with_limit(text, data.get("limit_key"))


def _with_limit(text: str, key: str | None) -> str:
    """Return the sentence with the configuration key of the limit that caused it, unless it has that already."""
    return text if key is None or key in text else f"{text} (limit: {key})"


# ── conditions that were false ───────────────────────────────────────────────────────────────────────────────────────


def format_predicates(predicates: Iterable[Mapping[str, Any]]) -> str:
    """Return `payload.n eq 2 is false: found 1; …` for predicates as the journal stores them."""
    return "; ".join(_format_predicate(predicate) for predicate in predicates)


def _format_predicate(predicate: Mapping[str, Any]) -> str:
    expected = f" {_short_value(predicate['value'])}" if "value" in predicate else ""
    found = f"found {_short_value(predicate['found'])}" if "found" in predicate else "it is absent"
    holds = "true" if predicate.get("holds") else "false"
    return f"{predicate.get('path')} {predicate.get('op')}{expected} is {holds}: {found}"


def _short_value(value: Any) -> str:
    text = strict_json.dumps(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"


# ── ended ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _answered_ok(data: Data) -> str:
    if data.get("exit_code"):
        return f"The plugin responded with status ok. Exit code {data['exit_code']} is ignored (ignore_exit_code)."
    return (
        f"Attempt {data.get('attempt', 1)} of {data.get('max_attempts', 1)} responded with status ok and exit code 0."
    )


def _relayed(data: Data) -> str:
    to = f"Instance {data['to']}" if data.get("to") else "The other instance"
    if data.get("accepted", True):
        return f"{to} accepted the event."
    return f"{to} received the event, but no pipeline there handles it ({data.get('reason')})."


def _joined(data: Data) -> str:
    results = data.get("results")
    return "All branches ended." if results is None else f"All branches ended with {_count(results, 'result')}."


def _condition_false(data: Data) -> str:
    head = f"The condition of step {_step_of_switch(data)} is false, so the step does not run"
    return f"{head}: {format_predicates(data['predicates'])}" if data.get("predicates") else f"{head}."


def _step_of_switch(data: Data) -> str:
    return str(data.get("step_id")).removesuffix(SWITCH_SUFFIX)


def _not_joined(data: Data) -> str:
    failures = data.get("failures", ())
    more = data.get("failed", len(failures)) - len(failures)
    text = f"{'; '.join(failures)}{f' and {more} more' if more > 0 else ''}"
    return f"Jobs of this join failed, so the steps after it do not run: {text}"


def _attempts_used_up(data: Data) -> str:
    how = "timed out" if data.get("timed_out") else "failed"
    if data.get("max_attempts") == 1:
        return f"The only attempt (retry.max_attempts) {how}: {data['error']}"
    return f"All {data['max_attempts']} attempts are used up (retry.max_attempts). The last one {how}: {data['error']}"


def _core_died(data: Data) -> str:
    died = f" {_count(data['recoveries'], 'time')}" if data.get("recoveries") else ""
    return f"The service died{died} while the job ran. All its attempts are used up."


def _cancelled(data: Data) -> str:
    when = "while it ran" if data.get("ran") else "before it ran"
    return f"The job was cancelled{_by(data)} {when}: {data.get('reason')}"


def _over_budget(data: Data) -> str:
    match data.get("limit"):
        case "hops":
            return f"The chain of runs has more than {data['max']} hops (service.limits.hops)."
        case "tree_jobs":
            return f"The run has more than {data['max']:,} jobs (service.limits.tree_jobs)."
    return f"The run is nested deeper than {data.get('max')} steps (max_depth of the pipeline)."


OUTCOMES: Mapping[str, Sentence] = {
    OutcomeCode.ANSWERED_OK: _answered_ok,
    OutcomeCode.RELAYED: _relayed,
    OutcomeCode.PUBLISHED: "Message {message_id} was published on topic {topic}.",
    OutcomeCode.REPLIED: "Message {reply_id} on topic {topic} is the reply to message {message_id}.",
    OutcomeCode.JOINED: _joined,
    OutcomeCode.DECIDED: "Ductile decided this job. No plugin ran.",
    OutcomeCode.CONDITION_TRUE: lambda data: (
        f"The condition of step {_step_of_switch(data)} is true, so the step runs."
    ),
    OutcomeCode.CONDITION_FALSE: _condition_false,
    OutcomeCode.DEDUPLICATED: "Job {winner} with the same dedupe key {dedupe_key!r} succeeded before this job started.",
    OutcomeCode.NOTHING_TO_JOIN: "Every job that the join would have joined was a duplicate.",
    OutcomeCode.SKIPPED: "The job was skipped: {error}",
    OutcomeCode.EXIT_78: "Exit code 78 reports a configuration error, so the job is not retried: {error}",
    OutcomeCode.RETRY_FALSE: "The plugin reported an error with `retry: false`, so the job is not retried: {error}",
    OutcomeCode.FINAL: "Another attempt would not help: {error}",
    OutcomeCode.REFUSED: "The job cannot be run, now or later: {error}",
    OutcomeCode.REPLY_FAILED: "Message {reply_id} on topic {topic} reports a failure of message {message_id}: {error}",
    OutcomeCode.NO_REPLY: "Message {message_id} had no reply within {timeout} (publish.wait.timeout).",
    OutcomeCode.RELAY_REFUSED: "The other instance refused the event, so it is not sent again: {error}",
    OutcomeCode.NOT_JOINED: _not_joined,
    OutcomeCode.JOIN_TOO_LARGE: "The results of the join have {characters} characters. The limit is {max}.",
    OutcomeCode.TOO_MANY_FOLLOW_UPS: "The follow-up jobs exceed a limit: {error}",
    OutcomeCode.STATE_TOO_LARGE: "The plugin succeeded, but its state is too large to store: {error}",
    OutcomeCode.INTERNAL_ERROR: "Ductile failed after the plugin had run, so the job is not retried: {error}",
    OutcomeCode.ATTEMPTS_USED_UP: _attempts_used_up,
    OutcomeCode.CORE_DIED: _core_died,
    OutcomeCode.CANCELLED: _cancelled,
    OutcomeCode.PURGED: lambda data: f"The job was purged from the queue{_by(data)}: {data['reason']}",
    OutcomeCode.OVER_BUDGET: _over_budget,
    OutcomeCode.PLUGIN_UNAVAILABLE: "The job cannot run: {error}",
    OutcomeCode.INSTANCE_UNAVAILABLE: "The event cannot be sent: {error}",
    OutcomeCode.STEP_REMOVED: "The configuration changed while the run was open: {error}",
    OutcomeCode.NOT_DECIDED: "The join cannot be decided: {error}",
    OutcomeCode.NOT_RECORDED: "The outcome of the job cannot be recorded: {error}",
    OutcomeCode.QUARANTINED: "The row of the job cannot be processed, so the job was quarantined: {error}",
    OutcomeCode.NEVER_STARTED: "The job ended before it ran: {error}",
    OutcomeCode.GIVEN_UP: "The job was given up: {error}",
}
"""The codes that `job_log.outcome_code` can hold."""


# ── running ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _running(data: Data) -> str:
    return f"Attempt {data['attempt']} of {data['max_attempts']} started {_when(data, 'started_at')} and is running."


def _service_died(data: Data) -> str:
    head = "The service died while the job was running."
    if "cancel_reason" in data:
        return f"{head} It was cancelled ({data['cancel_reason']}). The next start ends it."
    if not data.get("is_retried"):
        return f"{head} That was its last attempt. The next start ends it."
    delay = timedelta(seconds=data.get("delay_seconds", 0))
    return f"{head} It runs again {f'{format_duration(delay)} ' if delay else ''}after the next start."


WAITED_FOR = {
    "service_down": "the service was not running",
    "queue_paused": "the queue was paused",
    "paused": "its plugin was paused",
    "unhealthy": "its plugin was unhealthy",
    "initialising": "the init of its plugin had not finished",
    "breaker": "the circuit breaker of its command was open",
    "blocked": "its plugin could not run or its instance did not answer",
    "drifted": "the files of its plugin were not those of the seal",
    "retry_time": "its retry time was not due",
    "held_key": "a job with the same dedupe key was running",
    "busy": "all workers (service.max_workers), or those of its plugin (parallelism), were busy",
}
"""What held a job that has started since, by the codes that the claim records."""


MIN_ROUNDED_WAIT = timedelta(seconds=10)
"""A longer wait is shown in whole seconds."""


def _waited(data: Data) -> str:
    waited = timedelta(milliseconds=data["waited_ms"])
    if waited >= MIN_ROUNDED_WAIT:
        waited = timedelta(seconds=round(waited.total_seconds()))
    reasons = " and ".join(WAITED_FOR.get(code, code) for code in data["waited_for"])
    return f"Attempt {data['attempt']} was queued for {format_duration(waited)}, because {reasons}."


def _dropped_duplicate(data: Data) -> str:
    winner = f"job {data['winner']} with the dedupe key {data['dedupe_key']!r}"
    state = "already succeeded" if data.get("reason") == "recent_success" else "has not ended"
    return f"A follow-up job of {data['plugin']}.{data['command']} was not created: {winner} {state}."


def _event_without_job(data: Data) -> str:
    times = f" (the first of {data['count']:,})" if data.get("count", 1) > 1 else ""
    return f"Event {data['event_type']}{times} led to no job. {sentence(data['decision'], data)}"


RUNNING: Mapping[str, Sentence] = {
    "running": _running,
    "waited": _waited,
    "dropped_duplicate": _dropped_duplicate,
    "event_without_job": _event_without_job,
    "ending": lambda data: (
        f"The job was cancelled{_by(data)} {_when(data, 'cancel_requested_at')} ({data.get('reason')}). "
        f"Its process is stopping."
    ),
    "retried": lambda data: f"Attempt {data['attempt']} was requested{_by(data)} {_when(data, 'requeued_at')}.",
    "replayed": lambda data: f"The job is a replay of job {data['replay_of']}, requested{_by(data)}.",
    "service_died": _service_died,
    "unexplained": "The job ended {status}. The ledger has no reason for it: {error}",
}


# ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _paused(data: Data) -> str:
    plugin = data["plugin"]
    since = f"was paused{_by(data)} {_when(data, 'paused_at')}: {data['reason']}."
    return f"Plugin {plugin} {since} `ductile plugin resume {plugin}` resumes it."


def _breaker(data: Data) -> str:
    what = f"{data['plugin']}.{data['command']}"
    text = f"The circuit breaker of {what} is open after {_count(data['failure_count'], 'failure')}."
    text += f" Its probe, job {data['probe']}, has not ended." if data.get("probe") else ""
    text += f" The next probe is due {_when(data, 'until')}." if data.get("until") else ""
    return f"{text} `ductile system reset {data['plugin']} {data['command']}` closes it."


def _retry_time(data: Data) -> str:
    due = f"Attempt {data['attempt']} of {data['max_attempts']} {'is' if data['is_ahead'] else 'was'} due"
    text = f"{due} {_when(data, 'next_retry_at')}. The previous attempt failed: {data['error']}"
    return _with_limit(text, data.get("limit_key"))


def _join(data: Data) -> str:
    return f"The join waits for {_count(data['waits_for'], 'open job')}, such as {', '.join(data['members'])}."


def _workers_full(data: Data) -> str:
    workers = data["max_workers"]
    busy = "The only worker is" if workers == 1 else f"All {workers} workers are"
    return f"{busy} busy (service.max_workers)."


def _plugin_full(data: Data) -> str:
    running, plugin = _count(data["running"], "job"), data["plugin"]
    verb = "is" if data["running"] == 1 else "are"
    return f"{running} of plugin {plugin} {verb} running. The limit is {data['slots']} (plugins.{plugin}.parallelism)."


def _behind(data: Data) -> str:
    more = " or more" if data.get("is_capped") else ""
    older = f"{data['ahead']:,}{more} older {'job starts' if data['ahead'] == 1 else 'jobs start'} first"
    whose = ", ".join(f"{count:,} of {plugin}" for plugin, count in data["ahead_by_plugin"].items())
    text = f"The job is at position {data['position']:,}: {older} ({whose})." if data["ahead"] else "The job is next."
    running = ", ".join(f"{one['plugin']}.{one['command']} (job {one['job_id']})" for one in data["running_now"])
    text += f" Running now: {running}." if running else ""
    if data.get("estimate_seconds") is None:
        return text
    estimate = timedelta(seconds=max(1, round(data["estimate_seconds"])))
    return f"{text} By the duration of recent jobs, it starts within about {format_duration(estimate)}."


WAITING: Mapping[str, Sentence] = {
    "service_down": "The service is not running. Start it with `ductile system start`.",
    "queue_paused": lambda data: (
        f"The queue was paused{_by(data)} {_when(data, 'paused_at')}: {data['reason']}. "
        f"`ductile queue resume` resumes it."
    ),
    "paused": _paused,
    "blocked": "Plugin {plugin} cannot run: {reason}. Fix it, then run `ductile system reload`.",
    "plugin_changed": lambda data: (
        f"Plugin {data['plugin']} is not started: its files differ from the sealed ones: {', '.join(data['files'])} "
        f"(detected {_when(data, 'detected_at')}). Restore them, or run `ductile config lock`, then "
        f"`ductile system reload`."
    ),
    "plugin_not_sealed": lambda data: (
        f"Plugin {data['plugin']} is not started: its folder has entries that the seal does not cover: "
        f"{', '.join(data['files'])} (detected {_when(data, 'detected_at')}). Remove them."
    ),
    "unhealthy": "Plugin {plugin} is unhealthy, its init failed: {error}. Fix it, then run `ductile system reload`.",
    "initialising": "The init of plugin {plugin} has not finished.",
    "join": _join,
    "held_key": "Job {holder} with the same dedupe key {dedupe_key!r} is running. Such jobs run one at a time.",
    "breaker": _breaker,
    "retry_time": _retry_time,
    "workers_full": _workers_full,
    "plugin_full": _plugin_full,
    "behind": _behind,
    "ready": "Nothing blocks the job. The next claim starts it.",
}


# ── runs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _run_open(data: Data) -> str:
    failed = f", {data['failed']} failed" if data["failed"] else ""
    have = "has" if data["open"] == 1 else "have"
    resumes = "" if data["has_service"] else " It continues when the service runs again."
    return f"The run is open: {data['open']} of {_count(data['jobs'], 'job')} {have} not ended{failed}.{resumes}"


def _run_failed(data: Data) -> str:
    what = f"{data['plugin']}.{data['command']}"
    what = f"step {data['step_id']} ({what})" if data.get("step_id") else what
    counts = f"{data['failed']} of {_count(data['jobs'], 'job')}"
    ended = "was ended by an operator" if data.get("outcome_code") in ENDED_BY_OPERATOR else f"ended {data['status']}"
    return f"The run failed: {what} {ended}: {data['error']}; {counts} failed"


def _run_still_open(data: Data) -> str:
    if data.get("reason") == "stopping":
        return f"A caller of pipeline {data['pipeline']} got 202, because the service was stopping."
    limit = format_duration(timedelta(milliseconds=data["timeout_ms"]))
    keys = "`timeout` of the pipeline or api.max_sync_timeout"
    return f"A caller of pipeline {data['pipeline']} got 202, because the run had not ended after {limit} ({keys})."


RUNS: Mapping[str, Sentence] = {
    "run_still_open": _run_still_open,
    "run_open": _run_open,
    "run_failed": _run_failed,
    "run_succeeded": lambda data: f"The run succeeded with {_count(data['jobs'], 'job')}.",
}


# ── health ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _stopped_uncleanly(data: Data) -> str:
    orphaned = data.get("orphaned", 0)
    if not orphaned:
        return "The service was killed or crashed. Start it again."
    was, them = ("was", "it") if orphaned == 1 else ("were", "them")
    jobs = f"{_count(orphaned, 'job')} {was} running. The next start recovers {them}."
    return f"The service was killed or crashed. {jobs}"


def _failing(data: Data) -> str:
    plugin, when, error = data["plugin"], _when(data, "last_at"), data["error"]
    if data["count"] == 1:
        return f"The last job of plugin {plugin} failed {when}: {error}"
    more = " or more" if data.get("is_capped") else ""
    return f"The last {data['count']}{more} jobs of plugin {plugin} failed, the latest {when}: {error}"


HEALTH: Mapping[str, Sentence] = {
    "ledger_locked": "Process {pid} ({command}) has locked the ledger, so nothing can be written.",
    "stuck": "The ledger takes no writes, or the schedules are not evaluated.",
    "stopped_uncleanly": _stopped_uncleanly,
    "schedule_late": lambda data: (
        f"Schedule {data['plugin']}/{data['schedule_id']} is late: its run was due {_when(data, 'due_at')}."
    ),
    "job_late": lambda data: (
        f"A run of schedule {data['plugin']}/{data['schedule_id']} missed its deadline {_when(data, 'due_at')}."
    ),
    "ready_too_long": lambda data: (
        f"Job {data['job_id']} of plugin {data['plugin']} became ready {_when(data, 'since')} and has not started."
    ),
    "failing": _failing,
}
"""Further reasons why the verdict of `ductile system status` is not healthy."""


# ── slots of a schedule ─────────────────────────────────────────────────────────────────────────────────────────────


def _fired(data: Data) -> str:
    return f"The slot fired {data['late_seconds']:.1f} s after its time. The status of its job is {data['status']}."


def _service_down(data: Data) -> str:
    how = f"stopped ({data['stop']})" if data["stop"] else "down after an unclean stop"
    if data["until"]:
        return f"The slot was due while the service was {how}, from {data['since']} until {data['until']}."
    return f"The slot was due after the service was {how}, at {data['since']}. It has not started since."


def _slot_paused(data: Data) -> str:
    if not data.get("paused_at"):
        return data.get("text") or skip_message(data["reason"])
    reason = f": {data['text']}" if data.get("text") else ""
    return f"The schedule was paused{_by(data)} {_when(data, 'paused_at')}{reason}"


def _slot_skipped(data: Data) -> str:
    text = skip_message(data["reason"])
    text += f": job {data['open_job_id']}" if data.get("open_job_id") else ""
    return text + (f" (one of {data['count']})" if data.get("count", 1) > 1 else "")


SLOTS: Mapping[str, Sentence] = {
    "fired": _fired,
    "no_ledger": "There is no ledger yet.",
    "schedule_not_loaded": "No service has loaded this schedule yet.",
    "schedule_edited": "The schedule was edited after a service last loaded it.",
    "before_schedule": "The slot is before the first load of the schedule at {since}.",
    "slot_forgotten": "The ledger no longer has a record of this slot.",
    "slot_ahead": "The slot is in the future: {slot_at}.",
    "no_slot": lambda data: (
        f"No slot was due before that time. The next one is {data['next']}."
        if data.get("next")
        else "No slot was due before that time."
    ),
    "not_checked": "The scheduler has not evaluated this slot. Check that the service is running.",
    "schedule_plugin_unavailable": "The scheduler does not evaluate this slot: plugin {plugin} {reason}.",
    "slot_held": lambda data: data.get("text") or skip_message(data["reason"]),
    "slot_paused": _slot_paused,
    "slot_service_down": _service_down,
    "slot_plugin_disabled": "The slot was due while plugin {plugin} was disabled (loaded at {since}).",
    "slot_excluded": lambda data: (
        f"A cron schedule has no slots on the weekdays of `not_on`: {data['text']}."
        + (f" The next slot fires at {data['next']}." if data["next"] else "")
    ),
    "slot_faulty": lambda data: f"{skip_message(data['reason'])}: internal error: {data['error']}",
    "slot_skipped": _slot_skipped,
}


def skip_message(reason: str) -> str:
    """Return the sentence of a skip reason. An unknown code is returned unchanged."""
    try:
        return SkipReason(reason).message
    except ValueError:
        return reason


# ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _pipeline_skipped(data: Data) -> str:
    return f"Pipeline {data.get('pipeline')} did not start: {data.get('reason')}{_predicates(data)}"


def _step_bypassed(data: Data) -> str:
    reason = data.get("reason", "its `if` is false")
    return f"Step {_step_of_switch(data)} of pipeline {data.get('pipeline')} did not run: {reason}{_predicates(data)}"


def _duplicate(data: Data) -> str:
    winner = f"job {data.get('winner')}"
    if data.get("reason") == "recent_success":
        return f"Duplicate: {winner} already succeeded with this dedupe key, so no new job was created."
    return f"Duplicate: {winner} with this dedupe key has not ended, so no new job was created."


DECISIONS: Mapping[str, Sentence] = {
    "pipeline.skipped": _pipeline_skipped,
    "step.bypassed": _step_bypassed,
    "event.withheld": "The attempt was retried, so its events were not routed.",
    "event.no_route": "No pipeline of the other instance handles it.",
    "event.baggage_dropped": "Baggage that the peer may not send was dropped.",
    "job.deduplicated": _duplicate,
    "event.unmatched": "No route and no pipeline matches it.",
}
"""What was decided about an event, by the kind of its journal row."""


def _led_to(data: Data) -> str:
    return f"The event led to {_count(data['jobs'], 'job')}: {', '.join(data['via'])}"


EVENTS: Mapping[str, Sentence] = {
    "event_matched": _led_to,
    "event_joined": lambda data: f"The event is one of the results of join {', '.join(data['joins'])}.",
    "event_unmatched": lambda data: (
        f"The event led to no job. {sentence(data.get('decision', 'event.unmatched'), data)}"
    ),
}


# ── messages of the exchange ────────────────────────────────────────────────────────────────────────────────────────


def _topic_paused(data: Data) -> str:
    since = f"was paused {_when(data, 'paused_at')}: {data['reason']}."
    return f"Topic {data['topic']} {since} `ductile exchange resume {data['topic']}` resumes it."


def _topic_unknown(data: Data) -> str:
    similar = f" Workers claim from {data['similar']}." if data.get("similar") else ""
    return f"No worker has ever claimed a message of topic {data['topic']}. Its messages are only read.{similar}"


def _ready_no_worker(data: Data) -> str:
    last = f"The last claim was {_when(data, 'last_claimed_at')}, by {_worker(data)}."
    return f"No worker handles topic {data['topic']} now. {last}"


def _ready_behind(data: Data) -> str:
    more = " or more" if data.get("is_capped") else ""
    ahead = data["ahead"]
    older = f"{ahead:,}{more} older {'message' if ahead == 1 else 'messages'} of topic {data['topic']} first"
    text = f"Workers get {older}." if ahead else f"The message is the next one of topic {data['topic']}."
    text += f" Claimed now: {data['active_claims']:,}." if data["active_claims"] else ""
    if data.get("estimate_seconds") is None:
        return text
    estimate = timedelta(seconds=max(1, round(data["estimate_seconds"])))
    return f"{text} By the rate of recent claims, it is claimed within about {format_duration(estimate)}."


def _delayed_message(data: Data) -> str:
    how = "released with a delay" if data.get("is_released") else "published with a delay"
    return f"The message was {how} by {data['by']}. It becomes ready {_when(data, 'until')}."


def _waits_for_key(data: Data) -> str:
    holder = f"message {data['holder']} with the same ordering key" if data.get("holder") else "its ordering key"
    return f"The message waits for {holder} {data['ordering_key']!r}."


def _claimed(data: Data) -> str:
    text = f"{_capitalized(_worker(data))} claimed the message {_when(data, 'claimed_at')}."
    extended = f", extended {_count(data['extensions'], 'time')}" if data.get("extensions") else ""
    return f"{text} The lease ends {_when(data, 'lease_until')}{extended}." if data.get("lease_until") else text


def _decided(how: str) -> Callable[[Data], str]:
    def text(data: Data) -> str:
        run = f" with run {data['job_id']}" if data.get("job_id") else ""
        end = f"{_capitalized(_worker(data))} {how}{run} {_when(data, 'ended_at')}."
        topic = data.get("follow_up_topic")
        return f"{end} The follow-up is {data['follow_up_id']} on topic {topic}." if topic else end

    return text


def _dead(data: Data) -> str:
    number, topic = data["deliveries"], data.get("dead_letter_topic")
    text = (
        f"The message is dead after {number} {'delivery' if number == 1 else 'deliveries'} (exchange.max_deliveries)."
    )
    return f"{text} Its dead letter is {data['dead_letter_id']} on topic {topic}." if topic else text


def _message_purged(data: Data) -> str:
    by = f" by {data['by']}" if data.get("by") else ""
    return f"The message was purged from topic {data['topic']}{by} {_when(data, 'at')}."


def _returned(data: Data) -> str:
    delivery, worker, when = f"Delivery {data['delivery']}", _worker(data), _when(data, "ended_at")
    if data.get("status") == "expired":
        return f"{delivery}: the lease of {worker} expired {when}."
    reason = f": {data['reason']}" if data.get("reason") else "."
    return f"{delivery}: {worker} released the message {when}{reason}"


def _late(data: Data) -> str:
    late = format_duration(timedelta(milliseconds=data.get("late_ms") or 0))
    result = f"{_capitalized(_worker(data))} reported {data['status']} {_when(data, 'at')}"
    return f"{result}, {late} after its claim was {data['claim_status']}. The result was discarded."


def _worker(data: Data) -> str:
    return f"worker {data.get('worker_group')} ({data.get('worker_instance_id')})"


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


MESSAGES: Mapping[str, Sentence] = {
    "topic_paused": _topic_paused,
    "topic_unknown_to_workers": _topic_unknown,
    "ready_no_worker": _ready_no_worker,
    "ready_behind": _ready_behind,
    "consumer_full": lambda data: (
        f"The consumer of topic {data['topic']} has {_count(data['open_runs'], 'open run')} ({data['starts']}). "
        f"The limit is {data['max_open']} (max_open)."
    ),
    "consumer_unavailable": "The consumer of topic {topic} starts {starts}, which is not loaded, so messages wait.",
    "ready_for_consumer": "Nothing blocks the message. The consumer of topic {topic} starts {starts} for it.",
    "delayed": _delayed_message,
    "waits_for_key": _waits_for_key,
    "claimed": _claimed,
    "claimed_by_run": lambda data: (
        f"A consumer claimed the message {_when(data, 'claimed_at')}. The run of job {data['job_id']} has not ended."
    ),
    "completed": _decided("completed the message"),
    "failed": _decided("failed the message"),
    "timed_out": _decided("reported a timeout"),
    "dead": _dead,
    "message_purged": _message_purged,
    "requeued": lambda data: f"The message was {data['was']}. {data['by']} requeued it {_when(data, 'at')}.",
    "returned": _returned,
    "late": _late,
    "follow_up_refused": "The follow-up on topic {topic} was not published ({refused}). The claim ended without it.",
    "pruned": lambda data: (
        f"Retention has deleted the message. The last journal entry is {data['last']}, {_when(data, 'last_at')}."
    ),
}
"""Why a message is not handled, who has it, and how it ended."""


# ── helpers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _when(data: Data, name: str) -> str:
    return format_when(data[name], data.get(NOW)) if data.get(name) else "a moment ago"


def _by(data: Data) -> str:
    return f" by {data['actor']}" if data.get("actor") else ""


def _predicates(data: Data) -> str:
    return f" ({format_predicates(data['predicates'])})" if data.get("predicates") else ""


SENTENCES: Mapping[str, Sentence] = {
    **OUTCOMES,
    **RUNNING,
    **WAITING,
    **RUNS,
    **HEALTH,
    **SLOTS,
    **DECISIONS,
    **EVENTS,
    **MESSAGES,
}
