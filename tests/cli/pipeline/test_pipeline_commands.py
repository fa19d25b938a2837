"""`ductile pipeline list|show|visualize|dry-run` without a service."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ductile.cli.base.json_args import read_payload
from tests.cli.conftest import Run, imported_by
from tests.e2e.service import Home

PIPELINES = """
plugins:
  say: {}
  off: {enabled: false}
pipelines:
  - name: report
    on: report.wanted
    from_plugin: say
    if: {path: payload.day, op: exists}
    execution_mode: synchronous
    steps:
      - {id: fetch, uses: say, baggage: {day: payload.day}}
      - {id: urgent, uses: say.poll, if: {path: payload.level, op: gte, value: 3}}
      - {id: rest, call: after}
  - name: after
    on: after.wanted
    steps: [{id: store, uses: say, foreach: payload.rows, continue: true}]
  - name: idle
    on-hook: job.failed
    steps: [{id: never, uses: off}]
"""
SAY = """#!/usr/bin/env python3
import json, os, sys
request = json.load(sys.stdin)
print("heard", file=sys.stderr)
seen = {"state": request["state"], "cwd": os.getcwd(), "rows": [1, 2], "env": os.environ.get("DUCTILE_INSTANCE")}
print(json.dumps({"status": "ok", "result": "said", "events": [{"type": "said", "payload": seen}]}))
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A configuration with pipelines; nothing has run."""
    made = Home.make(tmp_path / "ductile")
    made.plugin("say", SAY)
    made.plugin("off", SAY)
    made.add(PIPELINES)
    return made


# ── list and show ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pipeline_list_shows_triggers(run: Run, home: Home) -> None:
    """In the order of the configuration."""
    answer = run("pipeline", "list", "--config", home.path)

    assert [line.split() for line in answer.stdout.splitlines()] == [
        ["NAME", "TRIGGER", "FROM", "MODE", "STEPS"],
        ["report", "report.wanted", "say", "synchronous", "3"],
        ["after", "after.wanted", "async", "1"],
        ["idle", "hook", "job.failed", "async", "1"],
    ]


def test_pipeline_list_shows_file_and_line(run: Run, home: Home) -> None:
    """With -v, and always in JSON."""
    listed = run("pipeline", "list", "--config", home.path, "--json").json["pipelines"]
    line = (home.path / "config.yaml").read_text().splitlines().index("  - name: report") + 1

    assert listed[0]["where"] == f"{home.path}/config.yaml:{line}"
    assert f"config.yaml:{line}" in run("pipeline", "list", "--config", home.path, "-v").stdout
    assert (listed[0]["if"], listed[0]["timeout"]) == ({"path": "payload.day", "op": "exists"}, "30s")
    assert listed[0]["fingerprint"].startswith("blake3:")


def test_an_empty_pipeline_list_is_no_error(run: Run, tmp_path: Path) -> None:
    empty = Home.make(tmp_path / "empty")

    assert run("pipeline", "list", "--config", empty.path).stdout == "no pipelines; add them under `pipelines:`\n"
    assert run("pipeline", "list", "--config", empty.path, "--json").json == {"pipelines": []}


def test_pipeline_show_prints_the_compiled_pipeline(run: Run, home: Home) -> None:
    """Calls are inlined; every path between steps is a route."""
    shown = run("pipeline", "show", "report", "--config", home.path, "--json").json

    assert [step["path"] for step in shown["steps"]] == ["fetch", "urgent", "rest/store"]
    assert shown["steps"][0]["claims"] == {"day": "payload.day"}
    ways = [(route["source"].get("step_id"), route["destination"].get("step_id")) for route in shown["routes"]]
    assert ways == [
        (None, "fetch"),
        ("fetch", "urgent__switch"),
        ("urgent__switch", "urgent"),
        ("urgent__switch", "rest/store"),
        ("urgent__switch", None),
        ("urgent", "rest/store"),
        ("urgent", None),
        ("rest/store", None),
        ("rest/store", None),
    ]


def test_pipeline_show_prints_text(run: Run, home: Home) -> None:
    lines = run("pipeline", "show", "report", "--config", home.path).stdout.splitlines()
    routes = [line.split() for line in lines[lines.index("  routes:") + 1 :]]

    assert lines[0] == "report: on report.wanted from say, synchronous, timeout 30s"
    assert ["fetch", "→", "urgent__switch"] in routes
    assert ["urgent", "→", "rest/store", "each", "of", "payload.rows"] in routes


@pytest.mark.parametrize("action", [("show",), ("visualize",), ("dry-run",)], ids=" ".join)
def test_an_unknown_pipeline_is_not_found_with_a_suggestion(run: Run, home: Home, action: tuple[str, ...]) -> None:
    answer = run("pipeline", *action, "raport", "--config", home.path, "--json")

    assert (answer.exit_code, answer.json["code"]) == (1, "not_found")
    assert answer.json["error"] == "pipeline 'raport' does not exist (did you mean 'report'?)"


# ── visualize ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pipeline_visualize_prints_mermaid(run: Run, home: Home) -> None:
    answer = run("pipeline", "visualize", "report", "--config", home.path)

    assert answer.stdout.startswith('flowchart TD\n  start(["report<br/>on report.wanted from say')
    assert "  subgraph c1[" in answer.stdout
    as_json = run("pipeline", "visualize", "report", "--config", home.path, "--json").json
    assert (as_json["pipeline"], as_json["mermaid"]) == ("report", answer.stdout)


def test_pipeline_visualize_needs_a_name_or_a_job(run: Run, home: Home) -> None:
    assert run("pipeline", "visualize", "--config", home.path).exit_code == 2


@pytest.mark.parametrize("args", [("list",), ("show", "report"), ("visualize", "report")], ids=" ".join)
def test_reading_pipelines_imports_no_event_loop_and_no_database(home: Home, args: tuple[str, ...]) -> None:
    imported = imported_by("pipeline", *args, "--config", str(home.path))

    assert imported.isdisjoint({"trio", "quart", "hypercorn", "sqlite3"})


# ── dry-run ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def steps(shown: dict[str, Any]) -> list[str]:
    return [f"{step['step']} {step['outcome']}" for step in shown["steps"]]


def test_a_dry_run_shows_the_outcome_of_each_step(run: Run, home: Home) -> None:
    """It writes nothing."""
    payload = '{"day": "monday", "level": 1, "rows": [1]}'

    answer = run("pipeline", "dry-run", "report", "--payload", payload, "--config", home.path, "--json")

    assert (answer.exit_code, answer.json["status"], answer.json["complete"]) == (0, "succeeded", True)
    assert steps(answer.json) == ["fetch simulated", "urgent bypassed", "rest/store simulated"]
    fetch, urgent, store = answer.json["steps"]
    assert urgent["why"] == "payload.level gte 3 is false: found 1"
    assert (fetch["payload"], store["baggage"], store["items"]) == (json.loads(payload), {"day": "monday"}, [0])
    assert not home.ledger.exists()


def test_a_dry_run_that_would_fail_exits_1(run: Run, home: Home) -> None:
    answer = run("pipeline", "dry-run", "report", "--config", home.path)

    assert answer.exit_code == 1
    assert "report: a run with this payload would fail (dry run)" in answer.stdout
    assert "baggage day: payload.day is absent" in answer.stdout
    assert "the `if` of the pipeline is false for this payload" in answer.stdout


def test_a_dry_run_reports_a_disabled_plugin(run: Run, home: Home) -> None:
    answer = run("pipeline", "dry-run", "idle", "--config", home.path, "--json")

    assert (answer.exit_code, steps(answer.json)) == (1, ["never dead"])
    assert answer.json["steps"][0]["why"] == "plugin off is disabled (enabled: false)"


def test_result_overrides_results(run: Run, home: Home, tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    file.write_text('{"fetch": {"fail": "x"}, "rest/store": {"fail": "full"}}')
    fetched = '[{"type": "fetched", "payload": {"level": 3, "rows": [1, 2]}}]'

    answer = run(
        *("pipeline", "dry-run", "report", "--payload", '{"day": "x"}', "--results", file),
        *("--result", f"fetch={fetched}", "--config", home.path, "--json"),
    )

    assert steps(answer.json) == [
        "fetch simulated",
        "urgent entered",
        "urgent simulated",
        "rest/store failed",
        "rest/store failed",
    ]
    assert (answer.exit_code, answer.json["steps"][-1]["tolerated"]) == (0, True)


def test_verbose_shows_payloads_and_baggage(run: Run, home: Home) -> None:
    answer = run("pipeline", "dry-run", "report", "--payload", '{"day": "x", "rows": []}', "-v", "--config", home.path)

    assert '      payload: {"day":"x","rows":[]}' in answer.stdout.splitlines()
    assert '      baggage: {"day":"x"}' in answer.stdout.splitlines()


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--payload", "{"), "--payload:1:"),
        (("--payload", "[]"), "the payload must be a JSON object"),
        (("--payload", "{}", "--payload-file", "-"), "mutually exclusive"),
        (("--payload-file", "/nonexistent"), "/nonexistent"),
        (("--results", "/nonexistent"), "/nonexistent"),
        (("--result", "fetch"), "write STEP=RESPONSE"),
        (("--result", "fetch={"), "--result fetch"),
        (("--result", "fetsch=[]"), "did you mean 'fetch'?"),
        (("--result", 'fetch="ok"'), "the answer for step fetch is not valid"),
        (("--step", "fetch"), "must be used together"),
        (("--execute",), "must be used together"),
    ],
)
def test_invalid_options_of_a_dry_run_are_usage_errors(run: Run, home: Home, args: tuple[str, ...], says: str) -> None:
    answer = run("pipeline", "dry-run", "report", *args, "--config", home.path, "--json")

    assert (answer.exit_code, answer.json["code"]) == (2, "usage")
    assert says in answer.json["error"]


def test_a_missing_payload_is_none() -> None:
    assert read_payload(None, None) is None


def cli(*args: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run the command in a process of its own: running a plugin changes its process."""
    command = [sys.executable, "-m", "ductile", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_execute_runs_the_plugin_of_one_step(home: Home) -> None:
    """In the directory of the configuration; its events are used; nothing is recorded."""
    payload = '{"day": "x", "level": 9}'

    done = cli(
        *("pipeline", "dry-run", "report", "--payload", payload, "--step", "fetch", "--execute"),
        *("--config", home.path, "--json"),
    )

    shown = json.loads(done.stdout)
    assert (done.returncode, steps(shown)[:3]) == (0, ["fetch executed", "urgent bypassed", "rest/store simulated"])
    assert shown["steps"][0]["why"] == "plugin executed: said"
    got = shown["steps"][2]["payload"]
    assert (got["state"], got["cwd"], got["env"]) == ({}, str(home.path), "dry-run")
    assert done.stderr.splitlines() == ["executing say.handle", "heard"]
    assert not home.ledger.exists()


def test_execute_runs_a_step_in_a_loop_once(home: Home) -> None:
    done = cli(
        *("pipeline", "dry-run", "after", "--payload", '{"rows": [1, 2, 3]}', "--step", "store", "--execute"),
        *("--config", home.path, "--json"),
    )

    assert steps(json.loads(done.stdout)) == ["store executed", "store simulated", "store simulated"]


def test_an_executed_step_that_fails_fails_the_run(home: Home) -> None:
    home.plugin("bad", "#!/bin/sh\ncat >/dev/null\nexit 78\n")
    home.add("  - {name: fails, on: x, steps: [{id: bad, uses: bad}]}\n")

    done = cli("pipeline", "dry-run", "fails", "--step", "bad", "--execute", "--config", home.path)

    assert done.returncode == 1
    assert "plugin executed: exit code 78" in done.stdout


@pytest.mark.parametrize(
    ("pipeline", "step", "code", "says"),
    [
        ("report", "fetsch", 1, "pipeline report has no step 'fetsch' (did you mean 'fetch'?)"),
        ("report", "urgent", 1, "step urgent was not executed: the run does not reach it with this payload"),
        ("joined", "fan__join", 2, "step fan__join runs no plugin"),
    ],
)
def test_a_step_that_cannot_be_executed_is_an_error(
    run: Run, home: Home, pipeline: str, step: str, code: int, says: str
) -> None:
    home.add("  - {name: joined, on: x, steps: [{id: fan, join: true, split: [{uses: say}]}]}\n")
    args = ("--payload", '{"day": "x", "rows": []}', "--step", step, "--execute", "--config", home.path)

    answer = run("pipeline", "dry-run", pipeline, *args)

    assert answer.exit_code == code
    assert says in answer.stderr
