"""`ductile config scope`: what a token may do over the API."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output
from ductile.cli.config.editing import carry_out, editing, show_edited
from ductile.cli.config.token import split_scopes
from ductile.core.errors import UsageInvalid

if TYPE_CHECKING:
    from ductile.config.edit.staged_edit import Draft


@click.group("scope")
def scope() -> None:
    """Change what a token may do over the API."""


@scope.command("add")
@click.argument("token_name", metavar="TOKEN")
@click.argument("scopes")
@editing
def add(token_name: str, scopes: str, **given: Any) -> int:
    """Let a token do more: SCOPES is a list with commas.

    Example: ductile config scope add deploy jobs:ro,events:ro
    """
    return _change_scopes(
        token_name, given, lambda now: [*now, *(one for one in split_scopes(scopes) if one not in now)]
    )


@scope.command("remove")
@click.argument("token_name", metavar="TOKEN")
@click.argument("scopes")
@editing
def remove(token_name: str, scopes: str, **given: Any) -> int:
    """Let a token do less: SCOPES is a list with commas.

    Example: ductile config scope remove deploy plugin:rw
    """
    gone = split_scopes(scopes)

    def without(now: list[str]) -> list[str]:
        if absent := [one for one in gone if one not in now]:
            has = f"it has {', '.join(now) or 'none'}"
            raise UsageInvalid(f"token {token_name!r} does not have {', '.join(absent)}", hint=has)
        return [one for one in now if one not in gone]

    return _change_scopes(token_name, given, without)


@scope.command("set")
@click.argument("token_name", metavar="TOKEN")
@click.argument("scopes")
@editing
def set_scopes(token_name: str, scopes: str, **given: Any) -> int:
    """Let a token do exactly this: SCOPES is a list with commas.

    Example: ductile config scope set deploy plugin:deploy:rw
    """
    return _change_scopes(token_name, given, lambda _: split_scopes(scopes))


def _change_scopes(name: str, given: dict[str, Any], wanted: Callable[[list[str]], list[str]]) -> int:
    from ductile.config.edit import token_edit

    scopes: list[str] = []

    def change(draft: "Draft") -> "Draft":
        before = token_edit.scopes_of(draft, name)
        scopes[:] = wanted(before)
        token_edit.require_scopes([one for one in scopes if one not in before])
        return token_edit.set_scopes(draft, name, scopes)

    edited = carry_out(given, change)
    return show_edited(edited, given, more={"token": name, "scopes": scopes})


@scope.command("validate")
@click.argument("wanted", metavar="SCOPE")
@options.as_json
def validate(wanted: str, as_json: bool) -> int:
    """Say whether a scope means anything, and what it includes. Exit 1 if it does not.

    Example: ductile config scope validate jobs:ro
    """
    from ductile.config.edit.token_edit import require_scopes
    from ductile.config.scopes import INCLUDED

    result: dict[str, Any] = {"scope": wanted, "valid": True, "details": ""}
    try:
        require_scopes([wanted])
        included = INCLUDED.get(wanted, ())
        result["details"] = (
            "everything" if wanted == "*" else f"includes {', '.join(included)}" if included else "known"
        )
    except UsageInvalid as error:
        result |= {"valid": False, "details": error.hint, "error": str(error)}
    output.show(result, as_json=as_json, human=_scope_lines)
    return 0 if result["valid"] else 1


def _scope_lines(result: dict[str, Any]) -> list[str]:
    if result["valid"]:
        return [f"{result['scope']}: valid ({result['details']})"]
    return [f"{result['error']}; {result['details']}"]
