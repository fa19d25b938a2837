"""`ductile job`: what became of a job, and what to do about it. Most actions have rooms of their own."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ductile.cli.base import options, output
from ductile.cli.base.click_base import LazyGroup
from ductile.cli.base.terminal import state
from ductile.core.errors import DuctileError

LONGEST_RESULT = 500
COMMAND_MODULES = {
    "cancel": "job.actions.cancel",
    "diagnose": "job.why.diagnose",
    "export": "job.export.export",
    "list": "job.lists.list_jobs",
    "logs": "job.lists.list_logs",
    "replay": "job.actions.replay",
    "retry": "job.actions.retry",
    "tail": "job.actions.tail",
    "wait": "job.actions.wait",
    "why": "job.why.why",
}


@click.group("job", cls=LazyGroup, modules=COMMAND_MODULES)
def group() -> None:
    """See what became of a job, and act on it."""


@group.command("inspect")
@click.argument("job_id")
@options.config
@options.as_json
def inspect_job(job_id: str, config_path: Path | None, config_dir: Path | None, as_json: bool) -> None:
    """Show one job: its attempts with their output and timings, the jobs it led to, and its journal.

    Works while the service runs and while it does not. A running job shows what it has written to stderr so far.

    Example: ductile job inspect 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11
    """
    from ductile.cli.base.connect import ledger_path
    from ductile.cli.job.history import orphaned, past
    from ductile.explain.orphaned import marked
    from ductile.ledger.reports import job_details
    from ductile.ledger.storage.open_file import open_reader

    path = ledger_path(options.chosen(config_path, config_dir))
    with open_reader(path) as db:
        report = job_details.job(db, job_id)
        shown = _report(report) | past(db, report) | orphaned(report.job, path)
    shown["children"] = marked(shown["children"], path)
    if shown["status"] == "running" and not shown["orphaned"]:
        shown["stderr"] = _live_stderr(path, job_id)
    output.show(shown, as_json=as_json, human=_lines)


@group.command("tree")
@click.argument("job_id")
@click.option("--wait", "waits", is_flag=True, help="Ask the service, and wait until every job of the tree is over.")
@click.option("--timeout", default="5m", show_default=True, help="How long --wait waits.")
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
    """Show every job of the tree that a job is in, each below the one that led to it.

    Works while the service does not run, unless --wait or --api-url asks it. -v adds the results, shortened.
    Exit 1 if the waiting was over before the tree was.

    Example: ductile job tree 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11 --wait
    """
    from ductile.cli.base.connect import client, running
    from ductile.cli.base.long_poll import is_open, patience, tree_when_over
    from ductile.cli.job.tree import tree_lines

    seconds, explicit = patience(timeout), options.chosen(config_path, config_dir)
    if service := client(explicit, api_url, api_key) if waits or api_url else running(explicit):
        nodes = tree_when_over(service, quote(job_id, safe=""), seconds if waits else 0.0)
    else:
        nodes = _tree_in_ledger(explicit, job_id)
    output.show(nodes, as_json=as_json, human=lambda shown: [*tree_lines(shown), *_results(shown, verbose=verbose)])
    return 1 if waits and any(map(is_open, nodes)) else 0


def _tree_in_ledger(explicit: Path | None, job_id: str) -> list[dict[str, Any]]:
    """The same as the service shows, read from the file."""
    import json
    import os

    from ductile.config.load.load import load
    from ductile.config.load.sources import find
    from ductile.explain.orphaned import marked
    from ductile.ledger.reports import trees
    from ductile.ledger.storage.open_file import open_reader
    from ductile.web.views.jobs import ends_run, tree_text

    config = load(find(explicit, os.environ).path)
    ledger = config.settings.state.path
    with open_reader(ledger) as db:
        nodes = trees.tree(db, job_id)
    shown: list[dict[str, Any]] = json.loads(tree_text(nodes, ends_run(config.plans)))
    return marked(shown, ledger)


def _results(nodes: list[dict[str, Any]], *, verbose: bool) -> list[str]:
    if not verbose:
        return []
    return [f"{node['job_id']}: {_glimpse(node['result'])}" for node in nodes if "result" in node]


def _glimpse(value: Any) -> str:
    from ductile.core.formats import strict_json

    text = strict_json.dumps(value)
    return text if len(text) <= LONGEST_RESULT else f"{text[:LONGEST_RESULT]}…"


def _live_stderr(ledger: Path, job_id: str) -> str | None:
    from ductile.cli.base.client import Client
    from ductile.web.server.listeners import local_socket_path

    try:
        return Client(local_socket_path(ledger.parent)).ask("GET", f"/job/{job_id}").get("stderr")
    except DuctileError:
        return None  # the service stopped in the meantime; the rest of the report is still true


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
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "submitted_by": job.submitted_by,
        "context_id": job.event_context_id,
        "parent_job_id": job.parent_job_id,
        "root_job_id": job.root_job_id,
        "pipeline": job.pipeline,
        "step_id": job.step_id,
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
            {"job_id": child.id, "plugin": child.plugin, "command": child.command, "status": str(child.status)}
            for child in report.children
        ],
        "journal": [
            {"seq": entry.seq, "at": moment(entry.at), "kind": entry.kind, "data": entry.data}
            for entry in report.journal
        ],
    }


def _hop(hop: int, context: Any) -> dict[str, Any]:
    """One context on the way to the job, with what is durable there."""
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
        "started_at": moment(attempt.started_at),
        "completed_at": moment(attempt.completed_at),
        "duration_ms": attempt.duration.total_seconds() * 1000 if attempt.duration is not None else None,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "error": attempt.last_error,
        "stderr": attempt.stderr,
        "result": attempt.result,
    }


def _lines(shown: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import exact, told
    from ductile.explain.orphaned import shown_status

    lines = [f"{shown['job_id']}  {shown['plugin']}.{shown['command']}  {state(shown_status(shown).upper())}"]
    facts = (
        "submitted_by",
        "parent_job_id",
        "pipeline",
        "step_id",
        "tolerated",
        "waits_for",
        "dedupe_key",
        "last_error",
        "blocked_reason",
    )
    moments = ("created_at", "started_at", "completed_at", "next_retry_at")
    lines += [f"  {shown['words']}"] if shown["words"] else []
    lines += [f"  {name}: {told(shown[name])}" for name in moments if shown[name]]
    lines += [f"  {name}: {shown[name]}" for name in facts if shown[name]]
    if shown.get("stderr"):
        lines += ["  stderr so far:", *(f"    {line}" for line in shown["stderr"].splitlines())]
    for step in shown["steps"]:
        lines.append(f"  hop {step['hop']}: {step['step_id'] or 'start'}  {_glimpse(step['baggage'])}")
    for attempt in shown["attempts"]:
        lines += _attempt_lines(attempt, shown["max_attempts"])
    for child in shown["children"]:
        lines.append(f"  led to {child['job_id']}  {child['plugin']}.{child['command']}  {state(shown_status(child))}")
    lines.append("  journal:")
    lines += [
        f"    {exact(entry['at'])}  {entry['kind']}  {_brief(entry['data'])}".rstrip() for entry in shown["journal"]
    ]
    return lines


def _attempt_lines(attempt: dict[str, Any], most: int) -> list[str]:
    took = f" in {attempt['duration_ms']:.0f} ms" if attempt["duration_ms"] is not None else ""
    ended = f", exit code {attempt['exit_code']}" if attempt["exit_code"] is not None else ""
    lines = [f"  attempt {attempt['attempt']} of {most}: {state(attempt['status'])}{took}{ended}"]
    lines += [f"    error: {attempt['error']}"] if attempt["error"] else []
    for name in ("result", "stderr"):
        if attempt[name]:
            lines += [f"    {name}: {line}" for line in attempt[name].strip().splitlines()[-10:]]
    return lines


def _brief(data: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in data.items() if name not in ("from", "command"))
