"""Track which queued jobs would survive a power cut, so that a claimed job starts no earlier than that.

Waiting for every commit before the claim would be correct too, but those include the completions of other jobs.
"""

from collections import deque

from attrs import define, field

from ductile.core.model import Job


@define(eq=False)
class DurableJobs:
    """The position in the queue up to which all jobs are durable."""

    pending: deque[tuple[int, int]] = field(factory=deque)
    """Commits that are not durable yet, each with the newest position in the queue at that time."""
    _position: int = 0

    def note(self, commit: int, newest_position: int, *, durable_commit: int) -> None:
        """Note that the queue ended at `newest_position` when `commit` was made. Forget what is durable."""
        self._advance(durable_commit)
        if not self.pending or self.pending[-1][1] < newest_position:
            self.pending.append((commit, newest_position))

    def has(self, job: Job, durable_commit: int) -> bool:
        """True if the row of the job was last made claimable by a durable commit.

        Known for first attempts only: a retry, or a job that waited for its dedupe key, is an old row that changed.
        """
        self._advance(durable_commit)
        return job.attempt == 1 and job.dedupe_key is None and job.seq <= self._position

    def _advance(self, durable_commit: int) -> None:
        while self.pending and self.pending[0][0] <= durable_commit:
            self._position = self.pending.popleft()[1]
