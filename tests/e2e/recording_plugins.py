"""Plugins that record their requests and give configured responses, and the rows and requests of a run."""

import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from attrs import frozen

from tests.e2e.service import Home, Service, poll_until

REQUESTS_FILE = "requests.jsonl"
RECORDING_PLUGIN = f"""#!{sys.executable} -IS
import json, os, sys
request = json.load(sys.stdin)
event = request.get("event") or {{}}
payload = event.get("payload", request.get("payload", {{}}))
recorded = {{"plugin": os.environ["DUCTILE_PLUGIN"], "job_id": request["job_id"], "command": request["command"],
            "type": event.get("type"), "payload": payload, "context": request.get("context", {{}})}}
with open("{REQUESTS_FILE}", "a") as file:
    file.write(json.dumps(recorded) + "\\n")
response = payload.get("response") or request["config"].get("response") or {{}}
print(json.dumps({{"status": "ok", "result": "done", **response}}))
"""
"""Responds with `payload.response`, else with `config.response`, else with success."""


def add_recording_plugins(home: Home, names: Iterable[str]) -> None:
    """Add a recording plugin for each name."""
    for name in names:
        home.plugin(name, RECORDING_PLUGIN)


@frozen
class Run:
    """Job and journal rows in order of creation, and the recorded requests by job id."""

    rows: list[dict[str, Any]]
    requests: dict[str, dict[str, Any]]
    journal: list[tuple[str, dict[str, Any]]]

    @property
    def steps(self) -> list[str]:
        """Step and status of every row. A row without a step has the name of its plugin."""
        return [f"{row['step_id'] or row['plugin']} {row['status']}" for row in self.rows]

    def rows_of(self, step: str) -> list[dict[str, Any]]:
        """Return the rows of a step, or of a plugin where there is no step."""
        return [row for row in self.rows if step in (row["step_id"], row["plugin"])]

    def row_of(self, step: str) -> dict[str, Any]:
        """Return the only row of a step."""
        (row,) = self.rows_of(step)
        return row

    def request(self, step: str) -> dict[str, Any]:
        """Return the recorded request of a step."""
        return self.requests[self.row_of(step)["id"]]

    def payload(self, step: str) -> dict[str, Any]:
        """Return the payload of a step without the names that the core adds."""
        payload: dict[str, Any] = self.request(step)["payload"]
        return {key: value for key, value in payload.items() if not key.startswith("ductile_upstream_")}

    def baggage(self, step: str) -> dict[str, Any]:
        """Return the baggage in the context of a step."""
        context: dict[str, Any] = self.request(step)["context"]
        return {key: value for key, value in context.items() if not key.startswith("ductile")}

    def journal_data(self, kind: str) -> list[dict[str, Any]]:
        """Return the data of the journal rows of a kind."""
        return [data for found, data in self.journal if found == kind]


def run_to_end(service: Service, start: Callable[[], Any]) -> Run:
    """Call `start`, wait until the service is idle, and return what was added. Nothing else may use the service."""
    home = service.home
    (jobs,) = home.rows("SELECT COALESCE(MAX(seq), 0) AS seq FROM job_queue")
    (journal,) = home.rows("SELECT COALESCE(MAX(seq), 0) AS seq FROM journal")
    start()
    wait_until_idle(home)
    return read_run(home, jobs["seq"], journal["seq"])


def emit(service: Service, kind: str, payload: dict[str, Any] | None = None, **event: Any) -> Run:
    """Let the plugin `source` emit an event and return the run."""
    response = {"events": [{"type": kind, "payload": payload or {}, **event}]}
    return run_to_end(service, lambda: service.post("source", "poll", {"response": response}))


def read_run(home: Home, after_job: int = 0, after_journal: int = 0) -> Run:
    """Read the rows after these sequence numbers."""
    rows = home.rows("SELECT * FROM job_queue WHERE seq > ? ORDER BY seq", after_job)
    journal = home.rows("SELECT kind, data FROM journal WHERE seq > ? ORDER BY seq", after_journal)
    ids = {row["id"] for row in rows}
    return Run(
        rows,
        {request["job_id"]: request for request in recorded_requests(home) if request["job_id"] in ids},
        [(row["kind"], json.loads(row["data"])) for row in journal],
    )


def recorded_requests(home: Home) -> list[dict[str, Any]]:
    """Return every recorded request, in order."""
    file: Path = home.path / REQUESTS_FILE
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


OPEN_JOBS = "SELECT COUNT(*) AS open FROM job_queue WHERE status IN ('queued', 'running')"


def wait_until_idle(home: Home) -> None:
    """Wait until every job has ended."""
    poll_until(lambda: home.rows(OPEN_JOBS) == [{"open": 0}])
