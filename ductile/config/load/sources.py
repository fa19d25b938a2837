"""Which files make up a configuration, and their merged content: includes, `.env` files, permissions, symlinks.

Every file is read once; those bytes are hashed, verified and parsed. Knows YAML trees, not sections.
"""

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from ductile.config.load.interpolate import is_unicode, read_env_file, substitute, unusable
from ductile.core import files
from ductile.core.errors import Complaint, ConfigMissing, Mark, Unreadable
from ductile.core.formats import strict_yaml
from ductile.core.formats.strict_yaml import YamlNode

CONFIG_FILE = "config.yaml"
TOKENS_FILE = "tokens.yaml"
HIGH_TIER = (TOKENS_FILE, "webhooks.yaml")
MAX_ENV_BYTES = 1 << 20
MAX_FILES = 1000
MAX_INCLUDE_DEPTH = 32
NOTHING_REPLACED: Mapping[Path, bytes] = {}


class Tier(StrEnum):
    """How much a file decides: who may come in (high), or how things run (operational)."""

    HIGH = "high"
    OPERATIONAL = "operational"


class SourceFile(NamedTuple):
    """One file as it was read. What is hashed is what is parsed."""

    path: Path
    content: bytes
    tier: Tier
    digest: str

    def __repr__(self) -> str:
        return f"SourceFile({files.shown_path(self.path)})"

    @classmethod
    def of(cls, path: Path, content: bytes, tier: Tier | None = None) -> "SourceFile":
        tier = tier or (Tier.HIGH if path.name in HIGH_TIER else Tier.OPERATIONAL)
        return cls(path, content, tier, blake3(content).hexdigest())


class Sources(NamedTuple):
    """Everything that was read for one configuration, merged in order."""

    root: YamlNode
    documents: tuple[tuple[Path, YamlNode], ...]
    """Each YAML file with its own tree, in the order in which they are merged."""
    files: tuple[SourceFile, ...]
    environment: Mapping[str, str]
    allow_symlinks: bool
    errors: tuple[Complaint, ...]
    warnings: tuple[Complaint, ...]

    def __repr__(self) -> str:
        return f"Sources({', '.join(files.shown_path(file.path) for file in self.files)})"


class Found(NamedTuple):
    """Where the configuration is, and how it was found."""

    path: Path
    origin: str


def find(explicit: Path | None, environ: Mapping[str, str]) -> Found:
    """The configuration file: the given file or directory, else the first of the usual places that exists."""
    if explicit is not None:
        return Found(_config_file(explicit), "explicit")
    if (directory := environ.get("DUCTILE_CONFIG_DIR")) and os.path.isdir(directory):
        return Found(_config_file(Path(directory)), "env:DUCTILE_CONFIG_DIR")
    for candidate in (Path.home() / ".config/ductile", Path("/etc/ductile")):
        if (candidate / CONFIG_FILE).exists():
            return Found(candidate / CONFIG_FILE, "auto-discovered")
    raise ConfigMissing(
        "no configuration found in $DUCTILE_CONFIG_DIR, ~/.config/ductile or /etc/ductile",
        hint="make one with `ductile config init`, or name one with --config",
    )


def read_sources(
    root: Path, environ: Mapping[str, str], *, replaced: Mapping[Path, bytes] = NOTHING_REPLACED
) -> Sources:
    """`root` and all it includes. What cannot be read is a complaint; the rest is read all the same.

    `replaced` files are read as if they held these bytes: what an edit is about to write is tried out first.
    """
    reading = _Reading(environment=dict(environ), replaced=replaced)
    reading.read_root(root)
    return Sources(
        root=reading.merged or YamlNode({}, Mark(str(root), 1)),
        documents=tuple(reading.documents),
        files=tuple(reading.files),
        environment=reading.environment,
        allow_symlinks=reading.allow_symlinks,
        errors=tuple(reading.errors),
        warnings=tuple(dict.fromkeys(reading.warnings)),
    )


def merge(earlier: YamlNode | None, later: YamlNode) -> YamlNode:
    """Mappings by key, deeply; lists appended; otherwise what comes later wins."""
    if earlier is None or earlier.value is None:
        return later
    if later.value is None:
        return earlier
    if isinstance(earlier.value, dict) and isinstance(later.value, dict):
        members = dict(earlier.value)
        for name, member in later.value.items():
            members[name] = merge(members.get(name), member)
        return YamlNode(members, earlier.mark)
    if isinstance(earlier.value, tuple) and isinstance(later.value, tuple):
        return YamlNode(earlier.value + later.value, earlier.mark)
    return later


def _config_file(path: Path) -> Path:
    absolute = Path(os.path.abspath(path.expanduser()))
    return absolute / CONFIG_FILE if os.path.isdir(absolute) else absolute


class _Reading:
    """The walk through the files: what was found so far."""

    def __init__(self, environment: dict[str, str], replaced: Mapping[Path, bytes]) -> None:
        self.environment, self.replaced = environment, replaced
        self.merged: YamlNode | None = None
        self.documents: list[tuple[Path, YamlNode]] = []
        self.files: list[SourceFile] = []
        self.errors: list[Complaint] = []
        self.warnings: list[Complaint] = []
        self.allow_symlinks = False
        self.seen: set[Path] = set()

    def read_root(self, path: Path) -> None:
        # The root decides about symlinks, so it is read before that can be known.
        try:
            content = self.replaced.get(path)
            if content is None:
                content = files.read_regular(path, max_bytes=strict_yaml.MAX_BYTES, follow_symlinks=True).content
        except files.FileMissing as error:
            hint = "make one with `ductile config init`, or name another with --config"
            raise ConfigMissing(f"there is no configuration at {path}", hint=hint) from error
        except files.FileRefused as error:
            self.errors.append(Complaint(error.reason, mark=Mark(str(path), 1)))
            return
        if not is_unicode(str(path)):
            self.errors.append(Complaint(_NAME_HELP, mark=Mark(files.shown_path(path), 1)))
            return
        self._look_at(path.parent)
        node = self._parse(path, content)
        self.allow_symlinks = node is not None and _is_true(_at(node, "service", "allow_symlinks"))
        self._look_at(path)
        self._take(path, content, node, trail=())

    def _read_include(self, path: Path, named_at: YamlNode, where: str, trail: tuple[Path, ...]) -> None:
        real = Path(os.path.realpath(path))
        if real in trail:
            loop = " → ".join(files.shown_path(step) for step in (*trail[trail.index(real) :], real))
            self._complain(f"includes itself: {loop}", named_at, where)
            return
        if real in self.seen:
            return
        if len(trail) >= MAX_INCLUDE_DEPTH or len(self.files) >= MAX_FILES:
            most = f"{MAX_FILES} files, and includes may be nested {MAX_INCLUDE_DEPTH} deep"
            self._complain(f"{files.shown_path(path)} is not read: a configuration has at most {most}", named_at, where)
            return
        content = self._read(path, named_at, where, strict_yaml.MAX_BYTES)
        if content is not None:
            self._take(path, content, self._parse(path, content), trail)

    def _take(self, path: Path, content: bytes, node: YamlNode | None, trail: tuple[Path, ...]) -> None:
        """Merge one file, then what it includes: later entries override earlier ones."""
        real = Path(os.path.realpath(path))
        self.seen.add(real)
        self.files.append(SourceFile.of(path, content))
        if node is None:
            return
        self._check_place(path, node, is_root=not trail)
        for index, entry in enumerate(_items(_at(node, "environment_vars", "include"))):
            self._read_env(entry, f"environment_vars.include[{index}]")
        self.documents.append((path, node))
        self.merged = merge(self.merged, node)
        for index, entry in enumerate(_items(_at(node, "include"))):
            where = f"include[{index}]"
            for included in self._included(entry, where):
                self._read_include(included, entry, where, (*trail, real))

    def _included(self, entry: YamlNode, where: str) -> list[Path]:
        path = self._path(entry, where)
        if path is None:
            return []
        if os.path.isdir(path):
            self._look_at(path)
            return self._yaml_files_in(path, entry, where)
        if not os.path.lexists(path) and path not in self.replaced:
            hint = f"looked in {files.shown_path(path.parent)}; paths are relative to the file that names them"
            self._complain(f"there is no {files.shown_path(path)} ({hint})", entry, where)
            return []
        return [path]

    def _yaml_files_in(self, folder: Path, named_at: YamlNode, where: str) -> list[Path]:
        try:
            names = [entry.name for entry in files.entries_of(folder)]
        except files.FileRefused as error:
            self._complain(str(error), named_at, where)
            return []
        return [folder / name for name in names if name.endswith(".yaml") and not name.startswith(".")]

    def _read_env(self, entry: YamlNode, where: str) -> None:
        path = self._path(entry, where)
        content = self._read(path, entry, where, MAX_ENV_BYTES) if path else None
        if path is None or content is None:
            return
        self.files.append(SourceFile.of(path, content))
        try:
            values = read_env_file(content, source=str(path))
        except Unreadable as error:
            self.errors.append(Complaint(error.reason, mark=error.mark))
            return
        # The environment of the process wins over files, and earlier files over later ones.
        self.environment = values | self.environment

    def _read(self, path: Path, named_at: YamlNode, where: str, most: int) -> bytes | None:
        if not is_unicode(str(path)):
            self._complain(f"{files.shown_path(path)}: {_NAME_HELP}", named_at, where)
            return None
        try:
            self._look_at(path)
            if path in self.replaced:
                return self.replaced[path]
            return files.read_regular(Path(os.path.realpath(path)), max_bytes=most).content
        except files.FileRefused as error:
            self._complain(str(error), named_at, where)
            return None

    def _parse(self, path: Path, content: bytes) -> YamlNode | None:
        try:
            node = strict_yaml.load(content, source=str(path))
        except Unreadable as error:
            self.errors.append(Complaint(f"column {error.mark.column}: {error.reason}", mark=error.mark))
            return None
        if node.value is not None and not isinstance(node.value, dict):
            self.errors.append(Complaint("expected a mapping of keys to values at the top", mark=node.mark))
            return None
        return node

    def _check_place(self, path: Path, node: YamlNode, *, is_root: bool) -> None:
        members = node.value if isinstance(node.value, dict) else {}
        if "tokens" in members and path.name != TOKENS_FILE:
            self._complain(
                f"belongs into a file called {TOKENS_FILE}, reached by `include:`", members["tokens"], "tokens"
            )
        switch = _at(node, "service", "allow_symlinks")
        if switch is not None and not is_root:
            self._complain("counts only in the root file", switch, "service.allow_symlinks")
        elif switch is not None and "${" in switch.text:
            self._complain("must be written out: files are read before ${NAME} is", switch, "service.allow_symlinks")

    def _look_at(self, path: Path) -> None:
        """Note what is wrong with the owner, the mode and the symlinks of a path."""
        if not os.path.lexists(path):
            return
        try:
            findings = files.symlink_findings(path, allow=self.allow_symlinks) if path.is_file() else []
            findings += files.problems_of(path, private=True)
        except files.FileRefused as error:
            self.errors.append(Complaint(error.reason, mark=Mark(str(path), 1)))
            return
        for finding in findings:
            complaint = Complaint(f"{finding.path}: {finding.message}", category="permissions")
            kept = self.errors if finding.is_refusal else self.warnings
            if complaint not in kept:
                kept.append(complaint)

    def _path(self, entry: YamlNode, where: str) -> Path | None:
        """A path as it is written in a file: `~`, `${NAME}`, relative to that file."""
        if not isinstance(entry.value, str) or not entry.value.strip() or "\0" in entry.value:
            return None  # `structure` says why
        unset: list[str] = []
        text = substitute(entry.value, self.environment, used=lambda _: None, missing=unset.append)
        if unset:
            self._complain(unusable(unset[0], self.environment), entry, where)
            return None
        path = Path(text).expanduser() if text.startswith("~/") else Path(text)
        return Path(os.path.normpath(Path(entry.mark.source).parent / path))

    def _complain(self, message: str, node: YamlNode, path: str = "") -> None:
        self.errors.append(Complaint(message, path, node.mark))


_NAME_HELP = "the name is not UTF-8; the seal could not hold it"


def _at(node: YamlNode, *path: str) -> YamlNode | None:
    for name in path:
        if not isinstance(node.value, dict) or name not in node.value:
            return None
        node = node.value[name]
    return node


def _items(node: YamlNode | None) -> tuple[YamlNode, ...]:
    return node.value if node is not None and isinstance(node.value, tuple) else ()


def _is_true(node: YamlNode | None) -> bool:
    return node is not None and node.text.lower() in ("true", "yes", "on", "y")
