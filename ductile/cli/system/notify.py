"""`ductile system notify`: test the notifications."""

from pathlib import Path
from typing import Any

import click

from ductile.cli.base import options, output


@click.group("notify")
def notify() -> None:
    """Test the notifications of the `notify` section."""


@notify.command("test")
@click.option("--timeout", default="1m", show_default=True, help="Time to wait for the end of the job.")
@options.config
@options.service
@options.dry_run
@options.as_json
def test(
    timeout: str,
    config_path: Path | None,
    config_dir: Path | None,
    api_url: str | None,
    api_key: str | None,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Send a test message to the plugin in notify.to and wait until its job has ended; exit 1 if it failed.

    --dry-run shows the plugin and sends nothing.

    Example: ductile system notify test
    """
    from ductile.cli.base.connect import client
    from ductile.cli.base.long_poll import naming_job, parse_timeout, wait_for_job

    seconds = parse_timeout(timeout)
    service = client(options.selected_config(config_path, config_dir), api_url, api_key)
    job = service.request("POST", f"/system/notify/test?dry_run={'true' if dry_run else 'false'}")
    if not dry_run:
        with naming_job(job["job_id"]):
            job = wait_for_job(service, job["job_id"], seconds)
    output.show(job, as_json=as_json, human=_lines)
    return 0 if dry_run or job["status"] == "succeeded" else 1


def _lines(job: dict[str, Any]) -> list[str]:
    if job.get("dry_run"):
        return [f"would send a test message with {job['plugin']}.{job['command']}"]
    lines = [f"job {job['job_id']} ({job['plugin']}.{job['command']}): {job['status']}"]
    result = job.get("result")
    if isinstance(result, dict) and result.get("result"):
        lines.append(f"  result: {result['result']}")
    lines += [f"  error: {job['last_error']}"] if job.get("last_error") else []
    return [*lines, f"  next: ductile job inspect {job['job_id']}"]
