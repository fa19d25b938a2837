"""`ductile plugin add`: copy bundled plugins into a configuration."""

import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from ductile.config.scaffold import bundled_plugins_dir
from tests.cli.conftest import Run


def test_plugin_add_without_a_name_lists_the_bundled_plugins(run: Run) -> None:
    """It needs no configuration."""
    answer = run("plugin", "add", "--json")
    folders = {path.parent.name for path in bundled_plugins_dir().glob("*/manifest.yaml")}
    assert {one["name"] for one in answer.json["bundled"]} == folders
    assert all(one["description"] and one["commands"] for one in answer.json["bundled"])


def test_a_copied_plugin_is_private_and_usable(run: Run, demo: Path) -> None:
    answer = run("plugin", "add", "py-greet", "--config", demo, "--json")
    copy = demo / "plugins" / "py-greet"
    assert answer.json == {
        "plugin": "py-greet",
        "path": str(copy),
        "readme": str(copy / "README.md"),
        "dry_run": False,
        "next": ["ductile config plugin set py-greet enabled true", "ductile system reload"],
    }
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in copy.rglob("*")} == {0}
    shown = run("plugin", "list", "--config", demo, "--json").json["plugins"]
    assert {one["name"]: one["state"] for one in shown}["py-greet"] == "unconfigured"


BUNDLED = sorted(path.parent.name for path in bundled_plugins_dir().glob("*/manifest.yaml"))


@pytest.mark.parametrize("name", [name for name in BUNDLED if name not in ("echo", "github_events")])
def test_the_suggested_commands_work(run: Run, demo: Path, name: str) -> None:
    """Also for plugins that need to be built or have required keys."""
    *build, command, reload = run("plugin", "add", name, "--config", demo, "--json").json["next"]
    for line in build:
        subprocess.run(shlex.split(line), check=True, capture_output=True)

    answer = run(*shlex.split(command)[1:], "--config", demo, "--json")

    assert (answer.exit_code, answer.json["status"]) == (0, "changed"), answer.stdout
    assert reload == "ductile system reload"
    shown = run("plugin", "list", "--config", demo, "--json").json["plugins"]
    assert {one["name"]: one["state"] for one in shown}[name] == "enabled"


def test_a_dry_run_copies_nothing(run: Run, demo: Path) -> None:
    answer = run("plugin", "add", "switch", "--config", demo, "--dry-run")
    assert "would copy switch" in answer.stdout
    assert not (demo / "plugins" / "switch").exists()


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_an_existing_plugin_is_not_replaced(run: Run, demo: Path, dry_run: tuple[str, ...]) -> None:
    mine = demo / "plugins" / "echo" / "run.sh"
    mine.write_text("mine")
    answer = run("plugin", "add", "echo", "--config", demo, *dry_run)
    assert answer.exit_code == 2
    assert "already exists" in answer.stderr
    assert mine.read_text() == "mine"


def test_an_unknown_bundled_plugin_gets_a_suggestion(run: Run, demo: Path) -> None:
    answer = run("plugin", "add", "swich", "--config", demo, "--json")
    assert (answer.exit_code, answer.json["code"]) == (1, "not_found")
    assert "switch" in answer.json["error"]
