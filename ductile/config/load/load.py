"""Load a configuration: run all steps from its files to one immutable `Config`, and report all errors together.

`files.sources` reads and merges the files, `checksums` verifies them, `files.interpolate` replaces variables, and
`structure` builds the sections. Does not discover plugins; rules that need them are in `checks.examine`.
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen
from blake3 import blake3

from ductile.config.checksums import (
    SEAL_FILE,
    Drift,
    DriftSeverity,
    Seal,
    blocking_complaints,
    find_file_drift,
    find_removed_files,
    read_seal,
)
from ductile.config.files.atomic_write import finish_interrupted
from ductile.config.files.interpolate import Interpolated, interpolate
from ductile.config.files.legacy_keys import translate
from ductile.config.files.sources import NO_REPLACEMENTS, SourceFile, read_sources
from ductile.config.load.redaction import HEARTBEAT_URL, digest, is_reference, looks_secret
from ductile.config.load.rules import find_violations
from ductile.config.load.structure import structure
from ductile.config.scopes import Grant, Grants, read_grants
from ductile.config.sections.settings import Settings, State
from ductile.core.errors import (
    Complaint,
    ConfigInvalid,
    DuctileError,
    IntegrityBroken,
    Mark,
    PipelineInvalid,
    Unreadable,
)
from ductile.core.files import check_permissions
from ductile.core.secret import Mask, Secret
from ductile.pipeline.compile.plans import Plans
from ductile.pipeline.language.dsl import Pipeline, iter_steps


@frozen(kw_only=True)
class Config:
    """An immutable configuration. A reload creates a new one."""

    settings: Settings
    root: Path
    files: tuple[SourceFile, ...] = field(repr=False)
    plans: Plans = field(repr=False)
    """The compiled pipelines."""
    grants: Mapping[str, Grant]
    seal: Seal | None = field(repr=False)
    drifts: tuple[Drift, ...]
    warnings: tuple[Complaint, ...]
    places: Mapping[str, Mark] = field(repr=False)
    """Dotted path → position in the files, for later complaints."""
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
        """Return a complaint about the value at `path`, with the position of the closest value that is written."""
        return Complaint(message, path, _place(self.places, path) or Mark(str(self.root), 1), category)


def load(
    root: Path,
    *,
    environ: Mapping[str, str] | None = None,
    verify: bool = True,
    replaced: Mapping[Path, bytes] = NO_REPLACEMENTS,
    alone: bool = False,
) -> Config:
    """Load the configuration at `root`. Raises ConfigInvalid or IntegrityBroken with all errors.

    Finishes an interrupted edit first, unless `alone` is set: then the caller holds the lock and has finished it.
    `verify=False` skips the check against the seal. `replaced` maps files to contents that are used instead of the
    files on disk.
    """
    if not alone:
        finish_interrupted(root.parent)
    sources = read_sources(root, os.environ if environ is None else environ, replaced=replaced)
    seal = _seal_of(root, verify=verify)
    drifts = find_file_drift(sources.files, seal)
    if verify:
        _refuse([drift.complaint for drift in drifts if drift.severity is DriftSeverity.HIGH])
    translated = translate(sources.root)
    resolved = interpolate(translated.root, sources.environment)
    settings = _structure(resolved, errors=(*sources.errors, *translated.errors))
    # A configured path is already relative to its file; the default is relative to the root file.
    # realpath, because the lock and the socket are next to the real file: two links to a ledger share them.
    settings = evolve(settings, state=State(path=Path(os.path.realpath(root.parent / settings.state.path))))
    unset_errors, unset_warnings = _unset(settings, resolved.unset)
    grants = read_grants(settings.tokens, allow_symlinks=sources.allow_symlinks, replaced=replaced)
    places = {path: node.mark for path, node in resolved.root.walk() if path}
    plans, refused = _compiled(settings, resolved)
    _require_consistency(settings, grants, places, root, errors=unset_errors, refused=refused)
    files = (*sources.files, *grants.files)
    drifts += [*find_file_drift(grants.files, seal), *find_removed_files(files, seal)]
    if verify:
        admission, strict = settings.service.admission, settings.service.strict_mode
        verified = strict or admission.verify_integrity_on_boot or admission.fail_on_drift
        _refuse(blocking_complaints(drifts, changed=verified, unsealed=strict or admission.fail_on_drift, seal=seal))
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
    """Read the seal next to `root`. A seal that is damaged or writable by other users is not trusted."""
    path = root.parent / SEAL_FILE
    try:
        seal = read_seal(path)
        findings = check_permissions(path) if seal else []
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
    """Return the settings. Raises ConfigInvalid with the errors of this step and of the earlier steps."""
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
    """Compile the pipelines. Returns the plans, or the errors."""
    if not settings.pipelines:
        return Plans(), []
    # Importing the compiler takes as long as the rest of a load, and many configurations have no pipelines.
    from ductile.pipeline.compile.compile import compile_pipelines

    try:
        hops = settings.service.limits.hops
        return compile_pipelines(settings.pipelines, names=settings.plugins, max_call_depth=hops), []
    except PipelineInvalid as invalid:
        # The message may quote the value of a `${NAME}`.
        mask = Mask({value for _, value in resolved.used})
        return Plans(), [evolve(complaint, message=mask(complaint.message)) for complaint in invalid.complaints]


def _require_consistency(
    settings: Settings,
    grants: Grants,
    places: Mapping[str, Mark],
    root: Path,
    *,
    errors: Iterable[Complaint],
    refused: Iterable[Complaint],
) -> None:
    """Raise ConfigInvalid if the settings violate a rule or an earlier step reported an error."""
    found = [
        Complaint(breach.message, breach.path, None, breach.category)
        for breach in find_violations(settings, grants.by_token)
    ]
    complaints = (*errors, *_placed((*grants.errors, *found, *refused), places, root))
    if complaints:
        raise ConfigInvalid(complaints)


def _placed(complaints: Iterable[Complaint], places: Mapping[str, Mark], root: Path) -> list[Complaint]:
    """Add positions to complaints that have none."""
    return [
        complaint if complaint.mark else evolve(complaint, mark=_place(places, complaint.path) or Mark(str(root), 1))
        for complaint in complaints
    ]


def _place(places: Mapping[str, Mark], path: str) -> Mark | None:
    """Return the position of `path`, or of the closest value that contains it."""
    while path and path not in places:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return places.get(path)


def _unset(settings: Settings, unset: Iterable[Complaint]) -> tuple[list[Complaint], list[Complaint]]:
    """Return unset variables as errors where a secret or an enabled plugin needs them, otherwise as warnings."""
    live = tuple(
        f"plugins.{name}.{part}"
        for name, entry in settings.plugins.items()
        if entry.enabled
        for part in ("config", "env")
    )
    errors: list[Complaint] = []
    warnings: list[Complaint] = []
    for complaint in unset:
        needed = complaint.path.startswith(("api.auth.tokens[", "tokens[", HEARTBEAT_URL, *live))
        (errors if needed else warnings).append(complaint)
    return errors, warnings


def _secret_values(settings: Settings, resolved: Interpolated) -> set[str]:
    """Return tokens, keys, environment values in plugin configuration, and values under secret-looking names."""
    secrets = [token.token for token in settings.api.auth.tokens] + [token.key for token in settings.tokens]
    secrets += [settings.heartbeat.url] if settings.heartbeat is not None else []
    values = {Secret.reveal(secret) for secret in secrets}
    values |= {value for path, value in resolved.used if _is_opaque(path) or path == HEARTBEAT_URL}
    for entry in settings.plugins.values():
        values.update(find_secret_values(entry.config), find_secret_values(entry.env))
        values.update(*(find_secret_values(schedule.payload) for schedule in entry.schedules))
    return values.union(*map(_pipeline_secrets, settings.pipelines))


def _pipeline_secrets(pipeline: Pipeline) -> set[str]:
    """Return values under secret-looking names that a pipeline passes to plugins and peers."""
    steps = [step for _, step in iter_steps(pipeline.steps, "")]
    return find_secret_values([[step.with_, step.relay.with_ if step.relay else None] for step in steps])


def _is_opaque(path: str) -> bool:
    """True for values that Ductile passes to plugins without interpreting them."""
    inside = path.startswith("plugins.") and any(part in path for part in (".config", ".env", ".payload"))
    return inside or path.startswith("pipelines[")


def find_secret_values(data: Any, *, under_secret: bool = False) -> set[str]:
    """Return the values in plugin data that are stored under secret-looking names."""
    if isinstance(data, Mapping):
        parts = [
            find_secret_values(value, under_secret=under_secret or looks_secret(name)) for name, value in data.items()
        ]
    elif isinstance(data, list | tuple):
        parts = [find_secret_values(item, under_secret=under_secret) for item in data]
    else:
        is_secret = under_secret and isinstance(data, str | int) and not is_reference(data)
        return {str(data)} if is_secret else set()
    return set().union(*parts)


def _drift_warnings(drifts: Iterable[Drift], seal: Seal | None) -> list[Complaint]:
    if seal is None:
        return [Complaint("there is no seal; create one with `ductile config lock`", category="integrity")]
    return [drift.complaint for drift in drifts]


def _source_digest(files: Iterable[SourceFile]) -> str:
    hasher = blake3()
    for source in files:
        hasher.update(f"{source.path}\0{source.digest}\0".encode())
    return hasher.hexdigest()
