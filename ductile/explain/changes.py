"""What is different between two moments in the life of a ledger: configuration, plugin files, state.

Compares the sanitised configurations that the ledger keeps, so it works offline and shows no secret.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from ductile.core.clock import to_text
from ductile.core.format_time import told
from ductile.core.formats import strict_json
from ductile.core.formats.stored_json import kept_object
from ductile.ledger.reports import wait_reasons
from ductile.ledger.storage.db import Db
from ductile.ledger.tables import snapshots
from ductile.ledger.tables.snapshots import StoredSnapshot

MOST_TOLD = 50
LONGEST_VALUE = 120
UNSET = "(not set)"
NAMED_BY = ("name", "id", "path")
"""What members of lists in a configuration are called by: pipelines and tokens, schedules and steps, endpoints."""
_MEMBER = re.compile(r"(.+)\[([^\[\]]+)\]")


def changes_since(
    db: Db, snapshot_id: str | None, plugin: str, *, since: datetime | None, until_id: str | None = None
) -> dict[str, Any]:
    """What changed from the configuration `snapshot_id` to `until_id`, or to the newest one, as far as is known."""
    old = snapshots.get(db, snapshot_id) if snapshot_id else None
    new = snapshots.get(db, until_id) if until_id else snapshots.newest(db)
    state_at = wait_reasons.state_changed_at(db, plugin)
    is_later = bool(state_at and since and state_at > since)
    shown: dict[str, Any] = {"known": old is not None and new is not None}
    if old is not None and new is not None:
        shown |= _between(old, new, plugin)
    return shown | {"state_changed_at": to_text(state_at) if state_at and is_later else None}


def _between(old: StoredSnapshot, new: StoredSnapshot, plugin: str) -> dict[str, Any]:
    if old.id == new.id:
        return {"config": [], "config_cut": 0, "other_plugins": [], "secrets": [], "plugin": []}
    everything = list(differences(kept_object(old.sanitized_config), kept_object(new.sanitized_config)))
    others = {path.split(".")[1] for path, *_ in everything if path.startswith("plugins.")} - {plugin}
    found = [one for one in everything if not (one[0].startswith("plugins.") and one[0].split(".")[1] in others)]
    secrets = differences(kept_object(old.secret_fingerprints), kept_object(new.secret_fingerprints))
    then, today = (kept_object(one.plugin_fingerprints).get(plugin) or {} for one in (old, new))
    return {
        "from": {"snapshot_id": old.id, "loaded_at": to_text(old.loaded_at), "ductile_version": old.ductile_version},
        "to": {"snapshot_id": new.id, "loaded_at": to_text(new.loaded_at), "ductile_version": new.ductile_version},
        "config": [{"path": path, "before": before, "after": after} for path, before, after in found[:MOST_TOLD]],
        "config_cut": max(len(found) - MOST_TOLD, 0),
        "other_plugins": sorted(others),
        "secrets": sorted(path for path, *values in secrets if UNSET not in values),
        "plugin": sorted(path for path, *_ in differences(then, today)),
    }


def differences(before: Any, after: Any, at: str = "") -> Iterator[tuple[str, str, str]]:
    """Dotted path and both values of everything that differs."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted({*before, *after}):
            inner = f"{at}.{name}" if at else str(name)
            yield from differences(before.get(name, UNSET), after.get(name, UNSET), inner)
    elif (old := _by_name(before)) is not None and (new := _by_name(after)) is not None:
        for name in sorted({*old, *new}):
            yield from differences(old.get(name, UNSET), new.get(name, UNSET), f"{at}[{name}]")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from differences(one, other, f"{at}[{index}]")
    elif before != after:
        yield at, _short(before), _short(after)


def _by_name(value: Any) -> dict[str, Any] | None:
    """A list whose members have names of their own, as those names; None for any other value."""
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        return None
    for key in NAMED_BY:
        names = [one.get(key) for one in value]
        if all(isinstance(name, str) for name in names) and len(set(names)) == len(names):
            return dict(zip(names, value, strict=True))
    return None


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else strict_json.dumps(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"


def _config_lines(config: Sequence[Mapping[str, str]]) -> list[str]:
    """One line for each value that is another one, and one for the members that a list got or lost."""
    lines: list[str] = []
    came_and_went: dict[str, dict[str, list[str]]] = {}
    for one in config:
        member = _MEMBER.fullmatch(one["path"])
        if member is None or UNSET not in (one["before"], one["after"]):
            lines.append(f"config {one['path']}: {one['before']} → {one['after']}")
        else:
            how = "added" if one["before"] == UNSET else "removed"
            came_and_went.setdefault(member[1], {}).setdefault(how, []).append(member[2])
    for at, found in came_and_went.items():
        told = "; ".join(f"{how} {', '.join(names)}" for how, names in sorted(found.items()))
        lines.append(f"config {at}: {told}")
    return lines


def change_lines(changes: Mapping[str, Any]) -> list[str]:
    """The same for people; at least one line."""
    if not changes["known"]:
        lines = ["configuration then: no longer on record"]
    else:
        lines = [f"plugin files: {', '.join(changes['plugin'])}"] if changes["plugin"] else []
        lines += _config_lines(changes["config"])
        lines += [f"config: {changes['config_cut']} more"] if changes["config_cut"] else []
        lines += [f"config of other plugins: {', '.join(changes['other_plugins'])}"] if changes["other_plugins"] else []
        lines += [f"secret {path}: another value" for path in changes["secrets"]]
    if changes["state_changed_at"]:
        lines.append(f"state of the plugin: changed {told(changes['state_changed_at'])}")
    return lines or ["nothing: same plugin files, configuration and state"]
