"""Trees of jobs, as the API shows them, for people: indented lines, and what a run has come to."""

from typing import Any

from ductile.cli.base import output
from ductile.cli.base.long_poll import is_open
from ductile.cli.base.terminal import state
from ductile.explain.orphaned import shown_error, shown_status

DEEPEST_INDENT = 30
LONGEST_WORDS = 200


def tree_lines(tree: list[dict[str, Any]]) -> list[str]:
    """One line for each job, below the job that led to it."""
    below: dict[str | None, list[dict[str, Any]]] = {}
    known = {node["job_id"] for node in tree}
    for node in tree:
        parent = node.get("parent_job_id")
        below.setdefault(parent if parent in known else None, []).append(node)
    rows: list[tuple[str, ...]] = []
    # A stack of our own: a chain of steps can be longer than Python's.
    ahead = [(0, node) for node in reversed(below.get(None, []))]
    while ahead:
        depth, node = ahead.pop()
        rows.append(_row(depth, node))
        ahead += [(depth + 1, child) for child in reversed(below.get(node["job_id"], []))]
    return output.table(rows)


def _row(depth: int, node: dict[str, Any]) -> tuple[str, ...]:
    indent = "  " * min(depth - 1, DEEPEST_INDENT) + "└ " if depth else ""
    took = f"{node['duration_ms']} ms" if "duration_ms" in node else ""
    tries = f"attempt {node['attempt']}" if node["attempt"] > 1 else ""
    status = f"{node['status']} (tolerated)" if node.get("tolerated") else shown_status(node)
    what = f"{node['plugin']}.{node['command']}"
    return (f"{indent}{_name(node)}", what, status, took, tries, node["job_id"], _words(node))


def _name(node: dict[str, Any]) -> str:
    return str(node.get("step_id", node["plugin"]))


def _words(node: dict[str, Any]) -> str:
    """Why it is as it is, where there is something to say."""
    result = node.get("result")
    if node["plugin"] == "core.switch" and isinstance(result, dict):
        return "if is true" if result.get("matched") else "if is false"
    return " ".join(shown_error(node).split())[:LONGEST_WORDS]


def run_of(tree: list[dict[str, Any]], pipeline: str) -> dict[str, Any]:
    """What the service says about a run that it waited for, from the tree alone: the same rules."""
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
    """A run in a few lines; all of its jobs if `verbose`."""
    lines = [f"run {run['job_id']}: {state(run['status'])}"]
    result, tree = run.get("result"), run.get("tree", [])
    if run["status"] == "succeeded" and isinstance(result, dict) and result.get("result"):
        lines.append(f"  result: {result['result']}")
    lines += [f"  {_name(node)}: {_words(node) or node['status']}" for node in _failures(tree)]
    lines += [f"  {run['message']}"] if "message" in run else []
    lines += [f"  {line}" for line in tree_lines(tree)] if verbose else []
    return [*lines, f"  next: ductile job tree {run['job_id']}"]
