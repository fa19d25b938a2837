"""Edit the configuration: apply a change to a draft, check the result, write all files together and seal them.

Nothing is written unless the complete changed configuration loads and passes `checks.examine`. An edit does not approve
other changes to files that a start would refuse.
"""

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from pathlib import Path

from attrs import evolve, frozen

from ductile.config import checksums
from ductile.config.checks.examine import Examination, examine, sealed_plugins
from ductile.config.edit.approve import SealResult, prepare_seal
from ductile.config.edit.staged_edit import Draft
from ductile.config.files.atomic_write import Replacement, finish_pending, lock_config, replace_files
from ductile.config.load.load import Config, load
from ductile.core import files
from ductile.core.errors import Complaint, ConfigInvalid, IntegrityBroken
from ductile.core.secret import HIDDEN, Mask

CONTEXT_LINES = 2
NOTHING_CHANGED = "Nothing was changed."
_ASSIGNED = re.compile(r"^([-+ ]\s*(?:export\s+)?\w+\s*=).*$", re.MULTILINE)


@frozen
class EditResult:
    """The result of an edit or of a dry run."""

    files: tuple[Path, ...]
    diff: str
    """Unified diff without secrets."""
    sealed: tuple[str, ...]
    """Changes to the seal. Lists more than `files` if other files were changed manually."""
    warnings: tuple[Complaint, ...]
    config: Config
    dry_run: bool

    @property
    def status(self) -> str:
        if not self.files:
            return "unchanged"
        return "planned" if self.dry_run else "changed"


def edit(
    root: Path,
    change: Callable[[Draft], Draft],
    *,
    now: datetime,
    dry_run: bool = False,
    approving: Collection[Path] = (),
) -> EditResult:
    """Apply `change` to the configuration at `root` and seal the result. If this raises, nothing was changed.

    `approving` are files that may differ from the seal, because this edit approves them.
    """
    with lock_config(root.parent):
        finish_pending(root.parent)
        before = _load_current(root, approving)
        original = Draft.of(root, os.environ)
        draft = change(original)
        examination, sealed = _check(draft, now)
        changed = tuple(path for path in draft.replaced if draft.replaced[path] != _read_or_none(original, path))
        masks = [examination.config.mask, *([before.mask] if before else [])]
        edited = EditResult(
            files=changed,
            diff="".join(_diffs(draft, original, changed, masks)),
            sealed=tuple(sealed.changes),
            warnings=examination.report.warnings,
            config=examination.config,
            dry_run=dry_run,
        )
        if (changed or approving) and not dry_run:
            _write(draft, original, changed, sealed)
        return edited


def _load_current(root: Path, approving: Collection[Path]) -> Config | None:
    """Load the configuration before the edit. Returns None if it is invalid: the edit may fix it."""
    try:
        return load(root)
    except IntegrityBroken as broken:
        others = [found for found in broken.complaints if not found.mark or Path(found.mark.source) not in approving]
        if others:
            hint = f"{NOTHING_CHANGED} The edit would seal this too; run `ductile config lock --dry-run` to see it."
            raise IntegrityBroken(others, hint=hint) from None
    except ConfigInvalid:
        pass
    return None


def _check(draft: Draft, now: datetime) -> tuple[Examination, SealResult]:
    """Load and examine the changed configuration, and prepare its seal. Raises ConfigInvalid."""
    try:
        config = load(draft.root, environ=draft.environ, verify=False, replaced=draft.replaced)
        # Differences from the old seal are about to be sealed, so they are not reported.
        warnings = tuple(warning for warning in config.warnings if warning.category != checksums.INTEGRITY)
        examination = examine(evolve(config, seal=None, warnings=warnings))
        if examination.report.errors:
            raise ConfigInvalid(examination.report.errors)
        _require_known_plugins(config, examination)
        return examination, prepare_seal(config, examination, now=now)
    except ConfigInvalid as invalid:
        if invalid.hint == ConfigInvalid.hint:
            invalid.hint = NOTHING_CHANGED
        raise


def _require_known_plugins(config: Config, examination: Examination) -> None:
    """Raise IntegrityBroken if a start would refuse a plugin that has changed since it was sealed."""
    service = config.settings.service
    admission = service.admission
    if config.seal is None:
        return
    drifts = checksums.find_plugin_drift(sealed_plugins(config, examination.found), config.seal)
    changed = service.strict_mode or admission.verify_integrity_on_boot or admission.fail_on_drift
    if refused := checksums.blocking_complaints(drifts, changed=changed, unsealed=False, seal=config.seal):
        raise IntegrityBroken(refused)


def _write(draft: Draft, original: Draft, changed: Collection[Path], sealed: SealResult) -> None:
    replacements = [Replacement.of(path, draft.replaced[path]) for path in changed]
    for replacement in replacements:
        if replacement.before != _read_or_none(original, replacement.path):
            raise files.FileRefused(replacement.path, "was modified during the edit", hint="Try again.")
    replace_files(draft.root.parent, [*replacements, Replacement.of(sealed.path, sealed.content)])


def _read_or_none(draft: Draft, path: Path) -> bytes | None:
    try:
        return draft.content(path)
    except files.FileMissing:
        return None


def _diffs(draft: Draft, original: Draft, changed: Collection[Path], masks: list[Mask]) -> Iterator[str]:
    yaml_files = {path for path, _ in draft.sources.documents}
    env_files = {source.path for source in draft.sources.files if source.path not in yaml_files}
    for path in changed:
        before = (_read_or_none(original, path) or b"").decode()
        diff = _diff(path, before, draft.content(path).decode(), 0 if path in env_files else CONTEXT_LINES)
        for mask in masks:
            diff = mask(diff)
        yield _ASSIGNED.sub(rf"\1{HIDDEN}", diff) if path in env_files else diff


def _diff(path: Path, before: str, after: str, context: int) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), str(path), str(path), n=context
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
