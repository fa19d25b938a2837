"""`ductile config show` and `get`: the effective configuration, including defaults."""

from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output
from ductile.cli.config.edit import load_selected
from ductile.core.errors import NotFound

if TYPE_CHECKING:
    from ductile.config.load.load import Config

effective_option = click.option(
    "--effective", is_flag=True, help="Show the source of every value: explicit or default."
)


@click.command("show")
@click.argument("entity", required=False)
@effective_option
@options.config
@options.as_json
def show(entity: str | None, effective: bool, as_json: bool, **params: Any) -> None:
    """Print the effective configuration, merged, with defaults and masked secrets.

    ENTITY selects a part: a section (service, api, …), plugin:NAME, webhook:NAME-OR-PATH or pipeline:NAME; the name *
    selects all. With --effective, ENTITY is a section or a plugin.

    Example: ductile config show plugin:echo
    """
    from ductile.config.load.redaction import redact_settings
    from ductile.core.formats import strict_yaml

    config = load_selected(params)
    if effective:
        _show_tagged(config, entity.removeprefix("plugin:") if entity else "", as_json=as_json)
        return
    shown = redact_settings(config.settings, config.mask)
    value = _entity(shown, entity) if entity else shown
    output.show(value, as_json=as_json, human=lambda data: strict_yaml.dump(data).splitlines())


def _entity(shown: dict[str, Any], entity: str) -> Any:
    noun, colon, name = entity.partition(":")
    if not colon:
        if noun not in shown:
            raise NotFound(f"section {noun!r} does not exist", hint=f"Sections: {', '.join(shown)}.")
        return shown[noun]
    found: dict[str, Any]
    match noun:
        case "plugin":
            found = shown["plugins"]
        case "webhook":
            found = {}
            for endpoint in shown["webhooks"]["endpoints"]:
                for alias in (endpoint["path"], endpoint["plugin"], endpoint["name"]):
                    found.setdefault(alias, endpoint)
            if name == "*":
                return shown["webhooks"]["endpoints"]
        case "pipeline":
            found = {pipeline["name"]: pipeline for pipeline in shown["pipelines"]}
        case _:
            raise NotFound(f"unknown entity {entity!r}", hint="Use plugin:NAME, webhook:NAME or pipeline:NAME.")
    if name == "*":
        return found
    if name not in found:
        raise NotFound(
            f"{noun} {name!r} does not exist", hint=f"Known: {', '.join(str(key) for key in found if key) or 'none'}."
        )
    return found[name]


@click.command("get")
@click.argument("path")
@effective_option
@options.config
@options.as_json
def get(path: str, effective: bool, as_json: bool, **params: Any) -> None:
    """Print one value of the effective configuration by its dotted path.

    With --effective, the path may start with the name of a plugin.

    Example: ductile config get plugins.echo.retry.max_attempts
    """
    from ductile.config.load.redaction import redact_settings
    from ductile.core.formats import strict_yaml

    config = load_selected(params)
    if effective:
        _show_tagged(config, path, as_json=as_json)
        return
    value = _walk(redact_settings(config.settings, config.mask), path)

    def human(data: Any) -> list[str]:
        return strict_yaml.dump(data).splitlines() if isinstance(data, dict | list) else [_scalar(data)]

    output.show(value, as_json=as_json, human=human)


def _show_tagged(config: "Config", path: str, *, as_json: bool) -> None:
    from ductile.config.views.effective import flatten_tags, tag_sources

    tree = tag_sources(config)
    if path and path.partition(".")[0].partition("[")[0] not in tree and _names_plugin(tree, path):
        path = f"plugins.{path}"
    found = _walk(tree, path)

    def human(shown: Any) -> list[str]:
        rows = [
            (where, _scalar(tag["value"]), f"{tag['source']} {tag.get('at', '')}".strip())
            for where, tag in flatten_tags(shown, path)
        ]
        return output.table(rows)

    output.show(found, as_json=as_json, human=human)


def _names_plugin(tree: dict[str, Any], path: str) -> bool:
    return isinstance(tree["plugins"], dict) and any(
        path == name or path.startswith(f"{name}.") for name in tree["plugins"]
    )


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _walk(value: Any, path: str) -> Any:
    """Return the value at `path`: names joined by dots (names may contain dots), list items as `[0]` or `.0`."""
    rest = path.replace("[", ".").replace("]", "")
    while rest:
        if isinstance(value, list):
            member, _, rest = rest.partition(".")
            if not member.isdigit() or int(member) >= len(value):
                raise NotFound(f"{path!r} has no item [{member}]", hint=f"The list has {len(value)} items.")
            value = value[int(member)]
            continue
        keys = [key for key in value if rest == key or rest.startswith(f"{key}.")] if isinstance(value, dict) else []
        if not keys:
            known = f"Known keys: {', '.join(value)}." if isinstance(value, dict) else "The parent is a single value."
            raise NotFound(f"{path!r} does not exist", hint=known)
        key = max(keys, key=len)
        value, rest = value[key], rest[len(key) + 1 :]
    return value
