"""Handlers for pipelines: start a run, wait for a synchronous run, show a job tree. `jobs` has the routes.

Runs no job: a run is started by one transaction and continues without its caller. A waiting caller reads the ledger
after every hint of the hub.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Literal, TypedDict

import trio

from ductile.config.snapshot import PluginUnavailable, Snapshot
from ductile.core.errors import DuctileError, LedgerError
from ductile.core.formats import strict_json
from ductile.core.formats.json_schema import without_none
from ductile.core.hub import Hint, tree_topic
from ductile.core.instance.failpoints import failpoint
from ductile.core.model import CORE, FollowUps, JobStatus, NewJob
from ductile.ledger.completion.start_run import start_run
from ductile.ledger.jobs import tree_counters
from ductile.ledger.reports import trees
from ductile.ledger.reports.runs import progress
from ductile.ledger.reports.runs.progress import TreeProgress
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import journal
from ductile.ledger.tables.receipts import IdempotencyKey, StoredResponse
from ductile.pipeline.compile.plan import Plan
from ductile.pipeline.language.baggage import BaggageRefused, apply_claims
from ductile.pipeline.language.conditions import holds
from ductile.pipeline.language.paths import Scope
from ductile.pipeline.run.route import TooManyFollowUps, TriggeredRun, trigger_run
from ductile.pipeline.run.run_signals import run_rule_of
from ductile.web.context import (
    RECHECK_INTERVAL,
    AppContext,
    BadRequest,
    RunRefused,
    get_submitter,
    read_flag,
    read_job_id,
    read_payload,
    read_wait_seconds,
    require_healthy,
    wait_slot,
)
from ductile.web.idempotency import find_stored_response, read_idempotency_key, replay_headers, submit_once
from ductile.web.messages import Headers, Request, Response, encoded_json_response, json_response
from ductile.web.views.jobs import (
    RESULT_SCOPE,
    AcceptedRunView,
    AcceptedView,
    PlannedRunView,
    PlannedView,
    run_json,
    terminal_predicate,
    tree_json,
)

MAX_INLINE_TREE_JOBS = 16
"""Trees up to this size are read in the same query that checks whether they are finished."""
NO_LIMIT = 1 << 62


class StillRunningView(TypedDict):
    """A run that had not ended when the time to wait was over."""

    job_id: str
    status: Literal["running"]
    timeout_exceeded: bool
    message: str


class ContextTooLarge(DuctileError):
    """The baggage of the first step exceeds the size limit of a context."""

    code, exit_code, status = "context_too_large", 1, 413
    hint = "Reduce the payload members that the first step claims as baggage, or raise service.limits.context."


async def start_pipeline(ctx: AppContext, request: Request) -> Response:
    """Return 202 with the root job id when the run is durable; for a synchronous pipeline, 200 when it has ended."""
    snapshot = ctx.snapshot()
    plan = snapshot.plans.require(request.params["pipeline"])
    is_async = read_flag(request, "async")
    if_holds = _condition_holds(plan, read_payload(request) or {})
    if read_flag(request, "dry_run"):
        _plan_run(ctx, snapshot, plan, read_payload(request) or {}, get_submitter(request), ctx.clock.now())
        planned = PlannedView(status="planned", plugin="pipeline", command=plan.name, dry_run=True)
        return json_response(without_none(PlannedRunView(**planned, if_holds=if_holds)))
    if is_async or plan.execution_mode != "synchronous":
        stored = await _find_or_start(ctx, request, snapshot, plan)
        return encoded_json_response(stored.text.encode(), 202, replay_headers(stored))
    api = snapshot.config.settings.api
    with ctx.callers.slot(api.max_concurrent_sync):
        # A repeated request with an idempotency key waits for the run of the first request.
        stored = await _find_or_start(ctx, request, snapshot, plan)
        root_id = stored.job_id or ""
        wait_seconds = min(plan.timeout, api.max_sync_timeout).total_seconds()
        run = await _wait_until_over(ctx, root_id, wait_seconds, runs_a_job=stored.runs_a_job)
    if stored.is_repeat and run is None:
        return encoded_json_response(stored.text.encode(), 202, replay_headers(stored))  # the run is pruned
    if run is None or run.is_over:
        is_terminal = terminal_predicate(snapshot.plans)
        view = partial(run_json, pipeline=plan.name, is_terminal=is_terminal, if_holds=if_holds)
        return await _tree_response(ctx, root_id, view, replay_headers(stored), nodes=run.nodes if run else ())
    still = _still_running_view(root_id, is_stopping=ctx.is_stopping())
    record = partial(
        _journal_early_response, root_id=root_id, plan=plan, waited=wait_seconds, view=still, now=ctx.clock.now()
    )
    with suppress(LedgerError):  # the run is stored; its caller gets the id also while the disk is full
        await ctx.ledger.transact(record, wait=False)
    return json_response(still, 202, replay_headers(stored))


def _journal_early_response(
    db: Db, *, root_id: str, plan: Plan, waited: float, view: StillRunningView, now: datetime
) -> None:
    """Record that the caller of a synchronous pipeline got 202 before the run had ended."""
    data = {
        "pipeline": plan.name,
        "status": 202,
        "reason": "timeout" if view["timeout_exceeded"] else "stopping",
        "timeout_ms": round(waited * 1000),
    }
    root = tree_counters.find_root(db, root_id)
    journal.append(db, "run.still_open", now=now, job_id=root_id, root_job_id=root.id if root else root_id, data=data)


def _condition_holds(plan: Plan, payload: Mapping[str, Any]) -> bool | None:
    """Return the value of the pipeline's own `if`, which a run by name does not apply; None without one."""
    return None if plan.condition is None else holds(plan.condition, Scope(payload=payload, context={}))


async def _find_or_start(ctx: AppContext, request: Request, snapshot: Snapshot, plan: Plan) -> StoredResponse:
    """Return the response of the first request with this idempotency key, or start the run."""
    key = read_idempotency_key(request)
    payload = read_payload(request) or {}
    known = await find_stored_response(ctx, key)
    return known or await _start(ctx, snapshot, plan, payload, request, key)


def _still_running_view(root_id: str, *, is_stopping: bool) -> StillRunningView:
    reason = (
        "the service is stopping; the run continues after a restart" if is_stopping else "the run has not ended yet"
    )
    message = f"{reason}; wait for it with GET /job/{root_id}/tree?wait=30s"
    return {"job_id": root_id, "status": "running", "timeout_exceeded": not is_stopping, "message": message}


async def show_tree(ctx: AppContext, request: Request) -> Response:
    """Return every job of the tree, after waiting for its end if `?wait=` is given."""
    job_id = read_job_id(request)
    snapshot = ctx.snapshot()
    wait_seconds = read_wait_seconds(request, snapshot)
    shows_result = request.principal.has_scope(RESULT_SCOPE)
    view = partial(tree_json, is_terminal=terminal_predicate(snapshot.plans), shows_result=shows_result)
    root = await ctx.ledger.read(tree_counters.find_root, job_id) if wait_seconds else None
    with wait_slot(ctx, request, wait_seconds):
        tree = await _wait_until_over(ctx, root.id, wait_seconds) if root else None
    return await _tree_response(ctx, job_id, view, nodes=tree.nodes if tree else ())


async def _start(
    ctx: AppContext,
    snapshot: Snapshot,
    plan: Plan,
    payload: Mapping[str, Any],
    request: Request,
    key: IdempotencyKey | None,
) -> StoredResponse:
    """Store the run, even if the client disconnects, and return the response for its caller."""
    now = ctx.clock.now()
    run = _plan_run(ctx, snapshot, plan, payload, get_submitter(request), now)
    service = snapshot.config.settings.service
    failpoint("enqueue.before_begin")
    insert = partial(
        _insert_run,
        follow_ups=run.follow_ups,
        pipeline=plan.name,
        if_holds=_condition_holds(plan, payload),
        actor=request.principal.actor,
        now=now,
        default_ttl=service.dedupe_ttl,
        budget=snapshot.budget,
        run_rule=run_rule_of(snapshot.routing),
    )
    stored = await submit_once(ctx, key, insert, [run.follow_ups], actor=request.principal.actor)
    failpoint("enqueue.after_commit")
    return stored


def _plan_run(
    ctx: AppContext, snapshot: Snapshot, plan: Plan, payload: Mapping[str, Any], submitted_by: str, now: datetime
) -> TriggeredRun:
    """Return the first jobs of a run. Raises if the run cannot start."""
    try:
        run = trigger_run(plan, payload, snapshot.routing, submitted_by=submitted_by, now=now)
    except TooManyFollowUps as error:
        raise RunRefused(f"pipeline {plan.name} cannot start: {error}") from error
    _require_startable(plan, payload, run, snapshot)
    for new in run.follow_ups.children:
        if new.prefinished is None and not new.plugin.startswith(CORE):
            snapshot.plugin(new.plugin)  # raises if it failed to load
            require_healthy(ctx, new.plugin)
    return run


def _insert_run(db: Db, *, follow_ups: FollowUps, pipeline: str, if_holds: bool | None, **rules: Any) -> StoredResponse:
    enqueued = start_run(db, follow_ups, **rules)
    root_id = enqueued[0].job_id
    accepted = AcceptedView(job_id=root_id, status=JobStatus.QUEUED, plugin="pipeline", command=pipeline)
    view = without_none(AcceptedRunView(**accepted, if_holds=if_holds))
    jobs = zip(enqueued, follow_ups.children, strict=False)  # a deduplicated root has no children
    runs_a_job = any(job.is_new and not job.status.is_final and not new.is_join for job, new in jobs)
    return StoredResponse(job_id=root_id, text=strict_json.dumps(view), runs_a_job=runs_a_job)


def _require_startable(plan: Plan, payload: Mapping[str, Any], run: TriggeredRun, snapshot: Snapshot) -> None:
    """Raise if a first job has already failed and its step does not tolerate failures."""
    if not run.refusals:
        return
    for new in run.follow_ups.children:
        if new.prefinished and new.prefinished.status in (JobStatus.FAILED, JobStatus.DEAD) and not new.tolerated:
            raise _start_error(plan, payload, new, new.prefinished.error or "", snapshot)


def _start_error(plan: Plan, payload: Mapping[str, Any], new: NewJob, reason: str, snapshot: Snapshot) -> DuctileError:
    message = f"pipeline {plan.name} cannot start: {new.step_id}: {reason}"
    node = plan.nodes.get(new.step_id or "")
    if node is not None and node.plugin == new.plugin:
        if snapshot.routing.target(node.plugin).refused:
            return PluginUnavailable(message)
        if node.baggage is not None and new.prefinished and new.prefinished.status is JobStatus.FAILED:
            try:
                apply_claims(node.baggage, Scope(payload=payload, context={}), {}, max_bytes=NO_LIMIT)
            except BaggageRefused:
                return BadRequest(message, hint="Send a payload with the members that the first step claims.")
            return ContextTooLarge(message)
    return RunRefused(message)


async def _wait_until_over(
    ctx: AppContext, root_id: str, wait_seconds: float, *, runs_a_job: bool = False
) -> TreeProgress | None:
    """Wait until every job of the tree has ended, the time is up, or the service stops.

    Returns the progress of the tree, or None if the ledger has no such tree. A returned end is durable. With
    `runs_a_job`, the tree has an open job, so it is not read before the first hint.
    """
    deadline, completion = trio.current_time() + wait_seconds, None
    with ctx.hub.watch(tree_topic(root_id)) as completions:
        if runs_a_job:
            completion = await _wait_for_hint(completions, deadline)
        while (
            tree := await ctx.ledger.read(progress.finished_tree, root_id, max_jobs=MAX_INLINE_TREE_JOBS)
        ) is not None and not tree.is_over:
            if trio.current_time() >= deadline or ctx.is_stopping():
                return tree
            completion = await _wait_for_hint(completions, deadline)
    await ctx.ledger.until_durable(completion.commit if completion is not None else None)
    return tree


async def _wait_for_hint(hints: trio.MemoryReceiveChannel[Hint], deadline: float) -> Hint:
    """Wait for a hint. Returns None after RECHECK_INTERVAL, because a hint can be lost."""
    with trio.CancelScope(deadline=min(deadline, trio.current_time() + RECHECK_INTERVAL)):
        return await hints.receive()
    return None


async def _tree_response(
    ctx: AppContext,
    job_id: str,
    view: Callable[[Sequence[trees.TreeNode]], str],
    headers: Headers = (),
    *,
    nodes: Sequence[trees.TreeNode] = (),
) -> Response:
    """Return the tree of the job, formatted by `view`. `nodes` are its jobs if they have been read already."""
    if nodes:
        return encoded_json_response(view(nodes).encode(), headers=headers)
    text = await ctx.ledger.read(lambda db: view(trees.tree(db, job_id)).encode())
    return encoded_json_response(text, headers=headers)
