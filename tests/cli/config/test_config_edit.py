"""`ductile config set|token|scope|plugin|route|webhook|plan`: output, changes and exit codes."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from ductile.config.files.atomic_write import lock_config
from tests.cli.config.conftest import Config, contents
from tests.cli.conftest import Run, imported_by
from tests.e2e.service import poll_until

PLUGINS = Path(__file__).parents[3] / "plugins"
EDITS = [
    ("set", "service.log_level=debug"),
    ("plugin", "set", "echo", "config.message", "good day"),
    ("route", "add", "--from", "echo", "--event", "x", "--to", "copy"),
    ("token", "create", "--name", "new", "--scopes", "jobs:ro"),
    ("token", "delete", "deploy"),
    ("scope", "add", "deploy", "events:ro"),
    ("scope", "remove", "deploy", "jobs:ro"),
    ("scope", "set", "deploy", "*"),
    ("webhook", "add", "--path", "/hook/x", "--plugin", "echo", "--secret-ref", "deploy"),
]


@pytest.mark.parametrize("args", EDITS, ids=lambda args: " ".join(args[:2]))
def test_an_edit_changes_exactly_the_files_of_its_dry_run(
    config: Config, configured: Path, args: tuple[str, ...]
) -> None:
    """--dry-run shows the diff and writes nothing. The edit changes these files, and the result is sealed and valid."""
    before = contents(configured)

    tried = config(*args, "--dry-run", "--json")
    assert (tried.exit_code, tried.json["dry_run"]) == (0, True)
    assert contents(configured) == before
    made = config(*args, "--json")

    after = contents(configured)
    changed = {name for name in {*before, *after} if before.get(name) != after.get(name)} - {".checksums"}
    assert (made.exit_code, made.json["validation"]["valid"]) == (0, True)
    assert {str(configured / name) for name in changed} == set(made.json["files"]) == set(tried.json["files"])
    assert tried.json["diff"].count("\n") == made.json["diff"].count("\n") > 0
    assert config("check", "--strict").exit_code == 0


PIPELINE = """\
name: relayed
on: echo.poll
from_plugin: copy
steps:
  - uses: echo
    with: {message: "{payload.message}"}
"""
CRONTAB = """\
# m h dom mon dow command
CRON_TZ=Europe/Berlin
0 4 * * * /usr/local/bin/backup.sh --to ${HOME}
@hourly /usr/local/bin/backup.sh
5 4 * * * mail me%hello
"""


def test_a_pipeline_is_added_shown_replaced_and_removed(config: Config, configured: Path, tmp_path: Path) -> None:
    """In the file that defines pipelines. --dry-run writes nothing, and every result is sealed and valid."""
    before, file = contents(configured), tmp_path / "relayed.yaml"
    file.write_text(PIPELINE)

    tried = config("pipeline", "add", file, "--dry-run", "--json")
    assert (tried.exit_code, tried.json["pipelines"], contents(configured)) == (0, ["relayed"], before)
    assert config("pipeline", "add", file, "--json").json["files"] == [str(configured / "pipelines.yaml")]
    shown = config("pipeline", "show", "relayed", "--json").json
    assert (shown["pipeline"]["on"], shown["file"]) == ("echo.poll", str(configured / "pipelines.yaml"))

    file.write_text("pipelines:\n  -\n" + indent(PIPELINE.replace("echo.poll", "echo.handle"), "    "))
    refused = config("pipeline", "add", file)
    assert (refused.exit_code, "--replace" in refused.stderr) == (2, True)
    assert config("pipeline", "add", file, "--replace").exit_code == 0
    assert config("pipeline", "show", "relayed", "--json").json["pipeline"]["on"] == "echo.handle"
    assert config("check", "--strict").exit_code == 0

    assert config("pipeline", "remove", "relayed").exit_code == 0
    assert contents(configured)["pipelines.yaml"] == before["pipelines.yaml"]


def test_a_crontab_is_previewed_and_then_imported_once(config: Config, configured: Path, tmp_path: Path) -> None:
    """Without --apply nothing is written. `${NAME}` stays as it is, for the shell."""
    shutil.copytree(PLUGINS / "sys_exec", configured / "plugins" / "sys_exec")
    before, file = contents(configured), tmp_path / "crontab"
    file.write_text(CRONTAB)

    preview = config("import", "crontab", file, "--json")
    assert (preview.exit_code, preview.json["dry_run"], contents(configured)) == (0, True, before)
    names = [(one["line"], one["plugin"], one["when"]) for one in preview.json["imported"]]
    assert names == [(3, "backup", "0 4 * * *"), (4, "backup-2", "0 * * * *")]
    assert [(one["line"], "stdin" in one["reason"]) for one in preview.json["skipped"]] == [(5, True)]

    assert config("import", "crontab", file, "--apply").exit_code == 0
    entry = config("plugin", "show", "backup", "--json").json
    assert (entry["uses"], entry["retry"]["max_attempts"]) == ("sys_exec", 1)
    assert entry["config"]["command"] == "/usr/local/bin/backup.sh --to ${HOME}"
    assert (entry["schedules"][0]["cron"], entry["schedules"][0]["timezone"]) == ("0 4 * * *", "Europe/Berlin")
    again = config("import", "crontab", file, "--apply", "--json").json
    assert (again["imported"], again["status"]) == ([], "unchanged")


@pytest.mark.parametrize(
    ("args", "exit_code", "message"),
    [
        (("set", "nonsense"), 2, "is not PATH=VALUE"),
        (("set", "service.log_level=loud"), 78, "config.yaml:23: service.log_level: 'loud' is not one of"),
        (("set", "service.log_lvl=info"), 78, "did you mean 'log_level'?"),
        (("set", "a=1", "--dry-run", "--apply"), 2, "mutually exclusive"),
        (("plugin", "show", "ecko"), 1, "did you mean 'echo'?"),
        (("plugin", "set", "ghost", "enabled", "true"), 78, "plugins.ghost: is in none of the plugin_roots"),
        (("route", "add", "--from", "echo", "--event", "x", "--to", "ghost"), 78, "plugin ghost is in none"),
        (("route", "remove", "--from", "echo", "--event", "x", "--to", "copy"), 1, "the route does not exist"),
        (("route", "add", "--from", "echo"), 2, "Missing option"),
        (("token", "create", "--name", "deploy"), 2, "token 'deploy' already exists"),
        (("token", "create", "--name", "x", "--scopes", "job:ro"), 2, "did you mean 'jobs:ro'?"),
        (("token", "create", "--name", "x", "--scopes", "*", "--scopes-file", "f"), 2, "mutually exclusive"),
        (("token", "create", "--name", "x", "--scopes-file", "no-such-file"), 2, "does not exist"),
        (("token", "inspect", "deplyo"), 1, "did you mean 'deploy'?"),
        (("token", "delete", "missing"), 1, "token 'missing' does not exist"),
        (("token", "rehash", "missing"), 1, "token 'missing' does not exist"),
        (("scope", "remove", "deploy", "events:ro"), 2, "does not have events:ro"),
        (("scope", "set", "deploy", "plugin:"), 2, "does not exist"),
        (
            ("webhook", "add", "--path", "/x", "--plugin", "echo", "--secret-ref", "missing"),
            78,
            "secret_ref: must be the name of a token",
        ),
        (("pipeline", "add", "no-such-file"), 2, "No such file"),
        (("pipeline", "remove", "announce-psh"), 1, "did you mean 'announce-push'?"),
        (("pipeline", "show", "ghost"), 1, "pipeline 'ghost' is not configured"),
        (("import", "crontab", "no-such-file"), 2, "No such file"),
        (("import", "crontab", "no-such-file", "--timeout", "soon"), 2, "--timeout"),
        (("restore", "no-such-archive"), 2, "does not exist"),
    ],
)
def test_a_refused_edit_changes_nothing(
    config: Config, configured: Path, args: tuple[str, ...], exit_code: int, message: str
) -> None:
    """Text and JSON have the error and a hint."""
    before = contents(configured)

    as_text, as_json = config(*args), config(*args, "--json")

    assert (as_text.exit_code, as_json.exit_code) == (exit_code, exit_code)
    assert message in as_text.stderr
    assert message in as_json.json["error"]
    assert as_json.json["hint"]
    assert contents(configured) == before


def test_compatibility_flags_are_accepted(config: Config) -> None:
    """--apply is the default; --format json is --json."""
    assert config("set", "service.log_level=warn", "--apply").exit_code == 0
    assert "deploy" in [token["name"] for token in config("token", "list", "--format", "json").json["tokens"]]


def test_strict_exits_3_when_the_result_has_warnings(config: Config) -> None:
    """The change is written."""
    answer = config("set", "service.tick_interval=100ms", "--strict", "--json")

    assert answer.exit_code == 3
    assert [one["field"] for one in answer.json["validation"]["warnings"]] == ["service.tick_interval"]
    assert config("get", "service.tick_interval").stdout == "100ms\n"


def test_a_token_key_is_printed_only_on_creation(config: Config, configured: Path) -> None:
    """No list, view or diff shows it later."""
    made = config("token", "create", "--name", "once", "--scopes", "jobs:ro", "--json")
    key = made.json["token_key"]

    assert {name: made.json[name] for name in ("status", "token", "env_var")} == {
        "status": "created",
        "token": "once",
        "env_var": "ONCE_TOKEN",
    }
    assert len(bytes.fromhex(key)) == 32
    assert f"ONCE_TOKEN={key}\n" in (configured / ".env").read_text()
    later = [("token", "list"), ("token", "inspect", "once"), ("show",), ("token", "delete", "once", "--dry-run")]
    assert [args for args in later if key in config(*args, "--json").stdout + config(*args).stdout] == []
    assert key not in made.json["diff"]


def test_a_dry_run_of_token_create_prints_no_key(config: Config) -> None:
    assert config("token", "create", "--name", "x", "--dry-run", "--json").json["token_key"] is None


def test_token_inspect_shows_whether_the_scope_file_is_approved(config: Config, configured: Path) -> None:
    (configured / "scopes/deploy.json").write_text('{"scopes": ["*"]}')

    shown = config("token", "inspect", "deploy", "--json").json
    assert (shown["key"], shown["hash_matches"], shown["scopes"]) == ("[redacted]", False, ["*"])
    assert shown["config_target"] == str(configured / "tokens.yaml")
    assert config("check").exit_code == 78

    assert config("token", "rehash", "deploy").exit_code == 0
    assert config("token", "inspect", "deploy", "--json").json["hash_matches"] is True
    assert config("check", "--strict").exit_code == 0


@pytest.mark.parametrize(
    "text",
    ["plugin:ro\njobs:ro\n", "plugin:ro, jobs:ro", '["plugin:ro", "jobs:ro"]', '{"scopes": ["plugin:ro", "jobs:ro"]}'],
)
def test_scopes_are_read_from_a_file(config: Config, tmp_path: Path, text: str) -> None:
    """One per line, separated by commas, or JSON."""
    (tmp_path / "wanted").write_text(text)

    assert config("token", "create", "--name", "x", "--scopes-file", str(tmp_path / "wanted")).exit_code == 0
    assert config("token", "inspect", "x", "--json").json["scopes"] == ["plugin:ro", "jobs:ro"]


@pytest.mark.parametrize(
    ("scope", "exit_code"), [("*", 0), ("jobs:ro", 0), ("plugin:echo:rw", 0), ("jobs", 1), ("", 1)]
)
def test_scope_validate_needs_no_configuration(run: Run, scope: str, exit_code: int) -> None:
    answer = run("config", "scope", "validate", scope, "--json")

    assert (answer.exit_code, answer.json["valid"]) == (exit_code, exit_code == 0)
    assert answer.json["details"]


def test_lists_show_file_and_line_of_each_entry(config: Config, configured: Path) -> None:
    config("route", "add", "--from", "echo", "--event", "x", "--to", "copy")
    config("webhook", "add", "--path", "/hook/x", "--plugin", "echo", "--secret-ref", "deploy")

    for args, key, name in [
        (("route", "list"), "routes", "to: copy"),
        (("webhook", "list"), "webhooks", "/hook/x"),
        (("plugin", "list"), "plugins", "echo:"),
    ]:
        found = [one for one in config(*args, "--json").json[key] if name in "\n".join(lines_at(one)[:3])]
        assert found
        assert f"{found[0]['file']}:{found[0]['line']}" in config(*args).stdout


def lines_at(one: dict[str, Any]) -> list[str]:
    return Path(one["file"]).read_text().splitlines()[one["line"] - 1 :]


def test_a_route_can_be_added_once_and_removed(config: Config, configured: Path) -> None:
    args = ("--from", "echo", "--event", "x", "--to", "copy")
    assert config("route", "add", *args).exit_code == 0
    assert config("route", "add", *args, "--json").json["code"] == "usage"
    assert config("route", "remove", *args).exit_code == 0
    assert config("route", "list", "--json").json == {"routes": []}


def test_effective_shows_the_source_of_each_value(config: Config, configured: Path) -> None:
    shown = config("show", "service", "--effective", "--json").json

    assert shown["name"] == {"value": "ductile", "source": "explicit", "at": f"{configured}/config.yaml:22"}
    assert shown["drain_timeout"] == {"value": "10s", "source": "default"}
    assert config("get", "copy.uses", "--effective", "--json").json["value"] == "echo"
    assert config("get", "plugins.copy.enabled", "--effective", "--json").json["source"] == "default"
    assert config("show", "copy", "--effective").stdout == config("show", "plugin:copy", "--effective").stdout
    assert config("show", "--effective", "nothing").exit_code == 1


def test_a_plan_without_a_ledger_compares_with_nothing(config: Config) -> None:
    answer = config("plan", "--json")

    assert (answer.exit_code, answer.json["status"]) == (0, "planned")
    assert answer.json["compared_with"].startswith("nothing")


# ── imports and concurrent edits ──────────────────────────────────────────────────────────────────────────────────────


def test_token_list_imports_no_loader_and_no_server(configured: Path) -> None:
    imported = imported_by("config", "token", "list", "--config", str(configured))

    assert imported.isdisjoint({"trio", "quart", "cattrs", "sqlite3"})


def test_an_edit_imports_no_event_loop_and_no_ledger(configured: Path) -> None:
    imported = imported_by("config", "set", "service.log_level=warn", "--config", str(configured))

    assert imported.isdisjoint({"trio", "quart", "sqlite3"})


def test_two_processes_add_a_route_once(configured: Path) -> None:
    command = [sys.executable, "-m", "ductile", "config", "route", "add", "--from", "echo", "--event", "x"]
    with lock_config(configured):
        running = [
            subprocess.Popen([*command, "--to", "copy", "--config", configured, "--json"], stdout=-1) for _ in range(2)
        ]
        poll_until(lambda: all(has_open(process.pid, configured) for process in running))
    codes = sorted((process.communicate(), process.returncode)[1] for process in running)

    assert codes == [0, 2]
    assert (configured / "config.yaml").read_text().count("event_type: x") == 1


def has_open(pid: int, folder: Path) -> bool:
    """True if the process has the directory open, as an editor that waits for the lock does."""
    with contextlib.suppress(OSError):
        return str(folder) in [os.path.realpath(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    return False


def test_concurrent_edits_are_all_applied(configured: Path) -> None:
    command = [sys.executable, "-m", "ductile", "config", "plugin", "set", "echo"]
    running = [
        subprocess.Popen([*command, f"config.key_{number}", str(number), "--config", configured, "--json"], stdout=-1)
        for number in range(6)
    ]
    answers = [json.loads(process.communicate()[0]) for process in running]

    assert [answer["status"] for answer in answers] == ["changed"] * 6
    text = (configured / "plugins.yaml").read_text()
    assert [number for number in range(6) if f"      key_{number}: {number}\n" not in text] == []
