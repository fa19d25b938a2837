"""Full-text search in attempts: the only module that knows FTS5.

The index is created and updated when a search is made, in small batches, so that jobs never wait for it. Attempts that
are not indexed yet, or all of them without FTS5, are searched row by row, over a bounded number of rows.
"""

import re
import sqlite3

from attrs import evolve

from ductile.ledger.reports import attempt_list, pagination
from ductile.ledger.reports.attempt_list import ATTEMPTS
from ductile.ledger.reports.job_details import LoggedAttempt
from ductile.ledger.reports.pagination import NEWEST, ListFilter, Page, SqlFilter
from ductile.ledger.storage.db import Db

INDEX_BATCH = 250
"""Attempts that one transaction indexes. It takes about ten milliseconds."""
MAX_BATCHES_PER_SEARCH = 20
"""Batches that one search waits for."""
INDEXED_CHARACTERS = 4_096
"""Of a result, of stderr and of an error."""
MIN_PREFIX_CHARACTERS = 3
"""Shorter words match only whole words: prefixes of one or two letters match too much."""
_WORD = re.compile(r"\w", re.UNICODE)

CREATE_INDEX = "CREATE VIRTUAL TABLE IF NOT EXISTS job_log_words USING fts5 (text)"
INDEX_EXISTS = "SELECT 1 FROM sqlite_schema WHERE name = 'job_log_words'"
INDEXED_UP_TO = "SELECT value FROM storage_sequences WHERE name = 'job_log_words'"
SET_INDEXED_UP_TO = """
    INSERT INTO storage_sequences (name, value) VALUES ('job_log_words', ?)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
LAST_OF_BATCH = "SELECT MAX(seq) FROM (SELECT seq FROM job_log WHERE seq > ? ORDER BY seq LIMIT ?)"
ADD_TO_INDEX = """
    INSERT INTO job_log_words (rowid, text)
    SELECT seq, plugin || ' ' || command || ' ' || substr(COALESCE(last_error, ''), 1, :most)
                || ' ' || substr(COALESCE(stderr, ''), -:most) || ' ' || substr(COALESCE(result, ''), 1, :most)
      FROM job_log WHERE seq > :after AND seq <= :last
"""
DELETE_OLD = """
    DELETE FROM job_log_words WHERE rowid IN (
        SELECT rowid FROM job_log_words WHERE rowid < (SELECT seq FROM job_log ORDER BY seq LIMIT 1)
         ORDER BY rowid LIMIT ?)
"""


def is_available(db: Db) -> bool:
    """True if this SQLite has FTS5."""
    return db.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone() is not None


def update_index(db: Db) -> bool:
    """Index one more batch of attempts and remove deleted ones from the index; True if more attempts remain.

    A damaged index is dropped and built again from the log.
    """
    if not is_available(db):
        return False
    try:
        db.execute(CREATE_INDEX)
        _index_batch(db)
    except sqlite3.DatabaseError as error:
        if not _is_index_damaged(error):
            raise
        db.execute("DROP TABLE job_log_words")
        db.execute(SET_INDEXED_UP_TO, (0,))
    return is_behind(db)


def _index_batch(db: Db) -> None:
    after = indexed_up_to(db)
    last: int | None = db.execute(LAST_OF_BATCH, (after, INDEX_BATCH)).fetchone()[0]
    if last is not None:
        db.execute(ADD_TO_INDEX, {"after": after, "last": last, "most": INDEXED_CHARACTERS})
        db.execute(DELETE_OLD, (2 * INDEX_BATCH,))
        db.execute(SET_INDEXED_UP_TO, (last,))


def _is_index_damaged(error: sqlite3.DatabaseError) -> bool:
    """True if the index is damaged, but not the file."""
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_CORRUPT_VTAB


def indexed_up_to(db: Db) -> int:
    """Return the `seq` of the last indexed attempt; 0 without an index."""
    row = db.execute(INDEXED_UP_TO).fetchone() if is_available(db) and db.execute(INDEX_EXISTS).fetchone() else None
    return row[0] if row else 0


BEHIND = "SELECT EXISTS (SELECT 1 FROM job_log WHERE seq > ?)"


def is_behind(db: Db) -> bool:
    """True if attempts are not indexed yet."""
    return is_available(db) and bool(db.execute(BEHIND, (indexed_up_to(db),)).fetchone()[0])


def search_attempts(db: Db, wanted: ListFilter, *, before: int = NEWEST, limit: int = 50) -> Page[LoggedAttempt]:
    """Return a page of the matching attempts that contain all of `wanted.words`, as words or prefixes of words.

    Attempts that are not indexed yet match the words anywhere in their text.
    """
    phrase = match_phrase(wanted.words or "")
    index_ends = indexed_up_to(db)
    if phrase and index_ends:
        try:
            return _search_all(db, wanted, phrase, index_ends, before=before, limit=limit)
        except sqlite3.DatabaseError as error:
            if not _is_index_damaged(error):
                raise
    return attempt_list.list_attempts(db, wanted, before=before, limit=limit)


def _search_all(
    db: Db, wanted: ListFilter, phrase: str, index_ends: int, *, before: int, limit: int
) -> Page[LoggedAttempt]:
    """Search the attempts that are not indexed yet, then the index."""
    newer = evolve(attempt_list.attempt_filter(db, wanted), after=index_ends)
    found = pagination.page(db, ATTEMPTS, newer, before=before, limit=limit)
    if found.next_before is not None:
        return evolve(found, is_exact=False)
    terms = attempt_list.attempt_filter(db, evolve(wanted, words=None))
    start = found.items[-1].seq if found.items else min(before, terms.before)
    older, next_before = _search_index(db, phrase, terms, before=start, limit=limit - len(found.items))
    count, is_exact = _count(db, phrase, terms)
    return Page([*found.items, *older], found.total + count, found.is_exact and is_exact, next_before)


def match_phrase(words: str) -> str:
    """Return the words as an FTS5 query, quoted so that none is an operator; empty without words."""
    terms = [word.replace('"', '""') for word in words.split() if _WORD.search(word)]
    return " ".join(f'"{term}"' + ("*" if len(term) >= MIN_PREFIX_CHARACTERS else "") for term in terms)


_MATCHING = """
    SELECT at FROM (SELECT rowid AS at FROM job_log_words
                     WHERE job_log_words MATCH ? AND rowid < ? AND rowid > ? ORDER BY rowid DESC LIMIT ?)
      CROSS JOIN job_log ON seq = at
"""


def _search_index(
    db: Db, phrase: str, terms: SqlFilter, *, before: int, limit: int
) -> tuple[list[LoggedAttempt], int | None]:
    """Return at most `limit` matching attempts, and the position of the next page."""
    values = (phrase, before, terms.after, pagination.MAX_SCANNED, *terms.values, *terms.row_values, limit + 1)
    matching = f"{_MATCHING}{_where(terms)} ORDER BY at DESC LIMIT ?"
    statement = f"SELECT {ATTEMPTS.columns} FROM job_log WHERE seq IN ({matching}) ORDER BY seq DESC"
    found = [ATTEMPTS.read(row) for row in db.execute(statement, values)]
    if len(found) > limit:
        return found[:limit], found[limit - 1].seq if limit else before
    last = db.execute(LAST_SCANNED, (phrase, before, terms.after, pagination.MAX_SCANNED - 1)).fetchone()
    return found, last[0] if last else None


def _where(terms: SqlFilter) -> str:
    conditions = [term for term in (terms.index_condition, terms.row_condition) if term]
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""


LAST_SCANNED = """
    SELECT rowid FROM job_log_words WHERE job_log_words MATCH ? AND rowid < ? AND rowid > ?
     ORDER BY rowid DESC LIMIT 1 OFFSET ?
"""


def _count(db: Db, phrase: str, terms: SqlFilter) -> tuple[int, bool]:
    """Count the matching attempts. False as second value if only the newest matches were counted."""
    values = (phrase, terms.before, terms.after, pagination.MAX_SCANNED + 1)
    statement = f"SELECT COUNT(*) FROM ({_MATCHING}{_where(terms)})"
    count: int = db.execute(statement, (*values, *terms.values, *terms.row_values)).fetchone()[0]
    last = db.execute(LAST_SCANNED, values).fetchone()
    return min(count, pagination.MAX_SCANNED), last is None
