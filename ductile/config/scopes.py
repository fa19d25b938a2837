"""Scopes of the tokens in tokens.yaml: the scope files, and whether their hashes match.

A token whose scope file cannot be used or does not match its hash has no scopes, but is still usable as a named secret.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from attrs import frozen
from blake3 import blake3

from ductile.config.files.sources import NO_REPLACEMENTS, SourceFile, Tier
from ductile.config.sections.settings import TokenEntry
from ductile.core import files
from ductile.core.errors import Complaint, Mark, Unreadable, did_you_mean
from ductile.core.formats import strict_json

MAX_SCOPE_BYTES = 64 << 10
HASH_PREFIX = "blake3:"
TOKEN_SCOPES = "token_scopes"
"""The category of findings about tokens and their scopes."""
NOT_AUTHENTICATED = "cannot authenticate API requests"

IMPLIED_SCOPES = {
    "plugin:ro": ("plugin:catalog:ro", "plugin:invoke:ro"),
    "jobs:ro": ("jobs:status:ro", "jobs:result:ro", "jobs:logs:ro", "jobs:tree:ro"),
    "jobs:result:ro": ("jobs:status:ro",),
    "events:ro": ("events:meta:ro", "events:payload:ro"),
    "events:payload:ro": ("events:meta:ro",),
}
"""Scope → narrower scopes that it includes."""
FINE_SCOPES = frozenset(finer for scopes in IMPLIED_SCOPES.values() for finer in scopes)
BROAD_SCOPES = frozenset(f"{noun}:{right}" for noun in ("plugin", "jobs", "events", "system") for right in ("ro", "rw"))
SCOPES = BROAD_SCOPES | FINE_SCOPES | {"*"}
"""All scopes except those of a single plugin, `plugin:<name>:ro|rw`."""


_NOUNS = frozenset(scope.partition(":")[0] for scope in BROAD_SCOPES)
_RIGHTS = {"r": "ro", "read": "ro", "readonly": "ro", "w": "rw", "write": "rw", "admin": "rw"}
"""Rights in other programs → rights here."""


def is_known_scope(scope: str) -> bool:
    """True for the fixed scopes and for `plugin:<name>:ro|rw`."""
    noun, _, rest = scope.partition(":")
    name, _, right = rest.rpartition(":")
    return scope in SCOPES or (noun == "plugin" and bool(name) and right in ("ro", "rw"))


def suggest_scope(scope: str) -> str:
    """Return ` (did you mean 'jobs:ro'?)` for an unknown scope such as `job:read`, or an empty string."""
    *names, right = scope.lower().split(":")
    nouns = [
        name if name in _NOUNS else f"{name}s" if f"{name}s" in _NOUNS else name.removesuffix("s") for name in names
    ]
    return did_you_mean(":".join((*nouns, _RIGHTS.get(right, right))), sorted(SCOPES))


@frozen
class Grant:
    """The scopes of one token, or the reason why it has none."""

    scopes: tuple[str, ...] = ()
    refused: str = ""


@frozen
class Grants:
    """The grants of all tokens and the scope files."""

    by_token: Mapping[str, Grant]
    files: tuple[SourceFile, ...]
    errors: tuple[Complaint, ...]
    warnings: tuple[Complaint, ...]


def read_grants(
    tokens: Iterable[TokenEntry], *, allow_symlinks: bool, replaced: Mapping[Path, bytes] = NO_REPLACEMENTS
) -> Grants:
    """Read the scope file of every token that has one. `replaced` contents are used instead of the files on disk."""
    grants: dict[str, Grant] = {}
    sources: dict[Path, SourceFile] = {}
    errors: list[Complaint] = []
    warnings: list[Complaint] = []
    for index, token in enumerate(tokens):
        if token.scopes_file is None:
            continue
        path, where = Path(os.path.normpath(token.scopes_file)), f"tokens[{index}].scopes_file"
        try:
            findings = files.check_symlinks(path, allow=allow_symlinks)
            if path not in replaced or os.path.lexists(path):
                findings += files.check_path(path, private=True)
            content = replaced.get(path)
            if content is None:
                content = files.read_regular(Path(os.path.realpath(path)), max_bytes=MAX_SCOPE_BYTES).content
        except files.FileRefused as error:
            grants[token.name] = grant = Grant(refused=f"{NOT_AUTHENTICATED}: {error}")
            warnings.append(Complaint(f"token {token.name} {grant.refused}", where, category=TOKEN_SCOPES))
            continue
        for finding in findings:
            complaints = errors if finding.is_refusal else warnings
            complaints.append(Complaint(str(finding), where, category="permissions"))
        sources[path] = source = SourceFile.of(path, content, Tier.HIGH)
        grants[token.name] = grant = _grant(token, source)
        if grant.refused:
            warnings.append(Complaint(f"token {token.name} {grant.refused}", where, Mark(str(path), 1), TOKEN_SCOPES))
    return Grants(grants, tuple(sources.values()), tuple(errors), tuple(warnings))


def _grant(token: TokenEntry, source: SourceFile) -> Grant:
    if not token.scopes_hash:
        return Grant(refused=f"{NOT_AUTHENTICATED}: it has no scopes_hash")
    if token.scopes_hash.removeprefix(HASH_PREFIX) != source.digest:
        return Grant(refused=f"{NOT_AUTHENTICATED}: scopes_hash does not match ({HASH_PREFIX}{source.digest})")
    try:
        return Grant(_scopes_in(source))
    except Unreadable as error:
        return Grant(refused=f"{NOT_AUTHENTICATED}: its scope file cannot be used: {error.reason}")


def _scopes_in(source: SourceFile) -> tuple[str, ...]:
    where = Mark(str(source.path), 1)
    data = strict_json.loads(source.content, source=str(source.path))
    scopes = data.get("scopes") if isinstance(data, dict) else None
    if not isinstance(scopes, list) or not all(isinstance(scope, str) and scope.strip() for scope in scopes):
        raise Unreadable('expected {"scopes": ["plugin:ro", …]}', where)
    return tuple(scopes)


def hash_scope_file(content: bytes) -> str:
    """Return the value of `scopes_hash` for this content."""
    return HASH_PREFIX + blake3(content).hexdigest()
