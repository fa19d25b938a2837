"""What differs between two configurations, in the words an operator thinks in. Pure; shows no secret.

Values are compared as the hash sees them, with fingerprints in place of secrets, so that a new secret is a change too.
The runtime asks before it swaps one for the other, and `reload --dry-run` shows the answer.
"""

from collections.abc import Container, Iterator, Mapping
from datetime import datetime
from typing import Any

from attrs import field, frozen

from ductile.config.checks.doctor import Report
from ductile.config.load.load import Config
from ductile.config.snapshot import Snapshot
from ductile.config.views.show import plain
from ductile.config.views.token_label import unnamed
from ductile.core.clock import to_text
from ductile.core.secret import Secret


@frozen
class NamedChanges:
    """The members of one section that came, went or changed, by name; a changed one with the keys that differ."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, ...]] = field(factory=dict)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@frozen(kw_only=True)
class ConfigChanges:
    """Everything that is different in the second of two configurations."""

    sections: Mapping[str, NamedChanges]
    """plugins, schedules, pipelines, routes, tokens, webhooks, instances: only those with a difference."""
    settings: tuple[str, ...] = ()
    """Dotted paths of everything else that differs."""
    unavailable: Mapping[str, str] = field(factory=dict)
    """Plugins that could run and cannot any more, with the reason."""
    unsealed: tuple[str, ...] = ()
    """Plugins that came and that the seal does not have."""

    def __bool__(self) -> bool:
        return bool(self.sections or self.settings or self.unavailable)

    def as_data(self) -> dict[str, Any]:
        shown: dict[str, Any] = {
            name: {"added": list(named.added), "removed": list(named.removed), "changed": _lists(named.changed)}
            for name, named in self.sections.items()
        }
        return shown | {
            "settings": list(self.settings),
            "unavailable": dict(self.unavailable),
            "unsealed": list(self.unsealed),
        }


@frozen(kw_only=True)
class NextRun:
    """When a schedule runs next, before and after a change; None: not at all."""

    before: datetime | None
    after: datetime | None

    def as_data(self) -> dict[str, str | None]:
        return {
            "before": to_text(self.before) if self.before else None,
            "after": to_text(self.after) if self.after else None,
        }


@frozen(kw_only=True)
class Reloaded:
    """What a reload changed, or would."""

    at: datetime
    changes: ConfigChanges
    ended_jobs: Mapping[str, int] = field(factory=dict)
    """Waiting jobs that ended because their plugin is gone, by plugin."""
    next_runs: Mapping[str, NextRun] = field(factory=dict)
    """Of the schedules that came, went or changed, as `plugin/schedule`."""
    report: Report = field(factory=lambda: Report((), ()))
    """What the doctor found in the new configuration."""
    dry_run: bool = False

    def as_data(self) -> dict[str, Any]:
        status = "planned" if self.dry_run else "reloaded" if self.changes else "unchanged"
        return {
            "status": status,
            "reloaded_at": None if self.dry_run else to_text(self.at),
            "message": _message(self),
            "changes": self.changes.as_data(),
            "next_runs": {name: run.as_data() for name, run in self.next_runs.items()},
            "ended_jobs": dict(self.ended_jobs),
            **self.report.as_data(),
        }


def _message(reloaded: Reloaded) -> str:
    if not reloaded.changes:
        return "nothing has changed"
    return "this would change" if reloaded.dry_run else "the new configuration is in use"


SECTIONS = ("plugins", "schedules", "pipelines", "routes", "tokens", "webhooks", "instances")


def changes_between(old: Snapshot, new: Snapshot) -> ConfigChanges:
    """What a reload from `old` to `new` would change."""
    before, after = _sorted(old.config), _sorted(new.config)
    sections = {name: named for name in SECTIONS if (named := _named(before[name], after[name]))}
    if plugins := with_files(
        sections.get("plugins", NamedChanges()), _found(old), _found(new), entries=after["plugins"]
    ):
        sections["plugins"] = plugins
    gone = {name: reason for name in old.lanes if (reason := new.why_unavailable(name)) is not None}
    return ConfigChanges(
        sections=sections,
        settings=tuple(_paths(before["settings"], after["settings"])),
        unavailable=gone,
        unsealed=unsealed(plugins, new.config),
    )


def unsealed(plugins: NamedChanges, config: Config) -> tuple[str, ...]:
    """Those of the plugins that came which a seal, if there is one, does not have."""
    return tuple(name for name in plugins.added if config.seal is not None and name not in config.seal.plugins)


def with_files(
    told: NamedChanges, before: Mapping[str, Any], after: Mapping[str, Any], *, entries: Container[str]
) -> NamedChanges:
    """What changed in the entries, and what the fingerprints of the plugins that can run say besides.

    A plugin that nobody wrote an entry for comes with its files alone.
    """
    came = {name for name in after if name not in before} - {*told.added, *told.removed, *told.changed}
    changed = {name for name in after if name in before and before[name] != after[name]}
    other_files = changed | {name for name in came if name in entries}
    paths = {
        name: (*told.changed.get(name, ()), *(("files",) if name in other_files else ()))
        for name in sorted({*told.changed, *other_files})
    }
    return NamedChanges((*told.added, *sorted(came - other_files)), told.removed, paths)


def _found(snapshot: Snapshot) -> dict[str, Any]:
    return {name: lane.plugin.fingerprint for name, lane in snapshot.lanes.items()}


def changes_of(before: Mapping[str, Any], after: Mapping[str, Any]) -> ConfigChanges:
    """The same for two configurations of which only the plain data is left."""
    old, new = _by_section(dict(before)), _by_section(dict(after))
    sections = {name: named for name in SECTIONS if (named := _named(old[name], new[name]))}
    return ConfigChanges(sections=sections, settings=tuple(_paths(old["settings"], new["settings"])))


def _sorted(config: Config) -> dict[str, dict[str, Any]]:
    return _by_section(plain(config.settings, hide=Secret.fingerprint))


def _by_section(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The settings as sections of named members, and what is left of them. Takes `data` apart."""
    plugins = data.pop("plugins")
    schedules = {
        f"{plugin}/{schedule.get('id', index)}": schedule
        for plugin, entry in plugins.items()
        for index, schedule in enumerate(entry.pop("schedules", []))
    }
    webhooks = data.get("webhooks") or {}
    api_tokens = data["api"]["auth"].pop("tokens", [])
    return {
        "plugins": plugins,
        "schedules": schedules,
        "pipelines": {pipeline["name"]: pipeline for pipeline in data.pop("pipelines", [])},
        "routes": {f"{each['from']} {each['event_type']} → {each['to']}": {} for each in data.pop("routes", [])},
        "tokens": {each.get("name") or unnamed(each["token"]): each for each in (*data.pop("tokens", []), *api_tokens)},
        "webhooks": {endpoint["path"]: endpoint for endpoint in webhooks.pop("endpoints", [])},
        "instances": {instance["name"]: instance for instance in data.pop("instances", [])},
        "settings": data,
    }


def _named(before: Mapping[str, Any], after: Mapping[str, Any]) -> NamedChanges:
    return NamedChanges(
        tuple(name for name in after if name not in before),
        tuple(name for name in before if name not in after),
        {
            name: tuple(_paths(before[name], after[name]))
            for name in after
            if name in before and before[name] != after[name]
        },
    )


def _paths(before: Any, after: Any, at: str = "") -> Iterator[str]:
    """Where two values differ, as deep as both are objects."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            inside = f"{at}.{name}" if at else str(name)
            yield from _paths(before.get(name), after.get(name), inside)
    elif before != after:
        yield at


def _lists(changed: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    return {name: list(paths) for name, paths in changed.items()}
