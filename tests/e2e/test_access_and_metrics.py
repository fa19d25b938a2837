"""Access to the API: expiring tokens, their last use, allowed origins of browsers; and the metrics."""

import http.client
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from urllib.parse import urlsplit

import pytest

from tests.e2e.sample_plugins import BlockingPlugin
from tests.e2e.service import TOKEN, WAIT_SECONDS, Home, Service

Start = Callable[..., Service]
EXPIRED, VALID, READER = "expired-token-0123456789ab", "valid-token-0123456789abcd", "reader-token-0123456789abc"
TOKENS = f"""\
tokens:
      - {{name: expired, token: {EXPIRED}, scopes: ["*"], expires_at: "2026-01-01T00:00:00Z"}}
      - {{name: valid, token: {VALID}, scopes: ["*"], expires_at: "2096-01-01T00:00:00Z"}}
      - {{name: reader, token: {READER}, scopes: ["jobs:ro"]}}
"""
OK = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "done"}\'\n'
ORIGIN = "https://dash.example"


def configure(home: Home) -> Home:
    text = (home.path / "config.yaml").read_text()
    text = text.replace("tokens:\n", TOKENS).replace("api:\n", f"api:\n  allowed_origins: ['{ORIGIN}']\n")
    home.write("config.yaml", text)
    home.plugin("ok", OK)
    return home


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = configure(Home.make(tmp_path_factory.mktemp("access") / "ductile")).start()
    yield running
    running.kill()


def send(service: Service, method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    parts = urlsplit(service.url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_SECONDS)) as connection:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_expired_token_is_rejected_like_a_wrong_one(service: Service) -> None:
    """The responses are equal."""
    expired = service.ask("GET", "/plugins", token=EXPIRED)
    assert expired[0] == 401
    assert expired == service.ask("GET", "/plugins", token="wrong-token-0123456789abcdef")
    assert service.ask("GET", "/plugins", token=VALID)[0] == 200


def test_tokens_are_listed_with_their_last_use(service: Service) -> None:
    """The list never contains a token."""
    service.ask("GET", "/jobs", token=READER)
    body = service.ask("GET", "/system/tokens")[1]
    listed = {token["name"]: token for token in body["tokens"]}
    assert [listed[name]["expired"] for name in ("expired", "valid", "reader")] == [True, False, False]
    assert listed["expired"]["last_used_at"] is None
    assert listed["reader"]["last_used_at"].endswith("Z")
    assert listed["reader"]["scopes"] == ["jobs:ro"]
    assert not any(secret in str(body) for secret in (EXPIRED, VALID, READER, TOKEN))


def test_the_last_use_of_a_token_survives_a_restart(home: Home, start: Start) -> None:
    configure(home)
    service = start()
    service.ask("GET", "/jobs", token=READER)
    service.stop()
    service = start()
    listed = {token["name"]: token for token in service.ask("GET", "/system/tokens")[1]["tokens"]}
    assert listed["reader"]["last_used_at"] is not None


def test_a_stream_ends_when_its_token_expires(home: Home, start: Start) -> None:
    configure(home)
    end = datetime.now(UTC) + timedelta(seconds=6)
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("2096-01-01T00:00:00Z", end.isoformat(timespec="seconds")))
    service = start()
    parts = urlsplit(service.url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_SECONDS)) as connection:
        connection.request("GET", "/events", headers=bearer(VALID))
        response = connection.getresponse()
        assert response.status == 200
        with suppress(http.client.IncompleteRead):  # the stream ends without a last chunk
            while response.read1(1000):
                pass
    assert datetime.now(UTC) >= end - timedelta(seconds=1)
    assert service.ask("GET", "/plugins", token=VALID)[0] == 401


# ── browsers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_page_of_an_allowed_origin_may_send_requests_and_read_responses(service: Service) -> None:
    """Error responses have the CORS headers too."""
    status, headers, body = send(
        service,
        "OPTIONS",
        "/plugin/ok/poll",
        {"origin": ORIGIN, "access-control-request-method": "POST"},
    )
    assert (status, body) == (204, b"")
    assert headers["access-control-allow-origin"] == ORIGIN
    assert "POST" in headers["access-control-allow-methods"]
    assert "Idempotency-Key" in headers["access-control-allow-headers"]
    for headers_of_caller, expected in ((bearer(TOKEN), 200), (bearer("wrong"), 401), (bearer(READER), 403)):
        status, headers, _ = send(service, "GET", "/config/view", {**headers_of_caller, "origin": ORIGIN})
        assert (status, headers["access-control-allow-origin"], headers["vary"]) == (expected, ORIGIN, "Origin")


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "https://dash.example.evil", "null", "*", "http://dash.example"]
)
def test_a_page_of_another_origin_may_not(service: Service, origin: str) -> None:
    status, headers, _ = send(
        service, "OPTIONS", "/plugin/ok/poll", {"origin": origin, "access-control-request-method": "POST"}
    )
    assert status == 405
    assert "access-control-allow-origin" not in headers
    _, headers, _ = send(service, "GET", "/plugins", {**bearer(TOKEN), "origin": origin})
    assert "access-control-allow-origin" not in headers


# ── metrics ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def metrics(service: Service) -> dict[str, float]:
    status, headers, body = send(service, "GET", "/metrics", bearer(TOKEN))
    assert status == 200
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = [line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in samples}


def test_jobs_commits_and_requests_are_counted(service: Service) -> None:
    """Jobs by plugin and status, their run and wait times, commits, requests."""
    before = metrics(service)
    for _ in range(3):
        service.run("ok")
    after = metrics(service)

    def increase(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert increase('ductile_jobs_total{plugin="ok",command="poll",status="succeeded",outcome_code="answered_ok"}') == 3
    assert increase('ductile_job_run_seconds_count{plugin="ok"}') == 3
    assert increase('ductile_job_wait_seconds_bucket{plugin="ok",le="+Inf"}') == 3
    assert increase('ductile_http_requests_total{method="POST",route="/plugin/{plugin}/{command}",status="202"}') == 3
    assert increase("ductile_ledger_write_seconds_count") >= 6
    assert after['ductile_queue_jobs{status="queued"}'] == 0
    assert after["process_resident_memory_bytes"] > 1 << 20


def test_a_job_that_may_not_start_is_not_the_oldest_claimable(service: Service) -> None:
    """The recommended alert does not fire while its plugin is paused."""
    assert service.ask("POST", "/plugins/ok/pause", {})[0] == 200
    job_id = service.post("ok")
    assert metrics(service)["ductile_queue_oldest_claimable_seconds"] == 0
    assert service.ask("GET", "/healthz")[1]["oldest_claimable_seconds"] == 0
    assert service.ask("POST", "/plugins/ok/resume", {})[0] == 200
    service.job(job_id, wait="30s")


def test_metrics_need_a_scope(service: Service) -> None:
    assert send(service, "GET", "/metrics", bearer(READER))[0] == 403


def test_every_metric_is_documented(service: Service) -> None:
    """docs/operations.md explains each metric."""
    from tests.test_docs import ROOT

    text = (ROOT / "docs" / "operations.md").read_text()
    _, _, body = send(service, "GET", "/metrics", bearer(TOKEN))
    names = re.findall(r"^# TYPE (\S+) ", body.decode(), re.MULTILINE)
    assert len(names) > 15
    assert [name for name in names if f"`{name}`" not in text] == []


def test_waiting_requests_of_one_token_do_not_block_the_api(home: Home, start: Start, blocking: BlockingPlugin) -> None:
    """Above the limit they get 429 with the key of the limit. Requests that do not wait are served."""
    home.replace("  listen: 127.0.0.1:0\n", "  listen: 127.0.0.1:0\n  max_concurrent_waits: 2\n")
    service = start()
    job_id = service.post("blocking")
    blocking.wait_until_started()
    with ThreadPoolExecutor(4) as callers:
        asked = [callers.submit(service.ask, "GET", f"/job/{job_id}?wait=30s") for _ in range(4)]
        refused = [answer.result() for answer in islice(as_completed(asked), 2)]
        free = service.ask("GET", f"/job/{job_id}")
        blocking.release()

    assert [(status, error["code"]) for status, error in refused] == [(429, "too_many_waits")] * 2
    assert "api.max_concurrent_waits" in refused[0][1]["error"]
    assert (free[0], free[1]["status"]) == (200, "running")
    assert sorted(answer.result()[0] for answer in asked) == [200, 200, 429, 429]
