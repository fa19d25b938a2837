"""Other programs may look into the ledger of a running service with any SQLite, and nothing is lost by it."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.e2e.service import Home, Service

LOOK = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
print(db.execute("SELECT COUNT(*) FROM job_queue").fetchone()[0])
db.close()
"""


QUESTIONS = ["/system/selfcheck", "/system/doctor", "/config/view", "/jobs", "/healthz", "/openapi.json"]


@pytest.mark.parametrize("question", QUESTIONS)
def test_an_outsider_who_leaves_does_not_take_the_log_away(
    home: Home, start: Callable[..., Service], question: str
) -> None:
    """Whoever closes the file in the service's process gives up SQLite's locks; the next outsider to leave then takes
    itself for the last one and removes the log, and all that is acknowledged after that is lost."""
    home.plugin("quick", '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "done"}\'\n')
    home.seal()
    service = start()
    for _ in range(3):
        service.job(service.post("quick"), wait="30s")
    assert service.ask("GET", question)[0] == 200
    done = subprocess.run([sys.executable, "-c", LOOK, str(home.ledger)], capture_output=True, text=True, check=True)
    assert done.stdout == "3\n"
    assert home.ledger.with_name("state.db-wal").exists()
