"""What differs between two configurations of a ledger: settings, secrets, plugin files, and the plugin's state.

Compares the sanitised configurations that the ledger stores, so it works without a service and shows no secret.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path as FilePath
from typing import Annotated, Any, NotRequired, TypedDict

from attrs import field, frozen

from ductile.config.views.secret_uses import stored_fingerprints
from ductile.core.clock import to_text
from ductile.core.formats import strict_json
from ductile.core.formats.json_schema import Count, Timestamp
from ductile.core.formats.stored_json import load_stored_object
from ductile.ledger.reports import wait_reasons
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import snapshots
from ductile.ledger.tables.snapshots import StoredSnapshot
from ductile.plugin.checked_files import changes_on_disk
from ductile.plugin.fingerprint import PluginFingerprint

MAX_CHANGES, MAX_DIFFERENCES = 50, 500
"""Changed values in a diagnosis, and in a comparison of two configurations."""
MAX_VALUE_CHARS = 120
NOT_SET = "(not set)"
NAME_KEYS = ("name", "id", "path", "topic")
"""What names the members of lists in a configuration: pipelines and tokens, schedules, endpoints, consumers."""
PLUGINS = "plugins"
_ABSENT = object()


class ComparedConfigView(TypedDict):
    """One side of a comparison."""

    snapshot_id: Annotated[str, "null for the files on disk"] | None
    loaded_at: Timestamp | None
    ductile_version: str | None


class DifferenceView(TypedDict):
    """A value that differs. For a member that a list got or lost, also the list and the member."""

    path: str
    before: str
    after: str
    list: NotRequired[str]
    member: NotRequired[str]


# A keyword of Python cannot be a member in the class syntax.
_Sides = TypedDict("_Sides", {"from": ComparedConfigView, "to": ComparedConfigView})


class ConfigDiffView(_Sides):
    """The differences between two configurations. Secrets are masked."""

    config: Annotated[list[DifferenceView], f"The first {MAX_DIFFERENCES} values that differ"]
    config_cut: Annotated[Count, "Values that are left out"]
    secrets: Annotated[list[str], "Paths of secrets with another value"]
    plugins: Annotated[dict[str, list[str]], "Plugin → the parts of its fingerprint that differ"]


@frozen
class Member:
    """A place in a list: the name of the member, or its index."""

    name: str


Path = tuple[str | Member, ...]


@frozen
class Difference:
    """A value that differs. `before` or `after` is `_ABSENT` where it is not set."""

    path: Path
    before: Any
    after: Any

    @property
    def is_set_in_both(self) -> bool:
        return self.before is not _ABSENT and self.after is not _ABSENT

    @property
    def plugin(self) -> str | None:
        """The plugin whose section of the configuration it is in."""
        return str(self.path[1]) if self.path[0] == PLUGINS and len(self.path) > 1 else None

    def as_data(self) -> DifferenceView:
        """Return path and both values; for a member that a list got or lost also the list and the member."""
        view: DifferenceView = {
            "path": format_path(self.path),
            "before": _short(self.before),
            "after": _short(self.after),
        }
        last = self.path[-1]
        if isinstance(last, Member) and not self.is_set_in_both:
            return {**view, "list": format_path(self.path[:-1]), "member": last.name}
        return view


@frozen
class RunConditions:
    """What one attempt ran with: its configuration, and the plugin files that differed from those loaded with it."""

    snapshot_id: str | None
    file_changes: Mapping[str, str | None] = field(factory=dict)

    @classmethod
    def of(cls, snapshot_id: str | None, stored_changes: str | None) -> "RunConditions":
        """Build the value from the columns of an attempt."""
        return cls(snapshot_id, load_stored_object(stored_changes))


def conditions_now(db: Db, plugin: str) -> RunConditions:
    """Return the newest configuration and what differs in the plugin's folder now."""
    newest = snapshots.newest(db)
    loaded = _fingerprint(newest, plugin) if newest else None
    return RunConditions(newest.id if newest else None, changes_on_disk(loaded) if loaded else {})


def changes_since(
    db: Db, before: RunConditions, plugin: str, *, since: datetime | None, until: RunConditions
) -> dict[str, Any]:
    """Return what differs between the two conditions, as far as the ledger knows their configurations."""
    old = snapshots.get(db, before.snapshot_id) if before.snapshot_id else None
    new = snapshots.get(db, until.snapshot_id) if until.snapshot_id else None
    state_at = wait_reasons.state_changed_at(db, plugin)
    is_later = bool(state_at and since and state_at > since)
    shown: dict[str, Any] = {"known": old is not None and new is not None}
    if old is not None and new is not None:
        shown |= _between(old, new, plugin)
        then = _files(old, plugin, before.file_changes)
        today = _files(new, plugin, until.file_changes)
        shown["plugin"] = sorted(format_path(one.path) for one in differences(then, today))
    return shown | {"state_changed_at": to_text(state_at) if state_at and is_later else None}


def compare_configurations(old: StoredSnapshot, new: StoredSnapshot, *, new_is_on_disk: bool = False) -> ConfigDiffView:
    """Return what differs between two configurations. With `new_is_on_disk`, the second one was never loaded."""
    config, prints = (
        list(differences(load_stored_object(before), load_stored_object(after)))
        for before, after in (
            (old.sanitized_config, new.sanitized_config),
            (old.plugin_fingerprints, new.plugin_fingerprints),
        )
    )
    plugins: dict[str, list[str]] = {}
    for one in prints:
        plugins.setdefault(str(one.path[0]), []).append(format_path(one.path[1:]))
    return {
        "from": _side(old),
        "to": {"snapshot_id": None, "loaded_at": None, "ductile_version": None} if new_is_on_disk else _side(new),
        "config": [one.as_data() for one in config[:MAX_DIFFERENCES]],
        "config_cut": max(len(config) - MAX_DIFFERENCES, 0),
        "secrets": _changed_secrets(old, new),
        "plugins": {name: sorted(filter(None, paths)) for name, paths in sorted(plugins.items())},
    }


def _side(snapshot: StoredSnapshot) -> ComparedConfigView:
    loaded_at = to_text(snapshot.loaded_at)
    return {"snapshot_id": snapshot.id, "loaded_at": loaded_at, "ductile_version": snapshot.ductile_version}


def _between(old: StoredSnapshot, new: StoredSnapshot, plugin: str) -> dict[str, Any]:
    if old.id == new.id:
        return {"config": [], "config_cut": 0, "other_plugins": [], "secrets": []}
    config = list(differences(load_stored_object(old.sanitized_config), load_stored_object(new.sanitized_config)))
    others = {one.plugin for one in config if one.plugin is not None} - {plugin}
    found = [one for one in config if one.plugin not in others]
    return {
        "from": _side(old),
        "to": _side(new),
        "config": [one.as_data() for one in found[:MAX_CHANGES]],
        "config_cut": max(len(found) - MAX_CHANGES, 0),
        "other_plugins": sorted(filter(None, others)),
        "secrets": _changed_secrets(old, new),
    }


def _changed_secrets(old: StoredSnapshot, new: StoredSnapshot) -> list[str]:
    """Return the places of secrets that both configurations have, with different values."""
    before, after = stored_fingerprints(old.secret_fingerprints), stored_fingerprints(new.secret_fingerprints)
    return sorted(place for place in before.keys() & after.keys() if before[place] != after[place])


def _stored_fingerprint(snapshot: StoredSnapshot, plugin: str) -> dict[str, Any]:
    stored: dict[str, Any] = load_stored_object(snapshot.plugin_fingerprints).get(plugin) or {}
    return stored


def _fingerprint(snapshot: StoredSnapshot, plugin: str) -> PluginFingerprint | None:
    stored = _stored_fingerprint(snapshot, plugin)
    values: dict[str, Any] = {
        name: FilePath(value) if name.endswith("_path") else value for name, value in stored.items()
    }
    try:
        return PluginFingerprint(**values)
    except TypeError:  # an older or unreadable row
        return None


def _files(snapshot: StoredSnapshot, plugin: str, changes: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the stored fingerprint of the plugin with these files replaced."""
    stored, loaded = _stored_fingerprint(snapshot, plugin), _fingerprint(snapshot, plugin)
    if loaded is None or not changes:
        return stored
    own = {loaded.manifest_name: "manifest_hash", loaded.entrypoint_name: "entrypoint_hash"}
    hashes = {own[name]: digest for name, digest in changes.items() if name in own}
    others = {**loaded.files, **{name: digest for name, digest in changes.items() if name not in own}}
    return {**stored, **hashes, "files": {name: digest for name, digest in others.items() if digest is not None}}


def differences(before: Any, after: Any, at: Path = ()) -> Iterator[Difference]:
    """Yield every value that differs, with its path."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            yield from differences(before.get(name, _ABSENT), after.get(name, _ABSENT), (*at, str(name)))
    elif (old := _by_name(before)) is not None and (new := _by_name(after)) is not None:
        for name in sorted({*old, *new}):
            yield from differences(old.get(name, _ABSENT), new.get(name, _ABSENT), (*at, Member(name)))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old_value, new_value) in enumerate(zip(before, after, strict=True)):
            yield from differences(old_value, new_value, (*at, Member(str(index))))
    elif before != after:
        yield Difference(at, before, after)


def format_path(path: Path) -> str:
    """Return `plugins.echo.schedules[daily].cron`."""
    text = "".join(f"[{part.name}]" if isinstance(part, Member) else f".{part}" for part in path)
    return text.removeprefix(".")


def _by_name(value: Any) -> Mapping[str, Any] | None:
    """Return a list whose members have unique names as a mapping; None for any other value."""
    if not isinstance(value, list) or not all(isinstance(member, dict) for member in value):
        return None
    for key in NAME_KEYS:
        names = [member.get(key) for member in value]
        if all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
            return dict(zip(names, value, strict=True))
    return None


def _short(value: Any) -> str:
    if value is _ABSENT:
        return NOT_SET
    text = value if isinstance(value, str) else strict_json.dumps(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}…"
