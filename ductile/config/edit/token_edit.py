"""Tokens and their scope files as changes of a draft: a new token, other scopes, a new hash, a token less.

A key is never written into tokens.yaml: the entry says `${NAME_TOKEN}`, and the key goes into the `.env` file of the
configuration if it has one. Called by `config token` and `config scope`.
"""

import json
import os
import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from attrs import field, frozen

from ductile.config.edit import yaml_change
from ductile.config.edit.staged_edit import Draft
from ductile.config.load.interpolate import read_env_file
from ductile.config.load.sources import TOKENS_FILE
from ductile.config.scopes import SCOPES, is_scope, scopes_hash
from ductile.core.clock import to_text
from ductile.core.errors import NotFound, UsageInvalid, did_you_mean
from ductile.core.formats import strict_json
from ductile.core.formats.yaml_fields import NAME

SCOPES_FOLDER = "scopes"
KEY_BYTES = 32


@frozen
class NewToken:
    """A token that a draft has now. `key` is None where the variable had a value already, which counts."""

    name: str
    env_var: str
    key: str | None = field(repr=False)
    stored_in: Path | None
    """The `.env` file that holds the key; None: the operator must set the variable."""


def create(
    draft: Draft, name: str, scopes: Sequence[str], *, description: str, now: datetime
) -> tuple[Draft, NewToken]:
    """The draft with a token of that name. Without scopes it is a named secret that opens nothing."""
    if not NAME.allows(name):
        raise UsageInvalid(f"{name!r} is not a name for a token", hint=f"use {NAME.allowed}")
    if name in token_names(draft):
        raise UsageInvalid(f"there is a token {name!r} already", hint="choose another name, or delete it first")
    env_var = variable_for(name)
    entry: dict[str, Any] = {"name": name, "key": f"${{{env_var}}}"}
    if scopes:
        path = _tokens_file(draft).parent / SCOPES_FOLDER / f"{name}.json"
        if path in [scopes_file(draft, other) for other in token_names(draft) if scopes_of(draft, other)]:
            raise UsageInvalid(f"{path} belongs to another token", hint="choose another name")
        metadata = {"description": description, "created_at": to_text(now)}
        content = _rendered({"scopes": list(scopes), "metadata": metadata})
        draft = draft.with_file(path, content)
        entry |= {"scopes_file": f"{SCOPES_FOLDER}/{name}.json", "scopes_hash": scopes_hash(content)}
    entry |= {"created_at": to_text(now)} | ({"description": description} if description else {})
    draft, token = _with_key(draft, name, env_var)
    return _with_entry(draft, entry), token


def delete(draft: Draft, name: str) -> Draft:
    """The draft without the token, and without its key if a `.env` file has it. The scope file stays."""
    index, entry = find(draft, name)
    draft = draft.without_item(("tokens",), index)
    variable = re.fullmatch(r"\$\{(\w+)\}", str(entry.get("key")), re.ASCII)
    return _without_variable(draft, variable[1]) if variable else draft


def rehash(draft: Draft, name: str) -> Draft:
    """The draft with the hash of the scope file as it is now."""
    index, _ = find(draft, name)
    content = draft.content(scopes_file(draft, name))
    return draft.with_value(("tokens", index, "scopes_hash"), scopes_hash(content))


def set_scopes(draft: Draft, name: str, scopes: Sequence[str]) -> Draft:
    """The draft with exactly these scopes for the token, and the hash that approves them."""
    index, entry = find(draft, name)
    if not entry.get("scopes_file"):
        path = draft.file_of(("tokens", index)).parent / SCOPES_FOLDER / f"{name}.json"
        draft = draft.with_file(path, _rendered({"scopes": list(scopes)}))
        draft = draft.with_value(("tokens", index, "scopes_file"), f"{SCOPES_FOLDER}/{name}.json")
    else:
        path = scopes_file(draft, name)
        data = strict_json.loads(draft.content(path), source=str(path))
        kept = data if isinstance(data, dict) else {}
        if kept.get("scopes") != list(scopes):
            draft = draft.with_file(path, _rendered({**kept, "scopes": list(scopes)}))
    return rehash(draft, name)


def scopes_of(draft: Draft, name: str) -> list[str]:
    """The scopes in the token's scope file, approved or not."""
    _, entry = find(draft, name)
    if not entry.get("scopes_file"):
        return []
    path = scopes_file(draft, name)
    data = strict_json.loads(draft.content(path), source=str(path))
    return [str(scope) for scope in data.get("scopes", [])] if isinstance(data, dict) else []


def scopes_file(draft: Draft, name: str) -> Path:
    """Where the token's scope file lies; relative paths start at the file that names them."""
    index, entry = find(draft, name)
    written = entry.get("scopes_file")
    if not isinstance(written, str) or "${" in written:
        raise UsageInvalid(
            f"token {name!r} has no scope file that can be changed here", hint=f"see tokens[{index}].scopes_file"
        )
    return Path(os.path.normpath(draft.file_of(("tokens", index)).parent / Path(written).expanduser()))


def find(draft: Draft, name: str) -> tuple[int, dict[str, Any]]:
    """The position of the token among all, and its entry as it is written."""
    for index, entry in enumerate(_entries(draft)):
        if isinstance(entry, dict) and entry.get("name") == name:
            return index, entry
    known = token_names(draft)
    hint = f"known: {', '.join(known)}" if known else "there are none; make one with `ductile config token create`"
    raise NotFound(f"there is no token {name!r}{did_you_mean(name, known)}", hint=hint)


def token_names(draft: Draft) -> list[str]:
    return [str(entry.get("name")) for entry in _entries(draft) if isinstance(entry, dict)]


def variable_for(name: str) -> str:
    """`github-hook` → `GITHUB_HOOK_TOKEN`."""
    word = re.sub(r"[^A-Z0-9]", "_", name.upper())
    return f"{'_' if word[0].isdigit() else ''}{word}_TOKEN"


def require_scopes(scopes: Sequence[str]) -> None:
    """Every one of them grants something."""
    for scope in scopes:
        if not is_scope(scope):
            raise UsageInvalid(
                f"scope {scope!r} grants nothing{did_you_mean(scope, SCOPES)}",
                hint=f"known: {', '.join(sorted(SCOPES))}, plugin:NAME:ro, plugin:NAME:rw",
            )


def _entries(draft: Draft) -> list[Any]:
    data = draft.data
    entries = data.get("tokens") if isinstance(data, dict) else None
    return entries if isinstance(entries, list) else []


def _tokens_file(draft: Draft) -> Path:
    """The file for a new token: one called tokens.yaml that is included, else one beside the root."""
    included = [path for path, _ in draft.sources.documents if path.name == TOKENS_FILE]
    return included[-1] if included else draft.root.parent / TOKENS_FILE


def _with_entry(draft: Draft, entry: dict[str, Any]) -> Draft:
    path = _tokens_file(draft)
    is_included = any(path == included for included, _ in draft.sources.documents)
    content = draft.content(path) if is_included or os.path.lexists(path) else b""
    draft = draft.with_file(path, yaml_change.with_item(content, ("tokens",), entry, source=str(path)))
    return draft if is_included else draft.with_item(("include",), TOKENS_FILE)


def _with_key(draft: Draft, name: str, env_var: str) -> tuple[Draft, NewToken]:
    if env_var in draft.sources.environment:
        return draft, NewToken(name, env_var, None, None)
    key, holders = secrets.token_hex(KEY_BYTES), _env_files(draft)
    if not holders:
        return draft.with_environment(env_var, key), NewToken(name, env_var, key, None)
    content = draft.content(holders[0])
    gap = b"" if not content or content.endswith(b"\n") else b"\n"
    draft = draft.with_file(holders[0], content + gap + f"{env_var}={key}\n".encode())
    return draft, NewToken(name, env_var, key, holders[0])


def _without_variable(draft: Draft, variable: str) -> Draft:
    """Without the variable in `.env` files, unless something still refers to it."""
    reference = f"${{{variable}}}".encode()
    if any(reference in draft.content(path) for path, _ in draft.sources.documents):
        return draft
    for path in _env_files(draft):
        lines = draft.content(path).splitlines(keepends=True)
        kept = b"".join(line for line in lines if variable not in read_env_file(line, source=str(path)))
        if kept != b"".join(lines):
            draft = draft.with_file(path, kept)
    return draft


def _env_files(draft: Draft) -> list[Path]:
    documents = {path for path, _ in draft.sources.documents}
    return [source.path for source in draft.sources.files if source.path not in documents]


def _rendered(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
