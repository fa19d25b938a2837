"""A fixture made from a job in the ledger: the request as it was and the answer it got, without secrets.

What changes from run to run, times and ids, becomes a pattern. What the ledger does not have is said in `notes`.
"""

import re
from typing import Any

from attrs import frozen

from ductile import strict_json
from ductile.config.load import Config
from ductile.config.show import without_secrets
from ductile.errors import Unreadable, WrongState
from ductile.ledger import facts, reports, snapshots
from ductile.ledger.db import Db
from ductile.ledger.reports import Attempt
from ductile.model import AttemptStatus, Job
from ductile.pipeline.paths import PathAbsent
from ductile.pipeline.plan import HANDLE
from ductile.pipeline.tell import step_of, tell
from ductile.plugin.protocol import Response, decode_response
from ductile.secret import HIDDEN, Mask

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d")
_PATTERN = re.compile(r"\$\{(?:any|text|number|absent|contains:)")
_CARRIED = ("result", "error", "retry", "retry_after", "events", "state_updates")
"""Fields of an answer that others rely on; the words of its logs are not among them."""


@frozen
class Exported:
    """The fixture as plain data, and under which name it is best kept."""

    name: str
    content: dict[str, Any]


def export_fixture(db: Db, job_id: str, config: Config) -> Exported:
    """A fixture that asks again what the job asked. WrongState if the ledger no longer, or not yet, knows that."""
    report = reports.job(db, job_id)
    job = report.job
    if not report.in_queue:
        raise WrongState(f"{job_id}: only its attempts are left; its request is no longer on record")
    ran = [attempt for attempt in report.attempts if attempt.status not in (AttemptStatus.SKIPPED, AttemptStatus.DEAD)]
    if not ran:
        raise WrongState(f"{job_id}: its plugin has not run to an end yet", hint="ductile job wait")
    mask, notes = config.mask, [f"exported from job {job_id}"]
    request = {
        "command": job.command,
        "config": _config(db, job, mask, notes),
        "state": _state(db, job, ran[-1], mask, notes),
        **_told(job, config, mask),
    }
    content = {
        "name": f"{job.plugin}.{job.command}, {ran[-1].status}",
        "notes": notes,
        "request": request,
        "expect": _expected(job, ran[-1], mask),
    }
    return Exported(f"{job.command}-{job_id[-12:]}.json", content)  # ids of one moment begin alike


def _config(db: Db, job: Job, mask: Mask, notes: list[str]) -> dict[str, Any]:
    """The plugin's configuration as the service had it that ran the job."""
    known = snapshots.get(db, job.started_snapshot_id) if job.started_snapshot_id else None
    if known is None or known.sanitized_config is None:
        notes.append("the configuration is not on record")
        return {}
    entry = strict_json.loads(known.sanitized_config).get("plugins", {}).get(job.plugin) or {}
    config: dict[str, Any] = without_secrets(entry.get("config") or {}, mask)
    if HIDDEN in strict_json.dumps(config):
        notes.append(f"secrets are {HIDDEN}; give others with `ductile plugin test --plugin-config`")
    return config


def _state(db: Db, job: Job, attempt: Attempt, mask: Mask, notes: list[str]) -> dict[str, Any]:
    """The newest fact from before the attempt; a state that is not made of facts has no past."""
    began = attempt.started_at or attempt.completed_at
    for fact in facts.newest(db, job.plugin, limit=1_000):
        if fact.created_at <= began and fact.job_id != job.id:
            state: dict[str, Any] = mask.everywhere(strict_json.loads(fact.fact_json))
            return state
    if facts.state(db, job.plugin) != "{}":
        notes.append("the state of that time is not on record; it is empty here")
    return {}


def _told(job: Job, config: Config, mask: Mask) -> dict[str, Any]:
    try:
        told = tell(job, step_of(config.plans, job))
    except PathAbsent as absent:
        raise WrongState(f"{job.id}: {absent}") from absent
    parts: dict[str, Any] = {}
    if told.payload is not None:
        content: dict[str, Any] = mask.everywhere(strict_json.loads(told.payload))
        if job.command == HANDLE and isinstance(content.get("headers"), dict):
            content["headers"] = without_secrets(content["headers"], mask)
        parts["event" if job.command == HANDLE else "payload"] = content
    if told.context is not None:
        parts["context"] = mask.everywhere(strict_json.loads(told.context))
    return parts


def _expected(job: Job, attempt: Attempt, mask: Mask) -> dict[str, Any]:
    decoded = decode_response((attempt.result or "").encode("utf-8", "surrogatepass"))
    if not isinstance(decoded, Response):
        return {"verdict": "succeeded" if attempt.status is AttemptStatus.SUCCEEDED else "retried"}
    answer: dict[str, Any] = mask.everywhere(_read(attempt.result or "{}"))
    lasting = {name: answer[name] for name in ("status", *_CARRIED) if answer.get(name) is not None}
    return {
        "verdict": _verdict(attempt, decoded),
        "exit_code": attempt.exit_code,
        "response": {name: _steady(value, job.id) for name, value in lasting.items()},
    }


def _verdict(attempt: Attempt, answer: Response) -> str:
    if attempt.status is AttemptStatus.SUCCEEDED:
        return "succeeded"
    return "failed" if not answer.ok and not answer.retry else "retried"


def _read(text: str) -> Any:
    try:
        return strict_json.loads(text)
    except Unreadable:
        return {}


def _steady(value: Any, job_id: str) -> Any:
    """The value with patterns where it will differ next time."""
    match value:
        case str() if value and (job_id in value or _MOMENT.search(value)):
            return "${text}"
        case str() if _PATTERN.match(value):
            return f"${value}"
        case dict():
            return {name: _steady(inner, job_id) for name, inner in value.items()}
        case list():
            return [_steady(inner, job_id) for inner in value]
    return value
