"""Commands for programs and shells: describe, skills, api, completion, and the output of -v."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import ductile
from ductile.cli.agents import api
from ductile.cli.agents.side_effects import EFFECTS
from ductile.cli.base.click_base import move_flags_last
from ductile.cli.base.error_codes import ERROR_CODES
from ductile.core.errors import NotAllowed
from tests.cli.conftest import Run
from tests.cli.history import past_of
from tests.cli.installation import Installation, make_installation
from tests.e2e.service import TOKEN

PACKAGE = Path(ductile.__file__).parent


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    installation = make_installation(tmp_path_factory.mktemp("installation"))
    yield installation
    installation.service.stop()


# ── describe and skills ───────────────────────────────────────────────────────────────────────────────────────────────


def test_describe_returns_the_same_from_the_service_and_from_the_files(installation: Installation, run: Run) -> None:
    """Only `source` differs."""
    up = run("system", "describe", "--json", "--config", installation.home.path).json
    copy = installation.home.path.parent / "copy"
    shutil.copytree(installation.home.path, copy, ignore=shutil.ignore_patterns("data"))
    assert run("config", "lock", "--config", copy).exit_code == 0
    down = run("system", "describe", "--json", "--config", copy).json

    assert (up.pop("source"), down.pop("source")) == ("service", "files")
    assert up == down
    assert [plugin["name"] for plugin in up["plugins"]] == ["echo", "failing"]
    assert [pipeline["name"] for pipeline in up["pipelines"]] == ["two-steps"]


def test_describe_lists_flags_arguments_side_effect_and_scopes(run: Run) -> None:
    described = {one["command"]: one for one in run("system", "describe", "--json").json["commands"]}

    replay = described["job replay"]
    assert set(described) == set(EFFECTS)
    assert replay["side_effect"] == "runs_plugins"
    assert replay["scopes"] == ["jobs:rw", "jobs:status:ro", "jobs:tree:ro"]
    assert replay["example"].startswith("ductile job replay ")
    assert replay["arguments"] == [{"name": "job_id", "type": "string", "required": False, "repeatable": False}]
    options = {option["flags"][-1]: option for option in described["job list"]["options"]}
    assert (options["--limit"]["type"], options["--limit"]["default"]) == ("integer", 50)
    assert (options["--limit"]["minimum"], options["--limit"]["maximum"]) == (1, 200)
    assert options["--json"]["type"] == "flag"


def test_describe_without_a_configuration_lists_only_commands(run: Run, tmp_path: Path) -> None:
    """A configuration that is named but does not exist is an error."""
    assert run("system", "describe", "--json").json["plugins"] == []
    assert "ductile job why" in run("skills").stdout
    assert run("skills", "--config", tmp_path / "nowhere").exit_code == 78


def test_skills_has_one_line_per_command_plugin_and_pipeline(installation: Installation, run: Run) -> None:
    page = run("skills", "--config", installation.home.path).stdout
    lines = [line for line in page.splitlines() if line.startswith("- `")]

    for name in EFFECTS:
        assert any(re.match(rf"- `{name}[ `]", line) for line in lines), name
    assert "- `echo.poll` m=POST p=/plugin/echo/poll tier=WRITE mut=1 idem=1 retry=1 in={message: string}" in page
    assert '- `two-steps` m=POST p=/pipeline/two-steps trigger="start" mode=async' in page


def codes_in(path: Path) -> Iterator[str]:
    """Yield every error code that a module defines, as a class attribute or in a response."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                for name, value in zip(names, values, strict=False):
                    is_code = isinstance(name, ast.Name) and name.id == "code"
                    if is_code and isinstance(value, ast.Constant) and isinstance(value.value, str):
                        yield value.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
            code = node.args[1]
            if node.func.id in ("refusal_response", "_refusal") and isinstance(code, ast.Constant):
                yield str(code.value)


def test_every_error_code_is_described() -> None:
    """The table has exactly the codes that commands and the API use."""
    installation = {code for path in PACKAGE.rglob("*.py") for code in codes_in(path)}

    assert {"not_found", "usage", "insufficient_scope", "argument_repeated"} <= installation
    assert installation == set(ERROR_CODES)


# ── api ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_api_fields_of_a_trigger_become_its_payload(installation: Installation, run: Run) -> None:
    where = ("--config", str(installation.home.path))
    accepted = run("api", "plugin/echo/poll", "-f", "message=to you", *where)
    job = run("job", "wait", accepted.json["job_id"], "--json", *where)

    assert "to you" in job.json["result"]["result"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (["/jobs"], ("GET", "/jobs", None)),
        (["jobs?limit=1"], ("GET", "/jobs?limit=1", None)),
        (["/jobs", "-X", "get", "-f", "limit=3"], ("GET", "/jobs?limit=3", None)),
        (["/plugin/a/b", "-f", "n=3"], ("POST", "/plugin/a/b", {"payload": {"n": 3}})),
        (["/pipeline/a?async=true", "-f", "ok=true"], ("POST", "/pipeline/a?async=true", {"payload": {"ok": True}})),
        (["/queue/pause", "-f", "reason=a b"], ("POST", "/queue/pause", {"reason": "a b"})),
        (["/x", "-f", 'a="42"', "-f", "b=[1]", "-f", "c=042"], ("POST", "/x", {"a": "42", "b": [1], "c": "042"})),
        (["/x", "-f", "a=", "-f", "b=x=y"], ("POST", "/x", {"a": "", "b": "x=y"})),
        (["/x", "-b", "{}"], ("POST", "/x", {})),
        (["/job/é x"], ("GET", "/job/%C3%A9%20x", None)),
    ],
)
def test_api_derives_method_path_and_body_from_its_options(
    line: list[str], expected: tuple[str, str, Any], run: Run
) -> None:
    """Valid JSON values are sent as JSON, others as text."""
    shown = run("api", *line, "--dry-run", "--json").json

    assert (shown["method"], shown["path"], shown["body"] and json.loads(shown["body"])) == expected


@pytest.mark.parametrize(
    "line",
    [
        ["http://elsewhere/jobs"],
        ["/x\ny"],
        ["/x#y"],
        ["/x", "-f", "novalue"],
        ["/x", "-f", "=1"],
        ["/x", "-f", "a=1", "-f", "a=2"],
        ["/x", "-f", "a=1", "-b", "{}"],
        ["/x", "-H", "no colon"],
        ["/x", "-H", "a: b\r\nc: d"],
        ["/x", "-H", "a: ☃"],
        ["/x", "-X", "GET /other"],
    ],
)
def test_api_refuses_ambiguous_requests(line: list[str], run: Run) -> None:
    assert run("api", *line, "--dry-run", "--json").json["code"] == "usage"


def test_api_prints_error_responses_and_exits_1(installation: Installation, run: Run) -> None:
    """--include adds the status line."""
    answer = run("api", "/plugin/missing/poll", "-X", "post", "--include", "--config", installation.home.path)
    head, _, body = answer.stdout.partition("\n\n")

    assert answer.exit_code == 1
    assert head.startswith("HTTP/1.1 404 ")
    assert json.loads(body)["code"] == "not_found"


def test_a_remote_service_needs_a_token(installation: Installation, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key comes from --api-key or the environment."""
    assert run("api", "/plugins", "--api-url", installation.service.url).exit_code == 1
    assert run("api", "/plugins", "--api-url", installation.service.url, "--api-key", TOKEN).exit_code == 0
    for name in ("DUCTILE_API_TOKEN", "DUCTILE_API_KEY"):
        with monkeypatch.context() as environ:
            environ.setenv(name, TOKEN)
            assert run("api", "/plugins", "--api-url", installation.service.url).exit_code == 0


@pytest.mark.parametrize("url", ["http://1.1.1.1", "https://[2606:4700::1]:8443", "http://[::ffff:8.8.8.8]"])
def test_api_sends_no_token_to_public_addresses(url: str, run: Run) -> None:
    """It does not even connect."""
    answer = run("api", "/jobs", "--api-url", url, "--api-key", "secret", "--json")

    assert (answer.exit_code, answer.json["code"]) == (77, "not_allowed")


@pytest.mark.parametrize("command", ["api /jobs", "job list", "logs --follow", "system watch --once"])
@pytest.mark.parametrize("key", ["hush\n", "hush\r\nx: y", "hüsh"])
def test_an_invalid_api_key_is_refused_and_not_printed(
    run: Run, installation: Installation, command: str, key: str
) -> None:
    """A key from a file often ends with a line break."""
    answer = run(*command.split(), "--api-url", installation.service.url, "--api-key", key)

    assert answer.exit_code == 77
    assert "sh" not in answer.stderr.replace("show", "")


def test_api_prints_a_response_that_arrives_before_the_body_is_sent(
    run: Run, installation: Installation, tmp_path: Path
) -> None:
    """The service closes the connection when a body is too large."""
    answer = run("api", "/plugin/echo/poll", "--body", "x" * 30_000_000, "--config", installation.home.path)

    assert (answer.exit_code, answer.json["code"]) == (1, "body_too_large")


def test_api_checks_the_address_it_is_connected_to() -> None:
    """A name may resolve to another address the second time."""
    with pytest.raises(NotAllowed):
        api._require_private("rebound", ["8.8.8.8"])
    api._require_private("near", ["127.0.0.1", "::1", "10.1.2.3", "192.168.0.1", "169.254.1.1", "fe80::1%eth0"])


def test_a_truncated_response_is_an_error(run: Run) -> None:
    class Breaks(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", "100")
            self.end_headers()
            self.wfile.write(b"half")

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Breaks)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        answer = run("api", "/x", "--api-url", f"http://127.0.0.1:{server.server_port}", "--json")
    finally:
        server.shutdown()
        server.server_close()

    assert answer.exit_code == 69


def test_api_prints_a_stream_as_it_arrives(installation: Installation) -> None:
    """A reader that closes the pipe ends it without an error."""
    command = [sys.executable, "-m", "ductile", "api", "/events", "--config", str(installation.home.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "retry: 1000\n"
        process.stdout.close()
        installation.service.post("echo")  # creates an event, so that the command notices the closed pipe
        _, stderr = process.communicate(timeout=30)

    assert (process.returncode, stderr) == (0, "")


# ── completion ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def ductile_on_path(tmp_path: Path) -> dict[str, str]:
    """An environment in which a shell finds `ductile`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ductile").write_text(f'#!/bin/sh\nexec {sys.executable} -m ductile "$@"\n')
    (folder / "ductile").chmod(0o700)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("DUCTILE_")}
    return {**clean, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def completed(line: str, environ: dict[str, str]) -> list[str]:
    """Return the completions that bash offers for this line."""
    words = line.split(" ")
    script = f"""
        source <(ductile completion bash)
        COMP_WORDS=({" ".join(f"'{word}'" for word in words)}) COMP_CWORD={len(words) - 1} COMP_LINE='{line}'
        handler=$(complete -p ductile | sed 's/.*-F \\([^ ]*\\).*/\\1/')
        "$handler" ductile "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_nouns_actions_flags_and_values(demo: Path, ductile_on_path: dict[str, str]) -> None:
    environ = ductile_on_path | {"DUCTILE_CONFIG_DIR": str(demo)}
    with past_of(demo) as past:
        job = past.enqueue().job_id

    assert completed("ductile pl", environ) == ["plugin", "plugins"]
    assert "inspect" in completed("ductile job in", environ)
    assert completed("ductile job list --pl", environ) == ["--plugin"]
    assert completed("ductile plugin show ", environ) == ["echo", "github_events"]
    assert completed("ductile job list --status d", environ) == ["dead"]
    assert completed("ductile job why ", environ) == [job]
    assert completed("ductile completion ", environ) == ["bash", "fish", "zsh"]


def test_bash_completes_topics_messages_and_conversations(
    demo: Path, run: Run, ductile_on_path: dict[str, str]
) -> None:
    environ = ductile_on_path | {"DUCTILE_CONFIG_DIR": str(demo)}
    message_id = run("exchange", "publish", "review.request", "hello", "--config", demo).stdout.strip()

    for line, values in {
        "publish ": ["review.request"],
        "claim r": ["review.request"],
        "read --topic ": ["review.request"],
        "why ": [message_id],
        "check --conversation-id ": [message_id],
    }.items():
        assert completed(f"ductile exchange {line}", environ) == values, line


def test_completion_is_silent_without_a_usable_configuration(ductile_on_path: dict[str, str], tmp_path: Path) -> None:
    environ = ductile_on_path | {"DUCTILE_CONFIG_DIR": str(tmp_path)}
    for text in (None, "plugins: [oh", "plugins: 5\npipelines: {a: 1}\n", "pipelines: [1, {name: [2]}]\n"):
        if text is not None:
            (tmp_path / "config.yaml").write_text(text)
        assert completed("ductile plugin show ", environ) == []
        assert completed("ductile job why ", environ) == []
        assert completed("ductile pipeline show ", environ) == []


@pytest.mark.parametrize(
    ("shell", "mark"), [("zsh", "#compdef ductile"), ("fish", "complete --no-files --command ductile")]
)
def test_zsh_and_fish_scripts_are_valid(shell: str, mark: str, run: Run, tmp_path: Path) -> None:
    script = run("completion", shell).stdout
    assert mark in script
    assert f"_DUCTILE_COMPLETE={shell}_complete" in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        done = subprocess.run([shell, "-n", tmp_path / "script"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


# ── shared behaviour ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_verbose_prints_paths_requests_and_duration_to_stderr(installation: Installation, run: Run) -> None:
    """stdout is the same as without -v."""
    where = ("--config", str(installation.home.path))
    answer = run("schedule", "pause", "echo", "nightly", "--dry-run", "-v", *where)
    lines = answer.stderr.splitlines()

    assert answer.stdout == run("schedule", "pause", "echo", "nightly", "--dry-run", *where).stdout
    assert f"configuration: {installation.home.path}/config.yaml (explicit)" in lines
    assert f"ledger: {installation.home.ledger}" in lines
    assert f"socket: {installation.service.socket_path}" in lines
    assert "request: POST /schedule/echo/nightly/pause?dry_run=true → 200" in lines
    assert re.fullmatch(r"ductile schedule pause: \d+ ms", lines[-1])


def test_verbose_does_not_print_the_api_key(installation: Installation, run: Run) -> None:
    answer = run("job", "list", "-v", "--api-url", installation.service.url, "--api-key", TOKEN)

    assert installation.service.url in answer.stderr
    assert TOKEN not in answer.stderr + answer.stdout


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--json job list", "job list --json"),
        ("job --config there --json list --limit 2", "job list --config there --json --limit 2"),
        ("--config=there -v config get x", "config get x --config=there -v"),
        ("--api-url u --api-key k status", "status --api-url u --api-key k"),
        ("job list --plugin --json", "job list --plugin --json"),
        ("--json -- job list", "--json -- job list"),
        ("--version --json", "--version --json"),
        ("--config", "--config"),
        ("", ""),
    ],
)
def test_shared_flags_may_precede_the_noun(typed: str, meant: str) -> None:
    """Flags after the first flag of the command itself are not moved."""
    assert move_flags_last(typed.split()) == meant.split()


def test_the_position_of_flags_does_not_matter(run: Run, demo: Path) -> None:
    expected = run("plugin", "show", "echo", "--config", demo, "--json")

    assert expected.exit_code == 0
    assert run("--json", "--config", demo, "plugin", "show", "echo") == expected
    assert run("plugin", "--json", "show", "--config", demo, "echo") == expected


@pytest.mark.parametrize("line", [["help"], ["job", "help"], ["config", "token", "help"], ["help", "job", "wait"]])
def test_help_is_also_a_command(line: list[str], run: Run) -> None:
    """`ductile job help` is `ductile job --help`."""
    words = [word for word in line if word != "help"]
    answer = run(*line)

    assert (answer.exit_code, answer.stdout) == (0, run(*words, "--help").stdout)


@pytest.mark.parametrize(
    ("line", "meant"),
    [(["jbo"], "job"), (["job", "inspekt"], "inspect"), (["help", "sytem"], "system"), (["compleation"], "completion")],
)
def test_a_mistyped_command_gets_a_suggestion(line: list[str], meant: str, run: Run) -> None:
    """Also for nouns whose module is not imported."""
    answer = run(*line)

    assert answer.exit_code == 2
    assert f"Did you mean '{meant}'?" in answer.stderr


@pytest.mark.parametrize("action", ["stop", "restart"])
def test_system_stop_and_restart_name_the_process_supervisor(action: str, run: Run) -> None:
    answer = run("system", action, "--now", "--json")

    assert answer.exit_code == 2
    assert f"systemctl {action}" in answer.json["hint"]
    assert f"  {action} " not in run("system", "--help").stdout


# ── dry runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (["plugin", "run", "echo"], None),
        (["plugin", "run", "echo", "nothing"], "command_unknown"),
        (["plugin", "run", "missing"], "not_found"),
        (["pipeline", "run", "two-steps", "--payload", '{"a": 1}'], None),
        (["pipeline", "run", "nothing"], "not_found"),
    ],
)
def test_a_dry_run_of_a_trigger_validates_and_enqueues_nothing(
    line: list[str], code: str | None, installation: Installation, run: Run
) -> None:
    before = installation.home.rows("SELECT count(*) FROM job_queue")
    answer = run(*line, "--dry-run", "--json", "--config", installation.home.path)

    assert (answer.json.get("code"), answer.json.get("dry_run", False)) == (code, code is None)
    assert installation.home.rows("SELECT count(*) FROM job_queue") == before


def test_a_dry_run_of_system_start_reports_what_prevents_a_start(
    installation: Installation, run: Run, demo: Path
) -> None:
    """A running instance, an invalid configuration, a file that is not a ledger. It creates no file."""
    assert (
        run("system", "start", "--dry-run", "--json", "--config", installation.home.path).json["code"]
        == "already_running"
    )
    assert run("system", "start", "--dry-run", "--config", demo).exit_code == 0
    assert not (demo / "data" / "state.db").exists()
    (demo / "data").mkdir(mode=0o700, exist_ok=True)
    (demo / "data" / "state.db").write_text("no ledger")
    assert run("system", "start", "--dry-run", "--config", demo).exit_code == 78
