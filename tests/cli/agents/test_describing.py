"""`system describe` and `skills`, and the pages of docs/ about them."""

import re
from pathlib import Path

import click
import pytest

import ductile.cli
from ductile.cli.agents.describe import actions
from tests.cli.conftest import Run

ACTIONS = dict(actions(ductile.cli.ductile))
AGENTS = Path(__file__).parents[3] / "docs" / "agents.md"
LOCAL_NOUNS = ("config", "pipeline", "plugin", "webhook")
"""Nouns that work on local files; the table in docs/agents.md omits them."""


def flags(command: click.Command) -> set[str]:
    return {flag for parameter in command.params for flag in parameter.opts}


def test_skills_prints_markdown(run: Run) -> None:
    """No line is indented by four spaces, which would be a code block."""
    lines = run("skills").stdout.splitlines()

    assert [line for line in lines if line.startswith("    ")] == []
    assert {"# Workflow", "# Rules", "# Commands", "# Plugins"} <= {line.removeprefix("#") for line in lines}


def test_commands_with_mut_1_have_a_dry_run(run: Run) -> None:
    """Except the commands of a worker, which cannot try to claim a message."""
    lines = [line for line in run("skills").stdout.splitlines() if " effect=" in line]
    changing = [line for line in lines if " mut=1 " in line and " effect=handles_messages " not in line]

    assert len(lines) == len(ACTIONS)
    assert any(line.startswith("- `job cancel ") for line in changing)
    assert [line for line in changing if not re.search(r' flags="[^"]*--dry-run\b', line)] == []


def test_remote_1_means_that_a_command_has_api_url(run: Run) -> None:
    lines = [line for line in run("skills").stdout.splitlines() if " effect=" in line]
    remote = [line for line in lines if " remote=1 " in line]

    assert [line for line in lines if line not in remote and " remote=0 " not in line] == []
    assert len(remote) == sum("--api-url" in flags(command) for command in ACTIONS.values())
    assert not any(line.startswith("- `job why ") for line in remote)


@pytest.mark.parametrize("name", ["pipeline dry-run", "plugin check", "plugin test"])
def test_commands_that_only_try_plugins_are_no_change(name: str, run: Run) -> None:
    (line,) = [line for line in run("skills").stdout.splitlines() if line.startswith(f"- `{name} ")]

    assert " tier=WRITE mut=0 effect=tries_plugins " in line


def test_describe_selects_one_command(run: Run) -> None:
    everything = run("system", "describe", "--json")
    one = run("system", "describe", "job", "why", "--json")

    assert one.json["commands"] == [
        described for described in everything.json["commands"] if described["command"] == "job why"
    ]
    assert set(one.json) == {"version", "commands", "side_effects"}
    assert len(one.stdout) < len(everything.stdout) / 20
    assert "job why" in run("system", "describe", "job", "why").stdout


@pytest.mark.parametrize("words", [["job"], ["config", "token"]])
def test_describe_selects_the_commands_of_a_noun(words: list[str], run: Run) -> None:
    described = run("system", "describe", *words, "--json").json["commands"]

    assert [one["command"] for one in described] == [name for name in ACTIONS if name.split()[: len(words)] == words]


@pytest.mark.parametrize(("words", "meant"), [(["jbo"], "job"), (["job", "whi"], "job why"), (["job", "why", "x"], "")])
def test_describe_of_an_unknown_command_is_not_found(words: list[str], meant: str, run: Run) -> None:
    answer = run("system", "describe", *words, "--json")

    assert (answer.exit_code, answer.json["code"]) == (1, "not_found")
    assert f"(did you mean '{meant}'?)" in answer.json["error"] or not meant
    assert "ductile system describe" in answer.json["hint"]


def test_docs_list_the_commands_without_api_url() -> None:
    """docs/agents.md has every such command about jobs and the service, and no other."""
    chapter = AGENTS.read_text().partition("### From elsewhere\n")[2].partition("\n## ")[0]
    described = {
        name for name in re.findall(r"`([a-z-]+(?: [a-z-]+)+)`", chapter.partition("|---|")[2]) if name in ACTIONS
    }
    local = {name for name, command in ACTIONS.items() if "--api-url" not in flags(command)}

    assert {"job why", "queue list", "system status"} <= described
    assert described == {name for name in local if " " in name and name.partition(" ")[0] not in LOCAL_NOUNS}


def test_routes_in_the_agents_page_exist() -> None:
    """docs/api.md has each of them."""
    chapter = AGENTS.read_text().partition("### From elsewhere\n")[2].partition("\n## ")[0]
    routes = re.findall(r"`(GET /[^`?]*)", chapter)
    api = (AGENTS.parent / "api.md").read_text()

    assert len(routes) > 5
    assert [route for route in routes if f"`{route}`" not in api] == []
