"""Record completions and claim the next jobs in one transaction."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from ductile.core.model import Budget, Completion
from ductile.ledger.completion.record import Recorded, Stale
from ductile.ledger.completion.record_completion import record_or_give_up
from ductile.ledger.jobs.dedupe import DEFAULT_TTL
from ductile.ledger.jobs.tree_counters import DEFAULT_BUDGET
from ductile.ledger.queue.claim import Claimed, claim_next
from ductile.ledger.storage.db import Db


def record_and_claim(
    db: Db,
    endings: Sequence[Completion],
    *,
    now: datetime,
    run_id: str,
    free: Mapping[str, int],
    limit: int,
    default_ttl: timedelta = DEFAULT_TTL,
    budget: Budget = DEFAULT_BUDGET,
    **more: Any,
) -> tuple[list[Recorded | Stale], Claimed]:
    """Return the recorded completions and resolved joins, and the claim."""
    rules: dict[str, Any] = {"now": now, "run_id": run_id, "default_ttl": default_ttl, "budget": budget}
    recorded = [record_or_give_up(db, ending, **rules) for ending in endings]
    settled, claimed = claim_next(db, free=free, limit=limit, **rules, **more)
    return [*recorded, *settled], claimed
