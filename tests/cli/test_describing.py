"""What programs are told about the commands: one page, one value, or one command of it."""

import re
from pathlib import Path

import click
import pytest

import ductile.cli
from ductile.cli.agents.describe import actions
from tests.cli.conftest import Run

ACTIONS = dict(actions(ductile.cli.ductile))
AGENTS = Path(__file__).parents[2] / "docs" / "agents.md"
SELDOM = ("config", "pipeline", "plugin", "webhook")
"""Nouns that are about files of this machine; what of them asks the service is said with each command."""


def flags(command: click.Command) -> set[str]:
    return {flag for parameter in command.params for flag in parameter.opts}


def test_the_skills_page_is_markdown(run: Run) -> None:
    """Headings, lists and paragraphs stand at the margin: what is set in by four is a block of code to a reader."""
    lines = run("skills").stdout.splitlines()

    assert [line for line in lines if line.startswith("    ")] == []
    assert {"# How to work with it", "# Rules", "# Commands", "# Plugins"} <= {line.removeprefix("#") for line in lines}


def test_what_skills_call_a_change_can_be_tried_first(run: Run) -> None:
    """The page says `mut=1` and "try it with --dry-run": every command that it marks so has the flag."""
    lines = [line for line in run("skills").stdout.splitlines() if " effect=" in line]
    changing = [line for line in lines if " mut=1 " in line]

    assert len(lines) == len(ACTIONS)
    assert any(line.startswith("- `job cancel ") for line in changing)
    assert [line for line in changing if not re.search(r' flags="[^"]*--dry-run\b', line)] == []


def test_skills_tell_which_commands_can_be_used_from_elsewhere(run: Run) -> None:
    """`remote=1`: it takes --api-url."""
    lines = [line for line in run("skills").stdout.splitlines() if " effect=" in line]
    remote = [line for line in lines if " remote=1 " in line]

    assert [line for line in lines if line not in remote and " remote=0 " not in line] == []
    assert len(remote) == sum("--api-url" in flags(command) for command in ACTIONS.values())
    assert not any(line.startswith("- `job why ") for line in remote)


@pytest.mark.parametrize("name", ["pipeline dry-run", "plugin check", "plugin test"])
def test_a_rehearsal_is_no_change(name: str, run: Run) -> None:
    """It records nothing; that plugins run, and may act, is in its side effect."""
    (line,) = [line for line in run("skills").stdout.splitlines() if line.startswith(f"- `{name} ")]

    assert " tier=WRITE mut=0 effect=tries_plugins " in line


def test_one_command_can_be_described_alone(run: Run) -> None:
    """The same words as in the whole, and little else to read."""
    whole = run("system", "describe", "--json")
    one = run("system", "describe", "job", "why", "--json")

    assert one.json["commands"] == [told for told in whole.json["commands"] if told["command"] == "job why"]
    assert set(one.json) == {"version", "commands", "side_effects"}
    assert len(one.stdout) < len(whole.stdout) / 20
    assert "job why" in run("system", "describe", "job", "why").stdout


@pytest.mark.parametrize("words", [["job"], ["config", "token"]])
def test_a_noun_can_be_described_alone(words: list[str], run: Run) -> None:
    """All its commands."""
    told = run("system", "describe", *words, "--json").json["commands"]

    assert [one["command"] for one in told] == [name for name in ACTIONS if name.split()[: len(words)] == words]


@pytest.mark.parametrize(("words", "meant"), [(["jbo"], "job"), (["job", "whi"], "job why"), (["job", "why", "x"], "")])
def test_a_command_that_is_not_there_is_not_described(words: list[str], meant: str, run: Run) -> None:
    """Not found, with what may be meant and how to see them all."""
    answer = run("system", "describe", *words, "--json")

    assert (answer.exit_code, answer.json["code"]) == (1, "not_found")
    assert f"(did you mean '{meant}'?)" in answer.json["error"] or not meant
    assert "ductile system describe" in answer.json["hint"]


def test_agents_are_told_which_commands_work_on_this_machine_alone() -> None:
    """docs/agents.md has every command about jobs and the service that takes no --api-url, and none that does."""
    chapter = AGENTS.read_text().partition("### From elsewhere\n")[2].partition("\n## ")[0]
    told = {name for name in re.findall(r"`([a-z-]+(?: [a-z-]+)+)`", chapter.partition("|---|")[2]) if name in ACTIONS}
    local = {name for name, command in ACTIONS.items() if "--api-url" not in flags(command)}

    assert {"job why", "queue list", "system status"} <= told
    assert told == {name for name in local if " " in name and name.partition(" ")[0] not in SELDOM}


def test_the_routes_that_agents_are_sent_to_exist() -> None:
    """Each route of that table is one of docs/api.md, which the service is held to."""
    chapter = AGENTS.read_text().partition("### From elsewhere\n")[2].partition("\n## ")[0]
    routes = re.findall(r"`(GET /[^`?]*)", chapter)
    api = (AGENTS.parent / "api.md").read_text()

    assert len(routes) > 5
    assert [route for route in routes if f"`{route}`" not in api] == []
