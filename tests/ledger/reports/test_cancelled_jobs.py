"""Jobs that an operator cancelled or purged are dead, and every list and count tells them apart."""

from typing import Any

from ductile.core.model import Dead, OutcomeCode
from ductile.ledger.admin import job_actions
from ductile.ledger.reports import job_details, job_list, job_stats, queue_status, trees
from ductile.ledger.storage.connections import transaction

CODES = ["purged", "cancelled", "attempts_used_up"]


def end_three_jobs(ledger: Any) -> list[str]:
    """Let one job fail, cancel one and purge one. Return their ids in this order."""
    ids = [ledger.enqueue(plugin=plugin).job_id for plugin in ("broken", "echo", "echo")]
    ledger.end(ledger.claim_one("broken"), Dead("no", code=OutcomeCode.ATTEMPTS_USED_UP))
    with transaction(ledger.db):
        job_actions.cancel(ledger.db, ids[1], "not needed", now=ledger.now)
        job_actions.purge(ledger.db, "echo", 99, "flood", now=ledger.now)
    return ids


def test_lists_have_the_outcome_code(ledger: Any) -> None:
    ids = end_three_jobs(ledger)

    assert [row["outcome_code"] for row in job_list.jobs(ledger.db).items] == CODES
    assert [job_details.brief(ledger.db, job_id).job.outcome_code for job_id in ids] == CODES[::-1]
    assert [trees.tree(ledger.db, job_id)[0].job.outcome_code for job_id in ids] == CODES[::-1]


def test_a_job_that_only_the_log_has_keeps_its_outcome_code(ledger: Any) -> None:
    ids = end_three_jobs(ledger)
    ledger.db.execute("DELETE FROM job_queue")

    assert [job_details.require_job(ledger.db, job_id).outcome_code for job_id in ids] == CODES[::-1]


def test_cancelled_jobs_are_counted(ledger: Any) -> None:
    end_three_jobs(ledger)

    queue = queue_status.queue(ledger.db)
    assert (queue.dead, queue.cancelled) == (3, 2)
    assert job_stats.count_cancelled_since(ledger.db, ledger.now) == 2


def test_a_retried_job_has_no_outcome_code(ledger: Any) -> None:
    _, cancelled, _ = end_three_jobs(ledger)
    with transaction(ledger.db):
        job_actions.retry(ledger.db, cancelled, now=ledger.now)

    assert job_details.require_job(ledger.db, cancelled).outcome_code is None
    assert queue_status.queue(ledger.db).cancelled == 1
