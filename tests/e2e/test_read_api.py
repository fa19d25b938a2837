"""Read routes over HTTP: responses match their schemas, lists have pages, scopes limit what is shown."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from ductile.core.clock import from_text, to_text
from ductile.ledger.reports.filters import format_cursor
from tests.e2e.sample_pipelines import add_sample_pipelines
from tests.e2e.service import TOKEN, Home, Service

TOKENS = {
    "status": "status-token-0123456789",
    "logs": "logs-token-0123456789",
    "tree": "tree-token-0123456789",
    "ok-only": "ok-only-token-0123456789",
    "catalog": "catalog-token-0123456789",
    "meta": "meta-token-0123456789",
}
SCOPES = {
    "status": "jobs:status:ro",
    "logs": "jobs:logs:ro",
    "tree": "jobs:tree:ro",
    "ok-only": "plugin:ok:rw",
    "catalog": "plugin:catalog:ro",
    "meta": "events:meta:ro",
}
TIMESTAMPS = FormatChecker(formats=())


@TIMESTAMPS.checks("date-time", raises=ValueError)
def is_timestamp(text: object) -> bool:
    """Check that a timestamp has the format of the ledger."""
    return not isinstance(text, str) or to_text(from_text(text)) == text


SECRET = "a-very-secret-password-0123"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Start a service with some finished jobs."""
    home = add_sample_pipelines(Home.make(Path(tmp_path_factory.mktemp("reading")) / "ductile"))
    more = "".join(
        f'\n      - {{name: {name}, token: {token}, scopes: ["{SCOPES[name]}"]}}' for name, token in TOKENS.items()
    )
    text = (home.path / "config.yaml").read_text().replace('scopes: ["*"]}', f'scopes: ["*"]}}{more}')
    schedule = 'schedules: [{id: yearly, cron: "30 2 1 1 *"}]'
    values = f"config: {{password: {SECRET}, url: 'https://x:{SECRET}@host'}}"
    text = text.replace("  ok: {}\n", f"  ok: {{{schedule}, {values}}}\n")
    home.write("config.yaml", text)
    running = home.start()
    try:
        for plugin in ("ok", "ok", "ok", "broken"):
            running.run(plugin)
        assert running.ask("POST", "/pipeline/chain", {"payload": {}})[0] == 200
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def document(service: Service) -> dict[str, Any]:
    status, found = service.ask("GET", "/openapi.json")
    assert status == 200
    return dict(found)


def get(service: Service, path: str, *, token: str | None = None) -> Any:
    status, body = service.ask("GET", path, token=TOKENS[token] if token else TOKEN)
    assert status == 200, (path, status, body)
    return body


def check_schema(document: dict[str, Any], path: str, body: Any, status: str = "200", method: str = "get") -> None:
    """Check a response body against the schema of its operation."""
    schema = document["paths"][path][method]["responses"][status]["content"]["application/json"]["schema"]
    Draft202012Validator({**schema, "components": document["components"]}, format_checker=TIMESTAMPS).validate(body)


def latest_job(service: Service, plugin: str) -> str:
    job_id: str = get(service, f"/jobs?plugin={plugin}&limit=1")["jobs"][0]["job_id"]
    return job_id


SAMPLES = {
    "/": ["/"],
    "/healthz": ["/healthz"],
    "/plugins": ["/plugins"],
    "/plugin/{plugin}": ["/plugin/ok"],
    "/plugin/{plugin}/openapi.json": ["/plugin/ok/openapi.json"],
    "/openapi.json": ["/openapi.json"],
    "/skills": ["/skills"],
    "/topology": ["/topology"],
    "/.well-known/ai-plugin.json": ["/.well-known/ai-plugin.json"],
    "/jobs": ["/jobs", "/jobs?status=failed", "/jobs?plugin=ok&limit=1", "/jobs?query=nothing"],
    "/job-logs": ["/job-logs", "/job-logs?include_result=true", "/job-logs?query=done&include_result=true"],
    "/analytics/summary": ["/analytics/summary"],
    "/analytics/queue": ["/analytics/queue"],
    "/stopwatch/{plugin}": ["/stopwatch/ok", "/stopwatch/ok?window=24h&include_subs=true", "/stopwatch/notifying"],
    "/system/doctor": ["/system/doctor"],
    "/system/selfcheck": ["/system/selfcheck"],
    "/config/view": ["/config/view"],
    "/scheduler/jobs": ["/scheduler/jobs"],
    "/breaker/{plugin}": ["/breaker/ok"],
    "/schedules/agenda": ["/schedules/agenda", "/schedules/agenda?limit=2&plugin=ok"],
    "/schedule/{plugin}/{id}/why": ["/schedule/ok/yearly/why", "/schedule/ok/yearly/why?at=2026-01-01T00:00:00Z"],
    "/pipeline/{pipeline}": ["/pipeline/chain", "/pipeline/joined", "/pipeline/bypassed"],
    "/config/diff": [],  # needs two configurations
    "/journal": ["/journal", "/journal?kind=job.*&plugin=broken&limit=3"],
    "/runs": ["/runs", "/runs?status=failed", "/runs?pipeline=chain&limit=1"],
    "/events/why": ["/events/why?type=chain.requested"],
}


@pytest.mark.parametrize(("path", "url"), [(path, url) for path, samples in SAMPLES.items() for url in samples])
def test_a_response_matches_its_schema(service: Service, document: dict[str, Any], path: str, url: str) -> None:
    """No member is missing or undocumented."""
    check_schema(document, path, get(service, url))


def test_every_route_without_parameters_matches_its_schema(service: Service, document: dict[str, Any]) -> None:
    """These are all documented GET routes that have no sample above."""
    others = [
        path
        for path, item in document["paths"].items()
        if path not in SAMPLES
        and "{" not in path
        and "application/json" in item.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
    ]
    for path in others:
        check_schema(document, path, get(service, path))


def test_jobs_trees_and_runs_match_their_schemas(service: Service, document: dict[str, Any]) -> None:
    """Of succeeded and of failed jobs."""
    for plugin in ("ok", "broken", "recorder"):
        check_schema(document, "/job/{id}", get(service, f"/job/{latest_job(service, plugin)}"))
        for view in ("tree", "why", "diagnosis"):
            check_schema(document, f"/job/{{id}}/{view}", get(service, f"/job/{latest_job(service, plugin)}/{view}"))
    for plugin in ("ok", "broken", "recorder"):
        check_schema(document, "/run/{id}", get(service, f"/run/{latest_job(service, plugin)}"))
    for pipeline, status in (("chain", 200), ("fails", 200), ("later", 202)):
        found, body = service.ask("POST", f"/pipeline/{pipeline}")
        assert found == status
        check_schema(document, "/pipeline/{pipeline}", body, str(status), "post")
    found, body = service.ask("POST", "/plugin/ok/poll")
    check_schema(document, "/plugin/ok/poll", body, "202", "post")


def test_explained_events_match_their_schema(service: Service, document: dict[str, Any]) -> None:
    """With and without the texts."""
    rows = service.home.rows("SELECT source_event_id AS id FROM job_queue WHERE source_event_id IS NOT NULL LIMIT 1")
    for token in (None, "meta"):
        check_schema(document, "/event/{id}/why", get(service, f"/event/{rows[0]['id']}/why", token=token))


def test_an_error_matches_its_schema(service: Service, document: dict[str, Any]) -> None:
    """Every error has the same schema."""
    for url, status in (("/jobs?limit=0", 400), ("/plugin/unknown", 404), ("/job/x", 400)):
        found, body = service.ask("GET", url)
        assert found == status
        path = {"/jobs?limit=0": "/jobs", "/plugin/unknown": "/plugin/{plugin}", "/job/x": "/job/{id}"}[url]
        check_schema(document, path, body, str(status))


def test_every_route_has_a_group_a_summary_and_responses(document: dict[str, Any]) -> None:
    """Operation ids are unique, and every schema is valid."""
    operations = [about for item in document["paths"].values() for about in item.values()]
    names = [about["operationId"] for about in operations]
    assert len(names) == len(set(names))
    assert all(about["tags"] and about["summary"] for about in operations)
    assert all(any(status < "400" for status in about["responses"]) for about in operations)
    assert {"Error", "Job", "ListedJob", "Attempt", "TreeNode"} <= document["components"]["schemas"].keys()
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


# ── lists ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pages_list_every_job_once(service: Service) -> None:
    """The newest job is first. Every page has the total."""
    all_jobs = get(service, "/jobs?limit=200")
    seen: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = get(service, f"/jobs?limit=2{f'&cursor={cursor}' if cursor else ''}")
        assert len(page["jobs"]) <= 2
        seen += page["jobs"]
        cursor = page["next_cursor"]
    assert [job["job_id"] for job in seen] == [job["job_id"] for job in all_jobs["jobs"]]
    assert seen == sorted(seen, key=lambda job: job["created_at"], reverse=True)
    assert (all_jobs["total"], all_jobs["total_is_exact"]) == (len(seen), True)


@pytest.mark.parametrize(
    ("query", "plugins"),
    [
        ("status=failed&plugin=broken", {"broken"}),
        ("status=error&plugin=broken", {"broken"}),
        ("pipeline=chain", {"ok", "recorder"}),
        ("plugin=ok&status=dead", set()),
        ("query=78", {"broken"}),
        ("from=2000-01-01T00:00:00Z&plugin=recorder", {"recorder"}),
        ("to=2000-01-01T00:00:00Z", set()),
        ("plugin=recorder&query=&status=&from=", {"recorder"}),
    ],
)
def test_jobs_are_filtered(service: Service, query: str, plugins: set[str]) -> None:
    """An empty filter has no effect."""
    assert {job["plugin"] for job in get(service, f"/jobs?{query}")["jobs"]} == plugins


@pytest.mark.parametrize("path", ["/jobs", "/job-logs"])
@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=-1",
        "limit=x",
        "limit=1.5",
        "limit=%D9%A1",
        "limit=1&limit=2",
        "cursor=x",
        "cursor=!!!!",
        "cursor=MQ==",
        f"cursor={format_cursor(10**30)}",
        "status=nonsense",
        "from=yesterday",
        "to=2026-13-01",
        "from=0001-01-01T00:00:00%2B14:00",
        f"query={'x+' * 30}",
        f"plugin={'x' * 501}",
    ],
)
def test_an_invalid_list_argument_is_refused(service: Service, path: str, query: str) -> None:
    """The status is 400, with a reason."""
    status, body = service.ask("GET", f"{path}?{query}")
    assert (status, body["code"]) in ((400, "bad_request"), (400, "argument_repeated")), body


@pytest.mark.parametrize("limit", ["201", "1000000000", "9" * 50])
@pytest.mark.parametrize("path", ["/jobs", "/job-logs"])
def test_a_page_has_at_most_200_entries(service: Service, path: str, limit: str) -> None:
    """A larger limit is reduced to 200, and the response has the limit that was used."""
    assert get(service, f"{path}?limit={limit}")["limit"] == 200
    assert (get(service, f"{path}?limit=7")["limit"], get(service, path)["limit"]) == (7, 50)


def test_an_unknown_query_argument_is_refused(service: Service) -> None:
    """On every route that needs a token. The error has the name of the argument and not its value."""
    for path, methods in get(service, "/openapi.json")["paths"].items():
        for method in methods.keys() & {"get", "post"}:
            if not methods[method]["security"] or "426" in methods[method]["responses"]:
                continue
            url = path.replace("{id}", "00000000-0000-4000-8000-000000000000").replace("{", "").replace("}", "")
            status, body = service.ask(method.upper(), f"{url}?dry_rnu=secret-value")
            assert (status, body["code"]) == (400, "argument_unknown"), (method, path, body)
            assert "dry_rnu" in body["error"]
            assert "secret-value" not in str(body)


def test_a_mistyped_filter_gets_a_suggestion(service: Service) -> None:
    """An ignored filter would return all jobs."""
    status, body = service.ask("GET", "/jobs?stauts=failed&limit=1")

    assert (status, body["error"]) == (400, "unknown query argument 'stauts' (did you mean 'status'?)")
    assert body["hint"].startswith("Known arguments: plugin, command, status, ")
    assert body["context"]["known"][:2] == ["plugin", "command"]


def test_authentication_is_checked_before_query_arguments(service: Service) -> None:
    """A route without authentication ignores unknown arguments."""
    assert service.ask("GET", "/jobs?stauts=failed", token="wrong")[0] == 401
    assert service.ask("GET", "/healthz?probe=1")[0] == 200


@pytest.mark.parametrize("text", ["%", "_", "'; DROP TABLE job_log; --", '" OR 1', "a* NEAR b", "(", "\\", "é"])
def test_search_text_is_never_interpreted(service: Service, text: str) -> None:
    """SQL and search operators have no effect."""
    for path in ("/jobs", "/job-logs"):
        assert isinstance(get(service, f"{path}?query={quote(text)}")["total"], int)


def test_search_finds_words_in_results_and_errors(service: Service) -> None:
    """This includes attempts that ended after the index was built."""
    assert {log["plugin"] for log in get(service, "/job-logs?query=let+through")["logs"]} == set()
    assert {log["plugin"] for log in get(service, "/job-logs?query=stdout+JSON")["logs"]} == {"broken"}
    newest = service.run("ok")["job_id"]
    assert get(service, "/job-logs?query=done&plugin=ok")["logs"][0]["job_id"] == newest
    with service.home.read_ledger() as db:
        assert db.execute("SELECT COUNT(*) FROM job_log_words").fetchone()[0] > 0


def test_attempts_have_results_on_request(service: Service) -> None:
    """A response is JSON, other output is text."""
    job_id = service.run("ok")["job_id"]
    (without_result,) = get(service, f"/job-logs?job_id={job_id}")["logs"]
    (with_result,) = get(service, f"/job-logs?job_id={job_id}&include_result=true")["logs"]
    assert "result" not in without_result
    assert with_result["result"] == {"status": "ok", "result": "done"}
    assert without_result == {name: value for name, value in with_result.items() if name != "result"}
    assert "not a response" in get(service, "/job-logs?plugin=broken&include_result=true")["logs"][0]["output"]


# ── scopes ──────────────────────────────────────────────────────────────────────────────────────────────────────────

RESULTS = {"result", "output", "last_error", "stderr"}


def test_results_and_errors_need_their_scope(service: Service) -> None:
    """Other fields are shown without it."""
    job_id = latest_job(service, "broken")
    assert RESULTS & get(service, f"/job/{job_id}").keys() == {"output", "last_error"}
    assert not RESULTS & get(service, f"/job/{job_id}", token="status").keys()
    for job in get(service, "/jobs", token="status")["jobs"]:
        assert not RESULTS & job.keys()
    for log in get(service, "/job-logs?include_result=true&plugin=broken", token="logs")["logs"]:
        assert not RESULTS & log.keys()
    for node in get(service, f"/job/{job_id}/tree", token="tree"):
        assert not RESULTS & node.keys()


@pytest.mark.parametrize(("path", "token"), [("/jobs", "status"), ("/job-logs", "logs")])
def test_search_needs_the_scope_to_read_results(service: Service, path: str, token: str) -> None:
    """Otherwise search queries could reveal the text."""
    status, body = service.ask("GET", f"{path}?query=78", token=TOKENS[token])
    assert (status, body["code"]) == (403, "insufficient_scope")


def test_a_scope_for_one_plugin_shows_only_this_plugin(service: Service) -> None:
    """This applies to every list. Other plugins are refused or not found."""
    assert [plugin["name"] for plugin in get(service, "/plugins", token="ok-only")["plugins"]] == ["ok"]
    assert {skill.get("plugin", "ok") for skill in get(service, "/skills", token="ok-only")["skills"]} == {"ok"}
    paths = get(service, "/openapi.json", token="ok-only")["paths"]
    assert {path for path in paths if path.startswith("/plugin/") and "{" not in path} == {
        "/plugin/ok/poll",
        "/plugin/ok/handle",
    }
    assert service.ask("GET", "/plugin/ok", token=TOKENS["ok-only"])[0] == 200
    assert service.ask("GET", "/plugin/recorder", token=TOKENS["ok-only"])[0] == 403
    assert service.ask("GET", "/plugin/recorder/openapi.json", token=TOKENS["ok-only"])[0] == 404
    assert service.ask("GET", "/plugin/recorder", token=TOKENS["catalog"])[0] == 200
    assert service.ask("POST", "/plugin/recorder/poll", token=TOKENS["catalog"])[0] == 403


# ── bodies, configuration, checks ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("media", "status"),
    [
        ("application/json", 202),
        ("application/json; charset=utf-8", 202),
        ("application/vnd.api+json", 202),
        ("application/x-www-form-urlencoded", 202),
        ("text/plain", 202),
        ("", 202),
        ("application/xml", 415),
        ("multipart/form-data; boundary=x", 415),
        ("image/png", 415),
    ],
)
def test_an_unsupported_content_type_is_refused(service: Service, media: str, status: int) -> None:
    """JSON and the defaults of simple clients are accepted on every route."""
    headers = {"content-type": media}
    assert service.ask("POST", "/plugin/ok/poll", b"{}", headers=headers)[0] == status
    schedule_status = service.ask("POST", "/schedule/ok/none/pause", b"{}", headers=headers)[0]
    assert schedule_status == (415 if status == 415 else 404)


def test_the_configuration_is_shown_without_secrets(service: Service) -> None:
    """Tokens are left out, and secrets in plugin configurations are masked."""
    view = get(service, "/config/view")
    text = json.dumps(view)
    assert SECRET not in text
    assert not any(token in text for token in TOKENS.values())
    assert {"name": "status", "scopes": ["jobs:status:ro"]} in view["api"]["tokens"]
    assert view["compiled_routes"]["chain"][0]["source"] == {"trigger": "chain.requested"}
    assert view["plugins"]["ok"]["config"]["password"] == "***"


def test_the_doctor_checks_the_files_on_disk(service: Service) -> None:
    """It reports errors before a reload. The self-check reports that the files differ from the loaded configuration."""
    assert get(service, "/system/doctor")["ok"]
    text = (service.home.path / "config.yaml").read_text()
    try:
        service.home.write("config.yaml", text + "routes: [{from: ok, event_type: x, to: unknown}]\n")
        checks = get(service, "/system/doctor")
        assert not checks["ok"]
        assert [check["field"] for check in checks["checks"] if check["status"] == "fail"] == ["routes[0].to"]
        (config,) = (check for check in get(service, "/system/selfcheck")["checks"] if check["name"] == "config")
        assert config["status"] == "warn"
        service.home.write("config.yaml", text + "no_such_key: 1\n")
        assert get(service, "/system/doctor")["checks"][0]["status"] == "fail"
        assert not get(service, "/system/selfcheck")["ok"]
    finally:
        service.home.write("config.yaml", text)


def test_statistics_count_finished_jobs(service: Service) -> None:
    """The summary of a day, and the durations of each command."""
    stats = get(service, "/analytics/summary")["stats"]
    assert stats["failed"] >= 1
    assert stats["succeeded"] >= 3
    (poll,) = (step for step in get(service, "/stopwatch/ok")["steps"] if step["step"] == "poll")
    assert poll["sample_count"] >= 3
    assert 0 < poll["p50_ms"] <= poll["p95_ms"] <= poll["p99_ms"]
    assert service.ask("GET", "/stopwatch/unknown")[0] == 404
    assert service.ask("GET", "/stopwatch/ok?window=2h")[0] == 400


def test_discovery_links_are_documented_paths(service: Service, document: dict[str, Any]) -> None:
    """Every link on the index page is in the OpenAPI document."""
    assert set(get(service, "/")["discovery"].values()) <= document["paths"].keys()
