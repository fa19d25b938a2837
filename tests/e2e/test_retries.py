"""When a failed attempt is tried again."""

import signal
from collections.abc import Callable

from ductile.core.clock import from_text
from tests.e2e.service import Home, Service

Start = Callable[..., Service]


def test_a_retry_starts_when_it_is_due_although_another_job_is_running(home: Home, start: Start) -> None:
    """The end of a delay is known beforehand: nothing waits for the next bounded look at the queue.

    Only the shortest of several waits is looked at, so that a busy host cannot spoil the test.
    """
    home.plugin("sleeper", "#!/bin/sh\nexec sleep 600\n")
    home.plugin("fails", "#!/bin/sh\nexit 1\n")
    home.add("plugins:\n  sleeper: {}\n  fails: {retry: {max_attempts: 6, backoff_base: 2ms}}\n")
    service = start()
    service.post("sleeper")

    job = service.run("fails")

    assert job["status"] == "dead"
    due = home.rows(
        "SELECT data ->> 'next_retry_at' AS at FROM journal WHERE kind = 'job.retry_scheduled' ORDER BY seq"
    )
    begun = home.rows("SELECT at FROM journal WHERE kind = 'job.started' AND job_id = ? ORDER BY seq", job["job_id"])
    waits = [from_text(late["at"]) - from_text(row["at"]) for row, late in zip(due, begun[1:], strict=True)]
    assert len(waits) == 5
    assert min(waits).total_seconds() < 0.5
    service.signal(signal.SIGINT)
    service.wait_for_log("SIGINT: draining")
    service.signal(signal.SIGINT)  # which ends the sleeper too
    service.wait()
