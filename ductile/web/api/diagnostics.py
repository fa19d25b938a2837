"""The service's own health and settings, over HTTP: the doctor, a self-check, the configuration in use.

What is looked at on disk is looked at in a thread and within a deadline; a slow disk makes a 504, never a stuck
service. Shows no secret.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import frozen

from ductile.config.checks.doctor import Report, examine
from ductile.config.load.load import Config, load
from ductile.config.snapshot import Snapshot
from ductile.config.views.show import redacted
from ductile.core.clock import to_text
from ductile.core.errors import Complaint, ConfigInvalid, DuctileError
from ductile.core.instance.systemd import STUCK_SECONDS
from ductile.core.secret import Mask
from ductile.core.threads import run_in_thread
from ductile.ledger.reports import queue_status
from ductile.ledger.storage.open_file import open_another_reader
from ductile.pipeline.compile.graph import compiled_routes
from ductile.web.context import AppContext, seated
from ductile.web.messages import Request, Response, json_response
from ductile.web.openapi.schemas import (
    Schema,
    anything,
    boolean,
    by_name,
    choice,
    listing,
    moment,
    record,
    text,
)
from ductile.web.routes import AnyRoute, Route

DOCTOR_SECONDS, SELFCHECK_SECONDS = 5.0, 10.0
CATEGORIES = ("config", "integrity", "plugin_refs", "routes", "pipelines", "webhooks", "schedule", "token_scopes")

CHECKS = record(
    {
        "ok": boolean("False: something keeps from working"),
        "captured_at": moment(),
        "checks": listing(
            record(
                {
                    "name": text(),
                    "status": choice(("ok", "warn", "fail", "skipped")),
                    "detail": text(),
                    "field": text("The key of the configuration it is about"),
                }
            )
        ),
    },
    title="Checks",
)
_SECTION: Schema = by_name(anything())
CONFIG = record(
    {
        "service": _SECTION,
        "api": _SECTION,
        "state": _SECTION,
        "plugins": by_name(_SECTION),
        "pipelines": listing(_SECTION),
        "webhooks": _SECTION,
        "tokens": listing(_SECTION),
        "routes": listing(_SECTION),
        "compiled_routes": by_name(listing(_SECTION)),
    },
    {name: anything() for name in ("plugin_roots", "include", "environment_vars", "instances", "remote_ingress")},
    description="The settings in use, without secrets.",
)


class ExaminationSlow(DuctileError):
    """The examination has not come to an end in time."""

    code, exit_code, status = "examination_slow", 75, 504
    hint = "try again; a slow disk or file system may be why"


@frozen
class Check:
    """One thing that was looked at."""

    name: str
    status: str
    detail: str = ""
    field: str = ""


def routes(desk: AppContext) -> Iterable[AnyRoute]:
    """What the API answers about the service itself."""
    one_at_a_time = trio.CapacityLimiter(1)

    on = seated(desk)

    yield Route(
        method="GET",
        path="/system/doctor",
        handler=on(partial(show_doctor, limiter=one_at_a_time)),
        scope="system:ro",
        summary="What is wrong with the configuration as it is on disk now",
        group="system",
        gives={200: CHECKS},
        refuses=(504,),
    )
    yield Route(
        method="GET",
        path="/system/selfcheck",
        handler=on(partial(show_selfcheck, limiter=one_at_a_time)),
        scope="system:ro",
        summary="Whether the ledger, the writer and the plugins of the running service are well",
        group="system",
        gives={200: CHECKS},
        refuses=(504,),
    )
    yield Route(
        method="GET",
        path="/config/view",
        handler=on(view_config),
        scope="system:ro",
        summary="The configuration in use, without secrets, and the pipelines as they were compiled",
        group="system",
        gives={200: CONFIG},
    )


async def show_doctor(desk: AppContext, request: Request, *, limiter: trio.CapacityLimiter) -> Response:
    config = desk.snapshot().config
    return await _checked(desk, partial(doctor, config.root, config.mask), limiter, DOCTOR_SECONDS)


async def show_selfcheck(desk: AppContext, request: Request, *, limiter: trio.CapacityLimiter) -> Response:
    seconds, unhealthy = desk.stuck_seconds(), dict(desk.unhealthy())
    work = partial(selfcheck, desk.snapshot(), desk.ledger.path, stuck_seconds=seconds, unhealthy=unhealthy)
    return await _checked(desk, work, limiter, SELFCHECK_SECONDS)


async def _checked(
    desk: AppContext, look: Callable[[], list[Check]], limiter: trio.CapacityLimiter, seconds: float
) -> Response:
    """What `look` found; 504 if it takes longer. A look that was given up keeps its place until it has ended."""
    with trio.move_on_after(seconds):
        checks = await run_in_thread(look, limiter=limiter, abandon_on_cancel=True)
        content = {
            "ok": all(check.status != "fail" for check in checks),
            "captured_at": to_text(desk.clock.now()),
            "checks": [
                {"name": check.name, "status": check.status, "detail": check.detail, "field": check.field}
                for check in checks
            ],
        }
        return json_response(content)
    raise ExaminationSlow(f"not done within {seconds:g} s", hint="try again; a slow disk or file system may be why")


# ── what is looked at ───────────────────────────────────────────────────────────────────────────────────────────────


def doctor(root: Path, mask: Mask) -> list[Check]:
    """The configuration at `root` as `config check` sees it: every complaint, and what nobody complains about."""
    try:
        config = load(root)
        mask, report = config.mask, examine(config).report
    except ConfigInvalid as error:
        report = Report(error.complaints, ())
    except DuctileError as error:
        report = Report((Complaint(str(error)),), ())
    found = [_complained(complaint, "fail", mask) for complaint in report.errors]
    found += [_complained(complaint, "warn", mask) for complaint in report.warnings]
    fine = [Check(name, "ok") for name in CATEGORIES if all(check.name != name for check in found)]
    return [*found, *fine]


def _complained(complaint: Complaint, status: str, mask: Mask) -> Check:
    where = f"{complaint.mark}: " if complaint.mark else ""
    return Check(complaint.category, status, mask(f"{where}{complaint.message}"), complaint.path)


def selfcheck(snapshot: Snapshot, ledger: Path, *, stuck_seconds: float, unhealthy: dict[str, str]) -> list[Check]:
    """What the running service stands on, looked at afresh."""
    return [
        _config_check(snapshot.config),
        _ledger_check(ledger),
        Check(
            "writer",
            "ok" if stuck_seconds < STUCK_SECONDS else "fail",
            f"has kept somebody waiting for {stuck_seconds:.1f} s" if stuck_seconds >= 1 else "",
        ),
        *_plugin_checks(snapshot, unhealthy),
    ]


def _config_check(used: Config) -> Check:
    try:
        written = load(used.root)
    except DuctileError as error:
        return Check("config", "fail", used.mask(f"a reload would be refused: {str(error).splitlines()[0]}"))
    if written.digest != used.digest:
        return Check("config", "warn", "what is on disk is not what is in use; reload to use it")
    return Check("config", "ok")


def _ledger_check(path: Path) -> Check:
    try:
        with open_another_reader(path) as db:
            depth = queue_status.depth(db)
    except DuctileError as error:
        return Check("ledger", "fail", str(error))
    return Check("ledger", "ok", f"{depth} jobs wait or run")


def _plugin_checks(snapshot: Snapshot, unhealthy: dict[str, str]) -> list[Check]:
    checks = []
    for name, lane in sorted(snapshot.lanes.items()):
        findings = lane.plugin.recheck()
        refused = [str(finding) for finding in findings if finding.is_refusal]
        if name in unhealthy or refused:
            checks.append(Check(f"plugin {name}", "fail", unhealthy.get(name) or "; ".join(refused), f"plugins.{name}"))
        elif findings:
            checks.append(Check(f"plugin {name}", "warn", "; ".join(map(str, findings)), f"plugins.{name}"))
        else:
            checks.append(Check(f"plugin {name}", "ok"))
    configured = snapshot.config.settings.plugins
    for name in sorted(snapshot.unavailable.keys() & configured.keys()):
        status = "fail" if configured[name].enabled else "skipped"
        checks.append(Check(f"plugin {name}", status, snapshot.unavailable[name], f"plugins.{name}"))
    return checks


# ── the configuration ───────────────────────────────────────────────────────────────────────────────────────────────


async def view_config(desk: AppContext, request: Request) -> Response:
    return json_response(config_view(desk.snapshot().config))


def config_view(config: Config) -> dict[str, Any]:
    """The settings in use as plain data without any secret; of tokens, only who they are and what they may do."""
    shown = redacted(config.settings, config.mask)
    api = dict(shown["api"])
    tokens = api.pop("auth")["tokens"]
    shown["api"] = {**api, "tokens": [{"name": token["name"], "scopes": token["scopes"]} for token in tokens]}
    public = ("name", "description", "created_at", "scopes_file")
    shown["tokens"] = [{key: token.get(key) for key in public} for token in shown["tokens"]]
    shown["compiled_routes"] = {
        name: config.mask.everywhere(compiled_routes(plan)) for name, plan in config.plans.by_name.items()
    }
    known = CONFIG["properties"].keys()
    return {name: value for name, value in shown.items() if name in known}
