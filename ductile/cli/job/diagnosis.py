"""The text of a diagnosis and of configuration changes. Formats the JSON views of `ductile.explain`."""

from collections.abc import Mapping, Sequence
from typing import Any

from ductile.cli.job.why import attempt_lines, head_line
from ductile.core.format_time import format_timestamp, format_when
from ductile.core.formats import strict_json
from ductile.core.model import is_control_plugin
from ductile.explain.changes import NOT_SET

MAX_TEXT_LINES = 12
FACTS = ("submitted_by", "actor", "pipeline", "step_id", "schedule_id", "replay_of")
MOMENTS = ("created_at", "started_at", "completed_at")
DOCUMENTS = ("exit", "request", "response")
FILES = {"entrypoint_hash": "entrypoint", "manifest_hash": "manifest"}


def diagnosis_lines(shown: Mapping[str, Any]) -> list[str]:
    """Return the text of a diagnosis, which may be truncated."""
    lines = [head_line(shown), f"  {shown['why']}"]
    lines += [f"  {name}: {shown[name]}" for name in FACTS if shown.get(name)]
    lines += [f"  {name}: {format_when(shown[name])}" for name in MOMENTS if shown.get(name)]
    lines += [f"  {name}: {_first_lines(_text(shown[name]))}" for name in DOCUMENTS if shown.get(name)]
    if shown["stderr"]:
        lines += ["  stderr:", *(f"    {line}" for line in shown["stderr"].splitlines())]
    lines += attempt_lines(_items(shown["attempts"]))
    for entry in _items(shown["journal"]):
        by = f"  by {entry['actor']}" if entry.get("actor") else ""
        lines.append(f"  {format_timestamp(entry['at'])}  {entry['kind']}{by}  {_text(entry['data'])}")
    if not is_control_plugin(shown["plugin"]):
        lines += _success_lines(shown["since_last_success"])
        lines += _similar_lines(shown["similar_failures"])
    lines += [f"  cut: {name}, {one['kept']} of {one['of']} {one['unit']} shown" for name, one in shown["cut"].items()]
    return [*lines, *(f"  next: {command}" for command in _items(shown["next"]))]


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _success_lines(success: Any) -> list[str]:
    if not isinstance(success, dict):
        return [f"  last success: {success or 'none on record'}"]
    head = f"  last success: job {success['job_id']} {format_when(success['completed_at'])}; changed since:"
    return [head, *(f"    {line}" for line in change_lines(success["changes"]))]


def _similar_lines(similar: Any) -> list[str]:
    if not isinstance(similar, dict):
        return [f"  similar failures: {similar}"]
    if not similar["count"]:
        return ["  similar failures: none on record"]
    when = f"{format_when(similar['first_at'])} to {format_when(similar['last_at'])}"
    return [f"  similar failures: {similar['count']}, {when}: {', '.join(similar['job_ids'])}"]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else strict_json.dumps(value)


def _first_lines(text: str) -> str:
    lines = text.splitlines()
    more = len(lines) - MAX_TEXT_LINES
    return "\n".join([*lines[:MAX_TEXT_LINES], f"… {more} more lines; --json has them"]) if more > 0 else text


# ── changes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def change_lines(changes: Mapping[str, Any]) -> list[str]:
    """Return the text of what changed between two configurations; at least one line."""
    if not changes["known"]:
        lines = ["configuration then: no longer on record"]
    else:
        files = ", ".join(FILES.get(name, name.removeprefix("files.")) for name in changes["plugin"])
        lines = [f"plugin files: {files}"] if files else []
        lines += config_lines(changes["config"])
        lines += [f"config: {changes['config_cut']} more"] if changes["config_cut"] else []
        lines += [f"config of other plugins: {', '.join(changes['other_plugins'])}"] if changes["other_plugins"] else []
        lines += [f"secret {path}: another value" for path in changes["secrets"]]
    if changes["state_changed_at"]:
        lines.append(f"state of the plugin: changed {format_when(changes['state_changed_at'])}")
    return lines or ["nothing: same plugin files, configuration and state"]


def config_lines(config: Sequence[Mapping[str, str]]) -> list[str]:
    """Return one line for each changed value, and one for all members that a list got or lost."""
    lines: list[str] = []
    members: dict[str, dict[str, list[str]]] = {}
    for one in config:
        if "member" in one:
            verb = "added" if one["before"] == NOT_SET else "removed"
            members.setdefault(one["list"], {}).setdefault(verb, []).append(one["member"])
        else:
            lines.append(f"config {one['path']}: {one['before']} → {one['after']}")
    for at, found in members.items():
        text = "; ".join(f"{verb} {', '.join(names)}" for verb, names in sorted(found.items()))
        lines.append(f"config {at}: {text}")
    return lines
