"""Commands that the documentation names, also in its sentences, where nothing is run: they exist, with their flags."""

import re
from pathlib import Path

import click
import pytest

from ductile.cli import ductile

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("plugins/**/*.md")])
COMMAND = re.compile(r"(?:^|[`$(|;&] ?)ductile ((?:[a-z-]+ ?)+[^`|;&#)\n]*)", re.MULTILINE)


def unknown(words: list[str], command: click.Command = ductile) -> str | None:
    """What the command line does not know of these words; None if it knows all."""
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        return unknown(words[1:], found) if found else words[0]
    known = {flag for parameter in command.params for flag in parameter.opts} | {"--help"}
    flags = [word.split("=")[0].rstrip(",.:") for word in words if re.match("--[a-z]", word)]
    return next((flag for flag in flags if flag not in known), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_a_page_names_exists(page: Path) -> None:
    """Nobody types in vain what a page tells."""
    named = COMMAND.findall(page.read_text())

    assert {told: word for told in named if (word := unknown(told.split()))} == {}


@pytest.mark.parametrize("told", ["frob", "job frob", "job list --frob", "config plugin frob x", "queue frob"])
def test_what_does_not_exist_is_found(told: str) -> None:
    """A noun, an action or a flag."""
    assert "frob" in (unknown(told.split()) or "")
