"""Track which queued jobs are durable, because a claimed job must not start before it would survive a power cut.

Waiting for the newest commit would be correct too, but slower: it includes the completions of other jobs.
"""

from collections import deque

from attrs import define, field

from ductile.core.model import Job


@define(eq=False)
class DurableJobs:
    """The position in the queue up to which all jobs are durable."""

    pending: deque[tuple[int, int]] = field(factory=deque)
    """Commits that are not durable yet, each with the newest queue position at that commit."""
    _position: int = 0

    def add(self, commit: int, newest_position: int, *, durable_commit: int) -> None:
        """Add a commit with the newest queue position at that commit. Drops commits that are durable."""
        self._advance(durable_commit)
        if not self.pending or self.pending[-1][1] < newest_position:
            self.pending.append((commit, newest_position))

    def is_durable(self, job: Job, durable_commit: int) -> bool:
        """True if the commit that made the job claimable is known to be durable.

        Always False for retries and for jobs with a dedupe key: their rows can change after they were queued.
        """
        self._advance(durable_commit)
        return job.attempt == 1 and job.dedupe_key is None and job.seq <= self._position

    def _advance(self, durable_commit: int) -> None:
        while self.pending and self.pending[0][0] <= durable_commit:
            self._position = self.pending.popleft()[1]
