"""Every command and flag in the documentation exists, also in prose that is not executed."""

import re
from pathlib import Path

import click
import pytest

from ductile.cli import ductile

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("plugins/**/*.md")])
COMMAND = re.compile(r"(?:^|[`$(|;&] ?)ductile ((?:[a-z-]+ ?)+[^`|;&#)\n]*)", re.MULTILINE)


def unknown_word(words: list[str], command: click.Command = ductile) -> str | None:
    """Return the first unknown command or flag; None if all are known."""
    if isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(click.Context(command), words[0])
        return unknown_word(words[1:], found) if found else words[0]
    known = {flag for parameter in command.params for flag in parameter.opts} | {"--help"}
    flags = [word.split("=")[0].rstrip(",.:") for word in words if re.match("--[a-z]", word)]
    return next((flag for flag in flags if flag not in known), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_in_a_page_exists(page: Path) -> None:
    named = COMMAND.findall(page.read_text())

    assert {text: word for text in named if (word := unknown_word(text.split()))} == {}


@pytest.mark.parametrize("text", ["frob", "job frob", "job list --frob", "config plugin frob x", "queue frob"])
def test_an_unknown_noun_action_or_flag_is_found(text: str) -> None:
    assert "frob" in (unknown_word(text.split()) or "")
