"""`ductile relay`: send events to other instances, list instances and peers."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ductile.cli.base import options, output
from ductile.core.errors import UsageInvalid


@click.group("relay")
def group() -> None:
    """Send events to other instances; list instances and peers."""


@group.command("list")
@options.config
@options.service
@options.as_json
def list_instances(
    config_path: Path | None, config_dir: Path | None, api_url: str | None, api_key: str | None, as_json: bool
) -> None:
    """List the instances that receive events and the peers that send them, with their state.

    Reads the configuration and the ledger while the service is stopped. --api-url queries a remote service.

    Example: ductile relay list
    """
    from ductile.cli.base.connect import client, running_client

    explicit = options.selected_config(config_path, config_dir)
    if service := client(explicit, api_url, api_key) if api_url else running_client(explicit):
        view: Any = service.request("GET", "/relay")
    else:
        from ductile.cli.base.connect import load_snapshot, read_ledger
        from ductile.relay.views import relay_view

        snapshot = load_snapshot(explicit)
        view = read_ledger(snapshot, relay_view, snapshot) or relay_view(None, snapshot)
    output.show(view, as_json=as_json, human=_list_lines)


def _list_lines(view: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import format_when

    since = f", oldest from {format_when(view['waiting_since'])}" if "waiting_since" in view else ""
    lines = [f"instance {view['name']}: {output.format_count(view['waiting'], 'event')} waiting to be sent{since}"]
    if view["instances"]:
        rows = [("INSTANCE", "STATE", "ADDRESS", "SENDS"), *map(_instance_row, view["instances"])]
        lines += ["", *output.table(rows)]
    if view["peers"]:
        rows = [("PEER", "STATE", "ACCEPTS", "BAGGAGE", "RECEIVED", "LAST"), *map(_peer_row, view["peers"])]
        lines += ["", *output.table(rows)]
    if not view["instances"] and not view["peers"]:
        lines.append("no instances and no peers; add them under `instances` and `remote_ingress.peers`")
    return lines


def _instance_row(instance: dict[str, Any]) -> tuple[str, ...]:
    state = "reachable" if instance["state"] == "closed" else f"unreachable (breaker {instance['state']})"
    if instance["failure_count"]:
        state += f", {instance['failure_count']} attempts failed"
    return (
        instance["name"],
        state if instance["enabled"] else "disabled",
        instance["address"],
        ", ".join(instance["allow"]) or "all",
    )


def _peer_row(peer: dict[str, Any]) -> tuple[str, ...]:
    from ductile.core.format_time import format_when

    return (
        peer["name"],
        "enabled" if peer["enabled"] else "disabled",
        ", ".join(peer["accept"]) or "all",
        ", ".join(peer["baggage"]) or "-",
        str(peer["received"]),
        format_when(peer.get("last_received_at")),
    )


@group.command("send")
@click.argument("instance")
@click.option("--event", "event_type", required=True, help="Event type, such as backup.ready.")
@click.option("--payload", help="Event payload, a JSON object.")
@click.option("--payload-file", type=click.Path(path_type=Path), help="Read the payload from a file; - is stdin.")
@click.option("--baggage", help="Baggage for the runs on the receiver, a JSON object.")
@click.option("--baggage-file", type=click.Path(path_type=Path), help="Read the baggage from a file; - is stdin.")
@click.option("--dedupe-key", help="The receiver accepts one event per key.")
@click.option("--origin-plugin", help="Plugin to record as the origin.")
@click.option("--origin-job-id", help="Job to record as the origin.")
@click.option("--origin-event-id", help="Event id; the receiver accepts one event per id.")
@click.option("--wait", "waits", is_flag=True, help="Wait until the event is delivered or has failed.")
@click.option("--timeout", default="5m", show_default=True, help="Timeout of --wait.")
@options.config
@options.service
@options.dry_run
@options.as_json
def send(instance: str, waits: bool, timeout: str, dry_run: bool, as_json: bool, **params: Any) -> int:
    """Send an event to INSTANCE. The service stores it and retries until the receiver has accepted it.

    Prints the id of the job that sends the event. With --wait, exit 1 if the event was not delivered.

    Example: ductile relay send lab --event backup.ready --payload '{"archive": "monday.tar"}' --wait
    """
    from ductile.cli.base.connect import client
    from ductile.cli.base.long_poll import naming_job, parse_timeout, wait_for_job

    seconds, body = parse_timeout(timeout), _envelope(params)
    service = client(
        options.selected_config(params["config_path"], params["config_dir"]), params["api_url"], params["api_key"]
    )
    query = "?dry_run=true" if dry_run else ""
    answer = service.request("POST", f"/relay/{quote(instance, safe='')}{query}", body)
    if dry_run or not waits:
        output.show(answer, as_json=as_json, human=_sent_lines)
        return 0
    with naming_job(answer["job_id"]):
        job = wait_for_job(service, answer["job_id"], seconds)
    output.show(job, as_json=as_json, human=_arrived_lines)
    return 0 if job["status"] == "succeeded" else 1


def _envelope(params: dict[str, Any]) -> dict[str, Any]:
    """Build the request body; omit options that are not given."""
    from ductile.cli.base.json_args import read_payload

    event = {"type": params["event_type"], "payload": read_payload(params["payload"], params["payload_file"])}
    event["dedupe_key"] = params["dedupe_key"]
    origin = {name: params[f"origin_{name}"] for name in ("plugin", "job_id", "event_id")}
    try:
        baggage = read_payload(params["baggage"], params["baggage_file"])
    except UsageInvalid as error:
        raise UsageInvalid(str(error).replace("payload", "baggage"), hint=error.hint) from error
    parts = {"event": _without_none(event), "origin": _without_none(origin), "baggage": baggage}
    return {name: value for name, value in parts.items() if value}


def _without_none(content: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if value is not None}


def _sent_lines(answer: dict[str, Any]) -> list[str]:
    what = f"{answer['event_type']} to {answer['instance']}"
    if answer["status"] == "planned":
        return [f"would send {what}; nothing was sent"]
    return [f"{answer['job_id']}: {what} is queued for sending"]


def _arrived_lines(job: dict[str, Any]) -> list[str]:
    result = job.get("result") or {}
    if job["status"] != "succeeded":
        return [
            f"{job['job_id']}: {job['status']}, attempt {job['attempt']}: {job.get('last_error') or 'no response yet'}"
        ]
    line = f"{job['job_id']}: {result.get('event')} was delivered as {result.get('receiver_event_id')}"
    return [
        line if result.get("accepted") else f"{line}, but the receiver has no route for it ({result.get('reason')})"
    ]
