"""Named places where a test can make the core die, to prove that nothing is lost there.

Off unless DUCTILE_FAILPOINT is set when the process starts: `NAME` or `NAME:COUNT` kills it when it gets to that place
for the COUNT-th time. Otherwise every place is a call that does nothing.
"""

import os
import signal

from attrs import define

NAMES = frozenset(
    {
        "enqueue.before_begin",
        "enqueue.after_insert",
        "enqueue.after_commit",
        "commit.before",
        "commit.after",
        "checkpoint.before",
        "checkpoint.after",
        "claim.after_commit",
        "spawn.before",
        "spawn.after",
        "process.after_commit",
        "plugin.exited",
        "record.before",
        "record.after_status",
        "record.after_retry",
        "record.after_facts",
        "record.after_children",
        "record.after_commit",
        "record.after_arrivals",
        "settle.after_join",
        "start_run.after_root",
        "recover.after_first",
        "breaker.after_change",
        "reload.before_commit",
        "reload.after_swap",
        "drain.started",
        "prune.half_way",
        "schedule.before_fire",
        "schedule.after_insert",
        "schedule.after_commit",
    }
)


@define
class _Armed:
    """The one place where this process is to die."""

    name: str
    passes_left: int

    def __call__(self, name: str) -> None:
        if name == self.name:
            self.passes_left -= 1
            if self.passes_left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def _pass_by(name: str) -> None:
    """Nothing happens here in production."""


def _armed_by(variable: str) -> _Armed:
    name, _, count = variable.partition(":")
    if name not in NAMES:
        raise SystemExit(f"DUCTILE_FAILPOINT: there is no failpoint {name!r}; there are {', '.join(sorted(NAMES))}")
    return _Armed(name, int(count or 1))


failpoint = _armed_by(os.environ["DUCTILE_FAILPOINT"]) if "DUCTILE_FAILPOINT" in os.environ else _pass_by
