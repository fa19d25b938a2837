"""The top level of the command line: help, usage errors, version, closed streams, missing working directory."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import ductile.cli
from ductile.cli import NOUNS, SHORT_FORMS, SINGLE
from ductile.cli.agents.describe import actions
from tests.cli.conftest import Run, failures

ACTIONS = dict(actions(ductile.cli.ductile))


def test_help_lists_every_command(run: Run) -> None:
    answer = run("--help")

    assert all(f"\n  {noun} " in answer.stdout for noun in [*NOUNS, *SINGLE, *SHORT_FORMS, "version"])


def test_no_arguments_prints_the_help_and_exits_2(run: Run) -> None:
    answer = run()

    assert (answer.exit_code, answer.stdout) == (2, "")
    assert "Usage: ductile" in answer.stderr


@pytest.mark.parametrize("args", [("cofnig",), ("config", "chek"), ("config", "get"), ("config", "check", "--frob")])
def test_an_invalid_command_line_exits_2_with_a_hint(run: Run, args: tuple[str, ...]) -> None:
    text, as_json = run(*args), run(*args, "--json")

    assert text.exit_code == as_json.exit_code == as_json.json["exit_code"] == 2
    assert as_json.json["code"] == "usage"
    assert as_json.json["error"] in text.stderr
    assert "--help" in as_json.json["hint"]


@pytest.mark.parametrize(
    ("words", "suggested"),
    [
        ("doctor", "Did you mean `ductile system doctor`?"),
        ("docter", "Did you mean `ductile system doctor`?"),
        ("job doctor", "Did you mean `ductile system doctor`?"),
        ("inspect", "`ductile job inspect`"),
        ("statsu", "Did you mean 'status'?"),
    ],
)
def test_an_action_without_its_noun_is_suggested_with_it(run: Run, words: str, suggested: str) -> None:
    answer = run(*words.split())

    assert answer.exit_code == 2
    assert suggested in answer.stderr


def test_version_has_the_three_fields(run: Run) -> None:
    answer = run("version", "--json")

    assert set(answer.json) == {"version", "commit", "build_time"}
    assert run("--version").stdout == run("version").stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("args", ["version", "version --json", "config chek", "api /healthz --body -"])
def test_closed_standard_streams_do_not_change_the_exit_code(args: str, closed: str) -> None:
    """Supervisors and cron may start commands without them."""
    program = f"{sys.executable} -m ductile {args}"
    open_ones = subprocess.run(["sh", "-c", f"{program} </dev/null"], capture_output=True, check=False)
    answer = subprocess.run(["sh", "-c", f"{program} {closed}"], capture_output=True, check=False)

    assert answer.returncode == open_ones.returncode
    assert b"Traceback" not in answer.stderr


def run_in_deleted_directory(tmp_path: Path, *args: object) -> "subprocess.CompletedProcess[str]":
    """Run the command in a directory that was deleted."""
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    command = [sys.executable, "-m", "ductile", *map(str, args)]
    return subprocess.run(["sh", "-c", script, "sh", gone, *command], capture_output=True, text=True)


def test_absolute_paths_need_no_working_directory(run: Run, tmp_path: Path) -> None:
    run("config", "init", "--config", tmp_path / "place")

    answer = run_in_deleted_directory(tmp_path, "pipeline", "list", "--config", tmp_path / "place")

    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize("args", [("job", "list", "--config", "here"), ("plugin", "new", "mine")])
def test_a_deleted_working_directory_is_an_error(tmp_path: Path, args: tuple[str, ...]) -> None:
    answer = run_in_deleted_directory(tmp_path, *args)

    assert answer.returncode == 2
    assert answer.stderr.splitlines() == [
        "error: the working directory no longer exists",
        "hint: Change to an existing directory.",
    ]


# ── help texts ────────────────────────────────────────────────────────────────────────────────────────────────────────


def groups(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield every group by its words; the first is the top level."""
    yield " ".join(path)
    context = click.Context(group)
    for name in group.list_commands(context):
        below = group.get_command(context, name)
        if isinstance(below, click.Group):
            yield from groups(below, (*path, name))


def test_the_list_of_nouns_has_the_first_sentence_of_their_help() -> None:
    """The list is a table, so that help imports no noun."""
    context = click.Context(ductile.cli.ductile)
    helps = {noun: getattr(ductile.cli.ductile.get_command(context, noun), "help", "") for noun in ductile.cli.NOUNS}

    assert [noun for noun, summary in ductile.cli.NOUNS.items() if not helps[noun].startswith(summary)] == []


def test_every_command_has_a_description() -> None:
    """Hidden ones too."""
    assert [name for name, command in commands(ductile.cli.ductile) if not (command.help or "").strip()] == []


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Yield every command below a group, including hidden ones, by its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield " ".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


@pytest.mark.parametrize("columns", ["80", "200"])
def test_no_line_about_an_action_is_truncated(columns: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines wrap at 80 columns instead."""
    monkeypatch.setenv("COLUMNS", columns)

    def check(group: str) -> None:
        lines = run(*group.split(), "--help").stdout.splitlines()
        assert [line for line in lines if re.match(r"  .*(\.\.\.|…)$", line)] == []
        assert max(map(len, lines)) <= 80

    assert failures(groups(ductile.cli.ductile), check) == []


def test_no_option_refers_to_text_below_it() -> None:
    """Options are the last part of the help."""
    helps = {
        f"{name} {option.name}": option.help or ""
        for name, command in ACTIONS.items()
        for option in command.params
        if isinstance(option, click.Option)
    }

    assert [name for name, text in helps.items() if "below" in text] == []
