"""Format trees of jobs as indented lines, and the result of a run.

Works on the JSON form of the API.
"""

from typing import Any

from ductile.cli.base import output
from ductile.cli.base.long_poll import is_open
from ductile.cli.base.terminal import state
from ductile.explain.orphaned import display_error, display_status

MAX_INDENT = 30
MAX_ERROR_LENGTH = 200


def tree_lines(tree: list[dict[str, Any]]) -> list[str]:
    """Format each job as one line below its parent."""
    children: dict[str | None, list[dict[str, Any]]] = {}
    known = {node["job_id"] for node in tree}
    for node in tree:
        parent = node.get("parent_job_id")
        children.setdefault(parent if parent in known else None, []).append(node)
    rows: list[tuple[str, ...]] = []
    # An explicit stack: a chain of steps can exceed Python's recursion limit.
    pending = [(0, node) for node in reversed(children.get(None, []))]
    while pending:
        depth, node = pending.pop()
        rows.append(_row(depth, node))
        rows += [_duplicate_row(depth + 1, one) for one in node.get("duplicates", ())]
        pending += [(depth + 1, child) for child in reversed(children.get(node["job_id"], []))]
    return output.table(rows)


def _row(depth: int, node: dict[str, Any]) -> tuple[str, ...]:
    indent = _indent(depth)
    took = f"{node['duration_ms']} ms" if "duration_ms" in node else ""
    tries = f"attempt {node['attempt']}" if node["attempt"] > 1 else ""
    status = f"{node['status']} (tolerated)" if node.get("tolerated") else display_status(node)
    what = f"{node['plugin']}.{node['command']}"
    return (f"{indent}{_name(node)}", what, status, took, tries, node["job_id"], _reason(node))


def _indent(depth: int) -> str:
    return "  " * min(depth - 1, MAX_INDENT) + "└ " if depth else ""


def _duplicate_row(depth: int, dropped: dict[str, Any]) -> tuple[str, ...]:
    """Format a follow-up job that was not created."""
    what, why = f"{dropped['plugin']}.{dropped['command']}", f"same dedupe key as job {dropped['winner']}"
    return (f"{_indent(depth)}duplicate", what, "not created", "", "", "", why)


def _name(node: dict[str, Any]) -> str:
    return str(node.get("step_id", node["plugin"]))


def _reason(node: dict[str, Any]) -> str:
    """Return the error of the job, or the result of a condition."""
    result = node.get("result")
    if node["plugin"] == "core.switch" and isinstance(result, dict):
        return "if is true" if result.get("matched") else "if is false"
    return " ".join(display_error(node).split())[:MAX_ERROR_LENGTH]


def run_result(tree: list[dict[str, Any]], pipeline: str) -> dict[str, Any]:
    """Compute the result of a run from its tree, by the rules of the service."""
    bad = [node["status"] for node in _failures(tree)]
    ends = [node for node in tree if node.get("terminal") and node.get("pipeline") == pipeline]
    return {
        "job_id": tree[0]["job_id"],
        "status": "running" if any(map(is_open, tree)) else bad[-1] if bad else "succeeded",
        "result": (ends[-1] if ends else tree[0]).get("result"),
        "tree": tree,
    }


def _failures(tree: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [node for node in tree if node["status"] in ("failed", "dead") and not node.get("tolerated")]


def run_lines(run: dict[str, Any], *, verbose: bool) -> list[str]:
    """Format a run; with `verbose`, all of its jobs."""
    lines = [f"run {run['job_id']}: {state(run['status'])}"]
    result, tree = run.get("result"), run.get("tree", [])
    if run["status"] == "succeeded" and isinstance(result, dict) and result.get("result"):
        lines.append(f"  result: {result['result']}")
    lines += [f"  {_name(node)}: {_reason(node) or node['status']}" for node in _failures(tree)]
    lines += [f"  {run['message']}"] if "message" in run else []
    lines += [f"  {line}" for line in tree_lines(tree)] if verbose else []
    return [*lines, f"  next: ductile job tree {run['job_id']}"]
