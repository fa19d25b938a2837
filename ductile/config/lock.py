"""Sealing: the configuration as it is now becomes the approved one."""

from datetime import datetime
from pathlib import Path

from attrs import field, frozen

from ductile import files, strict_yaml
from ductile.config import seal
from ductile.config.check import Examination, examine, sealed_plugins
from ductile.config.load import Config, load
from ductile.errors import Complaint, ConfigInvalid


@frozen
class Sealed:
    """A seal, where it lies, and how it differs from the one before."""

    path: Path
    seal: seal.Seal
    changes: list[str]
    content: bytes = field(repr=False)


def seal_configuration(root: Path, *, now: datetime, dry_run: bool = False) -> Sealed:
    """Everything that is loaded, and every configured plugin, is sealed; an enabled one that is not there stops it."""
    config = load(root, verify=False)
    sealed = seal_of(config, examine(config), now=now)
    if not dry_run and (sealed.changes or config.seal is None or not config.seal.is_complete):
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
    made = seal.make_seal(config.files, sealed_plugins(config, examination.found), now)
    content = seal.render(made)
    if len(content) > strict_yaml.MAX_BYTES:
        raise ConfigInvalid(
            [Complaint(f"the seal would be larger than {strict_yaml.MAX_BYTES} bytes; plugins have too many files")]
        )
    return Sealed(config.seal_path, made, seal.changes(config.seal, made), content)
