"""`ductile exchange import`: take over a database of Plugboard while no service runs."""

from pathlib import Path
from typing import Any

import attrs
import click

from ductile.cli.base import options as base_options
from ductile.cli.base import output
from ductile.cli.base.options import selected_config
from ductile.cli.exchange import options

PROGRESS_EVERY = 10_000


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@options.config
@base_options.dry_run
@base_options.as_json
def import_file(file: Path, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Take over the messages and claims of a Plugboard database. Requires that no service runs.

    Messages keep their ids, order, conversations and how they were handled. Messages that nobody has finished are ready
    again. Messages that the exchange cannot store, such as those with an invalid topic, are skipped and counted. An
    import can be repeated: messages that are there already are not written again.

    Example: ductile exchange import .plugboard/plugboard.db
    """
    from ductile.cli.base.connect import ledger_path
    from ductile.ledger.admin.import_plugboard import count_plugboard

    if not file.is_file():
        from ductile.core.errors import NotFound

        raise NotFound(f"{file}: no such file", hint="Name the file of `plugboard --database`.")
    config, total = selected_config(**where), count_plugboard(file)
    ledger = ledger_path(config)
    counts = {"ledger": str(ledger), "messages": total} if dry_run else _import(file, total, config)
    output.show({"file": str(file), **counts, "dry_run": dry_run}, as_json=as_json, human=_lines)


def _import(file: Path, total: int, config: Path | None) -> dict[str, Any]:
    """Write everything in transactions of a few hundred messages, under the lock of the instance."""
    from ductile.cli.exchange.direct import writable_ledger
    from ductile.core.clock import Clock
    from ductile.core.instance.actors import process_actor
    from ductile.ledger.admin.import_plugboard import ImportCounts, import_messages, journal_import, read_plugboard
    from ductile.ledger.storage.sync_ledger import run_sync

    counts, done, actor = ImportCounts(), 0, process_actor()
    with writable_ledger(config) as ledger:
        for batch in read_plugboard(file):
            run_sync(ledger.write(import_messages, batch, counts, now=Clock().now(), actor=actor))
            done += len(batch)
            if done % PROGRESS_EVERY < len(batch):
                output.note(f"{done:,} of {total:,} messages")
        run_sync(ledger.write(journal_import, file.resolve(), counts, now=Clock().now(), actor=actor))
    return attrs.asdict(counts)


def _lines(shown: dict[str, Any]) -> list[str]:
    if shown["dry_run"]:
        found = output.format_count(shown["messages"], "message")
        return [f"would import {found} of {shown['file']} into {shown['ledger']}"]
    lines = [
        f"{output.format_count(shown['messages'], 'message')} imported, {shown['ready']} of them ready, "
        f"with {output.format_count(shown['claims'], 'claim')}"
    ]
    if shown["known"]:
        lines.append(f"  {output.format_count(shown['known'], 'message')} imported before")
    if shown["skipped"]:
        lines.append(f"  {output.format_count(shown['skipped'], 'message')} skipped; first: {shown['first_problem']}")
    return lines
