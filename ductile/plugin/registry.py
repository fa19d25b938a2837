"""Plugin discovery: find plugins below the roots, accept or reject each with a reason, resolve aliases.

An invalid plugin does not affect others. Knows nothing of plugin configuration: `config` checks whether an entry has
the keys that its manifest requires.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from attrs import evolve, field, frozen

from ductile.core.errors import Complaint, PluginRejected, did_you_mean
from ductile.core.files import FileFinding, FileRefused, display_path, is_folder, list_entries, read_regular
from ductile.core.formats.strict_yaml import MAX_BYTES
from ductile.plugin.fingerprint import (
    VIRTUALENV_FILE,
    FingerprintResult,
    PluginFingerprint,
    compute_fingerprint,
    is_skipped,
)
from ductile.plugin.manifest import FILE_NAME, Manifest, parse_manifest
from ductile.plugin.trust import PathSnapshot, TrustPolicy, check_location, check_startable, check_trust

__all__ = ["Discovery", "NamedPlugins", "Plugin", "PluginFingerprint", "RejectedPlugin", "discover", "resolve_aliases"]

MAX_DEPTH = 8
MAX_FOLDERS = 10_000
_SCRIPTS = ("run.py", "run.sh", "run.js", "run.ts", "main.py", "main.go", "index.js", "index.ts")


@frozen(kw_only=True)
class Plugin:
    """A trusted plugin under one of its names. `uses` is the plugin or alias that an alias refers to."""

    name: str
    manifest: Manifest
    folder: Path
    entrypoint: Path
    root: Path
    loaded: FingerprintResult = field(repr=False)
    """The hashes of its files when it was loaded."""
    policy: TrustPolicy = field(repr=False)
    path_snapshot: PathSnapshot | None = field(repr=False)
    uses: str | None = None

    @property
    def base(self) -> str:
        """The name of the discovered plugin behind an alias."""
        return self.manifest.name

    @property
    def fingerprint(self) -> PluginFingerprint:
        return self.loaded.fingerprint

    def recheck(self) -> tuple[FileFinding, ...]:
        """Repeat the trust check before a start."""
        if self.path_snapshot is not None and self.path_snapshot.is_unchanged():
            return ()
        return tuple(check_trust(self.policy, root=self.root, folder=self.folder, entrypoint=self.entrypoint))

    def hash_files(self) -> FingerprintResult:
        """Hash the files on disk again. Raises FileRefused if the manifest or the entrypoint cannot be read."""
        follow = self.policy.allow_symlinks
        manifest = read_regular(self.folder / FILE_NAME, max_bytes=MAX_BYTES, follow_symlinks=follow)
        return compute_fingerprint(self.name, manifest, self.entrypoint, follow_symlinks=follow)


@frozen
class RejectedPlugin:
    """A plugin that was found but is not used. `name` is the folder's name if the manifest is invalid."""

    name: str
    reason: str
    path: Path


@frozen
class Discovery:
    """The plugins below the roots. `complaints` concern the roots themselves and prevent a start."""

    plugins: Mapping[str, Plugin]
    rejected: tuple[RejectedPlugin, ...] = ()
    warnings: tuple[Complaint, ...] = ()
    complaints: tuple[Complaint, ...] = ()


@frozen
class NamedPlugins:
    """Plugins by name, including aliases, and the errors of invalid aliases."""

    plugins: Mapping[str, Plugin]
    complaints: tuple[Complaint, ...] = ()


def discover(roots: Iterable[Path], *, allow_symlinks: bool = False) -> Discovery:
    """Find all plugins below `roots`. Of plugins with the same name, the first one found wins."""
    roots = tuple(dict.fromkeys(Path(os.path.abspath(root)) for root in roots))
    policy = TrustPolicy(tuple(Path(os.path.realpath(root)) for root in roots), allow_symlinks)
    search = _Search(policy)
    for root in roots:
        for folder in search.plugin_folders(root):
            search.load(root, folder)
    return Discovery(
        search.plugins,
        tuple(search.rejected),
        tuple(dict.fromkeys(search.warnings)),
        tuple(search.complaints),
    )


def resolve_aliases(
    plugins: Mapping[str, Plugin], uses: Mapping[str, str], *, rejected: Sequence[RejectedPlugin] = ()
) -> NamedPlugins:
    """Return `plugins` together with the aliases in `uses` (alias → plugin or alias, in any order)."""
    named = dict(plugins)
    complaints = []
    for alias, base in uses.items():
        chain = _chain(alias, uses, plugins)
        origin = plugins.get(chain[-1])
        if problem := _alias_problem(alias, chain, plugins, uses, rejected):
            complaints.append(Complaint(problem, f"plugins.{alias}.uses", category="plugin_refs"))
        elif origin is not None:
            loaded = evolve(origin.loaded, fingerprint=evolve(origin.fingerprint, name=alias))
            named[alias] = evolve(origin, name=alias, uses=base, loaded=loaded)
    return NamedPlugins(named, tuple(complaints))


def _chain(alias: str, uses: Mapping[str, str], plugins: Mapping[str, Plugin]) -> list[str]:
    """Return the names from `alias` to a plugin, an unknown name, or the first repeated name."""
    chain, seen = [alias], {alias}
    while (name := uses.get(chain[-1])) is not None:
        chain.append(name)
        if name in plugins or name in seen:
            break
        seen.add(name)
    return chain


def _alias_problem(
    alias: str,
    chain: Sequence[str],
    plugins: Mapping[str, Plugin],
    uses: Mapping[str, str],
    rejected: Sequence[RejectedPlugin],
) -> str | None:
    end = chain[-1]
    # 1. The name is in use.
    if alias in plugins:
        folder = display_path(plugins[alias].folder)
        return f"{alias!r} is already the name of the plugin at {folder}; choose another alias"
    # 2. The chain ends at a plugin.
    if end in plugins:
        return None
    # 3. It never ends.
    if end in chain[:-1]:
        return f"aliases form a cycle: {' → '.join(chain)}"
    # 4. It ends at a rejected plugin, or at an unknown name.
    for other in rejected:
        if other.name == end:
            return f"plugin {end!r} is not usable: {other.reason}"
    known = [name for name in (*plugins, *uses) if name != alias]
    return f"no plugin or alias is named {end!r}{did_you_mean(end, known)}"


class _Search:
    """One search of the roots and its results."""

    def __init__(self, policy: TrustPolicy) -> None:
        self.policy = policy
        self.plugins: dict[str, Plugin] = {}
        self.rejected: list[RejectedPlugin] = []
        self.warnings: list[Complaint] = []
        self.complaints: list[Complaint] = []
        self._seen: set[tuple[int, int]] = set()

    def plugin_folders(self, root: Path) -> Iterator[Path]:
        """Yield the folders at or below `root` that contain a manifest, sorted. Does not search below them."""
        pending = [(root, 0)]
        visited = 0
        while pending:
            folder, depth = pending.pop()
            visited += 1
            if visited > MAX_FOLDERS:
                self._warn(root, f"contains more than {MAX_FOLDERS} folders; the rest is not searched for plugins")
                return
            try:
                if not self._is_new(folder):
                    continue
                entries = {entry.name: entry for entry in list_entries(folder)}
            except FileRefused as refusal:
                self._cannot_search(root, folder, refusal)
                continue
            if FILE_NAME in entries:
                yield folder
            elif VIRTUALENV_FILE not in entries:
                self._hint(folder, depth, entries)
                inner = [path for path in self._subfolders(folder, entries.values()) if self._is_shallow(path, depth)]
                pending.extend((path, depth + 1) for path in reversed(inner))

    def load(self, root: Path, folder: Path) -> None:
        """Load the plugin in `folder` and add it to the plugins or to the rejected ones."""
        name, follow = folder.name, self.policy.allow_symlinks
        try:
            manifest_file = read_regular(folder / FILE_NAME, max_bytes=MAX_BYTES, follow_symlinks=follow)
            manifest = parse_manifest(manifest_file.content, source=display_path(manifest_file.path))
            name = manifest.name
            entrypoint = Path(os.path.normpath(folder / manifest.entrypoint))
            # Before the checks, so that any later change is detected.
            path_snapshot = PathSnapshot.of(manifest_file.path, entrypoint)
            self._apply(check_trust(self.policy, root=root, folder=folder, entrypoint=entrypoint))
            result = compute_fingerprint(name, manifest_file, entrypoint, follow_symlinks=follow)
            # The files that were actually opened: a symlink may have changed since the check above.
            self._apply(check_location(self.policy, manifest_file.path, manifest_file.resolved))
            self._apply(check_location(self.policy, entrypoint, result.fingerprint.entrypoint_resolved_path))
            self._apply((*result.findings, *check_startable(entrypoint, follow_symlinks=follow)))
        except (FileRefused, PluginRejected) as refusal:
            self.rejected.append(RejectedPlugin(name, str(refusal), folder))
            return
        self.warnings.extend(manifest.warnings)
        self._add(
            Plugin(
                name=name,
                manifest=manifest,
                folder=folder,
                entrypoint=entrypoint,
                root=root,
                loaded=result,
                policy=self.policy,
                path_snapshot=path_snapshot,
            )
        )

    def _add(self, plugin: Plugin) -> None:
        first = self.plugins.setdefault(plugin.name, plugin)
        if first is not plugin:
            message = f"plugin {plugin.name!r} is not used: {display_path(first.folder)} has the same name"
            self._warn(plugin.folder, message)

    def _apply(self, findings: Iterable[FileFinding]) -> None:
        """Store warnings. Raises PluginRejected with all refusals."""
        refusals = []
        for finding in findings:
            if finding.is_refusal:
                refusals.append(str(finding))
            else:
                self._warn(finding.path, finding.message)
        if refusals:
            raise PluginRejected("\n".join(refusals))

    def _is_new(self, folder: Path) -> bool:
        """False for a folder that was already searched through a symlink or another root."""
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
        message = f"plugin root cannot be searched: {refusal.reason}; create it or remove it from plugin_roots"
        self.complaints.append(Complaint(message, display_path(root), category="plugin_refs"))

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
                    self._skip_link(path)

    def _skip_link(self, link: Path) -> None:
        reason = "is a symlink; set service.allow_symlinks: true to permit this"
        if os.path.lexists(link / FILE_NAME):
            self.rejected.append(RejectedPlugin(link.name, f"{display_path(link)}: {reason}", link))
        else:
            self._warn(link, f"is not searched for plugins: it {reason}")

    def _is_shallow(self, folder: Path, depth: int) -> bool:
        if depth < MAX_DEPTH:
            return True
        self._warn(folder, f"is not searched for plugins: more than {MAX_DEPTH} folders below the root")
        return False

    def _hint(self, folder: Path, depth: int, names: Iterable[str]) -> None:
        """Warn about a folder directly below a root that looks like a plugin but has no manifest."""
        if depth != 1:
            return
        if "manifest.yml" in names:
            self._warn(folder, f"has a manifest.yml; rename it to {FILE_NAME}")
        elif script := next((name for name in names if name in _SCRIPTS), None):
            self._warn(folder, f"has a {script} but no {FILE_NAME}, so it is not a plugin")

    def _warn(self, path: Path, message: str) -> None:
        self.warnings.append(Complaint(message, display_path(path), category="plugin_refs"))
