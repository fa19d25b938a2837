"""Failpoints: named places in the code where a test can kill the process, to prove that no data is lost there.

Disabled unless DUCTILE_FAILPOINT is set when the process starts. `NAME` or `NAME:COUNT` sends SIGKILL when the process
reaches that failpoint for the COUNT-th time.
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
        "exchange.publish",
        "exchange.claim",
        "exchange.end",
        "exchange.expire",
        "exchange.consume",
    }
)


@define
class _Armed:
    """The failpoint at which this process kills itself."""

    name: str
    remaining: int

    def __call__(self, name: str) -> None:
        if name == self.name:
            self.remaining -= 1
            if self.remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def _disabled(name: str) -> None:
    """Do nothing."""


def _arm(variable: str) -> _Armed:
    name, _, count = variable.partition(":")
    if name not in NAMES:
        raise SystemExit(f"DUCTILE_FAILPOINT: unknown failpoint {name!r}; available: {', '.join(sorted(NAMES))}")
    return _Armed(name, int(count or 1))


failpoint = _arm(os.environ["DUCTILE_FAILPOINT"]) if "DUCTILE_FAILPOINT" in os.environ else _disabled
