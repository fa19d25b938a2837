"""Words in what attempts left behind: the one place that knows FTS5.

The index is made and brought up to date when somebody searches, in small portions, so that jobs never wait for it. What
it has not come to yet, and everything where SQLite has no FTS5, is read row by row, boundedly. The API calls it.
"""

import re
import sqlite3

from ductile.ledger.reports import attempt_list, pagination
from ductile.ledger.reports.attempt_list import LOGS
from ductile.ledger.reports.job_details import LoggedAttempt
from ductile.ledger.reports.pagination import NEWEST, ListFilter, Page, SqlFilter
from ductile.ledger.storage.db import Db

PORTION = 250
"""Attempts that are indexed in one transaction; the writer is busy with them for some ten milliseconds."""
MOST_PORTIONS = 20
"""Portions that one search waits for."""
INDEXED_CHARACTERS = 4_096
"""How much of a result, of stderr and of an error is indexed."""
SHORTEST_BEGINNING = 3
"""Shorter words must be there as they are: too many begin with one or two letters."""
_WORD = re.compile(r"\w", re.UNICODE)

MAKE = "CREATE VIRTUAL TABLE IF NOT EXISTS job_log_words USING fts5 (text)"
IS_MADE = "SELECT 1 FROM sqlite_schema WHERE name = 'job_log_words'"
REACHED = "SELECT value FROM storage_sequences WHERE name = 'job_log_words'"
REACH = """
    INSERT INTO storage_sequences (name, value) VALUES ('job_log_words', ?)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
LAST_OF_PORTION = "SELECT MAX(seq) FROM (SELECT seq FROM job_log WHERE seq > ? ORDER BY seq LIMIT ?)"
INDEX = """
    INSERT INTO job_log_words (rowid, text)
    SELECT seq, plugin || ' ' || command || ' ' || substr(COALESCE(last_error, ''), 1, :most)
                || ' ' || substr(COALESCE(stderr, ''), -:most) || ' ' || substr(COALESCE(result, ''), 1, :most)
      FROM job_log WHERE seq > :after AND seq <= :last
"""
FORGET = """
    DELETE FROM job_log_words WHERE rowid IN (
        SELECT rowid FROM job_log_words WHERE rowid < (SELECT seq FROM job_log ORDER BY seq LIMIT 1)
         ORDER BY rowid LIMIT ?)
"""


def is_available(db: Db) -> bool:
    """True if this SQLite can index words."""
    return db.execute("SELECT 1 FROM pragma_module_list WHERE name = 'fts5'").fetchone() is not None


def catch_up(db: Db) -> bool:
    """One more portion of attempts is indexed and a portion of forgotten ones is not any more; True if more wait.

    An index that is damaged is made anew: everything in it is in the log.
    """
    if not is_available(db):
        return False
    try:
        db.execute(MAKE)
        _index_portion(db)
    except sqlite3.DatabaseError as error:
        if not _is_of_the_index(error):
            raise
        db.execute("DROP TABLE job_log_words")
        db.execute(REACH, (0,))
    return is_behind(db)


def _index_portion(db: Db) -> None:
    after = reached(db)
    last: int | None = db.execute(LAST_OF_PORTION, (after, PORTION)).fetchone()[0]
    if last is not None:
        db.execute(INDEX, {"after": after, "last": last, "most": INDEXED_CHARACTERS})
        db.execute(FORGET, (2 * PORTION,))
        db.execute(REACH, (last,))


def _is_of_the_index(error: sqlite3.DatabaseError) -> bool:
    """True if the index is damaged, not the file."""
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_CORRUPT_VTAB


def reached(db: Db) -> int:
    """The `seq` of the last attempt that is indexed."""
    row = db.execute(REACHED).fetchone() if is_available(db) and db.execute(IS_MADE).fetchone() else None
    return row[0] if row else 0


BEHIND = "SELECT EXISTS (SELECT 1 FROM job_log WHERE seq > ?)"


def is_behind(db: Db) -> bool:
    """True if `catch_up` has something to do."""
    return is_available(db) and bool(db.execute(BEHIND, (reached(db),)).fetchone()[0])


def logs(db: Db, wanted: ListFilter, *, before: int = NEWEST, limit: int = 50) -> Page[LoggedAttempt]:
    """The attempts that fit and have all of `wanted.words`, whole or as the beginning of a word.

    Attempts that are not indexed yet fit if they have the words anywhere.
    """
    phrase = match_phrase(wanted.words or "")
    index_ends = reached(db)
    if phrase and index_ends:
        try:
            return _both(db, wanted, phrase, index_ends, before=before, limit=limit)
        except sqlite3.DatabaseError as error:
            if not _is_of_the_index(error):
                raise
    return attempt_list.logs(db, wanted, before=before, limit=limit)


def _both(db: Db, wanted: ListFilter, phrase: str, index_ends: int, *, before: int, limit: int) -> Page[LoggedAttempt]:
    """First the attempts that the index has not come to, then those that are in it."""
    newer = attempt_list.of_logs(db, wanted)._replace(after=index_ends)
    found = pagination.page(db, LOGS, newer, before=before, limit=limit)
    if found.next_before is not None:
        return found._replace(is_exact=False)
    terms = attempt_list.of_logs(db, wanted._replace(words=None))
    start = found.items[-1].seq if found.items else min(before, terms.before)
    older, next_before = _indexed(db, phrase, terms, before=start, limit=limit - len(found.items))
    count, is_exact = _count(db, phrase, terms)
    return Page([*found.items, *older], found.total + count, found.is_exact and is_exact, next_before)


def match_phrase(words: str) -> str:
    """The words as FTS5 takes them: quoted, so that nothing in them is an operator; empty if there is none."""
    terms = [word.replace('"', '""') for word in words.split() if _WORD.search(word)]
    return " ".join(f'"{term}"' + ("*" if len(term) >= SHORTEST_BEGINNING else "") for term in terms)


_FITTING = """
    SELECT at FROM (SELECT rowid AS at FROM job_log_words
                     WHERE job_log_words MATCH ? AND rowid < ? AND rowid > ? ORDER BY rowid DESC LIMIT ?)
      CROSS JOIN job_log ON seq = at
"""


def _indexed(
    db: Db, phrase: str, terms: SqlFilter, *, before: int, limit: int
) -> tuple[list[LoggedAttempt], int | None]:
    """At most `limit` attempts that fit, and where the next page begins."""
    asked = (phrase, before, terms.after, pagination.MOST_LOOKED_AT, *terms.values, *terms.asked_values, limit + 1)
    fitting = f"{_FITTING}{_where(terms)} ORDER BY at DESC LIMIT ?"
    statement = f"SELECT {LOGS.columns} FROM job_log WHERE seq IN ({fitting}) ORDER BY seq DESC"
    found = [LOGS.read(row) for row in db.execute(statement, asked)]
    if len(found) > limit:
        return found[:limit], found[limit - 1].seq if limit else before
    last = db.execute(LAST_LOOKED_AT, (phrase, before, terms.after, pagination.MOST_LOOKED_AT - 1)).fetchone()
    return found, last[0] if last else None


def _where(terms: SqlFilter) -> str:
    asked = [term for term in (terms.indexed, terms.asked) if term]
    return f" WHERE {' AND '.join(asked)}" if asked else ""


LAST_LOOKED_AT = """
    SELECT rowid FROM job_log_words WHERE job_log_words MATCH ? AND rowid < ? AND rowid > ?
     ORDER BY rowid DESC LIMIT 1 OFFSET ?
"""


def _count(db: Db, phrase: str, terms: SqlFilter) -> tuple[int, bool]:
    """How many attempts fit, and whether that is all or only those among the newest that were looked at."""
    asked = (phrase, terms.before, terms.after, pagination.MOST_LOOKED_AT + 1)
    statement = f"SELECT COUNT(*) FROM ({_FITTING}{_where(terms)})"
    count: int = db.execute(statement, (*asked, *terms.values, *terms.asked_values)).fetchone()[0]
    last = db.execute(LAST_LOOKED_AT, asked).fetchone()
    return min(count, pagination.MOST_LOOKED_AT), last is None
