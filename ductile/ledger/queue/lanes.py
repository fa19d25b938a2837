"""Lanes: one plugin's ready jobs in order of arrival. Which of them have work, for those who claim and who look."""

from ductile.ledger.queue import joins
from ductile.ledger.storage.db import Db

# One step per lane that has jobs, however many jobs it has.
LANES = """
    WITH RECURSIVE lane (plugin) AS (
        SELECT MIN(job.lane) FROM job_queue AS job WHERE job.lane IS NOT NULL
        UNION ALL
        SELECT (SELECT MIN(job.lane) FROM job_queue AS job WHERE job.lane > lane.plugin)
          FROM lane WHERE lane.plugin IS NOT NULL
    )
    SELECT plugin FROM lane WHERE plugin IS NOT NULL
"""


def lanes_with_work(db: Db) -> list[str]:
    """The plugins that have a job ready, whether or not somebody may claim it."""
    return [plugin for (plugin,) in db.execute(LANES) if plugin != joins.LANE]
