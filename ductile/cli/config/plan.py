"""`ductile config plan`: the changes of a reload, from the running service or from the ledger."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output
from ductile.core.errors import Complaint, ServiceUnreachable

if TYPE_CHECKING:
    from ductile.ledger.tables.snapshots import StoredSnapshot as Record

NOT_SEALED = "not sealed; run `ductile config plugin set` to configure and seal it"


@click.command("plan")
@options.config
@options.service
@options.as_json
def plan(
    config_path: Path | None, config_dir: Path | None, api_url: str | None, api_key: str | None, as_json: bool
) -> None:
    """Show what a reload would change, without reloading.

    Queries the running service. While it is stopped, compares the files with the last configuration in the ledger.

    Example: ductile config plan
    """
    from ductile.cli.base.connect import client

    explicit = options.selected_config(config_path, config_dir)
    try:
        answer = client(explicit, api_url, api_key).request("GET", "/config/plan")
    except ServiceUnreachable:
        if api_url:
            raise
        answer = _since_last_load(explicit)

    def human(shown: dict[str, Any]) -> list[str]:
        return [*reload_lines(shown), f"compared with {shown['compared_with']}"]

    output.show(answer, as_json=as_json, human=human)


def _since_last_load(explicit: Path | None) -> dict[str, Any]:
    from attrs import evolve

    from ductile.cli.base.connect import load_snapshot, read_ledger
    from ductile.config.views.changes import ConfigChanges, NamedChanges, ReloadResult, unsealed
    from ductile.core.clock import to_text
    from ductile.engine.maintenance.save_snapshot import snapshot_row
    from ductile.ledger.tables.snapshots import newest

    snapshot, now = load_snapshot(explicit), datetime.now(UTC)
    last = read_ledger(snapshot, newest)
    if last is None or last.sanitized_config is None:
        changes, compared_with = ConfigChanges(sections={}), "nothing: no service has used this ledger yet"
    else:
        gone = {name: reason for name in _plugins(last) if (reason := snapshot.why_unavailable(name)) is not None}
        found = _changes(last, snapshot_row(snapshot, reason="plan", now=now))
        new = unsealed(found.sections.get("plugins", NamedChanges()), snapshot.config)
        changes = evolve(found, unavailable=gone, unsealed=new)
        compared_with = f"the configuration of {to_text(last.loaded_at)} ({last.id}); the service is not running"
    planned = ReloadResult(at=now, changes=changes, report=snapshot.report, dry_run=True)
    return {**planned.as_data(), "compared_with": compared_with}


def _changes(before: "Record", after: "Record") -> Any:
    from attrs import evolve

    from ductile.config.views.changes import NamedChanges, add_file_changes, compare_settings

    data = _data(after)
    changes = compare_settings(_data(before), data)
    entries = data.get("plugins", {})
    plugins = add_file_changes(
        changes.sections.get("plugins", NamedChanges()), _plugins(before), _plugins(after), entries=entries
    )
    return evolve(changes, sections={**changes.sections, "plugins": plugins}) if plugins else changes


def _data(record: "Record") -> dict[str, Any]:
    """Return the configuration with fingerprints in place of secrets, so that a new secret is a change."""
    from ductile.config.edit.assignment import parse_path
    from ductile.config.views.secret_uses import stored_fingerprints
    from ductile.core.formats import strict_json

    data: dict[str, Any] = strict_json.loads(record.sanitized_config or "{}")
    tokens = {f"tokens.{token['name']}.key": index for index, token in enumerate(data.get("tokens", ()))}
    for purpose, fingerprint in stored_fingerprints(record.secret_fingerprints).items():
        if purpose.startswith("webhooks."):
            continue  # the key of a token, which is compared at its own place
        *parents, last = parse_path(f"tokens[{tokens[purpose]}].key" if purpose in tokens else purpose, data)
        holder: Any = data
        for part in parents:
            holder = holder[part]
        holder[last] = fingerprint
    return data


def _plugins(record: "Record") -> dict[str, Any]:
    from ductile.core.formats import strict_json

    found: dict[str, Any] = strict_json.loads(record.plugin_fingerprints or "{}")
    return found


def reload_lines(answer: dict[str, Any]) -> list[str]:
    """Format what a reload changed or would change."""
    done = "reloaded" if answer["changed"] else "unchanged"
    lines = [f"{'planned' if answer['status'] == 'planned' else done}: {answer['message']}"]
    changes = dict(answer["changes"])
    settings, unavailable, unsealed = (changes.pop(name, ()) for name in ("settings", "unavailable", "unsealed"))
    rows = []
    for section, named in changes.items():
        new = unsealed if section == "plugins" else ()
        rows += [("+", section, name, NOT_SEALED if name in new else "") for name in named["added"]]
        rows += [("-", section, name, "") for name in named["removed"]]
        rows += [("~", section, name, ", ".join(paths)) for name, paths in named["changed"].items()]
    rows += [("~", "settings", path, "") for path in settings]
    rows += [("!", "plugins", name, reason) for name, reason in unavailable.items()]
    lines += [f"  {line}" for line in output.table(rows)]
    lines += _next_run_lines(answer["next_runs"])
    ended = "would be cancelled" if answer["status"] == "planned" else "cancelled"
    lines += [
        f"  {output.format_count(count, 'queued job')} of {plugin} {ended}"
        for plugin, count in answer["ended_jobs"].items()
    ]
    return [*lines, *finding_lines(answer)]


def _next_run_lines(runs: dict[str, dict[str, str | None]]) -> list[str]:
    if not runs:
        return []
    rows = [("schedule", "next run before", "after")]
    rows += [(name, run["before"] or "none", run["after"] or "none") for name, run in runs.items()]
    return [f"  {line}" for line in output.table(rows)]


def finding_lines(report: dict[str, Any]) -> list[str]:
    """Format the errors of a configuration report and the number of warnings."""
    errors, warnings = report.get("errors", []), report.get("warnings", [])  # an older service does not send them
    if not errors and not warnings:
        return []
    lines = [f"  error: {Complaint.of(complaint)}" for complaint in errors]
    counts = f"{output.format_count(len(errors), 'error')}, {output.format_count(len(warnings), 'warning')}"
    return [*lines, f"  {counts}; run `ductile config check`"]
