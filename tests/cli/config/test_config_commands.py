"""`ductile config init|check|lock|show|get|schema` and `ductile plugin list|show|lock`."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_config_init_creates_a_valid_configuration(run: Run, demo: Path) -> None:
    """The demo is sealed, private and has no warnings."""
    answer = run("config", "check", "--strict", "--config", demo)

    assert (answer.exit_code, answer.stdout) == (0, "configuration is valid: no errors, no warnings\n")
    assert mode_of(demo) == 0o700
    assert {mode_of(path) for path in demo.iterdir() if path.is_file()} == {0o600}


def test_config_init_without_demo_is_valid(run: Run, tmp_path: Path) -> None:
    assert run("config", "init", "--config-dir", tmp_path / "new").exit_code == 0

    assert run("config", "check", "--config", tmp_path / "new").exit_code == 0


def test_config_init_uses_ductile_config_dir(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUCTILE_CONFIG_DIR", str(tmp_path / "here"))

    assert run("config", "init").exit_code == 0
    assert (tmp_path / "here" / "config.yaml").exists()
    assert "env:DUCTILE_CONFIG_DIR" in run("config", "check", "-v").stderr


def test_config_init_replaces_files_only_with_force(run: Run, demo: Path) -> None:
    (demo / "config.yaml").write_text("# mine\n")

    answer = run("config", "init", "--config-dir", demo, "--json")

    assert answer.exit_code == 2
    assert "--force" in answer.json["hint"]
    assert (demo / "config.yaml").read_text() == "# mine\n"
    assert run("config", "init", "--config-dir", demo, "--force").exit_code == 0
    assert "include:" in (demo / "config.yaml").read_text()


def test_a_dry_run_of_config_init_writes_nothing(run: Run, tmp_path: Path) -> None:
    answer = run("config", "init", "--demo", "--dry-run", "--config-dir", tmp_path / "new", "--json")

    assert answer.exit_code == 0
    assert "config.yaml" in answer.json["files"]
    assert answer.json["token"] is None
    assert not (tmp_path / "new").exists()


def test_config_init_prints_the_token_of_the_demo(run: Run, tmp_path: Path) -> None:
    """Each demo has its own token."""
    first = run("config", "init", "--demo", "--config-dir", tmp_path / "a", "--json").json["token"]
    second = run("config", "init", "--demo", "--config-dir", tmp_path / "b", "--json").json["token"]

    assert first in (tmp_path / "a" / ".env").read_text()
    assert first != second


def test_config_check_reports_every_error_with_file_and_line(run: Run, demo: Path) -> None:
    (demo / "plugins.yaml").write_text("plugins:\n  echo:\n    enabeld: true\n    parallelism: none\n")

    answer = run("config", "check", "--config", demo)

    assert answer.exit_code == 78
    assert f"{demo}/plugins.yaml:3: plugins.echo.enabeld: unknown key (did you mean 'enabled'?)" in answer.stdout
    assert f"{demo}/plugins.yaml:4: plugins.echo.parallelism: 'none' is not a whole number" in answer.stdout
    assert answer.stdout.endswith("configuration is invalid: 2 errors, no warnings\n")


def test_config_check_as_json_has_the_report_and_the_error(run: Run, demo: Path) -> None:
    (demo / "plugins.yaml").write_text("plugins:\n  echo:\n    config: 5\n")

    answer = run("config", "check", "--config", demo, "--json")

    assert answer.exit_code == answer.json["exit_code"] == 78
    assert answer.json["valid"] is False
    assert answer.json["code"] == "config_invalid"
    (complaint,) = answer.json["errors"]
    assert complaint["field"] == "plugins.echo.config"
    assert (complaint["file"], complaint["line"]) == (str(demo / "plugins.yaml"), 3)


def test_config_check_exits_3_for_warnings_only_with_strict(run: Run, demo: Path) -> None:
    with (demo / "plugins.yaml").open("a") as plugins:
        plugins.write("    schedules:\n      - every: 5s\n")
    run("config", "lock", "--config", demo)

    assert run("config", "check", "--config", demo).exit_code == 0
    answer = run("config", "check", "--config", demo, "--strict", "--json")
    assert answer.exit_code == 3
    assert answer.json["valid"] is True
    assert [warning["category"] for warning in answer.json["warnings"]] == ["schedule"]


def test_config_check_refuses_a_changed_high_tier_file(run: Run, demo: Path) -> None:
    """The hint names `config lock`."""
    with (demo / "tokens.yaml").open("a") as tokens:
        tokens.write("# changed\n")

    answer = run("config", "check", "--config", demo, "--json")

    assert answer.exit_code == 78
    assert answer.json["code"] == "integrity_broken"
    assert "config lock" in answer.json["hint"]
    assert run("config", "lock", "--config", demo).exit_code == 0
    assert run("config", "check", "--config", demo).exit_code == 0


def test_a_dry_run_of_config_lock_shows_the_changes(run: Run, demo: Path) -> None:
    """`+` added, `-` removed, `~` changed."""
    before = (demo / ".checksums").read_bytes()
    (demo / "plugins" / "echo" / "helper.sh").write_text("true\n")
    with (demo / "plugins.yaml").open("a") as plugins:
        plugins.write("# changed\n")

    answer = run("config", "lock", "--dry-run", "--config", demo, "--json")

    assert answer.exit_code == 0
    assert answer.json["changes"] == [f"~ {demo}/plugins.yaml", "~ plugin echo"]
    assert (demo / ".checksums").read_bytes() == before


def test_config_lock_refuses_a_missing_plugin(run: Run, demo: Path) -> None:
    before = (demo / ".checksums").read_bytes()
    with (demo / "plugins.yaml").open("a") as plugins:
        plugins.write("  ecko: {}\n")

    answer = run("config", "lock", "--config", demo)

    assert answer.exit_code == 78
    assert "did you mean 'echo'?" in answer.stderr
    assert (demo / ".checksums").read_bytes() == before


@pytest.mark.parametrize(
    ("entity", "expected"),
    [
        ("state", {"path": "data/state.db"}),
        ("plugin:echo", {"config": {"message": "hello from Ductile"}}),
        ("plugin:*", {"echo": {}}),
    ],
)
def test_config_show_selects_an_entity(run: Run, demo: Path, entity: str, expected: dict[str, object]) -> None:
    answer = run("config", "show", entity, "--config", demo, "--json")

    assert answer.exit_code == 0
    for key in expected:
        assert key in answer.json


def test_config_commands_never_print_a_secret(run: Run, demo: Path) -> None:
    token = (demo / ".env").read_text().rpartition("=")[2].strip()
    commands = [
        ("config", "show"),
        ("config", "show", "api", "--json"),
        ("config", "get", "api.auth.tokens[0].token"),
        ("config", "check", "--json"),
        ("plugin", "show", "echo", "--json"),
    ]
    for command in commands:
        answer = run(*command, "--config", demo)
        assert answer.exit_code == 0
        assert token not in answer.stdout + answer.stderr
    assert run("config", "get", "api.auth.tokens[0].token", "--config", demo).stdout == "***\n"


@pytest.mark.parametrize(
    ("path", "printed"),
    [
        ("plugins.echo.retry.max_attempts", "4\n"),
        ("plugins.echo.enabled", "true\n"),
        ("service.dedupe_ttl", "1d\n"),
        ("include[0]", "plugins.yaml\n"),
        ("remote_ingress", "null\n"),
    ],
)
def test_config_get_prints_one_value(run: Run, demo: Path, path: str, printed: str) -> None:
    answer = run("config", "get", path, "--config", demo)

    assert (answer.exit_code, answer.stdout.rpartition("/")[2]) == (0, printed)


@pytest.mark.parametrize("path", ["plugins.nope", "service.name.x", "include[99]", "api.auth.tokens.x", "."])
def test_config_get_of_an_unknown_path_is_not_found(run: Run, demo: Path, path: str) -> None:
    answer = run("config", "get", path, "--config", demo, "--json")

    assert answer.exit_code == 1
    assert answer.json["code"] == "not_found"
    assert answer.json["hint"]


def test_config_schema_prints_json_schema(run: Run) -> None:
    """It needs no configuration."""
    answer = run("config", "schema")

    assert answer.json["$schema"].startswith("https://json-schema.org/")
    assert answer.json["properties"]["plugins"]["description"]


def test_a_missing_configuration_is_an_error_with_a_hint(run: Run) -> None:
    answer = run("config", "check", "--json")

    assert answer.exit_code == 78
    assert answer.json["code"] == "config_missing"
    assert "config init" in answer.json["hint"]


def test_config_and_config_dir_are_mutually_exclusive(run: Run, demo: Path) -> None:
    answer = run("config", "check", "--config", demo, "--config-dir", demo)

    assert answer.exit_code == 2
    assert "mutually exclusive" in answer.stderr


def test_config_accepts_a_file_or_a_directory(run: Run, demo: Path) -> None:
    assert run("config", "check", "--config", demo / "config.yaml").exit_code == 0


def test_plugin_list_shows_rejected_plugins_with_the_reason(run: Run, demo: Path) -> None:
    bad = demo / "plugins" / "bad"
    bad.mkdir(mode=0o700)
    (bad / "manifest.yaml").write_text("name: bad\n")

    answer = run("plugin", "list", "--config", demo, "--json")

    rows = {row["name"]: row for row in answer.json["plugins"]}
    assert rows["echo"]["state"] == "enabled"
    assert rows["bad"]["state"] == "rejected"
    assert "manifest_spec" in rows["bad"]["reason"]
    assert "manifest_spec" in run("plugin", "show", "bad", "--config", demo).stdout


def test_plugin_show_prints_commands_keys_and_path(run: Run, demo: Path) -> None:
    answer = run("plugin", "show", "echo", "--config", demo)

    assert answer.exit_code == 0
    for expected in ("poll", "handle", "health", "message", str(demo / "plugins" / "echo")):
        assert expected in answer.stdout


def test_a_closed_pipe_is_no_traceback(demo: Path) -> None:
    script = f"set -o pipefail; {sys.executable} -m ductile config show --config {demo} | head -1"

    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("include:\n", "")


def test_config_check_also_reports_errors_in_a_file_that_is_not_sealed(run: Run, demo: Path) -> None:
    text = (demo / "webhooks.yaml").read_text()
    (demo / "webhooks.yaml").write_text(text.replace("secret_ref: github", "secret_ref: githab"))

    checked = run("config", "check", "--config", demo, "--json")

    assert (checked.exit_code, checked.json["code"]) == (78, "integrity_broken")
    sealed, unknown = (one["message"] for one in checked.json["errors"])
    assert "has changed since it was sealed" in sealed
    assert "did you mean 'github'?" in unknown


def test_plugin_lock_approves_only_plugins(run: Run, demo: Path) -> None:
    """A changed configuration file stays unapproved."""
    with (demo / "plugins" / "echo" / "README.md").open("a") as readme:
        readme.write("changed\n")
    with (demo / "plugins.yaml").open("a") as file:
        file.write("# changed\n")
    before = (demo / ".checksums").read_bytes()

    tried = run("plugin", "lock", "echo", "--dry-run", "--config", demo, "--json")
    assert (tried.json["changes"], (demo / ".checksums").read_bytes()) == (["~ plugin echo"], before)
    assert run("plugin", "lock", "echo", "--config", demo).exit_code == 0
    assert run("plugin", "lock", "--all", "--config", demo, "--json").json["changes"] == []

    warnings = [one["message"] for one in run("config", "check", "--config", demo, "--json").json["warnings"]]
    assert len(warnings) == 1
    assert "has changed since it was sealed" in warnings[0]


def test_enabling_a_plugin_does_not_count_as_a_change_of_its_files(run: Run, demo: Path) -> None:
    """`~ plugin` is reserved for changed bytes."""
    for enabled in ("false", "true"):
        switched = run("config", "plugin", "set", "echo", "enabled", enabled, "--config", demo, "--json")
        assert switched.json["sealed"] == [f"~ {demo}/plugins.yaml"]
    with (demo / "plugins" / "echo" / "README.md").open("a") as readme:
        readme.write("changed\n")

    switched = run("config", "plugin", "set", "echo", "enabled", "false", "--config", demo, "--json")

    assert switched.json["sealed"] == [f"~ {demo}/plugins.yaml", "~ plugin echo"]


def test_plugin_lock_records_a_manually_disabled_plugin(run: Run, demo: Path) -> None:
    text = (demo / "plugins.yaml").read_text()
    (demo / "plugins.yaml").write_text(text.replace("  echo:", "  echo:\n    enabled: false", 1))

    assert run("plugin", "lock", "echo", "--config", demo, "--json").json["changes"] == []

    assert "enabled: false" in (demo / ".checksums").read_text()


def test_plugin_lock_needs_names_or_all_and_a_seal(run: Run, demo: Path) -> None:
    assert run("plugin", "lock", "--config", demo).exit_code == 2
    assert run("plugin", "lock", "echo", "--all", "--config", demo).exit_code == 2
    assert run("plugin", "lock", "ecko", "--config", demo, "--json").json["code"] == "not_found"
    (demo / ".checksums").unlink()
    assert "config lock" in run("plugin", "lock", "echo", "--config", demo, "--json").json["hint"]
