"""The journal of the service itself: start, stop, and stops without a record."""

import json
import os
import pwd
import signal
from typing import Any

from tests.e2e.sample_plugins import OK
from tests.e2e.service import Home, Start

ME = f"uid:{os.getuid()}({pwd.getpwuid(os.getuid()).pw_name})"


def entries(home: Home, pattern: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Return kind, actor and data of the journal rows whose kind matches the pattern."""
    rows = home.rows("SELECT kind, actor, data FROM journal WHERE kind GLOB ? ORDER BY seq", pattern)
    return [(row["kind"], row["actor"], json.loads(row["data"])) for row in rows]


def test_start_and_stop_are_journalled_with_their_actor(home: Home, start: Start) -> None:
    """The stop has its reason. A clean stop is not reported as recovered at the next start."""
    home.plugin("ok", OK)
    service = start()
    service.signal(signal.SIGINT)
    service.wait()
    start().stop()

    found = entries(home, "system.*")

    assert [(kind, actor) for kind, actor, _ in found] == [
        ("system.started", ME),
        ("system.stopped", "signal:SIGINT"),
        ("system.started", ME),
        ("system.stopped", "signal:SIGTERM"),
    ]
    assert found[1][2]["reason"] == "signal"
    assert found[0][2].keys() >= {"version", "pid", "run_id", "config_hash"}


def test_an_unclean_stop_is_journalled_at_the_next_start(home: Home, start: Start) -> None:
    """With the last time at which the dead service wrote anything, and only once."""
    home.plugin("ok", OK)
    service = start()
    service.run("ok")
    service.kill()
    (last,) = home.rows("SELECT MAX(at) AS at FROM journal")
    start().stop()
    start().stop()

    found = entries(home, "system.*")

    assert [kind for kind, _, _ in found] == [
        "system.started",
        "system.recovered",
        "system.started",
        "system.stopped",
        "system.started",
        "system.stopped",
    ]
    assert found[1][2] == {"run_id": found[0][2]["run_id"], "since": last["at"], "jobs": 0}
