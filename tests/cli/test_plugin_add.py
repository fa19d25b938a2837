"""Plugins that come with Ductile, brought into a configuration."""

import shlex
import stat
import subprocess
from pathlib import Path

import pytest

from ductile.config.scaffold import bundled_plugins
from tests.cli.conftest import Run


def test_without_a_name_there_is_a_list_of_all_that_come_along(run: Run) -> None:
    """It needs no configuration."""
    answer = run("plugin", "add", "--json")
    folders = {path.parent.name for path in bundled_plugins().glob("*/manifest.yaml")}
    assert {one["name"] for one in answer.json["bundled"]} == folders
    assert all(one["description"] and one["commands"] for one in answer.json["bundled"])


def test_a_plugin_is_copied_and_can_be_used_at_once(run: Run, demo: Path) -> None:
    """Private, complete, and found by the next look."""
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


BUNDLED = sorted(path.parent.name for path in bundled_plugins().glob("*/manifest.yaml"))


@pytest.mark.parametrize("name", [name for name in BUNDLED if name not in ("echo", "github_events")])
def test_what_comes_next_can_be_done_as_it_is_said(run: Run, demo: Path, name: str) -> None:
    """Also for one that has to be built, or cannot do without a configuration: its entry names every key."""
    *build, command, reload = run("plugin", "add", name, "--config", demo, "--json").json["next"]
    for line in build:
        subprocess.run(shlex.split(line), check=True, capture_output=True)

    answer = run(*shlex.split(command)[1:], "--config", demo, "--json")

    assert (answer.exit_code, answer.json["status"]) == (0, "changed"), answer.stdout
    assert reload == "ductile system reload"
    shown = run("plugin", "list", "--config", demo, "--json").json["plugins"]
    assert {one["name"]: one["state"] for one in shown}[name] == "enabled"


def test_a_dry_run_copies_nothing(run: Run, demo: Path) -> None:
    """It says where the copy would go."""
    answer = run("plugin", "add", "switch", "--config", demo, "--dry-run")
    assert "would copy switch" in answer.stdout
    assert not (demo / "plugins" / "switch").exists()


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_what_is_there_already_is_not_touched(run: Run, demo: Path, dry_run: tuple[str, ...]) -> None:
    """The copy belongs to the operator from the first moment on."""
    mine = demo / "plugins" / "echo" / "run.sh"
    mine.write_text("mine")
    answer = run("plugin", "add", "echo", "--config", demo, *dry_run)
    assert answer.exit_code == 2
    assert "is there already" in answer.stderr
    assert mine.read_text() == "mine"


def test_an_unknown_name_is_told_with_a_guess(run: Run, demo: Path) -> None:
    """And with the way to one's own."""
    answer = run("plugin", "add", "swich", "--config", demo, "--json")
    assert (answer.exit_code, answer.json["code"]) == (1, "not_found")
    assert "switch" in answer.json["error"]
