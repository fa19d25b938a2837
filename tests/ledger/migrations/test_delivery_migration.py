"""The migration to schema 3: refused deliveries and receipts become the list of webhook deliveries."""

import sqlite3
from contextlib import closing
from pathlib import Path

from ductile.ledger.storage.identify import APPLICATION_ID
from ductile.ledger.storage.open_file import open_writer
from ductile.ledger.webhooks.deliveries import list_deliveries

SCHEMA_2 = (Path(__file__).parent / "schema_v2.sql").read_text()
ROWS = """
    INSERT INTO refused_deliveries (at, path, reason, status, peer, body_sha256, body_bytes, headers)
    VALUES ('2026-01-02T00:00:00.000000Z', '/hook', 'the header x is missing', 403, '10.0.0.1', 'ab', 7, '{"x":["1"]}');
    INSERT INTO receipts (scope, key, job_id, response, created_at, expires_at) VALUES
        ('webhook:/hook', 'd-1', 'one', '{"job_id":"one"}', '2026-01-01T00:00:00.000000Z', '2027'),
        ('webhook:/hook', 'd-2', 'two', '{"job_ids":["two","too"]}', '2026-01-03T00:00:00.000000Z', '2027'),
        ('webhook:/hook', 'd-3', NULL, '{"job_id":null}', '2026-01-04T00:00:00.000000Z', '2027'),
        ('webhook:/hook', 'd-4', 'four', 'not JSON', '2026-01-06T00:00:00.000000Z', '2027'),
        ('api:admin', 'key', 'three', '{}', '2026-01-05T00:00:00.000000Z', '2027');
"""


def test_earlier_deliveries_stay_on_record(tmp_path: Path) -> None:
    """In order of time, with their jobs or the reason. A response that cannot be read does not stop the migration."""
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(f"{SCHEMA_2}; {ROWS} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 2")

    with closing(open_writer(path, synchronous="off")) as upgraded:
        page = list_deliveries(upgraded)
        assert upgraded.execute("SELECT name FROM sqlite_schema WHERE name LIKE 'refused%'").fetchall() == []
    found = [(one.verdict, one.code, one.status, one.delivery_id, one.job_ids) for one in page.items]
    assert found == [
        ("accepted", None, 202, "d-4", ("four",)),
        ("unmatched", None, 202, "d-3", ()),
        ("accepted", None, 202, "d-2", ("two", "too")),
        ("refused", "forbidden", 403, None, ()),
        ("accepted", None, 202, "d-1", ("one",)),
    ]
    refused = page.items[3]
    assert (refused.reason, refused.peer, refused.headers) == ("the header x is missing", "10.0.0.1", {"x": ["1"]})
