"""Sealing: the configuration as it is now becomes the approved one."""

from collections.abc import Collection
from datetime import datetime
from pathlib import Path

from attrs import evolve, field, frozen

from ductile.config.checks.doctor import Examination, examine, sealed_plugins
from ductile.config.edit.atomic_write import finish, only_editor
from ductile.config.load.load import Config, load
from ductile.config.seal.checksums import Seal, approves_the_same, changes, make_seal, render
from ductile.core import files
from ductile.core.clock import to_text
from ductile.core.errors import Complaint, ConfigInvalid, NotFound, did_you_mean
from ductile.core.formats import strict_yaml


@frozen
class Sealed:
    """A seal, where it lies, and how it differs from the one before."""

    path: Path
    seal: Seal
    changes: list[str]
    content: bytes = field(repr=False)


def seal_configuration(root: Path, *, now: datetime, dry_run: bool = False) -> Sealed:
    """Everything that is loaded, and every configured plugin, is sealed; an enabled one that is not there stops it."""
    with only_editor(root.parent):
        finish(root.parent)
        return seal_alone(root, now=now, dry_run=dry_run)


def seal_alone(root: Path, *, now: datetime, dry_run: bool = False) -> Sealed:
    """The same for the only editor, after what was interrupted is finished."""
    config = load(root, verify=False, alone=True)
    sealed = seal_of(config, examine(config), now=now)
    before = config.seal
    if not dry_run and not (before and before.is_complete and approves_the_same(before, sealed.seal)):
        files.write_private(sealed.path, sealed.content)
    return sealed


def seal_plugins(root: Path, names: Collection[str] | None, *, now: datetime, dry_run: bool = False) -> Sealed:
    """These configured plugins (None: all) are approved as they are now; the rest of the seal stays as it is."""
    with only_editor(root.parent):
        finish(root.parent)
        return _seal_plugins_alone(root, names, now=now, dry_run=dry_run)


def _seal_plugins_alone(root: Path, names: Collection[str] | None, *, now: datetime, dry_run: bool) -> Sealed:
    config = load(root, verify=False, alone=True)
    before, found = config.seal, sealed_plugins(config, examine(config).found)
    if before is None or not before.is_complete:
        raise ConfigInvalid([Complaint("there is no complete seal yet")], hint="make one with `ductile config lock`")
    for name in names or ():
        if name not in found:
            known = f"configured and there: {', '.join(sorted(found)) or 'none'}"
            raise NotFound(f"there is no configured plugin {name!r}{did_you_mean(name, found)}", hint=known)
    chosen = {name: found[name] for name in (found if names is None else names)}
    made = evolve(before, plugins={**before.plugins, **chosen}, generated_at=to_text(now))
    sealed = Sealed(config.seal_path, made, changes(before, made), render(made))
    if not dry_run and not approves_the_same(before, made):
        files.write_private(sealed.path, sealed.content)
    return sealed


def seal_of(config: Config, examination: Examination, *, now: datetime) -> Sealed:
    """The seal that approves this configuration; it is not written."""
    absent = [
        config.complaint(f"cannot be sealed: it {reason}", f"plugins.{name}", "plugin_refs")
        for name, reason in examination.unusable.items()
        if name not in examination.found and config.settings.plugins[name].enabled
    ]
    if absent:
        raise ConfigInvalid(absent, hint="remove the entries or install the plugins, then seal")
    made = make_seal(config.files, sealed_plugins(config, examination.found), now)
    content = render(made)
    if len(content) > strict_yaml.MAX_BYTES:
        raise ConfigInvalid(
            [Complaint(f"the seal would be larger than {strict_yaml.MAX_BYTES} bytes; plugins have too many files")]
        )
    return Sealed(config.seal_path, made, changes(config.seal, made), content)
