"""`ductile config`: what it prints, what it changes and how it exits."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_init_makes_a_configuration_that_passes_its_own_check(run: Run, demo: Path) -> None:
    """The demo is sealed, private and free of complaints."""
    answer = run("config", "check", "--strict", "--config", demo)

    assert (answer.exit_code, answer.stdout) == (0, "configuration is valid: no errors, no warnings\n")
    assert mode_of(demo) == 0o700
    assert {mode_of(path) for path in demo.iterdir() if path.is_file()} == {0o600}


def test_init_without_demo_is_valid_too(run: Run, tmp_path: Path) -> None:
    """An empty start is a valid start."""
    assert run("config", "init", "--config-dir", tmp_path / "new").exit_code == 0

    assert run("config", "check", "--config", tmp_path / "new").exit_code == 0


def test_init_uses_the_directory_of_the_environment(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$DUCTILE_CONFIG_DIR says where, for making and for finding."""
    monkeypatch.setenv("DUCTILE_CONFIG_DIR", str(tmp_path / "here"))

    assert run("config", "init").exit_code == 0
    assert (tmp_path / "here" / "config.yaml").exists()
    assert "env:DUCTILE_CONFIG_DIR" in run("config", "check", "-v").stderr


def test_init_never_replaces_a_configuration_unasked(run: Run, demo: Path) -> None:
    """What an operator wrote is replaced only with --force."""
    (demo / "config.yaml").write_text("# mine\n")

    answer = run("config", "init", "--config-dir", demo, "--json")

    assert answer.exit_code == 2
    assert "--force" in answer.json["hint"]
    assert (demo / "config.yaml").read_text() == "# mine\n"
    assert run("config", "init", "--config-dir", demo, "--force").exit_code == 0
    assert "include:" in (demo / "config.yaml").read_text()


def test_init_dry_run_makes_nothing(run: Run, tmp_path: Path) -> None:
    """--dry-run lists the files and leaves the disk alone."""
    answer = run("config", "init", "--demo", "--dry-run", "--config-dir", tmp_path / "new", "--json")

    assert answer.exit_code == 0
    assert "config.yaml" in answer.json["files"]
    assert answer.json["token"] is None
    assert not (tmp_path / "new").exists()


def test_init_shows_the_token_that_the_demo_uses(run: Run, tmp_path: Path) -> None:
    """The token is printed once and is the one in .env; each demo has its own."""
    first = run("config", "init", "--demo", "--config-dir", tmp_path / "a", "--json").json["token"]
    second = run("config", "init", "--demo", "--config-dir", tmp_path / "b", "--json").json["token"]

    assert first in (tmp_path / "a" / ".env").read_text()
    assert first != second


def test_check_tells_every_mistake_with_its_line(run: Run, demo: Path) -> None:
    """All complaints at once: file, line, path, what is wrong."""
    (demo / "plugins.yaml").write_text("plugins:\n  echo:\n    enabeld: true\n    parallelism: none\n")

    answer = run("config", "check", "--config", demo)

    assert answer.exit_code == 78
    assert f"{demo}/plugins.yaml:3: plugins.echo.enabeld: unknown key (did you mean 'enabled'?)" in answer.stdout
    assert f"{demo}/plugins.yaml:4: plugins.echo.parallelism: 'none' is not a whole number" in answer.stdout
    assert answer.stdout.endswith("configuration is invalid: 2 errors, no warnings\n")


def test_check_as_json_has_the_report_and_the_error(run: Run, demo: Path) -> None:
    """Programs get the complaints as objects, next to the error every failing command has."""
    (demo / "plugins.yaml").write_text("plugins:\n  echo:\n    config: 5\n")

    answer = run("config", "check", "--config", demo, "--json")

    assert answer.exit_code == answer.json["exit_code"] == 78
    assert answer.json["valid"] is False
    assert answer.json["code"] == "config_invalid"
    (complaint,) = answer.json["errors"]
    assert complaint["field"] == "plugins.echo.config"
    assert (complaint["file"], complaint["line"]) == (str(demo / "plugins.yaml"), 3)


def test_check_exits_3_for_warnings_only_when_asked(run: Run, demo: Path) -> None:
    """A warning is no failure, unless --strict says so."""
    with (demo / "plugins.yaml").open("a") as plugins:
        plugins.write("    schedules:\n      - every: 5s\n")
    run("config", "lock", "--config", demo)

    assert run("config", "check", "--config", demo).exit_code == 0
    answer = run("config", "check", "--config", demo, "--strict", "--json")
    assert answer.exit_code == 3
    assert answer.json["valid"] is True
    assert [warning["category"] for warning in answer.json["warnings"]] == ["schedule"]


def test_check_refuses_a_changed_high_tier_file(run: Run, demo: Path) -> None:
    """Who may come in is decided by sealed bytes only; the way out is named."""
    with (demo / "tokens.yaml").open("a") as tokens:
        tokens.write("# changed\n")

    answer = run("config", "check", "--config", demo, "--json")

    assert answer.exit_code == 78
    assert answer.json["code"] == "integrity_broken"
    assert "config lock" in answer.json["hint"]
    assert run("config", "lock", "--config", demo).exit_code == 0
    assert run("config", "check", "--config", demo).exit_code == 0


def test_lock_dry_run_shows_what_would_change_and_changes_nothing(run: Run, demo: Path) -> None:
    """`+` added, `-` gone, `~` changed; the seal stays as it was."""
    before = (demo / ".checksums").read_bytes()
    (demo / "plugins" / "echo" / "helper.sh").write_text("true\n")
    with (demo / "plugins.yaml").open("a") as plugins:
        plugins.write("# changed\n")

    answer = run("config", "lock", "--dry-run", "--config", demo, "--json")

    assert answer.exit_code == 0
    assert answer.json["changes"] == [f"~ {demo}/plugins.yaml", "~ plugin echo"]
    assert (demo / ".checksums").read_bytes() == before


def test_lock_refuses_a_plugin_that_is_not_there(run: Run, demo: Path) -> None:
    """A seal names every configured plugin; one that is missing stops it and leaves the seal alone."""
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
def test_show_narrows_to_an_entity(run: Run, demo: Path, entity: str, expected: dict[str, object]) -> None:
    """A section, one plugin, or all of them."""
    answer = run("config", "show", entity, "--config", demo, "--json")

    assert answer.exit_code == 0
    for key in expected:
        assert key in answer.json


def test_show_and_get_never_print_a_secret(run: Run, demo: Path) -> None:
    """Tokens show as ***, in every command that reads the configuration."""
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
def test_get_prints_one_value(run: Run, demo: Path, path: str, printed: str) -> None:
    """The effective value, defaults included, as plain text."""
    answer = run("config", "get", path, "--config", demo)

    assert (answer.exit_code, answer.stdout.rpartition("/")[2]) == (0, printed)


@pytest.mark.parametrize("path", ["plugins.nope", "service.name.x", "include[99]", "api.auth.tokens.x", "."])
def test_get_of_an_unknown_path_says_what_is_known(run: Run, demo: Path, path: str) -> None:
    """Exit 1, not_found, with a hint."""
    answer = run("config", "get", path, "--config", demo, "--json")

    assert answer.exit_code == 1
    assert answer.json["code"] == "not_found"
    assert answer.json["hint"]


def test_schema_is_json_schema(run: Run) -> None:
    """`config schema` needs no configuration and prints a schema with descriptions."""
    answer = run("config", "schema")

    assert answer.json["$schema"].startswith("https://json-schema.org/")
    assert answer.json["properties"]["plugins"]["description"]


def test_no_configuration_is_one_clear_error(run: Run) -> None:
    """Where it was looked for, and how to make one."""
    answer = run("config", "check", "--json")

    assert answer.exit_code == 78
    assert answer.json["code"] == "config_missing"
    assert "config init" in answer.json["hint"]


def test_config_and_config_dir_together_are_refused(run: Run, demo: Path) -> None:
    """Two names for one thing are one name too many."""
    answer = run("config", "check", "--config", demo, "--config-dir", demo)

    assert answer.exit_code == 2
    assert "give one of them" in answer.stderr


def test_a_file_is_as_good_as_its_directory(run: Run, demo: Path) -> None:
    """--config takes either."""
    assert run("config", "check", "--config", demo / "config.yaml").exit_code == 0


def test_plugin_list_shows_bad_plugins_with_their_reason(run: Run, demo: Path) -> None:
    """One bad plugin never hides the others."""
    bad = demo / "plugins" / "bad"
    bad.mkdir(mode=0o700)
    (bad / "manifest.yaml").write_text("name: bad\n")

    answer = run("plugin", "list", "--config", demo, "--json")

    rows = {row["name"]: row for row in answer.json["plugins"]}
    assert rows["echo"]["state"] == "enabled"
    assert rows["bad"]["state"] == "rejected"
    assert "manifest_spec" in rows["bad"]["reason"]
    assert "manifest_spec" in run("plugin", "show", "bad", "--config", demo).stdout


def test_plugin_show_names_commands_and_where_they_come_from(run: Run, demo: Path) -> None:
    """What a person needs to run it: commands, configuration keys, state, path."""
    answer = run("plugin", "show", "echo", "--config", demo)

    assert answer.exit_code == 0
    for expected in ("poll", "handle", "health", "message", str(demo / "plugins" / "echo")):
        assert expected in answer.stdout


def test_the_result_of_a_pipe_that_closes_is_no_traceback(demo: Path) -> None:
    """`ductile … | head -1` ends quietly."""
    script = f"set -o pipefail; {sys.executable} -m ductile config show --config {demo} | head -1"

    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)

    assert (done.stdout, done.stderr) == ("include:\n", "")


def test_plugin_lock_approves_plugins_and_nothing_else(run: Run, demo: Path) -> None:
    """A changed plugin is approved by name; a changed file of the configuration stays unapproved."""
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


def test_switching_a_plugin_is_no_change_of_its_files(run: Run, demo: Path) -> None:
    """`sealed ~ plugin` is for the alarming: other bytes than those approved."""
    for enabled in ("false", "true"):
        switched = run("config", "plugin", "set", "echo", "enabled", enabled, "--config", demo, "--json")
        assert switched.json["sealed"] == [f"~ {demo}/plugins.yaml"]
    with (demo / "plugins" / "echo" / "README.md").open("a") as readme:
        readme.write("changed\n")

    switched = run("config", "plugin", "set", "echo", "enabled", "false", "--config", demo, "--json")

    assert switched.json["sealed"] == [f"~ {demo}/plugins.yaml", "~ plugin echo"]


def test_the_seal_knows_that_a_plugin_was_switched_by_hand(run: Run, demo: Path) -> None:
    """Nothing about it is news, and yet it is written down."""
    text = (demo / "plugins.yaml").read_text()
    (demo / "plugins.yaml").write_text(text.replace("  echo:", "  echo:\n    enabled: false", 1))

    assert run("plugin", "lock", "echo", "--config", demo, "--json").json["changes"] == []

    assert "enabled: false" in (demo / ".checksums").read_text()


def test_plugin_lock_needs_names_or_all_and_a_seal(run: Run, demo: Path) -> None:
    """What would be approved is said, never guessed."""
    assert run("plugin", "lock", "--config", demo).exit_code == 2
    assert run("plugin", "lock", "echo", "--all", "--config", demo).exit_code == 2
    assert run("plugin", "lock", "ecko", "--config", demo, "--json").json["code"] == "not_found"
    (demo / ".checksums").unlink()
    assert "config lock" in run("plugin", "lock", "echo", "--config", demo, "--json").json["hint"]
