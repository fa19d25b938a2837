"""Rules every command keeps: help with an example, JSON errors, exit codes, no traceback."""

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ductile.cli import NOUNS, ductile, output
from tests.cli.conftest import Run


def actions(
    group: click.Group = ductile, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from actions(command, (*path, name))
        elif command is not None:
            yield (*path, name), command


ACTIONS = dict(actions())
WORDS = sorted(
    {word for path in ACTIONS for word in path}
    | {option for c in ACTIONS.values() for p in c.params for option in p.opts}
)


@pytest.mark.parametrize("path", ACTIONS, ids=" ".join)
def test_every_action_has_help_with_an_example(path: tuple[str, ...], run: Run) -> None:
    """A person or an agent can learn each command from its own help."""
    answer = run(*path, "--help")

    assert answer.exit_code == 0
    assert f"Example: ductile {' '.join(path)}" in " ".join(answer.stdout.split())


@pytest.mark.parametrize("path", ACTIONS, ids=" ".join)
def test_every_action_can_speak_json(path: tuple[str, ...]) -> None:
    """`--json` on everything that prints a result."""
    assert "--json" in [option for parameter in ACTIONS[path].params for option in parameter.opts]


def test_the_front_page_lists_every_noun(run: Run) -> None:
    """`ductile --help` says what there is."""
    answer = run("--help")

    assert all(f"\n  {noun} " in answer.stdout for noun in [*NOUNS, "version"])


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


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(args=st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=8), st.just("/nonexistent")), max_size=6))
def test_no_argument_list_gives_a_traceback(
    args: list[str], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is typed, the answer is an exit code of ours."""
    monkeypatch.chdir(tmp_path)
    words = [arg for arg in args if "\0" not in arg]

    assert output.run(ductile, words) in (0, 1, 2, 3, 69, 75, 77, 78)
