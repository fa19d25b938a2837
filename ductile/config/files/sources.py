"""Read the files of a configuration with their includes and `.env` files, and merge them into one tree.

Every file is read once; the same bytes are hashed, verified and parsed. Knows YAML trees, not sections.
"""

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from attrs import frozen
from blake3 import blake3

from ductile.config.files.interpolate import is_utf8, parse_env_file, substitute, unusable_reason
from ductile.core import files
from ductile.core.errors import Complaint, ConfigMissing, Mark, Unreadable, did_you_mean
from ductile.core.formats import strict_yaml
from ductile.core.formats.strict_yaml import YamlNode

CONFIG_FILE = "config.yaml"
TOKENS_FILE = "tokens.yaml"
HIGH_TIER_FILES = (TOKENS_FILE, "webhooks.yaml")
MAX_ENV_BYTES = 1 << 20
MAX_FILES = 1000
MAX_INCLUDE_DEPTH = 32
SIMILAR_FILE = 0.9
"""All names share their extension."""
NO_REPLACEMENTS: Mapping[Path, bytes] = {}


class Tier(StrEnum):
    """Protection level of a file: `high` for files that control access, `operational` for all others."""

    HIGH = "high"
    OPERATIONAL = "operational"


@frozen
class SourceFile:
    """A file as it was read. The hash covers the bytes that are parsed."""

    path: Path
    content: bytes
    tier: Tier
    digest: str

    def __repr__(self) -> str:
        return f"SourceFile({files.display_path(self.path)})"

    @classmethod
    def of(cls, path: Path, content: bytes, tier: Tier | None = None) -> "SourceFile":
        tier = tier or (Tier.HIGH if path.name in HIGH_TIER_FILES else Tier.OPERATIONAL)
        return cls(path, content, tier, blake3(content).hexdigest())


@frozen
class Sources:
    """The files of one configuration, merged in order."""

    root: YamlNode
    documents: tuple[tuple[Path, YamlNode], ...]
    """Each YAML file with its own tree, in merge order."""
    files: tuple[SourceFile, ...]
    environment: Mapping[str, str]
    allow_symlinks: bool
    errors: tuple[Complaint, ...]
    warnings: tuple[Complaint, ...]

    def __repr__(self) -> str:
        return f"Sources({', '.join(files.display_path(file.path) for file in self.files)})"


@frozen
class ConfigLocation:
    """The path of the configuration and how it was determined."""

    path: Path
    origin: str


def find_config(explicit: Path | None, environ: Mapping[str, str]) -> ConfigLocation:
    """Return the configuration file: the given file or directory, otherwise the first default location that exists.

    Raises ConfigMissing if there is none.
    """
    if explicit is not None:
        return ConfigLocation(_config_file(explicit), "explicit")
    if (directory := environ.get("DUCTILE_CONFIG_DIR")) and os.path.isdir(directory):
        return ConfigLocation(_config_file(Path(directory)), "env:DUCTILE_CONFIG_DIR")
    for candidate in (Path.home() / ".config/ductile", Path("/etc/ductile")):
        if (candidate / CONFIG_FILE).exists():
            return ConfigLocation(candidate / CONFIG_FILE, "auto-discovered")
    raise ConfigMissing(
        "no configuration found in $DUCTILE_CONFIG_DIR, ~/.config/ductile or /etc/ductile",
        hint="Create one with `ductile config init`, or pass its path with --config.",
    )


def read_sources(
    root: Path, environ: Mapping[str, str], *, replaced: Mapping[Path, bytes] = NO_REPLACEMENTS
) -> Sources:
    """Read `root` and all files it includes. Unreadable files are reported in `errors`; the others are still read.

    `replaced` maps files to contents that are used instead of the files on disk.
    """
    reader = _SourceReader(environment=dict(environ), replaced=replaced)
    reader.read_root(root)
    return Sources(
        root=reader.merged or YamlNode({}, Mark(str(root), 1)),
        documents=tuple(reader.documents),
        files=tuple(reader.files),
        environment=reader.environment,
        allow_symlinks=reader.allow_symlinks,
        errors=tuple(reader.errors),
        warnings=tuple(dict.fromkeys(reader.warnings)),
    )


def merge(earlier: YamlNode | None, later: YamlNode) -> YamlNode:
    """Merge two trees: mappings by key, lists appended; otherwise the later value wins."""
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


class _SourceReader:
    """State of one pass through the files."""

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
        # `allow_symlinks` is in the root file, so the root is read before it is known.
        try:
            content = self.replaced.get(path)
            if content is None:
                content = files.read_regular(path, max_bytes=strict_yaml.MAX_BYTES, follow_symlinks=True).content
        except files.FileMissing as error:
            hint = "Create one with `ductile config init`, or pass another path with --config."
            raise ConfigMissing(f"the configuration {path} does not exist", hint=hint) from error
        except files.FileRefused as error:
            self.errors.append(Complaint(error.reason, mark=Mark(str(path), 1)))
            return
        if not is_utf8(str(path)):
            self.errors.append(Complaint(_NAME_ERROR, mark=Mark(files.display_path(path), 1)))
            return
        self._check_permissions(path.parent)
        node = self._parse(path, content)
        self.allow_symlinks = node is not None and _is_true(_at(node, "service", "allow_symlinks"))
        self._check_permissions(path)
        self._add(path, content, node, ancestors=())

    def _read_include(self, path: Path, referrer: YamlNode, where: str, ancestors: tuple[Path, ...]) -> None:
        real = Path(os.path.realpath(path))
        if real in ancestors:
            loop = " → ".join(files.display_path(step) for step in (*ancestors[ancestors.index(real) :], real))
            self._report(f"includes itself: {loop}", referrer, where)
            return
        if real in self.seen:
            return
        if len(ancestors) >= MAX_INCLUDE_DEPTH or len(self.files) >= MAX_FILES:
            limits = f"at most {MAX_FILES} files, nested at most {MAX_INCLUDE_DEPTH} levels deep"
            self._report(f"{files.display_path(path)} is not read: a configuration has {limits}", referrer, where)
            return
        content = self._read(path, referrer, where, strict_yaml.MAX_BYTES)
        if content is not None:
            self._add(path, content, self._parse(path, content), ancestors)

    def _add(self, path: Path, content: bytes, node: YamlNode | None, ancestors: tuple[Path, ...]) -> None:
        """Merge a file, then the files it includes. Later values override earlier ones."""
        real = Path(os.path.realpath(path))
        self.seen.add(real)
        self.files.append(SourceFile.of(path, content))
        if node is None:
            return
        self._check_location(path, node, is_root=not ancestors)
        for index, entry in enumerate(_items(_at(node, "environment_vars", "include"))):
            self._read_env(entry, f"environment_vars.include[{index}]")
        self.documents.append((path, node))
        self.merged = merge(self.merged, node)
        for index, entry in enumerate(_items(_at(node, "include"))):
            where = f"include[{index}]"
            for included in self._included(entry, where):
                self._read_include(included, entry, where, (*ancestors, real))

    def _included(self, entry: YamlNode, where: str) -> list[Path]:
        path = self._path(entry, where)
        if path is None:
            return []
        if os.path.isdir(path):
            self._check_permissions(path)
            return self._yaml_files_in(path, entry, where)
        if not os.path.lexists(path) and path not in self.replaced:
            place = f"searched in {files.display_path(path.parent)}; paths are relative to the file that contains them"
            hint = did_you_mean(path.name, _names_in(path.parent), cutoff=SIMILAR_FILE)
            self._report(f"{files.display_path(path)} does not exist{hint} ({place})", entry, where)
            return []
        return [path]

    def _yaml_files_in(self, folder: Path, referrer: YamlNode, where: str) -> list[Path]:
        try:
            names = [entry.name for entry in files.list_entries(folder)]
        except files.FileRefused as error:
            self._report(str(error), referrer, where)
            return []
        return [folder / name for name in names if name.endswith(".yaml") and not name.startswith(".")]

    def _read_env(self, entry: YamlNode, where: str) -> None:
        path = self._path(entry, where)
        content = self._read(path, entry, where, MAX_ENV_BYTES) if path else None
        if path is None or content is None:
            return
        self.files.append(SourceFile.of(path, content))
        try:
            values = parse_env_file(content, source=str(path))
        except Unreadable as error:
            self.errors.append(Complaint(error.reason, mark=error.mark))
            return
        # The process environment overrides files, and earlier files override later ones.
        self.environment = values | self.environment

    def _read(self, path: Path, referrer: YamlNode, where: str, max_bytes: int) -> bytes | None:
        if not is_utf8(str(path)):
            self._report(f"{files.display_path(path)}: {_NAME_ERROR}", referrer, where)
            return None
        try:
            self._check_permissions(path)
            if path in self.replaced:
                return self.replaced[path]
            return files.read_regular(Path(os.path.realpath(path)), max_bytes=max_bytes).content
        except files.FileRefused as error:
            self._report(str(error), referrer, where)
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

    def _check_location(self, path: Path, node: YamlNode, *, is_root: bool) -> None:
        members = node.value if isinstance(node.value, dict) else {}
        if "tokens" in members and path.name != TOKENS_FILE:
            self._report(f"is only allowed in an included file named {TOKENS_FILE}", members["tokens"], "tokens")
        switch = _at(node, "service", "allow_symlinks")
        if switch is not None and not is_root:
            self._report("is only allowed in the root file", switch, "service.allow_symlinks")
        elif switch is not None and "${" in switch.text:
            self._report(
                "must not use ${NAME}: it is needed before variables are known", switch, "service.allow_symlinks"
            )

    def _check_permissions(self, path: Path) -> None:
        """Report problems with the owner, the mode and the symlinks of a path."""
        if not os.path.lexists(path):
            return
        try:
            findings = files.check_symlinks(path, allow=self.allow_symlinks) if path.is_file() else []
            findings += files.check_path(path, private=True)
        except files.FileRefused as error:
            self.errors.append(Complaint(error.reason, mark=Mark(str(path), 1)))
            return
        for finding in findings:
            complaint = Complaint(f"{finding.path}: {finding.message}", category="permissions")
            complaints = self.errors if finding.is_refusal else self.warnings
            if complaint not in complaints:
                complaints.append(complaint)

    def _path(self, entry: YamlNode, where: str) -> Path | None:
        """Resolve a path in a file: `~`, `${NAME}`, relative to that file."""
        if not isinstance(entry.value, str) or not entry.value.strip() or "\0" in entry.value:
            return None  # `structure` reports the error
        unset: list[str] = []
        text = substitute(entry.value, self.environment, used=lambda _: None, missing=unset.append)
        if unset:
            self._report(unusable_reason(unset[0], self.environment), entry, where)
            return None
        path = Path(text).expanduser() if text.startswith("~/") else Path(text)
        return Path(os.path.normpath(Path(entry.mark.source).parent / path))

    def _report(self, message: str, node: YamlNode, path: str = "") -> None:
        self.errors.append(Complaint(message, path, node.mark))


_NAME_ERROR = "the file name is not UTF-8 and cannot be sealed"


def _names_in(folder: Path) -> list[str]:
    """Return the names in the folder, or none if it cannot be read."""
    try:
        return [entry.name for entry in files.list_entries(folder)]
    except files.FileRefused:
        return []


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
