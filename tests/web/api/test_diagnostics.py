"""Looking at oneself: within a deadline, one look at a time."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from ductile.core.clock import Clock
from ductile.core.formats import strict_json
from ductile.web.api.diagnostics import Check, ExaminationSlow, _checked
from ductile.web.context import AppContext

DESK = cast(AppContext, SimpleNamespace(clock=Clock()))


async def test_a_look_that_takes_too_long_is_given_up() -> None:
    """504; whoever asks next is not let in before the first look has ended, so that looks do not pile up."""
    go_on, limiter, looks = threading.Event(), trio.CapacityLimiter(1), 0

    def look() -> list[Check]:
        nonlocal looks
        looks += 1
        go_on.wait()
        return []

    for _ in range(3):
        with pytest.raises(ExaminationSlow):
            await _checked(DESK, look, limiter, 0.05)
    assert looks == 1
    go_on.set()
    assert (await _checked(DESK, look, limiter, 10.0)).status == 200


@pytest.mark.parametrize(
    ("statuses", "is_ok"), [([], True), (["ok", "warn", "skipped"], True), (["ok", "fail"], False)]
)
async def test_only_what_keeps_from_working_is_not_ok(statuses: list[str], is_ok: bool) -> None:
    """A warning is worth a look, no more."""
    checks = [Check("x", status) for status in statuses]
    answer = await _checked(DESK, lambda: checks, trio.CapacityLimiter(1), 10.0)
    content: Any = strict_json.loads(cast(bytes, answer.body))
    assert (content["ok"], len(content["checks"])) == (is_ok, len(statuses))
