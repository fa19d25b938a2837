"""Reading a running service over HTTP: answers are what the description promises, lists page, scopes shape."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from ductile.core.clock import from_text, to_text
from ductile.ledger.reports.filters import format_cursor
from tests.e2e.furnished import furnish
from tests.e2e.service import TOKEN, Home, Service

TOKENS = {
    "status": "status-token-0123456789",
    "logs": "logs-token-0123456789",
    "tree": "tree-token-0123456789",
    "ok-only": "ok-only-token-0123456789",
    "catalog": "catalog-token-0123456789",
}
SCOPES = {
    "status": "jobs:status:ro",
    "logs": "jobs:logs:ro",
    "tree": "jobs:tree:ro",
    "ok-only": "plugin:ok:rw",
    "catalog": "plugin:catalog:ro",
}
MOMENTS = FormatChecker(formats=())


@MOMENTS.checks("date-time", raises=ValueError)
def is_moment(text: object) -> bool:
    """A moment as the ledger writes it."""
    return not isinstance(text, str) or to_text(from_text(text)) == text


SECRET = "a-very-secret-password-0123"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with some history."""
    home = furnish(Home.make(Path(tmp_path_factory.mktemp("reading")) / "ductile"))
    more = "".join(
        f'\n      - {{name: {name}, token: {token}, scopes: ["{SCOPES[name]}"]}}' for name, token in TOKENS.items()
    )
    text = (home.path / "config.yaml").read_text().replace('scopes: ["*"]}', f'scopes: ["*"]}}{more}')
    text = text.replace("  ok: {}\n", f"  ok: {{config: {{password: {SECRET}, url: 'https://x:{SECRET}@host'}}}}\n")
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


def promised(document: dict[str, Any], path: str, body: Any, status: str = "200", method: str = "get") -> None:
    """The body is what the operation says it is."""
    schema = document["paths"][path][method]["responses"][status]["content"]["application/json"]["schema"]
    Draft202012Validator({**schema, "components": document["components"]}, format_checker=MOMENTS).validate(body)


def a_job(service: Service, plugin: str) -> str:
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
    "/stopwatch/{plugin}": ["/stopwatch/ok", "/stopwatch/ok?window=24h&include_subs=true", "/stopwatch/told"],
    "/system/doctor": ["/system/doctor"],
    "/system/selfcheck": ["/system/selfcheck"],
    "/config/view": ["/config/view"],
    "/scheduler/jobs": ["/scheduler/jobs"],
    "/breaker/{plugin}": ["/breaker/ok"],
}


@pytest.mark.parametrize(("path", "asked"), [(path, asked) for path, samples in SAMPLES.items() for asked in samples])
def test_an_answer_is_what_its_schema_says(service: Service, document: dict[str, Any], path: str, asked: str) -> None:
    """No member is missing and none is there that nobody described."""
    promised(document, path, get(service, asked))


def test_every_other_answer_is_what_its_schema_says_too(service: Service, document: dict[str, Any]) -> None:
    """Whatever can be read without naming anything."""
    others = [
        path
        for path, item in document["paths"].items()
        if path not in SAMPLES
        and "{" not in path
        and "application/json" in item.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
    ]
    for path in others:
        promised(document, path, get(service, path))


def test_a_job_a_tree_and_a_run_are_what_their_schemas_say(service: Service, document: dict[str, Any]) -> None:
    """Of jobs that succeeded and of those that failed."""
    for plugin in ("ok", "broken", "asks"):
        promised(document, "/job/{id}", get(service, f"/job/{a_job(service, plugin)}"))
        promised(document, "/job/{id}/tree", get(service, f"/job/{a_job(service, plugin)}/tree"))
    for pipeline, status in (("chain", 200), ("fails", 200), ("later", 202)):
        found, body = service.ask("POST", f"/pipeline/{pipeline}")
        assert found == status
        promised(document, "/pipeline/{pipeline}", body, str(status), "post")
    found, body = service.ask("POST", "/plugin/ok/poll")
    promised(document, "/plugin/ok/poll", body, "202", "post")


def test_an_error_is_what_its_schema_says(service: Service, document: dict[str, Any]) -> None:
    """One shape, whatever went wrong."""
    for asked, status in (("/jobs?limit=0", 400), ("/plugin/nobody", 404), ("/job/x", 400)):
        found, body = service.ask("GET", asked)
        assert found == status
        path = {"/jobs?limit=0": "/jobs", "/plugin/nobody": "/plugin/{plugin}", "/job/x": "/job/{id}"}[asked]
        promised(document, path, body, str(status))


def test_every_route_describes_itself(document: dict[str, Any]) -> None:
    """Group, summary and answers; every operation has a name of its own, and every schema is one."""
    operations = [about for item in document["paths"].values() for about in item.values()]
    names = [about["operationId"] for about in operations]
    assert len(names) == len(set(names))
    assert all(about["tags"] and about["summary"] for about in operations)
    assert all(any(status < "400" for status in about["responses"]) for about in operations)
    assert {"Error", "Job", "ListedJob", "Attempt", "TreeNode"} <= document["components"]["schemas"].keys()
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


# ── lists ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pages_follow_each_other_to_the_end(service: Service) -> None:
    """Newest first, every job once, `total` on each page."""
    whole = get(service, "/jobs?limit=200")
    seen: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = get(service, f"/jobs?limit=2{f'&cursor={cursor}' if cursor else ''}")
        assert len(page["jobs"]) <= 2
        seen += page["jobs"]
        cursor = page["next_cursor"]
    assert [job["job_id"] for job in seen] == [job["job_id"] for job in whole["jobs"]]
    assert seen == sorted(seen, key=lambda job: job["created_at"], reverse=True)
    assert (whole["total"], whole["total_is_exact"]) == (len(seen), True)


@pytest.mark.parametrize(
    ("query", "plugins"),
    [
        ("status=failed&plugin=broken", {"broken"}),
        ("status=error&plugin=broken", {"broken"}),
        ("pipeline=chain", {"ok", "asks"}),
        ("plugin=ok&status=dead", set()),
        ("query=78", {"broken"}),
        ("from=2000-01-01T00:00:00Z&plugin=asks", {"asks"}),
        ("to=2000-01-01T00:00:00Z", set()),
        ("plugin=asks&query=&status=&from=", {"asks"}),
    ],
)
def test_jobs_are_filtered(service: Service, query: str, plugins: set[str]) -> None:
    """Filters that are left empty let everything through."""
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
def test_a_list_that_cannot_be_understood_is_refused(service: Service, path: str, query: str) -> None:
    """400 with a reason."""
    status, body = service.ask("GET", f"{path}?{query}")
    assert (status, body["code"]) in ((400, "bad_request"), (400, "argument_repeated")), body


@pytest.mark.parametrize("limit", ["201", "1000000000", "9" * 50])
@pytest.mark.parametrize("path", ["/jobs", "/job-logs"])
def test_a_page_has_at_most_two_hundred(service: Service, path: str, limit: str) -> None:
    """Whoever asks for more, as clients of the original do, gets as many as there can be, and is told how many."""
    assert get(service, f"{path}?limit={limit}")["limit"] == 200
    assert (get(service, f"{path}?limit=7")["limit"], get(service, path)["limit"]) == (7, 50)


def test_an_argument_that_a_route_does_not_have_is_refused(service: Service) -> None:
    """400 on every route that wants a token; what was meant and what there is are told, the value is not."""
    for path, methods in get(service, "/openapi.json")["paths"].items():
        for method in methods.keys() & {"get", "post"}:
            if not methods[method]["security"] or "426" in methods[method]["responses"]:
                continue
            asked = path.replace("{id}", "00000000-0000-4000-8000-000000000000").replace("{", "").replace("}", "")
            status, body = service.ask(method.upper(), f"{asked}?dry_rnu=hush")
            assert (status, body["code"]) == (400, "argument_unknown"), (method, path, body)
            assert "dry_rnu" in body["error"]
            assert "hush" not in str(body)


def test_a_mistyped_filter_says_what_was_meant(service: Service) -> None:
    """A list that ignored it would show everything, as if everything had that status."""
    status, body = service.ask("GET", "/jobs?stauts=failed&limit=1")

    assert (status, body["error"]) == (400, "unknown query argument 'stauts' (did you mean 'status'?)")
    assert body["hint"].startswith("Known arguments: plugin, command, status, ")
    assert body["context"]["known"][:2] == ["plugin", "command"]


def test_who_may_not_ask_does_not_learn_what_could_be_asked(service: Service) -> None:
    """The right comes first; what is open to everybody, such as the health of the service, takes anything."""
    assert service.ask("GET", "/jobs?stauts=failed", token="wrong")[0] == 401
    assert service.ask("GET", "/healthz?probe=1")[0] == 200


@pytest.mark.parametrize("text", ["%", "_", "'; DROP TABLE job_log; --", '" OR 1', "a* NEAR b", "(", "\\", "é"])
def test_what_is_searched_for_is_only_text(service: Service, text: str) -> None:
    """Nothing in it is an instruction to the database."""
    for path in ("/jobs", "/job-logs"):
        assert isinstance(get(service, f"{path}?query={quote(text)}")["total"], int)


def test_words_are_found_in_what_attempts_left(service: Service) -> None:
    """In results and errors, while new attempts arrive."""
    assert {log["plugin"] for log in get(service, "/job-logs?query=let+through")["logs"]} == set()
    assert {log["plugin"] for log in get(service, "/job-logs?query=stdout+JSON")["logs"]} == {"broken"}
    fresh = service.run("ok")["job_id"]
    assert get(service, "/job-logs?query=done&plugin=ok")["logs"][0]["job_id"] == fresh
    with service.home.read_ledger() as db:
        assert db.execute("SELECT COUNT(*) FROM job_log_words").fetchone()[0] > 0


def test_an_attempt_shows_its_result_if_it_is_asked_for(service: Service) -> None:
    """As JSON where it is an answer, as text where it is not, and left out where it is too long for a list."""
    job_id = service.run("ok")["job_id"]
    (plain,) = get(service, f"/job-logs?job_id={job_id}")["logs"]
    (whole,) = get(service, f"/job-logs?job_id={job_id}&include_result=true")["logs"]
    assert "result" not in plain
    assert whole["result"] == {"status": "ok", "result": "done"}
    assert plain == {name: value for name, value in whole.items() if name != "result"}
    assert "not an answer" in get(service, "/job-logs?plugin=broken&include_result=true")["logs"][0]["output"]


# ── scopes ──────────────────────────────────────────────────────────────────────────────────────────────────────────

RESULTS = {"result", "output", "last_error", "stderr"}


def test_without_the_right_to_results_jobs_are_shown_without_them(service: Service) -> None:
    """Whoever may know that a job failed need not know what it said."""
    job_id = a_job(service, "broken")
    assert RESULTS & get(service, f"/job/{job_id}").keys() == {"output", "last_error"}
    assert not RESULTS & get(service, f"/job/{job_id}", token="status").keys()
    for job in get(service, "/jobs", token="status")["jobs"]:
        assert not RESULTS & job.keys()
    for log in get(service, "/job-logs?include_result=true&plugin=broken", token="logs")["logs"]:
        assert not RESULTS & log.keys()
    for node in get(service, f"/job/{job_id}/tree", token="tree"):
        assert not RESULTS & node.keys()


@pytest.mark.parametrize(("path", "token"), [("/jobs", "status"), ("/job-logs", "logs")])
def test_who_may_not_read_results_may_not_search_in_them(service: Service, path: str, token: str) -> None:
    """Yes and no to enough questions would be the text itself."""
    status, body = service.ask("GET", f"{path}?query=78", token=TOKENS[token])
    assert (status, body["code"]) == (403, "insufficient_scope")


def test_who_has_rights_over_one_plugin_sees_this_one(service: Service) -> None:
    """In every list of what there is; others are not found."""
    assert [plugin["name"] for plugin in get(service, "/plugins", token="ok-only")["plugins"]] == ["ok"]
    assert {skill.get("plugin", "ok") for skill in get(service, "/skills", token="ok-only")["skills"]} == {"ok"}
    paths = get(service, "/openapi.json", token="ok-only")["paths"]
    assert {path for path in paths if path.startswith("/plugin/") and "{" not in path} == {
        "/plugin/ok/poll",
        "/plugin/ok/handle",
    }
    assert service.ask("GET", "/plugin/ok", token=TOKENS["ok-only"])[0] == 200
    assert service.ask("GET", "/plugin/asks", token=TOKENS["ok-only"])[0] == 403
    assert service.ask("GET", "/plugin/asks/openapi.json", token=TOKENS["ok-only"])[0] == 404
    assert service.ask("GET", "/plugin/asks", token=TOKENS["catalog"])[0] == 200
    assert service.ask("POST", "/plugin/asks/poll", token=TOKENS["catalog"])[0] == 403


# ── bodies, configuration, examination ──────────────────────────────────────────────────────────────────────────────


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
def test_a_body_that_calls_itself_something_else_is_not_taken(service: Service, media: str, status: int) -> None:
    """JSON, and what simple clients call everything; the same for routes that the lane serves and for others."""
    headers = {"content-type": media}
    assert service.ask("POST", "/plugin/ok/poll", b"{}", headers=headers)[0] == status
    hosted = service.ask("POST", "/schedule/ok/none/pause", b"{}", headers=headers)[0]
    assert hosted == (415 if status == 415 else 404)


def test_the_configuration_is_shown_without_secrets(service: Service) -> None:
    """Neither tokens nor what plugins are configured with."""
    view = get(service, "/config/view")
    text = json.dumps(view)
    assert SECRET not in text
    assert not any(token in text for token in TOKENS.values())
    assert {"name": "status", "scopes": ["jobs:status:ro"]} in view["api"]["tokens"]
    assert view["compiled_routes"]["chain"][0]["source"] == {"trigger": "chain.wanted"}
    assert view["plugins"]["ok"]["config"]["password"] == "***"


def test_the_doctor_looks_at_what_is_on_disk_now(service: Service) -> None:
    """Before a reload, so that its complaints come in time; the self-check says that something is different."""
    assert get(service, "/system/doctor")["ok"]
    text = (service.home.path / "config.yaml").read_text()
    try:
        service.home.write("config.yaml", text + "routes: [{from: ok, event_type: x, to: nobody}]\n")
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


def test_numbers_count_what_happened(service: Service) -> None:
    """The summary of a day, and how long each command took."""
    stats = get(service, "/analytics/summary")["stats"]
    assert stats["failed"] >= 1
    assert stats["succeeded"] >= 3
    (poll,) = (step for step in get(service, "/stopwatch/ok")["steps"] if step["step"] == "poll")
    assert poll["sample_count"] >= 3
    assert 0 < poll["p50_ms"] <= poll["p95_ms"] <= poll["p99_ms"]
    assert service.ask("GET", "/stopwatch/nobody")[0] == 404
    assert service.ask("GET", "/stopwatch/ok?window=2h")[0] == 400


def test_links_of_the_first_page_lead_somewhere(service: Service, document: dict[str, Any]) -> None:
    """Every path it names is in the description."""
    assert set(get(service, "/")["discovery"].values()) <= document["paths"].keys()
