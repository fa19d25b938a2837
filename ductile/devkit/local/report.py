"""The report of a local run as plain data: request, response, process result, verdict and effects.

Masks all secrets. Makes no decisions.
"""

from collections.abc import Mapping
from typing import Any

from ductile.config.load.redaction import redact
from ductile.core.errors import Unreadable
from ductile.core.formats import strict_json
from ductile.core.model import Completion, Dead, Failed, Retried, Skipped, Succeeded
from ductile.core.secret import Mask
from ductile.devkit.local.attempt import LocalRun
from ductile.engine.judge import backoff
from ductile.engine.process.run import Finished
from ductile.engine.process.start import SpawnFailed

MAX_BACKOFF_DELAYS = 20


def run_report(local: LocalRun, mask: Mask) -> dict[str, Any]:
    """Return the full report of the run."""
    shown: dict[str, Any] = {
        "plugin": local.job.plugin,
        "command": local.job.command,
        "job_id": local.job.id,
        "request": _request(local.request, mask),
        **_process(local.run, mask),
        "verdict": verdict_of(local),
        "error": getattr(local.verdict.outcome, "error", None),
        "retry": _retry(local),
        "warnings": [*(local.ready.warnings if local.ready else ()), *_notes(local)],
        "would": _effects(local.completion, mask),
    }
    return shown


def verdict_of(local: LocalRun) -> str:
    """Return the verdict as one word."""
    match local.verdict.outcome:
        case Succeeded():
            return "succeeded"
        case Retried():
            return "retried"
        case Failed():
            return "failed"
        case Dead():
            return "dead"
        case Skipped():
            return "skipped"
    return "interrupted"


def response_of(stdout: bytes) -> Any:
    """Return the response as data if it is JSON, otherwise as text; None if it is empty."""
    if not stdout.strip():
        return None
    try:
        return strict_json.loads(stdout)
    except Unreadable:
        return stdout.decode("utf-8", "backslashreplace")


def _request(request: bytes, mask: Mask) -> dict[str, Any] | None:
    if not request:
        return None
    content: dict[str, Any] = strict_json.loads(request)
    shown = mask.mask_data(content)
    return {**shown, "config": redact(content["config"], mask)} if "config" in content else shown


def _process(run: Finished | SpawnFailed | None, mask: Mask) -> dict[str, Any]:
    if not isinstance(run, Finished):
        return {"started": False, "response": None, "stderr": "", "exit_code": None, "signal": None}
    return {
        "started": True,
        "response": mask.mask_data(response_of(run.stdout)),
        "stderr": run.stderr_text(mask),
        "exit_code": run.exit_code,
        "signal": run.signal,
        "ending": str(run.cause),
        "duration_ms": round(run.duration * 1000, 1),
        "left_processes": run.swept + (run.pipe_left_open and not run.swept),
    }


def _retry(local: LocalRun) -> dict[str, Any] | None:
    """Return the delay and the limits of the next retry."""
    outcome, job = local.verdict.outcome, local.job
    if not isinstance(outcome, Retried) or local.ready is None:
        return None
    base = local.ready.policy.backoff_base
    tries = range(1, min(job.max_attempts, MAX_BACKOFF_DELAYS + 1))
    return {
        "in_seconds": outcome.delay.total_seconds(),
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "backoff_seconds": [backoff(base, attempt, 0.0).total_seconds() for attempt in tries],
    }


def _notes(local: LocalRun) -> tuple[str, ...]:
    return local.verdict.response.notes if local.verdict.response else ()


def _effects(completion: Completion | None, mask: Mask) -> Mapping[str, Any]:
    """Return what a service would record and enqueue; empty for an attempt that is not final."""
    if completion is None:
        return {"jobs": [], "facts": [], "state_updates": None, "notes": []}
    return {
        "jobs": [
            {"plugin": new.plugin, "command": new.command, "pipeline": new.pipeline, "step_id": new.step_id}
            for new in completion.children
        ],
        "facts": [{"fact_type": fact.fact_type, "fact": _json(fact.fact_json, mask)} for fact in completion.facts],
        "state_updates": _json(completion.state_updates, mask) if completion.state_updates else None,
        "notes": [{"kind": note.kind, "data": mask.mask_data(dict(note.data))} for note in completion.notes],
    }


def _json(text: str, mask: Mask) -> Any:
    return mask.mask_data(strict_json.loads(text))
