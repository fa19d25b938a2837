"""The registry: which checks a report runs, and what they may do to the installation."""

import os
from pathlib import Path

import pytest

from ductile.core.errors import ConfigMissing
from ductile.ops.checks.check import Installation, Severity, Where
from ductile.ops.checks.registry import CHECKS, diagnose, run_checks
from tests.config.conftest import ConfigDir, config_dir

__all__ = ["config_dir"]


def names(installation: Installation, *where: Where) -> list[str]:
    return [finding.name for finding in run_checks(installation, *where)]


@pytest.fixture
def home(config_dir: ConfigDir) -> ConfigDir:
    """A sealed configuration without plugins."""
    config_dir.write("config.yaml", "plugin_roots: [plugins]\nstate: {path: data/state.db}\n")
    (config_dir.path / "plugins").mkdir(mode=0o700)
    config_dir.seal()
    return config_dir


def test_check_names_are_unique_and_every_selection_has_checks() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert {check.where for check in CHECKS} == set(Where)


def test_only_the_selected_checks_run(home: ConfigDir) -> None:
    home.path.chmod(0o755)
    installation = Installation(home.root, as_start=False)

    assert "permissions_open" in names(installation, Where.STATE)
    assert "permissions_open" not in names(installation, Where.HOST)
    assert names(installation, Where.LEDGER) == ["db_integrity"]


def test_without_a_ledger_path_no_check_of_the_state_directory_runs(home: ConfigDir) -> None:
    home.write("config.yaml", 'state: {path: "${MISSING}"}\n', mode=0o644)

    found = {finding.name for finding in diagnose(Installation(home.root, as_start=False), with_health=True)}

    assert "config_invalid" in found
    assert "permissions_open" not in found


def test_a_missing_configuration_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigMissing):
        diagnose(Installation(tmp_path / "config.yaml", as_start=False), with_health=True)


def test_a_broken_seal_is_one_finding_or_an_error_for_each_file(home: ConfigDir) -> None:
    """An error as a start reports it. Otherwise the rest of the configuration is checked too."""
    home.write("config.yaml", "include: [tokens.yaml, webhooks.yaml]\nplugins: {ghost: {}}\n")
    for name in ("tokens.yaml", "webhooks.yaml"):
        home.write(name, "")

    as_start = run_checks(Installation(home.root), Where.CONFIG)
    otherwise = run_checks(Installation(home.root, as_start=False), Where.CONFIG)

    assert [found.complaint.category for found in as_start if found.complaint] == ["integrity", "integrity"]
    assert [found.name for found in otherwise if found.severity is Severity.PROBLEM][-1] == "seal_stale"
    assert any("ghost" in found.detail for found in otherwise)


def test_an_interrupted_edit_is_finished_only_as_a_start(home: ConfigDir) -> None:
    note = home.write(".pending", '{"version": 1, "files": []}')

    assert names(Installation(home.root, as_start=False), Where.CONFIG) == ["edit_unfinished"]
    assert note.exists()
    assert "edit_unfinished" not in names(Installation(home.root), Where.CONFIG)
    assert not os.path.lexists(note)


def test_checks_of_the_service_need_its_process(home: ConfigDir) -> None:
    with pytest.raises(ValueError, match="process of the service"):
        run_checks(Installation(home.root), Where.SERVICE)
