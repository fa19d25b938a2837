"""Limits of the queued jobs of one submitter: `service.limits.queued_jobs` and `queued_bytes`."""

import http.client
import json
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.commands import ductile_json
from tests.e2e.sample_plugins import OK
from tests.e2e.service import TOKEN, Home, Service, Start, poll_until
from tests.e2e.test_webhooks import WEBHOOKS, deliver

PIPELINES = "pipelines: [{name: two, on: started, steps: [{id: first, uses: ok}, {id: second, uses: ok}]}]\n"


def limit(home: Home, limits: str) -> None:
    home.plugin("ok", OK)
    home.replace("  log_level: debug\n", f"  log_level: debug\n  limits: {{{limits}}}\n")


def post(service: Service, path: str) -> tuple[int, str | None, Any]:
    """Return status, Retry-After and body of a POST without a body."""
    parts = urlsplit(service.url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)) as connection:
        connection.request("POST", path, headers={"authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        return answer.status, answer.headers["retry-after"], json.loads(answer.read())


def test_a_caller_with_too_many_queued_jobs_is_refused(home: Home, start: Start) -> None:
    """Whatever starts a job, with the key and the numbers. Other callers, and runs that were accepted, continue."""
    limit(home, "queued_jobs: 2")
    home.add(PIPELINES)
    service = start()
    ended = ductile_json(home, "plugin", "run", "ok", "poll")["job_id"]
    service.job(ended, wait="30s")
    service.ask("POST", "/queue/pause")
    accepted = [service.ask("POST", "/pipeline/two")[0], service.ask("POST", "/event/started")[0]]
    paths = ("/plugin/ok/poll", "/pipeline/two", "/event/started", f"/job/{ended}/replay")
    refused = {path: post(service, path) for path in paths}
    local = ductile_json(home, "plugin", "run", "ok", "poll")
    service.ask("POST", "/queue/resume")
    again = poll_until(lambda: service.ask("POST", "/plugin/ok/poll")[0] == 202)
    service.stop()

    assert accepted == [202, 202]
    assert {(status, retry, error["code"]) for status, retry, error in refused.values()} == {(429, "5", "queue_limit")}
    for _, _, error in refused.values():
        assert error["context"] == {"limit_key": "service.limits.queued_jobs", "max": 2, "queued": 2}
        assert "2 or more jobs of token:e2e" in error["error"]
        assert "service.limits.queued_jobs" in error["error"]
    assert local["job_id"]
    assert again
    counts = home.rows("SELECT data FROM journal WHERE kind = 'auth.limited' AND actor = 'token:e2e'")
    assert sum(json.loads(row["data"])["why"].get("POST /pipeline/{pipeline}", 0) for row in counts) == 1


def test_a_caller_with_too_many_queued_bytes_is_refused(home: Home, start: Start) -> None:
    limit(home, "queued_bytes: 1KB")
    service = start()
    service.ask("POST", "/queue/pause")
    service.post("ok")
    service.post("ok", payload={"text": "é" * 600})

    status, error = service.ask("POST", "/plugin/ok/poll")

    assert (status, error["code"]) == (429, "queue_limit")
    assert error["context"]["limit_key"] == "service.limits.queued_bytes"
    assert error["context"]["max"] == 1024 < error["context"]["queued"]


def test_an_endpoint_with_too_many_queued_jobs_refuses_deliveries(home: Home, start: Start) -> None:
    """They are recorded like other refused deliveries. A repeated delivery gets the first response."""
    limit(home, "queued_jobs: 1")
    home.plugin("receiver", OK)
    home.add("include: [tokens.yaml, webhooks.yaml]\nplugins: {receiver: {}}\n")
    home.write("tokens.yaml", "tokens:\n  - {name: first, key: the-first-secret-0123456789}\n")
    home.write("webhooks.yaml", WEBHOOKS.replace("SECRETS", "[first]"))
    home.seal()
    service = start()
    service.ask("POST", "/queue/pause")
    first = deliver(service, b'{"n": 1}', "-H", "X-Delivery: 1")
    refused = deliver(service, b'{"n": 2}', "-H", "X-Delivery: 2")
    repeated = deliver(service, b'{"n": 1}', "-H", "X-Delivery: 1")
    recorded = service.ask("GET", "/webhooks/deliveries?verdict=refused")[1]["deliveries"]

    assert first[0] == 202
    assert (refused[0], refused[1]["code"]) == (429, "queue_limit")
    assert repeated == first
    assert [(one["status"], one["code"], one["delivery_id"]) for one in recorded] == [(429, "queue_limit", "2")]
