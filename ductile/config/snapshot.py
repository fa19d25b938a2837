"""The configuration as the running service uses it: every name that can be called, with all that is decided beforehand.

Made once per start or reload; jobs keep the one they were claimed under. Nothing here is computed per job.
"""

import uuid
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import attrs
from attrs import field, frozen

from ductile.config.checks.doctor import Examination, Report
from ductile.config.load.load import Config
from ductile.config.sections import relay
from ductile.config.sections.settings import PluginEntry
from ductile.core.errors import DuctileError, NotFound
from ductile.core.formats import strict_json
from ductile.core.model import Budget
from ductile.pipeline.compile.plan import RELAY, Plans
from ductile.pipeline.run.route import Routes, Target, World
from ductile.plugin.manifest import Command, CommandType
from ductile.plugin.registry import Plugin

INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
INHERITED_PREFIXES = ("LC_", "XDG_")
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ftp_proxy")
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"


class PluginUnavailable(DuctileError):
    """The plugin is there but must not be started."""

    code, exit_code, status = "plugin_unavailable", 1, 409
    hint = "`ductile plugin show` tells what to put right; then `ductile system reload`"


@frozen(kw_only=True)
class ConfiguredPlugin:
    """A plugin or alias that may run: how many at once, and what each of its processes is given."""

    plugin: Plugin
    entry: PluginEntry
    slots: int
    config_json: str = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)

    @property
    def name(self) -> str:
        return self.plugin.name

    def command(self, name: str) -> Command:
        commands = self.plugin.manifest.commands
        if name not in commands:
            raise CommandUnknown(f"plugin {self.name} has no command {name!r}", hint=f"it has {', '.join(commands)}")
        return commands[name]

    def writes(self, command: str) -> bool:
        return self.command(command).type is CommandType.WRITE


class CommandUnknown(DuctileError):
    """The plugin has no such command."""

    code, exit_code, status = "command_unknown", 1, 400
    hint = "`ductile plugin show` lists the commands of a plugin"


@attrs.define(slots=False, eq=False)
class Snapshot:
    """One immutable configuration with its lanes, routes and pipelines."""

    config: Config
    lanes: Mapping[str, ConfiguredPlugin]
    unavailable: Mapping[str, str]
    """Name → why nothing may start it."""
    failed_to_load: frozenset[str]
    """Those of them that are wanted, but not usable as they are."""
    routes: Routes
    report: Report
    """What the doctor found, and the service does without."""
    id: str = attrs.field(factory=lambda: f"cfg_{uuid.uuid4().hex}")
    """What jobs call it that were asked for or started under it."""

    @property
    def plans(self) -> Plans:
        return self.config.plans

    @cached_property
    def budget(self) -> Budget:
        """How far one root may reach under this configuration."""
        limits = self.config.settings.service.limits
        return Budget(hops=limits.hops, tree_jobs=limits.tree_jobs)

    @cached_property
    def world(self) -> World:
        """Where events go under this configuration."""
        limits = self.config.settings.service.limits
        return World(
            routes=self.routes,
            plans=self.plans,
            target=self._target,
            config_of=self._config_of,
            most_bytes=limits.fan_out,
            most_jobs=limits.tree_jobs,
            most_context=limits.context,
            most_hooks=self.config.settings.service.hook_max_depth,
            mask=self.config.mask.everywhere,
            snapshot_id=self.id,
        )

    def _target(self, plugin: str) -> Target:
        lane = self.lanes.get(plugin)
        if lane is not None:
            return Target(lane.entry.retry.max_attempts, notify=lane.entry.notify_on_complete)
        if plugin == RELAY:
            return Target(relay.ATTEMPTS)
        # One that failed to load may be put right; its jobs wait for that.
        return Target() if plugin in self.failed_to_load else Target(refused=self.why_unavailable(plugin))

    def _config_of(self, plugin: str) -> Mapping[str, Any]:
        lane = self.lanes.get(plugin)
        return lane.entry.config if lane is not None else {}

    @cached_property
    def slots(self) -> dict[str, int]:
        return {name: lane.slots for name, lane in self.lanes.items()}

    @property
    def max_workers(self) -> int:
        return self.config.settings.service.max_workers

    def lane(self, name: str) -> ConfiguredPlugin:
        """The lane of that name; NotFound, or PluginUnavailable with the reason."""
        lane = self.lanes.get(name)
        if lane is not None:
            return lane
        if name in self.unavailable:
            raise PluginUnavailable(f"plugin {name} {self.unavailable[name]}")
        raise NotFound(f"there is no plugin {name!r}", hint=f"known: {', '.join(sorted(self.lanes)) or 'none'}")

    def why_unavailable(self, name: str) -> str | None:
        """Why nothing may start it; None for a lane."""
        return None if name in self.lanes else self.unavailable.get(name, "is in none of the plugin_roots")


def take_snapshot(examination: Examination, environ: Mapping[str, str]) -> Snapshot:
    """The examined configuration, ready for jobs."""
    settings = examination.config.settings
    lanes, unavailable = {}, dict(examination.unusable)
    for name, plugin in examination.plugins.items():
        entry = settings.plugins.get(name)
        if entry is not None and not entry.enabled:
            unavailable[name] = "is disabled (enabled: false)"
        else:
            lanes[name] = _lane(
                plugin, entry, settings.service.max_workers, settings.service.plugin_env_passthrough, environ
            )
    for rejected in examination.discovery.rejected:
        unavailable.setdefault(rejected.name, f"is not usable: {rejected.reason}")
    routes = Routes.of((route.source, route.event_type, route.to) for route in settings.routes)
    failed = frozenset(examination.unusable) | {rejected.name for rejected in examination.discovery.rejected}
    disabled = {name for name, entry in settings.plugins.items() if not entry.enabled}
    return Snapshot(examination.config, lanes, unavailable, failed - disabled, routes, examination.report)


def _lane(
    plugin: Plugin, entry: PluginEntry | None, workers: int, passed: tuple[str, ...], environ: Mapping[str, str]
) -> ConfiguredPlugin:
    used = entry or PluginEntry()
    return ConfiguredPlugin(
        plugin=plugin,
        entry=used,
        slots=_slots(plugin, entry, workers),
        config_json=strict_json.dumps(used.config),
        environment=plugin_environment(plugin, used, passed, environ),
    )


def _slots(plugin: Plugin, entry: PluginEntry | None, workers: int) -> int:
    """What the operator says; else one for a plugin that is unconfigured or not safe beside itself; else all."""
    if entry is None:
        return 1
    if entry.parallelism is not None:
        return min(entry.parallelism, workers)
    return workers if plugin.manifest.concurrency_safe else 1


def plugin_environment(
    plugin: Plugin, entry: PluginEntry, passed: tuple[str, ...], environ: Mapping[str, str]
) -> dict[str, str]:
    """Built from nothing: a short list of ordinary variables, what the operator passes, the entry's own."""

    def is_ordinary(name: str) -> bool:
        return name in INHERITED or name.startswith(INHERITED_PREFIXES) or name.lower() in PROXIES

    everything = "*" in passed
    kept = {name: value for name, value in environ.items() if everything or is_ordinary(name) or name in passed}
    own = {"DUCTILE_PLUGIN": plugin.name, "DUCTILE_PLUGIN_DIR": str(plugin.folder)}
    return {"PATH": DEFAULT_PATH, **kept, **entry.env, **own}
