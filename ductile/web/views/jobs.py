"""Jobs, trees and runs as the JSON that the API answers with.

A plugin's own answer only passes through: it was validated when it came, and is put into the text around it unread.
Pure; the handlers fetch what is shown here.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from ductile.core.clock import to_text
from ductile.core.errors import Unreadable
from ductile.core.formats import strict_json
from ductile.core.model import Job, JobStatus
from ductile.ledger.reports.job_details import JobBrief, LoggedAttempt
from ductile.ledger.reports.trees import TreeNode, TreeStatus

if TYPE_CHECKING:
    from ductile.pipeline.compile.plan import Plans

LONGEST_OUTPUT = 64 << 10
RESULT_SCOPE = "jobs:result:ro"
"""Without it jobs are shown without what their plugins said: result, output, error, stderr."""

_MILLISECOND = timedelta(milliseconds=1)

EndsRun = Callable[[Job], bool]


def ends_run(plans: "Plans") -> EndsRun:
    """Tells of a job whether its run may end with it."""

    def may_be_the_last(job: Job) -> bool:
        plan = plans.by_name.get(job.pipeline or "")
        node = plan.nodes.get(job.step_id or "") if plan is not None else None
        return node is not None and node.is_terminal

    return may_be_the_last


def job_text(report: JobBrief, stderr: str | None, *, tree: TreeStatus | None = None, shows_result: bool = True) -> str:
    """One job; `stderr` is what it has written so far, if it runs, `tree` how all that follows from it stands."""
    job = report.job
    content = {
        "job_id": job.id,
        "status": job.status,
        "tree_status": tree,
        "plugin": job.plugin,
        "command": job.command,
        "submitted_by": job.submitted_by,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "parent_job_id": job.parent_job_id,
        "root_job_id": job.root_job_id,
        "pipeline": job.pipeline,
        "step_id": job.step_id,
        "created_at": to_text(job.created_at),
        "started_at": _moment(job.started_at),
        "completed_at": _moment(job.completed_at),
        "next_retry_at": _moment(job.next_retry_at),
        "last_error": job.last_error if shows_result else None,
        "stderr": stderr if shows_result else None,
    }
    return _with_result(content, report.result if shows_result else None, job)


def listed_job(job: Job, *, shows_result: bool) -> dict[str, Any]:
    """One job of a list."""
    content = {
        "job_id": job.id,
        "plugin": job.plugin,
        "command": job.command,
        "status": job.status,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "submitted_by": job.submitted_by,
        "parent_job_id": job.parent_job_id,
        "root_job_id": job.root_job_id,
        "pipeline": job.pipeline,
        "step_id": job.step_id,
        "schedule_id": job.schedule_id,
        "slot_at": _moment(job.slot_at),
        "created_at": to_text(job.created_at),
        "started_at": _moment(job.started_at),
        "completed_at": _moment(job.completed_at),
        "next_retry_at": _moment(job.next_retry_at),
        "last_error": job.last_error if shows_result else None,
    }
    return {name: value for name, value in content.items() if value is not None}


def attempt_text(attempt: LoggedAttempt, result: tuple[str | None, bool] | None, *, shows_result: bool) -> str:
    """One attempt of a list; `result` is what it left, if that is wanted and small, and whether it left anything."""
    left, is_there = result or (None, False)
    content = {
        "log_id": attempt.id,
        "job_id": attempt.job_id,
        "plugin": attempt.plugin,
        "command": attempt.command,
        "status": attempt.status,
        "job_status": attempt.job_status,
        "attempt": attempt.attempt,
        "submitted_by": attempt.submitted_by,
        "created_at": to_text(attempt.created_at),
        "started_at": _moment(attempt.started_at),
        "completed_at": to_text(attempt.completed_at),
        "duration_ms": None if attempt.duration is None else attempt.duration // _MILLISECOND,
        "exit_code": attempt.exit_code,
        "signal": attempt.signal,
        "last_error": attempt.last_error if shows_result else None,
        "stderr": attempt.stderr if shows_result else None,
        "result_omitted": True if is_there and left is None else None,
    }
    return _with_answer(content, left, is_answer=left is not None and _is_object(left))


def tree_text(nodes: Iterable[TreeNode], ends: EndsRun, *, shows_result: bool = True) -> str:
    """The jobs of a tree, as a list in their order."""
    return f"[{','.join(_node_text(node, ends, shows_result=shows_result) for node in nodes)}]"


def run_text(nodes: Sequence[TreeNode], pipeline: str, ends: EndsRun) -> str:
    """A finished run of `pipeline`: what it came to, its result, and its tree."""
    root = nodes[0].job
    ended_at = max((node.job.completed_at for node in nodes if node.job.completed_at), default=root.created_at)
    duration = _millis(root.created_at, ended_at)
    head = strict_json.dumps({"job_id": root.id, "status": run_status(nodes), "duration_ms": duration})
    result = _result_of(nodes, pipeline, ends)
    return f'{head[:-1]},"result":{result or "null"},"tree":{tree_text(nodes, ends)}}}'


def run_status(nodes: Iterable[TreeNode]) -> JobStatus:
    """Succeeded, unless a job ended failed or dead and nobody tolerates that: then as the last of those ended."""
    bad = [node.job.status for node in nodes if _is_failure(node.job) and not node.job.tolerated]
    return bad[-1] if bad else JobStatus.SUCCEEDED


def _result_of(nodes: Sequence[TreeNode], pipeline: str, ends: EndsRun) -> str | None:
    """Of the last job with which the run may end, else of the root; runs that it triggered have ends of their own."""
    own = (node for node in reversed(nodes) if node.job.pipeline == pipeline and ends(node.job))
    last = next(own, nodes[0])
    return last.result if last.result is not None and _passes_through(last.result, last.job) else None


def _node_text(node: TreeNode, ends: EndsRun, *, shows_result: bool) -> str:
    job = node.job
    content = {
        "job_id": job.id,
        "parent_job_id": job.parent_job_id,
        "plugin": job.plugin,
        "command": job.command,
        "status": job.status,
        "pipeline": job.pipeline,
        "step_id": job.step_id,
        "attempt": job.attempt,
        "terminal": ends(job) or None,
        "tolerated": (job.tolerated and _is_failure(job)) or None,
        "created_at": to_text(job.created_at),
        "started_at": _moment(job.started_at),
        "completed_at": _moment(job.completed_at),
        "duration_ms": _duration(job),
        "last_error": job.last_error if shows_result else None,
    }
    return _with_result(content, node.result if shows_result else None, job)


def _with_result(content: dict[str, Any], result: str | None, job: Job) -> str:
    """What is known of `content`, and the result of `job`."""
    return _with_answer(content, result, is_answer=result is not None and _passes_through(result, job))


def _with_answer(content: dict[str, Any], result: str | None, *, is_answer: bool) -> str:
    """What is known of `content`, and the result; as `output` where it is not an answer but only what was printed."""
    present = {name: value for name, value in content.items() if value is not None}
    if result is not None and not is_answer:
        present["output"], result = result[:LONGEST_OUTPUT], None
    text = strict_json.dumps(present)
    return text if result is None else f'{text[:-1]},"result":{result}}}'


def _passes_through(result: str, job: Job) -> bool:
    """True if `result` is JSON: what succeeded was judged, of the rest only objects are answers."""
    if job.status is JobStatus.SUCCEEDED:
        return True
    return len(result) <= LONGEST_OUTPUT and _is_object(result)


def _is_object(result: str) -> bool:
    try:
        return isinstance(strict_json.loads(result), dict)
    except Unreadable:
        return False


def _is_failure(job: Job) -> bool:
    return job.status in (JobStatus.FAILED, JobStatus.DEAD)


def _duration(job: Job) -> int | None:
    if job.started_at is None or job.completed_at is None:
        return None
    return _millis(job.started_at, job.completed_at)


def _millis(since: datetime, until: datetime) -> int:
    """From one moment to the other; 0 if the clock was set back between."""
    return (until - since) // _MILLISECOND if until > since else 0


def _moment(moment: datetime | None) -> str | None:
    return to_text(moment) if moment else None
