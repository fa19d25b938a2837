"""Lists of jobs and attempts: filters, order, pages, and bounded cost."""

import sqlite3
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ductile.core.model import Dead, Failed, Outcome, Retried, Skipped, Succeeded
from ductile.ledger.reports import attempt_list, job_list, pagination
from ductile.ledger.reports.pagination import ListFilter, Page

HOUR = timedelta(hours=1)


def ids(page: Page[job_list.JobRow]) -> list[str]:
    return [job["job_id"] for job in page.items]


def test_jobs_are_listed_newest_first_in_pages(ledger: Any) -> None:
    """Each page begins where the previous one ended. The last one has no next page."""
    made = [ledger.enqueue().job_id for _ in range(10)]
    first = job_list.jobs(ledger.db, limit=4)
    second = job_list.jobs(ledger.db, limit=6, before=first.next_before or 0)
    assert (ids(first), ids(second)) == (made[:5:-1], made[5::-1])
    assert (first.total, second.total, second.next_before) == (10, 10, None)


def create_jobs(ledger: Any) -> dict[str, str]:
    """Create one job of each kind. Return their ids by name."""

    def over(outcome: Outcome | None, **values: Any) -> str:
        made: str = ledger.enqueue(**values).job_id
        ledger.end(ledger.claim_one(values.get("plugin", "echo")), outcome)
        ledger.advance(hours=1)
        return made

    return {
        "first": over(None),
        "dead": over(Dead("no such host: x_y%", ledger.evidence(stderr="Traceback"))),
        "other dead": over(Dead("broken"), plugin="other"),
        "failed": over(Failed("exit 78"), command="handle", submitted_by="cli"),
        "planned": over(None, schedule_id="nightly"),
        "step": over(None, pipeline="report", step_id="send"),
        "waiting": ledger.enqueue(plugin="other").job_id,
    }


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"plugin": "other"}, ["waiting", "other dead"]),
        ({"status": "dead"}, ["other dead", "dead"]),
        ({"plugin": "other", "status": "dead"}, ["other dead"]),
        ({"plugin": "other", "status": "queued"}, ["waiting"]),
        ({"plugin": "echo", "status": "succeeded"}, ["step", "planned", "first"]),
        ({"command": "handle"}, ["failed"]),
        ({"submitted_by": "cli"}, ["failed"]),
        ({"schedule_id": "nightly"}, ["planned"]),
        ({"pipeline": "report"}, ["step"]),
        ({"words": "NO host"}, ["dead"]),
        ({"words": "x_y%"}, ["dead"]),
        ({"words": "x%y"}, []),
        ({"words": "x\\_y"}, []),
        ({"words": "send"}, ["step"]),
        ({"status": "dead", "submitted_by": "unknown"}, []),
    ],
)
def test_a_list_shows_the_matching_jobs(ledger: Any, wanted: dict[str, Any], expected: list[str]) -> None:
    """All filters are combined. `%` and `_` are ordinary characters. The total counts the matches."""
    made = create_jobs(ledger)
    page = job_list.jobs(ledger.db, ListFilter(**wanted))
    names = {job_id: name for name, job_id in made.items()}
    assert [names[job_id] for job_id in ids(page)] == expected
    assert (page.total, page.is_exact, page.next_before) == (len(expected), True, None)


def test_a_list_can_have_a_time_range(ledger: Any) -> None:
    """`since` is included, `until` is not. A clock that goes back a little hides nothing."""
    made, start = [], ledger.now
    for _ in range(20):
        made.append(ledger.enqueue().job_id)
        ledger.advance(hours=1)
    ledger.advance(hours=-1, seconds=-30)
    made.append(ledger.enqueue().job_id)
    page = job_list.jobs(ledger.db, ListFilter(since=start + 5 * HOUR, until=start + 8 * HOUR))
    assert ids(page) == made[7:4:-1]
    assert ids(job_list.jobs(ledger.db, ListFilter(until=start + 19 * HOUR)))[:2] == [made[20], made[18]]
    assert ids(job_list.jobs(ledger.db, ListFilter(since=start + 19 * HOUR))) == [made[19]]
    assert ids(job_list.jobs(ledger.db, ListFilter(since=start + 99 * HOUR))) == []
    assert ids(job_list.jobs(ledger.db, ListFilter(until=start))) == []


def test_the_list_of_a_tree_has_its_root_and_all_its_jobs(ledger: Any) -> None:
    """It has no jobs of other trees."""
    root = ledger.fan_out(ledger.new(plugin="a", child_key="1"), ledger.new(plugin="b", child_key="2"))
    ledger.enqueue()
    page = job_list.jobs(ledger.db, ListFilter(root=root.id))
    assert [job["plugin"] for job in page.items] == ["b", "a", "root"]
    assert [job["plugin"] for job in job_list.jobs(ledger.db, ListFilter(root=root.id, plugin="a")).items] == ["a"]
    assert [log.plugin for log in attempt_list.list_attempts(ledger.db, ListFilter(root=root.id)).items] == ["root"]


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (ListFilter(), 3),
        (ListFilter(status="failed"), 2),
        (ListFilter(status="succeeded"), 1),
        (ListFilter(plugin="echo", command="poll"), 3),
        (ListFilter(plugin="echo", status="failed"), 2),
        (ListFilter(submitted_by="unknown"), 0),
        (ListFilter(words="boom"), 2),
    ],
)
def test_attempts_are_listed_and_filtered(ledger: Any, wanted: ListFilter, count: int) -> None:
    """One row per attempt, also for retried ones, without results."""
    ledger.enqueue()
    for outcome in (Retried("no", timedelta(0), ledger.evidence(stderr="Boom")),) * 2 + (None,):
        ledger.end(ledger.claim_one(), outcome)
    page = attempt_list.list_attempts(ledger.db, wanted)
    assert (len(page.items), page.total) == (count, count)
    assert {attempt.result for attempt in page.items} <= {None}


def test_a_result_is_read_for_a_list_only_if_it_is_small(ledger: Any) -> None:
    """For a large one, the list only says that it exists."""
    for text in ("{}", '"' + "é" * attempt_list.MAX_RESULT_BYTES + '"', None):
        ledger.enqueue()
        ledger.end(ledger.claim_one(), Succeeded(ledger.evidence(result=text)))
    found = [attempt_list.read_result(ledger.db, attempt) for attempt in attempt_list.list_attempts(ledger.db).items]
    assert found == [(None, False), (None, True), ("{}", True)]


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit pages to ten rows and counts to twenty."""
    monkeypatch.setattr(pagination, "MAX_SCANNED", 10)
    monkeypatch.setattr(pagination, "MAX_COUNTED", 20)
    monkeypatch.setattr(pagination, "MAX_SCANNED_FOR_COUNT", 10)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("wanted", [{}, {"plugin": "echo"}, {"status": "queued"}])
def test_a_page_reads_a_bounded_number_of_rows(ledger: Any, wanted: dict[str, Any]) -> None:
    """A page may be short or empty although more follow. Over all pages each job appears once."""
    made = [ledger.enqueue(command="rare" if number % 15 == 0 else "poll").job_id for number in range(50)]
    seen: list[str] = []
    before: int | None = pagination.NEWEST
    turned = 0
    while before is not None:
        page = job_list.jobs(ledger.db, ListFilter(command="rare", **wanted), before=before, limit=3)
        assert not page.is_exact
        seen += ids(page)
        turned, before = turned + 1, page.next_before
    assert (seen, turned) == (made[45::-15], 5)


@pytest.mark.usefixtures("small_limits")
def test_a_total_is_counted_up_to_a_limit(ledger: Any) -> None:
    """`is_exact` says whether it is complete."""
    for _ in range(30):
        ledger.enqueue()
    assert [(page.total, page.is_exact) for page in (job_list.jobs(ledger.db, limit=1),)] == [(20, False)]
    assert job_list.jobs(ledger.db, ListFilter(command="poll")).total == 10


def test_a_total_is_never_less_than_the_rows_of_the_page(ledger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a page reads more rows than a count."""
    monkeypatch.setattr(pagination, "MAX_SCANNED_FOR_COUNT", 2)
    for _ in range(5):
        ledger.enqueue()
    page = job_list.jobs(ledger.db, ListFilter(command="poll"))
    assert (page.total, page.is_exact, len(page.items)) == (5, False, 5)


@pytest.mark.parametrize("max_open", [0, 2, 500])
@pytest.mark.parametrize("max_counted", [8, 9, 2_000])
def test_both_ways_to_count_the_successes_of_a_plugin_agree(
    ledger: Any, monkeypatch: pytest.MonkeyPatch, max_open: int, max_counted: int
) -> None:
    """From indexes alone, or by reading rows if too many jobs are open."""
    monkeypatch.setattr(job_list, "MAX_OPEN_JOBS", max_open)
    monkeypatch.setattr(pagination, "MAX_SCANNED_FOR_COUNT", max_counted)
    endings = [None, None, None, None, Failed("no"), Dead("no"), Skipped("no"), None]
    for plugin in ("echo", "other"):
        for ending in endings:
            ledger.enqueue(plugin=plugin)
            ledger.end(ledger.claim_one(plugin), ending)
        ledger.enqueue(plugin=plugin, dedupe_key="k")
        ledger.claim_one(plugin)
        ledger.enqueue(plugin=plugin)
    newest = [*(ending is None for ending in endings), False, False][-max_counted:]
    page = job_list.jobs(ledger.db, ListFilter(plugin="echo", status="succeeded"), limit=1)
    assert (page.total, page.is_exact) == (sum(newest), max_counted > len(newest))


def test_a_page_reads_further_if_the_first_rows_do_not_fill_it(ledger: Any) -> None:
    """Old matches are found, once and in order."""
    made = [ledger.enqueue(command="rare" if number < 3 else "poll").job_id for number in range(60)]
    page = job_list.jobs(ledger.db, ListFilter(command="rare"), limit=3)
    assert (ids(page), page.next_before) == (made[2::-1], None)


def steps(db: sqlite3.Connection, work: Callable[[], object]) -> int:
    """Count the instructions that SQLite runs for `work`."""
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1

    db.set_progress_handler(tick, 10)
    work()
    db.set_progress_handler(None, 1)
    return count


FILL = """
    WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :many)
    INSERT INTO job_queue (id, plugin, command, status, submitted_by, created_at, completed_at, root_job_id, open_jobs,
                           tree_jobs, asked_at)
    SELECT 'j' || (:start + n), CASE n % 2 WHEN 0 THEN 'echo' ELSE 'other' END, 'poll',
           CASE n % 100 WHEN 0 THEN 'dead' ELSE 'succeeded' END, 'api', :now, :now, 'j' || (:start + n), 0, 1, :now
      FROM number
"""


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    "wanted",
    [
        ListFilter(),
        ListFilter(plugin="echo"),
        ListFilter(status="dead"),
        ListFilter(status="succeeded"),
        ListFilter(plugin="echo", status="dead"),
        ListFilter(plugin="echo", status="succeeded"),
        ListFilter(plugin="other", status="dead"),
        ListFilter(plugin="echo", status="queued"),
        ListFilter(command="unknown"),
        ListFilter(words="unknown"),
        ListFilter(status="succeeded", submitted_by="unknown"),
    ],
)
def test_the_cost_of_a_list_does_not_depend_on_the_history(ledger: Any, wanted: ListFilter) -> None:
    """Ten times as many jobs take no more instructions."""
    now = "2026-02-08T09:30:00.000000Z"
    costs = []
    for many in (3_000, 27_000):
        start = ledger.db.execute("SELECT COALESCE(MAX(seq), 0) FROM job_queue").fetchone()[0]
        ledger.db.execute(FILL, {"many": many, "start": start, "now": now})
        costs.append(steps(ledger.db, lambda: job_list.jobs(ledger.db, wanted, limit=5)))
    assert costs[1] <= costs[0] * 1.1 + 20, costs
