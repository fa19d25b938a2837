"""`ductile config pipeline`: add, replace, remove and show entries of `pipelines`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output
from ductile.cli.config.edit import (
    apply_edit,
    edit_options,
    input_name,
    load_selected,
    place_of,
    read_draft,
    read_input,
    show_edited,
)
from ductile.core.errors import NotFound, UsageInvalid, did_you_mean

if TYPE_CHECKING:
    from ductile.config.edit.staged_edit import Draft

SECTION = "pipelines"


@click.group("pipeline")
def pipeline() -> None:
    """Add, remove and show `pipelines`."""


@pipeline.command("add")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--replace", is_flag=True, help="Replace pipelines that already exist.")
@edit_options
def add_pipelines(file: Path, replace: bool, **params: Any) -> int:
    """Add the pipelines of a YAML file to the file that defines `pipelines`, and seal the result. FILE - is stdin.

    FILE contains one pipeline, a list of pipelines, or a `pipelines` section. Its comments are not copied. The whole
    configuration is validated before anything is written.

    Example: ductile config pipeline add deploy.yaml --dry-run
    """
    added = _read_pipelines(file)
    names = [entry["name"] for entry in added]

    def change(draft: "Draft") -> "Draft":
        for entry in added:
            draft = _with_pipeline(draft, entry, replace=replace)
        return draft

    return show_edited(apply_edit(params, change), params, more={"pipelines": names})


def _with_pipeline(draft: "Draft", entry: dict[str, Any], *, replace: bool) -> "Draft":
    names = _names(draft)
    if entry["name"] not in names:
        return draft.with_item((SECTION,), entry)
    if not replace:
        raise UsageInvalid(f"pipeline {entry['name']!r} already exists", hint="Replace it with --replace.")
    return draft.with_value((SECTION, names.index(entry["name"])), entry)


def _read_pipelines(file: Path) -> list[dict[str, Any]]:
    from ductile.core.formats import strict_yaml

    name = input_name(file)
    data = strict_yaml.load(read_input(file), source=name).data()
    if isinstance(data, dict) and set(data) == {SECTION}:
        data = data[SECTION]
    entries = data if isinstance(data, list) else [data]
    if not entries or not all(isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in entries):
        hint = f"It must contain a pipeline with `name`, a list of them, or a `{SECTION}` section and nothing else."
        raise UsageInvalid(f"{name} contains no pipeline", hint=hint)
    return entries


@pipeline.command("remove")
@click.argument("name")
@edit_options
def remove_pipeline(name: str, **params: Any) -> int:
    """Remove a pipeline from the file that defines it, and seal the result.

    Refused while a webhook or another pipeline uses it.

    Example: ductile config pipeline remove deploy
    """
    edited = apply_edit(params, lambda draft: draft.without_item((SECTION,), _index(draft, name)))
    return show_edited(edited, params, more={"pipelines": [name]})


@pipeline.command("show")
@click.argument("name")
@options.config
@options.as_json
def show_pipeline(name: str, as_json: bool, **params: Any) -> None:
    """Print the entry of a pipeline as it is configured. Secrets are masked.

    The output can be edited and passed to `config pipeline add --replace`. `ductile pipeline show` prints the compiled
    plan.

    Example: ductile config pipeline show deploy > deploy.yaml
    """
    from ductile.core.formats import strict_yaml

    config, draft = load_selected(params), read_draft(params)
    index = _index(draft, name)
    entry = config.mask.mask_data(draft.data[SECTION][index])
    result = {"pipeline": entry, **place_of(config, f"{SECTION}[{index}]")}
    output.show(result, as_json=as_json, human=lambda _: strict_yaml.dump(entry).splitlines())


def _names(draft: "Draft") -> list[Any]:
    data = draft.data
    entries = data.get(SECTION) if isinstance(data, dict) else None
    return [entry.get("name") if isinstance(entry, dict) else None for entry in entries or ()]


def _index(draft: "Draft", name: str) -> int:
    names = _names(draft)
    if name not in names:
        known = [known for known in names if isinstance(known, str)]
        hint = f"Configured pipelines: {', '.join(known) or 'none'}."
        raise NotFound(f"pipeline {name!r} is not configured{did_you_mean(name, known)}", hint=hint)
    return names.index(name)
