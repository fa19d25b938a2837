"""Wait for jobs by long polling: repeat a request with `wait` until the job has ended or the timeout has passed."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from ductile.cli.base import output
from ductile.cli.base.client import Client
from ductile.core.errors import DuctileError, ServiceUnreachable, UsageInvalid

MAX_POLL_SECONDS = 60.0
T = TypeVar("T")


def parse_timeout(timeout: str) -> float:
    """Parse `--timeout` into seconds."""
    from ductile.core.units import parse_duration

    try:
        return parse_duration(timeout).total_seconds()
    except ValueError as error:
        raise UsageInvalid(f"--timeout: {error}") from error


@contextmanager
def naming_job(job_id: str, *, is_run: bool = False) -> Iterator[None]:
    """Add the id of the enqueued job to every error in the block: repeating the command would create a second job."""
    resume = f"ductile job wait {job_id}{' --tree' if is_run else ''}"
    try:
        yield
    except ServiceUnreachable as error:
        hint = (
            f"Job {job_id} is stored and continues when the service runs. Run `ductile system start`, then `{resume}`."
        )
        raise ServiceUnreachable(str(error), hint=hint, context={"job_id": job_id}) from error
    except DuctileError as error:
        error.context = {**error.context, "job_id": job_id}
        error.hint = f"Job {job_id} was enqueued; only the wait failed. Do not enqueue it again. Run `{resume}`."
        raise
    except KeyboardInterrupt as stop:
        for line in ("", f"job {job_id} continues", f"  next: {resume}"):  # the terminal has printed ^C
            output.note(line)
        raise click.Abort from stop


def wait_for_job(service: Client, job_id: str, seconds: float) -> dict[str, Any]:
    """Return the job when it has ended, or its state after `seconds`."""
    return poll_until(
        lambda wait: service.request("GET", f"/job/{job_id}?wait={wait}"), lambda job: not is_open(job), seconds
    )


def wait_for_tree(service: Client, job_id: str, seconds: float) -> list[dict[str, Any]]:
    """Return the jobs of the tree when all have ended, or their states after `seconds`."""

    def poll(wait: str) -> list[dict[str, Any]]:
        return service.request_list("GET", f"/job/{job_id}/tree?wait={wait}")

    return poll_until(poll, lambda tree: not any(map(is_open, tree)), seconds)


def is_open(job: dict[str, Any]) -> bool:
    """True while the job has not ended."""
    return job["status"] in ("queued", "running")


def poll_until(poll: Callable[[str], T], is_done: Callable[[T], bool], seconds: float) -> T:
    """Repeat `poll`, which takes the time to wait, and return its result when it is done or `seconds` have passed."""
    deadline = time.monotonic() + seconds
    while True:
        left = max(0.0, deadline - time.monotonic())
        answer = poll(f"{min(left, MAX_POLL_SECONDS):.3f}s")
        if is_done(answer) or not left:
            return answer
