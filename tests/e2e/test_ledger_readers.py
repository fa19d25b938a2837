"""Other programs that read the ledger of a running service with their own SQLite."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.e2e.service import Home, Service

READ_JOB_COUNT = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(db.execute("SELECT COUNT(*) FROM job_queue").fetchone()[0])
db.close()
"""


REQUESTS = ["/system/selfcheck", "/system/doctor", "/config/view", "/jobs", "/healthz", "/openapi.json"]


@pytest.mark.parametrize("path", REQUESTS)
def test_closing_an_external_connection_keeps_the_wal_file(
    home: Home, start: Callable[..., Service], path: str
) -> None:
    """A close of the file in the service process would release its POSIX locks. The next external connection would then
    remove the WAL file, and later commits would be lost."""
    home.plugin("ok", '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "done"}\'\n')
    home.seal()
    service = start()
    for _ in range(3):
        service.job(service.post("ok"), wait="30s")
    assert service.ask("GET", path)[0] == 200
    reader = subprocess.run(
        [sys.executable, "-c", READ_JOB_COUNT, str(home.ledger)], capture_output=True, text=True, check=True
    )
    assert reader.stdout == "3\n"
    assert home.ledger.with_name("state.db-wal").exists()
