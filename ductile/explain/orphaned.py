"""Jobs that are `running` in a ledger that no service has open, and how lists and trees show them.

`status` stays what the ledger has, so that filters keep working; `orphaned` is added beside it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from ductile.core.instance.lock import LOCK_NAME, is_locked
from ductile.core.statuses import ENDED_BY_OPERATOR

J = TypeVar("J", bound=Mapping[str, Any])
DIED_WHILE_RUNNING = "The service died while the job was running."


def has_service(ledger: Path) -> bool:
    """True while a service has the ledger open. Without one, no job of it is running."""
    return is_locked(ledger.parent / LOCK_NAME)


def mark_orphans(jobs: Sequence[J], ledger: Path) -> list[J]:
    """Return the same jobs, with `orphaned` set on those that no service runs."""
    orphans = [job["status"] == "running" for job in jobs]
    if not any(orphans) or has_service(ledger):
        return list(jobs)
    marked = ({**job, "orphaned": True} if is_orphan else job for job, is_orphan in zip(jobs, orphans, strict=True))
    return cast(list[J], list(marked))


def display_status(job: Mapping[str, Any]) -> str:
    """Return the status to show: `orphaned` without a service, `cancelled` or `purged` if an operator ended the job."""
    if job.get("orphaned"):
        return "orphaned"
    code = job.get("outcome_code")
    return str(code if code in ENDED_BY_OPERATOR else job["status"])


def display_error(job: Mapping[str, Any]) -> str:
    """Return the error to show; empty if there is none."""
    return DIED_WHILE_RUNNING if job.get("orphaned") else str(job.get("last_error") or "")
