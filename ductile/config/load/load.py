"""Read, verify, include, interpolate, merge, structure: from a path to one immutable `Config`.

The story of a load on one page. Each step has its own room; what went wrong in any of them is told at once. Does not
look for plugins: rules that need them are the doctor's (`check`).
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen
from blake3 import blake3

from ductile.config.checks.rules import breaches
from ductile.config.edit.atomic_write import finish_interrupted
from ductile.config.load.interpolate import Interpolated, interpolate
from ductile.config.load.legacy_keys import translate
from ductile.config.load.sources import NOTHING_REPLACED, SourceFile, read_sources
from ductile.config.load.structure import structure
from ductile.config.scopes import Grant, Grants, read_grants
from ductile.config.seal.checksums import (
    SEAL_FILE,
    Drift,
    Seal,
    Weight,
    drift_of_files,
    drift_of_gone_files,
    read_seal,
    refusals,
)
from ductile.config.sections.settings import Settings, State
from ductile.config.views.show import digest, is_reference, looks_secret
from ductile.core.errors import (
    Complaint,
    ConfigInvalid,
    DuctileError,
    IntegrityBroken,
    Mark,
    PipelineInvalid,
    Unreadable,
)
from ductile.core.files import permission_findings
from ductile.core.secret import Mask, Secret
from ductile.pipeline.compile.plans import Plans
from ductile.pipeline.language.dsl import Pipeline, textual


@frozen(kw_only=True)
class Config:
    """A configuration as it was at one moment. A reload makes another one; nothing edits this."""

    settings: Settings
    root: Path
    files: tuple[SourceFile, ...] = field(repr=False)
    plans: Plans = field(repr=False)
    """The pipelines, compiled."""
    grants: Mapping[str, Grant]
    seal: Seal | None = field(repr=False)
    drifts: tuple[Drift, ...]
    warnings: tuple[Complaint, ...]
    places: Mapping[str, Mark] = field(repr=False)
    """Dotted path → where it is written, for complaints that come later."""
    mask: Mask = field(repr=False)
    digest: str
    source_digest: str

    @property
    def directory(self) -> Path:
        return self.root.parent

    @property
    def seal_path(self) -> Path:
        return self.directory / SEAL_FILE

    def complaint(self, message: str, path: str, category: str) -> Complaint:
        """A complaint about the value at `path`, with the nearest place that is written down."""
        return Complaint(message, path, _place(self.places, path) or Mark(str(self.root), 1), category)


def load(
    root: Path,
    *,
    environ: Mapping[str, str] | None = None,
    verify: bool = True,
    replaced: Mapping[Path, bytes] = NOTHING_REPLACED,
    alone: bool = False,
) -> Config:
    """The configuration at `root`. ConfigInvalid or IntegrityBroken say all that is wrong; nothing is changed.

    An edit that was interrupted after it was decided is finished first. `verify=False` is for sealing: what is about to
    be approved need not be approved yet. `replaced` is what an edit would write: file → its new bytes. `alone` is for
    the only editor, who has finished what was interrupted.
    """
    if not alone:
        finish_interrupted(root.parent)
    sources = read_sources(root, os.environ if environ is None else environ, replaced=replaced)
    seal = _seal_of(root, verify=verify)
    drifts = drift_of_files(sources.files, seal)
    if verify:
        _refuse([drift.complaint for drift in drifts if drift.weight is Weight.HIGH])
    translated = translate(sources.root)
    resolved = interpolate(translated.root, sources.environment)
    settings = _structure(resolved, errors=(*sources.errors, *translated.errors))
    # A path that is written starts at its file; the default one has no file but the root.
    # Two names for one ledger are one ledger: the lock and the socket lie beside the file itself.
    settings = evolve(settings, state=State(path=Path(os.path.realpath(root.parent / settings.state.path))))
    unset_errors, unset_warnings = _unset(settings, resolved.unset)
    grants = read_grants(settings.tokens, allow_symlinks=sources.allow_symlinks, replaced=replaced)
    places = {path: node.mark for path, node in resolved.root.walk() if path}
    plans, refused = _compiled(settings, resolved)
    _require_consistency(settings, grants, places, root, errors=unset_errors, refused=refused)
    files = (*sources.files, *grants.files)
    drifts += [*drift_of_files(grants.files, seal), *drift_of_gone_files(files, seal)]
    if verify:
        admission, strict = settings.service.admission, settings.service.strict_mode
        verified = strict or admission.verify_integrity_on_boot or admission.fail_on_drift
        _refuse(refusals(drifts, changed=verified, unsealed=strict or admission.fail_on_drift, seal=seal))
    return Config(
        settings=settings,
        root=root,
        files=files,
        plans=plans,
        grants=grants.by_token,
        seal=seal,
        drifts=tuple(drifts),
        warnings=(
            *sources.warnings,
            *translated.warnings,
            *unset_warnings,
            *_placed(grants.warnings, places, root),
            *_drift_warnings(drifts, seal),
        ),
        places=places,
        mask=Mask(_secret_values(settings, resolved)),
        digest=digest(settings),
        source_digest=_source_digest(files),
    )


def _seal_of(root: Path, *, verify: bool) -> Seal | None:
    """The seal beside `root`. One that is damaged, or that a stranger can write, vouches for nothing."""
    path = root.parent / SEAL_FILE
    try:
        seal = read_seal(path)
        findings = permission_findings(path) if seal else []
    except Unreadable as error:
        complaints = [Complaint(error.reason, mark=error.mark, category="integrity")]
    except DuctileError as error:
        complaints = [Complaint(str(error), category="integrity")]
    else:
        complaints = [Complaint(str(finding), category="integrity") for finding in findings if finding.is_refusal]
        if not complaints:
            return seal
    if verify:
        raise IntegrityBroken(complaints)
    return None


def _refuse(complaints: list[Complaint]) -> None:
    if complaints:
        raise IntegrityBroken(complaints)


def _structure(resolved: Interpolated, errors: tuple[Complaint, ...]) -> Settings:
    """The settings, or every complaint of this and the earlier steps together."""
    try:
        settings = structure(resolved.root)
    except ConfigInvalid as invalid:
        refused = {complaint.path for complaint in invalid.complaints}
        unset = (complaint for complaint in resolved.unset if complaint.path in refused)
        raise ConfigInvalid((*errors, *invalid.complaints, *unset)) from None
    if errors:
        raise ConfigInvalid(errors)
    return settings


def _compiled(settings: Settings, resolved: Interpolated) -> tuple[Plans, list[Complaint]]:
    """The plans of all pipelines, or what is wrong with these."""
    if not settings.pipelines:
        return Plans(), []
    # The compiler costs as much to import as the rest of a load takes, and many configurations have no pipeline.
    from ductile.pipeline.compile.compile import compile_pipelines

    try:
        hops = settings.service.limits.hops
        return compile_pipelines(settings.pipelines, names=settings.plugins, most_calls=hops), []
    except PipelineInvalid as invalid:
        # A complaint may quote what `${NAME}` stands for.
        mask = Mask({value for _, value in resolved.used})
        return Plans(), [complaint._replace(message=mask(complaint.message)) for complaint in invalid.complaints]


def _require_consistency(
    settings: Settings,
    grants: Grants,
    places: Mapping[str, Mark],
    root: Path,
    *,
    errors: Iterable[Complaint],
    refused: Iterable[Complaint],
) -> None:
    """The settings agree with themselves, and there is nothing else to complain about."""
    found = [
        Complaint(breach.message, breach.path, None, breach.category) for breach in breaches(settings, grants.by_token)
    ]
    complaints = (*errors, *_placed((*grants.errors, *found, *refused), places, root))
    if complaints:
        raise ConfigInvalid(complaints)


def _placed(complaints: Iterable[Complaint], places: Mapping[str, Mark], root: Path) -> list[Complaint]:
    """Every complaint with the place where the value it is about is written."""
    return [
        complaint if complaint.mark else complaint._replace(mark=_place(places, complaint.path) or Mark(str(root), 1))
        for complaint in complaints
    ]


def _place(places: Mapping[str, Mark], path: str) -> Mark | None:
    """Where `path`, or else the nearest thing around it, is written."""
    while path and path not in places:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return places.get(path)


def _unset(settings: Settings, unset: Iterable[Complaint]) -> tuple[list[Complaint], list[Complaint]]:
    """An unset variable is an error where a secret or an enabled plugin waits for it, elsewhere it stays literal."""
    live = tuple(
        f"plugins.{name}.{part}"
        for name, entry in settings.plugins.items()
        if entry.enabled
        for part in ("config", "env")
    )
    errors: list[Complaint] = []
    warnings: list[Complaint] = []
    for complaint in unset:
        needed = complaint.path.startswith(("api.auth.tokens[", "tokens[", *live))
        (errors if needed else warnings).append(complaint)
    return errors, warnings


def _secret_values(settings: Settings, resolved: Interpolated) -> set[str]:
    """Tokens, keys, what the environment put into plugin configuration, and what sits there under telling names."""
    secrets = [token.token for token in settings.api.auth.tokens] + [token.key for token in settings.tokens]
    values = {Secret.reveal(secret) for secret in secrets}
    values |= {value for path, value in resolved.used if _is_handed_on(path)}
    for entry in settings.plugins.values():
        values.update(secrets_among(entry.config), secrets_among(entry.env))
        values.update(*(secrets_among(schedule.payload) for schedule in entry.schedules))
    return values.union(*map(_telling_in, settings.pipelines))


def _telling_in(pipeline: Pipeline) -> set[str]:
    """What a pipeline hands to plugins and peers under telling names."""
    steps = [step for _, step in textual(pipeline.steps, "")]
    return secrets_among([[step.with_, step.relay.with_ if step.relay else None] for step in steps])


def _is_handed_on(path: str) -> bool:
    """True for values that Ductile passes to plugins without knowing what they mean."""
    inside = path.startswith("plugins.") and any(part in path for part in (".config", ".env", ".payload"))
    return inside or path.startswith("pipelines[")


def secrets_among(data: Any, *, under_secret: bool = False) -> set[str]:
    """The values in plugin-owned data that stand under telling names."""
    if isinstance(data, Mapping):
        parts = [secrets_among(value, under_secret=under_secret or looks_secret(name)) for name, value in data.items()]
    elif isinstance(data, list | tuple):
        parts = [secrets_among(item, under_secret=under_secret) for item in data]
    else:
        is_secret = under_secret and isinstance(data, str | int) and not is_reference(data)
        return {str(data)} if is_secret else set()
    return set().union(*parts)


def _drift_warnings(drifts: Iterable[Drift], seal: Seal | None) -> list[Complaint]:
    if seal is None:
        return [
            Complaint("nothing is sealed yet; approve what is there with `ductile config lock`", category="integrity")
        ]
    return [drift.complaint for drift in drifts]


def _source_digest(files: Iterable[SourceFile]) -> str:
    hasher = blake3()
    for source in files:
        hasher.update(f"{source.path}\0{source.digest}\0".encode())
    return hasher.hexdigest()
