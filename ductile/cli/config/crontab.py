"""`ductile config import`: create configuration from the files of other programs."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ductile.cli.base import options, output
from ductile.cli.config.edit import apply_edit, edit_data, input_name, read_draft, read_input
from ductile.core.errors import UsageInvalid

if TYPE_CHECKING:
    from ductile.config.edit.crontab import Alias, SkippedLine
    from ductile.config.edit.edit import EditResult
    from ductile.config.edit.staged_edit import Draft


@click.group("import")
def import_group() -> None:
    """Create configuration from the files of other programs."""


@import_group.command("crontab")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--system", "has_users", is_flag=True, help="The sixth field is a user, as in /etc/crontab; ignore it.")
@click.option("--timeout", default="1h", show_default=True, help="How long each command may take.")
@click.option("--apply", "applies", is_flag=True, help="Write the change. Without it, only show it.")
@options.dry_run
@options.config
@options.as_json
def import_crontab(file: Path, has_users: bool, timeout: str, as_json: bool, **params: Any) -> None:
    """Import a crontab: an alias of `sys_exec` with one schedule for each line. FILE - is stdin.

    Shows the aliases and the difference, and writes nothing without --apply. A command runs as in cron: with /bin/sh,
    the variables above its line, in the home directory, and without retries. Unlike in cron, a run is skipped while the
    previous one is not finished. Lines that cannot be imported are listed with the reason. Repeating an import adds
    only new lines.

    Example: ductile config import crontab /etc/crontab --system
    """
    from ductile.cli.base.local_time import parse_duration_option
    from ductile.config.edit.crontab import SECOND, build_aliases, parse_crontab

    limit = parse_duration_option(timeout, "--timeout")
    if limit < SECOND:
        raise UsageInvalid("--timeout must be 1s or longer")
    crontab = parse_crontab(_read_text(file), has_users=has_users)
    params["dry_run"] = params["dry_run"] or not params["applies"]
    existing = _plugins(read_draft(params))
    aliases, skipped = build_aliases(crontab, existing, timeout=limit, directory=str(Path.home()))

    def change(draft: "Draft") -> "Draft":
        for alias in aliases:
            draft = draft.with_value(("plugins", alias.name), dict(alias.content))
        return draft

    edited = apply_edit(params, change)
    output.show(_view(file, aliases, skipped, edited), as_json=as_json, human=_lines)


def _read_text(file: Path) -> str:
    try:
        return read_input(file).decode()
    except UnicodeDecodeError as error:
        raise UsageInvalid(f"{input_name(file)} is not UTF-8 text") from error


def _plugins(draft: "Draft") -> dict[str, Any]:
    data = draft.data
    entries = data.get("plugins") if isinstance(data, dict) else None
    return entries if isinstance(entries, dict) else {}


def _view(
    file: Path, aliases: "tuple[Alias, ...]", skipped: "tuple[SkippedLine, ...]", edited: "EditResult"
) -> dict[str, Any]:
    imported = [
        {
            "line": alias.source.line,
            "plugin": alias.name,
            "when": alias.source.when or "@reboot",
            "command": edited.config.mask(alias.source.command),
        }
        for alias in aliases
    ]
    left_out = [{"line": line.line, "reason": line.reason} for line in skipped]
    return {"source": input_name(file), "imported": imported, "skipped": left_out, **edit_data(edited)}


def _lines(result: dict[str, Any]) -> list[str]:
    rows = [("LINE", "PLUGIN", "WHEN", "COMMAND")]
    rows += [(str(row["line"]), row["plugin"], row["when"], row["command"]) for row in result["imported"]]
    lines = output.table(rows) if result["imported"] else ["nothing to import"]
    lines += [f"skipped: {result['source']}:{row['line']}: {row['reason']}" for row in result["skipped"]]
    if not result["imported"]:
        return lines
    if result["dry_run"]:
        return [*lines, *result["diff"].splitlines(), "valid; nothing was written. Write it with --apply"]
    return [*lines, *(f"changed {name}" for name in result["files"]), "next: ductile system reload"]
