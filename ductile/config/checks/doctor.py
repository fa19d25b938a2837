"""The doctor: does this configuration fit the plugins that are really there, and is it what an operator would want?

Errors keep something from working; warnings are worth a look. Rules that need no plugins are checked at load already
(`consistency`). Called by `config check`, at start and at reload; these go on without what does not work, unless
`service.admission` says otherwise, and tell it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any

from attrs import frozen

from ductile.config.load.load import Config
from ductile.config.scopes import SCOPES, is_scope
from ductile.config.seal import checksums
from ductile.config.sections.settings import DEFAULT_TIMEOUTS, PluginEntry
from ductile.core.errors import Complaint, did_you_mean
from ductile.core.files import shown_path
from ductile.plugin.registry import Discovery, Plugin, Rejected, discover, resolve_aliases

SHORT_INTERVAL = timedelta(minutes=1)
SHORT_TICK = timedelta(seconds=1)
LEAST_TOKEN, LEAST_SECRET = 16, 24
LOOPBACK = ("127.", "localhost", "[::1]", "::1")


@frozen
class Report:
    """What the doctor found."""

    errors: tuple[Complaint, ...]
    warnings: tuple[Complaint, ...]

    @property
    def is_valid(self) -> bool:
        return not self.errors

    def as_data(self) -> dict[str, list[dict[str, Any]]]:
        return {
            "errors": [complaint.as_data() for complaint in self.errors],
            "warnings": [complaint.as_data() for complaint in self.warnings],
        }


@frozen
class Examination:
    """A configuration together with the plugins it can use, by every name they have."""

    config: Config
    discovery: Discovery
    found: Mapping[str, Plugin]
    """Every plugin and alias that is there, whether it can be used or not."""
    unusable: Mapping[str, str]
    """Name → why a plugin or alias cannot be used."""
    report: Report

    @property
    def plugins(self) -> dict[str, Plugin]:
        """What can be used."""
        return {name: plugin for name, plugin in self.found.items() if name not in self.unusable}


def examine(config: Config) -> Examination:
    """Look for the plugins and hold the configuration against them."""
    settings = config.settings
    discovery = discover(settings.plugin_roots, allow_symlinks=settings.service.allow_symlinks)
    aliases = {name: entry.uses for name, entry in settings.plugins.items() if entry.uses and entry.uses != name}
    named = resolve_aliases(discovery.plugins, aliases, rejected=discovery.rejected)
    unusable = dict(_unusable(config, discovery, named.plugins))
    usable = {name: plugin for name, plugin in named.plugins.items() if name not in unusable}
    visit = _Visit(config, discovery, named.plugins, usable, unusable)
    about_aliases = _placed(config, named.complaints)
    idle = {f"plugins.{name}.uses" for name, entry in settings.plugins.items() if not entry.enabled}
    errors = [
        *_about_roots(config, discovery.complaints),
        *(complaint for complaint in about_aliases if complaint.path not in idle),
        *visit.errors(),
    ]
    warnings = [*config.warnings, *discovery.warnings, *visit.warnings()]
    drifted, refused = _plugin_drift(config, named.plugins)
    report = Report((*errors, *refused), tuple(dict.fromkeys((*warnings, *drifted))))
    return Examination(config, discovery, named.plugins, unusable, report)


def sealed_plugins(config: Config, plugins: Mapping[str, Plugin]) -> dict[str, checksums.SealedPlugin]:
    """Every configured plugin as it would be sealed now."""
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
            yield name, "has no entry, so it is not in the seal; give it one and run `ductile config lock`"


def _all_must_be_sealed(config: Config) -> bool:
    """Whether nothing is used that the seal does not have. One of the original has too little to ask that of it."""
    service = config.settings.service
    asked = service.strict_mode or service.admission.fail_on_drift
    return asked and (config.seal is None or config.seal.is_complete)


def _why_absent(name: str, discovery: Discovery, plugins: Mapping[str, Plugin]) -> str:
    for rejected in discovery.rejected:
        if rejected.name == name:
            return f"is not usable: {rejected.reason}"
    return f"is in none of the plugin_roots{did_you_mean(name, plugins)}"


def _placed(config: Config, complaints: Iterable[Complaint]) -> list[Complaint]:
    return [config.complaint(complaint.message, complaint.path, complaint.category) for complaint in complaints]


def _about_roots(config: Config, complaints: Iterable[Complaint]) -> list[Complaint]:
    """Complaints about a directory, at the place that names it."""
    indexes = {str(root): index for index, root in reversed(list(enumerate(config.settings.plugin_roots)))}
    return [
        config.complaint(f"{complaint.path}: {complaint.message}", f"plugin_roots[{index}]", complaint.category)
        if (index := indexes.get(complaint.path)) is not None
        else complaint
        for complaint in complaints
    ]


def _plugin_drift(config: Config, plugins: Mapping[str, Plugin]) -> tuple[list[Complaint], list[Complaint]]:
    """Plugins that are not the sealed ones: what to warn about and what to refuse."""
    if config.seal is None:
        return [], []
    service = config.settings.service
    drifts = checksums.drift_of_plugins(sealed_plugins(config, plugins), config.seal)
    unsealed = service.strict_mode or service.admission.fail_on_drift
    refused = checksums.refusals(
        drifts,
        changed=unsealed or service.admission.verify_integrity_on_boot,
        unsealed=unsealed,
        seal=config.seal,
    )
    return [drift.complaint for drift in drifts if drift.complaint not in refused], refused


@frozen
class _Visit:
    """One look at one configuration."""

    config: Config
    discovery: Discovery
    found: Mapping[str, Plugin]
    plugins: Mapping[str, Plugin]
    unusable: Mapping[str, str]

    def errors(self) -> Iterator[Complaint]:
        settings = self.config.settings
        if not settings.plugin_roots:
            yield self._say("names no directory; there is nothing to run", "plugin_roots", "plugin_refs")
        for name, entry in settings.plugins.items():
            if name in self.unusable and entry.enabled and not self._is_alias_problem(name, entry):
                yield self._say(self.unusable[name], f"plugins.{name}", "plugin_refs")
            elif name in self.plugins:
                yield from self._commands(name, entry)
        yield from self._targets()
        yield from self._steps()
        yield from self._route_cycles()

    def warnings(self) -> Iterator[Complaint]:
        yield from self._service()
        yield from self._tokens()
        yield from self._schedules()
        yield from self._unused()
        if self.config.plans.by_name:
            yield from self._pipelines()
        for rejected in self.discovery.rejected:
            if not self._is_configured(rejected):
                yield Complaint(f"plugin {rejected.name} is not usable: {rejected.reason}", category="plugin_refs")
        for name, entry in self.config.settings.plugins.items():
            if name in self.unusable and not entry.enabled:
                yield self._say(f"{self.unusable[name]} (it is disabled)", f"plugins.{name}", "plugin_refs")

    # ── errors ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _commands(self, name: str, entry: PluginEntry) -> Iterator[Complaint]:
        known = self.plugins[name].manifest.commands
        for index, schedule in enumerate(entry.schedules):
            if schedule.command not in known:
                where = f"plugins.{name}.schedules[{index}].command"
                message = f"plugin {name} has no command {schedule.command!r}; it has {', '.join(known)}"
                yield self._say(message, where, "plugin_refs")

    def _targets(self) -> Iterator[Complaint]:
        settings = self.config.settings
        for index, route in enumerate(settings.routes):
            yield from self._plugin_named(route.source, f"routes[{index}].from", "routes")
            yield from self._plugin_named(route.to, f"routes[{index}].to", "routes", command="handle")
        for index, endpoint in enumerate(settings.webhooks.endpoints):
            if endpoint.plugin:
                where = f"webhooks.endpoints[{index}].plugin"
                yield from self._plugin_named(endpoint.plugin, where, "webhooks", command="handle")

    def _steps(self) -> Iterator[Complaint]:
        """A disabled plugin is only worth a warning here: an operator may do without a step for a while."""
        disabled = {name for name, entry in self.config.settings.plugins.items() if not entry.enabled}
        for plan in self.config.plans.by_name.values():
            for node in plan.own_nodes:
                if node.kind == "uses" and node.plugin not in disabled:
                    yield from self._plugin_named(node.plugin, f"{node.where}.uses", "pipelines", command=node.command)
            if plan.from_plugin and plan.from_plugin not in disabled:
                yield from self._plugin_named(plan.from_plugin, f"{plan.where}.from_plugin", "pipelines")

    def _plugin_named(self, name: str, path: str, category: str, *, command: str | None = None) -> Iterator[Complaint]:
        entry = self.config.settings.plugins.get(name)
        if name not in self.plugins:
            why = self.unusable.get(name) or _why_absent(name, self.discovery, self.plugins)
            yield self._say(f"plugin {name} {why}", path, category)
        elif entry is not None and not entry.enabled:
            yield self._say(f"plugin {name} is disabled", path, category)
        elif command and command not in self.plugins[name].manifest.commands:
            known = self.plugins[name].manifest.commands
            message = f"plugin {name} has no command {command!r}{did_you_mean(command, known)}"
            yield self._say(f"{message}; it has {', '.join(known)}", path, category)

    def _route_cycles(self) -> Iterator[Complaint]:
        routes = self.config.settings.routes
        following: dict[str, dict[str, None]] = {}
        for route in routes:
            following.setdefault(route.source, {})[route.to] = None
        if not following:
            return
        from ductile.pipeline.compile.graph import circles, way

        for cycle in circles(following):
            index = next(i for i, route in enumerate(routes) if [route.source, route.to] == cycle[:2])
            yield self._say(f"routes go in a circle: {way(cycle)}", f"routes[{index}]", "routes")

    # ── warnings ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _pipelines(self) -> Iterator[Complaint]:
        # As in `load`: who has no pipeline does not pay for the language of pipelines.
        from ductile.config.checks.contracts import broken_contracts
        from ductile.config.checks.pipelines import Workflows

        yield from Workflows(self.config, self.plugins).warnings()
        yield from broken_contracts(self.config, self.plugins)

    def _service(self) -> Iterator[Complaint]:
        settings = self.config.settings
        if settings.service.tick_interval < SHORT_TICK:
            yield self._say("below 1s costs more than it gives", "service.tick_interval", "service")
        if "*" in settings.service.plugin_env_passthrough:
            message = "gives every plugin the whole environment of the service, secrets included"
            yield self._say(message, "service.plugin_env_passthrough", "service")
        for path, listen in (("api.listen", settings.api.listen), ("webhooks.listen", settings.webhooks.listen)):
            in_use = settings.api.enabled if path.startswith("api") else settings.webhooks.endpoints
            if in_use and not listen.startswith(LOOPBACK):
                message = f"{listen} can be reached from other hosts; put a TLS proxy in front"
                yield self._say(message, path, path.partition(".")[0])

    def _tokens(self) -> Iterator[Complaint]:
        settings = self.config.settings
        for index, token in enumerate(settings.api.auth.tokens):
            path = f"api.auth.tokens[{index}]"
            if len(token.token.reveal()) < LEAST_TOKEN:
                yield self._say(f"is shorter than {LEAST_TOKEN} characters and can be guessed", f"{path}.token", "api")
            yield from self._scopes(token.scopes, f"{path}.scopes")
        for index, named in enumerate(settings.tokens):
            if len(named.key.reveal()) < LEAST_SECRET:
                message = f"is shorter than {LEAST_SECRET} characters; one signed message is enough to guess it"
                yield self._say(message, f"tokens[{index}].key", "token_scopes")
            grant = self.config.grants.get(named.name)
            if grant:
                yield from self._scopes(grant.scopes, f"tokens[{index}].scopes_file")

    def _scopes(self, scopes: Iterable[str], path: str) -> Iterator[Complaint]:
        for scope in scopes:
            if not is_scope(scope):
                message = (
                    f"scope {scope!r} grants nothing{did_you_mean(scope, SCOPES)}; known: {', '.join(sorted(SCOPES))}"
                )
                yield self._say(message, path, "token_scopes")

    def _schedules(self) -> Iterator[Complaint]:
        zone_matters = "UTC" not in time.tzname
        for name, entry in self.config.settings.plugins.items():
            for index, schedule in enumerate(entry.schedules):
                path = f"plugins.{name}.schedules[{index}]"
                if schedule.every and schedule.every < SHORT_INTERVAL:
                    yield self._say("runs more often than once a minute", f"{path}.every", "schedule")
                local = schedule.cron or schedule.only_between or schedule.preferred_window or schedule.not_on
                if local and schedule.timezone is None and zone_matters:
                    message = f"has no timezone; the host's counts ({'/'.join(dict.fromkeys(time.tzname))})"
                    yield self._say(message, path, "schedule")
            known = self.plugins[name].manifest.commands if name in self.plugins else None
            for command in entry.timeouts.keys() - (known.keys() if known is not None else entry.timeouts.keys()):
                if command not in DEFAULT_TIMEOUTS:
                    yield self._say(
                        f"plugin {name} has no such command", f"plugins.{name}.timeouts.{command}", "plugin_refs"
                    )

    def _unused(self) -> Iterator[Complaint]:
        settings = self.config.settings
        bases = {entry.uses for entry in settings.plugins.values()}
        for name, plugin in self.discovery.plugins.items():
            if name not in settings.plugins and name not in bases:
                why = self.unusable.get(name, "has no entry; it can be triggered, not scheduled")
                message = f"plugin {name} ({shown_path(plugin.folder)}) {why}"
                yield Complaint(message, f"plugins.{name}", category="unused")
        reached = {route.to for route in settings.routes}
        reached |= {endpoint.plugin for endpoint in settings.webhooks.endpoints if endpoint.plugin}
        reached |= {node.plugin for plan in self.config.plans.by_name.values() for node in plan.own_nodes}
        for name, entry in settings.plugins.items():
            has_reason = entry.schedules or name in reached or name in bases or settings.api.enabled
            if entry.enabled and not has_reason:
                message = "nothing starts it: no schedule, route, pipeline, webhook or API"
                yield self._say(message, f"plugins.{name}", "unused")

    def _is_configured(self, rejected: Rejected) -> bool:
        entries = self.config.settings.plugins
        return rejected.name in entries or any(entry.uses == rejected.name for entry in entries.values())

    def _is_alias_problem(self, name: str, entry: PluginEntry) -> bool:
        """Such entries are complained about where the alias is resolved."""
        return entry.uses not in (None, name) and name not in self.found

    @property
    def _say(self) -> Callable[[str, str, str], Complaint]:
        return self.config.complaint
