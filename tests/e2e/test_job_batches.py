"""`ductile job cancel`, `retry` and `replay` for all jobs that filters select, and `retry --now`."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.commands import ductile, ductile_json
from tests.e2e.sample_plugins import FAILING, OK
from tests.e2e.service import Home, Service

UNLUCKY = """#!/bin/sh
cat >/dev/null
[ -e ready ] && { echo '{"status": "ok", "result": "done"}'; exit; }
echo '{"status": "error", "error": "not ready"}'
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Start one service for all tests. Each test uses a plugin of its own."""
    home = Home.make(tmp_path_factory.mktemp("batches") / "ductile")
    home.plugin("failing", FAILING)
    home.plugin("broken", FAILING)
    home.plugin("unlucky", UNLUCKY)
    home.plugin("echo", OK)
    running = home.start()
    yield running
    running.kill()


def run(service: Service, *args: str, exit_code: int = 0) -> Any:
    return ductile_json(service.home, "job", *args, exit_code=exit_code)


def test_a_batch_shows_its_count_and_acts_only_with_yes(service: Service) -> None:
    """Without --yes it exits with code 2 and names the flag. Filters select by plugin and time."""
    jobs = [service.run("failing")["job_id"] for _ in range(2)]
    service.run("broken")
    select = ("--status", "failed", "--plugin", "failing", "--since", "1h")

    asked = ductile(service.home, "job", "replay", *select)
    assert asked.exit_code == 2, asked
    assert "2 jobs would be replayed" in asked.stdout
    assert "add --yes" in asked.stdout
    tried = run(service, "replay", *select, "--dry-run")
    assert (tried["count"], [job["job_id"] for job in tried["jobs"]]) == (2, jobs)
    assert run(service, "replay", "--status", "failed", "--plugin", "failing", "--since", "2999-01-01")["count"] == 0

    done = run(service, "replay", *select, "--yes")["done"]
    assert [job["replay_of"] for job in done] == jobs
    for job in done:
        service.job(job["job_id"], wait="30s")


def test_a_batch_reports_jobs_that_refuse_and_continues(service: Service) -> None:
    """It exits with code 1. Jobs that an operator cancelled are not retried."""
    service.ask("POST", "/plugins/echo/pause")
    jobs = [service.post("echo") for _ in range(3)]
    cancelled = run(service, "cancel", "--status", "queued", "--plugin", "echo", "--yes")["done"]
    assert [job["job_id"] for job in cancelled] == jobs
    assert run(service, "retry", "--status", "dead", "--plugin", "echo")["count"] == 0
    service.ask("POST", "/plugins/echo/resume")

    service.run("broken")
    (service.home.path / "plugins" / "broken").rename(service.home.path / "broken")
    service.ask("POST", "/system/reload")
    refused = run(service, "retry", "--status", "failed", "--plugin", "broken", "--yes", exit_code=1)
    assert (refused["done"], {failure["code"] for failure in refused["failed"]}) == ([], {"not_found"})


def test_retry_now_starts_a_job_before_its_retry_time(service: Service) -> None:
    """A queued job that waits for something else is refused. The journal has the time at which it was due."""
    job_id = service.post("unlucky")
    service.wait_for_log("attempt failed", job_id=job_id)
    (service.home.path / "ready").touch()

    assert run(service, "retry", job_id, exit_code=1)["code"] == "wrong_state"
    assert run(service, "retry", "--now", "--status", "queued", "--plugin", "unlucky", "--dry-run")["count"] == 1
    assert run(service, "retry", "--now", job_id)["status"] == "queued"
    ended = service.job(job_id, wait="30s")
    assert (ended["status"], ended["attempt"]) == ("succeeded", 2)
    (row,) = service.home.rows("SELECT data ->> 'was_due' AS due FROM journal WHERE kind = 'job.requeued'")
    assert row["due"]
    assert run(service, "retry", "--now", job_id, exit_code=1)["code"] == "wrong_state"


def test_a_batch_needs_either_a_job_id_or_a_status(service: Service) -> None:
    """Filters without --status and with a job id are usage errors."""
    for args in (("retry",), ("retry", "--plugin", "echo"), ("cancel", "x", "--status", "queued")):
        assert run(service, *args, exit_code=2)["code"] == "usage"
