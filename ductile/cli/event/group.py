"""`ductile event`: what an event led to, and why not more."""

from typing import Any

import click

from ductile.cli.base import options, output
from ductile.core.errors import UsageInvalid

MOST_EVENTS = 100


@click.group("event")
def group() -> None:
    """See what an event led to, and why not more."""


@group.command("why")
@click.argument("event_id", required=False)
@click.option("--type", "event_type", help="The newest events of this type instead.")
@click.option(
    "--limit", type=click.IntRange(1, MOST_EVENTS), default=5, show_default=True, help="How many of a --type to tell."
)
@options.config
@options.as_json
def why(event_id: str | None, event_type: str | None, limit: int, as_json: bool, **where: Any) -> None:
    """Say which routes and pipelines an event matched, and which condition said no, with the values it found.

    Reads the ledger, so it works while the service does not run. Looks back as far as the journal goes
    (service.job_transitions_retention), and not through more than 50,000 rows of it.

    Example: ductile event why --type backup.done
    """
    from ductile.cli.base.connect import ledger_for
    from ductile.cli.event import lineage
    from ductile.explain.orphaned import marked
    from ductile.ledger.storage.open_file import open_reader

    if (event_id is None) is (event_type is None):
        raise UsageInvalid("name one event by its id, or give --type", hint="see `ductile event why --help`")
    ledger = ledger_for(where)
    with open_reader(ledger) as db:
        if event_id is not None:
            view = lineage.fate(db, event_id)
            view["led_to"] = marked(view["led_to"], ledger)
            output.show(view, as_json=as_json, human=lineage.fate_lines)
        else:
            view = lineage.fates(db, str(event_type), limit=limit)
            for one in view["events"]:
                one["led_to"] = marked(one["led_to"], ledger)
            output.show(view, as_json=as_json, human=lineage.type_lines)
