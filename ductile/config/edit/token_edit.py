"""Draft changes for tokens and scope files: create, delete, rehash, set scopes.

tokens.yaml contains a reference `${NAME_TOKEN}`, never the key. The key is added to the `.env` file of the
configuration, if there is one.
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

from ductile.config.edit import yaml_edit
from ductile.config.edit.staged_edit import Draft
from ductile.config.files.interpolate import parse_env_file
from ductile.config.files.sources import TOKENS_FILE
from ductile.config.scopes import SCOPES_HELP, hash_scope_file, is_known_scope, suggest_scope
from ductile.core.clock import to_text
from ductile.core.errors import NotFound, UsageInvalid, did_you_mean
from ductile.core.formats import strict_json
from ductile.core.formats.yaml_fields import NAME

SCOPES_FOLDER = "scopes"
KEY_BYTES = 32


@frozen
class NewToken:
    """A token added to a draft. `key` is None if the environment variable was already set."""

    name: str
    env_var: str
    key: str | None = field(repr=False)
    stored_in: Path | None
    """The `.env` file that contains the key; None if the operator must set the variable."""


def create(
    draft: Draft, name: str, scopes: Sequence[str], *, description: str, now: datetime
) -> tuple[Draft, NewToken]:
    """Add a token to the draft. A token without scopes is a named secret and cannot authenticate API requests."""
    if not NAME.allows(name):
        raise UsageInvalid(f"{name!r} is not a valid token name", hint=f"Use {NAME.allowed}.")
    if name in token_names(draft):
        raise UsageInvalid(f"token {name!r} already exists", hint="Choose another name, or delete the token first.")
    env_var = env_var_name(name)
    entry: dict[str, Any] = {"name": name, "key": f"${{{env_var}}}"}
    if scopes:
        path = _tokens_file(draft).parent / SCOPES_FOLDER / f"{name}.json"
        if path in [scope_file_path(draft, other) for other in token_names(draft) if read_scopes(draft, other)]:
            raise UsageInvalid(f"{path} belongs to another token", hint="Choose another name.")
        metadata = {"description": description, "created_at": to_text(now)}
        content = _render_json({"scopes": list(scopes), "metadata": metadata})
        draft = draft.with_file(path, content)
        entry |= {"scopes_file": f"{SCOPES_FOLDER}/{name}.json", "scopes_hash": hash_scope_file(content)}
    entry |= {"created_at": to_text(now)} | ({"description": description} if description else {})
    draft, token = _with_key(draft, name, env_var)
    return _with_entry(draft, entry), token


def delete(draft: Draft, name: str) -> Draft:
    """Remove a token from the draft, and its key from the `.env` file. The scope file stays."""
    index, entry = find_token(draft, name)
    draft = draft.without_item(("tokens",), index)
    variable = re.fullmatch(r"\$\{(\w+)\}", str(entry.get("key")), re.ASCII)
    return _without_variable(draft, variable[1]) if variable else draft


def rehash(draft: Draft, name: str) -> Draft:
    """Update the hash of the scope file in the draft."""
    index, _ = find_token(draft, name)
    content = draft.content(scope_file_path(draft, name))
    return draft.with_value(("tokens", index, "scopes_hash"), hash_scope_file(content))


def set_scopes(draft: Draft, name: str, scopes: Sequence[str]) -> Draft:
    """Set the scopes of a token and the hash of its scope file in the draft."""
    index, entry = find_token(draft, name)
    if not entry.get("scopes_file"):
        path = draft.file_of(("tokens", index)).parent / SCOPES_FOLDER / f"{name}.json"
        draft = draft.with_file(path, _render_json({"scopes": list(scopes)}))
        draft = draft.with_value(("tokens", index, "scopes_file"), f"{SCOPES_FOLDER}/{name}.json")
    else:
        path = scope_file_path(draft, name)
        data = strict_json.loads(draft.content(path), source=str(path))
        content = data if isinstance(data, dict) else {}
        if content.get("scopes") != list(scopes):
            draft = draft.with_file(path, _render_json({**content, "scopes": list(scopes)}))
    return rehash(draft, name)


def read_scopes(draft: Draft, name: str) -> list[str]:
    """Return the scopes in the scope file of a token, whether or not its hash matches."""
    _, entry = find_token(draft, name)
    if not entry.get("scopes_file"):
        return []
    path = scope_file_path(draft, name)
    data = strict_json.loads(draft.content(path), source=str(path))
    return [str(scope) for scope in data.get("scopes", [])] if isinstance(data, dict) else []


def scope_file_path(draft: Draft, name: str) -> Path:
    """Return the path of the scope file. Relative paths start at the file that contains them."""
    index, entry = find_token(draft, name)
    path = entry.get("scopes_file")
    if not isinstance(path, str) or "${" in path:
        raise UsageInvalid(
            f"token {name!r} has no scope file that can be changed", hint=f"See tokens[{index}].scopes_file."
        )
    return Path(os.path.normpath(draft.file_of(("tokens", index)).parent / Path(path).expanduser()))


def find_token(draft: Draft, name: str) -> tuple[int, dict[str, Any]]:
    """Return the position of a token in the merged list, and its entry without interpolation."""
    for index, entry in enumerate(_entries(draft)):
        if isinstance(entry, dict) and entry.get("name") == name:
            return index, entry
    known = token_names(draft)
    hint = (
        f"Known tokens: {', '.join(known)}."
        if known
        else "There are no tokens. Create one with `ductile config token create`."
    )
    raise NotFound(f"token {name!r} does not exist{did_you_mean(name, known)}", hint=hint)


def token_names(draft: Draft) -> list[str]:
    return [str(entry.get("name")) for entry in _entries(draft) if isinstance(entry, dict)]


def env_var_name(name: str) -> str:
    """Convert `github-hook` to `GITHUB_HOOK_TOKEN`."""
    word = re.sub(r"[^A-Z0-9]", "_", name.upper())
    return f"{'_' if word[0].isdigit() else ''}{word}_TOKEN"


def require_known_scopes(scopes: Sequence[str]) -> None:
    """Raise UsageInvalid if a scope does not exist."""
    for scope in scopes:
        if not is_known_scope(scope):
            raise UsageInvalid(f"scope {scope!r} does not exist{suggest_scope(scope)}", hint=f"Scopes: {SCOPES_HELP}.")


def _entries(draft: Draft) -> list[Any]:
    data = draft.data
    entries = data.get("tokens") if isinstance(data, dict) else None
    return entries if isinstance(entries, list) else []


def _tokens_file(draft: Draft) -> Path:
    """Return the file for a new token: an included tokens.yaml, otherwise tokens.yaml next to the root."""
    included = [path for path, _ in draft.sources.documents if path.name == TOKENS_FILE]
    return included[-1] if included else draft.root.parent / TOKENS_FILE


def _with_entry(draft: Draft, entry: dict[str, Any]) -> Draft:
    path = _tokens_file(draft)
    is_included = any(path == included for included, _ in draft.sources.documents)
    content = draft.content(path) if is_included or os.path.lexists(path) else b""
    draft = draft.with_file(path, yaml_edit.with_item(content, ("tokens",), entry, source=str(path)))
    return draft if is_included else draft.with_item(("include",), TOKENS_FILE)


def _with_key(draft: Draft, name: str, env_var: str) -> tuple[Draft, NewToken]:
    if env_var in draft.sources.environment:
        return draft, NewToken(name, env_var, None, None)
    key, env_files = secrets.token_hex(KEY_BYTES), _env_files(draft)
    if not env_files:
        return draft.with_environment(env_var, key), NewToken(name, env_var, key, None)
    content = draft.content(env_files[0])
    gap = b"" if not content or content.endswith(b"\n") else b"\n"
    draft = draft.with_file(env_files[0], content + gap + f"{env_var}={key}\n".encode())
    return draft, NewToken(name, env_var, key, env_files[0])


def _without_variable(draft: Draft, variable: str) -> Draft:
    """Remove the variable from `.env` files, unless another value refers to it."""
    reference = f"${{{variable}}}".encode()
    if any(reference in draft.content(path) for path, _ in draft.sources.documents):
        return draft
    for path in _env_files(draft):
        lines = draft.content(path).splitlines(keepends=True)
        remaining = b"".join(line for line in lines if variable not in parse_env_file(line, source=str(path)))
        if remaining != b"".join(lines):
            draft = draft.with_file(path, remaining)
    return draft


def _env_files(draft: Draft) -> list[Path]:
    documents = {path for path, _ in draft.sources.documents}
    return [source.path for source in draft.sources.files if source.path not in documents]


def _render_json(data: dict[str, Any]) -> bytes:
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
