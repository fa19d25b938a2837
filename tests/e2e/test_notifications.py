"""`notify`: a running service sends messages about problems with the configured plugin."""

import json
from typing import Any

import pytest

from tests.e2e.commands import ductile
from tests.e2e.sample_plugins import FAILING, FALLIBLE, OK
from tests.e2e.service import Home, Service, Start, poll_until

CONFIG = """\
plugins:
  quick: {}
  fallible: {}
  failing: {circuit_breaker: {threshold: 2, applies_to: all}}
  blocked: {parallelism: 1}
  tell: {}
pipelines:
  - name: deploy
    on: deploy.requested
    steps: [{id: build, uses: quick}, {id: ship, uses: fallible}]
notify: {to: tell, every: 1h, queue_stuck_after: 1h}
"""
BLOCKED = "#!/bin/sh\ncat > /dev/null\nexec sleep 600\n"


def configure(home: Home, tell: str = OK) -> None:
    for name, script in (("quick", OK), ("fallible", FALLIBLE), ("failing", FAILING), ("blocked", BLOCKED)):
        home.plugin(name, script)
    home.plugin("tell", tell)
    home.add(CONFIG)
    (home.path / "broken").touch()


def messages(home: Home, count: int = 1) -> list[dict[str, Any]]:
    """Wait until `count` notifications have ended; return their events in order, with the status of the job."""
    ended = "SELECT payload, status FROM job_queue WHERE submitted_by = 'notify' AND completed_at > '' ORDER BY seq"

    def found() -> list[dict[str, Any]]:
        rows = home.rows(ended)
        return rows if len(rows) >= count else []

    return [{**json.loads(row["payload"]), "status": row["status"]} for row in poll_until(found)]


def run_deploy(service: Service) -> str:
    _, body = service.ask("POST", "/pipeline/deploy", {"payload": {}})
    return str(service.job(body["job_id"], wait="30s")["job_id"])


def test_a_failed_second_step_sends_a_message_and_a_restart_sends_no_other(home: Home, start: Start) -> None:
    """The message is an ordinary job in its own tree. Further failures of the pipeline are held."""
    configure(home)
    service = start()
    root = run_deploy(service)
    (message,) = messages(home)
    assert (message["type"], message["status"]) == ("run.failed", "succeeded")
    assert message["payload"]["job_id"] == root
    assert message["payload"]["text"] == "Pipeline deploy failed: step ship: broken."

    run_deploy(service)
    poll_until(lambda: home.rows("SELECT 1 FROM journal WHERE kind = 'notification.held'"))
    service.stop()
    service = start()
    service.post("failing")
    _, other = messages(home, 2)
    assert other["payload"]["subject"] == "plugin failing"
    assert len(home.rows("SELECT 1 FROM journal WHERE kind = 'notification.sent'")) == 2


def test_a_message_that_cannot_be_sent_causes_no_other_message(home: Home, start: Start) -> None:
    """Neither its failure nor the end of its run is a signal."""
    configure(home, tell=FAILING)
    service = start()
    run_deploy(service)
    assert [message["status"] for message in messages(home)] == ["failed"]

    service.run("quick")
    service.stop()
    assert len(home.rows("SELECT 1 FROM job_queue WHERE plugin = 'tell'")) == 1
    assert len(home.rows("SELECT 1 FROM journal WHERE kind = 'run.failed'")) == 1


def test_a_breaker_that_opens_and_a_killed_service_are_reported(home: Home, start: Start) -> None:
    """`service.recovered` is sent by the service that starts after the kill."""
    configure(home)
    home.replace("every: 1h", "every: 1h, on: [breaker.opened, service.recovered]")
    service = start()
    for _ in range(2):
        service.run("failing")
    (opened,) = messages(home)
    assert (opened["type"], opened["payload"]["subject"]) == ("breaker.opened", "plugin failing.poll")
    service.kill()

    start()
    *_, recovered = messages(home, 2)
    assert recovered["type"] == "service.recovered"


def test_a_stuck_queue_is_reported_once(home: Home, start: Start) -> None:
    """A job that is ready and does not start, because its plugin has no free slot."""
    configure(home)
    home.replace("queue_stuck_after: 1h", "queue_stuck_after: 1ms")
    service = start()
    service.post("blocked")
    waiting = service.post("blocked")
    service.post("blocked")

    (stuck, *_) = messages(home)
    assert (stuck["type"], stuck["payload"]["job_id"]) == ("queue.stuck", waiting)
    service.run("quick")
    service.stop()
    assert len(home.rows("SELECT 1 FROM journal WHERE kind = 'queue.stuck'")) == 1


@pytest.mark.parametrize("status", ["succeeded", "failed"])
def test_the_test_command_reports_the_job(home: Home, start: Start, status: str) -> None:
    """It exits with 1 if the message was not sent. A dry run sends nothing."""
    configure(home, tell=OK if status == "succeeded" else FAILING)
    start()
    planned = ductile(home, "system", "notify", "test", "--dry-run", "--json")
    assert json.loads(planned.stdout)["plugin"] == "tell"
    assert home.rows("SELECT 1 FROM job_queue") == []

    tested = ductile(home, "system", "notify", "test", "--json")

    job = json.loads(tested.stdout)
    assert (job["status"], tested.exit_code) == (status, 0 if status == "succeeded" else 1)
    (message,) = messages(home)
    assert message["payload"]["text"] == "Test message from ductile: notifications work."


def test_the_test_command_without_configuration_names_the_section(home: Home, start: Start) -> None:
    """The hint is how to add it."""
    home.plugin("quick", OK)
    start()
    tested = ductile(home, "system", "notify", "test", "--json")
    error = json.loads(tested.stdout)
    assert (error["code"], tested.exit_code) == ("notify_missing", 1)
    assert "notify: {to: PLUGIN}" in error["hint"]
