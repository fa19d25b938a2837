"""What `job inspect` shows of a job's way: its changes of state, the configurations it met, whether they agree."""

from pathlib import Path
from typing import Any

from ductile.core.clock import to_text
from ductile.core.model import Job, JobStatus
from ductile.explain import finished
from ductile.explain.orphaned import has_service
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import snapshots


def past(db: Db, report: Any) -> dict[str, Any]:
    """Transitions, consistency and configurations of a reported job."""
    transitions = [
        {"from": entry.data.get("from"), "to": entry.data["to"], "at": to_text(entry.at), "reason": _reason(entry.data)}
        for entry in report.journal
        if entry.data.get("to")
    ]
    latest = transitions[-1]["to"] if transitions else None
    job = report.job
    ran = max((attempt.attempt for attempt in report.attempts), default=0)
    return {
        "transitions": transitions,
        "consistency": {
            "latest_transition_status": latest,
            "cached_status_matches": latest in (None, str(job.status)),
            "attempt_facts_match": ran <= job.attempt,
            "legacy_missing_data": not transitions,
        },
        "config": _config(db, job.enqueued_snapshot_id, job.started_snapshot_id),
    }


def orphaned(job: Job, ledger: Path) -> dict[str, Any]:
    """Whether nobody runs it although it says `running`, and what becomes of it then."""
    if job.status is not JobStatus.RUNNING or has_service(ledger):
        return {"orphaned": False, "words": None}
    return {"orphaned": True, "words": finished.orphaned(job).words}


def _reason(data: Any) -> str | None:
    reason = data.get("reason") or data.get("error")
    return str(reason) if reason else None


def _config(db: Db, enqueued: str | None, started: str | None) -> dict[str, Any]:
    """Under which configuration it was asked for and began."""
    named = {"enqueued": enqueued, "started": started}
    known = {moment: snapshots.get(db, ref) for moment, ref in named.items() if ref is not None}
    return {
        **{moment: _snapshot(found) for moment, found in known.items() if found is not None},
        "crossed_reload_boundary": None not in (enqueued, started) and enqueued != started,
        "legacy_missing_data": enqueued is None,
        "missing_snapshot_refs": sorted({str(named[moment]) for moment, found in known.items() if found is None}),
    }


def _snapshot(found: snapshots.StoredSnapshot) -> dict[str, Any]:
    names = ("id", "config_hash", "source_hash", "source_path", "source", "reason")
    more = ("ductile_version", "binary_path", "snapshot_format", "semantics")
    shown = {name: getattr(found, name) for name in names} | {"loaded_at": to_text(found.loaded_at)}
    return shown | {name: getattr(found, name) for name in more}
