"""Pipelines over HTTP: starting a run, waiting for it if the pipeline wants that, and looking at its tree.

Nothing runs here. A run is started by one transaction and goes on whether or not anybody waits; a waiter looks into the
ledger after every hint of the hub. `api` has the routes.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import trio

from ductile.config.snapshot import PluginUnavailable, Snapshot
from ductile.core.errors import DuctileError
from ductile.core.formats import strict_json
from ductile.core.hub import Hint, tree_topic
from ductile.core.instance.failpoints import failpoint
from ductile.core.model import FollowUps, JobStatus, NewJob, are_few
from ductile.ledger.completion.follow_ups import start_run
from ductile.ledger.queue import tree_counters
from ductile.ledger.reports import run_status, trees
from ductile.ledger.reports.run_status import Standing
from ductile.ledger.storage.db import Db
from ductile.ledger.tables.receipts import StoredAnswer, Ticket
from ductile.pipeline.compile.plan import Plan
from ductile.pipeline.language.baggage import BaggageRefused, claim
from ductile.pipeline.language.paths import Scope
from ductile.pipeline.run.route import Beginning, TooManyFollowUps, begin
from ductile.web.context import (
    RECHECK_SECONDS,
    AppContext,
    BadRequest,
    flag_of,
    job_id_of,
    payload_of,
    require_healthy,
    submitter_of,
    wait_of,
)
from ductile.web.idempotency import done_once, headers_of, known_answer, ticket_of
from ductile.web.messages import Headers, Request, Response, encoded_json_response, json_response
from ductile.web.views.jobs import RESULT_SCOPE, ends_run, run_text, tree_text

SMALL_TREE = 16
"""Jobs of a tree that is read together with the question whether it is over."""
NO_LIMIT = 1 << 62


class RunRefused(DuctileError):
    """A run with this payload cannot begin."""

    code, exit_code, status = "run_refused", 1, 422
    hint = "`ductile pipeline show` tells what its first step needs, `ductile config check` what is wrong with it"


class ContextTooLarge(DuctileError):
    """The payload makes more durable than a context holds."""

    code, exit_code, status = "context_too_large", 1, 413
    hint = "send less of what its first step claims as baggage, or raise service.limits.context"


async def start_pipeline(desk: AppContext, request: Request) -> Response:
    """202 with the root job's id once the run is durable; of a synchronous pipeline, 200 when the run is over."""
    snapshot = desk.snapshot()
    plan = snapshot.plans.named(request.params["pipeline"])
    leaves = flag_of(request, "async")
    if flag_of(request, "dry_run"):
        _beginning(desk, snapshot, plan, payload_of(request) or {}, submitter_of(request), desk.clock.now())
        return json_response({"status": "planned", "plugin": "pipeline", "command": plan.name, "dry_run": True})
    if leaves or plan.execution_mode != "synchronous":
        answer = await _started(desk, request, snapshot, plan)
        return encoded_json_response(answer.text.encode(), 202, headers_of(answer))
    api = snapshot.config.settings.api
    with desk.callers.one_more(api.max_concurrent_sync):
        # A caller that comes again under its key waits for the run that it began.
        answer = await _started(desk, request, snapshot, plan)
        root_id = answer.job_id or ""
        patience = min(plan.timeout, api.max_sync_timeout).total_seconds()
        run = await _until_over(desk, root_id, patience, runs_a_job=answer.runs_a_job)
    if answer.is_repeat and run is None:
        return encoded_json_response(answer.text.encode(), 202, headers_of(answer))  # it was long ago
    if run is None or run.is_over:
        view = partial(run_text, pipeline=plan.name, ends=ends_run(snapshot.plans))
        return await _shown(desk, root_id, view, headers_of(answer), nodes=run.nodes if run else ())
    still = _still_running(root_id, is_stopping=desk.is_stopping())
    return json_response(still, 202, headers_of(answer))


async def _started(desk: AppContext, request: Request, snapshot: Snapshot, plan: Plan) -> StoredAnswer:
    """The run that the request began, now or when it first came under its key."""
    ticket = ticket_of(request)
    payload = payload_of(request) or {}
    known = await known_answer(desk, ticket)
    return known or await _start(desk, snapshot, plan, payload, submitter_of(request), ticket)


def _still_running(root_id: str, *, is_stopping: bool) -> dict[str, Any]:
    why = "the service is stopping; the run goes on after its next start" if is_stopping else "the run takes longer"
    message = f"{why}; GET /job/{root_id}/tree?wait=30s waits for it"
    return {"job_id": root_id, "status": "running", "timeout_exceeded": not is_stopping, "message": message}


async def show_tree(desk: AppContext, request: Request) -> Response:
    """Every job of the tree the job is in: as they are, or as they are when the tree is done or the wait is over."""
    job_id = job_id_of(request)
    snapshot = desk.snapshot()
    patience = wait_of(request, snapshot)
    shows_result = request.principal.may(RESULT_SCOPE)
    view = partial(tree_text, ends=ends_run(snapshot.plans), shows_result=shows_result)
    root = await desk.ledger.read(tree_counters.root_of, job_id) if patience else None
    tree = await _until_over(desk, root.id, patience) if root else None
    return await _shown(desk, job_id, view, nodes=tree.nodes if tree else ())


async def _start(
    desk: AppContext,
    snapshot: Snapshot,
    plan: Plan,
    payload: Mapping[str, Any],
    submitted_by: str,
    ticket: Ticket | None,
) -> StoredAnswer:
    """The run is in the ledger, whoever hangs up meanwhile; its root job, and what its caller is told."""
    now = desk.clock.now()
    beginning = _beginning(desk, snapshot, plan, payload, submitted_by, now)
    service = snapshot.config.settings.service
    failpoint("enqueue.before_begin")
    run = partial(
        _begin,
        following=beginning.following,
        pipeline=plan.name,
        now=now,
        default_ttl=service.dedupe_ttl,
        budget=snapshot.budget,
    )
    answer = await done_once(desk, ticket, run, is_large=not are_few(beginning.following))
    failpoint("enqueue.after_commit")
    return answer


def _beginning(
    desk: AppContext, snapshot: Snapshot, plan: Plan, payload: Mapping[str, Any], submitted_by: str, now: datetime
) -> Beginning:
    """The first jobs of a run that can begin."""
    try:
        beginning = begin(plan, payload, snapshot.world, submitted_by=submitted_by, now=now)
    except TooManyFollowUps as error:
        raise RunRefused(f"pipeline {plan.name} cannot begin: {error}") from error
    _require_startable(plan, payload, beginning, snapshot)
    for new in beginning.following.children:
        if new.settled is None:
            require_healthy(desk, new.plugin)
    return beginning


def _begin(db: Db, *, following: FollowUps, pipeline: str, **rules: Any) -> StoredAnswer:
    made = start_run(db, following, **rules)
    root_id = made[0].job_id
    told = {"job_id": root_id, "status": "queued", "plugin": "pipeline", "command": pipeline}
    jobs = zip(made, following.children, strict=False)  # a root that exists already has no children here
    runs_a_job = any(job.is_new and not job.status.is_final and not new.is_join for job, new in jobs)
    return StoredAnswer(job_id=root_id, text=strict_json.dumps(told), runs_a_job=runs_a_job)


def _require_startable(plan: Plan, payload: Mapping[str, Any], beginning: Beginning, snapshot: Snapshot) -> None:
    """Nothing is over before it began, except where the author tolerates that."""
    if not beginning.refusals:
        return
    for new in beginning.following.children:
        if new.settled and new.settled.status in (JobStatus.FAILED, JobStatus.DEAD) and not new.tolerated:
            raise _refusal(plan, payload, new, new.settled.error or "", snapshot)


def _refusal(plan: Plan, payload: Mapping[str, Any], new: NewJob, reason: str, snapshot: Snapshot) -> DuctileError:
    message = f"pipeline {plan.name} cannot begin: {new.step_id}: {reason}"
    node = plan.nodes.get(new.step_id or "")
    if node is not None and node.plugin == new.plugin:
        if snapshot.world.target(node.plugin).refused:
            return PluginUnavailable(message)
        if node.baggage is not None and new.settled and new.settled.status is JobStatus.FAILED:
            try:
                claim(node.baggage, Scope(payload=payload, context={}), {}, most_bytes=NO_LIMIT)
            except BaggageRefused:
                return BadRequest(message, hint="send a payload that has what the first step claims")
            return ContextTooLarge(message)
    return RunRefused(message)


async def _until_over(desk: AppContext, root_id: str, patience: float, *, runs_a_job: bool = False) -> Standing | None:
    """Wait until every job of the tree is over, for `patience` seconds at most, or until the service stops.

    Returns how the tree stands, or None if the ledger has no such tree. The end of a tree that is returned is durable.
    A tree that `runs_a_job`, as its enqueue has shown a moment ago, is not read before its completion is announced.
    """
    deadline, completion = trio.current_time() + patience, None
    with desk.hub.watch(tree_topic(root_id)) as completions:
        if runs_a_job:
            completion = await _next_hint(completions, deadline)
        while (
            tree := await desk.ledger.read(run_status.ended, root_id, most=SMALL_TREE)
        ) is not None and not tree.is_over:
            if trio.current_time() >= deadline or desk.is_stopping():
                return tree
            completion = await _next_hint(completions, deadline)
    await desk.ledger.until_durable(completion.commit if completion is not None else None)
    return tree


async def _next_hint(hints: trio.MemoryReceiveChannel[Hint], deadline: float) -> Hint:
    """Wait for an announcement. Returns None after a while: a hint can be lost, so the ledger is read again."""
    with trio.CancelScope(deadline=min(deadline, trio.current_time() + RECHECK_SECONDS)):
        return await hints.receive()
    return None


async def _shown(
    desk: AppContext,
    job_id: str,
    view: Callable[[Sequence[trees.TreeNode]], str],
    headers: Headers = (),
    *,
    nodes: Sequence[trees.TreeNode] = (),
) -> Response:
    """The tree of the job as `view` shows it. `nodes` are the jobs in it, if they are known already."""
    if nodes:
        return encoded_json_response(view(nodes).encode(), headers=headers)
    text = await desk.ledger.read(lambda db: view(trees.tree(db, job_id)).encode())
    return encoded_json_response(text, headers=headers)
