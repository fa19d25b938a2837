"""`ductile config set`, `plugin`, `route`, `webhook`: edit single values and entries of the configuration.

The first part is shared with `token`, `scope`, `show` and `backup`.
"""

import os
import sys
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output
from ductile.core.errors import ConfigInvalid, NotFound, UsageInvalid, did_you_mean

if TYPE_CHECKING:
    from ductile.config.edit.edit import EditResult
    from ductile.config.edit.staged_edit import Draft
    from ductile.config.load.load import Config

DEFAULT_SIGNATURE_HEADER = "X-Signature-256"
NOTHING: Mapping[str, Any] = {}
MAX_INPUT_BYTES = 1 << 20
STDIN = "-"


def edit_options(command: options.Command) -> options.Command:
    """Add the options of an edit: `--config`, `--dry-run`, `--apply`, `--strict`, `--json`."""
    command = options.as_json(command)
    command = click.option("--strict", is_flag=True, help="Exit 3 if the result has warnings.")(command)
    command = click.option("--apply", "applies", is_flag=True, help="Write the change (default).")(command)
    return options.config(options.dry_run(command))


def selected_path(params: Mapping[str, Any]) -> Path:
    """Return the path of the configuration that the flags select."""
    from ductile.config.files.sources import find_config

    return find_config(options.selected_config(params["config_path"], params["config_dir"]), os.environ).path


def load_selected(params: Mapping[str, Any]) -> "Config":
    """Load the configuration that the flags select."""
    from ductile.config.load.load import load

    return load(selected_path(params))


def read_draft(params: Mapping[str, Any]) -> "Draft":
    """Read the files of the configuration. Raise ConfigInvalid if one cannot be parsed."""
    from ductile.config.edit.staged_edit import Draft

    draft = Draft.of(selected_path(params), os.environ)
    if draft.sources.errors:
        raise ConfigInvalid(draft.sources.errors)
    return draft


def read_input(file: Path) -> bytes:
    """Return the content of a file argument, or of stdin for `-`. Raises UsageInvalid."""
    try:
        if str(file) == STDIN:
            content = sys.stdin.buffer.read(MAX_INPUT_BYTES + 1)
        else:
            with file.open("rb") as opened:
                content = opened.read(MAX_INPUT_BYTES + 1)
    except OSError as error:
        raise UsageInvalid(f"{file}: {error.strerror}", hint="Give a readable file; - is stdin.") from error
    if len(content) > MAX_INPUT_BYTES:
        raise UsageInvalid(f"{input_name(file)} is larger than {MAX_INPUT_BYTES >> 20} MiB")
    return content


def input_name(file: Path) -> str:
    """Return the name of a file argument for messages."""
    return "stdin" if str(file) == STDIN else str(file)


def apply_edit(
    params: Mapping[str, Any], change: "Callable[[Draft], Draft]", *, approving: Collection[Path] = ()
) -> "EditResult":
    """Validate the change and write it, unless `--dry-run` is given."""
    from ductile.config.edit.edit import edit

    if params["dry_run"] and params["applies"]:
        raise UsageInvalid(
            "--dry-run and --apply are mutually exclusive", hint="Use one of them; --apply is the default."
        )
    return edit(selected_path(params), change, now=datetime.now(UTC), dry_run=params["dry_run"], approving=approving)


def show_edited(
    edited: "EditResult", params: Mapping[str, Any], *, more: Mapping[str, Any] = NOTHING, lines: Collection[str] = ()
) -> int:
    """Print the result of the edit and return the exit code. `more` and `lines` are added to the output."""
    result = {**edit_data(edited), **more}
    output.show(result, as_json=params["as_json"], human=lambda shown: [*_lines(shown), *lines])
    if edited.warnings and not params["as_json"]:
        output.note(f"{output.format_count(len(edited.warnings), 'warning')}; run `ductile config check` to see them")
    return output.WARNINGS_EXIT if params["strict"] and edited.warnings else 0


def edit_data(edited: "EditResult") -> dict[str, Any]:
    """Return the JSON form of an edit."""
    return {
        "status": edited.status,
        "files": [str(path) for path in edited.files],
        "diff": edited.diff,
        "sealed": list(edited.sealed),
        "validation": {"valid": True, "warnings": [warning.as_data() for warning in edited.warnings]},
        "dry_run": edited.dry_run,
    }


def _lines(result: dict[str, Any]) -> list[str]:
    if not result["files"]:
        return [f"{result['status']}: the files already have this value"]
    if result["dry_run"]:
        return [*result["diff"].splitlines(), "valid; nothing was written"]
    lines = [f"changed {name}" for name in result["files"]]
    lines += [f"sealed {change}" for change in result["sealed"]]
    return [*lines, "next: ductile system reload"]


# ── config set, plugin, route, webhook ────────────────────────────────────────────────────────────────────────────────


@click.command("set")
@click.argument("assignment", metavar="PATH=VALUE")
@edit_options
def set_value(assignment: str, **params: Any) -> int:
    """Set one value in the file that defines it, and seal the result. Comments and other lines are preserved.

    VALUE is parsed as YAML 1.2: numbers, true, false, null, [lists], {mappings}; everything else, and quoted values, is
    text. A new value goes into the file that has its section. The whole configuration is validated before anything is
    written.

    Example: ductile config set plugins.echo.retry.max_attempts=2 --dry-run
    """
    from ductile.config.edit.assignment import parse_assignment
    from ductile.config.edit.yaml_edit import format_path

    path, value = parse_assignment(assignment, read_draft(params).data)
    edited = apply_edit(params, lambda draft: draft.with_value(path, value))
    return show_edited(edited, params, more={"path": format_path(path)})


@click.group("plugin")
def plugin() -> None:
    """List, show and edit the entries under `plugins`."""


@plugin.command("list")
@options.config
@options.as_json
def list_plugins(as_json: bool, **params: Any) -> None:
    """List the configured plugins and aliases with their file and line.

    Example: ductile config plugin list --json
    """
    config = load_selected(params)
    entries = [
        {
            "name": name,
            "enabled": entry.enabled,
            "uses": entry.uses,
            "schedules": [schedule.id for schedule in entry.schedules],
            **place_of(config, f"plugins.{name}"),
        }
        for name, entry in config.settings.plugins.items()
    ]
    output.show({"plugins": entries}, as_json=as_json, human=_plugin_lines)


def _plugin_lines(result: dict[str, Any]) -> list[str]:
    rows = [("NAME", "STATE", "USES", "SCHEDULES", "DEFINED IN")]
    for plugin_entry in result["plugins"]:
        state = "enabled" if plugin_entry["enabled"] else "disabled"
        place = f"{plugin_entry['file']}:{plugin_entry['line']}"
        rows.append(
            (
                plugin_entry["name"],
                state,
                plugin_entry["uses"] or "-",
                ", ".join(plugin_entry["schedules"]) or "-",
                place,
            )
        )
    return output.table(rows) if len(rows) > 1 else ["no plugins"]


@plugin.command("show")
@click.argument("name")
@options.config
@options.as_json
def show_plugin(name: str, as_json: bool, **params: Any) -> None:
    """Print the entry of a plugin with its defaults. Secrets are masked.

    Example: ductile config plugin show echo
    """
    from ductile.config.load.redaction import redact_settings
    from ductile.core.formats import strict_yaml

    config = load_selected(params)
    entries = redact_settings(config.settings, config.mask)["plugins"]
    if name not in entries:
        known = f"Configured plugins: {', '.join(entries) or 'none'}."
        raise NotFound(f"plugin {name!r} is not configured{did_you_mean(name, entries)}", hint=known)
    output.show(entries[name], as_json=as_json, human=lambda entry: strict_yaml.dump(entry).splitlines())


@plugin.command("set")
@click.argument("name")
@click.argument("path")
@click.argument("value")
@edit_options
def set_in_plugin(name: str, path: str, value: str, **params: Any) -> int:
    """Set one value of a plugin entry, as `config set plugins.NAME.PATH=VALUE` does. Creates the entry if needed.

    Example: ductile config plugin set echo config.message hello
    """
    from ductile.config.edit.assignment import parse_path, parse_value
    from ductile.config.edit.yaml_edit import format_path, value_at

    entry = value_at(read_draft(params).data, ("plugins", name))
    full_path = ("plugins", name, *parse_path(path, entry))
    edited = apply_edit(params, lambda draft: draft.with_value(full_path, parse_value(value)))
    return show_edited(edited, params, more={"path": format_path(full_path)})


@click.group("route")
def route() -> None:
    """List, add and remove `routes`: events of one plugin that become jobs of another."""


@route.command("list")
@options.config
@options.as_json
def list_routes(as_json: bool, **params: Any) -> None:
    """List the routes with their file and line.

    Example: ductile config route list
    """
    config = load_selected(params)
    entries = [
        {
            "from": route_entry.source,
            "event_type": route_entry.event_type,
            "to": route_entry.to,
            **place_of(config, f"routes[{index}]"),
        }
        for index, route_entry in enumerate(config.settings.routes)
    ]
    output.show({"routes": entries}, as_json=as_json, human=_route_lines)


def _route_lines(result: dict[str, Any]) -> list[str]:
    rows = [("FROM", "EVENT", "TO", "DEFINED IN")]
    rows += [
        (
            route_entry["from"],
            route_entry["event_type"],
            route_entry["to"],
            f"{route_entry['file']}:{route_entry['line']}",
        )
        for route_entry in result["routes"]
    ]
    return output.table(rows) if len(rows) > 1 else ["no routes"]


def _route_named(command: options.Command) -> options.Command:
    command = click.option("--to", "target", required=True, help="Plugin whose `handle` receives the event.")(command)
    command = click.option("--event", "event_type", required=True, help="Event type.")(command)
    return click.option("--from", "source", required=True, help="Plugin that emits the event.")(command)


@route.command("add")
@_route_named
@edit_options
def add_route(source: str, event_type: str, target: str, **params: Any) -> int:
    """Add a route to the file that defines `routes`.

    Example: ductile config route add --from watcher --event file.changed --to backup
    """
    entry = {"from": source, "event_type": event_type, "to": target}

    def change(draft: "Draft") -> "Draft":
        if entry in _entries(draft, "routes"):
            raise UsageInvalid("the route already exists", hint="Run `ductile config route list`.")
        return draft.with_item(("routes",), entry)

    return show_edited(apply_edit(params, change), params, more={"route": entry})


@route.command("remove")
@_route_named
@edit_options
def remove_route(source: str, event_type: str, target: str, **params: Any) -> int:
    """Remove a route from the file that defines it.

    Example: ductile config route remove --from watcher --event file.changed --to backup
    """
    entry = {"from": source, "event_type": event_type, "to": target}

    def change(draft: "Draft") -> "Draft":
        routes = _entries(draft, "routes")
        if entry not in routes:
            raise NotFound("the route does not exist", hint="Run `ductile config route list`.")
        return draft.without_item(("routes",), routes.index(entry))

    return show_edited(apply_edit(params, change), params, more={"route": entry})


@click.group("webhook")
def webhook() -> None:
    """List and add `webhooks.endpoints`."""


@webhook.command("list")
@options.config
@options.as_json
def list_webhooks(as_json: bool, **params: Any) -> None:
    """List the endpoints with their file and line.

    Example: ductile config webhook list
    """
    config = load_selected(params)
    entries = [
        {
            "path": endpoint.path,
            "name": endpoint.name,
            "plugin": endpoint.plugin,
            "pipeline": endpoint.pipeline,
            "event": endpoint.event,
            "scheme": endpoint.scheme,
            "secret_ref": list(endpoint.secret_ref),
            **place_of(config, f"webhooks.endpoints[{index}]"),
        }
        for index, endpoint in enumerate(config.settings.webhooks.endpoints)
    ]
    output.show({"webhooks": entries}, as_json=as_json, human=_webhook_lines)


def _webhook_lines(result: dict[str, Any]) -> list[str]:
    rows = [("PATH", "TARGET", "SCHEME", "SECRET", "DEFINED IN")]
    for endpoint in result["webhooks"]:
        target = endpoint["plugin"] or endpoint["pipeline"] or endpoint["event"] or ""
        rows.append(
            (
                endpoint["path"],
                target,
                endpoint["scheme"],
                ", ".join(endpoint["secret_ref"]),
                f"{endpoint['file']}:{endpoint['line']}",
            )
        )
    return output.table(rows) if len(rows) > 1 else ["no endpoints"]


@webhook.command("add")
@click.option("--path", required=True, help="URL path of the endpoint, such as /hook/github.")
@click.option("--plugin", help="Plugin whose `handle` receives each delivery.")
@click.option("--pipeline", help="Pipeline that each delivery starts.")
@click.option("--event", help="Event type that each delivery becomes.")
@click.option("--secret-ref", required=True, help="Name of the token in tokens.yaml that is the signing secret.")
@click.option("--name", help="Name of the endpoint. Default: the last part of the path.")
@click.option("--scheme", help="Signature scheme. Default: hmac-sha256.")
@click.option(
    "--signature-header", help=f"Signature header. Default: that of the scheme, or {DEFAULT_SIGNATURE_HEADER}."
)
@click.option("--max-body-size", help="Maximum size of a delivery, such as 1MB.")
@edit_options
def add_webhook(**params: Any) -> int:
    """Add an endpoint to the file that defines `webhooks.endpoints`.

    Example: ductile config webhook add --path /hook/github --plugin deploy --secret-ref github --scheme github
    """
    names = ("path", "name", "plugin", "pipeline", "event", "scheme", "secret_ref", "signature_header", "max_body_size")
    entry = {name: params[name] for name in names if params[name] is not None}
    if params["scheme"] in (None, "hmac-sha256"):
        entry.setdefault("signature_header", DEFAULT_SIGNATURE_HEADER)
    edited = apply_edit(params, lambda draft: draft.with_item(("webhooks", "endpoints"), entry))
    return show_edited(edited, params, more={"webhook": entry})


def _entries(draft: "Draft", section: str) -> list[Any]:
    data = draft.data
    entries = data.get(section) if isinstance(data, dict) else None
    return entries if isinstance(entries, list) else []


def place_of(config: "Config", path: str) -> dict[str, Any]:
    """Return the file and line of the value at `path`."""
    mark = config.places.get(path)
    return {"file": mark.source if mark else None, "line": mark.line if mark else None}
