"""Waiting for what the service does: one long question after the other, until it is done or patience is over."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from ductile.cli.base import output
from ductile.cli.base.client import Client
from ductile.core.errors import DuctileError, ServiceUnreachable, UsageInvalid

LONGEST_QUESTION_SECONDS = 60.0
T = TypeVar("T")


def patience(timeout: str) -> float:
    """`--timeout` in seconds."""
    from ductile.core.units import parse_duration

    try:
        return parse_duration(timeout).total_seconds()
    except ValueError as error:
        raise UsageInvalid(f"--timeout: {error}") from error


@contextmanager
def on_record(job_id: str, *, is_run: bool = False) -> Iterator[None]:
    """Whoever waits in vain for what the service has taken is told its id: asking for it again would make two of it."""
    again = f"ductile job wait {job_id}{' --tree' if is_run else ''}"
    try:
        yield
    except ServiceUnreachable as error:
        hint = f"job {job_id} is on record and goes on when the service runs: `ductile system start`, then `{again}`"
        raise ServiceUnreachable(str(error), hint=hint, context={"job_id": job_id}) from error
    except DuctileError as error:
        error.context = {**error.context, "job_id": job_id}
        error.hint = f"job {job_id} was taken, only the wait for it failed; do not ask for it again: `{again}`"
        raise
    except KeyboardInterrupt as stop:
        for line in ("", f"job {job_id} goes on", f"  next: {again}"):  # a terminal has written ^C
            output.note(line)
        raise click.Abort from stop


def job_when_over(service: Client, job_id: str, seconds: float) -> dict[str, Any]:
    """The job when it is over, or as it is when patience is."""
    return _until(lambda wait: service.ask("GET", f"/job/{job_id}?wait={wait}"), lambda job: not is_open(job), seconds)


def tree_when_over(service: Client, job_id: str, seconds: float) -> list[dict[str, Any]]:
    """Every job of the tree when all of them are over, or as they are when patience is."""

    def ask(wait: str) -> list[dict[str, Any]]:
        return service.ask_list("GET", f"/job/{job_id}/tree?wait={wait}")

    return _until(ask, lambda tree: not any(map(is_open, tree)), seconds)


def is_open(job: dict[str, Any]) -> bool:
    return job["status"] in ("queued", "running")


def _until(ask: Callable[[str], T], is_done: Callable[[T], bool], seconds: float) -> T:
    deadline = time.monotonic() + seconds
    while True:
        left = max(0.0, deadline - time.monotonic())
        answer = ask(f"{min(left, LONGEST_QUESTION_SECONDS):.3f}s")
        if is_done(answer) or not left:
            return answer
