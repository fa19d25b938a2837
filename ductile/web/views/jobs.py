"""Jobs, attempts, trees and runs as JSON text.

Pure. A plugin's response was validated when it was recorded, so it is copied into the text without being parsed.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict

from ductile.core.clock import to_text, to_text_or_none
from ductile.core.errors import Unreadable
from ductile.core.formats import strict_json
from ductile.core.formats.json_schema import Count, Omittable, Ordinal, Timestamp, without_none
from ductile.core.model import AttemptStatus, Job, JobStatus
from ductile.ledger.jobs.duplicates import DroppedJob
from ductile.ledger.reports.job_details import JobBrief, LoggedAttempt
from ductile.ledger.reports.trees import TreeNode, TreeStatus

if TYPE_CHECKING:
    from ductile.pipeline.compile.plan import Plans

MAX_OUTPUT_CHARS = 64 << 10
RESULT_SCOPE = "jobs:result:ro"
"""Without this scope, jobs are shown without result, output, last_error and stderr."""

_MILLISECOND = timedelta(milliseconds=1)

IsTerminal = Callable[[Job], bool]


class _AnyJob(TypedDict):
    job_id: str
    plugin: str
    command: str
    status: JobStatus
    attempt: Ordinal
    created_at: Timestamp
    parent_job_id: Omittable[str]
    pipeline: Omittable[str]
    step_id: Omittable[str]
    started_at: Omittable[Timestamp]
    completed_at: Omittable[Timestamp]
    outcome_code: Omittable[Annotated[str, "Why the job ended, such as attempts_used_up or cancelled"]]
    last_error: Omittable[Annotated[str, "Error of the last failed attempt"]]


class _SubmittedJob(_AnyJob):
    submitted_by: Annotated[str, "Origin of the job, such as api or scheduler"]
    actor: Omittable[Annotated[str, "Who caused its run, such as token:ci or uid:1000(alice)"]]
    max_attempts: Ordinal
    root_job_id: Annotated[str, "The root job of its tree"]
    next_retry_at: Omittable[Timestamp]


class _WithResult(TypedDict):
    result: NotRequired[Annotated[Any, "The response of the plugin, unchanged"]]
    output: NotRequired[Annotated[str, "The output of the plugin, if it is not a JSON object"]]


class JobView(_SubmittedJob, _WithResult):
    tree_status: Omittable[Annotated[TreeStatus, "Status of the whole run; only for an ended root job"]]
    schedule_id: Omittable[Annotated[str, "The schedule that created it"]]
    slot_at: Omittable[Annotated[Timestamp, "The slot of that schedule"]]
    source_event_id: Omittable[Annotated[str, "The event that it handles"]]
    replay_of: Omittable[Annotated[str, "The job of which it is a replay"]]
    stderr: Omittable[Annotated[str, "Stderr of a running job so far"]]


class ListedJobView(_SubmittedJob):
    schedule_id: Omittable[str]
    slot_at: Omittable[Timestamp]


class AttemptView(_WithResult):
    """A recorded attempt."""

    log_id: Annotated[str, "<job>-<attempt>"]
    job_id: str
    plugin: str
    command: str
    status: AttemptStatus
    job_status: Annotated[JobStatus, "Status of the job after the attempt; queued for a retry"]
    attempt: Ordinal
    submitted_by: str
    created_at: Timestamp
    started_at: Omittable[Timestamp]
    completed_at: Timestamp
    duration_ms: Omittable[Count]
    exit_code: Omittable[int]
    signal: Omittable[int]
    outcome_code: Omittable[Annotated[str, "Why the job ended with this attempt"]]
    last_error: Omittable[Annotated[str, "Error of the last failed attempt"]]
    stderr: Omittable[str]
    result_omitted: Omittable[Annotated[bool, "True if the result is too large for a list"]]


class DuplicateView(TypedDict):
    """A follow-up job that was not created."""

    plugin: str
    command: str
    winner: Annotated[str, "The job with the same dedupe key"]
    reason: Annotated[str, "recent_success or outstanding"]


class TreeNodeView(_AnyJob, _WithResult):
    """A job in its tree."""

    terminal: Omittable[Annotated[bool, "True if it belongs to a terminal step"]]
    tolerated: Omittable[Annotated[bool, "True if its failure does not fail the run"]]
    duration_ms: Omittable[Count]
    duplicates: Omittable[Annotated[list[DuplicateView], "Follow-up jobs that were not created"]]


IfHolds = Annotated[bool, "Value of the pipeline's own `if`, which a run by name does not apply; absent without one"]


class _RunSummary(TypedDict):
    job_id: str
    status: JobStatus
    duration_ms: Count
    if_holds: Omittable[IfHolds]


class RunView(_RunSummary):
    """A finished run of a pipeline."""

    result: Annotated[Any, "Result of the last terminal job"]
    tree: list[TreeNodeView]


class AcceptedView(TypedDict):
    """A job that was created."""

    job_id: str
    status: JobStatus
    plugin: str
    command: str


class PlannedView(TypedDict):
    """The job that a dry run would create."""

    status: Literal["planned"]
    plugin: str
    command: str
    dry_run: bool


class AcceptedRunView(AcceptedView):
    """The first job of a run that was started by name."""

    if_holds: Omittable[IfHolds]


class PlannedRunView(PlannedView):
    """The run that a dry run would start."""

    if_holds: Omittable[IfHolds]


def terminal_predicate(plans: "Plans") -> IsTerminal:
    """Return a predicate that is true for jobs of terminal steps."""

    def is_terminal(job: Job) -> bool:
        plan = plans.by_name.get(job.pipeline or "")
        node = plan.nodes.get(job.step_id or "") if plan is not None else None
        return node is not None and node.is_terminal

    return is_terminal


def job_json(report: JobBrief, stderr: str | None, *, tree: TreeStatus | None = None, shows_result: bool = True) -> str:
    """Return a job. `stderr` is the output of a running job so far, `tree` the status of its whole tree."""
    job = report.job
    content: JobView = {
        "job_id": job.id,
        "status": job.status,
        "tree_status": tree,
        "plugin": job.plugin,
        "command": job.command,
        "submitted_by": job.submitted_by,
        "actor": job.actor,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "parent_job_id": job.parent_job_id,
        "root_job_id": job.root_job_id,
        "pipeline": job.pipeline,
        "step_id": job.step_id,
        "schedule_id": job.schedule_id,
        "slot_at": to_text_or_none(job.slot_at),
        "source_event_id": job.source_event_id,
        "replay_of": job.replay_of,
        "created_at": to_text(job.created_at),
        "started_at": to_text_or_none(job.started_at),
        "completed_at": to_text_or_none(job.completed_at),
        "next_retry_at": to_text_or_none(job.next_retry_at),
        "outcome_code": job.outcome_code,
        "last_error": job.last_error if shows_result else None,
        "stderr": stderr if shows_result else None,
    }
    return _with_result(content, report.result if shows_result else None, job)


def job_list_view(job: Job, *, shows_result: bool) -> ListedJobView:
    """Return a job as a list item."""
    content: ListedJobView = {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "status": job.status,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "submitted_by": job.submitted_by,
        "actor": job.actor,
        "parent_job_id": job.parent_job_id,
        "root_job_id": job.root_job_id,
        "pipeline": job.pipeline,
        "step_id": job.step_id,
        "schedule_id": job.schedule_id,
        "slot_at": to_text_or_none(job.slot_at),
        "created_at": to_text(job.created_at),
        "started_at": to_text_or_none(job.started_at),
        "completed_at": to_text_or_none(job.completed_at),
        "next_retry_at": to_text_or_none(job.next_retry_at),
        "outcome_code": job.outcome_code,
        "last_error": job.last_error if shows_result else None,
    }
    return without_none(content)


def attempt_json(attempt: LoggedAttempt, result: tuple[str | None, bool] | None, *, shows_result: bool) -> str:
    """Return an attempt as a list item. `result` is its result (None if too large), and whether it has one."""
    result_text, has_result = result or (None, False)
    content: AttemptView = {
        "log_id": attempt.id,
        "job_id": attempt.job_id,
        "plugin": attempt.plugin,
        "command": attempt.command,
        "status": attempt.status,
        "job_status": attempt.job_status,
        "attempt": attempt.attempt,
        "submitted_by": attempt.submitted_by,
        "created_at": to_text(attempt.created_at),
        "started_at": to_text_or_none(attempt.started_at),
        "completed_at": to_text(attempt.completed_at),
        "duration_ms": None if attempt.duration is None else attempt.duration // _MILLISECOND,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "outcome_code": attempt.outcome_code,
        "last_error": attempt.last_error if shows_result else None,
        "stderr": attempt.stderr if shows_result else None,
        "result_omitted": True if has_result and result_text is None else None,
    }
    return _with_result_or_output(content, result_text, is_json=result_text is not None and _is_object(result_text))


def tree_json(nodes: Iterable[TreeNode], is_terminal: IsTerminal, *, shows_result: bool = True) -> str:
    """Return the jobs of a tree as a list."""
    return f"[{','.join(_node_json(node, is_terminal, shows_result=shows_result) for node in nodes)}]"


def run_json(nodes: Sequence[TreeNode], pipeline: str, is_terminal: IsTerminal, *, if_holds: bool | None = None) -> str:
    """Return a finished run of `pipeline` with its status, result and tree."""
    root = nodes[0].job
    ended_at = max((node.job.completed_at for node in nodes if node.job.completed_at), default=root.created_at)
    duration = _milliseconds_between(root.created_at, ended_at)
    summary = _RunSummary(job_id=root.id, status=run_status(nodes), duration_ms=duration, if_holds=if_holds)
    head = strict_json.dumps(without_none(summary))
    result = _run_result(nodes, pipeline, is_terminal)
    return f'{head[:-1]},"result":{result or "null"},"tree":{tree_json(nodes, is_terminal)}}}'


def run_status(nodes: Iterable[TreeNode]) -> JobStatus:
    """Return the status of the last failed or dead job that is not tolerated; succeeded if there is none."""
    failures = [node.job.status for node in nodes if _is_failure(node.job) and not node.job.tolerated]
    return failures[-1] if failures else JobStatus.SUCCEEDED


def _run_result(nodes: Sequence[TreeNode], pipeline: str, is_terminal: IsTerminal) -> str | None:
    """Return the result of the last terminal job of this pipeline, else of the root job."""
    terminal = (node for node in reversed(nodes) if node.job.pipeline == pipeline and is_terminal(node.job))
    last = next(terminal, nodes[0])
    return last.result if last.result is not None and _is_json_result(last.result, last.job) else None


def _node_json(node: TreeNode, is_terminal: IsTerminal, *, shows_result: bool) -> str:
    job = node.job
    content: TreeNodeView = {
        "job_id": job.id,
        "parent_job_id": job.parent_job_id,
        "plugin": job.plugin,
        "command": job.command,
        "status": job.status,
        "pipeline": job.pipeline,
        "step_id": job.step_id,
        "attempt": job.attempt,
        "terminal": is_terminal(job) or None,
        "tolerated": (job.tolerated and _is_failure(job)) or None,
        "created_at": to_text(job.created_at),
        "started_at": to_text_or_none(job.started_at),
        "completed_at": to_text_or_none(job.completed_at),
        "duration_ms": _duration_ms(job),
        "outcome_code": job.outcome_code,
        "last_error": job.last_error if shows_result else None,
        "duplicates": [_duplicate_view(one) for one in node.dropped] or None,
    }
    return _with_result(content, node.result if shows_result else None, job)


def _duplicate_view(dropped: DroppedJob) -> DuplicateView:
    return {
        "plugin": dropped.plugin,
        "command": dropped.command,
        "winner": dropped.winner,
        "reason": dropped.reason,
    }


def _with_result(content: Mapping[str, Any], result: str | None, job: Job) -> str:
    """Return `content` without null members, and with the result of `job`."""
    return _with_result_or_output(content, result, is_json=result is not None and _is_json_result(result, job))


def _with_result_or_output(content: Mapping[str, Any], result: str | None, *, is_json: bool) -> str:
    """Return `content` without null members, and with the result; as truncated `output` if it is not JSON."""
    present = dict(without_none(content))
    if result is not None and not is_json:
        present["output"], result = result[:MAX_OUTPUT_CHARS], None
    text = strict_json.dumps(present)
    return text if result is None else f'{text[:-1]},"result":{result}}}'


def _is_json_result(result: str, job: Job) -> bool:
    """True if `result` is a plugin response. Results of succeeded jobs are validated; others must be JSON objects."""
    if job.status is JobStatus.SUCCEEDED:
        return True
    return len(result) <= MAX_OUTPUT_CHARS and _is_object(result)


def _is_object(result: str) -> bool:
    try:
        return isinstance(strict_json.loads(result), dict)
    except Unreadable:
        return False


def _is_failure(job: Job) -> bool:
    return job.status in (JobStatus.FAILED, JobStatus.DEAD)


def _duration_ms(job: Job) -> int | None:
    if job.started_at is None or job.completed_at is None:
        return None
    return _milliseconds_between(job.started_at, job.completed_at)


def _milliseconds_between(since: datetime, until: datetime) -> int:
    """Return the milliseconds from `since` to `until`; 0 if the clock was set back in between."""
    return (until - since) // _MILLISECOND if until > since else 0
