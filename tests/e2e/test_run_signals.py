"""The hook signals of runs: `run.completed` and `run.failed` start pipelines once per ended run."""

import json
import signal
from contextlib import suppress
from typing import Any

from tests.e2e.sample_plugins import FAILING, FALLIBLE, OK
from tests.e2e.service import Home, Service, Start, poll_until

CONFIG = """\
plugins:
  quick: {}
  fallible: {}
  failing: {}
  waits: {parallelism: 1}
pipelines:
  - name: deploy
    on: deploy.requested
    steps: [{id: build, uses: quick}, {id: ship, uses: fallible}]
  - name: page
    on-hook: run.failed
    steps: [{id: page, uses: failing}]
  - name: report
    on-hook: run.completed
    steps: [{id: report, uses: quick}]
"""
KILLS_THE_SERVICE = """#!/bin/sh
cat > /dev/null
[ -e survive ] || kill -9 "$PPID"
echo '{"status": "error", "error": "no luck", "retry": false}'
"""


def configure(home: Home) -> None:
    home.plugin("quick", OK)
    home.plugin("fallible", FALLIBLE)
    home.plugin("failing", FAILING)
    home.plugin("waits", "#!/bin/sh\ncat > /dev/null\nexec sleep 600\n")
    home.add(CONFIG)


def run_pipeline(service: Service, name: str = "deploy") -> str:
    status, body = service.ask("POST", f"/pipeline/{name}", {"payload": {}})
    assert status == 202, body
    return str(body["job_id"])


def hook_payloads(service: Service, root: str, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Wait until every job has ended and the run has fired `count` hooks; return their steps and payloads."""

    def ended() -> list[dict[str, Any]]:
        if service.home.rows("SELECT 1 FROM job_queue WHERE status IN ('queued', 'running')"):
            return []
        statement = "SELECT step_id, payload FROM job_queue WHERE parent_job_id = ? AND id = root_job_id ORDER BY seq"
        hooks = service.home.rows(statement, root)
        return hooks if len(hooks) >= count else []

    hooks = poll_until(ended)
    assert len(hooks) == count, hooks
    return [(hook["step_id"], json.loads(hook["payload"])["payload"]) for hook in hooks]


def test_a_failed_second_step_fires_run_failed_once(home: Home, start: Start) -> None:
    """Without `notify_on_complete`. The payload names the root, the failed step and its error."""
    configure(home)
    (home.path / "broken").touch()
    service = start()

    root = run_pipeline(service)
    (completed, first), (failed, payload) = hook_payloads(service, root, 2)

    assert (completed, failed, first) == ("report", "page", payload)
    assert (payload["job_id"], payload["pipeline"], payload["status"]) == (root, "deploy", "failed")
    (failure,) = payload["failures"]
    assert (failure["plugin"], failure["command"], failure["step_id"]) == ("fallible", "handle", "ship")
    assert (failure["status"], failure["error"], failure["outcome_code"]) == ("failed", "broken", "retry_false")
    assert payload["message"] == payload["text"] == "Pipeline deploy failed: step ship: broken."
    (noted,) = service.home.rows("SELECT data FROM journal WHERE kind = 'run.failed' AND job_id = ?", root)
    assert json.loads(noted["data"])["failures"] == payload["failures"]


def test_a_failed_hook_run_fires_no_hooks(home: Home, start: Start) -> None:
    """The plugin of the hook fails; its run is journalled as failed and starts nothing."""
    configure(home)
    service = start()

    root = service.post("failing")
    hook_payloads(service, root, 2)

    assert len(service.home.rows("SELECT 1 FROM job_queue")) == 3
    assert len(service.home.rows("SELECT 1 FROM journal WHERE kind = 'run.failed'")) == 2


def test_a_retried_run_fires_again_when_it_ends_again(home: Home, start: Start) -> None:
    """Once for each end: failed, failed again, succeeded."""
    configure(home)
    (home.path / "broken").touch()
    service = start()
    root = run_pipeline(service)
    hook_payloads(service, root, 2)
    (ship,) = home.rows("SELECT id FROM job_queue WHERE step_id = 'ship'")

    service.ask("POST", f"/job/{ship['id']}/retry")
    hook_payloads(service, root, 4)
    (home.path / "broken").unlink()
    service.ask("POST", f"/job/{ship['id']}/retry")

    ends = hook_payloads(service, root, 5)
    assert [step for step, _ in ends] == ["report", "page", "report", "page", "report"]
    assert [payload["status"] for _, payload in ends] == ["failed"] * 4 + ["succeeded"]
    assert ends[-1][1]["failures"] == []


def test_a_cancelled_run_is_completed_and_not_failed(home: Home, start: Start) -> None:
    """An operator who cancels a run does not need a page about it."""
    configure(home)
    service = start()
    running, queued = service.post("waits"), service.post("waits")

    for job_id in (queued, running):
        assert service.ask("POST", f"/job/{job_id}/cancel", {"reason": "test"})[0] in (200, 202)

    for job_id in (queued, running):
        ((step, payload),) = hook_payloads(service, job_id, 1)
        assert (step, payload["status"], payload["failed_jobs"]) == ("report", "cancelled", 1)
    assert home.rows("SELECT 1 FROM journal WHERE kind = 'run.failed'") == []


def test_a_crash_neither_loses_nor_repeats_a_run_signal(home: Home, start: Start) -> None:
    """The service dies before and after the commit that ends the last job of a run."""
    configure(home)
    home.plugin("poison", KILLS_THE_SERVICE)
    home.replace("  quick: {}\n", "  quick: {}\n  poison: {retry: {max_attempts: 1}}\n")
    service = start()
    with suppress(ConnectionError):  # the service may die before it sends the response
        service.post("poison")
    assert service.wait() == -signal.SIGKILL
    (root,) = (row["id"] for row in home.rows("SELECT id FROM job_queue WHERE plugin = 'poison'"))

    recovering = home.launch(environ={"DUCTILE_FAILPOINT": "recover.after_first"})
    assert recovering.wait() == -signal.SIGKILL
    service = start()
    hook_payloads(service, root, 2)
    service.kill()

    (failed,) = [payload for step, payload in hook_payloads(start(), root, 2) if step == "page"]
    assert failed["failures"][0]["outcome_code"] == "core_died"
