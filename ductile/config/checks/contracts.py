"""Checks that pipelines read only payload fields that the preceding steps emit, according to the manifests.

Reports a field only if every path to the step is known: a command without declared events and an external trigger may
emit any field.
"""

from collections.abc import Iterator, Mapping

from ductile.config.checks.pipelines import declared_emissions
from ductile.config.load.load import Config
from ductile.core.errors import Complaint, did_you_mean
from ductile.core.units import quote_text
from ductile.pipeline.compile.graph import topological_order
from ductile.pipeline.compile.plan import Each, Fork, Gate, Go, Instruction, Leave, Open, Plan, PlanNode
from ductile.pipeline.language import conditions, templates
from ductile.pipeline.language.baggage import BaggageClaim, Claims
from ductile.pipeline.language.paths import Path
from ductile.plugin.manifest import Emission
from ductile.plugin.registry import Plugin

KnownFields = frozenset[str] | None
"""The dotted names that a payload may contain; None if they are unknown."""
PlanPoint = Instruction | PlanNode

FAILURE_FIELDS = frozenset(
    {"job_id", "plugin", "command", "status", "attempt", "duration_ms", "error", "message", "text", "result", "input"}
)
MAX_LISTED_NAMES = 12


def find_broken_contracts(config: Config, plugins: Mapping[str, Plugin]) -> Iterator[Complaint]:
    """Yield a complaint for every payload path that no preceding step emits."""
    for plan in config.plans.by_name.values():
        for where, path, known in _unmet(plan, plugins):
            name = ".".join(path.segments)
            available = ", ".join(f"payload.{field}" for field in sorted(known)[:MAX_LISTED_NAMES])
            message = (
                f"no preceding step emits {quote_text(str(path))}{did_you_mean(name, known)}; available: {available}"
            )
            caller = "" if where.startswith(f"{plan.where}.") else f" when {plan.name} calls it"
            yield config.complaint(message + caller, where, "contracts")


def _unmet(plan: Plan, plugins: Mapping[str, Plugin]) -> Iterator[tuple[str, Path, frozenset[str]]]:
    arriving: dict[PlanPoint, KnownFields] = {plan.entry: _triggering(plan, plugins)}
    durable = frozenset(str(claim) for node in plan.nodes.values() for claim in _claims_of(node.baggage))
    for point in topological_order(plan):
        known = arriving[point]
        if known is not None:
            # Baggage is merged into the payload of a plugin, and `with` reads that payload.
            for where, path in _remaps_of(point):
                if not _is_among(path, known | durable):
                    yield where, path, known
            yield from ((where, path, known) for where, path in _reads(point) if not _is_among(path, known))
        for successor, carried in _carries(point, known, plugins):
            before = arriving.get(successor, frozenset())
            arriving[successor] = None if carried is None or before is None else carried | before


def _triggering(plan: Plan, plugins: Mapping[str, Plugin]) -> KnownFields:
    """Return the fields of the triggering event, if `from_plugin` declares it."""
    source = plugins.get(plan.from_plugin or "")
    commands = source.manifest.commands.values() if source else ()
    declared = [emission for command in commands for emission in command.values.emit if emission.event == plan.on]
    return _names(declared)


def _names(declared: "list[Emission] | tuple[Emission, ...]") -> KnownFields:
    names = {value.removeprefix("payload.") for emission in declared for value in emission.values}
    return None if not declared or "*" in names else frozenset(names | {"result"})


def _carries(
    point: PlanPoint, known: KnownFields, plugins: Mapping[str, Plugin]
) -> Iterator[tuple[PlanPoint, KnownFields]]:
    """Yield each successor with the fields that its payload may contain."""
    match point:
        case PlanNode(kind="join"):
            yield point.successors, known if known is None else known | {"results"}
        case PlanNode():
            yield point.successors, _names(declared_emissions(point, plugins))
            if point.on_error is not None:
                yield point.on_error, FAILURE_FIELDS
        case Go(node):
            yield node, known
        case Open(join, body):
            yield body, known
            yield join, known
        case Gate():
            yield point.then, known
            yield point.otherwise, known
        case Fork(branches):
            yield from ((branch, known) for branch in branches)
        case Each():
            yield point.body, known
            yield point.empty, known
        case Leave(then):
            yield then, known


def _reads(point: PlanPoint) -> Iterator[tuple[str, Path]]:
    """Yield every path that is read when this point is entered, and its position in the configuration."""
    match point:
        case Gate():
            yield from ((point.where, path) for path in conditions.paths_of(point.condition))
        case Each():
            yield point.where, point.source
        case PlanNode():
            yield from _claims(point.baggage, f"{point.where}.baggage")
            if point.relay is not None:
                where = f"{point.where}.relay"
                yield from _remaps(point.relay.with_ or {}, f"{where}.with")
                yield from _claims(point.relay.baggage, f"{where}.baggage")
                if point.relay.dedupe_key is not None:
                    yield from _remaps({"dedupe_key": point.relay.dedupe_key}, where)
            if point.publish is not None:
                where = f"{point.where}.publish"
                yield from _remaps(point.publish.metadata, f"{where}.metadata")
                if point.publish.body is not None:
                    yield from _remaps({"body": point.publish.body}, where)


def _remaps_of(point: PlanPoint) -> Iterator[tuple[str, Path]]:
    """Yield the same for paths that are read when the plugin starts."""
    if isinstance(point, PlanNode):
        yield from _remaps(point.with_, f"{point.where}.with")


def _remaps(remap: Mapping[str, templates.Template], where: str) -> Iterator[tuple[str, Path]]:
    for key, template in remap.items():
        yield from ((f"{where}.{key}", path) for path in templates.paths_of(template))


def _claims(claims: Claims | None, where: str) -> Iterator[tuple[str, Path]]:
    for claim in _claims_of(claims):
        yield f"{where}.{'from' if claim.in_bulk else claim}", claim.source


def _claims_of(claims: Claims | None) -> tuple[BaggageClaim, ...]:
    return claims.claims if claims else ()


def _is_among(path: Path, known: frozenset[str]) -> bool:
    """True if the path, a prefix of it or a path below it is declared."""
    if path.root != "payload" or not path.segments:
        return True
    name = ".".join(path.segments)
    return any(name == field or name.startswith(f"{field}.") or field.startswith(f"{name}.") for field in known)
