"""Help that can be read: nothing is cut off, and nothing points to where it is not."""

import re
from collections.abc import Iterator

import click
import pytest

import ductile.cli
from ductile.cli.agents.describe import actions
from tests.cli.conftest import Run

ACTIONS = dict(actions(ductile.cli.ductile))


def nouns(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every group by its words, the first being nothing at all."""
    yield " ".join(path)
    context = click.Context(group)
    for name in group.list_commands(context):
        below = group.get_command(context, name)
        if isinstance(below, click.Group):
            yield from nouns(below, (*path, name))


@pytest.mark.parametrize("columns", ["80", "200"])
@pytest.mark.parametrize("noun", list(nouns(ductile.cli.ductile)))
def test_no_line_about_an_action_is_cut(noun: str, columns: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an action does is told to the end of its clause."""
    monkeypatch.setenv("COLUMNS", columns)
    lines = run(*noun.split(), "--help").stdout.splitlines()

    assert [line for line in lines if re.match(r"  .*(\.\.\.|…)$", line)] == []
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", ACTIONS)
def test_flags_point_to_nothing_below(name: str) -> None:
    """They are the last part of the help: what explains them stands above, or with them."""
    words = [option.help or "" for option in ACTIONS[name].params if isinstance(option, click.Option)]

    assert [text for text in words if "below" in text] == []
