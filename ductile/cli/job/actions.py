"""What a person does to a job: cancel, retry, replay, wait for it, watch what it says. All through the service."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output
from ductile.cli.base.terminal import cleaned, state
from ductile.core.errors import NotFound, UsageInvalid, did_you_mean

MOST_STEPS_TOLD = 10


def _acting(command: Callable[..., Any]) -> Callable[..., Any]:
    """What commands that change a job take."""
    for option in (options.as_json, options.dry_run, options.service, options.config):
        command = option(command)
    return click.argument("job_id")(command)


@click.command("cancel")
@click.option("--reason", help="Why, for whoever looks later.")
@_acting
def cancel(job_id: str, reason: str | None, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Have the running service end a job: a waiting one at once, a running one as soon as its process is gone.

    Example: ductile job cancel 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11 --reason "not needed any more"
    """
    answer = _post(job_id, "cancel", where, dry_run=dry_run, body={"reason": reason} if reason else None)
    output.show(answer, as_json=as_json, human=_cancel_lines)


def _cancel_lines(answer: dict[str, Any]) -> list[str]:
    if answer["dry_run"]:
        return [f"job {answer['job_id']} would be cancelled; it is {answer['status']}"]
    ending = answer["status"] != "dead"
    return [
        f"job {answer['job_id']}: " + ("its process is ending" if ending else "dead"),
        *([f"  next: ductile job wait {answer['job_id']}"] if ending else []),
    ]


@click.command("retry")
@_acting
def retry(job_id: str, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Have the running service try a job again that ended failed or dead; its run goes on with it.

    Example: ductile job retry 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11
    """
    output.show(_post(job_id, "retry", where, dry_run=dry_run), as_json=as_json, human=_retry_lines)


def _retry_lines(answer: dict[str, Any]) -> list[str]:
    if answer["dry_run"]:
        return [f"job {answer['job_id']} would be queued again; it is {answer['status']}"]
    return [f"job {answer['job_id']}: {answer['status']} again", f"  next: ductile job wait {answer['job_id']} --tree"]


@click.command("replay")
@click.option("--patch", help="JSON merge patch for the payload (RFC 7396), or @FILE.")
@click.option("--from-step", "step", help="Replay the job of this step in the tree of JOB_ID instead.")
@_acting
def replay(job_id: str, patch: str | None, step: str | None, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Have the running service run a job once more as a new one, on its old context and outside of dedupe.

    Shows first what changed since the job ran: the plugin's files, the configuration, the plugin's state. A replayed
    step goes on in its pipeline, as a run of its own.

    Example: ductile job replay 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11 --from-step upload --patch '{"retries": 0}'
    """
    body = {"patch": _patch(patch)} if patch is not None else None
    chosen = _job_of_step(job_id, step, where) if step is not None else job_id
    changes = None if where["api_url"] else _changes(chosen, where)
    answer = _post(chosen, "replay", where, dry_run=dry_run, body=body)
    output.show({**answer, "changes": changes}, as_json=as_json, human=_replay_lines)


def _patch(text: str) -> dict[str, Any]:
    from ductile.cli.base.json_args import read_json, read_json_file

    patch = read_json_file(Path(text[1:])) if text.startswith("@") else read_json(text, "--patch")
    if not isinstance(patch, dict):
        raise UsageInvalid("--patch must be a JSON object", hint="null takes a member away")
    return patch


def _job_of_step(job_id: str, step: str, where: Mapping[str, Any]) -> str:
    """The one job that is this step in the tree."""
    from ductile.cli.base.connect import client_for
    from ductile.core.model import runs_nothing

    tree = client_for(where).ask_list("GET", f"/job/{known_id(job_id)}/tree")
    steps = [node for node in tree if "step_id" in node and not runs_nothing(node["plugin"])]
    found = [str(node["job_id"]) for node in steps if node["step_id"] == step]
    if len(found) == 1:
        return found[0]
    if found:
        told = ", ".join(found[:MOST_STEPS_TOLD])
        raise UsageInvalid(f"--from-step: {len(found)} jobs are step {step!r}", hint=f"replay one of them: {told}")
    known = sorted({str(node["step_id"]) for node in steps})
    hint = f"its steps: {', '.join(known[:MOST_STEPS_TOLD])}" if known else "its tree has no steps that can be replayed"
    raise NotFound(f"--from-step: the tree has no step {step!r}{did_you_mean(step, known)}", hint=hint)


def _changes(job_id: str, where: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is different from when the job ran; None if the ledger does not know it."""
    from ductile.cli.base.connect import ledger_for
    from ductile.explain.changes import changes_since
    from ductile.ledger.reports.job_details import brief
    from ductile.ledger.storage.open_file import open_reader

    with open_reader(ledger_for(where)) as db:
        job = brief(db, known_id(job_id)).job
        snapshot_id = job.started_snapshot_id or job.enqueued_snapshot_id
        return changes_since(db, snapshot_id, job.plugin, since=job.completed_at or job.created_at)


def _replay_lines(answer: dict[str, Any]) -> list[str]:
    from ductile.explain.changes import change_lines

    lines = []
    if answer["changes"] is not None:
        lines += ["changed since it ran:", *(f"  {line}" for line in change_lines(answer["changes"]))]
    elif answer["config_changed"]:
        lines.append("the configuration has changed since it ran")
    lines += ["the payload is patched"] if answer["payload_changed"] else []
    what = f"{answer['plugin']}.{answer['command']} of job {answer['replay_of']}"
    if answer["dry_run"]:
        return [*lines, f"would run {what} once more"]
    told = f"job {answer['job_id']} runs {what} once more"
    return [*lines, told, f"  next: ductile job wait {answer['job_id']} --tree"]


# ── waiting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@click.command("wait")
@click.argument("job_id")
@click.option("--timeout", default="5m", show_default=True, help="How long to wait.")
@click.option("--tree", "whole", is_flag=True, help="Wait for everything it leads to as well.")
@options.config
@options.service
@options.as_json
def wait(job_id: str, timeout: str, whole: bool, as_json: bool, **where: Any) -> int:
    """Wait until a job is over. Exit 0 if it succeeded; 1 if it did not, or is not over in time.

    Whoever started a run wants --tree: then it is the run that is waited for, and it has succeeded if no job of it
    ended failed or dead, but for those that may. Without, the exit code is that of the one job; `tree_status` and a
    line say how the run stands that began with it.

    Example: ductile job wait 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11 --timeout 30s
    """
    from ductile.cli.base.connect import client_for
    from ductile.cli.base.long_poll import job_when_over, patience, tree_when_over
    from ductile.cli.job.tree import run_of, tree_lines

    seconds, service = patience(timeout), client_for(where)
    if whole:
        tree = tree_when_over(service, known_id(job_id), seconds)
        status = run_of(tree, "")["status"]
        shown = {"job_id": job_id, "status": status, "tree": tree}
        output.show(shown, as_json=as_json, human=lambda one: [f"tree of {job_id}: {status}", *tree_lines(one["tree"])])
    else:
        job = job_when_over(service, known_id(job_id), seconds)
        status = job["status"]
        output.show(job, as_json=as_json, human=job_lines)
    return 0 if status == "succeeded" else 1


def job_lines(job: dict[str, Any]) -> list[str]:
    """One job in a few lines, and where the run is that began with it."""
    lines = [f"job {job['job_id']} ({job['plugin']}.{job['command']}): {state(job['status'])}"]
    lines += [f"  error: {job['last_error']}"] if job.get("last_error") else []
    runs = {"open": "goes on", "failed": state("failed")}
    if job.get("tree_status") in runs:
        lines.append(f"  its run {runs[job['tree_status']]}; the exit code is that of this job alone")
        lines.append(f"  next: ductile job wait {job['job_id']} --tree")
    act = "why" if job["status"] != "succeeded" or job.get("tree_status") == "failed" else "inspect"
    return [*lines, f"  next: ductile job {act} {job['job_id']}"]


@click.command("tail")
@click.argument("job_id")
@click.option("--timeout", default="1h", show_default=True, help="How long to follow it.")
@options.config
@options.service
@options.as_json
def tail(job_id: str, timeout: str, as_json: bool, **where: Any) -> int:
    """Print what a job writes to stderr while it runs, all its attempts, until it is over.

    Exit as with `job wait`. With --json everything is printed at the end, as one object.

    Example: ductile job tail 3f0c9a52-6a57-4c0e-9d3a-0d6f3c1f2b11
    """
    from ductile.cli.base.connect import client_for
    from ductile.cli.base.long_poll import patience
    from ductile.cli.job.stderr_tail import follow

    seconds, service, heard = patience(timeout), client_for(where), [""]

    def hear(text: str) -> None:
        if as_json:
            heard.append(text)
        else:
            click.echo(cleaned(text), nl=False)

    job = follow(service, known_id(job_id), seconds, hear)
    if as_json:
        output.show({**job, "stderr": "".join(heard)}, as_json=True, human=job_lines)
    else:
        output.note(f"job {job_id}: {job['status']}")
    return 0 if job["status"] == "succeeded" else 1


# ── asking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def known_id(job_id: str) -> str:
    """The id as it stands in a path; NotFound for what no job is called."""
    import uuid

    try:
        canonical = str(uuid.UUID(job_id.strip()))
    except ValueError:
        raise NotFound(
            f"{job_id[:80]}: there is no such job", hint="a job id is a UUID; see `ductile job list`"
        ) from None
    return canonical


def _post(job_id: str, act: str, where: Mapping[str, Any], *, dry_run: bool, body: Any = None) -> dict[str, Any]:
    from ductile.cli.base.connect import client_for

    path = f"/job/{known_id(job_id)}/{act}"
    return client_for(where).ask("POST", f"{path}?dry_run=true" if dry_run else path, body)
