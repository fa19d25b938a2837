"""The plugin development commands end to end: new, run --local, check, test, job export."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.devkit.helpers import PYTHON_PLUGIN, cli, write_fixture, write_plugin
from tests.e2e.service import Home

LANGUAGES = ("python", "sh", "node")
SECRET = "hunter2-hunter2"


@pytest.fixture(params=LANGUAGES)
def new_plugin(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A plugin created by `plugin new`."""
    lang: str = request.param
    if lang == "node" and shutil.which("node") is None:
        pytest.skip("there is no node here")
    done = cli("plugin", "new", f"my-{lang}", "--lang", lang, "--dir", tmp_path)
    assert done.exit_code == 0, done.stderr
    return tmp_path / f"my-{lang}"


# ── new ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_new_plugin_is_exemplary_and_runs_in_a_service(new_plugin: Path, tmp_path: Path) -> None:
    """In every language: fixtures pass, every rule holds, and the service stores its state."""
    tested, checked = (
        cli("plugin", "test", new_plugin),
        cli("plugin", "check", new_plugin, "--level", "exemplary", "--json"),
    )
    assert (tested.exit_code, checked.exit_code) == (0, 0), (tested.stdout, checked.stdout)
    assert checked.json["level"] == "exemplary"

    home = Home.make(tmp_path / "ductile")
    home.copy_plugin(new_plugin)
    home.add(f"plugins: {{{new_plugin.name}: {{config: {{greeting: ahoy}}}}}}\n")
    service = home.start()
    try:
        results = [service.run(new_plugin.name)["result"]["result"] for _ in range(2)]
        greeted = service.run(new_plugin.name, "handle", {"name": "Zoë"})["result"]
    finally:
        service.stop()
    assert results == ["ahoy, poll 1", "ahoy, poll 2"]
    assert greeted["events"][0]["payload"]["message"] == "ahoy Zoë"


@pytest.mark.parametrize(
    ("args", "exit_code", "says"),
    [
        (("bad name",), 2, "is not a plugin name"),
        (("../up",), 2, "is not a plugin name"),
        (("taken",), 2, "already exists"),
        (("x", "--dir", "file"), 78, "cannot be written to"),
        (("x", "--dir", "/proc"), 78, "cannot be written to"),
    ],
)
def test_plugin_new_replaces_nothing(tmp_path: Path, args: tuple[str, ...], exit_code: int, says: str) -> None:
    """A dry run reports the same errors."""
    (tmp_path / "taken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    for more in ((), ("--dry-run",)):
        done = cli("plugin", "new", *args, *more, "--json", cwd=tmp_path)
        assert (done.exit_code, says in done.json["error"]) == (exit_code, True), done.stdout


def test_a_dry_run_of_plugin_new_writes_nothing(tmp_path: Path) -> None:
    done = cli("plugin", "new", "disk", "--dir", tmp_path, "--dry-run", "--json")

    assert (done.exit_code, list(tmp_path.iterdir())) == (0, [])
    assert {"manifest.yaml", "run.py", "README.md", "fixtures/poll.json"} <= set(done.json["files"])


# ── run --local ───────────────────────────────────────────────────────────────────────────────────────────────────────


SPY = PYTHON_PLUGIN % (
    'answer["events"] = [{"type": "looked", "payload": {"cwd": os.getcwd(), "env": dict(os.environ)}}]\n'
    'answer["state_updates"] = {"n": state.get("n", 0) + 1, "key": config["api_key"]}\n'
    'print("the key is", config["api_key"], file=sys.stderr)'
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A configuration with a plugin, a secret, a route and a pipeline; no service has run."""
    home = Home.make(tmp_path / "ductile")
    write_plugin(home.path / "plugins" / "spy", SPY)
    write_plugin(home.path / "plugins" / "other", PYTHON_PLUGIN % "", more="")
    manifest = home.path / "plugins" / "other" / "manifest.yaml"
    manifest.write_text(manifest.read_text().replace("name: poll", "name: handle"))
    home.add(
        f"plugins: {{spy: {{config: {{api_key: {SECRET}}}, env: {{EXTRA: x}}, timeouts: {{poll: 7s}}}}, other: {{}}}}\n"
        "routes: [{from: spy, event_type: looked, to: other}]\n"
    )
    return home


def test_a_local_run_matches_the_service_and_records_nothing(home: Home, tmp_path: Path) -> None:
    """Same directory, environment, deadline and routes; given state; masked secrets; no ledger."""
    state = tmp_path / "state.json"
    state.write_text('{"n": 41}')

    done = cli("plugin", "run", "spy", "poll", "--local", "--state", state, "--config", home.path, "--json")

    shown = done.json
    assert (done.exit_code, shown["verdict"], shown["exit_code"]) == (0, "succeeded", 0)
    (event,) = shown["response"]["events"]
    assert event["payload"]["cwd"] == str(home.path)
    assert event["payload"]["env"]["EXTRA"] == "x"
    assert event["payload"]["env"]["DUCTILE_JOB_ID"] == shown["job_id"] == shown["request"]["job_id"]
    assert shown["request"]["state"] == {"n": 41}
    assert shown["request"]["config"] == {"api_key": "***"}
    assert [(job["plugin"], job["command"]) for job in shown["would"]["jobs"]] == [("other", "handle")]
    assert shown["would"]["state_updates"] == {"n": 42, "key": "***"}
    assert "the key is ***" in shown["stderr"]
    assert SECRET not in done.stdout + done.stderr
    assert not (home.path / "data").exists()


def test_truncated_stderr_does_not_start_with_a_part_of_a_secret(home: Home) -> None:
    config = home.path / "config.yaml"
    config.write_text(config.read_text().replace("service:\n", "service:\n  limits: {stderr: 1KB}\n"))
    prints_secret = 'print(config["api_key"] + 1013 * ".", file=sys.stderr)'
    (home.path / "plugins" / "spy" / "run").write_text(PYTHON_PLUGIN % prints_secret)

    done = cli("plugin", "run", "spy", "poll", "--local", "--config", home.path, "--json")

    assert (done.exit_code, done.json["stderr"]) == (0, f"***{1013 * '.'}\n")


def test_a_local_run_is_printed_as_text(home: Home) -> None:
    said = cli("plugin", "run", "spy", "--local", "--config", home.path).stdout

    for words in (
        "request",
        '"api_key": "***"',
        "verdict: succeeded",
        "would enqueue other.handle",
        "would merge into",
    ):
        assert words in said


def test_a_local_handle_accepts_an_event_or_a_payload(home: Home, tmp_path: Path) -> None:
    """A payload is wrapped in an event; an event is passed unchanged."""
    file = tmp_path / "event.json"
    file.write_text('{"type": "disk.low", "payload": {"path": "/"}, "source": "disk"}')
    where = ("--local", "--config", home.path, "--json")

    bare = cli("plugin", "run", "other", "handle", "--payload", '{"a": 1}', *where).json["request"]
    whole = cli("plugin", "run", "other", "--command", "handle", "--event", file, *where).json["request"]

    assert (bare["event"]["type"], bare["event"]["payload"]) == ("api.trigger", {"a": 1})
    assert (whole["event"]["type"], whole["event"]["source"]) == ("disk.low", "disk")
    assert whole["payload"] == whole["event"]


FAULTS: dict[str, tuple[str, str]] = {
    "timeout": ("retried", "timed out after 5s"),
    "crash": ("retried", "killed by SIGKILL"),
    "garbage": ("retried", "stdout is not one JSON object"),
    "slow": ("succeeded", ""),
    "partial": ("retried", "stdout is not one JSON object"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_leads_to_the_verdict_of_the_service(tmp_path: Path, fault: str) -> None:
    """The plugin runs; only its response is changed."""
    mark = tmp_path / "ran"
    plugin = write_plugin(tmp_path / "disk", PYTHON_PLUGIN % f"open({str(mark)!r}, 'w').close()")
    deadline = "5s" if fault == "timeout" else "60s"

    done = cli("plugin", "run", plugin, "--fault", fault, "--deadline", deadline, "--json")

    verdict, error = FAULTS[fault]
    assert (done.json["verdict"], error in (done.json["error"] or "")) == (verdict, True), done.stdout
    assert mark.exists()
    assert done.exit_code == (0 if verdict == "succeeded" else 1)
    if verdict == "retried":
        assert done.json["retry"]["backoff_seconds"] == [30, 60, 120]
        assert done.json["would"]["jobs"] == []


@pytest.mark.parametrize(
    ("args", "exit_code", "says"),
    [
        (("nope", "--local"), 1, "plugin 'nope' does not exist"),
        (("spi", "--local"), 1, "did you mean 'spy'"),
        (("spy", "poll", "--command", "health", "--local"), 2, "COMMAND is poll but --command is health"),
        (("spy", "--local", "--wait"), 2, "cannot be combined with --local"),
        (("spy", "--local", "--deadline", "soon"), 2, "--deadline"),
        (("spy", "--local", "--deadline", "0s"), 2, "is not positive"),
        (("spy", "--local", "--event", "/dev/null"), 2, "/dev/null"),
        (("spy", "--local", "--plugin-config", "[]"), 2, "must be a JSON object"),
        (("spy", "--deadline", "3s"), 2, "--deadline requires --local"),
        (("./spy",), 2, "the service runs plugins by name"),
        (("spy", "--fault", "gremlins"), 2, "gremlins"),
    ],
)
def test_invalid_options_of_plugin_run_are_refused(
    home: Home, args: tuple[str, ...], exit_code: int, says: str
) -> None:
    done = cli("plugin", "run", *args, "--config", home.path, "--json")

    assert (done.exit_code, says in done.json["error"]) == (exit_code, True), done.stdout


def test_an_unknown_command_is_a_verdict(home: Home) -> None:
    """The error is that of the ledger; no process starts."""
    shown = cli("plugin", "run", "spy", "poke", "--local", "--config", home.path, "--json").json

    assert (shown["verdict"], shown["started"]) == ("dead", False)
    assert "has no command 'poke'" in shown["error"]


# ── export ────────────────────────────────────────────────────────────────────────────────────────────────────────────


COUNTER = PYTHON_PLUGIN % (
    "import datetime\nmoment = datetime.datetime.now(datetime.timezone.utc).isoformat()\n"
    'answer["events"] = [{"type": "looked", "payload": {"n": payload["n"], "at": moment, "job": request["job_id"]}}]\n'
    'answer["state_updates"] = {"n": state.get("n", 0) + payload["n"]}\n'
    'answer["logs"] = [{"level": "info", "message": config["api_key"]}]'
)
FACTS = """\
fact_outputs:
  - {{when: {{command: poll}}, from: state_updates, fact_type: counter.snapshot}}
"""


def test_an_exported_fixture_passes(tmp_path: Path) -> None:
    """It has the request with its state; times and ids are patterns; secrets are masked."""
    home = Home.make(tmp_path / "ductile")
    plugin = write_plugin(home.path / "plugins" / "counter", COUNTER, more=FACTS.replace("{{", "{").replace("}}", "}"))
    home.add(f"plugins: {{counter: {{config: {{api_key: {SECRET}, unit: days}}}}}}\n")
    service = home.start()
    try:
        service.run("counter", payload={"n": 5})
        job_id = service.run("counter", payload={"n": 7, "note": f"with {SECRET}"})["job_id"]
    finally:
        service.stop()
    fixtures = plugin / "fixtures"
    fixtures.mkdir()
    export = ("job", "export", job_id, "--fixture", "--config", home.path)

    printed = cli(*export)
    tried = cli(*export, "--to", fixtures, "--dry-run")
    assert (tried.exit_code, list(fixtures.iterdir())) == (0, [])
    assert {cli(*export, "--to", "/nowhere/x.json", *more).exit_code for more in ((), ("--dry-run",))} == {78}
    written = cli(*export, "--to", fixtures, "--json")
    again = cli(*export, "--to", fixtures, "--json")

    fixture: dict[str, Any] = json.loads(printed.stdout)
    assert fixture == written.json["fixture"]
    assert fixture["request"]["config"] == {"api_key": "***", "unit": "days"}
    assert fixture["request"]["state"] == {"n": 5}
    assert fixture["request"]["payload"] == {"n": 7, "note": "with ***"}
    assert fixture["expect"]["response"]["events"][0]["payload"]["at"] == "${text}"
    assert fixture["expect"]["response"]["state_updates"] == {"n": 12}
    assert SECRET not in printed.stdout
    assert (again.exit_code, "already exists" in again.json["error"]) == (2, True)
    done = cli("plugin", "test", plugin)
    assert (done.exit_code, "1 of 1 fixtures passed" in done.stdout) == (0, True), done.stdout

    (plugin / "run").write_text(COUNTER.replace('state.get("n", 0) +', ""))
    assert "response.state_updates.n: expected 12, found 7" in cli("plugin", "test", plugin).stdout


RELATES = """#!/usr/bin/env python3
import json, sys
request = json.load(sys.stdin)
event = request["event"]
if event["payload"].get("text") == "fail":
    print(json.dumps({"status": "error", "error": "no such account", "retry": False}))
else:
    told = {"text": event["payload"].get("text", ""), "who": request.get("context", {}).get("who")}
    print(json.dumps({"status": "ok", "result": "told", "events": [{"type": "told", "payload": told}]}))
"""
PIPELINE = """
pipelines:
  - name: relate
    on: start
    steps:
      - {id: one, uses: teller, baggage: {who: payload.who}}
      - {id: two, uses: teller, with: {text: "again: {payload.text}"}}
"""


def test_a_step_is_exported_with_its_event_and_context(tmp_path: Path) -> None:
    """A final failure stays final."""
    home = Home.make(tmp_path / "ductile")
    home.plugin("teller", RELATES, commands="handle: {type: read}")
    home.add(PIPELINE)
    service = home.start()
    try:
        status, root = service.ask("POST", "/pipeline/relate", {"payload": {"text": "hi", "who": "Zoë"}})
        assert status == 202, root
        service.ask("GET", f"/job/{root['job_id']}/tree?wait=30s")
        failed = service.run("teller", "handle", {"text": "fail"})["job_id"]
    finally:
        service.stop()
    (step,) = home.rows("SELECT id FROM job_queue WHERE step_id = 'two'")
    fixtures = home.path / "plugins" / "teller" / "fixtures"
    fixtures.mkdir(mode=0o700)

    exported = [
        cli("job", "export", job_id, "--fixture", "--to", fixtures, "--config", home.path, "--json").json["fixture"]
        for job_id in (step["id"], failed)
    ]

    asked = exported[0]["request"]
    assert asked["event"]["payload"]["text"] == "again: hi"
    assert asked["context"]["who"] == "Zoë"
    assert exported[0]["expect"]["response"]["events"][0]["payload"] == {"text": "again: hi", "who": "Zoë"}
    assert exported[1]["expect"]["verdict"] == "failed"
    done = cli("plugin", "test", "teller", "--config", home.path)
    assert (done.exit_code, "2 of 2 fixtures passed" in done.stdout) == (0, True), done.stdout


@pytest.mark.parametrize(
    ("args", "exit_code", "says"),
    [(("nope", "--fixture"), 1, "job nope does not exist"), (("nope",), 2, "--fixture is required")],
)
def test_an_export_needs_an_existing_job_and_a_format(
    tmp_path: Path, args: tuple[str, ...], exit_code: int, says: str
) -> None:
    home = Home.make(tmp_path / "ductile")
    home.start().stop()

    done = cli("job", "export", *args, "--config", home.path, "--json")

    assert (done.exit_code, says in done.json["error"]) == (exit_code, True), done.stdout


def test_plugin_check_and_test_accept_configured_names(home: Home) -> None:
    """They use the configuration of the plugin."""
    write_fixture(home.path / "plugins" / "spy", {"request": {"command": "poll", "config": {"api_key": "some-secret"}}})

    tested = cli("plugin", "test", "spy", "--config", home.path)
    checked = cli("plugin", "check", "spy", "--config", home.path, "--json").json

    assert tested.exit_code == 0, tested.stdout
    assert [rule["rule"] for rule in checked["rules"] if rule["result"] == "fail"][:1] == ["robust.secrets"]
