"""Following what a job writes to stderr: what is new since the last look, attempt by attempt.

The service shows the end of what a running attempt has written; when an attempt is over, the log has all that is kept.
"""

import time
from collections.abc import Callable
from typing import Any

from ductile.cli.base.client import Client
from ductile.cli.base.long_poll import is_open

LOOK_SECONDS = 1.0
ANCHOR = 200
"""Characters by which the place is found again in a text that has lost its beginning."""
GAP = "\n[… something was written faster than it could be followed …]\n"


def follow(service: Client, job_id: str, seconds: float, hear: Callable[[str], None]) -> dict[str, Any]:
    """The job when it is over, or as it is when patience is; `hear` has got everything it wrote until then."""
    deadline, heard = time.monotonic() + seconds, _Heard(hear)
    while True:
        left = max(0.0, deadline - time.monotonic())
        job = service.ask("GET", f"/job/{job_id}?wait={min(left, LOOK_SECONDS):.3f}s")
        is_over = not is_open(job)
        if is_over or job["attempt"] > heard.attempt:
            for row in _ended(service, job_id, heard.attempt):
                heard.take(row["attempt"], row.get("stderr", ""))
        if not is_over:
            heard.take(job["attempt"], job.get("stderr", ""))
        if is_over or not left:
            return job


def _ended(service: Client, job_id: str, since: int) -> list[dict[str, Any]]:
    """The attempts that are over, from `since` on, first to last."""
    rows = service.ask("GET", f"/job-logs?job_id={job_id}&limit=200")["logs"]
    return [row for row in reversed(rows) if row["attempt"] >= since]


class _Heard:
    """What was handed on of the current attempt."""

    def __init__(self, hear: Callable[[str], None]) -> None:
        self.attempt = 0
        self._hear, self._text = hear, ""

    def take(self, attempt: int, text: str) -> None:
        """Hand on what of `text` is new."""
        if attempt != self.attempt:
            self.attempt, self._text = attempt, ""
        if new := news(self._text, text):
            self._hear(new)
        self._text = text or self._text


def news(before: str, now: str) -> str:
    """What `now` has beyond `before`; both may have lost their beginnings."""
    if not before or not now:
        return now
    if now.startswith(before):
        return now[len(before) :]
    if before.endswith(now):
        return ""
    anchor = before[-ANCHOR:]
    place = now.rfind(anchor)
    return now[place + len(anchor) :] if place >= 0 else GAP + now
