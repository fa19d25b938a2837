"""The front of the command line: what is there, wrong usage, the version. `test_every_command` walks through all."""

import subprocess
import sys
from pathlib import Path

import pytest

from ductile.cli import NOUNS, SHORT_FORMS, SINGLE
from tests.cli.conftest import Run


def test_the_front_page_lists_every_noun(run: Run) -> None:
    """`ductile --help` says what there is."""
    answer = run("--help")

    assert all(f"\n  {noun} " in answer.stdout for noun in [*NOUNS, *SINGLE, *SHORT_FORMS, "version"])


def test_no_arguments_is_a_usage_error_with_the_help(run: Run) -> None:
    """Nothing asked, nothing done: exit 2, help on stderr."""
    answer = run()

    assert (answer.exit_code, answer.stdout) == (2, "")
    assert "Usage: ductile" in answer.stderr


@pytest.mark.parametrize("args", [("cofnig",), ("config", "chek"), ("config", "get"), ("config", "check", "--frob")])
def test_a_wrong_command_line_exits_2_with_a_hint(run: Run, args: tuple[str, ...]) -> None:
    """Text and JSON say the same."""
    text, as_json = run(*args), run(*args, "--json")

    assert text.exit_code == as_json.exit_code == as_json.json["exit_code"] == 2
    assert as_json.json["code"] == "usage"
    assert as_json.json["error"] in text.stderr
    assert "--help" in as_json.json["hint"]


def test_version_has_the_three_fields(run: Run) -> None:
    """Programs read version, commit and build_time."""
    answer = run("version", "--json")

    assert set(answer.json) == {"version", "commit", "build_time"}
    assert run("--version").stdout == run("version").stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("args", ["version", "version --json", "config chek", "api /healthz --body -"])
def test_a_closed_stdin_stdout_or_stderr_is_as_good_as_an_empty_one(args: str, closed: str) -> None:
    """Services and cron jobs may have none: the exit code is the same, and nothing breaks."""
    program = f"{sys.executable} -m ductile {args}"
    open_ones = subprocess.run(["sh", "-c", f"{program} </dev/null"], capture_output=True, check=False)
    answer = subprocess.run(["sh", "-c", f"{program} {closed}"], capture_output=True, check=False)

    assert answer.returncode == open_ones.returncode
    assert b"Traceback" not in answer.stderr


def in_no_directory(tmp_path: Path, *args: object) -> "subprocess.CompletedProcess[str]":
    """The command, run where a directory was."""
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    ductile = [sys.executable, "-m", "ductile", *map(str, args)]
    return subprocess.run(["sh", "-c", script, "sh", gone, *ductile], capture_output=True, text=True)


def test_whoever_names_everything_needs_no_working_directory(run: Run, tmp_path: Path) -> None:
    run("config", "init", "--config", tmp_path / "place")

    answer = in_no_directory(tmp_path, "pipeline", "list", "--config", tmp_path / "place")

    assert (answer.returncode, answer.stderr) == (0, "")


@pytest.mark.parametrize("args", [("job", "list", "--config", "here"), ("plugin", "new", "mine")])
def test_a_working_directory_that_is_gone_is_told(tmp_path: Path, args: tuple[str, ...]) -> None:
    answer = in_no_directory(tmp_path, *args)

    assert answer.returncode == 2
    assert answer.stderr.splitlines() == [
        "error: the working directory does not exist any more",
        "hint: change to one that does: cd DIR",
    ]
