"""What the tokens of tokens.yaml may do: their scope files, and whether those are the ones that were approved.

A token whose scope file does not fit its hash grants nothing, but still serves as a named secret.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from attrs import frozen
from blake3 import blake3

from ductile.config.load.sources import NOTHING_REPLACED, SourceFile, Tier
from ductile.config.sections.settings import TokenEntry
from ductile.core import files
from ductile.core.errors import Complaint, Mark, Unreadable
from ductile.core.formats import strict_json

MAX_SCOPE_BYTES = 64 << 10
PREFIX = "blake3:"

INCLUDED = {
    "plugin:ro": ("plugin:catalog:ro", "plugin:invoke:ro"),
    "jobs:ro": ("jobs:status:ro", "jobs:result:ro", "jobs:logs:ro", "jobs:tree:ro"),
    "jobs:result:ro": ("jobs:status:ro",),
    "events:ro": ("events:meta:ro", "events:payload:ro"),
    "events:payload:ro": ("events:meta:ro",),
}
"""Scope → the finer ones that come with it."""
FINER = frozenset(finer for scopes in INCLUDED.values() for finer in scopes)
BROAD = frozenset(f"{noun}:{right}" for noun in ("plugin", "jobs", "events", "system") for right in ("ro", "rw"))
SCOPES = BROAD | FINER | {"*"}
"""Every scope but those of one plugin, `plugin:<name>:ro|rw`."""


def is_scope(scope: str) -> bool:
    """True for the scopes that are enforced: the fixed ones and `plugin:<name>:ro|rw`."""
    noun, _, rest = scope.partition(":")
    name, _, right = rest.rpartition(":")
    return scope in SCOPES or (noun == "plugin" and bool(name) and right in ("ro", "rw"))


@frozen
class Grant:
    """The scopes of one token, and why it grants nothing where it does not."""

    scopes: tuple[str, ...] = ()
    refused: str = ""


@frozen
class Grants:
    """All tokens' grants and the files they came from."""

    by_token: Mapping[str, Grant]
    files: tuple[SourceFile, ...]
    errors: tuple[Complaint, ...]
    warnings: tuple[Complaint, ...]


def read_grants(
    tokens: Iterable[TokenEntry], *, allow_symlinks: bool, replaced: Mapping[Path, bytes] = NOTHING_REPLACED
) -> Grants:
    """The grant of every token that names a scope file; `replaced` files count as if they held these bytes."""
    grants: dict[str, Grant] = {}
    sources: dict[Path, SourceFile] = {}
    errors: list[Complaint] = []
    warnings: list[Complaint] = []
    for index, token in enumerate(tokens):
        if token.scopes_file is None:
            continue
        path, where = Path(os.path.normpath(token.scopes_file)), f"tokens[{index}].scopes_file"
        try:
            findings = files.symlink_findings(path, allow=allow_symlinks)
            if path not in replaced or os.path.lexists(path):
                findings += files.problems_of(path, private=True)
            content = replaced.get(path)
            if content is None:
                content = files.read_regular(Path(os.path.realpath(path)), max_bytes=MAX_SCOPE_BYTES).content
            source = SourceFile.of(path, content, Tier.HIGH)
            scopes = _scopes_in(source)
        except files.FileRefused as error:
            errors.append(Complaint(str(error), where, category="token_scopes"))
            continue
        except Unreadable as error:
            errors.append(Complaint(error.reason, where, error.mark, "token_scopes"))
            continue
        for finding in findings:
            kept = errors if finding.is_refusal else warnings
            kept.append(Complaint(str(finding), where, category="permissions"))
        sources[path] = source
        grants[token.name] = grant = _grant(token, source, scopes)
        if grant.refused:
            warnings.append(Complaint(f"token {token.name} {grant.refused}", where, Mark(str(path), 1), "token_scopes"))
    return Grants(grants, tuple(sources.values()), tuple(errors), tuple(warnings))


def _grant(token: TokenEntry, source: SourceFile, scopes: tuple[str, ...]) -> Grant:
    if not token.scopes_hash:
        return Grant(refused="cannot use the API: it has no scopes_hash")
    if token.scopes_hash.removeprefix(PREFIX) != source.digest:
        return Grant(
            refused=f"cannot use the API: its scope file is not the approved one ({PREFIX}{source.digest} now)"
        )
    return Grant(scopes)


def _scopes_in(source: SourceFile) -> tuple[str, ...]:
    where = Mark(str(source.path), 1)
    data = strict_json.loads(source.content, source=str(source.path))
    scopes = data.get("scopes") if isinstance(data, dict) else None
    if not isinstance(scopes, list) or not all(isinstance(scope, str) and scope.strip() for scope in scopes):
        raise Unreadable('expected {"scopes": ["plugin:ro", …]}', where)
    return tuple(scopes)


def scopes_hash(content: bytes) -> str:
    """What `scopes_hash` in tokens.yaml must be for this content."""
    return PREFIX + blake3(content).hexdigest()
