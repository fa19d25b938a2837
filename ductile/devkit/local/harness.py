"""A test harness: a plugin with the configuration snapshot to run it.

The plugin is found by its configured name, or by its folder, which needs no configuration.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from ductile.config.checks.examine import examine
from ductile.config.files.sources import find_config
from ductile.config.load.load import Config, find_secret_values, load
from ductile.config.sections.settings import PluginEntry, Settings
from ductile.config.snapshot import Snapshot, build_snapshot
from ductile.core.errors import NotFound, PluginRejected, did_you_mean
from ductile.core.secret import Mask
from ductile.pipeline.compile.plan import Plans
from ductile.plugin.manifest import FILE_NAME
from ductile.plugin.registry import Plugin


@frozen(eq=False)
class Harness:
    """A plugin and a configuration snapshot that contains it."""

    snapshot: Snapshot
    plugin: Plugin

    @property
    def mask(self) -> Mask:
        return self.snapshot.config.mask

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of the plugin."""
        entry = self.snapshot.config.settings.plugins.get(self.plugin.name)
        return entry.config if entry is not None else {}


def is_folder_target(target: str) -> bool:
    """Return True for `./disk` or `/srv/disk`. Plugin names have no dot and no slash."""
    return "/" in target or "." in target


def harness_for(target: str, explicit: Path | None, config: Mapping[str, Any] | None, directory: Path) -> Harness:
    """Create a harness for a folder or a name. `config` overrides configured values.

    `directory` is the configuration directory if there is no configuration.
    """
    if is_folder_target(target):
        return harness_for_folder(Path(target), config or {}, directory)
    return harness_for_name(target, load(find_config(explicit, os.environ).path), config)


def harness_for_folder(folder: Path, config: Mapping[str, Any], directory: Path) -> Harness:
    """Create a harness with only the plugin in `folder`. Raises PluginRejected if a service would not load it."""
    folder = Path(os.path.realpath(folder))
    found = examine(_configuration(Settings(plugin_roots=(folder,)), directory))
    plugin = next((plugin for plugin in found.found.values() if plugin.folder == folder), None)
    if plugin is None:
        reasons = [rejected.reason for rejected in found.discovery.rejected if rejected.path == folder]
        raise PluginRejected("\n".join(reasons) or f"{folder} has no {FILE_NAME}")
    settings = Settings(plugin_roots=(folder,), plugins={plugin.name: PluginEntry(config=dict(config))})
    examined = examine(_configuration(settings, directory, Mask(find_secret_values(config))))
    return Harness(build_snapshot(examined, os.environ), plugin)


def harness_for_name(name: str, loaded: Config, config: Mapping[str, Any] | None = None) -> Harness:
    """Create a harness for a configured plugin. Raises NotFound or PluginRejected."""
    if config:
        loaded = _with_config(loaded, name, config)
    examined = examine(loaded)
    if name in examined.found:
        return Harness(build_snapshot(examined, os.environ), examined.found[name])
    for rejected in examined.discovery.rejected:
        if rejected.name == name:
            raise PluginRejected(rejected.reason)
    hint = f"to use the folder, write ./{name}" if os.path.isfile(Path(name, FILE_NAME)) else None
    known = f"Known plugins: {', '.join(sorted(examined.found)) or 'none'}."
    raise NotFound(f"plugin {name!r} does not exist{did_you_mean(name, examined.found)}", hint=hint or known)


def _with_config(loaded: Config, name: str, config: Mapping[str, Any]) -> Config:
    entry = loaded.settings.plugins.get(name) or PluginEntry()
    changed = evolve(entry, config={**entry.config, **config})
    settings = evolve(loaded.settings, plugins={**loaded.settings.plugins, name: changed})
    return evolve(loaded, settings=settings, mask=loaded.mask.with_secrets(find_secret_values(config)))


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
