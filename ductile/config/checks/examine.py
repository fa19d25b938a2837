"""Check the configuration against the installed plugins.

Errors prevent a part of the configuration from working; warnings may be intended. Rules that need no plugins are in
`load.rules` and are checked at load. A start or reload continues without the unusable parts and reports them, unless
`service.admission` forbids it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta

from attrs import fields, frozen

from ductile.config import checksums
from ductile.config.load.load import Config
from ductile.config.scopes import SCOPES_HELP, is_known_scope, suggest_scope
from ductile.config.sections.settings import DEFAULT_TIMEOUTS, PluginEntry
from ductile.core.errors import Complaint, ComplaintView, did_you_mean
from ductile.core.files import display_path
from ductile.core.model import HANDLE
from ductile.plugin.manifest import ConfigKeys
from ductile.plugin.registry import Discovery, Plugin, RejectedPlugin, discover, resolve_aliases

SHORT_INTERVAL = timedelta(minutes=1)
SHORT_TICK_INTERVAL = timedelta(seconds=1)
SIMILAR_KEY = 0.8
MIN_TOKEN_LENGTH, MIN_SECRET_LENGTH = 16, 24
NO_HANDLE = "webhook_handle"
"""The category of webhooks whose plugin declares no `handle`. They prevent a start and a reload."""
LOOPBACK = ("127.", "localhost", "[::1]", "::1")


@frozen
class Report:
    """The errors and warnings of an examination."""

    errors: tuple[Complaint, ...]
    warnings: tuple[Complaint, ...]

    @property
    def is_valid(self) -> bool:
        return not self.errors

    def as_data(self) -> dict[str, list[ComplaintView]]:
        return {
            "errors": [complaint.as_data() for complaint in self.errors],
            "warnings": [complaint.as_data() for complaint in self.warnings],
        }


@frozen
class Examination:
    """A configuration and the plugins it can use, by name and alias."""

    config: Config
    discovery: Discovery
    found: Mapping[str, Plugin]
    """All installed plugins and aliases, usable or not."""
    unusable: Mapping[str, str]
    """Name → reason why a plugin or alias is unusable."""
    report: Report

    @property
    def plugins(self) -> dict[str, Plugin]:
        """The usable plugins."""
        return {name: plugin for name, plugin in self.found.items() if name not in self.unusable}


def examine(config: Config) -> Examination:
    """Discover the plugins and check the configuration against them."""
    settings = config.settings
    discovery = discover(settings.plugin_roots, allow_symlinks=settings.service.allow_symlinks)
    aliases = {name: entry.uses for name, entry in settings.plugins.items() if entry.uses and entry.uses != name}
    named = resolve_aliases(discovery.plugins, aliases, rejected=discovery.rejected)
    unusable = dict(_unusable(config, discovery, named.plugins))
    usable = {name: plugin for name, plugin in named.plugins.items() if name not in unusable}
    checks = _Checks(config, discovery, named.plugins, usable, unusable)
    about_aliases = _placed(config, named.complaints)
    idle = {f"plugins.{name}.uses" for name, entry in settings.plugins.items() if not entry.enabled}
    errors = [
        *_about_roots(config, discovery.complaints),
        *(complaint for complaint in about_aliases if complaint.path not in idle),
        *checks.errors(),
    ]
    warnings = [*config.warnings, *discovery.warnings, *checks.warnings()]
    drifted, refused = _plugin_drift(config, named.plugins)
    report = Report((*errors, *refused), tuple(dict.fromkeys((*warnings, *drifted))))
    return Examination(config, discovery, named.plugins, unusable, report)


def sealed_plugins(config: Config, plugins: Mapping[str, Plugin]) -> dict[str, checksums.SealedPlugin]:
    """Return every configured plugin in the form in which it would be sealed now."""
    return {
        name: checksums.SealedPlugin(plugins[name].fingerprint, entry.enabled, entry.uses)
        for name, entry in config.settings.plugins.items()
        if name in plugins
    }


def _unusable(config: Config, discovery: Discovery, plugins: Mapping[str, Plugin]) -> Iterator[tuple[str, str]]:
    for name, entry in config.settings.plugins.items():
        if name not in plugins:
            yield name, _why_absent(entry.uses or name, discovery, plugins)
        elif missing := plugins[name].manifest.missing_keys(entry.config):
            yield name, f"lacks required config: {', '.join(missing)}"
    entries = config.settings.plugins
    sealed = {plugins[name].base for name in entries if name in plugins}
    for name in plugins.keys() - entries.keys():
        if missing := plugins[name].manifest.missing_keys({}):
            yield name, f"has no entry, and lacks required config: {', '.join(missing)}"
        elif _all_must_be_sealed(config) and name not in sealed:
            yield name, "has no entry, so it is not in the seal; add an entry, then run `ductile config lock`"


def _all_must_be_sealed(config: Config) -> bool:
    """True if only sealed plugins may be used. A seal of the original implementation lists too few files for that."""
    service = config.settings.service
    required = service.strict_mode or service.admission.fail_on_drift
    return required and (config.seal is None or config.seal.is_complete)


def _why_absent(name: str, discovery: Discovery, plugins: Mapping[str, Plugin]) -> str:
    for rejected in discovery.rejected:
        if rejected.name == name:
            return f"is not usable: {rejected.reason}"
    return f"is in none of the plugin_roots{did_you_mean(name, {**plugins, **discovery.plugins})}"


def _placed(config: Config, complaints: Iterable[Complaint]) -> list[Complaint]:
    return [config.complaint(complaint.message, complaint.path, complaint.category) for complaint in complaints]


def _about_roots(config: Config, complaints: Iterable[Complaint]) -> list[Complaint]:
    """Move complaints about a plugin root to the line that contains it."""
    indexes = {str(root): index for index, root in reversed(list(enumerate(config.settings.plugin_roots)))}
    return [
        config.complaint(f"{complaint.path}: {complaint.message}", f"plugin_roots[{index}]", complaint.category)
        if (index := indexes.get(complaint.path)) is not None
        else complaint
        for complaint in complaints
    ]


def _plugin_drift(config: Config, plugins: Mapping[str, Plugin]) -> tuple[list[Complaint], list[Complaint]]:
    """Return the differences between plugins and seal, as warnings and as errors."""
    if config.seal is None:
        return [], []
    service = config.settings.service
    sealable, uncovered = sealed_plugins(config, plugins), {name: one.loaded.uncovered for name, one in plugins.items()}
    drifts = [
        *checksums.find_plugin_drift(sealable, config.seal),
        *checksums.find_uncovered(sealable, uncovered),
    ]
    unsealed = service.strict_mode or service.admission.fail_on_drift
    refused = checksums.blocking_complaints(
        drifts,
        changed=unsealed or service.admission.verify_integrity_on_boot,
        unsealed=unsealed,
        seal=config.seal,
    )
    return [drift.complaint for drift in drifts if drift.complaint not in refused], refused


@frozen
class _Checks:
    """The checks of one configuration."""

    config: Config
    discovery: Discovery
    found: Mapping[str, Plugin]
    plugins: Mapping[str, Plugin]
    unusable: Mapping[str, str]

    def errors(self) -> Iterator[Complaint]:
        settings = self.config.settings
        if not settings.plugin_roots:
            yield self._complaint("contains no directory, so there are no plugins", "plugin_roots", "plugin_refs")
        for name, entry in settings.plugins.items():
            if name in self.unusable and entry.enabled and not self._is_alias_problem(name, entry):
                yield self._complaint(self.unusable[name], f"plugins.{name}", "plugin_refs")
            elif name in self.plugins:
                yield from self._commands(name, entry)
        yield from self._targets()
        yield from self._steps()
        yield from self._route_cycles()

    def warnings(self) -> Iterator[Complaint]:
        yield from self._service()
        yield from self._exchange()
        yield from self._tokens()
        yield from self._schedules()
        yield from self._own_keys()
        yield from self._unused()
        if self.config.settings.routes:
            from ductile.config.checks.triggers import find_undeclared_routes

            yield from find_undeclared_routes(self.config, self.plugins)
        if self.config.plans.by_name:
            yield from self._pipelines()
        for rejected in self.discovery.rejected:
            if not self._is_configured(rejected):
                yield Complaint(f"plugin {rejected.name} is not usable: {rejected.reason}", category="plugin_refs")
        for name, entry in self.config.settings.plugins.items():
            if name in self.unusable and not entry.enabled:
                yield self._complaint(f"{self.unusable[name]} (it is disabled)", f"plugins.{name}", "plugin_refs")

    # ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _commands(self, name: str, entry: PluginEntry) -> Iterator[Complaint]:
        known = self.plugins[name].manifest.commands
        for index, schedule in enumerate(entry.schedules):
            if schedule.command not in known:
                where = f"plugins.{name}.schedules[{index}].command"
                message = f"plugin {name} has no command {schedule.command!r}{did_you_mean(schedule.command, known)}"
                yield self._complaint(f"{message}; it has {', '.join(known)}", where, "plugin_refs")

    def _targets(self) -> Iterator[Complaint]:
        settings = self.config.settings
        for index, route in enumerate(settings.routes):
            yield from self._plugin_named(route.source, f"routes[{index}].from", "routes")
            yield from self._plugin_named(route.to, f"routes[{index}].to", "routes", command="handle")
        for index, endpoint in enumerate(settings.webhooks.endpoints):
            if endpoint.plugin:
                yield from self._webhook_plugin(endpoint.plugin, f"webhooks.endpoints[{index}].plugin")
        for index, consumer in enumerate(settings.exchange.consumers):
            if consumer.plugin:
                path = f"exchange.consumers[{index}]"
                yield from self._plugin_named(
                    consumer.plugin, f"{path}.plugin", "exchange", consumer.command, command_path=f"{path}.command"
                )
        if settings.notify is not None:
            yield from self._plugin_named(settings.notify.to, "notify.to", "plugin_refs", command="handle")

    def _webhook_plugin(self, name: str, path: str) -> Iterator[Complaint]:
        """Refuse a plugin without `handle`. One that cannot run is tolerated, because it may be fixed later."""
        entry, plugin = self.config.settings.plugins.get(name), self.plugins.get(name)
        lacks_handle = plugin is not None and HANDLE not in plugin.manifest.commands
        is_refused = lacks_handle and (entry is None or entry.enabled)
        yield from self._plugin_named(name, path, NO_HANDLE if is_refused else "webhooks", command=HANDLE)

    def _steps(self) -> Iterator[Complaint]:
        """Disabled plugins are not errors here, because an operator may disable a step temporarily. See `pipelines`."""
        disabled = {name for name, entry in self.config.settings.plugins.items() if not entry.enabled}
        for plan in self.config.plans.by_name.values():
            for node in plan.own_nodes:
                if node.kind == "uses" and node.plugin not in disabled:
                    yield from self._plugin_named(node.plugin, f"{node.where}.uses", "pipelines", command=node.command)
            if plan.from_plugin and plan.from_plugin not in disabled:
                yield from self._plugin_named(plan.from_plugin, f"{plan.where}.from_plugin", "pipelines")

    def _plugin_named(
        self, name: str, path: str, category: str, command: str | None = None, *, command_path: str = ""
    ) -> Iterator[Complaint]:
        entry = self.config.settings.plugins.get(name)
        if name not in self.plugins:
            why = self.unusable.get(name) or _why_absent(name, self.discovery, self.plugins)
            yield self._complaint(f"plugin {name} {why}", path, category)
        elif entry is not None and not entry.enabled:
            yield self._complaint(f"plugin {name} is disabled", path, category)
        elif command and command not in self.plugins[name].manifest.commands:
            known = self.plugins[name].manifest.commands
            message = f"plugin {name} has no command {command!r}{did_you_mean(command, known)}"
            yield self._complaint(f"{message}; it has {', '.join(known)}", command_path or path, category)

    def _route_cycles(self) -> Iterator[Complaint]:
        routes = self.config.settings.routes
        successors: dict[str, dict[str, None]] = {}
        for route in routes:
            successors.setdefault(route.source, {})[route.to] = None
        if not successors:
            return
        from ductile.pipeline.compile.graph import find_cycles, format_cycle

        for cycle in find_cycles(successors):
            index = next(i for i, route in enumerate(routes) if [route.source, route.to] == cycle[:2])
            yield self._complaint(f"routes form a cycle: {format_cycle(cycle)}", f"routes[{index}]", "routes")

    # ── warnings ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _pipelines(self) -> Iterator[Complaint]:
        # Imported only if needed, as in `load`: many configurations have no pipelines.
        from ductile.config.checks.contracts import find_broken_contracts
        from ductile.config.checks.pipelines import PipelineChecks, find_wrong_braces
        from ductile.config.checks.triggers import find_undeclared_triggers

        yield from find_wrong_braces(self.config)
        yield from find_undeclared_triggers(self.config, self.plugins)
        yield from PipelineChecks(self.config, self.plugins).warnings()
        yield from find_broken_contracts(self.config, self.plugins)

    def _service(self) -> Iterator[Complaint]:
        settings = self.config.settings
        if settings.service.tick_interval < SHORT_TICK_INTERVAL:
            yield self._complaint("values below 1s waste CPU time", "service.tick_interval", "service")
        if "*" in settings.service.plugin_env_passthrough:
            message = "passes the complete environment of the service to every plugin, including secrets"
            yield self._complaint(message, "service.plugin_env_passthrough", "service")
        for path, listen in (("api.listen", settings.api.listen), ("webhooks.listen", settings.webhooks.listen)):
            in_use = settings.api.enabled if path.startswith("api") else settings.webhooks.endpoints
            if in_use and not listen.startswith(LOOPBACK):
                message = f"{listen} is reachable from other hosts; use a TLS reverse proxy"
                yield self._complaint(message, path, path.partition(".")[0])

    def _exchange(self) -> Iterator[Complaint]:
        exchange = self.config.settings.exchange
        if exchange.consumers and not exchange.enabled:
            yield self._complaint("have no effect: exchange.enabled is false", "exchange.consumers", "exchange")

    def _tokens(self) -> Iterator[Complaint]:
        settings = self.config.settings
        for index, token in enumerate(settings.api.auth.tokens):
            path = f"api.auth.tokens[{index}]"
            if len(token.token.reveal()) < MIN_TOKEN_LENGTH:
                yield self._complaint(
                    f"is shorter than {MIN_TOKEN_LENGTH} characters and can be guessed", f"{path}.token", "api"
                )
            yield from self._scopes(token.scopes, f"{path}.scopes")
        for index, named in enumerate(settings.tokens):
            if len(named.key.reveal()) < MIN_SECRET_LENGTH:
                message = f"is shorter than {MIN_SECRET_LENGTH} characters and can be guessed from one signed message"
                yield self._complaint(message, f"tokens[{index}].key", "token_scopes")
            grant = self.config.grants.get(named.name)
            if grant:
                yield from self._scopes(grant.scopes, f"tokens[{index}].scopes_file")

    def _scopes(self, scopes: Iterable[str], path: str) -> Iterator[Complaint]:
        for scope in scopes:
            if not is_known_scope(scope):
                message = f"scope {scope!r} does not exist{suggest_scope(scope)}; known: {SCOPES_HELP}"
                yield self._complaint(message, path, "token_scopes")

    def _schedules(self) -> Iterator[Complaint]:
        zone_matters = "UTC" not in time.tzname
        for name, entry in self.config.settings.plugins.items():
            for index, schedule in enumerate(entry.schedules):
                path = f"plugins.{name}.schedules[{index}]"
                if schedule.every and schedule.every < SHORT_INTERVAL:
                    yield self._complaint("runs more often than once a minute", f"{path}.every", "schedule")
                local = schedule.cron or schedule.only_between or schedule.preferred_window or schedule.not_on
                if local and schedule.timezone is None and zone_matters:
                    host_zone = "/".join(dict.fromkeys(time.tzname))
                    message = f"has no timezone, so the time zone of the host applies ({host_zone})"
                    yield self._complaint(message, path, "schedule")
            known = self.plugins[name].manifest.commands if name in self.plugins else None
            for command in entry.timeouts.keys() - (known.keys() if known is not None else entry.timeouts.keys()):
                if command not in DEFAULT_TIMEOUTS:
                    message = f"plugin {name} has no such command{did_you_mean(command, known or ())}"
                    yield self._complaint(message, f"plugins.{name}.timeouts.{command}", "plugin_refs")

    def _own_keys(self) -> Iterator[Complaint]:
        """Yield a warning for keys that are likely typos. A plugin may accept more keys than its manifest declares."""
        sections = {field.name for field in fields(PluginEntry)}
        for name, entry in self.config.settings.plugins.items():
            keys = self.found[name].manifest.config_keys if name in self.found else ConfigKeys()
            declared = [*keys.required, *keys.optional]
            for key in entry.config.keys() - set(declared) if declared else ():
                place = f" (did you mean 'plugins.{name}.{key}'?)" if key in sections else ""
                if hint := place or did_you_mean(key, declared, cutoff=SIMILAR_KEY):
                    message = f"is no configuration key of plugin {name}{hint}"
                    yield self._complaint(message, f"plugins.{name}.config.{key}", "plugin_refs")

    def _unused(self) -> Iterator[Complaint]:
        settings = self.config.settings
        bases = {entry.uses for entry in settings.plugins.values()}
        for name, plugin in self.discovery.plugins.items():
            if name not in settings.plugins and name not in bases:
                why = self.unusable.get(name, "has no entry; it can be triggered but not scheduled")
                message = f"plugin {name} ({display_path(plugin.folder)}) {why}"
                yield Complaint(message, f"plugins.{name}", category="unused")
        reached = {route.to for route in settings.routes}
        reached |= {endpoint.plugin for endpoint in settings.webhooks.endpoints if endpoint.plugin}
        reached |= {consumer.plugin for consumer in settings.exchange.consumers if consumer.plugin}
        reached |= {node.plugin for plan in self.config.plans.by_name.values() for node in plan.own_nodes}
        reached |= {settings.notify.to} if settings.notify is not None else set()
        for name, entry in settings.plugins.items():
            has_reason = entry.schedules or name in reached or name in bases or settings.api.enabled
            if entry.enabled and not has_reason:
                message = "cannot be triggered: no schedule, route, pipeline, webhook, consumer or API uses it"
                yield self._complaint(message, f"plugins.{name}", "unused")

    def _is_configured(self, rejected: RejectedPlugin) -> bool:
        entries = self.config.settings.plugins
        return rejected.name in entries or any(entry.uses == rejected.name for entry in entries.values())

    def _is_alias_problem(self, name: str, entry: PluginEntry) -> bool:
        """True if the alias resolution reports the problem."""
        return entry.uses not in (None, name) and name not in self.found

    @property
    def _complaint(self) -> Callable[[str, str, str], Complaint]:
        return self.config.complaint
