"""`ductile job`: inspect a job and its tree. The other actions have modules of their own."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ductile.cli.base import options, output
from ductile.cli.base.click_base import LazyGroup
from ductile.cli.base.terminal import state
from ductile.core.errors import DuctileError

MAX_RESULT_LENGTH = 500
COMMAND_MODULES = {
    "cancel": "job.actions.cancel",
    "diagnose": "job.why.diagnose",
    "export": "job.export.export",
    "list": "job.lists.list_jobs",
    "logs": "job.lists.list_logs",
    "replay": "job.actions.replay",
    "retry": "job.actions.retry",
    "tail": "job.tail.tail",
    "wait": "job.actions.wait",
    "why": "job.why.why",
}


@click.group("job", cls=LazyGroup, modules=COMMAND_MODULES)
def group() -> None:
    """List, inspect, explain, retry, replay and cancel jobs.

    JOB_ID is a job id, a unique prefix of one with at least 8 characters, or `last` for the root job that was enqueued
    last.
    """


@group.command("inspect")
@options.job_id
@options.config
@options.as_json
def inspect_job(job_id: str, config_path: Path | None, config_dir: Path | None, as_json: bool) -> None:
    """Show a job with its attempts, output, timing, child jobs and journal.

    Works while the service is stopped. For a running job, the current stderr is included.

    Example: ductile job inspect 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11
    """
    from ductile.cli.base.connect import ledger_path
    from ductile.explain.orphaned import mark_orphans
    from ductile.ledger.reports import job_details
    from ductile.ledger.storage.open_file import open_reader

    path = ledger_path(options.selected_config(config_path, config_dir))
    with open_reader(path) as db:
        report = job_details.job(db, job_id)
        shown = _report(report) | _history(db, report) | _orphaned(report.job, path)
    shown["children"] = mark_orphans(shown["children"], path)
    if shown["status"] == "running" and not shown["orphaned"]:
        shown["stderr"] = _live_stderr(path, job_id)
    output.show(shown, as_json=as_json, human=_lines)


@group.command("tree")
@options.job_id
@click.option("--wait", "waits", is_flag=True, help="Wait until every job of the tree has ended.")
@click.option("--timeout", default="5m", show_default=True, help="Timeout of --wait.")
@options.config
@options.service
@options.as_json
@options.verbose
def tree(
    job_id: str,
    waits: bool,
    timeout: str,
    config_path: Path | None,
    config_dir: Path | None,
    api_url: str | None,
    api_key: str | None,
    as_json: bool,
    verbose: bool,
) -> int:
    """Show the tree of a job, with each job below its parent.

    Works while the service is stopped, except with --wait or --api-url. -v adds shortened results. With --wait, exit 1
    if the timeout has passed before the tree has ended.

    Example: ductile job tree 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11 --wait
    """
    from ductile.cli.base.connect import client, running_client
    from ductile.cli.base.long_poll import is_open, parse_timeout, wait_for_tree
    from ductile.cli.job.tree import tree_lines

    seconds, explicit = parse_timeout(timeout), options.selected_config(config_path, config_dir)
    if service := client(explicit, api_url, api_key) if waits or api_url else running_client(explicit):
        nodes = wait_for_tree(service, quote(job_id, safe=""), seconds if waits else 0.0)
    else:
        nodes = _tree_in_ledger(explicit, job_id)
    output.show(nodes, as_json=as_json, human=lambda shown: [*tree_lines(shown), *_results(shown, verbose=verbose)])
    return 1 if waits and any(map(is_open, nodes)) else 0


def _tree_in_ledger(explicit: Path | None, job_id: str) -> list[dict[str, Any]]:
    """Read the tree from the ledger, in the form of the API."""
    import json
    import os

    from ductile.config.files.sources import find_config
    from ductile.config.load.load import load
    from ductile.explain.orphaned import mark_orphans
    from ductile.ledger.reports import trees
    from ductile.ledger.storage.open_file import open_reader
    from ductile.web.views.jobs import terminal_predicate, tree_json

    config = load(find_config(explicit, os.environ).path)
    ledger = config.settings.state.path
    with open_reader(ledger) as db:
        nodes = trees.tree(db, job_id)
    shown: list[dict[str, Any]] = json.loads(tree_json(nodes, terminal_predicate(config.plans)))
    return mark_orphans(shown, ledger)


def _results(nodes: list[dict[str, Any]], *, verbose: bool) -> list[str]:
    if not verbose:
        return []
    return [f"{node['job_id']}: {_shortened(node['result'])}" for node in nodes if "result" in node]


def _shortened(value: Any) -> str:
    from ductile.core.formats import strict_json

    text = strict_json.dumps(value)
    return text if len(text) <= MAX_RESULT_LENGTH else f"{text[:MAX_RESULT_LENGTH]}…"


def _live_stderr(ledger: Path, job_id: str) -> str | None:
    from ductile.cli.base.client import Client
    from ductile.web.server.listeners import local_socket_path

    try:
        return Client(local_socket_path(ledger.parent)).request("GET", f"/job/{job_id}").get("stderr")
    except DuctileError:
        return None  # the service has stopped; the rest of the report is still valid


def _report(report: Any) -> dict[str, Any]:
    from ductile.core.clock import to_text

    def moment(value: Any) -> str | None:
        return to_text(value) if value else None

    job = report.job
    return {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "status": str(job.status),
        "outcome_code": job.outcome_code,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "submitted_by": job.submitted_by,
        "actor": job.actor,
        "context_id": job.event_context_id,
        "parent_job_id": job.parent_job_id,
        "root_job_id": job.root_job_id,
        "pipeline": job.pipeline,
        "step_id": job.step_id,
        "schedule_id": job.schedule_id,
        "slot_at": moment(job.slot_at),
        "source_event_id": job.source_event_id,
        "replay_of": job.replay_of,
        "tolerated": job.tolerated,
        "waits_for": report.waits_for,
        "dedupe_key": job.dedupe_key,
        "created_at": moment(job.created_at),
        "started_at": moment(job.started_at),
        "completed_at": moment(job.completed_at),
        "next_retry_at": moment(job.next_retry_at),
        "last_error": job.last_error,
        "blocked_reason": report.blocked_reason,
        "hops": len(report.contexts),
        "steps": [_hop(hop, context) for hop, context in enumerate(report.contexts)],
        "attempts": [_attempt(attempt, moment) for attempt in report.attempts],
        "children": [
            {
                "job_id": child.id,
                "plugin": child.plugin,
                "command": child.command,
                "status": str(child.status),
                "outcome_code": child.outcome_code,
            }
            for child in report.children
        ],
        "journal": [
            {"seq": entry.seq, "at": moment(entry.at), "kind": entry.kind, "actor": entry.actor, "data": entry.data}
            for entry in report.journal
        ],
    }


def _hop(hop: int, context: Any) -> dict[str, Any]:
    """Describe one context of the chain that led to the job, with its baggage."""
    from ductile.core.formats import strict_json

    return {
        "hop": hop,
        "pipeline": context.pipeline_name,
        "step_id": context.step_id,
        "context_id": context.id,
        "parent_id": context.parent_id,
        "baggage": strict_json.loads(context.accumulated_json),
    }


def _attempt(attempt: Any, moment: Any) -> dict[str, Any]:
    return {
        "attempt": attempt.attempt,
        "at": moment(attempt.started_at),
        "status": str(attempt.status),
        "outcome_code": attempt.outcome_code,
        "started_at": moment(attempt.started_at),
        "completed_at": moment(attempt.completed_at),
        "duration_ms": attempt.duration.total_seconds() * 1000 if attempt.duration is not None else None,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "error": attempt.last_error,
        "stderr": attempt.stderr,
        "result": attempt.result,
    }


def _history(db: Any, report: Any) -> dict[str, Any]:
    """Build the transitions, the consistency check and the configurations of a job report."""
    from ductile.core.clock import to_text

    transitions = [
        {"from": entry.data.get("from"), "to": entry.data["to"], "at": to_text(entry.at), "reason": _reason(entry.data)}
        for entry in report.journal
        if entry.data.get("to")
    ]
    latest = transitions[-1]["to"] if transitions else None
    job = report.job
    ran = max((attempt.attempt for attempt in report.attempts), default=0)
    return {
        "transitions": transitions,
        "consistency": {
            "latest_transition_status": latest,
            "cached_status_matches": latest in (None, str(job.status)),
            "attempt_facts_match": ran <= job.attempt,
            "legacy_missing_data": not transitions,
        },
        "config": _config(db, job.enqueued_snapshot_id, job.started_snapshot_id),
    }


def _orphaned(job: Any, ledger: Path) -> dict[str, Any]:
    """Report whether the job is `running` without a service, and what the next start does with it."""
    from ductile.core.model import JobStatus
    from ductile.explain import finished
    from ductile.explain.orphaned import has_service

    if job.status is not JobStatus.RUNNING or has_service(ledger):
        return {"orphaned": False, "words": None}
    return {"orphaned": True, "words": finished.orphaned(job).words}


def _reason(data: Any) -> str | None:
    reason = data.get("reason") or data.get("error")
    return str(reason) if reason else None


def _config(db: Any, enqueued: str | None, started: str | None) -> dict[str, Any]:
    """Describe the configurations under which the job was enqueued and started."""
    from ductile.ledger.tables import snapshots

    named = {"enqueued": enqueued, "started": started}
    known = {moment: snapshots.get(db, ref) for moment, ref in named.items() if ref is not None}
    return {
        **{moment: _snapshot(found) for moment, found in known.items() if found is not None},
        "crossed_reload_boundary": None not in (enqueued, started) and enqueued != started,
        "legacy_missing_data": enqueued is None,
        "missing_snapshot_refs": sorted({str(named[moment]) for moment, found in known.items() if found is None}),
    }


def _snapshot(found: Any) -> dict[str, Any]:
    from ductile.core.clock import to_text

    names = ("id", "config_hash", "source_hash", "source_path", "source", "reason")
    more = ("ductile_version", "binary_path", "snapshot_format", "semantics")
    shown = {name: getattr(found, name) for name in names} | {"loaded_at": to_text(found.loaded_at)}
    return shown | {name: getattr(found, name) for name in more}


def _lines(shown: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import format_timestamp, format_when
    from ductile.explain.orphaned import display_status

    lines = [f"{shown['job_id']}  {shown['plugin']}.{shown['command']}  {state(display_status(shown).upper())}"]
    facts = (
        "submitted_by",
        "actor",
        "parent_job_id",
        "pipeline",
        "step_id",
        "schedule_id",
        "slot_at",
        "source_event_id",
        "replay_of",
        "tolerated",
        "waits_for",
        "dedupe_key",
        "last_error",
        "blocked_reason",
    )
    moments = ("created_at", "started_at", "completed_at", "next_retry_at")
    lines += [f"  {shown['words']}"] if shown["words"] else []
    lines += [f"  {name}: {format_when(shown[name])}" for name in moments if shown[name]]
    lines += [f"  {name}: {shown[name]}" for name in facts if shown[name]]
    if shown.get("stderr"):
        lines += ["  current stderr:", *(f"    {line}" for line in shown["stderr"].splitlines())]
    for step in shown["steps"]:
        lines.append(f"  hop {step['hop']}: {step['step_id'] or 'start'}  {_shortened(step['baggage'])}")
    for attempt in shown["attempts"]:
        lines += _attempt_lines(attempt, shown["max_attempts"])
    for child in shown["children"]:
        lines.append(f"  child {child['job_id']}  {child['plugin']}.{child['command']}  {state(display_status(child))}")
    lines.append("  journal:")
    lines += [
        f"    {format_timestamp(entry['at'])}  {entry['kind']}  {_brief(entry['data'], entry['actor'])}".rstrip()
        for entry in shown["journal"]
    ]
    return lines


def _attempt_lines(attempt: dict[str, Any], max_attempts: int) -> list[str]:
    from ductile.explain.orphaned import display_status

    took = f" in {attempt['duration_ms']:.0f} ms" if attempt["duration_ms"] is not None else ""
    ended = f", exit code {attempt['exit_code']}" if attempt["exit_code"] is not None else ""
    lines = [f"  attempt {attempt['attempt']} of {max_attempts}: {state(display_status(attempt))}{took}{ended}"]
    lines += [f"    error: {attempt['error']}"] if attempt["error"] else []
    for name in ("result", "stderr"):
        if attempt[name]:
            lines += [f"    {name}: {line}" for line in attempt[name].strip().splitlines()[-10:]]
    return lines


def _brief(data: dict[str, Any], actor: str | None) -> str:
    shown = data | ({"actor": actor} if actor else {})
    return " ".join(f"{name}={value}" for name, value in shown.items() if name not in ("from", "command"))
