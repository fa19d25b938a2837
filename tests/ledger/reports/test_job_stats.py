"""Job statistics: counts, percentiles, trends."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ductile.core.model import Dead, Succeeded
from ductile.ledger.reports import job_stats
from ductile.ledger.reports.job_stats import Sample, group_by_step, nearest_rank, timing

NOW = datetime(2026, 2, 8, 9, 30, tzinfo=UTC)


def test_jobs_are_counted_by_status_since_a_time(ledger: Any) -> None:
    """Statuses without jobs are left out."""
    ledger.enqueue()
    ledger.advance(hours=30)
    start = ledger.now
    for outcome in (None, Dead("no")):
        ledger.enqueue(plugin="new")
        ledger.end(ledger.claim_one("new"), outcome)
    ledger.enqueue(plugin="new")
    assert job_stats.count_since(ledger.db, start) == {"queued": 1, "succeeded": 1, "dead": 1}


def test_running_jobs_are_listed_longest_first(ledger: Any) -> None:
    """With plugin, command and start time."""
    made = [ledger.enqueue(plugin=plugin).job_id for plugin in ("b", "a", "c")]
    for plugin in ("b", "a"):
        ledger.claim_one(plugin)
        ledger.advance(seconds=1)
    assert [job.job_id for job in job_stats.active_jobs(ledger.db)] == made[:2]


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([7], 50, 7),
        ([7], 99, 7),
        ([1, 2], 50, 1),
        ([1, 2, 3], 50, 2),
        ([15, 20, 35, 40, 50], 30, 20),
        ([15, 20, 35, 40, 50], 40, 20),
        ([15, 20, 35, 40, 50], 100, 50),
        (list(range(1, 101)), 95, 95),
        (list(range(1, 101)), 99, 99),
        (list(range(1, 22)), 95, 20),
    ],
)
def test_a_percentile_is_a_measured_value(values: list[int], percent: int, expected: int) -> None:
    """Nearest rank, without interpolation."""
    assert nearest_rank(values, percent) == expected


def test_the_trend_divides_the_window_into_sixty_parts() -> None:
    """A part without samples has no value. The ends of the window belong to the first and the last part."""
    since, window = NOW - timedelta(hours=1), timedelta(hours=1)
    ended = {since: 10, since + timedelta(minutes=1, seconds=30): 20, NOW: 30}
    taken = [
        Sample(command="poll", step=None, completed_at=moment, milliseconds=value) for moment, value in ended.items()
    ]
    trend = timing("poll", taken, since=since, window=window).trend_p95
    assert (len(trend), trend[0], trend[1], trend[2], trend[59]) == (60, 10, 20, None, 30)


def test_samples_are_the_attempts_of_one_plugin_within_the_window(ledger: Any) -> None:
    """Grouped by command and pipeline step, up to a limit."""
    since = ledger.now
    for plugin, values in (("echo", {}), ("other", {}), ("echo", {"pipeline": "report", "step_id": "send"})):
        ledger.enqueue(plugin=plugin, **values)
        evidence = ledger.evidence(duration=timedelta(milliseconds=40), result="{}")
        ledger.end(ledger.claim_one(plugin), Succeeded(evidence))
    taken = job_stats.samples(ledger.db, "echo", since)
    assert {step: len(found) for step, found in group_by_step(taken)["poll"].items()} == {None: 1, "report/send": 1}
    assert {sample.milliseconds for sample in taken} == {40}
    assert job_stats.samples(ledger.db, "echo", ledger.now + timedelta(seconds=1)) == []
    assert len(job_stats.samples(ledger.db, "echo", since, limit=1)) == 1
