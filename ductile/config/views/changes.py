"""Differences between two configurations, by section and name. Pure; contains no secrets.

Compares the data that `redaction.digest` hashes, with fingerprints in place of secrets: a new secret is a change.
"""

from collections.abc import Container, Iterator, Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypedDict, cast

from attrs import field, frozen

from ductile.config.checks.examine import Report
from ductile.config.load.load import Config
from ductile.config.load.redaction import to_plain_data
from ductile.config.load.token_label import derived_label
from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text
from ductile.core.errors import ComplaintView
from ductile.core.formats.json_schema import OPEN, Count, Timestamp
from ductile.core.secret import Secret


class ConfigChangesView(TypedDict):
    """Also has added, removed and changed names by section."""

    settings: list[str]
    unavailable: dict[str, str]
    unsealed: list[str]


class NextRunView(TypedDict):
    before: Timestamp | None
    after: Timestamp | None


class ReloadView(TypedDict):
    """The changes that a reload made or would make."""

    status: Literal["ok", "planned"]
    changed: Annotated[bool, "True if the reload changes anything"]
    reloaded_at: Timestamp | None
    message: str
    changes: Annotated[ConfigChangesView, OPEN]
    next_runs: Annotated[dict[str, NextRunView], "Next runs of changed schedules"]
    ended_jobs: Annotated[dict[str, Count], "Queued jobs that end, by plugin"]
    errors: Annotated[list[ComplaintView], "Errors; the parts they concern are disabled"]
    warnings: Annotated[list[ComplaintView], "Warnings"]


@frozen
class NamedChanges:
    """The added, removed and changed members of one section; for changed members, the keys that differ."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: Mapping[str, tuple[str, ...]] = field(factory=dict)

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


@frozen(kw_only=True)
class ConfigChanges:
    """The differences between two configurations."""

    sections: Mapping[str, NamedChanges]
    """The members of `SECTIONS` that differ."""
    settings: tuple[str, ...] = ()
    """Dotted paths of all other settings that differ."""
    unavailable: Mapping[str, str] = field(factory=dict)
    """Plugins that are no longer available, with the reason."""
    unsealed: tuple[str, ...] = ()
    """Added plugins that are not in the seal."""

    def __bool__(self) -> bool:
        return bool(self.sections or self.settings or self.unavailable)

    def as_data(self) -> ConfigChangesView:
        sections = {
            name: {"added": list(named.added), "removed": list(named.removed), "changed": _lists(named.changed)}
            for name, named in self.sections.items()
        }
        view: ConfigChangesView = {
            "settings": list(self.settings),
            "unavailable": dict(self.unavailable),
            "unsealed": list(self.unsealed),
        }
        return cast(ConfigChangesView, {**sections, **view})


@frozen(kw_only=True)
class NextRun:
    """The next run of a schedule before and after a change; None if it does not run."""

    before: datetime | None
    after: datetime | None

    def as_data(self) -> NextRunView:
        return {
            "before": to_text(self.before) if self.before else None,
            "after": to_text(self.after) if self.after else None,
        }


@frozen(kw_only=True)
class ReloadResult:
    """The changes that a reload made or would make."""

    at: datetime
    changes: ConfigChanges
    ended_jobs: Mapping[str, int] = field(factory=dict)
    """Number of queued jobs that failed because their plugin was removed, by plugin."""
    next_runs: Mapping[str, NextRun] = field(factory=dict)
    """Added, removed and changed schedules, by `plugin/schedule`."""
    report: Report = field(factory=lambda: Report((), ()))
    """The doctor's report about the new configuration."""
    dry_run: bool = False

    def as_data(self) -> ReloadView:
        return {
            "status": "planned" if self.dry_run else "ok",
            "changed": bool(self.changes),
            "reloaded_at": None if self.dry_run else to_text(self.at),
            "message": _message(self),
            "changes": self.changes.as_data(),
            "next_runs": {name: run.as_data() for name, run in self.next_runs.items()},
            "ended_jobs": dict(self.ended_jobs),
            "errors": [complaint.as_data() for complaint in self.report.errors],
            "warnings": [complaint.as_data() for complaint in self.report.warnings],
        }


def _message(reloaded: ReloadResult) -> str:
    if not reloaded.changes:
        return "no changes"
    return "the reload would make these changes" if reloaded.dry_run else "the new configuration is in use"


SECTIONS = (
    "plugins",
    "schedules",
    "pipelines",
    "routes",
    "tokens",
    "webhooks",
    "instances",
    "topics",
    "consumers",
)


def compare_snapshots(old: Snapshot, new: Snapshot) -> ConfigChanges:
    """Return the changes of a reload from `old` to `new`."""
    before, after = _sections_of(old.config), _sections_of(new.config)
    sections = {name: named for name in SECTIONS if (named := _named(before[name], after[name]))}
    if plugins := add_file_changes(
        sections.get("plugins", NamedChanges()), _fingerprints(old), _fingerprints(new), entries=after["plugins"]
    ):
        sections["plugins"] = plugins
    gone = {name: reason for name in old.plugins if (reason := new.why_unavailable(name)) is not None}
    return ConfigChanges(
        sections=sections,
        settings=tuple(_paths(before["settings"], after["settings"])),
        unavailable=gone,
        unsealed=unsealed(plugins, new.config),
    )


def unsealed(plugins: NamedChanges, config: Config) -> tuple[str, ...]:
    """Return the added plugins that are not in the seal; none if there is no seal."""
    return tuple(name for name in plugins.added if config.seal is not None and name not in config.seal.plugins)


def add_file_changes(
    entry_changes: NamedChanges, before: Mapping[str, Any], after: Mapping[str, Any], *, entries: Container[str]
) -> NamedChanges:
    """Add changes of plugin files to the changes of plugin entries.

    A usable plugin without an entry is detected by its fingerprint only.
    """
    added = {name for name in after if name not in before} - {
        *entry_changes.added,
        *entry_changes.removed,
        *entry_changes.changed,
    }
    changed = {name for name in after if name in before and before[name] != after[name]}
    other_files = changed | {name for name in added if name in entries}
    paths = {
        name: (*entry_changes.changed.get(name, ()), *(("files",) if name in other_files else ()))
        for name in sorted({*entry_changes.changed, *other_files})
    }
    return NamedChanges((*entry_changes.added, *sorted(added - other_files)), entry_changes.removed, paths)


def _fingerprints(snapshot: Snapshot) -> dict[str, Any]:
    return {name: plugin.plugin.fingerprint for name, plugin in snapshot.plugins.items()}


def compare_settings(before: Mapping[str, Any], after: Mapping[str, Any]) -> ConfigChanges:
    """Compare two configurations that are available only as plain data."""
    old, new = _by_section(dict(before)), _by_section(dict(after))
    sections = {name: named for name in SECTIONS if (named := _named(old[name], new[name]))}
    return ConfigChanges(sections=sections, settings=tuple(_paths(old["settings"], new["settings"])))


def _sections_of(config: Config) -> dict[str, dict[str, Any]]:
    return _by_section(to_plain_data(config.settings, hide=Secret.fingerprint))


def _by_section(data: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Split settings into sections of named members and the remaining settings. Modifies `data`."""
    plugins = data.pop("plugins")
    schedules = {
        f"{plugin}/{schedule.get('id', index)}": schedule
        for plugin, entry in plugins.items()
        for index, schedule in enumerate(entry.pop("schedules", []))
    }
    webhooks, exchange = data.get("webhooks") or {}, data.get("exchange") or {}
    api_tokens = data["api"]["auth"].pop("tokens", [])
    return {
        "plugins": plugins,
        "schedules": schedules,
        "pipelines": {pipeline["name"]: pipeline for pipeline in data.pop("pipelines", [])},
        "routes": {f"{each['from']} {each['event_type']} → {each['to']}": {} for each in data.pop("routes", [])},
        "tokens": {
            each.get("name") or derived_label(each["token"]): each for each in (*data.pop("tokens", []), *api_tokens)
        },
        "webhooks": {endpoint["path"]: endpoint for endpoint in webhooks.pop("endpoints", [])},
        "instances": {instance["name"]: instance for instance in data.pop("instances", [])},
        "topics": exchange.pop("topics", {}),
        "consumers": {consumer["topic"]: consumer for consumer in exchange.pop("consumers", [])},
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
    """Yield the paths at which two values differ. Only mappings are descended into."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in {**before, **after}:
            inside = f"{at}.{name}" if at else str(name)
            yield from _paths(before.get(name), after.get(name), inside)
    elif before != after:
        yield at


def _lists(changed: Mapping[str, tuple[str, ...]]) -> dict[str, list[str]]:
    return {name: list(paths) for name, paths in changed.items()}
