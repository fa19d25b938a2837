"""Sealing: the configuration as it is now becomes the approved one."""

from datetime import datetime
from pathlib import Path

from attrs import frozen

from ductile import files, strict_yaml
from ductile.config import seal
from ductile.config.check import examine, sealed_plugins
from ductile.config.load import load
from ductile.errors import Complaint, ConfigInvalid


@frozen
class Sealed:
    """A seal, where it lies, and how it differs from the one before."""

    path: Path
    seal: seal.Seal
    changes: list[str]


def seal_configuration(root: Path, *, now: datetime, dry_run: bool = False) -> Sealed:
    """Everything that is loaded, and every configured plugin, is sealed; an enabled one that is not there stops it."""
    config = load(root, verify=False)
    examination = examine(config)
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
    changes = seal.changes(config.seal, made)
    if not dry_run and (changes or config.seal is None or not config.seal.is_complete):
        files.write_private(config.seal_path, content)
    return Sealed(config.seal_path, made, changes)
