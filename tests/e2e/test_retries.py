"""Retries of failed attempts."""

import signal

from ductile.core.clock import from_text
from tests.e2e.service import Home, Start


def test_a_retry_starts_when_it_is_due_while_another_job_runs(home: Home, start: Start) -> None:
    """The dispatcher waits for the due time and not for its next poll of the queue.

    The shortest of several waits is compared, so that a busy host does not fail the test."""
    home.plugin("sleeper", "#!/bin/sh\nexec sleep 600\n")
    home.plugin("failing", "#!/bin/sh\nexit 1\n")
    home.add("plugins:\n  sleeper: {}\n  failing: {retry: {max_attempts: 6, backoff_base: 2ms}}\n")
    service = start()
    service.post("sleeper")

    job = service.run("failing")

    assert job["status"] == "dead"
    due = home.rows(
        "SELECT data ->> 'next_retry_at' AS at FROM journal WHERE kind = 'job.retry_scheduled' ORDER BY seq"
    )
    starts = home.rows("SELECT at FROM journal WHERE kind = 'job.started' AND job_id = ? ORDER BY seq", job["job_id"])
    waits = [from_text(started["at"]) - from_text(row["at"]) for row, started in zip(due, starts[1:], strict=True)]
    assert len(waits) == 5
    assert min(waits).total_seconds() < 0.5
    service.signal(signal.SIGINT)
    service.wait_for_log("SIGINT: draining")
    service.signal(signal.SIGINT)  # the second signal ends the running job
    service.wait()
