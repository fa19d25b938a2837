"""`ductile job cancel`, `retry`, `replay` and `wait`: requests to the running service."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.cli.base.terminal import state
from ductile.cli.job.batch import Verb, act_on_all, can_be_retried, is_batch, selection_options
from ductile.core.errors import NotFound, UsageInvalid, did_you_mean

MAX_STEPS_SHOWN = 10
NO_QUERY: Mapping[str, str] = MappingProxyType({})


@click.command("cancel")
@click.option("--reason", help="Reason to record.")
@selection_options("queued", "running")
def cancel(job_id: str | None, reason: str | None, dry_run: bool, as_json: bool, **params: Any) -> int:
    """Cancel a queued or running job, or with --status all jobs that match. Running processes are terminated first.

    With --status, shows the number of jobs and exits with code 2 unless --yes confirms it.

    Example: ductile job cancel 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11 --reason "no longer needed"
    """
    body = {"reason": reason} if reason else None
    if is_batch(job_id, params):
        act = partial(_post, act="cancel", where=params, body=body)
        return act_on_all(Verb("cancel", "cancelled"), act, params, dry_run=dry_run, as_json=as_json)
    answer = _post(str(job_id), "cancel", params, dry_run=dry_run, body=body)
    output.show(answer, as_json=as_json, human=_cancel_lines)
    return 0


def _cancel_lines(answer: dict[str, Any]) -> list[str]:
    if answer["dry_run"]:
        return [f"would cancel job {answer['job_id']}, which is {answer['status']}"]
    ending = answer["status"] != "dead"
    return [
        f"job {answer['job_id']}: " + ("terminating its process" if ending else "cancelled"),
        *([f"  next: ductile job wait {answer['job_id']}"] if ending else []),
    ]


@click.command("retry")
@click.option("--now", "is_urgent", is_flag=True, help="Also start a queued job that waits for its retry time.")
@selection_options("failed", "dead", "queued")
def retry(job_id: str | None, is_urgent: bool, dry_run: bool, as_json: bool, **params: Any) -> int:
    """Retry a failed or dead job, or with --status all jobs that match. The runs that they belong to continue.

    With --status, shows the number of jobs and exits with code 2 unless --yes confirms it. Cancelled and purged jobs
    are not selected. --status queued requires --now.

    Example: ductile job retry --status dead --plugin backup --since 1h --yes
    """
    query = {"now": "true"} if is_urgent else {}
    if is_batch(job_id, params):
        if params["status"] == "queued" and not is_urgent:
            raise UsageInvalid(
                "--status queued requires --now", hint="Without --now, queued jobs start at their retry time."
            )
        act = partial(_post, act="retry", where=params, query=query)
        return act_on_all(Verb("retry", "retried", can_be_retried), act, params, dry_run=dry_run, as_json=as_json)
    answer = _post(str(job_id), "retry", params, dry_run=dry_run, query=query)
    output.show(answer, as_json=as_json, human=_retry_lines)
    return 0


def _retry_lines(answer: dict[str, Any]) -> list[str]:
    if answer["dry_run"]:
        return [f"would queue job {answer['job_id']} again; it is {answer['status']}"]
    return [f"job {answer['job_id']}: {answer['status']} again", f"  next: ductile job wait {answer['job_id']} --tree"]


@click.command("replay")
@click.option("--patch", help="JSON merge patch (RFC 7396) for the payload, or @FILE.")
@click.option("--from-step", "step", help="Replay the job of this step in the tree of JOB_ID.")
@selection_options("succeeded", "failed", "dead", "skipped")
def replay(job_id: str | None, patch: str | None, step: str | None, dry_run: bool, as_json: bool, **params: Any) -> int:
    """Replay a job as a new job with the original context, or with --status all jobs that match.

    Deduplication does not apply. Shows what has changed since the job ran: plugin files, configuration and plugin
    state. A replayed pipeline step continues its pipeline as a separate run. With --status, shows the number of jobs
    and exits with code 2 unless --yes confirms it.

    Example: ductile job replay 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11 --from-step upload --patch '{"retries": 0}'
    """
    body = {"patch": _patch(patch)} if patch is not None else None
    if is_batch(job_id, params):
        if step is not None:
            raise UsageInvalid("--from-step cannot be combined with --status")
        act = partial(_post, act="replay", where=params, body=body)
        return act_on_all(Verb("replay", "replayed"), act, params, dry_run=dry_run, as_json=as_json)
    chosen = _job_of_step(str(job_id), step, params) if step is not None else str(job_id)
    changes = None if params["api_url"] else _changes(chosen, params)
    answer = _post(chosen, "replay", params, dry_run=dry_run, body=body)
    output.show({**answer, "changes": changes}, as_json=as_json, human=_replay_lines)
    return 0


def _patch(text: str) -> dict[str, Any]:
    from ductile.cli.base.json_args import read_json, read_json_file

    patch = read_json_file(Path(text[1:])) if text.startswith("@") else read_json(text, "--patch")
    if not isinstance(patch, dict):
        raise UsageInvalid("--patch must be a JSON object", hint="Use null to remove a member.")
    return patch


def _job_of_step(job_id: str, step: str, where: Mapping[str, Any]) -> str:
    """Return the id of the only job of this step in the tree."""
    from ductile.cli.base.connect import client_for
    from ductile.core.model import is_control_plugin

    tree = client_for(where).request_list("GET", f"/job/{canonical_id(job_id)}/tree")
    steps = [node for node in tree if "step_id" in node and not is_control_plugin(node["plugin"])]
    found = [str(node["job_id"]) for node in steps if node["step_id"] == step]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(found[:MAX_STEPS_SHOWN])
        raise UsageInvalid(f"--from-step: step {step!r} has {len(found)} jobs", hint=f"Replay one of them: {ids}.")
    known = sorted({str(node["step_id"]) for node in steps})
    hint = f"Steps: {', '.join(known[:MAX_STEPS_SHOWN])}." if known else "The tree has no steps that can be replayed."
    raise NotFound(f"--from-step: the tree has no step {step!r}{did_you_mean(step, known)}", hint=hint)


def _changes(job_id: str, where: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what has changed since the job ran; None if the ledger has no snapshot to compare with."""
    from ductile.cli.base.connect import ledger_for
    from ductile.explain.changes import RunConditions, changes_since, conditions_now
    from ductile.ledger.reports.job_details import attempts, require_job
    from ductile.ledger.storage.open_file import open_reader

    with open_reader(ledger_for(where)) as db:
        job = require_job(db, canonical_id(job_id))
        last = next(reversed(attempts(db, job.id)), None)
        ran = RunConditions.of(
            job.started_snapshot_id or job.enqueued_snapshot_id, last.plugin_changes if last else None
        )
        now = conditions_now(db, job.plugin)
        return changes_since(db, ran, job.plugin, since=job.completed_at or job.created_at, until=now)


def _replay_lines(answer: dict[str, Any]) -> list[str]:
    from ductile.cli.job.diagnosis import change_lines

    lines = []
    if answer["changes"] is not None:
        lines += ["changes since the job ran:", *(f"  {line}" for line in change_lines(answer["changes"]))]
    elif answer["config_changed"]:
        lines.append("the configuration has changed since the job ran")
    lines += ["payload: patched"] if answer["payload_changed"] else []
    what = f"{answer['plugin']}.{answer['command']} of job {answer['replay_of']}"
    if answer["dry_run"]:
        return [*lines, f"would replay {what}"]
    return [*lines, f"job {answer['job_id']}: replay of {what}", f"  next: ductile job wait {answer['job_id']} --tree"]


# ── wait ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command("wait")
@options.job_id
@click.option("--timeout", default="5m", show_default=True, help="Maximum time to wait.")
@click.option("--tree", "whole", is_flag=True, help="Wait for the whole tree of jobs.")
@options.config
@options.service
@options.as_json
def wait(job_id: str, timeout: str, whole: bool, as_json: bool, **where: Any) -> int:
    """Wait until a job has ended. Exit 0 if it succeeded, 1 if it failed or the timeout has passed.

    Use --tree to wait for a run: it succeeds if no job ends failed or dead, except jobs that may fail. Without --tree
    the exit code is that of the single job, and `tree_status` shows the state of the run that started with it.

    Example: ductile job wait 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11 --timeout 30s
    """
    from ductile.cli.base.connect import client_for
    from ductile.cli.base.long_poll import parse_timeout, wait_for_job, wait_for_tree
    from ductile.cli.job.tree import run_result, tree_lines

    seconds, service = parse_timeout(timeout), client_for(where)
    if whole:
        tree = wait_for_tree(service, canonical_id(job_id), seconds)
        status = run_result(tree, "")["status"]
        shown = {"job_id": job_id, "status": status, "tree": tree}
        output.show(
            shown, as_json=as_json, human=lambda view: [f"tree of {job_id}: {status}", *tree_lines(view["tree"])]
        )
    else:
        job = wait_for_job(service, canonical_id(job_id), seconds)
        status = job["status"]
        output.show(job, as_json=as_json, human=job_lines)
    return 0 if status == "succeeded" else 1


def job_lines(job: dict[str, Any]) -> list[str]:
    """Format a job, and the state of the run that started with it."""
    from ductile.explain.orphaned import display_status

    lines = [f"job {job['job_id']} ({job['plugin']}.{job['command']}): {state(display_status(job))}"]
    lines += [f"  error: {job['last_error']}"] if job.get("last_error") else []
    runs = {"open": "has not ended", "failed": state("failed")}
    if job.get("tree_status") in runs:
        lines.append(f"  The run {runs[job['tree_status']]}; the exit code refers to this job only")
        lines.append(f"  next: ductile job wait {job['job_id']} --tree")
    act = "why" if job["status"] != "succeeded" or job.get("tree_status") == "failed" else "inspect"
    return [*lines, f"  next: ductile job {act} {job['job_id']}"]


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def canonical_id(job_id: str) -> str:
    """Return the id in canonical form. Raise NotFound if it is not a UUID."""
    import uuid

    try:
        canonical = str(uuid.UUID(job_id.strip()))
    except ValueError:
        raise NotFound(
            f"job {job_id[:80]!r} does not exist", hint="A job id is a UUID. Run `ductile job list`."
        ) from None
    return canonical


def _post(
    job_id: str,
    act: str,
    where: Mapping[str, Any],
    *,
    dry_run: bool = False,
    query: Mapping[str, str] = NO_QUERY,
    body: Any = None,
) -> dict[str, Any]:
    from urllib.parse import urlencode

    from ductile.cli.base.connect import client_for

    path = f"/job/{canonical_id(job_id)}/{act}"
    arguments = urlencode({**query, **({"dry_run": "true"} if dry_run else {})})
    return client_for(where).request("POST", f"{path}?{arguments}" if arguments else path, body)
