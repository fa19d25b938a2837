"""Routes that explain one job: why it is as it is, and everything the ledger has about it."""

from collections.abc import Iterable
from functools import partial

from ductile.explain.diagnosis import DiagnosisView, diagnose_job
from ductile.explain.job import JobWhyView, job_why
from ductile.explain.truncate import DEFAULT_BYTES, MIN_BYTES, PARTS, json_size, truncate_to_fit
from ductile.web.context import AppContext, read_job_id, read_number
from ductile.web.messages import Request, Response, json_response
from ductile.web.routing import AnyRoute, Argument, Route
from ductile.web.views.jobs import RESULT_SCOPE
from ductile.web.views.public_fields import without_texts

MAX_BYTES = 1 << 20
CONFIG_SCOPE = "system:ro"
"""Without this scope, a diagnosis does not have the changes of the configuration."""


def routes(ctx: AppContext) -> Iterable[AnyRoute]:
    """Return the routes that explain one job."""
    yield Route(
        method="GET",
        path="/job/{id}/why",
        handler=partial(explain, ctx),
        scope="jobs:status:ro",
        summary="Explain why a job waits, runs or ended, and the state of the run that began with it",
        group="explanations",
        responses={200: JobWhyView},
    )
    yield Route(
        method="GET",
        path="/job/{id}/diagnosis",
        handler=partial(diagnose, ctx),
        scope="jobs:ro",
        summary="Get everything about a job: request, response, attempts, journal, changes, similar failures",
        group="explanations",
        query=(Argument("max_bytes", int, f"Maximum size; default {DEFAULT_BYTES}, {MIN_BYTES} to {MAX_BYTES}"),),
        responses={200: DiagnosisView},
    )


async def explain(ctx: AppContext, request: Request) -> Response:
    view = await ctx.ledger.read(job_why, ctx.ledger.path, read_job_id(request))
    return json_response(view if request.principal.has_scope(RESULT_SCOPE) else without_texts(view))


async def diagnose(ctx: AppContext, request: Request) -> Response:
    max_bytes = read_number(request, "max_bytes", DEFAULT_BYTES, least=MIN_BYTES, most=MAX_BYTES)
    mask = ctx.snapshot().config.mask
    bundle = await ctx.ledger.read(diagnose_job, ctx.ledger.path, read_job_id(request), mask)
    if bundle["since_last_success"] and not request.principal.has_scope(CONFIG_SCOPE):
        del bundle["since_last_success"]["changes"]
    return json_response(truncate_to_fit(bundle, PARTS, json_size, max_bytes))
