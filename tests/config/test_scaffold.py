"""New configurations: private, sealed and valid. Existing files are not replaced."""

import stat
from collections.abc import Callable

import pytest

from ductile.config import scaffold
from ductile.config.files.sources import CONFIG_FILE
from ductile.core.errors import UsageInvalid
from ductile.core.files import FileRefused
from tests.config.conftest import ConfigDir


def create(config_dir: ConfigDir, *, demo: bool = True) -> scaffold.Scaffold:
    planned = scaffold.plan(demo=demo)
    scaffold.require_no_conflicts(config_dir.path, planned, force=False)
    scaffold.write(config_dir.path, planned)
    config_dir.seal()
    return planned


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o027])
def test_all_files_are_private_for_every_umask(
    config_dir: ConfigDir, with_umask: Callable[[int], None], mask: int
) -> None:
    """Directories 0700, files 0600, including created parent directories."""
    with_umask(mask)
    nested = ConfigDir(config_dir.path / "one/two/etc")
    create(nested)
    for path in [config_dir.path / "one", *(config_dir.path / "one").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        is_program = path.name in ("run.sh", "run.py")
        assert mode == (0o700 if path.is_dir() or is_program else 0o600), path


@pytest.mark.parametrize("demo", [False, True])
def test_a_new_configuration_has_no_errors(config_dir: ConfigDir, demo: bool) -> None:
    """And no warnings about seals, permissions or variables."""
    create(config_dir, demo=demo)
    report = config_dir.examine().report
    assert report.errors == ()
    warnings = [warning for warning in report.warnings if str(config_dir.path) in str(warning)]
    assert [warning for warning in warnings if warning.category in ("integrity", "permissions", "env_vars")] == []


def test_the_demo_has_plugins_an_api_and_a_new_token(config_dir: ConfigDir) -> None:
    """The token is stored only in .env."""
    planned = create(config_dir)
    found = config_dir.examine()
    assert set(found.plugins) == {"echo", "github_events"}
    assert found.config.settings.api.enabled is True
    assert planned.token is not None
    assert found.config.settings.api.auth.tokens[0].token.reveal() == planned.token
    assert [name for name, content in config_dir.read_files().items() if planned.token.encode() in content] == [".env"]
    assert scaffold.plan(demo=True).token != planned.token


@pytest.mark.parametrize("name", [CONFIG_FILE, "tokens.yaml", ".env", "ductile.schema.json", "plugins/echo/run.sh"])
def test_existing_files_are_not_replaced(config_dir: ConfigDir, name: str) -> None:
    """The error lists them and suggests --force."""
    config_dir.write(name, "mine")
    before = config_dir.read_files()
    with pytest.raises(UsageInvalid, match="already has") as caught:
        create(config_dir)
    assert "--force" in caught.value.hint
    assert config_dir.read_files() == before


def test_a_dangling_symlink_counts_as_an_existing_file(config_dir: ConfigDir) -> None:
    (config_dir.path / CONFIG_FILE).symlink_to("nowhere")
    with pytest.raises(UsageInvalid, match=CONFIG_FILE):
        create(config_dir)


def test_force_replaces_only_the_files_of_the_scaffold(config_dir: ConfigDir) -> None:
    config_dir.write(CONFIG_FILE, "mine")
    config_dir.write("other.yaml", "mine")
    planned = scaffold.plan(demo=False)
    scaffold.require_no_conflicts(config_dir.path, planned, force=True)
    scaffold.write(config_dir.path, planned)
    assert config_dir.read_files()[CONFIG_FILE] == planned.files[CONFIG_FILE]
    assert config_dir.read_files()["other.yaml"] == b"mine"


def test_a_directory_that_cannot_be_created_is_an_error(config_dir: ConfigDir) -> None:
    config_dir.write("etc", "a file")
    with pytest.raises(FileRefused, match="etc"):
        scaffold.write(config_dir.path / "etc/ductile", scaffold.plan(demo=False))
