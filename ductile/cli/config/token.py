"""`ductile config token`: named secrets and API tokens."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output
from ductile.cli.config.edit import apply_edit, edit_options, read_draft, show_edited
from ductile.core.errors import UsageInvalid

if TYPE_CHECKING:
    from ductile.config.edit.staged_edit import Draft
    from ductile.config.edit.token_edit import NewToken

REDACTED = "[redacted]"

form = click.option(
    "--format", "form", type=click.Choice(["human", "json"]), help="Output format; json is the same as --json."
)


@click.group("token")
def token() -> None:
    """Create, list, inspect and delete the tokens of tokens.yaml."""


@token.command("create")
@click.option("--name", required=True, help="Name of the token, as used in `secret_ref`.")
@click.option("--scopes", help="API scopes, such as plugin:ro,jobs:ro. Without scopes the token is only a secret.")
@click.option("--scopes-file", type=click.Path(path_type=Path), help="Read the scopes from a file; - is stdin.")
@click.option("--description", default="", help="Description of the token.")
@form
@edit_options
def create(
    name: str, scopes: str | None, scopes_file: Path | None, description: str, form: str | None, **params: Any
) -> int:
    """Create a token with a new key. The key is printed once; tokens.yaml refers to it as ${NAME_TOKEN}.

    The key is added to the .env file of the configuration if `environment_vars.include` has one. Otherwise set the
    variable in the environment of the service.

    Example: ductile config token create --name deploy --scopes plugin:rw,jobs:ro
    """
    from ductile.config.edit import token_edit

    params["as_json"] = params["as_json"] or form == "json"
    wanted = _read_scopes(scopes, scopes_file)
    token_edit.require_known_scopes(wanted)
    made: list[NewToken] = []

    def change(draft: "Draft") -> "Draft":
        draft, new = token_edit.create(draft, name, wanted, description=description, now=datetime.now(UTC))
        made.append(new)
        return draft

    edited = apply_edit(params, change)
    key = made[0].key if not edited.dry_run else None
    more = {
        "status": "planned" if edited.dry_run else "created",
        "token": name,
        "token_key": key,
        "env_var": made[0].env_var,
        "stored_in": str(made[0].stored_in) if made[0].stored_in else None,
        "hint": _key_hint(made[0]),
    }
    lines = [f"key (shown only once): {key}"] if key else []
    return show_edited(edited, params, more=more, lines=[*lines, str(more["hint"])])


def _key_hint(new: "NewToken") -> str:
    if new.key is None:
        return f"The key is the existing value of {new.env_var}."
    if new.stored_in is not None:
        return f"The key is stored in {new.stored_in} as {new.env_var}."
    return f"Set {new.env_var} to the key in the environment of the service or in a file of environment_vars.include."


def _read_scopes(csv: str | None, file: Path | None) -> list[str]:
    if csv is not None and file is not None:
        raise UsageInvalid("--scopes and --scopes-file are mutually exclusive", hint="Use one of them.")
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
        raise UsageInvalid(str(error), hint="--scopes-file must be a file with scopes; - is stdin.") from error
    text = content.decode("utf-8", "replace").strip()
    if not text.startswith(("{", "[")):
        return split_scopes(text.replace("\n", ","))
    data = strict_json.loads(content, source=str(file))
    scopes = data.get("scopes") if isinstance(data, dict) else data
    if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
        raise UsageInvalid(f"{file} has no list of scopes", hint='Write {"scopes": ["plugin:ro", …]}.')
    return list(scopes)


def split_scopes(csv: str) -> list[str]:
    """Split `plugin:ro, jobs:ro` into distinct scopes."""
    return list(dict.fromkeys(scope.strip() for scope in csv.split(",") if scope.strip()))


@token.command("list")
@form
@options.config
@options.as_json
def list_tokens(form: str | None, as_json: bool, **params: Any) -> None:
    """List the tokens and their scopes. Keys are not shown.

    Example: ductile config token list
    """
    from ductile.config.edit.token_edit import token_names

    draft = read_draft(params)
    shown = {"tokens": [_token_data(draft, name) for name in token_names(draft)]}
    output.show(shown, as_json=as_json or form == "json", human=_token_lines)


def _token_lines(shown: dict[str, Any]) -> list[str]:
    rows = [("NAME", "SCOPES", "APPROVED", "DESCRIPTION")]
    for entry in shown["tokens"]:
        approved = "-" if entry["scopes_file"] is None else "yes" if entry["hash_matches"] else "no"
        rows.append((entry["name"], ", ".join(entry["scopes"]) or "-", approved, entry["description"]))
    return output.table(rows) if len(rows) > 1 else ["no tokens"]


@token.command("inspect")
@click.argument("name")
@form
@options.config
@options.as_json
def inspect(name: str, form: str | None, as_json: bool, **params: Any) -> None:
    """Show a token: its scopes, and whether its scope file is approved.

    Example: ductile config token inspect deploy
    """
    draft = read_draft(params)
    from ductile.config.edit.token_edit import find_token

    index, _ = find_token(draft, name)
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
    from ductile.config.scopes import hash_scope_file
    from ductile.core import files

    _, entry = token_edit.find_token(draft, name)
    path = current = None
    scopes: list[str] = []
    if entry.get("scopes_file"):
        path = token_edit.scope_file_path(draft, name)
        try:
            current, scopes = hash_scope_file(draft.content(path)), token_edit.read_scopes(draft, name)
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
@edit_options
def rehash(name: str, form: str | None, **params: Any) -> int:
    """Approve the current scope file of a token: store its hash in tokens.yaml and seal the result.

    Example: ductile config token rehash deploy
    """
    from ductile.config.edit import token_edit

    params["as_json"] = params["as_json"] or form == "json"
    path = token_edit.scope_file_path(read_draft(params), name)
    edited = apply_edit(params, lambda draft: token_edit.rehash(draft, name), approving={path})
    return show_edited(edited, params, more={"token": name})


@token.command("delete")
@click.argument("name")
@form
@edit_options
def delete(name: str, form: str | None, **params: Any) -> int:
    """Delete a token from tokens.yaml and its key from the .env file. The scope file is not deleted.

    Example: ductile config token delete deploy --dry-run
    """
    from ductile.config.edit import token_edit

    params["as_json"] = params["as_json"] or form == "json"
    edited = apply_edit(params, lambda draft: token_edit.delete(draft, name))
    return show_edited(edited, params, more={"token": name})
