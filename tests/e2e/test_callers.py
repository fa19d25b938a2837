"""Who may call: tokens that expire, when they were used, pages in browsers; and numbers for whoever collects them."""

import http.client
import re
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

import pytest

from tests.e2e.service import TOKEN, WAIT_SECONDS, Home, Service

Start = Callable[..., Service]
OLD, YOUNG, READER = "old-token-0123456789abcdef", "young-token-0123456789abcd", "reader-token-0123456789abc"
TOKENS = f"""\
tokens:
      - {{name: old, token: {OLD}, scopes: ["*"], expires_at: "2026-01-01T00:00:00Z"}}
      - {{name: young, token: {YOUNG}, scopes: ["*"], expires_at: "2096-01-01T00:00:00Z"}}
      - {{name: reader, token: {READER}, scopes: ["jobs:ro"]}}
"""
OK = '#!/bin/sh\ncat >/dev/null\necho \'{"status": "ok", "result": "done"}\'\n'
PAGE = "https://dash.example"


def furnish(home: Home) -> Home:
    text = (home.path / "config.yaml").read_text()
    text = text.replace("tokens:\n", TOKENS).replace("api:\n", f"api:\n  allowed_origins: ['{PAGE}']\n")
    home.write("config.yaml", text)
    home.plugin("ok", OK)
    return home


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = furnish(Home.make(tmp_path_factory.mktemp("callers") / "ductile")).start()
    yield running
    running.kill()


def exchange(service: Service, method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
    parts = urlsplit(service.url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_SECONDS)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


# ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_expired_token_is_as_good_as_none(service: Service) -> None:
    """And the answer does not tell it from a wrong one."""
    expired = service.ask("GET", "/plugins", token=OLD)
    assert expired[0] == 401
    assert expired == service.ask("GET", "/plugins", token="wrong-token-0123456789abcdef")
    assert service.ask("GET", "/plugins", token=YOUNG)[0] == 200


def test_tokens_are_listed_with_when_they_were_used(service: Service) -> None:
    """Never the token itself; that one used is used nobody needs to be told who did not."""
    service.ask("GET", "/jobs", token=READER)
    answer = service.ask("GET", "/system/tokens")[1]
    listed = {token["name"]: token for token in answer["tokens"]}
    assert [listed[name]["expired"] for name in ("old", "young", "reader")] == [True, False, False]
    assert listed["old"]["last_used_at"] is None
    assert listed["reader"]["last_used_at"].endswith("Z")
    assert listed["reader"]["scopes"] == ["jobs:ro"]
    assert not any(secret in str(answer) for secret in (OLD, YOUNG, READER, TOKEN))


def test_uses_are_remembered_over_a_restart(home: Home, start: Start) -> None:
    furnish(home)
    service = start()
    service.ask("GET", "/jobs", token=READER)
    service.stop()
    service = start()
    listed = {token["name"]: token for token in service.ask("GET", "/system/tokens")[1]["tokens"]}
    assert listed["reader"]["last_used_at"] is not None


def test_a_stream_ends_with_its_token(home: Home, start: Start) -> None:
    """A token that comes to its end by itself takes its streams with it."""
    furnish(home)
    end = datetime.now(UTC) + timedelta(seconds=6)
    text = (home.path / "config.yaml").read_text()
    home.write("config.yaml", text.replace("2096-01-01T00:00:00Z", end.isoformat(timespec="seconds")))
    service = start()
    parts = urlsplit(service.url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_SECONDS)) as connection:
        connection.request("GET", "/events", headers=bearer(YOUNG))
        answer = connection.getresponse()
        assert answer.status == 200
        with suppress(http.client.IncompleteRead):  # a stream that is cut has no last chunk
            while answer.read1(1000):
                pass
    assert datetime.now(UTC) >= end - timedelta(seconds=1)
    assert service.ask("GET", "/plugins", token=YOUNG)[0] == 401


# ── browsers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_page_of_a_listed_origin_may_ask_and_read(service: Service) -> None:
    """Also what it may not do: an answer that a page cannot read says nothing to anybody."""
    status, headers, body = exchange(
        service,
        "OPTIONS",
        "/plugin/ok/poll",
        {"origin": PAGE, "access-control-request-method": "POST"},
    )
    assert (status, body) == (204, b"")
    assert headers["access-control-allow-origin"] == PAGE
    assert "POST" in headers["access-control-allow-methods"]
    assert "Idempotency-Key" in headers["access-control-allow-headers"]
    for caller, expected in ((bearer(TOKEN), 200), (bearer("wrong"), 401), (bearer(READER), 403)):
        status, headers, _ = exchange(service, "GET", "/config/view", {**caller, "origin": PAGE})
        assert (status, headers["access-control-allow-origin"], headers["vary"]) == (expected, PAGE, "Origin")


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "https://dash.example.evil", "null", "*", "http://dash.example"]
)
def test_no_other_page_may(service: Service, origin: str) -> None:
    status, headers, _ = exchange(
        service, "OPTIONS", "/plugin/ok/poll", {"origin": origin, "access-control-request-method": "POST"}
    )
    assert status == 405
    assert "access-control-allow-origin" not in headers
    _, headers, _ = exchange(service, "GET", "/plugins", {**bearer(TOKEN), "origin": origin})
    assert "access-control-allow-origin" not in headers


# ── numbers ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def numbers(service: Service) -> dict[str, float]:
    status, headers, body = exchange(service, "GET", "/metrics", bearer(TOKEN))
    assert status == 200
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    samples = [line.rpartition(" ") for line in body.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in samples}


def test_what_is_done_is_counted(service: Service) -> None:
    """Jobs by plugin and status, how long they took and waited, commits, requests."""
    before = numbers(service)
    for _ in range(3):
        service.run("ok")
    after = numbers(service)

    def more(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert more('ductile_jobs_total{plugin="ok",command="poll",status="succeeded"}') == 3
    assert more('ductile_job_run_seconds_count{plugin="ok"}') == 3
    assert more('ductile_job_wait_seconds_bucket{plugin="ok",le="+Inf"}') == 3
    assert more('ductile_http_requests_total{method="POST",route="/plugin/{plugin}/{command}",status="202"}') == 3
    assert more("ductile_ledger_write_seconds_count") >= 6
    assert after['ductile_queue_jobs{status="queued"}'] == 0
    assert after["process_resident_memory_bytes"] > 1 << 20


def test_numbers_need_a_scope(service: Service) -> None:
    assert exchange(service, "GET", "/metrics", bearer(READER))[0] == 403


def test_every_number_is_documented(service: Service) -> None:
    """docs/operations.md explains each metric."""
    from tests.test_docs import ROOT

    text = (ROOT / "docs" / "operations.md").read_text()
    _, _, body = exchange(service, "GET", "/metrics", bearer(TOKEN))
    names = re.findall(r"^# TYPE (\S+) ", body.decode(), re.MULTILINE)
    assert len(names) > 15
    assert [name for name in names if f"`{name}`" not in text] == []
