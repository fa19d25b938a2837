"""The task tree of a running service equals the one in docs/architecture.md."""

import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.e2e.service import Home, Start

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
BLOCKING = "#!/bin/sh\ncat >/dev/null\nexec sleep 3600\n"
WEBHOOKS = """
include: [tokens.yaml]
webhooks:
  listen: 127.0.0.1:0
  endpoints: [{path: /hook, plugin: slow, scheme: github, secret_ref: hook}]
"""
Branch = tuple[int, str]
"""The depth of a task and its name. Tasks with one name per job or connection have the first word only."""


def branch_of(depth: int, name: str) -> Branch:
    first = name.split()[0]
    return depth, first if first in ("job", "connection", "listener") else name


def documented_branches() -> list[Branch]:
    (block,) = re.findall(r"<!-- tasks -->\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    marked = (re.fullmatch(r"([│├└─ ]*)(.*)", line) for line in block.splitlines())
    return [branch_of(len(line[1]) // 4, line[2]) for line in marked if line]


def running_branches(task: dict[str, Any], depth: int = 0) -> Iterator[Branch]:
    """Yield the branches of the service's task tree without the inner tasks of connections."""
    yield branch_of(depth, task["name"])
    if not task["name"].startswith("connection"):
        for child in task["tasks"]:
            yield from running_branches(child, depth + 1)


def _without_repeats(branches: Iterable[Branch]) -> list[Branch]:
    """Collapse equal neighbours: the number of connections does not matter."""
    return [one for one, _ in groupby(branches)]


def test_the_task_tree_equals_the_one_in_the_architecture_page(home: Home, start: Start) -> None:
    """A running job has a task with its pipes below the dispatcher. A server has its listeners and connections."""
    home.plugin("slow", BLOCKING)
    home.write("tokens.yaml", "tokens: [{name: hook, key: 12345678901234567890}]\n")
    home.add(WEBHOOKS)
    home.seal()
    service = start()
    job_id = service.post("slow")
    service.wait_for(lambda one: one.job(job_id)["status"] == "running", "a running job")
    _, tree = service.ask("GET", "/system/tasks")
    assert _without_repeats(running_branches(tree)) == _without_repeats(documented_branches())
