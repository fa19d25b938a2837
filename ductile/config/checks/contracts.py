"""Does a pipeline read what the steps before it emit? Manifests say what commands emit; this compares.

Warns only where every way that leads to a place is known: a command that declares nothing may emit anything, and so
may whoever triggers the pipeline.
"""

from collections.abc import Iterator, Mapping

from ductile.config.checks.pipelines import emissions
from ductile.config.load.load import Config
from ductile.core.errors import Complaint, did_you_mean
from ductile.core.units import shown
from ductile.pipeline.compile.graph import first_first
from ductile.pipeline.compile.plan import Each, Entry, Fork, Gate, Go, Leave, Open, Plan, PlanNode
from ductile.pipeline.language import conditions, templates
from ductile.pipeline.language.baggage import BaggageClaim, Claims
from ductile.pipeline.language.paths import Path
from ductile.plugin.manifest import Emission
from ductile.plugin.registry import Plugin

Known = frozenset[str] | None
"""The dotted names that a payload may have; None: nobody knows."""
Thing = Entry | PlanNode

FAILURE = frozenset(
    {"job_id", "plugin", "command", "status", "attempt", "duration_ms", "error", "message", "text", "result", "input"}
)
MOST_NAMED = 12


def broken_contracts(config: Config, plugins: Mapping[str, Plugin]) -> Iterator[Complaint]:
    """Every payload path that nothing before it emits."""
    for plan in config.plans.by_name.values():
        for where, path, known in _unmet(plan, plugins):
            name = ".".join(path.segments)
            emitted = ", ".join(f"payload.{one}" for one in sorted(known)[:MOST_NAMED])
            message = f"nothing before it emits {shown(str(path))}{did_you_mean(name, known)}; it gets {emitted}"
            caller = "" if where.startswith(f"{plan.where}.") else f" when {plan.name} calls it"
            yield config.complaint(message + caller, where, "contracts")


def _unmet(plan: Plan, plugins: Mapping[str, Plugin]) -> Iterator[tuple[str, Path, frozenset[str]]]:
    arriving: dict[Thing, Known] = {plan.entry: _triggering(plan, plugins)}
    durable = frozenset(str(claim) for node in plan.nodes.values() for claim in _claims_of(node.baggage))
    for thing in first_first(plan):
        known = arriving[thing]
        if known is not None:
            # A plugin finds what is durable among its payload, and so does `with`.
            for where, path in _remaps_of(thing):
                if not _is_among(path, known | durable):
                    yield where, path, known
            yield from ((where, path, known) for where, path in _reads(thing) if not _is_among(path, known))
        for following, carried in _carries(thing, known, plugins):
            before = arriving.get(following, frozenset())
            arriving[following] = None if carried is None or before is None else carried | before


def _triggering(plan: Plan, plugins: Mapping[str, Plugin]) -> Known:
    """What the event has that starts the pipeline, if only one plugin can emit it and says so."""
    source = plugins.get(plan.from_plugin or "")
    commands = source.manifest.commands.values() if source else ()
    declared = [one for command in commands for one in command.values.emit if one.event == plan.on]
    return _names(declared)


def _names(declared: "list[Emission] | tuple[Emission, ...]") -> Known:
    names = {value.removeprefix("payload.") for one in declared for value in one.values}
    return None if not declared or "*" in names else frozenset(names | {"result"})


def _carries(thing: Thing, known: Known, plugins: Mapping[str, Plugin]) -> Iterator[tuple[Thing, Known]]:
    """What comes next, and what its payload may have."""
    match thing:
        case PlanNode(kind="join"):
            yield thing.successors, known if known is None else known | {"results"}
        case PlanNode():
            yield thing.successors, _names(emissions(thing, plugins))
            if thing.on_error is not None:
                yield thing.on_error, FAILURE
        case Go(node):
            yield node, known
        case Open(join, body):
            yield body, known
            yield join, known
        case Gate():
            yield thing.then, known
            yield thing.otherwise, known
        case Fork(branches):
            yield from ((branch, known) for branch in branches)
        case Each():
            yield thing.body, known
            yield thing.empty, known
        case Leave(then):
            yield then, known


def _reads(thing: Thing) -> Iterator[tuple[str, Path]]:
    """Every path that is read when this place is entered, and where it is written."""
    match thing:
        case Gate():
            yield from ((thing.where, path) for path in conditions.paths_of(thing.condition))
        case Each():
            yield thing.where, thing.source
        case PlanNode():
            yield from _claims(thing.baggage, f"{thing.where}.baggage")
            if thing.relay is not None:
                where = f"{thing.where}.relay"
                yield from _remaps(thing.relay.with_ or {}, f"{where}.with")
                yield from _claims(thing.relay.baggage, f"{where}.baggage")
                if thing.relay.dedupe_key is not None:
                    yield from _remaps({"dedupe_key": thing.relay.dedupe_key}, where)


def _remaps_of(thing: Thing) -> Iterator[tuple[str, Path]]:
    """The same for what is read when its plugin starts."""
    if isinstance(thing, PlanNode):
        yield from _remaps(thing.with_, f"{thing.where}.with")


def _remaps(remap: Mapping[str, templates.Template], where: str) -> Iterator[tuple[str, Path]]:
    for key, template in remap.items():
        yield from ((f"{where}.{key}", path) for path in templates.paths_of(template))


def _claims(claims: Claims | None, where: str) -> Iterator[tuple[str, Path]]:
    for claim in _claims_of(claims):
        yield f"{where}.{'from' if claim.in_bulk else claim}", claim.source


def _claims_of(claims: Claims | None) -> tuple[BaggageClaim, ...]:
    return claims.claims if claims else ()


def _is_among(path: Path, known: frozenset[str]) -> bool:
    """True also when only a part of the path, or something below it, is declared."""
    if path.root != "payload" or not path.segments:
        return True
    name = ".".join(path.segments)
    return any(name == one or name.startswith(f"{one}.") or one.startswith(f"{name}.") for one in known)
