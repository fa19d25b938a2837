"""Words in the log: what is found, that nothing a caller writes breaks the search, and that it is bounded."""

import sqlite3
from datetime import timedelta
from typing import Any

import pytest

from ductile.core.model import Failed
from ductile.ledger.admin.retention import RetentionPolicy, prune
from ductile.ledger.reports import pagination, search
from ductile.ledger.reports.pagination import ListFilter
from ductile.ledger.storage.connections import transaction


def attempt(drive: Any, error: str, **values: Any) -> str:
    """A failed attempt that said this."""
    made: str = drive.enqueue(**values).job_id
    drive.end(drive.claim_one(values.get("plugin", "echo")), Failed(error, drive.evidence(stderr="on stderr")))
    drive.later(seconds=1)
    return made


def index(db: sqlite3.Connection) -> None:
    """Everything is indexed."""
    more = True
    while more:
        with transaction(db):
            more = search.catch_up(db)


def found(drive: Any, words: str, **more: Any) -> list[str]:
    page = search.logs(drive.db, ListFilter(words=words, **more))
    assert (page.total, page.next_before) == (len(page.items), None)
    return [item.job_id for item in page.items]


@pytest.fixture(params=["indexed", "not indexed"])
def told(request: pytest.FixtureRequest, drive: Any) -> dict[str, str]:
    """Three attempts, with and without an index."""
    made = {
        "refused": attempt(drive, "connection refused by 10.0.0.1"),
        "timeout": attempt(drive, "connection timed out", plugin="other"),
        "unicode": attempt(drive, "kein Anschluß: größer"),
    }
    if request.param == "indexed":
        index(drive.db)
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
def test_an_attempt_is_found_by_its_words(drive: Any, told: dict[str, str], words: str, expected: list[str]) -> None:
    """All words, in any order, in the error, stderr, result, plugin or command; newest first."""
    assert found(drive, words) == [told[name] for name in expected]


@pytest.mark.parametrize(
    "words",
    [
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
    ],
)
def test_no_text_of_a_caller_is_an_instruction(drive: Any, told: dict[str, str], words: str) -> None:
    """Whatever is asked, the answer is a list."""
    assert isinstance(found(drive, words), list)


def test_words_and_other_filters_hold_at_once(drive: Any, told: dict[str, str]) -> None:
    """Plugin, status and moment narrow what the words find."""
    assert found(drive, "connection", plugin="other") == [told["timeout"]]
    assert found(drive, "connection", status="succeeded") == []
    assert found(drive, "connection", until=drive.now - timedelta(seconds=2.5)) == [told["refused"]]


@pytest.mark.parametrize("limit", [1, 2, 5, 10])
def test_what_is_indexed_and_what_is_not_make_one_list(drive: Any, limit: int) -> None:
    """New attempts are found before the index has come to them, page by page, each once."""
    old = [attempt(drive, "needle") for _ in range(5)]
    index(drive.db)
    new = [attempt(drive, "needle") for _ in range(5)]
    seen: list[str] = []
    before: int | None = pagination.NEWEST
    while before is not None:
        page = search.logs(drive.db, ListFilter(words="needle"), before=before, limit=limit)
        seen += [item.job_id for item in page.items]
        before = page.next_before
    assert seen == [*old, *new][::-1]
    assert search.is_behind(drive.db)


@pytest.fixture
def short_sighted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists that look at ten rows, and small portions."""
    monkeypatch.setattr(pagination, "MOST_LOOKED_AT", 10)
    monkeypatch.setattr(search, "PORTION", 4)


@pytest.mark.usefixtures("short_sighted")
@pytest.mark.parametrize("is_indexed", [True, False])
def test_a_page_of_a_search_looks_at_so_many_rows(drive: Any, is_indexed: bool) -> None:
    """What is rare among many hits takes several pages, and none of them is dear."""
    made = [attempt(drive, "needle", command="rare" if number % 13 == 0 else "poll") for number in range(40)]
    if is_indexed:
        index(drive.db)
    seen: list[str] = []
    before: int | None = pagination.NEWEST
    while before is not None:
        page = search.logs(drive.db, ListFilter(words="needle", command="rare"), before=before, limit=2)
        seen += [item.job_id for item in page.items]
        before = page.next_before
    assert seen == made[39::-13]


def test_the_index_grows_by_a_portion_at_a_time(drive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer is never busy for long, and says whether there is more to do."""
    monkeypatch.setattr(search, "PORTION", 2)
    for _ in range(5):
        attempt(drive, "needle")
    reached = []
    more = True
    while more:
        with transaction(drive.db):
            more = search.catch_up(drive.db)
        reached.append(search.reached(drive.db))
    assert reached == [2, 4, 5]


def test_what_retention_forgets_leaves_the_index_too(drive: Any) -> None:
    """The index does not grow with what is no longer there."""
    for _ in range(3):
        attempt(drive, "needle")
    index(drive.db)
    drive.later(days=90)
    day = timedelta(days=1)
    with transaction(drive.db):
        prune(
            drive.db,
            RetentionPolicy(job_queue=day, job_log=day, journal=day, breaker_transitions=day, facts=None),
            now=drive.now,
        )
    assert found(drive, "needle") == []
    fresh = attempt(drive, "needle")
    index(drive.db)
    assert found(drive, "needle") == [fresh]
    assert drive.db.execute("SELECT COUNT(*) FROM job_log_words").fetchone() == (1,)


def test_without_fts5_rows_are_read(drive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SQLite without the module answers the same questions."""
    made = attempt(drive, "needle")
    monkeypatch.setattr(search, "is_available", lambda db: False)
    with transaction(drive.db):
        assert not search.catch_up(drive.db)
    assert not search.is_behind(drive.db)
    assert found(drive, "needle") == [made]


def test_a_damaged_index_is_made_anew(drive: Any) -> None:
    """Nothing is lost with it, so nobody has to care: rows are read until it is there again."""
    made = [attempt(drive, "needle") for _ in range(3)]
    index(drive.db)
    drive.db.execute("UPDATE job_log_words_data SET block = x'00' WHERE id > 10")
    assert found(drive, "needle") == made[::-1]
    made.append(attempt(drive, "needle"))
    with transaction(drive.db):
        search.catch_up(drive.db)
    assert found(drive, "needle") == made[::-1]
    index(drive.db)
    assert search.reached(drive.db) == 4
    assert found(drive, "needle") == made[::-1]
    assert not search.is_behind(drive.db)
