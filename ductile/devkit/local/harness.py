"""The bench a plugin is tried on: the plugin itself, and the configuration it is tried under.

A plugin is named as the configuration names it, or by its folder, which needs no configuration at all. What is then
done with it is others' business.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from ductile.config.checks.doctor import examine
from ductile.config.load.load import Config, load, secrets_among
from ductile.config.load.sources import find
from ductile.config.sections.settings import PluginEntry, Settings
from ductile.config.snapshot import Snapshot, take_snapshot
from ductile.core.errors import NotFound, PluginRejected, did_you_mean
from ductile.core.secret import Mask
from ductile.pipeline.compile.plan import Plans
from ductile.plugin.manifest import FILE_NAME
from ductile.plugin.registry import Plugin


@frozen(eq=False)
class Bench:
    """A plugin under a configuration."""

    snapshot: Snapshot
    plugin: Plugin

    @property
    def mask(self) -> Mask:
        return self.snapshot.config.mask

    @property
    def config(self) -> Mapping[str, Any]:
        """What the plugin is configured with."""
        entry = self.snapshot.config.settings.plugins.get(self.plugin.name)
        return entry.config if entry is not None else {}


def names_a_folder(target: str) -> bool:
    """True for `./disk` or `/srv/disk`; no plugin's name has a dot or a slash."""
    return "/" in target or "." in target


def bench_for(target: str, explicit: Path | None, config: Mapping[str, Any] | None, directory: Path) -> Bench:
    """The bench for a folder or a name; `config` goes over what is configured. `directory` stands in for that of a
    configuration where there is none."""
    if names_a_folder(target):
        return bench_of_folder(Path(target), config or {}, directory)
    return bench_of_name(target, load(find(explicit, os.environ).path), config)


def bench_of_folder(folder: Path, config: Mapping[str, Any], directory: Path) -> Bench:
    """A configuration that has nothing but the plugin in `folder`. PluginRejected if no service would load it."""
    folder = Path(os.path.realpath(folder))
    found = examine(_configuration(Settings(plugin_roots=(folder,)), directory))
    plugin = next((one for one in found.found.values() if one.folder == folder), None)
    if plugin is None:
        reasons = [rejected.reason for rejected in found.discovery.rejected if rejected.path == folder]
        raise PluginRejected("\n".join(reasons) or f"{folder} has no {FILE_NAME}")
    settings = Settings(plugin_roots=(folder,), plugins={plugin.name: PluginEntry(config=dict(config))})
    examined = examine(_configuration(settings, directory, Mask(secrets_among(config))))
    return Bench(take_snapshot(examined, os.environ), plugin)


def bench_of_name(name: str, loaded: Config, config: Mapping[str, Any] | None = None) -> Bench:
    """The plugin as the configuration has it. NotFound, or PluginRejected with the reason."""
    if config:
        loaded = _with(loaded, name, config)
    examined = examine(loaded)
    if name in examined.found:
        return Bench(take_snapshot(examined, os.environ), examined.found[name])
    for rejected in examined.discovery.rejected:
        if rejected.name == name:
            raise PluginRejected(rejected.reason)
    hint = f"./{name} is a plugin's folder; write it so" if os.path.isfile(Path(name, FILE_NAME)) else None
    known = f"known: {', '.join(sorted(examined.found)) or 'none'}"
    raise NotFound(f"there is no plugin {name!r}{did_you_mean(name, examined.found)}", hint=hint or known)


def _with(loaded: Config, name: str, config: Mapping[str, Any]) -> Config:
    entry = loaded.settings.plugins.get(name) or PluginEntry()
    changed = evolve(entry, config={**entry.config, **config})
    settings = evolve(loaded.settings, plugins={**loaded.settings.plugins, name: changed})
    return evolve(loaded, settings=settings, mask=loaded.mask.and_also(secrets_among(config)))


def _configuration(settings: Settings, directory: Path, mask: Mask | None = None) -> Config:
    return Config(
        settings=settings,
        root=directory / "config.yaml",
        files=(),
        plans=Plans(),
        grants={},
        seal=None,
        drifts=(),
        warnings=(),
        places={},
        mask=mask or Mask(),
        digest="",
        source_digest="",
    )
