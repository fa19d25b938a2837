#!/usr/bin/env python3
"""Emit an event when the result of a query changes. See README.md."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from ductile_plugin import Failed, Job, Misconfigured, only_known, run, setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from typing import Any

KEYS = ("db_path", "query", "event_type", "emit_initial", "max_rows", "timeout_seconds")
MAX_VALUE_BYTES = 10_000  # of a value in an event; comparisons use whole values
MAX_ROWS_BYTES = 1_000_000  # of all rows in an event


class Query:
    """The configured query. Validates the configuration."""

    def __init__(self, job: Job) -> None:
        only_known(job.config, KEYS)
        self.path = os.path.abspath(setting(job.config, "db_path"))
        self.sql = setting(job.config, "query")
        self.event_type = setting(job.config, "event_type")
        self.emit_initial = setting(job.config, "emit_initial", bool, False)
        self.max_rows = setting(job.config, "max_rows", int, 100)
        limit = setting(job.config, "timeout_seconds", float, 30.0, minimum=0.001)
        self.seconds = max(0.001, min(limit, job.seconds_left() - 2))
        self.id = hashlib.sha256(f"{self.path}\0{self.sql}".encode()).hexdigest()

    def run(self) -> dict[str, Any]:
        """Run the query and return the values for the event, with the `digest` of the result."""
        import sqlite3

        if os.path.exists(self.path) and not os.path.isfile(self.path):
            raise Misconfigured(f"db_path: {self.path} is not a regular file")
        try:
            database = open_read_only(self.path)
        except sqlite3.Error as error:
            raise Failed(f"{self.path} cannot be opened: {error}") from error
        deadline = time.monotonic() + self.seconds
        database.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
        try:
            return self._read(database.execute(self.sql))
        except sqlite3.DatabaseError as error:
            if time.monotonic() > deadline:
                raise Failed(f"the query took longer than {self.seconds:g} s") from error
            if isinstance(error, sqlite3.ProgrammingError) or "syntax error" in str(error):
                raise Misconfigured(f"query: {error}") from error
            if any(word in str(error) for word in ("not authorized", "authorization denied", "prohibited")):
                raise Misconfigured(f"query: only reading is allowed: {error}") from error
            raise Failed(f"the query failed: {error}") from error
        except sqlite3.Warning as error:  # a second statement, in older versions
            raise Misconfigured(f"query: {error}") from error
        finally:
            database.close()

    def _read(self, cursor: sqlite3.Cursor) -> dict[str, Any]:
        if cursor.description is None:
            raise Misconfigured("query returns no rows; it must be a SELECT")
        columns = [column[0] for column in cursor.description]
        digest, remaining_bytes = hashlib.sha256(), MAX_ROWS_BYTES
        count, first = 0, None
        rows: list[dict[str, Any]] = []
        for row in cursor:
            values = [event_value(value) for value in row]
            # Types and lengths are included, so that different results have different digests.
            for value in row:
                whole = value if isinstance(value, bytes) else repr(value).encode("utf-8", "surrogateescape")
                digest.update(f"{type(value).__name__}:{len(whole)}:".encode() + whole)
            digest.update(b"\n")
            remaining_bytes -= len(json.dumps(values))
            if count < self.max_rows and remaining_bytes > 0 and len(rows) == count:
                rows.append(dict(zip(columns, values)))  # noqa: B905, Python 3.9 has no strict
            if not count:
                first = values[0]
            count += 1
        return {
            "columns": columns,
            "rows": rows,
            "row_count": count,
            "truncated": len(rows) < count,
            "value": first,
            "digest": digest.hexdigest(),
        }


def open_read_only(path: str) -> sqlite3.Connection:
    """Open a connection that cannot write to any file."""
    import sqlite3
    from urllib.parse import quote

    allowed = {getattr(sqlite3, name) for name in ("SQLITE_SELECT", "SQLITE_READ", "SQLITE_FUNCTION")}
    allowed.add(getattr(sqlite3, "SQLITE_RECURSIVE", 33))

    def allow(action: int, name: str | None, value: str | None, *_: object) -> int:
        is_pragma_read = action == sqlite3.SQLITE_PRAGMA and value is None
        # Opening a virtual table declares it in memory. The file itself is read-only.
        is_declaration = action == sqlite3.SQLITE_UPDATE and name == "sqlite_master"
        is_allowed = (action in allowed and value != "load_extension") or is_pragma_read or is_declaration
        return sqlite3.SQLITE_OK if is_allowed else sqlite3.SQLITE_DENY

    database = sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True, timeout=5)
    database.text_factory = lambda raw: raw.decode("utf-8", "replace")
    database.set_authorizer(allow)
    return database


def event_value(value: Any) -> Any:
    """Return the value in a form that JSON supports, truncated if it is long."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value[:MAX_VALUE_BYTES]).decode(), "bytes": len(value)}
    if isinstance(value, str) and len(value) > MAX_VALUE_BYTES:
        return value[:MAX_VALUE_BYTES] + "…"
    if isinstance(value, float) and value - value != 0:
        return str(value)  # JSON has no infinity or NaN
    return value


def poll(job: Job) -> str:
    query = Query(job)
    result = query.run()
    digest = result.pop("digest")
    last = job.state if job.state.get("query") == query.id else {}
    if last.get("digest") == digest:
        return f"unchanged: {result['row_count']} rows"
    if last or query.emit_initial:
        before = {"previous_value": last.get("value"), "previous_row_count": last["row_count"]} if last else {}
        # The job id is the same for every attempt, and differs if a result returns later.
        job.emit(query.event_type, {"db_path": query.path, **result, **before}, dedupe_key=f"sqlite_change:{job.id}")
    job.state = {
        "query": query.id,
        "digest": digest,
        "row_count": result["row_count"],
        "value": result["value"],
    }
    return f"{'changed' if last else 'first result'}: {result['row_count']} rows, {len(job.events)} events"


def health(job: Job) -> str:
    return f"the query returns {Query(job).run()['row_count']} rows"


if __name__ == "__main__":
    run(poll=poll, health=health)
