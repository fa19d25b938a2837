"""`ductile config set`, `plugin`, `route`, `webhook`: change single values and entries of the configuration."""

from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output
from ductile.cli.config.editing import carry_out, draft_of, editing, loaded, show_edited
from ductile.core.errors import NotFound, UsageInvalid, did_you_mean

if TYPE_CHECKING:
    from ductile.config.edit.staged_edit import Draft
    from ductile.config.load.load import Config

DEFAULT_SIGNATURE_HEADER = "X-Signature-256"


@click.command("set")
@click.argument("assignment", metavar="PATH=VALUE")
@editing
def set_value(assignment: str, **given: Any) -> int:
    """Change one value in the file that says it, and seal the result. Comments and all other lines stay.

    VALUE is read as YAML 1.2 reads it: numbers, true, false, null, [lists], {mappings}; all else is text, and text in
    quotes always is. A value that nobody has written yet goes where its section is. The whole configuration is checked
    before anything is written.

    Example: ductile config set plugins.echo.retry.max_attempts=2 --dry-run
    """
    from ductile.config.edit.assignment import parse_assignment
    from ductile.config.edit.yaml_path import spelled

    path, value = parse_assignment(assignment, draft_of(given).data)
    edited = carry_out(given, lambda draft: draft.with_value(path, value))
    return show_edited(edited, given, more={"path": spelled(path)})


@click.group("plugin")
def plugin() -> None:
    """See and change the entries under `plugins`."""


@plugin.command("list")
@options.config
@options.as_json
def list_plugins(as_json: bool, **given: Any) -> None:
    """List the configured plugins and aliases, and where each is written.

    Example: ductile config plugin list --json
    """
    config = loaded(given)
    entries = [
        {
            "name": name,
            "enabled": entry.enabled,
            "uses": entry.uses,
            "schedules": [schedule.id for schedule in entry.schedules],
            **_place(config, f"plugins.{name}"),
        }
        for name, entry in config.settings.plugins.items()
    ]
    output.show({"plugins": entries}, as_json=as_json, human=_plugin_lines)


def _plugin_lines(result: dict[str, Any]) -> list[str]:
    rows = [("NAME", "STATE", "USES", "SCHEDULES", "WRITTEN IN")]
    for one in result["plugins"]:
        state = "enabled" if one["enabled"] else "disabled"
        place = f"{one['file']}:{one['line']}"
        rows.append((one["name"], state, one["uses"] or "-", ", ".join(one["schedules"]) or "-", place))
    return output.table(rows) if len(rows) > 1 else ["no plugin is configured"]


@plugin.command("show")
@click.argument("name")
@options.config
@options.as_json
def show_plugin(name: str, as_json: bool, **given: Any) -> None:
    """Print the entry of one plugin with its defaults, secrets hidden.

    Example: ductile config plugin show echo
    """
    from ductile.config.views.show import redacted
    from ductile.core.formats import strict_yaml

    config = loaded(given)
    entries = redacted(config.settings, config.mask)["plugins"]
    if name not in entries:
        known = f"known: {', '.join(entries) or 'none'}"
        raise NotFound(f"there is no plugin {name!r} in the configuration{did_you_mean(name, entries)}", hint=known)
    output.show(entries[name], as_json=as_json, human=lambda entry: strict_yaml.dump(entry).splitlines())


@plugin.command("set")
@click.argument("name")
@click.argument("path")
@click.argument("value")
@editing
def set_in_plugin(name: str, path: str, value: str, **given: Any) -> int:
    """Change one value of a plugin's entry: `config set plugins.NAME.PATH=VALUE`. A missing entry is made.

    Example: ductile config plugin set echo config.message hello
    """
    from ductile.config.edit.assignment import parse_path, parse_value
    from ductile.config.edit.yaml_path import spelled, value_at

    entry = value_at(draft_of(given).data, ("plugins", name))
    way = ("plugins", name, *parse_path(path, entry))
    edited = carry_out(given, lambda draft: draft.with_value(way, parse_value(value)))
    return show_edited(edited, given, more={"path": spelled(way)})


@click.group("route")
def route() -> None:
    """See and change `routes`: events of one plugin that become jobs of another."""


@route.command("list")
@options.config
@options.as_json
def list_routes(as_json: bool, **given: Any) -> None:
    """List the routes, and where each is written.

    Example: ductile config route list
    """
    config = loaded(given)
    entries = [
        {"from": one.source, "event_type": one.event_type, "to": one.to, **_place(config, f"routes[{index}]")}
        for index, one in enumerate(config.settings.routes)
    ]
    output.show({"routes": entries}, as_json=as_json, human=_route_lines)


def _route_lines(result: dict[str, Any]) -> list[str]:
    rows = [("FROM", "EVENT", "TO", "WRITTEN IN")]
    rows += [(one["from"], one["event_type"], one["to"], f"{one['file']}:{one['line']}") for one in result["routes"]]
    return output.table(rows) if len(rows) > 1 else ["there are no routes"]


def _route_named(command: options.Command) -> options.Command:
    command = click.option("--to", "target", required=True, help="The plugin whose `handle` gets it.")(command)
    command = click.option("--event", "event_type", required=True, help="The type of the event.")(command)
    return click.option("--from", "source", required=True, help="The plugin that emits.")(command)


@route.command("add")
@_route_named
@editing
def add_route(source: str, event_type: str, target: str, **given: Any) -> int:
    """Add a route to the file that has the list of routes.

    Example: ductile config route add --from watcher --event file.changed --to backup
    """
    entry = {"from": source, "event_type": event_type, "to": target}

    def change(draft: "Draft") -> "Draft":
        if entry in _written(draft, "routes"):
            raise UsageInvalid("there is such a route already", hint="see `ductile config route list`")
        return draft.with_item(("routes",), entry)

    return show_edited(carry_out(given, change), given, more={"route": entry})


@route.command("remove")
@_route_named
@editing
def remove_route(source: str, event_type: str, target: str, **given: Any) -> int:
    """Take a route out of the file that has it.

    Example: ductile config route remove --from watcher --event file.changed --to backup
    """
    entry = {"from": source, "event_type": event_type, "to": target}

    def change(draft: "Draft") -> "Draft":
        routes = _written(draft, "routes")
        if entry not in routes:
            raise NotFound("there is no such route", hint="see `ductile config route list`")
        return draft.without_item(("routes",), routes.index(entry))

    return show_edited(carry_out(given, change), given, more={"route": entry})


@click.group("webhook")
def webhook() -> None:
    """See and change `webhooks.endpoints`."""


@webhook.command("list")
@options.config
@options.as_json
def list_webhooks(as_json: bool, **given: Any) -> None:
    """List the endpoints, and where each is written.

    Example: ductile config webhook list
    """
    config = loaded(given)
    entries = [
        {
            "path": one.path,
            "name": one.name,
            "plugin": one.plugin,
            "pipeline": one.pipeline,
            "event": one.event,
            "scheme": one.scheme,
            "secret_ref": list(one.secret_ref),
            **_place(config, f"webhooks.endpoints[{index}]"),
        }
        for index, one in enumerate(config.settings.webhooks.endpoints)
    ]
    output.show({"webhooks": entries}, as_json=as_json, human=_webhook_lines)


def _webhook_lines(result: dict[str, Any]) -> list[str]:
    rows = [("PATH", "GOES TO", "SCHEME", "SECRET", "WRITTEN IN")]
    for one in result["webhooks"]:
        target = one["plugin"] or one["pipeline"] or one["event"] or ""
        rows.append((one["path"], target, one["scheme"], ", ".join(one["secret_ref"]), f"{one['file']}:{one['line']}"))
    return output.table(rows) if len(rows) > 1 else ["there are no endpoints"]


@webhook.command("add")
@click.option("--path", required=True, help="Where senders post, such as /hook/github.")
@click.option("--plugin", help="The plugin whose `handle` gets each delivery.")
@click.option("--pipeline", help="Or the pipeline each delivery starts.")
@click.option("--event", help="Or the event each delivery becomes.")
@click.option("--secret-ref", required=True, help="The token in tokens.yaml that signs.")
@click.option("--name", help="Its name in events and commands. Default: the last part of the path.")
@click.option("--scheme", help="How deliveries are signed. Default: hmac-sha256.")
@click.option(
    "--signature-header", help=f"The header with the signature. Default: by scheme; {DEFAULT_SIGNATURE_HEADER}."
)
@click.option("--max-body-size", help="The most a delivery may hold, such as 1MB.")
@editing
def add_webhook(**given: Any) -> int:
    """Add an endpoint to the file that has the list of endpoints.

    Example: ductile config webhook add --path /hook/github --plugin deploy --secret-ref github --scheme github
    """
    names = ("path", "name", "plugin", "pipeline", "event", "scheme", "secret_ref", "signature_header", "max_body_size")
    entry = {name: given[name] for name in names if given[name] is not None}
    if given["scheme"] in (None, "hmac-sha256"):
        entry.setdefault("signature_header", DEFAULT_SIGNATURE_HEADER)
    edited = carry_out(given, lambda draft: draft.with_item(("webhooks", "endpoints"), entry))
    return show_edited(edited, given, more={"webhook": entry})


def _written(draft: "Draft", section: str) -> list[Any]:
    data = draft.data
    entries = data.get(section) if isinstance(data, dict) else None
    return entries if isinstance(entries, list) else []


def _place(config: "Config", path: str) -> dict[str, Any]:
    mark = config.places.get(path)
    return {"file": mark.source if mark else None, "line": mark.line if mark else None}
