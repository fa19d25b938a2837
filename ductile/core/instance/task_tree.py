"""The tree of running Trio tasks, for `ductile system tasks`: which tasks exist, and which nursery owns each."""

from typing import Annotated, Any, TypedDict

import trio
from attrs import frozen

MODULES = ("ductile.", "hypercorn.", "quart", "trio.")


class TaskView(TypedDict):
    name: str
    tasks: Annotated[list[Any], "The child tasks, with the same members"]


@frozen
class TaskNode:
    """A task and the tasks in its nurseries, outer nursery first."""

    name: str
    tasks: tuple["TaskNode", ...] = ()

    def as_data(self) -> TaskView:
        return {"name": self.name, "tasks": [task.as_data() for task in self.tasks]}


def task_tree(root: str) -> TaskNode | None:
    """Return the tree below the task named `root`, or None if there is no such task."""
    top = trio.lowlevel.current_root_task()
    return _find(_node(top), root) if top is not None else None


def _node(task: trio.lowlevel.Task) -> TaskNode:
    children = [
        _node(child) for nursery in task.child_nurseries for child in sorted(nursery.child_tasks, key=_short_name)
    ]
    return TaskNode(_short_name(task), tuple(children))


def _short_name(task: trio.lowlevel.Task) -> str:
    """Return the name given at the start of the task, or the function's name without its module."""
    is_function = task.name.startswith(MODULES)
    return task.name.rpartition(".")[2].lstrip("_") if is_function else task.name


def _find(node: TaskNode, name: str) -> TaskNode | None:
    if node.name == name:
        return node
    return next((found for child in node.tasks if (found := _find(child, name)) is not None), None)
