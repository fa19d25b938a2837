"""Full-text search in attempts: matches, safe queries, and bounded cost."""

import sqlite3
from datetime import timedelta
from typing import Any

import pytest

from ductile.core.model import Failed
from ductile.ledger.admin.retention import RetentionPolicy, prune
from ductile.ledger.reports import pagination, search
from ductile.ledger.reports.pagination import ListFilter
from ductile.ledger.storage.connections import transaction


def failed_attempt(ledger: Any, error: str, **values: Any) -> str:
    """Create a failed attempt with this error. Return its job id."""
    made: str = ledger.enqueue(**values).job_id
    ledger.end(ledger.claim_one(values.get("plugin", "echo")), Failed(error, ledger.evidence(stderr="on stderr")))
    ledger.advance(seconds=1)
    return made


def index_all(db: sqlite3.Connection) -> None:
    """Index all attempts."""
    more = True
    while more:
        with transaction(db):
            more = search.update_index(db)


def search_jobs(ledger: Any, words: str, **more: Any) -> list[str]:
    page = search.search_attempts(ledger.db, ListFilter(words=words, **more))
    assert (page.total, page.next_before) == (len(page.items), None)
    return [item.job_id for item in page.items]


@pytest.fixture(params=["indexed", "not indexed"])
def attempts(request: pytest.FixtureRequest, ledger: Any) -> dict[str, str]:
    """Create three attempts, with and without an index. Return job ids by name."""
    made = {
        "refused": failed_attempt(ledger, "connection refused by 10.0.0.1"),
        "timeout": failed_attempt(ledger, "connection timed out", plugin="other"),
        "unicode": failed_attempt(ledger, "kein Anschluß: größer"),
    }
    if request.param == "indexed":
        index_all(ledger.db)
    return made


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("connection", ["timeout", "refused"]),
        ("CONNECT ref", ["refused"]),
        ("refused connection", ["refused"]),
        ("stderr", ["unicode", "timeout", "refused"]),
        ("other", ["timeout"]),
        ("10.0.0.1", ["refused"]),
        ("größer", ["unicode"]),
        ("nothing like that", []),
    ],
)
def test_an_attempt_is_found_by_its_words(
    ledger: Any, attempts: dict[str, str], words: str, expected: list[str]
) -> None:
    """All words, in any order, in the error, stderr, result, plugin or command; newest first."""
    assert search_jobs(ledger, words) == [attempts[name] for name in expected]


SPECIAL_TEXTS = (
    '"',
    "''",
    "a AND",
    "NEAR(",
    "text:x",
    "-",
    "*",
    "a*b",
    "(",
    "{",
    "^x",
    "% _",
    "\\",
    "\x00",
    "OR",
    "NOT a",
    '" OR "',
)


def test_no_query_text_is_interpreted_as_an_operator(ledger: Any, attempts: dict[str, str]) -> None:
    """Every text gives a list, whatever FTS5 or LIKE would make of it."""
    errors = []
    for words in SPECIAL_TEXTS:
        try:
            assert isinstance(search_jobs(ledger, words), list)
        except Exception as error:
            errors.append(f"{words!r}: {error!r}")
    assert errors == []


def test_words_and_other_filters_are_combined(ledger: Any, attempts: dict[str, str]) -> None:
    """Plugin, status and time narrow the matches."""
    assert search_jobs(ledger, "connection", plugin="other") == [attempts["timeout"]]
    assert search_jobs(ledger, "connection", status="succeeded") == []
    assert search_jobs(ledger, "connection", until=ledger.now - timedelta(seconds=2.5)) == [attempts["refused"]]


@pytest.mark.parametrize("limit", [1, 2, 5, 10])
def test_indexed_and_new_attempts_are_one_list(ledger: Any, limit: int) -> None:
    """New attempts are found before they are indexed. Over all pages each attempt appears once."""
    old = [failed_attempt(ledger, "needle") for _ in range(5)]
    index_all(ledger.db)
    new = [failed_attempt(ledger, "needle") for _ in range(5)]
    seen: list[str] = []
    before: int | None = pagination.NEWEST
    while before is not None:
        page = search.search_attempts(ledger.db, ListFilter(words="needle"), before=before, limit=limit)
        seen += [item.job_id for item in page.items]
        before = page.next_before
    assert seen == [*old, *new][::-1]
    assert search.is_behind(ledger.db)


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit lists to ten rows and index batches to four."""
    monkeypatch.setattr(pagination, "MAX_SCANNED", 10)
    monkeypatch.setattr(search, "INDEX_BATCH", 4)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize("is_indexed", [True, False])
def test_a_page_of_a_search_reads_a_bounded_number_of_rows(ledger: Any, is_indexed: bool) -> None:
    """Rare matches among many hits take several pages."""
    made = [failed_attempt(ledger, "needle", command="rare" if number % 13 == 0 else "poll") for number in range(40)]
    if is_indexed:
        index_all(ledger.db)
    seen: list[str] = []
    before: int | None = pagination.NEWEST
    while before is not None:
        page = search.search_attempts(ledger.db, ListFilter(words="needle", command="rare"), before=before, limit=2)
        seen += [item.job_id for item in page.items]
        before = page.next_before
    assert seen == made[39::-13]


def test_the_index_grows_in_batches(ledger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`update_index` returns whether more attempts remain."""
    monkeypatch.setattr(search, "INDEX_BATCH", 2)
    for _ in range(5):
        failed_attempt(ledger, "needle")
    reached = []
    more = True
    while more:
        with transaction(ledger.db):
            more = search.update_index(ledger.db)
        reached.append(search.indexed_up_to(ledger.db))
    assert reached == [2, 4, 5]


def test_deleted_attempts_leave_the_index(ledger: Any) -> None:
    """The index does not grow beyond the log."""
    for _ in range(3):
        failed_attempt(ledger, "needle")
    index_all(ledger.db)
    ledger.advance(days=90)
    day = timedelta(days=1)
    with transaction(ledger.db):
        prune(
            ledger.db,
            RetentionPolicy(job_queue=day, job_log=day, journal=day, breaker_transitions=day, facts=None),
            now=ledger.now,
        )
    assert search_jobs(ledger, "needle") == []
    fresh = failed_attempt(ledger, "needle")
    index_all(ledger.db)
    assert search_jobs(ledger, "needle") == [fresh]
    assert ledger.db.execute("SELECT COUNT(*) FROM job_log_words").fetchone() == (1,)


def test_without_fts5_rows_are_searched(ledger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The results are the same."""
    made = failed_attempt(ledger, "needle")
    monkeypatch.setattr(search, "is_available", lambda db: False)
    with transaction(ledger.db):
        assert not search.update_index(ledger.db)
    assert not search.is_behind(ledger.db)
    assert search_jobs(ledger, "needle") == [made]


def test_a_damaged_index_is_built_again(ledger: Any) -> None:
    """Rows are searched until the index is complete again."""
    made = [failed_attempt(ledger, "needle") for _ in range(3)]
    index_all(ledger.db)
    ledger.db.execute("UPDATE job_log_words_data SET block = x'00' WHERE id > 10")
    assert search_jobs(ledger, "needle") == made[::-1]
    made.append(failed_attempt(ledger, "needle"))
    with transaction(ledger.db):
        search.update_index(ledger.db)
    assert search_jobs(ledger, "needle") == made[::-1]
    index_all(ledger.db)
    assert search.indexed_up_to(ledger.db) == 4
    assert search_jobs(ledger, "needle") == made[::-1]
    assert not search.is_behind(ledger.db)
