"""Changes to the configuration files by command: tried out whole, written together, sealed completely.

The story of one edit. Nothing is written unless the whole configuration with the change in it loads and the doctor
finds no error; an edit never approves what somebody else did to the files where a start would refuse it. Called by the
`config` commands.
"""

import difflib
import os
import re
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from pathlib import Path

from attrs import evolve, frozen

from ductile.config.checks.doctor import Examination, examine, sealed_plugins
from ductile.config.edit.atomic_write import Replacement, finish, only_editor, replace_together
from ductile.config.edit.staged_edit import Draft
from ductile.config.load.load import Config, load
from ductile.config.seal import checksums
from ductile.config.seal.approve import Sealed, seal_of
from ductile.core import files
from ductile.core.errors import Complaint, ConfigInvalid, IntegrityBroken
from ductile.core.secret import HIDDEN, Mask

CONTEXT_LINES = 2
NOTHING_CHANGED = "nothing was changed"
_ASSIGNED = re.compile(r"^([-+ ]\s*(?:export\s+)?\w+\s*=).*$", re.MULTILINE)


@frozen
class Edited:
    """What an edit did, or would do."""

    files: tuple[Path, ...]
    diff: str
    """Unified, without secrets."""
    sealed: tuple[str, ...]
    """How the seal differs from the one before: more than `files` when something else was changed by hand."""
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
) -> Edited:
    """The configuration at `root` is as `change` wants it and sealed, or nothing is different.

    `approving` are files that may differ from the seal because this edit is about approving them.
    """
    with only_editor(root.parent):
        finish(root.parent)
        before = _approved(root, approving)
        original = Draft.of(root, os.environ)
        draft = change(original)
        examination, sealed = _tried(draft, now)
        changed = tuple(path for path in draft.replaced if draft.replaced[path] != _bytes_of(original, path))
        masks = [examination.config.mask, *([before.mask] if before else [])]
        edited = Edited(
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


def _approved(root: Path, approving: Collection[Path]) -> Config | None:
    """The configuration before the edit; None if it is invalid, which an edit may mend."""
    try:
        return load(root)
    except IntegrityBroken as broken:
        others = [found for found in broken.complaints if not found.mark or Path(found.mark.source) not in approving]
        if others:
            hint = f"{NOTHING_CHANGED}: an edit would seal this too; see it with `ductile config lock --dry-run`"
            raise IntegrityBroken(others, hint=hint) from None
    except ConfigInvalid:
        pass
    return None


def _tried(draft: Draft, now: datetime) -> tuple[Examination, Sealed]:
    """The whole configuration as it would be, found good, and the seal for it."""
    try:
        config = load(draft.root, environ=draft.environ, verify=False, replaced=draft.replaced)
        # What differs from the old seal is about to be sealed: no news.
        warnings = tuple(warning for warning in config.warnings if warning.category != checksums.CATEGORY)
        examination = examine(evolve(config, seal=None, warnings=warnings))
        if examination.report.errors:
            raise ConfigInvalid(examination.report.errors)
        _require_known_plugins(config, examination)
        return examination, seal_of(config, examination, now=now)
    except ConfigInvalid as invalid:
        if invalid.hint == ConfigInvalid.hint:
            invalid.hint = NOTHING_CHANGED
        raise


def _require_known_plugins(config: Config, examination: Examination) -> None:
    """Where a start would refuse plugins that have changed since they were sealed, an edit does not seal them."""
    service = config.settings.service
    admission = service.admission
    if config.seal is None:
        return
    drifts = checksums.drift_of_plugins(sealed_plugins(config, examination.found), config.seal)
    changed = service.strict_mode or admission.verify_integrity_on_boot or admission.fail_on_drift
    if refused := checksums.refusals(drifts, changed=changed, unsealed=False, seal=config.seal):
        raise IntegrityBroken(refused)


def _write(draft: Draft, original: Draft, changed: Collection[Path], sealed: Sealed) -> None:
    replacements = [Replacement.of(path, draft.replaced[path]) for path in changed]
    for one in replacements:
        if one.before != _bytes_of(original, one.path):
            raise files.FileRefused(one.path, "was changed while it was edited", hint="try again")
    replace_together(draft.root.parent, [*replacements, Replacement.of(sealed.path, sealed.content)])


def _bytes_of(draft: Draft, path: Path) -> bytes | None:
    try:
        return draft.content(path)
    except files.FileMissing:
        return None


def _diffs(draft: Draft, original: Draft, changed: Collection[Path], masks: list[Mask]) -> Iterator[str]:
    yaml_files = {path for path, _ in draft.sources.documents}
    env_files = {source.path for source in draft.sources.files if source.path not in yaml_files}
    for path in changed:
        before = (_bytes_of(original, path) or b"").decode()
        diff = _diff(path, before, draft.content(path).decode(), 0 if path in env_files else CONTEXT_LINES)
        for mask in masks:
            diff = mask(diff)
        yield _ASSIGNED.sub(rf"\1{HIDDEN}", diff) if path in env_files else diff


def _diff(path: Path, before: str, after: str, context: int) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), str(path), str(path), n=context
    )
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)
