"""Lists of jobs and attempts: what fits, in which order, page by page; none walks through all of history."""

import sqlite3
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from ductile.core.model import Dead, Failed, Outcome, Retried, Skipped, Succeeded
from ductile.ledger.reports import attempt_list, job_list, pagination
from ductile.ledger.reports.pagination import ListFilter, Page

HOUR = timedelta(hours=1)


def ids(page: Page[job_list.Listed]) -> list[str]:
    return [job["job_id"] for job in page.items]


def test_jobs_come_newest_first_page_by_page(drive: Any) -> None:
    """Each page begins where the last one ended, and the last one says so."""
    made = [drive.enqueue().job_id for _ in range(10)]
    first = job_list.jobs(drive.db, limit=4)
    second = job_list.jobs(drive.db, limit=6, before=first.next_before or 0)
    assert (ids(first), ids(second)) == (made[:5:-1], made[5::-1])
    assert (first.total, second.total, second.next_before) == (10, 10, None)


def some_jobs(drive: Any) -> dict[str, str]:
    """One job of each kind, by what is odd about it."""

    def over(outcome: Outcome | None, **values: Any) -> str:
        made: str = drive.enqueue(**values).job_id
        drive.end(drive.claim_one(values.get("plugin", "echo")), outcome)
        drive.later(hours=1)
        return made

    return {
        "first": over(None),
        "dead": over(Dead("no such host: x_y%", drive.evidence(stderr="Traceback"))),
        "other dead": over(Dead("broken"), plugin="other"),
        "failed": over(Failed("exit 78"), command="handle", submitted_by="cli"),
        "planned": over(None, schedule_id="nightly"),
        "step": over(None, pipeline="report", step_id="send"),
        "waiting": drive.enqueue(plugin="other").job_id,
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
        ({"status": "dead", "submitted_by": "nobody"}, []),
    ],
)
def test_a_list_shows_what_fits(drive: Any, wanted: dict[str, Any], expected: list[str]) -> None:
    """All filters hold at once; `%` and `_` stand for themselves. The total counts what fits."""
    made = some_jobs(drive)
    page = job_list.jobs(drive.db, ListFilter(**wanted))
    names = {job_id: name for name, job_id in made.items()}
    assert [names[job_id] for job_id in ids(page)] == expected
    assert (page.total, page.is_exact, page.next_before) == (len(expected), True, None)


def test_a_list_has_bounds_in_time(drive: Any) -> None:
    """`since` is in it, `until` is not; a clock that goes back a little hides nothing."""
    made, start = [], drive.now
    for _ in range(20):
        made.append(drive.enqueue().job_id)
        drive.later(hours=1)
    drive.later(hours=-1, seconds=-30)
    made.append(drive.enqueue().job_id)
    page = job_list.jobs(drive.db, ListFilter(since=start + 5 * HOUR, until=start + 8 * HOUR))
    assert ids(page) == made[7:4:-1]
    assert ids(job_list.jobs(drive.db, ListFilter(until=start + 19 * HOUR)))[:2] == [made[20], made[18]]
    assert ids(job_list.jobs(drive.db, ListFilter(since=start + 19 * HOUR))) == [made[19]]
    assert ids(job_list.jobs(drive.db, ListFilter(since=start + 99 * HOUR))) == []
    assert ids(job_list.jobs(drive.db, ListFilter(until=start))) == []


def test_a_tree_is_its_root_and_all_that_came_of_it(drive: Any) -> None:
    """Other trees are not in it."""
    root = drive.fan(drive.new(plugin="a", child_key="1"), drive.new(plugin="b", child_key="2"))
    drive.enqueue()
    page = job_list.jobs(drive.db, ListFilter(root=root.id))
    assert [job["plugin"] for job in page.items] == ["b", "a", "root"]
    assert [job["plugin"] for job in job_list.jobs(drive.db, ListFilter(root=root.id, plugin="a")).items] == ["a"]
    assert [log.plugin for log in attempt_list.logs(drive.db, ListFilter(root=root.id)).items] == ["root"]


@pytest.mark.parametrize(
    ("wanted", "count"),
    [
        (ListFilter(), 3),
        (ListFilter(status="failed"), 2),
        (ListFilter(status="succeeded"), 1),
        (ListFilter(plugin="echo", command="poll"), 3),
        (ListFilter(plugin="echo", status="failed"), 2),
        (ListFilter(submitted_by="nobody"), 0),
        (ListFilter(words="boom"), 2),
    ],
)
def test_attempts_are_listed_and_filtered(drive: Any, wanted: ListFilter, count: int) -> None:
    """One row per attempt, retried ones too; without results."""
    drive.enqueue()
    for outcome in (Retried("no", timedelta(0), drive.evidence(stderr="Boom")),) * 2 + (None,):
        drive.end(drive.claim_one(), outcome)
    page = attempt_list.logs(drive.db, wanted)
    assert (len(page.items), page.total) == (count, count)
    assert {attempt.result for attempt in page.items} <= {None}


def test_a_result_is_read_for_a_list_only_if_it_is_small(drive: Any) -> None:
    """A large one is known to be there; who wants it asks for the job."""
    for text in ("{}", '"' + "é" * attempt_list.LONGEST_RESULT + '"', None):
        drive.enqueue()
        drive.end(drive.claim_one(), Succeeded(drive.evidence(result=text)))
    found = [attempt_list.result_of(drive.db, attempt) for attempt in attempt_list.logs(drive.db).items]
    assert found == [(None, False), (None, True), ("{}", True)]


@pytest.fixture
def short_sighted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists that look at ten rows and count to twenty."""
    monkeypatch.setattr(pagination, "MOST_LOOKED_AT", 10)
    monkeypatch.setattr(pagination, "MOST_COUNTED", 20)
    monkeypatch.setattr(pagination, "MOST_COUNTED_AMONG", 10)


@pytest.mark.usefixtures("short_sighted")
@pytest.mark.parametrize("wanted", [{}, {"plugin": "echo"}, {"status": "queued"}])
def test_a_page_looks_at_so_many_rows_and_goes_on_in_the_next(drive: Any, wanted: dict[str, Any]) -> None:
    """A page may be short or empty although more follows; together the pages show everything once."""
    made = [drive.enqueue(command="rare" if number % 15 == 0 else "poll").job_id for number in range(50)]
    seen: list[str] = []
    before: int | None = pagination.NEWEST
    turned = 0
    while before is not None:
        page = job_list.jobs(drive.db, ListFilter(command="rare", **wanted), before=before, limit=3)
        assert not page.is_exact
        seen += ids(page)
        turned, before = turned + 1, page.next_before
    assert (seen, turned) == (made[45::-15], 5)


@pytest.mark.usefixtures("short_sighted")
def test_a_total_is_counted_so_far_and_no_further(drive: Any) -> None:
    """It says whether it is exact."""
    for _ in range(30):
        drive.enqueue()
    assert [(page.total, page.is_exact) for page in (job_list.jobs(drive.db, limit=1),)] == [(20, False)]
    assert job_list.jobs(drive.db, ListFilter(command="poll")).total == 10


def test_a_total_is_never_less_than_what_is_shown(drive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where a page looks at more rows than a count does."""
    monkeypatch.setattr(pagination, "MOST_COUNTED_AMONG", 2)
    for _ in range(5):
        drive.enqueue()
    page = job_list.jobs(drive.db, ListFilter(command="poll"))
    assert (page.total, page.is_exact, len(page.items)) == (5, False, 5)


@pytest.mark.parametrize("most_open", [0, 2, 500])
@pytest.mark.parametrize("most_counted", [8, 9, 2_000])
def test_successes_of_a_plugin_are_counted_right_however_they_are_counted(
    drive: Any, monkeypatch: pytest.MonkeyPatch, most_open: int, most_counted: int
) -> None:
    """By what indexes know of all others, or by asking each row when too many jobs are open: the same number."""
    monkeypatch.setattr(job_list, "MOST_OPEN", most_open)
    monkeypatch.setattr(pagination, "MOST_COUNTED_AMONG", most_counted)
    endings = [None, None, None, None, Failed("no"), Dead("no"), Skipped("no"), None]
    for plugin in ("echo", "other"):
        for ending in endings:
            drive.enqueue(plugin=plugin)
            drive.end(drive.claim_one(plugin), ending)
        drive.enqueue(plugin=plugin, dedupe_key="k")
        drive.claim_one(plugin)
        drive.enqueue(plugin=plugin)
    newest = [*(ending is None for ending in endings), False, False][-most_counted:]
    page = job_list.jobs(drive.db, ListFilter(plugin="echo", status="succeeded"), limit=1)
    assert (page.total, page.is_exact) == (sum(newest), most_counted > len(newest))


def test_a_page_that_a_few_rows_do_not_fill_looks_further(drive: Any) -> None:
    """What fits may lie far back; it is found all the same, once and in order."""
    made = [drive.enqueue(command="rare" if number < 3 else "poll").job_id for number in range(60)]
    page = job_list.jobs(drive.db, ListFilter(command="rare"), limit=3)
    assert (ids(page), page.next_before) == (made[2::-1], None)


def steps(db: sqlite3.Connection, work: Callable[[], object]) -> int:
    """How many instructions SQLite runs for `work`."""
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


@pytest.mark.usefixtures("short_sighted")
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
        ListFilter(command="nobody"),
        ListFilter(words="nobody"),
        ListFilter(status="succeeded", submitted_by="nobody"),
    ],
)
def test_a_list_costs_the_same_however_long_history_is(drive: Any, wanted: ListFilter) -> None:
    """Ten times as many jobs are not more work for any question."""
    now = "2026-02-08T09:30:00.000000Z"
    costs = []
    for many in (3_000, 27_000):
        start = drive.db.execute("SELECT COALESCE(MAX(seq), 0) FROM job_queue").fetchone()[0]
        drive.db.execute(FILL, {"many": many, "start": start, "now": now})
        costs.append(steps(drive.db, lambda: job_list.jobs(drive.db, wanted, limit=5)))
    assert costs[1] <= costs[0] * 1.1 + 20, costs
