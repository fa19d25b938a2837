"""Scopes of the tokens in tokens.yaml: the scope files, and whether their hashes match.

A token whose scope file cannot be used or does not match its hash has no scopes, but is still usable as a named secret.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

from attrs import frozen
from blake3 import blake3

from ductile.config.files.sources import NO_REPLACEMENTS, SourceFile, Tier
from ductile.config.sections.settings import TokenEntry
from ductile.core import files
from ductile.core.errors import Complaint, Mark, Unreadable, closest_name, did_you_mean
from ductile.core.formats import strict_json
from ductile.core.message import is_topic_pattern, topic_matches

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
_NOUNS = ("plugin", "jobs", "events", "exchange", "system")
BROAD_SCOPES = frozenset(f"{noun}:{right}" for noun in _NOUNS for right in ("ro", "rw"))
ALL = "*"
"""The scope for everything, and the pattern of every topic."""
SCOPES = BROAD_SCOPES | FINE_SCOPES | {ALL}
"""All scopes except those of a single plugin and of topics."""

TopicRight: TypeAlias = Literal["ro", "publish", "claim"]
TOPIC_RIGHTS: tuple[TopicRight, ...] = ("ro", "publish", "claim")
"""What a scope can permit on a topic: to read its messages, to publish messages, to claim messages."""
NAMED_RIGHTS: Mapping[str, tuple[str, ...]] = {"plugin": ("ro", "rw"), "exchange": (*TOPIC_RIGHTS, "rw")}
"""Noun → the rights in its scopes with a name, `noun:NAME:right`."""
SCOPES_HELP = (
    f"{', '.join(sorted(SCOPES))}, plugin:NAME:ro|rw, exchange:TOPIC:{'|'.join(NAMED_RIGHTS['exchange'])}"
    " (a topic such as review.request, or a pattern such as review.*)"
)
_RIGHTS = {
    **dict.fromkeys(("r", "read", "readonly"), "ro"),
    **dict.fromkeys(("w", "write", "admin"), "rw"),
    **dict.fromkeys(("pub", "send"), "publish"),
    **dict.fromkeys(("consume", "receive"), "claim"),
}
"""Rights in other programs → rights here."""


def is_known_scope(scope: str) -> bool:
    """True for the fixed scopes, `plugin:NAME:ro|rw` and `exchange:TOPIC:ro|publish|claim|rw`."""
    noun, _, rest = scope.partition(":")
    name, _, right = rest.rpartition(":")
    is_name = is_topic_pattern(name) if noun == "exchange" else bool(name)
    return scope in SCOPES or (is_name and right in NAMED_RIGHTS.get(noun, ()))


def suggest_scope(scope: str) -> str:
    """Return ` (did you mean 'jobs:ro'?)` for an unknown scope such as `job:read`, or an empty string."""
    first, *names = scope.lower().split(":")
    noun, right = closest_name(first, _NOUNS) or first, names.pop() if names else ""
    right = _RIGHTS.get(right, right)
    fixed = ":".join(filter(None, (noun, *names, right)))
    if fixed in SCOPES or noun not in NAMED_RIGHTS or not right:
        return did_you_mean(fixed, sorted(SCOPES))
    likely = closest_name(right, NAMED_RIGHTS[noun]) or right
    if noun == "exchange" and not names:
        names, likely = ([ALL], likely) if likely in NAMED_RIGHTS[noun] else ([right], "ro")
    named = ":".join((noun, *names, likely))
    if is_known_scope(named):
        return did_you_mean(named, [named])
    # A scope for all topics is no suggestion for one topic.
    return "" if noun == "exchange" else did_you_mean(fixed, sorted(SCOPES))


# ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def topic_patterns(scopes: Iterable[str], right: TopicRight) -> frozenset[str]:
    """Return the topics and patterns on which the scopes give `right`. `*` is every topic."""
    return frozenset(pattern for scope in scopes for pattern, rights in _topic_grants(scope) if right in rights)


def may_use_topic(scopes: Iterable[str], topic: str, right: TopicRight) -> bool:
    """True if the scopes permit `right` on the topic, or on every topic of a pattern."""
    return any(topic_matches(pattern, topic) for pattern in topic_patterns(scopes, right))


def topic_rights(scope: str) -> tuple[TopicRight, ...]:
    """Return the rights that a scope of the exchange gives; none for any other scope."""
    return tuple(right for _, rights in _topic_grants(scope) for right in rights)


def _topic_grants(scope: str) -> Iterator[tuple[str, tuple[TopicRight, ...]]]:
    """Yield the pattern of a scope with its rights. A scope that is not known has none."""
    if scope == ALL:
        yield ALL, TOPIC_RIGHTS
    elif scope.startswith("exchange:") and is_known_scope(scope):
        *names, right = scope.split(":")[1:]
        yield names[0] if names else ALL, tuple(one for one in TOPIC_RIGHTS if right in (one, "rw"))


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
