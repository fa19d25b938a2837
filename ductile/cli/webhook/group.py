"""`ductile webhook`: list endpoints and deliveries; redeliver, send and verify deliveries."""

from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output

VERDICTS = ("accepted", "unmatched", "repeated", "refused")
payload_option = click.option("--payload", help="Request body, JSON, sent byte for byte.")
payload_file_option = click.option(
    "--payload-file", type=click.Path(path_type=Path), help="Read the body from a file of any format; - is stdin."
)


@click.group("webhook")
def group() -> None:
    """List webhook endpoints and deliveries; redeliver, send and verify deliveries."""


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


@group.command("deliveries")
@click.argument("name", required=False)
@click.option("--verdict", type=click.Choice(VERDICTS), help="Only deliveries with this verdict.")
@click.option("--delivery-id", help="Only deliveries with this id of the sender.")
@click.option("--from", "since", help="Only from this time on, such as 2026-03-29T02:30:00Z.")
@click.option("--to", "until", help="Only before this time.")
@options.page("rows")
@options.config
@options.as_json
def list_deliveries(
    name: str | None,
    verdict: str | None,
    delivery_id: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    cursor: str | None,
    config_path: Path | None,
    config_dir: Path | None,
    as_json: bool,
) -> None:
    """List deliveries to endpoint NAME, or to all, newest first, each with its jobs or the reason.

    Accepted and unmatched deliveries are stored for service.webhook_deliveries_retention. Of refused and of repeated
    ones, the latest 50 of each endpoint are stored, at most 10 per minute.

    Example: ductile webhook deliveries github --verdict refused
    """
    from ductile.cli.webhook.deliveries import load_config, read_page

    config = load_config(options.selected_config(config_path, config_dir))
    filters = {"endpoint": name, "verdict": verdict, "delivery_id": delivery_id, "from": since, "to": until}
    output.show(read_page(config, filters, limit, cursor), as_json=as_json, human=_delivery_lines)


def _delivery_lines(page: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import format_when

    rows = [("ID", "WHEN", "ENDPOINT", "VERDICT", "STATUS", "FROM", "DELIVERY", "JOB OR REASON")]
    rows += [
        (
            str(one["id"]),
            format_when(one["at"]),
            one["endpoint"],
            one["verdict"],
            str(one["status"]),
            one["peer"] or "-",
            one["delivery_id"] or "-",
            ", ".join(one["job_ids"]) or one["reason"] or "-",
        )
        for one in page["deliveries"]
    ]
    lines = output.table(rows) if len(rows) > 1 else ["no deliveries"]
    return [*lines, *([f"continue with --cursor {page['next_cursor']}"] if page["next_cursor"] else [])]


@group.command("inspect")
@click.argument("delivery")
@options.config
@options.as_json
def inspect_delivery(delivery: str, config_path: Path | None, config_dir: Path | None, as_json: bool) -> None:
    """Show the delivery with the id DELIVERY: verdict, jobs or reason, sender and headers.

    Example: ductile webhook inspect 17
    """
    from ductile.cli.webhook.deliveries import load_config, read_delivery

    config = load_config(options.selected_config(config_path, config_dir))
    output.show(read_delivery(config, delivery), as_json=as_json, human=_inspect_lines)


def _inspect_lines(one: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import format_when

    lines = [f"delivery {one['id']} to {one['endpoint']}: {one['verdict']} ({one['status']})"]
    lines += [f"  reason: {one['reason']} ({one['code']})"] if one["reason"] else []
    lines += [f"  job: {job_id}" for job_id in one["job_ids"]]
    lines += [f"  redelivery of: {one['redelivery_of']}"] if one["redelivery_of"] is not None else []
    lines += [f"  at: {format_when(one['at'])}", f"  from: {one['peer'] or 'unknown'}"]
    lines += [f"  delivery id: {one['delivery_id']}"] if one["delivery_id"] else []
    lines += [f"  body: {one['body_bytes']} bytes, sha256 {one['body_sha256'] or 'unknown'}"]
    lines += [f"  {name}: {', '.join(values)}" for name, values in one["headers"].items()]
    lines += [f"  next: ductile job why {one['job_ids'][0]}"] if one["job_ids"] else []
    return lines + ([f"  next: ductile webhook redeliver {one['id']}"] if one["can_redeliver"] else [])


@group.command("redeliver")
@click.argument("delivery")
@options.config
@options.service
@options.dry_run
@options.as_json
def redeliver(delivery: str, dry_run: bool, as_json: bool, **where: Any) -> None:
    """Deliver an accepted or unmatched delivery again, under the current configuration.

    DELIVERY is its id in `ductile webhook deliveries`. The stored body is used; the signature was verified when it
    arrived. The new delivery is recorded as a redelivery of the first.

    Example: ductile webhook redeliver 17
    """
    from urllib.parse import quote

    from ductile.cli.base.connect import client_for

    path = f"/webhooks/deliveries/{quote(delivery, safe='')}/redeliver"
    answer = client_for(where).request("POST", f"{path}?dry_run=true" if dry_run else path)
    output.show(answer, as_json=as_json, human=_redelivered_lines)


def _redelivered_lines(answer: dict[str, Any]) -> list[str]:
    what = f"delivery {answer['redelivery_of']} to {answer['endpoint']} as {answer['event_type']}"
    count = f"{answer['runs']} run" + ("" if answer["runs"] == 1 else "s")
    result = count if answer["verdict"] == "accepted" else "nothing handles it"
    if answer["dry_run"]:
        return [f"would redeliver {what}: {result}"]
    jobs = answer["job_ids"]
    next_steps = [f"  next: ductile job wait {job_id} --tree" for job_id in jobs]
    return [f"delivery {answer['id']}: redelivered {what}: {result}", *next_steps]


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
    """Show the deliveries of endpoint NAME, or of all, in two lists: accepted and refused.

    `ductile webhook deliveries` shows them in one list, with filters.

    Example: ductile webhook receipts github --refused
    """
    from ductile.cli.webhook.deliveries import accepted_views, load_config, refused_views
    from ductile.web.webhooks.views import find_endpoint

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
        rows += [
            (format_when(r["at"]), r["endpoint"], r["delivery"] or "-", r["job_id"] or "none") for r in view["accepted"]
        ]
        lines += output.table(rows)
    if view["refused"]:
        refused = [("REFUSED", "ID", "ENDPOINT", "STATUS", "FROM", "REASON")]
        refused += [
            (format_when(r["at"]), str(r["id"]), r["endpoint"], str(r["status"]), r["peer"], r["reason"])
            for r in view["refused"]
        ]
        lines += ([""] if lines else []) + output.table(refused)
        lines += ["", "Run `ductile webhook verify ID --payload-file FILE` to check a refused delivery with its body."]
    return lines or ["no deliveries"]


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
    from ductile.cli.webhook.deliveries import load_config, local_address, post_delivery, read_body, sign_request
    from ductile.web.webhooks.views import find_endpoint

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

    For the ID of a refused delivery (`ductile webhook deliveries`), the stored headers and time are used, and only the
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
