"""Routes for diagnostics: the doctor, the self-check, and the configuration in use without secrets.

Checks that read the disk run in a thread with a timeout: a slow disk causes a 504 and does not block the service.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

import trio
from attrs import frozen

from ductile.config.checks.examine import Report, examine
from ductile.config.load.load import Config, load
from ductile.config.load.redaction import redact_settings
from ductile.config.snapshot import Snapshot
from ductile.core.clock import to_text
from ductile.core.errors import Complaint, ConfigInvalid, DuctileError
from ductile.core.instance.systemd import MAX_STUCK_SECONDS
from ductile.core.secret import Mask
from ductile.core.threads import run_in_thread
from ductile.ledger.reports import queue_status
from ductile.ledger.storage.open_file import open_reader_beside_writer
from ductile.pipeline.compile.graph import compiled_routes
from ductile.web.context import AppContext
from ductile.web.messages import Request, Response, json_response
from ductile.web.routes import AnyRoute, Route
from ductile.web.schema import array, boolean, choice, record, text, timestamp

DOCTOR_TIMEOUT, SELFCHECK_TIMEOUT = 5.0, 10.0
CATEGORIES = ("config", "integrity", "plugin_refs", "routes", "pipelines", "webhooks", "schedule", "token_scopes")

CHECKS = record(
    {
        "ok": boolean("False if a check failed"),
        "captured_at": timestamp(),
        "checks": array(
            record(
                {
                    "name": text(),
                    "status": choice(("ok", "warn", "fail", "skipped")),
                    "detail": text(),
                    "field": text("The configuration key of the check"),
                }
            )
        ),
    },
    title="Checks",
)
_Section = dict[str, Any]


class ConfigView(TypedDict):
    """The settings in use, without secrets."""

    service: _Section
    api: _Section
    state: _Section
    plugins: dict[str, _Section]
    pipelines: list[_Section]
    webhooks: _Section
    tokens: list[_Section]
    routes: list[_Section]
    compiled_routes: dict[str, list[_Section]]
    plugin_roots: NotRequired[Any]
    include: NotRequired[Any]
    environment_vars: NotRequired[Any]
    instances: NotRequired[Any]
    remote_ingress: NotRequired[Any]


class CheckTimedOut(DuctileError):
    """The checks did not finish in time."""

    code, exit_code, status = "examination_slow", 75, 504
    hint = "Try again. A slow disk or file system can be the cause."


@frozen
class Check:
    """The result of one check."""

    name: str
    status: str
    detail: str = ""
    field: str = ""


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the diagnostic routes."""
    one_at_a_time = trio.CapacityLimiter(1)
    yield Route(
        method="GET",
        path="/system/doctor",
        handler=partial(show_doctor, ctx, limiter=one_at_a_time),
        scope="system:ro",
        summary="Check the configuration on disk",
        group="system",
        responses={200: CHECKS},
        error_statuses=(504,),
    )
    yield Route(
        method="GET",
        path="/system/selfcheck",
        handler=partial(show_selfcheck, ctx, limiter=one_at_a_time),
        scope="system:ro",
        summary="Check the ledger, the writer and the plugins of the running service",
        group="system",
        responses={200: CHECKS},
        error_statuses=(504,),
    )
    yield Route(
        method="GET",
        path="/config/view",
        handler=partial(view_config, ctx),
        scope="system:ro",
        summary="Get the configuration in use without secrets, and the compiled pipelines",
        group="system",
        responses={200: ConfigView},
    )


async def show_doctor(ctx: AppContext, request: Request, *, limiter: trio.CapacityLimiter) -> Response:
    config = ctx.snapshot().config
    return await run_checks(ctx, partial(doctor, config.root, config.mask), limiter, DOCTOR_TIMEOUT)


async def show_selfcheck(ctx: AppContext, request: Request, *, limiter: trio.CapacityLimiter) -> Response:
    seconds, unhealthy = ctx.stuck_seconds(), dict(ctx.unhealthy())
    work = partial(selfcheck, ctx.snapshot(), ctx.ledger.path, stuck_seconds=seconds, unhealthy=unhealthy)
    return await run_checks(ctx, work, limiter, SELFCHECK_TIMEOUT)


async def run_checks(
    ctx: AppContext, checks: Callable[[], list[Check]], limiter: trio.CapacityLimiter, seconds: float
) -> Response:
    """Run `checks` in a thread and return the results. Raises CheckTimedOut after `seconds`.

    A thread that timed out occupies the limiter until it ends.
    """
    with trio.move_on_after(seconds):
        results = await run_in_thread(checks, limiter=limiter, abandon_on_cancel=True)
        content = {
            "ok": all(check.status != "fail" for check in results),
            "captured_at": to_text(ctx.clock.now()),
            "checks": [
                {"name": check.name, "status": check.status, "detail": check.detail, "field": check.field}
                for check in results
            ],
        }
        return json_response(content)
    raise CheckTimedOut(f"the checks did not finish within {seconds:g} s")


# ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def doctor(root: Path, mask: Mask) -> list[Check]:
    """Check the configuration at `root` as `ductile config check` does. Categories without findings are ok."""
    try:
        config = load(root)
        mask, report = config.mask, examine(config).report
    except ConfigInvalid as error:
        report = Report(error.complaints, ())
    except DuctileError as error:
        report = Report((Complaint(str(error)),), ())
    found = [_complaint_check(complaint, "fail", mask) for complaint in report.errors]
    found += [_complaint_check(complaint, "warn", mask) for complaint in report.warnings]
    passed = [Check(name, "ok") for name in CATEGORIES if all(check.name != name for check in found)]
    return [*found, *passed]


def _complaint_check(complaint: Complaint, status: str, mask: Mask) -> Check:
    where = f"{complaint.mark}: " if complaint.mark else ""
    return Check(complaint.category, status, mask(f"{where}{complaint.message}"), complaint.path)


def selfcheck(snapshot: Snapshot, ledger: Path, *, stuck_seconds: float, unhealthy: dict[str, str]) -> list[Check]:
    """Check the configuration, ledger, writer and plugins of the running service."""
    return [
        _config_check(snapshot.config),
        _ledger_check(ledger),
        Check(
            "writer",
            "ok" if stuck_seconds < MAX_STUCK_SECONDS else "fail",
            f"blocked for {stuck_seconds:.1f} s" if stuck_seconds >= 1 else "",
        ),
        *_plugin_checks(snapshot, unhealthy),
    ]


def _config_check(current: Config) -> Check:
    try:
        on_disk = load(current.root)
    except DuctileError as error:
        return Check("config", "fail", current.mask(f"a reload would fail: {str(error).splitlines()[0]}"))
    if on_disk.digest != current.digest:
        return Check("config", "warn", "the configuration on disk differs from the one in use; reload to apply it")
    return Check("config", "ok")


def _ledger_check(path: Path) -> Check:
    try:
        with open_reader_beside_writer(path) as db:
            depth = queue_status.depth(db)
    except DuctileError as error:
        return Check("ledger", "fail", str(error))
    return Check("ledger", "ok", f"{depth} jobs queued or running")


def _plugin_checks(snapshot: Snapshot, unhealthy: dict[str, str]) -> list[Check]:
    checks = []
    for name, configured in sorted(snapshot.plugins.items()):
        findings = configured.plugin.recheck()
        refused = [str(finding) for finding in findings if finding.is_refusal]
        if name in unhealthy or refused:
            checks.append(Check(f"plugin {name}", "fail", unhealthy.get(name) or "; ".join(refused), f"plugins.{name}"))
        elif findings:
            checks.append(Check(f"plugin {name}", "warn", "; ".join(map(str, findings)), f"plugins.{name}"))
        else:
            checks.append(Check(f"plugin {name}", "ok"))
    entries = snapshot.config.settings.plugins
    for name in sorted(snapshot.unavailable.keys() & entries.keys()):
        status = "fail" if entries[name].enabled else "skipped"
        checks.append(Check(f"plugin {name}", status, snapshot.unavailable[name], f"plugins.{name}"))
    return checks


# ── configuration ────────────────────────────────────────────────────────────────────────────────────────────────────


async def view_config(ctx: AppContext, request: Request) -> Response:
    return json_response(config_view(ctx.snapshot().config))


def config_view(config: Config) -> ConfigView:
    """Return the settings in use as JSON data without secrets. Tokens are reduced to names and scopes."""
    shown = redact_settings(config.settings, config.mask)
    api = dict(shown["api"])
    tokens = api.pop("auth")["tokens"]
    shown["api"] = {**api, "tokens": [{"name": token["name"], "scopes": token["scopes"]} for token in tokens]}
    public = ("name", "description", "created_at", "scopes_file")
    shown["tokens"] = [{key: token.get(key) for key in public} for token in shown["tokens"]]
    shown["compiled_routes"] = {
        name: config.mask.mask_data(compiled_routes(plan)) for name, plan in config.plans.by_name.items()
    }
    return cast(ConfigView, {name: value for name, value in shown.items() if name in ConfigView.__annotations__})
