"""`ductile config scope`: the API scopes of a token."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output
from ductile.cli.config.edit import apply_edit, edit_options, show_edited
from ductile.cli.config.token import split_scopes
from ductile.core.errors import UsageInvalid

if TYPE_CHECKING:
    from ductile.config.edit.staged_edit import Draft


@click.group("scope")
def scope() -> None:
    """Change and validate the API scopes of tokens."""


@scope.command("add")
@click.argument("token_name", metavar="TOKEN")
@click.argument("scopes")
@edit_options
def add(token_name: str, scopes: str, **params: Any) -> int:
    """Add scopes to a token. SCOPES is a comma-separated list.

    Example: ductile config scope add deploy jobs:ro,events:ro
    """
    return _change_scopes(
        token_name,
        params,
        lambda now: [*now, *(scope_name for scope_name in split_scopes(scopes) if scope_name not in now)],
    )


@scope.command("remove")
@click.argument("token_name", metavar="TOKEN")
@click.argument("scopes")
@edit_options
def remove(token_name: str, scopes: str, **params: Any) -> int:
    """Remove scopes from a token. SCOPES is a comma-separated list.

    Example: ductile config scope remove deploy plugin:rw
    """
    gone = split_scopes(scopes)

    def without(now: list[str]) -> list[str]:
        if absent := [scope_name for scope_name in gone if scope_name not in now]:
            hint = f"Its scopes: {', '.join(now) or 'none'}."
            raise UsageInvalid(f"token {token_name!r} does not have {', '.join(absent)}", hint=hint)
        return [scope_name for scope_name in now if scope_name not in gone]

    return _change_scopes(token_name, params, without)


@scope.command("set")
@click.argument("token_name", metavar="TOKEN")
@click.argument("scopes")
@edit_options
def set_scopes(token_name: str, scopes: str, **params: Any) -> int:
    """Replace the scopes of a token. SCOPES is a comma-separated list.

    Example: ductile config scope set deploy plugin:deploy:rw
    """
    return _change_scopes(token_name, params, lambda _: split_scopes(scopes))


def _change_scopes(name: str, params: dict[str, Any], update: Callable[[list[str]], list[str]]) -> int:
    from ductile.config.edit import token_edit

    scopes: list[str] = []

    def change(draft: "Draft") -> "Draft":
        before = token_edit.read_scopes(draft, name)
        scopes[:] = update(before)
        token_edit.require_known_scopes([scope_name for scope_name in scopes if scope_name not in before])
        return token_edit.set_scopes(draft, name, scopes)

    edited = apply_edit(params, change)
    return show_edited(edited, params, more={"token": name, "scopes": scopes})


@scope.command("validate")
@click.argument("name", metavar="SCOPE")
@options.as_json
def validate(name: str, as_json: bool) -> int:
    """Check whether a scope is valid and show what it includes. Exit 1 if it is invalid.

    Example: ductile config scope validate jobs:ro
    """
    from ductile.config.edit.token_edit import require_known_scopes
    from ductile.config.scopes import IMPLIED_SCOPES

    result: dict[str, Any] = {"scope": name, "valid": True, "details": ""}
    try:
        require_known_scopes([name])
        included = IMPLIED_SCOPES.get(name, ())
        result["details"] = "everything" if name == "*" else f"includes {', '.join(included)}" if included else "known"
    except UsageInvalid as error:
        result |= {"valid": False, "details": error.hint, "error": str(error)}
    output.show(result, as_json=as_json, human=_scope_lines)
    return 0 if result["valid"] else 1


def _scope_lines(result: dict[str, Any]) -> list[str]:
    if result["valid"]:
        return [f"{result['scope']}: valid ({result['details']})"]
    return [f"{result['error']}; {result['details']}"]
