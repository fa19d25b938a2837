"""The configuration as the running service uses it: all usable plugins with precomputed settings.

Built once per start or reload; a job uses the snapshot it was claimed under. Nothing is computed per job.
"""

import uuid
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import attrs
from attrs import field, frozen

from ductile.config.checks.examine import Examination, Report
from ductile.config.load.load import Config
from ductile.config.sections import relay
from ductile.config.sections.settings import PluginEntry, Service
from ductile.core.errors import DuctileError, NotFound
from ductile.core.formats import strict_json
from ductile.core.model import Budget
from ductile.pipeline.compile.plan import PUBLISH, RELAY, Plans
from ductile.pipeline.run.route import Routes, RoutingConfig, Target
from ductile.plugin.manifest import Command, CommandType
from ductile.plugin.registry import Plugin

INHERITED_VARIABLES = (
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
PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "ftp_proxy")
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
NO_BYTECODE = "/dev/null/bytecode"
"""A path that cannot exist. With it Python reads no bytecode caches, also none of its own library, and compiles each
module at every start."""


class PluginUnavailable(DuctileError):
    """The plugin exists but cannot be started."""

    code, exit_code, status = "plugin_unavailable", 1, 409
    hint = "Run `ductile plugin show` for the cause. Fix it, then run `ductile system reload`."


@frozen(kw_only=True)
class ConfiguredPlugin:
    """A usable plugin or alias with its worker slots and the input of its processes."""

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
            raise CommandUnknown(
                f"plugin {self.name} has no command {name!r}", hint=f"Available commands: {', '.join(commands)}."
            )
        return commands[name]

    def writes(self, command: str) -> bool:
        return self.command(command).type is CommandType.WRITE


class CommandUnknown(DuctileError):
    """The plugin has no such command."""

    code, exit_code, status = "command_unknown", 1, 400
    hint = "Run `ductile plugin show` to list the commands of a plugin."


@attrs.define(slots=False, eq=False)
class Snapshot:
    """An immutable configuration with its plugins, routes and pipelines."""

    config: Config
    plugins: Mapping[str, ConfiguredPlugin]
    unavailable: Mapping[str, str]
    """Name → reason why the plugin cannot be started."""
    failed_to_load: frozenset[str]
    """Unavailable plugins that are enabled but unusable."""
    routes: Routes
    report: Report
    """Problems found by `checks.examine` that did not prevent the start."""
    id: str = attrs.field(factory=lambda: f"cfg_{uuid.uuid4().hex}")
    """Identifier that jobs created or started under this snapshot store."""

    @property
    def plans(self) -> Plans:
        return self.config.plans

    @property
    def unusable_entries(self) -> list[str]:
        """Enabled entries of the configuration whose plugin cannot be loaded."""
        return sorted(self.failed_to_load & self.config.settings.plugins.keys())

    @cached_property
    def budget(self) -> Budget:
        """Limits on the jobs that one root job can create."""
        limits = self.config.settings.service.limits
        return Budget(hops=limits.hops, tree_jobs=limits.tree_jobs)

    @cached_property
    def routing(self) -> RoutingConfig:
        """Event routing under this configuration."""
        limits = self.config.settings.service.limits
        return RoutingConfig(
            routes=self.routes,
            plans=self.plans,
            target=self._target,
            config_of=self._config_of,
            max_bytes=limits.fan_out,
            max_jobs=limits.tree_jobs,
            max_context_bytes=limits.context,
            max_hook_depth=self.config.settings.service.hook_max_depth,
            mask=self.config.mask.mask_data,
            snapshot_id=self.id,
        )

    def _target(self, plugin: str) -> Target:
        configured = self.plugins.get(plugin)
        if configured is not None:
            return Target(configured.entry.retry.max_attempts, notify=configured.entry.notify_on_complete)
        if plugin == RELAY:
            return Target(relay.MAX_ATTEMPTS)
        if plugin == PUBLISH:
            return Target()
        # A plugin that failed to load may be fixed, so its jobs wait.
        return Target() if plugin in self.failed_to_load else Target(refused=self.why_unavailable(plugin))

    def _config_of(self, plugin: str) -> Mapping[str, Any]:
        configured = self.plugins.get(plugin)
        return configured.entry.config if configured is not None else {}

    @cached_property
    def slots(self) -> dict[str, int]:
        return {name: configured.slots for name, configured in self.plugins.items()}

    @property
    def max_workers(self) -> int:
        return self.config.settings.service.max_workers

    def plugin(self, name: str) -> ConfiguredPlugin:
        """Return the plugin `name`. Raises NotFound, or PluginUnavailable with the reason."""
        configured = self.plugins.get(name)
        if configured is not None:
            return configured
        if name in self.unavailable:
            raise PluginUnavailable(f"plugin {name} {self.unavailable[name]}")
        raise NotFound(
            f"plugin {name!r} does not exist", hint=f"Known plugins: {', '.join(sorted(self.plugins)) or 'none'}."
        )

    def why_unavailable(self, name: str) -> str | None:
        """Return the reason why the plugin cannot be started; None if it can."""
        return None if name in self.plugins else self.unavailable.get(name, "is in none of the plugin_roots")


def build_snapshot(examination: Examination, environ: Mapping[str, str]) -> Snapshot:
    """Build a snapshot from an examined configuration."""
    settings = examination.config.settings
    plugins, unavailable = {}, dict(examination.unusable)
    for name, plugin in examination.plugins.items():
        entry = settings.plugins.get(name)
        if entry is not None and not entry.enabled:
            unavailable[name] = "is disabled (enabled: false)"
        else:
            plugins[name] = _configure(plugin, entry, settings.service, environ)
    for rejected in examination.discovery.rejected:
        unavailable.setdefault(rejected.name, f"is not usable: {rejected.reason}")
    routes = Routes.of((route.source, route.event_type, route.to) for route in settings.routes)
    failed = frozenset(examination.unusable) | {rejected.name for rejected in examination.discovery.rejected}
    disabled = {name for name, entry in settings.plugins.items() if not entry.enabled}
    return Snapshot(examination.config, plugins, unavailable, failed - disabled, routes, examination.report)


def _configure(
    plugin: Plugin, entry: PluginEntry | None, service: Service, environ: Mapping[str, str]
) -> ConfiguredPlugin:
    used = entry or PluginEntry()
    return ConfiguredPlugin(
        plugin=plugin,
        entry=used,
        slots=_slots(plugin, entry, service.max_workers),
        config_json=strict_json.dumps(used.config),
        environment=plugin_environment(plugin, used, service, environ),
    )


def _slots(plugin: Plugin, entry: PluginEntry | None, workers: int) -> int:
    """Return `parallelism` if it is set.

    Otherwise 1 for a plugin that has no entry or is not concurrency-safe, else the number of workers.
    """
    if entry is None:
        return 1
    if entry.parallelism is not None:
        return min(entry.parallelism, workers)
    return workers if plugin.manifest.concurrency_safe else 1


def plugin_environment(
    plugin: Plugin, entry: PluginEntry, service: Service, environ: Mapping[str, str]
) -> dict[str, str]:
    """Build the environment of a plugin process: default variables, passed variables, then variables of the entry.

    No plugin writes bytecode beside its code, because the seal does not cover it. Under `strict_mode` none reads it.
    """
    passed = service.plugin_env_passthrough

    def is_default(name: str) -> bool:
        return name in INHERITED_VARIABLES or name.startswith(INHERITED_PREFIXES) or name.lower() in PROXY_VARIABLES

    everything = "*" in passed
    inherited = {name: value for name, value in environ.items() if everything or is_default(name) or name in passed}
    own = {"DUCTILE_PLUGIN": plugin.name, "DUCTILE_PLUGIN_DIR": str(plugin.folder), "PYTHONDONTWRITEBYTECODE": "1"}
    if service.strict_mode:
        own["PYTHONPYCACHEPREFIX"] = NO_BYTECODE
    return {"PATH": DEFAULT_PATH, **inherited, **entry.env, **own}
