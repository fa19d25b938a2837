"""Which plugins there are: found below the roots, trusted or rejected with a reason, and known by their aliases.

One bad plugin never hides another. Knows nothing of plugin configuration: whether an entry has what its manifest
requires is the configuration's question. Called at start, at reload, by `config` and by `plugin` commands.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from attrs import evolve, field, frozen

from ductile.core.errors import Complaint, PluginRejected, did_you_mean
from ductile.core.files import FileFinding, FileRefused, Level, entries_of, is_folder, read_regular, shown_path
from ductile.core.formats.strict_yaml import MAX_BYTES
from ductile.plugin.fingerprint import (
    VIRTUALENV_MARK,
    FileIdentity,
    PluginFingerprint,
    is_skipped,
    take_fingerprint,
)
from ductile.plugin.manifest import FILE_NAME, Manifest, parse_manifest
from ductile.plugin.trust import TrustPolicy, Witness, place_findings, start_findings, trust_findings

__all__ = ["Discovery", "NamedPlugins", "Plugin", "PluginFingerprint", "Rejected", "discover", "resolve_aliases"]

MAX_DEPTH = 8
MAX_FOLDERS = 10_000
_SCRIPTS = ("run.py", "run.sh", "run.js", "run.ts", "main.py", "main.go", "index.js", "index.ts")


@frozen(kw_only=True)
class Plugin:
    """A plugin that may be run, under the name it is called by. `uses` is what an alias was made from."""

    name: str
    manifest: Manifest
    folder: Path
    entrypoint: Path
    root: Path
    fingerprint: PluginFingerprint = field(repr=False)
    policy: TrustPolicy = field(repr=False)
    identity: FileIdentity = field(repr=False)
    witness: Witness | None = field(repr=False)
    uses: str | None = None

    @property
    def base(self) -> str:
        """The name of the discovered plugin whose code this is."""
        return self.manifest.name

    def recheck(self) -> tuple[FileFinding, ...]:
        """What speaks against starting it now and did not when it was loaded; a changed entrypoint is a warning."""
        findings: list[FileFinding] = []
        if self.witness is None or not self.witness.still_holds():
            findings = trust_findings(self.policy, root=self.root, folder=self.folder, entrypoint=self.entrypoint)
        if not any(finding.is_refusal for finding in findings):
            findings += self._change_findings()
        return tuple(findings)

    def _change_findings(self) -> list[FileFinding]:
        try:
            unchanged = self.identity.is_of(os.stat(self.entrypoint))
        except OSError as error:
            return [FileFinding(Level.REFUSED, self.entrypoint, f"entrypoint is gone: {error.strerror}")]
        message = "entrypoint was changed after it was loaded; reload to accept it"
        return [] if unchanged else [FileFinding(Level.WARNING, self.entrypoint, message)]


@frozen
class Rejected:
    """A plugin that is there but is not used. `name` is the folder's where the manifest could not be read."""

    name: str
    reason: str
    path: Path


@frozen
class Discovery:
    """What the roots hold. `complaints` are about the roots themselves and stop a start."""

    plugins: Mapping[str, Plugin]
    rejected: tuple[Rejected, ...] = ()
    warnings: tuple[Complaint, ...] = ()
    complaints: tuple[Complaint, ...] = ()


@frozen
class NamedPlugins:
    """Every name that can be called, and what is wrong with the aliases that cannot."""

    plugins: Mapping[str, Plugin]
    complaints: tuple[Complaint, ...] = ()


def discover(roots: Iterable[Path], *, allow_symlinks: bool = False) -> Discovery:
    """Every plugin below `roots`; of plugins with the same name, the first one found."""
    roots = tuple(dict.fromkeys(Path(os.path.abspath(root)) for root in roots))
    policy = TrustPolicy(tuple(Path(os.path.realpath(root)) for root in roots), allow_symlinks)
    search = _Search(policy)
    for root in roots:
        for folder in search.plugin_folders(root):
            search.take(root, folder)
    return Discovery(
        search.plugins,
        tuple(search.rejected),
        tuple(dict.fromkeys(search.warnings)),
        tuple(search.complaints),
    )


def resolve_aliases(
    plugins: Mapping[str, Plugin], uses: Mapping[str, str], *, rejected: Sequence[Rejected] = ()
) -> NamedPlugins:
    """`plugins` and every alias that `uses` (alias → plugin or alias) makes of them, in whatever order."""
    named = dict(plugins)
    complaints = []
    for alias, base in uses.items():
        chain = _chain(alias, uses, plugins)
        origin = plugins.get(chain[-1])
        if problem := _alias_problem(alias, chain, plugins, uses, rejected):
            complaints.append(Complaint(problem, f"plugins.{alias}.uses", category="plugin_refs"))
        elif origin is not None:
            fingerprint = evolve(origin.fingerprint, name=alias)
            named[alias] = evolve(origin, name=alias, uses=base, fingerprint=fingerprint)
    return NamedPlugins(named, tuple(complaints))


def _chain(alias: str, uses: Mapping[str, str], plugins: Mapping[str, Plugin]) -> list[str]:
    """The names from `alias` to a plugin, to a name nobody knows, or to the first name that comes twice."""
    chain, seen = [alias], {alias}
    while (following := uses.get(chain[-1])) is not None:
        chain.append(following)
        if following in plugins or following in seen:
            break
        seen.add(following)
    return chain


def _alias_problem(
    alias: str,
    chain: Sequence[str],
    plugins: Mapping[str, Plugin],
    uses: Mapping[str, str],
    rejected: Sequence[Rejected],
) -> str | None:
    end = chain[-1]
    # 1. The name is taken.
    if alias in plugins:
        return (
            f"{alias!r} is already the name of the plugin at {shown_path(plugins[alias].folder)}; choose another alias"
        )
    # 2. The chain ends well.
    if end in plugins:
        return None
    # 3. It never ends.
    if end in chain[:-1]:
        return f"aliases go in a circle: {' → '.join(chain)}"
    # 4. It ends at a plugin that is there but not used, or at nothing.
    for other in rejected:
        if other.name == end:
            return f"plugin {end!r} is not usable: {other.reason}"
    known = [name for name in (*plugins, *uses) if name != alias]
    return f"there is no plugin or alias named {end!r}{did_you_mean(end, known)}"


class _Search:
    """One walk over the roots: what it found, and what it has to say about it."""

    def __init__(self, policy: TrustPolicy) -> None:
        self.policy = policy
        self.plugins: dict[str, Plugin] = {}
        self.rejected: list[Rejected] = []
        self.warnings: list[Complaint] = []
        self.complaints: list[Complaint] = []
        self._seen: set[tuple[int, int]] = set()

    def plugin_folders(self, root: Path) -> Iterator[Path]:
        """The folders at or below `root` that hold a manifest, in sorted order; nothing below such a folder."""
        pending = [(root, 0)]
        visited = 0
        while pending:
            folder, depth = pending.pop()
            visited += 1
            if visited > MAX_FOLDERS:
                self._warn(root, f"holds more than {MAX_FOLDERS} folders; the rest is not searched for plugins")
                return
            try:
                if not self._is_new(folder):
                    continue
                entries = {entry.name: entry for entry in entries_of(folder)}
            except FileRefused as refusal:
                self._cannot_search(root, folder, refusal)
                continue
            if FILE_NAME in entries:
                yield folder
            elif VIRTUALENV_MARK not in entries:
                self._hint(folder, depth, entries)
                inner = [path for path in self._subfolders(folder, entries.values()) if self._is_shallow(path, depth)]
                pending.extend((path, depth + 1) for path in reversed(inner))

    def take(self, root: Path, folder: Path) -> None:
        """The plugin in `folder` is among the plugins or among the rejected."""
        name, follow = folder.name, self.policy.allow_symlinks
        try:
            manifest_file = read_regular(folder / FILE_NAME, max_bytes=MAX_BYTES, follow_symlinks=follow)
            manifest = parse_manifest(manifest_file.content, source=shown_path(manifest_file.path))
            name = manifest.name
            entrypoint = Path(os.path.normpath(folder / manifest.entrypoint))
            # Before judging, so that whatever changes afterwards differs from it.
            witness = Witness.of(manifest_file.path, entrypoint)
            self._heed(trust_findings(self.policy, root=root, folder=folder, entrypoint=entrypoint))
            taken = take_fingerprint(name, manifest_file, entrypoint, follow_symlinks=follow)
            # The files that were really opened: a link may have moved since the question above.
            self._heed(place_findings(self.policy, manifest_file.path, manifest_file.resolved))
            self._heed(place_findings(self.policy, entrypoint, taken.fingerprint.entrypoint_resolved_path))
            self._heed((*taken.findings, *start_findings(entrypoint, follow_symlinks=follow)))
        except (FileRefused, PluginRejected) as refusal:
            self.rejected.append(Rejected(name, str(refusal), folder))
            return
        self.warnings.extend(manifest.warnings)
        self._admit(
            Plugin(
                name=name,
                manifest=manifest,
                folder=folder,
                entrypoint=entrypoint,
                root=root,
                fingerprint=taken.fingerprint,
                policy=self.policy,
                identity=taken.entrypoint,
                witness=witness,
            )
        )

    def _admit(self, plugin: Plugin) -> None:
        first = self.plugins.setdefault(plugin.name, plugin)
        if first is not plugin:
            self._warn(plugin.folder, f"plugin {plugin.name!r} is not used: {shown_path(first.folder)} comes first")

    def _heed(self, findings: Iterable[FileFinding]) -> None:
        """Warnings are kept; refusals are raised, all together."""
        refusals = []
        for finding in findings:
            if finding.is_refusal:
                refusals.append(str(finding))
            else:
                self._warn(finding.path, finding.message)
        if refusals:
            raise PluginRejected("\n".join(refusals))

    def _is_new(self, folder: Path) -> bool:
        """False for a folder that was searched before: through a link, or as part of another root."""
        try:
            status = os.stat(folder)
        except OSError as error:
            raise FileRefused(folder, (error.strerror or str(error)).lower()) from error
        identity = (status.st_dev, status.st_ino)
        is_new = identity not in self._seen
        self._seen.add(identity)
        return is_new

    def _cannot_search(self, root: Path, folder: Path, refusal: FileRefused) -> None:
        if folder != root:
            self._warn(folder, f"is not searched for plugins: {refusal.reason}")
            return
        message = f"plugin root cannot be searched: {refusal.reason}; create it or take it out of plugin_roots"
        self.complaints.append(Complaint(message, shown_path(root), category="plugin_refs"))

    def _subfolders(self, folder: Path, entries: Iterable[os.DirEntry[str]]) -> Iterator[Path]:
        for entry in entries:
            if is_skipped(entry.name):
                continue
            path = folder / entry.name
            if is_folder(entry):
                yield path
            elif os.path.islink(path) and os.path.isdir(path):
                if self.policy.allow_symlinks:
                    yield path
                else:
                    self._leave_link(path)

    def _leave_link(self, link: Path) -> None:
        reason = "is a symlink; set service.allow_symlinks: true to permit this"
        if os.path.lexists(link / FILE_NAME):
            self.rejected.append(Rejected(link.name, f"{shown_path(link)}: {reason}", link))
        else:
            self._warn(link, f"is not searched for plugins: it {reason}")

    def _is_shallow(self, folder: Path, depth: int) -> bool:
        if depth < MAX_DEPTH:
            return True
        self._warn(folder, f"is not searched for plugins: more than {MAX_DEPTH} folders below the root")
        return False

    def _hint(self, folder: Path, depth: int, names: Iterable[str]) -> None:
        """A folder directly below a root that looks like a plugin but is none deserves a word."""
        if depth != 1:
            return
        if "manifest.yml" in names:
            self._warn(folder, f"has a manifest.yml; rename it to {FILE_NAME}")
        elif script := next((name for name in names if name in _SCRIPTS), None):
            self._warn(folder, f"has a {script} but no {FILE_NAME}, so it is not a plugin")

    def _warn(self, path: Path, message: str) -> None:
        self.warnings.append(Complaint(message, shown_path(path), category="plugin_refs"))
