"""`ductile system audit`: who did what."""

from typing import Any

import click

from ductile.cli.base import options, output


@click.command("audit")
@click.option("--since", help="Only from this time on: 1h (ago), 02:30, 2026-03-29T02:30:00Z.")
@click.option("--actor", help="Only this actor: token:NAME, uid:1000, signal:SIGTERM or service.")
@options.page("rows")
@options.config
@options.service
@options.as_json
def audit(since: str | None, actor: str | None, limit: int, cursor: str | None, as_json: bool, **where: Any) -> None:
    """List the actions of tokens and local users, and starts, stops and reloads, newest first.

    Jobs that a token or a local user requested are included. Those of schedules, webhooks and peers are not: `ductile
    job list --submitted-by` lists them. Works while the service is stopped; --api-url queries a remote service.

    Example: ductile system audit --since 24h --actor token:ci
    """
    from ductile.cli.base.local_time import parse_past

    since_at = parse_past(since, "--since") if since else None
    find = _request if where["api_url"] else _read
    page = find(where, since_at, actor, limit, cursor)
    output.show(page, as_json=as_json, human=_lines)


def _request(where: Any, since: Any, actor: str | None, limit: int, cursor: str | None) -> dict[str, Any]:
    from urllib.parse import urlencode

    from ductile.cli.base.connect import client_for
    from ductile.core.clock import to_text

    arguments = {"since": to_text(since) if since else None, "actor": actor, "limit": limit, "cursor": cursor}
    query = urlencode({name: value for name, value in arguments.items() if value is not None})
    return client_for(where).request("GET", f"/audit?{query}")


def _read(where: Any, since: Any, actor: str | None, limit: int, cursor: str | None) -> dict[str, Any]:
    from ductile.cli.base.connect import ledger_for
    from ductile.ledger.reports.filters import parse_cursor
    from ductile.ledger.storage.open_file import open_reader
    from ductile.web.views.audit import audit_view

    path = ledger_for(where)
    if not path.exists():
        return {"acts": [], "next_cursor": None}
    with open_reader(path) as db:
        return dict(audit_view(db, since=since, actor=actor, before=parse_cursor(cursor), limit=limit))


def _lines(page: dict[str, Any]) -> list[str]:
    if not page["acts"]:
        return ["no actions"]
    rows = [("TIME", "ACTOR", "ACTION", "SUBJECT", "DETAILS"), *(_row(act) for act in page["acts"])]
    more = [f"continue with --cursor {page['next_cursor']}"] if page["next_cursor"] else []
    return [*output.table(rows), *more]


def _row(act: dict[str, Any]) -> tuple[str, ...]:
    from ductile.cli.logs.event_format import details, plain, subject
    from ductile.core.format_time import format_timestamp

    data = {**act["data"], "plugin": act.get("plugin")}
    what = " ".join(part for part in (subject(data), act.get("job_id", "")) if part)
    return format_timestamp(act["at"]), plain(act["actor"]), act["kind"], what, details(data)
