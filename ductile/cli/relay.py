"""`ductile relay`: send an event to another instance, see instances and peers."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from ductile.cli.base import options, output
from ductile.core.errors import UsageInvalid


@click.group("relay")
def group() -> None:
    """Send an event to another instance, and see which instances and peers there are."""


@group.command("list")
@options.config
@options.service
@options.as_json
def list_instances(
    config_path: Path | None, config_dir: Path | None, api_url: str | None, api_key: str | None, as_json: bool
) -> None:
    """List the instances events are sent to and the peers events come from, and whether they answer.

    While the service does not run, the configuration and the ledger tell the same; --api-url asks another service.

    Example: ductile relay list
    """
    from ductile.cli.base.connect import client, running

    explicit = options.chosen(config_path, config_dir)
    if service := client(explicit, api_url, api_key) if api_url else running(explicit):
        view = service.ask("GET", "/relay")
    else:
        from ductile.cli.schedule.facts import read_ledger, snapshot_of
        from ductile.relay.views import relay_view

        snapshot = snapshot_of(explicit)
        view = read_ledger(snapshot, relay_view, snapshot) or relay_view(None, snapshot)
    output.show(view, as_json=as_json, human=_list_lines)


def _list_lines(view: dict[str, Any]) -> list[str]:
    from ductile.core.format_time import told

    since = f", the oldest since {told(view['waiting_since'])}" if "waiting_since" in view else ""
    lines = [f"this is {view['name']}; {view['waiting']} events wait to be sent{since}"]
    if view["instances"]:
        rows = [("INSTANCE", "STATE", "ADDRESS", "SENDS"), *map(_instance_row, view["instances"])]
        lines += ["", *output.table(rows)]
    if view["peers"]:
        rows = [("PEER", "STATE", "TAKES", "BAGGAGE", "RECEIVED", "LAST"), *map(_peer_row, view["peers"])]
        lines += ["", *output.table(rows)]
    if not view["instances"] and not view["peers"]:
        lines.append("no instances and no peers; name some under `instances` and `remote_ingress.peers`")
    return lines


def _instance_row(one: dict[str, Any]) -> tuple[str, ...]:
    state = "answers" if one["state"] == "closed" else f"does not answer ({one['state']})"
    if one["failure_count"]:
        state += f", {one['failure_count']} attempts failed"
    return (one["name"], state if one["enabled"] else "disabled", one["address"], ", ".join(one["allow"]) or "all")


def _peer_row(one: dict[str, Any]) -> tuple[str, ...]:
    from ductile.core.format_time import told

    return (
        one["name"],
        "enabled" if one["enabled"] else "disabled",
        ", ".join(one["accept"]) or "all",
        ", ".join(one["baggage"]) or "-",
        str(one["received"]),
        told(one.get("last_received_at")),
    )


@group.command("send")
@click.argument("instance")
@click.option("--event", "event_type", required=True, help="The type of the event, such as backup.ready.")
@click.option("--payload", help="What it carries, as a JSON object.")
@click.option("--payload-file", type=click.Path(path_type=Path), help="The same from a file; - is stdin.")
@click.option("--baggage", help="Values for the context of the runs over there, as a JSON object.")
@click.option("--baggage-file", type=click.Path(path_type=Path), help="The same from a file; - is stdin.")
@click.option("--dedupe-key", help="The receiver takes events with the same key once.")
@click.option("--origin-plugin", help="Say that this plugin has emitted it.")
@click.option("--origin-job-id", help="Say that this job has sent it.")
@click.option("--origin-event-id", help="What the event is known by: the receiver takes the same id once.")
@click.option("--wait", "waits", is_flag=True, help="Wait until the event has arrived or was given up.")
@click.option("--timeout", default="5m", show_default=True, help="How long --wait waits.")
@options.config
@options.service
@options.dry_run
@options.as_json
def send(instance: str, waits: bool, timeout: str, dry_run: bool, as_json: bool, **given: Any) -> int:
    """Have the running service send an event to INSTANCE. It is kept and tried again until somebody has taken it.

    The answer is the job that sends it. Exit 1 if --wait was given and the event has not arrived.

    Example: ductile relay send lab --event backup.ready --payload '{"archive": "monday.tar"}' --wait
    """
    from ductile.cli.base.connect import client
    from ductile.cli.base.long_poll import job_when_over, on_record, patience

    seconds, body = patience(timeout), _envelope(given)
    service = client(options.chosen(given["config_path"], given["config_dir"]), given["api_url"], given["api_key"])
    query = "?dry_run=true" if dry_run else ""
    answer = service.ask("POST", f"/relay/{quote(instance, safe='')}{query}", body)
    if dry_run or not waits:
        output.show(answer, as_json=as_json, human=_sent_lines)
        return 0
    with on_record(answer["job_id"]):
        job = job_when_over(service, answer["job_id"], seconds)
    output.show(job, as_json=as_json, human=_arrived_lines)
    return 0 if job["status"] == "succeeded" else 1


def _envelope(given: dict[str, Any]) -> dict[str, Any]:
    """The event as the service wants it; what was not given is left out."""
    from ductile.cli.base.json_args import read_payload

    event = {"type": given["event_type"], "payload": read_payload(given["payload"], given["payload_file"])}
    event["dedupe_key"] = given["dedupe_key"]
    origin = {name: given[f"origin_{name}"] for name in ("plugin", "job_id", "event_id")}
    try:
        baggage = read_payload(given["baggage"], given["baggage_file"])
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
    return [f"{answer['job_id']}: {what} is in the outbox"]


def _arrived_lines(job: dict[str, Any]) -> list[str]:
    result = job.get("result") or {}
    if job["status"] != "succeeded":
        return [
            f"{job['job_id']}: {job['status']}, attempt {job['attempt']}: {job.get('last_error') or 'no answer yet'}"
        ]
    line = f"{job['job_id']}: {result.get('event')} has arrived as {result.get('receiver_event_id')}"
    return [line if result.get("accepted") else f"{line}, but nobody there takes it ({result.get('reason')})"]
