"""Plugins that write down what they were told and say what they are asked to, and runs as a test looks at them."""

import json
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from attrs import frozen

from tests.e2e.service import PATIENCE, Home, Service

HEARD = "heard.jsonl"
ACTOR = f"""#!{sys.executable} -IS
import json, os, sys
request = json.load(sys.stdin)
event = request.get("event") or {{}}
payload = event.get("payload", request.get("payload", {{}}))
heard = {{"plugin": os.environ["DUCTILE_PLUGIN"], "job_id": request["job_id"], "command": request["command"],
         "type": event.get("type"), "payload": payload, "context": request.get("context", {{}})}}
with open("{HEARD}", "a") as file:
    file.write(json.dumps(heard) + "\\n")
said = payload.get("say") or request["config"].get("say") or {{}}
print(json.dumps({{"status": "ok", "result": "done", **said}}))
"""
"""Answers with `payload.say`, else with `config.say` of its entry, else that all is well."""


def cast(home: Home, names: Iterable[str]) -> None:
    """An actor for each name."""
    for name in names:
        home.plugin(name, ACTOR)


@frozen
class Run:
    """Everything that came of one trigger: rows in order of creation, and what the plugins among them were told."""

    rows: list[dict[str, Any]]
    heard: dict[str, dict[str, Any]]
    journal: list[tuple[str, dict[str, Any]]]

    @property
    def steps(self) -> list[str]:
        """Every row of a pipeline in a few words; a row of no pipeline by its plugin."""
        return [f"{row['step_id'] or row['plugin']} {row['status']}" for row in self.rows]

    def of(self, step: str) -> list[dict[str, Any]]:
        """The rows of that step, or of that plugin where there is no step."""
        return [row for row in self.rows if step in (row["step_id"], row["plugin"])]

    def one(self, step: str) -> dict[str, Any]:
        (row,) = self.of(step)
        return row

    def told(self, step: str) -> dict[str, Any]:
        """What the plugin of that step was told."""
        return self.heard[self.one(step)["id"]]

    def payload(self, step: str) -> dict[str, Any]:
        """Its payload, without the names of the step before."""
        payload: dict[str, Any] = self.told(step)["payload"]
        return {key: value for key, value in payload.items() if not key.startswith("ductile_upstream_")}

    def baggage(self, step: str) -> dict[str, Any]:
        """What is durable in its context."""
        context: dict[str, Any] = self.told(step)["context"]
        return {key: value for key, value in context.items() if not key.startswith("ductile")}

    def notes(self, kind: str) -> list[dict[str, Any]]:
        return [data for found, data in self.journal if found == kind]


def act(service: Service, start: Callable[[], Any]) -> Run:
    """What comes of `start`, when nothing is open any more. Nobody else may use the service meanwhile."""
    home = service.home
    (before,) = home.rows("SELECT COALESCE(MAX(seq), 0) AS job FROM job_queue")
    (noted,) = home.rows("SELECT COALESCE(MAX(seq), 0) AS note FROM journal")
    start()
    until_idle(home)
    return look(home, before["job"], noted["note"])


def emit(service: Service, kind: str, payload: dict[str, Any] | None = None, **event: Any) -> Run:
    """What comes of an event that the plugin `source` emits."""
    said = {"events": [{"type": kind, "payload": payload or {}, **event}]}
    return act(service, lambda: service.post("source", "poll", {"say": said}))


def look(home: Home, after_job: int = 0, after_note: int = 0) -> Run:
    """Everything in the ledger since then."""
    rows = home.rows("SELECT * FROM job_queue WHERE seq > ? ORDER BY seq", after_job)
    notes = home.rows("SELECT kind, data FROM journal WHERE seq > ? ORDER BY seq", after_note)
    file = home.path / HEARD
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    ids = {row["id"] for row in rows}
    return Run(
        rows,
        {line["job_id"]: line for line in lines if line["job_id"] in ids},
        [(note["kind"], json.loads(note["data"])) for note in notes],
    )


OPEN = "SELECT COUNT(*) AS open FROM job_queue WHERE status IN ('queued', 'running')"


def until_idle(home: Home) -> None:
    """Every job is over."""
    until(lambda: home.rows(OPEN) == [{"open": 0}])


def until(look: Callable[[], Any]) -> Any:
    """What `look` finds, as soon as it finds something: for facts in files, which cannot call."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
    return found
