"""The task tree of a running service is the one that docs/architecture.md draws."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.e2e.service import Home, Service

Start = Callable[..., Service]
PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
UNTIL_KILLED = "#!/bin/sh\ncat >/dev/null\nexec sleep 3600\n"
WEBHOOKS = """
include: [tokens.yaml]
webhooks:
  listen: 127.0.0.1:0
  endpoints: [{path: /hook, plugin: slow, scheme: github, secret_ref: hook}]
"""
Branch = tuple[int, str]
"""The depth of a task, and the first word of its name if more words tell one such task from another."""


def branch(depth: int, name: str) -> Branch:
    first = name.split()[0]
    return depth, first if first in ("job", "connection", "listener") else name


def drawn() -> list[Branch]:
    (block,) = re.findall(r"<!-- tasks -->\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    marked = (re.fullmatch(r"([│├└─ ]*)(.*)", line) for line in block.splitlines())
    return [branch(len(line[1]) // 4, line[2]) for line in marked if line]


def running(task: dict[str, Any], depth: int = 0) -> Iterator[Branch]:
    """The tree as the service shows it, without what a connection does inside."""
    yield branch(depth, task["name"])
    if not task["name"].startswith("connection"):
        for child in task["tasks"]:
            yield from running(child, depth + 1)


def _distinct(branches: Iterable[Branch]) -> list[Branch]:
    """One of each row of equal branches: how many clients are connected does not matter."""
    return [one for one, _ in groupby(branches)]


def test_the_task_tree_is_the_one_of_the_architecture_page(home: Home, start: Start) -> None:
    """A running job has a task with its pipes below the dispatcher; a server has its listeners and connections."""
    home.plugin("slow", UNTIL_KILLED)
    home.write("tokens.yaml", "tokens: [{name: hook, key: 12345678901234567890}]\n")
    home.add(WEBHOOKS)
    home.seal()
    service = start()
    job_id = service.post("slow")
    service.wait_for(lambda one: one.job(job_id)["status"] == "running", "a running job")
    _, tree = service.ask("GET", "/system/tasks")
    assert _distinct(running(tree)) == _distinct(drawn())
