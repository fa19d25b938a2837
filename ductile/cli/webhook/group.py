"""`ductile webhook`: endpoints, what came to them, and deliveries to try them out."""

from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output

payload_option = click.option("--payload", help="The body, JSON, byte for byte.")
payload_file_option = click.option(
    "--payload-file", type=click.Path(path_type=Path), help="The same from a file, JSON or not; - is stdin."
)


@click.group("webhook")
def group() -> None:
    """See endpoints and what came to them, send a signed delivery, check a signature."""


@group.command("list")
@options.config
@options.as_json
def list_endpoints(config_path: Path | None, config_dir: Path | None, as_json: bool) -> None:
    """List the endpoints: where senders post, how they sign, what a delivery starts, and the last one.

    Reads the configuration and the ledger, so it works while the service does not run.

    Example: ductile webhook list
    """
    from ductile.cli.webhook.deliveries import configuration, endpoint_view

    config = configuration(options.chosen(config_path, config_dir))
    shown = [endpoint_view(config, entry) for entry in config.settings.webhooks.endpoints]
    view = {"listen": config.settings.webhooks.listen, "endpoints": shown}
    output.show(view, as_json=as_json, human=_endpoint_lines)


def _endpoint_lines(view: dict[str, Any]) -> list[str]:
    if not view["endpoints"]:
        return ["no endpoints; write some under webhooks.endpoints"]
    from ductile.core.format_time import told

    rows = [("NAME", "PATH", "SCHEME", "TARGET", "LAST ACCEPTED", "LAST REFUSED")]
    for one in view["endpoints"]:
        refused = f"{told(one['last_refused_at'])} {one['last_refused_why'] or ''}".rstrip()
        rows.append((one["name"], one["path"], one["scheme"], one["target"], told(one["last_accepted_at"]), refused))
    return [f"on {view['listen']}", "", *output.table(rows)]


@group.command("receipts")
@click.argument("name", required=False)
@click.option("--refused", "only", flag_value="refused", help="Only deliveries that were refused.")
@click.option("--accepted", "only", flag_value="accepted", help="Only deliveries that were taken.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="How many of each.")
@options.config
@options.as_json
def list_receipts(
    name: str | None,
    only: str | None,
    limit: int,
    config_path: Path | None,
    config_dir: Path | None,
    as_json: bool,
) -> None:
    """Show the latest deliveries of endpoint NAME, or of all: the job of each that was taken, why others were not.

    Deliveries that carry no id of their own leave no receipt. Of refused ones the latest fifty of each endpoint are
    kept, ten a minute at most, without their bodies. They may be on record up to a minute later.

    Example: ductile webhook receipts github --refused
    """
    from ductile.cli.webhook.deliveries import accepted_views, configuration, endpoint_named, refused_views

    config = configuration(options.chosen(config_path, config_dir))
    entries = [endpoint_named(config, name)] if name else list(config.settings.webhooks.endpoints)
    view: dict[str, Any] = {"accepted": [], "refused": []}
    for entry in entries:
        if only != "refused":
            view["accepted"] += accepted_views(config, entry, limit)
        if only != "accepted":
            view["refused"] += refused_views(config, entry, limit)
    output.show(view, as_json=as_json, human=_receipt_lines)


def _receipt_lines(view: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import told

    lines = []
    if view["accepted"]:
        rows = [("ACCEPTED", "ENDPOINT", "DELIVERY", "JOB")]
        rows += [(told(r["at"]), r["endpoint"], r["delivery"], r["job_id"] or "none") for r in view["accepted"]]
        lines += output.table(rows)
    if view["refused"]:
        refused = [("REFUSED", "ID", "ENDPOINT", "STATUS", "FROM", "WHY")]
        refused += [
            (told(r["at"]), str(r["id"]), r["endpoint"], str(r["status"]), r["peer"], r["reason"])
            for r in view["refused"]
        ]
        lines += ([""] if lines else []) + output.table(refused)
        lines += ["", "`ductile webhook verify ID --payload-file FILE` tries one of these again with its body"]
    return lines or ["nothing is on record; what was refused may be there up to a minute later"]


@group.command("send")
@click.argument("name")
@payload_option
@payload_file_option
@click.option("--header", "-H", "headers", multiple=True, help="One more header, such as 'X-GitHub-Event: push'.")
@click.option("--url", help="Where to. Default: the endpoint on webhooks.listen.")
@options.config
@options.dry_run
@options.as_json
def send_delivery(
    name: str,
    payload: str | None,
    payload_file: Path | None,
    headers: tuple[str, ...],
    url: str | None,
    config_path: Path | None,
    config_dir: Path | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Sign a body with the secret of endpoint NAME and post it, as the sender would. Exit 1 if it is refused.

    It is a real delivery: what the endpoint starts is started. --dry-run only shows the request.

    Example: ductile webhook send github --payload-file push.json -H 'X-GitHub-Event: push'
    """
    from ductile.cli.webhook.deliveries import (
        configuration,
        endpoint_named,
        reachable,
        read_body,
        signed_request,
    )
    from ductile.cli.webhook.post import posted

    config = configuration(options.chosen(config_path, config_dir))
    entry = endpoint_named(config, name)
    body = read_body(payload, payload_file)
    request = signed_request(config, entry, body, headers)
    address = url or f"http://{reachable(config.settings.webhooks.listen)}{entry.path}"
    view: dict[str, Any] = {"url": address, "headers": request, "body_bytes": len(body), "dry_run": dry_run}
    if not dry_run:
        view |= posted(address, body, request)
    output.show(view, as_json=as_json, human=_sent_lines)
    return 0 if dry_run or view["status"] < 400 else 1


def _sent_lines(view: dict[str, Any]) -> list[str]:
    import json

    if view["dry_run"]:
        lines = [f"would post {view['body_bytes']} bytes to {view['url']} with"]
        return lines + [f"  {name}: {value}" for name, value in view["headers"].items()]
    answer = view["answer"]
    return [f"{view['status']} from {view['url']}", f"  {answer if isinstance(answer, str) else json.dumps(answer)}"]


@group.command("verify")
@click.argument("name_or_id")
@payload_option
@payload_file_option
@click.option("--header", "-H", "headers", multiple=True, help="A header of the delivery, if NAME is given.")
@options.config
@options.as_json
def verify_delivery(
    name_or_id: str,
    payload: str | None,
    payload_file: Path | None,
    headers: tuple[str, ...],
    config_path: Path | None,
    config_dir: Path | None,
    as_json: bool,
) -> int:
    """Check a signature as the endpoint does, with the secrets of now, and say what is wrong. Exit 1 if it is not good.

    With the ID of a refused delivery (`ductile webhook receipts`) its headers and time are those on record and only
    the body has to be given; with the NAME of an endpoint, give the headers with -H.

    Example: ductile webhook verify 17 --payload-file body.json
    """
    from ductile.cli.webhook.deliveries import configuration, read_body, stored_refusal, verdict_view

    config = configuration(options.chosen(config_path, config_dir))
    body = read_body(payload, payload_file)
    stored = stored_refusal(config, name_or_id)
    view = verdict_view(config, stored, name_or_id, body, headers)
    output.show(view, as_json=as_json, human=_verdict_lines)
    return 0 if view["valid"] else 1


def _verdict_lines(view: dict[str, Any]) -> list[str]:
    if view["valid"]:
        return [f"{view['endpoint']}: the signature fits {', '.join(view['fits'])}"]
    return [f"{view['endpoint']}: not valid: {view['reason']}"]
