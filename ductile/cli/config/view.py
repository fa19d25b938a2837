"""`ductile config show` and `get`: the configuration as it counts, defaults and all."""

from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output
from ductile.cli.config.editing import loaded
from ductile.core.errors import NotFound

if TYPE_CHECKING:
    from ductile.config.load.load import Config

effective_option = click.option(
    "--effective", is_flag=True, help="Tag every value: explicit (somebody wrote it) or default."
)


@click.command("show")
@click.argument("entity", required=False)
@effective_option
@options.config
@options.as_json
def show(entity: str | None, effective: bool, as_json: bool, **given: Any) -> None:
    """Print the effective configuration: everything merged, defaults filled in, secrets hidden.

    ENTITY narrows it: a section (service, api, …), plugin:NAME, webhook:NAME-OR-PATH or pipeline:NAME;
    the name * stands for all. With --effective it is a section or a plugin.

    Example: ductile config show plugin:echo
    """
    from ductile.config.views.show import redacted
    from ductile.core.formats import strict_yaml

    config = loaded(given)
    if effective:
        _show_tagged(config, entity.removeprefix("plugin:") if entity else "", as_json=as_json)
        return
    shown = redacted(config.settings, config.mask)
    value = _entity(shown, entity) if entity else shown
    output.show(value, as_json=as_json, human=lambda data: strict_yaml.dump(data).splitlines())


def _entity(shown: dict[str, Any], entity: str) -> Any:
    noun, colon, name = entity.partition(":")
    if not colon:
        if noun not in shown:
            raise NotFound(f"there is no section {noun!r}", hint=f"sections: {', '.join(shown)}")
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
            raise NotFound(f"unknown entity {entity!r}", hint="use plugin:NAME, webhook:NAME or pipeline:NAME")
    if name == "*":
        return found
    if name not in found:
        raise NotFound(
            f"there is no {noun} {name!r}", hint=f"known: {', '.join(str(key) for key in found if key) or 'none'}"
        )
    return found[name]


@click.command("get")
@click.argument("path")
@effective_option
@options.config
@options.as_json
def get(path: str, effective: bool, as_json: bool, **given: Any) -> None:
    """Print one value of the effective configuration by its dotted path.

    With --effective the path may begin with the name of a plugin.

    Example: ductile config get plugins.echo.retry.max_attempts
    """
    from ductile.config.views.show import redacted
    from ductile.core.formats import strict_yaml

    config = loaded(given)
    if effective:
        _show_tagged(config, path, as_json=as_json)
        return
    value = _walk(redacted(config.settings, config.mask), path)

    def human(data: Any) -> list[str]:
        return strict_yaml.dump(data).splitlines() if isinstance(data, dict | list) else [_scalar(data)]

    output.show(value, as_json=as_json, human=human)


def _show_tagged(config: "Config", path: str, *, as_json: bool) -> None:
    from ductile.config.views.effective import flattened, tagged

    tree = tagged(config)
    if path and path.partition(".")[0].partition("[")[0] not in tree and _names_plugin(tree, path):
        path = f"plugins.{path}"
    found = _walk(tree, path)

    def human(shown: Any) -> list[str]:
        rows = [
            (where, _scalar(tag["value"]), f"{tag['source']} {tag.get('at', '')}".strip())
            for where, tag in flattened(shown, path)
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
    """The value at `path`: names joined by dots (a name may contain some), list members as `[0]` or `.0`."""
    rest = path.replace("[", ".").replace("]", "")
    while rest:
        if isinstance(value, list):
            member, _, rest = rest.partition(".")
            if not member.isdigit() or int(member) >= len(value):
                raise NotFound(
                    f"there is no [{member}] on the way to {path!r}", hint=f"the list has {len(value)} members"
                )
            value = value[int(member)]
            continue
        keys = [key for key in value if rest == key or rest.startswith(f"{key}.")] if isinstance(value, dict) else []
        if not keys:
            known = f"known here: {', '.join(value)}" if isinstance(value, dict) else "it is a single value"
            raise NotFound(f"there is nothing at {path!r}", hint=known)
        key = max(keys, key=len)
        value, rest = value[key], rest[len(key) + 1 :]
    return value
