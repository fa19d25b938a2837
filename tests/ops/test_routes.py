"""The routes that run checks: with a timeout, one at a time."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from ductile.core.clock import Clock
from ductile.core.formats import strict_json
from ductile.ops.routes import CheckTimedOut, respond
from ductile.web.context import AppContext

CTX = cast(AppContext, SimpleNamespace(clock=Clock()))


async def test_checks_that_take_too_long_time_out() -> None:
    """504. No further check starts before the first has ended, so that threads do not accumulate."""
    release, limiter, calls = threading.Event(), trio.CapacityLimiter(1), 0

    def check() -> list[dict[str, str]]:
        nonlocal calls
        calls += 1
        release.wait()
        return []

    for _ in range(3):
        with pytest.raises(CheckTimedOut):
            await respond(CTX, check, limiter, 0.05)
    assert calls == 1
    release.set()
    assert (await respond(CTX, check, limiter, 10.0)).status == 200


@pytest.mark.parametrize(
    ("statuses", "is_ok"), [([], True), (["ok", "warn", "skipped"], True), (["ok", "fail"], False)]
)
async def test_only_a_failed_check_is_not_ok(statuses: list[str], is_ok: bool) -> None:
    """Warnings and skipped checks are ok."""
    checks = [{"name": "x", "status": status, "detail": "", "field": ""} for status in statuses]
    answer = await respond(CTX, lambda: checks, trio.CapacityLimiter(1), 10.0)
    content: Any = strict_json.loads(cast(bytes, answer.body))
    assert (content["ok"], len(content["checks"])) == (is_ok, len(statuses))
