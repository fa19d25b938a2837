"""Jobs that are running by a ledger that no service has: what lists and trees say of them.

`status` stays what the ledger has, for whoever filters by it; `orphaned` stands beside it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ductile.core.instance.lock import LOCK_NAME, is_held


def has_service(ledger: Path) -> bool:
    """Whether a service has the ledger; without one, nothing runs that it calls running."""
    return is_held(ledger.parent / LOCK_NAME)


def marked(jobs: Sequence[dict[str, Any]], ledger: Path) -> list[dict[str, Any]]:
    """The same jobs; those that nobody runs say so."""
    orphans = [job["status"] == "running" for job in jobs]
    if not any(orphans) or has_service(ledger):
        return list(jobs)
    return [{**job, "orphaned": True} if is_orphan else job for job, is_orphan in zip(jobs, orphans, strict=True)]


def shown_status(job: Mapping[str, Any]) -> str:
    """The status for people."""
    return "orphaned" if job.get("orphaned") else str(job["status"])


def shown_error(job: Mapping[str, Any]) -> str:
    """What went wrong with it, for people; nothing if nothing did."""
    return "it was running when the service died" if job.get("orphaned") else str(job.get("last_error") or "")
