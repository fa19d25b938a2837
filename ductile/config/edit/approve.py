"""Seal a configuration: record the current files and plugins as approved."""

from collections.abc import Collection
from datetime import datetime
from pathlib import Path

from attrs import evolve, field, frozen

from ductile.config.checks.examine import Examination, examine, sealed_plugins
from ductile.config.checksums import Seal, build_seal, changes, has_same_approvals, render_seal
from ductile.config.files.atomic_write import finish_pending, lock_config
from ductile.config.load.load import Config, load
from ductile.core import files
from ductile.core.clock import to_text
from ductile.core.errors import Complaint, ConfigInvalid, NotFound, did_you_mean
from ductile.core.formats import strict_yaml
from ductile.core.instance.actors import process_actor


@frozen
class SealResult:
    """A seal, its path, and the changes from the previous seal."""

    path: Path
    seal: Seal
    changes: list[str]
    content: bytes = field(repr=False)


def seal_configuration(root: Path, *, now: datetime, dry_run: bool = False) -> SealResult:
    """Seal all loaded files and configured plugins. Raises ConfigInvalid if an enabled plugin is not installed."""
    with lock_config(root.parent):
        finish_pending(root.parent)
        return seal_locked(root, now=now, dry_run=dry_run)


def seal_locked(root: Path, *, now: datetime, dry_run: bool = False) -> SealResult:
    """Seal the configuration; the caller holds the edit lock and has finished interrupted edits."""
    config = load(root, verify=False, alone=True)
    sealed = prepare_seal(config, examine(config), now=now)
    before = config.seal
    if not dry_run and not (before and before.is_complete and has_same_approvals(before, sealed.seal)):
        files.write_private(sealed.path, sealed.content)
    return sealed


def seal_plugins(root: Path, names: Collection[str] | None, *, now: datetime, dry_run: bool = False) -> SealResult:
    """Seal the current files of these plugins, or of all configured plugins. The rest of the seal is unchanged."""
    with lock_config(root.parent):
        finish_pending(root.parent)
        return _seal_plugins_locked(root, names, now=now, dry_run=dry_run)


def _seal_plugins_locked(root: Path, names: Collection[str] | None, *, now: datetime, dry_run: bool) -> SealResult:
    config = load(root, verify=False, alone=True)
    before, found = config.seal, sealed_plugins(config, examine(config).found)
    if before is None or not before.is_complete:
        raise ConfigInvalid([Complaint("there is no complete seal")], hint="Create one with `ductile config lock`.")
    for name in names or ():
        if name not in found:
            known = f"Configured and installed: {', '.join(sorted(found)) or 'none'}"
            raise NotFound(f"plugin {name!r} is not configured{did_you_mean(name, found)}", hint=known)
    chosen = {name: found[name] for name in (found if names is None else names)}
    plugins = {**before.plugins, **chosen}
    seal = evolve(before, plugins=plugins, generated_at=to_text(now), sealed_by=process_actor())
    sealed = SealResult(config.seal_path, seal, changes(before, seal), render_seal(seal))
    if not dry_run and not has_same_approvals(before, seal):
        files.write_private(sealed.path, sealed.content)
    return sealed


def prepare_seal(config: Config, examination: Examination, *, now: datetime) -> SealResult:
    """Build the seal of this configuration without writing it."""
    missing = [
        config.complaint(f"cannot be sealed: it {reason}", f"plugins.{name}", "plugin_refs")
        for name, reason in examination.unusable.items()
        if name not in examination.found and config.settings.plugins[name].enabled
    ]
    if missing:
        raise ConfigInvalid(missing, hint="Remove the entries or install the plugins, then seal again.")
    seal = build_seal(config.files, sealed_plugins(config, examination.found), now, actor=process_actor())
    content = render_seal(seal)
    if len(content) > strict_yaml.MAX_BYTES:
        raise ConfigInvalid(
            [Complaint(f"the seal would exceed {strict_yaml.MAX_BYTES} bytes; the plugins have too many files")]
        )
    return SealResult(config.seal_path, seal, changes(config.seal, seal), content)
