"""`ductile webhook`: list endpoints and deliveries, send and verify deliveries."""

from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output

payload_option = click.option("--payload", help="Request body, JSON, sent byte for byte.")
payload_file_option = click.option(
    "--payload-file", type=click.Path(path_type=Path), help="Read the body from a file of any format; - is stdin."
)


@click.group("webhook")
def group() -> None:
    """List webhook endpoints and deliveries; send and verify deliveries."""


@group.command("list")
@options.config
@options.as_json
def list_endpoints(config_path: Path | None, config_dir: Path | None, as_json: bool) -> None:
    """List the endpoints with path, signature scheme, target and latest deliveries.

    Reads the configuration and the ledger, so it works while the service is stopped.

    Example: ductile webhook list
    """
    from ductile.cli.webhook.deliveries import endpoint_view, load_config

    config = load_config(options.selected_config(config_path, config_dir))
    shown = [endpoint_view(config, entry) for entry in config.settings.webhooks.endpoints]
    view = {"listen": config.settings.webhooks.listen, "endpoints": shown}
    output.show(view, as_json=as_json, human=_endpoint_lines)


def _endpoint_lines(view: dict[str, Any]) -> list[str]:
    if not view["endpoints"]:
        return ["no endpoints; add them under webhooks.endpoints"]
    from ductile.core.format_time import format_when

    rows = [("NAME", "PATH", "SCHEME", "TARGET", "LAST ACCEPTED", "LAST REFUSED")]
    for endpoint in view["endpoints"]:
        refused = f"{format_when(endpoint['last_refused_at'])} {endpoint['last_refused_why'] or ''}".rstrip()
        rows.append(
            (
                endpoint["name"],
                endpoint["path"],
                endpoint["scheme"],
                endpoint["target"],
                format_when(endpoint["last_accepted_at"]),
                refused,
            )
        )
    return [f"listening on {view['listen']}", "", *output.table(rows)]


@group.command("receipts")
@click.argument("name", required=False)
@click.option("--refused", "only", flag_value="refused", help="Only refused deliveries.")
@click.option("--accepted", "only", flag_value="accepted", help="Only accepted deliveries.")
@click.option("--limit", type=click.IntRange(1, 200), default=20, show_default=True, help="Maximum number of each.")
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
    """Show recent deliveries of endpoint NAME, or of all: accepted ones with their job, refused ones with the reason.

    Deliveries without an id have no receipt. The ledger stores the latest 50 refused deliveries of each endpoint, at
    most 10 per minute, without bodies, and with a delay of up to one minute.

    Example: ductile webhook receipts github --refused
    """
    from ductile.cli.webhook.deliveries import accepted_views, find_endpoint, load_config, refused_views

    config = load_config(options.selected_config(config_path, config_dir))
    entries = [find_endpoint(config, name)] if name else list(config.settings.webhooks.endpoints)
    view: dict[str, Any] = {"accepted": [], "refused": []}
    for entry in entries:
        if only != "refused":
            view["accepted"] += accepted_views(config, entry, limit)
        if only != "accepted":
            view["refused"] += refused_views(config, entry, limit)
    output.show(view, as_json=as_json, human=_receipt_lines)


def _receipt_lines(view: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import format_when

    lines = []
    if view["accepted"]:
        rows = [("ACCEPTED", "ENDPOINT", "DELIVERY", "JOB")]
        rows += [(format_when(r["at"]), r["endpoint"], r["delivery"], r["job_id"] or "none") for r in view["accepted"]]
        lines += output.table(rows)
    if view["refused"]:
        refused = [("REFUSED", "ID", "ENDPOINT", "STATUS", "FROM", "REASON")]
        refused += [
            (format_when(r["at"]), str(r["id"]), r["endpoint"], str(r["status"]), r["peer"], r["reason"])
            for r in view["refused"]
        ]
        lines += ([""] if lines else []) + output.table(refused)
        lines += ["", "Run `ductile webhook verify ID --payload-file FILE` to check a refused delivery with its body."]
    return lines or ["no deliveries; refused deliveries appear after up to one minute"]


@group.command("send")
@click.argument("name")
@payload_option
@payload_file_option
@click.option("--header", "-H", "headers", multiple=True, help="Additional header, such as 'X-GitHub-Event: push'.")
@click.option("--url", help="Target URL. Default: the endpoint on webhooks.listen.")
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
    """Send a delivery to endpoint NAME, signed with its secret. Exit 1 if it is refused.

    The delivery is real and starts the target of the endpoint. --dry-run only shows the request.

    Example: ductile webhook send github --payload-file push.json -H 'X-GitHub-Event: push'
    """
    from ductile.cli.webhook.deliveries import (
        find_endpoint,
        load_config,
        local_address,
        post_delivery,
        read_body,
        sign_request,
    )

    config = load_config(options.selected_config(config_path, config_dir))
    entry = find_endpoint(config, name)
    body = read_body(payload, payload_file)
    request = sign_request(config, entry, body, headers)
    address = url or f"http://{local_address(config.settings.webhooks.listen)}{entry.path}"
    view: dict[str, Any] = {"url": address, "headers": request, "body_bytes": len(body), "dry_run": dry_run}
    if not dry_run:
        view |= post_delivery(address, body, request)
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
@click.option("--header", "-H", "headers", multiple=True, help="Header of the delivery; required with NAME.")
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
    """Verify the signature of a delivery with the current secrets. Exit 1 if it is invalid.

    For the ID of a refused delivery (`ductile webhook receipts`), the stored headers and time are used, and only the
    body is needed. For the NAME of an endpoint, give the headers with -H.

    Example: ductile webhook verify 17 --payload-file body.json
    """
    from ductile.cli.webhook.deliveries import find_refused_delivery, load_config, read_body, verification_view

    config = load_config(options.selected_config(config_path, config_dir))
    body = read_body(payload, payload_file)
    stored = find_refused_delivery(config, name_or_id)
    view = verification_view(config, stored, name_or_id, body, headers)
    output.show(view, as_json=as_json, human=_verdict_lines)
    return 0 if view["valid"] else 1


def _verdict_lines(view: dict[str, Any]) -> list[str]:
    if view["valid"]:
        return [f"{view['endpoint']}: the signature matches {', '.join(view['fits'])}"]
    return [f"{view['endpoint']}: invalid: {view['reason']}"]
