"""`ductile config token`: named secrets, and the keys of those who call the API."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output
from ductile.cli.config.editing import carry_out, draft_of, editing, show_edited
from ductile.core.errors import UsageInvalid

if TYPE_CHECKING:
    from ductile.config.edit.staged_edit import Draft
    from ductile.config.edit.token_edit import NewToken

REDACTED = "[redacted]"

form = click.option("--format", "form", type=click.Choice(["human", "json"]), help="The same as --json.")


@click.group("token")
def token() -> None:
    """Make, list, look at and delete the tokens of tokens.yaml."""


@token.command("create")
@click.option("--name", required=True, help="What `secret_ref` and people call it.")
@click.option("--scopes", help="What it may do over the API, such as plugin:ro,jobs:ro. Without: a secret only.")
@click.option("--scopes-file", type=click.Path(path_type=Path), help="The same from a file; - is stdin.")
@click.option("--description", default="", help="What it is for.")
@form
@editing
def create(
    name: str, scopes: str | None, scopes_file: Path | None, description: str, form: str | None, **given: Any
) -> int:
    """Make a token with a fresh key, which is printed this once. tokens.yaml gets ${NAME_TOKEN}, not the key.

    The key is added to the .env file of the configuration, if `environment_vars.include` names one; otherwise set the
    variable for the service yourself.

    Example: ductile config token create --name deploy --scopes plugin:rw,jobs:ro
    """
    from ductile.config.edit import token_edit

    given["as_json"] = given["as_json"] or form == "json"
    wanted = _given_scopes(scopes, scopes_file)
    token_edit.require_scopes(wanted)
    made: list[NewToken] = []

    def change(draft: "Draft") -> "Draft":
        draft, new = token_edit.create(draft, name, wanted, description=description, now=datetime.now(UTC))
        made.append(new)
        return draft

    edited = carry_out(given, change)
    key = made[0].key if not edited.dry_run else None
    more = {
        "status": "planned" if edited.dry_run else "created",
        "token": name,
        "token_key": key,
        "env_var": made[0].env_var,
        "stored_in": str(made[0].stored_in) if made[0].stored_in else None,
        "hint": _where_the_key_goes(made[0]),
    }
    lines = [f"key (shown only now): {key}"] if key else []
    return show_edited(edited, given, more=more, lines=[*lines, str(more["hint"])])


def _where_the_key_goes(new: "NewToken") -> str:
    if new.key is None:
        return f"its key is what {new.env_var} holds already"
    if new.stored_in is not None:
        return f"the key is kept in {new.stored_in} as {new.env_var}"
    return f"set {new.env_var} to the key for the service, in its environment or a file of environment_vars.include"


def _given_scopes(csv: str | None, file: Path | None) -> list[str]:
    if csv is not None and file is not None:
        raise UsageInvalid("--scopes and --scopes-file say the same", hint="give one of them")
    if file is None:
        return split_scopes(csv or "")
    from ductile.config.scopes import MAX_SCOPE_BYTES
    from ductile.core import files
    from ductile.core.formats import strict_json

    try:
        content = (
            sys.stdin.buffer.read(MAX_SCOPE_BYTES)
            if str(file) == "-"
            else files.read_regular(file, max_bytes=MAX_SCOPE_BYTES, follow_symlinks=True).content
        )
    except files.FileRefused as error:
        raise UsageInvalid(str(error), hint="--scopes-file names a file with scopes; - is stdin") from error
    text = content.decode("utf-8", "replace").strip()
    if not text.startswith(("{", "[")):
        return split_scopes(text.replace("\n", ","))
    data = strict_json.loads(content, source=str(file))
    scopes = data.get("scopes") if isinstance(data, dict) else data
    if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        raise UsageInvalid(f"{file} has no list of scopes", hint='expected {"scopes": ["plugin:ro", …]}')
    return list(scopes)


def split_scopes(csv: str) -> list[str]:
    """`plugin:ro, jobs:ro` → each scope once."""
    return list(dict.fromkeys(scope.strip() for scope in csv.split(",") if scope.strip()))


@token.command("list")
@form
@options.config
@options.as_json
def list_tokens(form: str | None, as_json: bool, **given: Any) -> None:
    """List the tokens and what each may do. Keys are not shown.

    Example: ductile config token list
    """
    from ductile.config.edit.token_edit import token_names

    draft = draft_of(given)
    shown = {"tokens": [_token_data(draft, name) for name in token_names(draft)]}
    output.show(shown, as_json=as_json or form == "json", human=_token_lines)


def _token_lines(shown: dict[str, Any]) -> list[str]:
    rows = [("NAME", "SCOPES", "APPROVED", "DESCRIPTION")]
    for one in shown["tokens"]:
        approved = "-" if one["scopes_file"] is None else "yes" if one["hash_matches"] else "no"
        rows.append((one["name"], ", ".join(one["scopes"]) or "-", approved, one["description"]))
    return output.table(rows) if len(rows) > 1 else ["there are no tokens"]


@token.command("inspect")
@click.argument("name")
@form
@options.config
@options.as_json
def inspect(name: str, form: str | None, as_json: bool, **given: Any) -> None:
    """Show one token: its scopes, and whether its scope file is the approved one.

    Example: ductile config token inspect deploy
    """
    draft = draft_of(given)
    from ductile.config.edit.token_edit import find

    index, _ = find(draft, name)
    shown = _token_data(draft, name) | {
        "config_dir": str(draft.root.parent),
        "config_target": str(draft.file_of(("tokens", index))),
    }

    def human(data: dict[str, Any]) -> list[str]:
        return output.table([(f"{key}:", _text(value)) for key, value in data.items()])

    output.show(shown, as_json=as_json or form == "json", human=human)


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "-"
    return "-" if value in (None, "") else str(value).lower() if isinstance(value, bool) else str(value)


def _token_data(draft: "Draft", name: str) -> dict[str, Any]:
    from ductile.config.edit import token_edit
    from ductile.config.scopes import scopes_hash
    from ductile.core import files

    _, entry = token_edit.find(draft, name)
    path = current = None
    scopes: list[str] = []
    if entry.get("scopes_file"):
        path = token_edit.scopes_file(draft, name)
        try:
            current, scopes = scopes_hash(draft.content(path)), token_edit.scopes_of(draft, name)
        except files.FileMissing:
            current = None
    approved = entry.get("scopes_hash")
    return {
        "name": name,
        "key": REDACTED,
        "scopes_file": str(path) if path else None,
        "scopes_hash": approved,
        "current_hash": current,
        "hash_matches": current is not None and current == approved,
        "scopes": scopes,
        "description": str(entry.get("description") or ""),
        "created_at": entry.get("created_at"),
    }


@token.command("rehash")
@click.argument("name")
@form
@editing
def rehash(name: str, form: str | None, **given: Any) -> int:
    """Approve the scope file of a token as it is now: its hash goes into tokens.yaml, and the result is sealed.

    Example: ductile config token rehash deploy
    """
    from ductile.config.edit import token_edit

    given["as_json"] = given["as_json"] or form == "json"
    path = token_edit.scopes_file(draft_of(given), name)
    edited = carry_out(given, lambda draft: token_edit.rehash(draft, name), approving={path})
    return show_edited(edited, given, more={"token": name})


@token.command("delete")
@click.argument("name")
@form
@editing
def delete(name: str, form: str | None, **given: Any) -> int:
    """Take a token out of tokens.yaml, and its key out of the .env file. Its scope file stays.

    Example: ductile config token delete deploy --dry-run
    """
    from ductile.config.edit import token_edit

    given["as_json"] = given["as_json"] or form == "json"
    edited = carry_out(given, lambda draft: token_edit.delete(draft, name))
    return show_edited(edited, given, more={"token": name})
