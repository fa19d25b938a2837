"""The routes that run checks, `GET /system/doctor` and `GET /system/selfcheck`. The runtime adds them to the table.

Checks read the disk, so they run in a thread with a timeout: a slow disk causes a 504 and does not block the service.
The registry is imported with the first request, because a start does not need its modules.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Literal, TypedDict

import trio
from attrs import evolve

from ductile.config.load.load import Config
from ductile.core.clock import to_text
from ductile.core.errors import DuctileError
from ductile.core.formats.json_schema import Timestamp
from ductile.core.instance.threads import run_in_thread
from ductile.ops.checks.check import Finding, Installation, RunningService, Severity, Where
from ductile.web.context import AppContext
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Route

DOCTOR_TIMEOUT, SELFCHECK_TIMEOUT = 5.0, 10.0
CATEGORIES = ("config", "integrity", "plugin_refs", "routes", "pipelines", "webhooks", "schedule", "token_scopes")
Status = Literal["ok", "warn", "fail", "skipped"]
STATUSES: Mapping[Severity, Status] = {
    Severity.PROBLEM: "fail",
    Severity.WARNING: "warn",
    Severity.SKIPPED: "skipped",
    Severity.OK: "ok",
}


class CheckView(TypedDict):
    """The result of a check."""

    name: str
    status: Status
    detail: str
    field: Annotated[str, "The configuration key of the check"]


class ChecksView(TypedDict):
    """The results of checks."""

    ok: Annotated[bool, "False if a check failed"]
    captured_at: Timestamp
    checks: list[CheckView]


class CheckTimedOut(DuctileError):
    """The checks did not finish in time."""

    code, exit_code, status = "examination_slow", 75, 504
    hint = "Try again. A slow disk or file system can be the cause."


def check_routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the routes that run checks."""
    one_at_a_time = trio.CapacityLimiter(1)
    yield Route(
        method="GET",
        path="/system/doctor",
        handler=partial(show_doctor, ctx, limiter=one_at_a_time),
        scope="system:ro",
        summary="Check the configuration on disk",
        group="system",
        responses={200: ChecksView},
        error_statuses=(504,),
    )
    yield Route(
        method="GET",
        path="/system/selfcheck",
        handler=partial(show_selfcheck, ctx, limiter=one_at_a_time),
        scope="system:ro",
        summary="Check the ledger, the writer and the plugins of the running service",
        group="system",
        responses={200: ChecksView},
        error_statuses=(504,),
    )


async def show_doctor(ctx: AppContext, request: Request, *, limiter: trio.CapacityLimiter) -> Response:
    return await respond(ctx, partial(doctor, ctx.snapshot().config), limiter, DOCTOR_TIMEOUT)


async def show_selfcheck(ctx: AppContext, request: Request, *, limiter: trio.CapacityLimiter) -> Response:
    snapshot = ctx.snapshot()
    running = RunningService(snapshot, ctx.ledger.path, ctx.stuck_seconds(), dict(ctx.unhealthy()))
    work = partial(selfcheck, Installation(snapshot.config.root, running=running))
    return await respond(ctx, work, limiter, SELFCHECK_TIMEOUT)


async def respond(
    ctx: AppContext, checks: Callable[[], list[CheckView]], limiter: trio.CapacityLimiter, seconds: float
) -> Response:
    """Run `checks` in a thread and return the results. Raises CheckTimedOut after `seconds`.

    A thread that timed out occupies the limiter until it ends.
    """
    with trio.move_on_after(seconds):
        results = await run_in_thread(checks, limiter=limiter, abandon_on_cancel=True)
        is_ok = all(result["status"] != "fail" for result in results)
        return json_response(ChecksView(ok=is_ok, captured_at=to_text(ctx.clock.now()), checks=results))
    raise CheckTimedOut(f"the checks did not finish within {seconds:g} s")


def doctor(config: Config) -> list[CheckView]:
    """Check the configuration on disk as `ductile config check` does. Categories without findings are ok."""
    installation = Installation(config.root)
    examination = installation.loaded.examination
    mask = examination.config.mask if examination else config.mask
    results = [
        _result(found, found.complaint.category, mask(str(evolve(found.complaint, path=""))))
        for found in _run_checks(installation, Where.CONFIG)
        if found.complaint
    ]
    names = {result["name"] for result in results}
    return results + [_result(Finding(name, Severity.OK), name) for name in CATEGORIES if name not in names]


def selfcheck(installation: Installation) -> list[CheckView]:
    """Check the configuration, ledger, writer and plugins of the running service."""
    return [_result(found, found.name, found.detail) for found in _run_checks(installation, Where.SERVICE)]


def _run_checks(installation: Installation, where: Where) -> list[Finding]:
    from ductile.ops.checks.registry import run_checks

    return run_checks(installation, where)


def _result(finding: Finding, name: str, detail: str = "") -> CheckView:
    return CheckView(name=name, status=STATUSES[finding.severity], detail=detail, field=finding.field)
